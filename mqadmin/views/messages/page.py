"""Where is my message? One search bar, and one message with its bytes as they lie in the log."""

from __future__ import annotations

import time

from asgiref.sync import sync_to_async
from django.shortcuts import redirect
from django.urls import path, reverse

from broker_store.errors import NotFoundError
from broker_store.facts.body_view import SHOWN_KEYS, SHOWN_PROPERTIES, preview_of, view_of
from broker_store.facts.bytes import record_view
from broker_store.formats import names
from broker_store.formats.message_id import host_text
from broker_store.rest.http import MAX_LIMIT
from mqadmin.cluster.current import current_cluster
from mqadmin.facts.messages import Found
from mqadmin.views.asked import one_of, text, whole
from mqadmin.views.page import WrongField, draw, of_field, page, trouble, window
from mqadmin.views.store.bytes.facts import SHOWN_BYTES, shown
from mqadmin.views.store.journey.facts import journey_context
from mqadmin.web.answers import cut, in_pieces

LIMIT = 32
WAYS = (("offset", "Queue and offset"), ("key", "Key"), ("time", "Time"), ("id", "Id"))
ASKED = ("topic", "queue", "offset", "key", "id", "from", "to", "limit")


@page(takes={"by": one_of(*(way for way, _ in WAYS)), **dict.fromkeys(ASKED, text)})
async def messages(request):
    cluster = current_cluster()
    way = request.GET.get("by", "")
    asked = {name: request.GET.get(name, "").strip() for name in ASKED}
    topics = cluster.offered_topics()
    context = {
        "ways": WAYS,
        "by": way or "offset",
        "asked": asked,
        "topics": topics,
        "found": None,
        "problem": "",
        "errors": {},
        "now_ms": int(time.time() * 1000),
    }
    status = 200
    if way:
        try:
            if way == "id":
                found = await cluster.find_by_id(asked["id"], asked["topic"] or None)
                if len(found.messages) == 1:
                    return redirect("message", log_offset=found.messages[0].log_offset)
            else:
                found = await _search(cluster, way, asked)
            rows = await sync_to_async(lambda: [_row(message) for message in found.messages])()
            context |= {"found": found, "rows": rows, "pages": _neighbours(request, way, asked, found)}
        except WrongField as error:
            context["problem"], context["errors"], status = (
                "Nothing was looked for.",
                {error.field: str(error)},
                400,
            )
        except ValueError as error:
            context["problem"], status = str(error), 400
        except NotFoundError as error:
            context["problem"] = f"{error}."
    return await draw(request, "messages/page.html", context, status)


async def _search(cluster, way: str, asked: dict) -> Found:
    if not asked["topic"]:
        raise WrongField("topic", "Name the topic to look in.")
    with of_field("topic"):
        topic = names.check_topic(asked["topic"])
    with of_field("limit"):
        limit = whole(asked["limit"], LIMIT, MAX_LIMIT, least=1)
    if way == "key":
        if not asked["key"]:
            raise WrongField("key", "Give the key: a value of KEYS or the message id that the producer made.")
        return await cluster.find_by_key(topic, asked["key"], *window(asked), limit)
    if way == "time":
        begin_ms, end_ms = window(asked)
        return await cluster.find_by_time(topic, begin_ms if asked["from"] else None, end_ms, limit)
    with of_field("queue"):
        queue = whole(asked["queue"], 0, (1 << 31) - 1)
    with of_field("offset"):
        offset = whole(asked["offset"], 0)
    return await cluster.messages_at(topic, queue, offset, limit)


def _row(message) -> dict:
    return {
        "message": message,
        "preview": preview_of(message),
        "keys": " ".join(message.keys[:SHOWN_KEYS]),
        "body_bytes": len(message.body),
    }


def _neighbours(request, way: str, asked: dict, found: Found) -> dict | None:
    """Addresses of the stretch before and behind, for a search by offset."""
    if way != "offset" or found.min_offset is None:
        return None
    limit, offset = whole(asked["limit"], LIMIT, MAX_LIMIT, least=1), whole(asked["offset"], 0)

    def address(at: int) -> str:
        query = request.GET.copy()
        query["offset"] = str(at)
        return f"{reverse('messages')}?{query.urlencode()}"

    before = address(max(found.min_offset, offset - limit)) if offset > found.min_offset else None
    behind = (
        address(found.next_offset)
        if found.next_offset is not None and found.next_offset < found.max_offset
        else None
    )
    newest = address(max(found.min_offset, found.max_offset - limit))
    return {"before": before, "behind": behind, "oldest": address(found.min_offset), "newest": newest}


@page()
async def message(request, log_offset):
    stored, raw = await current_cluster().message(log_offset)
    cluster = current_cluster()
    fate, found = cluster.fate(stored), await cluster.journey_of(log_offset)
    damage = await cluster.damage_at(log_offset)
    return await draw(
        request,
        "messages/message.html",
        lambda: {"fate": fate, "damage": damage, **journey_context(found), **_facts(stored, raw)},
    )


def _facts(stored, raw: bytes) -> dict:
    """What the page shows of the message itself. In a thread: its producer chose how much there is to
    show."""
    properties = sorted(stored.properties.items())
    return {
        "message": stored,
        "hosts": {"born": host_text(stored.born_host), "store": host_text(stored.store_host)},
        "keys": stored.keys[:SHOWN_KEYS],
        "keys_left_out": max(0, len(stored.keys) - SHOWN_KEYS),
        "properties": properties[:SHOWN_PROPERTIES],
        "properties_count": len(properties),
        **shown(record_view(raw, stored.log_offset, SHOWN_BYTES)),
        "flat": True,
        "raw_bytes": len(raw),
        "record_end": stored.log_offset + len(raw),
        "body_bytes": len(stored.body),
        "body": view_of(stored),
    }


@page()
async def message_bytes(request, log_offset, part):
    """The record, or its body as stored, as a file: never shown by the browser, whatever is in it."""
    stored, raw = await current_cluster().message(log_offset)
    if part not in ("record", "body"):
        return trouble(request, 404, "Not found", "A message has a record and a body.")
    response = in_pieces(cut(raw if part == "record" else stored.body), "application/octet-stream")
    response["Content-Disposition"] = f'attachment; filename="{stored.log_offset:020d}.{part}"'
    return response


@page()
async def message_journey(request, log_offset):
    """The stops of a message: a piece of its page, fetched again when a stop moved."""
    found = await current_cluster().journey_of(log_offset)
    return await draw(request, "store/journey/stops.html", lambda: journey_context(found))


PAGES = (
    path("messages/", messages, name="messages"),
    path("messages/<int:log_offset>/", message, name="message"),
    path("messages/<int:log_offset>/journey", message_journey, name="message_journey"),
    path("messages/<int:log_offset>/<str:part>", message_bytes, name="message_bytes"),
)
