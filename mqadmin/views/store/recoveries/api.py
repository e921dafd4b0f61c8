"""Starts of the store: their records, and what a start would do."""

from __future__ import annotations

import asyncio
from typing import Any

from django.http import HttpRequest
from ninja import Router, Status

from mqadmin.api import schemas
from mqadmin.api.auth import need
from mqadmin.audit import aaudited
from mqadmin.jobs import queue
from mqadmin.views.sources import measured
from mqadmin.views.store.recoveries import facts as kept

router = Router()


@router.get("/recoveries", response=schemas.MeasuredList)
async def recoveries(request: HttpRequest):
    """Every start that has a record, newest first, in brief: those that failed or ended midway, looks and dry
    runs too."""
    return measured("recoveries", {"items": schemas.facts(await asyncio.to_thread(kept.listing))})


@router.post("/recoveries/dry-run", response={202: schemas.Job})
async def dry_run(request: HttpRequest, body: schemas.DryRun):
    """What would a start do, if the process died now? A job that reads the files as they are and changes
    none; its result names the record."""
    caller = need(request, "operator")
    async with aaudited(caller, "start", "job", "dry_run") as record:
        job = await asyncio.to_thread(queue.start, "dry_run", {"accept_damage": body.accept_damage}, caller)
        record["id"] = job.id
        return Status(202, job)


@router.get("/recoveries/{recovery_id}", response=dict[str, Any])
async def recovery(request: HttpRequest, recovery_id: str):
    """The record of one start: facts, each step with when it began and how long it took, what was cut,
    findings."""
    return schemas.facts(await asyncio.to_thread(kept.one, recovery_id))
