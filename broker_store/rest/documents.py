"""Stored messages as JSON, for all REST routes.

64-bit numbers are strings, because JavaScript would round them. A body is text if it is UTF-8, else base64;
`body_encoding` has which. A compressed body is inflated if it is zlib's and stays within a bound (clients
compress bodies from 4 KiB on). Otherwise it is given as it is stored, with `body_compressed` true. The bounds
(docs/durability.md S10) keep a small compressed body from becoming a large answer.
"""

from __future__ import annotations

import asyncio
import base64
import codecs
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime

import orjson

from broker_store.formats.compression import MAX_INFLATED_BYTES, MAX_INFLATION, inflate
from broker_store.formats.message_id import host_text
from broker_store.formats.record import StoredMessage

MAX_INFLATED_PER_ANSWER = 4 << 20
# Of messages that become JSON on the loop: 1.3 ms when each character is written as six
MAX_BYTES_PER_CALL = 64 << 10
# Of a body that becomes JSON in one call, which lets no other thread work; a multiple of 3 for base64
PIECE_BYTES = 15 << 10
JOINED_BYTES = 256 << 10  # small pieces of an answer are joined up to this size


def time_text(time_ms: int | None) -> str | None:
    """Return a time in UTC as RFC 3339; None for an unknown time, and for one beyond the calendar."""
    if time_ms is None or not 0 < time_ms < 253_402_300_800_000:
        return None
    return (
        datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    )


def body_fields(body: bytes) -> dict:
    """Return `body` and `body_encoding` of these bytes."""
    try:
        return {"body": body.decode(), "body_encoding": "utf-8"}
    except UnicodeDecodeError:
        return {"body": base64.b64encode(body).decode(), "body_encoding": "base64"}


def message_document(message: StoredMessage, inflate_limit: int = MAX_INFLATED_BYTES) -> dict:
    """Return all fields of a record. A message without a unique key, which only foreign producers make, goes
    by its offset id."""
    inflated = inflate(message.body, message.sys_flag, inflate_limit)
    body = body_fields(message.body if inflated is None else inflated)
    return _fields_before_body(message) | body | _fields_after_body(message, inflated is None)


def _fields_before_body(message: StoredMessage) -> dict:
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
    }


def _fields_after_body(message: StoredMessage, is_compressed: bool) -> dict:
    return {
        "body_compressed": is_compressed,
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


async def message_json(message: StoredMessage, facts: dict) -> list[bytes]:
    """Return a JSON object of `facts` and of a message, in pieces."""

    def pieces() -> Iterator[bytes]:
        of_message = _pieces_of([message])
        yield orjson.dumps(facts)[:-1] + b"," + next(of_message)[1:]
        yield from of_message

    return await _made([message], pieces)


async def messages_json(facts: dict, messages: Sequence[StoredMessage]) -> list[bytes]:
    """Return a JSON object of `facts` and `messages`, in pieces. One bound applies to all inflated bodies
    together."""

    def pieces() -> Iterator[bytes]:
        yield (orjson.dumps(facts)[:-1] + b"," if facts else b"{") + b'"messages":['
        yield from _pieces_of(messages)
        yield b"]}"

    return await _made(messages, pieces)


async def _made(messages: Sequence[StoredMessage], pieces: Callable[[], Iterator[bytes]]) -> list[bytes]:
    """Small pieces joined. They are made in a thread when the messages are large."""
    if sum(_weight(message) for message in messages) <= MAX_BYTES_PER_CALL:
        return _joined(pieces())
    return await asyncio.to_thread(lambda: _joined(pieces()))


def _weight(message: StoredMessage) -> int:
    return message.size + (
        min(MAX_INFLATED_BYTES, len(message.body) * MAX_INFLATION) if message.is_compressed else 0
    )


def _joined(pieces: Iterator[bytes]) -> list[bytes]:
    found: list[bytes] = []
    open_pieces: list[bytes] = []
    size = 0
    for piece in pieces:
        if size + len(piece) > JOINED_BYTES and open_pieces:
            found.append(b"".join(open_pieces))
            open_pieces, size = [], 0
        open_pieces.append(piece)
        size += len(piece)
    return [*found, b"".join(open_pieces)]


def _pieces_of(messages: Sequence[StoredMessage]) -> Iterator[bytes]:
    """The pieces of these messages with commas between."""
    left = MAX_INFLATED_PER_ANSWER
    for at, message in enumerate(messages):
        inflated = inflate(message.body, message.sys_flag, min(left, MAX_INFLATED_BYTES))
        if message.is_compressed and inflated is not None:
            left -= len(inflated)
        texts, encoding = _texts_of(message.body if inflated is None else inflated)
        yield b"," * (at > 0) + orjson.dumps(_fields_before_body(message))[:-1] + b',"body":"'
        for text in texts:
            yield orjson.dumps(text)[1:-1]
        yield (
            b'","body_encoding":"%s",' % encoding.encode()
            + orjson.dumps(_fields_after_body(message, inflated is None))[1:]
        )


def _texts_of(body: bytes) -> tuple[list[str], str]:
    """A body as text in pieces, and its encoding. No call into compiled code handles more than PIECE_BYTES of
    it."""
    decoder, texts = codecs.getincrementaldecoder("utf-8")(), []
    try:
        for at in range(0, len(body), PIECE_BYTES):
            texts.append(decoder.decode(body[at : at + PIECE_BYTES], at + PIECE_BYTES >= len(body)))
    except UnicodeDecodeError:
        return [
            base64.b64encode(body[at : at + PIECE_BYTES]).decode() for at in range(0, len(body), PIECE_BYTES)
        ], "base64"
    return texts, "utf-8"
