"""The way of a send: how far each step has come, flushing, where the time goes, and what a crash would
take."""

from __future__ import annotations

import asyncio
from typing import Any

from django.http import HttpRequest
from ninja import Router

from mqadmin import clusters
from mqadmin.api import schemas
from mqadmin.views.sources import measured

router = Router()


@router.get("/dispatch", response=dict[str, Any])
async def dispatch_race(request: HttpRequest):
    """How far confirming, queues and index, flushing and the checkpoint are behind the log's end, in bytes
    and milliseconds; the slowest, and a sentence."""
    return schemas.facts(measured("dispatch", clusters.current().race()))


@router.get("/flush", response=dict[str, Any])
async def flushing(request: HttpRequest):
    """How the log gets to the disk: what is not there yet, how long syncs take, and the rounds that bring
    queues and index there."""
    return schemas.facts(measured("flush", clusters.current().flush()))


@router.get("/write-path", response=dict[str, Any])
async def write_path(request: HttpRequest):
    """Where the time of sends goes, by stage, of the last minute and since the start, in microseconds; sizes
    of groups and syncs; refusals by cause."""
    return schemas.facts(measured("write-path", clusters.current().write_path()))


@router.get("/exposure", response=dict[str, Any])
async def exposure(request: HttpRequest):
    """If it crashed now: what a killed process and what a power cut would lose, where a start would begin,
    how much it would read and how long it would take."""
    return schemas.facts(measured("exposure", await asyncio.to_thread(clusters.current().exposure)))
