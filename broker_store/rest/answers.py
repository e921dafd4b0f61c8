"""What REST answers about messages, as commands and jobs read it and as the contract is made of it.

The routes write messages as JSON in pieces (documents.py), so of those no object is made for a request.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from broker_store.units import Document, Moment, Small

_DOUBT = "why the search by time is uncertain: store times go back, or that is not known"


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A stored message."""

    topic: str
    queue_id: Small
    queue_offset: int
    log_offset: int
    message_id: Annotated[str, "the unique key; the offset id when it has none"]
    offset_message_id: Annotated[str, "broker and place in its log"]
    tag: str | None
    keys: list[str]
    properties: dict[str, str]
    body: str
    body_encoding: Literal["utf-8", "base64"]
    body_compressed: Annotated[bool, "true: body is what is stored, still compressed"]
    body_bytes: Small
    record_bytes: Small
    born_time_ms: Moment
    born_time: str | None
    born_host: str
    store_time_ms: Moment
    store_time: str | None
    store_host: str
    reconsume_times: Small
    flag: Small
    sys_flag: Small


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundMessage(Message):
    """A message that was asked for by its id."""

    damage: Annotated[
        str | None, "how its record is damaged; null when it is as it was stored and agrees with its queue"
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class DamagedRecord:
    """A record to which the index leads, and which is damaged."""

    log_offset: int
    damage: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """`complete` false: more may exist, and `reason` says why. With `complete` it says where store times go
    back."""

    messages: list[Message]
    complete: bool
    reason: str
    damaged: Annotated[
        list[DamagedRecord],
        "by key: damaged records to which the index leads; those that can still be read are among the "
        "messages too",
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """The same, with messages as JSON to be passed on."""

    messages: list[Document]
    complete: bool
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulled:
    """Messages of one queue by offset, as JSON to be passed on."""

    next_offset: int
    messages: list[Document]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueMessages:
    """Messages of one queue by offset, and where it begins and ends."""

    topic: str
    queue_id: Small
    min_offset: int | None
    max_offset: Annotated[int | None, "of the next message that is stored"]
    next_offset: Annotated[int | None, "where the next request goes on"]
    messages: list[Message]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOffset:
    """The first offset of a queue whose message was stored at a time or after it."""

    offset: int
    time_ms: Moment
    time: str | None
    doubt: Annotated[str | None, _DOUBT] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """Where a sent message is stored."""

    status: str
    topic: str
    queue_id: Small
    queue_offset: int
    log_offset: int
    message_id: Annotated[str, "the unique key, which its producer gives a message (Apache's msgId)"]
    offset_message_id: Annotated[str, "broker and place in its log (Apache's offsetMsgId)"]
    store_time_ms: Moment

    def document(self) -> Document:
        """Return the value for the JSON of the answer."""
        return {
            "status": self.status,
            "topic": self.topic,
            "queue_id": self.queue_id,
            "queue_offset": str(self.queue_offset),
            "log_offset": str(self.log_offset),
            "message_id": self.message_id,
            "offset_message_id": self.offset_message_id,
            "store_time_ms": str(self.store_time_ms),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Of a problem document: what is wrong, and what to do."""

    detail: str
    hint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NotStored:
    """A message of a request with several that is not stored."""

    problem: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class SeveralSent:
    """What became of each message of a request with several."""

    results: list[Receipt | NotStored]
    stored: Small
    complete: bool  # all are stored
