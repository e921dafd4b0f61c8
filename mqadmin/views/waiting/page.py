"""What is delayed and what is prepared, as it waits now."""

from __future__ import annotations

from dataclasses import dataclass

from django.shortcuts import render
from django.urls import path

from broker_store.units import fields_of
from mqadmin.cluster.current import current_cluster
from mqadmin.facts.pops import ReviveQueue
from mqadmin.facts.waiting import Halves, Waiting
from mqadmin.templatetags import units
from mqadmin.views.bars import Bar, DrawnBar, bars
from mqadmin.views.page import page


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingPage:
    """The data of waiting/facts.html."""

    waiting: Waiting
    most: int  # messages of the fullest delay level
    halves: Halves
    hours: list[DrawnBar]  # in which timed messages are due
    topics: list[DrawnBar]  # that timed messages wait for
    revive_queues: list[ReviveQueue]  # queues of the revive log that hold, or held, any record


@page()
async def waiting(request):
    cluster = current_cluster()
    facts = cluster.waiting.facts()
    shown = WaitingPage(
        waiting=facts,
        most=max((level.waiting for level in facts.delayed.levels), default=0),
        halves=await cluster.waiting.halves(),
        hours=bars(
            [Bar(units.moment_given(hour.hour_ms), hour.messages, "accent") for hour in facts.timed.hours]
        ),
        revive_queues=[queue for queue in facts.popped.queues if queue.max_offset],
        topics=bars([Bar(topic.topic, topic.messages, "accent") for topic in facts.timed.topics]),
    )
    return render(request, "waiting/facts.html" if request.htmx else "waiting/page.html", fields_of(shown))


PAGES = (path("messages/waiting/", waiting, name="waiting"),)
