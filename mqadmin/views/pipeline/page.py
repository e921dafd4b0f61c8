"""The pages of the pipeline: start a run, see its progress and its result, and its schedules.

Runs are in Redis and results in files; each is read in a thread, never on the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from asgiref.sync import sync_to_async
from django.contrib import messages
from django.http import HttpResponseNotAllowed
from django.shortcuts import redirect, render
from django.urls import path

from broker_store.errors import NameError_
from broker_store.rest.problems import Problem
from broker_store.units import fields_of
from mqadmin.audit import aaudited
from mqadmin.cluster.current import current_cluster
from mqadmin.jobs import pipeline, queue, runs, schedules
from mqadmin.jobs.facts import Job, JobProgress, Schedule
from mqadmin.process import run_file
from mqadmin.templatetags import units
from mqadmin.views.jobs import facts as jobs_facts
from mqadmin.views.page import WrongField, of_field, page, said, show_problem
from mqadmin.views.pipeline.reports import Report, report_of
from mqadmin.views.query_parameters import moment_of

MAX_ASKED = 1_024  # characters of a field that is drawn again
MAX_CELLS = 240  # with more partitions a cell stands for several


@page()
async def overview(request):
    if request.htmx:
        return render(request, "pipeline/runs.html", fields_of(await _run_list()))
    return render(request, "pipeline/page.html", fields_of(await _overview_page()))


async def _run_list() -> RunList:
    try:
        found, problem = await asyncio.to_thread(queue.listing), None
    except Problem as error:
        found, problem = [], error
    runs = [shown(run) for run in found if run.pipeline]
    return RunList(runs=runs, problem=problem, mark=queue.mark_of(runs))


async def _overview_page() -> OverviewPage:
    planned = [
        ShownSchedule(**fields_of(one), given=given_text(one.parameters))
        for one in await sync_to_async(schedules.listing)()
    ]
    topics: list[str] = []
    if current_cluster().state().state in ("running", "read_only"):
        topics = current_cluster().topics.offered()
    return OverviewPage(
        **fields_of(await _run_list()), jobs=list(pipeline.JOBS.values()), schedules=planned, topics=topics
    )


async def _with_problem(request, form: str, problem: Problem | NameError_ | ValueError):
    """Draw the page again with the values typed into one of its forms. The error is shown beside its field,
    if that is known."""
    wrong = (
        problem.field
        if isinstance(problem, WrongField)
        else "topic"
        if isinstance(problem, NameError_)
        else "form"
    )
    context = replace(
        await _overview_page(),
        asked_of=form,
        asked={name: value[:MAX_ASKED] for name, value in request.POST.items()},
        errors={wrong: said(problem)},
    )
    return render(
        request,
        "pipeline/page.html",
        fields_of(context),
        status=problem.status if isinstance(problem, Problem) else 400,
    )


@page("operator")
async def start(request, name):
    if request.method != "POST":
        return HttpResponseNotAllowed(["POST"])
    try:
        job, parameters = pipeline.job_of(name), parameters_of(request.POST)
        async with aaudited(request.caller, "start", "job", job.kind, parameters=parameters) as record:
            run = await asyncio.to_thread(queue.start, job.kind, parameters, request.caller)
            record["id"] = run.id
    except (Problem, NameError_, ValueError) as problem:
        return await _with_problem(request, name, problem)
    return redirect("run", run_id=run.id)


@page("operator")
async def add_schedule(request):
    if request.method != "POST":
        return HttpResponseNotAllowed(["POST"])
    try:
        job, cron = request.POST.get("job", ""), request.POST.get("cron", "").strip()
        takes = schedules.kind_of(job).takes
        parameters = {name: value for name, value in parameters_of(request.POST).items() if name in takes}
        async with aaudited(
            request.caller, "create", "schedule", job, cron=cron, parameters=parameters
        ) as record:
            made = await sync_to_async(schedules.add)(job, parameters, cron, request.caller)
            record["id"] = made.id
        messages.success(
            request,
            f"{made.title} runs at {made.cron}, next at {(units.moment_text(made.next_ms) or '')[:16]} UTC.",
        )
    except (Problem, NameError_, ValueError) as problem:
        return await _with_problem(request, "schedule", problem)
    return redirect("pipeline")


@page("operator")
async def remove_schedule(request, schedule_id):
    if request.method != "POST":
        return HttpResponseNotAllowed(["POST"])
    try:
        async with aaudited(request.caller, "delete", "schedule", str(schedule_id)):
            await sync_to_async(schedules.remove)(schedule_id)
        messages.success(request, "The schedule is removed; the runs that it started stay.")
    except Problem as problem:
        show_problem(request, problem)
    return redirect("pipeline")


def parameters_of(form: Mapping[str, str]) -> dict[str, str | int]:
    """Return the parameters that a form gives a run. Raises WrongField."""
    given: dict[str, str | int] = {
        name: text for name in ("key", "topic", "keep") if (text := form.get(name, "").strip())
    }
    for asked, name in (("from", "begin_ms"), ("to", "end_ms")):
        with of_field(asked):
            moment = moment_of(form.get(asked, "").strip(), None)
        if moment is not None:
            given[name] = moment
    return given


@page()
async def run(request, run_id):
    found = shown(await asyncio.to_thread(queue.find_run, run_id))
    name = found.pipeline or ""  # of a run it is never None
    shown_page = RunPage(run=found, mark=queue.mark_of([found]), job=pipeline.JOBS[name])
    if found.state == "done":
        try:
            result = await asyncio.to_thread(pipeline.read_result, runs.data_directory(), run_id, name)
            shown_page = replace(
                shown_page, report=report_of(result), report_template=f"pipeline/{name}.html"
            )
        except Problem as problem:
            shown_page = replace(shown_page, gone=problem)
    template = "pipeline/facts.html" if request.htmx else "pipeline/run.html"
    return render(request, template, fields_of(shown_page))


@page("operator")
async def run_log(request, run_id):
    found, data = await asyncio.to_thread(queue.find_run, run_id), runs.data_directory()
    text = await asyncio.to_thread(pipeline.read_log, data, run_file.store_directory(data), run_id)
    template = "pipeline/log_text.html" if request.htmx else "pipeline/log.html"
    return render(request, template, fields_of(RunLogPage(run=found, text=text)))


@page("operator")
async def cancel_run(request, run_id):
    if request.method != "POST":
        return HttpResponseNotAllowed(["POST"])
    try:
        async with aaudited(request.caller, "cancel", "job", run_id[:100]):
            await asyncio.to_thread(lambda: queue.cancel(queue.find_run(run_id).id, request.caller))
    except Problem as problem:
        show_problem(request, problem)
    return redirect("run", run_id=run_id)


@page("operator")
async def retry_run(request, run_id):
    if request.method != "POST":
        return HttpResponseNotAllowed(["POST"])
    try:
        async with aaudited(request.caller, "retry", "job", run_id[:100]) as record:
            again = await asyncio.to_thread(
                lambda: queue.retry(queue.find_run(run_id).id, request.caller, record=record)
            )
    except Problem as problem:
        show_problem(request, problem)
        return redirect("run", run_id=run_id)
    return redirect("run", run_id=again.id)


# A run


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """A step that began, and how long it took."""

    text: str
    took_ms: int | None  # None: it has not ended, or that is not known


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownRun(jobs_facts.ShownJob):
    """A run with further values that its pages show."""

    cells: list[str]  # a word for each partition, or for several
    steps: list[StepTime]
    given: list[tuple[str, object]]  # its parameters
    said: str  # its result in a few words
    is_bad: bool  # an audit that found errors


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownSchedule(Schedule):
    """A schedule with its parameters as text."""

    given: list[tuple[str, object]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunList:
    """The data of runs.html."""

    runs: list[ShownRun]
    problem: Problem | None  # why there are none
    mark: str  # see `mark_of` of mqadmin/jobs/queue.py


@dataclass(frozen=True, slots=True, kw_only=True)
class OverviewPage(RunList):
    """The data of page.html."""

    jobs: list[pipeline.PipelineJob]
    schedules: list[ShownSchedule]
    topics: list[str]  # offered in forms
    asked_of: str = ""  # the form that was wrong
    asked: dict[str, str] = field(default_factory=dict)  # what was typed into it
    errors: dict[str, str] = field(default_factory=dict)  # sentences by field


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPage:
    """The data of run.html and facts.html."""

    run: ShownRun
    mark: str
    job: pipeline.PipelineJob
    report: Report | None = None  # None: it is not done, or `gone`
    report_template: str = ""  # that shows `report`
    gone: Problem | None = None  # why there is no result of a run that is done


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLogPage:
    """The data of log.html and log_text.html."""

    run: Job
    text: str  # the end of the log


def shown(run: Job) -> ShownRun:
    return ShownRun(
        **fields_of(jobs_facts.shown(run)),
        cells=_cells(run.progress) if run.state == "running" and run.progress is not None else [],
        steps=_steps(run),
        given=given_text(run.parameters),
        said=_said(run),
        is_bad=run.state == "done" and run.pipeline == "audit" and not (run.result or {}).get("ok"),
    )


def given_text(parameters: dict[str, Any]) -> list[tuple[str, object]]:
    titles = {"key": "key", "topic": "topic", "begin_ms": "from", "end_ms": "to"}
    return [
        (title, units.moment_given(parameters[name]) if name.endswith("_ms") else parameters[name])
        for name, title in titles.items()
        if parameters.get(name) is not None
    ]


def _cells(progress: JobProgress) -> list[str]:
    """Return a word for each partition of the present step. Spark reports the number of those that are done,
    not which these are."""
    done, running, total = progress.done or 0, progress.running or 0, progress.total or 0
    if not 0 <= done <= total or total <= 0:
        return []
    each = -(-total // MAX_CELLS)
    states = ["done"] * done + ["at-work"] * min(max(running, 0), total - done)
    states += ["waits"] * (total - len(states))
    return states[::each]


def _steps(run: Job) -> list[StepTime]:
    """Return the steps so far with their times; while the run runs, the last step has none."""
    steps = run.progress.steps if run.progress is not None else []
    ends = [*(step.began_ms for step in steps[1:]), run.ended_ms]
    return [
        StepTime(text=step.text, took_ms=units.minus(end, step.began_ms))
        for step, end in zip(steps, ends, strict=False)
        if step.text != "done"
    ]


def _said(run: Job) -> str:
    """Return the result of a run in a few words, "" if it has none."""
    result = run.result
    if run.state != "done" or result is None:
        return ""

    def many(name: str, noun: str) -> str:
        number = result.get(name)
        return (
            f"{number:,} {noun}{'' if number == 1 else 's'}"
            if isinstance(number, int)
            else f"unknown {noun}s"
        )

    if run.pipeline == "audit":
        return (
            f"{many('records', 'record')} in order"
            if result.get("ok")
            else f"{many('errors', 'error')}, {many('warnings', 'warning')}"
        )
    if run.pipeline == "statistics":
        return f"{many('messages', 'message')} in {many('topics', 'topic')}"
    if run.pipeline == "lineage":
        return f"{many('records', 'record')} in {many('topics', 'topic')}"
    return f"{many('records', 'new record')} in {many('files', 'file')}"


PAGES = (
    path("pipeline/", overview, name="pipeline"),
    path("pipeline/schedules/add", add_schedule, name="add_schedule"),
    path("pipeline/schedules/<int:schedule_id>/remove", remove_schedule, name="remove_schedule"),
    path("pipeline/start/<str:name>", start, name="start_run"),
    path("pipeline/runs/<str:run_id>/", run, name="run"),
    path("pipeline/runs/<str:run_id>/log", run_log, name="run_log"),
    path("pipeline/runs/<str:run_id>/cancel", cancel_run, name="cancel_run"),
    path("pipeline/runs/<str:run_id>/retry", retry_run, name="retry_run"),
)
