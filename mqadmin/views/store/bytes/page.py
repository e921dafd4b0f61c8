"""The byte viewer: hex and text of any stretch of any file of the store, with its fields and where they
lead."""

from __future__ import annotations

import shlex
from urllib.parse import urlencode

from django.urls import path

from broker_store.errors import FieldError, NameError_, NotFoundError
from broker_store.facts.bytes import KINDS, Place
from mqadmin.cluster.current import current_cluster
from mqadmin.views.asked import one_of, text, whole
from mqadmin.views.page import capital, draw, page, said
from mqadmin.views.store.bytes.facts import SHOWN_BYTES, shown

NUMBERS = ("offset", "unit", "slot", "entry", "queue", "length")
# Which fields of the form belong to which kind of file, in the words of page.js; the rest have only an
# offset.
KIND_TITLES = {
    "commitlog": "Commit log",
    "consumequeue": "Consume queue",
    "index": "Index",
    "checkpoint": "Checkpoint",
    "timerlog": "Timer log",
    "timerwheel": "Timer wheel",
    "timercheck": "Timer checkpoint",
}


@page(takes={"kind": one_of(*KINDS), **dict.fromkeys(("topic", "name", *NUMBERS), text)})
async def bytes_page(request):
    cluster = current_cluster()
    asked = {name: request.GET.get(name, "").strip() for name in ("kind", "topic", "name", *NUMBERS)}
    asked["kind"] = asked["kind"] or KINDS[0]
    given = {name: value for name, value in asked.items() if value}
    context = {
        "asked": asked,
        "kinds": KIND_TITLES.items(),
        "problem": "",
        "look": None,
        "rest": f"/api/v1/store/bytes?{urlencode(given)}",
    }
    context["command"] = "hex " + " ".join(f"--{name} {shlex.quote(value)}" for name, value in given.items())
    try:
        look = await cluster.look_at(place_of(asked), SHOWN_BYTES)
        return await draw(request, "store/bytes/page.html", lambda: context | shown(look))
    except ValueError as error:
        return await draw(request, "store/bytes/page.html", context | {"problem": f"{error}."}, status=400)
    except (FieldError, NameError_, NotFoundError) as error:
        context["problem"] = f"{capital(said(error))}."
    return await draw(request, "store/bytes/page.html", context, status=404 if len(request.GET) else 200)


def place_of(asked: dict[str, str]) -> Place:
    """The place that a query string names. ValueError for what is no number."""
    numbers = {name: whole(asked[name], None) for name in NUMBERS}
    return Place(
        asked["kind"], topic=asked["topic"], name=asked["name"], **numbers | {"queue": numbers["queue"] or 0}
    )


PAGES = (path("store/bytes/", bytes_page, name="bytes"),)
