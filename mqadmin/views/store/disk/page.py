"""How full the disk is, when it will be fuller, and who loses messages by what is deleted then."""

from __future__ import annotations

import asyncio

from django.http import QueryDict
from django.urls import path

from mqadmin.cluster.current import current_cluster
from mqadmin.views.asked import text, whole
from mqadmin.views.page import drawn, page
from mqadmin.views.store.disk.facts import MOST_RETENTION_HOURS
from mqadmin.views.view import Part

FACTS = "store/disk/facts.html"
# kind, what it is called, its colour
KINDS = {
    "commitlog": ("Commit log, written", "wrote"),
    "preallocated": ("Commit log, set aside", "room"),
    "consumequeue": ("Consume queues", "dispatched"),
    "index": ("Index", "confirmed"),
    "timer": ("Timer wheel and log", "checkpoint"),
    "config": ("Config", "flushed"),
    "lost+found": ("Taken away by recoveries", "bad"),
    "samples": ("Samples over time", "accent"),
    "others": ("Others on this file system", "others"),
}
MARKS = {
    "expired": "expired files go at any hour, not only at that of deleteWhen",
    "forced": "the oldest files go at once, expired or not",
    "refused": "sends are refused",
    "full": "no byte is left",
}
SHOWN_GROUPS = 10  # named of those that lose by one file, or by what goes next; the others are counted
LEAST_SHARE = 0.15  # per cent of a bar that can be seen
LABEL_SHARE, LABEL_HEIGHT = 12, 14  # per cent of the narrowest bar that the label of a mark takes, and pixels


@page(takes={"retention_hours": text})
async def disk(request):
    context = await asyncio.to_thread(facts, current_cluster(), request.GET)
    return await drawn(
        request,
        FACTS if request.htmx else "store/disk/page.html",
        context,
        status=400 if context["problem"] else 200,
    )


def facts(cluster, asked: QueryDict) -> dict:
    """What FACTS shows. For a thread."""
    problem, hours = "", None
    try:
        hours = whole(asked.get("retention_hours"), None, MOST_RETENTION_HOURS, 1)
    except ValueError as error:
        problem = f"{error}"
    found = cluster.disk_forecast(hours)
    losers = sorted(
        {
            loss["group"]
            for file in found["files"]
            for loss in file["losses"]
            if loss["is_read_in_time"] is not True and file["is_full"]
        }
    )
    return {
        "disk": found,
        "files": [file | _shown(file) for file in found["files"]],
        "forced": found["forced"] | _shown(found["forced"]),
        "hours": hours,
        "problem": problem,
        "most_hours": MOST_RETENTION_HOURS,
        "use": _use(found),
        "labels": labels_of([mark["percent"] for mark in found["marks"] if mark["percent"] < 100]),
        "marks": [mark | {"said": _said(mark, found["settings"])} for mark in found["marks"]],
        "next_mark": next((mark for mark in found["marks"] if not mark["is_reached"]), None),
        "losers": losers[:SHOWN_GROUPS],
        "has_more_losers": len(losers) > SHOWN_GROUPS
        or any(
            # Those left out are read in time when the last that is told is.
            file["losses_left_out"] and file["is_full"] and file["losses"][-1]["is_read_in_time"] is not True
            for file in found["files"]
        ),
        "way": _way(found),
    }


def _shown(of: dict) -> dict:
    """The groups that lose most by a file, and how many more do."""
    losses = of["losses"]
    return {
        "losses": losses[:SHOWN_GROUPS],
        "more_groups": max(0, len(losses) - SHOWN_GROUPS) + of["losses_left_out"],
    }


def _said(mark: dict, settings: dict) -> str:
    if mark["what"] == "forced" and not settings["is_forced"]:
        return "nothing: cleanFileForciblyEnable is off"
    return MARKS[mark["what"]]


def _use(facts: dict) -> list[dict]:
    """Each kind with its place in a bar as wide as the file system."""
    rows, at, total = [], 0.0, facts["file_system"]["total_bytes"]
    for row in facts["use"]:
        name, tone = KINDS[row["kind"]]
        share = row["bytes"] * 100 / total if total else 0.0
        width = max(share, LEAST_SHARE) if row["bytes"] else 0.0
        rows.append(
            row | {"name": name, "tone": tone, "share": share, "x": f"{at:.3f}", "width": f"{width:.3f}"}
        )
        at += width
    return rows


def labels_of(percents: list[int]) -> dict:
    """The marks below the bar, each in the first line in which it does not touch the one before."""
    ends, texts = [], []
    for percent in sorted(percents):
        line = next((line for line, end in enumerate(ends) if percent - end >= LABEL_SHARE), len(ends))
        ends[line : line + 1] = [percent]
        texts.append({"percent": percent, "y": LABEL_HEIGHT * (line + 1) - 2})
    return {"texts": texts, "height": LABEL_HEIGHT * len(ends) + 2}


def _way(facts: dict) -> dict | None:
    """The ways of use as lines in a box of 1000 by 100: up is full, right is the end of what is shown."""
    paths, now_ms = facts["paths"], facts["at_ms"]
    if not paths["usual"]:
        return None
    span = max(1, paths["until_ms"] - now_ms)

    def place(point: dict) -> str:
        return f"{(point['at_ms'] - now_ms) * 1000 / span:.1f},{100 - point['used_ratio'] * 100:.2f}"

    lines = {name: [place(point) for point in paths[name]] for name in ("usual", "low", "high")}
    band = (
        " ".join([*_to_end(lines["high"]), *reversed(_to_end(lines["low"]))])
        if lines["low"] and lines["high"]
        else ""
    )
    ticks = [{"at_ms": now_ms + span * part // 4, "x": part * 25} for part in range(1, 5)]
    return {
        "usual": " ".join(_to_end(lines["usual"])),
        "band": band,
        "ticks": ticks,
        "marks": [(mark["percent"], 100 - mark["percent"]) for mark in facts["marks"][:3]],
    }


def _to_end(points: list[str]) -> list[str]:
    """What is known ends where the last mark is passed: from there on it stays as high."""
    return [*points, f"1000,{points[-1].partition(',')[2]}"] if points else []


PAGES = (path("store/disk/", disk, name="disk"),)
PARTS = {"disk": Part(FACTS, facts, frozenset({"retention_hours"}))}
