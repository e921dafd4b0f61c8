"""Reports of results of runs: one type for each job, which the job's template draws."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from broker_store.pipeline.results import (
    Archive,
    ArchivedDay,
    Audit,
    AuditFinding,
    FilledIndex,
    GroupCell,
    HotKey,
    Lineage,
    LineageRecord,
    Result,
    Statistics,
    TagCell,
    TopicCell,
)
from broker_store.units import fields_of
from mqadmin.templatetags import units
from mqadmin.views.bars import MAX_BARS, Bar, DrawnBar, bars

MAX_ROWS = 200  # of a table; REST has the rest
MAX_POINTS = 24 * 400  # hours of a chart with zeros between them
HOUR_SECONDS = 3_600
COUNTED = ("records", "units", "queues", "entries", "index_files", "log_end")
SEVERITIES = {"error": 0, "warning": 1}  # the most severe first


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """The data of audit.html."""

    ok: bool
    errors: int
    counts: dict[str, int | None]  # None: it was not read, as a damaged index
    kinds: list[DrawnBar]
    findings: list[AuditFinding]
    left_out: int  # findings
    not_compared: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class StatisticsReport:
    """The data of statistics.html."""

    messages: int
    bytes: int
    complete: bool
    first_ms: int | None
    last_ms: int | None
    topic_count: int
    keys: int
    topics: list[TopicCell]
    topics_left_out: int
    by_messages: list[DrawnBar]
    by_bytes: list[DrawnBar]
    hours: tuple[list[int], list[int]]  # seconds since 1970, messages
    delays: tuple[list[int], list[int | None]] | None  # seconds since 1970, ms; None: no hour has one
    tags: list[TagCell]
    tags_left_out: int
    groups: list[GroupCell]
    hot_keys: list[HotKey]
    index: list[FilledIndex]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownRecord(LineageRecord):
    """A record with the time since the one before it."""

    since_ms: int | None  # None: it is the first


@dataclass(frozen=True, slots=True, kw_only=True)
class LineageReport:
    """The data of lineage.html."""

    key: str
    complete: bool
    count: int
    took_ms: int | None  # from the first to the last; None: there is none
    topics: list[str]
    records: list[ShownRecord]
    left_out: int  # records


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveReport:
    """The data of archive.html."""

    records: int
    bytes: int
    files: int
    begin: int  # the part of the log that was archived
    end: int
    log_bytes: int
    missing: list[list[int]]
    doubt: str | None
    by_day: list[DrawnBar]
    days: list[ArchivedDay]
    left_out: int  # days


Report: TypeAlias = AuditReport | StatisticsReport | LineageReport | ArchiveReport


def report_of(result: Result) -> Report:
    """Return the report of a result."""
    match result:
        case Audit():
            return _audit(result)
        case Statistics():
            return _statistics(result)
        case Lineage():
            return _lineage(result)
        case Archive():
            return _archive(result)


def _audit(result: Audit) -> AuditReport:
    severity = {one.kind: one.severity for one in result.findings}
    counted = sorted(
        result.kinds.items(),
        key=lambda item: (SEVERITIES.get(severity.get(item[0], ""), len(SEVERITIES)), -item[1]),
    )
    found = sorted(result.findings, key=lambda one: (SEVERITIES.get(one.severity, len(SEVERITIES)), one.kind))
    return AuditReport(
        ok=result.ok,
        errors=result.errors,
        counts={name: result.counts.get(name) for name in COUNTED},
        kinds=bars(
            [Bar(kind, count, "bad" if severity.get(kind) == "error" else "warn") for kind, count in counted]
        ),
        findings=found[:MAX_ROWS],
        left_out=max(0, len(found) - MAX_ROWS),
        not_compared=result.not_compared,
    )


def _statistics(result: Statistics) -> StatisticsReport:
    topics = result.topics
    hours = _filled([(hour.hour_ms // 1000, hour.messages) for hour in result.hours])
    delay_of = {hour.hour_ms // 1000: hour.delay_ms_p99 for hour in result.hours}
    by_bytes = sorted(topics, key=lambda topic: -topic.bytes)
    return StatisticsReport(
        messages=result.messages,
        bytes=result.bytes,
        complete=result.complete,
        first_ms=min((topic.first_ms for topic in topics if topic.first_ms is not None), default=None),
        last_ms=max((topic.last_ms for topic in topics if topic.last_ms is not None), default=None),
        topic_count=len(topics),
        keys=sum(topic.distinct_keys or 0 for topic in topics),
        topics=topics[:MAX_ROWS],
        topics_left_out=max(0, len(topics) - MAX_ROWS),
        by_messages=bars([Bar(one.topic, one.messages, "wrote") for one in topics]),
        by_bytes=bars([Bar(one.topic, one.bytes, "dispatched") for one in by_bytes]),
        hours=hours,
        delays=(hours[0], [delay_of.get(at) for at in hours[0]])
        if any(delay is not None for delay in delay_of.values())
        else None,
        tags=result.tags[:MAX_BARS],
        tags_left_out=max(0, len(result.tags) - MAX_BARS),
        groups=result.groups[:MAX_BARS],
        hot_keys=[key for key in result.hot_keys if key.messages > 1][:MAX_BARS],
        index=result.index,
    )


def _filled(hours: list[tuple[int, int]]) -> tuple[list[int], list[int]]:
    """Return times and counts. An hour without messages has the count 0; it is no gap."""
    if not hours:
        return [], []
    known = dict(hours)
    times = range(hours[0][0], hours[-1][0] + HOUR_SECONDS, HOUR_SECONDS)
    if len(times) > MAX_POINTS:  # one wrong time of long ago must not make millions of points
        return [at for at, _ in hours], [count for _, count in hours]
    return list(times), [known.get(at, 0) for at in times]


def _lineage(result: Lineage) -> LineageReport:
    records = result.records
    before = [None, *(record.store_ms for record in records)]
    return LineageReport(
        key=result.key,
        complete=result.complete,
        count=len(records),
        took_ms=records[-1].store_ms - records[0].store_ms if records else None,
        topics=list(dict.fromkeys(record.topic for record in records)),
        records=[
            ShownRecord(**fields_of(record), since_ms=units.minus(record.store_ms, earlier))
            for record, earlier in zip(records[:MAX_ROWS], before, strict=False)
        ],
        left_out=max(0, len(records) - MAX_ROWS),
    )


def _archive(result: Archive) -> ArchiveReport:
    by_day: dict[str, int] = {}
    for one in result.days:
        by_day[one.day] = by_day.get(one.day, 0) + one.records
    newest = sorted(by_day.items(), reverse=True)
    return ArchiveReport(
        records=result.records,
        bytes=result.bytes,
        files=result.files,
        begin=result.from_,
        end=result.to,
        log_bytes=result.to - result.from_,
        missing=result.missing,
        doubt=result.doubt,
        by_day=bars([Bar(day, count, "flushed") for day, count in newest]),
        days=result.days[:MAX_ROWS],
        left_out=max(0, len(result.days) - MAX_ROWS),
    )
