"""What the broker holds back: delayed messages, halves of transactions, a group's retries and dead
letters."""

from __future__ import annotations

import asyncio
from typing import Annotated

from django.http import HttpRequest
from ninja import Query, Router

from mqadmin.api import schemas
from mqadmin.cluster.current import current_cluster
from mqadmin.facts.waiting import SHOWN_HALVES, Halves, Waiting, WaitingOfGroup
from mqadmin.views.groups.facts import found_group

router = Router()
MAX_HALVES = 100


@router.get("/waiting", response=schemas.schema_of(Waiting))
async def waiting(request: HttpRequest):
    """How many messages are delayed, by level, and how many halves of transactions wait for their decision;
    null is not known yet."""
    return schemas.facts(current_cluster().waiting.facts())


@router.get("/waiting/prepared", response=schemas.schema_of(Halves))
async def waiting_halves(
    request: HttpRequest, limit: Annotated[int, Query(ge=1, le=MAX_HALVES)] = SHOWN_HALVES
):
    """The oldest halves that wait, with how often their producer was asked; `complete` false says that there
    are more."""
    return schemas.facts(await current_cluster().waiting.halves(limit))


@router.get("/groups/{group}/waiting", response=schemas.schema_of(WaitingOfGroup))
async def waiting_of_group(request: HttpRequest, group: str):
    """What a group sent back and waits for its next try, by delay level, what came back and was not taken
    yet, and what it gave up."""
    group_facts = found_group(group)
    delayed = await asyncio.to_thread(current_cluster().waiting.retries, group)
    return schemas.facts(
        WaitingOfGroup(delayed=delayed, retrying=group_facts.retrying, dead=group_facts.dead)
    )
