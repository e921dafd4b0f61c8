"""The way of a send: where its time goes and what was refused; how far each step after the append has come,
and what a crash would take now."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

from django.shortcuts import render
from django.urls import path

from broker_store.engine.status.store_state import Snapshot
from broker_store.facts.dispatch import SINKS, Flushing, Race, Sink
from broker_store.facts.exposure import Exposure
from broker_store.facts.write_path import MEASURED_PER_SECOND, Histogram, Stage, Wait
from broker_store.units import fields_of
from mqadmin.cluster.current import current_cluster
from mqadmin.facts.sends import PathOfSends, Refused
from mqadmin.templatetags import units
from mqadmin.views.page import page
from mqadmin.web import live

STAGES = {
    "gather": (
        "Gather",
        "From the turn of the loop in which the first send of the group was read until the group "
        "goes to the store. A turn that is busy with other things makes this long.",
    ),
    "append": (
        "Append",
        "The compiled call that describes the messages, gives them their offsets and writes their "
        "records into the mapped log.",
    ),
    "dispatch": (
        "Dispatch",
        "The compiled call that writes queue units and index entries. With SYNC_FLUSH it follows the sync.",
    ),
    "flush": (
        "Flush wait",
        "Until the log is on the disk, with SYNC_FLUSH; a sync covers all groups that came while "
        "the one before ran. With ASYNC_FLUSH no send waits.",
    ),
    "answer": (
        "Answer",
        "Counting the group, encoding its answers, and handing them to the system, one piece a connection.",
    ),
}
WAITS = {
    "log_roll": (
        "Next log file",
        "The log's file is full. The next is mostly ready; when it is not, the writer makes it.",
    ),
    "log_room": ("Blocks of the log", "The preallocator had not given the file its next blocks in time."),
    "queue_room": (
        "Room in a queue",
        "The next blocks or file of a consume queue. Part of it is made at each first message of a queue.",
    ),
    "index_room": ("Room in the index", "The next entries or file of the index."),
}
HISTOGRAMS = (
    (
        "whole",
        "A send, all in all",
        "micros",
        "From its group's first byte to the answers of all of it",
        "Nothing was sent",
    ),
    (
        "sync",
        "Duration of a sync",
        "micros",
        "Each time the log is brought to the disk",
        "Nothing was synced",
    ),
    ("group_bytes", "Bytes a group", "size", "As records in the log", "Nothing was sent"),
    ("sync_bytes", "Bytes a sync", "size", "What it had to bring there", "Nothing was synced"),
    (
        "group_messages",
        "Messages a group",
        "count",
        "Sends that came in one turn of the loop are one group",
        "Nothing was sent",
    ),
)


# Where each sink has its colour and its explanation on the page.
TONES = {
    "confirmed": "confirmed",
    "dispatched": "dispatched",
    "flushed": "flushed",
    "checkpoint_position": "checkpoint",
}
MEANINGS = {
    "confirmed": "How far records may be shown and acknowledged. With SYNC_FLUSH that is what is on the "
    "disk.",
    "dispatched": "How far queues and index know the log. They are filled by one pass, so neither can be "
    "ahead of "
    "the other.",
    "flushed": "How far the log is on the disk. A power cut takes what lies after it.",
    "checkpoint_position": "Up to here log, queues and index were all on the disk when the checkpoint was "
    "set; a start "
    "after a crash relies on it.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownStage(Stage):
    """A stage of a send with its explanation."""

    name: str
    title: str
    meaning: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownWait(Wait):
    """A cause of waits of sends, with its explanation."""

    name: str
    title: str
    meaning: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HistogramRow:
    """A place of a histogram."""

    label: str  # its bounds
    lately: int
    since_start: int
    share: str  # per cent of the largest of `lately`


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownHistogram:
    """A histogram with its explanation."""

    name: str
    title: str
    unit: str
    lead: str
    none: str  # what is shown while nothing was measured
    facts: Histogram
    rows: list[HistogramRow]


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusals:
    """The data of store/write/refusals.html."""

    refusals: list[Refused]


@dataclass(frozen=True, slots=True, kw_only=True)
class WritePage(Refusals):
    """The data of the page of the write path."""

    path: PathOfSends
    stages: list[ShownStage]
    waits: list[ShownWait]
    histograms: list[ShownHistogram]
    measured_a_second: int  # groups


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownSink(Sink):
    """A step after the append with its colour and its explanation."""

    name: str
    title: str
    tone: str
    meaning: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchPage:
    """The data of the page of dispatch and flush."""

    store: Snapshot
    race: Race
    rows: list[ShownSink]
    flush: Flushing
    exposure: Exposure
    past: list[dict[str, object]]  # of the stream store.positions


@page()
async def write(request):
    cluster = current_cluster()
    path = cluster.store.write_path()
    if request.htmx:
        part = Refusals(refusals=path.refusals)
        return render(request, "store/write/refusals.html", fields_of(part))
    shown = WritePage(
        path=path,
        refusals=path.refusals,
        stages=[
            ShownStage(**fields_of(path.stages[name]), name=name, title=title, meaning=meaning)
            for name, (title, meaning) in STAGES.items()
        ],
        waits=[
            ShownWait(**fields_of(path.waits[name]), name=name, title=title, meaning=meaning)
            for name, (title, meaning) in WAITS.items()
        ],
        histograms=[
            ShownHistogram(
                name=name,
                title=title,
                unit=unit,
                lead=lead,
                none=none,
                facts=getattr(path, name),
                rows=list(_rows(getattr(path, name), unit)),
            )
            for name, title, unit, lead, none in HISTOGRAMS
        ],
        measured_a_second=MEASURED_PER_SECOND,
    )
    return render(request, "store/write/page.html", fields_of(shown))


def _rows(histogram: Histogram, unit: str) -> Iterator[HistogramRow]:
    """Return the places of a histogram with their bounds in words."""
    text = {"micros": units.micros_text, "size": units.bytes_text, "count": lambda number: f"{number:,.0f}"}[
        unit
    ]
    bounds, places = histogram.bounds, histogram.places
    for number, (lately, since_start, share) in enumerate(
        zip(places.lately, places.since_start, places.shares, strict=True)
    ):
        if number == 0:
            label = "1" if unit == "count" else f"below {text(bounds[0])}"
        elif number == len(bounds):
            label = f"{text(bounds[-1])} and more"
        elif unit == "count":
            label = f"{bounds[number - 1]:,.0f} to {bounds[number] - 1:,.0f}"
        else:
            label = f"to {text(bounds[number])}"
        yield HistogramRow(label=label, lately=lately, since_start=since_start, share=f"{share * 100:.3f}")


@page()
async def dispatch(request):
    cluster = current_cluster()
    race, flush = cluster.store.race(), cluster.store.flush()
    shown = DispatchPage(
        store=cluster.store.snapshot(),
        race=race,
        rows=[
            ShownSink(
                **fields_of(race.sinks[name]),
                name=name,
                title=title,
                tone=TONES[name],
                meaning=MEANINGS[name],
            )
            for name, title in SINKS.items()
        ],
        flush=flush,
        exposure=await asyncio.to_thread(cluster.store.exposure),
        past=live.sampler.past("store.positions"),
    )
    return render(request, "store/write/dispatch.html", fields_of(shown))


PAGES = (
    path("store/dispatch/", dispatch, name="store_dispatch"),
    path("store/write/", write, name="store_write"),
)
