"""REST routes of the disk: its use, its growth, and the files that are deleted next."""

from __future__ import annotations

import asyncio
from typing import Annotated

from django.http import HttpRequest
from ninja import Query, Router

from broker_store.facts.disk import DiskFacts, DiskForecast
from broker_store.facts.disk_scan import MAX_RETENTION_HOURS
from mqadmin.api import schemas
from mqadmin.cluster.current import current_cluster

router = Router()


@router.get("/disk", response=schemas.measured_schema_of(DiskFacts))
async def disk(request: HttpRequest):
    """The use by kind of file, the growth of the log over several lengths of time, and the time at which each
    mark is reached; null is unknown."""
    return schemas.measured_facts("disk", await asyncio.to_thread(current_cluster().store.disk))


@router.get("/disk/forecast", response=schemas.measured_schema_of(DiskForecast))
async def forecast(
    request: HttpRequest, retention_hours: Annotated[int | None, Query(ge=1, le=MAX_RETENTION_HOURS)] = None
):
    """The same with the log files that are deleted next, the times, and the groups that have not read them;
    as if files were kept for `retention_hours`. This request changes nothing."""
    return schemas.measured_facts(
        "disk", await asyncio.to_thread(current_cluster().store.disk_forecast, retention_hours)
    )
