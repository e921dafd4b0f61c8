"""Reads and writes by position, without a map."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

from broker_store.engine.disk.system import store_error


class Reader:
    """Positional reads of one file from any thread; a read never faults through a map (docs/durability.md
    section 6)."""

    def __init__(self, path: Path, descriptor: int):
        self.path, self._descriptor = path, descriptor

    def read(self, offset: int, length: int) -> bytes:
        """Return exactly `length` bytes, fewer only at the end of the file."""
        parts: list[bytes] = []
        try:
            while length > 0:
                part = os.pread(self._descriptor, length, offset)
                if not part:
                    break
                if len(part) == length and not parts:
                    return part
                parts.append(part)
                offset += len(part)
                length -= len(part)
        except OSError as error:
            raise store_error(error, f"reading at {offset}", self.path) from error
        return b"".join(parts)

    def read_into(self, target: memoryview, offset: int) -> int:
        """Fill `target`, with fewer bytes only at the end of the file; return how many. Reading large pieces
        into the same memory saves the system new pages for each."""
        done = 0
        try:
            while done < len(target):
                count = os.preadv(self._descriptor, [target[done:]], offset + done)
                if not count:
                    break
                done += count
        except OSError as error:
            raise store_error(error, f"reading at {offset}", self.path) from error
        return done

    def send(self, socket: int, offset: int, length: int) -> int:
        """Send bytes to a socket (its descriptor) without a copy in this process; return how many it took, 0
        if it takes none now. Raises StoreError for the file, ConnectionError and TimeoutError for the
        socket."""
        try:
            return os.sendfile(socket, self._descriptor, offset, length)
        except BlockingIOError:
            return 0
        except (ConnectionError, TimeoutError):
            raise
        except OSError as error:
            raise store_error(error, f"sending from {offset}", self.path) from error

    @property
    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def data_ranges(self, end: int) -> Iterator[tuple[int, int]]:
        """Yield (begin, end) of the parts below `end` that have bytes on the disk; what lies between is
        zero."""
        at = 0
        try:
            while at < end:
                try:
                    begin = os.lseek(self._descriptor, at, os.SEEK_DATA)
                except OSError as error:
                    if error.errno == errno.ENXIO:
                        return
                    raise
                if begin >= end:
                    return
                at = min(os.lseek(self._descriptor, begin, os.SEEK_HOLE), end)
                yield begin, at
        except OSError as error:
            raise store_error(error, "searching for data", self.path) from error

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __del__(self) -> None:
        # An owner may drop a reader that another thread still uses: the last reference closes it.
        self.close()

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_) -> None:
        self.close()


class Writer:
    """Positional writes to one file; nothing is synced. For a small page that other processes read."""

    def __init__(self, path: Path, descriptor: int):
        self.path, self._descriptor = path, descriptor

    def write(self, offset: int, data: bytes) -> None:
        """Write all of `data` at `offset`. Raises StoreError, DiskFullError."""
        try:
            while data:
                written = os.pwrite(self._descriptor, data, offset)
                offset, data = offset + written, data[written:]
        except OSError as error:
            raise store_error(error, f"writing {len(data)} bytes at {offset}", self.path) from error

    def extend(self, length: int) -> None:
        """Give the file this length; what was not written is zero."""
        try:
            os.ftruncate(self._descriptor, length)
        except OSError as error:
            raise store_error(error, f"making it {length} bytes long", self.path) from error

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
