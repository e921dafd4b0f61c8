"""The way of a send: how far each step has come, flushing, where the time goes, and what a crash would
take."""

from __future__ import annotations

import asyncio

from django.http import HttpRequest
from ninja import Router

from broker_store.facts.dispatch import Flushing, Race
from broker_store.facts.exposure import Exposure
from mqadmin.api import schemas
from mqadmin.cluster.current import current_cluster
from mqadmin.facts.sends import PathOfSends

router = Router()


@router.get("/dispatch", response=schemas.measured_schema_of(Race))
async def dispatch_race(request: HttpRequest):
    """How far confirming, queues and index, flushing and the checkpoint lag behind the log's end, in bytes
    and milliseconds; the slowest, and a sentence."""
    return schemas.measured_facts("dispatch", current_cluster().store.race())


@router.get("/flush", response=schemas.measured_schema_of(Flushing))
async def flushing(request: HttpRequest):
    """How the log gets to the disk: what is not there yet, how long syncs take, and the rounds that bring
    queues and index there."""
    return schemas.measured_facts("flush", current_cluster().store.flush())


@router.get("/write-path", response=schemas.measured_schema_of(PathOfSends))
async def write_path(request: HttpRequest):
    """Where the time of sends goes, by stage, of the last minute and since the start, in microseconds; sizes
    of groups and syncs; refusals by cause."""
    return schemas.measured_facts("write-path", current_cluster().store.write_path())


@router.get("/exposure", response=schemas.measured_schema_of(Exposure))
async def exposure(request: HttpRequest):
    """If it crashed now: what a killed process and what a power cut would lose, where a start would begin,
    how much it would read and how long it would take."""
    return schemas.measured_facts("exposure", await asyncio.to_thread(current_cluster().store.exposure))
