"""Stored messages as JSON values, for the REST routes, hot or not.

64-bit numbers are strings: a JavaScript client would round them. A body is text when it is UTF-8, else base64, and
`body_encoding` says which. Compressed bodies are inflated when they are zlib's and stay small (clients compress by
themselves from 4 KiB on); what does not, or would burst a bound, is given as it is stored, with `body_compressed`
true. Bounds as in RELIABILITY S10: a small compressed body must not become a large answer.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime

import orjson

from broker_store.formats.compression import MAX_INFLATED_BYTES, MAX_INFLATION, inflate
from broker_store.formats.message_id import host_text
from broker_store.formats.record import StoredMessage

MAX_INFLATED_PER_ANSWER = 4 << 20
MAX_AT_ONCE_BYTES = 64 << 10  # of messages that become JSON on the loop: 1.3 ms when each character is written as six
PIECE_CHARACTERS = 16 << 10  # of a text that becomes JSON in one call, which lets no other thread work meanwhile


def time_text(time_ms: int | None) -> str | None:
    """RFC 3339 in UTC; None for an unknown time and for one that no calendar has."""
    if time_ms is None or not 0 < time_ms < 253_402_300_800_000:
        return None
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def body_fields(body: bytes) -> dict:
    """`body` and `body_encoding` of these bytes."""
    try:
        return {"body": body.decode(), "body_encoding": "utf-8"}
    except UnicodeDecodeError:
        return {"body": base64.b64encode(body).decode(), "body_encoding": "base64"}


def message_document(message: StoredMessage, inflate_limit: int = MAX_INFLATED_BYTES) -> dict:
    """All that a record says. A message without a unique key, which only foreign producers make, goes by its offset id."""
    inflated = inflate(message.body, message.sys_flag, inflate_limit)
    return {
        "topic": message.topic,
        "queue_id": message.queue_id,
        "queue_offset": str(message.queue_offset),
        "log_offset": str(message.log_offset),
        "message_id": message.message_id,
        "offset_message_id": message.offset_id,
        "tag": message.tags,
        "keys": list(message.keys),
        "properties": message.properties,
        **body_fields(message.body if inflated is None else inflated),
        "body_compressed": inflated is None,
        "body_bytes": len(message.body),
        "record_bytes": message.size,
        "born_time_ms": str(message.born_timestamp),
        "born_time": time_text(message.born_timestamp),
        "born_host": host_text(message.born_host),
        "store_time_ms": str(message.store_timestamp),
        "store_time": time_text(message.store_timestamp),
        "store_host": host_text(message.store_host),
        "reconsume_times": message.reconsume_times,
        "flag": message.flag,
        "sys_flag": message.sys_flag,
    }


def message_documents(messages: Iterable[StoredMessage]) -> Iterator[dict]:
    """Several messages, with one bound on all that is inflated for them; made as they are asked for."""
    left = MAX_INFLATED_PER_ANSWER
    for message in messages:
        document = message_document(message, min(left, MAX_INFLATED_BYTES))
        if message.is_compressed and not document["body_compressed"]:
            left -= len(document["body"])
        yield document


async def encoded(messages: Sequence[StoredMessage]) -> list[orjson.Fragment]:
    """Several messages as JSON, ready to be put into an answer. Large ones are made in a thread, in short pieces: 4 MiB of
    quotes and control characters take 80 ms in one call, and sends wait for the loop."""
    if sum(_weight(message) for message in messages) <= MAX_AT_ONCE_BYTES:
        return _encode(messages)
    return await asyncio.to_thread(_encode, messages)


def _weight(message: StoredMessage) -> int:
    return message.size + (min(MAX_INFLATED_BYTES, len(message.body) * MAX_INFLATION) if message.is_compressed else 0)


def _encode(messages: Iterable[StoredMessage]) -> list[orjson.Fragment]:
    return [orjson.Fragment(orjson.dumps(document | {"body": _text(document["body"])})) for document in message_documents(messages)]


def _text(text: str) -> str | orjson.Fragment:
    if len(text) <= PIECE_CHARACTERS:
        return text
    pieces = (orjson.dumps(text[at : at + PIECE_CHARACTERS])[1:-1] for at in range(0, len(text), PIECE_CHARACTERS))
    return orjson.Fragment(b'"' + b"".join(pieces) + b'"')
