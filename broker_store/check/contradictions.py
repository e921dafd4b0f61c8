"""Decides which is wrong where a unit and a record contradict each other."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from broker_store.check import units
from broker_store.check.log import Log
from broker_store.check.queue import Queue
from broker_store.check.records import states_place


class Contradictions:
    """Reads the records to which units lead that agree with no record of their queue.

    Each answer costs a read, and at most `reads_left` are made: after that units count as wrong. `by_topic`
    has the log offsets of records to which another queue's unit leads, by the topic that they state.
    """

    def __init__(self, log: Log, queues: Mapping[tuple[str, int], Queue]):
        self._log, self._queues = log, queues
        self.reads_left = units.MAX_CONTRADICTED
        self.by_topic: dict[str, set[int]] = {}

    def is_record_of(self, queue: Queue, number: int, log_offset: int, size: int) -> bool:
        """Return whether a good record of that size lies at a log offset and states unit `number` of the
        queue."""
        if not self.reads_left:
            return False
        self.reads_left -= 1
        return states_place(self._log.record_at(log_offset, size), *queue.key, number)

    def is_misplaced(self, log_offset: int, size: int) -> bool:
        """Return whether a good record of that size lies at a log offset, and no unit of the place that it
        states leads to it: then the record is wrong, not the unit that leads to it."""
        self.reads_left -= 1
        found = self._log.record_at(log_offset, size)
        if found is None or not units.is_misplaced(found, (log_offset, size), self._unit_at):
            return False
        self.by_topic.setdefault(found.topic, set()).add(log_offset)
        return True

    def note_misplaced(self, queue: Queue, first: int, end: int) -> None:
        """Note the records to which units [first, end) lead if they state another place."""
        for unit in queue.units(first, min(end - first, self.reads_left)):
            if unit["size"] > 0:
                self.is_misplaced(int(unit["log_offset"]), int(unit["size"]))

    def _unit_at(self, key: tuple[str, int], number: int) -> np.void | None:
        queue = self._queues.get(key)
        return None if queue is None else queue.units(number, 1)[0]
