"""Starts: the one that runs as a film, the last, and the record of each; and what a start would do now."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from django.contrib import messages
from django.http import HttpResponseNotAllowed
from django.shortcuts import redirect, render
from django.urls import path

from broker_store.errors import StoreClosedError
from broker_store.facts.starts import StartBrief, StartRecord, StartReport
from broker_store.rest.problems import Problem
from broker_store.units import fields_of
from mqadmin.audit import aaudited
from mqadmin.cluster.current import current_cluster
from mqadmin.jobs import queue
from mqadmin.views.page import ListPart, page, slice_of
from mqadmin.views.query_parameters import PART, one_of
from mqadmin.views.store.recoveries import facts as kept


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryFacts:
    """The data of recovery_facts.html."""

    recovery: StartReport | StartRecord | None  # None: the store has not been opened


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryPage(RecoveryFacts):
    """The data of the page of this process's start."""

    starts: ListPart[StartBrief]
    says_so_itself: bool  # the page names the state, so the frame does not


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordPage(RecoveryFacts):
    """The data of the page of a record."""

    rest: str  # the address that gives the same
    command: str  # of manage.py store


@page(takes={"part": PART, "part_of": one_of("facts")})
async def recovery(request):
    """The start of this process, live while it runs, and the list of all starts."""
    found = current_cluster().store.recovery()
    if request.htmx and request.GET.get("part_of") == "facts":
        if found is None:
            raise StoreClosedError(current_cluster().state().sentence)
        return render(request, "recovery_facts.html", fields_of(RecoveryFacts(recovery=found)))
    starts = slice_of(await asyncio.to_thread(kept.listing), request, 20)
    shown = RecoveryPage(
        recovery=found,
        starts=starts,
        says_so_itself=current_cluster().state().state in ("opening", "recovering"),
    )
    return render(request, "store/recoveries/page.html", fields_of(shown))


@page()
async def record(request, recovery_id):
    shown = RecordPage(
        recovery=await asyncio.to_thread(kept.one, recovery_id),
        rest=f"/api/v1/store/recoveries/{recovery_id}",
        command=f"recovery {recovery_id}",
    )
    template = "recovery_facts.html" if request.htmx else "store/recoveries/record.html"
    return render(request, template, fields_of(shown))


@page("operator")
async def dry_run(request):
    """Start the job that shows what a start would do."""
    if request.method != "POST":
        return HttpResponseNotAllowed(["POST"])
    try:
        async with aaudited(request.caller, "start", "job", "dry_run") as record:
            row = await asyncio.to_thread(
                queue.start,
                "dry_run",
                {"accept_damage": request.POST.get("accept_damage") == "on"},
                request.caller,
            )
            record["id"] = row.id
    except Problem as problem:
        messages.error(request, f"{problem}")
        return redirect("recovery")
    return redirect("job", job_id=row.id)


PAGES = (
    path("store/recovery/", recovery, name="recovery"),
    path("store/recovery/dry-run", dry_run, name="dry_run"),
    path("store/recovery/<str:recovery_id>/", record, name="recovery_record"),
)
