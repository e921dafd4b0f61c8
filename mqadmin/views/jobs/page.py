"""The pages of jobs. Each read of Redis is short, and is made in a thread, never on the loop."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from urllib.parse import urlencode

from django.http import HttpResponseNotAllowed
from django.shortcuts import redirect, render
from django.urls import path, reverse

from broker_store.errors import NameError_
from broker_store.rest.problems import Problem
from broker_store.units import fields_of
from mqadmin.audit import aaudited
from mqadmin.cluster.current import current_cluster
from mqadmin.jobs import queue
from mqadmin.jobs.kinds import KINDS, PIPELINE, RESEND
from mqadmin.views.jobs.facts import ShownJob, shown
from mqadmin.views.page import page, said, show_problem

# A name that an address may have; the page at that address checks it
GROUP = re.compile(r"[\w%|-]{1,255}", re.ASCII)


@page()
async def jobs(request):
    template = "jobs/table.html" if request.htmx else "jobs/page.html"
    return render(request, template, fields_of(await _listing(request)))


@dataclass(frozen=True, slots=True, kw_only=True)
class StartableKind:
    """A kind of job in the form that starts one."""

    name: str
    title: str
    allowed: bool  # the caller may start it


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsPage:
    """The list of jobs, and what the form offers."""

    jobs: list[ShownJob]  # the newest first
    mark: str  # see `mark_of` of mqadmin/jobs/queue.py
    problem: Problem | None  # why there is no list
    kinds: list[StartableKind]
    topics: list[str]  # names that the form offers
    by: str = ""  # the kind that was chosen in a form that was wrong
    asked: Mapping[str, str] = field(default_factory=dict)  # what was typed into it
    errors: Mapping[str, str] = field(default_factory=dict)  # sentences by field


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPage:
    """The data of the page of a job."""

    job: ShownJob
    mark: str


async def _listing(request) -> JobsPage:
    try:
        rows, problem = [shown(one) for one in await asyncio.to_thread(queue.listing)], None
    except Problem as error:
        rows, problem = [], error
    kinds = [
        StartableKind(name=name, title=kind.title, allowed=request.caller.may(kind.role))
        for name, kind in KINDS.items()
        if name not in PIPELINE
    ]
    topics = []
    if not request.htmx and current_cluster().state().state in ("running", "read_only"):
        topics = current_cluster().topics.offered()
    return JobsPage(jobs=rows, mark=queue.mark_of(rows), problem=problem, kinds=kinds, topics=topics)


async def _with_problem(request, kind: str, parameters: dict[str, str], problem: Problem | NameError_):
    """Draw the form again with what was typed, and what is wrong beside the field whose name the problem
    begins with."""
    wrong = next(
        (name for name in parameters.keys() | {"topic", "group"} if f"{problem}".startswith(f"{name} ")),
        "form",
    )
    if wrong == "form" and isinstance(problem, NameError_):
        wrong = "group" if "group" in parameters else "topic"
    shown_page = replace(await _listing(request), by=kind, asked=parameters, errors={wrong: said(problem)})
    status = problem.status if isinstance(problem, Problem) else 400
    return render(request, "jobs/page.html", fields_of(shown_page), status=status)


@page()
async def job(request, job_id):
    row = shown(await asyncio.to_thread(queue.find, job_id))
    if row.pipeline:
        return redirect("run", run_id=job_id)
    if row.kind == "crash_lab":
        return redirect("lab_run", job_id=job_id)
    shown_page = JobPage(job=row, mark=queue.mark_of([row]))
    return render(request, "jobs/facts.html" if request.htmx else "jobs/job.html", fields_of(shown_page))


@page("operator")
async def start_job(request):
    """Start one of the allowed jobs; each kind checks its own role and parameters. The form has the fields of
    all kinds."""
    if request.method != "POST":
        return HttpResponseNotAllowed(["POST"])
    kind = request.POST.get("kind", "")
    takes = KINDS[kind].takes if kind in KINDS else ()
    parameters = {name: value.strip() for name in takes if (value := request.POST.get(name, "")).strip()}
    # The page of dead letters shows a preview, and asks for the confirmation
    group = parameters.get("group", "")
    if kind == RESEND and GROUP.fullmatch(group):
        address = reverse("dead_letters", args=[group])
        return redirect(f"{address}?{urlencode({'to': parameters.get('to', 'group')})}")
    try:
        async with aaudited(request.caller, "start", "job", kind[:100], parameters=parameters) as record:
            row = await asyncio.to_thread(queue.start, kind, parameters, request.caller)
            record["id"] = row.id
    except (Problem, NameError_) as problem:
        return await _with_problem(request, kind, parameters, problem)
    return redirect("job", job_id=row.id)


@page("operator")
async def cancel_job(request, job_id):
    if request.method != "POST":
        return HttpResponseNotAllowed(["POST"])
    try:
        async with aaudited(request.caller, "cancel", "job", job_id[:100]):
            await asyncio.to_thread(queue.cancel, job_id, request.caller)
    except Problem as problem:
        show_problem(request, problem)
    return (
        redirect("doctor_run", job_id)
        if request.POST.get("next") == "doctor"
        else redirect("job", job_id=job_id)
    )


PAGES = (
    path("jobs/", jobs, name="jobs"),
    path("jobs/start", start_job, name="start_job"),
    path("jobs/<str:job_id>/", job, name="job"),
    path("jobs/<str:job_id>/cancel", cancel_job, name="cancel_job"),
)
