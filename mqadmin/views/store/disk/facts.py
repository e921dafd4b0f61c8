"""The disk's forecast and the offset timelines, of the broker of this process and of a store without one. For
threads: files are read.

What the broker knows (offsets of groups, ends of its queues) is copied at the beginning of a scan, in pieces
that are whole each; all else is read from files by position.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from broker_store.config.store import StoreSettings
from broker_store.engine.disk.disk import Disk
from broker_store.engine.status import samples
from broker_store.engine.status.samples import SampleFiles
from broker_store.errors import NotFoundError
from broker_store.facts.deletion import Offsets, Rules, offsets_of
from broker_store.facts.directory import StoreDirectory
from broker_store.facts.disk import DiskFacts, DiskForecast, DiskView
from broker_store.facts.growth import HOUR_MS
from broker_store.facts.positions import Positions, Queue
from broker_store.facts.progress import ReadSamples
from broker_store.facts.timeline import GroupTimeline, Timeline
from broker_store.formats.index_file import IndexGeometry
from mqadmin.cached_scans import CachedScans

if TYPE_CHECKING:
    from broker_store.server.parts import BrokerParts

MIN_REST = 20  # times what a scan took: thousands of queues may not take more than a twentieth of a core
MAX_EVENTS = 100  # shown on a timeline
MAX_RETENTION_HOURS = 8_760  # that may be asked for: a year
MAX_HISTORY_HOURS = 30 * 24


@dataclass(frozen=True, slots=True)
class _Scan:
    """One scan of a store."""

    positions: Positions
    view: DiskView
    rules: Rules
    offsets: Offsets
    read_samples: ReadSamples
    now_ms: int
    is_running: bool

    def forecast(self, retention_hours: int | None) -> DiskForecast:
        return self.view.forecast(is_what_if=retention_hours is not None)

    def timeline(
        self, group: str, events: list[dict], hours: int, samples_are_full: bool | None = None
    ) -> GroupTimeline:
        timeline = Timeline(
            group,
            self.positions,
            self.view,
            self.rules,
            self.now_ms,
            self.offsets,
            is_running=self.is_running,
            read_samples=self.read_samples,
            samples_are_full=samples_are_full,
        )
        return timeline.facts(events[-MAX_EVENTS:], hours * HOUR_MS)


class Forecasts:
    """`disk`, `disk_forecast` and `timeline` of one broker."""

    def __init__(self, parts: BrokerParts):
        self.parts = parts
        self._hints: dict[tuple[Queue, int], int] = {}
        self._scans = CachedScans(MIN_REST)

    def disk(self) -> DiskFacts:
        """Use, rate and marks."""

        def make() -> DiskFacts:
            with self._scan(None, list(self.parts.offsets.everything())) as scan:
                return scan.view.facts()

        return self._scans.of(("disk",), make)

    def disk_forecast(self, retention_hours: int | None = None) -> DiskForecast:
        """The same with the files that go next, and what groups lose by it; as if files were kept for so
        many hours."""

        def make() -> DiskForecast:
            with self._scan(retention_hours, list(self.parts.offsets.everything())) as scan:
                return scan.forecast(retention_hours)

        return self._scans.of(("forecast", retention_hours), make)

    def timeline(self, group: str, hours: int = 6) -> GroupTimeline:
        """A group's queues over time, see facts/timeline.py."""

        def make() -> GroupTimeline:
            history, from_ms = self.parts.history, self.parts.clock() - hours * HOUR_MS
            events = (self._sample_files() if history is None else history).events(group, from_ms)
            offsets = [
                entry for entry in self.parts.offsets.everything() if entry[0].partition("@")[0] == group
            ]
            with self._scan(None, offsets) as scan:
                return scan.timeline(group, events, hours, None if history is None else history.left_out > 0)

        return self._scans.of(("timeline", group, hours), make)

    @contextmanager
    def _scan(self, retention_hours: int | None, offsets: Offsets) -> Iterator[_Scan]:
        parts, store, settings = self.parts, self.parts.store, self.parts.store_settings
        directory = StoreDirectory(
            store.root,
            store.disk,
            log_directory=store.log.directory,
            geometry=IndexGeometry(settings.max_hash_slot_num, settings.max_index_num),
        )
        ends = {
            queue: (store.reads.min_offset(*queue), store.reads.max_offset(*queue))
            for queue in store.queues()
        }
        read_samples = self._sample_files().read if parts.history is None else parts.history.read
        with Positions(directory, ends, store.log.wrote, self._hints) as positions:
            yield _scan_of(
                directory,
                positions,
                _rules(settings, retention_hours),
                offsets,
                read_samples,
                parts.clock(),
                is_running=not settings.inspect,
                safe_to=store.status.positions().checkpoint_position,
            )

    def _sample_files(self) -> SampleFiles:
        store = self.parts.store
        return _sample_files(store.disk, store.root)


def disk_of(directory: StoreDirectory, retention_hours: int | None = None) -> DiskForecast:
    """`disk_forecast` of a store without its broker, by the default settings and the saved offsets."""
    with _offline(directory, retention_hours, offsets_of(directory)) as scan:
        return scan.forecast(retention_hours)


def timeline_of(directory: StoreDirectory, group: str, hours: int) -> GroupTimeline:
    """`timeline` of a store without its broker."""
    offsets = [entry for entry in offsets_of(directory) if entry[0].partition("@")[0] == group]
    if not offsets:
        raise NotFoundError(
            f"group {group} has no positions in config/consumerOffset.json of {directory.root}"
        )
    with _offline(directory, None, offsets) as scan:
        events = _sample_files(directory.disk, directory.root).events(group, scan.now_ms - hours * HOUR_MS)
        return scan.timeline(group, events, hours)


@contextmanager
def _offline(directory: StoreDirectory, retention_hours: int | None, offsets: Offsets) -> Iterator[_Scan]:
    with Positions(directory) as positions:
        yield _scan_of(
            directory,
            positions,
            _rules(StoreSettings(), retention_hours),
            offsets,
            _sample_files(directory.disk, directory.root).read,
            time.time_ns() // 1_000_000,
            is_running=False,
            safe_to=None,
        )


def _scan_of(
    directory: StoreDirectory,
    positions: Positions,
    rules: Rules,
    offsets: Offsets,
    read_samples: ReadSamples,
    now_ms: int,
    *,
    is_running: bool,
    safe_to: int | None,
) -> _Scan:
    view = DiskView(
        directory,
        positions,
        rules,
        now_ms,
        is_running=is_running,
        offsets=offsets,
        read_samples=read_samples,
        safe_to=safe_to,
    )
    return _Scan(positions, view, rules, offsets, read_samples, now_ms, is_running)


def _rules(settings: StoreSettings, retention_hours: int | None) -> Rules:
    rules = Rules.of(settings)
    return rules if retention_hours is None else rules._replace(reserved_hours=retention_hours)


def _sample_files(disk: Disk, root: Path) -> SampleFiles:
    return SampleFiles(disk, root.parent / samples.DIRECTORY)
