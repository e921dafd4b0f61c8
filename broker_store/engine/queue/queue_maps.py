"""How many files of the store are mapped at once, and which queue files are unmapped for others.

    files mapped   0 ......... limit ......... 7/8 of vm.max_map_count
                     map         unmap idle      a queue without a file
                                 queues first    gets no message

A mapped queue file with one page in use takes 8 to 12 KiB that the system cannot take back: a page of the
page table, entries of the map and of the handler of SIGBUS, and its file's inode. 40,000 of them take 300 MB.
A queue is idle when all of its units are on the disk. Of the idle ones those go first whose last message is
oldest: the dispatch kernel keeps its store time in the row, so no send or pull pays for the order.

An idle queue loses its maps and the room of its row. Its next message stops the append kernel, as for a new
file, and the file is mapped again: some 30 µs. A queue with units that are not on the disk stays mapped,
since only the map reports an error of their write-back (`engine/disk/region.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from broker_store.engine.disk.disk import Disk
from broker_store.engine.rows import WriterContext

if TYPE_CHECKING:
    from broker_store.engine.queue.consume_queue import ConsumeQueue

BYTES_PER_MAP = 8 << 10  # of memory that cannot be taken back
SHARE_OF_MEMORY = 32  # by default maps may take one of so many parts of it
MIN_FILES = 1_024
_UNMAPPED_PER_CALL = 8  # some 10 µs each
_FOUND_PER_SCAN = 512


def default_limit(memory_bytes: int) -> int:
    """Return the limit for a process that may have so many bytes."""
    return max(MIN_FILES, memory_bytes // SHARE_OF_MEMORY // BYTES_PER_MAP)


class QueueMaps:
    """`find` returns the queue of a row's address. Loop thread, except `note_synced`."""

    def __init__(
        self,
        disk: Disk,
        context: WriterContext,
        limit: int,
        find: Callable[[int], ConsumeQueue | None],
    ):
        self._disk, self._context, self.limit, self._find = disk, context, limit, find
        self._idle: deque[int] = deque()  # addresses of rows, those to be unmapped first
        # False after a scan that found nothing, until a queue is synced: another would find nothing too.
        self._is_worth_a_scan = True
        self.unmapped = 0  # queues, since the start

    @property
    def has_room(self) -> bool:
        return self._disk.mapped_files() < self.limit and self._disk.spare_maps() > 0

    @property
    def waits_for_sync(self) -> bool:
        """True if queues that can be unmapped once they are on the disk have files mapped."""
        return bool(self._context.unsynced_queues())

    def note_synced(self) -> None:
        """A queue may be idle now. Any thread."""
        self._is_worth_a_scan = True

    def make_room(self) -> bool:
        """Unmap idle queues if the limit is reached; return whether one more file may be mapped."""
        if self.has_room:
            return True
        for _ in range(_UNMAPPED_PER_CALL):
            queue = self._next_idle()
            if queue is None:
                break
            queue.unmap_idle()
            self.unmapped += 1
        return self.has_room

    def _next_idle(self) -> ConsumeQueue | None:
        while True:
            if not self._idle:
                if not self._is_worth_a_scan:
                    return None
                self._is_worth_a_scan = False
                self._idle.extend(self._context.idle_queues(_FOUND_PER_SCAN))
                if not self._idle:
                    return None
                self._is_worth_a_scan = True
            queue = self._find(self._idle.popleft())
            if queue is not None and queue.is_idle:
                return queue
