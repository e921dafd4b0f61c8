"""Starts of the store: their records, and what a start would do."""

from __future__ import annotations

import asyncio

from django.http import HttpRequest
from ninja import Router, Status

from broker_store.errors import StoreClosedError
from broker_store.facts.starts import StartBrief, StartRecord, StartReport
from broker_store.units import fields_of
from mqadmin.api import schemas
from mqadmin.api.auth import need
from mqadmin.audit import aaudited
from mqadmin.cluster.current import current_cluster
from mqadmin.jobs import queue
from mqadmin.views.sources import measured
from mqadmin.views.store.recoveries import facts as kept

router = Router()


class Starts(schemas.Measured):
    items: list[schemas.schema_of(StartBrief)]  # type: ignore[valid-type]  # made from a type


@router.get(
    "/recovery",
    response=schemas.measured_schema_of(StartReport),
    operation_id="mqadmin_api_store_recovery",  # older than this view
    summary="Recovery",
)
async def last_start(request: HttpRequest):
    """The report of the last start, live while it runs: each step with file, bytes, messages and duration;
    what was cut."""
    report = current_cluster().store.recovery()
    if report is None:
        raise StoreClosedError("the store has not been opened yet")
    return schemas.measured_facts("recovery", report)


@router.get("/store/recoveries", response=Starts)
async def recoveries(request: HttpRequest):
    """Every start that has a record, newest first, in brief: those that failed or ended midway, inspections
    and dry runs too."""
    return {
        **fields_of(measured("recoveries")),
        "items": schemas.facts(await asyncio.to_thread(kept.listing)),
    }


@router.post("/store/recoveries/dry-run", response={202: schemas.Job})
async def dry_run(request: HttpRequest, body: schemas.DryRun):
    """The plan of a start if the process died now. A job that reads the files as they are and changes
    none; its result names the record."""
    caller = need(request, "operator")
    async with aaudited(caller, "start", "job", "dry_run") as record:
        job = await asyncio.to_thread(queue.start, "dry_run", {"accept_damage": body.accept_damage}, caller)
        record["id"] = job.id
        return Status(202, job)


@router.get("/store/recoveries/{recovery_id}", response=schemas.schema_of(StartRecord))
async def recovery(request: HttpRequest, recovery_id: str):
    """The record of one start: facts, each step with when it began and how long it took, what was cut,
    findings."""
    return schemas.facts(await asyncio.to_thread(kept.one, recovery_id))
