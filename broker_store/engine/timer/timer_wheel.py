"""timerwheel: for each second of two weeks the ends of its chain in the timer log (formats/timer_wheel.py).

    ring         | 0 | 1 | 2 | ........ | slots - 1 |      a second is in slot (second % slots)
                       |
    slot         time_s | first | last | count | magic
                          |       └──────────────────────┐
    timer log    . . . .  u ◄─── u . . . ◄─── u . . ◄─── u . .
                          each unit names the one before it (`previous`), -1 at the first

The wheel follows from the timer log and is computed from it at each start (`fill`), so a crash cannot damage
it. The file exists for Apache's broker. It is created with the first timer message.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from broker_store.engine.disk.disk import Disk
from broker_store.engine.disk.region import Region
from broker_store.errors import DamagedStoreError
from broker_store.formats import timer_log, timer_wheel
from broker_store.formats.timer_wheel import SLOT_BYTES, TimerSlot

# Bytes that get blocks at a time: slots of a bit more than half an hour.
_STRIDE = 64 << 10
_SLOTS_PER_READ = 1 << 16

SLOT = np.dtype([("time_s", ">i8"), ("first", ">i8"), ("last", ">i8"), ("count", ">i4"), ("magic", ">i4")])
_WORDS = np.dtype((np.int64, SLOT_BYTES // 8))  # of a slot, to compare slots


class TimerWheel:
    """A ring of `slots` slots."""

    def __init__(self, disk: Disk, path: Path, slots: int):
        self._disk, self._path, self._slots = disk, path, slots
        self._size = slots * SLOT_BYTES
        # Created by the loop, with the first timer message; the worker only syncs it
        self._region: Region | None = None
        self._allocated: set[int] = set()  # pieces of _STRIDE bytes that have blocks; loop only
        # Set by the loop after a write, cleared by the worker before its sync: what is written meanwhile is
        # synced the next time. No lock
        self._is_changed = False

    def load(self) -> None:
        """Map the file if there is one. Raises as `found_size` does."""
        found = self.found_size()
        if found == 0:
            self._disk.unlink(self._path)
        elif found is not None:
            self._region = self._disk.open_region(self._path)

    def found_size(self) -> int | None:
        """Return the size of the file, which is 0 or right; None when there is no file. Raises
        DamagedStoreError for another size or kind."""
        if not self._disk.exists(self._path):
            return None
        found = self._disk.size_of(self._path)
        if found not in (0, self._size):
            advice = "Move it out of the store: it is made again from timerlog."
            what = (
                f"has {found} bytes, expected {self._size} ({self._slots} slots of {SLOT_BYTES} bytes; "
                f"no setting changes that)"
            )
            raise DamagedStoreError(what, file=str(self._path), advice=advice)
        return found

    def _map(self) -> Region:
        if self._region is None:
            self._region = self._disk.create_region(self._path, self._size)
            self._disk.sync_directory(self._path.parent)
        return self._region

    def get(self, time_s: int) -> TimerSlot | None:
        """Return the slot of a second; None when it holds nothing."""
        if self._region is None:
            return None
        slot = timer_wheel.decode(self._region.read(time_s % self._slots * SLOT_BYTES, SLOT_BYTES))
        return slot if slot.time_s == time_s else None

    def put(self, time_s: int, first: int, last: int, count: int) -> None:
        """Write the slot of a second. Raises DiskFullError; the slot is unchanged then."""
        self._write(time_s % self._slots * SLOT_BYTES, timer_wheel.LAYOUT.pack(time_s, first, last, count, 0))

    def _write(self, at: int, data: bytes) -> None:
        self._allocate(at)
        self._map().write(at, data)
        self._is_changed = True

    def make_room(self, time_s: int) -> None:
        """Allocate blocks for a slot, so that `put` cannot fail. Raises DiskFullError."""
        self._allocate(time_s % self._slots * SLOT_BYTES)

    def _allocate(self, at: int) -> None:
        piece = at // _STRIDE
        if piece not in self._allocated:
            self._map().allocate(piece * _STRIDE, _STRIDE)
            self._allocated.add(piece)

    def fill(self, logged: Iterable[tuple[int, np.ndarray]], read_s: int) -> None:
        """Set the slots to what the units of the timer log say. `read_s` is the first second that was not
        delivered.

        Earlier slots that the timer log does not know any more are left as they are: they are not read again.
        """
        wanted: np.ndarray | None = None
        for position, units in logged:
            if len(units):
                wanted = np.zeros(self._slots, dtype=SLOT) if wanted is None else wanted
                _add(wanted, position, units)
        if wanted is None and self._region is None:
            return  # no timer message, as in most stores: the wheel's 38 MB are not even allocated
        wanted = np.zeros(self._slots, dtype=SLOT) if wanted is None else wanted
        region = self._map()
        for begin in range(0, self._slots, _SLOTS_PER_READ):
            part = wanted[begin : begin + _SLOTS_PER_READ]
            there = region.read(begin * SLOT_BYTES, part.nbytes)
            if there == part.tobytes():
                continue
            found = np.frombuffer(there, dtype=SLOT)
            differs = (part.view(_WORDS) != found.view(_WORDS)).any(axis=1)
            differs &= (part["time_s"] != 0) | (found["time_s"] >= read_s)
            for index in np.flatnonzero(differs).tolist():
                self._write((begin + index) * SLOT_BYTES, part[index].tobytes())

    def pending(self, from_s: int) -> list[tuple[int, int]]:
        """Return (second, count) of each slot from `from_s` on, ascending."""
        if self._region is None:
            return []
        slots = np.frombuffer(self._region.read(0, self._size), dtype=SLOT)
        slots = slots[slots["time_s"] >= max(from_s, 1)]
        return sorted(zip(slots["time_s"].tolist(), slots["count"].tolist(), strict=True))

    def first_held(self, from_s: int, until_s: int) -> int:
        """Return the first of the seconds [from_s, until_s) whose slot holds something; `until_s` when none
        does. The wheel must reach as far."""
        at_once = 64  # doubled: held seconds lie close together, or far apart
        while self._region is not None and from_s < until_s:
            at = from_s % self._slots
            number = min(until_s - from_s, self._slots - at, at_once)
            data = self._region.read(at * SLOT_BYTES, number * SLOT_BYTES)
            held = np.frombuffer(data, dtype=SLOT)["time_s"] == np.arange(from_s, from_s + number)
            first = int(held.argmax())
            if held[first]:
                return from_s + first
            from_s, at_once = from_s + number, min(2 * at_once, _SLOTS_PER_READ)
        return until_s

    def count_between(self, from_s: int, until_s: int) -> int:
        """Return the sum of the counts of the slots of the seconds [from_s, until_s). The wheel must reach as
        far."""
        if self._region is None:
            return 0
        total = 0
        while from_s < until_s:
            at = from_s % self._slots
            number = min(until_s - from_s, self._slots - at, _SLOTS_PER_READ)
            data = self._region.read(at * SLOT_BYTES, number * SLOT_BYTES)
            slots = np.frombuffer(data, dtype=SLOT)
            is_meant = slots["time_s"] == np.arange(from_s, from_s + number)
            total += int(slots["count"][is_meant].sum(dtype=np.int64))
            from_s += number
        return total

    def sync(self) -> None:
        """Sync the file if it changed. One thread at a time. Raises SyncError."""
        if self._is_changed and self._region is not None:
            self._is_changed = False
            self._region.sync(0, self._size)

    def close(self) -> None:
        if self._region is not None:
            self._region.close()
            self._region = None


def _add(slots: np.ndarray, position: int, units: np.ndarray) -> None:
    """Enter the units of one file into the ring."""
    times = (units["write_ms"].astype(np.int64) + units["delay_ms"]) // timer_wheel.PRECISION_MS
    deletes = units["magic"] & timer_log.DELETE != 0
    order = np.argsort(times, kind="stable")
    seconds, starts = np.unique(times[order], return_index=True)
    if not len(seconds):
        return
    ends = np.append(starts[1:], len(order)) - 1
    counts = np.add.reduceat(np.where(deletes[order], -1, 1), starts)
    index = seconds % len(slots)
    goes_on = slots["time_s"][index] == seconds
    slots["first"][index] = np.where(
        goes_on, slots["first"][index], position + order[starts] * timer_log.SIZE
    )
    slots["last"][index] = position + order[ends] * timer_log.SIZE
    slots["count"][index] = np.where(goes_on, slots["count"][index], 0) + counts
    slots["time_s"][index] = seconds
