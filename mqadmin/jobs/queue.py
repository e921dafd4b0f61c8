"""The queues of jobs: start, list, find, cancel and repeat jobs. Each call is a short request to Redis, from
the process of the broker or of the schedules."""

from __future__ import annotations

import hashlib
import re
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import redis
from django.conf import settings
from rq.command import send_stop_job_command
from rq.exceptions import DeserializationError, InvalidJobOperation, NoSuchJobError
from rq.job import Job as RqJob
from rq.job import JobStatus
from rq.registry import StartedJobRegistry
from rq.serializers import JSONSerializer

from broker_store.errors import LookupNameError
from broker_store.rest.callers import Caller
from broker_store.rest.problems import Problem
from broker_store.units import Document
from mqadmin.jobs import exports, pipeline, progress, runs
from mqadmin.jobs.facts import Job, JobFrame, JobsFrame, JobState, State
from mqadmin.jobs.kinds import KINDS, PIPELINE, Kind
from mqadmin.jobs.parameters import keywords_of
from mqadmin.jobs.worker import FUNCTIONS, AllowedJob

MAX_LISTED = 200  # newest jobs of each queue and state
# Waiting jobs of all queues: each has its parameters in Redis and a row in every list until it runs.
MAX_WAITING = 100
MAX_WAITING_OF_USER = 20  # so that other users can start jobs
_NO_ROOM = "wait until some have run, or cancel some"
_starting = threading.Lock()  # held while a request counts the waiting jobs and adds one
JOB_ID = pipeline.RUN_ID


@contextmanager
def _redis_problems() -> Iterator[None]:
    try:
        yield
    except redis.RedisError as error:
        raise Problem("jobs_unavailable", "Redis does not answer") from error


def _queues() -> list:
    import django_rq

    return [django_rq.get_queue(name) for name in settings.RQ_QUEUES]


def start(
    kind_name: str,
    parameters: dict[str, Any],
    caller: Caller,
    *,
    confirm: str | None = None,
    **about: object,
) -> Job:
    """Put a job on its queue, and return it. Which kinds are allowed depends on the caller's role; `about` is
    kept in the job's meta.

    A kind that cannot be undone needs `confirm`: the value of its parameter that names what is changed.
    Raises Problem; NameError_ for a topic or group.
    """
    kind = KINDS.get(kind_name)
    if kind is None:
        raise Problem(
            "invalid", f"there is no kind of job {kind_name!r:.60}; the kinds are {', '.join(KINDS)}"
        )
    if not caller.may(kind.role):
        raise Problem(
            "forbidden", f"{kind_name} needs the role {kind.role}; {caller.name} has the role {caller.role}"
        )
    checked = kind.check(parameters)
    kind.precondition(checked)
    name = getattr(checked, kind.confirms) if kind.confirms else None
    if name is not None and confirm != name:
        raise Problem("confirmation_needed", f"“{kind.title}” cannot be undone; confirm it by typing {name}")
    with _redis_problems(), _starting:
        queue = next(queue for queue in _queues() if queue.name == kind.queue)
        _check_room(caller)
        job = queue.create_job(
            f"{FUNCTIONS}{kind_name}",
            kwargs=keywords_of(checked),
            timeout=kind.timeout_seconds,
            result_ttl=runs.KEEP_SECONDS,
            failure_ttl=runs.KEEP_SECONDS,
            description=kind.title,
            meta={"by": caller.name, **about},
        )
        queue.enqueue_job(job)
        return describe(job)


def room() -> int:
    """Return how many more jobs may wait, 1 or more. Raises Problem if none may."""
    waiting = sum(queue.count for queue in _queues())
    if waiting >= MAX_WAITING:
        raise Problem("limit_reached", f"{waiting} jobs are waiting, at most {MAX_WAITING} may", _NO_ROOM)
    return MAX_WAITING - waiting


def _check_room(caller: Caller) -> None:
    """Check that one more job may wait, of all and of this caller. Raises Problem."""
    if room() == MAX_WAITING:
        return
    queues = _queues()
    ids = [job_id for queue in queues for job_id in queue.get_job_ids()]
    jobs = AllowedJob.fetch_many(ids, connection=queues[0].connection, serializer=JSONSerializer)
    own = sum(
        job is not None and isinstance(job.meta, dict) and job.meta.get("by") == caller.name for job in jobs
    )
    if own >= MAX_WAITING_OF_USER:
        raise Problem(
            "limit_reached",
            f"{own} jobs of {caller.name} are waiting, at most {MAX_WAITING_OF_USER} of one user may",
            _NO_ROOM,
        )


def retry(
    job_id: str, caller: Caller, confirm: str | None = None, record: dict[str, Any] | None = None
) -> Job:
    """Start a job with the same kind and parameters, and return it; the first job stays as it is. `record`
    gets kind and parameters, also where the start is refused, and the id of the new job."""
    with _redis_problems():
        job = _fetch(job_id)
        known = describe(job)
    record = {} if record is None else record
    record |= {"kind": known.kind, "parameters": known.parameters}
    if known.kind == "unknown":
        raise Problem("forbidden", "this is not a job of this program")
    if not known.is_over:
        raise Problem("conflict", f"the job has not ended: it is {known.state}")
    again = start(known.kind, known.parameters, caller, confirm=confirm, retry_of=job.id)
    record["id"] = again.id
    return again


def listing() -> list[Job]:
    """Return the newest jobs of every queue and state, newest first."""
    with _redis_problems():
        known = [describe(job) for queue in _queues() for job in _jobs_of(queue)]
    return sorted(known, key=lambda job: job.created_ms or 0, reverse=True)


def _jobs_of(queue: Any) -> list[AllowedJob]:
    ids = list(queue.get_job_ids(0, MAX_LISTED))
    for registry in (
        queue.started_job_registry,
        queue.finished_job_registry,
        queue.failed_job_registry,
        queue.canceled_job_registry,
        queue.scheduled_job_registry,
        queue.deferred_job_registry,
    ):
        ids += _newest_ids(registry)
    return _fetched(queue, dict.fromkeys(ids))


def _newest_ids(registry: Any) -> list[str]:
    return registry.get_job_ids(0, MAX_LISTED - 1, desc=True, cleanup=False)


def _fetched(queue: Any, ids: Iterable[str]) -> list[AllowedJob]:
    """Return the jobs of these ids that are still there, in this order."""
    found = AllowedJob.fetch_many(ids, connection=queue.connection, serializer=JSONSerializer)
    return [job for job in found if isinstance(job, AllowedJob)]


def failed_since(time_ms: int) -> int:
    """Return how many jobs failed at or after a time (ms), of the newest MAX_LISTED of each queue."""
    with _redis_problems():
        found = [
            describe(job)
            for queue in _queues()
            for job in _fetched(queue, _newest_ids(queue.failed_job_registry))
        ]
    return sum(job.state == "failed" and (job.ended_ms or 0) >= time_ms for job in found)


def last_done(kind: str) -> Job | None:
    """Return the job of a kind that was done last, among the newest MAX_LISTED of its queue."""
    with _redis_problems():
        queue = next(queue for queue in _queues() if queue.name == KINDS[kind].queue)
        # One at a time: the newest is nearly always of the kind.
        for job in (job for id in _newest_ids(queue.finished_job_registry) for job in _fetched(queue, [id])):
            if job.kind == kind:
                return describe(job)
    return None


def moving(*, runs_only: bool = False) -> JobsFrame:
    """Return the progress of each job, or of each run of the pipeline, newest first, for a stream."""
    found = [job for job in listing() if job.pipeline or not runs_only]
    return JobsFrame(mark=mark_of(found), jobs=[_moving(job) for job in found])


def state_of(job_id: str) -> JobFrame:
    """Return the progress of one job, for a stream."""
    job = find(job_id)
    return JobFrame(mark=mark_of([job]), job=_moving(job))


def _moving(job: Job) -> JobState:
    return JobState(id=job.id, state=job.state, progress=job.progress)


def mark_of(found: Iterable[Job]) -> str:
    """Return a hash of the ids and states of jobs: a page with another mark is out of date."""
    return hashlib.sha256("".join(f"{job.id} {job.state}\n" for job in found).encode()).hexdigest()[:16]


def check_id(job_id: str) -> str:
    if not JOB_ID.fullmatch(job_id):
        raise LookupNameError("that is no id of a job")
    return job_id


def find(job_id: str) -> Job:
    """Return a job. Raises Problem when there is none of this id."""
    with _redis_problems():
        return describe(_fetch(job_id))


def find_run(job_id: str, name: str | None = None) -> Job:
    """Return a run of the pipeline. Raises Problem when there is none of this id, or of this job."""
    if name is not None:
        pipeline.job_of(name)
    run = find(job_id)
    if run.pipeline is None or name not in (None, run.pipeline):
        raise Problem("not_found", f"there is no run {job_id} of {name or 'the pipeline'}")
    return run


def _fetch(job_id: str) -> AllowedJob:
    if not JOB_ID.fullmatch(job_id):
        raise Problem("not_found", "no job has such an id")
    try:
        job = AllowedJob.fetch(job_id, connection=_queues()[0].connection, serializer=JSONSerializer)
    except NoSuchJobError:
        raise Problem("not_found", f"there is no job {job_id} (any more)") from None
    assert isinstance(job, AllowedJob)
    return job


def cancel(job_id: str, caller: Caller) -> Job:
    """Remove a waiting job from its queue, or stop a running one, and return it. Raises Problem, also for a
    job that has ended."""
    with _redis_problems():
        job = _fetch(job_id)
        kind = KINDS.get(job.kind or "")
        if kind is None or not caller.may(kind.role):
            raise Problem("forbidden", f"{caller.name} may not stop this job")
        status = job.get_status()
        if status in (JobStatus.FINISHED, JobStatus.FAILED, JobStatus.CANCELED, JobStatus.STOPPED):
            raise Problem("conflict", f"the job has ended already: {describe(job).state}")
        job.set_canceled_by(caller.name, int(time.time() * 1000))
        try:
            if status is JobStatus.STARTED:
                send_stop_job_command(job.connection, job.id, serializer=JSONSerializer)
            else:
                job.cancel()
            _clean_after(job, kind)
        except InvalidJobOperation as error:
            raise Problem("conflict", str(error)) from error
        return describe(job)


def _clean_after(job: RqJob, kind: Kind) -> None:
    """Clean up after a job whose process was killed, as the process does at its end."""
    if kind.function is runs.export_messages:
        exports.remove_unfinished(runs.data_directory() / "exports", job.id)
    elif kind.function is runs.rebuild_index:
        # Of the broker's process, where this is called: a worker imports nothing of it
        from mqadmin.cluster.current import current_cluster

        cluster = current_cluster()
        cluster.call(cluster.index.cancel_rebuild)


def mark_interrupted() -> int:
    """Mark jobs that still count as running as interrupted, and return their number. Called when every worker
    has ended."""
    count = 0
    for queue in _queues():
        registry: StartedJobRegistry = queue.started_job_registry
        for job_id, execution_id in registry.get_job_and_execution_ids(cleanup=False):
            with queue.connection.pipeline() as pipeline:
                pipeline.zrem(registry.key, f"{job_id}:{execution_id}")
                job = next(
                    iter(
                        AllowedJob.fetch_many(
                            [job_id], connection=queue.connection, serializer=JSONSerializer
                        )
                    )
                )
                if job is not None:
                    job.meta["interrupted"] = True
                    job.save_meta()
                    exports.remove_unfinished(runs.data_directory() / "exports", job.id)
                    job.set_status(JobStatus.FAILED, pipeline=pipeline)
                    job._handle_failure("interrupted: the broker was stopped while the job ran", pipeline)
                    count += 1
                pipeline.execute()
    return count


_STATES: dict[JobStatus | None, State] = {
    JobStatus.QUEUED: "waiting",
    JobStatus.DEFERRED: "waiting",
    JobStatus.SCHEDULED: "waiting",
    JobStatus.CREATED: "waiting",
    JobStatus.STARTED: "running",
    JobStatus.FINISHED: "done",
    JobStatus.FAILED: "failed",
    JobStatus.STOPPED: "canceled",
    JobStatus.CANCELED: "canceled",
}


def describe(job: AllowedJob) -> Job:
    """Return a job of rq as pages and REST show it. A field is None if it is unknown, or not yet there."""
    meta = job.meta if isinstance(job.meta, dict) else {}
    state = _STATES.get(job.get_status(refresh=False), "waiting")
    if meta.get("interrupted"):
        state = "interrupted"
    elif state in ("failed", "running") and job.canceled_by:
        state = "canceled" if state == "failed" else "canceling"
    result = job.return_value() if state == "done" else None
    kind = KINDS.get(job.kind or "")
    return Job(
        id=job.id,
        kind=job.kind or "unknown",
        title=kind.title if kind else "unknown job",
        queue=job.origin,
        state=state,
        parameters=parameters_of(job),
        by=meta.get("by"),
        canceled_by=job.canceled_by,
        created_ms=_ms(job.created_at),
        started_ms=_ms(job.started_at),
        # A job that was killed has not stored the time of its end.
        ended_ms=job.canceled_ms if state == "canceled" and job.ended_at is None else _ms(job.ended_at),
        progress=progress.read(meta.get("progress")),
        result=result if isinstance(result, dict) else None,
        error=_error_sentence(job) if state == "failed" else None,
        has_file=isinstance(result, dict) and "file" in result,
        pipeline=PIPELINE.get(job.kind or ""),
        retry_of=meta.get("retry_of"),
        schedule=meta.get("schedule"),
    )


def parameters_of(job: RqJob) -> Document:
    """Return the parameters in a job's payload, {} where it has none that can be read. Redis may hold
    anything."""
    try:
        return dict(job.kwargs)
    except (DeserializationError, TypeError, ValueError):
        # A payload of another program must not fail the whole list
        return {}


def _ms(moment: Any) -> int | None:
    return None if moment is None else int(moment.timestamp() * 1000)


def _error_sentence(job: RqJob) -> str:
    """Return why a job failed, in a sentence: the text of JobFailed, else that the program failed. Paths,
    classes and the stack stay in the worker's log."""
    result = job.latest_result()
    trace = (result.exc_string if result is not None else None) or ""
    line = trace.strip().rpartition("\n")[2]
    kind, _, text = line.partition(": ")
    name = kind.rpartition(".")[2]
    if not line:
        return "no reason was kept"
    if name == progress.JobFailed.__name__ and text:
        return text[:500]
    if name in _ENDS:
        return _ENDS[name]
    if not re.fullmatch(r"(?:\w+\.)*[A-Z]\w*", kind):  # no class: a sentence of ours, or of rq's
        return line[:500]
    return "the program failed; the log of the workers, logs/jobs.log in the data directory, has the error"


# Reasons why a job was ended from outside, by the class of rq's error.
_ENDS = {
    "JobTimeoutException": "it took longer than this kind of job may",
    "AbandonedJobError": "its worker ended while it ran",
    "PermissionError": "it is no job of this program",
}
