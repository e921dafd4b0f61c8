"""Large answers, and requests with lists."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Mapping

from broker_store.errors import FieldError
from broker_store.protocol import fastjson
from broker_store.protocol.codes import ResponseCode
from broker_store.protocol.command import Command
from broker_store.protocol.framing import MAX_FRAME_BYTES
from broker_store.server.handler import Refusal

MAX_ITEMS_PER_REQUEST = 1_000  # topics or groups in one request; a list of 1,000 topics has 0.3 MB
# Of a table. A larger table is encoded in a thread; 200 entries take the loop a millisecond.
MAX_ENTRIES_ON_LOOP = 200


def table_answer(
    command: Command,
    fields: dict[str, str] | None,
    head: Mapping[str, object],
    name: str,
    entries: Iterable[tuple[str, object]],
    count: int,
) -> Command | Coroutine[None, None, Command]:
    """Return an answer with a table of `count` entries. A thread encodes a large one."""

    def written() -> Command:
        return command.answer(0, None, fields, fastjson.dumps_table(head, name, entries))

    return written() if count <= MAX_ENTRIES_ON_LOOP else asyncio.to_thread(written)


async def dumps(value: object, count: int) -> bytes:
    return (
        fastjson.dumps(value)
        if count <= MAX_ENTRIES_ON_LOOP // 8
        else await asyncio.to_thread(fastjson.dumps, value)
    )


def check_fits(size: int) -> None:
    """Raise Refusal if an answer has already more bytes than a frame may have."""
    if size > MAX_FRAME_BYTES:
        remark = f"the answer has more than {MAX_FRAME_BYTES} bytes, the limit of a frame"
        raise Refusal(
            ResponseCode.SYSTEM_ERROR, remark, "answer too large", value=size, limit=MAX_FRAME_BYTES
        )


def items_of(body: bytes, name: str) -> list:
    value = fastjson.loads(body)
    items = value.get(name) if isinstance(value, dict) else None
    if not isinstance(items, list):
        raise FieldError(name, items, "an array")
    if len(items) > MAX_ITEMS_PER_REQUEST:
        remark = f"{name} has {len(items)} entries, at most {MAX_ITEMS_PER_REQUEST} are made by one request"
        raise Refusal(
            ResponseCode.INVALID_PARAMETER,
            remark,
            "too many at once",
            value=len(items),
            limit=MAX_ITEMS_PER_REQUEST,
        )
    return items
