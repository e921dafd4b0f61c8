"""Facts about readers that the running broker has, for scans of the store's files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from broker_store.broker.group_reads import GroupReads
from broker_store.facts.directory import GroupOffsets
from mqadmin.cluster.embedded.host import Host
from mqadmin.facts.cache import ReadTotals


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingFacts:
    """Facts about the readers of a running broker."""

    wrote: int  # the end of the log
    offsets: GroupOffsets
    reads: list[GroupReads]
    messages_in: Callable[[str, int], int]  # number of messages that a queue (topic, id) holds
    totals: ReadTotals


def reading_facts(host: Host) -> ReadingFacts:
    """Return the present facts. Any thread may call it, but not the loop where there are many offsets: it
    reads all of them. Raises StoreClosedError while no broker runs."""
    parts = host.parts
    store, reads = parts.store, parts.store.reads
    groups: GroupOffsets = {}
    for group, topic, queues in parts.offsets.everything():
        if not parts.offsets.is_broadcasting(group):
            groups.setdefault(group, {})[topic] = queues
    return ReadingFacts(
        wrote=store.log.wrote,
        offsets=groups,
        reads=parts.statistics.reads(),
        messages_in=lambda topic, queue_id: (
            reads.max_offset(topic, queue_id) - reads.min_offset(topic, queue_id)
        ),
        totals=ReadTotals(
            gets=reads.gets,
            cold_gets=reads.cold_gets,
            cold_bytes=reads.cold_bytes,
            cold_ms=reads.cold_ms,
        ),
    )
