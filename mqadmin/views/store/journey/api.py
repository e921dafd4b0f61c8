"""The journey of the message at a place of the log."""

from __future__ import annotations

from typing import Annotated, Any

from django.http import HttpRequest
from ninja import Query, Router

from mqadmin.api import schemas
from mqadmin.cluster.current import current_cluster

router = Router()


@router.get("/journey", response=dict[str, Any])
async def journey(request: HttpRequest, log_offset: Annotated[schemas.Int64, Query(ge=0)]):
    """As GET /messages/ID/journey, of the message whose record begins at a position of the commit log."""
    return schemas.facts(await current_cluster().journey_of(log_offset))
