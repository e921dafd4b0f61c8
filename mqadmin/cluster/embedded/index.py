"""The index of this process's store."""

from __future__ import annotations

from broker_store.engine.status.store_state import IndexFileFacts, RebuildProgress
from broker_store.facts.chains import Chains, chains
from broker_store.facts.explain import LookupStep, explain
from broker_store.facts.slots import HeatMap, header_of, heat_map
from broker_store.formats.index_file import FOR_EVER_MS
from mqadmin.cluster.embedded.cached_scans import CachedScans
from mqadmin.cluster.embedded.host import Host
from mqadmin.cluster.embedded.slot_watch import SlotWatch
from mqadmin.cluster.protocol import Index
from mqadmin.facts.store import WatchedSlots

CACHED_S_PER_CPU_S = 100  # so scans of chains take at most a hundredth of a core


class EmbeddedIndex(Index):
    """The implementation for the broker of this process."""

    def __init__(self, host: Host):
        self._host = host
        self._slot_watch = SlotWatch()
        self._chain_counts = CachedScans(CACHED_S_PER_CPU_S)

    def facts(self) -> list[IndexFileFacts]:
        return self._host.open_store.index.facts()

    async def explain(
        self, topic: str, key: str, begin_ms: int = 0, end_ms: int | None = None, limit: int = 64
    ) -> list[LookupStep]:
        end_ms = FOR_EVER_MS if end_ms is None else end_ms
        positions = self._host.open_store.status.positions()
        return await self._host.in_thread(
            explain, self._host.directory(), topic, key, begin_ms, end_ms, limit, positions
        )

    async def slots(self, name: str) -> HeatMap:
        return await self._host.in_thread(heat_map, self._host.directory(), name)

    async def chains(self, name: str) -> Chains:
        return await self._host.in_thread(self.watched_chains, name)

    def watched_chains(self, name: str) -> Chains:
        directory = self._host.call(self._host.directory)
        return self._chain_counts.of(name, lambda: chains(directory, name), mark=header_of(directory, name))

    def watched_slots(self, name: str) -> WatchedSlots:
        return self._slot_watch.measure(self._host.call(self._host.directory), name)

    def rebuild(self) -> RebuildProgress:
        return self._host.open_store.rebuilding.begin()

    def rebuild_state(self) -> RebuildProgress:
        return self._host.open_store.rebuilding.progress()

    def cancel_rebuild(self) -> RebuildProgress:
        return self._host.open_store.rebuilding.cancel()
