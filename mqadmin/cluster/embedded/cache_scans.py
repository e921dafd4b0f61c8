"""Scans that measure which parts of the store's files are in memory, one for all callers within some
seconds."""

from __future__ import annotations

from dataclasses import replace

from broker_store.broker.group_reads import GroupReads
from broker_store.facts import cache
from broker_store.units import fields_of
from mqadmin.cluster.embedded.cached_scans import CachedScans
from mqadmin.cluster.embedded.host import Host
from mqadmin.cluster.embedded.reading import reading_facts
from mqadmin.facts.cache import CachePicture, ReadingGroup

CACHED_S_PER_CPU_S = 100  # so these scans take at most a hundredth of a core
SUMS = (
    "reads",
    "messages",
    "bytes",
    "per_s",
    "bytes_per_s",
    "cold_reads",
    "cold_messages",
    "cold_bytes",
    "cold_per_s",
    "cold_bytes_per_s",
)


class CacheScans:
    """The newest scan of the files of a running broker's store. For threads, not for the loop."""

    def __init__(self, host: Host):
        self._host = host
        self._scans = CachedScans(CACHED_S_PER_CPU_S)

    def picture(self) -> CachePicture:
        return self._scans.of(None, self._scan)

    def _scan(self) -> CachePicture:
        known = reading_facts(self._host)
        directory = self._host.directory()
        picture = cache.residency(directory, known.wrote)
        places, complete = cache.read_positions(directory, known.offsets, known.wrote)
        if not complete:
            most = cache.MAX_GROUP_QUEUES
            reason = f"the read positions of groups in {most:,} queues were found; there are more"
            picture = replace(picture, complete=False, reason=picture.reason or reason)
        return CachePicture(**fields_of(picture), groups=_groups(known.reads, places), reads=known.totals)


def _groups(reads: list[GroupReads], places: list[cache.Place]) -> list[ReadingGroup]:
    """Return a row for each group that read or committed anything."""
    found = {place.group: ReadingGroup(topics=[], **fields_of(place)) for place in places}
    for read in reads:
        row = found.get(read.group) or ReadingGroup(group=read.group, topics=[])
        sums = {name: getattr(row, name) + getattr(read, name) for name in SUMS}
        found[read.group] = replace(row, topics=[*row.topics, read.topic], **sums)
    return sorted(
        found.values(),
        key=lambda row: (-row.cold_per_s, -row.cold_bytes, -(row.lag_bytes or 0), row.group),
    )
