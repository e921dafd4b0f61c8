"""What the disk holds, how fast it fills, which log files go next, and which groups lose unread messages by
that: one scan of a store. growth.py measures the rate, marks.py forecasts the use, deletion.py has what is
deleted."""

from __future__ import annotations

import time
from dataclasses import dataclass

from broker_store.engine.status.file_facts import bytes_by_kind
from broker_store.facts.deletion import (
    DeletedFile,
    ForcedDeletion,
    Losses,
    Offsets,
    Planned,
    Rules,
    schedule,
)
from broker_store.facts.directory import StoreDirectory
from broker_store.facts.growth import HOUR_MS, GrowthRate, History, growth_of
from broker_store.facts.marks import HORIZON_MS, Mark, Simulated, UsePaths, marks_of, simulate
from broker_store.facts.positions import LogFile, Positions
from broker_store.facts.progress import ReadSamples, no_samples, recent
from broker_store.units import Moment, Small, fields_of

MAX_FILES = 20  # shown of those that go next


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSystemUse:
    """The file system that holds the store; of two the fuller one."""

    total_bytes: int
    free_bytes: int
    used_bytes: int
    used_ratio: float  # 0 to 1


@dataclass(frozen=True, slots=True, kw_only=True)
class KindUse:
    """The bytes of a kind of files."""

    # a directory of the store, preallocated (of the log) or others (on the file system)
    kind: str
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogContent:
    """What the log holds."""

    files: int
    begin: int
    end: int
    written_bytes: int
    messages: int  # that queues know
    first_ms: Moment | None
    last_ms: Moment | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionSettings:
    """The settings by which files are deleted; percentages are of the file system's use."""

    retention_hours: Small
    delete_hours: list[Small]
    time_zone: str  # of these hours
    tight_percent: Small
    forced_percent: Small
    full_percent: Small
    is_forced: bool
    files_a_look: Small


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskFacts:
    """How full the disk is, and when it will be fuller."""

    at_ms: Moment
    is_running: bool
    file_system: FileSystemUse
    use: list[KindUse]
    log: LogContent
    settings: RetentionSettings
    rate: GrowthRate
    marks: list[Mark]
    highest_ratio: float | None  # of the use until the horizon, or until the last mark; None: not known
    horizon_ms: int
    paths: UsePaths


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskForecast(DiskFacts):
    """The same with the files that go next, and what groups lose by it."""

    files: list[DeletedFile]
    files_left_out: Small
    knows_groups: bool
    forced: ForcedDeletion
    is_what_if: bool  # with another retention than that of the settings


class DiskView:
    """One scan. `positions` is open as long as it is used; `safe_to` is how far the checkpoint covers the
    log, None when that is not known."""

    def __init__(
        self,
        store: StoreDirectory,
        positions: Positions,
        rules: Rules,
        now_ms: int,
        *,
        is_running: bool,
        offsets: Offsets,
        read_samples: ReadSamples = no_samples,
        safe_to: int | None = None,
    ):
        self._store, self._positions, self._rules, self._now_ms = store, positions, rules, now_ms
        self._is_running, self._offsets, self._safe_to = is_running, offsets, safe_to
        self._read_samples = read_samples
        self._usage = max(
            (store.disk.usage(path) for path in (store.root, store.log_directory)),
            key=lambda usage: usage.used_ratio,
        )
        self._log = [file for file in positions.log if file.base <= positions.log_end]
        self._kinds = bytes_by_kind(store.disk, store.root, store.log_directory)
        self._queues = [(queue, positions.ends(queue)) for queue in positions.queues()]
        self._first_ms = self._find_first_ms()
        self._knows_groups = is_running or store.has_group_offsets()
        self._until_ms = now_ms if is_running else self._find_last_ms()
        history = History(
            queues=self._queues, first_ms=self._first_ms, until_ms=self._until_ms, is_running=is_running
        )
        self._rate = growth_of(store, positions, history, read_samples, now_ms)

    def facts(self) -> DiskFacts:
        """Use, rate and marks."""
        usage, rules, rate = self._usage, self._rules, self._rate
        usual, low, high = (
            self._simulate(per_s) for per_s in (rate.bytes_per_s, rate.low_bytes_per_s, rate.high_bytes_per_s)
        )
        marks, paths = marks_of(usage, rules, self._now_ms, (usual, low, high))
        return DiskFacts(
            at_ms=self._now_ms,
            is_running=self._is_running,
            file_system=FileSystemUse(
                total_bytes=usage.total,
                free_bytes=usage.free,
                used_bytes=usage.total - usage.free,
                used_ratio=usage.used_ratio,
            ),
            use=self._use(),
            log=self._content(),
            settings=RetentionSettings(
                retention_hours=rules.reserved_hours,
                delete_hours=sorted(rules.hours),
                time_zone=time.strftime("%Z", time.localtime(self._now_ms / 1000)),
                tight_percent=rules.tight,
                forced_percent=rules.forced,
                full_percent=rules.full,
                is_forced=rules.is_forced,
                files_a_look=rules.files_a_look,
            ),
            rate=rate,
            marks=marks,
            highest_ratio=None if usual is None else usual.highest_ratio,
            horizon_ms=HORIZON_MS,
            paths=paths,
        )

    def forecast(self, most_files: int = MAX_FILES, *, is_what_if: bool = False) -> DiskForecast:
        """The files that go next with what groups would lose, and what forced cleaning would do now."""
        read = self._read_samples(lambda name: name.startswith("at\t"), self._now_ms - HOUR_MS)
        losses = Losses(self._positions, self._offsets, recent(read, self._now_ms), self._now_ms)
        planned = self.schedule()
        losses.look_ahead(entry.file for entry in planned[:most_files])
        files = [losses.of_file(entry) for entry in planned[:most_files]]
        held = [entry.file for entry in planned if self._safe_to is None or entry.file.end < self._safe_to]
        return DiskForecast(
            **fields_of(self.facts()),
            files=files,
            files_left_out=max(0, len(planned) - most_files),
            knows_groups=self._knows_groups,
            forced=losses.by_force(held[: self._rules.files_a_look] if self._rules.is_forced else []),
            is_what_if=is_what_if,
        )

    def schedule(self) -> list[Planned]:
        """The files that may be deleted, in the order in which they are."""
        return schedule(
            self._log,
            dict(self._full_files()),
            self._rules,
            self._now_ms,
            is_tight=self._usage.used_ratio * 100 > self._rules.tight,
            fills_ms=self._fills_ms(),
        )

    def _fills_ms(self) -> int | None:
        """When the file that is being written will be full."""
        per_s = self._rate.bytes_per_s
        if not self._is_running or not per_s or not self._log:
            return None
        return self._now_ms + round((self._log[-1].end - self._positions.log_end) * 1000 / per_s)

    def _simulate(self, bytes_per_s: float | None) -> Simulated | None:
        return simulate(
            self._usage,
            ((file.size, modified_ms) for file, modified_ms in self._full_files()),
            self._log[-1].size if self._log else 0,
            self._rules,
            self._now_ms,
            self._rate,
            bytes_per_s,
        )

    def _full_files(self) -> list[tuple[LogFile, int]]:
        return [
            (file, self._store.disk.modified_ms(file.path))
            for file in self._log
            if file.end <= self._positions.log_end
        ]

    def _content(self) -> LogContent:
        positions = self._positions
        return LogContent(
            files=len(self._log),
            begin=positions.log_minimum,
            end=positions.log_end,
            written_bytes=positions.log_end - positions.log_minimum,
            messages=sum(high - low for _, (low, high) in self._queues),
            first_ms=self._first_ms,
            last_ms=self._find_last_ms() if self._is_running else self._until_ms,
        )

    def _use(self) -> list[KindUse]:
        kinds = dict(self._kinds)
        own = sum(kinds.values())
        ahead = self._allocated_ahead()
        kinds["commitlog"] -= ahead
        rows = [KindUse(kind=kind, bytes=size) for kind, size in kinds.items()]
        rows.insert(1, KindUse(kind="preallocated", bytes=ahead))
        others = max(0, self._usage.total - self._usage.free - own)
        return [*rows, KindUse(kind="others", bytes=others)]

    def _allocated_ahead(self) -> int:
        """Allocated bytes of the log after its end."""
        total = 0
        for file in self._positions.log:
            if file.end > self._positions.log_end:
                wrote = max(0, self._positions.log_end - file.base)
                total += max(0, self._store.disk.allocated_bytes(file.path) - wrote)
        return total

    def _find_first_ms(self) -> int | None:
        at = self._positions.store_ms(self._positions.log_minimum)
        if at is not None:
            return at
        times = (self._positions.stored_ms(queue, low) for queue, (low, high) in self._queues if low < high)
        return min((time_ms for time_ms in times if time_ms is not None), default=None)

    def _find_last_ms(self) -> int | None:
        last = None
        for queue, (low, high) in self._queues:
            unit = self._positions.unit(queue, high - 1) if low < high else None
            if unit is not None and (last is None or unit.log_offset > last):
                last = unit.log_offset
        return None if last is None else self._positions.store_ms(last)
