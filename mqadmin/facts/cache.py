"""What is in memory of the store's files, who reads what is not, and where each group stands."""

from __future__ import annotations

from dataclasses import dataclass

from broker_store.facts import cache
from broker_store.units import Small


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingGroup:
    """A group that read or committed anything: its reads of all topics since the start, and a second over the
    last ten; and where it lags most, None when it committed nothing."""

    group: str
    topics: list[str]  # that it read
    reads: int = 0
    messages: int = 0
    bytes: int = 0
    per_s: float = 0.0  # messages
    bytes_per_s: float = 0.0
    cold_reads: int = 0  # that a thread had to make
    cold_messages: int = 0
    cold_bytes: int = 0
    cold_per_s: float = 0.0
    cold_bytes_per_s: float = 0.0
    log_offset: int | None = None
    behind_bytes: int | None = None
    behind_messages: int | None = None
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
    """Who reads, beside what is in memory."""

    groups: list[ReadingGroup]  # who reads most cold first
    reads: ReadTotals


@dataclass(frozen=True, slots=True, kw_only=True)
class CachePicture(CacheReaders, cache.Residency):
    """What is in memory, and who reads what is not."""
