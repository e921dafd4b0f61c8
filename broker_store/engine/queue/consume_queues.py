"""The table of all consume queues, by topic and id."""

from __future__ import annotations

import bisect
from collections import Counter
from pathlib import Path

from broker_store.engine.disk.disk import Disk
from broker_store.engine.queue.consume_queue import MAX_QUEUE_ID, ConsumeQueue
from broker_store.engine.queue.queue_maps import QueueMaps
from broker_store.engine.rows import WriterContext
from broker_store.errors import DamagedStoreError
from broker_store.formats import names
from broker_store.formats.topics import SCHEDULE_TOPIC
from broker_store.kernels import context as c

MANY_UNSYNCED = 64  # queues that wait for a sync; for more of them the file system is synced at once


class ConsumeQueues:
    """All queues by topic and id; it owns their rows."""

    def __init__(
        self, disk: Disk, directory: Path, file_size: int, context: WriterContext, max_mapped_files: int
    ):
        self.disk, self.directory, self.file_size, self._context = disk, directory, file_size, context
        self._queues: dict[tuple[str, int], ConsumeQueue] = {}
        self._by_row: dict[int, ConsumeQueue] = {}
        self.maps = QueueMaps(disk, context, max_mapped_files, self._by_row.get)
        self._ids: dict[str, set[int]] = {}
        self._in_order: list[tuple[str, int]] = []
        # How many watch a queue (confirmation.py). It outlasts the queue: a topic may be made again.
        self.watchers: Counter[tuple[str, int]] = Counter()

    def __iter__(self):
        return iter(list(self._queues.values()))

    def __len__(self) -> int:
        return len(self._queues)

    def find(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        return self._queues.get((topic, queue_id))

    def by_row(self, address: int) -> ConsumeQueue:
        return self._by_row[address]

    def find_row(self, address: int) -> ConsumeQueue | None:
        return self._by_row.get(address)

    def unsynced(self) -> list[ConsumeQueue]:
        """Return the queues with anything that is not on the disk; idle queues cost nothing. Any thread."""
        return [
            queue
            for address in self._context.unsynced_queues()
            if (queue := self._by_row.get(address)) is not None
        ]

    def sync(self) -> None:
        """Sync all units dispatched so far, of all queues. Called in the flusher's thread. Raises SyncError.

        Where many queues wait, their file system is synced first. Its journal is then written once for all of
        them, not once for each new file. The sync of each file follows: it has little left to write, and it
        reports an error of write-back of this file.
        """
        waiting = self.unsynced()
        if len(waiting) > MANY_UNSYNCED:
            for queue in waiting:
                queue.leave_names_to_file_system()
            self.disk.sync_file_system(self.directory)
        for queue in waiting:
            queue.sync()

    def in_order(self) -> list[tuple[str, int]]:
        """Return (topic, queue id) of every queue, sorted. It is a copy of a list kept sorted: to sort
        100,000 takes a tenth of a second."""
        return self._in_order.copy()

    def ids_of(self, topic: str) -> list[int]:
        return sorted(self._ids.get(topic, ()))

    def of_topic(self, topic: str) -> list[ConsumeQueue]:
        """Return the queues of a topic, by queue id."""
        return [self._queues[topic, queue_id] for queue_id in self.ids_of(topic)]

    def open(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Return the queue, created when new (without a file before its first unit). Raises NameError_ for a
        name that no topic may have."""
        found = self._queues.get((topic, queue_id))
        if found is None:
            names.check_stored_topic(topic)
            if not 0 <= queue_id <= MAX_QUEUE_ID:
                raise ValueError(f"queue id {queue_id} is not in [0, {MAX_QUEUE_ID}]")
            topic_row = self._context.topic(topic, delayed=topic == SCHEDULE_TOPIC)
            row = self._context.add_queue(topic_row, queue_id)
            topic = self._context.topics[topic].name  # one string for all of a topic's queues
            key = (topic, queue_id)
            found = ConsumeQueue(self.disk, self.directory, topic, queue_id, self.file_size, row, self.maps)
            if self.watchers.get(key):  # without `get` each queue would have an entry
                row[c.Q_WATCHED] = 1
            self._queues[key] = found
            self._ids.setdefault(topic, set()).add(queue_id)
            self._by_row[row.address] = found
            bisect.insort(self._in_order, key)
        return found

    def load(self, delete: bool = True) -> None:
        """Load every queue directory. Raises DamagedStoreError for files of a wrong length or name."""
        for topic in self.disk.list_names(self.directory):
            if not self._is_directory(self.directory / topic, names.is_stored_topic(topic)):
                continue
            for name in self.disk.list_names(self.directory / topic):
                path = self.directory / topic / name
                if not self._is_directory(path, name.isascii() and name.isdigit()):
                    continue
                if not (name.isascii() and name.isdigit()) or int(name) > MAX_QUEUE_ID:
                    raise DamagedStoreError(
                        "is no queue id", file=str(path), advice="Move it out of the store."
                    )
                self.open(topic, int(name)).load(delete)

    def _is_directory(self, path: Path, is_named: bool) -> bool:
        """Return whether a path is a directory. Raises DamagedStoreError for another kind of file under a
        name that a queue needs."""
        if self.disk.is_directory(path):
            return True
        if is_named:
            raise DamagedStoreError(
                "is no directory",
                file=str(path),
                advice="Move it out of the store; a queue's files are made again from the log.",
            )
        return False

    def forget_topic(self, topic: str) -> list[ConsumeQueue]:
        """Remove the queues of a topic from the tables and return them; the caller removes their files."""
        gone = []
        for queue_id in self.ids_of(topic):
            queue = self._queues.pop((topic, queue_id))
            self._by_row.pop(queue.row.address)
            self._context.topics[topic].set_queue(queue_id, 0)
            gone.append(queue)
        first = bisect.bisect_left(self._in_order, (topic, 0))
        del self._in_order[first : first + len(gone)]
        self._ids.pop(topic, None)
        return gone

    def unmap_idle(self) -> None:
        """Unmap the files of all queues whose units are on the disk, after a start that read them."""
        for queue in self._queues.values():
            if queue.is_mapped and queue.is_idle:
                queue.unmap_idle()

    def close(self) -> None:
        for queue in self:
            queue.close()
