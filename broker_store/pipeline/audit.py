"""Audit: every record, every queue unit and every index entry of a store, against one another.

    driver   names of files, what queues and index files there are, where the log can be cut
    tasks    a stretch of the log each, with the units and entries that belong to it (stretch.py); an index
             file each, its chains
    driver   what the tasks found becomes findings: of each kind a count and the first

The kinds of findings are those of `check_store`; that walks a store in order, this shares it out, so that
many machines can work on it. A task tells only sums and what is wrong, so that nothing is shuffled and little
reaches the driver.

`behind` marks what the next start of the engine mends by itself after a stop that was not orderly (queues or
index behind the log): a warning then, an error in a store that was closed.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from broker_store.check import entries, rules
from broker_store.check.records import good_record
from broker_store.check.report import ERROR, NOTE, WARNING
from broker_store.check.walk import StoreCheck
from broker_store.engine.disk.disk import Disk
from broker_store.engine.file_sizes import FileSizes
from broker_store.engine.start.start_records import LastStart
from broker_store.formats import index_file, queue_unit
from broker_store.pipeline import splits
from broker_store.pipeline.batches import TORN
from broker_store.pipeline.findings import GIVEN_AGAIN, Fault, Found, IndexFile, Store, Stretch
from broker_store.pipeline.index_links import check_links
from broker_store.pipeline.options import PARTITION_BYTES
from broker_store.pipeline.stretch import check_stretch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOLD = 100  # findings of a kind
# Units of a queue that are read at once, 80 MB; a file of the default size has 300,000
MOST_ZEROS = 4_000_000
_NOT_OF_AN_AUDIT = {"empty", "log-start"}  # notes
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
    tell,
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
    return _Audit(spark, store, live_page, tell, delay_levels_ms, partition_bytes, noted, last_start).run()


class _Audit:
    def __init__(
        self,
        spark,
        store: Path,
        live_page: Path | None,
        tell,
        delay_levels_ms,
        partition_bytes: int,
        noted: FileSizes | None,
        last_start: LastStart | None,
    ):
        self.spark, self.store, self.live_page, self.tell = spark, store, live_page, tell
        self.delay_levels_ms, self.partition_bytes, self.noted, self.last_start = (
            delay_levels_ms,
            partition_bytes,
            noted,
            last_start or LastStart(),
        )
        self.disk = Disk()
        self.live = splits.position_of(live_page, self.disk)
        self.is_unclean = self.disk.exists(store / "abort")
        self.behind = rules.late_severity(self.live is not None or self.is_unclean)
        self.findings: list[dict] = []
        self.kinds: dict[str, int] = {}
        self.counts: dict[str, int] = {}

    def run(self) -> dict:
        self.tell("looking at the files", 0, 0)
        # First how far the log may be read, then what queues and index have: so they have all of it.
        has_log = self.disk.is_directory(self.store / "commitlog")
        self.files = splits.log_files(self.store, self.disk, self.live) if has_log else []
        log_end = None if self.live is None else self.live.dispatched
        walk = StoreCheck(
            self.store, noted=self.noted, last_start=self.last_start, log_end=log_end, disk=self.disk
        )
        self.walk = walk
        self._tell_names(walk)
        if not has_log and "log-missing" not in self.kinds:
            raise splits.no_store(self.store)
        if self.live is None:
            self._take_places(walk)
        self.splits = splits.splits_of(
            self.store, self.live_page, (), self.partition_bytes, self.disk, self.files
        )
        self.gaps = self._check_names()
        self.index = self._index_files(walk)
        names = self._index_names()
        self.tell("log, queues and index", 0, 0)
        found = self._in_tasks(check_stretch, self._shared(), self._stretches())
        self.unreferenced_at = self._find_unreferenced(found)
        if self.unreferenced_at is not None and self.last_start.started_ms is None:
            # As in `check_store`: old bytes behind an end of the log that was cut. Nothing is to be compared
            # with them.
            path, base, _ = self.files[-1]
            self.files[-1] = path, base, self.unreferenced_at
            self.splits = splits.splits_of(
                self.store, self.live_page, (), self.partition_bytes, self.disk, self.files
            )
            found = self._in_tasks(check_stretch, self._shared(), self._stretches())
        self._tell_log(found)
        geometry = walk.index_files.geometry
        # Of a file whose header counts no entry the slots may tell of some: then the header is damaged.
        if linked := [
            IndexFile(str(path), header, geometry)
            for path, _, header in walk.index_files.files
            if geometry is not None
        ]:
            self.tell("links of the index", 0, 0)
            self._tell_links(
                [fault for faults in self._in_tasks(_links_of, None, linked) for fault in faults]
            )
        self._check_headers()
        if not names <= self._index_names():
            self._forget_index()
        errors = sum(one["severity"] == ERROR for one in self.findings)
        return {
            "findings": self.findings,
            "kinds": self.kinds,
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
                self._entry(file, number)
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

    def _entry(self, file: IndexFile, number: int) -> int:
        """The log offset that an entry names."""
        with self.disk.open_reader(Path(file.path)) as reader:
            return index_file.decode_entry(
                reader.read(file.geometry.entry_at(number), index_file.ENTRY.size)
            ).log_offset

    def add(
        self, severity: str, kind: str, file: Path | str, offset: int | None, what: str, count: int = 1
    ) -> None:
        self.kinds[kind] = self.kinds.get(kind, 0) + count
        if sum(one["kind"] == kind for one in self.findings) < TOLD:
            inside = Path(file).relative_to(self.store) if Path(file).is_relative_to(self.store) else file
            self.findings.append(
                {"severity": severity, "kind": kind, "file": str(inside), "offset": offset, "what": what}
            )

    def _tell_names(self, walk: StoreCheck) -> None:
        """What `check_store` says of names and lengths of files, found by the same code."""
        report = walk.load()
        for finding in report.findings:
            if finding.kind not in _NOT_OF_AN_AUDIT:
                self.add(finding.severity, finding.kind, finding.file, finding.offset, finding.what)

    def _take_places(self, walk: StoreCheck) -> None:
        """Read the log's files where `check_store` reads them: at the place that their records state, and no
        further than they should reach."""
        kept = [file for file in walk.log.files if file.actual]
        placed = [(file.path, file.base, file.base + min(file.actual, file.size)) for file in kept]
        while len(placed) > 1 and splits.is_zero(placed[-1][0], placed[-1][2] - placed[-1][1], self.disk):
            placed.pop()  # made ahead, with blocks or without
        for file in walk.log.files:
            if not file.actual and placed and file.base < placed[-1][1]:
                self.add(
                    ERROR,
                    "bad-record",
                    file.path,
                    0,
                    "the file has no bytes, but the log goes on in the next file",
                )
        self.files = placed

    def _queues(self) -> Iterator[splits.Queue]:
        """All queues, as far as they hold units, behind holes too; the files of one are at the place that
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

    def _forget_index(self) -> None:
        """A broker made the index again meanwhile: what was read of the old one and of the new one says
        nothing."""
        self.findings = [
            one
            for one in self.findings
            if not one["kind"].startswith("index-") and one["kind"] != entries.NO_INDEX
        ]
        self.kinds = {
            kind: count
            for kind, count in self.kinds.items()
            if not kind.startswith("index-") and kind != entries.NO_INDEX
        }
        self.add(NOTE, entries.INDEX_REBUILT, self.store / "index", None, entries.INDEX_WAS_REBUILT)

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

    def _tell_log(self, found: list[Found]) -> None:
        for name in ("records", "units", "entries") if self.index else ("records", "units"):
            self.counts[name] = sum(getattr(one, name) for one in found)
        self.counts["log_end"] = max(
            (one.log_end for one in found if one.records), default=self.files[0][1] if self.files else 0
        )
        if not self.index and (keys := sum(one.keys for one in found)):
            if self.walk.index_files.files:  # none has an entry
                path, _, _ = self.walk.index_files.files[-1]
                begin = min(one.first_time[0] for one in found if one.first_time is not None)
                self.add(
                    self.behind, "index-behind", path, None, entries.keys_not_in_index(keys, begin), keys
                )
            else:
                self.add(
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
                    self._tell_time(at, rules.time_goes_back(last_ms - first_ms))
                last_ms = one.last_ms
            for at, back_ms in one.times_back:
                self._tell_time(at, rules.time_goes_back(back_ms))
            if one.times_back_more:
                self._tell_time(
                    one.times_back[-1][0],
                    rules.times_go_back_more(one.times_back_more),
                    one.times_back_more,
                )
            for at, _, problem in one.damaged:
                self._tell_damage(at, problem)
            if one.damaged_more:
                path, base, _ = self._file_of(one.damaged[-1][0])
                what = f"{one.damaged_more} more stretches without a good record behind this one"
                self.add(ERROR, "bad-record", path, one.damaged[-1][0] - base, what, one.damaged_more)
        joined: dict[tuple, Fault] = {}
        for fault in (fault for one in found for fault in one.faults):
            known = joined.setdefault((fault.kind, fault.topic, fault.queue_id), fault)
            if known is not fault:
                known.count += fault.count
                known.first = min(known.first, fault.first)
                known.runs += fault.runs
        self._drop_told_twice(joined)
        self._add_zeros_before(joined)
        for (kind, _, _), fault in sorted(joined.items(), key=lambda item: item[0]):
            if fault.count:
                if kind == rules.QUEUE_OFFSET:
                    self._tell_headers(fault)
                elif kind == GIVEN_AGAIN:
                    self._tell_given_again(fault)
                else:
                    (self._tell_units if kind.startswith("unit-") else self._tell_entries)(fault)

    def _find_unreferenced(self, found: list[Found]) -> int | None:
        """Return where the first damaged part of the log begins, when it lies in the last file and nothing
        refers to the records behind it; else None."""
        damaged = next((part for one in found for part in one.damaged), None)
        if (
            damaged is None
            or self.live is not None
            or self.kinds.get("bad-record")
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

    def _tell_time(self, at: int, what: str, count: int = 1) -> None:
        path, base, _ = self._file_of(at)
        self.add(NOTE, rules.STORE_TIME, path, at - base, what, count)

    def _tell_damage(self, at: int, problem: str) -> None:
        path, base, _ = self._file_of(at)
        torn = problem.startswith(TORN)
        reaches = torn and any(self._last_reference(queue) > at for queue in self.queues)
        kind, severity = "bad-record", self.walk.store.beyond if at == self.unreferenced_at else ERROR
        if torn:
            kind, severity = "torn-tail", self.walk.store.beyond if reaches else WARNING
        self.add(severity, kind, path, at - base, problem)

    @staticmethod
    def _drop_told_twice(joined: dict[tuple, Fault]) -> None:
        """Take a unit that is told as wrong or missing out of those that lead nowhere: of a queue in
        disorder, one task has its record and another the unit."""
        for (kind, topic, queue_id), fault in joined.items():
            told = [
                joined[name]
                for what in ("unit-wrong", "unit-missing")
                if (name := (what, topic, queue_id)) in joined
            ]
            if kind not in ("unit-extra", "unit-behind") or not told:
                continue
            before = sum(last - first + 1 for first, last in fault.runs)
            fault.runs = list(_without(fault.runs, [run for one in told for run in one.runs]))
            fault.count -= before - sum(last - first + 1 for first, last in fault.runs)

    def _add_zeros_before(self, joined: dict[tuple, Fault]) -> None:
        """Add the units of zeros of records before the log, of queues no unit of which leads to a record: a
        record in the log shows that they were there."""
        log_begin = self.files[0][1] if self.files else 0
        missing = [fault for (kind, _, _), fault in joined.items() if kind == "unit-missing" and fault.count]
        for fault in missing if log_begin else ():
            queue, until = self.walk.queues.get((fault.topic, fault.queue_id)), fault.first[0]
            if queue is None or not queue.files or until - queue.first > MOST_ZEROS:
                continue
            units = queue.units(queue.first, max(0, until - queue.first))
            is_data = (units["size"] != 0) | (units["log_offset"] != 0) | (units["tags_code"] != 0)
            if (is_data & (units["log_offset"] >= log_begin)).any():
                continue  # the task of the first stretch reports those before that unit
            first = queue.first + (int(np.flatnonzero(is_data)[-1]) + 1 if is_data.any() else 0)
            if first < until:
                extra = joined.setdefault(
                    ("unit-extra", fault.topic, fault.queue_id),
                    Fault("unit-extra", fault.topic, fault.queue_id, first=(first, (0, 0, 0), ())),
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

    def _tell_headers(self, fault: Fault) -> None:
        """Good records that state another place than the units that lead to them."""
        _, (at, _, _), _ = fault.first
        path, base, _ = self._file_of(at)
        first, last = min(run[0] for run in fault.runs), max(run[1] for run in fault.runs)
        what = rules.offsets_in_no_record(first, last, f"{fault.topic}/{fault.queue_id}")
        self.add(ERROR, rules.QUEUE_OFFSET, path, at - base, what, fault.count)

    def _tell_given_again(self, fault: Fault) -> None:
        """Records that state a place to which a unit of another good record leads."""
        number, (unit_at, _, _), (at, _, _) = fault.first
        path, base, _ = self._file_of(at)
        what = rules.offsets_given_again(fault.count, number, f"{fault.topic}/{fault.queue_id}", unit_at)
        self.add(ERROR, rules.QUEUE_OFFSET, path, at - base, what, fault.count)

    def _tell_units(self, fault: Fault) -> None:
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
        if fault.kind == "unit-missing":
            at_end = queue is None or not queue.files or first >= queue.files[-1].end
            what, kind = "missing, the log has the records", "unit-missing"
            severity = rules.missing_severity(self.behind, at_end, self.is_unclean)
        elif fault.kind == "unit-behind":
            what, kind, severity = "pointing behind the end of the log", "unit-extra", self.walk.store.beyond
        elif fault.kind == "unit-extra":
            what, kind, severity = (
                f"pointing at no record of this queue, the first to {found[0]}",
                "unit-extra",
                ERROR,
            )
        else:
            what, kind, severity = (
                f"wrong: (offset, size, tags code) is {found}, the record makes it {wanted}",
                "unit-wrong",
                ERROR,
            )
        self.add(severity, kind, path, at, f"{which}: {what}", fault.count)

    def _tell_entries(self, fault: Fault) -> None:
        offset, path, number = fault.first
        severity, what = {
            "index-extra": (WARNING, "point behind the end of the log"),
            "index-entry": (ERROR, f"match no key of a record, the first points to {offset}"),
            "index-time": (ERROR, "state another time than their record"),
            "index-starts-late": (self.behind, "keys of older records are in no index file"),
            "index-behind": (self.behind, f"keys of the records from {offset} on are not in the index"),
            "index-missing": (
                self.behind,
                f"keys of records are in no index file, the first of the record at {offset}",
            ),
        }[fault.kind]
        at = self.index[0].geometry.entry_at(number) if path else None
        beside = self.index[0] if fault.kind == "index-starts-late" else self.index[-1]
        self.add(
            severity,
            fault.kind,
            path or beside.path,
            at,
            f"{fault.count} {'entries ' if path else ''}{what}",
            fault.count,
        )

    # Links of the index ---------------------------------------------------------------------------

    def _tell_links(self, faults: list[Fault]) -> None:
        for fault in faults:
            # A spare may lie behind the last that has entries
            is_last = not self.index or fault.path >= self.index[-1].path
            if is_last and self.live is not None and fault.kind not in ("index-chain", "index-entry"):
                continue  # a running broker goes on adding entries
            # A start after an unclean stop links the last file anew.
            severity = self.behind if is_last else ERROR
            geometry = self.walk.index_files.geometry
            if fault.kind == "index-header":
                used, stated = fault.first
                self.add(
                    severity,
                    fault.kind,
                    fault.path,
                    index_file.HEADER.offset["slots_used"],
                    f"states {stated} slots in use, there are {used}",
                )
                continue
            assert geometry is not None  # files of the index were read
            for number, (place, wanted, there) in enumerate(fault.runs, 1):
                if fault.kind == "index-entry":
                    severity, at, what = (
                        ERROR,
                        geometry.entry_at(place),
                        entries.points_back(there, wanted),
                    )
                elif fault.kind == "index-chain":
                    loops = "; the chain loops" if there >= place else ""
                    at, what = (
                        geometry.entry_at(place),
                        f"entry {place} names {there} as the one before it in its slot, that is "
                        f"{wanted}{loops}",
                    )
                else:
                    at, what = (
                        geometry.slot_at(place),
                        f"slot {place} names entry {there}, its newest is {wanted}",
                    )
                more = fault.count - len(fault.runs) if number == len(fault.runs) else 0
                self.add(severity, fault.kind, fault.path, at, what, 1 + more)

    def _check_headers(self) -> None:
        """Each header states the place and the store time of the records of its first and last entry, and
        each file begins where the one before it ends, or behind."""
        before = 0
        for file in self.index:
            first, last = (
                self._entry(file, number) for number in (index_file.FIRST_ENTRY, file.header.count - 1)
            )
            if first < before:
                self.add(
                    ERROR,
                    "index-entry",
                    file.path,
                    file.geometry.entry_at(index_file.FIRST_ENTRY),
                    entries.points_back(first, before),
                )
            before = last
            is_last = file is self.index[-1]
            if is_last and self.live is not None:
                continue  # a running broker goes on adding entries
            severity, header = self.behind if is_last else ERROR, file.header
            if [first, last] != [header.begin_offset, header.end_offset]:
                self.add(
                    severity,
                    entries.INDEX_HEADER,
                    file.path,
                    index_file.HEADER.offset["begin_offset"],
                    entries.WRONG_ENDS,
                )
            for name, offset in zip(("begin_timestamp", "end_timestamp"), (first, last), strict=True):
                stored_ms, stated_ms = self._store_ms(offset), getattr(header, name)
                if stored_ms is not None and stored_ms != stated_ms:
                    what = entries.wrong_stamp(name, stated_ms, stored_ms)
                    self.add(severity, entries.INDEX_HEADER, file.path, index_file.HEADER.offset[name], what)

    def _store_ms(self, offset: int) -> int | None:
        """Store time of the good record at a log offset; None when there is none."""
        for path, base, end in self.files:
            if base <= offset < end:
                with self.disk.open_reader(path) as reader:
                    found = good_record(reader, offset - base)
                return None if found is None or found.log_offset != offset else found.store_timestamp
        return None


def _without(runs: list[tuple[int, ...]], taken: list[tuple[int, ...]]) -> Iterator[tuple[int, int]]:
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


def _links_of(_: None, file: IndexFile) -> list[Fault]:
    return check_links(file)


def _done(found):
    """The last word of a task: what Arrow and Numba loaded stays, and is not walked again by the collection
    after each task."""
    if not gc.get_freeze_count():
        gc.freeze()
    return found
