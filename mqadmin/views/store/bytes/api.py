"""The bytes of the store's files, with their fields named."""

from __future__ import annotations

from typing import Annotated

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from ninja import Query, Router

from broker_store.facts.bytes.pieces import FileBytes
from broker_store.facts.bytes.place import MAX_BYTES, Kind, Place
from mqadmin.api import schemas
from mqadmin.api.answers import facts_answer
from mqadmin.cluster.current import current_cluster

router = Router()
Whole = Annotated[schemas.Int64 | None, Query(ge=0)]


@router.get("/bytes", response=schemas.schema_of(FileBytes))
async def bytes_of_files(
    request: HttpRequest,
    kind: Kind = "commitlog",
    offset: Annotated[
        schemas.Int64 | None,
        Query(
            ge=0,
            description="a position in the log, the queue or the timer log; in one file for the others; the "
            "first there is when absent",
        ),
    ] = None,
    topic: Annotated[str, Query(max_length=255, description="of a consume queue")] = "",
    queue: Annotated[int, Query(ge=0, le=(1 << 31) - 1)] = 0,
    unit: Annotated[schemas.Int64 | None, Query(ge=0, description="an offset in the queue")] = None,
    name: Annotated[str, Query(max_length=40, description="of an index file; the newest when absent")] = "",
    slot: Whole = None,
    entry: Whole = None,
    length: Annotated[
        int | None, Query(ge=1, le=MAX_BYTES, description="of a record, or a few units, when absent")
    ] = None,
) -> HttpResponseBase:
    """The bytes of a range of any file in hex, split into pieces with fields: value, meaning, whether it is
    right, and the parameters of the place to which it points."""
    place = Place(kind, offset, topic, queue, unit, name, slot, entry, length)
    return await facts_answer(await current_cluster().store.bytes_at(place))
