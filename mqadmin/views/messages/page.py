"""The page of the search for messages, and the page of one message with its bytes in the log."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from asgiref.sync import sync_to_async
from django.http import HttpRequest
from django.shortcuts import redirect
from django.urls import path, reverse

from broker_store.errors import NotFoundError
from broker_store.formats import names
from broker_store.rest.http import MAX_LIMIT
from broker_store.sql92.errors import ExpressionError
from broker_store.sql92.oddities import explained
from broker_store.units import Moment, fields_of
from mqadmin.cluster.current import current_cluster
from mqadmin.cluster.protocol import Cluster
from mqadmin.facts.messages import Found
from mqadmin.facts.waiting import MessageFate
from mqadmin.views.messages.facts import (
    MessageRow,
    Neighbours,
    ShownMessage,
    passing_of,
    row_of,
    shown_message,
)
from mqadmin.views.page import WrongField, draw, failure_page, of_field, page, window
from mqadmin.views.query_parameters import one_of, text, whole
from mqadmin.views.store.journey.facts import ShownJourney, shown_journey
from mqadmin.web.answers import cut, in_pieces

LIMIT = 32
WAYS = (("offset", "Queue and offset"), ("key", "Key"), ("time", "Time"), ("id", "Id"))
ASKED = ("topic", "queue", "offset", "key", "id", "from", "to", "limit", "sql")


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagesPage:
    """The data of the page of a search."""

    ways: Collection[tuple[str, str]]  # names and titles
    by: str  # one of `ways`
    asked: Mapping[str, str]  # what was typed, by the names of the fields
    topics: list[str]  # that the form offers
    now_ms: Moment
    found: Found | None = None  # None: nothing was searched
    rows: list[MessageRow] = field(default_factory=list)  # of `found`
    pages: Neighbours | None = None  # of a search by offset
    oddities: Sequence[str] = ()  # of the expression
    problem: str = ""
    errors: Mapping[str, str] = field(default_factory=dict)  # by the names of the fields


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagePage(ShownMessage, ShownJourney):
    """The data of the page of a message."""

    fate: MessageFate | None  # None: it does not wait
    damage: str | None  # None: its record is as it was stored


@page(takes={"by": one_of(*(way for way, _ in WAYS)), **dict.fromkeys(ASKED, text)})
async def messages(request):
    cluster = current_cluster()
    way = request.GET.get("by", "")
    asked = {name: request.GET.get(name, "").strip() for name in ASKED}
    shown = MessagesPage(
        ways=WAYS,
        by=way or "offset",
        asked=asked,
        topics=cluster.topics.offered(),
        now_ms=int(time.time() * 1000),
    )
    status = 200
    if way:
        try:
            if way == "id":
                found = await cluster.search.by_id(asked.get("id", ""), asked.get("topic") or None)
                if len(found.messages) == 1:
                    return redirect("message", log_offset=found.messages[0].log_offset)
            else:
                found = await _search(cluster, way, asked)
            if expression := asked.get("sql"):
                shown = replace(shown, oddities=explained(expression).oddities)
            rows = await sync_to_async(lambda: [row_of(message) for message in found.messages])()
            shown = replace(shown, found=found, rows=rows, pages=_neighbours(request, way, asked, found))
        except WrongField as error:
            shown = replace(shown, problem="Nothing was searched.", errors={error.field: str(error)})
            status = 400
        except ValueError as error:
            shown, status = replace(shown, problem=str(error)), 400
        except NotFoundError as error:
            shown = replace(shown, problem=f"{error}.")
    return await draw(request, "messages/page.html", fields_of(shown), status)


async def _search(cluster: Cluster, way: str, asked: dict[str, str]) -> Found:
    typed_topic, typed_key = asked.get("topic"), asked.get("key")
    if not typed_topic:
        raise WrongField("topic", "Give the topic to search.")
    with of_field("topic"):
        topic = names.check_topic(typed_topic)
    with of_field("limit"):
        limit = _limit(asked)
    try:
        passing = passing_of(asked.get("sql"))
    except ExpressionError as error:
        raise WrongField("sql", f"The expression does not compile: {error}") from None
    if way == "key":
        if not typed_key:
            raise WrongField("key", "Give the key: a value of KEYS or the message id that the producer made.")
        begin_ms, end_ms = window(asked.get("from", ""), asked.get("to", ""))
        return await cluster.search.by_key(topic, typed_key, begin_ms, end_ms, limit, passing)
    if way == "time":
        begin_ms, end_ms = window(asked.get("from", ""), asked.get("to", ""))
        since_ms = begin_ms if asked.get("from") else None
        return await cluster.search.by_time(topic, since_ms, end_ms, limit, passing=passing)
    with of_field("queue"):
        queue = whole(asked.get("queue"), 0, (1 << 31) - 1)
    with of_field("offset"):
        offset = whole(asked.get("offset"), 0)
    return await cluster.search.in_queue(topic, queue, offset, limit, passing)


def _limit(asked: dict[str, str]) -> int:
    return whole(asked.get("limit"), LIMIT, MAX_LIMIT, least=1)


def _neighbours(request: HttpRequest, way: str, asked: dict[str, str], found: Found) -> Neighbours | None:
    """Return the addresses of other ranges of the queue, for a search by offset; None for another search."""
    first, end = found.min_offset, found.max_offset
    if way != "offset" or first is None or end is None:
        return None
    limit, offset = _limit(asked), whole(asked.get("offset"), 0)

    def address(at: int) -> str:
        query = request.GET.copy()
        query["offset"] = str(at)
        return f"{reverse('messages')}?{query.urlencode()}"

    following = found.next_offset
    return Neighbours(
        before=address(max(first, offset - limit)) if offset > first else None,
        after=address(following) if following is not None and following < end else None,
        oldest=address(first),
        newest=address(max(first, end - limit)),
    )


@page()
async def message(request, log_offset):
    stored, raw = await current_cluster().search.message_at(log_offset)
    cluster = current_cluster()
    fate, found = cluster.waiting.fate(stored), await cluster.store.journey_of(log_offset)
    damage = await cluster.search.damage_at(log_offset)

    def shown() -> MessagePage:
        facts = fields_of(shown_journey(found)) | fields_of(shown_message(stored, raw))
        return MessagePage(**facts, fate=fate, damage=damage)

    return await draw(request, "messages/message.html", lambda: fields_of(shown()))


@page()
async def message_bytes(request, log_offset, part):
    """Send the record, or its body as stored, as a file that the browser saves and never shows."""
    stored, raw = await current_cluster().search.message_at(log_offset)
    if part not in ("record", "body"):
        return failure_page(request, 404, "Not found", "A message has a record and a body.")
    response = in_pieces(cut(raw if part == "record" else stored.body), "application/octet-stream")
    response["Content-Disposition"] = f'attachment; filename="{stored.log_offset:020d}.{part}"'
    return response


@page()
async def message_journey(request, log_offset):
    """Draw the journey of a message: a part of its page, fetched again when a stop changed."""
    found = await current_cluster().store.journey_of(log_offset)
    return await draw(request, "store/journey/stops.html", lambda: fields_of(shown_journey(found)))


PAGES = (
    path("messages/", messages, name="messages"),
    path("messages/<int:log_offset>/", message, name="message"),
    path("messages/<int:log_offset>/journey", message_journey, name="message_journey"),
    path("messages/<int:log_offset>/<str:part>", message_bytes, name="message_bytes"),
)
