"""REST routes of the store: its positions and its files."""

from __future__ import annotations

import asyncio
from typing import Annotated, Literal

from django.http import HttpRequest
from ninja import Query, Router
from pydantic import Field

from broker_store.engine.status.store_state import Snapshot, StoreFile
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
    """Positions, lags of steps, flags with their causes, flush, totals and disk, all of one moment."""
    return schemas.measured_facts("positions", current_cluster().store.snapshot())


@router.get("/store/files", response=StoreFiles)
async def store_files(
    request: HttpRequest,
    kind: Annotated[Literal["commitlog", "consumequeue", "index"] | None, Query()] = None,
    topic: Annotated[str | None, Query(max_length=255)] = None,
    cursor: Cursor = None,
    limit: Limit = paging.DEFAULT_LIMIT,
):
    """The mapped files: base, length, the bytes of it that are allocated, written, confirmed and flushed,
    state, whether it is mapped or read, and the store times of its messages. The state `hung` is that of a
    file that was deleted and is still open. null is unknown."""
    cluster = current_cluster()
    files = await cluster.files.all(*([kind] if kind else []), topic=topic)
    # A deleted topic may have files that are still open. An existing one may have files of another kind.
    if topic is not None and not files and not (kind and await cluster.files.all(topic=topic)):
        found_topic(topic)
    listed = await asyncio.to_thread(paging.page, files, _file_key, cursor, limit)  # there may be 100,000
    items = schemas.facts(await cluster.files.with_times(listed.items))
    return {**fields_of(measured("files")), **fields_of(listed), "items": items}


def _file_key(file: StoreFile) -> str:
    queue = f"{file.topic or ''}/{-1 if file.queue_id is None else file.queue_id:010d}"
    return f"{file.kind}/{queue}/{file.name}/{file.state == 'hung'}"
