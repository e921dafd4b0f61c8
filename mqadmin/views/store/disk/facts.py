"""The disk's forecast and the offset timelines of the broker of this process. For threads: files are read.

What the broker knows (where groups stand, the ends of its queues) is copied at the beginning of a look, in
pieces that are whole each; all else is read from files by position.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from broker_store.config.store import StoreSettings
from broker_store.engine.status import samples
from broker_store.engine.status.samples import SampleFiles
from broker_store.errors import NotFoundError
from broker_store.facts.directory import StoreDirectory
from broker_store.facts.disk import HOUR_MS, DiskView, Rules, offsets_of
from broker_store.facts.positions import Positions
from broker_store.facts.timeline import GroupTimeline, Timeline
from broker_store.formats.index_file import IndexGeometry
from mqadmin.shared_looks import SharedLooks

LEAST_REST = 20  # times what a look took: thousands of queues may not take more than a twentieth of a core
EVENTS_TOLD = 100
MOST_RETENTION_HOURS = 8_760  # that may be asked for: a year
MOST_HISTORY_HOURS = 30 * 24


class Forecasts:
    """`disk`, `disk_forecast` and `timeline` of one broker."""

    def __init__(self, parts: Any):
        self.parts = parts
        self._hints: dict = {}
        self._looks = SharedLooks(LEAST_REST)

    def disk(self) -> dict:
        """Use, rate and marks."""
        return self._looks.of(("disk",), lambda: self._disk(None, lambda view: view.facts()))

    def disk_forecast(self, retention_hours: int | None = None) -> dict:
        """The same with the files that go next, and who loses by it; as if files were kept for so many
        hours."""

        def make(view: DiskView) -> dict:
            return view.facts() | view.forecast() | {"is_what_if": retention_hours is not None}

        return self._looks.of(("forecast", retention_hours), lambda: self._disk(retention_hours, make))

    def timeline(self, group: str, hours: int = 6) -> GroupTimeline:
        """A group's queues over time, see facts/timeline.py."""

        def make() -> GroupTimeline:
            now_ms = self.parts.clock()
            history = self.parts.history
            events = (
                self._sample_files().events(group, now_ms - hours * HOUR_MS)
                if history is None
                else history.events(group, now_ms - hours * HOUR_MS)
            )
            offsets = [
                entry for entry in self.parts.offsets.everything() if entry[0].partition("@")[0] == group
            ]
            with self._look(None, offsets) as (positions, view, rules, read_samples):
                is_full = None if history is None else history.left_out > 0
                timeline = Timeline(
                    group,
                    positions,
                    view,
                    rules,
                    now_ms,
                    offsets,
                    is_running=self._is_running,
                    read_samples=read_samples,
                    samples_are_full=is_full,
                )
                return timeline.facts(events[-EVENTS_TOLD:], hours * HOUR_MS)

        return self._looks.of(("timeline", group, hours), make)

    def _disk(self, retention_hours: int | None, make: Callable[[DiskView], dict]) -> dict:
        with self._look(retention_hours, list(self.parts.offsets.everything())) as (_, view, _, _):
            return make(view)

    @contextmanager
    def _look(self, retention_hours: int | None, offsets: list) -> Iterator[tuple]:
        parts, store, settings = self.parts, self.parts.store, self.parts.store_settings
        geometry = IndexGeometry(settings.max_hash_slot_num, settings.max_index_num)
        directory = StoreDirectory(
            store.root, store.disk, log_directory=store.log.directory, geometry=geometry
        )
        ends = {
            queue: (store.reads.min_offset(*queue), store.reads.max_offset(*queue))
            for queue in store.queues()
        }
        read_samples = self._sample_files().read if parts.history is None else parts.history.read
        rules = Rules.of(settings)
        if retention_hours is not None:
            rules = rules._replace(reserved_hours=retention_hours)
        with Positions(directory, ends, store.log.wrote, self._hints) as positions:
            safe_to = store.status.positions().checkpoint_position
            view = DiskView(
                directory,
                positions,
                rules,
                parts.clock(),
                is_running=self._is_running,
                offsets=offsets,
                read_samples=read_samples,
                safe_to=safe_to,
            )
            yield positions, view, rules, read_samples

    @property
    def _is_running(self) -> bool:
        return not self.parts.store_settings.inspect

    def _sample_files(self) -> SampleFiles:
        store = self.parts.store
        return SampleFiles(store.disk, store.root.parent / samples.DIRECTORY)


def disk_of(directory: StoreDirectory, retention_hours: int | None = None) -> dict:
    """`disk_forecast` of a store without its broker: by the settings' defaults, and where groups stood
    last."""
    with _offline(directory, retention_hours, offsets_of(directory)) as (_, view, _, _, _):
        return view.facts() | view.forecast() | {"is_what_if": retention_hours is not None}


def timeline_of(directory: StoreDirectory, group: str, hours: int) -> GroupTimeline:
    """`timeline` of a store without its broker."""
    offsets = [entry for entry in offsets_of(directory) if entry[0].partition("@")[0] == group]
    if not offsets:
        raise NotFoundError(
            f"group {group} has no positions in config/consumerOffset.json of {directory.root}"
        )
    with _offline(directory, None, offsets) as (positions, view, rules, files, now_ms):
        timeline = Timeline(
            group, positions, view, rules, now_ms, offsets, is_running=False, read_samples=files.read
        )
        return timeline.facts(files.events(group, now_ms - hours * HOUR_MS)[-EVENTS_TOLD:], hours * HOUR_MS)


@contextmanager
def _offline(directory: StoreDirectory, retention_hours: int | None, offsets: list) -> Iterator[tuple]:
    files, rules, now_ms = (
        SampleFiles(directory.disk, directory.root.parent / samples.DIRECTORY),
        Rules.of(StoreSettings()),
        time.time_ns() // 1_000_000,
    )
    if retention_hours is not None:
        rules = rules._replace(reserved_hours=retention_hours)
    with Positions(directory) as positions:
        yield (
            positions,
            DiskView(
                directory,
                positions,
                rules,
                now_ms,
                is_running=False,
                offsets=offsets,
                read_samples=files.read,
            ),
            rules,
            files,
            now_ms,
        )
