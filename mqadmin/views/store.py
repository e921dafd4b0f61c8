"""The store from inside: its map, its index, its recovery. The first and the last are there while it starts, too."""

from __future__ import annotations

from django.shortcuts import render

from broker_store.errors import StoreClosedError
from broker_store.formats import names
from mqadmin import clusters, live
from mqadmin.views.page import page, whole

QUEUES_A_PART = 50


@page()
async def store(request):
    cluster = clusters.current()
    if request.htmx:
        if request.GET.get("part_of") == "log":
            return render(request, "log_files.html", {"log_files": live.log_files(cluster)})
        return render(request, "queue_files.html", _queue_files(cluster, request))
    context = {"store": cluster.store(), "recovery": cluster.recovery(), "tab": "map", "log_files": None}
    try:
        context |= {"log_files": live.log_files(cluster), "index_files": cluster.store_files("index"), **_queue_files(cluster, request)}
        context["newest_index"] = len(context["index_files"]) - 1
    except StoreClosedError:
        pass  # while it starts the page shows recovery in place of the files
    return render(request, "store.html", context)


def _queue_files(cluster, request) -> dict:
    search = request.GET.get("q", "").strip()
    try:
        part = max(1, whole(request.GET.get("part"), 1, 1 << 31))
    except ValueError:
        part = 1
    files, queues = cluster.queue_files(search.lower(), (part - 1) * QUEUES_A_PART, QUEUES_A_PART)
    return {"queue_files": files, "queues": queues, "part": part, "parts": max(1, -(-queues // QUEUES_A_PART)), "q": search}


@page()
async def index(request):
    """The hash index, and what one lookup in it does, step by step."""
    cluster = clusters.current()
    topic, key = request.GET.get("topic", "").strip(), request.GET.get("key", "").strip()
    context = {"files": cluster.store_index(), "store": cluster.store(), "tab": "index", "topic": topic, "key": key, "steps": None, "problem": ""}
    if topic and key:
        context["steps"] = await cluster.explain(names.check_topic(topic), key[:1_024])
    elif topic or key:
        context["problem"] = "A lookup needs both: the index knows a key only together with its topic."
    return render(request, "index.html", context)


@page()
async def recovery(request):
    cluster = clusters.current()
    return render(request, "recovery.html", {"recovery": cluster.recovery(), "store": cluster.store(), "tab": "recovery"})
