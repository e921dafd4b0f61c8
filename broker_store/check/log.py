"""The log of a store that is checked: its files, its damaged parts, and single records of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from broker_store.check.files import StoreFile, data_end
from broker_store.check.records import good_record, magic_places
from broker_store.check.store import CheckedStore
from broker_store.engine.disk.file_access import Reader
from broker_store.engine.log.row_buffer import MAX_RECORD
from broker_store.errors import FormatError, StoreError
from broker_store.formats import record

ZEROS_PER_READ = 1 << 20
_WINDOW_BYTES = 1 << 20  # searched at a time for a record's magic


class Stretch(NamedTuple):
    """A part [low, high) of the log that holds no good record but should: good ones follow, unless it is the
    log's tail."""

    low: int
    high: int
    is_tail: bool = False
    closes_file: bool = False  # it reaches the end of its file, and the log goes on in the next


class Log:
    """The files of the log in order, and what the walk over them has found.

    `end` is the log offset after the last good record so far; `damaged` are the parts [low, high) that are
    known to hold no good record, `stretches` those that a repair bridges or cuts.
    """

    def __init__(self, store: CheckedStore, files: list[StoreFile], file_size: int):
        """`file_size` is how many bytes each file should have, 0 without files."""
        self._store = store
        self.files, self.file_size = files, file_size
        self.start = self.end = files[0].base if files else 0
        self.damaged: list[tuple[int, int]] = []
        self.stretches: list[Stretch] = []
        self.ends_with_blank = False  # the last file is closed: the log continues in the next
        self.newest_ms = 0
        self.last_ms = 0  # store time of the last good record in the order of the log
        # By the base of a log file: whether files after it hold records
        self._has_later: dict[int, bool] = {}

    def lose(self, low: int, high: int, *, is_tail: bool = False, closes_file: bool = False) -> None:
        """Note that [low, high) holds no good record."""
        self.damaged.append((low, high))
        self.stretches.append(Stretch(low, high, is_tail, closes_file))

    def is_damaged(self, offsets: np.ndarray) -> np.ndarray:
        """Return an array that is True for each log offset in a damaged part."""
        inside = np.zeros(len(offsets), dtype=bool)
        for low, high in self.damaged:
            inside |= (offsets >= low) & (offsets < high)
        return inside

    def file_at(self, log_offset: int) -> StoreFile | None:
        """Return the file that holds a log offset, None without one."""
        return next((file for file in self.files if file.base <= log_offset < file.end), None)

    def file_holding(self, log_offset: int) -> StoreFile:
        """Return the file of a log offset which the log has."""
        file = self.file_at(log_offset)
        assert file is not None
        return file

    def is_end(self, log_offset: int) -> bool:
        """Return whether nothing lies at a log offset: zeros, or the end of the last file."""
        file = self.file_at(log_offset)
        if file is None:
            return bool(self.files) and log_offset == self.files[-1].end
        with self._store.disk.open_reader(file.path) as reader:
            return not any(reader.read(log_offset - file.base, 8))

    # Single records -------------------------------------------------------------------------------

    def record_at(self, log_offset: int, size: int) -> record.StoredMessage | None:
        """Return the good record of exactly `size` bytes at a log offset; None when there is none."""
        file = self.file_at(log_offset)
        if file is None or not record.MIN_RECORD <= size <= MAX_RECORD:
            return None
        try:
            with self._store.disk.open_reader(file.path) as reader:
                raw = reader.read(log_offset - file.base, size)
            found = record.decode(raw, log_offset=log_offset, max_size=size)
        except (FormatError, StoreError):
            return None  # damage is reported where the log is walked
        return found if found.size == size else None

    def record_from(self, log_offset: int) -> record.StoredMessage | None:
        """Return the good record that begins at a log offset, with the size that it states; None when there
        is none."""
        file = self.file_at(log_offset)
        if file is None:
            return None
        try:
            with self._store.disk.open_reader(file.path) as reader:
                head = record.read_head(reader.read(log_offset - file.base, record.BLANK_BYTES))
                if not head.is_record or not 0 < head.total_size <= MAX_RECORD:
                    return None
                raw = reader.read(log_offset - file.base, head.total_size)
                return record.decode(raw, log_offset=log_offset, max_size=MAX_RECORD)
        except FormatError:
            return None

    def records_between(self, low: int, high: int, at_most: int) -> Iterator[record.StoredMessage]:
        """Yield the good records in a part of one log file that the walk has left out, found by their
        magic."""
        file = self.file_at(low)
        if file is None or not file.actual:
            return
        at, found = low - file.base - 1, 0
        with self._store.disk.open_reader(file.path) as reader:
            while (
                found < at_most
                and (place := self.next_record(file, reader, at)) is not None
                and file.base + place < high
            ):
                size = record.read_head(reader.read(place, record.BLANK_BYTES)).total_size
                yield record.decode(
                    reader.read(place, size), log_offset=file.base + place, max_size=MAX_RECORD
                )
                at, found = place + size - 1, found + 1

    # Around a bad record --------------------------------------------------------------------------

    def next_record(self, file: StoreFile, reader: Reader, at: int) -> int | None:
        """Return the position of the next good record after a bad one at `at`, found by its magic and its own
        place; None when the file has none."""
        position = at + 1
        end = data_end(self._store.disk, file)
        while position < end:
            self._store.progress.step("log", file.base - self.start + position)
            data = reader.read(position, _WINDOW_BYTES + 8)
            for place in magic_places(data):
                if _is_good(file, reader, position + place):
                    return position + place
            position += _WINDOW_BYTES
        return None

    def has_later_records(self, file: StoreFile) -> bool:
        """Return whether any later file holds a good record: damage in one file implies nothing about later
        ones."""
        if file.base not in self._has_later:
            self._has_later[file.base] = any(
                self._holds_record(later) for later in self.files if later.base > file.base
            )
        return self._has_later[file.base]

    def _holds_record(self, file: StoreFile) -> bool:
        if not data_end(self._store.disk, file):
            return False  # made ahead and never written
        with self._store.disk.open_reader(file.path) as reader:
            return _is_good(file, reader, 0) or self.next_record(file, reader, 0) is not None

    def is_zero(self, file: StoreFile, reader: Reader, at: int) -> bool:
        """Return whether a file holds nothing but zeros from `at` on."""
        end = data_end(self._store.disk, file)
        found = np.empty(ZEROS_PER_READ, dtype=np.uint8)
        while at < end:
            count = reader.read_into(memoryview(found)[: end - at], at)
            if found[:count].max(initial=0):
                return False
            at = at + count if count else end  # the file was cut since
            self._store.progress.step("log")
        return True


def _is_good(file: StoreFile, reader: Reader, at: int) -> bool:
    """Return whether a good record lies at `at` of a file and states this place."""
    return good_record(reader, at, file.size - at, file.base + at) is not None
