"""Acknowledgements of popped messages, and changes of their invisible time, of both ports (docs/spec/pop.md
sections 5 and 8). Both are records of the revive log, or of the log of pops in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

from broker_store.broker.pop.in_flight import Left
from broker_store.broker.pop.ordered import Changed
from broker_store.broker.pop.positions import Place
from broker_store.broker.pop.revive_log import RecordsElsewhere
from broker_store.formats.names import check_group, popped_topic
from broker_store.formats.pop_records import PopCheckpoint, PopKey
from broker_store.messages import PutResult, PutStatus
from broker_store.protocol.codes import ResponseCode
from broker_store.protocol.pop import ORDER_REVIVE_QUEUE, BatchAck, Receipt, topic_of
from broker_store.server.ack_group import AckTarget
from broker_store.server.handler import Refusal, no_group, no_queue, no_topic
from broker_store.server.parts import BrokerParts
from broker_store.server.pop_checks import check_invisible_time, check_order, internal_topic
from broker_store.server.send_group import ANSWERS


def not_stored(status: PutStatus) -> tuple[int, str]:
    """Return the code and the text of an answer when a record of the revive log was not stored, or is not
    known to be synced."""
    code, why = ANSWERS.get(status, (ResponseCode.SYSTEM_ERROR, None))
    if status is not PutStatus.PUT_TO_REMOTE_BROKER_FAIL:
        why = status.name
    return code, f"the record of this request in the revive log is not stored: {why}"


def not_given(place: Place, offsets: Sequence[int]) -> Refusal:
    """Return the refusal of a request for messages that the group was not given in order."""
    group, topic, queue_id = place
    return Refusal(
        ResponseCode.MESSAGE_ILLEGAL,
        f"offset is illegal: group {group} was not given offset {offsets[0]} of queue {queue_id} of {topic} "
        "in order, or its offset was reset since",
        "receipt of a pop in order",
        value=offsets[0],
    )


class Popped(NamedTuple):
    """A message that a group popped. `topic` is the one that it lies in, the normal or a retry topic."""

    topic: str
    group: str
    queue_id: int
    offset: int
    receipt: Receipt

    @property
    def target(self) -> AckTarget:
        """The pop checkpoint that an acknowledgement belongs to."""
        receipt = self.receipt
        key = PopKey(
            self.topic,
            self.group,
            self.queue_id,
            receipt.start_offset,
            receipt.pop_ms,
            receipt.broker_name,
        )
        return AckTarget(key, receipt.revive_queue, receipt.pop_ms + receipt.invisible_ms)

    @property
    def place(self) -> Place:
        return self.group, self.topic, self.queue_id


class PopAcks:
    """Stores acknowledgements and changes of invisible times."""

    def __init__(self, parts: BrokerParts):
        self._parts = parts

    def ack(self, popped: Popped, remote: str, done: Callable[[PutStatus], None]) -> None:
        """Store that a message was consumed, with the others of this turn, and call `done` when that is
        confirmed, or when it could not be stored. `remote` is the client's address. Raises Refusal."""
        self.check(popped, remote, is_after=False)
        if popped.receipt.is_order:
            unknown = self._parts.ordered.unknown(popped.place, [popped.offset], popped.receipt.pop_ms)
            if unknown:
                raise not_given(popped.place, unknown)
        self._parts.acks.add(popped.target, popped.offset, done)

    def check_batch(self, ack: BatchAck, remote: str) -> list[int]:
        """Return the offsets of a batch's entry that are in its queue. Raises Refusal."""
        topic = topic_of(ack.topic, ack.group, ack.kind)
        self._check_queue(topic, ack.group, ack.queue_id, remote)
        self._check_revive_queue(ack.revive_queue)
        self.check_group(ack.group)
        if ack.revive_queue == ORDER_REVIVE_QUEUE:
            check_order(self._parts)
        else:
            self._check_invisible_time(self._target_of(ack), ack.invisible_ms)
        reads = self._parts.store.reads
        low, high = reads.min_offset(topic, ack.queue_id), reads.max_offset(topic, ack.queue_id)
        offsets = [ack.start_offset + diff for diff in ack.diffs]
        return [offset for offset in offsets if low <= offset <= high]

    async def put_batch(self, ack: BatchAck, offsets: Sequence[int]) -> Changed:
        """Store that messages of one pop checkpoint, or of one pop in order, were consumed. What goes
        elsewhere is stored when this returns."""
        target, revive_log = self._target_of(ack), self._parts.revive_log
        elsewhere = of_slave = revive_log.elsewhere
        put = Changed(None, [])
        if elsewhere is None:
            of_slave = revive_log.of_slave(target.key)
            put = self._parts.acks.put(target, offsets)
        if of_slave is None or (put.put is not None and not put.put.ok):
            return put
        stored: asyncio.Future[PutStatus] = asyncio.get_running_loop().create_future()
        of_slave.put_ack(target.key, offsets, target.revive_queue, target.due_ms, stored.set_result)
        status = await stored
        return put if elsewhere is None else Changed(PutResult(status), [])

    def _target_of(self, ack: BatchAck) -> AckTarget:
        topic = topic_of(ack.topic, ack.group, ack.kind)
        key = PopKey(topic, ack.group, ack.queue_id, ack.start_offset, ack.pop_ms, self._parts.broker_name)
        return AckTarget(key, ack.revive_queue, ack.pop_ms + ack.invisible_ms)

    def change_invisible_time(
        self, popped: Popped, invisible_ms: int, remote: str, done: Callable[[PutStatus, Receipt], None]
    ) -> Receipt:
        """Give a message another invisible time, from now on: a new pop checkpoint, then an acknowledgement
        of the message in the old one. Return the new receipt.

        `done` is called with it when both are confirmed, or at once if one was not stored. Raises Refusal.
        """
        parts, receipt = self._parts, popped.receipt
        self.check(popped, remote, is_after=True)
        check_invisible_time(parts, invisible_ms, least=0)
        parts.acks.store_now(popped.target)
        if receipt.is_order:
            return self._change_in_order(popped, invisible_ms, done)
        if self.is_visible(popped):
            raise Refusal(
                ResponseCode.MESSAGE_ILLEGAL,
                f"offset {popped.offset} of queue {popped.queue_id} of {popped.topic} is not invisible to "
                f"group {popped.group} by this receipt: it was acknowledged, changed, or came again",
                "message that is not invisible",
                value=popped.offset,
            )
        # Two changes in one millisecond must not have the same key: the second acknowledges the first.
        pop_ms = max(parts.clock(), receipt.pop_ms + 1)
        key = PopKey(popped.topic, popped.group, popped.queue_id, popped.offset, pop_ms, receipt.broker_name)
        changed = receipt._replace(
            start_offset=popped.offset, pop_ms=pop_ms, invisible_ms=invisible_ms, offset=popped.offset
        )
        checkpoint = PopCheckpoint(key, invisible_ms, (0,))
        old = popped.target
        if parts.revive_log.elsewhere is not None:
            self._change_elsewhere(
                parts.revive_log.elsewhere, checkpoint, old, lambda status: done(status, changed)
            )
            return changed
        put = parts.revive_log.put_checkpoint(checkpoint, receipt.revive_queue, changed=old.key)
        if put.ok:
            put = parts.revive_log.put_ack(
                old.key, [popped.offset], old.revive_queue, old.due_ms, Left.CHANGED
            )
        self._when_confirmed(put, lambda status: done(status, changed))
        return changed

    def _change_elsewhere(
        self,
        elsewhere: RecordsElsewhere,
        checkpoint: PopCheckpoint,
        old: AckTarget,
        done: Callable[[PutStatus], None],
    ) -> None:
        """Store the records of a changed invisible time at another master, the acknowledgement last."""
        offset = checkpoint.key.start_offset

        def stored(status: PutStatus) -> None:
            if status is not PutStatus.PUT_OK:
                done(status)
            else:
                elsewhere.put_ack(old.key, [offset], old.revive_queue, old.due_ms, done)

        elsewhere.put_checkpoint(checkpoint, old.revive_queue, stored, changed=old.key)

    def _change_in_order(
        self, popped: Popped, invisible_ms: int, done: Callable[[PutStatus, Receipt], None]
    ) -> Receipt:
        """Give a message that was popped in order another invisible time. Its receipt keeps the pop time."""
        receipt, now_ms = popped.receipt, self._parts.clock()
        visible_ms = now_ms + invisible_ms
        if receipt.pop_ms > now_ms:
            state = self._parts.ordered.state(popped.place)
            if state is None or state.pop_ms != receipt.pop_ms:  # not one before the clock was set back
                raise not_given(popped.place, [popped.offset])
        new = receipt._replace(invisible_ms=max(0, visible_ms - receipt.pop_ms))
        changed = self._parts.ordered.change(popped.place, popped.offset, receipt.pop_ms, visible_ms)
        self._when_changed(popped.place, changed, lambda status: done(status, new))
        return new

    def _when_changed(self, place: Place, changed: Changed, done: Callable[[PutStatus], None]) -> None:
        """Call `done` when a change of messages popped in order is confirmed. If nothing changed, what the
        request repeats may not be confirmed yet. Raises Refusal."""
        if changed.unknown:
            raise not_given(place, changed.unknown)
        if changed.put is None:
            self._parts.store.confirmation.when_confirmed(self._parts.store.log.wrote, done)
        else:
            self._when_confirmed(changed.put, done)

    def _when_confirmed(self, put: PutResult, done: Callable[[PutStatus], None]) -> None:
        if put.ok:
            self._parts.store.confirmation.when_confirmed(put.log_end, done)
        else:
            done(put.status)

    # Checks

    def is_visible(self, popped: Popped) -> bool:
        """Return whether a message is known not to be invisible to its group by its receipt: it was
        acknowledged or changed, came again, or was never popped so."""
        parts, receipt = self._parts, popped.receipt
        if receipt.is_order:
            return not parts.ordered.is_invisible(popped.place, popped.offset, receipt.pop_ms)
        in_flight, key = parts.revive_log.in_flight, popped.target.key
        if parts.revive_log.elsewhere is not None:
            return parts.revive_log.elsewhere.is_over(key, popped.offset)
        return (
            not in_flight.is_invisible(key, popped.offset, receipt.revive_queue)
            and parts.revive.backlog_is_read
            and not in_flight.doubt(popped.group, parts.clock())
        )

    def check(self, popped: Popped, remote: str, *, is_after: bool) -> None:
        """Raise Refusal for a receipt that this broker cannot have given: its topic, queue, revive queue,
        broker, offset or group does not exist. `is_after` excludes the end of the queue."""
        receipt = popped.receipt
        self._check_queue(popped.topic, popped.group, popped.queue_id, remote)
        self._check_revive_queue(receipt.revive_queue)
        if receipt.is_order:
            check_order(self._parts)
        self.check_broker(receipt.broker_name)
        self._check_offset(popped.topic, popped.queue_id, popped.offset, is_after=is_after)
        self.check_group(popped.group)
        if not receipt.is_order:
            self._check_invisible_time(popped.target, receipt.invisible_ms)

    def check_broker(self, name: str) -> None:
        """Raise Refusal for the name of another broker."""
        if name != self._parts.broker_name:
            raise Refusal(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the receipt is of broker {name:.120}, this is {self._parts.broker_name}",
                "receipt of another broker",
            )

    def _check_invisible_time(self, target: AckTarget, invisible_ms: int) -> None:
        """Raise Refusal if the pop of a receipt is known, and had another invisible time, or if no pop makes
        a message invisible for so long. A record that is due at another time than its pop checkpoint would
        come too late for it."""
        limit_ms = self._parts.settings.timer_max_delay_sec * 1000
        if target.due_ms - self._parts.clock() > limit_ms:
            raise Refusal(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the receipt ends more than {limit_ms} ms ahead, which timerMaxDelaySec does not allow",
                "receipt",
                value=target.due_ms,
                limit=limit_ms,
            )
        given_ms = self._parts.revive_log.in_flight.invisible_ms(target.key)
        if given_ms is not None and given_ms != invisible_ms:
            raise Refusal(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the receipt has an invisible time of {invisible_ms} ms, its pop had {given_ms}",
                "receipt",
                value=invisible_ms,
                limit=given_ms,
            )

    def check_group(self, group: str) -> None:
        """Raise Refusal for a group that does not exist, NameError_ for a name that no group may have."""
        if self._parts.groups.get(group) is None:
            check_group(group)
            raise no_group(group)

    def _check_queue(self, topic: str, group: str, queue_id: int, remote: str) -> None:
        config = self._parts.topics.get(topic)
        if config is None:
            raise no_topic(topic)
        if self._parts.topics.is_internal(popped_topic(topic, group)):
            raise internal_topic(topic)
        if not 0 <= queue_id < config.read_queues:
            raise no_queue(ResponseCode.MESSAGE_ILLEGAL, topic, queue_id, config.read_queues, remote)

    def _check_revive_queue(self, queue_id: int) -> None:
        queues = self._parts.revive.queues
        if not 0 <= queue_id < queues and queue_id != ORDER_REVIVE_QUEUE:
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
