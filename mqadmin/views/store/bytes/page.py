"""The page of the byte viewer: hex and text of any range of any file of the store, with its fields and the
places to which they point."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.urls import path

from broker_store.errors import FieldError, NameError_, NotFoundError
from broker_store.facts.bytes.pieces import FileBytes, RecordBytes
from broker_store.facts.bytes.place import KINDS, Kind, Place
from broker_store.units import fields_of
from mqadmin.cluster.current import current_cluster
from mqadmin.views.page import capital, draw, page, said
from mqadmin.views.query_parameters import one_of, text, whole
from mqadmin.views.store.bytes.facts import SHOWN_BYTES, ShownFileBytes, shown

TEMPLATE = "store/bytes/page.html"
ASKED = ("topic", "name", "offset", "unit", "slot", "entry", "queue", "length")
# The kinds of files in the form, with their titles.
KIND_TITLES = {
    "commitlog": "Commit log",
    "consumequeue": "Consume queue",
    "index": "Index",
    "checkpoint": "Checkpoint",
    "timerlog": "Timer log",
    "timerwheel": "Timer wheel",
    "timercheck": "Timer checkpoint",
}


# Without slots, so that a class can inherit from it and from another
@dataclass(frozen=True, kw_only=True)
class BytesPage:
    """The data of the page without bytes."""

    asked: Mapping[str, str]  # what was typed, by the names of the fields
    kinds: Collection[tuple[str, str]]  # names and titles of the kinds of files
    rest: str  # the address that gives the same
    command: str  # of manage.py store
    problem: str = ""  # why there are no bytes
    stretch: FileBytes | RecordBytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundBytesPage(ShownFileBytes, BytesPage):
    """The data of the page with bytes."""


@page(takes={"kind": one_of(*KINDS), **dict.fromkeys(ASKED, text)})
async def bytes_page(request: HttpRequest) -> HttpResponse:
    cluster = current_cluster()
    asked = {name: request.GET.get(name, "").strip() for name in ("kind", *ASKED)}
    asked["kind"] = kind_of(asked)
    given = {name: value for name, value in asked.items() if value}
    empty = BytesPage(
        asked=asked,
        kinds=KIND_TITLES.items(),
        rest=f"/api/v1/store/bytes?{urlencode(given)}",
        command="hex " + " ".join(f"--{name} {shlex.quote(value)}" for name, value in given.items()),
    )
    try:
        stretch = await cluster.store.bytes_at(place_of(asked), SHOWN_BYTES)
        return await draw(request, TEMPLATE, lambda: fields_of(_found(empty, stretch)))
    except ValueError as error:
        return await draw(request, TEMPLATE, fields_of(replace(empty, problem=f"{error}.")), status=400)
    except (FieldError, NameError_, NotFoundError) as error:
        shown_problem = replace(empty, problem=f"{capital(said(error))}.")
    return await draw(request, TEMPLATE, fields_of(shown_problem), status=404 if request.GET else 200)


def _found(empty: BytesPage, stretch: FileBytes) -> FoundBytesPage:
    return FoundBytesPage(**fields_of(empty) | fields_of(shown(stretch)))


def kind_of(asked: Mapping[str, str]) -> Kind:
    """Return the kind of file that a query string names, the first without one."""
    return next((kind for kind in KINDS if kind == asked.get("kind")), KINDS[0])


def place_of(asked: Mapping[str, str]) -> Place:
    """Return the place that a query string names. Raises ValueError for a wrong number."""

    def number(name: str) -> int | None:
        return whole(asked.get(name), None)

    return Place(
        kind_of(asked),
        offset=number("offset"),
        topic=asked.get("topic", ""),
        queue=whole(asked.get("queue"), 0),
        unit=number("unit"),
        name=asked.get("name", ""),
        slot=number("slot"),
        entry=number("entry"),
        length=number("length"),
    )


PAGES = (path("store/bytes/", bytes_page, name="bytes"),)
