"""What is delayed and what is prepared, as it waits now."""

from __future__ import annotations

from django.shortcuts import render

from mqadmin import clusters
from mqadmin.views.page import page


@page()
async def waiting(request):
    cluster = clusters.current()
    facts = cluster.waiting()
    context = {
        "waiting": facts,
        "most": max((level["waiting"] for level in facts["delayed"]["levels"]), default=0),
        "halves": await cluster.halves(),
    }
    return render(request, "waiting_facts.html" if request.htmx else "waiting.html", context)
