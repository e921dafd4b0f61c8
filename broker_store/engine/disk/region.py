"""A mapped file.

    file     0                     allocated                                size
             |---------------------|----------------------------------------|
             | disk blocks         | a hole: a write here needs a block     |
    map      |--------------------------------------------------------------|  address .. address + size
               ^ write by address     ^ with a full disk: SIGBUS, the end of the process

* A region has its full *length* at once, since Apache checks it, but disk blocks only where `allocate` was
  called. Writing beyond would kill the process with SIGBUS when the disk is full; `posix_fallocate` reports
  an error instead.
* `sync` is msync over a range of pages. The map holds the file open, so an error of write-back since the map
  was made is reported here even when no descriptor is left. It is reported once, which is why a failed sync
  is final.
"""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path

from broker_store.engine.disk.system import (
    LIBC,
    MADV_POPULATE_WRITE,
    MADV_RANDOM,
    MS_SYNC,
    PAGE,
    PUNCH_HOLE_KEEP_SIZE,
    store_error,
    unmap,
)
from broker_store.errors import DamagedStoreError, SyncError


class Region:
    """A mapped file. `address` is valid until `close`: a caller that uses the address keeps a reference to
    the region."""

    def __init__(
        self, path: Path, address: int, size: int, writable: bool, inode: tuple[int, int] | None = None
    ):
        self.path, self.address, self.size, self.writable = path, address, size, writable
        self._inode = inode  # (device, number) of the mapped file

    @property
    def closed(self) -> bool:
        return self.address == 0

    def at_least(self, size: int) -> Region:
        """Return the region, or close it if its file is shorter than `size`: kernels would use memory after
        the map. Raises DamagedStoreError."""
        if self.size < size:
            found = self.size
            self.close()
            raise DamagedStoreError(
                f"has {found:,} bytes, and should have {size:,}: it was made shorter while the store is open",
                file=str(self.path),
                advice="Stop the broker and run `manage.py check_store`.",
            )
        return self

    def view(self, offset: int = 0, length: int | None = None) -> memoryview:
        """Return a view of the bytes; it must be released before `close`."""
        length = self.size - offset if length is None else length
        if offset < 0 or length < 0 or offset + length > self.size:
            raise IndexError(f"{self.path}: [{offset}, {offset + length}) is not in {self.size} bytes")
        return memoryview((ctypes.c_char * length).from_address(self.address + offset)).cast("B")

    def read(self, offset: int, length: int) -> bytes:
        if offset < 0 or length < 0 or offset + length > self.size:
            raise IndexError(f"{self.path}: [{offset}, {offset + length}) is not in {self.size} bytes")
        return ctypes.string_at(self.address + offset, length)

    def write(self, offset: int, data: bytes) -> None:
        """Write bytes. For rare writes (headers, blanks of recovery); kernels write by address."""
        if offset < 0 or offset + len(data) > self.size:
            raise IndexError(f"{self.path}: [{offset}, {offset + len(data)}) is not in {self.size} bytes")
        ctypes.memmove(self.address + offset, data, len(data))

    def copy_in(self, offset: int, address: int, length: int) -> None:
        """Copy `length` bytes of memory at `address` to `offset`, where blocks are allocated. The interpreter
        lock is released meanwhile."""
        if offset < 0 or length < 0 or offset + length > self.size:
            raise IndexError(f"{self.path}: [{offset}, {offset + length}) is not in {self.size} bytes")
        ctypes.memmove(self.address + offset, address, length)

    def allocate(self, offset: int, length: int) -> None:
        """Give [offset, offset + length) disk blocks, cut at the region's end. Raises DiskFullError."""
        length = min(length, self.size - offset)
        if length <= 0:
            return
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                if os.fstat(descriptor).st_size < self.size:
                    # Another process made it shorter. Allocating blocks would extend it again, with zeros for
                    # what was lost.
                    self.read(self.size - 1, 1)  # stops the process, as a write to the lost part would
                os.posix_fallocate(descriptor, offset, length)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise store_error(error, f"allocating {length} bytes at {offset}", self.path) from error

    def ask_pages(self, offset: int, length: int, answers: int) -> bool:
        """Store one byte for each page at address `answers`, from the page of `offset` on: its lowest
        bit is 1 when the page is in memory now.

        Cut at the region's end. Return False when the system does not say.
        """
        return LIBC.mincore(self.address + offset, min(length, self.size - offset), answers) == 0

    def populate(self, offset: int, length: int) -> None:
        """Touch pages ahead of the writer. A failure is ignored: the writer is only slower then."""
        start = offset // PAGE * PAGE
        end = min(self.size, offset + length)
        if end > start:
            LIBC.madvise(self.address + start, end - start, MADV_POPULATE_WRITE)

    def fault_singly(self) -> None:
        """Make a page fault bring one page, not a large folio of up to megabytes. A failure is ignored.

        The system tracks dirty memory by folio: with large ones a sync of a group of messages would write
        megabytes again, mostly zeros, and every page of them would fault at its next write.
        """
        LIBC.madvise(self.address, self.size, MADV_RANDOM)

    def sync(self, offset: int, length: int) -> None:
        """Bring [offset, offset + length) to the disk. A failure is final: SyncError."""
        start = offset // PAGE * PAGE
        end = min(self.size, offset + length)
        if end <= start:
            return
        if LIBC.msync(self.address + start, end - start, MS_SYNC) != 0:
            number = ctypes.get_errno()
            raise SyncError(
                f"{self.path}: sync of [{offset}, {offset + length}) failed: {os.strerror(number)}"
            )

    def require_in_place(self) -> None:
        """Check that the mapped file still has its name and its length. Raises SyncError.

        Without the check a removed file still takes writes and its sync reports success; so do pages after a
        shortened end.
        """
        try:
            found = os.lstat(self.path)
        except OSError as error:
            raise SyncError(
                f"{self.path}: the file is gone while the store writes it ({error.strerror}): what "
                f"was written since then is not on the disk"
            ) from error
        if (found.st_dev, found.st_ino) != self._inode:
            raise SyncError(
                f"{self.path}: another file has this name now: what was written to the one that the "
                f"store has mapped is not on the disk"
            )
        if found.st_size < self.size:
            raise SyncError(
                f"{self.path}: the file has {found.st_size:,} bytes, and {self.size:,} when the "
                f"store mapped it: what was written after them is not on the disk"
            )

    def punch(self, offset: int) -> None:
        """Zero everything from `offset` to the end, and free its blocks."""
        start = -(-offset // PAGE) * PAGE
        first_part = min(start, self.size) - offset
        if first_part > 0:
            ctypes.memset(self.address + offset, 0, first_part)
        if start >= self.size:
            return
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                if LIBC.fallocate(descriptor, PUNCH_HOLE_KEEP_SIZE, start, self.size - start) != 0:
                    number = ctypes.get_errno()
                    if number not in (errno.EOPNOTSUPP, errno.ENOSYS):
                        raise OSError(number, os.strerror(number))
                    ctypes.memset(self.address + start, 0, self.size - start)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise store_error(error, f"zeroing from {offset}", self.path) from error

    def data_end(self) -> int:
        """Return the offset after the last allocated, written extent (SEEK_DATA); everything from there on is
        zero."""
        descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            at = end = 0
            while at < self.size:
                try:
                    at = os.lseek(descriptor, at, os.SEEK_DATA)
                    at = end = os.lseek(descriptor, at, os.SEEK_HOLE)
                except OSError as error:
                    if error.errno == errno.ENXIO:
                        return end
                    raise
            return end
        except OSError as error:
            raise store_error(error, "searching for data", self.path) from error
        finally:
            os.close(descriptor)

    def close(self) -> None:
        if self.address:
            unmap(self.address, self.size)
            self.address = 0
