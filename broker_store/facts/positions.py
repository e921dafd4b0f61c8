"""Which message of which queue lies where in the log, and when it was stored: one scan of a store's files, by
position.

    units     of a queue are in the order of their places in the log, so a place is found by binary search
    records   begin where a unit says; their store times go up along the log, but where a clock was set back
              (engine/log/store_times.py)

A running broker knows the ends of its queues and of its log better than its files do, and gives them along. A
scan keeps files open for reading until it is closed; what cannot be read (it was deleted meanwhile, or is
damaged) is None.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from broker_store.check.units import UNIT as UNIT_FIELDS
from broker_store.engine.disk.file_access import Reader
from broker_store.errors import StoreError
from broker_store.facts.directory import StoreDirectory
from broker_store.formats import queue_unit, record

UNIT = queue_unit.SIZE
MAX_READERS = 200
MAX_HINTS = 200_000
MAX_SUMMED_UNITS = 4 << 20  # whose sizes one scan adds up
_UNITS_PER_READ = 100_000  # of such units
_HEAD_BYTES = record.FIXED[3].size  # of a record of any kind, up to its body
_CHUNK_BYTES = 1 << 20

Queue = tuple[str, int]


def _stored_ms(raw: bytes, at: int) -> int:
    stored_ms: int
    (sys_flag,) = record.SYS_FLAG.unpack(raw, at + record.SYS_FLAG_AT)
    (stored_ms,) = record.STORE_TIMESTAMP.unpack(
        raw, at + record.FIXED[(sys_flag >> 4) & 3].offset["store_timestamp"]
    )
    return stored_ms


class LogFile(NamedTuple):
    base: int
    size: int
    path: Path

    @property
    def end(self) -> int:
        return self.base + self.size


class Positions:
    """`ends` are the lowest and the next offset of queues, `log_end` the end of the log; None where
    the caller does not know them.

    `hints` remember from look to look where a queue passes the end of a log file; None for a single look.
    """

    def __init__(
        self,
        store: StoreDirectory,
        ends: Mapping[Queue, tuple[int, int]] | None = None,
        log_end: int | None = None,
        hints: dict[tuple[Queue, int], int] | None = None,
    ):
        self.hints = {} if hints is None else hints
        self._store, self._disk = store, store.disk
        self.log = [
            LogFile(int(path.name), self._disk.size_of(path), path)
            for path in self._numbered(store.log_directory)
        ]
        self.log_minimum = self.log[0].base if self.log else 0
        self._given = dict(ends or {})
        self._files: dict[Queue, list[LogFile]] = {}
        self._readers: dict[Path, Reader | None] = {}
        self._log_end = log_end
        self._left_to_sum = MAX_SUMMED_UNITS
        self._found: dict[tuple[Queue, int], int] = {}
        self._sums: dict[tuple[Queue, int, int], int | None] = {}

    def __enter__(self) -> Positions:
        return self

    def __exit__(self, *_: object) -> None:
        for reader in self._readers.values():
            if reader is not None:
                reader.close()
        self._readers.clear()

    # The log --------------------------------------------------------------------------------------

    def log_file_at(self, log_offset: int) -> LogFile | None:
        return next((file for file in self.log if file.base <= log_offset < file.end), None)

    @property
    def log_end(self) -> int:
        """Where the log ends: from the newest record that a queue knows, record by record."""
        if self._log_end is None:
            self._log_end = self._find_log_end()
        return self._log_end

    def _find_log_end(self) -> int:
        known = self.log_minimum
        for queue in self.queues():
            last = self.unit(queue, self.ends(queue)[1] - 1)
            if last is not None and self.store_ms(last.log_offset) is not None:
                known = max(known, last.log_offset + last.size)
        while (file := self.log_file_at(known)) is not None:
            end = self._walk(file, known)
            if end < file.end:
                return end
            known = end
        return known

    def _walk(self, file: LogFile, at: int, until_ms: int | None = None) -> int:
        """The end of the last record from `at` on, or of the last that was stored by `until_ms`; or the end
        of the file, where a blank follows."""
        chunk, chunk_at = b"", at
        needs = record.HEAD.size if until_ms is None else _HEAD_BYTES
        while at + record.HEAD.size <= file.end:
            if not chunk or (chunk_at < at and at + needs > chunk_at + len(chunk)):
                chunk, chunk_at = self._read(file.path, at - file.base, _CHUNK_BYTES), at
                if len(chunk) < record.HEAD.size:
                    break
            head = record.read_head(chunk, at - chunk_at)
            if head.is_blank:
                return file.end
            if not head.is_record or not record.MIN_RECORD <= head.total_size <= file.end - at:
                break
            if until_ms is not None and _stored_ms(chunk, at - chunk_at) > until_ms:
                break
            at += head.total_size
        return at

    def first_younger(self, time_ms: int) -> int:
        """Where the first record lies that was stored after `time_ms`; the log's end when none was. Queues
        are not asked: they may be missing."""
        files = [file for file in self.log if file.base < self.log_end]
        begins = [self.store_ms(file.base) for file in files]
        first = max(
            (
                number
                for number, first_ms in enumerate(begins)
                if first_ms is not None and first_ms <= time_ms
            ),
            default=0,
        )
        for file in files[first:]:
            at = self._walk(file, file.base, time_ms)
            if at < file.end:
                return min(at, self.log_end)
        return self.log_end

    def store_ms(self, log_offset: int) -> int | None:
        """When the record was stored that begins there; None when none does."""
        file = self.log_file_at(log_offset)
        raw = b"" if file is None else self._read(file.path, log_offset - file.base, _HEAD_BYTES)
        if len(raw) < record.FIXED_IPV4.size or not record.read_head(raw).is_record:
            return None
        (sys_flag,) = record.SYS_FLAG.unpack(raw, record.SYS_FLAG_AT)
        if (
            len(raw) < record.FIXED[(sys_flag >> 4) & 3].size
            or record.FIXED_IPV4.unpack(raw)[6] != log_offset
        ):
            return None
        stored_ms = _stored_ms(raw, 0)
        return stored_ms if stored_ms > 0 else None

    # Queues ---------------------------------------------------------------------------------------

    def queues(self) -> list[Queue]:
        """Every queue that has a directory."""
        top, found = self._store.root / "consumequeue", []
        for topic in self._disk.list_names(top):
            if self._disk.is_directory(top / topic):
                found += [
                    (topic, int(name))
                    for name in self._disk.list_names(top / topic)
                    if name.isascii() and name.isdigit()
                ]
        return found

    def ends(self, queue: Queue) -> tuple[int, int]:
        """The lowest offset that may be read, and the offset after the last; equal when there is nothing."""
        if queue not in self._given:
            self._given[queue] = self._find_ends(queue)
        return self._given[queue]

    def _find_ends(self, queue: Queue) -> tuple[int, int]:
        files = self._queue_files(queue)
        if not files:
            return 0, 0
        low, high = files[0].base // UNIT, files[-1].end // UNIT
        maximum = self._halve(low, high, lambda number: not self._is_written(queue, number))
        return self._halve(low, maximum, lambda number: self._is_in_log(queue, number)), maximum

    def _is_written(self, queue: Queue, number: int) -> bool:
        unit = self.unit(queue, number)
        return unit is not None and unit.is_data

    def _is_in_log(self, queue: Queue, number: int) -> bool:
        unit = self.unit(queue, number)
        return (
            unit is not None
            and unit.size != queue_unit.PRE_BLANK_SIZE
            and unit.log_offset >= self.log_minimum
        )

    def first_from(self, queue: Queue, log_offset: int) -> int:
        """The first message of a queue that lies at or after a place of the log; the offset after the last
        when none does."""
        found = self._found.get((queue, log_offset))
        if found is None:
            found = self._found[queue, log_offset] = self._find_first_from(queue, log_offset)
        return found

    def _find_first_from(self, queue: Queue, log_offset: int) -> int:
        low, high = self.ends(queue)
        hint = self.hints.get((queue, log_offset))
        # What was found before is used when the units around it still say so: the topic may be another of
        # that name.
        if (
            hint is not None
            and low <= hint <= high
            and (hint == low or not self._is_from(queue, hint - 1, log_offset))
            and (hint == high or self._is_from(queue, hint, log_offset))
        ):
            return hint
        found = self._halve(low, high, lambda number: self._is_from(queue, number, log_offset))
        if len(self.hints) >= MAX_HINTS:
            self.hints.clear()
        self.hints[queue, log_offset] = found
        return found

    def _is_from(self, queue: Queue, number: int, log_offset: int) -> bool:
        unit = self.unit(queue, number)
        return unit is None or unit.log_offset >= log_offset

    def first_since(self, queue: Queue, time_ms: int) -> int:
        """The first message of a queue that was stored at `time_ms` or later; the offset after the last when
        none was.

        Where times go back it is one of those that follow an older one: the caller says so."""
        low, high = self.ends(queue)
        return self._halve(
            low,
            high,
            lambda number: (
                (stored_ms := self._stored_ms_among(queue, number, low, high)) is None or stored_ms >= time_ms
            ),
        )

    def _stored_ms_among(self, queue: Queue, number: int, low: int, high: int) -> int | None:
        """The middle one of the store times of a message and its two neighbours: one record with a wrong time
        misleads no search."""
        own_ms = self.stored_ms(queue, number)
        if own_ms is None or not low < number < high - 1:
            return own_ms
        before_ms, after_ms = self.stored_ms(queue, number - 1), self.stored_ms(queue, number + 1)
        return own_ms if before_ms is None or after_ms is None else sorted((before_ms, own_ms, after_ms))[1]

    def _halve(self, low: int, high: int, is_past: Callable[[int], bool]) -> int:
        while low < high:
            middle = (low + high) // 2
            if is_past(middle):
                high = middle
            else:
                low = middle + 1
        return low

    def unit(self, queue: Queue, number: int) -> queue_unit.QueueUnit | None:
        for file in self._queue_files(queue):
            if file.base <= number * UNIT < file.end:
                raw = self._read(file.path, number * UNIT - file.base, UNIT)
                return queue_unit.decode(raw) if len(raw) == UNIT else None
        return None

    def stored_ms(self, queue: Queue, number: int) -> int | None:
        """When a message of a queue was stored."""
        unit = self.unit(queue, number)
        return None if unit is None else self.store_ms(unit.log_offset)

    def bytes_between(self, queue: Queue, begin: int, end: int) -> int | None:
        """Bytes that messages [begin, end) take in the log; None when they are too many to add up, or cannot
        be read."""
        key = (queue, begin, end)
        if key not in self._sums:
            self._sums[key] = self._sum(queue, begin, end)
        return self._sums[key]

    def _sum(self, queue: Queue, begin: int, end: int) -> int | None:
        if end - begin > self._left_to_sum:
            return None
        self._left_to_sum -= max(0, end - begin)
        total = 0
        for file in self._queue_files(queue):
            first, last = max(begin, file.base // UNIT), min(end, file.end // UNIT)
            for at in range(first, last, _UNITS_PER_READ):
                count = min(_UNITS_PER_READ, last - at)
                raw = self._read(file.path, at * UNIT - file.base, count * UNIT)
                if len(raw) < count * UNIT:
                    return None
                units = np.frombuffer(raw, UNIT_FIELDS)
                total += int(units["size"].sum(dtype=np.int64))
                begin = at + count
        return total if begin >= end else None

    def _queue_files(self, queue: Queue) -> list[LogFile]:
        if queue not in self._files:
            directory = self._store.root / "consumequeue" / queue[0] / str(queue[1])
            self._files[queue] = [
                LogFile(int(path.name), self._disk.size_of(path), path) for path in self._numbered(directory)
            ]
        return self._files[queue]

    # Files ----------------------------------------------------------------------------------------

    def _numbered(self, directory: Path) -> list[Path]:
        names = self._disk.list_names(directory) if self._disk.is_directory(directory) else []
        return [
            directory / name
            for name in sorted(names)
            if len(name) == 20 and name.isascii() and name.isdigit()
        ]

    def _read(self, path: Path, offset: int, length: int) -> bytes:
        reader = self._readers.get(path)
        if reader is None:
            if len(self._readers) >= MAX_READERS:
                self.__exit__()
            try:
                reader = self._readers[path] = self._disk.open_reader(path)
            except StoreError:
                if self._disk.exists(path):
                    raise
                return b""  # it was deleted meanwhile
        return reader.read(offset, length)
