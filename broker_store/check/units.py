"""Rules for the units of queues, which the pipeline's audit shares.

The functions work on arrays: `units` have the type UNIT, `rows` are records as kernels/columns.py makes them.
The caller reads a store in order, or a part of it, and reports findings with their places.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from broker_store.engine.log.row_buffer import MAX_RECORD
from broker_store.formats import properties, queue_unit, record
from broker_store.kernels import columns as k

UNIT = np.dtype([("log_offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])

WRONG = "unit-wrong"
MISSING = "unit-missing"
EXTRA = "unit-extra"

# Of one check or one stretch: units without a record of theirs whose place is read; each costs a read
MAX_CONTRADICTED = 10_000
# Units of records whose numbers lie further apart are read one by one: the numbers are damaged, or meant to
# make the check allocate memory
_MAX_SPREAD = 4
_MIN_SPREAD = 1024


def is_written(units: np.ndarray) -> np.ndarray:
    """Return an array that is True for each unit that is not zero."""
    return (units["size"] != 0) | (units["log_offset"] != 0) | (units["tags_code"] != 0)


def is_pre_blank(units: np.ndarray) -> np.ndarray:
    """Return an array that is True for each unit that Apache writes before the first one of a queue."""
    return (units["size"] == queue_unit.PRE_BLANK_SIZE) & (units["log_offset"] == 0)


def agree(units: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return an array that is True for each unit that is as the record of its row makes it."""
    return (
        (units["log_offset"] == rows[:, k.ROW_LOG_OFFSET])
        & (units["size"] == rows[:, k.ROW_SIZE])
        & (units["tags_code"] == rows[:, k.ROW_TAGS_CODE])
    )


def values(unit: np.void) -> tuple[int, int, int]:
    """Return (log offset, size, tags code) of a unit."""
    return int(unit["log_offset"]), int(unit["size"]), int(unit["tags_code"])


def made_by(row: np.ndarray) -> tuple[int, int, int]:
    """Return (log offset, size, tags code) of the unit that the record of a row makes."""
    return int(row[k.ROW_LOG_OFFSET]), int(row[k.ROW_SIZE]), int(row[k.ROW_TAGS_CODE])


def units_of(read: Callable[[int, int], np.ndarray], numbers: np.ndarray) -> np.ndarray:
    """Return the units of these numbers; `read(first, count)` reads those of a queue."""
    low, high = int(numbers.min()), int(numbers.max())
    if high - low < _MAX_SPREAD * len(numbers) + _MIN_SPREAD:
        return read(low, high - low + 1)[numbers - low]
    return np.concatenate([read(int(number), 1) for number in numbers])


def by_queue(rows: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the rows of each queue, in the order of the log."""
    if not len(rows):
        return
    order = np.lexsort((rows[:, k.ROW_LOG_OFFSET], rows[:, k.ROW_QUEUE_ID], rows[:, k.ROW_TOPIC_HASH]))
    rows = rows[order]
    change = (np.diff(rows[:, k.ROW_TOPIC_HASH]) != 0) | (np.diff(rows[:, k.ROW_QUEUE_ID]) != 0)
    yield from np.split(rows, np.flatnonzero(change) + 1)


def is_queued(rows: np.ndarray) -> np.ndarray:
    """Return an array that is True for each record that has a unit; prepared and rolled back ones have
    none."""
    kind = rows[:, k.ROW_SYS_FLAG] & record.SYS_TRANSACTION_MASK
    return (kind == record.TRANSACTION_NONE) | (kind == record.TRANSACTION_COMMIT)


def set_delivery_times(rows: np.ndarray, data: memoryview, base: int, levels_ms: tuple[int, ...]) -> None:
    """Set the tags code of each row to the time of delivery: in the schedule topic the unit has that, and it
    depends on a property.

    `data` is the log from offset `base` on, `levels_ms` are the delay levels.
    """
    for row in rows:
        found = record.decode(data, int(row[k.ROW_LOG_OFFSET]) - base, max_size=MAX_RECORD, check_crc=False)
        row[k.ROW_TAGS_CODE] = queue_unit.tags_code(
            found.topic,
            found.tags,
            found.properties.get(properties.DELAY),
            found.store_timestamp,
            levels_ms,
        )


def is_before_life(rows: np.ndarray, deleted_before: int, first: int, begin: int) -> np.ndarray:
    """Return an array that is True for each record that a queue had before its topic was deleted and made
    again.

    This broker notes the log offset up to which such records lie (`deleted_before`). Apache's does not, but a
    topic made again counts from 0: then the queue's first unit, number `first`, points to log offset `begin`,
    after the records of the deleted topic.
    """
    offsets, numbers = rows[:, k.ROW_LOG_OFFSET], rows[:, k.ROW_QUEUE_OFFSET]
    return (offsets < deleted_before) | ((offsets < begin) & (numbers >= first))


def is_misplaced(
    found: record.StoredMessage | None,
    place: tuple[int, int],
    unit_at: Callable[[tuple[str, int], int], np.void | None],
) -> bool:
    """Return whether a good record, to which a unit of another place leads, is wrong itself: the unit of the
    place that it states does not lead to it. False without a record.

    `place` is (log offset, size) of the record by the unit that leads to it. `unit_at((topic, queue id),
    number)` returns the unit of a place, None where there is no such queue.
    """
    if found is None:
        return False
    own = unit_at((found.topic, found.queue_id), found.queue_offset) if found.is_queued else None
    return own is None or (int(own["log_offset"]), int(own["size"])) != place


def runs(numbers: np.ndarray) -> Iterator[tuple[int, int]]:
    """Yield (first, last) of each run of consecutive numbers."""
    if len(numbers):
        breaks = np.flatnonzero(np.diff(numbers) != 1) + 1
        for run in np.split(numbers, breaks):
            yield int(run[0]), int(run[-1])


def runs_without(runs: list[tuple[int, ...]], taken: list[tuple[int, ...]]) -> Iterator[tuple[int, int]]:
    """Yield the numbers of `runs` that are in none of `taken`, as runs; each is (first, last), those of one
    list do not overlap."""
    taken, place = sorted(taken), 0
    for first, last in sorted(runs):
        while place < len(taken) and taken[place][1] < first:
            place += 1
        while place < len(taken) and taken[place][0] <= last:
            low, high = taken[place]
            if first < low:
                yield first, low - 1
            first = max(first, high + 1)
            if high > last:
                break  # the next run may lie in it too
            place += 1
        if first <= last:
            yield first, last
