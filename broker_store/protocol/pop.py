"""Texts and bodies of pop requests: receipts, offsets in answers, batches of acknowledgements
(docs/spec/pop.md section 3).

    receipt (POP_CK)   `0 1795244468000 60000 0 0 broker-a 1 0`   8 words joined by blanks
    startOffsetInfo    `0 1 0;0 2 5`        kind of topic, queue id, start offset; one for each queue
    msgOffsetInfo      `0 1 0;0 2 5,7`      kind of topic, queue id, offsets of the messages
    orderCountInfo     `0 qo2%7 1;0 2 0`    kind of topic, message or queue, how often it was given before
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from broker_store.errors import FieldError
from broker_store.excerpts import excerpt
from broker_store.formats.names import is_path, pop_retry_topic
from broker_store.formats.pop_records import MAX_MESSAGES
from broker_store.protocol import fastjson
from broker_store.protocol.headers import read_int, read_long

# Which topic a message was popped from.
NORMAL, RETRY_V1, RETRY_V2 = 0, 1, 2
# The revive queue in the receipts of messages that were popped in order: these have no record there.
ORDER_REVIVE_QUEUE = 999
MAX_RECEIPT = 512
MAX_BATCH_ACKS = 4096
_MAX_BIT_SET_BYTES = 8192
_MAX_PARTS = 4096  # of a text about queues and messages of an answer


class Receipt(NamedTuple):
    """What a client returns to acknowledge a message. `offset` is the message's; older clients leave it
    out."""

    start_offset: int
    pop_ms: int
    invisible_ms: int
    revive_queue: int
    kind: int
    broker_name: str
    queue_id: int
    offset: int | None = None

    @property
    def is_order(self) -> bool:
        """Return whether the message was popped in order."""
        return self.revive_queue == ORDER_REVIVE_QUEUE


class QueueOffsets(NamedTuple):
    """Messages that a pop found in one queue."""

    kind: int
    queue_id: int
    start_offset: int
    offsets: Sequence[int]


class BatchAck(NamedTuple):
    """Acknowledgements of messages of one pop checkpoint, in the body of a BATCH_ACK_MESSAGE.

    `topic` is the topic that was popped; the messages are in its retry topic if `kind` says so.
    """

    topic: str
    group: str
    kind: int
    start_offset: int
    queue_id: int
    revive_queue: int
    pop_ms: int
    invisible_ms: int
    diffs: tuple[int, ...]  # offsets of the messages, minus the start offset


def write_receipt(receipt: Receipt) -> str:
    """Return the text of a receipt."""
    return " ".join([str(word) for word in receipt if word is not None])


def read_receipt(text: str) -> Receipt:
    """Return a receipt. Words after the eighth are ignored, as by Apache's broker: its proxy adds the log
    offset. Raises FieldError."""
    if len(text) > MAX_RECEIPT:
        raise FieldError("extraInfo", text, f"a receipt of at most {MAX_RECEIPT} characters")
    words = text.split(" ")
    offset = _natural("extraInfo", words[7]) if len(words) > 7 else None
    return Receipt(*_words_of_pop(" ".join(words[:7])), offset)


@lru_cache(4096)
def _words_of_pop(text: str) -> tuple[int, int, int, int, int, str, int]:
    """Return the first seven words of a receipt, which all messages of a pop and a queue share. Raises
    FieldError."""
    words = text.split(" ")
    if len(words) < 7 or not words[5]:
        raise FieldError("extraInfo", text, "a receipt of 7 words or more")
    return (
        _natural("extraInfo", words[0]),
        _natural("extraInfo", words[1]),
        _natural("extraInfo", words[2]),
        read_int("extraInfo", words[3]),
        _kind(words[4]),
        words[5],
        read_int("extraInfo", words[6]),
    )


def _natural(name: str, text: str) -> int:
    number = read_long(name, text)
    if number < 0:
        raise FieldError(name, text, "no negative number")
    return number


def _kind(text: str) -> int:
    if text not in ("0", "1", "2"):
        raise FieldError("extraInfo", text, "0, 1 or 2 as the kind of topic")
    return int(text)


def start_offset_info(queues: Sequence[QueueOffsets]) -> str:
    """Return startOffsetInfo of an answer."""
    return ";".join([f"{each.kind} {each.queue_id} {each.start_offset}" for each in queues])


def message_offset_info(queues: Sequence[QueueOffsets]) -> str:
    """Return msgOffsetInfo of an answer."""
    return ";".join([f"{each.kind} {each.queue_id} {','.join(map(str, each.offsets))}" for each in queues])


def order_count_info(queue: QueueOffsets, counts: Mapping[int, int]) -> str:
    """Return the part of orderCountInfo for one queue: how often each message was given before, and the
    least of these numbers."""
    words = [f"{queue.kind} qo{queue.queue_id}%{offset} {count}" for offset, count in counts.items()]
    least = min(counts.values(), default=0) if len(counts) == len(queue.offsets) else 0
    return ";".join([*words, f"{queue.kind} {queue.queue_id} {least}"])


def read_start_offsets(text: str) -> dict[tuple[int, int], int]:
    """Return (kind, queue id) -> start offset of a startOffsetInfo. Raises FieldError."""
    found = {}
    for words in _parts_of("startOffsetInfo", text, 3):
        key = _kind(words[0]), read_int("startOffsetInfo", words[1])
        found[key] = _natural("startOffsetInfo", words[2])
    return found


def read_order_counts(text: str) -> dict[tuple[int, int], int]:
    """Return (queue id, offset) -> how often the message was given before, of an orderCountInfo. Raises
    FieldError."""
    name, found = "orderCountInfo", {}
    for words in _parts_of(name, text, 3):
        if words[1].startswith("qo"):  # else it is the count of the queue, the least of its messages
            queue_id, _, offset = words[1][2:].partition("%")
            found[read_int(name, queue_id), _natural(name, offset)] = read_int(name, words[2])
    return found


def _parts_of(name: str, text: str, count: int) -> list[list[str]]:
    """Return the words of each part of a text joined by `;`. Raises FieldError."""
    parts = [part.split(" ") for part in text.split(";")] if text else []
    if len(parts) > _MAX_PARTS or any(len(words) != count for words in parts):
        raise FieldError(name, excerpt(text), f"at most {_MAX_PARTS} parts of {count} words")
    return parts


def topic_of(topic: str, group: str, kind: int) -> str:
    """Return the topic that holds messages of `kind` that a group popped from `topic`."""
    return topic if kind == NORMAL else pop_retry_topic(topic, group, version=kind)


def read_batch_ack(body: bytes) -> tuple[str | None, list[BatchAck]]:
    """Return the name of the broker that a BATCH_ACK_MESSAGE is for, None without one, and its
    acknowledgements. Raises FieldError."""
    value = fastjson.loads(body)
    acks, name = (value.get("acks"), value.get("brokerName")) if isinstance(value, dict) else (None, None)
    if not isinstance(acks, list) or len(acks) > MAX_BATCH_ACKS:
        raise FieldError("body", excerpt(acks), f"a list of at most {MAX_BATCH_ACKS} acks")
    return None if name is None else str(name), [_batch_ack(ack) for ack in acks]


def _batch_ack(value: object) -> BatchAck:
    if not isinstance(value, dict):
        raise FieldError("acks", excerpt(value), "objects")
    topic, group = value.get("t"), value.get("c")
    for name, text in (("t", topic), ("c", group)):
        if not isinstance(text, str) or not text or is_path(text):
            raise FieldError(name, excerpt(text), "a name, which is no path")
    start_offset, queue_id, revive_queue, pop_ms, invisible_ms = [
        _whole(name, value.get(name)) for name in ("so", "q", "rq", "pt", "it")
    ]
    return BatchAck(
        str(topic),
        str(group),
        _kind(str(value.get("r", "0"))),
        start_offset,
        queue_id,
        revive_queue,
        pop_ms,
        invisible_ms,
        _bits(value.get("b")),
    )


def _whole(name: str, value: object) -> int:
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise FieldError(name, excerpt(value), "an integer of 0 to 2^63 - 1")
    return value


def _bits(value: object) -> tuple[int, ...]:
    """Return the numbers of a Java BitSet, in base64 of its bytes."""
    if not isinstance(value, str) or len(value) > 2 * _MAX_BIT_SET_BYTES:
        raise FieldError("b", excerpt(value), "the base64 of a bit set")
    try:
        raw = base64.b64decode(value, validate=True)
    except (ValueError, binascii.Error):
        raise FieldError("b", excerpt(value), "the base64 of a bit set") from None
    found = tuple(8 * at + bit for at, byte in enumerate(raw) if byte for bit in range(8) if byte >> bit & 1)
    if len(found) > MAX_MESSAGES:
        raise FieldError("b", len(found), f"at most {MAX_MESSAGES} messages")
    return found
