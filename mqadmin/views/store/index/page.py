"""The index from inside: the used slots of a file, the lengths of its chains, and each step of a
lookup."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from django.http import HttpRequest, QueryDict
from django.shortcuts import render
from django.urls import path

from broker_store.engine.status.store_state import IndexFileFacts
from broker_store.facts.chains import Chains
from broker_store.facts.explain import LookupStep
from broker_store.facts.slots import Cell, HeatMap
from broker_store.formats import names
from broker_store.formats.index_file import check_name
from broker_store.units import Moment, fields_of, json_name, small_by_field
from mqadmin.cluster.current import current_cluster
from mqadmin.views.page import WrongField, of_field, page, window
from mqadmin.views.query_parameters import one_of, text
from mqadmin.views.view import Part

CHAINS = "store/index/chains.html"
# Entries of a file whose chains are counted with the page; a larger one's when they are asked for
MAX_COUNTED_ENTRIES = 2_000_000
MAX_KEY_CHARACTERS = 1_024
ASKED = ("topic", "key", "from", "to")


@dataclass(frozen=True, slots=True, kw_only=True)
class CellsOfOneEnd:
    """The cells with the fewest or with the most used slots."""

    title: str
    name: str  # of the field of the heat map that has them
    cells: list[Cell]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """The values from which static/js/slots.js draws the heat map."""

    name: str
    at_ms: Moment
    slots: int
    cell_slots: int  # slots of a cell
    columns: int
    rows: int
    cells: list[int] | None  # used slots of each


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenFile:
    """The data of the page for one index file."""

    chosen: str  # its name
    place: int  # among all files, from 0
    picture: HeatMap
    for_script: dict[str, object]  # a Drawing as JSON
    ends: list[CellsOfOneEnd]
    chains_at_once: bool  # they are counted with the page


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownChains:
    """The data of CHAINS."""

    chains: Chains
    most: float  # slots that the widest bar of the picture stands for


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupForm:
    """The fields of the form of a lookup, as they were typed."""

    topic: str
    key: str
    from_: str
    to: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownLookup:
    """The form of a lookup, and the steps of the lookup that was asked for."""

    asked: LookupForm
    steps: list[LookupStep] | None = None  # None: no lookup was asked for
    outcome: LookupStep | None = None  # the last step
    errors: dict[str, str] = field(default_factory=dict)  # what is wrong, by field


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexPage(ShownLookup):
    """The data of the page: also the fields of ChosenFile and ShownChains, where there are any."""

    files: list[IndexFileFacts]
    chosen: str = ""
    place: int = 0
    picture: HeatMap | None = None  # None: there is no file
    for_script: dict[str, object] = field(default_factory=dict)
    ends: list[CellsOfOneEnd] = field(default_factory=list)
    chains_at_once: bool = False
    chains: Chains | None = None  # None: they are not counted with the page
    most: float = 0


@page(
    takes={
        "file": check_name,
        "chains": one_of("1"),
        "part_of": one_of("chains"),
        **dict.fromkeys(ASKED, text),
    }
)
async def index(request: HttpRequest):
    """`file` is shown, the newest when none is named."""
    cluster = current_cluster()
    if request.htmx and request.GET.get("part_of") == "chains":
        shown = await asyncio.to_thread(chains, cluster, request.GET)
        return render(request, CHAINS, fields_of(shown))
    files = cluster.index.facts()
    names_of_files = [file.name for file in files]
    name = request.GET.get("file") or (names_of_files[-1] if names_of_files else None)
    chosen = None if name is None else _chosen(name, names_of_files, await cluster.index.slots(name))
    counted = None
    if name is not None and request.GET.get("chains"):
        counted = _drawn(await cluster.index.chains(name))
    lookup = await _lookup(cluster, request.GET)
    shown_page = IndexPage(
        **fields_of(lookup),
        files=files,
        **({} if chosen is None else fields_of(chosen)),
        **({} if counted is None else fields_of(counted)),
    )
    status = 400 if lookup.errors else 200
    return render(request, "store/index/page.html", fields_of(shown_page), status=status)


def _chosen(name: str, files: list[str], picture: HeatMap) -> ChosenFile:
    drawing = Drawing(**{field: getattr(picture, field) for field in small_by_field(Drawing)})
    return ChosenFile(
        chosen=name,
        place=files.index(name) if name in files else 0,
        picture=picture,
        for_script=fields_of(drawing),
        ends=[
            CellsOfOneEnd(title="Emptiest", name="emptiest", cells=picture.emptiest),
            CellsOfOneEnd(title="Fullest", name="fullest", cells=picture.fullest),
        ],
        chains_at_once=picture.entries <= MAX_COUNTED_ENTRIES,
    )


def chains(cluster, asked: QueryDict) -> ShownChains:
    """Return the values of the template CHAINS for the chosen `file`. For a thread."""
    return _drawn(cluster.index.watched_chains(check_name(asked.get("file", ""))))


def _drawn(chains: Chains) -> ShownChains:
    return ShownChains(chains=chains, most=max(max(row.slots, row.expected) for row in chains.lengths))


async def _lookup(cluster, query: QueryDict) -> ShownLookup:
    typed = {name: query.get(name, "").strip() for name in ASKED}
    form = LookupForm(**{field: typed[json_name(field)] for field in small_by_field(LookupForm)})
    if not (form.topic and form.key):
        missing = "key" if form.topic else "topic"
        both = "A lookup needs both: the index knows a key only together with its topic."
        return ShownLookup(asked=form, errors={missing: both} if form.topic or form.key else {})
    try:
        begin_ms, end_ms = window(form.from_, form.to)
        with of_field("topic"):
            topic = names.check_topic(form.topic)
        if len(form.key) > MAX_KEY_CHARACTERS:
            raise WrongField(
                "key",
                f"A key that is searched for has at most {MAX_KEY_CHARACTERS:,} characters; this has "
                f"{len(form.key):,}.",
            )
    except WrongField as error:
        return ShownLookup(asked=form, errors={error.field: str(error)})
    steps = await cluster.index.explain(topic, form.key, begin_ms, end_ms)
    return ShownLookup(asked=form, steps=steps, outcome=steps[-1])


PAGES = (path("store/index/", index, name="index"),)
PARTS = {"index": Part(CHAINS, chains, frozenset({"file", "part_of"}), needs=("part_of", "chains"))}
