"""Interleaving of topics and the cost of a replay."""

from __future__ import annotations

from typing import Annotated

from django.http import HttpRequest
from ninja import Query, Router

from broker_store.facts.layout import LayoutOfEach, LayoutOfTopics
from broker_store.formats.names import check_group, check_topic
from broker_store.rest.problems import Problem
from mqadmin.api import schemas
from mqadmin.cluster.current import current_cluster
from mqadmin.facts.layout import check

router = Router()
Whole = Annotated[int | None, Query(ge=0, le=(1 << 63) - 1)]


@router.get(
    "/layout",
    response=schemas.unchecked(schemas.schema_of(LayoutOfTopics) | schemas.schema_of(LayoutOfEach)),
)
async def layout(
    request: HttpRequest,
    topic: Annotated[str | None, Query(max_length=255)] = None,
    group: Annotated[str | None, Query(max_length=255)] = None,
    from_ms: Annotated[schemas.Moment | None, Query()] = None,
    from_offset: Whole = None,
):
    """How the messages of a topic lie in the log and what a replay of it reads; of what a group reads, from
    where it stands; of each topic without both. `from_ms` or `from_offset`, a place of the log, is where the
    replay begins."""
    try:
        check(topic, group, from_ms, from_offset)
    except ValueError as error:
        raise Problem("invalid", str(error)) from None
    found = await current_cluster().store.layout(
        check_topic(topic) if topic else None, check_group(group) if group else None, from_ms, from_offset
    )
    return schemas.facts(found)
