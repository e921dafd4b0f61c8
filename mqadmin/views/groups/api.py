"""Subscription groups: list, create, show, change, delete, move their offsets."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Annotated, Literal

from asgiref.sync import sync_to_async
from django.http import HttpRequest
from ninja import Query, Router, Status

from broker_store.facts.disk_scan import MAX_HISTORY_HOURS
from broker_store.facts.timeline import GroupTimeline
from broker_store.formats import moment
from broker_store.formats.names import check_group, check_topic
from broker_store.rest.documents import time_text
from broker_store.rest.problems import Problem
from broker_store.units import fields_of
from mqadmin.api import paging, schemas
from mqadmin.api.auth import need
from mqadmin.api.paging import Cursor, Limit
from mqadmin.api.parameters import Confirm
from mqadmin.audit import aaudited
from mqadmin.cluster.current import current_cluster
from mqadmin.facts.dead_letters import ResendPlan
from mqadmin.facts.groups import OffsetMove, OffsetMoves
from mqadmin.jobs import dead_letters
from mqadmin.jobs.left_out import of_group
from mqadmin.views.groups.facts import find, found_group
from mqadmin.views.topics.facts import found_topic

router = Router()
CONFIG_FIELDS = ("consume_enable", "broadcast", "orderly", "retry_queues", "retry_max_times")


@router.get("/groups", response=schemas.Groups)
async def list_groups(request: HttpRequest, cursor: Cursor = None, limit: Limit = paging.DEFAULT_LIMIT):
    """Groups by name."""
    cluster = current_cluster()
    return paging.page_after(
        cluster.groups.after, lambda group: group.name, cursor, limit, sum(cluster.groups.counts().values())
    )


@router.post("/groups", response={201: schemas.GroupDetail})
async def create_group(request: HttpRequest, body: schemas.NewGroup):
    caller = need(request, "admin")
    name = check_group(body.name)
    if find(name) is not None:
        raise Problem("conflict", f"group {name} exists", hint=f"change it with PATCH /api/v1/groups/{name}")
    wanted = body.dict(exclude={"name"})
    async with aaudited(caller, "create", "group", name, after=wanted):
        current_cluster().groups.create(name, **wanted)
    return Status(201, found_group(name))


@router.get("/groups/{group}", response=schemas.GroupDetail)
async def show_group(request: HttpRequest, group: str):
    """One group with its lag for each queue, its clients and what they subscribe to."""
    return found_group(group)


@router.get(
    "/groups/{group}/timeline",
    response=schemas.unchecked(schemas.measured_schema_of(GroupTimeline, timed=True)),
)
async def timeline(
    request: HttpRequest, group: str, hours: Annotated[int, Query(ge=1, le=MAX_HISTORY_HOURS)] = 6
):
    """Each queue of a group over store time: what is kept, the group's offset, and when retention reaches
    that offset; and its lag over the last `hours`, with resets and changes of its members. `lag` null is a
    gap without samples."""
    found = await asyncio.to_thread(current_cluster().store.timeline, check_group(group), hours)
    return schemas.measured_facts("timeline", found, timed=True)


@router.get("/groups/{group}/dead-letters", response=schemas.schema_of(ResendPlan))
async def dead_letters_of_group(
    request: HttpRequest,
    group: str,
    to: Annotated[
        Literal["group", "topic"],
        Query(description="to the group alone, or to the original topics for all their groups"),
    ] = "group",
    most: Annotated[
        int, Query(ge=1, le=dead_letters.MAX_MESSAGES, description="the job's limit")
    ] = dead_letters.MAX_MESSAGES,
):
    """A preview of the job resend_dead_letters: the number of letters that it would send now, their topics,
    the oldest and the newest, the target, how many earlier runs left out (they are tried again), and how many
    were sent before. This request sends nothing."""
    check_group(group)
    left_out = await sync_to_async(of_group)(group)
    return schemas.facts(
        await asyncio.to_thread(current_cluster().dead_letters.plan, group, to, most, left_out)
    )


@router.patch("/groups/{group}", response=schemas.GroupDetail)
async def change_group(request: HttpRequest, group: str, body: schemas.GroupChange):
    caller = need(request, "admin")
    before = found_group(group)
    changes = body.dict(exclude_none=True)
    if changes:
        async with aaudited(
            caller,
            "update",
            "group",
            group,
            before={name: getattr(before, name) for name in changes},
            after=changes,
        ):
            current_cluster().groups.update(group, **changes)
    return found_group(group)


@router.delete("/groups/{group}", response={204: None})
async def delete_group(request: HttpRequest, group: str, confirm: Confirm = None):
    """Delete a group and its offsets; `confirm` is its name. Clients that run start without an offset."""
    caller = need(request, "admin")
    before = found_group(group)
    async with aaudited(
        caller,
        "delete",
        "group",
        group,
        before={name: getattr(before, name) for name in (*CONFIG_FIELDS, "topics", "lag")},
    ):
        if confirm != group:
            raise Problem(
                "confirmation_needed",
                f"deleting {group} deletes its offsets",
                hint=f"repeat with ?confirm={group}",
            )
        current_cluster().groups.delete(group)
    return Status(204, None)


@router.post("/groups/{group}/offsets/reset", response=schemas.OffsetMoves)
async def reset_offsets(request: HttpRequest, group: str, body: schemas.OffsetReset):
    """Move a group's offsets in a topic. With dry_run, the default, nothing is moved, and the answer has the
    moves that would be made."""
    caller = need(request, "operator")
    found_group(group)
    found_topic(check_topic(body.topic))
    if (body.to in ("time", "offset")) != (body.value is not None):
        raise Problem("invalid", "to=time and to=offset need a value; the others take none")
    value = None if body.value is None else _value_of(body.to, body.value)
    wanted = {"topic": body.topic, "to": body.to, "value": value, "queue_id": body.queue_id}

    def reset(dry_run: bool) -> list[OffsetMove]:
        return current_cluster().groups.reset_offsets(
            group, body.topic, body.to, value, queue_id=body.queue_id, dry_run=dry_run
        )

    if body.dry_run:
        moves = reset(True)
    else:
        async with aaudited(caller, "reset_offset", "group", group, **wanted) as record:
            if body.confirm != group:
                raise Problem(
                    "confirmation_needed",
                    f"after a move of its offsets {group} reads messages again, or skips some",
                    hint=f"repeat with confirm={group}",
                )
            moves = reset(False)
            record["moves"] = list(map(fields_of, moves))
    answer = OffsetMoves(group=group, topic=body.topic, dry_run=body.dry_run, moves=moves)
    if body.to != "time" or value is None:
        return answer
    doubt = await current_cluster().search.time_doubt(body.topic, value, body.queue_id)
    return replace(answer, time_ms=value, time=time_text(value), doubt=doubt)


def _value_of(to: str, text: int | str) -> int:
    """Return the target of a move: ms since 1970 for a time, else an offset. Raises Problem."""
    given = f"{text}"
    try:
        if to == "time":
            return moment.read(given)
        if not (given.isascii() and given.isdigit() and len(given) < 19):
            raise ValueError(f"{given[:30]!r} is not an offset: expected a number from 0")
        return int(given)
    except ValueError as error:
        raise Problem("invalid", f"value: {error}") from None
