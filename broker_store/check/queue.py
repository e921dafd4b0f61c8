"""The units of one queue, read by number from its files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from broker_store.check.files import StoreFile, data_end
from broker_store.check.units import UNIT, is_written
from broker_store.engine.disk.disk import Disk
from broker_store.errors import StoreError
from broker_store.formats import queue_unit

UNITS_PER_READ = 1 << 16  # where they are compared with no record
END_UNITS_PER_READ = 1 << 12  # to find the last unit of a queue
MAX_DAMAGED_UNITS = 1 << 20  # of a run; a longer run is not attributed to one damaged part
FIRST_UNITS_PER_READ = 1024  # to find the first unit of a queue
_TAGS_AT = queue_unit.LAYOUT.offset["tags_code"]


class Gap(NamedTuple):
    """Queue offsets [first, end) that no record has, between the records at log offsets `after` (-1: none)
    and `before`."""

    topic: str
    queue_id: int
    first: int
    end: int
    after: int
    before: int


class FirstUnit(NamedTuple):
    """The first unit of a queue that leads to a message."""

    number: int
    log_offset: int
    size: int


class Queue:
    """The units of one queue, read by number.

    `key` is (topic, queue id). `first` and `end` are the numbers of its first unit and after its last one;
    `last_record_end` is the log offset after the record of the last one. The walk over the log sets the rest:
    `next` is the queue offset that the log's next record of it must have, `last_at` the log offset of the
    record before that (-1: none), `covered_from` the number of its first record in the log.
    """

    def __init__(self, disk: Disk, key: tuple[str, int], name: str, files: list[StoreFile]):
        """`name` stands for the queue in findings about units without a file."""
        self._disk, self.key, self.name, self.files = disk, key, name, files
        self.first = files[0].base // queue_unit.SIZE if files else 0
        self.next: int | None = None
        self.last_at = -1
        self.covered_from: int | None = None
        # The number after the highest of its units that a record states; a damaged record may lower `next`
        self.covered_to = 0
        self.life: tuple[int, int] | None = None  # first unit and its record's place, when known
        self.missing: list[list[int]] = []  # runs [first, last] of units the log has records for
        self.end = self._find_end()
        self.last_record_end = self._find_last_record_end()

    def __str__(self) -> str:
        return f"{self.key[0]}/{self.key[1]}"

    @property
    def is_light(self) -> bool:
        """True if its units belong to records of other topics."""
        return self.key[0].startswith(queue_unit.LIGHT_QUEUE)

    def units(self, first: int, count: int) -> np.ndarray:
        """Return units [first, first + count); zeros where there is no file."""
        found = np.empty(count, dtype=UNIT)
        self.read_units(memoryview(found.view(np.uint8)), first)
        return found

    def read_units(self, target: memoryview, first: int) -> None:
        """Fill `target`, which has the length of whole units, with those from `first` on; zeros where there
        is no file."""
        start = first * queue_unit.SIZE
        end = start + len(target)
        files = [file for file in self.files if file.base < end and start < file.end]
        if len(files) != 1 or start < files[0].base or files[0].end < end:
            target[:] = bytes(len(target))
        for file in files:
            low, high = max(start, file.base), min(end, file.end)
            count = 0
            try:
                with self._disk.open_reader(file.path) as reader:
                    count = reader.read_into(target[low - start : high - start], low - file.base)
            except StoreError:
                if self._disk.exists(file.path):
                    raise  # otherwise the broker has deleted it since
            # In a file that is cut within a unit, its first 12 bytes show where the message is, so its number
            # was given.
            cut = count % queue_unit.SIZE
            kept = low + count - (cut if cut < _TAGS_AT else 0)
            target[kept - start : high - start] = bytes(high - kept)

    def spans(self, first: int, end: int, at_most: int) -> Iterator[tuple[int, int]]:
        """Yield (first unit, count) of the parts of [first, end) that lie in files, of at most `at_most`
        units: a file's name may be far from the others."""
        for file in self.files:
            low = max(first, file.base // queue_unit.SIZE)
            high = min(end, file.end // queue_unit.SIZE)
            for at in range(low, high, at_most):
                yield at, min(at_most, high - at)

    def first_unit(self) -> FirstUnit | None:
        """Return the queue's first unit of a message; None when it has none."""
        for start in range(self.first, self.end, FIRST_UNITS_PER_READ):
            units = self.units(start, min(FIRST_UNITS_PER_READ, self.end - start))
            data = np.flatnonzero((units["size"] > 0) & (units["size"] != queue_unit.PRE_BLANK_SIZE))
            if len(data):
                unit = units[int(data[0])]
                return FirstUnit(start + int(data[0]), int(unit["log_offset"]), int(unit["size"]))
        return None

    def file_of(self, number: int) -> tuple[str, int]:
        """Return (path, offset in the file) of a unit, for a finding."""
        at = number * queue_unit.SIZE
        for file in self.files:
            if file.base <= at < file.end:
                return str(file.path), at - file.base
        return self.name, at

    def _find_end(self) -> int:
        """Return the number after the last unit that holds data, with or without holes before it."""
        for file in reversed(self.files):
            lowest = file.base // queue_unit.SIZE
            end = lowest - (-data_end(self._disk, file) // queue_unit.SIZE)
            while end > lowest:
                first = max(lowest, end - END_UNITS_PER_READ)
                data = np.flatnonzero(is_written(self.units(first, end - first)))
                if len(data):
                    return first + int(data[-1]) + 1
                end = first
        return self.first

    def _find_last_record_end(self) -> int:
        """Return the log offset after the record of the last unit; 0 when the unit is not valid or there is
        none."""
        if self.end == self.first:
            return 0
        unit = self.units(self.end - 1, 1)[0]
        if unit["size"] <= 0 or unit["log_offset"] < 0 or unit["size"] == queue_unit.PRE_BLANK_SIZE:
            return 0
        return int(unit["log_offset"]) + int(unit["size"])

    def are_damaged(self, first: int, end: int, damaged: list[tuple[int, int]]) -> bool:
        """Return whether the units [first, end) all point into these parts [low, high) of the log."""
        if end - first > MAX_DAMAGED_UNITS:
            return False
        offsets = self.units(first, end - first)["log_offset"].astype(np.int64)
        inside = np.zeros(len(offsets), dtype=bool)
        for low, high in damaged:
            inside |= (offsets >= low) & (offsets < high)
        return bool(inside.all())
