"""How the messages of topics lie among each other in the log, and what it costs to read them again."""

from __future__ import annotations

import asyncio
import math

from django.http import QueryDict
from django.urls import path

from broker_store.errors import NameError_, NotFoundError
from broker_store.facts.layout import Laid, LogSpan
from broker_store.formats import names
from broker_store.units import fields_of
from mqadmin.cluster.current import current_cluster
from mqadmin.views.asked import moment_of, text, whole
from mqadmin.views.page import capital, drawn, page, said
from mqadmin.views.store.layout.facts import Both, check, for_page
from mqadmin.views.view import Part

FACTS = "store/layout/facts.html"
ASKED = ("topic", "group", "from", "offset")


@page(takes=dict.fromkeys(ASKED, text))
async def layout(request):
    cluster = current_cluster()
    context = _as_asked(request.GET)
    if context["asked"]["from"] or context["asked"]["offset"]:
        try:
            context |= _pictures(await cluster.store.layout_of_both(*_choice(context["asked"])))
        except (ValueError, NameError_, NotFoundError) as error:
            context |= _problem(error)
    else:
        context = await asyncio.to_thread(facts, cluster, request.GET)
    if request.htmx:
        return await drawn(request, FACTS, context)
    return await drawn(
        request,
        "store/layout/page.html",
        context | {"topics": cluster.topics.offered()},
        status=400 if context["is_unreadable"] else 200,
    )


def facts(cluster, asked: QueryDict) -> dict:
    """What FACTS shows of a topic, of what a group reads or of all topics, without a start of the asker's.
    For a thread."""
    context = _as_asked(asked)
    try:
        topic, group, _, _ = _choice(context["asked"])
        return context | _pictures(cluster.store.watched_layout(topic, group)) | {"watched": True}
    except (ValueError, NameError_, NotFoundError) as error:
        return context | _problem(error)


def _as_asked(asked: QueryDict) -> dict:
    return {
        "asked": {name: asked.get(name, "").strip() for name in ASKED},
        "problem": "",
        "is_unreadable": False,
        "one": None,
        "each": None,
    }


def _choice(asked: dict) -> tuple[str | None, str | None, int | None, int | None]:
    start = moment_of(asked["from"], None), whole(asked["offset"], None)
    topic, group = (
        asked["topic"] and names.check_topic(asked["topic"]),
        asked["group"] and names.check_group(asked["group"]),
    )
    check(topic or None, group or None, *start)
    return topic or None, group or None, *start


def _pictures(both: Both) -> dict:
    found = for_page(both)
    one, each = found.one, found.each
    return fields_of(found) | {
        "one": one and _pictured(one, one.log),
        "rows": [_pictured(row, each.log) for row in each.items],
    }


def _problem(error: Exception) -> dict:
    if isinstance(error, NotFoundError):
        return {"problem": f"{capital(said(error))}."}
    return {"problem": f"{said(error)}.", "is_unreadable": True}


def _pictured(found: Laid, log: LogSpan) -> dict:
    """With a shade a cell: the root of its share, so that a topic of one message in a hundred can be seen
    beside one of half the log."""
    cells = found.cell_bytes
    room = max(1.0, (log.end - log.begin) / max(1, len(cells)))
    shares = [min(1.0, size / room) for size in cells]
    return fields_of(found) | {
        "shades": [math.sqrt(share) for share in shares],
        "fullest": max(shares, default=None),
    }


PAGES = (path("store/layout/", layout, name="layout"),)
PARTS = {"layout": Part(FACTS, facts, frozenset({"topic", "group"}))}
