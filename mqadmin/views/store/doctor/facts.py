"""Runs of the store doctor: jobs of the kind check_store, with what each found and the repair it proposes."""

from __future__ import annotations

from broker_store.check.doctor import HARMLESS
from broker_store.rest.problems import Problem
from broker_store.units import document_of
from mqadmin.jobs import queue
from mqadmin.jobs.facts import Job

KIND = "check_store"
STREAMED = 50  # findings of a frame; REST and page have all
APPLY = "manage.py check_store --apply"
OFFLINE = (
    "A repair is done while no broker runs on the store: stop it, then run the command. It checks "
    "once more first, so it repairs what is there then."
    " The index alone can be made again while the broker runs, as a job."
)


def listing() -> list[dict]:
    """The runs there are, newest first."""
    return [_told(job) for job in queue.listing() if job.kind == KIND]


def start(caller) -> dict:
    return _told(queue.start(KIND, {}, caller))


def find(run_id: str) -> dict:
    """A run; a Problem when there is none of this id."""
    job = queue.find(run_id)
    if job.kind != KIND:
        raise Problem("not_found", f"there is no check {run_id}")
    return _told(job)


def plan(run_id: str) -> dict:
    """What a repair of that which a run found would do."""
    run = find(run_id)
    if run["plan"] is None:
        raise Problem("not_found", f"the check has found no plan: it is {run['state']}")
    return run["plan"] | {"command": APPLY, "how": OFFLINE}


def watched(run_id: str) -> dict:
    """How far a run is, and what it found, for those who watch it."""
    run = find(run_id)
    brief = [
        {name: finding[name] for name in ("grade", "kind", "file", "offset", "what")}
        for finding in run["findings"][:STREAMED]
    ]
    return {
        "mark": run["mark"],
        "run": {name: run[name] for name in ("id", "state", "progress", "ok", "grades")},
        "findings": brief,
    }


def last_findings() -> int:
    """How many findings the last check that was done has, but for the harmless; 0 when there was none."""
    done = queue.last_done(KIND)
    grades = ((done and done.result) or {}).get("grades") or {}
    return sum(count for grade, count in grades.items() if grade != HARMLESS)


def _told(job: Job) -> dict:
    result = job.result or {}
    return {
        "id": job.id,
        "state": job.state,
        "by": job.by,
        "created_ms": job.created_ms,
        "started_ms": job.started_ms,
        "ended_ms": job.ended_ms,
        "progress": document_of(job.progress),
        "error": job.error,
        "canceled_by": job.canceled_by,
        "ok": result.get("ok"),
        "counts": result.get("counts"),
        "kinds": result.get("kinds"),
        "grades": result.get("grades"),
        "log_end": result.get("log_end"),
        "findings": result.get("findings") or [],
        "plan": result.get("plan"),
        "mark": queue.mark_of([job]),
    }
