"""Puts the messages of the timer topic's queue on the wheel, in the order of that queue.

    queue    0 ......................... offset .......... until ......... maximum
                                         | read next       | a slave's master is here

A slave puts on its wheel what its master has on its own, and nothing further: `until`. It keeps no slot in
memory, since it delivers none. What was delivered by another broker, or by an earlier run that lost its
units, is left out: `delivered`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from broker_store.broker.loaded_slots import LoadedSlots
from broker_store.broker.skipped_records import SkippedTimerRecords
from broker_store.broker.step_pacing import RETRY_MS
from broker_store.broker.timer_counts import TimerCounts
from broker_store.broker.timer_request import second_of, wheel_entry
from broker_store.engine.store_protocol import Store
from broker_store.engine.timer.timed import Timed, read_timed
from broker_store.engine.timer.timer_files import WheelEntry
from broker_store.errors import DiskFullError, StoreError
from broker_store.formats import timer_log
from broker_store.formats.java_hash import java_text
from broker_store.formats.timer_log import TIMER_TOPIC, TimerUnit
from broker_store.formats.timer_wheel import PRECISION_MS
from broker_store.messages import GetRequest, GetResult, GetStatus

# Limits of one step, so that it takes the loop for a millisecond or two. The next step continues.
MAX_ENQUEUED_PER_STEP = 128
MAX_BYTES_PER_STEP = 1 << 20


class TimerQueue:
    """Loop's thread. `counts` are those of the timer, `on_read()` is called when the disk has delivered what
    was read."""

    def __init__(
        self,
        store: Store,
        slots: LoadedSlots,
        waiting: TimerCounts,
        skipped: SkippedTimerRecords,
        counts: dict[str, int],
        *,
        clock: Callable[[], int],
        window_ms: int,
    ):
        self._store, self._files = store, store.timer_files
        self._slots, self._waiting, self._skipped, self._counts = slots, waiting, skipped, counts
        self._clock, self._window_ms = clock, window_ms
        self.offset = 0  # of the next message to put on the wheel
        self.until: int | None = None  # only messages before it; None: all
        # (queue offset, time in ms): of the messages before the offset, those due before the time
        self.delivered: list[tuple[int, int]] = []
        self.elsewhere = (0, 0)  # the same of a slave that acted for this master
        self.is_reading = self.has_changed = False
        self.retry_ms = 0
        self._late: dict[int, int] = {}  # by slot (ms), the earliest slot of what came late for its own
        self.on_read: Callable[[], None] = lambda: None

    @property
    def end(self) -> int:
        """Return the queue offset up to which messages can be put on the wheel now."""
        high = self._store.reads.max_offset(TIMER_TOPIC, 0)
        return high if self.until is None else min(high, self.until)

    @property
    def is_behind(self) -> bool:
        return self.offset < self.end

    def start(self) -> None:
        """Start at the place that the files state."""
        low, high = self._store.reads.min_offset(TIMER_TOPIC, 0), self._store.reads.max_offset(TIMER_TOPIC, 0)
        self.offset = max(low, min(self._files.queue_offset, high))

    def step(self, now_ms: int) -> None:
        """Put the next messages on the wheel."""

        def arrived(result: GetResult) -> None:
            self.is_reading = False
            self._take_result(result, self._clock())
            self.on_read()

        taken = size = 0
        while taken < MAX_ENQUEUED_PER_STEP and size < MAX_BYTES_PER_STEP and self.is_behind:
            begin = self.offset
            count = min(MAX_ENQUEUED_PER_STEP - taken, self.end - begin)
            result = self._store.reads.get(GetRequest(TIMER_TOPIC, 0, begin, max_count=count), arrived)
            if result is None:
                self.is_reading = True
                return
            self._take_result(result, now_ms)
            if self.retry_ms > now_ms:
                return
            taken += self.offset - begin
            size += len(result.body)

    def _take_result(self, result: GetResult, now_ms: int) -> None:
        if result.status is not GetStatus.FOUND:
            following = result.skipped_to(self.offset)
            if following is None:
                self.retry_ms = now_ms + RETRY_MS
            else:
                self.offset = following
            return
        found: list[tuple[Timed, WheelEntry | None]] = []
        for row in read_timed(result.body, result.count):
            is_over = self._was_delivered(row)
            entry = None if is_over else wheel_entry(row, now_ms, self._slots.read_ms, self._window_ms)
            found.append((row, entry))
        entries = [entry for _, entry in found if entry is not None]
        try:
            appended, new = self._files.append(entries) if entries else (0, [])
        except StoreError as error:
            self._counts["failures"] += 1
            self.retry_ms = now_ms + RETRY_MS
            if not isinstance(error, DiskFullError):
                raise
            return
        self.has_changed = True
        if self.until is None:
            for slot_s in new:
                self._slots.begin(slot_s, now_ms)
        counts: Counter[tuple[bytes, int]] = Counter()
        for row, entry in found:
            if entry is None:
                if not self._was_delivered(row):
                    self._counts["dropped"] += 1
                    self._skipped.without_time(self.offset, row)
            elif not appended:
                break  # the next step puts the rest into the next file
            else:
                appended -= 1
                self._take_up(row, entry, result.body, counts)
            self.offset += 1
        for (topic, slot_ms), count in counts.items():
            self._waiting.add(java_text(topic), slot_ms, count)
        self._slots.release(now_ms)

    def _was_delivered(self, row: Timed) -> bool:
        """True if a message was delivered before, as its time says."""
        return bool(row.is_sound) and any(
            row.queue_offset < before and row.out_ms < until_ms for before, until_ms in self.delivered
        )

    def _take_up(
        self, row: Timed, entry: WheelEntry, records: bytes, counts: Counter[tuple[bytes, int]]
    ) -> None:
        """Count a message that is on the wheel now, and add it to its slot if that is in memory. Collect in
        `counts`, by topic and slot."""
        self._counts["enqueued"] += 1
        slot_ms, own_ms = entry.slot_s * PRECISION_MS, second_of(row.out_ms)
        if own_ms < slot_ms:
            self._late[slot_ms] = min(own_ms, self._late.get(slot_ms, own_ms))
        if not entry.magic & timer_log.DELETE or entry.magic & timer_log.ROLL:
            topic = records[row.topic_at : row.topic_at + row.topic_length]
            counts[topic, slot_ms] += 1
            self._waiting.learn_name(row.topic_hash, topic)
        slot = self._slots.get(slot_ms)
        if slot is not None:
            self._slots.take(slot, row, records, entry.magic, entry.write_ms)

    def was_passed(self, unit: TimerUnit, row: Timed, slot_ms: int) -> bool:
        """True if another broker has delivered or rolled a message that is on this wheel too, in a slot."""
        out_ms = slot_ms if unit.magic & timer_log.ROLL else row.out_ms
        before, until_ms = self.elsewhere
        return bool(row.is_sound) and row.queue_offset < before and out_ms < until_ms

    def undelivered_ms(self) -> int:
        """Return the first second (ms) of which a message may be left: one that came late is in a later
        slot."""
        read_ms = self._slots.read_ms
        for slot_ms in [slot_ms for slot_ms in self._late if slot_ms < read_ms]:
            del self._late[slot_ms]
        return min([read_ms, *self._late.values()])
