"""The list of consumer groups, and one group with its lag in each queue."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from django.shortcuts import render
from django.urls import path

from broker_store.formats import names
from broker_store.units import fields_of
from mqadmin.cluster.current import current_cluster
from mqadmin.facts.groups import GroupDetail, RetryPolicy
from mqadmin.facts.pops import InvisibleMessages
from mqadmin.facts.waiting import Retries
from mqadmin.templatetags import units
from mqadmin.views.groups import timelines
from mqadmin.views.page import KindOfList, ListPage, drawn, page, part_of
from mqadmin.views.query_parameters import PART, one_of, text

KIND_WORDS = {"normal": "Groups", "system": "System"}
KINDS = (*KIND_WORDS, "all")
SORTS = ("name", "lag", "clients")
MAX_STEPS = 20  # waits of a retry policy that are shown


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFacts:
    """The data of groups/clients.html."""

    group: GroupDetail


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRetries(GroupFacts):
    """The data of groups/retries.html."""

    retries: Retries


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPage(timelines.TimelineDrawing):
    """The data of the page of a group."""

    group: GroupDetail
    group_name: str  # of the part with invisible messages
    invisible: InvisibleMessages
    after: str = ""  # of that part: it is the beginning of the list
    retries: Retries
    retry_policy: str  # a sentence


@page(takes={"kind": one_of(*KINDS), "q": text, "sort": one_of(*SORTS), "part": PART})
async def groups(request):
    cluster = current_cluster()
    counts = cluster.groups.counts()
    kind = request.GET.get("kind") or "normal"
    search = request.GET.get("q", "").strip().lower()
    sort = request.GET.get("sort") or "lag"
    found = await part_of(request, lambda begin, count: cluster.groups.page(kind, search, sort, begin, count))
    shown = ListPage(
        **fields_of(found),
        kind=kind,
        q=request.GET.get("q", ""),
        sort=sort,
        kinds=[
            *(KindOfList(name=name, word=word, count=counts[name]) for name, word in KIND_WORDS.items()),
            KindOfList(name="all", word="All", count=sum(counts.values())),
        ],
    )
    template = "groups/table.html" if request.htmx else "groups/page.html"
    return await drawn(request, template, fields_of(shown))


@page()
async def group(request, name):
    facts = current_cluster().groups.detail(names.check_group(name))
    if request.htmx:  # the number of clients or of subscriptions has changed
        return render(request, "groups/clients.html", fields_of(GroupFacts(group=facts)))
    timeline_facts = await asyncio.to_thread(current_cluster().store.timeline, name)
    shown = GroupPage(
        **fields_of(timelines.drawing_of(timeline_facts)),
        group=facts,
        group_name=name,
        invisible=await asyncio.to_thread(current_cluster().pops.invisible, name),
        retries=await asyncio.to_thread(current_cluster().waiting.retries, name),
        retry_policy=retry_policy_text(facts.retry_policy),
    )
    return render(request, "groups/group.html", fields_of(shown))


def retry_policy_text(policy: RetryPolicy) -> str:
    """Return how long clients wait before a retry."""
    if policy.initial_ms is not None and policy.max_ms is not None:
        first, most = units.duration_short(policy.initial_ms), units.duration_short(policy.max_ms)
        times = f"{policy.multiplier} times as long each time"
        waits = f"{first} before the first retry, then {times}, at most {most}"
    else:
        shown = [units.duration_short(step_ms) for step_ms in policy.steps_ms[:MAX_STEPS]]
        further = (
            " ..." if len(policy.steps_ms) > MAX_STEPS else ", which is also the wait of all further retries"
        )
        waits = ", ".join(shown) + further
    return f"Clients of RocketMQ 5 (gRPC) wait {waits}. Other clients wait by delay levels."


@page()
async def timeline(request, name):
    """Draw a group's queues over time: a part of its page."""
    facts = await asyncio.to_thread(current_cluster().store.timeline, names.check_group(name))
    return render(request, "groups/timeline.html", fields_of(timelines.drawing_of(facts)))


@page()
async def retries(request, name):
    """Draw the messages that a group sent back and that wait: a part of its page."""
    shown = GroupRetries(
        group=current_cluster().groups.detail(names.check_group(name)),
        retries=await asyncio.to_thread(current_cluster().waiting.retries, name),
    )
    return render(request, "groups/retries.html", fields_of(shown))


PAGES = (
    path("groups/", groups, name="groups"),
    path("groups/<str:name>/", group, name="group"),
    path("groups/<str:name>/timeline", timeline, name="group_timeline"),
    path("groups/<str:name>/retries", retries, name="group_retries"),
)
