"""What is in memory of the store's files, who reads what is not, and where each group stands; one scan for
all who ask within some seconds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from broker_store.broker.group_reads import GroupReads
from broker_store.facts import cache
from broker_store.facts.directory import GroupOffsets
from broker_store.units import Small, fields_of
from mqadmin.cached_scans import CachedScans

CACHED_S_PER_CPU_S = 100  # pages that show it take at most a hundredth of a core
PAGE_LOG_FILES = 24
PAGE_QUEUE_FILES = 10
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingFacts:
    """What a broker knows of its readers, for a scan of what is in memory."""

    wrote: int  # the end of the log
    offsets: GroupOffsets
    reads: list[GroupReads]
    messages_in: Callable[[str, int], int]  # how many messages a queue holds
    totals: ReadTotals


@dataclass(frozen=True, kw_only=True)
class _Readers:
    groups: list[ReadingGroup]  # who reads most cold first
    reads: ReadTotals


@dataclass(frozen=True, kw_only=True)
class _QueueFiles:
    queue_files: int  # of queues, of which those with the most in memory are shown


@dataclass(frozen=True, slots=True, kw_only=True)
class CachePicture(_Readers, cache.Residency):
    """What is in memory, and who reads what is not."""


@dataclass(frozen=True, kw_only=True)
class ShownCache(_QueueFiles, _Readers, cache.Residency):
    """The same with some of the files of queues."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageCache(ShownCache):
    """What page and stream show."""

    older: Small  # files of the log that are left out


class CacheScans:
    """The newest scan of the files of a running broker's store; for threads."""

    def __init__(self, store):
        self._store = store
        self._scans = CachedScans(CACHED_S_PER_CPU_S)

    def picture(self) -> CachePicture:
        return self._scans.of(None, self._scan)

    def _scan(self) -> CachePicture:
        known = self._store.reading_facts()
        directory = self._store.directory()
        picture = cache.residency(directory, known.wrote)
        places, complete = cache.read_positions(directory, known.offsets, known.wrote)
        if not complete:
            most = cache.MAX_GROUP_QUEUES
            reason = f"the places of groups in {most:,} queues were looked up, and there are more"
            picture = replace(picture, complete=False, reason=picture.reason or reason)
        return CachePicture(**fields_of(picture), groups=_groups(known.reads, places), reads=known.totals)


def shown(picture: CachePicture, queue_files: int, topic: str | None = None) -> ShownCache:
    """The picture with at most so many files of queues, of one topic when it is named."""
    few = cache.few_files(picture, queue_files, topic)
    return ShownCache(**fields_of(replace(picture, files=few.files)), queue_files=few.queue_files)


def for_page(picture: CachePicture) -> PageCache:
    """The picture as page and stream show it: the newest files of the log and those in which a group stands,
    and the queues' files with the most in memory."""
    found = shown(picture, PAGE_QUEUE_FILES)
    log = [file for file in found.files if file.kind == "commitlog"]
    places = [group.log_offset for group in found.groups if group.log_offset is not None]
    old = [
        file
        for file in log[:-PAGE_LOG_FILES]
        if not any(file.base is not None and file.base <= place < file.base + file.size for place in places)
    ]
    names = {file.name for file in old}
    files = [file for file in found.files if file.kind != "commitlog" or file.name not in names]
    return PageCache(**fields_of(found) | {"files": files}, older=len(old))


def _groups(reads: list[GroupReads], places: list[cache.Place]) -> list[ReadingGroup]:
    """A row a group that read or committed anything."""
    found = {place.group: ReadingGroup(topics=[], **fields_of(place)) for place in places}
    for read in reads:
        row = found.get(read.group) or ReadingGroup(group=read.group, topics=[])
        sums = {name: getattr(row, name) + getattr(read, name) for name in SUMS}
        found[read.group] = replace(row, topics=[*row.topics, read.topic], **sums)
    return sorted(
        found.values(),
        key=lambda row: (-row.cold_per_s, -row.cold_bytes, -(row.behind_bytes or 0), row.group),
    )
