"""The work of the threads and the loop in the last minute."""

from __future__ import annotations

from django.http import HttpRequest
from ninja import Router

from broker_store.facts import threads
from broker_store.rest.problems import Problem
from mqadmin.api import schemas

router = Router()


@router.get("/threads", response=schemas.schema_of(threads.ThreadFacts))
async def thread_facts(request: HttpRequest):
    """How long calls wait for the loop and kernels for the interpreter lock, the longest turns of the loop
    with where they were, garbage collections, and the processor time of each thread, over the last minute."""
    facts = threads.of_process()
    if facts is None:
        raise Problem("starting", "no broker runs in this process, so its threads are not measured")
    return schemas.facts(facts)
