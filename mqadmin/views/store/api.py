"""The inside of the store: positions, files, index, recovery."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Literal

from django.http import HttpRequest
from ninja import Query, Router, Status

from broker_store.engine.status.store_facts import Snapshot, StoreFile
from broker_store.formats.names import check_topic
from mqadmin.api import paging, schemas
from mqadmin.api.auth import need
from mqadmin.api.paging import Cursor, Limit
from mqadmin.audit import aaudited
from mqadmin.cluster.current import current_cluster
from mqadmin.views.sources import measured
from mqadmin.views.topics.facts import found_topic

router = Router()


@router.get("/store", response=schemas.measured_schema_of(Snapshot))
async def store_facts(request: HttpRequest):
    """Positions, what is behind, flags with their causes, flush, totals, disk; one picture of one moment."""
    return schemas.measured_facts("positions", current_cluster().store())


@router.get("/store/files", response=schemas.MeasuredPage)
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
    files = await cluster.file_map(*([kind] if kind else []), topic=topic)
    # A deleted topic may have files that something still holds. Of another kind than asked for it has files
    # too.
    if topic is not None and not files and not (kind and await cluster.file_map(topic=topic)):
        found_topic(topic)
    listed = await asyncio.to_thread(paging.page, files, _file_key, cursor, limit)  # there may be 100,000
    return measured("files", listed | {"items": schemas.facts(await cluster.with_times(listed["items"]))})


def _file_key(file: StoreFile) -> str:
    queue = f"{file.topic or ''}/{-1 if file.queue_id is None else file.queue_id:010d}"
    return f"{file.kind}/{queue}/{file.name}/{file.state == 'hung'}"


@router.get("/store/index", response=schemas.MeasuredList)
async def index_files(request: HttpRequest):
    """Index files with their header, slots and entries in use."""
    return measured("index", {"items": schemas.facts(current_cluster().store_index())})


@router.post("/store/index/explain", response=schemas.MeasuredList)
async def explain(request: HttpRequest, body: schemas.Explain):
    """Each step that a lookup of this key takes: file, slot, chain entries, what was kept and why not."""
    begin, end = body.from_ms or 0, (1 << 63) - 1 if body.to_ms is None else body.to_ms
    steps = await current_cluster().explain(check_topic(body.topic), body.key, begin, end, body.limit)
    return measured("explain", {"items": schemas.facts(steps)})


@router.get("/recovery", response=dict[str, Any])
async def recovery(request: HttpRequest):
    """The report of the last start, live while it runs: each step with file, bytes, messages and duration;
    what was cut."""
    return schemas.facts(measured("recovery", current_cluster().recovery()))


@router.post("/store/index/rebuild", response={202: dict[str, Any]})
async def rebuild_index(request: HttpRequest):
    """Ask the engine's worker to write the index anew from the commit log; GET shows how far it is, DELETE
    ends it."""
    caller = need(request, "admin")
    async with aaudited(caller, "rebuild_index", "store", "index"):
        return Status(202, schemas.facts(current_cluster().rebuild_index()))


@router.get("/store/index/rebuild", response=dict[str, Any])
async def rebuild_state(request: HttpRequest):
    return schemas.facts(current_cluster().rebuild_state())


@router.delete("/store/index/rebuild", response=dict[str, Any])
async def cancel_rebuild(request: HttpRequest):
    """End a running rebuild; the index stays as it was."""
    caller = need(request, "admin")
    async with aaudited(caller, "cancel_rebuild", "store", "index"):
        return schemas.facts(current_cluster().cancel_rebuild())
