"""Topics: list, create, show, change, delete."""

from __future__ import annotations

from typing import Annotated, Literal

from django.http import HttpRequest
from ninja import Query, Router, Status

from broker_store.formats.names import check_topic
from broker_store.rest.problems import Problem
from mqadmin.api import paging, schemas
from mqadmin.api.auth import need
from mqadmin.api.paging import Cursor, Limit
from mqadmin.api.parameters import Confirm
from mqadmin.audit import aaudited
from mqadmin.cluster.current import current_cluster
from mqadmin.views.topics.facts import find, found_topic

router = Router()
CONFIG_FIELDS = ("read_queues", "write_queues", "perm", "order", "message_type")


@router.get("/topics", response=schemas.Topics)
async def list_topics(
    request: HttpRequest,
    kind: Annotated[Literal["normal", "retry", "dlq", "system"] | None, Query()] = None,
    cursor: Cursor = None,
    limit: Limit = paging.DEFAULT_LIMIT,
):
    """Topics by name."""
    cluster = current_cluster()
    counts = cluster.topics.counts()
    total = sum(counts.values()) if kind is None else counts[kind]
    return paging.page_after(
        lambda name, count: cluster.topics.after(name, count, kind),
        lambda topic: topic.name,
        cursor,
        limit,
        total,
    )


@router.post("/topics", response={201: schemas.TopicDetail})
async def create_topic(request: HttpRequest, body: schemas.NewTopic):
    caller = need(request, "admin")
    name = check_topic(body.name)
    if find(name) is not None:
        raise Problem("conflict", f"topic {name} exists", hint=f"change it with PATCH /api/v1/topics/{name}")
    wanted = body.dict(exclude={"name"})
    async with aaudited(caller, "create", "topic", name, after=wanted):
        current_cluster().topics.create(name, **wanted)
    return Status(201, found_topic(name))


@router.get("/topics/{topic}", response=schemas.TopicDetail)
async def show_topic(request: HttpRequest, topic: str):
    return found_topic(topic)


@router.patch("/topics/{topic}", response=schemas.TopicDetail)
async def change_topic(request: HttpRequest, topic: str, body: schemas.TopicChange):
    """Change what is given; the rest stays. Taking away queues hides the messages in them."""
    caller = need(request, "admin")
    before = found_topic(topic)
    changes = body.dict(exclude_none=True)
    if changes:
        async with aaudited(
            caller,
            "update",
            "topic",
            topic,
            before={name: getattr(before, name) for name in changes},
            after=changes,
        ):
            current_cluster().topics.update(topic, **changes)
    return found_topic(topic)


@router.delete("/topics/{topic}", response={204: None})
async def delete_topic(request: HttpRequest, topic: str, confirm: Confirm = None):
    """Delete a topic, its queues and its messages' places in them; `confirm` is its name."""
    caller = need(request, "admin")
    before = found_topic(topic)
    async with aaudited(
        caller,
        "delete",
        "topic",
        topic,
        before={name: getattr(before, name) for name in (*CONFIG_FIELDS, "messages")},
    ):
        if confirm != topic:
            raise Problem(
                "confirmation_needed",
                f"deleting {topic} ends {before.messages} messages",
                hint=f"repeat with ?confirm={topic}",
            )
        current_cluster().topics.delete(topic)
    return Status(204, None)


@router.get("/topics/{topic}/queues", response=schemas.Queues)
async def topic_queues(
    request: HttpRequest, topic: str, cursor: Cursor = None, limit: Limit = paging.DEFAULT_LIMIT
):
    """The queues of a topic by their ids."""
    return paging.page(found_topic(topic).queues, lambda queue: f"{queue.queue_id:010d}", cursor, limit)


@router.get("/topics/{topic}/groups", response=schemas.Readers)
async def topic_groups(
    request: HttpRequest, topic: str, cursor: Cursor = None, limit: Limit = paging.DEFAULT_LIMIT
):
    """The groups that read the topic, by name, with the lag of each."""
    return paging.page(found_topic(topic).readers, lambda reader: reader.group, cursor, limit)
