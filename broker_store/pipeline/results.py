"""What the pipeline's jobs return, as their readers see it: `manage.py pipeline`, pages and lists of runs.

A job runs in a process of its own, so these are read from JSON (`RESULTS`). What a field may lack is None:
results of older versions are kept for days.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from broker_store.units import Moment, Small


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFinding:
    """One deviation that an audit found."""

    severity: str  # error, warning or note
    kind: str
    file: str  # as seen from the store
    offset: int | None  # in the file; None: it is about the whole file
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """The result of an audit."""

    findings: list[AuditFinding]  # the first of each kind
    kinds: dict[str, int]  # all findings, by kind
    counts: dict[str, int]  # what was read; what could not be read is not in it
    not_compared: list[str] = field(default_factory=list)  # what check_store alone compares
    errors: int  # findings that are errors
    ok: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Messages that are counted together. Sizes are bytes of whole records."""

    messages: int
    bytes: int
    distinct_keys: int | None
    smallest: int | None
    largest: int | None
    size_p50: int | None
    size_p95: int | None
    size_p99: int | None
    delay_ms_p50: int | None  # from when a producer made a message until it was stored
    delay_ms_p95: int | None
    delay_ms_p99: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicCell(Cell):
    """Those of a topic."""

    topic: str
    queues: Small | None
    first_ms: Moment | None  # when its first was stored
    last_ms: Moment | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TagCell(Cell):
    """Those of a topic with a tag."""

    topic: str
    tags: str | None  # None: they have no tag


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCell(Cell):
    """Those of a group."""

    group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HourCell(Cell):
    """Those stored in an hour."""

    hour_ms: Moment  # its beginning


@dataclass(frozen=True, slots=True, kw_only=True)
class HotKey:
    """A key of several messages."""

    topic: str
    key: str
    messages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FilledIndex:
    """How an index file is filled."""

    file: str
    slots: Small
    room: int  # entries that it has room for
    entries: int
    slots_used: Small
    longest_chain: int
    mean_chain: float
    chain_p99: int
    skew: float  # the longest chain over the mean one


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """The result of the statistics; in each list most messages first, hours by time."""

    topics: list[TopicCell]
    tags: list[TagCell]
    groups: list[GroupCell]
    hours: list[HourCell]
    hot_keys: list[HotKey]
    index: list[FilledIndex]
    messages: int
    bytes: int
    complete: bool  # False: there are more cells than a result holds


@dataclass(frozen=True, slots=True, kw_only=True)
class LineageRecord:
    """A record of a key."""

    step: str  # what became of the message there
    topic: str
    queue_id: Small
    queue_offset: int
    log_offset: int
    record_bytes: int
    reconsume_times: int
    keys: list[str] | None
    unique_key: str | None
    tags: str | None
    store_ms: Moment
    born_ms: Moment | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """The records of a key, in the order they were stored."""

    key: str
    records: list[LineageRecord]
    complete: bool  # False: there are more


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedDay:
    """What a run added of a topic and a day."""

    topic: str
    day: str  # 2026-11-21, UTC
    records: int
    bytes: int  # of the files
    files: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """What a run added to the archive."""

    records: int
    bytes: int  # of the files
    files: int
    from_: int  # the part of the log that it archived
    to: int
    missing: list[list[int]]  # [begin, end) of the log: deleted before it was archived
    days: list[ArchivedDay]
    doubt: str | None  # why a message may be in another day than its neighbours


Result: TypeAlias = Audit | Statistics | Lineage | Archive
RESULTS: dict[str, type[Result]] = {
    "audit": Audit,
    "statistics": Statistics,
    "lineage": Lineage,
    "archive": Archive,
}
