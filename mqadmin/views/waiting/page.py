"""What is delayed and what is prepared, as it waits now."""

from __future__ import annotations

from django.shortcuts import render
from django.urls import path

from mqadmin.cluster.current import current_cluster
from mqadmin.templatetags import units
from mqadmin.views.bars import Bar, bars
from mqadmin.views.page import page


@page()
async def waiting(request):
    cluster = current_cluster()
    facts = cluster.waiting.facts()
    context = {
        "waiting": facts,
        "most": max((level.waiting for level in facts.delayed.levels), default=0),
        "halves": await cluster.waiting.halves(),
        "hours": bars(
            [Bar(units.moment_given(hour.hour_ms), hour.messages, "accent") for hour in facts.timed.hours]
        ),
        "topics": bars([Bar(topic.topic, topic.messages, "accent") for topic in facts.timed.topics]),
    }
    return render(request, "waiting/facts.html" if request.htmx else "waiting/page.html", context)


PAGES = (path("messages/waiting/", waiting, name="waiting"),)
