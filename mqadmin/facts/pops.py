"""Popped messages: those that are invisible now, what became of the others, and the state of the revive log
(docs/spec/pop.md)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from broker_store.units import Moment, Small

SHOWN_MESSAGES = 20  # invisible messages on the page of a group


@dataclass(frozen=True, slots=True, kw_only=True)
class PopCounts:
    """Popped messages of a group. All but `invisible` and `waiting_pops` are counted since the start."""

    invisible: Annotated[int, "messages that are invisible to the group now"]
    popped: Annotated[int, "messages that its pops were given"]
    acknowledged: int
    changed: Annotated[int, "messages that were given another invisible time"]
    came_again: Annotated[
        int,
        "messages that were not acknowledged in time: stored in a retry topic, or given again in order",
    ]
    dropped: Annotated[int, "messages that do not come again: they are gone, or their topic is"]
    without_effect: Annotated[
        int, "acknowledgements of messages that were not invisible any more: too late, or a second time"
    ]
    waiting_pops: Annotated[Small, "requests that wait for a message"]
    complete: Annotated[bool, "false: more messages may be invisible, and `reason` states why"]
    reason: str
    refused: Annotated[str, "why this broker refuses pops; empty: it does not"]

    @property
    def is_used(self) -> bool:
        """True if there is anything to show."""
        return bool(self.invisible or self.popped or self.waiting_pops)


@dataclass(frozen=True, slots=True, kw_only=True)
class InvisibleMessage:
    """A message that was popped and is invisible to the group."""

    topic: Annotated[str, "where it lies: its topic, or a retry topic if it came again"]
    of_topic: Annotated[str, "the topic that was popped"]
    queue_id: Small
    offset: int  # in the queue
    log_offset: Annotated[int | None, "its place in the log; null: it could not be read"]
    message_id: str | None
    popped_ms: Moment
    visible_ms: Annotated[Moment, "when it comes again unless it is acknowledged"]
    given_out: Annotated[int | None, "how often it was given to the group, this time included"]
    client: Annotated[str | None, "the id of the client that popped it, or its address; null: unknown"]
    revive_queue: Annotated[
        Small | None, "the queue of the revive log with its pop checkpoint; null: it was popped in order"
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class InvisibleMessages:
    """Messages that are invisible to a group. Those that come again first are at the beginning."""

    at_ms: Moment
    counts: PopCounts
    messages: list[InvisibleMessage]
    next: Annotated[str | None, "where the list goes on, for `after`; null at its end"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviveQueue:
    """A queue of the revive log, and how far it is read."""

    queue_id: Small
    finished_offset: Annotated[int | None, "of the last record that is finished; null: none is"]
    read_offset: Annotated[int, "of the next record that is read"]
    max_offset: Annotated[int, "of the next record that is stored"]
    lag: Annotated[int, "records that are not read yet"]
    checkpoints: Annotated[int, "pop checkpoints that were read and are not finished"]
    due_ms: Annotated[Moment | None, "when messages of the first of these are visible again"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Popped:
    """Popped messages of all groups, and the reader of the revive log. The sums are since the start."""

    refused: Annotated[str, "why this broker refuses pops; empty: it does not"]
    invisible: Annotated[int, "messages that are invisible, without those popped in order"]
    invisible_doubt: Annotated[str, "why more messages may be invisible; empty: they are all"] = ""
    queues_in_order: Annotated[int, "queues with messages that were popped in order, counted for each group"]
    waiting_pops: Small  # requests that wait for a message
    most_waiting_pops: Annotated[int, "the largest number of these (maxPopPollingSize)"]
    topic: Annotated[str, "the revive log"]
    on_wheel: Annotated[int, "records of the revive log on the timer wheel: their delivery time is to come"]
    queues: list[ReviveQueue]
    acknowledged: int
    came_again: int
    dropped: int
    invalid: Annotated[int, "records that could not be read, and were skipped"]
    failures: Annotated[int, "failed attempts to bring messages back, which are tried again"]
