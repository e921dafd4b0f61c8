"""Facts about jobs and schedules, for pages, REST and streams."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

from broker_store.units import SMALL, Document, Fact, FactError, Moment, Small, fact_of

# A number that is a number in JSON too, though it may be above 2**31: counts of bytes and times, below 2**53.
Number = Annotated[int, SMALL]
State = Literal["waiting", "running", "canceling", "done", "failed", "canceled", "interrupted"]
OVER = frozenset({"done", "failed", "canceled", "interrupted"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A step of a job."""

    text: str
    began_ms: Number  # since 1970


@dataclass(frozen=True, slots=True, kw_only=True)
class JobProgress:
    """The progress of a job, as the job wrote it last."""

    text: str  # the step
    done: Number | None  # of `total`, in `unit`
    total: Number | None
    running: Number | None  # partitions of the pipeline that are at work
    unit: str
    at_ms: Number | None  # since 1970
    steps: list[Step]  # all so far, the newest last


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job of the queues."""

    id: str
    kind: str  # a name of KINDS, or unknown
    title: str
    queue: str
    state: State
    parameters: Annotated[Document, "the parameters of the job; which names there are depends on its kind"]
    by: str | None  # user or token that started it
    canceled_by: str | None
    created_ms: Moment | None
    started_ms: Moment | None
    ended_ms: Moment | None
    progress: JobProgress | None
    result: Annotated[
        Document | None, "the result; which names there are depends on the job's kind and version"
    ]
    error: str | None  # a sentence
    has_file: bool
    pipeline: Annotated[str | None, "the job of the pipeline whose run this is; null for other jobs"]
    retry_of: Annotated[str | None, "the job that this repeats"]
    schedule: Annotated[Small | None, "the schedule that started it"]

    @property
    def is_over(self) -> bool:
        """True if the job has ended."""
        return self.state in OVER


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """The changing part of a job."""

    id: str
    state: State
    progress: JobProgress | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsFrame:
    """A frame of the streams jobs and pipeline, the newest job first."""

    mark: str  # see `mark_of` of mqadmin/jobs/queue.py
    jobs: list[JobState]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFrame:
    """A frame of the stream job."""

    mark: str
    job: JobState


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A schedule by which a job of the pipeline or a backup starts, and the outcome of its last time."""

    id: Small
    job: str  # a name of JOBS of mqadmin/jobs/schedules.py
    title: str
    parameters: Annotated[Document, "the parameters of its runs; which names there are depends on its job"]
    cron: str  # minute, hour, day, month, weekday; UTC
    created_by: str
    created_ms: Moment
    next_ms: Moment
    next: str | None  # the same as ISO 8601
    last_ms: Annotated[Moment | None, "when it was due last; null: it was not due yet"]
    last_run: Annotated[str | None, "the run that it started last"]
    last_problem: Annotated[str | None, "why no run started when it was due last"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """The result of an export."""

    file: str  # in the directory exports
    messages: int
    bytes: int
    complete: bool  # False: the limit was reached


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupMade:
    """The result of a backup: a whole directory, and which older ones were removed for it."""

    backup: str  # its name in the directory of backups
    file_count: int
    bytes_by_kind: dict[str, int]  # linked, shared, cloned and copied
    log_begin: int  # log offsets
    log_end: int
    taken_ms: int  # all that was acknowledged and on the disk by then is in it
    earlier: str | None  # the backup with which it shares files
    notes: list[str]
    removed: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """The result of a dry run of a start; its record has the rest."""

    recovery: str  # the id of its record
    state: str
    kind: str | None
    took_ms: float | None
    scanned_bytes: int | None
    messages: int | None
    cut_bytes: int | None
    redispatched: int | None
    log_end: int | None
    error: str | None
    findings: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditSummary:
    """A summary of the result of an audit: its verdict, and numbers of what was read. None: it was not
    read."""

    ok: bool
    errors: int
    warnings: int
    queues: int | None = None
    index_files: int | None = None
    records: int | None = None
    units: int | None = None
    entries: int | None = None
    log_end: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StatisticsSummary:
    """A summary of the result of the statistics."""

    messages: int
    bytes: int
    topics: int
    complete: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LineageSummary:
    """A summary of the records of a key."""

    records: int
    topics: int
    complete: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveSummary:
    """A summary of a run of the archive."""

    records: int
    files: int
    bytes: int
    to: int  # of the log
    missing: int  # parts that were deleted before they were archived


Summary: TypeAlias = AuditSummary | StatisticsSummary | LineageSummary | ArchiveSummary


@dataclass(frozen=True, slots=True, kw_only=True)
class Resent:
    """The result of sending dead letters again, in messages."""

    sent: int
    left: int  # beyond the limit
    came_back: int  # dead letters that came while it ran
    skipped: int  # without the name of their topic
    without_topic: int  # of topics that do not exist, are not writable, or are not read by the group


def result_of(kind: type[Fact], job: Job) -> Fact | None:
    """Return the result of a job; None until it is done, and for a result that another version wrote."""
    try:
        return fact_of(kind, job.result) if job.result else None
    except FactError:
        return None
