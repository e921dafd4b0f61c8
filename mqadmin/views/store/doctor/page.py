"""The page of the store doctor: start a check, see its findings and the plan of a repair."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import PurePath
from urllib.parse import urlencode

from django.contrib import messages
from django.http import HttpResponseNotAllowed
from django.shortcuts import redirect, render
from django.urls import path, reverse

from broker_store.check.results import (
    GRADES,
    LOST,
    GradedFinding,
    LossSummary,
    PlannedAction,
    RepairPlan,
)
from broker_store.engine.status.store_state import Snapshot
from broker_store.rest.problems import Problem
from broker_store.units import fields_of
from mqadmin.audit import aaudited
from mqadmin.cluster.current import current_cluster
from mqadmin.jobs.facts import OVER
from mqadmin.views.jobs.facts import share_of
from mqadmin.views.page import page
from mqadmin.views.store.doctor import facts as checks
from mqadmin.views.store.doctor.facts import CheckRun, CheckRunDetail

MAX_RUNS = 20
MAX_FINDINGS = 300  # rows of the table; REST has all
MAX_RANGES = 100  # of lost messages


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownFinding(GradedFinding):
    """A row of the table of findings."""

    link: str | None  # to its bytes
    is_first: bool  # of its kind: only the first shows the meaning


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownAction(PlannedAction):
    """A row of the plan."""

    link: str | None  # to the bytes that it changes


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownLosses(LossSummary):
    """The losses with at most MAX_RANGES ranges."""

    left_out: int  # ranges that the page does not show


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownPlan:
    """The plan of a repair."""

    actions: list[ShownAction]
    left: list[str]
    lost: ShownLosses
    bytes: int
    kept_in: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownRun(CheckRun):
    """A run as the page shows it."""

    mark: str
    over: bool  # it has ended
    share: int | None  # per cent of the work that is done; None: unknown
    lost: int  # findings of something that is lost
    graded: list[tuple[str, int]]  # (grade, findings), the most severe first; empty until it is done
    findings: list[ShownFinding]  # at most MAX_FINDINGS
    left_out: int  # findings
    plan: ShownPlan | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorPage:
    """The data of the page."""

    store: Snapshot
    runs: list[CheckRun]  # the newest first, at most MAX_RUNS
    problem: Problem | None  # why there are no runs
    run: ShownRun | None  # that was asked for, or the newest
    apply: str = checks.APPLY
    how: str = checks.OFFLINE
    rest: str  # the address that gives the same


@page()
async def doctor(request, run_id=None):
    """Draw the newest run, or the one with the given id."""
    runs: list[CheckRun] = []
    run: ShownRun | None = None
    problem: Problem | None = None
    try:
        runs = await asyncio.to_thread(checks.listing)
        wanted = run_id or next((one.id for one in runs), None)
        if wanted is not None:
            run = shown(await asyncio.to_thread(checks.find, wanted))
    except Problem as error:
        if run_id:
            raise
        problem = error
    shown_page = DoctorPage(
        store=current_cluster().store.snapshot(),
        runs=runs[:MAX_RUNS],
        problem=problem,
        run=run,
        rest="/api/v1/store/checks" + ("" if run is None else f"/{run.id}"),
    )
    template = "store/doctor/run.html" if request.htmx else "store/doctor/page.html"
    return render(request, template, fields_of(shown_page))


@page("operator")
async def start(request):
    if request.method != "POST":
        return HttpResponseNotAllowed(["POST"])
    try:
        async with aaudited(request.caller, "start", "job", checks.KIND) as record:
            run = await asyncio.to_thread(checks.start, request.caller)
            record["id"] = run.id
    except Problem as problem:
        messages.error(request, f"{problem}")
        return redirect("doctor")
    return redirect("doctor_run", run_id=run.id)


def shown(run: CheckRunDetail) -> ShownRun:
    """Return a run as the page shows it."""
    explained: set[str] = set()
    findings = []
    for finding in run.findings[:MAX_FINDINGS]:
        findings.append(
            ShownFinding(
                **fields_of(finding),
                link=link_of(finding.file, finding.offset),
                is_first=finding.kind not in explained,
            )
        )
        explained.add(finding.kind)
    grades = run.grades or {}
    return ShownRun(
        **fields_of(checks.brief(run)),
        mark=run.mark,
        over=run.state in OVER,
        share=share_of(run.progress),
        lost=grades.get(LOST, 0),
        graded=[(grade, grades.get(grade, 0)) for grade in reversed(GRADES)] if grades else [],
        findings=findings,
        left_out=len(run.findings) - len(findings),
        plan=None if run.plan is None else _plan(run.plan),
    )


def _plan(plan: RepairPlan) -> ShownPlan:
    actions = [
        ShownAction(**fields_of(action), link=link_of(action.file, action.offset)) for action in plan.actions
    ]
    shown_ranges = plan.lost.ranges[:MAX_RANGES]
    left_out = len(plan.lost.ranges) - len(shown_ranges) + plan.lost.ranges_left_out
    losses = ShownLosses(**{**fields_of(plan.lost), "ranges": shown_ranges}, left_out=left_out)
    return ShownPlan(actions=actions, left=plan.left, lost=losses, bytes=plan.bytes, kept_in=plan.kept_in)


def link_of(file: str, offset: int | None) -> str | None:
    """Return the address of a byte of a file in the byte viewer; None for a file that it does not show."""
    path = PurePath(file)
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
