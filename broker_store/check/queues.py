"""Check of the records of the log against the units of their queues, a slice at a time.

Compiled code compares the queues of a slice that are in order. What does not agree is compared again by
queue, and reported.
"""

from __future__ import annotations

import numpy as np

from broker_store.check import rules, units
from broker_store.check.contradictions import Contradictions
from broker_store.check.deleted_topics import DeletedTopics
from broker_store.check.ends import EndsCheck
from broker_store.check.files import StoreFile
from broker_store.check.log import Log
from broker_store.check.queue import UNITS_PER_READ, Gap, Queue
from broker_store.check.report import ERROR, MAX_LISTED_PER_KIND
from broker_store.check.slices import MAX_ROWS
from broker_store.check.store import CheckedStore
from broker_store.formats import queue_unit, record
from broker_store.formats.topics import SCHEDULE_TOPIC
from broker_store.kernels import columns as k
from broker_store.kernels import compare

MAX_QUEUES = 256  # of a slice, compared by compiled code
MAX_GAPS = 1 << 16  # that are kept for a repair


class UnitsCheck:
    """Compares records with units. `queues` are those of the store, and of the records that were compared;
    `gaps` are the queue offsets that are missing in the log."""

    def __init__(
        self,
        store: CheckedStore,
        log: Log,
        queues: dict[tuple[str, int], Queue],
        deleted: DeletedTopics,
        contradictions: Contradictions,
        ends: EndsCheck,
        delay_levels_ms: tuple[int, ...],
    ):
        self._store, self._report, self._log = store, store.report, log
        self._queues, self._deleted, self._contradictions = queues, deleted, contradictions
        self._ends, self._delay_levels_ms = ends, delay_levels_ms
        self.gaps: list[Gap] = []
        self._topics: dict[int, str] = {}  # by the hash that the kernel gives
        self._table = np.empty((4 * MAX_QUEUES, compare.Q_WORDS), dtype=np.int64)
        self._groups = np.empty((MAX_QUEUES, compare.G_WORDS), dtype=np.int64)
        # For units, whether they agree, numbers of rows
        self._room = [np.empty(MAX_ROWS * each, dtype=np.uint8) for each in (queue_unit.SIZE, 1, 8)]
        self._units = memoryview(self._room[0])
        self._words = np.zeros(compare.U_WORDS, dtype=np.int64)
        self._words[[compare.U_UNITS, compare.U_AGREED, compare.U_ODD]] = [
            room.ctypes.data for room in self._room
        ]
        self._words[[compare.U_TABLE, compare.U_MASK]] = self._table.ctypes.data, len(self._table) - 1

    def check_rows(self, rows: np.ndarray, data: memoryview, base: int, file: StoreFile) -> None:
        """Compare the records of a slice with the units of their queues. `data` is the log from offset `base`
        on, in `file`."""
        found = compare.group_rows(
            rows.ctypes.data,
            len(rows),
            self._table.ctypes.data,
            len(self._table) - 1,
            self._groups.ctypes.data,
            len(self._groups),
        )
        if found >= 0 and self._agree(rows, data, base, self._groups[:found], file):
            return
        for group in units.by_queue(rows[units.is_queued(rows)]):
            self._check_group(group, data, base, file)

    def _agree(
        self, rows: np.ndarray, data: memoryview, base: int, groups: np.ndarray, file: StoreFile
    ) -> bool:
        """Return whether all units of the queues in `groups` agree with their rows. Nothing is reported when
        they do not.

        Queues that compiled code cannot judge (deliveries, deleted topics, unexpected numbers) are compared
        one by one then.
        """
        plain: list[tuple[Queue, list[int]]] = []
        others: list[tuple[Queue, list[int]]] = []
        at, place = 0, self._groups.ctypes.data
        for group in groups.tolist():
            row = rows[group[compare.G_FIRST_ROW]]
            queue = self._queue_of(row, data)
            is_plain = self._is_plain(queue, group, int(row[k.ROW_LOG_OFFSET]))
            (plain if is_plain else others).append((queue, group))
            count = group[compare.G_COUNT] if is_plain else 0
            compare.place_units(place, at, count)
            if is_plain:
                queue.read_units(
                    self._units[at * queue_unit.SIZE : (at + count) * queue_unit.SIZE], group[compare.G_FIRST]
                )
            at, place = at + count, place + groups.strides[0]
        if not plain:
            return not others
        words = self._words
        words[[compare.U_ROWS, compare.U_COUNT]] = rows.ctypes.data, len(rows)
        if compare.compare_units(words.ctypes.data) != sum(group[compare.G_COUNT] for _, group in others):
            return False
        for queue, group in plain:
            if queue.covered_from is None:
                queue.covered_from = group[compare.G_FIRST]
            queue.next, queue.last_at = (
                group[compare.G_FIRST] + group[compare.G_COUNT],
                group[compare.G_LAST_AT],
            )
            queue.covered_to = max(queue.covered_to, queue.next)
        self._report.count("units", at)
        for _, group in others:
            own = (rows[:, k.ROW_TOPIC_HASH] == group[compare.G_HASH]) & (
                rows[:, k.ROW_QUEUE_ID] == group[compare.G_ID]
            )
            self._check_group(rows[own & units.is_queued(rows)], data, base, file)
        return True

    def _is_plain(self, queue: Queue, group: list[int], first_at: int) -> bool:
        """Return whether compiled code can judge a queue's records, the first of which lies at `first_at`."""
        if (
            queue.key[0] == SCHEDULE_TOPIC
            or not queue.files
            or queue.next not in (None, group[compare.G_FIRST])
            or group[compare.G_FIRST] < 0
        ):
            return False
        return first_at >= self._deleted.begin_of(queue)

    def _queue_of(self, row: np.ndarray, data: memoryview) -> Queue:
        """Return the queue of a row's record."""
        hashed, queue_id = int(row[k.ROW_TOPIC_HASH]), int(row[k.ROW_QUEUE_ID])
        topic = self._topics.get(hashed)
        if topic is None:
            start = int(row[k.ROW_TOPIC_AT])
            topic = self._topics[hashed] = bytes(data[start : start + int(row[k.ROW_TOPIC_LENGTH])]).decode()
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            directory = self._store.root / "consumequeue" / topic / str(queue_id)
            queue = Queue(self._store.disk, (topic, queue_id), str(directory), [])
            self._queues[topic, queue_id] = queue
        return queue

    def _check_group(self, rows: np.ndarray, data: memoryview, base: int, file: StoreFile) -> None:
        """Compare the records of one queue, in the order of the log."""
        queue = self._queue_of(rows[0], data)
        if queue.key[0] == SCHEDULE_TOPIC:
            units.set_delivery_times(rows, data, base, self._delay_levels_ms)
        rows = self._deleted.without_deleted(queue, rows)
        if not len(rows):
            return
        numbers = rows[:, k.ROW_QUEUE_OFFSET]
        self._check_density(queue, numbers, rows[:, k.ROW_LOG_OFFSET], file)
        found = units.units_of(queue.units, numbers)
        self._report.count("units", len(rows))
        good = units.agree(found, rows)
        if not good.all():
            self._report_units(queue, rows[~good], found[~good])

    def _report_units(self, queue: Queue, rows: np.ndarray, found: np.ndarray) -> None:
        """Note the missing units of these rows, and report those that are wrong."""
        absent = found["size"] == 0
        for first, last in units.runs(np.sort(rows[absent][:, k.ROW_QUEUE_OFFSET])):
            if queue.missing and queue.missing[-1][1] == first - 1:
                queue.missing[-1][1] = last
            elif len(queue.missing) < MAX_LISTED_PER_KIND:
                queue.missing.append([first, last])
        for row, unit in zip(rows[~absent], found[~absent], strict=True):
            number, stated, expected = int(row[k.ROW_QUEUE_OFFSET]), units.values(unit), units.made_by(row)
            if stated[0] != expected[0] and self._contradictions.is_record_of(queue, number, *stated[:2]):
                # The unit is right: `_check_density` reports this record, which states the number of another
                # one
                continue
            path, at = queue.file_of(number)
            what = f"unit {number} is (offset, size, tags code) {stated}, the record makes it {expected}"
            self._report.add(ERROR, units.WRONG, path, at, what, queue=queue.key)

    # Numbers --------------------------------------------------------------------------------------

    def _check_density(self, queue: Queue, numbers: np.ndarray, offsets: np.ndarray, file: StoreFile) -> None:
        """Report queue offsets in the log that do not go up by one, except for numbers in damaged parts."""
        if queue.covered_from is None:
            recorded = self._ends.next_offset(*queue.key)
            queue.covered_from = queue.next = first_number(queue, numbers, int(offsets[0]), recorded)
        assert queue.next is not None  # it is set together with `covered_from`
        expected = np.concatenate((np.array([queue.next]), numbers[:-1] + 1))
        for place in np.flatnonzero(numbers != expected):
            wanted, found, offset = int(expected[place]), int(numbers[place]), int(offsets[place])
            if found < wanted:
                what = rules.offset_given_again(found, wanted)
            else:
                after = int(offsets[place - 1]) if place else queue.last_at
                if len(self.gaps) < MAX_GAPS:
                    self.gaps.append(Gap(*queue.key, wanted, found, after, offset))
                if queue.are_damaged(wanted, found, self._log.damaged) or any(
                    after < low and high <= offset for low, high in self._log.damaged
                ):
                    continue
                what = rules.offsets_in_no_record(wanted, found - 1, str(queue))
                self._contradictions.note_misplaced(queue, wanted, found)
            self._report.add(
                ERROR, rules.QUEUE_OFFSET, str(file.path), offset - file.base, what, queue=queue.key
            )
        queue.next, queue.last_at = int(numbers[-1]) + 1, int(offsets[-1])
        queue.covered_to = max(queue.covered_to, int(numbers[numbers < queue.end].max(initial=-1)) + 1)


def first_number(queue: Queue, numbers: np.ndarray, log_offset: int, recorded: int) -> int:
    """Return the number of a queue's first record in the log: that of the unit which leads to it, else the
    number that it states if there is room for it.

    `numbers` are those that the queue's first records state, the first of which lies at `log_offset`.
    `recorded` is the queue's next offset by the record of ends: so many records may have been before it, and
    be lost.
    """
    stated, following = int(numbers[0]), numbers[1:]
    has_room = (stated - recorded) * record.MIN_RECORD <= log_offset
    if (len(following) and int(following[0]) == stated + 1) or (has_room and not queue.files):
        return stated
    for first, count in queue.spans(queue.first, queue.end, UNITS_PER_READ):
        places = np.flatnonzero(queue.units(first, count)["log_offset"] == log_offset)
        if len(places):
            return first + int(places[0])
    return stated if has_room else int(numbers.min()) if len(following) else 0
