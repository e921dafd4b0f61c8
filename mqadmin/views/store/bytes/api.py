"""The bytes of the store's files, with their fields named."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from django.http import HttpRequest
from ninja import Query, Router

from broker_store.facts.bytes import KINDS, MAX_BYTES, Place
from mqadmin.api import schemas
from mqadmin.cluster.current import current_cluster

router = Router()
Whole = Annotated[schemas.Int64 | None, Query(ge=0)]


@router.get("/bytes", response=dict[str, Any])
async def bytes_of_files(
    request: HttpRequest,
    kind: Literal[*KINDS] = "commitlog",  # type: ignore[valid-type]  # mypy wants the words here
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
):
    """Hex of a stretch of any file, cut into pieces with fields: value, meaning, whether it is right, and the
    parameters of where it points to."""
    return schemas.facts(
        await current_cluster().look_at(Place(kind, offset, topic, queue, unit, name, slot, entry, length))
    )
