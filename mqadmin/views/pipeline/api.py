"""Runs of the pipeline's jobs: audit, statistics, lineage, archive. A run is a job, and is found under /jobs
as well."""

from __future__ import annotations

from django.http import HttpRequest
from ninja import Router, Status

from mqadmin import audit
from mqadmin.api import paging, schemas
from mqadmin.api.auth import need
from mqadmin.api.paging import Cursor, Limit
from mqadmin.jobs import pipeline, queue, runs, schedules
from mqadmin.process import run_file

router = Router()


@router.get("/pipeline", response=schemas.PipelineJobs)
def list_pipeline_jobs(request: HttpRequest):
    """The jobs there are, and what each may be given."""
    return {"items": [*pipeline.JOBS.values()]}


@router.get("/pipeline/schedules", response=schemas.Schedules)
def list_schedules(request: HttpRequest):
    """Runs that start by themselves, and when."""
    return {"items": schedules.listing()}


@router.post("/pipeline/schedules", response={201: schemas.Schedule})
def add_schedule(request: HttpRequest, body: schemas.NewSchedule):
    """Have a job run at the times of a cron expression, with the role that its maker has at each run."""
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
    """The runs that it started stay."""
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
def start_run(request: HttpRequest, job: str, body: schemas.RunParameters):
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


@router.get("/pipeline/{job}/runs/{run_id}/result", response=schemas.RunResult)
def run_result(request: HttpRequest, job: str, run_id: str):
    """The whole result of a run that is done."""
    run = queue.find_run(run_id, job)
    return {
        "run": run.id,
        "job": job,
        "result": schemas.facts(pipeline.read_result(runs.data_directory(), run.id)),
    }


@router.get("/pipeline/{job}/runs/{run_id}/logs", response=schemas.RunLog)
def run_logs(request: HttpRequest, job: str, run_id: str):
    """Its steps with their times, and what Spark and Java said."""
    need(request, "operator")
    run, data = queue.find_run(run_id, job), runs.data_directory()
    return {"run": run.id, "text": pipeline.read_log(data, run_file.store_directory(data), run.id)}


@router.post("/pipeline/{job}/runs/{run_id}/cancel", response=schemas.Job)
def cancel_run(request: HttpRequest, job: str, run_id: str):
    """Stop a run, with its Java and Python processes; one that waits is taken off its queue."""
    caller = need(request, "operator")
    with audit.audited(caller, "cancel", "job", run_id[:100]):
        return queue.cancel(queue.find_run(run_id, job).id, caller)


@router.post("/pipeline/{job}/runs/{run_id}/retry", response={202: schemas.Job})
def retry_run(request: HttpRequest, job: str, run_id: str):
    """Start the same job again, with the same parameters, as another run."""
    caller = need(request, "operator")
    with audit.audited(caller, "retry", "job", run_id[:100]) as record:
        run = queue.retry(queue.find_run(run_id, job).id, caller, record=record)
    return Status(202, run)
