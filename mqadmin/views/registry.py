"""All views, and the tables that the dashboard makes from them: addresses, tabs, streams, parts of pages,
REST routes, verbs and rows of access.

A name that two views have raises ValueError at the first use.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, TypeVar

from mqadmin.views import (
    access as access_view,
)
from mqadmin.views import (
    account,
    dead_letters,
    glossary,
    groups,
    jobs,
    messages,
    overview,
    pipeline,
    pops,
    store,
    topics,
    waiting,
)
from mqadmin.views.store import (
    bytes,
    cache,
    disk,
    doctor,
    index,
    journey,
    lab,
    layout,
    memory,
    recoveries,
    replication,
    threads,
    write,
)
from mqadmin.views.view import Part, Rest, Stream, Tab, VerbFace, View

if TYPE_CHECKING:
    from django.urls import URLPattern
    from ninja import Router

Value = TypeVar("Value")

# In the order of the REST reference. Addresses are tried in this order, too.
VIEWS: tuple[View, ...] = (
    overview.VIEW,
    topics.VIEW,
    messages.VIEW,
    groups.VIEW,
    pops.VIEW,
    dead_letters.VIEW,
    waiting.VIEW,
    store.VIEW,
    bytes.VIEW,
    cache.VIEW,
    doctor.VIEW,
    disk.VIEW,
    index.VIEW,
    journey.VIEW,
    layout.VIEW,
    recoveries.VIEW,
    write.VIEW,
    threads.VIEW,
    memory.VIEW,
    replication.VIEW,
    lab.VIEW,
    jobs.VIEW,
    pipeline.VIEW,
    access_view.VIEW,
    account.VIEW,
    glossary.VIEW,
)


def pages() -> list[URLPattern]:
    """Return the addresses of all views. Imports all pages."""
    return [pattern for view in VIEWS for pattern in view.pages]


@functools.cache
def tabs() -> tuple[Tab, ...]:
    """Return the tabs of the store's pages, from left to right."""
    return tuple(sorted((tab for view in VIEWS for tab in view.tabs), key=lambda tab: tab.place))


@functools.cache
def streams() -> dict[str, Stream]:
    """Return the streams of all views, by name."""
    return _merged(view.streams for view in VIEWS)


@functools.cache
def parts() -> dict[str, Part]:
    """Return the parts of pages of all views, by the names of their addresses. Imports all pages."""
    return _merged(view.parts for view in VIEWS)


def routers() -> Iterator[tuple[Rest, Router]]:
    """Yield the REST routes of the views that have some, in the order of the contract."""
    for view in VIEWS:
        rest, router = view.rest, view.router
        if rest is not None and router is not None:
            yield rest, router


def operations_of(module: str) -> str | None:
    """Return the group of operation ids of a module; None when it belongs to no view."""
    package = module.removesuffix(".api")
    return next((view.rest.operations for view in VIEWS if view.rest and view.package == package), None)


@functools.cache
def verbs() -> list[VerbFace]:
    """Return the modules with the verbs of `manage.py store`."""
    return [verb for view in VIEWS if (verb := view.verb) is not None]


def access() -> list[str]:
    """Return the rows of access of all views."""
    return [row for view in VIEWS for row in view.access]


def _merged(tables: Iterable[Mapping[str, Value]]) -> dict[str, Value]:
    merged: dict[str, Value] = {}
    for table in tables:
        if twice := merged.keys() & table.keys():
            raise ValueError(f"two views have the same name: {', '.join(sorted(twice))}")
        merged |= table
    return merged
