"""The list of topics, and one topic."""

from __future__ import annotations

from collections import Counter

from django.shortcuts import render

from broker_store.formats import names
from mqadmin import clusters
from mqadmin.views.page import page, slice_of

KINDS = ("normal", "retry", "dlq", "system")
KIND_WORDS = {"normal": "Topics", "retry": "Retry", "dlq": "Dead letters", "system": "System"}
SORTS = {
    "messages": lambda topic: -(topic["messages"] or 0),
    "in": lambda topic: -(topic["in_per_s"] or 0.0),
    "out": lambda topic: -(topic["out_per_s"] or 0.0),
}


@page()
async def topics(request):
    cluster = clusters.current()
    kind_of = cluster.topic_kinds()
    kind, search = request.GET.get("kind", "normal"), request.GET.get("q", "").strip().lower()
    sort = request.GET.get("sort", "name")
    found = sorted((name for name, its in kind_of.items() if (kind == "all" or its == kind) and search in name.lower()), key=str.lower)
    if sort in SORTS:
        # Only these orders need every topic's numbers; by name the page asks for those it shows.
        shown = slice_of(sorted(cluster.topics(set(found)), key=SORTS[sort]), request)
    else:
        shown = slice_of(found, request)
        facts = {topic["name"]: topic for topic in cluster.topics(set(shown["rows"]))}
        shown["rows"] = [facts[name] for name in shown["rows"]]
    counts = Counter(kind_of.values())
    context = {
        **shown,
        "kind": kind,
        "q": request.GET.get("q", ""),
        "sort": sort if sort in SORTS else "name",
        "kinds": [{"name": name, "word": KIND_WORDS[name], "count": counts[name]} for name in KINDS] + [{"name": "all", "word": "All", "count": len(kind_of)}],
    }
    return render(request, "topics_table.html" if request.htmx else "topics.html", context)


@page()
async def topic(request, name):
    facts = clusters.current().topic(names.check_topic(name))
    return render(request, "topic_readers.html" if request.htmx else "topic.html", {"topic": facts})  # the list of readers has got another length
