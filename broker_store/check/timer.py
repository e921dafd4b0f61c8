"""Check of the files of timer messages: timerlog/, timerwheel and config/timercheck.

    queue of the timer topic ──► timerlog: a unit per message, chained by second ──► timerwheel: the end of
                                 each second's chain

All of it can be built again from the queue. So what a start cuts or builds again is a warning or a note. An
error is a fault that a start would not notice: a unit that names another message or second, a chain that
leads elsewhere. In a store in use these files are not checked: all of them change.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from broker_store.check.files import FileLists, StoreFile
from broker_store.check.log import Log
from broker_store.check.positions import Positions
from broker_store.check.queue import Queue
from broker_store.check.report import ERROR, NOTE, WARNING
from broker_store.check.store import CheckedStore
from broker_store.engine.disk.file_access import Reader
from broker_store.engine.timer.timer_log import UNIT, sound_units
from broker_store.engine.timer.timer_wheel import SLOT
from broker_store.formats import properties, timer_check, timer_log, timer_wheel
from broker_store.formats.timer_check import TimerCheck
from broker_store.formats.timer_log import TIMER_TOPIC
from broker_store.formats.timer_wheel import PRECISION_MS, SLOTS

UNITS_PER_READ = 1 << 16
SLOTS_PER_READ = 1 << 16
_CLOCKS_DIFFER_MS = 3_600_000
_MAX_LOOKUPS = 1 << 12  # for slots, of one read, that differ from the timer log: each reads a unit


class TimerFilesCheck:
    """Run after log and queues were walked. `queue` is that of the timer topic; `file_size` is the length of
    the timer log's files, if that is known."""

    def __init__(
        self,
        store: CheckedStore,
        log: Log,
        lists: FileLists,
        positions: Positions,
        queue: Queue | None,
        file_size: int | None,
    ):
        self._report, self._disk, self._progress = store.report, store.disk, store.progress
        self._log, self._lists, self._positions = log, lists, positions
        self._queue, self._file_size = queue, file_size
        self._directory = store.root / timer_log.PATH
        self._wheel = store.root / timer_wheel.PATH
        self._path = store.root / timer_check.PATH

    def run(self) -> None:
        self._files = self._lists.sequence(self._directory, timer_log.PATH, self._file_size)
        self._first = self._end = self._files[0].base if self._files else 0
        # A ring like the wheel: the second of each slot, and its newest unit. Most stores have neither file,
        # and then no memory is filled.
        slots = SLOTS if self._files or self._disk.exists(self._wheel) else 0
        self._seconds = np.zeros(slots, dtype=np.int64)
        self._lasts = np.full(slots, timer_log.NONE, dtype=np.int64)
        self._units = 0
        if not any(
            finding.severity == ERROR and Path(finding.file).parent == self._directory
            for finding in self._report.findings
        ):
            self._check_log()
        if self._units:
            self._report.count("timer_units", self._units)
        self._check_wheel(self._check_page())

    # The timer log --------------------------------------------------------------------------------

    def _check_log(self) -> None:
        self._check_begin()
        for file in self._files:
            with self._disk.open_reader(file.path) as reader:
                if not self._check_file(file, reader):
                    return

    def _check_begin(self) -> None:
        """Report lost first files, as `TimerFiles._lacks_begin` finds them: retention leaves the units of all
        messages that the log has."""
        if not self._files or not self._files[0].base or self._queue is None:
            return
        file = self._files[0]
        with self._disk.open_reader(file.path) as reader:
            units = np.frombuffer(reader.read(0, timer_log.SIZE), dtype=UNIT)
        if not sound_units(units, file.base):
            return
        log_offset = int(units["log_offset"][0])
        number = _number_of(self._queue, log_offset)
        if (
            number > _number_of(self._queue, self._log.start)
            and int(self._queue.units(number, 1)["log_offset"][0]) == log_offset
        ):
            what = (
                "the files of the timer log before this one are missing, though the log has messages of "
                "theirs: the next start takes all from the queue again"
            )
            self._report.add(WARNING, "timer-log", str(file.path), 0, what)

    def _check_file(self, file: StoreFile, reader: Reader) -> bool:
        """Check a file; return whether the log goes on in the next file."""
        room = (file.size - timer_log.BLANK.size) // timer_log.SIZE
        for number in range(0, room, UNITS_PER_READ):
            self._progress.step("timer")
            at = number * timer_log.SIZE
            raw = reader.read(at, min(UNITS_PER_READ, room - number) * timer_log.SIZE)
            units = np.frombuffer(raw[: len(raw) // timer_log.SIZE * timer_log.SIZE], dtype=UNIT)
            count = sound_units(units, file.base + at)
            ended = self._check_units(file, at, units[:count])
            self._end = file.base + at + count * timer_log.SIZE
            if ended:
                return False
            if count < len(units):
                return self._ends(file, reader, at + count * timer_log.SIZE)
        return self._ends(file, reader, room * timer_log.SIZE)

    def _ends(self, file: StoreFile, reader: Reader, at: int) -> bool:
        """Judge the place after the last unit: a blank that closes the file, nothing, or other bytes. Return
        whether the log goes on in the next file."""
        left, _, magic = timer_log.BLANK.unpack(reader.read(at, timer_log.BLANK.size))
        if magic == timer_log.BLANK_MAGIC and left == file.size - at:
            return True
        if any(reader.read(at, timer_log.SIZE)) or file is not self._files[-1]:
            self._report.add(
                WARNING,
                "timer-log",
                str(file.path),
                at,
                "no unit stands here: the timer log ends, what follows is not read",
            )
        return False

    def _check_units(self, file: StoreFile, at: int, units: np.ndarray) -> bool:
        """Check units; return True when the log of messages ends before one of them."""
        offsets, sizes = units["log_offset"].astype(np.int64), units["size"].astype(np.int64)
        beyond = np.flatnonzero(offsets + sizes > self._log.end)
        if len(beyond):
            units, offsets, sizes = (part[: beyond[0]] for part in (units, offsets, sizes))
            where = at + int(beyond[0]) * timer_log.SIZE
            self._report.add(
                WARNING,
                "timer-log",
                str(file.path),
                where,
                "the units from here on name messages after the end of the log",
            )
        self._units += len(units)
        for place in np.flatnonzero(~self._are_named(offsets, sizes)):
            what = (
                f"names the message of {int(sizes[place])} bytes at {int(offsets[place])}, and there is "
                f"no timer message like this"
            )
            self._report.add(ERROR, "timer-unit", str(file.path), at + int(place) * timer_log.SIZE, what)
        self._check_chains(file, at, units)
        return bool(len(beyond))

    def _are_named(self, offsets: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """Return which of these (log offset, size) are messages of the timer topic's queue, or may be: their
        part of the log is gone or damaged."""
        named = (offsets < self._log.start) | self._log.is_damaged(offsets)
        queue = self._queue
        if named.all() or queue is None or queue.key in self._report.bad_queues:
            return np.ones(len(offsets), dtype=bool)
        number, highest = _number_of(queue, int(offsets[~named].min())), int(offsets[~named].max())
        while number < queue.end:
            units = queue.units(number, min(UNITS_PER_READ, queue.end - number))
            known, lengths = units["log_offset"].astype(np.int64), units["size"].astype(np.int64)
            places = np.minimum(np.searchsorted(known, offsets), len(known) - 1)
            named |= (known[places] == offsets) & (lengths[places] == sizes)
            if known[-1] >= highest:
                break
            number += len(units)
        return named

    def _check_chains(self, file: StoreFile, at: int, units: np.ndarray) -> None:
        """Report units that do not name the previous one of their second."""
        if not len(units):
            return
        seconds = _seconds_of(units)
        positions = file.base + at + np.arange(len(units), dtype=np.int64) * timer_log.SIZE
        order = np.argsort(seconds, kind="stable")
        expected = np.empty(len(units), dtype=np.int64)
        expected[order[1:]] = positions[order[:-1]]
        firsts = order[np.concatenate(([True], np.diff(seconds[order]) != 0))]
        slots = seconds[firsts] % SLOTS
        expected[firsts] = np.where(
            self._seconds[slots] == seconds[firsts], self._lasts[slots], timer_log.NONE
        )
        previous = units["previous"].astype(np.int64)
        gone = (expected == timer_log.NONE) & (previous < self._first)  # its file was removed
        for place in np.flatnonzero((previous != expected) & ~gone):
            what = (
                f"names the unit at {int(previous[place])} as the one before it of its second "
                f"{int(seconds[place])}, that is {int(expected[place])}"
            )
            self._report.add(ERROR, "timer-chain", str(file.path), at + int(place) * timer_log.SIZE, what)
        ends = order[np.concatenate((np.diff(seconds[order]) != 0, [True]))]
        self._seconds[seconds[ends] % SLOTS] = seconds[ends]
        self._lasts[seconds[ends] % SLOTS] = positions[ends]

    # timercheck -----------------------------------------------------------------------------------

    def _check_page(self) -> int:
        """Check config/timercheck; return the first second that was not delivered."""
        content = self._disk.read_file(self._path)
        if content is None or len(content) < timer_check.FILE_BYTES:
            if self._units:
                what = (
                    "is missing"
                    if content is None
                    else f"is {len(content)} bytes long, not {timer_check.FILE_BYTES}"
                )
                self._report.add(
                    WARNING,
                    "timer-check",
                    str(self._path),
                    None,
                    f"{what}: it is not known what was delivered",
                )
            return 0
        page: TimerCheck = timer_check.decode(content)
        now_ms = max(time.time_ns() // 1_000_000, self._log.newest_ms)
        if page.read_ms > now_ms + _CLOCKS_DIFFER_MS:
            at, what = (
                timer_check.LAYOUT.offset["read_ms"],
                f"states that all up to {page.read_ms} is delivered, and it is {now_ms}",
            )
            self._report.add(ERROR, "timer-check", str(self._path), at, what)
        if page.queue_offset > self._positions.end_of(TIMER_TOPIC, 0):
            at, what = (
                timer_check.LAYOUT.offset["queue_offset"],
                f"is at {page.queue_offset} of the queue of {TIMER_TOPIC}, which ends before",
            )
            self._report.add(NOTE, "timer-check", str(self._path), at, what)
        if timer_check.is_sealed(content) and page.log_flushed > self._end:
            at, what = (
                timer_check.LAYOUT.offset["log_flushed"],
                f"the timer log was sure up to {page.log_flushed} and ends at {self._end}",
            )
            self._report.add(NOTE, "timer-check", str(self._path), at, what)
        return page.read_ms // PRECISION_MS

    # The wheel ------------------------------------------------------------------------------------

    def _check_wheel(self, read_s: int) -> None:
        """Check the slots of seconds that were not delivered. A slot may be older than the log, since
        Apache's broker writes the wheel once a second."""
        path = self._wheel
        size = self._lists.size_of(path) if self._disk.exists(path) else None
        if size is None:
            return
        if size == 0:
            self._report.add(
                WARNING, "empty-file", str(path), None, "has no bytes, the next start deletes it"
            )
        elif size != SLOTS * timer_wheel.SLOT_BYTES:
            self._report.add(
                ERROR,
                "timer-wheel",
                str(path),
                None,
                f"is {size} bytes long, not {SLOTS * timer_wheel.SLOT_BYTES}",
            )
        else:
            self._bad_slots = self._passed_over = 0
            self._passed_over_at: int | None = None
            with self._disk.open_reader(path) as reader:
                for first in range(0, SLOTS, SLOTS_PER_READ):
                    self._progress.step("timer")
                    raw = reader.read(
                        first * timer_wheel.SLOT_BYTES,
                        min(SLOTS_PER_READ, SLOTS - first) * timer_wheel.SLOT_BYTES,
                    )
                    self._check_slots(first, np.frombuffer(raw, dtype=SLOT), read_s)
            if self._passed_over:
                what = (
                    f"at least {self._bad_slots} slots are wrong; {self._passed_over} more that differ "
                    f"from the timer log were not checked, the first of them here"
                )
                self._report.add(WARNING, "timer-slots", str(path), self._passed_over_at, what)

    def _check_slots(self, first: int, slots: np.ndarray, read_s: int) -> None:
        waiting = (slots["time_s"] > 0) & (slots["time_s"] >= read_s) & (slots["last"] >= self._first)
        mine = slice(first, first + len(slots))
        differs = waiting & ((slots["time_s"] != self._seconds[mine]) | (slots["last"] != self._lasts[mine]))
        places = np.flatnonzero(differs)
        passed_over = places[_MAX_LOOKUPS:]
        if len(passed_over) and not self._passed_over:
            self._passed_over_at = (first + int(passed_over[0])) * timer_wheel.SLOT_BYTES
        self._passed_over += len(passed_over)
        for place in places[:_MAX_LOOKUPS].tolist():
            slot, at = slots[place], (first + place) * timer_wheel.SLOT_BYTES
            time_s, last = int(slot["time_s"]), int(slot["last"])
            unit = self._unit_at(last)
            if (
                unit is not None
                and unit.slot_ms // PRECISION_MS == time_s
                and time_s % SLOTS == first + place
            ):
                continue  # an older one of its chain
            self._bad_slots += 1
            if unit is not None and not unit.rolls and self._asked_ms(unit) == time_s * PRECISION_MS:
                file = self._file_at(last)
                assert file is not None  # the unit was read there
                what = f"is of second {unit.slot_ms // PRECISION_MS}, its message and the wheel say {time_s}"
                self._report.add(ERROR, "timer-unit", str(file.path), last - file.base, what)
            else:
                self._report.add(
                    WARNING,
                    "timer-slot",
                    str(self._wheel),
                    at,
                    f"the newest unit of second {time_s} is not at {last}",
                )

    def _file_at(self, position: int) -> StoreFile | None:
        return next((file for file in self._files if file.base <= position < file.base + file.size), None)

    def _unit_at(self, position: int) -> timer_log.TimerUnit | None:
        file = self._file_at(position)
        if file is None or position >= self._end or (position - file.base) % timer_log.SIZE:
            return None
        with self._disk.open_reader(file.path) as reader:
            raw = reader.read(position - file.base, timer_log.SIZE)
        unit = timer_log.decode(raw) if len(raw) == timer_log.SIZE else None
        return unit if unit is not None and unit.is_data else None

    def _asked_ms(self, unit: timer_log.TimerUnit) -> int | None:
        """Return the time that a unit's message asks for, in ms; None when the message cannot be read."""
        found = self._log.record_at(unit.log_offset, unit.size)
        asked = found.properties.get(properties.TIMER_OUT_MS, "") if found is not None else ""
        return int(asked) if asked.isascii() and asked.isdigit() else None


def _number_of(queue: Queue, log_offset: int) -> int:
    """Return the number of the queue's first unit of a record at or after a log offset."""
    low, high = queue.first, queue.end
    while low < high:
        middle = (low + high) // 2
        if int(queue.units(middle, 1)["log_offset"][0]) < log_offset:
            low = middle + 1
        else:
            high = middle
    return low


def _seconds_of(units: np.ndarray) -> np.ndarray:
    return (units["write_ms"].astype(np.int64) + units["delay_ms"]) // PRECISION_MS
