"""Measurements of this process's store: its state, its report of the start, and scans of its files."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

from broker_store.broker.pauses import Pauses
from broker_store.engine.status.store_state import Lag, LogPositions, Snapshot, Totals
from broker_store.errors import MisuseError
from broker_store.facts import dispatch, exposure, write_path
from broker_store.facts.bytes.pieces import FileBytes
from broker_store.facts.bytes.place import MAX_BYTES, Place
from broker_store.facts.bytes.viewer import Viewer
from broker_store.facts.disk import DiskFacts, DiskForecast
from broker_store.facts.dispatch import Flushing, Race
from broker_store.facts.exposure import Exposure, ScanRate
from broker_store.facts.journey.journey import journey
from broker_store.facts.journey.stop import Journey
from broker_store.facts.layout import LayoutOfEach, LayoutOfTopics
from broker_store.facts.starts import StartReport, report_of
from broker_store.facts.store_facts import FileFacts, StoreFacts
from broker_store.facts.timeline import GroupTimeline
from broker_store.formats import names
from broker_store.rest.problems import Problem
from broker_store.server.master_link import open_ha_port_for_this_machine
from broker_store.server.parts import BrokerParts
from broker_store.units import fields_of
from mqadmin.cluster.embedded.broker_facts import BrokerFacts
from mqadmin.cluster.embedded.cache_scans import CacheScans
from mqadmin.cluster.embedded.cached_scans import CachedScans
from mqadmin.cluster.embedded.forecasts import Forecasts
from mqadmin.cluster.embedded.groups import EmbeddedGroups
from mqadmin.cluster.embedded.host import Host
from mqadmin.cluster.embedded.layout_scans import LayoutScans, of_running
from mqadmin.cluster.embedded.replication import replication_of
from mqadmin.cluster.protocol import Store
from mqadmin.facts import layout
from mqadmin.facts.cache import CachePicture
from mqadmin.facts.layout import Both
from mqadmin.facts.replication import ReplicationFacts
from mqadmin.facts.sends import LoopPauses, PathOfSends, Refused
from mqadmin.process import recovery_paths

JOURNEYS_S_PER_CPU_S = 20  # so journeys that pages watch take at most a twentieth of a core
REPORT_SECONDS = 1.0  # for so long the report of a finished start is kept


class EmbeddedStore(Store):
    """The implementation for the broker of this process."""

    def __init__(self, host: Host, groups: EmbeddedGroups):
        self._host = host
        self._groups = groups
        self._made_forecasts: Forecasts | None = None
        self._scan_rate: ScanRate | None = None  # of earlier starts; this run adds none
        self._recovery: StartReport | None = None  # the report that was made last
        self._recovery_until = 0.0
        self._cache_scans = CacheScans(host)
        self._layout_scans = LayoutScans(host)
        self._journeys = CachedScans(JOURNEYS_S_PER_CPU_S, fresh_s=0.0)

    def snapshot(self) -> Snapshot:
        store = self._host.store
        if store is None:
            return Snapshot(
                at_ms=int(time.time() * 1000), state="starting", flags=[], totals=Totals(refused={})
            )
        snapshot, state = store.status.snapshot(), self._host.state().state
        flags = [replace(flag, cause=self._host.for_users(flag.cause)) for flag in snapshot.flags]
        snapshot = replace(snapshot, state=state, flags=flags)
        if state not in ("running", "read_only", "closed"):
            # Recovery moves the positions while it scans for the log's end: they are no facts yet.
            return replace(snapshot, positions=LogPositions(), lag=Lag())
        return snapshot

    def replication(self) -> ReplicationFacts:
        return replication_of(self._host.parts)

    async def take_slaves(self) -> ReplicationFacts:
        try:
            open_ha_port_for_this_machine(self._host.parts)
        except (MisuseError, OSError) as error:
            raise Problem("conflict", str(error)) from None
        return self.replication()

    def recovery(self) -> StartReport | None:
        store = self._host.store
        if store is None:
            return None
        if store.report.state == "running":
            return self._host.for_users(report_of(store.report.as_dict()))
        # Pages that show a finished report request it repeatedly.
        if self._recovery is None or time.monotonic() > self._recovery_until:
            self._recovery = self._host.for_users(report_of(store.report.as_dict()))
            self._recovery_until = time.monotonic() + REPORT_SECONDS
        return self._recovery

    @property
    def inspects(self) -> bool:
        return self._host.store is not None and self._host.store.settings.inspect

    # Where messages are between a send and the disk

    def race(self) -> Race:
        store = self._host.store
        if store is None or not self._host.is_open:
            return dispatch.race(LogPositions(), {})
        return dispatch.of(store)

    def flush(self) -> Flushing:
        return dispatch.flush(self._host.open_store)

    def write_path(self) -> PathOfSends:
        parts, refused, loop = self._host.call(self._facts_for_write_path)
        store = self._host.process.store
        facts = write_path.facts(store.write_path, store.settings.flush_disk_type, parts.clock())
        return PathOfSends(
            **fields_of(facts),
            loop=loop,
            refusals=sorted(refused, key=lambda case: case.cause),
        )

    def _facts_for_write_path(self) -> tuple[BrokerParts, list[Refused], LoopPauses]:
        parts = self._host.parts
        return parts, refusals_of(parts), loop_pauses_of(parts.pauses)

    def exposure(self) -> Exposure:
        store, directory = self._host.call(lambda: self._host.open_store), self._host.directory()
        if self._scan_rate is None:
            self._scan_rate = exposure.scan_rate(exposure.reports(recovery_paths.directory()))
        if store.settings.inspect:
            return exposure.of_files(directory, self._scan_rate)
        return exposure.of(directory, self._host.call(self.snapshot), self._scan_rate)

    # Scans of the files

    def cache(self) -> CachePicture:
        return self._cache_scans.picture()

    async def layout(
        self, topic: str | None, group: str | None, from_ms: int | None = None, from_offset: int | None = None
    ) -> LayoutOfTopics | LayoutOfEach:
        if from_ms is None and from_offset is None:
            return await asyncio.to_thread(self._layout_scans.layout, topic, group)
        return await of_running(self._host, layout.scan, topic, group, from_ms, from_offset)

    async def layout_of_both(
        self, topic: str | None, group: str | None, from_ms: int | None, from_offset: int | None
    ) -> Both:
        return await of_running(self._host, layout.scan_both, topic, group, from_ms, from_offset)

    def watched_layout(self, topic: str | None, group: str | None) -> Both:
        return self._layout_scans.both(topic, group)

    def _store_facts(self) -> StoreFacts:
        """Return the facts of the running broker; while it starts, those of the files."""
        parts = self._host.parts_or_none
        return FileFacts(self._host.directory()) if parts is None else BrokerFacts(parts, self._host.call)

    async def bytes_at(self, place: Place, most: int = MAX_BYTES) -> FileBytes:
        return await self._host.in_thread(
            lambda: Viewer(self._host.directory(), self._store_facts(), most).read(place)
        )

    def watched_journey(self, log_offset: int) -> Journey:
        return self._journeys.of(log_offset, lambda: self._journey(log_offset))

    async def journey_of(self, log_offset: int) -> Journey:
        return await self._host.in_thread(self._journey, log_offset)

    def _journey(self, log_offset: int) -> Journey:
        return journey(self._host.directory(), self._store_facts(), log_offset)

    # The disk, and offsets over time

    def disk(self) -> DiskFacts:
        return self._forecasts.disk()

    def disk_forecast(self, retention_hours: int | None = None) -> DiskForecast:
        return self._forecasts.disk_forecast(retention_hours)

    def timeline(self, group: str, hours: int = 6) -> GroupTimeline:
        self._host.call(self._groups.check_exists, group)
        return self._forecasts.timeline(group, hours)

    @property
    def _forecasts(self) -> Forecasts:
        if self._made_forecasts is None or self._made_forecasts.parts is not self._host.parts:
            self._made_forecasts = Forecasts(self._host.parts)
        return self._made_forecasts


def loop_pauses_of(pauses: Pauses) -> LoopPauses:
    longest, ever = pauses.longest(), pauses.longest_of_run
    return LoopPauses(
        longest_us=None if longest is None else round(longest.seconds * 1e6),
        at_ms=None if longest is None else longest.at_ms,
        longest_of_run_us=None if ever is None else round(ever.seconds * 1e6),
    )


def refusals_of(parts: BrokerParts) -> list[Refused]:
    """Return what was refused since the start, by cause, each with its last case; the latest first."""
    return [
        Refused(
            cause=case.cause,
            count=case.count,
            at_ms=case.at_ms,
            value=case.value,
            limit=case.limit,
            who=case.who,
            answer=names.sentence_in_words(case.said),
        )
        for case in parts.statistics.refusals.cases()
    ]
