"""The store doctor's page: start a check, see what it finds, and what a repair would do."""

from __future__ import annotations

import asyncio
from pathlib import PurePath
from urllib.parse import urlencode

from django.contrib import messages
from django.http import HttpResponseNotAllowed
from django.shortcuts import redirect, render
from django.urls import path, reverse

from broker_store.check.doctor import GRADES, LOST
from broker_store.rest.problems import Problem
from mqadmin.audit import aaudited
from mqadmin.cluster.current import current_cluster
from mqadmin.jobs.facts import OVER
from mqadmin.views.page import page
from mqadmin.views.store.doctor import facts as checks

MOST_RUNS = 20
MOST_FINDINGS = 300  # rows of the table; REST has all
MOST_RANGES = 100  # of lost messages


@page()
async def doctor(request, run_id=None):
    """The newest run, or the one that was asked for."""
    try:
        runs, problem = await asyncio.to_thread(checks.listing), None
        run = await asyncio.to_thread(checks.find, run_id) if run_id else next(iter(runs), None)
    except Problem as error:
        if run_id:
            raise
        runs, run, problem = [], None, error
    context = {
        "store": current_cluster().store.snapshot(),
        "runs": runs[:MOST_RUNS],
        "problem": problem,
        "run": run and shown(run),
    }
    context |= {
        "apply": checks.APPLY,
        "how": checks.OFFLINE,
        "rest": f"/api/v1/store/checks/{run['id']}" if run else "/api/v1/store/checks",
    }
    return render(request, "store/doctor/run.html" if request.htmx else "store/doctor/page.html", context)


@page("operator")
async def start(request):
    if request.method != "POST":
        return HttpResponseNotAllowed(["POST"])
    try:
        async with aaudited(request.caller, "start", "job", checks.KIND) as record:
            run = await asyncio.to_thread(checks.start, request.caller)
            record["id"] = run["id"]
    except Problem as problem:
        messages.error(request, f"{problem}")
        return redirect("doctor")
    return redirect("doctor_run", run_id=run["id"])


def shown(run: dict) -> dict:
    """What the templates take: the gravest first, each with a link to its bytes, an equal meaning once."""
    progress = run["progress"] or {}
    done, total = progress.get("done"), progress.get("total")
    explained: set[str] = set()
    findings = []
    for finding in run["findings"][:MOST_FINDINGS]:
        findings.append(finding | {"link": link_of(finding), "is_first": finding["kind"] not in explained})
        explained.add(finding["kind"])
    plan = run["plan"]
    return run | {
        "over": run["state"] in OVER,
        "share": min(100, 100 * done // total)
        if isinstance(done, int) and isinstance(total, int) and total > 0
        else None,
        "lost": (run["grades"] or {}).get(LOST, 0),
        "grades": [(grade, (run["grades"] or {}).get(grade, 0)) for grade in reversed(GRADES)]
        if run["grades"]
        else [],
        "findings": findings,
        "left_out": len(run["findings"]) - len(findings),
        "plan": plan
        and plan
        | {
            "actions": [action | {"link": link_of(action)} for action in plan["actions"]],
            "lost": _losses(plan["lost"]),
        },
    }


def _losses(lost: dict) -> dict:
    """The losses of a plan with as many ranges as the page shows."""
    ranges = lost["ranges"][:MOST_RANGES]
    return lost | {"ranges": ranges, "left_out": len(lost["ranges"]) - len(ranges) + lost["ranges_left_out"]}


def link_of(place: dict) -> str | None:
    """The byte viewer at a finding or an action; None for what has no bytes to show."""
    path, offset = PurePath(place["file"]), place["offset"]
    kind = path.parts[0] if path.parts else ""
    if offset is None or kind not in ("commitlog", "consumequeue", "index", "checkpoint"):
        return None
    asked = {"kind": kind}
    if kind == "index":
        asked["name"] = path.name
    elif kind == "consumequeue":
        asked |= {"topic": path.parts[1], "queue": path.parts[2]}
    base = int(path.name) if kind in ("commitlog", "consumequeue") and path.name.isdigit() else 0
    return f"{reverse('bytes')}?{urlencode(asked | {'offset': base + offset})}"


PAGES = (
    path("store/doctor/", doctor, name="doctor"),
    path("store/doctor/start", start, name="start_doctor"),
    path("store/doctor/<str:run_id>/", doctor, name="doctor_run"),
)
