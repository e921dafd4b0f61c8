"""Comparison, after a start, of files that it did not read with their recorded sums (`engine/start/ends.py`).

To read all of them would be gigabytes at each start. So a queue file is summed before the first read of it,
and a worker sums all queue and index files, one after another. A file that is not as recorded is reported,
and the next start rebuilds it from the log. Until then reads compare each unit of a damaged queue file with
its record, and no tags code of a unit is used.

Any thread, unless a docstring says otherwise.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from broker_store.engine.index.hash_index import HashIndex
from broker_store.engine.queue.consume_queue import UNIT, ConsumeQueue
from broker_store.engine.queue.consume_queues import ConsumeQueues
from broker_store.engine.start.end_sums import ends_as_recorded, sum_of, sum_of_entries
from broker_store.engine.start.ends import FIRST_SUM, IndexEnd
from broker_store.errors import StoreError
from broker_store.formats.index_file import FIRST_ENTRY

_UNITS_PER_READ = 1 << 16
_ENTRIES_PER_READ = 1 << 20  # 20 MB: between two such reads the worker may be stopped


def is_sound(queue: ConsumeQueue, unit: int) -> bool:
    """Return whether the queue file that holds `unit` is as recorded; it is summed if that is not known.
    Raises StoreError."""
    file = queue.file_of(unit)
    if file is None:
        return True
    end = queue.unproved.get(file.base)
    if end is not None:
        total, left = FIRST_SUM, (end.following - end.first) * UNIT
        with queue.disk.open_reader(file.path) as reader:
            for at in range(0, left, _UNITS_PER_READ * UNIT):
                total = sum_of(reader.read(at, min(_UNITS_PER_READ * UNIT, left - at)), total)
        if total != end.sum:
            queue.note_damaged(file.base, end.log_end)
        queue.unproved.pop(file.base, None)
    return file.base not in queue.damaged


class Unproved:
    """The comparison of all these files; `step` is run by a worker. For damage it calls `on_queue(queue, file
    name, log offset where the file's last recorded record ends)` and `on_index(file name)`."""

    def __init__(
        self,
        queues: ConsumeQueues,
        index: HashIndex,
        on_queue: Callable[[ConsumeQueue, str, int], None],
        on_index: Callable[[str], None],
    ):
        self._queues, self._index, self._on_queue, self._on_index = queues, index, on_queue, on_index
        self._waiting: deque[ConsumeQueue] = deque()
        self._ends: deque[IndexEnd] = deque()
        self._sum, self._at = FIRST_SUM, FIRST_ENTRY  # of the first of `_ends`

    def begin(self, index_ends: Iterable[IndexEnd]) -> None:
        """Begin with the files that recovery left unread; `index_ends` are the rows of index files."""
        self._ends = deque(index_ends)
        self._waiting = deque(queue for queue in self._queues if queue.unproved)

    @property
    def index_files(self) -> int:
        """The number of index files that are not compared yet."""
        return len(self._ends)

    def step(self, now_ms: int) -> bool:
        """Compare one file, or a part of an index file; return False when all are compared."""
        if self._ends:
            self._step_index()
        elif self._waiting:
            self._step_queue(self._waiting[0])
        return bool(self._ends or self._waiting)

    def _step_queue(self, queue: ConsumeQueue) -> None:
        base = next(iter(queue.unproved), None)
        if base is None or queue.closed:
            self._waiting.popleft()
            return
        end = queue.unproved.get(base)
        try:
            if not is_sound(queue, base // UNIT) and end is not None:
                self._on_queue(queue, f"{base:020d}", end.log_end)
        except StoreError:
            if base in (file.base for file in list(queue.files)):
                raise
        queue.unproved.pop(base, None)

    def _step_index(self) -> None:
        end = self._ends[0]
        files = list(self._index.files)
        file = next((file for file in files if int(file.name) == end.name), None)
        is_good, is_done = True, True
        try:
            if file is not None:
                to = min(self._at + _ENTRIES_PER_READ, end.count)
                with file.disk.open_reader(file.path) as reader:
                    self._sum = sum_of_entries(reader, file.geometry, self._at, to, self._sum)
                self._at, is_done = to, to >= end.count
                if is_done:
                    # Header, last entries and slots change until a file is full; the start compared them.
                    is_full = end.count >= file.geometry.entries
                    is_good = self._sum == end.entries and (
                        not is_full or file is files[-1] or ends_as_recorded(file, end)
                    )
        except StoreError:
            if file in self._index.files:
                raise
            is_done = True  # the loop has removed it meanwhile
        if is_done:
            self._ends.popleft()
            self._sum, self._at = FIRST_SUM, FIRST_ENTRY
        if not is_good:
            self._on_index(f"{end.name:017d}")
