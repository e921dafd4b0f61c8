"""What the memory of the broker's process is used for."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from django.urls import path

from broker_store.facts import memory
from broker_store.facts.memory import MemoryFacts
from broker_store.units import fields_of
from mqadmin.views.page import drawn, page
from mqadmin.views.view import Part

FACTS = "store/memory/facts.html"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPage:
    """The data of FACTS."""

    found: MemoryFacts | None  # None: this process does not measure its memory


@page()
async def memory_page(request):
    template = FACTS if request.htmx else "store/memory/page.html"
    found = await asyncio.to_thread(memory.of_process)
    return await drawn(request, template, fields_of(MemoryPage(found=found)))


def facts() -> MemoryPage:
    """Return what was measured last: a stream does not wait for it."""
    return MemoryPage(found=memory.latest())


PAGES = (path("store/memory/", memory_page, name="memory"),)
PARTS = {"memory": Part(FACTS, lambda cluster, asked: facts())}
