"""The parts of the store's files that are in memory, the groups that read other parts, and their offsets."""

from __future__ import annotations

from dataclasses import dataclass

from broker_store.facts import cache
from broker_store.units import Small


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingGroup:
    """A group that read messages or committed offsets: its reads of all topics since the start, its rates
    over the last ten seconds, and the queue in which it lags most, None when it committed no offset."""

    group: str
    topics: list[str]  # topics that it read
    reads: int = 0
    messages: int = 0
    bytes: int = 0
    per_s: float = 0.0  # messages
    bytes_per_s: float = 0.0
    cold_reads: int = 0  # reads that a thread made, since the bytes might not be in memory
    cold_messages: int = 0
    cold_bytes: int = 0
    cold_per_s: float = 0.0
    cold_bytes_per_s: float = 0.0
    log_offset: int | None = None
    lag_bytes: int | None = None
    lag_messages: int | None = None
    topic: str | None = None
    queue_id: Small | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTotals:
    """The reads of the store since the start."""

    gets: int
    cold_gets: int
    cold_bytes: int
    cold_ms: float


@dataclass(frozen=True, kw_only=True)
class CacheReaders:
    """The readers of the store's files."""

    groups: list[ReadingGroup]  # those with most cold reads first
    reads: ReadTotals


@dataclass(frozen=True, slots=True, kw_only=True)
class CachePicture(CacheReaders, cache.Residency):
    """The parts of the files that are in memory, and the readers."""
