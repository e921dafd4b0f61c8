"""The page of the overview."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from django.shortcuts import render
from django.urls import path

from broker_store.facts.starts import StartReport
from broker_store.units import fields_of
from mqadmin.cluster.current import current_cluster
from mqadmin.cluster.protocol import Cluster
from mqadmin.facts.condition import NOT_MEASURED, Condition
from mqadmin.facts.overview import Overview
from mqadmin.views.page import page
from mqadmin.web import live

CONDITION_SECONDS = 1.0  # the longest wait of the page for a measurement; its stream brings later ones


@dataclass(frozen=True, slots=True, kw_only=True)
class TopTopics:
    """The data of overview/top_topics.html."""

    overview: Overview


@dataclass(frozen=True, slots=True, kw_only=True)
class OverviewPage(TopTopics):
    """The data of the page."""

    recovery: StartReport | None  # None: the store has not been opened
    past: list[dict[str, object]]  # of the stream overview
    condition: Condition


@page()
async def overview(request):
    cluster = current_cluster()
    if request.htmx:  # the number of rows of the table of topics has changed
        return render(request, "overview/top_topics.html", fields_of(TopTopics(overview=cluster.overview())))
    shown = OverviewPage(
        overview=cluster.overview(),
        recovery=cluster.store.recovery(),
        past=live.sampler.past("overview"),
        condition=await _condition(cluster),
    )
    return render(request, "overview/page.html", fields_of(shown))


async def _condition(cluster: Cluster) -> Condition:
    """Return the condition of the broker; NOT_MEASURED while a measurement takes longer than
    CONDITION_SECONDS."""
    measured = asyncio.get_running_loop().run_in_executor(None, cluster.condition)
    done, _ = await asyncio.wait({measured}, timeout=CONDITION_SECONDS)
    return measured.result() if done else NOT_MEASURED


PAGES = (path("", overview, name="overview"),)
