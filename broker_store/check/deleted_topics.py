"""Records of deleted topics: they stay in the log and have no units."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np

from broker_store.check import units
from broker_store.check.log import Log
from broker_store.check.queue import Queue
from broker_store.check.records import states_place
from broker_store.check.report import CheckReport
from broker_store.kernels import columns as k

_NEVER = 1 << 62


class DeletedTopics:
    """Which records are of deleted topics, by the broker's tombstones, by the table of topics and by the
    queues.

    `before` has the log offset after the records of each deleted topic by its tombstone; `to` the same as the
    queues show it. `known` are the topics of topics.json; empty where that cannot be read.
    """

    def __init__(
        self, log: Log, queues: Mapping[tuple[str, int], Queue], before: dict[str, int], known: set[str]
    ):
        self._log, self._queues = log, queues
        self.before, self.known = before, known
        self.to: dict[str, int] = {}
        self._records: Counter[str] = Counter()  # by topic
        self._begins: dict[str, int] = {}

    def without_deleted(self, queue: Queue, rows: np.ndarray) -> np.ndarray:
        """Return the rows of a queue's records that are not of a deleted topic."""
        topic = queue.key[0]
        offsets, before = rows[:, k.ROW_LOG_OFFSET], self.before.get(topic, 0)
        deleted = units.is_before_life(rows, before, *self.life_of(queue))
        if deleted.any():
            # A topic is deleted with all its queues: a record after the first of any of them states a
            # damaged queue.
            deleted &= (offsets < before) | (offsets < self._begin_of_topic(topic))
        if not queue.files and self.known and topic not in self.known:
            deleted[:] = True
        if deleted.any():
            self._records[topic] += int(deleted.sum())
            self.to[topic] = max(self.to.get(topic, 0), int(offsets[deleted].max()) + 1)
        return rows[~deleted]

    def begin_of(self, queue: Queue) -> int:
        """Return the log offset from which on all records of a queue are of its present topic."""
        return max(self.life_of(queue)[1], self.before.get(queue.key[0], 0))

    def count(self, report: CheckReport, misplaced: Mapping[str, set[int]]) -> None:
        """Count the records of deleted topics.

        `misplaced` are the log offsets of records that have a unit in another queue, by the topic that they
        state. A topic whose every record is among them never existed: its name is damaged.
        """
        for topic, offsets in misplaced.items():
            if len(offsets) >= self._records[topic]:
                del self._records[topic]
                self.to.pop(topic, None)
        if self._records:
            report.count("records_of_deleted_topics", self._records.total())

    def life_of(self, queue: Queue) -> tuple[int, int]:
        """Return (number of a queue's first unit, log offset of its record), (0, 0) when that unit and a
        record do not agree."""
        if queue.life is None:
            unit = queue.first_unit()
            found = None if unit is None else self._log.record_at(unit.log_offset, unit.size)
            queue.life = (
                (unit.number, unit.log_offset)
                if unit is not None and states_place(found, *queue.key, unit.number)
                else (0, 0)
            )
        return queue.life

    def _begin_of_topic(self, topic: str) -> int:
        """Return the log offset of the first record to which a unit of a queue of the topic leads; without
        one a number above all offsets."""
        if topic not in self._begins:
            begins = [
                begin
                for queue in self._queues.values()
                if queue.key[0] == topic and (begin := self._first_led_to(queue)) is not None
            ]
            self._begins[topic] = min(begins, default=_NEVER)
        return self._begins[topic]

    def _first_led_to(self, queue: Queue) -> int | None:
        """Return the log offset of the record to which the queue's first unit leads; None when that record is
        not of its topic."""
        unit = queue.first_unit()
        found = None if unit is None else self._log.record_at(unit.log_offset, unit.size)
        return found.log_offset if found is not None and found.topic == queue.key[0] else None
