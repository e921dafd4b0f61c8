"""Where is my message? One search bar, and one message with its bytes as they lie in the log."""

from __future__ import annotations

import codecs
import json
import time
from datetime import UTC, datetime

from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse

from broker_store.errors import NotFoundError
from broker_store.formats import names
from broker_store.formats.compression import inflate
from broker_store.formats.message_id import host_text
from broker_store.inside.bytes import record_view
from broker_store.server.http import MAX_LIMIT
from mqadmin import clusters
from mqadmin.views.inside.bytes import SHOWN_BYTES, shown
from mqadmin.views.inside.journey import journey_context
from mqadmin.views.page import page, trouble, whole

LIMIT = 32
DAY_MS = 24 * 3_600_000
SHOWN_BODY = 64 << 10  # bytes of a body on the page; all of it by the download
PREVIEW = 160
WAYS = (("offset", "Queue and offset"), ("key", "Key"), ("time", "Time"), ("id", "Id"))


@page()
async def messages(request):
    cluster = clusters.current()
    way = request.GET.get("by", "")
    asked = {name: request.GET.get(name, "").strip() for name in ("topic", "queue", "offset", "key", "id", "from", "to", "limit")}
    topics = sorted(name for name, kind in cluster.topic_kinds().items() if kind != "system")
    context = {"ways": WAYS, "by": way or "offset", "asked": asked, "topics": topics, "found": None, "problem": "", "now_ms": int(time.time() * 1000)}
    if way:
        try:
            if way == "id":
                found = await cluster.find_by_id(asked["id"], asked["topic"] or None)
                if len(found.messages) == 1:
                    return redirect("message", log_offset=found.messages[0].log_offset)
            else:
                found = await _search(cluster, way, asked)
            context |= {"found": found, "rows": [_row(message) for message in found.messages], "pages": _neighbours(request, way, asked, found)}
        except ValueError as error:
            context["problem"] = str(error)
        except NotFoundError as error:
            context["problem"] = f"{error}."
    return render(request, "messages.html", context)


async def _search(cluster, way: str, asked: dict) -> clusters.Found:
    if not asked["topic"]:
        raise ValueError("Name the topic to look in.")
    topic = names.check_topic(asked["topic"])
    limit = whole(asked["limit"], LIMIT, MAX_LIMIT)
    if way == "key":
        if not asked["key"]:
            raise ValueError("Give the key: a value of KEYS or the message id that the producer made.")
        return await cluster.find_by_key(topic, asked["key"], *_window(asked), limit)
    if way == "time":
        begin_ms, end_ms = _window(asked)
        return await cluster.find_by_time(topic, begin_ms if asked["from"] else None, end_ms, limit)
    if way == "offset":
        return await cluster.messages_at(topic, whole(asked["queue"], 0, (1 << 31) - 1), whole(asked["offset"], 0), limit)
    raise ValueError("There is no such search.")


def _window(asked: dict) -> tuple[int, int]:
    """Begin and end in ms; without them everything up to a day from now, so no window is hidden."""
    end = moment_of(asked["to"], int(time.time() * 1000) + DAY_MS)
    begin = moment_of(asked["from"], 0)
    if begin > end:
        raise ValueError("The time it begins lies behind the time it ends.")
    return begin, end


def moment_of(text: str, default: int | None) -> int | None:
    """ms of what an input of type datetime-local gives, in UTC."""
    if not text:
        return default
    try:
        moment = datetime.fromisoformat(text.removesuffix("Z"))
    except ValueError:
        raise ValueError(f"{text[:40]!r} is not a time like 2026-01-31T18:00") from None
    return int(moment.replace(tzinfo=moment.tzinfo or UTC).timestamp() * 1000)


def _row(message) -> dict:
    inflated = inflate(message.body, message.sys_flag)
    preview = preview_of(message.body if inflated is None else inflated)
    return {"message": message, "preview": preview, "keys": " ".join(message.keys), "body_bytes": len(message.body)}


def preview_of(body: bytes) -> str:
    """The beginning of a body for a line: its text, or as hex what is none."""
    head = body[: PREVIEW * 4]
    try:
        # A character that the cut took apart is no sign of bytes that are no text.
        text = codecs.getincrementaldecoder("utf-8")().decode(head, final=len(head) == len(body))
    except UnicodeDecodeError:
        text = None
    return body[: PREVIEW // 3].hex(" ") if text is None or "\0" in text else text[:PREVIEW]


def _neighbours(request, way: str, asked: dict, found: clusters.Found) -> dict | None:
    """Addresses of the stretch before and behind, for a search by offset."""
    if way != "offset" or found.min_offset is None:
        return None
    limit, offset = whole(asked["limit"], LIMIT, MAX_LIMIT), whole(asked["offset"], 0)

    def address(at: int) -> str:
        query = request.GET.copy()
        query["offset"] = str(at)
        return f"{reverse('messages')}?{query.urlencode()}"

    before = address(max(found.min_offset, offset - limit)) if offset > found.min_offset else None
    behind = address(found.next_offset) if found.next_offset is not None and found.next_offset < found.max_offset else None
    newest = address(max(found.min_offset, found.max_offset - limit))
    return {"before": before, "behind": behind, "oldest": address(found.min_offset), "newest": newest}


@page()
async def message(request, log_offset):
    stored, raw = await clusters.current().message(log_offset)
    inflated = inflate(stored.body, stored.sys_flag)
    body = stored.body if inflated is None else inflated
    context = {
        "message": stored,
        "fate": clusters.current().fate(stored),
        "hosts": {"born": host_text(stored.born_host), "store": host_text(stored.store_host)},
        "keys": stored.keys,
        "properties": sorted(stored.properties.items()),
        **shown(record_view(raw, stored.log_offset, SHOWN_BYTES)),
        "flat": True,
        "raw_bytes": len(raw),
        "record_end": stored.log_offset + len(raw),
        "body_bytes": len(stored.body),
        "body_inflated": stored.is_compressed and inflated is not None,
        "body_opaque": inflated is None,
        **_body_context(body),
        **journey_context(await clusters.current().journey_of(log_offset)),
    }
    return render(request, "message.html", context)


def _body_context(body: bytes) -> dict:
    """The body as text and, where it is JSON, as indented JSON; `body_text` None when it is not UTF-8."""
    shown = body[:SHOWN_BODY]
    try:
        # A cut may lie inside a character: only the last one may be incomplete then.
        text = shown.decode() if len(shown) == len(body) else shown.decode("utf-8", "ignore")
    except UnicodeDecodeError:
        return {"body_text": None, "body_json": None, "body_cut": False}
    pretty = None
    if len(shown) == len(body) and text[:1] in "{[":
        try:
            pretty = json.dumps(json.loads(text), indent=2, ensure_ascii=False)
        except (ValueError, RecursionError):
            pretty = None
    return {"body_text": text, "body_json": pretty, "body_cut": len(shown) < len(body)}


@page()
async def message_bytes(request, log_offset, part):
    """The record, or its body as stored, as a file: never shown by the browser, whatever is in it."""
    stored, raw = await clusters.current().message(log_offset)
    if part not in ("record", "body"):
        return trouble(request, 404, "Not found", "A message has a record and a body.")
    response = HttpResponse(raw if part == "record" else stored.body, content_type="application/octet-stream")
    response["Content-Disposition"] = f'attachment; filename="{stored.log_offset:020d}.{part}"'
    return response
