"""The work of each thread and of the loop in the last minute."""

from __future__ import annotations

from dataclasses import dataclass

from django.urls import path

from broker_store.facts import threads
from broker_store.facts.threads import Second, ThreadFacts, ThreadWork
from broker_store.units import fields_of
from mqadmin.views.page import drawn, page
from mqadmin.views.view import Part

FACTS = "store/threads/facts.html"
# What a thread does, by its name.
MEANINGS = {
    threads.LOOP: "Serves all connections, makes all appends and answers the dashboard, call after call.",
    "thread-watch": "Makes these measurements.",
    "log-flusher": "Brings the commit log to the disk. A step is a sync, most of it spent waiting.",
    "round-flusher": "Brings queues, index and the checkpoint to the disk, in rounds.",
    "preallocator": "Makes the next files and gives them room on the disk before the writer comes there.",
    "retention": "Deletes files that are old enough, and measures how full the disk is.",
    "prover": "Checks older records that no start has read yet.",
    "ha-feeder": "Sends the log to slaves and takes their reports. A step waits for either.",
    "timer-flusher": "Keeps the files of timed messages.",
    "index-rebuild": "Builds the index again from the log.",
    "sampler": "Writes a sample every 10 s, from which charts of days are drawn.",
    "cold-read": "Read what is not in memory, so that the loop does not wait for the disk.",
    "browse": "Read the store for pages and REST.",
    "aside": "Take calls of the loop that would hold it up: pages, REST, files.",
    "request": "Answer pages and REST, one request each.",
    "ThreadPoolExecutor": "Django's calls of the database.",
    "residency": "Ask the system which pages of the store's files are in memory.",
    "change-records": "Writes the records of changes that clients made.",
    "start": "Opens and closes the store.",
    "not Python's": "Threads of compiled libraries; they need no interpreter lock.",
}
# A strip is drawn in its strongest colour from here on, in the unit of its values, or from its largest value.
LOOP_STRONG_US = 20_000
LOCK_STRONG_US = 5_000
COLLECTED_STRONG_US = 20_000
MS_PER_S = 1_000
UNSEEN_US = (
    2 * threads.PROBE_NS / 1_000
)  # a longer turn is seen, unless the measuring thread was stopped, too


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadRow(ThreadWork):
    """A thread of the table."""

    meaning: str  # what it does; "" where that is not known


@dataclass(frozen=True, slots=True, kw_only=True)
class SecondsStrip:
    """A strip of the last minute, a cell for each second."""

    title: str
    beside: str  # what a cell is
    tone: str
    cells: list[float | None] | None  # None: nothing was measured
    most: float  # the value of the strongest colour
    largest: float | None
    now: float | None  # the last that was measured


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredThreads:
    """The facts of threads that are measured."""

    found: ThreadFacts
    unseen_us: float
    strips: list[SecondsStrip]
    rows: list[ThreadRow]
    busy: float | None  # processors that were at work, on average
    collected_us: float  # all collections of the last minute
    collections: int
    longest_collection_us: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadsPage:
    """The data of FACTS."""

    measured: MeasuredThreads | None  # None: this process does not measure its threads


@page()
async def thread_page(request):
    template = FACTS if request.htmx else "store/threads/page.html"
    return await drawn(request, template, fields_of(facts()))


def facts() -> ThreadsPage:
    found = threads.of_process()
    return ThreadsPage(measured=None if found is None else _measured(found))


def _measured(found: ThreadFacts) -> MeasuredThreads:
    return MeasuredThreads(
        found=found,
        unseen_us=UNSEEN_US,
        strips=_strips(found),
        rows=[ThreadRow(**fields_of(work), meaning=MEANINGS.get(work.name, "")) for work in found.threads],
        busy=None
        if found.processor_ms is None or not found.lately_ms
        else found.processor_ms / found.lately_ms,
        collected_us=sum(row.total_us for row in found.collections),
        collections=sum(row.count for row in found.collections),
        longest_collection_us=max((row.longest_us or 0 for row in found.collections), default=0) or None,
    )


def _strips(found: ThreadFacts) -> list[SecondsStrip]:
    """A strip of the last minute for each thing that can hold up a send, a cell for each second."""
    seconds = found.seconds
    loop_us, lock_us = [second.loop_us for second in seconds], [second.lock_us for second in seconds]
    collected_us = [second.collected_us for second in seconds]
    longest = "longest of each second"
    return [
        _strip("Wait for the loop", longest, "wrote", loop_us, LOOP_STRONG_US),
        _strip("Wait for the lock", longest, "flushed", lock_us, LOCK_STRONG_US),
        _strip("Garbage collections", "sum of each second", "checkpoint", collected_us, COLLECTED_STRONG_US),
        _strip(
            "Processor time",
            f"of all threads; {found.cores} processors",
            "accent",
            _busy_us(seconds),
            found.cores * MS_PER_S * 1_000,
        ),
    ]


def _busy_us(seconds: list[Second]) -> list[float | None]:
    return [None if second.processor_ms is None else second.processor_ms * 1_000 for second in seconds]


def _strip(title: str, beside: str, tone: str, values: list[float | None], strong: float) -> SecondsStrip:
    measured = [value for value in values if value is not None]
    largest = max(measured, default=None)
    return SecondsStrip(
        title=title,
        beside=beside,
        tone=tone,
        cells=values if measured else None,
        most=max(strong, largest or 0),
        largest=largest,
        now=measured[-1] if measured else None,
    )


PAGES = (path("store/threads/", thread_page, name="threads"),)
PARTS = {"threads": Part(FACTS, lambda cluster, asked: facts())}
