"""Dead letters of a group, and the plan of sending them again."""

from __future__ import annotations

from dataclasses import dataclass

from broker_store.units import Moment

# The group whose committed offsets are the ends of the dead letters that were taken up.
RESENDER = "CID_RMQ_SYS_DEAD_LETTERS"
NO_RETRY_TOPIC = (
    "no writable retry topic: it is created when a consumer of the group connects. Send the letters to "
    "their topics instead"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicOfLetters:
    """A topic from which dead letters come."""

    topic: str
    messages: int
    exists: bool
    is_taken: bool  # True if it is writable
    # True if the group has an offset in it. A letter of another topic is not sent to it: a producer may write
    # any name, and the send has the rights of the broker's own jobs
    is_read: bool

    @property
    def may_be_sent_to(self) -> bool:
        """True if letters are sent to it that name it."""
        return self.is_taken and self.is_read


@dataclass(frozen=True, slots=True, kw_only=True)
class ResendPlan:
    """The result that sending the dead letters of a group again would have now."""

    group: str
    to: str
    limit: int
    goes_to: str | None  # the topic to which all are sent; None: each is sent to its own
    messages: int  # letters that the run takes up
    left: int  # letters beyond the limit
    sent_before: int
    left_out_before: int  # by earlier runs, and still there
    topics: list[TopicOfLetters]  # of those that were read
    skipped: int  # of those that were read: without the name of their topic
    without_topic: int  # of those that were read: none is sent to their topic
    to_send: int  # of `messages`, without those that are known to be left out
    cannot: str  # why nothing can be sent, "" if it can
    complete: bool  # all were read
    of_limit: int  # how much of the limit they use: a run with this limit sends no others
    oldest_ms: Moment | None
    newest_ms: Moment | None
