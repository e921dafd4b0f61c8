"""Consume queues: for every topic and queue a sequence of 20-byte units that point into the log
(docs/spec/store-format.md section 4).

    consumequeue/<topic>/<queueId>/<20 digits>      unit n of the queue at byte n * 20 of the sequence

A queue never appends by itself: the append kernel assigns queue offsets up to `Q_APPEND_LIMIT`, for which
blocks were allocated beforehand, and the dispatch kernel writes the units. Only the file in which units are
written stays mapped; older files are read by position.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Container
from pathlib import Path

from broker_store.engine.disk.disk import Disk
from broker_store.engine.disk.mapped_file import QUEUE_SIZE, Hole, MappedFile, load_up_to_hole
from broker_store.engine.rows import Row, WriterContext
from broker_store.engine.start.ends import FileEnd
from broker_store.errors import DamagedStoreError, StoreError
from broker_store.formats import names, queue_unit
from broker_store.formats.topics import SCHEDULE_TOPIC
from broker_store.kernels import context as c

UNIT = queue_unit.SIZE
_MIN_STRIDE = 64 << 10
_MAX_STRIDE = 1 << 20
MAX_QUEUE_ID = 65535


class ConsumeQueue:
    """One queue. Positions are unit numbers, which are queue offsets."""

    def __init__(self, disk: Disk, directory: Path, topic: str, queue_id: int, file_size: int, row: Row):
        self.disk, self.directory, self.topic, self.queue_id, self.row = disk, directory, topic, queue_id, row
        self.file_size = file_size
        self.units_per_file = file_size // UNIT
        self.files: list[MappedFile] = []
        self.hole: Hole | None = None  # found by `load`
        self.read_file: MappedFile | None = None  # the file that the row's Q_READ words describe
        # By base: files that were not compared with their recorded sums yet (`engine/start/unproved.py`)
        self.unproved: dict[int, FileEnd] = {}
        # By base: files that are not as recorded, and where their last record ends in the log
        self.damaged: dict[int, int] = {}
        self.closed = False
        self._new_names = False
        self._has_new_directory = False
        self._stride = _MIN_STRIDE

    @property
    def maximum(self) -> int:
        """The number of the next unit; readers see the units before it."""
        return self.row[c.Q_DISPATCHED]

    @property
    def minimum(self) -> int:
        """The number of the first unit that readers may see."""
        return self.row[c.Q_MINIMUM]

    @minimum.setter
    def minimum(self, unit: int) -> None:
        self.row[c.Q_MINIMUM] = unit

    @property
    def flushed_units(self) -> int:
        """Units before this number are on the disk."""
        return self.row[c.Q_FLUSHED]

    @flushed_units.setter
    def flushed_units(self, unit: int) -> None:
        self.row[c.Q_FLUSHED] = unit

    def load(self, delete: bool = True, leave_out: Container[Path] = ()) -> None:
        """List the files, except those of `leave_out`. Files from a hole on are left to recovery (`hole`),
        which builds their units again from the log.

        Raises DamagedStoreError for a wrong length or name, and for a hole in a light queue, which the log
        cannot rebuild.
        """
        self.files, self.hole = load_up_to_hole(
            self.disk, self.directory, self.file_size, QUEUE_SIZE, delete, leave_out
        )
        if self.hole is not None and not self.is_made_from_log:
            raise self.hole.error

    @property
    def is_made_from_log(self) -> bool:
        """True if dispatch writes its units; only Apache's broker writes those of light queues."""
        return not self.topic.startswith(queue_unit.LIGHT_QUEUE)

    def file_of(self, unit: int) -> MappedFile | None:
        if not self.files:
            return None
        number = unit // self.units_per_file - self.files[0].base // self.file_size
        return self.files[number] if 0 <= number < len(self.files) else None

    def file_holding(self, unit: int) -> MappedFile:
        """Return the file of a unit for which there is one."""
        file = self.file_of(unit)
        assert file is not None
        return file

    def start_at(self, unit: int) -> None:
        """Set the next unit to `unit`; files wholly after it are gone."""
        row = self.row
        row[c.Q_NEXT] = row[c.Q_DISPATCHED] = unit
        self.flushed_units = unit
        for file in self.files:
            file.wrote = file.flushed = file.allocated = file.size
        last = self.file_of(unit)
        if last is not None:
            last.wrote = last.flushed = last.allocated = unit * UNIT - last.base
        row[c.Q_FILE_ADDRESS] = row[c.Q_FILE_FIRST] = row[c.Q_FILE_END] = 0
        row[c.Q_APPEND_LIMIT] = unit
        if not self.files:
            self.minimum = unit

    def compare_in(self, file: MappedFile) -> None:
        """Let the scan of recovery compare units of `file`; `start_at` ends it."""
        self.row[c.Q_FILE_ADDRESS], self.row[c.Q_FILE_FIRST], self.row[c.Q_FILE_END] = (
            file.address,
            file.base // UNIT,
            file.end // UNIT,
        )

    def leave_unsynced(self, unit: int) -> None:
        """After a crash, count nothing as synced from `unit` on: no unit, no zero after the end and no name
        of a file."""
        self.flushed_units = min(self.flushed_units, unit)
        for file in self.files:
            file.flushed = min(file.flushed, max(0, unit * UNIT - file.base))
        self._new_names, self.row[c.Q_LEFT] = True, 1

    def _enter(self, file: MappedFile) -> None:
        """Let the dispatch kernel write into `file`, up to its blocks."""
        self.row[c.Q_FILE_ADDRESS] = file.address
        self.row[c.Q_FILE_FIRST] = file.base // UNIT
        self.row[c.Q_FILE_END] = min(file.end // UNIT, self.row[c.Q_APPEND_LIMIT])

    def give_room(self, units: int) -> None:
        """Allocate blocks for `units` units after Q_NEXT. Raises DiskFullError; the limit is then
        unchanged."""
        needed = self.row[c.Q_NEXT] + units
        while self.row[c.Q_APPEND_LIMIT] < needed:
            limit = self.row[c.Q_APPEND_LIMIT]
            file = self.file_of(limit)
            if file is None:
                if not self.files:
                    # The names are synced with the first units: here a thousand new queues would wait for two
                    # thousand syncs.
                    self.disk.make_directory(self.directory.parent.parent)
                    self.disk.make_directory(self.directory, sync=False)
                    self._has_new_directory = True
                base = limit // self.units_per_file * self.file_size
                file = MappedFile.create(self.disk, self.directory, base, self.file_size)
                # A large folio at the first unit would cost the loop 2 to 10 ms, and each sync megabytes of
                # zeros.
                file.map().fault_singly()
                self.files.append(file)
                self._new_names = True
            at = limit * UNIT - file.base
            file.allocated = max(file.allocated, at)
            file.allocate(min(file.size, at + max(self._stride, (needed - limit) * UNIT)))
            self._stride = min(2 * self._stride, _MAX_STRIDE)
            self.row[c.Q_APPEND_LIMIT] = (file.base + file.allocated) // UNIT

    def advance(self) -> None:
        """Enter the file of the next unit: the dispatch kernel reached the end of the current one."""
        unit = self.row[c.Q_DISPATCHED]
        if self.row[c.Q_APPEND_LIMIT] <= unit:
            # Only in recovery: otherwise the append has allocated the blocks.
            self.row[c.Q_NEXT] = max(self.row[c.Q_NEXT], unit)
            self.give_room(1)
        self._enter(self.file_holding(unit))

    def begin_at_unit(self, unit: int) -> None:
        """Begin the queue with `unit`, the first that is known: fill its file up to there with pre-blank
        units (docs/spec/store-format.md section 4)."""
        self.row[c.Q_NEXT] = self.row[c.Q_DISPATCHED] = self.row[c.Q_APPEND_LIMIT] = unit
        self.minimum = unit
        first = unit // self.units_per_file * self.units_per_file
        if unit == first:
            self.row[c.Q_FILE_ADDRESS] = self.row[c.Q_FILE_FIRST] = self.row[c.Q_FILE_END] = 0
            return
        self.row[c.Q_APPEND_LIMIT] = first  # what lies before `unit` in its file needs blocks too
        self.give_room(1)
        file = self.file_holding(unit)
        file.map().write(0, queue_unit.PRE_BLANK * (unit - first))
        self._enter(file)

    # Reading --------------------------------------------------------------------------------------

    def read_units(self, unit: int, count: int) -> bytes:
        """Return raw units [unit, unit + count), cut at the maximum and at the end of the file that holds
        `unit`. Any thread.

        Raises StoreError; DamagedStoreError for a file that became shorter and does not hold the first unit.
        """
        maximum = self.maximum
        file = self.file_of(unit)
        if file is None or unit < self.minimum:
            return b""
        count = min(count, maximum - unit, file.end // UNIT - unit)
        if count <= 0:
            return b""
        with self.disk.open_reader(file.path) as reader:
            raw = reader.read(unit * UNIT - file.base, count * UNIT)
        if len(raw) < UNIT and unit >= self.minimum and not self.closed:
            raise DamagedStoreError(
                f"ends before unit {unit:,}: it was made shorter while the store is open",
                file=str(file.path),
                advice="Stop the broker, and move the file out of the store: the next start makes it again "
                "from the log.",
            )
        return raw

    def enter_for_reading(self, unit: int) -> bool:
        """Let the read kernel find the units of the file that holds `unit`. Return False when there is no
        such file, or it is not known to be as recorded. Loop thread."""
        file = self.file_of(unit)
        if file is None or file.base in self.unproved or file.base in self.damaged:
            return False
        self.row[c.Q_READ_ADDRESS] = file.address
        self.row[c.Q_READ_FIRST] = file.base // UNIT
        self.row[c.Q_READ_END] = file.end // UNIT
        self.row[c.Q_READ_RESIDENCY] = file.residency.address
        self.read_file = file
        return True

    def unit(self, number: int) -> queue_unit.QueueUnit | None:
        raw = self.read_units(number, 1)
        return queue_unit.decode(raw) if len(raw) == UNIT else None

    def unit_in_files(self, number: int) -> queue_unit.QueueUnit | None:
        """Return the unit at a number's place, also after the maximum; None without a file. For recovery: it
        maps the file."""
        file = self.file_of(number)
        return None if file is None else queue_unit.decode(file.map().read(number * UNIT - file.base, UNIT))

    # Syncing and cleaning -------------------------------------------------------------------------

    @property
    def has_full_unsynced(self) -> bool:
        """True if a file was filled since the last sync."""
        return self.maximum // self.units_per_file > self.flushed_units // self.units_per_file

    def sync(self) -> bool:
        """Sync all units dispatched so far; return False when there were none. Raises SyncError.

        Called in the flusher's thread. If the loop deletes the topic meanwhile, there is nothing to sync.
        """
        try:
            return self._sync()
        except StoreError:
            if self.closed:
                return False
            raise

    def _sync(self) -> bool:
        to = self.maximum
        was_left, self.row[c.Q_LEFT] = self.row[c.Q_LEFT] == 1, 0
        if to <= self.flushed_units and not was_left:
            return False
        for file in list(self.files):
            if file.end // UNIT <= self.flushed_units:
                continue
            if file.base >= to * UNIT:
                break
            file.sync(min(to * UNIT, file.end) - file.base, through_end=was_left)
        if self._new_names:
            self._new_names = False
            if was_left or self._has_new_directory:
                self._has_new_directory = False
                self.disk.sync_directory(self.directory.parent.parent)
                self.disk.sync_directory(self.directory.parent)
            self.disk.sync_directory(self.directory)
        self.flushed_units = to
        return True

    def unmap_full(self) -> None:
        """Unmap the files that are full and on the disk. Loop thread."""
        for file in self.files:
            mapped = file.region is not None and file.flushed == file.size
            if mapped and file.address != self.row[c.Q_FILE_ADDRESS]:
                self._unmap(file)

    def _unmap(self, file: MappedFile) -> None:
        if file is self.read_file:
            self.read_file = None
            self.row[c.Q_READ_ADDRESS] = 0
        file.unmap()

    def drop(self, file: MappedFile) -> None:
        """Remove a deleted file from the tables. Loop thread."""
        self.files.remove(file)
        self.unproved.pop(file.base, None)
        self.damaged.pop(file.base, None)
        self._unmap(file)

    def correct_minimum(self, log_minimum: int) -> None:
        """Set the minimum to the first unit whose record is still in the log (docs/spec/store-behaviour.md
        section 4.5)."""
        low, high = self.minimum, self.maximum
        if self.files:
            low = max(low, self.files[0].base // UNIT)
        # The search is limited to the first files: a damaged unit further on must not lead it past messages.
        for following in self.files[1:]:
            first = self.unit(following.base // UNIT)
            if (
                first is not None
                and first.is_data
                and not first.is_pre_blank
                and first.log_offset >= log_minimum
            ):
                high = min(high, following.base // UNIT)
                break
        while low < high:
            middle = (low + high) // 2
            unit = self.unit(middle)
            if unit is not None and unit.log_offset >= log_minimum and unit.size != queue_unit.PRE_BLANK_SIZE:
                high = middle
            else:
                low = middle + 1
        self.minimum = low

    def files_before(self, log_minimum: int) -> list[MappedFile]:
        """Return the leading files that only point below the log's minimum, never the last file.

        The first of the remaining files begins with a unit below the minimum, too. So a queue whose first
        unit belongs to a record that the log still holds has lost a file, and a start builds it again.
        """
        expired = 0
        for number, following in enumerate(self.files[1:], 1):
            first = self.unit(following.base // UNIT)
            if first is None or first.log_offset >= log_minimum:
                break
            if first.is_data:  # nothing follows from a damaged unit
                expired = number
        return self.files[:expired]

    def close(self) -> None:
        self.closed = True
        for file in self.files:
            self._unmap(file)


class ConsumeQueues:
    """All queues by topic and id; it owns their rows."""

    def __init__(self, disk: Disk, directory: Path, file_size: int, context: WriterContext):
        self.disk, self.directory, self.file_size, self._context = disk, directory, file_size, context
        self._queues: dict[tuple[str, int], ConsumeQueue] = {}
        self._by_row: dict[int, ConsumeQueue] = {}
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
            path = self.directory / topic / str(queue_id)
            found = ConsumeQueue(self.disk, path, topic, queue_id, self.file_size, row)
            if self.watchers[topic, queue_id]:
                row[c.Q_WATCHED] = 1
            self._queues[topic, queue_id] = found
            self._ids.setdefault(topic, set()).add(queue_id)
            self._by_row[row.address] = found
            bisect.insort(self._in_order, (topic, queue_id))
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

    def close(self) -> None:
        for queue in self:
            queue.close()


def queue_name(queue: ConsumeQueue) -> str:
    """Return the name of a queue in findings: its directory, relative to the store's."""
    return f"consumequeue/{queue.topic}/{queue.queue_id}"
