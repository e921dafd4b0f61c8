"""Messages as pages show them: rows of a search, and one message with its bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from broker_store.facts.body_view import SHOWN_KEYS, SHOWN_PROPERTIES, BodyView, preview_of, view_of
from broker_store.facts.bytes.record import record_bytes
from broker_store.formats.message_id import host_text
from broker_store.formats.record import StoredMessage
from broker_store.sql92.property_filter import PropertyFilter, filter_of
from broker_store.units import fields_of
from mqadmin.views.store.bytes.facts import SHOWN_BYTES, ShownBytes, shown_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageRow:
    """A message in a list."""

    message: StoredMessage
    preview: str  # of its body
    keys: str  # the first SHOWN_KEYS
    body_bytes: int  # as stored


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbours:
    """Addresses of other ranges of a queue."""

    before: str | None
    after: str | None
    oldest: str
    newest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Hosts:
    """The host from which a message came, and the host that stored it."""

    born: str
    store: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownMessage(ShownBytes):
    """One message with the bytes of its record."""

    message: StoredMessage
    hosts: Hosts
    keys: Sequence[str]  # the first SHOWN_KEYS
    keys_left_out: int
    properties: list[tuple[str, str]]  # the first SHOWN_PROPERTIES
    properties_count: int
    raw_bytes: int  # of the record
    record_end: int  # position in the log
    body_bytes: int  # as stored
    body: BodyView
    flat: bool = True  # the bytes are no links here; in the byte viewer they are


def passing_of(text: str | None) -> PropertyFilter | None:
    """Return the filter of a SQL92 expression that was asked for, None without one. Raises
    ExpressionError."""
    return filter_of(text) if text else None


def row_of(message: StoredMessage) -> MessageRow:
    """Return a message as a row of a list."""
    return MessageRow(
        message=message,
        preview=preview_of(message),
        keys=" ".join(message.keys[:SHOWN_KEYS]),
        body_bytes=len(message.body),
    )


def shown_message(stored: StoredMessage, raw: bytes) -> ShownMessage:
    """Return the data of a message and its record for a page. In a thread: a message may be large."""
    properties = sorted(stored.properties.items())
    return ShownMessage(
        **fields_of(shown_bytes(record_bytes(raw, stored.log_offset, SHOWN_BYTES))),
        message=stored,
        hosts=Hosts(born=host_text(stored.born_host), store=host_text(stored.store_host)),
        keys=stored.keys[:SHOWN_KEYS],
        keys_left_out=max(0, len(stored.keys) - SHOWN_KEYS),
        properties=properties[:SHOWN_PROPERTIES],
        properties_count=len(properties),
        raw_bytes=len(raw),
        record_end=stored.log_offset + len(raw),
        body_bytes=len(stored.body),
        body=view_of(stored),
    )
