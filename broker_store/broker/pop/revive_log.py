"""Writes pop checkpoints and acknowledgements to the revive log (docs/spec/pop.md section 2).

A record whose delivery time is still to come goes to the timer topic, and the timer delivers it to the revive
log. So these records are as safe as any message, and need no file of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from broker_store.broker.pop.in_flight import InFlight, Left
from broker_store.broker.pop.revive_counts import ACK, CHECKPOINT, ReviveCounts
from broker_store.broker.timer_admission import TimerAdmission
from broker_store.engine.store_protocol import Store
from broker_store.formats import pop_records, properties
from broker_store.formats.pop_records import ACK_TAG, BATCH_ACK_TAG, CHECKPOINT_TAG, PopCheckpoint, PopKey
from broker_store.messages import Message, PutResult

# A pop checkpoint is delivered so long before its messages are visible again.
AHEAD_MS = 1000
# A property of our own in the record of a pop: the queue offset at which the group's next pop begins. A start
# reads it (docs/spec/pop.md section 4).
NEXT_OFFSET = "POP_NEXT"
# Another one: where the log ended before the record. The messages of the pop lie before it. One at their
# queue offsets that lies after it belongs to a topic that was made again (docs/spec/pop.md section 6).
LOG_END = "POP_LOG"


class ReviveLog:
    """`host` returns the broker's address in records. `in_flight` notes what is stored."""

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
        self._turn = 0

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
        values = {
            properties.TAGS: CHECKPOINT_TAG,
            properties.UNIQUE_KEY: pop_records.checkpoint_id(checkpoint.key),
            properties.TIMER_DELIVER_MS: str(checkpoint.revive_ms - AHEAD_MS),
            LOG_END: str(self._store.log.wrote),
        }
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
        put = self._put(body, queue_id, values)
        self.counts.stored[key.group][key.topic, ACK, put.status] += 1
        if put.ok and why is not None:
            self.in_flight.left(key, offsets, queue_id, why)
        return put

    def _put(self, body: bytes, queue_id: int, values: dict[str, str]) -> PutResult:
        host = self._host()
        message = Message(
            self.topic,
            queue_id,
            body,
            properties.encode(values),
            born_timestamp=self._clock(),
            born_host=host,
            store_host=host,
        )
        refused = self._admission.schedule(message, values)
        return PutResult(refused) if refused is not None else self._store.appender.put(message)
