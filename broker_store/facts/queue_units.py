"""The units of a queue, read from its files by position: one of them, a search among them, or all in pieces
for a kernel.

Where a queue begins and ends stands nowhere: units in front that were filled in when the queue did not start
at 0 lead nowhere, and the first that is no data is after the end. What a start would cut off, or write again,
is taken as it stands in the files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from broker_store.engine.disk.disk import Disk
from broker_store.engine.disk.file_access import Reader
from broker_store.errors import StoreError
from broker_store.formats import queue_unit
from broker_store.formats.queue_unit import QueueUnit

UNIT = queue_unit.SIZE
PIECE_UNITS = 1 << 14  # read at once


class QueueUnits:
    """`files` are (number of its first byte in the queue, size, path), ascending."""

    def __init__(self, disk: Disk, files: list[tuple[int, int, Path]]):
        self._disk, self._files = disk, files
        self.first = files[0][0] // UNIT if files else 0
        self._end: int | None = None

    @property
    def end(self) -> int:
        """The number after the last unit."""
        if self._end is None:
            self._end = self._find_end()
        return self._end

    def _find_end(self) -> int:
        for base, size, _ in reversed(self._files):
            low, high = base // UNIT, (base + size) // UNIT
            while low < high:
                middle = (low + high) // 2
                if self._is_data(middle):
                    low = middle + 1
                else:
                    high = middle
            if low > base // UNIT:
                return low
        return self.first

    def _is_data(self, number: int) -> bool:
        unit = self.unit(number)
        return unit is not None and unit.is_data

    def unit(self, number: int) -> QueueUnit | None:
        """A unit by its number, None when no file has it."""
        for base, size, path in self._files:
            if base <= number * UNIT and (number + 1) * UNIT <= base + size:
                with self._opened(path) as reader:
                    raw = b"" if reader is None else reader.read(number * UNIT - base, UNIT)
                return queue_unit.decode(raw) if len(raw) == UNIT else None
        return None

    @contextmanager
    def _opened(self, path: Path) -> Iterator[Reader | None]:
        """Open a file for reading. None of one that went since it was listed, by retention or with its
        topic."""
        try:
            opened = self._disk.open_reader(path)
        except StoreError:
            if self._disk.exists(path):
                raise
            yield None
            return
        with opened as reader:
            yield reader

    def first_at(self, log_offset: int) -> int:
        """The number of the first unit that leads to `log_offset` or after it."""
        return self.search(lambda unit: unit.log_offset >= log_offset and not unit.is_pre_blank)

    def search(self, is_after: Callable[[QueueUnit], bool]) -> int:
        """The first number whose unit is after what is searched, in a queue in which all that follow one such
        are, too; `end` when there is none."""
        low, high = self.first, self.end
        while low < high:
            middle = (low + high) // 2
            unit = self.unit(middle)
            if unit is not None and not is_after(unit):
                low = middle + 1
            else:
                high = middle
        return low

    def pieces(self, start: int) -> Iterator[np.ndarray]:
        """The bytes of the units from `start` on, up to PIECE_UNITS at a time; whatever a file holds, also
        after the end."""
        room = np.empty(PIECE_UNITS * UNIT, dtype=np.uint8)
        for base, size, path in self._files:
            at = max(start * UNIT - base, 0)
            if at >= size:
                continue
            with self._opened(path) as reader:
                while reader is not None and at + UNIT <= size:
                    got = reader.read_into(memoryview(room)[: min(len(room), size - at)], at) // UNIT * UNIT
                    if not got:
                        break
                    yield room[:got]
                    at += got
