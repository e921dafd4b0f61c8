"""What starts of the store found and did, as their reports and records say.

A report is made while a start runs (`engine/start/report.py`), and is kept as a record in JSON. A record that
an older version wrote may lack fields; they are None.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from broker_store.engine.status.store_state import LostAndFound
from broker_store.units import Moment, Small, fact_of


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFound:
    """The checkpoint as a start found it; its stamps are 0 where there was none."""

    found: bool
    physic_ms: Moment
    logics_ms: Moment
    index_ms: Moment
    limit_ms: Moment | None  # a first record that is not younger is safe to begin with


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanStart:
    """The log file that the scan began with, and why."""

    file: str
    base: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedFile:
    """A log file that the scan could have begun with."""

    file: str
    base: int | None
    first_ms: Moment | None  # store time of its first record; None: it has none
    taken: bool
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanStop:
    """Where the scan of the log stopped, and why."""

    file: str
    at: int  # bytes of the file
    log_offset: int | None
    reason: str
    crc_failed: bool | None
    data_follows: bool | None
    verdict: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LogCut:
    """What was cut off the log."""

    bytes: int
    files: int
    from_: int | None  # a log offset


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueCut:
    """Units that were cut off a queue, from number `first` on."""

    topic: str
    queue_id: Small
    first: int
    units: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuesCut:
    """What was cut off queues; of very many queues the first are named."""

    units: int
    files: int
    queues: list[QueueCut]
    queues_left_out: Small


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexCut:
    """What was cut off the index, and how many of its files were linked again."""

    entries: int
    files: int
    linked: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CutMessagesOfQueue:
    """Whole messages of a queue that went with the end of the log, by their offsets in the queue."""

    topic: str
    queue_id: Small
    first: int
    last: int
    messages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeMessagesCut:
    """Whole messages that went with the end of the log."""

    whole: int
    queues: list[CutMessagesOfQueue]
    queues_left_out: Small
    searched_to: int | None  # the log offset where the search for them ended; None: it covered all


@dataclass(frozen=True, slots=True, kw_only=True)
class StartCut:
    """What a start took away."""

    commitlog: LogCut
    consumequeue: QueuesCut
    index: IndexCut
    messages: WholeMessagesCut | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchedAgain:
    """The part of the log, in log offsets, that was dispatched again."""

    from_: int
    to: int
    units: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StartStep:
    """A step of a start."""

    name: str
    file: str | None
    started_ms: Moment | None
    at_ms: float  # since the start began
    duration_ms: float | None  # None: it runs, or never ended
    bytes: int
    messages: int
    of_bytes: int | None  # how many there are to do
    times: int  # files that it stands for
    detail: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StartFinding:
    """Something that a start found out of order."""

    severity: str
    file: str | None
    offset: int | None
    what: str


@dataclass(frozen=True, kw_only=True)
class StartReport:
    """What a start found and did until now."""

    id: str
    purpose: str | None  # start, inspect, dry run or lab
    sizes: dict[str, int | None] | None  # the settings of file sizes that the store was opened with
    delay_levels: str | None
    flush_disk_type: str | None
    started_ms: Moment | None
    finished_ms: Moment | None
    before_ms: int | None  # from when the store was asked for to when it was opened
    took_ms: float | None
    between_ms: float | None  # between the steps
    left_ms: int | None  # of the step that runs
    kind: str | None  # first start, normal, abnormal or unknown
    state: str  # running, done, failed or ended midway
    step: str | None
    in_use: bool | None  # another process writes the store
    came_meanwhile: int | None  # bytes after the log's end that were not there when it was scanned
    abort_found: bool | None
    checkpoint: CheckpointFound | None
    start: ScanStart | None
    tried: list[TriedFile]
    tried_left_out: int | None
    scanned_bytes: int | None
    total_bytes: int | None
    scan_bytes_per_s: int | None
    messages: int | None
    crc_failures: int | None
    stopped: ScanStop | None
    log_end: int | None
    cut_bytes: int | None
    cut: StartCut | None
    dispatched: DispatchedAgain | None
    redispatched: int | None
    lost_and_found: LostAndFound | None
    steps: list[StartStep]
    findings: list[StartFinding]
    findings_left_out: int | None
    error: str | None


@dataclass(frozen=True, kw_only=True)
class StartRecord(StartReport):
    """The record of a start: its report, of which store, and in which run of the machine."""

    store: str | None
    boot: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StartBrief:
    """The record of a start in brief."""

    id: str | None
    purpose: str | None
    kind: str | None
    state: str | None
    started_ms: Moment | None
    finished_ms: Moment | None
    took_ms: float | None
    scanned_bytes: int | None
    messages: int | None
    cut_bytes: int | None
    redispatched: int | None
    log_end: int | None
    error: str | None
    store: str | None
    findings: int


def report_of(document: Mapping[str, Any]) -> StartReport:
    """The report of `RecoveryReport.as_dict`."""
    return fact_of(StartReport, {**document})


def record_of(document: Mapping[str, Any]) -> StartRecord:
    """The start of which this is the record. ValueError when it cannot be read as one."""
    return fact_of(StartRecord, {"tried": [], "steps": [], "findings": [], **document})


def brief_of(document: Mapping[str, Any]) -> StartBrief:
    """A record in brief."""
    return fact_of(StartBrief, {**document, "findings": len(document.get("findings") or [])})
