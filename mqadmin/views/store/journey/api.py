"""The journey of the message at a place of the log."""

from __future__ import annotations

from typing import Annotated, Any

from django.http import HttpRequest
from ninja import Query, Router

from mqadmin import clusters
from mqadmin.api import schemas

router = Router()


@router.get("/journey", response=dict[str, Any])
async def journey(request: HttpRequest, log_offset: Annotated[schemas.Int64, Query(ge=0)]):
    """As GET /messages/ID/journey, of the message whose record begins at a position of the commit log."""
    return schemas.facts(await clusters.current().journey_of(log_offset))
