"""Consume queues: for every topic and queue a sequence of 20-byte units that point into the log
(docs/spec/store-format.md section 4).

    consumequeue/<topic>/<queueId>/<20 digits>      unit n of the queue at byte n * 20 of the sequence

A queue never appends by itself: the append kernel assigns queue offsets up to `Q_APPEND_LIMIT`, for which
blocks were allocated beforehand, and the dispatch kernel writes the units. Only the file in which units are
written stays mapped; older files are read by position.
"""

from __future__ import annotations

import threading
from collections.abc import Container
from pathlib import Path
from typing import Any

from broker_store.engine.disk.disk import Disk
from broker_store.engine.disk.mapped_file import QUEUE_SIZE, Hole, MappedFile, load_up_to_hole
from broker_store.engine.queue.queue_maps import QueueMaps
from broker_store.engine.rows import Row
from broker_store.engine.start.ends import FileEnd
from broker_store.errors import DamagedStoreError, StoreError
from broker_store.formats import queue_unit
from broker_store.kernels import context as c

UNIT = queue_unit.SIZE
_MIN_STRIDE = 64 << 10
_MAX_STRIDE = 1 << 20
MAX_QUEUE_ID = 65535


class _NoFiles(dict[int, Any]):
    """The empty table that all queues without entries share."""

    __slots__ = ()

    def __setitem__(self, key: int, value: object) -> None:
        raise TypeError("this table belongs to all queues")


NO_FILES = _NoFiles()
_noting_damage = threading.Lock()


class ConsumeQueue:
    """One queue. Positions are unit numbers, which are queue offsets."""

    # A broker may have 100,000 queues: each takes about 1 KiB in all.
    __slots__ = (
        "_has_new_directory",
        "_is_syncing",
        "_maps",
        "_new_names",
        "_root",
        "_stride",
        "closed",
        "damaged",
        "disk",
        "file_size",
        "files",
        "hole",
        "queue_id",
        "read_file",
        "row",
        "topic",
        "unproved",
    )

    def __init__(
        self,
        disk: Disk,
        root: Path,
        topic: str,
        queue_id: int,
        file_size: int,
        row: Row,
        maps: QueueMaps,
    ):
        self.disk, self.topic, self.queue_id, self.row, self._maps = disk, topic, queue_id, row, maps
        self._root = root  # of all queues: a path of each would take 300 bytes
        self.file_size = file_size
        self.files: list[MappedFile] = []
        self.hole: Hole | None = None  # found by `load`
        self.read_file: MappedFile | None = None  # the file that the row's Q_READ words describe
        # By base: files that were not compared with their recorded sums yet (`engine/start/unproved.py`)
        self.unproved: dict[int, FileEnd] = NO_FILES
        # By base: files that are not as recorded, and where their last record ends in the log
        self.damaged: dict[int, int] = NO_FILES
        self.closed = False
        self._new_names = False
        self._has_new_directory = False
        self._is_syncing = False
        self._stride = _MIN_STRIDE

    @property
    def directory(self) -> Path:
        return self._root / self.topic / str(self.queue_id)

    @property
    def units_per_file(self) -> int:
        return self.file_size // UNIT

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
        if file.region is None:
            self._maps.make_room()
            file.map().fault_singly()
        self.row[c.Q_FILE_ADDRESS] = file.address
        self.row[c.Q_FILE_FIRST] = file.base // UNIT
        self.row[c.Q_FILE_END] = min(file.end // UNIT, self.row[c.Q_APPEND_LIMIT])

    def give_room(self, units: int) -> None:
        """Allocate blocks for `units` units after Q_NEXT. Raises DiskFullError; the limit is then
        unchanged."""
        row = self.row
        needed = row[c.Q_NEXT] + units
        while row[c.Q_APPEND_LIMIT] < needed:
            limit = row[c.Q_APPEND_LIMIT]
            file = self.file_of(limit)
            if file is None:
                if not self.files:
                    # The names are synced with the first units: here a thousand new queues would wait for two
                    # thousand syncs.
                    self.disk.make_directory(self._root)
                    self.disk.make_directory(self.directory, sync=False)
                    self._has_new_directory = True
                base = limit // self.units_per_file * self.file_size
                file = MappedFile.create(self.disk, self.directory, base, self.file_size)
                # A large folio at the first unit would cost the loop 2 to 10 ms, and each sync megabytes of
                # zeros.
                file.map().fault_singly()
                self.files.append(file)
                self._new_names = True
            file.allocated = max(file.allocated, limit * UNIT - file.base)
            wanted = min(file.size, needed * UNIT - file.base)
            if file.allocated < wanted:  # else it was unmapped, and has its blocks
                file.allocate(min(file.size, max(wanted, file.allocated + self._stride)))
                self._stride = min(2 * self._stride, _MAX_STRIDE)
            row[c.Q_APPEND_LIMIT] = (file.base + file.allocated) // UNIT
        if row[c.Q_FILE_ADDRESS] == 0 and row[c.Q_NEXT] == row[c.Q_DISPATCHED]:
            self._enter(self.file_holding(row[c.Q_NEXT]))  # so the dispatch kernel need not stop for it

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

    def keep_unproved(self, unit: int) -> None:
        """Keep of the files that were not compared those whose units all lie before `unit`. For a start."""
        self.unproved = {
            base: end for base, end in self.unproved.items() if end.following <= unit
        } or NO_FILES

    def note_damaged(self, base: int, log_end: int) -> None:
        """Count a file as not as recorded; its last record ends at `log_end`. Any thread."""
        with _noting_damage:
            if self.damaged is NO_FILES:
                self.damaged = {}
            self.damaged[base] = log_end

    def enter_for_reading(self, unit: int) -> bool:
        """Let the read kernel find the units of the file that holds `unit`. Return False when there is no
        such file, it is not known to be as recorded, or too many are mapped. Loop thread."""
        file = self.file_of(unit)
        if file is None or file.base in self.unproved or file.base in self.damaged:
            return False
        if file.region is None and not self._maps.make_room():
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
        """Return the unit at a number's place, also after the maximum; None without a file. For recovery."""
        file = self.file_of(number)
        if file is None:
            return None
        with file.mapped() as region:
            return queue_unit.decode(region.read(number * UNIT - file.base, UNIT))

    # Syncing and cleaning -------------------------------------------------------------------------

    @property
    def has_full_unsynced(self) -> bool:
        """True if a file was filled since the last sync."""
        return self.maximum // self.units_per_file > self.flushed_units // self.units_per_file

    def leave_names_to_file_system(self) -> None:
        """Leave the names of new files and directories to a sync of the file system that follows. Called in
        the flusher's thread: a name that the loop makes meanwhile is synced by the next `sync`."""
        self._new_names = self._has_new_directory = False

    def sync(self) -> bool:
        """Sync all units dispatched so far; return False when there were none. Raises SyncError.

        Called in the flusher's thread. If the loop deletes the topic meanwhile, there is nothing to sync.
        """
        self._is_syncing = True  # before the positions are read: see `is_idle`
        try:
            return self._sync()
        except StoreError:
            if self.closed:
                return False
            raise
        finally:
            self._is_syncing = False
            self._maps.note_synced()

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
            directory = self.directory
            if was_left or self._has_new_directory:
                self._has_new_directory = False
                self.disk.sync_directory(self._root)
                self.disk.sync_directory(directory.parent)
            self.disk.sync_directory(directory)
        self.flushed_units = to
        return True

    def unmap_full(self) -> None:
        """Unmap the files that are full and on the disk. Loop thread."""
        for file in self.files:
            mapped = file.region is not None and file.flushed == file.size
            if mapped and file.address != self.row[c.Q_FILE_ADDRESS]:
                self._unmap(file)

    @property
    def is_mapped(self) -> bool:
        """True if the file of the next unit is mapped."""
        return bool(self.files) and self.files[-1].region is not None

    @property
    def is_idle(self) -> bool:
        """True if all units are on the disk and nothing is under way: the files may be unmapped. Loop thread.

        A sync that begins after this finds nothing to sync, as only the loop adds units.
        """
        row = self.row
        return (
            not self._is_syncing
            and row[c.Q_NEXT] == row[c.Q_DISPATCHED] == row[c.Q_FLUSHED]
            and row[c.Q_LEFT] == 0
        )

    def unmap_idle(self) -> None:
        """Unmap the files of an idle queue. Its next message stops the append kernel, which maps the last one
        again; pages of its units are asked about before they are read. Loop thread."""
        row = self.row
        row[c.Q_FILE_ADDRESS] = row[c.Q_FILE_FIRST] = row[c.Q_FILE_END] = 0
        row[c.Q_APPEND_LIMIT] = row[c.Q_NEXT]
        row[c.Q_HOT] = row[c.Q_DISPATCHED]
        for file in self.files:
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


def queue_name(queue: ConsumeQueue) -> str:
    """Return the name of a queue in findings: its directory, relative to the store's."""
    return f"consumequeue/{queue.topic}/{queue.queue_id}"
