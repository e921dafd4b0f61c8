"""Reads and writes by position, without a map."""

from __future__ import annotations

import os
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

    @property
    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

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

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
