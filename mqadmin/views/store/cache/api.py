"""Residency of the store's files and reads by group."""

from __future__ import annotations

import asyncio
from typing import Annotated

from django.http import HttpRequest
from ninja import Query, Router

from broker_store.formats.names import check_topic
from mqadmin.api import schemas
from mqadmin.cluster.current import current_cluster
from mqadmin.views.store.cache import facts as cache
from mqadmin.views.topics.facts import found_topic

router = Router()


@router.get("/cache", response=schemas.schema_of(cache.ShownCache))
async def page_cache(
    request: HttpRequest,
    topic: Annotated[str | None, Query(max_length=255)] = None,
    queue_files: Annotated[int, Query(ge=0, le=5_000)] = 50,
):
    """The share of each file that is in memory, in equal parts; the machine's memory; each group's reads,
    those of them that were cold, and its place in the log. Of the queues' files, of all topics or of one,
    those with most in memory are given."""
    picture = await asyncio.to_thread(current_cluster().store.cache)
    if topic and not any(file.topic == topic for file in picture.files if file.kind == "consumequeue"):
        found_topic(topic)
    return schemas.facts(cache.shown(picture, queue_files, check_topic(topic) if topic else None))
