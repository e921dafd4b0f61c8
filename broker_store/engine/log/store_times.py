"""Where store times go back along the log, as far as that is known.

This broker never writes a store time below the last one (docs/decisions/0010). Apache's broker does when its
clock is set back, and a changed bit makes a record state another time. A search by time is a binary search,
which needs times that do not go back, so it asks here.

    known_from   log offset from which on every step back is known; below it nothing is
    steps        (log offset of the record that is older than the one before it, time of that one, its own
                 time)

config/storeTimes.json holds both, with the log's end when it was written (`to`) and the CRC-32 of all that
(`sum`).

A start reads a part of the log, and notes the steps that it finds (kernels/scan.py). The part that it does
not read was written by this broker since the previous start, or is described by config/storeTimes.json, which
Apache's broker ignores. A start writes the file again before it takes messages, with the end of the log
(`to`), unless this broker closed the store in order. So everything between `to` and the position of the
record of ends was written by this broker, and times do not go back there.
"""

from __future__ import annotations

import binascii
import json
from bisect import bisect_right
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from broker_store.engine.disk.disk import Disk
from broker_store.engine.rows import Words
from broker_store.errors import DiskFullError
from broker_store.kernels import context as c

FILE_NAME = "storeTimes.json"
MAX_STEPS = 1_000  # newer steps replace older ones, and `known_from` moves up


class StepBack(NamedTuple):
    log_offset: int
    before_ms: int
    own_ms: int

    def parts(self, time_ms: int) -> bool:
        """Return True if a record before the step and one after it were stored at or after `time_ms`, with
        older ones between."""
        return self.own_ms < time_ms <= self.before_ms


class TimeOrder(NamedTuple):
    """What makes a search by time uncertain in a part of the log: steps back, and the offset below which
    nothing is known (0 for none)."""

    steps: tuple[StepBack, ...]
    unknown_below: int

    def __str__(self) -> str:
        parts = []
        if self.steps:
            first = self.steps[0]
            count = f"{len(self.steps):,} times, first" if len(self.steps) > 1 else "once,"
            parts.append(
                f"store times go back {count} at {first.log_offset:,} of the log by "
                f"{first.before_ms - first.own_ms:,} ms:"
                " messages of the time that was asked for lie in more than one part of the queue"
            )
        if self.unknown_below:
            parts.append(
                f"it is not known whether store times go back below {self.unknown_below:,} of the "
                f"log, where messages may have"
                " been missed; `manage.py check_store` reports it"
            )
        return "; ".join(parts)


def encode(known_from: int, to: int, steps: Iterable[StepBack]) -> bytes:
    """Return the content of the file."""
    return json.dumps(
        {"from": known_from, "to": to, "steps": list(steps), "sum": _sum_of(known_from, to, steps)}
    ).encode()


def _sum_of(known_from: int, to: int, steps: Iterable[StepBack]) -> int:
    return binascii.crc32(json.dumps([known_from, to, list(steps)]).encode())


class StoreTimes:
    """What a start found and wrote to the file at `path`. Only a start changes it; any thread reads it."""

    def __init__(self, disk: Disk, path: Path):
        self._disk, self._path = disk, path
        self.known_from = 0
        self.steps: tuple[StepBack, ...] = ()
        self.note = ""  # what is wrong with the file, for the report
        self._to = -1
        self._loaded: tuple[int, tuple[StepBack, ...]] | None = None
        self._read_to: int | None = None
        self._room = Words(3 * MAX_STEPS)
        self._words = Words(c.T_STEP_WORDS)
        self._words[c.T_STEPS], self._words[c.T_STEP_ROOM] = self._room.address, MAX_STEPS

    # A start --------------------------------------------------------------------------------------

    def load(self) -> None:
        """Read the file. Without a good file nothing is known: there is no `.bak`, which would be of an older
        end."""
        self._to, self.known_from, self.steps, self.note = -1, 1 << 62, (), ""
        self._loaded = None
        raw = self._disk.read_file(self._path)
        if raw is None:
            return
        try:
            value = json.loads(raw)
            known_from, to = int(value["from"]), int(value["to"])
            steps = tuple(StepBack(*map(int, step)) for step in value["steps"])
            is_as_written = value["sum"] == _sum_of(known_from, to, steps)
        except (ValueError, OverflowError, RecursionError, TypeError, KeyError):
            is_as_written = False
        if not is_as_written:
            self.note = (
                "it is not as this broker wrote it, so where store times go back is known only of what "
                "the start reads"
            )
            return
        self.known_from, self._to, self.steps = known_from, to, steps
        self._loaded = known_from, steps

    def read_from(self, log_offset: int, own_position: int) -> int:
        """Note that the start reads the log from `log_offset` on, or continues there. Return the address that
        the scan needs.

        This broker wrote everything up to `own_position`. The first record after it is another broker's, and
        is compared with none before it.
        """
        if self._read_to is None:
            if self._to < 0 or log_offset >= max(self._to, own_position):
                self.known_from, self.steps = log_offset, ()
            self.steps = tuple(step for step in self.steps if step.log_offset < log_offset)
            self.known_from = min(self.known_from, log_offset)
        elif log_offset > self._read_to:
            self.known_from, self.steps = log_offset, ()
            self._words[c.T_STEP_COUNT] = self._words[c.T_STEP_LAST_MS] = 0
        return self._words.address

    def read_to(self, log_offset: int) -> None:
        """Note that the start has read up to `log_offset`."""
        self._read_to = log_offset

    def settle(self, log_begin: int, log_end: int, is_own: bool) -> None:
        """Write down what is known of the log, which is [log_begin, log_end) now. Raises StoreError.

        `is_own`: only this broker wrote since the file was written; the file then stays if nothing else
        changed.
        """
        count = self._words[c.T_STEP_COUNT]
        found = [
            StepBack(*(self._room[3 * (number % MAX_STEPS) + word] for word in range(3)))
            for number in range(max(0, count - MAX_STEPS), count)
        ]
        steps = sorted({step for step in (*self.steps, *found) if log_begin < step.log_offset < log_end})
        if count > MAX_STEPS or len(steps) > MAX_STEPS:
            steps = steps[-MAX_STEPS:]
            self.known_from = max(self.known_from, steps[0].log_offset)
        self.steps, self.known_from = tuple(steps), min(max(self.known_from, log_begin), log_end)
        self._words[c.T_STEP_COUNT] = 0
        if is_own and self._loaded == (self.known_from, self.steps):
            return
        try:
            self._disk.make_directory(self._path.parent)
            self._disk.replace_file(self._path, encode(self.known_from, log_end, self.steps))
        except DiskFullError:
            # The old file would be applied to what another broker writes
            self._disk.unlink(self._path, missing_ok=True)

    @property
    def detail(self) -> str:
        """Return what is known, for the report of a start."""
        steps = f"{len(self.steps):,} times" if len(self.steps) != 1 else "once"
        return f"known from {self.known_from:,} of the log on: they go back {steps}"

    # Searches -------------------------------------------------------------------------------------

    def order(self, begin: int, end: int, *times_ms: int) -> TimeOrder | None:
        """Return what makes a search for these times uncertain in [begin, end) of the log; None when nothing
        does."""
        steps = tuple(
            step
            for step in self.steps
            if begin < step.log_offset < end and any(step.parts(time_ms) for time_ms in times_ms)
        )
        unknown_below = self.known_from if begin < self.known_from else 0
        return TimeOrder(steps, unknown_below) if steps or unknown_below else None

    def is_step_between(self, begin: int, end: int) -> bool:
        """Return True if times go back at a record in (begin, end] of the log."""
        at = bisect_right(self.steps, begin, key=lambda step: step.log_offset)
        return at < len(self.steps) and self.steps[at].log_offset <= end

    def is_known(self, begin: int, end: int, own_position: int) -> bool:
        """True if every step back in (begin, end] of the log is known, by the file that was loaded.

        This broker wrote what lies between the end of the log in the file and `own_position`.
        """
        return self.known_from <= begin and end <= max(self._to, own_position)

    def is_known_to_rise(self, begin: int, end: int, own_position: int) -> bool:
        """True if no record in (begin, end] of the log states an older time than the one before it, and that
        is known."""
        return self.is_known(begin, end, own_position) and not self.is_step_between(begin, end)
