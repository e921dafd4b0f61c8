"""The disk's forecast and the offset timelines of the broker of this process. For threads: files are read.

What the broker has in memory (offsets of groups, ends of its queues) is copied at the beginning of a scan, in
pieces that are consistent each. All else is read from files by position.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from broker_store.engine.status import samples
from broker_store.engine.status.samples import SampleFiles
from broker_store.facts.deletion import Offsets
from broker_store.facts.directory import StoreDirectory
from broker_store.facts.disk import DiskFacts, DiskForecast
from broker_store.facts.disk_scan import Scan, rules_of, scan_of
from broker_store.facts.growth import HOUR_MS
from broker_store.facts.positions import Positions, Queue
from broker_store.facts.timeline import GroupTimeline
from broker_store.formats.index_file import IndexGeometry
from broker_store.server.parts import BrokerParts
from mqadmin.cluster.embedded.cached_scans import CachedScans

CACHED_S_PER_CPU_S = 20  # so these scans take at most a twentieth of a core


class Forecasts:
    """`disk`, `disk_forecast` and `timeline` of one broker."""

    def __init__(self, parts: BrokerParts):
        self.parts = parts
        self._hints: dict[tuple[Queue, int], int] = {}
        self._scans = CachedScans(CACHED_S_PER_CPU_S)

    def disk(self) -> DiskFacts:
        """Return the use of the disk, its rate of growth, and the marks at which something happens."""

        def make() -> DiskFacts:
            with self._scan(None, list(self.parts.all_lag_offsets())) as scan:
                return scan.view.facts()

        return self._scans.of(("disk",), make)

    def disk_forecast(self, retention_hours: int | None = None) -> DiskForecast:
        """Return the same with the files that are deleted next, and what groups lose by that; as if files
        were kept for `retention_hours`."""

        def make() -> DiskForecast:
            with self._scan(retention_hours, list(self.parts.all_lag_offsets())) as scan:
                return scan.forecast(retention_hours)

        return self._scans.of(("forecast", retention_hours), make)

    def timeline(self, group: str, hours: int = 6) -> GroupTimeline:
        """Return a group's offsets over the last `hours` (broker_store/facts/timeline.py)."""

        def make() -> GroupTimeline:
            history, from_ms = self.parts.history, self.parts.clock() - hours * HOUR_MS
            events = (self._sample_files() if history is None else history).events(group, from_ms)
            offsets = [entry for entry in self.parts.all_lag_offsets() if entry[0].partition("@")[0] == group]
            with self._scan(None, offsets) as scan:
                return scan.timeline(group, events, hours, None if history is None else history.left_out > 0)

        return self._scans.of(("timeline", group, hours), make)

    @contextmanager
    def _scan(self, retention_hours: int | None, offsets: Offsets) -> Iterator[Scan]:
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
            yield scan_of(
                directory,
                positions,
                rules_of(settings, retention_hours),
                offsets,
                read_samples,
                parts.clock(),
                is_running=not settings.inspect,
                safe_to=store.status.positions().checkpoint_position,
            )

    def _sample_files(self) -> SampleFiles:
        store = self.parts.store
        return SampleFiles(store.disk, store.root.parent / samples.DIRECTORY)
