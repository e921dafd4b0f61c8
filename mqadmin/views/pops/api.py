"""Messages that are invisible to a group, and what became of those that it popped."""

from __future__ import annotations

import asyncio
from typing import Annotated

from django.http import HttpRequest
from ninja import Query, Router

from broker_store.formats.names import check_group
from mqadmin.api import paging, schemas
from mqadmin.api.paging import Limit
from mqadmin.cluster.current import current_cluster
from mqadmin.facts.pops import InvisibleMessages

router = Router()


@router.get("/groups/{group}/pops", response=schemas.unchecked(schemas.measured_schema_of(InvisibleMessages)))
async def pops_of_group(
    request: HttpRequest,
    group: str,
    after: Annotated[
        str | None, Query(max_length=80, description="`next` of the answer before; null: from the beginning")
    ] = None,
    limit: Limit = paging.DEFAULT_LIMIT,
):
    """The messages that a group popped and that are invisible to it, those that come again first at the
    beginning: since when, until when, how often they were given out, to which client. With counts since the
    start of the broker."""
    found = await asyncio.to_thread(current_cluster().pops.invisible, check_group(group), after, limit)
    return await asyncio.to_thread(schemas.measured_facts, "pops", found)
