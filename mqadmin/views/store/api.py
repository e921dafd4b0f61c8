"""The inside of the store: positions, files, index, recovery."""

from __future__ import annotations

import asyncio
from typing import Annotated, Literal

from django.http import HttpRequest
from ninja import Query, Router
from pydantic import Field

from broker_store.engine.status.store_facts import Snapshot, StoreFile
from broker_store.units import fields_of
from mqadmin.api import paging, schemas
from mqadmin.api.paging import Cursor, Limit
from mqadmin.cluster.current import current_cluster
from mqadmin.views.sources import measured
from mqadmin.views.topics.facts import found_topic

router = Router()


class StoreFiles(schemas.Page):
    items: list[schemas.schema_of(StoreFile)]  # type: ignore[valid-type]  # made from a type
    at_ms: schemas.Time
    source: str = Field(description="where these numbers come from")


@router.get("/store", response=schemas.measured_schema_of(Snapshot))
async def store_facts(request: HttpRequest):
    """Positions, what lags, flags with their causes, flush, totals, disk; one picture of one moment."""
    return schemas.measured_facts("positions", current_cluster().store.snapshot())


@router.get("/store/files", response=StoreFiles)
async def store_files(
    request: HttpRequest,
    kind: Annotated[Literal["commitlog", "consumequeue", "index"] | None, Query()] = None,
    topic: Annotated[str | None, Query(max_length=255)] = None,
    cursor: Cursor = None,
    limit: Limit = paging.DEFAULT_LIMIT,
):
    """Each mapped file: base, length, what is allocated, written, confirmed and flushed of it, state, who
    holds it, and the store times of what it holds. `hung` is one that was deleted while something still holds
    it. null is not known."""
    cluster = current_cluster()
    files = await cluster.files.all(*([kind] if kind else []), topic=topic)
    # A deleted topic may have files that something still holds. Of another kind than asked for it has files
    # too.
    if topic is not None and not files and not (kind and await cluster.files.all(topic=topic)):
        found_topic(topic)
    listed = await asyncio.to_thread(paging.page, files, _file_key, cursor, limit)  # there may be 100,000
    items = schemas.facts(await cluster.files.with_times(listed.items))
    return {**fields_of(measured("files")), **fields_of(listed), "items": items}


def _file_key(file: StoreFile) -> str:
    queue = f"{file.topic or ''}/{-1 if file.queue_id is None else file.queue_id:010d}"
    return f"{file.kind}/{queue}/{file.name}/{file.state == 'hung'}"
