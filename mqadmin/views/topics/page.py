"""The list of topics, and one topic."""

from __future__ import annotations

from dataclasses import dataclass

from django.shortcuts import render
from django.urls import path

from broker_store.formats import names
from broker_store.units import fields_of
from mqadmin.cluster.current import current_cluster
from mqadmin.facts.topics import TopicDetail
from mqadmin.views.page import KindOfList, ListPage, drawn, page, part_of
from mqadmin.views.query_parameters import PART, one_of, text

KIND_WORDS = {"normal": "Topics", "retry": "Retry", "dlq": "Dead letters", "system": "System"}
SORTS = ("name", "messages", "in", "out")


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPage:
    """The data of the page of a topic, and of its table of reading groups."""

    topic: TopicDetail


@page(takes={"kind": one_of(*KIND_WORDS, "all"), "q": text, "sort": one_of(*SORTS), "part": PART})
async def topics(request):
    cluster = current_cluster()
    counts = cluster.topics.counts()
    kind, search = request.GET.get("kind") or "normal", request.GET.get("q", "").strip().lower()
    sort = request.GET.get("sort") or "name"
    found = await part_of(request, lambda begin, count: cluster.topics.page(kind, search, sort, begin, count))
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
    template = "topics/table.html" if request.htmx else "topics/page.html"
    return await drawn(request, template, fields_of(shown))


@page()
async def topic(request, name):
    shown = TopicPage(topic=current_cluster().topics.detail(names.check_topic(name)))
    # The list of readers has got another length
    template = "topics/readers.html" if request.htmx else "topics/topic.html"
    return render(request, template, fields_of(shown))


PAGES = (
    path("topics/", topics, name="topics"),
    path("topics/<str:name>/", topic, name="topic"),
)
