"""The slots of the timer wheel that are in memory, and those that will be.

    past                    now                          future ──►
    ───────────────┬─────────┬──────────────┬────────────┬──────────────────────────
    delivered, in  │ loaded  │ loaded, due  │ loaded or  │ a second in a heap; its
    no slot any    │ and due │ soon         │ loading    │ messages are in files only
    more           │         │              │            │
                   ▲                        ▲
                   read_ms                  now + LOAD_AHEAD_MS and more for a full slot

A slot is named by the begin of its second. Its messages are due after that time, by at most a second.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import NamedTuple

from broker_store.broker.timer_request import row_due_ms, second_of
from broker_store.engine.timer.timed import Timed
from broker_store.formats import properties, record, timer_log
from broker_store.formats.timer_wheel import PRECISION_MS

# Messages in memory of slots that are not due, about 250 bytes each. All messages of one slot are loaded,
# whatever their number.
MAX_LOADED = 200_000
# Time between the loading of a slot and its second: LOAD_AHEAD_MS, and 1 ms more for each LOADED_PER_MS
# messages, so that a full slot is in memory when it is due.
LOAD_AHEAD_MS = 1_000
LOADED_PER_MS = 10
# A slot that begins this soon keeps its messages in memory from the first on, and is not loaded from files.
NEAR_MS = 10_000


class WaitingMessage(NamedTuple):
    """A message of a loaded slot. These tuples sort in the order of delivery: by time, then by log offset."""

    due_ms: int
    log_offset: int
    size: int
    write_ms: int
    rolls: bool
    topic_hash: int


class LoadedSlot:
    """The messages of one second, all in memory or being loaded.

    `slot_ms` is the second's begin. `next` is the position in the timer log of the unit to load next, NONE
    when all are loaded. `waiting` is a heap; `in_hand` holds messages that were taken out of it and whose
    records are being read. `deleted` holds unique keys from requests to delete. `delivered` counts messages.
    """

    __slots__ = ("deleted", "delivered", "in_hand", "next", "slot_ms", "waiting")

    def __init__(self, slot_ms: int, last: int):
        self.slot_ms, self.next = slot_ms, last
        self.waiting: list[WaitingMessage] = []
        self.in_hand: list[WaitingMessage] = []
        self.deleted: set[str] = set()
        self.delivered = 0

    @property
    def is_loaded(self) -> bool:
        return self.next == timer_log.NONE

    @property
    def is_empty(self) -> bool:
        return self.is_loaded and not self.waiting and not self.in_hand

    @property
    def has_begun(self) -> bool:
        """True if messages of it are delivered, or are being delivered."""
        return self.delivered > 0 or bool(self.in_hand)

    def is_deleted(self, raw: bytes) -> bool:
        """True if a request to delete names the message of this record."""
        if not self.deleted:
            return False
        pairs = record.decode(raw, check_crc=False).properties
        topic, unique_key = pairs.get(properties.REAL_TOPIC, ""), pairs.get(properties.UNIQUE_KEY, "")
        return unique_key in self.deleted or f"{topic}+{unique_key}" in self.deleted


class LoadedSlots:
    """The slots of one timer: those in memory by their time (ms), and a heap of later seconds with messages.

    `files` are the store's `TimerFiles`. All slots before `read_ms` are delivered. `loaded` counts the
    messages in memory.
    """

    def __init__(self, files):
        self._files = files
        self._by_ms: dict[int, LoadedSlot] = {}
        self._seconds: list[int] = []
        self.read_ms = 0
        self.loaded = 0

    def start(self, read_ms: int, seconds: Iterable[int]) -> None:
        """Begin at `read_ms`, with the seconds from there on that hold messages, in ascending order."""
        self.read_ms = read_ms
        self._seconds = list(seconds)

    def clear(self) -> None:
        """Release all slots; `start` begins again."""
        self._by_ms.clear()
        self._seconds.clear()
        self.loaded = 0

    def get(self, slot_ms: int) -> LoadedSlot | None:
        """Return the slot at a time if it is in memory."""
        return self._by_ms.get(slot_ms)

    def in_order(self) -> list[LoadedSlot]:
        """Return the slots in memory, earliest first."""
        return [slot for _, slot in sorted(self._by_ms.items())]

    def pass_finished(self, now_ms: int) -> bool:
        """Move `read_ms` past slots that are over and empty; True if one of them was in memory.

        Then the timer's numbers must be saved: a start with those of before would deliver the slot again.
        """
        has_passed = False
        while self.read_ms + PRECISION_MS <= now_ms:
            slot = self._by_ms.get(self.read_ms)
            if slot is not None and not slot.is_empty:
                break
            following = min(self._by_ms.keys() - {self.read_ms}, default=second_of(now_ms))
            if self._seconds:
                following = min(following, self._seconds[0] * PRECISION_MS)
            if following <= self.read_ms:
                break
            if self._by_ms.pop(self.read_ms, None) is not None:
                has_passed = True
            self.read_ms = min(following, second_of(now_ms))
        return has_passed

    def next_open_ms(self) -> int | None:
        """Return when the next second has to be loaded; None when there is none, or no room for it yet."""
        if not self._may_open():
            return None
        return self._seconds[0] * PRECISION_MS - self._ahead_ms(self._seconds[0])

    def open_near(self, now_ms: int) -> None:
        """Create the slots of seconds that have to be loaded now; their messages are still in the files."""
        while self._may_open():
            second = self._seconds[0]
            if second * PRECISION_MS - self._ahead_ms(second) > now_ms:
                return
            heapq.heappop(self._seconds)
            slot_ms = second * PRECISION_MS
            self._by_ms[slot_ms] = LoadedSlot(slot_ms, self._files.slot(second).last)

    def has_delivered(self, until_ms: int) -> bool:
        """True if no message is left that was due at a time."""
        if self._seconds and self._seconds[0] * PRECISION_MS <= until_ms:
            return False
        return not any(
            slot.in_hand or not slot.is_loaded or (slot.waiting and slot.waiting[0].due_ms <= until_ms)
            for slot in self._by_ms.values()
            if slot.slot_ms <= until_ms
        )

    def begin(self, slot_s: int, now_ms: int) -> None:
        """Note that a second has its first message: in memory when it is near, else in the heap."""
        slot_ms = slot_s * PRECISION_MS
        if slot_ms <= now_ms + NEAR_MS and self.loaded < MAX_LOADED:
            self._by_ms[slot_ms] = LoadedSlot(slot_ms, timer_log.NONE)
        else:
            heapq.heappush(self._seconds, slot_s)

    def release(self, now_ms: int) -> None:
        """Release the latest slot when too many messages are in memory; it is loaded again when near."""
        if self.loaded <= MAX_LOADED:
            return
        last_ms = max(self._by_ms)
        slot = self._by_ms[last_ms]
        if slot.is_loaded and last_ms - self._ahead_ms(last_ms // PRECISION_MS) > now_ms:
            del self._by_ms[last_ms]
            self.loaded -= len(slot.waiting)
            heapq.heappush(self._seconds, last_ms // PRECISION_MS)

    def add(self, slot: LoadedSlot, message: WaitingMessage) -> None:
        """Add a message to a slot in memory."""
        heapq.heappush(slot.waiting, message)
        self.loaded += 1

    def take(self, slot: LoadedSlot, row: Timed, records: bytes, magic: int, write_ms: int) -> None:
        """Add a message to a slot in memory, or what a request to delete names; `row` is of `records`."""
        rolls = bool(magic & timer_log.ROLL)
        if magic & timer_log.DELETE and not rolls:
            pairs = record.decode(records, row.record_at, check_crc=False).properties
            slot.deleted.add(pairs.get(properties.TIMER_DELETE_KEY, ""))
            return
        due_ms = slot.slot_ms if rolls else row_due_ms(row, slot.slot_ms)
        message = WaitingMessage(due_ms, row.log_offset, row.size, write_ms, rolls, row.topic_hash)
        self.add(slot, message)

    def _ahead_ms(self, second: int) -> int:
        slot = self._files.slot(second)
        return LOAD_AHEAD_MS + (0 if slot is None else max(0, slot.count) // LOADED_PER_MS)

    def _may_open(self) -> bool:
        """True if there is room for the next second in the heap, or nothing in memory is due before it."""
        return bool(self._seconds) and (
            self.loaded < MAX_LOADED or self._seconds[0] * PRECISION_MS < min(self._by_ms, default=1 << 62)
        )
