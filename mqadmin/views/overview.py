"""The first page: is everything all right now?"""

from __future__ import annotations

from django.shortcuts import render

from mqadmin import clusters, live
from mqadmin.views.page import page


@page()
async def overview(request):
    cluster = clusters.current()
    if request.htmx:  # the table of topics has got another length
        return render(request, "top_topics.html", {"overview": cluster.overview()})
    context = {"overview": cluster.overview(), "recovery": cluster.recovery(), "past": live.sampler.past("overview")}
    return render(request, "overview.html", context)
