"""Index files by REST: all of them, a lookup, a rebuild; header, slots and chains of one."""

from __future__ import annotations

from typing import Annotated

from django.http import HttpRequest
from ninja import Path, Router, Status

from broker_store.engine.status.store_state import IndexFileFacts, RebuildProgress
from broker_store.errors import NotFoundError
from broker_store.facts.chains import Chains
from broker_store.facts.explain import ExplainedLookup
from broker_store.facts.slots import HeatMap
from broker_store.formats import index_file
from broker_store.formats.names import check_topic
from mqadmin.api import schemas
from mqadmin.api.auth import need
from mqadmin.audit import aaudited
from mqadmin.cluster.current import current_cluster
from mqadmin.facts.store import IndexFiles

router = Router()
Name = Annotated[str, Path(max_length=64, description="17 digits, the time of its making")]


# The ids of the first five are older than this view. They come before /index/{file}, which would take their
# addresses.


@router.get(
    "/index",
    response=schemas.measured_schema_of(IndexFiles),
    operation_id="mqadmin_api_store_index_files",
)
async def index_files(request: HttpRequest):
    """Index files with their header, slots and entries in use."""
    return schemas.measured_facts("index", IndexFiles(items=current_cluster().index.facts()))


@router.post(
    "/index/explain",
    response=schemas.measured_schema_of(ExplainedLookup),
    operation_id="mqadmin_api_store_explain",
)
async def explain(request: HttpRequest, body: schemas.Explain):
    """Each step that a lookup of this key takes: file, slot, chain entries, what was kept and why not."""
    begin, end = body.from_ms or 0, (1 << 63) - 1 if body.to_ms is None else body.to_ms
    steps = await current_cluster().index.explain(check_topic(body.topic), body.key, begin, end, body.limit)
    return schemas.measured_facts("explain", ExplainedLookup(items=steps))


@router.post(
    "/index/rebuild",
    response={202: schemas.schema_of(RebuildProgress)},
    operation_id="mqadmin_api_store_rebuild_index",
)
async def rebuild_index(request: HttpRequest):
    """Ask the engine's worker to write the index again from the commit log; GET shows how far it is, DELETE
    ends it."""
    caller = need(request, "admin")
    async with aaudited(caller, "rebuild_index", "store", "index"):
        return Status(202, schemas.facts(current_cluster().index.rebuild()))


@router.get(
    "/index/rebuild",
    response=schemas.schema_of(RebuildProgress),
    operation_id="mqadmin_api_store_rebuild_state",
)
async def rebuild_state(request: HttpRequest):
    return schemas.facts(current_cluster().index.rebuild_state())


@router.delete(
    "/index/rebuild",
    response=schemas.schema_of(RebuildProgress),
    operation_id="mqadmin_api_store_cancel_rebuild",
)
async def cancel_rebuild(request: HttpRequest):
    """End a running rebuild; the index stays as it was."""
    caller = need(request, "admin")
    async with aaudited(caller, "cancel_rebuild", "store", "index"):
        return schemas.facts(current_cluster().index.cancel_rebuild())


@router.get("/index/{file}", response=schemas.measured_schema_of(IndexFileFacts))
async def header(request: HttpRequest, file: Name):
    """An index file as its header says: slots and entries in use, times and places of its first and last
    message."""
    index_file.check_name(file)
    for facts in current_cluster().index.facts():
        if facts.name == file:
            return schemas.measured_facts("index", facts)
    raise NotFoundError(f"there is no index file {file}")


@router.get("/index/{file}/slots", response=schemas.measured_schema_of(HeatMap))
async def slots(request: HttpRequest, file: Name):
    """Used slots, counted now and folded into cells: `cells` has those of each cell, row after row;
    `findings` says where header and count disagree."""
    return schemas.measured_facts("slots", await current_cluster().index.slots(index_file.check_name(file)))


@router.get("/index/{file}/chains", response=schemas.measured_schema_of(Chains))
async def chains(request: HttpRequest, file: Name):
    """Chains by length beside what an even hash would give, what a lookup costs, the longest with their keys,
    and those that are not whole."""
    return schemas.measured_facts("chains", await current_cluster().index.chains(index_file.check_name(file)))
