"""The layout of the messages of topics in the log, and the cost of reading them again."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field

from django.http import QueryDict
from django.urls import path

from broker_store.errors import NameError_, NotFoundError
from broker_store.facts.layout import LayoutOfEach, LayoutOfTopics, LogSpan, Placement, TopicLayout
from broker_store.formats import names
from broker_store.units import fields_of, json_name, small_by_field
from mqadmin.cluster.current import current_cluster
from mqadmin.facts.layout import Both, check
from mqadmin.views.page import capital, drawn, page, said
from mqadmin.views.query_parameters import moment_of, text, whole
from mqadmin.views.store.layout.facts import for_page
from mqadmin.views.view import Part

FACTS = "store/layout/facts.html"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutForm:
    """The fields of the form, as they were typed."""

    topic: str
    group: str
    from_: str  # a time
    offset: str  # of the log

    @property
    def has_start(self) -> bool:
        """True if a place to begin at was typed."""
        return bool(self.from_ or self.offset)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shades:
    """The cells of a strip of the log. A shade is the root of a cell's share, so that a topic of one message
    in a hundred can be seen beside one of half the log."""

    shades: list[float]  # 0 to 1
    fullest: float | None  # the largest share of a cell, 0 to 1; None: the log is empty


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnTopics(LayoutOfTopics):
    """Topics together, with their strip."""

    strip: Shades


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnTopic(TopicLayout):
    """One topic of all, with its strip."""

    strip: Shades


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutPage:
    """The data of FACTS."""

    asked: LayoutForm
    problem: str = ""  # why there is nothing to show
    is_unreadable: bool = False  # the problem is the form
    watched: bool = False  # the part has no start of the asker's, so a stream draws it again
    one: DrawnTopics | None = None  # what was chosen
    each: LayoutOfEach | None = None  # None: there is a problem
    rows: list[DrawnTopic] = field(default_factory=list)  # the topics of `each`
    more: int = 0  # topics that are left out


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeLayoutPage(LayoutPage):
    """The data of the whole page."""

    topics: list[str]  # that the form offers


ASKED = tuple(map(json_name, small_by_field(LayoutForm)))


@page(takes=dict.fromkeys(ASKED, text))
async def layout(request):
    cluster = current_cluster()
    form = _form(request.GET)
    if form.has_start:
        try:
            shown = _shown(form, await cluster.store.layout_of_both(*_choice(form)))
        except (ValueError, NameError_, NotFoundError) as error:
            shown = _problem(form, error)
    else:
        shown = await asyncio.to_thread(facts, cluster, request.GET)
    if request.htmx:
        return await drawn(request, FACTS, fields_of(shown))
    whole_page = WholeLayoutPage(**fields_of(shown), topics=cluster.topics.offered())
    status = 400 if shown.is_unreadable else 200
    return await drawn(request, "store/layout/page.html", fields_of(whole_page), status=status)


def facts(cluster, asked: QueryDict) -> LayoutPage:
    """What FACTS shows of a topic, of what a group reads or of all topics, without a start of the asker's.
    For a thread."""
    form = _form(asked)
    try:
        topic, group, _, _ = _choice(form)
        return _shown(form, cluster.store.watched_layout(topic, group), watched=True)
    except (ValueError, NameError_, NotFoundError) as error:
        return _problem(form, error)


def _form(asked: QueryDict) -> LayoutForm:
    return LayoutForm(**{name: asked.get(json_name(name), "").strip() for name in small_by_field(LayoutForm)})


def _choice(form: LayoutForm) -> tuple[str | None, str | None, int | None, int | None]:
    """(topic, group, time in ms, log offset) that were typed."""
    start = moment_of(form.from_, None), whole(form.offset, None)
    topic = names.check_topic(form.topic) if form.topic else None
    group = names.check_group(form.group) if form.group else None
    check(topic, group, *start)
    return topic, group, *start


def _shown(form: LayoutForm, both: Both, watched: bool = False) -> LayoutPage:
    found = for_page(both)
    one, each = found.one, found.each
    return LayoutPage(
        asked=form,
        watched=watched,
        one=None if one is None else DrawnTopics(**fields_of(one), strip=shades_of(one, one.log)),
        each=each,
        rows=[DrawnTopic(**fields_of(row), strip=shades_of(row, each.log)) for row in each.items],
        more=found.more,
    )


def _problem(form: LayoutForm, error: Exception) -> LayoutPage:
    if isinstance(error, NotFoundError):
        return LayoutPage(asked=form, problem=f"{capital(said(error))}.")
    return LayoutPage(asked=form, problem=f"{said(error)}.", is_unreadable=True)


def shades_of(found: Placement, log: LogSpan) -> Shades:
    cells = found.cell_bytes
    room = max(1.0, (log.end - log.begin) / max(1, len(cells)))
    shares = [min(1.0, size / room) for size in cells]
    return Shades(shades=[math.sqrt(share) for share in shares], fullest=max(shares, default=None))


PAGES = (path("store/layout/", layout, name="layout"),)
PARTS = {"layout": Part(FACTS, facts, frozenset({"topic", "group"}))}
