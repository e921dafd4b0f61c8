"""The first page: is everything all right now?"""

from __future__ import annotations

import asyncio

from django.shortcuts import render
from django.urls import path

from mqadmin.cluster.current import current_cluster
from mqadmin.cluster.protocol import Cluster
from mqadmin.facts.condition import NOT_MEASURED, Condition
from mqadmin.views.page import page
from mqadmin.views.query_parameters import one_of
from mqadmin.web import live

CONDITION_SECONDS = 1.0  # that the page waits for the first measurement; its stream brings later ones


@page(takes={"part_of": one_of("condition")})
async def overview(request):
    cluster = current_cluster()
    if request.htmx and request.GET.get("part_of") == "condition":
        return render(request, "overview/condition.html", {"condition": await _condition(cluster)})
    if request.htmx:  # the table of topics has got another length
        return render(request, "overview/top_topics.html", {"overview": cluster.overview()})
    context = {
        "overview": cluster.overview(),
        "recovery": cluster.store.recovery(),
        "past": live.sampler.past("overview"),
    }
    return render(request, "overview/page.html", context | {"condition": await _condition(cluster)})


async def _condition(cluster: Cluster) -> Condition:
    """How the broker is; a measurement that takes long serves later requests."""
    measured = asyncio.get_running_loop().run_in_executor(None, cluster.condition)
    done, _ = await asyncio.wait({measured}, timeout=CONDITION_SECONDS)
    return measured.result() if done else NOT_MEASURED


PAGES = (path("", overview, name="overview"),)
