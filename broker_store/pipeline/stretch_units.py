"""The units of all queues that a stretch of the log must have, and their comparison with its records."""

from __future__ import annotations

from bisect import bisect_left
from contextlib import ExitStack
from itertools import islice

import numpy as np

from broker_store.check import rules
from broker_store.check import units as u
from broker_store.check.queue import FIRST_UNITS_PER_READ
from broker_store.check.units import MAX_CONTRADICTED, UNIT, values
from broker_store.engine.disk.disk import Disk
from broker_store.engine.disk.file_access import Reader
from broker_store.engine.rows import name_hash
from broker_store.formats import queue_unit
from broker_store.formats.topics import SCHEDULE_TOPIC
from broker_store.kernels import columns as k
from broker_store.kernels import compare
from broker_store.pipeline.findings import (
    GIVEN_AGAIN,
    MAX_ROWS,
    Findings,
    opened,
)
from broker_store.pipeline.splits import Queue, is_record_of, record_at

# Units that the kernel compares. A queue with more for one stretch is damaged, and the rest is read in parts.
MAX_UNITS = 1 << 20
MAX_RUNS_LISTED = 100  # of a queue, for each kind of fault


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
                    raw = opened(file.path, self._disk, closing).read(
                        (low - file.first) * UNIT.itemsize, (high - low) * UNIT.itemsize
                    )
                units = np.frombuffer(raw[: len(raw) // UNIT.itemsize * UNIT.itemsize], dtype=UNIT)
                found[low - first : low - first + len(units)] = units
        return found

    def number_at(self, offset: int) -> int:
        """Return the number of the first unit that points to `offset` or after it, by binary search."""
        with ExitStack() as closing:
            readers: dict[str, Reader] = {}

            def points_to(number: int) -> int:
                file = next((one for one in self.queue.files if one.first <= number < one.end), None)
                if file is None:
                    return -1
                if file.path not in readers:
                    readers[file.path] = opened(file.path, self._disk, closing)
                return int.from_bytes(
                    readers[file.path].read((number - file.first) * UNIT.itemsize, 8), "big", signed=True
                )

            return self.first + bisect_left(range(self.first, self.end), offset, key=points_to)


class StretchUnits:
    """The units of all queues that a stretch must have."""

    def __init__(self, findings: Findings):
        self._findings, store, stretch = findings, findings.store, findings.stretch
        self._queues = {
            (queue.topic, queue.queue_id): _QueueUnits(queue, findings.disk) for queue in store.queues
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
            count = min(end - first, MAX_UNITS - at)
            parts.append(queue.read(first, count))
            hashed = name_hash(queue.queue.topic.encode())
            queues[number] = hashed, queue.queue.queue_id, first, count, at
            self._table_rows[hashed, queue.queue.queue_id] = name, first, count, at
            at += count
        # `concatenate` without a dtype would convert the big-endian fields
        self._units = np.concatenate(parts, dtype=UNIT) if parts else np.zeros(0, dtype=UNIT)
        self._agreed = np.zeros(max(1, at), dtype=np.uint8)
        places = 1 << (2 * len(queues) + 1).bit_length()
        self._table = np.full((places, compare.Q_WORDS), -1, dtype=np.int64)
        compare.fill_table(self._table.ctypes.data, places - 1, queues.ctypes.data, len(queues))
        self._odd = np.empty(MAX_ROWS, dtype=np.int64)
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
            self._compare_singly(rows[self._odd[:odd]], data, base)

    def _compare_singly(self, rows: np.ndarray, data: np.ndarray, base: int) -> None:
        """Compare records that agreed with no unit at once: of deleted topics, delayed, of a queue in
        disorder, or without a unit."""
        for group in u.by_queue(rows):
            hashed, queue_id = int(group[0, k.ROW_TOPIC_HASH]), int(group[0, k.ROW_QUEUE_ID])
            if hashed not in self._topics:
                at = int(group[0, k.ROW_TOPIC_AT])
                self._topics[hashed] = data[at : at + int(group[0, k.ROW_TOPIC_LENGTH])].tobytes().decode()
            self._compare_queue((self._topics[hashed], queue_id), group, data, base)

    def _compare_queue(self, name: tuple[str, int], rows: np.ndarray, data: np.ndarray, base: int) -> None:
        topic, queue_id = name
        if name not in self._queues:
            self._queues[name] = _QueueUnits(Queue(topic, queue_id, ()), self._findings.disk)
        queue = self._queues[name]
        if topic == SCHEDULE_TOPIC:
            levels_ms = self._findings.store.delay_levels_ms
            u.set_delivery_times(rows, memoryview(data), base, levels_ms)
        rows = self._living(name, queue, rows)
        if not len(rows):
            return
        numbers = rows[:, k.ROW_QUEUE_OFFSET]
        units = u.units_of(queue.read, numbers)
        good = u.agree(units, rows)
        absent = units["size"] == 0
        self._mark(name, numbers)
        wrong = ~absent & ~good
        again = np.zeros(len(rows), dtype=bool)
        for place in np.flatnonzero(wrong & (units["log_offset"] != rows[:, k.ROW_LOG_OFFSET]))[
            :MAX_CONTRADICTED
        ]:
            unit = queue_unit.QueueUnit(*values(units[place]))
            again[place] = is_record_of(
                queue.queue, int(numbers[place]), unit, self._findings.store.files, self._findings.disk
            )
        # If a unit leads to a record that states the unit's place, the unit is correct, and this record's
        # place is damaged.
        for kind, chosen in (
            (u.MISSING, absent),
            (u.WRONG, wrong & ~again),
            (GIVEN_AGAIN, again),
        ):
            if chosen.any():
                first = int(np.flatnonzero(chosen)[np.argmin(numbers[chosen])])
                stated, wanted = values(units[first]), u.made_by(rows[first])
                self._add_fault(kind, name, np.sort(numbers[chosen]), (int(numbers[first]), stated, wanted))

    def _mark(self, name: tuple[str, int], numbers: np.ndarray) -> None:
        """Mark that these units have a record; whether they agree with it is reported elsewhere."""
        place = self._table_rows.get((name_hash(name[0].encode()), name[1]))
        if place is not None:
            _, first, count, at = place
            here = numbers[(numbers >= first) & (numbers < first + count)]
            self._agreed[at + here - first] = 1

    def _add_fault(self, kind: str, name: tuple[str, int], numbers: np.ndarray, first: tuple) -> None:
        fault = self._findings.add(
            kind, f"{name[0]}/{name[1]}", first, len(numbers), topic=name[0], queue_id=name[1]
        )
        fault.runs += islice(u.runs(numbers), MAX_RUNS_LISTED - len(fault.runs))

    def _living(self, name: tuple[str, int], queue: _QueueUnits, rows: np.ndarray) -> np.ndarray:
        """Return the rows without records of deleted topics, which stay in the log and have no units."""
        store = self._findings.store
        if not queue.queue.files and store.known_topics and name[0] not in store.known_topics:
            return rows[:0]
        if name not in self._lives:
            self._lives[name] = self._begin_of_life(queue)
        deleted_before = store.tombstones.get(name[0], 0)
        return rows[~u.is_before_life(rows, deleted_before, *self._lives[name])]

    def _begin_of_life(self, queue: _QueueUnits) -> tuple[int, int]:
        """Return (number, log offset) of the first unit if a record agrees with it, else (0, 0)."""
        for first in range(queue.first, queue.end, FIRST_UNITS_PER_READ):
            units = queue.read(first, min(FIRST_UNITS_PER_READ, queue.end - first))
            for place in np.flatnonzero(_is_data(units))[:1]:
                number, unit = first + int(place), queue_unit.QueueUnit(*values(units[place]))
                if is_record_of(queue.queue, number, unit, self._findings.store.files, self._findings.disk):
                    return number, unit.log_offset
                return 0, 0
        return 0, 0

    def finish(self) -> None:
        """Find the faults of units of this stretch that agreed with no record."""
        for name, _, count, at in self._table_rows.values():
            # Of a deleted topic: its units should be deleted, too
            if before := self._findings.store.tombstones.get(name[0]):
                self._agreed[at : at + count][self._units["log_offset"][at : at + count] < before] = 0
        agreed = int(self._agreed.sum())
        self._findings.found.units += agreed
        for name, first, count, at in self._table_rows.values():
            units, left = self._units[at : at + count], self._agreed[at : at + count] == 0
            if left.any():
                places = np.flatnonzero(left)
                self._judge(name, first + places, units[places], is_compared=True)
            # The first stretch also takes units before it, which point to records that the broker has
            # deleted.
            for low, high in (
                (self._queues[name].first if self._findings.stretch.is_first else first, first),
                (first + count, self._ends[name]),
            ):
                for begin in range(low, high, MAX_ROWS):
                    numbers = np.arange(begin, min(begin + MAX_ROWS, high), dtype=np.int64)
                    self._judge(name, numbers, self._queues[name].read(begin, len(numbers)))

    def _judge(
        self, name: tuple[str, int], numbers: np.ndarray, units: np.ndarray, is_compared: bool = False
    ) -> None:
        """Find the faults of units without a record here. What they point to may be deleted, damaged or not
        yet written, or be compared by its number by the task that reads it.

        With `is_compared`, if this task had read a record of theirs they would agree or be reported already.
        """
        findings, queue = self._findings, self._queues[name].queue
        is_data = _is_data(units)
        if not is_compared:
            is_data |= (numbers < self._gone_to(name)) & (units["size"] == 0)
        numbers, units = numbers[is_data], units[is_data]
        findings.found.units += len(units)
        offsets, sizes = units["log_offset"].astype(np.int64), units["size"]
        behind = offsets >= findings.log_end
        nonsense = ~behind & ((offsets < 0) | (sizes <= 0))
        extra = nonsense | (~behind & (offsets >= findings.store.log_begin) & ~findings.in_damage(offsets))
        unknown = extra & ~nonsense
        if is_compared:
            unknown &= (offsets < findings.stretch.begin) | (offsets >= findings.stretch.until)
        for place in np.flatnonzero(unknown):
            extra[place] = not is_record_of(
                queue,
                int(numbers[place]),
                queue_unit.QueueUnit(*values(units[place])),
                findings.store.files,
                findings.disk,
            )
        behind &= ~findings.in_damage(offsets)
        contradicted = np.zeros(len(units), dtype=bool)
        for place in np.flatnonzero(extra & ~nonsense)[:MAX_CONTRADICTED]:
            contradicted[place] = self._states_nothing_else(queue_unit.QueueUnit(*values(units[place])))
        # A valid record of that size there states another place: its header is wrong, and the unit is not.
        if not queue.topic.startswith(queue_unit.LIGHT_QUEUE):
            extra &= ~contradicted
        else:
            contradicted[:] = False
        for kind, chosen in (
            ("unit-behind", behind),
            (u.EXTRA, extra),
            (rules.QUEUE_OFFSET, contradicted),
        ):
            if chosen.any():
                first = int(np.argmax(chosen))
                self._add_fault(kind, name, numbers[chosen], (int(numbers[first]), values(units[first]), ()))

    def _gone_to(self, name: tuple[str, int]) -> int:
        """Return the number of the queue's first unit that points into the log, else the one after its last
        unit that points before the log.

        A unit of zeros before that number is damage. A unit that is missing according to a record in the log
        is reported once, as missing (`_drop_repeated` in audit.py).
        """
        log_begin, queue = self._findings.store.log_begin, self._queues[name]
        if not log_begin or not self._findings.stretch.is_first or not queue.queue.files:
            return 0
        first = queue.queue.files[0]
        # Retention leaves at most one file that begins before the log
        units = queue.read(first.first, first.end - first.first)
        is_data = _is_data(units)
        if len(inside := np.flatnonzero(is_data & (units["log_offset"] >= log_begin))):
            return first.first + int(inside[0])
        gone = np.flatnonzero(is_data)
        return first.first + int(gone[-1]) + 1 if len(gone) else 0

    def _states_nothing_else(self, unit: queue_unit.QueueUnit) -> bool:
        """True if a valid record of the unit's size is where it points to, and no unit leads to the place
        which that record states."""
        found = record_at(unit, self._findings.store.files, self._findings.disk)
        if found is None:
            return False
        return u.is_misplaced(found, (unit.log_offset, unit.size), self._unit_at)

    def _unit_at(self, name: tuple[str, int], number: int) -> np.void | None:
        queue = self._queues.get(name)
        return None if queue is None else queue.read(number, 1)[0]


def _is_data(units: np.ndarray) -> np.ndarray:
    """Return which units are neither zero nor filled in before the queue's first unit."""
    return u.is_written(units) & ~u.is_pre_blank(units)
