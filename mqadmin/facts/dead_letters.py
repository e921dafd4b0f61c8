"""Dead letters of a group, and what sending them again would do."""

from __future__ import annotations

from dataclasses import dataclass

from broker_store.units import Moment

# The group whose committed offset says how far dead letters were taken up.
RESENDER = "CID_RMQ_SYS_DEAD_LETTERS"
NO_RETRY_TOPIC = (
    "no retry topic that takes messages: it comes when a consumer of the group connects. Send them to "
    "their topics meanwhile"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicOfLetters:
    """A topic that dead letters are of."""

    topic: str
    messages: int
    exists: bool
    is_taken: bool  # it takes messages


@dataclass(frozen=True, slots=True, kw_only=True)
class ResendPlan:
    """What sending the dead letters of a group again would do now."""

    group: str
    to: str
    limit: int
    goes_to: str | None  # the one topic they go to; None: each goes to its own
    messages: int  # that it takes up
    left: int  # beyond the limit
    sent_before: int
    left_out_before: int  # by earlier runs, and still there
    topics: list[TopicOfLetters]  # of those that were read
    skipped: int  # of those that were read: without the name of their topic
    without_topic: int  # of those that were read: their topic does not exist or takes no messages
    to_send: int  # of `messages`, without those that are known to be left out
    cannot: str  # why nothing can be sent, "" where it can
    complete: bool  # all were read
    of_limit: int  # how much of the limit they use: a run with this limit sends no others
    oldest_ms: Moment | None
    newest_ms: Moment | None
