"""The list of consumer groups, and one group with its lag in each queue."""

from __future__ import annotations

import asyncio

from django.shortcuts import render

from broker_store.formats import names
from mqadmin import clusters
from mqadmin.views.inside import timelines
from mqadmin.views.page import page, slice_of

SORTS = {
    "name": lambda group: group["name"].lower(),
    # Unknown is not zero: groups whose lag is not known stand behind those whose lag is.
    "lag": lambda group: (group["lag"] is None, -(group["lag"] or 0)),
    "clients": lambda group: -(group["clients"] or 0),
}


@page()
async def groups(request):
    every = clusters.current().groups()
    kind = request.GET.get("kind", "normal")
    search = request.GET.get("q", "").strip().lower()
    sort = request.GET.get("sort", "lag")
    found = [group for group in every if (kind == "all" or group["kind"] == kind) and search in group["name"].lower()]
    found.sort(key=SORTS.get(sort, SORTS["lag"]))
    context = {
        **slice_of(found, request),
        "kind": kind,
        "q": request.GET.get("q", ""),
        "sort": sort,
        "kinds": [
            {"name": "normal", "word": "Groups", "count": sum(group["kind"] == "normal" for group in every)},
            {"name": "system", "word": "System", "count": sum(group["kind"] == "system" for group in every)},
            {"name": "all", "word": "All", "count": len(every)},
        ],
    }
    return render(request, "groups_table.html" if request.htmx else "groups.html", context)


@page()
async def group(request, name):
    facts = clusters.current().group(names.check_group(name))
    if request.htmx:  # the list of clients or of subscriptions has got another length
        return render(request, "group_clients.html", {"group": facts})
    context = {"group": facts, "retries": await asyncio.to_thread(clusters.current().retries, name)}
    return render(request, "group.html", context | timelines.picture(await asyncio.to_thread(clusters.current().timeline, name)))


@page()
async def timeline(request, name):
    """A group's queues over time: a piece of its page."""
    facts = await asyncio.to_thread(clusters.current().timeline, names.check_group(name))
    return render(request, "inside/timeline.html", timelines.picture(facts))


@page()
async def retries(request, name):
    """What of a group waits in the delay levels: a piece of its page."""
    facts = clusters.current().group(names.check_group(name))
    return render(request, "group_retries.html", {"group": facts, "retries": await asyncio.to_thread(clusters.current().retries, name)})
