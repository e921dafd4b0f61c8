"""The journey of the message at a place of the log."""

from __future__ import annotations

from typing import Annotated

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from ninja import Query, Router

from broker_store.facts.journey.stop import Journey
from mqadmin.api import schemas
from mqadmin.api.answers import facts_answer
from mqadmin.cluster.current import current_cluster

router = Router()


@router.get("/journey", response=schemas.schema_of(Journey))
async def journey(
    request: HttpRequest, log_offset: Annotated[schemas.Int64, Query(ge=0)]
) -> HttpResponseBase:
    """As GET /messages/ID/journey, of the message whose record begins at a position of the commit log."""
    return await facts_answer(await current_cluster().store.journey_of(log_offset))
