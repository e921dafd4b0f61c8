"""Finds the pops of before the start whose messages are invisible still, for InFlight.

Their records wait in the timer topic. It is read from its end, a few records a step, until as many records of
the revive log are found as wait on the timer wheel, or MAX_RECORDS are read. What the timer delivered before
is found by the reader of the revive log (revive.py).
"""

from __future__ import annotations

from collections.abc import Callable

from broker_store.broker.pop.in_flight import InFlight
from broker_store.broker.pop.log_records import checkpoint_of, read_ack
from broker_store.broker.pop.others import PopsOfOthers
from broker_store.broker.pop.positions import PopPositions
from broker_store.broker.timer import Timer
from broker_store.broker.timer_request import parse_long
from broker_store.engine.store_protocol import Store
from broker_store.errors import FormatError
from broker_store.formats import properties, record
from broker_store.formats.java_hash import java_hash
from broker_store.formats.pop_records import ACK_TAG, BATCH_ACK_TAG, CHECKPOINT_TAG
from broker_store.formats.timer_log import TIMER_TOPIC
from broker_store.messages import GetRequest, GetResult, GetStatus

# Of the timer topic, from its end.
MAX_RECORDS = 500_000
# One step takes the loop for a millisecond or two; so this search takes at most a tenth of it.
RECORDS_PER_STEP = 64
STEP_INTERVAL_MS = 15
BUSY_RETRY_MS = 200
_TAGS = frozenset(map(java_hash, (CHECKPOINT_TAG, ACK_TAG, BATCH_ACK_TAG)))


class EarlierPops:
    """The search. `step` is for the loop's thread; `topic` is the revive log."""

    def __init__(
        self,
        store: Store,
        timer: Timer,
        positions: PopPositions,
        in_flight: InFlight,
        others: PopsOfOthers,
        *,
        topic: str,
    ):
        self._store, self._timer, self._positions = store, timer, positions
        self._in_flight, self._others, self._topic = in_flight, others, topic
        self._low = self._begin = self._at = self._end = 0  # a window [begin, end), read up to `at`
        self._left = 0  # records of the revive log that are not found yet, at most
        self._waits_from_ms = 0  # what is due before it was delivered before the start
        self._is_done = True
        self.on_ready: Callable[[], None] = lambda: None

    def start(self) -> None:
        """Begin the search. Any thread, after the start of the timer and before the first pop."""
        facts = self._timer.facts()
        self._left = facts.topics.get(self._topic, 0) + facts.not_enqueued
        if not self._timer.enabled or not self._left:
            return
        reads = self._store.reads
        end = reads.max_offset(TIMER_TOPIC, 0)
        self._low = max(reads.min_offset(TIMER_TOPIC, 0), end - MAX_RECORDS)
        self._waits_from_ms = facts.read_ms
        self._begin = self._at = self._end = end
        self._is_done = False
        self._in_flight.begin_search()

    def step(self, now_ms: int) -> int | None:
        """Read some records. Return when to call again (ms); None at the end, or when `on_ready` will request
        it."""
        if self._is_done:
            return None
        if self._at >= self._end:
            if self._left <= 0 or self._begin <= self._low:
                self._finish()
                return None
            self._end = self._begin
            self._begin = self._at = max(self._low, self._end - RECORDS_PER_STEP)
        request = GetRequest(TIMER_TOPIC, 0, self._at, self._end - self._at, tag_codes=_TAGS)
        result = self._store.reads.get(request, self._arrived)
        return None if result is None else now_ms + self._take(result)

    def _arrived(self, result: GetResult) -> None:
        self._take(result)
        self.on_ready()

    def _take(self, result: GetResult) -> int:
        """Take the records of a read; return the time until the next one (ms)."""
        following: int | None = result.next_offset
        if result.status is GetStatus.FOUND:
            for stored in record.decode_all(result.body, check_crc=False):
                if stored.queue_offset < self._end:
                    self._take_record(stored)
        else:
            following = result.skipped_to(self._at)
        if following is None:
            return BUSY_RETRY_MS
        self._at = following
        return STEP_INTERVAL_MS

    def _take_record(self, stored: record.StoredMessage) -> None:
        pairs = stored.properties
        due_ms = parse_long(pairs.get(properties.TIMER_DELIVER_MS)) or 0
        if pairs.get(properties.REAL_TOPIC) != self._topic or due_ms < self._waits_from_ms:
            return
        self._left -= 1
        queue_id = parse_long(pairs.get(properties.REAL_QUEUE_ID)) or 0
        if stored.tags == CHECKPOINT_TAG:
            checkpoint = checkpoint_of(stored)
            if checkpoint is None or self._others.has_popped(checkpoint.key, stored):
                return
            key = checkpoint.key
            if stored.log_offset >= self._positions.deleted_before(key.group, key.topic):
                self._in_flight.found(checkpoint, queue_id)
            return
        try:
            ack = read_ack(stored)
        except FormatError:
            return
        self._in_flight.left(ack.key, ack.offsets, queue_id, None)

    def _finish(self) -> None:
        self._is_done = True
        is_whole = self._left <= 0 or self._low <= self._store.reads.min_offset(TIMER_TOPIC, 0)
        self._in_flight.end_search(
            ""
            if is_whole
            else f"of what was popped before the start, the newest {MAX_RECORDS:,} records were read"
        )
