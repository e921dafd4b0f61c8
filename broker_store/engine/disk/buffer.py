"""Memory of this process that belongs to no file: what is in it is gone with the process."""

from __future__ import annotations

import ctypes

from broker_store.engine.disk.system import (
    LIBC,
    MADV_POPULATE_WRITE,
    MAP_ANONYMOUS,
    MAP_PRIVATE,
    PAGE,
    PROT_READ,
    PROT_WRITE,
    mapped,
)
from broker_store.errors import StoreError


class Buffer:
    """`size` bytes at `address`, until `close`. The system gives pages as they are touched; `populated` says
    up to where they were touched ahead of the writer, which keeps it.

    Raises StoreError when the system has no room for it.
    """

    def __init__(self, size: int):
        self.size, self.populated = size, 0
        try:
            self.address = mapped(size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1)
        except OSError as error:
            raise StoreError(f"the system gives no buffer of {size:,} bytes: {error.strerror}") from error

    def read(self, offset: int, length: int) -> bytes:
        if offset < 0 or length < 0 or offset + length > self.size:
            raise IndexError(f"[{offset}, {offset + length}) is not in a buffer of {self.size} bytes")
        return ctypes.string_at(self.address + offset, length)

    def populate(self, offset: int, length: int) -> None:
        """Touch pages ahead of the writer. A failure is ignored: the writer is only slower then."""
        start = offset // PAGE * PAGE
        end = min(self.size, offset + length)
        if end > start:
            LIBC.madvise(self.address + start, end - start, MADV_POPULATE_WRITE)

    def close(self) -> None:
        if self.address:
            LIBC.munmap(self.address, self.size)
            self.address = 0
