"""The disk's forecast and the offset timelines of a store: one scan of its files, and what they are without a
broker. For threads: files are read by position.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from broker_store.config.store import StoreSettings
from broker_store.engine.status import samples
from broker_store.engine.status.samples import SampleFiles
from broker_store.errors import NotFoundError
from broker_store.facts.deletion import Offsets, Rules, offsets_of
from broker_store.facts.directory import StoreDirectory
from broker_store.facts.disk import DiskForecast, DiskView
from broker_store.facts.growth import HOUR_MS
from broker_store.facts.positions import Positions
from broker_store.facts.progress import ReadSamples
from broker_store.facts.timeline import GroupTimeline, Timeline

MAX_EVENTS = 100  # shown on a timeline
MAX_RETENTION_HOURS = 8_760  # that may be asked for: a year
MAX_HISTORY_HOURS = 30 * 24


@dataclass(frozen=True, slots=True)
class Scan:
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
        self, group: str, events: list[dict[str, Any]], hours: int, samples_are_full: bool | None = None
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


def disk_of(directory: StoreDirectory, retention_hours: int | None = None) -> DiskForecast:
    """`disk_forecast` of a store without its broker, by the default settings and the saved offsets."""
    with _offline(directory, retention_hours) as scan:
        return scan.forecast(retention_hours)


def timeline_of(directory: StoreDirectory, group: str, hours: int) -> GroupTimeline:
    """`timeline` of a store without its broker."""
    with _offline(directory, None, group) as scan:
        if not scan.offsets:
            raise NotFoundError(
                f"group {group} has no positions in config/consumerOffset.json of {directory.root}"
            )
        events = _sample_files(directory).events(group, scan.now_ms - hours * HOUR_MS)
        return scan.timeline(group, events, hours)


@contextmanager
def _offline(
    directory: StoreDirectory, retention_hours: int | None, group: str | None = None
) -> Iterator[Scan]:
    """Open a scan with the offsets of a group, or of all."""
    with Positions(directory) as positions:
        offsets = [
            entry
            for entry in offsets_of(directory, positions)
            if group is None or entry[0].partition("@")[0] == group
        ]
        yield scan_of(
            directory,
            positions,
            rules_of(StoreSettings(), retention_hours),
            offsets,
            _sample_files(directory).read,
            time.time_ns() // 1_000_000,
            is_running=False,
            safe_to=None,
        )


def scan_of(
    directory: StoreDirectory,
    positions: Positions,
    rules: Rules,
    offsets: Offsets,
    read_samples: ReadSamples,
    now_ms: int,
    *,
    is_running: bool,
    safe_to: int | None,
) -> Scan:
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
    return Scan(positions, view, rules, offsets, read_samples, now_ms, is_running)


def rules_of(settings: StoreSettings, retention_hours: int | None) -> Rules:
    rules = Rules.of(settings)
    return rules if retention_hours is None else rules._replace(reserved_hours=retention_hours)


def _sample_files(directory: StoreDirectory) -> SampleFiles:
    return SampleFiles(directory.disk, directory.root.parent / samples.DIRECTORY)
