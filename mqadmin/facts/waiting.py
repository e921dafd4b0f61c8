"""Messages that the broker holds back: delayed, half, timed and sent-back messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from broker_store.facts.store_facts import Fate
from broker_store.units import Moment, Small
from mqadmin.facts.groups import Dead, Retrying
from mqadmin.facts.pops import Popped

SHOWN_HALVES = 50  # the default number of half messages in a list


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayLevel:
    """The messages of a delay level, in the order in which they become due."""

    level: int
    delay_ms: int
    offset: int  # of the next message to deliver, in the level's queue
    max_offset: int  # of the next message that is stored
    waiting: int
    due_ms: Moment | None  # of the first; None: none waits
    queue_id: Small  # of the topic SCHEDULE_TOPIC_XXXX


@dataclass(frozen=True, slots=True, kw_only=True)
class Delayed:
    """Messages with a delay level. The sums are since the start."""

    waiting: int
    due_ms: Moment | None  # of the first; None: none waits
    levels: list[DelayLevel]  # levels that were ever used
    delivered: int
    dropped: int
    failures: int  # of deliveries, which are tried again


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """Half messages of transactions. The sums are since the start."""

    waiting: int | None  # None: not all op messages are read yet
    half_offset: int  # of the next half message that is checked
    op_offset: int  # of the next op message that is read
    committed: int
    rolled_back: int
    asked: int  # questions to producers
    given_up: int
    failures: int  # of stores, which are tried again
    most_checks: int  # questions about one half message before it is given up


@dataclass(frozen=True, slots=True, kw_only=True)
class DueHour:
    """The number of timed messages that are due within an hour, or put on the wheel again then."""

    hour_ms: Moment  # its beginning
    messages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DueTopic:
    """The number of timed messages that wait for a topic."""

    topic: str
    messages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """Messages with a time of their own. The sums are since the start."""

    enabled: bool
    waiting: int  # on the wheel
    not_enqueued: int  # stored, and not on the wheel yet
    due: int  # their time has come
    overdue_ms: int  # since the oldest of these was due
    late_ms: int  # the longest delay of a delivery in this minute and the one before
    delivered: int
    rolled: int  # put on the wheel again, because their time is farther away than it reaches
    deleted: int
    dropped: int
    failures: int  # of deliveries, which are tried again
    hours: list[DueHour]
    topics: list[DueTopic]  # with the most messages, the largest first


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """The numbers of messages that wait, and when they are due."""

    at_ms: Moment
    delayed: Delayed
    prepared: Prepared
    timed: Timed
    popped: Popped


@dataclass(frozen=True, slots=True, kw_only=True)
class Half:
    """A half message that waits for its commit or rollback."""

    log_offset: int
    queue_offset: int
    message_id: str | None
    born_ms: Moment
    store_ms: Moment
    topic: str | None  # to which it goes when it is committed; None: it names no valid one
    queue_id: Small | None
    checks: int  # how often its producer was asked
    group: str | None  # of its producer


@dataclass(frozen=True, slots=True, kw_only=True)
class Halves:
    """The oldest half messages that wait."""

    items: list[Half]
    complete: bool | None  # False: there are more; None: not known


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryLevel:
    """The messages of a group that were sent back and wait in a delay level."""

    level: int
    delay_ms: int
    count: Small
    due_ms: Moment | None  # of the first


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """The messages that a group sent back and that wait for their next try."""

    levels: list[RetryLevel]  # levels that hold any
    delayed: int  # messages of all levels
    complete: bool  # False: the count ended before the last message that waits


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingOfGroup:
    """The messages that a group sent back, and those that it gave up."""

    delayed: Retries
    retrying: Retrying
    dead: Dead


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageFate(Fate):
    """The fate of a message in a topic of the broker's own, or in a retry or dead letter topic."""

    kind: Literal["delayed", "prepared", "timed", "retry", "popped", "dead"]
    topic: str | None  # the topic to which it goes, or from which it came
    queue_id: int | None = None
    level: int | None = None  # of its delay
    checks: int | None = None  # number of times that its producer was asked
    group: str | None = None
    recalls: str | None = None  # id of the message that it recalls
