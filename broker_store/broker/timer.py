"""Messages that ask for a time of delivery (docs/spec/store-behaviour.md section 9).

    send with TIMER_*  ──► record in rmq_sys_wheel_timer, with its second in TIMER_OUT_MS and its real place
                       in REAL_*
    step(now) enqueues ──► a unit of the timer log, in the slot of its second
                           (engine/timer/timer_files.py)
              loads    ──► the units of a second that is near, with what each message says  (`_Slot`)
              delivers ──► the message at its real place, or in the timer topic again when it was only rolled

A second's slot takes what is due within the second after it. Apache's broker delivers all of that when it is
over; here each message is delivered at its own millisecond: the time it asked for, or the time it was stored
and the delay it asked for. Never before that, and never after the moment at which Apache would (then comes
one that was rolled and asked for a delay: when it was first stored is not known any more).

What was enqueued and which slots are delivered is saved once a second (`capture`), when the log is synced as
far. A crash delivers again what was delivered since, two seconds of it and a sync's time at most, as Apache's
broker does; a stop in order delivers the rest of a slot that it has begun first, and so nothing twice.

A request to delete carries a message's unique key in TIMER_DEL_UNIQKEY and stands in the same slot: whoever
of the slot has that key, and was not delivered yet, is dropped. A message of a slot that is delivered already
joins the one that is being delivered.
"""

from __future__ import annotations

import heapq
import json
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from broker_store.broker.step_pacing import PAUSE_MS, RETRY_MS
from broker_store.broker.topics import FORBIDDEN_TO_SEND, TIMER_TOPIC
from broker_store.engine.timer.timed import NO_NUMBER, Timed, read_timed
from broker_store.engine.timer.timer_files import WheelEntry
from broker_store.errors import DiskFullError, StoreError
from broker_store.formats import properties, record, timer_log
from broker_store.formats.config_json import DataVersion
from broker_store.formats.java_hash import java_hash, java_text
from broker_store.formats.timer_check import TimerCheck
from broker_store.formats.timer_wheel import BLANK_SLOTS, PRECISION_MS, WINDOW_SLOTS
from broker_store.messages import FINAL, GetRequest, GetResult, GetStatus, Message, PutStatus

# At most so many of each kind in one step, so that a step stays within a millisecond or two.
ENQUEUED_A_STEP = 128
LOADED_A_STEP = 64
DELIVERED_A_STEP = 128
BYTES_A_STEP = 1 << 20
# No more messages of slots to come are held in memory; those of one slot are, whatever their number: about
# 250 bytes each.
MOST_LOADED = 200_000
# A slot is loaded so long before its second, and a while longer for each message in it.
LOAD_AHEAD_MS = 1_000
LOADED_A_MS = 10
# A slot so near is held in memory from its first message on, and need not be loaded.
NEAR_MS = 10_000
HOUR_MS = 3_600_000
_HOURS_TOLD = 7 * 24

# Apache's file of how many messages wait for each topic; ours is for whoever takes the store over, since the
# wheel itself says it.
METRICS_FILE_NAME = "timermetrics"

_NUMBER = re.compile(r"[+-]?[0-9]{1,19}")
_LONG = 1 << 63
_MOST_COUNTED = (1 << 31) - 1  # of a slot; a limit that is not below is none


class _Waiting(NamedTuple):
    """A message of a loaded slot; they are delivered by time, then as they came."""

    due_ms: int
    log_offset: int
    size: int
    write_ms: int
    rolls: bool
    topic_hash: int


class _Slot:
    """A second whose messages are in memory, or are being brought there: `next` is the unit to load, NONE
    when all are.

    `waiting` is a heap; `in_hand` those taken out of it whose records are being read.
    """

    __slots__ = ("deleted", "delivered", "in_hand", "next", "slot_ms", "waiting")

    def __init__(self, slot_ms: int, last: int):
        self.slot_ms, self.next = slot_ms, last
        self.waiting: list[_Waiting] = []
        self.in_hand: list[_Waiting] = []
        self.deleted: set[str] = set()
        self.delivered = 0

    @property
    def is_loaded(self) -> bool:
        return self.next == timer_log.NONE

    @property
    def is_empty(self) -> bool:
        return self.is_loaded and not self.waiting and not self.in_hand

    def is_deleted(self, raw: bytes) -> bool:
        """Whether a request to delete named the message of this record."""
        if not self.deleted:
            return False
        pairs = record.decode(raw, check_crc=False).properties
        topic, unique_key = pairs.get(properties.REAL_TOPIC, ""), pairs.get(properties.UNIQUE_KEY, "")
        return unique_key in self.deleted or f"{topic}+{unique_key}" in self.deleted


class Timer:
    """The timer messages of one broker.

    The settings are Apache's timerWheelEnable, timerMaxDelaySec, timerRollWindowSlot and
    timerCongestNumEachSlot. `on_ready()` asks for a step as soon as possible; `on_arrival()`, which whoever
    watches the timer topic calls, for one shortly.
    """

    def __init__(
        self,
        store,
        *,
        clock: Callable[[], int],
        enabled: bool = True,
        max_delay_ms: int = 3 * 86_400_000,
        window_ms: int = 2 * 86_400_000,
        most_a_slot: int = _MOST_COUNTED,
        chance: Callable[[], float] = random.random,
    ):
        self._store, self._clock, self._chance = store, clock, chance
        self._files = store.timer_files
        self.enabled = enabled
        self._max_delay_ms, self._window_ms, self._most_a_slot = max_delay_ms, window_ms, most_a_slot
        self._queue_offset = 0
        self._read_ms = 0  # the slots before it are delivered
        self._delivered_ms = 0  # the slots before it were delivered before this start
        self._seconds: list[int] = []  # a heap: slots to come that hold something and are not loaded
        self._slots: dict[int, _Slot] = {}  # loaded ones, by their time (ms)
        self._loaded = 0
        self._reading = self._watched = False
        self._retry_ms = self._rest_ms = 0
        self._names: dict[int, str] = {}  # topics by their hash, which is all that the wheel knows of them
        self._changed = self._metrics_changed = False
        self._latest_ms: tuple[int, int] = (0, 0)  # the longest lateness of this minute and the one before
        self._minute = 0
        self._by_topic: Counter[str] = Counter()
        self._topic_changed_ms: dict[str, int] = {}
        self._by_hour: Counter[int] = Counter()
        self.data_version = DataVersion()
        self.metrics_version = DataVersion(timestamp=clock())
        self.counts = {"enqueued": 0, "delivered": 0, "rolled": 0, "deleted": 0, "dropped": 0, "failures": 0}
        # Of the last that was refused: what was found, and the limit
        self.refused_for: tuple[int | None, int | None] = (None, None)
        self.on_ready: Callable[[], None] = lambda: None
        self.on_arrival: Callable[[], None] = lambda: None
        self.on_delivered: Callable[[Sequence[tuple[str, int, int]]], None] = lambda stored: None

    # Accepting ------------------------------------------------------------------------------------

    @staticmethod
    def asks(pairs: Mapping[str, str]) -> bool:
        """Whether a message with these properties, and no delay level, asks for a time of delivery."""
        return properties.TIMER_OUT_MS not in pairs and not pairs.keys().isdisjoint(properties.TIMER_ASKING)

    def schedule(self, message: Message, pairs: Mapping[str, str]) -> PutStatus | None:
        """Turn a message that asks for a time into one that waits; why not, by which numbers `refused_for`
        tells.

        One whose time is over stays as it is.
        """
        self.refused_for = (None, None)
        if not self.enabled:
            return PutStatus.WHEEL_TIMER_NOT_ENABLE
        now_ms = self._clock()
        due_ms = _asked_ms(pairs, now_ms)
        if due_ms is None:
            return PutStatus.WHEEL_TIMER_MSG_ILLEGAL
        if due_ms <= now_ms:
            return PutStatus.WHEEL_TIMER_MSG_ILLEGAL if properties.TIMER_DELETE_KEY in pairs else None
        if due_ms - now_ms > self._max_delay_ms:
            self.refused_for = (due_ms - now_ms, self._max_delay_ms)
            return PutStatus.WHEEL_TIMER_MSG_ILLEGAL
        out_ms = (due_ms - 1) // PRECISION_MS * PRECISION_MS
        if self._is_crowded(out_ms):
            return PutStatus.WHEEL_TIMER_FLOW_CONTROL
        message.properties = properties.set_values(
            message.properties,
            {
                properties.TIMER_OUT_MS: str(out_ms),
                properties.REAL_TOPIC: message.topic,
                properties.REAL_QUEUE_ID: str(message.queue_id),
            },
        )
        message.topic, message.queue_id = TIMER_TOPIC, 0
        return None

    def _is_crowded(self, out_ms: int) -> bool:
        if self._most_a_slot >= _MOST_COUNTED:
            return False
        slot = self._files.slot(out_ms // PRECISION_MS)
        count = 0 if slot is None else slot.count
        self.refused_for = (count, self._most_a_slot)
        beyond = count - self._most_a_slot
        # More of them the fuller it is, all at twice the limit.
        return beyond > 0 and beyond > self._chance() * self._most_a_slot

    # Starting -------------------------------------------------------------------------------------

    def start(self, topics: Iterable[str] = ()) -> None:
        """Take up what the files say. `topics` are the names that may wait; the wheel knows only their
        hashes."""
        if not self.enabled:
            return
        check = self._files.check
        now_ms = self._clock()
        oldest_ms = _second(now_ms) - (WINDOW_SLOTS - BLANK_SLOTS) * PRECISION_MS
        self._read_ms = self._delivered_ms = max(_second(check.read_ms), oldest_ms)
        self.data_version = DataVersion(check.state_version, check.counter, check.timestamp)
        low, high = self._store.min_offset(TIMER_TOPIC, 0), self._store.max_offset(TIMER_TOPIC, 0)
        self._queue_offset = max(low, min(self._files.queue_offset, high))
        self._seconds = [second for second, _ in self._files.pending(self._read_ms // PRECISION_MS)]
        by_hash, by_hour = self._files.count_from(self._read_ms // PRECISION_MS)
        self._by_hour.update(by_hour)
        self._names = {java_hash(topic): topic for topic in topics}
        self._by_topic.update(
            {topic: by_hash[hashed] for hashed, topic in self._names.items() if hashed in by_hash}
        )
        self._metrics_changed = True  # what the file says may be of another broker, before this one

    # Steps ----------------------------------------------------------------------------------------

    def step(self, now_ms: int) -> int | None:
        """Deliver what is due, load what is near, enqueue what came; when to come again (ms), None when an
        arrival will tell."""
        if self._reading:
            return None
        if self._retry_ms > now_ms:
            return self._retry_ms
        self._pass(now_ms)
        self._open_slots(now_ms)
        for work in (self._deliver, self._load, self._enqueue):
            work(now_ms)
            if self._reading:
                return None
            if self._retry_ms > now_ms:
                return self._retry_ms
        return self._next_ms(now_ms)

    def _next_ms(self, now_ms: int) -> int | None:
        is_behind = self._queue_offset < self._store.max_offset(TIMER_TOPIC, 0)
        self._watch(not is_behind)
        if is_behind:
            return now_ms
        times = (
            [self._seconds[0] * PRECISION_MS - self._ahead_ms(self._seconds[0])] if self._may_open() else []
        )
        for slot in self._slots.values():
            if not slot.is_loaded:
                return now_ms
            # An empty one is passed when its second is over.
            times.append(
                max(slot.slot_ms, slot.waiting[0].due_ms, self._rests_until(now_ms))
                if slot.waiting
                else slot.slot_ms + PRECISION_MS
            )
        return max(now_ms, min(times)) if times else None

    def _pass(self, now_ms: int) -> None:
        """Leave behind the slots that are over and empty."""
        while self._read_ms + PRECISION_MS <= now_ms:
            slot = self._slots.get(self._read_ms)
            if slot is not None and not slot.is_empty:
                return
            following = min(self._slots.keys() - {self._read_ms}, default=_second(now_ms))
            if self._seconds:
                following = min(following, self._seconds[0] * PRECISION_MS)
            if following <= self._read_ms:
                return
            if self._slots.pop(self._read_ms, None) is not None:
                self._changed = True  # what was noted while it was under way would deliver it again
            self._read_ms = min(following, _second(now_ms))

    def _ahead_ms(self, second: int) -> int:
        slot = self._files.slot(second)
        return LOAD_AHEAD_MS + (0 if slot is None else max(0, slot.count) // LOADED_A_MS)

    def _may_open(self) -> bool:
        """Whether the next second that is not in memory may come there: there is room, or nothing is due
        before it."""
        return bool(self._seconds) and (
            self._loaded < MOST_LOADED or self._seconds[0] * PRECISION_MS < min(self._slots, default=1 << 62)
        )

    def _open_slots(self, now_ms: int) -> None:
        while self._may_open():
            second = self._seconds[0]
            if second * PRECISION_MS - self._ahead_ms(second) > now_ms:
                return
            heapq.heappop(self._seconds)
            self._slots[second * PRECISION_MS] = _Slot(second * PRECISION_MS, self._files.slot(second).last)

    # Loading --------------------------------------------------------------------------------------

    def _load(self, now_ms: int) -> None:
        slot = next((slot for _, slot in sorted(self._slots.items()) if not slot.is_loaded), None)
        if slot is None:
            return
        units, position = [], slot.next
        while position != timer_log.NONE and len(units) < LOADED_A_STEP:
            unit = self._files.unit(position)
            if unit is None:  # its file went with the messages
                position = timer_log.NONE
                break
            units.append(unit)
            position = unit.previous
        offsets = [unit.log_offset for unit in units]
        self._with_records(
            offsets, now_ms, lambda records, now_ms: self._take_units(slot, units, position, records)
        )

    def _with_records(
        self, offsets: list[int], now_ms: int, take: Callable[[list[bytes | None], int], None]
    ) -> None:
        """Give `take` the records at these places, now or when the disk has them."""

        def taken(records: list[bytes | None] | None, now_ms: int) -> None:
            if records is None:
                self._retry_ms = now_ms + RETRY_MS
            else:
                take(records, now_ms)

        def arrived(records: list[bytes | None] | None) -> None:
            self._reading = False
            taken(records, self._clock())
            self.on_ready()

        records = self._store.get_records(offsets, arrived)
        if records is None:
            self._reading = True
        else:
            taken(records, now_ms)

    def _take_units(self, slot: _Slot, units: list, following: int, records: list[bytes | None]) -> None:
        slot.next = following
        here = [(unit, raw) for unit, raw in zip(units, records, strict=True) if raw is not None]
        for unit, raw in zip(units, records, strict=True):
            if raw is None:
                self._gone("dropped", unit.topic_hash, slot.slot_ms)
        joined = b"".join([raw for _, raw in here])
        for (unit, _), told in zip(here, read_timed(joined, len(here)), strict=True):
            if told.is_sound:
                self._add(slot, told, joined, unit.magic, unit.write_ms)
            else:
                self._gone("dropped", unit.topic_hash, slot.slot_ms)

    def _add(self, slot: _Slot, told: Timed, records: bytes, magic: int, write_ms: int) -> None:
        rolls = bool(magic & timer_log.ROLL)
        if magic & timer_log.DELETE and not rolls:
            slot.deleted.add(
                record.decode(records, told.record_at, check_crc=False).properties.get(
                    properties.TIMER_DELETE_KEY, ""
                )
            )
            return
        due_ms = slot.slot_ms if rolls else _due_ms(told, slot.slot_ms)
        heapq.heappush(
            slot.waiting, _Waiting(due_ms, told.log_offset, told.size, write_ms, rolls, told.topic_hash)
        )
        self._loaded += 1

    # Delivering -----------------------------------------------------------------------------------

    def _deliver(self, now_ms: int) -> None:
        if self._rests_until(now_ms) > now_ms:
            return
        for _, slot in sorted(self._slots.items()):
            if slot.slot_ms > now_ms or not slot.is_loaded:
                return
            slot.in_hand += self._take_due(slot, now_ms)
            if slot.in_hand:
                offsets = [each.log_offset for each in slot.in_hand]
                self._with_records(
                    offsets, now_ms, lambda records, now_ms, slot=slot: self._put(slot, records, now_ms)
                )
                return
            if slot.waiting:
                return

    def _take_due(self, slot: _Slot, now_ms: int) -> list[_Waiting]:
        """The next messages of a slot; none while others are in hand."""
        due: list[_Waiting] = []
        size = 0
        while (
            not slot.in_hand
            and slot.waiting
            and slot.waiting[0].due_ms <= now_ms
            and len(due) < DELIVERED_A_STEP
            and size < BYTES_A_STEP
        ):
            due.append(heapq.heappop(slot.waiting))
            size += due[-1].size
        if due:
            is_behind = slot.slot_ms + PRECISION_MS <= now_ms or (
                bool(slot.waiting) and slot.waiting[0].due_ms <= now_ms
            )
            self._rest_ms = 0 if is_behind else now_ms + PAUSE_MS
        return due

    def _rests_until(self, now_ms: int) -> int:
        return self._rest_ms if self._rest_ms <= now_ms + PAUSE_MS else 0  # or the clock was set back

    def _put(self, slot: _Slot, records: list[bytes | None], now_ms: int) -> None:
        due, slot.in_hand = slot.in_hand, []
        self._loaded -= len(due)
        self._changed = True
        goes: list[tuple[_Waiting, bytes]] = []
        for each, raw in zip(due, records, strict=True):
            if raw is None:
                self._gone("dropped", each.topic_hash, slot.slot_ms)
            elif slot.is_deleted(raw):
                self._gone("deleted", each.topic_hash, slot.slot_ms)
            elif each.rolls:
                self._roll(slot, each, raw, now_ms)
            else:
                goes.append((each, raw))
        if not goes:
            return
        moved = self._store.put_waited(
            b"".join([raw for _, raw in goes]),
            len(goes),
            TIMER_TOPIC,
            FORBIDDEN_TO_SEND,
            [each.write_ms for each, _ in goes],
        )
        late_ms = 0
        for (each, _), status in zip(goes, moved.statuses, strict=True):
            if status is PutStatus.PUT_OK:
                late_ms = max(late_ms, now_ms - each.due_ms)
            else:
                self._not_put(slot, each, status, now_ms)
        if moved.stored:
            for topic, messages, _ in moved.stored:
                slot.delivered += messages
                self.counts["delivered"] += messages
                self._count(topic, slot.slot_ms, -messages)
            self._was_late(late_ms, now_ms)
            self.on_delivered(moved.stored)

    def _not_put(self, slot: _Slot, each: _Waiting, status: PutStatus, now_ms: int) -> None:
        if status in FINAL:
            self._gone("dropped", each.topic_hash, slot.slot_ms)
        else:
            self.counts["failures"] += 1
            self._retry_ms = now_ms + RETRY_MS
            heapq.heappush(slot.waiting, each)
            self._loaded += 1

    def _roll(self, slot: _Slot, each: _Waiting, raw: bytes, now_ms: int) -> None:
        """A message whose time lies beyond the wheel's window goes to the timer topic again."""
        put = self._store.put(_rolled(raw, each, now_ms))
        if put.ok:
            slot.delivered += 1
            self._gone("rolled", each.topic_hash, slot.slot_ms)
        else:
            self._not_put(slot, each, put.status, now_ms)

    # Enqueueing -----------------------------------------------------------------------------------

    def _enqueue(self, now_ms: int) -> None:
        def arrived(result: GetResult) -> None:
            self._reading = False
            self._take_result(result, self._clock())
            self.on_ready()

        taken = size = 0
        while (
            taken < ENQUEUED_A_STEP
            and size < BYTES_A_STEP
            and self._queue_offset < self._store.max_offset(TIMER_TOPIC, 0)
        ):
            begin = self._queue_offset
            result = self._store.get(
                GetRequest(TIMER_TOPIC, 0, begin, max_count=ENQUEUED_A_STEP - taken), arrived
            )
            if result is None:
                self._reading = True
                return
            self._take_result(result, now_ms)
            if self._retry_ms > now_ms:
                return
            taken += self._queue_offset - begin
            size += len(result.body)

    def _watch(self, watched: bool) -> None:
        if self._watched != watched:
            self._watched = watched
            (self._store.watch if watched else self._store.unwatch)(TIMER_TOPIC, 0)

    def _take_result(self, result: GetResult, now_ms: int) -> None:
        if result.status is not GetStatus.FOUND:
            # Records that are gone or damaged are passed over; a read that did not get on (the readers are
            # busy) is repeated later.
            following = result.next_offset + (result.status is GetStatus.MESSAGE_DAMAGED)
            if following <= self._queue_offset:
                self._retry_ms = now_ms + RETRY_MS
            else:
                self._queue_offset = following
            return
        found = [(told, self._entry(told, now_ms)) for told in read_timed(result.body, result.count)]
        entries = [entry for _, entry in found if entry is not None]
        try:
            appended, new = self._files.append(entries) if entries else (0, [])
        except StoreError as error:
            self.counts["failures"] += 1
            self._retry_ms = now_ms + RETRY_MS
            if not isinstance(error, DiskFullError):
                raise
            return
        self._changed = True
        for slot_s in new:
            self._begin_slot(slot_s, now_ms)
        counts: Counter[tuple[bytes, int]] = Counter()
        for told, entry in found:
            if entry is None:
                self.counts["dropped"] += not self._was_delivered(told)
            elif not appended:
                break  # the rest of them goes into the next file
            else:
                appended -= 1
                self._take_up(told, entry, result.body, counts)
            self._queue_offset += 1
        for (topic, slot_ms), count in counts.items():
            self._count(java_text(topic), slot_ms, count)
        if self._loaded > MOST_LOADED:
            self._let_go(now_ms)

    def _was_delivered(self, told: Timed) -> bool:
        """Whether the slot of a message was delivered before its unit was lost."""
        return (
            bool(told.is_sound)
            and told.queue_offset < self._files.taken_again_before
            and told.out_ms < self._delivered_ms
        )

    def _entry(self, told: Timed, now_ms: int) -> WheelEntry | None:
        """Where on the wheel a message goes; None for one that does not."""
        if (
            not told.is_sound
            or told.out_ms == NO_NUMBER
            or not told.topic_length
            or self._was_delivered(told)
        ):
            return None
        write_ms = _second(now_ms)
        magic = timer_log.DEFAULT
        slot_ms = max(_second(told.out_ms), self._read_ms)
        beyond_ms = slot_ms - write_ms - self._window_ms
        if beyond_ms >= 0:
            magic |= timer_log.ROLL
            # A rest that is short is made longer, so that the next roll has time.
            slot_ms = _second(
                write_ms + (self._window_ms // 2 if beyond_ms < self._window_ms // 3 else self._window_ms)
            )
        if told.deletes:
            magic |= timer_log.DELETE
        return WheelEntry(
            slot_ms // PRECISION_MS, magic, write_ms, told.log_offset, told.size, told.topic_hash
        )

    def _begin_slot(self, slot_s: int, now_ms: int) -> None:
        """A second has its first message."""
        slot_ms = slot_s * PRECISION_MS
        if slot_ms <= now_ms + NEAR_MS and self._loaded < MOST_LOADED:
            self._slots[slot_ms] = _Slot(slot_ms, timer_log.NONE)
        else:
            heapq.heappush(self._seconds, slot_s)

    def _take_up(
        self, told: Timed, entry: WheelEntry, records: bytes, counts: Counter[tuple[bytes, int]]
    ) -> None:
        """A message that is on the wheel now; `counts` of topics and slots."""
        self.counts["enqueued"] += 1
        slot_ms = entry.slot_s * PRECISION_MS
        if not entry.magic & timer_log.DELETE or entry.magic & timer_log.ROLL:
            topic = records[told.topic_at : told.topic_at + told.topic_length]
            counts[topic, slot_ms] += 1
            if told.topic_hash not in self._names:
                self._names[told.topic_hash] = java_text(topic)
        slot = self._slots.get(slot_ms)
        if slot is not None:
            self._add(slot, told, records, entry.magic, entry.write_ms)

    def _let_go(self, now_ms: int) -> None:
        """Too many messages are in memory: those of the second furthest ahead are loaded again when it is
        near."""
        last_ms = max(self._slots)
        slot = self._slots[last_ms]
        if slot.is_loaded and last_ms - self._ahead_ms(last_ms // PRECISION_MS) > now_ms:
            del self._slots[last_ms]
            self._loaded -= len(slot.waiting)
            heapq.heappush(self._seconds, last_ms // PRECISION_MS)

    # What is kept ---------------------------------------------------------------------------------

    def _count(self, topic: str, slot_ms: int, more: int) -> None:
        self._by_topic[topic] = max(0, self._by_topic[topic] + more)
        self._topic_changed_ms[topic] = self._clock()
        self._metrics_changed = True
        self._count_hour(slot_ms, more)

    def _count_hour(self, slot_ms: int, more: int) -> None:
        hour_ms = slot_ms // HOUR_MS * HOUR_MS
        self._by_hour[hour_ms] += more
        if not self._by_hour[hour_ms]:
            del self._by_hour[hour_ms]

    def _gone(self, what: str, topic_hash: int, slot_ms: int) -> None:
        """A message that does not wait any more, and was not delivered."""
        self.counts[what] += 1
        self._changed = True
        topic = self._names.get(topic_hash)
        if topic is None:
            self._count_hour(slot_ms, -1)
        else:
            self._count(topic, slot_ms, -1)

    def _was_late(self, late_ms: int, now_ms: int) -> None:
        minute = now_ms // 60_000
        if minute != self._minute:
            self._latest_ms = (0, self._latest_ms[0] if minute == self._minute + 1 else 0)
            self._minute = minute
        self._latest_ms = (max(late_ms, self._latest_ms[0]), self._latest_ms[1])

    @property
    def has_begun_a_slot(self) -> bool:
        """Whether some messages of a slot are delivered and others are not: a start would deliver all of them
        again."""
        return any(slot.delivered and not slot.is_empty for slot in self._slots.values())

    def check(self) -> TimerCheck:
        """The numbers of now, as GET_TIMER_CHECK_POINT tells them."""
        version = self.data_version
        return TimerCheck(
            self._read_ms,
            self._files.log_end,
            self._queue_offset,
            self._queue_offset,
            version.state_version,
            version.timestamp,
            version.counter,
        )

    def capture(self, *, ending: bool = False) -> None:
        """Have what is true now saved as soon as the log is synced as far. At the end a slot with nothing
        left in it counts as delivered."""
        if not self.enabled:
            return
        self._pass(self._clock())
        slot = self._slots.get(self._read_ms)
        ends_slot = ending and slot is not None and slot.delivered > 0 and slot.is_empty
        if not self._changed and not ends_slot:
            return
        self._changed = False
        self.data_version = self.data_version.next(self._clock())
        check = self.check()
        if ends_slot:
            check = check._replace(read_ms=self._read_ms + PRECISION_MS)
        self._files.save(check, self._store.positions()["wrote"])

    def clean(self) -> None:
        """Remove files of the timer log whose messages are gone."""
        if self.enabled:
            self._files.delete_before(self._store.positions()["min"])

    def metrics_json(self) -> dict:
        """How many messages wait for each topic, as Apache's timermetrics tells it."""
        table = {
            topic: {
                "count": count,
                "timeStamp": self._topic_changed_ms.get(topic, self.metrics_version.timestamp),
            }
            for topic, count in self._by_topic.items()
        }
        return {"dataVersion": self.metrics_version.to_json(), "timingCount": table}

    def metrics_picture(self) -> Callable[[], bytes] | None:
        """A function that makes the text of `timermetrics` as it is now; None when nothing changed."""
        if not self._metrics_changed:
            return None
        self._metrics_changed = False
        self.metrics_version = self.metrics_version.next(self._clock())
        value = self.metrics_json()
        return lambda: json.dumps(value, separators=(",", ":"), sort_keys=True).encode()

    def facts(self) -> dict:
        """What waits, what of it is due, how late it is, and when the rest is due.

        `waiting` on the wheel, `not_enqueued` still in the timer topic's queue, `due` those whose time has
        come. `behind_ms` is how long the oldest due one has been waiting since, `late_ms` the longest that
        one delivered in the last minute or two had waited. `hours` has (hour as ms, messages), of rolled ones
        the hour of their next roll; `topics` the messages by real topic.
        """
        now_ms = self._clock()
        due = [slot for slot in self._slots.values() if slot.slot_ms <= now_ms]
        oldest_ms = min((slot.waiting[0].due_ms for slot in due if slot.waiting), default=now_ms)
        recent = (
            self._latest_ms
            if now_ms // 60_000 == self._minute
            else (0, self._latest_ms[0] if now_ms // 60_000 == self._minute + 1 else 0)
        )
        return {
            "enabled": self.enabled,
            "waiting": sum(self._by_hour.values()),
            "not_enqueued": max(0, self._store.max_offset(TIMER_TOPIC, 0) - self._queue_offset),
            "due": sum(sum(each.due_ms <= now_ms for each in slot.waiting) for slot in due),
            "behind_ms": max(0, now_ms - oldest_ms),
            "late_ms": max(recent),
            "read_ms": self._read_ms,
            "queue_offset": self._queue_offset,
            "hours": sorted(self._by_hour.items())[:_HOURS_TOLD],
            "topics": {topic: count for topic, count in sorted(self._by_topic.items()) if count},
            **self.counts,
        }


def _second(time_ms: int) -> int:
    return time_ms // PRECISION_MS * PRECISION_MS


def _number(text: str | None) -> int | None:
    """What Java's Long.parseLong makes of a text; None where it raises."""
    if text is None or not _NUMBER.fullmatch(text):
        return None
    number = int(text)
    return number if -_LONG <= number < _LONG else None


def _asked_ms(pairs: Mapping[str, str], now_ms: int) -> int | None:
    """The time of delivery that a message asks for at `now_ms`; None when what it says is no number."""
    if (text := pairs.get(properties.TIMER_DELAY_SECONDS)) is not None:
        seconds = _number(text)
        return None if seconds is None else now_ms + seconds * 1000
    if (text := pairs.get(properties.TIMER_DELAY_MS)) is not None:
        delay_ms = _number(text)
        return None if delay_ms is None else now_ms + delay_ms
    return _number(pairs.get(properties.TIMER_DELIVER_MS))


def _due_ms(told: Timed, slot_ms: int) -> int:
    """When a message of a slot wants to be delivered: at the time it asked for, at the latest when its second
    is over."""
    latest_ms = (slot_ms if told.out_ms == NO_NUMBER else min(slot_ms, told.out_ms)) + PRECISION_MS
    return latest_ms if told.asked_ms == NO_NUMBER else min(told.asked_ms, latest_ms)


def _rolled(raw: bytes, each: _Waiting, now_ms: int) -> Message:
    """The message as it waits once more."""
    stored = record.decode(raw, check_crc=False)
    changes = {
        properties.TIMER_ENQUEUE_MS: str(each.write_ms),
        properties.TIMER_DEQUEUE_MS: str(now_ms),
        properties.TIMER_ROLL_TIMES: str(
            (_number(stored.properties.get(properties.TIMER_ROLL_TIMES)) or 0) + 1
        ),
    }
    encoded = properties.set_values(stored.raw_properties, changes)
    return Message(
        TIMER_TOPIC,
        0,
        stored.body,
        # Where there is no room for these, the message matters more.
        encoded if len(encoded) <= properties.MAX_BYTES else stored.raw_properties,
        stored.flag,
        stored.sys_flag,
        stored.born_timestamp,
        stored.born_host,
        stored.store_host,
        stored.reconsume_times,
    )
