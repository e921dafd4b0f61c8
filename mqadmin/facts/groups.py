"""Groups, and one group with its lag in each queue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from broker_store.units import Moment, Small
from mqadmin.facts.pops import PopCounts


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A row of a list of groups."""

    name: str
    kind: str  # normal or system
    consume_enable: bool
    broadcast: bool
    orderly: bool
    retry_queues: Small
    retry_max_times: Small
    clients: Small | None
    model: str | None  # clustering or broadcasting; None: no client is connected
    topics: list[str]
    lag: Annotated[int | None, "messages, with those to be read again; null: the group has no offset"]
    out_per_s: float | None  # messages, over the last ten seconds
    invisible: Annotated[int | None, "messages that the group popped and that are invisible to it"] = None
    invisible_doubt: Annotated[str, "why more messages may be invisible; empty: they are all"] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupQueue:
    """The offset and the lag of a group in a queue."""

    topic: str
    queue_id: Small
    min_offset: int | None
    max_offset: int | None  # offset of the next message that is stored
    consumer_offset: int | None  # offset that the group reads next; None: it has none
    lag: int | None  # messages
    lag_ms: int | None  # since the message at its offset was stored
    last_consumed_ms: Moment | None  # when the message before its offset was stored
    client_id: str | None  # of the client that reads the queue; None: unknown
    invisible: Annotated[int | None, "messages of the queue that are invisible to the group"] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A connected client of a group."""

    client_id: str
    address: str | None
    language: str | None
    version: str | None
    heartbeat_ms: Moment | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """A topic that the connected clients of a group subscribe to."""

    topic: str
    expression: str | None
    clients: Small | None
    expression_type: Annotated[str, "TAG or SQL92"] = "TAG"
    error: Annotated[str, "why the broker gives these clients no message; empty: it does"] = ""
    oddities: Annotated[str, "what its author may not expect of the expression, a sentence a line"] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retrying:
    """The retry topics of a group: sent-back messages whose delay is over, and popped messages that were not
    acknowledged in time."""

    topic: Annotated[str, "of sent-back messages; those of popped messages have its name and a topic's"]
    topics: Annotated[list[str], "the retry topics that hold the messages"]
    messages: Annotated[int | None, "in all retry topics of the group"]
    lag: Annotated[
        int | None,
        "messages that the group has not read again yet; where it has no offset, all messages",
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How long clients of the gRPC port wait before a retry. Clients of the broker port wait by delay
    levels."""

    kind: Literal["CUSTOMIZED", "EXPONENTIAL"]
    steps_ms: Annotated[list[int], "of CUSTOMIZED: the wait before each retry; the last one for all further"]
    initial_ms: Annotated[int | None, "of EXPONENTIAL: the first wait"] = None
    multiplier: Annotated[int | None, "of EXPONENTIAL: each wait is so many times the one before"] = None
    max_ms: Annotated[int | None, "of EXPONENTIAL: the longest wait"] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Dead:
    """The dead letter topic of a group."""

    topic: str
    messages: int | None
    last_store_ms: Moment | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDetail(Group):
    """One group with its queues and clients."""

    lag_ms: int | None = None  # the largest of a queue
    largest_lag: Annotated[int | None, "of a queue, in messages"] = None
    queues_not_read: Annotated[Small, "queues without an offset: the lag does not count their messages"] = 0
    queues: list[GroupQueue]
    retrying: Retrying
    retry_policy: RetryPolicy
    dead: Dead
    pops: PopCounts | None = None
    members: list[Member]
    subscriptions: list[Subscription]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetMove:
    """The move of one queue by a reset of offsets."""

    queue_id: Small
    before: int | None  # the group's offset before; None: it had none
    after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetMoves:
    """The moves that a reset of offsets makes, or would make, in the queues of a topic."""

    group: str
    topic: str
    dry_run: bool
    time_ms: Annotated[Moment | None, "for to=time: the moment as it was read"] = None
    time: str | None = None  # the same as ISO 8601
    doubt: Annotated[
        str | None,
        "why the search by time is uncertain: store times go back, or it is unknown whether they do",
    ] = None
    moves: list[OffsetMove]
