"""The page of the disk: its use, its forecast, and the groups that lose messages by deletions."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from django.http import QueryDict
from django.urls import path

from broker_store.facts.deletion import DeletedFile, ForcedDeletion, GroupLoss
from broker_store.facts.disk import DiskFacts, DiskForecast, RetentionSettings
from broker_store.facts.disk_scan import MAX_RETENTION_HOURS
from broker_store.facts.marks import Mark, UsePoint
from broker_store.units import fields_of
from mqadmin.cluster.current import current_cluster
from mqadmin.views.page import drawn, page
from mqadmin.views.query_parameters import text, whole
from mqadmin.views.view import Part

FACTS = "store/disk/facts.html"
# kind -> (title, colour)
KINDS = {
    "commitlog": ("Commit log, written", "wrote"),
    "preallocated": ("Commit log, set aside", "room"),
    "consumequeue": ("Consume queues", "dispatched"),
    "index": ("Index", "confirmed"),
    "timer": ("Timer wheel and log", "checkpoint"),
    "config": ("Config", "flushed"),
    "lost+found": ("Copies of recoveries and repairs", "bad"),
    "samples": ("Samples over time", "accent"),
    "others": ("Others on this file system", "others"),
}
MARKS = {
    "expired": "expired files are deleted at any hour, not only at that of deleteWhen",
    "forced": "the oldest files are deleted at once, expired or not",
    "refused": "sends are refused",
    "full": "no byte is left",
}
SHOWN_GROUPS = 10  # groups named that lose messages with one file, or with all; the others are counted
MIN_SHARE = 0.15  # per cent of a bar that can be seen
LABEL_SHARE, LABEL_HEIGHT = 12, 14  # per cent of the narrowest bar that the label of a mark takes, and pixels


@dataclass(frozen=True, slots=True)
class UseRow:
    """A kind of files with its place in a bar as wide as the file system."""

    name: str
    tone: str
    bytes: int
    x: str  # per cent
    width: str  # per cent


@dataclass(frozen=True, slots=True)
class Label:
    """The label of a mark below the bar."""

    percent: int
    y: int  # pixels


@dataclass(frozen=True, slots=True)
class Labels:
    texts: list[Label]
    height: int  # pixels


@dataclass(frozen=True, slots=True)
class Way:
    """The paths of use as points of SVG lines."""

    usual: str
    band: str  # between the slowest and the fastest rate; empty with one rate only
    ticks_ms: list[int]
    marks: list[tuple[int, int]]  # (per cent, its y)


@dataclass(frozen=True, slots=True, kw_only=True)
class Losers:
    """The groups that lose most by a deletion."""

    losses: list[GroupLoss]  # the first SHOWN_GROUPS
    more_groups: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownFile(DeletedFile):
    """A file that is deleted, with the losses that are shown."""

    more_groups: int  # that lose messages with it, besides those of `losses`


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownMark(Mark):
    """A mark of the file system's use."""

    said: str  # what happens above it


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskPage:
    """The data of FACTS."""

    disk: DiskForecast
    files: list[ShownFile]
    forced: Losers  # with the files of a forced deletion
    hours: int | None  # the retention that is asked for; None: that of the settings
    problem: str  # why the hours that were typed are wrong
    most_hours: int = MAX_RETENTION_HOURS
    use: list[UseRow]
    labels: Labels
    marks: list[ShownMark]
    next_mark: Mark | None  # None: every mark is passed
    losers: list[str]  # the first SHOWN_GROUPS groups that have not read the next files
    has_more_losers: bool
    way: Way | None  # None: nothing is known of the growth


@page(takes={"retention_hours": text})
async def disk(request):
    shown = await asyncio.to_thread(facts, current_cluster(), request.GET)
    return await drawn(
        request,
        FACTS if request.htmx else "store/disk/page.html",
        fields_of(shown),
        status=400 if shown.problem else 200,
    )


def facts(cluster, asked: QueryDict) -> DiskPage:
    """Return the data of FACTS. For a thread."""
    problem, hours = "", None
    try:
        hours = whole(asked.get("retention_hours"), None, MAX_RETENTION_HOURS, 1)
    except ValueError as error:
        problem = f"{error}"
    found = cluster.store.disk_forecast(hours)
    losers = sorted(
        {
            loss.group
            for file in found.files
            for loss in file.losses
            if loss.is_read_in_time is not True and file.is_full
        }
    )
    return DiskPage(
        disk=found,
        files=[ShownFile(**fields_of(file) | fields_of(_losers(file))) for file in found.files],
        forced=_losers(found.forced),
        hours=hours,
        problem=problem,
        use=_use(found),
        labels=labels_of([mark.percent for mark in found.marks if mark.percent < 100]),
        marks=[ShownMark(**fields_of(mark), said=_said(mark, found.settings)) for mark in found.marks],
        next_mark=next((mark for mark in found.marks if not mark.is_reached), None),
        losers=losers[:SHOWN_GROUPS],
        has_more_losers=len(losers) > SHOWN_GROUPS
        or any(
            # Those left out are read in time when the last that is shown is.
            file.losses_left_out and file.is_full and file.losses[-1].is_read_in_time is not True
            for file in found.files
        ),
        way=_way(found),
    )


def _losers(deletion: DeletedFile | ForcedDeletion) -> Losers:
    return Losers(
        losses=deletion.losses[:SHOWN_GROUPS],
        more_groups=max(0, len(deletion.losses) - SHOWN_GROUPS) + deletion.losses_left_out,
    )


def _said(mark: Mark, settings: RetentionSettings) -> str:
    if mark.what == "forced" and not settings.is_forced:
        return "nothing: cleanFileForciblyEnable is off"
    return MARKS[mark.what]


def _use(facts: DiskFacts) -> list[UseRow]:
    rows, at, total = [], 0.0, facts.file_system.total_bytes
    for row in facts.use:
        name, tone = KINDS[row.kind]
        share = row.bytes * 100 / total if total else 0.0
        width = max(share, MIN_SHARE) if row.bytes else 0.0
        rows.append(UseRow(name=name, tone=tone, bytes=row.bytes, x=f"{at:.3f}", width=f"{width:.3f}"))
        at += width
    return rows


def labels_of(percents: list[int]) -> Labels:
    """Return the labels below the bar, each in the first line in which it does not touch the one before."""
    ends: list[int] = []
    texts: list[Label] = []
    for percent in sorted(percents):
        line = next((line for line, end in enumerate(ends) if percent - end >= LABEL_SHARE), len(ends))
        ends[line : line + 1] = [percent]
        texts.append(Label(percent=percent, y=LABEL_HEIGHT * (line + 1) - 2))
    return Labels(texts=texts, height=LABEL_HEIGHT * len(ends) + 2)


def _way(facts: DiskFacts) -> Way | None:
    """Return the forecast of use as lines in a box of 1000 by 100: the top is a full disk, the right side the
    end of the forecast. None if the growth is unknown."""
    paths, now_ms = facts.paths, facts.at_ms
    if not paths.usual:
        return None
    span = max(1, paths.until_ms - now_ms)

    def line(points: list[UsePoint]) -> list[str]:
        return [
            f"{(point.at_ms - now_ms) * 1000 / span:.1f},{100 - point.used_ratio * 100:.2f}"
            for point in points
        ]

    low, high = line(paths.low), line(paths.high)
    return Way(
        usual=" ".join(_to_end(line(paths.usual))),
        band=" ".join([*_to_end(high), *reversed(_to_end(low))]) if low and high else "",
        ticks_ms=[now_ms + span * part // 4 for part in range(1, 5)],
        marks=[(mark.percent, 100 - mark.percent) for mark in facts.marks[:3]],
    )


def _to_end(points: list[str]) -> list[str]:
    """Return the points with one more at the right side: after the last mark the use stays as high."""
    return [*points, f"1000,{points[-1].partition(',')[2]}"] if points else []


PAGES = (path("store/disk/", disk, name="disk"),)
PARTS = {"disk": Part(FACTS, facts, frozenset({"retention_hours"}))}
