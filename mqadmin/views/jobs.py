"""What runs in the background. Each look is a short visit to Redis, in a thread of its own, never on the
loop."""

from __future__ import annotations

import asyncio
import re
from urllib.parse import urlencode

from django.http import HttpResponseNotAllowed
from django.shortcuts import redirect, render
from django.urls import reverse

from broker_store.check.report import WORDS_OF_COUNTS
from broker_store.errors import NameError_
from broker_store.rest.problems import Problem
from mqadmin import clusters
from mqadmin import jobs as background
from mqadmin.audit import aaudited
from mqadmin.templatetags import units
from mqadmin.views import dead_letters
from mqadmin.views.page import page, said, show_problem

MAX_ROWS = 200  # of a result's table; the file or REST has the rest
# What can stand in an address; the page that shows it checks it
GROUP = re.compile(r"[\w%|-]{1,255}", re.ASCII)
NAMES = frozenset({"recovery"})  # in a result: digits that name something and count nothing


@page()
async def jobs(request):
    return render(request, "jobs_table.html" if request.htmx else "jobs.html", await _listing(request))


async def _listing(request) -> dict:
    try:
        rows, problem = await asyncio.to_thread(background.listing), None
    except Problem as error:
        rows, problem = None, error
    for row in rows or []:
        with_share(row)
    kinds = [
        {"name": name, "title": kind.title, "role": kind.role, "allowed": request.caller.may(kind.role)}
        for name, kind in background.KINDS.items()
        if name not in background.PIPELINE
    ]
    topics = []
    if not request.htmx and clusters.current().state().state in ("running", "read_only"):
        topics = clusters.current().offered_topics()
    return {
        "jobs": rows,
        "mark": background.mark_of(rows or []),
        "problem": problem,
        "kinds": kinds,
        "topics": topics,
    }


async def _with_problem(request, kind: str, parameters: dict, problem: Problem | NameError_):
    """The form again with what was typed, and what is wrong beside the field that the problem begins with."""
    field = next(
        (name for name in parameters.keys() | {"topic", "group"} if f"{problem}".startswith(f"{name} ")),
        "form",
    )
    if field == "form" and isinstance(problem, NameError_):
        field = "group" if "group" in parameters else "topic"
    context = {"asked": parameters, "by": kind, "errors": {field: said(problem)}}
    status = problem.status if isinstance(problem, Problem) else 400
    return render(request, "jobs.html", await _listing(request) | context, status=status)


@page()
async def job(request, job_id):
    row = with_share(await asyncio.to_thread(background.find, job_id))
    if row["pipeline"]:
        return redirect("run", run_id=job_id)
    if row["kind"] == "crash_lab":
        return redirect("lab_run", job_id=job_id)
    context = {"job": row, "mark": background.mark_of([row])}
    return render(request, "job_facts.html" if request.htmx else "job.html", context)


@page("operator")
async def start_job(request):
    """Start one of the allowed jobs; each kind checks its own role and parameters. The form has the fields of
    all kinds."""
    if request.method != "POST":
        return HttpResponseNotAllowed(["POST"])
    kind = request.POST.get("kind", "")
    takes = background.KINDS[kind].takes if kind in background.KINDS else ()
    parameters = {name: value.strip() for name in takes if (value := request.POST.get(name, "")).strip()}
    # What it would do is shown before, and confirmed there
    if kind == dead_letters.KIND and GROUP.fullmatch(parameters.get("group", "")):
        address = reverse("dead_letters", args=[parameters["group"]])
        return redirect(f"{address}?{urlencode({'to': parameters.get('to', 'group')})}")
    try:
        async with aaudited(request.caller, "start", "job", kind[:100], parameters=parameters) as record:
            row = await asyncio.to_thread(background.start, kind, parameters, request.caller)
            record["id"] = row["id"]
    except (Problem, NameError_) as problem:
        return await _with_problem(request, kind, parameters, problem)
    return redirect("job", job_id=row["id"])


@page("operator")
async def cancel_job(request, job_id):
    if request.method != "POST":
        return HttpResponseNotAllowed(["POST"])
    try:
        async with aaudited(request.caller, "cancel", "job", job_id[:100]):
            await asyncio.to_thread(background.cancel, job_id, request.caller)
    except Problem as problem:
        show_problem(request, problem)
    return (
        redirect("doctor_run", job_id)
        if request.POST.get("next") == "doctor"
        else redirect("job", job_id=job_id)
    )


def with_share(row: dict) -> dict:
    """`share` of the work done in per cent, None when the job cannot say."""
    progress = row["progress"] or {}
    done, total = progress.get("done"), progress.get("total")
    row["share"] = (
        min(100, 100 * done // total)
        if isinstance(done, int) and isinstance(total, int) and total > 0
        else None
    )
    row["over"] = row["state"] in background.OVER
    row["facts"], row["tables"] = _shown(row["result"] or {})
    return row


def _shown(result: dict) -> tuple[list[tuple[str, object]], list[dict]]:
    """A result as pairs and tables: a list of objects is a table, an object within it is pairs too. No error
    is not an unknown one."""
    facts, tables = [], []
    for name, value in result.items():
        title = _title(name)
        if name == "error" and value is None:
            continue
        if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
            columns = list(dict.fromkeys(column for item in value[:MAX_ROWS] for column in item))
            rows = [[_text(column, item.get(column)) for column in columns] for item in value[:MAX_ROWS]]
            tables.append(
                {
                    "title": title,
                    "columns": [_title(column) for column in columns],
                    "rows": rows,
                    "left_out": len(value) - len(rows),
                }
            )
        elif isinstance(value, dict):
            facts += [(f"{title}: {_title(key)}", _text(key, item)) for key, item in value.items()]
        else:
            facts.append((title, _text(name, value)))
    return facts, tables


def _title(name: str) -> str:
    """A name without its unit, which stands with the value; in words where the name alone would mislead."""
    return WORDS_OF_COUNTS.get(name) or name.removesuffix("_ms").replace("_", " ")


def _text(name: str, value: object) -> object:
    """A value with its unit, which stands at the end of its name; None stays None, for unknown."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name in NAMES:
        return str(value)
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:
        value = int(value)  # 64-bit numbers are strings in results
    if isinstance(value, int | float):
        if name == "bytes" or name.endswith("_bytes"):
            return units.size(value)
        if name.endswith("_ms"):
            return units.moment(value) if value > 1 << 40 else units.duration(value)
        return units.count(value) if isinstance(value, int) else f"{value:,.3g}"
    if isinstance(value, list):
        return ", ".join(map(str, value[:MAX_ROWS])) or "none"
    return value
