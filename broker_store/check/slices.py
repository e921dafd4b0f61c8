"""Slices of a log file, read ahead of the comparison by two threads.

A slice is the part of the log that is compared at a time, as bytes and as rows, one for each record. So a few
slices bound the memory of a check, not the store.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from broker_store.check.files import StoreFile
from broker_store.engine.disk.file_access import Reader
from broker_store.engine.log.row_buffer import ColumnBuffer
from broker_store.kernels import context as c

# Bytes of a slice where records are very large. At least two of the largest must fit, and a usual slice with
# what is carried over.
SLICE_BYTES = 32 << 20
USUAL_SLICE_BYTES = 8 << 20
REST_BYTES = 8 << 20  # at most so much of a slice is carried over into the next
MAX_SLICES = 3  # in memory: one is compared, one becomes rows, one is copied
MAX_ROWS = 1 << 18  # of a slice
MAX_KEYS = 1 << 20  # of a slice


class SliceMemory:
    """Memory for one slice of the log and its rows; unused parts take no memory of the system."""

    def __init__(self):
        self.columns = ColumnBuffer(MAX_ROWS, MAX_KEYS)
        self.bytes = np.empty(SLICE_BYTES, dtype=np.uint8)
        self.buffer = memoryview(self.bytes)


class Slice(NamedTuple):
    """What was read of a log file, and its records as rows, up to where they end."""

    data: memoryview
    room: ColumnBuffer
    stopped: int


class _Ahead(NamedTuple):
    """A slice that is being read."""

    room: SliceMemory
    copied: Future[int]
    walked: Future[Slice | None]


class Slices:
    """Slices of one log file. While one is compared, a thread makes rows of the next, and another copies the
    following ones from the file.

    They run ahead as long as each record follows the previous one. Where it does not, the caller of `take`
    gives the position to go on, and they begin again there. Making rows takes the most time, so it has a
    thread of its own.
    """

    def __init__(self, file: StoreFile, reader: Reader, limit: int | None, rooms: list[SliceMemory]):
        self._file, self._reader = file, reader
        self._end = file.size if limit is None else min(file.size, limit - file.base)
        self._free, self._taken = rooms.copy(), rooms[:0]
        self._copier = ThreadPoolExecutor(1, thread_name_prefix="check-copy")
        self._walker = ThreadPoolExecutor(1, thread_name_prefix="check-walk")
        self._ahead: deque[_Ahead] = deque()
        self._following = 0  # where the first slice ahead begins
        self._copied_to = 0  # where the next one to be copied begins
        # The rest of the last slice after its last record; None where the next slice does not continue it
        self._rest: memoryview | None = None

    def take(self, at: int) -> Slice:
        """Return the slice at a position. The previous slice is invalid then."""
        self._free += self._taken
        found = self._ahead[0].walked.result() if self._ahead and self._following == at else None
        if found is not None:
            room = self._ahead.popleft().room
        else:
            self._forget_ahead()
            room = self._free.pop()
            found = self._read(at, room)
            self._copied_to, self._rest = at + found.room.at, found.data[:0]
        self._taken = [room]
        self._following = at + found.room.at
        if found.stopped == c.EXHAUSTED and found.room.count:
            self._run_ahead()
        return found

    def _read(self, at: int, room: SliceMemory) -> Slice:
        columns = room.columns
        for most in (USUAL_SLICE_BYTES, SLICE_BYTES):
            length = min(most, self._end - at)
            data = room.buffer[: self._reader.read_into(room.buffer[:length], at)]
            columns.begin(room.bytes, self._file.base + at, self._file.size - at)
            stopped = columns.step(len(data))
            if columns.count or stopped != c.EXHAUSTED or length < most:
                break
        return Slice(data, columns, stopped)

    def _run_ahead(self) -> None:
        while self._free and self._copied_to < self._end:
            room, at = self._free.pop(), self._copied_to
            length = min(USUAL_SLICE_BYTES, self._end - at)
            copied = self._copier.submit(
                self._reader.read_into, room.buffer[REST_BYTES : REST_BYTES + length], at
            )
            self._ahead.append(
                _Ahead(room, copied, self._walker.submit(self._walk, room, at, length, copied))
            )
            self._copied_to = at + length

    def _walk(self, room: SliceMemory, at: int, length: int, copied: Future[int]) -> Slice | None:
        """Return rows of the copied bytes, preceded by the rest of the previous slice; None when the records
        do not simply continue here."""
        rest, self._rest = self._rest, None
        if rest is None or len(rest) > REST_BYTES:
            return None
        count, columns, start = copied.result(), room.columns, REST_BYTES - len(rest)
        room.buffer[start:REST_BYTES] = rest
        data = room.buffer[start : REST_BYTES + count]
        columns.begin(room.bytes[start:], self._file.base + at - len(rest), self._file.size - at + len(rest))
        stopped = columns.step(len(data))
        if stopped == c.EXHAUSTED and not columns.count:
            return None  # a record longer than the slice
        if stopped == c.EXHAUSTED and count == length:
            self._rest = data[columns.at :]
        return Slice(data, columns, stopped)

    def _forget_ahead(self) -> None:
        """Drop the slices that are being read. An error in them is reported when that part is taken."""
        while self._ahead:
            room, copied, walked = self._ahead.popleft()
            for future in (walked, copied):
                if not future.cancel():
                    future.exception()
            self._free.append(room)

    def __enter__(self) -> Slices:
        return self

    def __exit__(self, *_) -> None:
        for thread in (self._walker, self._copier):
            thread.shutdown(cancel_futures=True)
