"""Audit: every record, every queue unit and every index entry of a store, compared with one another.

    driver   names of files, what queues and index files there are, where the log can be cut
    tasks    a stretch of the log each, with the units and entries that belong to it (stretch.py); an index
             file each, its chains
    driver   what the tasks found becomes findings: of each kind a count and the first

`check_store` walks a store in order; the audit shares it out, so that many machines can work on it. A task
returns only sums and what is wrong, so that nothing is shuffled and little reaches the driver.

Both have one set of rules: kinds, severities and sentences of `check/rules.py`, and the functions that judge
a record (`check/records.py`), units (`check/units.py`), entries and slots (`check/entries.py`). Names,
lengths and places of files, queues and deleted topics are found by `StoreCheck.load`. These rules are the
audit's own, because a task has neither the records before its stretch nor those after it:

    numbers of a queue      `check/queues.py` compares each record with the one before it in its queue. A task
                            compares a record with that to which the unit of its number leads (GIVEN_AGAIN)
    units without a record  `check/queue_ends.py` knows the numbers that records have had. A task reads the
                            record to which the unit leads
    the begin of a topic    `check/deleted_topics.py` compares with the first units of all queues of the
                            topic, a task with that of one queue
    entries without order   `check/index.py` takes entries in the order of the log. A task finds the begin of
                            its own by binary search, and puts those aside that are out of order
    damage                  `check/log_walk.py` judges a bad record by what follows in all files, a task by
                            what follows in its stretch (`batches.py`)

tests/pipeline/test_audit_agrees_with_check.py compares both verdicts over every fault.

`late` is the severity of what the next start of the engine repairs by itself (queues or index that lack the
end of the log): a warning after a stop that was not in order, an error in a store that was closed.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from broker_store.check import entries, rules, units
from broker_store.check.report import ERROR, NOTE, WARNING
from broker_store.check.walk import StoreCheck
from broker_store.engine.disk.disk import Disk
from broker_store.engine.disk.file_sizes import FileSizes
from broker_store.engine.start.start_records import LastStart
from broker_store.formats import index_file, queue_unit
from broker_store.pipeline import splits
from broker_store.pipeline.audit_index import IndexAudit, entry_offset
from broker_store.pipeline.audit_report import AuditReport
from broker_store.pipeline.batches import TORN
from broker_store.pipeline.findings import GIVEN_AGAIN, Fault, Found, IndexFile, Store, Stretch
from broker_store.pipeline.index_links import check_links
from broker_store.pipeline.options import PARTITION_BYTES
from broker_store.pipeline.stretch import check_stretch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Of a queue, 80 MB; a file of the default size has 300,000 units
MAX_UNITS_PER_READ = 4_000_000
_LEFT_TO_CHECK_STORE = {"empty", "log-start"}  # notes
# What `check_store` alone compares, since one process reads it: what it is, and the kinds of its findings.
CHECKED_ELSEWHERE = {
    "the checkpoint": ("checkpoint", "checkpoint-ahead"),
    "the tables in config/": ("config", "offset-ahead"),
    "the record of ends": ("ends", "ends-missing", "log-starts-late"),
    "the bytes after the end of the log": ("stale-tail",),
    "the files of timer messages": (
        "timer-wheel",
        "timer-slot",
        "timer-slots",
        "timer-log",
        "timer-chain",
        "timer-unit",
        "timer-check",
    ),
}


def audit(
    spark: SparkSession,
    store: Path,
    live_page: Path | None,
    on_progress,
    delay_levels_ms: tuple[int, ...] = queue_unit.DEFAULT_DELAY_LEVELS_MS,
    partition_bytes: int = PARTITION_BYTES,
    noted: FileSizes | None = None,
    last_start: LastStart | None = None,
) -> dict:
    """{"findings": [{severity, kind, file, offset, what}], "kinds": {kind: count}, "counts": {...},
    "not_compared": [what], "ok"}.

    Files are named as seen from the store. What is `not_compared` is left to `check_store`. `last_start` is
    the newest start of a broker that opened this store, `noted` are the sizes of files that it used.
    """
    return _Audit(
        spark, store, live_page, on_progress, delay_levels_ms, partition_bytes, noted, last_start
    ).run()


class _Audit:
    def __init__(
        self,
        spark,
        store: Path,
        live_page: Path | None,
        on_progress,
        delay_levels_ms,
        partition_bytes: int,
        noted: FileSizes | None,
        last_start: LastStart | None,
    ):
        self.spark, self.store, self.live_page, self.on_progress = spark, store, live_page, on_progress
        self.delay_levels_ms, self.partition_bytes, self.noted, self.last_start = (
            delay_levels_ms,
            partition_bytes,
            noted,
            last_start or LastStart(),
        )
        self.disk = Disk()
        self.live = splits.position_of(live_page, self.disk)
        self.is_unclean = self.disk.exists(store / "abort")
        self.late = rules.late_severity(self.live is not None or self.is_unclean)
        self.report = AuditReport(store)
        self.counts: dict[str, int] = {}

    def run(self) -> dict:
        self.on_progress("reading the files", 0, 0)
        # First how far the log may be read, then what queues and index have: so they have all of it.
        has_log = self.disk.is_directory(self.store / "commitlog")
        self.files = splits.log_files(self.store, self.disk, self.live) if has_log else []
        log_end = None if self.live is None else self.live.dispatched
        walk = StoreCheck(
            self.store, noted=self.noted, last_start=self.last_start, log_end=log_end, disk=self.disk
        )
        self.walk = walk
        self._report_names(walk)
        if not has_log and "log-missing" not in self.report.kinds:
            raise splits.no_store(self.store)
        if self.live is None:
            self._take_places(walk)
        self.splits = splits.splits_of(
            self.store, self.live_page, (), self.partition_bytes, self.disk, self.files
        )
        self.gaps = self._check_names()
        self.index = self._index_files(walk)
        names = self._index_names()
        self.on_progress("log, queues and index", 0, 0)
        found = self._in_tasks(check_stretch, self._shared(), self._stretches())
        self.unreferenced_at = self._find_unreferenced(found)
        if self.unreferenced_at is not None and self.last_start.started_ms is None:
            # As in `check_store`: old bytes after an end of the log that was cut. Nothing is to be compared
            # with them.
            path, base, _ = self.files[-1]
            self.files[-1] = path, base, self.unreferenced_at
            self.splits = splits.splits_of(
                self.store, self.live_page, (), self.partition_bytes, self.disk, self.files
            )
            found = self._in_tasks(check_stretch, self._shared(), self._stretches())
        of_index = self._index_audit()
        self._report_log(found, of_index)
        # Slots may name entries of a file whose header counts none: then the header is damaged.
        geometry = walk.index_files.geometry
        if linked := [
            IndexFile(str(path), header, geometry)
            for path, _, header in walk.index_files.files
            if geometry is not None
        ]:
            self.on_progress("links of the index", 0, 0)
            of_index.links([fault for faults in self._in_tasks(_links_of, None, linked) for fault in faults])
        of_index.headers()
        if not names <= self._index_names():
            self.report.forget_index()
        errors = sum(one["severity"] == ERROR for one in self.report.findings)
        return {
            "findings": self.report.findings,
            "kinds": self.report.kinds,
            "counts": self.counts,
            "not_compared": list(CHECKED_ELSEWHERE),
            "errors": errors,
            "ok": errors == 0,
        }

    def _in_tasks(self, function, shared, items: list) -> list:
        """function(shared, item) of each, a task each."""
        context = self.spark.sparkContext
        sent = context.broadcast(shared)
        try:
            return (
                context.parallelize(items, len(items))
                .map(lambda item: _done(function(sent.value, item)))
                .collect()
            )
        finally:
            sent.destroy()

    def _stretches(self) -> list[Stretch]:
        if not self.splits:
            return [Stretch(None, 0, 1 << 62, True)]
        ends = [split.begin for split in self.splits[1:]] + [
            1 << 62 if self.live is None else self.splits[-1].end
        ]
        return [
            Stretch(split, split.begin, until, number == 0)
            for number, (split, until) in enumerate(zip(self.splits, ends, strict=True))
        ]

    def _shared(self) -> Store:
        ends = (
            [
                entry_offset(self.disk, file, number)
                for file, number in (
                    (self.index[0], index_file.FIRST_ENTRY),
                    (self.index[-1], self.index[-1].header.count - 1),
                )
            ]
            if self.index
            else [0, 0]
        )
        return Store(
            files=tuple(self.files),
            queues=tuple(self.queues),
            index=tuple(self.index),
            gaps=tuple(self.gaps),
            tombstones=self.walk.deleted.before,
            known_topics=frozenset(self.walk.deleted.known),
            delay_levels_ms=self.delay_levels_ms,
            log_begin=self.files[0][1] if self.files else 0,
            data_end=self.splits[-1].end if self.splits else 0,
            first_entry=ends[0],
            last_entry=ends[1],
        )

    def _report_names(self, walk: StoreCheck) -> None:
        """What `check_store` says of names and lengths of files, found by the same code."""
        report = walk.load()
        for finding in report.findings:
            if finding.kind not in _LEFT_TO_CHECK_STORE:
                self.report.add(finding.severity, finding.kind, finding.file, finding.offset, finding.what)

    def _take_places(self, walk: StoreCheck) -> None:
        """Read the log's files where `check_store` reads them: at the place that their records state, and no
        further than they should reach."""
        kept = [file for file in walk.log.files if file.actual]
        placed = [(file.path, file.base, file.base + min(file.actual, file.size)) for file in kept]
        while len(placed) > 1 and splits.is_zero(placed[-1][0], placed[-1][2] - placed[-1][1], self.disk):
            placed.pop()  # made ahead, with blocks or without
        for file in walk.log.files:
            if not file.actual and placed and file.base < placed[-1][1]:
                self.report.add(
                    ERROR,
                    rules.BAD_RECORD,
                    file.path,
                    0,
                    "the file has no bytes, but the log goes on in the next file",
                )
        self.files = placed

    def _queues(self) -> Iterator[splits.Queue]:
        """All queues, as far as they hold units, after holes too; the files of one are at the place that
        their records state."""
        for (topic, queue_id), queue in self.walk.queues.items():
            files = [
                splits.QueueFile(
                    str(file.path),
                    file.base // queue_unit.SIZE,
                    min((file.base + min(file.actual, file.size)) // queue_unit.SIZE, queue.end),
                )
                for file in queue.files
            ]
            yield splits.Queue(topic, queue_id, tuple(file for file in files if file.first < file.end))

    def _index_names(self) -> set[str]:
        return set(self.disk.list_names(self.store / "index"))

    def _check_names(self) -> list[tuple[int, int]]:
        """The gaps of the log, where the files that there are do not follow one another; all queues."""
        pairs = zip(self.files, self.files[1:], strict=False)
        gaps = [(end, base) for (_, _, end), (_, base, _) in pairs if end < base]
        self.queues = list(self._queues())
        self.counts["queues"] = len(self.queues)
        return gaps

    def _index_files(self, walk: StoreCheck) -> list[IndexFile]:
        """Those that hold entries, of the length that they should have."""
        geometry = walk.index_files.geometry
        found = [
            IndexFile(str(path), header, geometry)
            for path, _, header in walk.index_files.files
            if geometry is not None and header.count > index_file.FIRST_ENTRY
        ]
        self.counts["index_files"] = len(found)
        return found

    # The log, queues and entries ------------------------------------------------------------------

    def _index_audit(self) -> IndexAudit:
        geometry, is_in_use = self.walk.index_files.geometry, self.live is not None
        return IndexAudit(self.report, self.disk, self.index, geometry, self.files, self.late, is_in_use)

    def _report_log(self, found: list[Found], of_index: IndexAudit) -> None:
        for name in ("records", "units", "entries") if self.index else ("records", "units"):
            self.counts[name] = sum(getattr(one, name) for one in found)
        self.counts["log_end"] = max(
            (one.log_end for one in found if one.records), default=self.files[0][1] if self.files else 0
        )
        if not self.index and (keys := sum(one.keys for one in found)):
            if self.walk.index_files.files:  # none has an entry
                path, _, _ = self.walk.index_files.files[-1]
                begin = min(one.first_time[0] for one in found if one.first_time is not None)
                self.report.add(
                    self.late,
                    entries.INDEX_BEHIND,
                    path,
                    None,
                    entries.keys_not_in_index(keys, begin),
                    keys,
                )
            else:
                self.report.add(
                    WARNING,
                    entries.NO_INDEX,
                    self.store / "index",
                    None,
                    entries.keys_without_index(keys),
                )
        last_ms: int | None = None
        for one in found:
            if one.first_time is not None:
                at, first_ms = one.first_time
                if last_ms is not None and first_ms < last_ms:
                    self._report_time(at, rules.time_goes_back(last_ms - first_ms))
                last_ms = one.last_ms
            for at, back_ms in one.times_back:
                self._report_time(at, rules.time_goes_back(back_ms))
            if one.times_back_more:
                self._report_time(
                    one.times_back[-1][0],
                    rules.times_go_back_more(one.times_back_more),
                    one.times_back_more,
                )
            for at, _, problem in one.damaged:
                self._report_damage(at, problem)
            if one.damaged_more:
                path, base, _ = self._file_of(one.damaged[-1][0])
                at, more = one.damaged[-1][0] - base, one.damaged_more
                what = f"{more} more stretches without a good record after this one"
                self.report.add(ERROR, rules.BAD_RECORD, path, at, what, more)
        joined: dict[tuple, Fault] = {}
        for fault in (fault for one in found for fault in one.faults):
            known = joined.setdefault((fault.kind, fault.topic, fault.queue_id), fault)
            if known is not fault:
                known.count += fault.count
                known.first = min(known.first, fault.first)
                known.runs += fault.runs
        self._drop_repeated(joined)
        self._add_zeros_before(joined)
        for (kind, _, _), fault in sorted(joined.items(), key=lambda item: item[0]):
            if fault.count:
                if kind == rules.QUEUE_OFFSET:
                    self._report_headers(fault)
                elif kind == GIVEN_AGAIN:
                    self._report_given_again(fault)
                else:
                    (self._report_units if kind.startswith("unit-") else of_index.entries)(fault)

    def _find_unreferenced(self, found: list[Found]) -> int | None:
        """Return where the first damaged part of the log begins, when it lies in the last file and nothing
        refers to the records after it; else None."""
        damaged = next((part for one in found for part in one.damaged), None)
        if (
            damaged is None
            or self.live is not None
            or self.report.kinds.get(rules.BAD_RECORD)
            or damaged[2].startswith(TORN)
        ):
            return None
        at, length, _ = damaged
        is_last = at >= self.files[-1][1] and self.walk.log.files[-1].base == self.files[-1][1]
        return at if is_last and self.walk.find_referenced_to() <= at + length else None

    def _file_of(self, at: int) -> tuple[Path, int, int]:
        """Return the file of a place in the log. A damaged part may begin where a file that was cut short
        ends."""
        return next(file for file in reversed(self.files) if file[1] <= at)

    def _report_time(self, at: int, what: str, count: int = 1) -> None:
        path, base, _ = self._file_of(at)
        self.report.add(NOTE, rules.STORE_TIME, path, at - base, what, count)

    def _report_damage(self, at: int, problem: str) -> None:
        path, base, _ = self._file_of(at)
        torn = problem.startswith(TORN)
        reaches = torn and any(self._last_reference(queue) > at for queue in self.queues)
        kind, severity = rules.BAD_RECORD, self.walk.store.beyond if at == self.unreferenced_at else ERROR
        if torn:
            kind, severity = rules.TORN_TAIL, self.walk.store.beyond if reaches else WARNING
        self.report.add(severity, kind, path, at - base, problem)

    @staticmethod
    def _drop_repeated(joined: dict[tuple, Fault]) -> None:
        """Take a unit that is reported as wrong or missing out of those that lead nowhere: of a queue in
        disorder, one task has its record and another the unit."""
        for (kind, topic, queue_id), fault in joined.items():
            told = [
                joined[name]
                for what in (units.WRONG, units.MISSING)
                if (name := (what, topic, queue_id)) in joined
            ]
            if kind not in (units.EXTRA, "unit-behind") or not told:
                continue
            before = sum(last - first + 1 for first, last in fault.runs)
            fault.runs = list(units.runs_without(fault.runs, [run for one in told for run in one.runs]))
            fault.count -= before - sum(last - first + 1 for first, last in fault.runs)

    def _add_zeros_before(self, joined: dict[tuple, Fault]) -> None:
        """Add the units of zeros of records before the log, of queues no unit of which leads to a record: a
        record in the log shows that they were there."""
        log_begin = self.files[0][1] if self.files else 0
        missing = [fault for (kind, _, _), fault in joined.items() if kind == units.MISSING and fault.count]
        for fault in missing if log_begin else ():
            queue, until = self.walk.queues.get((fault.topic, fault.queue_id)), fault.first[0]
            if queue is None or not queue.files or until - queue.first > MAX_UNITS_PER_READ:
                continue
            before = queue.units(queue.first, max(0, until - queue.first))
            is_data = units.is_written(before)
            if (is_data & (before["log_offset"] >= log_begin)).any():
                continue  # the task of the first stretch reports those before that unit
            first = queue.first + (int(np.flatnonzero(is_data)[-1]) + 1 if is_data.any() else 0)
            if first < until:
                extra = joined.setdefault(
                    (units.EXTRA, fault.topic, fault.queue_id),
                    Fault(units.EXTRA, fault.topic, fault.queue_id, first=(first, (0, 0, 0), ())),
                )
                extra.count += until - first
                extra.first = min(extra.first, (first, (0, 0, 0), ()))
                extra.runs.append((first, until - 1))

    def _last_reference(self, queue: splits.Queue) -> int:
        """Where the record of a queue's last unit ends."""
        if not queue.files:
            return 0
        unit = splits.unit_at(queue.files[-1], queue.files[-1].end - 1, self.disk)
        return 0 if unit.is_pre_blank else unit.log_offset + unit.size

    def _report_headers(self, fault: Fault) -> None:
        """Good records that state another place than the units that lead to them."""
        _, (at, _, _), _ = fault.first
        path, base, _ = self._file_of(at)
        first, last = min(run[0] for run in fault.runs), max(run[1] for run in fault.runs)
        what = rules.offsets_in_no_record(first, last, f"{fault.topic}/{fault.queue_id}")
        self.report.add(ERROR, rules.QUEUE_OFFSET, path, at - base, what, fault.count)

    def _report_given_again(self, fault: Fault) -> None:
        """Records that state a place to which a unit of another good record leads."""
        number, (unit_at, _, _), (at, _, _) = fault.first
        path, base, _ = self._file_of(at)
        what = rules.offsets_given_again(fault.count, number, f"{fault.topic}/{fault.queue_id}", unit_at)
        self.report.add(ERROR, rules.QUEUE_OFFSET, path, at - base, what, fault.count)

    def _report_units(self, fault: Fault) -> None:
        queue = next(
            (one for one in self.queues if (one.topic, one.queue_id) == (fault.topic, fault.queue_id)), None
        )
        first, last = min(run[0] for run in fault.runs), max(run[1] for run in fault.runs)
        known = self.walk.queues.get((fault.topic, fault.queue_id))
        path: Path | str = self.store / "consumequeue" / fault.topic / str(fault.queue_id)
        at = first * queue_unit.SIZE
        if known is not None:
            path, at = known.file_of(first)
        which = f"unit {first}" if fault.count == 1 else f"{fault.count} units from {first} to {last}"
        _, found, wanted = fault.first
        if fault.kind == units.MISSING:
            at_end = queue is None or not queue.files or first >= queue.files[-1].end
            what, kind = "missing, the log has the records", units.MISSING
            severity = rules.missing_severity(self.late, at_end, self.is_unclean)
        elif fault.kind == "unit-behind":
            what, kind, severity = f"pointing {rules.AFTER_THE_LOG}", units.EXTRA, self.walk.store.beyond
        elif fault.kind == units.EXTRA:
            what = f"pointing at no record of this queue, the first to {found[0]}"
            kind, severity = units.EXTRA, ERROR
        else:
            what = f"wrong: (offset, size, tags code) is {found}, the record makes it {wanted}"
            kind, severity = units.WRONG, ERROR
        self.report.add(severity, kind, path, at, f"{which}: {what}", fault.count)


def _links_of(_: None, file: IndexFile) -> list[Fault]:
    return check_links(file)


def _done(found):
    """The last word of a task: what Arrow and Numba loaded stays, and is not walked again by the collection
    after each task."""
    if not gc.get_freeze_count():
        gc.freeze()
    return found
