"""Continuation after a bad record in the middle of the log, for a start with `--accept-damage`.

The log is not changed. Units of the messages that lay there lead to the bad bytes, so offsets stay dense and
a read of such a message returns that it is damaged; `check_store --apply` writes placeholders there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from broker_store.engine.log.commit_log import CommitLog
from broker_store.engine.queue.consume_queue import UNIT, ConsumeQueue
from broker_store.formats import queue_unit, record
from broker_store.formats.record import MIN_RECORD
from broker_store.kernels import context as c

_SEARCH_BYTES = 1 << 20
_MAGIC_AT = 4
_LOST_SIZE = 1  # the size in a unit that leads to bad bytes: no record is so short


@dataclass
class Bridge:
    """`begins_record` returns whether a good record, or a blank, begins at a log offset. `passed` are the bad
    parts that were found."""

    log: CommitLog
    begins_record: Callable[[int], bool]
    passed: list[tuple[int, int]] = field(default_factory=list)

    def following(self, offset: int) -> int | None:
        """Return the log offset at which the log goes on after the bad record at `offset`: in its file, or at
        the begin of the next; None at the end of the log."""
        file = self.log.file_holding(offset)
        found = next((at for at in self._candidates(offset) if self.begins_record(at)), file.end)
        if self.log.file_at(found) is None:
            return None
        if (offset, found) not in self.passed:
            self.passed.append((offset, found))
        return found

    def _candidates(self, offset: int) -> Iterator[int]:
        """Yield the log offsets after `offset`, up to the end of the file, where the magic number of a record
        or a blank is in place."""
        file = self.log.file_holding(offset)
        magics = [
            magic.to_bytes(4, "big", signed=True) for magic in (*record.TOPIC_LENGTH, record.BLANK_MAGIC)
        ]
        for start in range(offset + 1 - file.base, file.size, _SEARCH_BYTES):
            raw = file.map().read(start, min(_SEARCH_BYTES + 8, file.size - start))
            places = set()
            for magic in magics:
                at = raw.find(magic)
                while 0 <= at < _SEARCH_BYTES + _MAGIC_AT:
                    places.add(at - _MAGIC_AT)
                    at = raw.find(magic, at + 1)
            yield from (file.base + start + at for at in sorted(places) if at >= 0)

    def fill(self, queue: ConsumeQueue, unit: int, at: int, *, is_begin_lost: bool) -> bool:
        """Write the queue's units up to `unit`, whose record begins at `at`, so that they lead to where their
        records lay. Return False when the log has no room for them.

        That room is a bad part after the queue's last record. If there is none, it is the part of the log
        after that record: the records there state other places, which are damaged. `is_begin_lost`: that part
        may begin with the log.
        """
        after, count = queue.row[c.Q_LOG_END], unit - queue.maximum
        parts = ((max(low, after), high) for low, high in sorted(self.passed) if after < high <= at)
        place = next((low for low, high in parts if count <= high - low), None)
        if is_begin_lost:
            after = max(after, self.log.minimum)
        if place is None and (after > self.log.minimum or is_begin_lost) and count * MIN_RECORD <= at - after:
            place = after
        if place is None:
            return False
        for number in range(queue.maximum, unit):
            _step(queue)
            file = queue.file_holding(number)
            file.map().write(number * UNIT - file.base, queue_unit.encode(place, _LOST_SIZE, 0))
            place += _LOST_SIZE
        queue.row[c.Q_NEXT] = max(queue.row[c.Q_NEXT], unit)
        queue.row[c.Q_LOG_END] = place
        return True

    def keep(self, queue: ConsumeQueue, unit: int) -> None:
        """Continue with `unit` after units of lost messages that an earlier start wrote."""
        last = queue.unit_in_files(unit - 1)
        assert last is not None  # `are_lost` found it
        while queue.maximum < unit:
            _step(queue)
        queue.row[c.Q_NEXT] = max(queue.row[c.Q_NEXT], unit)
        queue.row[c.Q_LOG_END] = last.log_offset + last.size


def _step(queue: ConsumeQueue) -> None:
    """Count the next unit of a queue as written, and make sure that there is a file for it."""
    number = queue.maximum
    if queue.row[c.Q_APPEND_LIMIT] <= number or queue.file_of(number) is None:
        queue.advance()
    queue.row[c.Q_DISPATCHED] = number + 1


def are_lost(queue: ConsumeQueue, first: int, end: int) -> bool:
    """Return whether the units [first, end) in a queue's files are those that `Bridge.fill` writes for lost
    messages."""
    return first < end and all(
        (unit := queue.unit_in_files(number)) is not None and unit.size == _LOST_SIZE
        for number in range(first, end)
    )
