"""The disk: what it holds, how fast it fills, what goes next."""

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
    """Use by kind of file, the rate at which the log grows over several stretches of time, and when each mark
    is reached; null is not known."""
    return schemas.measured_facts("disk", await asyncio.to_thread(current_cluster().store.disk))


@router.get("/disk/forecast", response=schemas.measured_schema_of(DiskForecast))
async def forecast(
    request: HttpRequest, retention_hours: Annotated[int | None, Query(ge=1, le=MAX_RETENTION_HOURS)] = None
):
    """The same with the log files that go next, when, and which groups have not read what is in them; as if
    files were kept for `retention_hours`. Nothing is changed by asking."""
    return schemas.measured_facts(
        "disk", await asyncio.to_thread(current_cluster().store.disk_forecast, retention_hours)
    )
