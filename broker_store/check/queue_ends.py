"""Check of the units that the walk compared with no record: before the first record of their queue in the
log, and after its last."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from broker_store.check import rules, units
from broker_store.check.contradictions import Contradictions
from broker_store.check.log import Log
from broker_store.check.queue import UNITS_PER_READ, Queue
from broker_store.check.report import ERROR, NOTE
from broker_store.check.store import CheckedStore
from broker_store.formats import properties

_QUEUES_PER_STEP = 64  # of progress
_UNITS_PER_STEP = 1024  # of progress, where a record is read for each unit


class QueueEndsCheck:
    """Run after the walk of the log. `units_before_log` counts units of records that the log does not have
    any more."""

    def __init__(
        self,
        store: CheckedStore,
        log: Log,
        queues: Mapping[tuple[str, int], Queue],
        contradictions: Contradictions,
    ):
        self._store, self._report, self._log = store, store.report, log
        self._queues, self._contradictions = queues, contradictions
        self.units_before_log = 0

    def run(self) -> None:
        """Report missing units, and units that point to no record of their queue."""
        for number, queue in enumerate(self._queues.values()):
            if number % _QUEUES_PER_STEP == 0:
                self._store.progress.step("queues")
            self._report_missing(queue)
            covered_from = queue.end if queue.covered_from is None else queue.covered_from
            self._check_before(queue, covered_from)
            if queue.covered_from is not None and queue.covered_to < queue.end:
                self._check_after(queue, queue.covered_to, queue.end)
        if self.units_before_log and self._log.files:
            what = (
                f"the log begins at {self._log.start}; queues hold {self.units_before_log} units of older "
                f"records, which became too old or are lost"
            )
            self._report.add(NOTE, "log-start", str(self._log.files[0].path), None, what)

    def _report_missing(self, queue: Queue) -> None:
        for first, last in queue.missing:
            severity = rules.missing_severity(self._store.late, first >= queue.end, self._store.is_unclean)
            path, at = queue.file_of(first)
            which = f"unit {first} is missing" if first == last else f"units {first} to {last} are missing"
            what = f"{which}, the log has the records"
            self._report.add(severity, units.MISSING, path, at, what, queue=queue.key)

    def _check_before(self, queue: Queue, covered_from: int) -> None:
        """Check units whose records are not in the log: the log must begin after them."""
        for first, count in queue.spans(queue.first, covered_from, UNITS_PER_READ):
            found = queue.units(first, count)
            blank = units.is_pre_blank(found)
            gone = (found["log_offset"] >= 0) & (found["size"] > 0) & (found["log_offset"] < self._log.start)
            self._report.count("units", int(gone.sum()))
            self.units_before_log += int((gone & ~blank).sum())
            extra = ~(blank | gone)
            if queue.is_light:
                self._pass_light(queue, first, found, extra)
            self._report_extra(queue, first, found, extra)

    def _pass_light(self, queue: Queue, first: int, found: np.ndarray, extra: np.ndarray) -> None:
        """Clear in `extra` the units of a light queue whose records name it, and those that a running broker
        has just added."""
        limit = self._store.limit
        for place in np.flatnonzero(extra).tolist():
            if place % _UNITS_PER_STEP == 0:
                self._store.progress.step("queues")
            offset, size = int(found["log_offset"][place]), int(found["size"][place])
            if limit is not None and offset >= limit:
                extra[place] = False
            elif (message := self._log.record_at(offset, size)) is not None:
                names, numbers = (
                    message.properties.get(name, "").split(",")
                    for name in (properties.LIGHT_QUEUES, properties.LIGHT_QUEUE_OFFSETS)
                )
                extra[place] = (queue.key[0], str(first + place)) not in zip(names, numbers, strict=False)
                self._report.count("units", int(not extra[place]))

    def _check_after(self, queue: Queue, first: int, end: int) -> None:
        """Check units after the last record of the queue."""
        for start, count in queue.spans(first, end, UNITS_PER_READ):
            found = queue.units(start, count)
            extra = units.is_written(found)
            if self._store.limit is not None:
                extra &= found["log_offset"] < self._store.limit
            self._report_extra(queue, start, found, extra)

    def _report_extra(self, queue: Queue, first: int, found: np.ndarray, wrong: np.ndarray) -> None:
        """Report the `wrong` ones of units from number `first` on, except those that point into damage, which
        is reported with the record."""
        offsets = found["log_offset"].astype(np.int64)
        wrong = wrong & ~self._log.is_damaged(offsets)
        beyond = wrong & (offsets >= self._log.end)
        elsewhere = np.zeros(len(found), dtype=bool)
        if not queue.is_light:  # its records state the queue of another topic
            for place in np.flatnonzero(wrong & ~beyond)[: self._contradictions.reads_left].tolist():
                elsewhere[place] = self._contradictions.is_misplaced(
                    int(offsets[place]), int(found["size"][place])
                )
        for low, high in units.runs(np.flatnonzero(elsewhere) + first):
            offset = int(offsets[low - first])
            file = self._log.file_holding(offset)
            what = rules.offsets_in_no_record(low, high, str(queue))
            self._report.add(
                ERROR, rules.QUEUE_OFFSET, str(file.path), offset - file.base, what, queue=queue.key
            )
        for mask, severity, what in (
            (beyond, self._store.beyond, rules.AFTER_THE_LOG),
            (wrong & ~beyond & ~elsewhere, ERROR, "at no record of this queue"),
        ):
            for low, high in units.runs(np.flatnonzero(mask) + first):
                path, at = queue.file_of(low)
                which = f"unit {low} points" if low == high else f"units {low} to {high} point"
                self._report.add(severity, units.EXTRA, path, at, f"{which} {what}", queue=queue.key)
