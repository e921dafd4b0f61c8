"""The memory of the broker's process, by part."""

from __future__ import annotations

import asyncio

from django.http import HttpRequest
from ninja import Router

from broker_store.facts import memory
from broker_store.rest.problems import Problem
from mqadmin.api import schemas

router = Router()


@router.get("/memory", response=schemas.schema_of(memory.MemoryFacts))
async def memory_facts(request: HttpRequest):
    """The resident memory of the broker's process by part: its bytes, whether they are counted or estimated,
    and its bound with what happens there. The parts add up to the whole; what is in none is "not
    assigned"."""
    facts = await asyncio.to_thread(memory.of_process)
    if facts is None:
        raise Problem("starting", "no broker runs in this process, so its memory is not measured")
    return schemas.facts(facts)
