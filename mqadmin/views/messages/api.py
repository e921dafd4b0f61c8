"""Messages: send, read a queue, find by key, id and time, show one with its bytes in the log."""

from __future__ import annotations

from typing import Annotated

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from ninja import Query, Router

from broker_store.errors import FormatError, NotFoundError
from broker_store.facts.journey.stop import Journey
from broker_store.formats.names import check_topic
from broker_store.formats.record import StoredMessage
from broker_store.messages import MessageFilter
from broker_store.rest import callers, http, new_messages
from broker_store.rest.answers import QueueMessages, QueueOffset, Receipt, SeveralSent
from broker_store.rest.documents import message_json, messages_json, time_text
from broker_store.rest.problems import Problem
from broker_store.rest.repeats import MAX_KEY_CHARACTERS, read_key
from broker_store.sql92.errors import ExpressionError
from broker_store.sql92.parser import MAX_CHARACTERS
from mqadmin.api import schemas
from mqadmin.api.answers import facts_answer
from mqadmin.cluster.current import current_cluster
from mqadmin.facts.messages import Found
from mqadmin.views.messages.facts import passing_of
from mqadmin.views.topics.facts import found_topic
from mqadmin.web.answers import cut, in_pieces
from mqadmin.web.gateway import REPEATS, ClusterGateway

router = Router()
JSON = "application/json"
MAX_TIME = (1 << 63) - 1
Limit = Annotated[int, Query(ge=1, le=http.MAX_LIMIT)]
Sql = Annotated[
    str | None,
    Query(
        max_length=MAX_CHARACTERS, description="a SQL92 expression over properties: only messages it passes"
    ),
]
FromTime = Annotated[
    schemas.Moment | None,
    Query(description="milliseconds since 1970, or ISO 8601; a time without a zone is UTC"),
]
SEND_BODY = {
    "parameters": [
        {
            "name": "Idempotency-Key",
            "in": "header",
            "required": False,
            "schema": {"type": "string", "maxLength": MAX_KEY_CHARACTERS},
        },
    ],
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "oneOf": [
                        {"$ref": "#/components/schemas/NewMessage"},
                        {
                            "type": "array",
                            "minItems": 1,
                            "maxItems": new_messages.MAX_MESSAGES,
                            "items": {"$ref": "#/components/schemas/NewMessage"},
                        },
                    ]
                }
            }
        },
    },
}


@router.post(
    "/topics/{topic}/messages",
    response=schemas.unchecked(schemas.schema_of(Receipt) | schemas.schema_of(SeveralSent)),
    openapi_extra=SEND_BODY,
)
async def send_messages(request: HttpRequest, topic: str):
    """Store one message, or a list of up to 1,000, each with its own answer in the list of results.

    To repeat a request whose answer was lost, send it with the same Idempotency-Key (a header of up to 255
    characters). Within ten minutes, and until the broker restarts, the repeat gets the first answer, and
    nothing is stored again. With a token or over the local socket this route is served before Django, which
    takes a twentieth of the time.
    """
    caller: callers.Caller = request.auth
    if not caller.may("operator"):  # a send leaves no audit record, so its refusal leaves none either
        raise Problem(
            "forbidden", f"{caller.name} has the role {caller.role}; sending needs the role operator"
        )
    http.announced_length(request.headers.get("Content-Length", "").encode() or None)
    header = request.headers.get("Idempotency-Key")
    key = read_key(None if header is None else header.encode("latin-1", "replace"))
    return await http.send_body(ClusterGateway(current_cluster()), REPEATS, caller, topic, request.body, key)


@router.get("/topics/{topic}/queues/{queue_id}/messages", response=schemas.schema_of(QueueMessages))
async def pull_messages(
    request: HttpRequest,
    topic: str,
    queue_id: int,
    offset: Annotated[
        schemas.Int64 | None, Query(ge=0, description="the queue offset to begin at; the lowest when absent")
    ] = None,
    limit: Limit = http.DEFAULT_LIMIT,
    wait_ms: Annotated[
        int, Query(ge=0, le=http.MAX_WAIT_MS, description="wait for the first message this long")
    ] = 0,
):
    """Messages of one queue from an offset on. No group is involved, and no offset is committed."""
    return in_pieces(
        await ClusterGateway(current_cluster()).pull(topic, queue_id, offset, limit, wait_ms), JSON
    )


@router.get("/topics/{topic}/queues/{queue_id}/offset", response=schemas.QueueOffset)
async def offset_at_time(
    request: HttpRequest, topic: str, queue_id: int, time_ms: Annotated[schemas.Moment, Query()]
):
    """The offset of the first message stored at or after a time."""
    known = {queue.queue_id for queue in found_topic(topic).queues}
    if queue_id not in known:
        raise Problem("queue_not_found", f"topic {topic} has no queue {queue_id}")
    cluster = current_cluster()
    offset, doubt = (
        await cluster.search.offset_by_time(topic, queue_id, time_ms),
        await cluster.search.time_doubt(topic, time_ms, queue_id),
    )
    return QueueOffset(offset=offset, time_ms=time_ms, time=time_text(time_ms), doubt=doubt)


def _passing(sql: str | None) -> MessageFilter | None:
    """Return the filter of an expression. Raises Problem."""
    try:
        return passing_of(sql)
    except ExpressionError as error:
        raise Problem("invalid", f"sql does not compile: {error}") from None


def _check_window(from_ms: int | None, to_ms: int | None) -> None:
    if from_ms is not None and to_ms is not None and from_ms > to_ms:
        raise Problem("invalid", f"from is after to: from_ms is {from_ms}, to_ms is {to_ms}")


@router.get("/topics/{topic}/messages", response=schemas.Found)
async def find_by_time(
    request: HttpRequest,
    topic: str,
    from_ms: FromTime = None,
    to_ms: FromTime = None,
    limit: Limit = http.DEFAULT_LIMIT,
    sql: Sql = None,
):
    """Messages of a topic by store time: from `from_ms` on, oldest first; without it the last ones, newest
    first."""
    found_topic(topic)
    _check_window(from_ms, to_ms)
    return await _found(
        await current_cluster().search.by_time(
            topic, from_ms, MAX_TIME if to_ms is None else to_ms, limit, passing=_passing(sql)
        )
    )


@router.get("/messages", response=schemas.Found)
async def find_by_key(
    request: HttpRequest,
    topic: Annotated[str, Query(max_length=255)],
    key: Annotated[str, Query(min_length=1, max_length=1_024)],
    from_ms: FromTime = None,
    to_ms: FromTime = None,
    limit: Limit = http.DEFAULT_LIMIT,
    sql: Sql = None,
):
    """Messages of a topic with this key (or message_id), by the index."""
    found_topic(check_topic(topic))
    _check_window(from_ms, to_ms)
    return await _found(
        await current_cluster().search.by_key(
            topic, key, from_ms or 0, MAX_TIME if to_ms is None else to_ms, limit, _passing(sql)
        )
    )


@router.get("/messages/{message_id}", response=schemas.FoundMessage)
async def find_by_id(
    request: HttpRequest, message_id: str, topic: Annotated[str | None, Query(max_length=255)] = None
):
    """One message by its offset_message_id or its message_id. The latter is looked up in the index, which
    needs its topic: without one the first topics are searched."""
    found = await _by_id(message_id, topic)
    message = found.messages[0]
    damage = next((one.damage for one in found.damaged if one.log_offset == message.log_offset), None)
    return in_pieces(await message_json(message, {"damage": damage}), JSON)


@router.get("/messages/{message_id}/trace", response=schemas.Traces)
async def trace_of_message(request: HttpRequest, message_id: str):
    """The traces that clients wrote about a message, oldest first, by its message_id. The message itself may
    be deleted."""
    if len(message_id) > 255:
        raise Problem("message_not_found", "no id is that long")
    found = await current_cluster().search.traces_of(message_id)
    return {
        "topic": found.topic,
        "events": [event._asdict() for event in found.events],
        "complete": found.complete,
        "reason": found.reason,
    }


@router.get("/messages/{message_id}/journey", response=schemas.schema_of(Journey))
async def journey_of_message(
    request: HttpRequest, message_id: str, topic: Annotated[str | None, Query(max_length=255)] = None
) -> HttpResponseBase:
    """The stops of a message: born, stored, on disk, queue, index, groups, pops, retries, dead letter, and
    the traces of its clients."""
    message = await _message(message_id, topic)
    return await facts_answer(await current_cluster().store.journey_of(message.log_offset))


@router.get("/messages/{message_id}/raw", response={200: None}, openapi_extra=schemas.binary("the record"))
async def raw_message(
    request: HttpRequest, message_id: str, topic: Annotated[str | None, Query(max_length=255)] = None
):
    """The bytes of the record in the log."""
    message = await _message(message_id, topic)
    _, raw = await current_cluster().search.message_at(message.log_offset)
    response = in_pieces(cut(raw), "application/octet-stream")
    response["Content-Disposition"] = f'attachment; filename="record-{message.log_offset}.bin"'
    return response


async def _message(message_id: str, topic: str | None) -> StoredMessage:
    return (await _by_id(message_id, topic)).messages[0]


async def _by_id(message_id: str, topic: str | None) -> Found:
    """Return at least one message. Raises Problem without one."""
    if len(message_id) > 255:
        raise Problem("message_not_found", "no id is that long")
    try:
        found = await current_cluster().search.by_id(message_id, check_topic(topic) if topic else None)
    except (NotFoundError, FormatError) as error:
        raise Problem("message_not_found", str(error)) from None
    if not found.messages:
        raise Problem(
            "damaged" if found.damaged else "message_not_found", found.reason or "no message has this id"
        )
    return found


async def _found(found: Found) -> HttpResponseBase:
    facts = {
        "complete": found.complete,
        "reason": found.reason,
        "damaged": [one._asdict() for one in found.damaged],
    }
    return in_pieces(await messages_json(facts, found.messages), JSON)
