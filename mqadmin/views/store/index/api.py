"""Index files by REST: header, slots and chains of one."""

from __future__ import annotations

from typing import Annotated, Any

from django.http import HttpRequest
from ninja import Path, Router

from broker_store.engine.status.store_facts import IndexFileFacts
from broker_store.errors import NotFoundError
from broker_store.formats import index_file
from mqadmin.api import schemas
from mqadmin.cluster.current import current_cluster

router = Router()
Name = Annotated[str, Path(max_length=64, description="17 digits, the time of its making")]


@router.get("/index/{file}", response=schemas.measured_schema_of(IndexFileFacts))
async def header(request: HttpRequest, file: Name):
    """An index file as its header says: slots and entries in use, times and places of its first and last
    message."""
    index_file.check_name(file)
    for facts in current_cluster().store_index():
        if facts.name == file:
            return schemas.measured_facts("index", facts)
    raise NotFoundError(f"there is no index file {file}")


@router.get("/index/{file}/slots", response=dict[str, Any])
async def slots(request: HttpRequest, file: Name):
    """Used slots, counted now and folded into cells: `cells` has those of each cell, row after row;
    `findings` says where header and count disagree."""
    return schemas.measured_facts("slots", await current_cluster().index_slots(index_file.check_name(file)))


@router.get("/index/{file}/chains", response=dict[str, Any])
async def chains(request: HttpRequest, file: Name):
    """Chains by length beside what an even hash would give, what a lookup costs, the longest with their keys,
    and those that are not whole."""
    return schemas.measured_facts("chains", await current_cluster().index_chains(index_file.check_name(file)))
