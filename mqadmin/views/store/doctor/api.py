"""The store doctor by REST: runs of the check, their findings, the plan of a repair."""

from __future__ import annotations

from django.http import HttpRequest
from ninja import Router, Status

from broker_store.units import fields_of
from mqadmin import audit
from mqadmin.api import paging, schemas
from mqadmin.api.auth import need
from mqadmin.api.paging import Cursor, Limit
from mqadmin.views.store.doctor import facts as checks

router = Router()


# The findings and actions of a run may be thousands
CheckRun = schemas.unchecked(schemas.schema_of(checks.CheckRun, given={"counts": schemas.Counts | None}))
CheckRunDetail = schemas.unchecked(
    schemas.schema_of(checks.CheckRunDetail, given={"counts": schemas.Counts | None})
)


class CheckRuns(schemas.Page):
    items: list[CheckRun]  # type: ignore[valid-type]  # made from a type


@router.get("/checks", response=CheckRuns)
def list_checks(request: HttpRequest, cursor: Cursor = None, limit: Limit = paging.DEFAULT_LIMIT):
    """Runs of the check, newest first, each with its number of findings by grade."""
    listed = paging.page(
        checks.listing(),
        lambda run: f"{(1 << 53) - (run.created_ms or 0):017d}/{run.id}",
        cursor,
        limit,
    )
    return fields_of(listed) | {"items": schemas.facts(listed.items)}


@router.post("/checks", response={202: CheckRunDetail})
def start_check(request: HttpRequest):
    """Check the whole store, in a process of its own; a store in use up to where it is dispatched. POST to
    /jobs/ID/cancel stops it."""
    caller = need(request, "operator")
    with audit.audited(caller, "start", "job", checks.KIND) as record:
        run = checks.start(caller)
        record["id"] = run.id
    return Status(202, schemas.facts(run))


@router.get("/checks/{run_id}", response=CheckRunDetail)
def show_check(request: HttpRequest, run_id: str):
    """A run: its progress; at its end each finding with file, byte, grade (harmless, next start, repair,
    lost), its meaning and what a repair does."""
    return schemas.facts(checks.find(run_id))


@router.get("/checks/{run_id}/plan", response=schemas.unchecked(schemas.schema_of(checks.ProposedRepair)))
def show_plan(request: HttpRequest, run_id: str):
    """What a repair would do, action by action, with the bytes and files it touches. It is done offline, by
    `command`.

    `lost` has the messages that no repair brings back. Its `unnamed_bytes` are missing or damaged bytes with
    records that no queue names. `ends_unknown` are queues for which it is unknown whether the lost end of the
    log held more messages: their units end before it. `perhaps_expired` messages lie before the begin of the
    log: retention deleted them, or they are lost, and no file shows which.
    """
    return schemas.facts(checks.plan(run_id))
