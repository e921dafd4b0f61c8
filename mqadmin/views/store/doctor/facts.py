"""Runs of the store doctor: jobs of the kind check_store, with their findings and proposed repairs."""

from __future__ import annotations

from dataclasses import dataclass

from broker_store.check.results import HARMLESS, CheckResult, CheckSummary, GradedFinding, RepairPlan
from broker_store.rest.problems import Problem
from broker_store.units import Moment, fields_of, small_by_field
from mqadmin.jobs import queue
from mqadmin.jobs.facts import Job, JobProgress, State, result_of
from mqadmin.process.program_name import program

KIND = "check_store"
MAX_STREAMED = 50  # findings of a frame; REST and page have all
APPLY = f"{program()} check_store --apply"
OFFLINE = (
    "A repair needs a store on which no broker runs: stop it, then run the command. The command checks "
    "the store again, and repairs what it finds then."
    " The index alone can be built again while the broker runs, as a job."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckStep:
    """A step of a run."""

    text: str
    began_ms: Moment


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckProgress:
    """The progress of a run. Its numbers are strings in REST, those of a `JobProgress` are numbers."""

    text: str  # the step
    done: int | None  # of `total`, in `unit`
    total: int | None
    running: int | None
    unit: str
    at_ms: Moment | None
    steps: list[CheckStep]  # all so far, the newest last


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRun:
    """A run of the check. Its result is None until it is done."""

    id: str
    state: State
    by: str | None  # user or token that started it
    created_ms: Moment | None
    started_ms: Moment | None
    ended_ms: Moment | None
    progress: CheckProgress | None
    error: str | None  # a sentence
    canceled_by: str | None
    ok: bool | None
    counts: dict[str, int] | None  # of what was read
    kinds: dict[str, int] | None  # findings by kind
    grades: dict[str, int] | None  # findings by grade
    log_end: int | None  # log offset


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRunDetail(CheckRun):
    """The same with each finding, and the plan of a repair."""

    findings: list[GradedFinding]
    plan: RepairPlan | None
    mark: str  # see `mark_of` of mqadmin/jobs/queue.py


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposedRepair(RepairPlan):
    """The plan of a repair, and the command that does it."""

    command: str
    how: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckState:
    """The changing part of a run."""

    id: str
    state: State
    progress: CheckProgress | None
    ok: bool | None
    grades: dict[str, int] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BriefFinding:
    """A finding without its meaning."""

    grade: str
    kind: str
    file: str
    offset: int | None
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckFrame:
    """A frame of the stream check."""

    mark: str
    run: CheckState
    findings: list[BriefFinding]  # the first MAX_STREAMED


def listing() -> list[CheckRun]:
    """Return all runs, newest first."""
    return [_run_of(job, result_of(CheckSummary, job)) for job in queue.listing() if job.kind == KIND]


def start(caller) -> CheckRunDetail:
    """Start a run, and return it. Raises Problem."""
    return _detail_of(queue.start(KIND, {}, caller))


def find(run_id: str) -> CheckRunDetail:
    """Return a run. Raises Problem when there is none of this id."""
    job = queue.find(run_id)
    if job.kind != KIND:
        raise Problem("not_found", f"there is no check {run_id}")
    return _detail_of(job)


def brief(run: CheckRun) -> CheckRun:
    """Return a run without its findings and plan."""
    return CheckRun(**{name: getattr(run, name) for name in small_by_field(CheckRun)})


def plan(run_id: str) -> ProposedRepair:
    """Return the plan of a repair of a run's findings. Raises Problem."""
    run = find(run_id)
    if run.plan is None:
        raise Problem("not_found", f"the check has no plan: it is {run.state}")
    return ProposedRepair(**fields_of(run.plan), command=APPLY, how=OFFLINE)


def watched(run_id: str) -> CheckFrame:
    """Return the progress of a run, and its findings, for a stream."""
    run = find(run_id)
    return CheckFrame(
        mark=run.mark,
        run=CheckState(id=run.id, state=run.state, progress=run.progress, ok=run.ok, grades=run.grades),
        findings=[
            BriefFinding(**{name: getattr(finding, name) for name in small_by_field(BriefFinding)})
            for finding in run.findings[:MAX_STREAMED]
        ],
    )


def last_findings() -> int | None:
    """Return the number of findings of the last finished check, without the harmless ones; 0 without a check,
    None when its result cannot be read."""
    done = queue.last_done(KIND)
    if done is None:
        return 0
    summary = result_of(CheckSummary, done)
    if summary is None:
        return None
    return sum(count for grade, count in summary.grades.items() if grade != HARMLESS)


def _detail_of(job: Job) -> CheckRunDetail:
    result = result_of(CheckResult, job)
    return CheckRunDetail(
        **fields_of(_run_of(job, result)),
        findings=[] if result is None else result.findings,
        plan=None if result is None else result.plan,
        mark=queue.mark_of([job]),
    )


def _run_of(job: Job, found: CheckSummary | None) -> CheckRun:
    return CheckRun(
        id=job.id,
        state=job.state,
        by=job.by,
        created_ms=job.created_ms,
        started_ms=job.started_ms,
        ended_ms=job.ended_ms,
        progress=None if job.progress is None else _progress_of(job.progress),
        error=job.error,
        canceled_by=job.canceled_by,
        ok=None if found is None else found.ok,
        counts=None if found is None else found.counts,
        kinds=None if found is None else found.kinds,
        grades=None if found is None else found.grades,
        log_end=None if found is None else found.log_end,
    )


def _progress_of(progress: JobProgress) -> CheckProgress:
    steps = [CheckStep(**fields_of(step)) for step in progress.steps]
    return CheckProgress(**fields_of(progress) | {"steps": steps})
