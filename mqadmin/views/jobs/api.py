"""REST routes of jobs: start, show, cancel, repeat, fetch the file that a job made."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Literal

from django.http import FileResponse, HttpRequest
from ninja import Router, Status
from pydantic import Field

from broker_store.rest.problems import Problem
from broker_store.units import fact_of
from mqadmin import audit
from mqadmin.api import paging, schemas
from mqadmin.api.auth import need
from mqadmin.api.paging import Cursor, Limit
from mqadmin.api.parameters import Confirm
from mqadmin.jobs import queue, runs

router = Router()
MEDIA_TYPES = {".jsonl": "application/octet-stream", ".csv": "text/csv; charset=utf-8"}


class NewJob(schemas.In):
    kind: Literal[
        "check_store",
        "rebuild_index",
        "export_messages",
        "resend_dead_letters",
        "dry_run",
        "crash_lab",
        "backup",
        "pipeline_audit",
        "pipeline_statistics",
        "pipeline_lineage",
        "pipeline_archive",
    ]
    parameters: dict[str, Any] = {}
    confirm: str | None = Field(
        None, max_length=255, description="resend_dead_letters: the group's name once more"
    )


@router.get("/jobs", response=schemas.Jobs)
def list_jobs(request: HttpRequest, cursor: Cursor = None, limit: Limit = paging.DEFAULT_LIMIT):
    """Jobs, newest first."""
    return paging.page(queue.listing(), paging.newest_first, cursor, limit)


@router.post("/jobs", response={202: schemas.Job})
def start_job(request: HttpRequest, body: NewJob):
    """Start a job: check_store, rebuild_index, export_messages (topic, begin_ms, end_ms, form, limit),
    resend_dead_letters (group, to, limit), backup (keep, max_mb_s, copy_log), or one of the pipeline's.

    resend_dead_letters needs `confirm`, the group's name; GET /groups/GROUP/dead-letters shows what it would
    send."""
    caller = need(request, "operator")
    with audit.audited(caller, "start", "job", body.kind, parameters=body.parameters) as record:
        job = queue.start(body.kind, body.parameters, caller, confirm=body.confirm)
        record["id"] = job.id
    return Status(202, job)


@router.get("/jobs/{job_id}", response=schemas.Job)
def show_job(request: HttpRequest, job_id: str):
    return queue.find(job_id)


@router.post("/jobs/{job_id}/cancel", response=schemas.Job)
def cancel_job(request: HttpRequest, job_id: str):
    """Stop a job, with all processes that it started; a waiting job is removed from its queue."""
    caller = need(request, "operator")
    with audit.audited(caller, "cancel", "job", job_id[:100]):
        return queue.cancel(job_id, caller)


@router.post("/jobs/{job_id}/retry", response={202: schemas.Job})
def retry_job(request: HttpRequest, job_id: str, confirm: Confirm = None):
    """Start a new job like one that has ended. A job that needs a confirmation needs it again."""
    caller = need(request, "operator")
    with audit.audited(caller, "retry", "job", job_id[:100]) as record:
        job = queue.retry(job_id, caller, confirm, record)
    return Status(202, job)


@dataclass(frozen=True, slots=True, kw_only=True)
class _WithFile:
    """The part of a result, of any version, that names the file of the job."""

    file: object


@router.get("/jobs/{job_id}/file", response={200: None}, openapi_extra=schemas.binary("the file"))
def job_file(request: HttpRequest, job_id: str):
    """The file that an export wrote, as a download."""
    need(request, "operator")
    job = queue.find(job_id)
    if not job.has_file or job.result is None:
        raise Problem("not_found", "this job made no file")
    # The name comes from Redis and may be anything, so it is only compared with those that an export of this
    # job may have.
    name = fact_of(_WithFile, job.result).file
    path = runs.data_directory() / "exports" / f"{job.id}{PurePath(str(name)).suffix}"
    if path.name != name or path.suffix not in MEDIA_TYPES or path.is_symlink() or not path.is_file():
        raise Problem("not_found", "the file does not exist any more")
    return FileResponse(
        open(path, "rb"), as_attachment=True, filename=path.name, content_type=MEDIA_TYPES[path.suffix]
    )
