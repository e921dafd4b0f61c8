"""Results of searches for messages."""

from __future__ import annotations

from dataclasses import dataclass, field

from broker_store.formats.record import StoredMessage
from broker_store.formats.traces import TraceEvent
from broker_store.messages import DamagedRecord

SCAN_BUDGET_BYTES = 64 << 20  # the most bytes that one search by time reads


@dataclass(frozen=True, slots=True)
class Found:
    """Messages of a search. `complete` False: more may exist, and `reason` states why; with `complete` True
    `reason` states what is unusual.

    `damaged` are records to which the index leads: each may be a message that was searched for, and is among
    the messages where its topic and keys can still be read.
    """

    messages: list[StoredMessage] = field(default_factory=list)
    complete: bool = True
    reason: str = ""
    next_offset: int | None = None
    min_offset: int | None = None
    max_offset: int | None = None
    damaged: tuple[DamagedRecord, ...] = ()


@dataclass(frozen=True, slots=True)
class Traces:
    """The traces that clients wrote about a message, and the topic that holds them."""

    topic: str
    events: list[TraceEvent] = field(default_factory=list)
    complete: bool = True
    reason: str = ""
