"""Writes pop checkpoints and acknowledgements to the revive log (docs/spec/pop.md section 2).

A record whose delivery time is still to come goes to the timer topic, and the timer delivers it to the revive
log. So these records are as safe as any message, and need no file of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from broker_store.broker.pop.in_flight import InFlight, Left
from broker_store.broker.pop.revive_counts import ACK, CHECKPOINT, ReviveCounts
from broker_store.broker.timer_admission import TimerAdmission
from broker_store.engine.store_protocol import Store
from broker_store.formats import pop_records, properties
from broker_store.formats.pop_records import ACK_TAG, BATCH_ACK_TAG, CHECKPOINT_TAG, PopCheckpoint, PopKey
from broker_store.messages import Message, PutResult, PutStatus

# A pop checkpoint is delivered so long before its messages are visible again.
AHEAD_MS = 1000
# A property of our own in the record of a pop: the queue offset at which the group's next pop begins. A start
# reads it (docs/spec/pop.md section 4).
NEXT_OFFSET = "POP_NEXT"
# Another one: where the log ended before the record. The messages of the pop lie before it. One at their
# queue offsets that lies after it belongs to a topic that was made again (docs/spec/pop.md section 6).
LOG_END = "POP_LOG"


Done = Callable[[PutStatus], None]


class RecordsElsewhere(Protocol):
    """Stores records of pops at another master. `done` is called later with PUT_OK, or with why the record is
    not stored, or not known to be."""

    def put_checkpoint(
        self, checkpoint: PopCheckpoint, queue_id: int, done: Done, *, changed: PopKey | None = None
    ) -> None:
        """Store a pop checkpoint. With `changed` it gives a message of that pop another invisible time, and
        goes where the record of that pop is."""

    def put_ack(self, key: PopKey, offsets: Sequence[int], queue_id: int, due_ms: int, done: Done) -> None:
        """Store an acknowledgement of messages of a pop checkpoint, where its record is."""

    def is_over(self, key: PopKey, offset: int) -> bool:
        """Return whether a message of a pop that was stored elsewhere was acknowledged since, or changed."""


class ReviveLog:
    """`host` returns the broker's address in records. `in_flight` notes what is stored. `elsewhere` is set
    while this broker is a slave that acts for its master: a slave appends nothing itself."""

    def __init__(
        self,
        store: Store,
        admission: TimerAdmission,
        *,
        topic: str,
        queues: int,
        clock: Callable[[], int],
        host: Callable[[], tuple[bytes, int]],
    ):
        self._store, self._admission, self._clock, self._host = store, admission, clock, host
        self.topic, self.queues = topic, queues
        self.in_flight = InFlight()
        self.counts = ReviveCounts()
        self.elsewhere: RecordsElsewhere | None = None
        self._of_slave: tuple[RecordsElsewhere, int] | None = None
        self._turn = 0

    def had_slave(self, elsewhere: RecordsElsewhere, until_ms: int) -> None:
        """Have acknowledgements of pops before a time stored elsewhere too: a slave may have given the
        messages while this master was gone."""
        self._of_slave = elsewhere, until_ms

    def of_slave(self, key: PopKey) -> RecordsElsewhere | None:
        """Return where to store acknowledgements of a pop that a slave may have answered, else None."""
        if self._of_slave is None or key.pop_ms >= self._of_slave[1] or self.in_flight.is_known(key):
            return None
        return self._of_slave[0]

    def next_queue(self) -> int:
        """Return the queue for the records of the next pop."""
        self._turn = (self._turn + 1) % self.queues
        return self._turn

    def put_checkpoint(
        self,
        checkpoint: PopCheckpoint,
        queue_id: int,
        next_offset: int | None = None,
        *,
        client: str | None = None,
        changed: PopKey | None = None,
    ) -> PutResult:
        """Store a pop checkpoint. `next_offset` is where the group's next pop of the queue begins. `client`
        gets the messages, None if it is not known. If this is not the record of a pop but of a changed
        invisible time, `changed` is the pop of before, and there is no `next_offset`."""
        values = _of_checkpoint(checkpoint) | {LOG_END: str(self._store.log.wrote)}
        if next_offset is not None:
            values[NEXT_OFFSET] = str(next_offset)
        put = self._put(pop_records.encode_checkpoint(checkpoint), queue_id, values)
        key = checkpoint.key
        self.counts.stored[key.group][key.topic, CHECKPOINT, put.status] += 1
        if put.ok:
            self.in_flight.given(checkpoint, queue_id, client, changed=changed)
        return put

    def put_ack(
        self,
        key: PopKey,
        offsets: Sequence[int],
        queue_id: int,
        due_ms: int,
        why: Left | None = Left.ACKNOWLEDGED,
    ) -> PutResult:
        """Store an acknowledgement of messages of a pop checkpoint. `due_ms` is when they would be visible
        again. `why` is the cause; None if `in_flight` has noted it."""
        put = self._put(*_of_ack(key, offsets, queue_id, due_ms))
        self.counts.stored[key.group][key.topic, ACK, put.status] += 1
        if put.ok and why is not None:
            self.in_flight.left(key, offsets, queue_id, why)
        return put

    def checkpoint_for_other(self, checkpoint: PopCheckpoint, queue_id: int) -> Message:
        """Return the record of a pop checkpoint as another master takes it."""
        return self._message(pop_records.encode_checkpoint(checkpoint), queue_id, _of_checkpoint(checkpoint))

    def ack_for_other(self, key: PopKey, offsets: Sequence[int], queue_id: int, due_ms: int) -> Message:
        """Return the record of an acknowledgement as another master takes it."""
        return self._message(*_of_ack(key, offsets, queue_id, due_ms))

    def _message(self, body: bytes, queue_id: int, values: dict[str, str]) -> Message:
        host = self._host()
        return Message(
            self.topic,
            queue_id,
            body,
            properties.encode(values),
            born_timestamp=self._clock(),
            born_host=host,
            store_host=host,
        )

    def _put(self, body: bytes, queue_id: int, values: dict[str, str]) -> PutResult:
        message = self._message(body, queue_id, values)
        refused = self._admission.schedule(message, values)
        return PutResult(refused) if refused is not None else self._store.appender.put(message)


def _of_checkpoint(checkpoint: PopCheckpoint) -> dict[str, str]:
    """Return the properties that the record of a pop checkpoint has at each broker."""
    return {
        properties.TAGS: CHECKPOINT_TAG,
        properties.UNIQUE_KEY: pop_records.checkpoint_id(checkpoint.key),
        properties.TIMER_DELIVER_MS: str(checkpoint.revive_ms - AHEAD_MS),
    }


def _of_ack(
    key: PopKey, offsets: Sequence[int], queue_id: int, due_ms: int
) -> tuple[bytes, int, dict[str, str]]:
    """Return body, queue id and properties of the record of an acknowledgement."""
    if len(offsets) == 1:
        body, tag = pop_records.encode_ack(key, offsets[0]), ACK_TAG
        unique_key = pop_records.ack_id(key, offsets[0])
    else:
        body, tag = pop_records.encode_batch_ack(key, offsets), BATCH_ACK_TAG
        unique_key = pop_records.batch_ack_id(key, offsets)
    values = {
        properties.TAGS: tag,
        properties.UNIQUE_KEY: unique_key,
        properties.TIMER_DELIVER_MS: str(due_ms),
    }
    return body, queue_id, values
