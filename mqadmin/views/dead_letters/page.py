"""A group's dead letters: a preview of sending them again, and the form that sends them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace

from asgiref.sync import sync_to_async
from django.shortcuts import redirect, render
from django.urls import path

from broker_store.formats import names
from broker_store.rest.problems import Problem
from broker_store.units import fields_of, small_by_field
from mqadmin.audit import aaudited
from mqadmin.cluster.current import current_cluster
from mqadmin.facts.dead_letters import ResendPlan
from mqadmin.jobs import dead_letters, queue
from mqadmin.jobs.kinds import RESEND
from mqadmin.jobs.left_out import of_group
from mqadmin.views.page import page
from mqadmin.views.query_parameters import text, whole

DEFAULT_LIMIT = 1_000  # of one run, by default


@dataclass(frozen=True, slots=True, kw_only=True)
class ResendForm:
    """The values typed into the form."""

    to: str
    limit: str
    confirm: str  # the group's name again


@dataclass(frozen=True, slots=True, kw_only=True)
class ResendPage:
    """The data of the page."""

    name: str  # of the group
    plan: ResendPlan
    asked: ResendForm
    to: str  # group or topic
    errors: Mapping[str, str]  # sentences by field


@page("operator", takes=dict.fromkeys(small_by_field(ResendForm), text))
async def resend(request, name):
    """Show the plan. A form with the group's name typed again starts the job; what was typed stays in the
    form."""
    names.check_group(name)
    query = request.POST or request.GET
    asked = ResendForm(**{name: query.get(name, "").strip() for name in small_by_field(ResendForm)})
    errors: dict[str, str] = {}
    try:
        limit = whole(asked.limit, DEFAULT_LIMIT, dead_letters.MAX_MESSAGES)
        if limit < 1:
            raise ValueError("at least 1")
    except ValueError as error:
        errors["limit"], limit = f"{error}", DEFAULT_LIMIT
    to = asked.to or "group"
    if to not in dead_letters.TO:
        errors["to"], to = f"{to!r:.30} is not known; choose one of {', '.join(dead_letters.TO)}", "group"
    left_out = await sync_to_async(of_group)(name)
    # Raises NotFoundError before a job is started that could only fail
    plan = await asyncio.to_thread(current_cluster().dead_letters.plan, name, to, limit, left_out)
    if request.method == "POST" and not errors:
        try:
            parameters = {"group": name, "to": to, "limit": limit}
            async with aaudited(request.caller, "start", "job", RESEND, parameters=parameters) as record:
                job = await asyncio.to_thread(
                    lambda: queue.start(RESEND, parameters, request.caller, confirm=asked.confirm)
                )
                record["id"] = job.id
            return redirect("job", job_id=job.id)
        except Problem as problem:
            if problem.code == "confirmation_needed":
                errors["confirm"] = f"Type {name} to confirm."
            else:
                errors["form"] = f"{problem}"
    shown = ResendPage(
        name=name,
        plan=plan,
        asked=replace(asked, limit=asked.limit or f"{limit}"),
        to=to,
        errors=errors,
    )
    return render(request, "dead_letters/page.html", fields_of(shown), status=400 if errors else 200)


PAGES = (path("groups/<str:name>/dead-letters/", resend, name="dead_letters"),)
