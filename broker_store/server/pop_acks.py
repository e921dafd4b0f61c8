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
from broker_store.server.handler import FAQ, Handlers, Refusal
from broker_store.server.parts import BrokerParts
from broker_store.server.send_group import ANSWERS


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

    def batch_ack(self, command: Command, channel: Channel) -> Command | None:
        """Store that messages of several pops were consumed. All entries are checked before one is
        stored."""
        acks = read_batch_ack(command.body)
        if not acks:
            return command.answer(ResponseCode.NO_MESSAGE, "there are no acks in the body")
        ready = [(ack, self._check_batch(ack, channel)) for ack in acks]
        last: PutResult | None = None
        for ack, offsets in ready:
            if not offsets:
                continue
            put = self._put_batch(ack, offsets)
            if not put.ok:
                return self._refused(command, channel, put)
            last = put
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
        limit_ms = parts.settings.timer_max_delay_sec * 1000
        if not 0 <= header.invisible_time <= limit_ms:
            raise Refusal(
                ResponseCode.INVALID_PARAMETER,
                f"invisibleTime must be 0 to {limit_ms} ms, which timerMaxDelaySec sets",
                "invisible time",
                value=header.invisible_time,
                limit=limit_ms,
            )
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
            raise Refusal(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic[{topic:.255}] not exist, apply first please! {FAQ}",
                "no topic",
            )
        if not 0 <= queue_id < config.read_queues:
            raise Refusal(
                ResponseCode.MESSAGE_ILLEGAL,
                f"queueId[{queue_id}] is illegal, topic:[{topic}] "
                f"topicConfig.readQueueNums:[{config.read_queues}] consumer:[/{channel.remote}]",
                "queue id",
                value=queue_id,
                limit=config.read_queues - 1,
            )

    def _check_revive_queue(self, queue_id: int) -> None:
        if queue_id == ORDER_REVIVE_QUEUE:
            raise Refusal(
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                "pop in order is not supported: this broker keeps no order info of groups",
                "pop in order",
            )
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
