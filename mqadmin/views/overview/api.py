"""REST routes of the overview: the condition of the broker, its numbers, and refusals."""

from __future__ import annotations

import asyncio

from django.http import HttpRequest
from ninja import Router, Schema
from pydantic import Field

from broker_store.units import fields_of
from mqadmin.api import schemas
from mqadmin.cluster.current import current_cluster
from mqadmin.facts.condition import Condition
from mqadmin.facts.overview import Overview
from mqadmin.views.sources import measured

router = Router()


class Refusals(Schema):
    at_ms: schemas.Time
    source: str = Field(description="where these numbers come from")
    items: list[schemas.Refused]  # type: ignore[valid-type]  # made from a type


@router.get("/condition", response=schemas.schema_of(Condition))
async def condition(request: HttpRequest):
    """The condition of the broker in one sentence, and each notice, the most severe first: refused sends, the
    disk's forecast, flags and damage, lags that grow, failed jobs. `unknown` is what could not be
    measured."""
    return await asyncio.to_thread(current_cluster().condition)


@router.get("/overview", response=schemas.schema_of(Overview))
async def overview(request: HttpRequest):
    """The numbers of the overview: state, rates, positions, largest lag."""
    return current_cluster().overview()


@router.get("/refusals", response=Refusals)
async def refusals(request: HttpRequest):
    """The refusals since the broker's start, by cause: their number, and the last case with the value, its
    limit and the client."""
    return {**fields_of(measured("refusals")), "items": current_cluster().refusals()}
