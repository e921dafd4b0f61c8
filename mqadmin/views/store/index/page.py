"""The index from inside: which slots of a file are used, how long its chains are, and each step of a
lookup."""

from __future__ import annotations

import asyncio

from django.http import HttpRequest, QueryDict
from django.shortcuts import render
from django.urls import path

from broker_store.facts.chains import Chains
from broker_store.formats import names
from broker_store.formats.index_file import check_name
from mqadmin.cluster.current import current_cluster
from mqadmin.views.asked import one_of, text
from mqadmin.views.page import WrongField, of_field, page, window
from mqadmin.views.view import Part

CHAINS = "store/index/chains.html"
# Entries of a file whose chains are counted with the page; a larger one's when they are asked for
COUNTED_AT_ONCE = 2_000_000
MOST_KEY = 1_024
ASKED = ("topic", "key", "from", "to")


@page(
    takes={
        "file": check_name,
        "chains": one_of("1"),
        "part_of": one_of("chains"),
        **dict.fromkeys(ASKED, text),
    }
)
async def index(request: HttpRequest):
    """`file` is shown, the newest when none is named."""
    cluster = current_cluster()
    if request.htmx and request.GET.get("part_of") == "chains":
        return render(request, CHAINS, await asyncio.to_thread(chains, cluster, request.GET))
    files = cluster.index.facts()
    chosen = request.GET["file"] if request.GET.get("file") else files[-1].name if files else None
    context = {"files": files, "chosen": chosen, "picture": None, "chains": None}
    if chosen is not None:
        picture = await cluster.index.slots(chosen)
        context |= {
            "picture": picture,
            "place": next((number for number, file in enumerate(files) if file.name == chosen), 0),
        }
        context["for_script"] = {
            name: getattr(picture, name)
            for name in ("name", "at_ms", "slots", "cell_slots", "columns", "rows", "cells")
        }
        context["ends"] = [
            ("Emptiest", "emptiest", picture.emptiest),
            ("Fullest", "fullest", picture.fullest),
        ]
        context["chains_at_once"] = picture.entries <= COUNTED_AT_ONCE
        if request.GET.get("chains"):
            context |= _drawn(await cluster.index.chains(chosen))
    context |= await _lookup(cluster, request)
    return render(request, "store/index/page.html", context, status=400 if context["errors"] else 200)


def chains(cluster, asked: QueryDict) -> dict:
    """What CHAINS shows of the `file` that is asked for. For a thread."""
    return _drawn(cluster.index.watched_chains(check_name(asked.get("file", ""))))


def _drawn(chains: Chains) -> dict:
    """The chains with what the widths of the picture are measured by."""
    return {"chains": chains, "most": max(max(row.slots, row.expected) for row in chains.lengths)}


async def _lookup(cluster, request: HttpRequest) -> dict:
    asked = {name: request.GET.get(name, "").strip() for name in ASKED}
    shown = {"asked": asked, "steps": None, "outcome": None, "problem": "", "errors": {}}
    if not (asked["topic"] and asked["key"]):
        if asked["topic"] or asked["key"]:
            shown["errors"] = {
                "key"
                if asked["topic"]
                else "topic": "A lookup needs both: the index knows a key only together with its topic."
            }
        return shown
    try:
        begin_ms, end_ms = window(asked)
        with of_field("topic"):
            topic = names.check_topic(asked["topic"])
        if len(asked["key"]) > MOST_KEY:
            raise WrongField(
                "key",
                f"A key that is searched for has at most {MOST_KEY:,} characters; this has "
                f"{len(asked['key']):,}.",
            )
    except WrongField as error:
        return shown | {"errors": {error.field: str(error)}}
    *steps, outcome = await cluster.index.explain(topic, asked["key"], begin_ms, end_ms)
    return shown | {"steps": [*steps, outcome], "outcome": outcome}


PAGES = (path("store/index/", index, name="index"),)
PARTS = {"index": Part(CHAINS, chains, frozenset({"file", "part_of"}), needs=("part_of", "chains"))}
