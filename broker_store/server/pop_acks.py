"""Acknowledgements of popped messages, and changes of their invisible time: 200051, 200151, 200053, 200056
(docs/spec/pop.md section 5)."""

from __future__ import annotations

from collections.abc import Sequence

from broker_store.formats.pop_records import PopCheckpoint, PopKey
from broker_store.messages import PutResult, PutStatus
from broker_store.protocol.codes import RequestCode, ResponseCode
from broker_store.protocol.command import Command
from broker_store.protocol.headers import read_header
from broker_store.protocol.pop import (
    ORDER_REVIVE_QUEUE,
    BatchAck,
    Receipt,
    read_batch_ack,
    read_receipt,
    topic_of,
)
from broker_store.server.channel import Channel
from broker_store.server.handler import Handlers, Refusal, no_queue, no_topic
from broker_store.server.parts import BrokerParts
from broker_store.server.pop_checks import check_invisible_time, no_order
from broker_store.server.send_group import ANSWERS
from broker_store.turns import in_turns

# Puts of a batch of acknowledgements between two readings of the clock.
PUTS_AT_ONCE = 8


def not_stored(status: PutStatus) -> tuple[int, str]:
    """Return the code and the text of an answer when a record of the revive log was not stored, or is not
    known to be synced."""
    code, _ = ANSWERS.get(status, (ResponseCode.SYSTEM_ERROR, None))
    return code, f"the record of this request in the revive log is not stored: {status.name}"


class PopAcks:
    """The handler of acknowledgements. They are answered when their records are confirmed."""

    def __init__(self, parts: BrokerParts):
        self._parts = parts

    def handlers(self) -> Handlers:
        return {
            RequestCode.ACK_MESSAGE: self.ack,
            RequestCode.BATCH_ACK_MESSAGE: self.batch_ack,
            RequestCode.CHANGE_MESSAGE_INVISIBLETIME: self.change_invisible_time,
            RequestCode.POP_ROLLBACK: self.roll_back,
        }

    def ack(self, command: Command, channel: Channel) -> None:
        """Store that a message was consumed."""
        header = read_header(RequestCode.ACK_MESSAGE, command.fields)
        receipt = read_receipt(header.extra_info)
        self._check_queue(header.topic, header.queue_id, channel)
        self._check_revive_queue(receipt.revive_queue)
        self._check_offset(header.topic, header.queue_id, header.offset, is_after=False)
        put = self._put_ack(header, receipt)
        self._answer_later(command, channel, put)

    def _put_ack(self, header, receipt: Receipt) -> PutResult:
        key = PopKey(
            header.topic,
            header.consumer_group,
            header.queue_id,
            receipt.start_offset,
            receipt.pop_ms,
            receipt.broker_name,
        )
        due_ms = receipt.pop_ms + receipt.invisible_ms
        return self._parts.revive_log.put_ack(key, [header.offset], receipt.revive_queue, due_ms)

    async def batch_ack(self, command: Command, channel: Channel) -> Command | None:
        """Store that messages of several pops were consumed. All entries are checked before one is stored.
        In turns: each entry is a record."""
        acks = read_batch_ack(command.body)
        if not acks:
            return command.answer(ResponseCode.NO_MESSAGE, "there are no acks in the body")
        ready: list[tuple[BatchAck, list[int]]] = []
        async for some in in_turns(acks):
            checked = [(ack, self._check_batch(ack, channel)) for ack in some]
            ready += [entry for entry in checked if entry[1]]
        last: PutResult | None = None
        async for entries in in_turns(ready, PUTS_AT_ONCE):
            for ack, offsets in entries:
                last = self._put_batch(ack, offsets)
                if not last.ok:
                    return self._refused(command, channel, last)
        if last is None:
            return command.answer(ResponseCode.NO_MESSAGE, "no offset of the acks is in its queue")
        self._answer_later(command, channel, last)
        return None

    def _check_batch(self, ack: BatchAck, channel: Channel) -> list[int]:
        """Return the offsets of an entry that are in its queue. Raises Refusal."""
        topic = topic_of(ack.topic, ack.group, ack.kind)
        self._check_queue(topic, ack.queue_id, channel)
        self._check_revive_queue(ack.revive_queue)
        reads = self._parts.store.reads
        low, high = reads.min_offset(topic, ack.queue_id), reads.max_offset(topic, ack.queue_id)
        offsets = [ack.start_offset + diff for diff in ack.diffs]
        return [offset for offset in offsets if low <= offset <= high]

    def _put_batch(self, ack: BatchAck, offsets: Sequence[int]) -> PutResult:
        key = PopKey(
            topic_of(ack.topic, ack.group, ack.kind),
            ack.group,
            ack.queue_id,
            ack.start_offset,
            ack.pop_ms,
            self._parts.broker_name,
        )
        return self._parts.revive_log.put_ack(key, offsets, ack.revive_queue, ack.pop_ms + ack.invisible_ms)

    def change_invisible_time(self, command: Command, channel: Channel) -> Command | None:
        """Give a message another invisible time, from now on: a new pop checkpoint, then an acknowledgement
        of the message in the old one."""
        parts = self._parts
        header = read_header(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, command.fields)
        receipt = read_receipt(header.extra_info)
        self._check_queue(header.topic, header.queue_id, channel)
        self._check_revive_queue(receipt.revive_queue)
        self._check_offset(header.topic, header.queue_id, header.offset, is_after=True)
        check_invisible_time(parts, header.invisible_time, least=0)
        # Two changes in one millisecond must not have the same key: the second acknowledges the first.
        pop_ms = max(parts.clock(), receipt.pop_ms + 1)
        key = PopKey(
            header.topic,
            header.consumer_group,
            header.queue_id,
            header.offset,
            pop_ms,
            receipt.broker_name,
        )
        checkpoint = PopCheckpoint(key, header.invisible_time, (0,))
        put = parts.revive_log.put_checkpoint(checkpoint, receipt.revive_queue)
        if not put.ok:
            return self._refused(command, channel, put)
        put = self._put_ack(header, receipt)
        if not put.ok:
            return self._refused(command, channel, put)
        fields = {
            "popTime": str(pop_ms),
            "invisibleTime": str(header.invisible_time),
            "reviveQid": str(receipt.revive_queue),
        }
        self._answer_later(command, channel, put, fields)
        return None

    def roll_back(self, command: Command, channel: Channel) -> Command:
        """Return success: the records of pops are in the log already, which is what Apache's tool asks
        for."""
        return command.answer()

    # Checks

    def _check_queue(self, topic: str, queue_id: int, channel: Channel) -> None:
        config = self._parts.topics.get(topic)
        if config is None:
            raise no_topic(topic)
        if not 0 <= queue_id < config.read_queues:
            raise no_queue(ResponseCode.MESSAGE_ILLEGAL, topic, queue_id, config.read_queues, channel)

    def _check_revive_queue(self, queue_id: int) -> None:
        if queue_id == ORDER_REVIVE_QUEUE:
            raise no_order()
        queues = self._parts.revive.queues
        if not 0 <= queue_id < queues:
            raise Refusal(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the receipt names revive queue {queue_id}, there are {queues}",
                "receipt",
                value=queue_id,
                limit=queues - 1,
            )

    def _check_offset(self, topic: str, queue_id: int, offset: int, *, is_after: bool) -> None:
        """Raise Refusal for an offset that the queue does not have. For an acknowledgement Apache's broker
        accepts the end of the queue too."""
        reads = self._parts.store.reads
        low, high = reads.min_offset(topic, queue_id), reads.max_offset(topic, queue_id)
        if offset < low or offset > high - is_after:
            raise Refusal(
                ResponseCode.NO_MESSAGE,
                f"offset {offset} is not in queue {queue_id} of {topic}, which has {low} to {high}",
                "offset of a receipt",
                value=offset,
                limit=high,
            )

    # Answers

    def _answer_later(
        self, command: Command, channel: Channel, put: PutResult, fields: dict[str, str] | None = None
    ) -> None:
        if not put.ok:
            self._write(command, channel, self._refused(command, channel, put))
            return

        def confirmed(status: PutStatus) -> None:
            if status is PutStatus.PUT_OK:
                self._write(command, channel, command.answer(0, None, fields))
            else:
                self._write(command, channel, self._refused(command, channel, PutResult(status)))

        self._parts.store.confirmation.when_confirmed(put.log_end, confirmed)

    def _refused(self, command: Command, channel: Channel, put: PutResult) -> Command:
        """Return the answer to a request whose record was not stored."""
        code, remark = not_stored(put.status)
        self._parts.statistics.refuse(put.status.name, who=channel.remote, said=remark)
        return command.answer(code, remark)

    def _write(self, command: Command, channel: Channel, answer: Command) -> None:
        if not command.is_oneway and not channel.closed:
            channel.write(answer)
