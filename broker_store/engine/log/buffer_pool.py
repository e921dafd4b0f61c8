"""The transient store pool: buffers in which the log is appended before it is in its file.

    loop        borrow ──► append into the buffer ──► the file is full: borrow for the next
    committer   copy to the file ──► the file is complete: give back

Each file of the log has a buffer of its own while it is written. Bytes of a buffer are at the same place as
in the file. A buffer that is given back keeps its bytes, so it is not read before it is written again: the
log counts what is appended, and readers see what is committed.
"""

from __future__ import annotations

from collections import deque

from broker_store.engine.disk.buffer import Buffer


class BufferPool:
    """`count` buffers of `size` bytes. Raises StoreError when the system has no room for them.

    `fails_fast`: a log file without a buffer is not begun; else it is written as without a pool.
    """

    def __init__(self, size: int, count: int, *, fails_fast: bool):
        self.count, self.fails_fast = count, fails_fast
        # The loop takes, the committer adds; each call of a deque is atomic
        self._free: deque[Buffer] = deque()
        self._all: list[Buffer] = []  # changed by the thread that opens and closes the store
        try:
            for _ in range(count):
                self._all.append(Buffer(size))
        except BaseException:
            self.close()
            raise
        self._free.extend(self._all)

    @property
    def available(self) -> int:
        """How many buffers are free. Any thread."""
        return len(self._free)

    def borrow(self) -> Buffer | None:
        """Return a buffer, None when all are in use. The loop's thread."""
        return self._free.popleft() if self._free else None

    def give_back(self, buffer: Buffer) -> None:
        """Take back a buffer; it is the next that is lent, since its pages are in memory. Any thread."""
        self._free.appendleft(buffer)

    def close(self) -> None:
        """Return the memory to the system; after that nothing may use a buffer."""
        self._free.clear()
        while self._all:
            self._all.pop().close()
