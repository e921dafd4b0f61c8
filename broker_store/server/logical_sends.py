"""Sends to a logical queue of a static topic (server/logical_queue.py).

Source: Apache's `SendMessageProcessor.rewriteResponseForStaticTopic`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from broker_store.formats.static_topics import TopicMapping
from broker_store.messages import Message, PutResult
from broker_store.protocol.command import Command
from broker_store.protocol.headers import SendHeader
from broker_store.server.logical_queue import LogicalQueue, queue_of
from broker_store.server.send_group import SENT

Add = Callable[..., None]  # as SendGroup.add


def physical_send(
    mappings: Mapping[str, TopicMapping], header: SendHeader, command: Command, add: Add
) -> tuple[SendHeader, Add]:
    """Return the header with the physical queue, and the function that adds the message; both as they are if
    the header names no logical queue. Raises Refusal if another broker leads the queue."""
    mapping = mappings.get(header.topic)
    queue = mapping and queue_of(mapping, header.queue_id, command.fields, any_queue=True)
    if not queue:
        return header, add
    return header._replace(queue_id=queue.leader.queue_id), _adding(queue, add)


def _adding(queue: LogicalQueue, add: Add) -> Add:
    """Return a function that adds a message whose answer names the logical queue and an offset in it. The
    offset is -1 while it is not decided, as in Apache's."""

    def add_logical(
        message: Message, done: Callable[[Any, PutResult], None], context: tuple[Any, ...], **how: bool
    ) -> None:
        def stored(context: tuple[Any, ...], result: PutResult) -> None:
            if result.status in SENT:
                result.queue_offset = queue.leader.logical_within(result.queue_offset)
            # (command, channel, unique key, queue id, ...)
            done((*context[:3], queue.number, *context[4:]), result)

        add(message, stored, context, **how)

    return add_logical
