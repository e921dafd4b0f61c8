"""A stretch of the log and all that stands in queues and index for it: what one task of the audit looks at.

    stretch   ── kernels/columns ──►  rows, keys  ── kernels/compare ──►  units [from, to) of each queue
                                                                   └──►  entries [from, to) of the index

Units and entries go up with the log, so where a stretch's begin is found by halving. With damage the order is
broken, and halving still gives each unit and entry to exactly one stretch, since of two places in the log the
later is never given the lower number. What agrees is only marked; what is left over in the end, of records,
units or entries, is looked for wherever it names its place, and what is wrong with it is told: how much, and
the first.

No row of a record leaves the task.
"""

from __future__ import annotations

from bisect import bisect_left
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np

from broker_store.check import rules
from broker_store.check.entries import ENTRY, SLOT, entry_seconds
from broker_store.check.units import MAX_CONTRADICTED
from broker_store.engine.disk import Disk, Reader
from broker_store.engine.log.record_room import ColumnRoom
from broker_store.engine.rows import name_hash
from broker_store.errors import FormatError, StoreError
from broker_store.formats import index_file, properties, queue_unit, record
from broker_store.formats.index_file import IndexGeometry, IndexHeader
from broker_store.kernels import columns as k
from broker_store.kernels import compare
from broker_store.kernels import context as c
from broker_store.pipeline.batches import TORN, walk
from broker_store.pipeline.derived import UNIT
from broker_store.pipeline.splits import MAX_RECORD, Queue, Split, is_record_of, record_at

ROWS = 64 << 10
KEYS = 256 << 10
# Compared by the kernel; what a queue has more for one stretch can only be damage, and is looked at piece by
# piece
UNITS = 1 << 20
ENTRIES = 64 << 10  # read at once
LINKS = 1_000  # wrong links of a file told with their place
DAMAGED = 1_000  # stretches without a record that a task tells one by one
# Kind of fault: a record states the place of another record; reported as rules.QUEUE_OFFSET
GIVEN_AGAIN = "given-again"
RUNS = 100  # of a queue, for each kind


@dataclass(frozen=True, slots=True)
class IndexFile:
    """An index file with entries, as it stood when the audit began."""

    path: str
    header: IndexHeader
    geometry: IndexGeometry


@dataclass(frozen=True)
class Store:
    """What every task knows; it is sent to each worker once."""

    files: tuple[tuple[Path, int, int], ...]  # of the log: path, first, end
    queues: tuple[Queue, ...]
    index: tuple[IndexFile, ...]
    gaps: tuple[tuple[int, int], ...]  # of the log, where a file is missing
    tombstones: dict[str, int]  # topic -> where the records of its life before end
    known_topics: frozenset[str]  # none: nobody knows
    delay_levels_ms: tuple[int, ...]
    log_begin: int
    data_end: int  # of the last stretch
    first_entry: int  # log offsets that the first and the last entry of the index name
    last_entry: int


@dataclass(frozen=True, slots=True)
class Stretch:
    """`split` is None in a log without records. Units and entries below `until` are compared with it."""

    split: Split | None
    begin: int
    until: int
    is_first: bool


@dataclass
class Fault:
    """`count` things of one kind, in one queue or index file, and the first of them."""

    kind: str
    topic: str = ""
    queue_id: int = 0
    path: str = ""
    count: int = 0
    first: tuple = ()
    runs: list[tuple[int, int]] = field(default_factory=list)  # of units


@dataclass
class Found:
    """What a task tells."""

    records: int = 0
    units: int = 0
    entries: int = 0
    log_end: int = 0
    damaged: list[tuple[int, int, str]] = field(default_factory=list)  # (log offset, bytes, what is wrong)
    damaged_more: int = 0
    keys: int = 0  # of records, in a store without an index
    # (log offset, ms that the record is older than the one before it)
    times_back: list[tuple[int, int]] = field(default_factory=list)
    times_back_more: int = 0
    first_time: tuple[int, int] | None = None  # log offset and store time of the first record
    last_ms: int | None = None
    faults: list[Fault] = field(default_factory=list)


def check_stretch(store: Store, stretch: Stretch, disk: Disk | None = None) -> Found:
    return _StretchCheck(store, stretch, disk or Disk()).run()


class _StretchCheck:
    def __init__(self, store: Store, stretch: Stretch, disk: Disk):
        self.store, self.stretch, self.disk = store, stretch, disk
        self.found = Found(log_end=stretch.begin)
        self.damaged: list[tuple[int, int]] = list(store.gaps)
        self._faults: dict[tuple[str, str], Fault] = {}

    def run(self) -> Found:
        split = self.stretch.split
        with ExitStack() as closing:
            units = _Units(self)
            entries = _Entries(self, closing) if self.store.index else None
            room = ColumnRoom(ROWS, KEYS)
            for part in () if split is None else walk(split, room, "report", self.disk):
                if isinstance(part, np.ndarray):
                    rows, keys = room.rows, room.keys
                    self.found.records += len(rows)
                    self.found.log_end = int(rows[-1, k.ROW_LOG_OFFSET] + rows[-1, k.ROW_SIZE])
                    self._check_times(rows)
                    units.check(rows, part, room.base)
                    if entries:
                        entries.check(rows, keys)
                    else:
                        self.found.keys += len(keys)
                else:
                    self._tell_damage(*part)
            units.finish()
            if entries:
                entries.finish()
        self.found.faults = list(self._faults.values())
        return self.found

    def _check_times(self, rows: np.ndarray) -> None:
        """Store times go up along the log; the driver compares those at the border of two stretches."""
        found, times = self.found, rows[:, k.ROW_STORE_MS]
        if found.first_time is None:
            found.first_time = int(rows[0, k.ROW_LOG_OFFSET]), int(times[0])
        before = np.concatenate(([times[0] if found.last_ms is None else found.last_ms], times[:-1]))
        back = np.flatnonzero(times < before)
        for place in back[: DAMAGED - len(found.times_back)]:
            found.times_back.append((int(rows[place, k.ROW_LOG_OFFSET]), int(before[place] - times[place])))
            back = back[1:]
        found.times_back_more += len(back)
        found.last_ms = int(times[-1])

    def _tell_damage(self, at: int, length: int, problem: str) -> None:
        torn = problem.startswith(TORN)
        self.damaged.append((at, self.stretch.split.file_end if torn else at + length))
        if len(self.found.damaged) < DAMAGED or torn:
            self.found.damaged.append((at, length, problem))
        else:
            self.found.damaged_more += 1

    def add(self, kind: str, where: str, first: tuple, count: int = 1, **of: object) -> Fault:
        fault = self._faults.get((kind, where))
        if fault is None:
            fault = self._faults[kind, where] = Fault(kind, first=first, **of)
        fault.count += count
        fault.first = min(fault.first, first)
        return fault

    @property
    def log_end(self) -> int:
        """Behind the last record of the log, as far as this task can know."""
        is_last = self.stretch.split is None or self.stretch.split.is_last
        return self.found.log_end if is_last else self.store.data_end

    def in_damage(self, offsets: np.ndarray) -> np.ndarray:
        inside = np.zeros(len(offsets), dtype=bool)
        if self.damaged:
            damaged = np.array(sorted(self.damaged), dtype=np.int64)
            at = np.searchsorted(damaged[:, 0], offsets, side="right") - 1
            inside = (at >= 0) & (offsets < damaged[at, 1])
        return inside


def _opened(path: str, disk: Disk, closing: ExitStack) -> Reader:
    try:
        return closing.enter_context(disk.open_reader(Path(path)))
    except StoreError:
        if disk.exists(Path(path)):
            raise
        raise StoreError(
            f"{path} is gone: the broker deleted what was too old while the store was read; audit it again"
        ) from None


# Queues -------------------------------------------------------------------------------------------


class _QueueUnits:
    """The units of one queue, by number; zeros where there is no file."""

    def __init__(self, queue: Queue, disk: Disk):
        self.queue, self._disk = queue, disk
        self.first = queue.files[0].first if queue.files else 0
        self.end = queue.files[-1].end if queue.files else 0

    def read(self, first: int, count: int) -> np.ndarray:
        found = np.zeros(count, dtype=UNIT)
        for file in self.queue.files:
            low, high = max(first, file.first), min(first + count, file.end)
            if low < high:
                with ExitStack() as closing:
                    raw = _opened(file.path, self._disk, closing).read(
                        (low - file.first) * UNIT.itemsize, (high - low) * UNIT.itemsize
                    )
                units = np.frombuffer(raw[: len(raw) // UNIT.itemsize * UNIT.itemsize], dtype=UNIT)
                found[low - first : low - first + len(units)] = units
        return found

    def number_at(self, offset: int) -> int:
        """The number of the first unit that points to `offset` or behind it, in a queue that is in order."""
        with ExitStack() as closing:
            readers: dict[str, Reader] = {}

            def points_to(number: int) -> int:
                file = next((one for one in self.queue.files if one.first <= number < one.end), None)
                if file is None:
                    return -1
                if file.path not in readers:
                    readers[file.path] = _opened(file.path, self._disk, closing)
                return int.from_bytes(
                    readers[file.path].read((number - file.first) * UNIT.itemsize, 8), "big", signed=True
                )

            return self.first + bisect_left(range(self.first, self.end), offset, key=points_to)


class _Units:
    """The units of all queues that a stretch must have."""

    def __init__(self, check: _StretchCheck):
        self._check, store, stretch = check, check.store, check.stretch
        self._queues = {
            (queue.topic, queue.queue_id): _QueueUnits(queue, check.disk) for queue in store.queues
        }
        self._ends: dict[tuple[str, int], int] = {}
        self._lives: dict[tuple[str, int], tuple[int, int]] = {}
        self._table_rows: dict[tuple[int, int], tuple[tuple[str, int], int, int, int]] = {}
        self._topics: dict[int, str] = {}
        parts, at = [], 0
        queues = np.zeros((len(store.queues), compare.Q_WORDS), dtype=np.int64)
        for number, (name, queue) in enumerate(self._queues.items()):
            first = queue.number_at(stretch.begin)
            end = queue.number_at(stretch.until) if stretch.until < 1 << 62 else queue.end
            self._ends[name] = end
            count = min(end - first, UNITS - at)
            parts.append(queue.read(first, count))
            hashed = name_hash(queue.queue.topic.encode())
            queues[number] = hashed, queue.queue.queue_id, first, count, at
            self._table_rows[hashed, queue.queue.queue_id] = name, first, count, at
            at += count
        # By itself it would turn the bytes round
        self._units = np.concatenate(parts, dtype=UNIT) if parts else np.zeros(0, dtype=UNIT)
        self._agreed = np.zeros(max(1, at), dtype=np.uint8)
        places = 1 << (2 * len(queues) + 1).bit_length()
        self._table = np.full((places, compare.Q_WORDS), -1, dtype=np.int64)
        compare.fill_table(self._table.ctypes.data, places - 1, queues.ctypes.data, len(queues))
        self._odd = np.empty(ROWS, dtype=np.int64)
        self._context = np.zeros(compare.U_WORDS, dtype=np.int64)
        self._context[[compare.U_TABLE, compare.U_MASK, compare.U_ODD]] = (
            self._table.ctypes.data,
            places - 1,
            self._odd.ctypes.data,
        )
        self._context[[compare.U_UNITS, compare.U_AGREED]] = self._units.ctypes.data, self._agreed.ctypes.data

    def check(self, rows: np.ndarray, data: np.ndarray, base: int) -> None:
        self._context[[compare.U_ROWS, compare.U_COUNT]] = rows.ctypes.data, len(rows)
        odd = compare.compare_units(self._context.ctypes.data)
        if odd:
            self._look_again(rows[self._odd[:odd]], data, base)

    def _look_again(self, rows: np.ndarray, data: np.ndarray, base: int) -> None:
        """Records that agree with no unit of theirs at once: of deleted topics, delayed, of a queue in
        disorder, or without their unit."""
        order = np.lexsort((rows[:, k.ROW_LOG_OFFSET], rows[:, k.ROW_QUEUE_ID], rows[:, k.ROW_TOPIC_HASH]))
        rows = rows[order]
        change = (np.diff(rows[:, k.ROW_TOPIC_HASH]) != 0) | (np.diff(rows[:, k.ROW_QUEUE_ID]) != 0)
        for group in np.split(rows, np.flatnonzero(change) + 1):
            hashed, queue_id = int(group[0, k.ROW_TOPIC_HASH]), int(group[0, k.ROW_QUEUE_ID])
            if hashed not in self._topics:
                at = int(group[0, k.ROW_TOPIC_AT])
                self._topics[hashed] = data[at : at + int(group[0, k.ROW_TOPIC_LENGTH])].tobytes().decode()
            self._look_at_queue((self._topics[hashed], queue_id), group, data, base)

    def _look_at_queue(self, name: tuple[str, int], rows: np.ndarray, data: np.ndarray, base: int) -> None:
        topic, queue_id = name
        if name not in self._queues:
            self._queues[name] = _QueueUnits(Queue(topic, queue_id, ()), self._check.disk)
        queue = self._queues[name]
        if topic == queue_unit.SCHEDULE_TOPIC:
            rows = self._with_delivery_times(rows, data, base)
        rows = self._living(name, queue, rows)
        if not len(rows):
            return
        numbers = rows[:, k.ROW_QUEUE_OFFSET]
        low, high = int(numbers.min()), int(numbers.max())
        if high - low < 4 * len(numbers) + 1024:
            units = queue.read(low, high - low + 1)[numbers - low]
        else:  # far apart: damage, or an attempt to make us allocate
            units = np.concatenate([queue.read(int(number), 1) for number in numbers])
        good = (
            (units["log_offset"] == rows[:, k.ROW_LOG_OFFSET])
            & (units["record_bytes"] == rows[:, k.ROW_SIZE])
            & (units["tags_code"] == rows[:, k.ROW_TAGS_CODE])
        )
        absent = units["record_bytes"] == 0
        self._mark(name, numbers)
        wrong = ~absent & ~good
        again = np.zeros(len(rows), dtype=bool)
        for place in np.flatnonzero(wrong & (units["log_offset"] != rows[:, k.ROW_LOG_OFFSET]))[
            :MAX_CONTRADICTED
        ]:
            unit = queue_unit.QueueUnit(*_values(units[place]))
            again[place] = is_record_of(
                queue.queue, int(numbers[place]), unit, self._check.store.files, self._check.disk
            )
        # A unit that leads to a record which states its place is right, and this record's place is damaged.
        for kind, chosen in (("unit-missing", absent), ("unit-wrong", wrong & ~again), (GIVEN_AGAIN, again)):
            if chosen.any():
                first = int(np.flatnonzero(chosen)[np.argmin(numbers[chosen])])
                row, unit = rows[first], units[first]
                wanted = (int(row[k.ROW_LOG_OFFSET]), int(row[k.ROW_SIZE]), int(row[k.ROW_TAGS_CODE]))
                self._tell(kind, name, np.sort(numbers[chosen]), (int(numbers[first]), _values(unit), wanted))

    def _mark(self, name: tuple[str, int], numbers: np.ndarray) -> None:
        """These units have a record; whether they say the right thing of it was told."""
        place = self._table_rows.get((name_hash(name[0].encode()), name[1]))
        if place is not None:
            _, first, count, at = place
            here = numbers[(numbers >= first) & (numbers < first + count)]
            self._agreed[at + here - first] = 1

    def _tell(self, kind: str, name: tuple[str, int], numbers: np.ndarray, first: tuple) -> None:
        fault = self._check.add(
            kind, f"{name[0]}/{name[1]}", first, len(numbers), topic=name[0], queue_id=name[1]
        )
        breaks = np.flatnonzero(np.diff(numbers) != 1) + 1
        for run in np.split(numbers, breaks)[: RUNS - len(fault.runs)]:
            fault.runs.append((int(run[0]), int(run[-1])))

    def _with_delivery_times(self, rows: np.ndarray, data: np.ndarray, base: int) -> np.ndarray:
        """In the schedule topic the tags code is the time of delivery, which hangs on a property."""
        rows = rows.copy()
        for row in rows:
            at = int(row[k.ROW_LOG_OFFSET]) - base
            one = record.decode(
                data[at : at + int(row[k.ROW_SIZE])].tobytes(), max_size=MAX_RECORD, check_crc=False
            )
            delay = one.properties.get(properties.DELAY)
            row[k.ROW_TAGS_CODE] = queue_unit.tags_code(
                one.topic, one.tags, delay, one.store_timestamp, self._check.store.delay_levels_ms
            )
        return rows

    def _living(self, name: tuple[str, int], queue: _QueueUnits, rows: np.ndarray) -> np.ndarray:
        """Without records of topics that were deleted: they stay in the log and have no units.

        Ours keeps where such a topic's records end. Apache does not, but a topic made again counts from 0:
        then the first unit points behind the records of the life before.
        """
        store = self._check.store
        if not queue.queue.files and store.known_topics and name[0] not in store.known_topics:
            return rows[:0]
        if name not in self._lives:
            self._lives[name] = self._begin_of_life(queue)
        first, begin = self._lives[name]
        offsets = rows[:, k.ROW_LOG_OFFSET]
        dead = (offsets < store.tombstones.get(name[0], 0)) | (
            (offsets < begin) & (rows[:, k.ROW_QUEUE_OFFSET] >= first)
        )
        return rows[~dead]

    def _begin_of_life(self, queue: _QueueUnits) -> tuple[int, int]:
        """(number, log offset) of the first unit when a record agrees with it, else (0, 0)."""
        units = queue.read(queue.first, min(1024, queue.end - queue.first))
        for place in np.flatnonzero(_is_data(units))[:1]:
            number, unit = queue.first + int(place), queue_unit.QueueUnit(*_values(units[place]))
            if is_record_of(queue.queue, number, unit, self._check.store.files, self._check.disk):
                return number, unit.log_offset
        return 0, 0

    def finish(self) -> None:
        """What stands in the queues for this stretch and agreed with no record."""
        for name, _, count, at in self._table_rows.values():
            # Of a topic that is gone: its units should be too
            if before := self._check.store.tombstones.get(name[0]):
                self._agreed[at : at + count][self._units["log_offset"][at : at + count] < before] = 0
        agreed = int(self._agreed.sum())
        self._check.found.units += agreed
        for name, first, count, at in self._table_rows.values():
            units, left = self._units[at : at + count], self._agreed[at : at + count] == 0
            if left.any():
                places = np.flatnonzero(left)
                self._judge(name, first + places, units[places], is_compared=True)
            # Before the first stretch lies what points to records that the broker has deleted.
            for low, high in (
                (self._queues[name].first if self._check.stretch.is_first else first, first),
                (first + count, self._ends[name]),
            ):
                for begin in range(low, high, ROWS):
                    numbers = np.arange(begin, min(begin + ROWS, high), dtype=np.int64)
                    self._judge(name, numbers, self._queues[name].read(begin, len(numbers)))

    def _judge(
        self, name: tuple[str, int], numbers: np.ndarray, units: np.ndarray, is_compared: bool = False
    ) -> None:
        """Units without a record here: what they point to may be gone, damaged or not yet there, or be
        compared by number, with the task that reads it.

        `is_compared`: had this task read a record of theirs, they would agree or be told already.
        """
        check, queue = self._check, self._queues[name].queue
        is_data = _is_data(units)
        if not is_compared:
            is_data |= (numbers < self._gone_to(name)) & (units["record_bytes"] == 0)
        numbers, units = numbers[is_data], units[is_data]
        check.found.units += len(units)
        offsets, sizes = units["log_offset"].astype(np.int64), units["record_bytes"]
        behind = offsets >= check.log_end
        nonsense = ~behind & ((offsets < 0) | (sizes <= 0))
        extra = nonsense | (~behind & (offsets >= check.store.log_begin) & ~check.in_damage(offsets))
        unknown = extra & ~nonsense
        if is_compared:
            unknown &= (offsets < check.stretch.begin) | (offsets >= check.stretch.until)
        for place in np.flatnonzero(unknown):
            extra[place] = not is_record_of(
                queue,
                int(numbers[place]),
                queue_unit.QueueUnit(*_values(units[place])),
                check.store.files,
                check.disk,
            )
        behind &= ~check.in_damage(offsets)
        contradicted = np.zeros(len(units), dtype=bool)
        for place in np.flatnonzero(extra & ~nonsense)[:MAX_CONTRADICTED]:
            contradicted[place] = self._states_nothing_else(queue_unit.QueueUnit(*_values(units[place])))
        # A good record of that size there states another place: its header is wrong, and the unit is not.
        if not queue.topic.startswith(queue_unit.LIGHT_QUEUE):
            extra &= ~contradicted
        else:
            contradicted[:] = False
        for kind, chosen in (
            ("unit-behind", behind),
            ("unit-extra", extra),
            (rules.QUEUE_OFFSET, contradicted),
        ):
            if chosen.any():
                first = int(np.argmax(chosen))
                self._tell(kind, name, numbers[chosen], (int(numbers[first]), _values(units[first]), ()))

    def _gone_to(self, name: tuple[str, int]) -> int:
        """Number of the queue's first unit that points into the log, else behind its last one of a record
        before the log: a unit of zeros before it is damage.

        A unit that a record in the log shows to be missing is reported once, as missing (`_drop_told_twice`
        in audit.py).
        """
        log_begin, queue = self._check.store.log_begin, self._queues[name]
        if not log_begin or not self._check.stretch.is_first or not queue.queue.files:
            return 0
        first = queue.queue.files[0]
        # Retention leaves one file that begins before the log
        units = queue.read(first.first, first.end - first.first)
        is_data = _is_data(units)
        if len(inside := np.flatnonzero(is_data & (units["log_offset"] >= log_begin))):
            return first.first + int(inside[0])
        gone = np.flatnonzero(is_data)
        return first.first + int(gone[-1]) + 1 if len(gone) else 0

    def _states_nothing_else(self, unit: queue_unit.QueueUnit) -> bool:
        """Whether a good record of the unit's size lies where it points to, to which no unit of the place it
        states itself leads."""
        found = record_at(unit, self._check.store.files, self._check.disk)
        if found is None or found.size != unit.size:
            return False
        own = self._queues.get((found.topic, found.queue_id))
        if own is None or not found.is_queued:
            return True
        leads_to = own.read(found.queue_offset, 1)[0]
        return (int(leads_to["log_offset"]), int(leads_to["record_bytes"])) != (found.log_offset, found.size)


def _values(unit: np.void) -> tuple[int, int, int]:
    return int(unit["log_offset"]), int(unit["record_bytes"]), int(unit["tags_code"])


def _is_data(units: np.ndarray) -> np.ndarray:
    """Neither zero nor filled in before the queue's first unit."""
    offsets, sizes = units["log_offset"], units["record_bytes"]
    return ((sizes != 0) | (offsets != 0) | (units["tags_code"] != 0)) & ~(
        (offsets == 0) & (sizes == queue_unit.PRE_BLANK_SIZE)
    )


# Index --------------------------------------------------------------------------------------------


@dataclass
class _Left:
    """Entries or keys that nothing agreed with yet: log offset and hash of each, and for entries their place,
    file << 32 | number."""

    offsets: list[np.ndarray] = field(default_factory=list)
    hashes: list[np.ndarray] = field(default_factory=list)
    places: list[np.ndarray] = field(default_factory=list)

    def add(self, offsets: np.ndarray, hashes: np.ndarray, places: np.ndarray | None = None) -> None:
        self.offsets.append(offsets)
        self.hashes.append(hashes)
        if places is not None:
            self.places.append(places)

    def pairs(self) -> np.ndarray:
        return _pairs(np.concatenate(self.offsets or [_NONE]), np.concatenate(self.hashes or [_NONE]))


_NONE = np.zeros(0, dtype=np.int64)


class _Entries:
    """The entries of the index that a stretch must have, in order; files are one sequence."""

    def __init__(self, check: _StretchCheck, closing: ExitStack):
        self._check, self._files, stretch = check, check.store.index, check.stretch
        self._readers = [_opened(file.path, check.disk, closing) for file in self._files]
        self._begins = np.cumsum([0, *(file.header.count - index_file.FIRST_ENTRY for file in self._files)])
        self._next = 0 if stretch.is_first else self._place_at(stretch.begin)
        self._until = self._place_at(stretch.until) if stretch.until < 1 << 62 else int(self._begins[-1])
        check.found.entries = max(0, self._until - self._next)
        self._entry_left, self._key_left = _Left(), _Left()
        self._late = np.empty(ENTRIES, dtype=np.int64)
        self._context = np.zeros(compare.E_WORDS, dtype=np.int64)
        self._context[compare.E_LATE] = self._late.ctypes.data
        self._entries, self._place = np.zeros(0, dtype=ENTRY), 0

    def _located(self, place: int) -> tuple[int, int]:
        """(number of the file, number of the entry)"""
        file = int(np.searchsorted(self._begins, place, side="right")) - 1
        return file, place - int(self._begins[file]) + index_file.FIRST_ENTRY

    def _place_at(self, offset: int) -> int:
        """Of the first entry that points to `offset` or behind it, in an index that is in order."""

        def points_to(place: int) -> int:
            file, number = self._located(place)
            at = self._files[file].geometry.entry_at(number) + index_file.ENTRY.offset["log_offset"]
            return int.from_bytes(self._readers[file].read(at, 8), "big", signed=True)

        return bisect_left(range(int(self._begins[-1])), offset, key=points_to)

    def _load(self) -> bool:
        """The next entries; False when there are none."""
        if self._next >= self._until:
            return False
        file, number = self._located(self._next)
        count = min(ENTRIES, self._until - self._next, int(self._begins[file + 1]) - self._next)
        raw = self._readers[file].read(self._files[file].geometry.entry_at(number), count * ENTRY.itemsize)
        self._entries, self._place = np.frombuffer(raw, dtype=ENTRY), (file << 32) | number
        self._next += count
        begin_ms = self._files[file].header.begin_timestamp
        words = [compare.E_ENTRIES, compare.E_END, compare.E_AT, compare.E_FIRST_NUMBER, compare.E_BEGIN_MS]
        self._context[words] = self._entries.ctypes.data, len(self._entries), 0, number, begin_ms
        return len(self._entries) > 0

    def check(self, rows: np.ndarray, keys: np.ndarray) -> None:
        context = self._context
        context[[compare.E_ROWS, compare.E_COUNT, compare.E_ROW, compare.E_KEY, compare.E_KEYS]] = (
            rows.ctypes.data,
            len(rows),
            0,
            0,
            keys.ctypes.data,
        )
        while True:
            context[compare.E_LATE_COUNT] = 0
            answer = compare.compare_entries(context.ctypes.data)
            for place in self._late[: context[compare.E_LATE_COUNT]]:
                self._tell("index-time", self._place + int(place), int(self._entries["log_offset"][place]))
            if answer == c.DONE:
                return
            if answer == c.DIFFERS or not self._load():
                self._leave(rows, keys)
                return

    def _leave(self, rows: np.ndarray, keys: np.ndarray) -> None:
        """From here to the end of the rows keys and entries are put aside, to be compared without their
        order."""
        first, key = int(self._context[compare.E_ROW]), int(self._context[compare.E_KEY])
        offsets = np.repeat(rows[first:, k.ROW_LOG_OFFSET], rows[first:, k.ROW_KEY_COUNT])
        offsets = offsets[len(offsets) - (len(keys) - key) :]
        plain = keys[key:] < k.TAG_KEY
        end = int(rows[-1, k.ROW_LOG_OFFSET] + rows[-1, k.ROW_SIZE])
        taken = _Left()
        while True:
            at = int(self._context[compare.E_AT])
            waiting = self._entries["log_offset"][at:].astype(np.int64)
            beyond = np.flatnonzero(waiting >= end)
            cut = int(beyond[0]) if len(beyond) else len(waiting)
            self._put_aside(taken, at, at + cut)
            self._check_times(rows, at, cut)
            self._context[compare.E_AT] = at + cut
            if cut < len(waiting) or not self._load():
                break
        there, wanted = taken.pairs(), _pairs(offsets, keys[key:] & (k.TAG_KEY - 1))
        extra = ~np.isin(there, wanted)
        self._entry_left.add(
            there["offset"][extra], there["hash"][extra], np.concatenate(taken.places)[extra]
        )
        missing = plain & ~np.isin(wanted, there)
        self._key_left.add(wanted["offset"][missing], wanted["hash"][missing])

    def _put_aside(self, left: _Left, at: int, end: int) -> None:
        """Entries whose record the broker has deleted are in order, and there may be very many of them."""
        entries, places = self._entries[at:end], self._place + np.arange(at, end, dtype=np.int64)
        kept = entries["log_offset"] >= self._check.store.log_begin
        left.add(
            entries["log_offset"][kept].astype(np.int64),
            entries["key_hash"][kept].astype(np.int64),
            places[kept],
        )

    def _check_times(self, rows: np.ndarray, at: int, count: int) -> None:
        entries = self._entries[at : at + count]
        offsets = entries["log_offset"].astype(np.int64)
        row_at = np.minimum(np.searchsorted(rows[:, k.ROW_LOG_OFFSET], offsets), len(rows) - 1)
        begin_ms = int(self._context[compare.E_BEGIN_MS])
        wanted = entry_seconds(rows[row_at, k.ROW_STORE_MS], begin_ms)
        places = self._place + np.arange(at, at + count, dtype=np.int64)
        is_first = (places & 0xFFFFFFFF) == index_file.FIRST_ENTRY
        wrong = (rows[row_at, k.ROW_LOG_OFFSET] == offsets) & ~is_first & (entries["seconds"] != wanted)
        for place in np.flatnonzero(wrong):
            self._tell("index-time", int(places[place]), int(offsets[place]))

    def _tell(self, kind: str, place: int, offset: int, count: int = 1) -> None:
        """`place` is that of an entry, -1 for a key that has none."""
        path = self._files[max(place, 0) >> 32].path if place >= 0 else ""
        self._check.add(kind, "", (offset, path, place & 0xFFFFFFFF if place >= 0 else -1), count)

    def finish(self) -> None:
        store = self._check.store
        while True:  # entries behind the last record of the stretch
            at = int(self._context[compare.E_AT])
            self._put_aside(self._entry_left, at, len(self._entries))
            if not self._load():
                break
        entries, keys = self._entry_left.pairs(), self._key_left.pairs()
        if len(entries):
            extra = ~np.isin(entries, keys)
            places = np.concatenate(self._entry_left.places)[extra]
            self._judge_entries(entries["offset"][extra], entries["hash"][extra], places)
        if len(keys):
            keys = keys[~np.isin(keys, entries)]
            early, late = keys["offset"] <= store.first_entry, keys["offset"] >= store.last_entry
            inner = keys[~early & ~late]
            if len(inner):
                inner = inner[~self._elsewhere(inner)]
            for kind, chosen in (
                ("index-starts-late", keys[early]),
                ("index-behind", keys[late & ~early]),
                ("index-missing", inner),
            ):
                if len(chosen):
                    self._tell(kind, -1, int(chosen["offset"].min()), len(chosen))

    def _judge_entries(self, offsets: np.ndarray, hashes: np.ndarray, places: np.ndarray) -> None:
        """Entries that agree with no key of this stretch."""
        check = self._check
        behind = (offsets >= check.log_end) & ~check.in_damage(offsets)
        wrong = (offsets >= check.store.log_begin) & ~behind & ~check.in_damage(offsets)
        # Its key may have agreed with another entry, for entries may stand twice, or be read by another task.
        of_record = lru_cache(self._hashes_at)
        for place in np.flatnonzero(wrong):
            wrong[place] = int(hashes[place]) not in of_record(int(offsets[place]))
        for kind, chosen in (("index-extra", behind), ("index-entry", wrong)):
            if chosen.any():
                first = int(np.flatnonzero(chosen)[np.argmin(offsets[chosen])])
                self._tell(kind, int(places[first]), int(offsets[first]), int(chosen.sum()))

    def _hashes_at(self, offset: int) -> set[int]:
        """Of the keys of the record at that place that the index takes; none when there is no good record."""
        for path, base, end in self._check.store.files:
            if base <= offset < end:
                with ExitStack() as closing:
                    reader = _opened(str(path), self._check.disk, closing)
                    head = reader.read(offset - base, record.HEAD.size)
                    size = record.read_head(head).total_size if len(head) == record.HEAD.size else 0
                    try:
                        one = record.decode(
                            reader.read(offset - base, min(max(size, 0), MAX_RECORD)),
                            log_offset=offset,
                            max_size=MAX_RECORD,
                        )
                    except FormatError:
                        return set()
                if not one.is_indexed:
                    return set()
                texts = index_file.texts_of(
                    one.topic,
                    one.properties.get(properties.UNIQUE_KEY),
                    one.properties.get(properties.KEYS),
                    one.tags,
                )
                return {index_file.key_hash(text) for text in texts}
        return set()

    def _elsewhere(self, keys: np.ndarray) -> np.ndarray:
        """Which of the keys have an entry that stands where another stretch's do: an index that steps back,
        as after a crash of Apache's broker."""
        known = np.zeros(len(keys), dtype=bool)
        low, high = keys["offset"].min(), keys["offset"].max()
        for file, reader in zip(self._files, self._readers, strict=True):
            if file.header.begin_offset > high or file.header.end_offset < low:
                continue
            for number in range(index_file.FIRST_ENTRY, file.header.count, ENTRIES):
                count = min(ENTRIES, file.header.count - number)
                entries = np.frombuffer(
                    reader.read(file.geometry.entry_at(number), count * ENTRY.itemsize), dtype=ENTRY
                )
                offsets = entries["log_offset"].astype(np.int64)
                near = (offsets >= low) & (offsets <= high)
                if near.any():
                    known |= np.isin(keys, _pairs(offsets[near], entries["key_hash"][near].astype(np.int64)))
        return known


def _pairs(offsets: np.ndarray, hashes: np.ndarray) -> np.ndarray:
    """(offset, hash) as one comparable value each."""
    pairs = np.empty(len(offsets), dtype=[("offset", np.int64), ("hash", np.int64)])
    pairs["offset"], pairs["hash"] = offsets, hashes
    return pairs


def check_links(file: IndexFile, disk: Disk | None = None) -> list[Fault]:
    """Whether each entry of an index file names the one before it in its slot and does not point back, each
    slot its newest, and the header how many slots are in use."""
    geometry, header = file.geometry, file.header
    newest = np.zeros(geometry.slots, dtype=np.int32)
    room = np.empty((LINKS, 2), dtype=np.int64)
    chains, order, before = Fault("index-chain", path=file.path), Fault("index-entry", path=file.path), 0
    with ExitStack() as closing:
        reader = _opened(file.path, disk or Disk(), closing)
        for number in range(index_file.FIRST_ENTRY, header.count, ENTRIES):
            raw = np.frombuffer(
                reader.read(geometry.entry_at(number), min(ENTRIES, header.count - number) * ENTRY.itemsize),
                dtype=ENTRY,
            )
            told = len(chains.runs)
            wrong = compare.wrong_links(
                raw.ctypes.data,
                number,
                len(raw),
                geometry.slots,
                newest.ctypes.data,
                room.ctypes.data,
                LINKS - told,
            )
            for place, wanted in room[: min(wrong, LINKS - told)].tolist():
                chains.runs.append((place, wanted, int(raw["previous"][place - number])))
            chains.count += wrong
            offsets = raw["log_offset"].astype(np.int64)
            behind = np.concatenate(([before], offsets[:-1]))
            steps, before = np.flatnonzero(offsets < behind), int(offsets[-1])
            order.count += len(steps)
            order.runs += [
                (number + int(place), int(behind[place]), int(offsets[place]))
                for place in steps[: LINKS - len(order.runs)]
            ]
        slots = np.frombuffer(reader.read(geometry.slot_at(0), geometry.slots * SLOT.itemsize), dtype=SLOT)
    wrong = np.flatnonzero(slots != newest)
    heads = Fault(
        "index-slot",
        path=file.path,
        count=len(wrong),
        runs=[(int(slot), int(newest[slot]), int(slots[slot])) for slot in wrong[:LINKS]],
    )
    used = int(np.count_nonzero(newest))
    header_fault = Fault(
        "index-header", path=file.path, count=int(used != header.slots_used), first=(used, header.slots_used)
    )
    return [fault for fault in (chains, order, heads, header_fault) if fault.count]
