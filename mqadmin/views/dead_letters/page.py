"""A group's dead letters: what sending them again would do, and the form that does it."""

from __future__ import annotations

import asyncio

from asgiref.sync import sync_to_async
from django.shortcuts import redirect, render
from django.urls import path

from broker_store.formats import names
from broker_store.rest.problems import Problem
from mqadmin.audit import aaudited
from mqadmin.cluster.current import current_cluster
from mqadmin.jobs import dead_letters, queue
from mqadmin.jobs.kinds import RESEND
from mqadmin.jobs.left_out import of_group
from mqadmin.views.asked import text, whole
from mqadmin.views.page import page

DEFAULT_LIMIT = 1_000  # of one run, by default
ASKED = ("to", "limit", "confirm")


@page("operator", takes=dict.fromkeys(ASKED, text))
async def resend(request, name):
    """Show the plan. A form with the group's name typed again starts the job; what was typed stays in the
    form."""
    names.check_group(name)
    asked = {field: (request.POST or request.GET).get(field, "").strip() for field in ASKED}
    errors: dict[str, str] = {}
    try:
        limit = whole(asked["limit"], DEFAULT_LIMIT, dead_letters.MAX_MESSAGES)
        if limit < 1:
            raise ValueError("at least 1")
    except ValueError as error:
        errors["limit"], limit = f"{error}", DEFAULT_LIMIT
    to = asked["to"] or "group"
    if to not in dead_letters.TO:
        errors["to"], to = f"{to!r:.30} is none of {', '.join(dead_letters.TO)}", "group"
    left_out = await sync_to_async(of_group)(name)
    # NotFoundError before a job is started for nothing
    plan = await asyncio.to_thread(current_cluster().dead_letters.plan, name, to, limit, left_out)
    if request.method == "POST" and not errors:
        try:
            parameters = {"group": name, "to": to, "limit": limit}
            async with aaudited(request.caller, "start", "job", RESEND, parameters=parameters) as record:
                job = await asyncio.to_thread(
                    lambda: queue.start(RESEND, parameters, request.caller, confirm=asked["confirm"])
                )
                record["id"] = job.id
            return redirect("job", job_id=job.id)
        except Problem as problem:
            if problem.code == "confirmation_needed":
                errors["confirm"] = f"Type {name} to confirm."
            else:
                errors["form"] = f"{problem}"
    return render(
        request,
        "dead_letters/page.html",
        {
            "name": name,
            "plan": plan,
            "asked": asked | {"limit": asked["limit"] or limit},
            "to": to,
            "errors": errors,
        },
        status=400 if errors else 200,
    )


PAGES = (path("groups/<str:name>/dead-letters/", resend, name="dead_letters"),)
