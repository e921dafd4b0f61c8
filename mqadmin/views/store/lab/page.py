"""The crash lab: the form of an experiment, and the pages of its runs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from django.shortcuts import redirect, render
from django.urls import path

from broker_store.facts.starts import StartRecord
from broker_store.lab.experiment import FLUSHES, POINTS, POWER_CUTS, Outcome
from broker_store.rest.problems import Problem
from broker_store.units import fields_of
from mqadmin.audit import aaudited
from mqadmin.jobs import queue
from mqadmin.jobs.facts import Job, result_of
from mqadmin.jobs.parameters import LAB_TAKES
from mqadmin.views.page import failure_page, page
from mqadmin.views.store.recoveries import facts as recoveries

ROWS = 10
CUT_WORDS = {
    "no": "no power cut",
    "all": "and all that was not synced is lost",
    "some": "and some of what was not synced is lost, by chance",
}


LAB_BEGINS = {"messages": "200", "seed": "1"}  # in the form


@dataclass(frozen=True, slots=True, kw_only=True)
class LabRun:
    """A run and its findings: None until it is done, and for a record of another version."""

    job: Job
    outcome: Outcome | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LabPage:
    """The form of an experiment, and the newest runs."""

    asked: dict[str, str]  # what was typed, by field
    errors: dict[str, str]  # what is wrong with it, by field
    runs: list[LabRun]
    problem: Problem | None  # why there is no list of runs
    points: list[tuple[str, str]] = field(default_factory=lambda: list(POINTS.items()))  # (name, words)
    flushes: Sequence[str] = FLUSHES
    cuts: list[tuple[str, str]] = field(default_factory=lambda: [(cut, CUT_WORDS[cut]) for cut in POWER_CUTS])


@dataclass(frozen=True, slots=True, kw_only=True)
class LabRunPage:
    """The data of the page of a run."""

    job: Job
    outcome: Outcome | None  # None: it is not done, or another version wrote it
    over: bool  # it has ended
    killed: str | None  # where, in words
    recovery: StartRecord | None  # None: the start has not begun


@page()
async def lab(request):
    return (
        await _start(request)
        if request.method == "POST"
        else render(request, "store/lab/page.html", fields_of(await _shown(LAB_BEGINS, {})))
    )


async def _shown(asked: dict[str, str], errors: dict[str, str]) -> LabPage:
    try:
        rows, problem = (
            [job for job in await asyncio.to_thread(queue.listing) if job.kind == "crash_lab"][:ROWS],
            None,
        )
    except Problem as error:
        rows, problem = [], error
    runs = [LabRun(job=job, outcome=result_of(Outcome, job)) for job in rows]
    return LabPage(asked=asked, errors=errors, runs=runs, problem=problem)


async def _start(request):
    if not request.caller.may("operator"):
        request.refused = request.caller
        return failure_page(
            request, 403, "Not allowed", f"This needs the role operator; you are {request.caller.role}."
        )
    parameters = {
        name: request.POST[name].strip() for name in LAB_TAKES if request.POST.get(name, "").strip()
    }
    try:
        async with aaudited(request.caller, "start", "job", "crash_lab", parameters=parameters) as record:
            row = await asyncio.to_thread(queue.start, "crash_lab", parameters, request.caller)
            record["id"] = row.id
    except Problem as problem:
        wrong = next((name for name in ("messages", "seed") if f"{problem}".startswith(f"{name} ")), "form")
        return render(
            request,
            "store/lab/page.html",
            fields_of(await _shown(LAB_BEGINS | parameters, {wrong: f"{problem}"})),
            status=problem.status,
        )
    return redirect("lab_run", job_id=row.id)


@page()
async def lab_run(request, job_id):
    job = await asyncio.to_thread(queue.find, job_id)
    if job.kind != "crash_lab":
        raise Problem("not_found", f"{job_id} is no run of the crash lab")
    recovery = await asyncio.to_thread(recoveries.of_lab, job_id)
    shown = LabRunPage(
        job=job,
        outcome=result_of(Outcome, job),
        over=job.is_over,
        killed=POINTS.get(job.parameters.get("point", "")),
        recovery=recovery,
    )
    template = "store/lab/facts.html" if request.htmx else "store/lab/run.html"
    return render(request, template, fields_of(shown))


PAGES = (
    path("store/lab/", lab, name="lab"),
    path("store/lab/<str:job_id>/", lab_run, name="lab_run"),
)
