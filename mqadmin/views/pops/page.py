"""All messages that are invisible to a group, and the part of its page with the first of them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from django.shortcuts import render
from django.urls import path

from broker_store.formats import names
from broker_store.units import fields_of
from mqadmin.cluster.current import current_cluster
from mqadmin.facts.pops import SHOWN_MESSAGES, InvisibleMessages
from mqadmin.views.page import page
from mqadmin.views.query_parameters import text

PAGE_MESSAGES = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class InvisiblePage:
    """The data of pops/page.html and pops/messages.html."""

    group_name: str
    invisible: InvisibleMessages
    after: str  # where the list goes on; "": it is at its beginning


async def measured(group: str, after: str, limit: int) -> InvisiblePage:
    """Return a piece of the list of a group. Raises NotFoundError."""
    found = await asyncio.to_thread(
        current_cluster().pops.invisible, names.check_group(group), after or None, limit
    )
    return InvisiblePage(group_name=group, invisible=found, after=after)


@page(takes={"after": text})
async def invisible(request, name):
    shown = await measured(name, request.GET.get("after", ""), PAGE_MESSAGES)
    template = "pops/messages.html" if request.htmx else "pops/page.html"
    return render(request, template, fields_of(shown))


@page()
async def first_invisible(request, name):
    """Draw the first invisible messages: a part of the group's page."""
    shown = await measured(name, "", SHOWN_MESSAGES)
    return render(request, "pops/messages.html", fields_of(shown))


PAGES = (
    path("groups/<str:name>/invisible/", invisible, name="group_invisible"),
    path("groups/<str:name>/invisible/first", first_invisible, name="group_first_invisible"),
)
