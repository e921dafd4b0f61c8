"""REST routes for runs of the pipeline's jobs: audit, statistics, lineage, archive. A run is a job, and is
also found under /jobs."""

from __future__ import annotations

from typing import Annotated, Literal

from django.http import HttpRequest
from ninja import Router, Schema, Status
from pydantic import Field

from broker_store.units import Document
from mqadmin import audit
from mqadmin.api import paging, schemas
from mqadmin.api.auth import need
from mqadmin.api.paging import Cursor, Limit
from mqadmin.jobs import backups, facts, pipeline, queue, runs, schedules
from mqadmin.process import run_file

router = Router()


class PipelineJob(Schema):
    name: str
    title: str
    lead: str
    takes: list[str] = Field(description="names of the parameters that it takes")
    needs: list[str] = Field(description="names of the parameters that are required")


class PipelineJobs(Schema):
    items: list[PipelineJob]


class RunParameters(schemas.In):
    """`GET /pipeline` lists which of these a job takes."""

    topic: schemas.TopicName | None = Field(default=None, description="statistics, lineage: only this topic")
    begin_ms: schemas.Moment | None = Field(
        default=None, description="statistics, lineage: stored from then on"
    )
    end_ms: schemas.Moment | None = Field(default=None, description="statistics, lineage: stored before then")
    key: Annotated[str, Field(min_length=1, max_length=1_024)] | None = Field(
        default=None, description="lineage: a key, a unique key or the id of a message"
    )


class ScheduleParameters(RunParameters):
    keep: Annotated[int, Field(ge=0, le=backups.MAX_KEPT)] | None = Field(
        default=None, description="backup: whole backups that stay, with the new one; none or 0: all"
    )
    max_mb_s: Annotated[int, Field(ge=0, le=backups.MAX_MB_S)] | None = Field(
        default=None, description="backup: MB that are read and copied a second; none or 0: no limit"
    )
    copy_log: schemas.Flag | None = Field(default=None, description="backup: closed log files are copied too")


class NewSchedule(schemas.In):
    job: Literal["audit", "statistics", "lineage", "archive", "backup"]
    cron: Annotated[str, Field(min_length=9, max_length=100, examples=["30 2 * * *"])] = Field(
        description="minute, hour, day, month, weekday; UTC"
    )
    parameters: ScheduleParameters = ScheduleParameters()


Schedule = schemas.schema_of(facts.Schedule)


class Schedules(Schema):
    items: list[Schedule]  # type: ignore[valid-type]  # made from a type


class RunResult(Schema):
    """The result of a run. An audit has findings, kinds, counts, errors, ok; the statistics topics, tags,
    groups, hours, hot_keys, index and sums; a lineage records; an archive the files written, by topic and
    day."""

    run: str
    job: str
    result: Document = Field(description="as the job wrote it; which names there are depends on its version")


class RunLog(Schema):
    run: str
    text: str = Field(
        description="the end of the log, at most 64 KiB; paths of the machine are replaced by names"
    )


@router.get("/pipeline", response=PipelineJobs)
def list_pipeline_jobs(request: HttpRequest):
    """The jobs of the pipeline, and their parameters."""
    return {"items": [*pipeline.JOBS.values()]}


@router.get("/pipeline/schedules", response=Schedules)
def list_schedules(request: HttpRequest):
    """The schedules of runs and of backups."""
    return {"items": schedules.listing()}


@router.post("/pipeline/schedules", response={201: Schedule})
def add_schedule(request: HttpRequest, body: NewSchedule):
    """Add a schedule: a job runs at the times of a cron expression, with the role that the creator of the
    schedule has at that time. A backup needs the role admin."""
    caller = need(request, "operator")
    parameters = body.parameters.dict(exclude_none=True)
    with audit.audited(
        caller, "create", "schedule", body.job, cron=body.cron, parameters=parameters
    ) as record:
        made = schedules.add(body.job, parameters, body.cron, caller)
        record["id"] = made.id
    return Status(201, made)


@router.delete("/pipeline/schedules/{schedule_id}", response={204: None})
def remove_schedule(request: HttpRequest, schedule_id: int):
    """Remove a schedule. The runs that it started stay."""
    caller = need(request, "operator")
    with audit.audited(caller, "delete", "schedule", str(schedule_id)):
        schedules.remove(schedule_id)
    return Status(204, None)


@router.get("/pipeline/{job}/runs", response=schemas.Jobs)
def list_runs(request: HttpRequest, job: str, cursor: Cursor = None, limit: Limit = paging.DEFAULT_LIMIT):
    """Runs of one job, newest first."""
    name = pipeline.job_of(job).name
    return paging.page(
        [run for run in queue.listing() if run.pipeline == name], paging.newest_first, cursor, limit
    )


@router.post("/pipeline/{job}/runs", response={202: schemas.Job})
def start_run(request: HttpRequest, job: str, body: RunParameters):
    """Start a run. One runs at a time, the others wait."""
    caller = need(request, "operator")
    chosen, parameters = pipeline.job_of(job), body.dict(exclude_none=True)
    with audit.audited(caller, "start", "job", chosen.kind, parameters=parameters) as record:
        run = queue.start(chosen.kind, parameters, caller)
        record["id"] = run.id
    return Status(202, run)


@router.get("/pipeline/{job}/runs/{run_id}", response=schemas.Job)
def show_run(request: HttpRequest, job: str, run_id: str):
    """State, progress and, at the end, a summary of the result."""
    return queue.find_run(run_id, job)


@router.get("/pipeline/{job}/runs/{run_id}/result", response=RunResult)
def run_result(request: HttpRequest, job: str, run_id: str):
    """The whole result of a run that is done."""
    run = queue.find_run(run_id, job)
    return {
        "run": run.id,
        "job": job,
        "result": schemas.facts(pipeline.read_document(runs.data_directory(), run.id)),
    }


@router.get("/pipeline/{job}/runs/{run_id}/logs", response=RunLog)
def run_logs(request: HttpRequest, job: str, run_id: str):
    """The log of a run: its steps with their times, and the output of Spark and Java."""
    need(request, "operator")
    run, data = queue.find_run(run_id, job), runs.data_directory()
    return {"run": run.id, "text": pipeline.read_log(data, run_file.store_directory(data), run.id)}


@router.post("/pipeline/{job}/runs/{run_id}/cancel", response=schemas.Job)
def cancel_run(request: HttpRequest, job: str, run_id: str):
    """Stop a run, with its Java and Python processes; a waiting run is removed from its queue."""
    caller = need(request, "operator")
    with audit.audited(caller, "cancel", "job", run_id[:100]):
        return queue.cancel(queue.find_run(run_id, job).id, caller)


@router.post("/pipeline/{job}/runs/{run_id}/retry", response={202: schemas.Job})
def retry_run(request: HttpRequest, job: str, run_id: str):
    """Start a new run of the same job with the same parameters."""
    caller = need(request, "operator")
    with audit.audited(caller, "retry", "job", run_id[:100]) as record:
        run = queue.retry(queue.find_run(run_id, job).id, caller, record=record)
    return Status(202, run)
