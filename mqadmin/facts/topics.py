"""Topics, and one topic with its queues."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from broker_store.units import Moment, Small


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A row of a list of topics."""

    name: str
    kind: str  # normal, retry, dlq or system
    read_queues: Small
    write_queues: Small
    perm: Annotated[Small, "2 write, 4 read, 6 both"]
    order: bool
    message_type: Annotated[
        str, "the messages that gRPC clients may send: NORMAL, FIFO, DELAY, TRANSACTION, or all by MIXED"
    ]
    messages: int | None  # in all its queues
    in_per_s: float | None  # messages, over the last ten seconds
    out_per_s: float | None
    groups: Small | None  # that read it: in a row those with an offset, in a TopicDetail connected ones, too


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """A queue of a topic, by the offsets that it holds."""

    queue_id: Small
    min_offset: int | None
    max_offset: int | None  # offset of the next message that is stored
    messages: int | None
    earliest_store_ms: Moment | None = None
    last_store_ms: Moment | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """A group that reads a topic."""

    group: str
    lag: int | None  # messages
    clients: Small | None
    invisible: Annotated[
        int | None, "messages of the topic that are invisible to the group, with those that came again"
    ] = None
    invisible_doubt: Annotated[str, "why more messages may be invisible; empty: they are all"] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDetail(Topic):
    """One topic with its queues and readers."""

    attributes: dict[str, str] = field(default_factory=dict)
    is_writable: Annotated[bool, "by its permission"]
    withheld: Annotated[
        str | None, "what restores write permission; null where the name server does not withhold it"
    ] = None
    last_store_ms: Moment | None = None
    popped_by: Annotated[
        str | None, "of a retry topic for popped messages: the group to which they come again"
    ] = None
    popped_from: Annotated[str | None, "and the topic that it popped"] = None
    queues: list[Queue]
    readers: list[Reader]
