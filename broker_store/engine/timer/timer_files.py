"""The files of timer messages: what is on the wheel, and how much of it survives a power cut.

    timer topic's queue ──► timer log: a unit per message ──► wheel: a slot per second      (loop)
                                 └─ synced ─► config/timercheck: (log end, queue offset, slots delivered)
                                              (worker)

    queue       0 ................. check.queue_offset ............... read to ........... maximum
                | on the wheel, and on the disk      | on the wheel            | waits
    timer log   0 ................. check.log_flushed ................ wrote
                                    | after a power cut: cut off, and read from the queue again
    seconds     ................... check.read_ms .................... now
                | delivered         | delivered; after a power cut once more

The three numbers of a `TimerCheck` belong to one moment. They are written only when the units before them,
and the commit log up to its end at that moment, are on the disk. So a start cuts the timer log at that end
and goes on in the queue at that offset: after kill -9 or a power cut each message is on the wheel once.
Messages delivered since that moment are delivered again.

Files of Apache's broker are read by its own rule: the log goes on to its last sound unit, whose message shows
how far the queue was read. When the timer log ends before the numbers (it was lost or is damaged), the
messages are read from the queue again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from broker_store.engine.disk.disk import Disk
from broker_store.engine.disk.region import Region
from broker_store.engine.timer.timer_log import TimerLog
from broker_store.engine.timer.timer_wheel import TimerWheel
from broker_store.errors import DiskFullError, FormatError
from broker_store.formats import record, timer_check, timer_log, timer_wheel
from broker_store.formats.timer_check import TimerCheck
from broker_store.formats.timer_log import TIMER_TOPIC, TimerUnit
from broker_store.formats.timer_wheel import PRECISION_MS, TimerSlot

_HOUR_MS = 3_600_000
_MAX_WAITING = 16  # TimerChecks that wait for the log; beyond that the oldest is dropped


class WheelEntry(NamedTuple):
    """A message as it is put on the wheel; `magic` as of its unit (formats/timer_log.py)."""

    slot_s: int
    magic: int
    write_ms: int
    log_offset: int
    size: int
    topic_hash: int


class TimerFiles:
    """`flushed()` returns how far the commit log is on the disk. Loop thread, except `step`, which is a
    worker's."""

    def __init__(
        self,
        disk: Disk,
        root: Path,
        log_file_size: int,
        flushed: Callable[[], int],
        slots: int = timer_wheel.SLOTS,
    ):
        self._disk = disk
        self._path = root / timer_check.PATH
        self._flushed = flushed
        self._directory = root / timer_log.PATH
        self._log = TimerLog(disk, self._directory, log_file_size)
        self._wheel = TimerWheel(disk, root / timer_wheel.PATH, slots)
        # Of config/timercheck. Mapped and written by the worker
        self._region: Region | None = None
        # Numbers that wait for the commit log, and up to where. The loop adds, and drops the oldest when
        # there are too many; the worker takes out. No lock: the worker compares only what it has taken out,
        # and after the loop has dropped one there are as many as before.
        self._waiting: deque[tuple[TimerCheck, int]] = deque(maxlen=_MAX_WAITING)
        # The two below are the worker's only: taken out, and the commit log is not on the disk so far; ready
        # to be written, and the disk was full
        self._taken: tuple[TimerCheck, int] | None = None
        self._refused: TimerCheck | None = None
        # The numbers that a start found, then those written last. Set by the start, then by the worker; the
        # loop reads the reference
        self.check = TimerCheck()
        # The three below are set by the start, before there are other threads
        self.queue_offset = 0  # where the queue is to be read on
        self.lacks_check = False  # there are units, and no file states how far they were delivered
        # Messages before this queue offset were on the wheel before, and their units are lost
        self.taken_again_before = 0

    def require_kinds(self) -> None:
        """Check, before a start changes anything, that `open` can use the files. Raises DamagedStoreError."""
        self._disk.require_directory(self._directory)
        self._disk.require_file(self._path)
        self._log.require_files()
        self._wheel.found_size()

    def open(self, log_end: int, record_at: Callable[[int], bytes | None], queue_minimum: int = 0) -> None:
        """Load, cut the log after its sound end, make the wheel. Raises StoreError. Any thread.

        `queue_minimum` is the first offset of the timer topic's queue that is in the log.
        """
        raw = self._disk.read_file(self._path)
        self.check = (
            timer_check.decode(raw)
            if raw is not None and len(raw) >= timer_check.FILE_BYTES
            else TimerCheck()
        )
        is_ours = raw is not None and timer_check.is_sealed(raw)
        self._log.load()
        self._wheel.load()
        end, last = self._sound_end(log_end, self.check.log_flushed if is_ours else None)
        self.lacks_check = last is not None and (raw is None or len(raw) < timer_check.FILE_BYTES)
        if is_ours and self._lacks_begin(record_at, queue_minimum):
            end, last = 0, None
        self.queue_offset = self._queue_offset(is_ours, end, last, record_at)
        self._log.cut(end)
        self._wheel.fill(self._log.units(), self.check.read_ms // PRECISION_MS)

    def _lacks_begin(self, record_at: Callable[[int], bytes | None], queue_minimum: int) -> bool:
        """Return whether the first files of the timer log are lost: it begins after messages that the commit
        log still has, whose units retention never removes."""
        first = self._log.unit_at_begin()
        following = (
            None
            if first is None or not self._log.files[0].base
            else _queue_offset_of(record_at(first.log_offset))
        )
        return following is not None and following > queue_minimum

    def _sound_end(self, log_end: int, limit: int | None) -> tuple[int, int | None]:
        """Return (the end of the units that name records of the log, at most `limit`; the log offset that the
        last of them names)."""
        end, last = self._log.wrote, None
        for position, units in self._log.units():
            offsets = units["log_offset"].astype(np.int64)
            beyond = offsets + units["size"] > log_end
            if limit is not None:
                beyond |= position + np.arange(len(units)) * timer_log.SIZE >= limit
                # Log offsets must go up: this may be another file's content
                beyond |= np.diff(offsets, prepend=-1 if last is None else last) <= 0
            bad = np.flatnonzero(beyond)
            count = int(bad[0]) if len(bad) else len(units)
            end = position + count * timer_log.SIZE
            last = int(units["log_offset"][count - 1]) if count else last
            if count < len(units):
                break
        return end, last

    def _queue_offset(
        self, is_ours: bool, end: int, last: int | None, record_at: Callable[[int], bytes | None]
    ) -> int:
        check = self.check
        if is_ours and end == check.log_flushed:
            return check.queue_offset
        if end < check.log_flushed:
            self.taken_again_before = check.queue_offset
        if last is None:
            return check.queue_offset if not check.log_flushed else 0
        read_to = _queue_offset_of(record_at(last))
        if read_to is None:
            return check.queue_offset
        return read_to + 1 if self.check == TimerCheck() else min(read_to + 1, check.master_queue_offset)

    # The wheel ------------------------------------------------------------------------------------

    def append(self, messages: Sequence[WheelEntry]) -> tuple[int, list[int]]:
        """Put messages on the wheel, as many as the log's file has room for. Return how many, and the seconds
        that got their first message.

        Raises DiskFullError; nothing has changed then.
        """
        messages = messages[: self._log.make_room()]
        ends: dict[int, tuple[int, int, int]] = {}
        new = []
        units = []
        position = self._log.wrote
        for slot_s, magic, write_ms, log_offset, size, topic_hash in messages:
            end = ends.get(slot_s)
            if end is None:
                self._wheel.make_room(slot_s)
                slot = self._wheel.get(slot_s)
                if slot is None:
                    new.append(slot_s)
                end = (position, timer_log.NONE, 0) if slot is None else (slot.first, slot.last, slot.count)
            first, last, count = end
            units.append(
                timer_log.LAYOUT.pack(
                    timer_log.SIZE,
                    last,
                    magic,
                    write_ms,
                    slot_s * PRECISION_MS - write_ms,
                    log_offset,
                    size,
                    topic_hash,
                    0,
                )
            )
            ends[slot_s] = (
                position if first == timer_log.NONE else first,
                position,
                count + (-1 if magic & timer_log.DELETE else 1),
            )
            position += timer_log.SIZE
        self._log.append(b"".join(units))
        for slot_s, (first, last, count) in ends.items():
            self._wheel.put(slot_s, first, last, count)
        return len(messages), new

    def slot(self, slot_s: int) -> TimerSlot | None:
        """Return the slot of a second; None when it never held a message."""
        return self._wheel.get(slot_s)

    def unit(self, position: int) -> TimerUnit | None:
        """Return a unit of a slot's chain; None at its end."""
        return self._log.unit(position)

    def pending(self, from_s: int) -> list[tuple[int, int]]:
        """Return (second, count) of each slot from `from_s` on, ascending."""
        return self._wheel.pending(from_s)

    def first_held(self, from_s: int, until_s: int) -> int:
        """Return the first of the seconds [from_s, until_s) that ever held a message; `until_s` when none
        did."""
        return self._wheel.first_held(from_s, until_s)

    def count_between(self, from_s: int, until_s: int) -> int:
        """Return how many messages the slots of the seconds [from_s, until_s) have: delivered or not, and
        requests to delete one less."""
        return self._wheel.count_between(from_s, until_s)

    def count_from(self, from_s: int) -> tuple[dict[int, int], dict[int, int]]:
        """Return how many messages wait in slots from `from_s` on: by hash of the topic, and by hour (ms)."""
        by_topic: dict[int, int] = {}
        by_hour: dict[int, int] = {}
        for _, units in self._log.units():
            slot_ms = units["write_ms"].astype(np.int64) + units["delay_ms"]
            waiting = (slot_ms >= from_s * PRECISION_MS) & (units["magic"] & timer_log.DELETE == 0)
            for table, values in (
                (by_topic, units["topic_hash"][waiting]),
                (by_hour, slot_ms[waiting] // _HOUR_MS * _HOUR_MS),
            ):
                for value, count in zip(
                    *(part.tolist() for part in np.unique(values, return_counts=True)), strict=True
                ):
                    table[value] = table.get(value, 0) + count
        return by_topic, by_hour

    @property
    def log_end(self) -> int:
        return self._log.wrote

    def delete_before(self, log_minimum: int) -> None:
        """Remove the files of the timer log whose messages the commit log does not hold any more. Raises
        StoreError."""
        self._log.delete_before(log_minimum)

    # What is sure ---------------------------------------------------------------------------------

    def save(self, check: TimerCheck, log_end: int) -> None:
        """Let the worker write these numbers once the commit log is on the disk up to `log_end`."""
        self._waiting.append((check, log_end))

    def step(self, now_ms: int) -> bool:
        """Write the newest numbers that may be written. Worker's thread. Raises SyncError.

        Without room on the disk the older numbers stay there, and the next step tries again.
        """
        flushed = self._flushed()
        check, self._refused = self._refused, None
        while self._taken is not None or self._waiting:
            taken, log_end = self._taken or self._waiting.popleft()
            if log_end > flushed:
                self._taken = taken, log_end
                break
            check, self._taken = taken, None
        if check is None:
            return False
        self._log.sync(check.log_flushed)
        self._wheel.sync()
        try:
            self._write(check)
        except DiskFullError:
            self._refused = check
        return False

    def sync(self) -> None:
        """Sync what `open` repaired. Raises SyncError."""
        self._log.sync(self._log.wrote)
        self._wheel.sync()

    def _write(self, check: TimerCheck) -> None:
        if self._region is None:
            self._region = self._map()
        self._region.write(0, timer_check.encode_page(check))
        self._region.sync(0, timer_check.FILE_BYTES)
        self.check = check

    def _map(self) -> Region:
        """Map config/timercheck and give it its blocks. Raises DiskFullError; a new file is removed then, as
        a start would read zeros in it."""
        path = self._path
        if self._disk.exists(path) and self._disk.size_of(path) != timer_check.FILE_BYTES:
            self._disk.unlink(path)
        is_new = not self._disk.exists(path)
        if is_new:
            self._disk.make_directory(path.parent)
        region = (
            self._disk.create_region(path, timer_check.FILE_BYTES) if is_new else self._disk.open_region(path)
        )
        try:
            region.allocate(0, timer_check.FILE_BYTES)
        except DiskFullError:
            region.close()
            if is_new:
                self._disk.unlink(path)
            raise
        if is_new:
            self._disk.sync_directory(path.parent)
        return region

    def close(self) -> None:
        self._log.close()
        self._wheel.close()
        if self._region is not None:
            self._region.close()
            self._region = None


def _queue_offset_of(raw: bytes | None) -> int | None:
    """Return the queue offset of a message of the timer topic; None for any other record."""
    try:
        stored = None if raw is None else record.decode(raw)
    except FormatError:
        return None
    return stored.queue_offset if stored is not None and stored.topic == TIMER_TOPIC else None
