"""Files are copied and summed a piece at a time, throttled, with progress, and only while there is room.

Zeros at the end of a file take no room in its copy, and holes within it are not read. So a sum is of the
bytes up to the last that is not zero, whatever the file system keeps of the rest:

    |-- data ---|-- hole --|-- data --|0 0 0 0 0 0 0 0 0 0 0 0|
    |<------- data_bytes, crc ------->|                       | size_bytes
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from broker_store.engine.disk.disk import Disk
from broker_store.engine.disk.file_access import Reader
from broker_store.errors import DiskFullError

PIECE_BYTES = 1 << 20
# Of the disk, never taken by a copy: a broker on the same disk needs room too
KEPT_FREE_SHARE = 0.05
MAX_KEPT_FREE_BYTES = 10 << 30
_ZEROS = bytes(PIECE_BYTES)
_NOTE_BYTES = 64 << 20  # of copies: then the room is asked for again

# What is done, bytes done, bytes in all
OnProgress = Callable[[str, int, int], None]


class Sum(NamedTuple):
    """The sum of a file: its length, the length up to its last byte that is not zero, the CRC-32 of that."""

    size_bytes: int
    data_bytes: int
    crc: int


class Pace:
    """Limits bytes a second; None is no limit. `clock` and `sleep` count seconds."""

    def __init__(
        self,
        bytes_per_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ):
        self._bytes_per_s, self._clock, self._sleep = bytes_per_s, clock, sleep
        self._due = clock()

    def spend(self, count: int) -> None:
        """Wait as long as `count` bytes may take. Time that was not used is not saved up."""
        if self._bytes_per_s is None:
            return
        now = self._clock()
        self._due = max(self._due, now) + count / self._bytes_per_s
        if self._due > now:
            self._sleep(self._due - now)


class _RunningSum:
    """Sums a file whose pieces come in order; zeros count when a byte that is none follows."""

    def __init__(self) -> None:
        self.data_bytes = self.crc = self._zeros = 0

    def zeros(self, count: int) -> None:
        self._zeros += count

    def add(self, piece: bytes) -> None:
        data = piece.rstrip(b"\0")
        if data:
            while self._zeros:
                count = min(self._zeros, len(_ZEROS))
                self.crc = zlib.crc32(_ZEROS[:count], self.crc)
                self.data_bytes, self._zeros = self.data_bytes + count, self._zeros - count
            self.crc = zlib.crc32(data, self.crc)
            self.data_bytes += len(data)
        self._zeros += len(piece) - len(data)


class Copier:
    """Copies and sums files of one run. `total_bytes` is what progress counts to, as far as it is known."""

    def __init__(self, disk: Disk, pace: Pace, on_progress: OnProgress | None = None):
        self._disk, self._pace = disk, pace
        self._on_progress = on_progress
        self._step = ""
        self.done_bytes = self.total_bytes = 0

    def begin(self, step: str) -> None:
        """Name what is done now."""
        self._step = step
        self._note(0)

    def _note(self, count: int) -> None:
        self.done_bytes += count
        if self._on_progress is not None:
            self._on_progress(self._step, self.done_bytes, max(self.done_bytes, self.total_bytes))

    def require_room(self, directory: Path, count: int, what: str) -> None:
        """Check that `count` more bytes have room in a directory. Raises DiskFullError."""
        usage = self._disk.usage(directory)
        kept = min(int(usage.total * KEPT_FREE_SHARE), MAX_KEPT_FREE_BYTES)
        if usage.free - count < kept:
            raise DiskFullError(
                f"{directory}: {what} needs {count:,} bytes, and {usage.free:,} are free, of which "
                f"{kept:,} stay free: make room, or choose a directory on another disk"
            )

    def sum_of(self, path: Path) -> Sum:
        """Return the sum of a file. Raises StoreError."""
        self._disk.size_of(path)  # raises unless it is a regular file: to open a FIFO would wait for ever
        with self._disk.open_reader(path) as reader:
            size, running = reader.size, _RunningSum()
            for _, piece in self._pieces(reader, size, running):
                self._spend(len(piece))
            return Sum(size, running.data_bytes, running.crc)

    def copy(self, source: Path, target: Path, limit: int | None = None) -> Sum:
        """Copy a file; with `limit` the bytes from there on are zeros in the copy. Return the sum of the
        copy, which is not synced. Raises StoreError, DiskFullError."""
        self._disk.size_of(source)
        with self._disk.open_reader(source) as reader:
            size, running, noted = reader.size, _RunningSum(), 0
            writer = self._disk.create_writer(target)
            try:
                for at, piece in self._pieces(reader, size if limit is None else min(size, limit), running):
                    if noted <= 0:
                        self.require_room(target.parent, min(size - at, _NOTE_BYTES), f"a copy of {source}")
                        noted = _NOTE_BYTES
                    writer.write(at, piece)
                    noted -= len(piece)
                    self._spend(len(piece))
                writer.extend(size)
            finally:
                writer.close()
            return Sum(size, running.data_bytes, running.crc)

    def _spend(self, count: int) -> None:
        self._note(count)
        self._pace.spend(count)

    def _pieces(self, reader: Reader, end: int, running: _RunningSum) -> Iterator[tuple[int, bytes]]:
        """Yield (offset, bytes) of the parts of a file below `end` that are not all zero."""
        at = 0
        for begin, stop in reader.data_ranges(end):
            running.zeros(begin - at)
            at = begin
            while at < stop:
                piece = reader.read(at, min(PIECE_BYTES, stop - at))
                if not piece:
                    return  # it became shorter meanwhile
                running.add(piece)
                if piece != _ZEROS[: len(piece)]:
                    yield at, piece
                at += len(piece)

    def are_equal(self, one: Path, other: Path, length: int) -> bool:
        """Return whether the first `length` bytes of two files are the same; what follows is known to be
        zero."""
        with self._disk.open_reader(one) as left, self._disk.open_reader(other) as right:
            for at in range(0, length, PIECE_BYTES):
                count = min(PIECE_BYTES, length - at)
                if left.read(at, count) != right.read(at, count):
                    return False
        return True
