"""The first page: is everything all right now?"""

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

CONDITION_SECONDS = 1.0  # that the page waits for the first measurement; its stream brings later ones


@dataclass(frozen=True, slots=True, kw_only=True)
class TopTopics:
    """What overview/top_topics.html shows."""

    overview: Overview


@dataclass(frozen=True, slots=True, kw_only=True)
class OverviewPage(TopTopics):
    """What the page shows."""

    recovery: StartReport | None  # None: the store has not been opened
    past: list[dict[str, object]]  # of the stream overview
    condition: Condition


@page()
async def overview(request):
    cluster = current_cluster()
    if request.htmx:  # the table of topics has got another length
        return render(request, "overview/top_topics.html", fields_of(TopTopics(overview=cluster.overview())))
    shown = OverviewPage(
        overview=cluster.overview(),
        recovery=cluster.store.recovery(),
        past=live.sampler.past("overview"),
        condition=await _condition(cluster),
    )
    return render(request, "overview/page.html", fields_of(shown))


async def _condition(cluster: Cluster) -> Condition:
    """How the broker is; a measurement that takes long serves later requests."""
    measured = asyncio.get_running_loop().run_in_executor(None, cluster.condition)
    done, _ = await asyncio.wait({measured}, timeout=CONDITION_SECONDS)
    return measured.result() if done else NOT_MEASURED


PAGES = (path("", overview, name="overview"),)
