"""Records of the revive log: pop checkpoints and acknowledgements (docs/spec/pop.md section 2).

The body of such a record is JSON with short names, as Apache writes it. The tag says what the record is:

    ck     a pop checkpoint: these messages of a queue were given to a group, and are invisible until then
    ack    one message of a pop checkpoint was acknowledged
    bAck   several messages of one were

A body that is longer than MAX_BYTES, or that misses a field, is a FormatError.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple, NoReturn

from broker_store.errors import FormatError
from broker_store.excerpts import text_excerpt

CHECKPOINT_TAG, ACK_TAG, BATCH_ACK_TAG = "ck", "ack", "bAck"
# Messages of one pop checkpoint: its bit map is a Java int.
MAX_MESSAGES = 32
MAX_BYTES = 16_384
REVIVE_PREFIX = "rmq_sys_REVIVE_LOG_"
REVIVE_GROUP = "CID_RMQ_SYS_REVIVE_GROUP"
_LONG = 1 << 63


def revive_topic(cluster: str) -> str:
    """Return the topic with the pop checkpoints and acknowledgements of a cluster's brokers."""
    return REVIVE_PREFIX + cluster


class PopKey(NamedTuple):
    """What a pop checkpoint and its acknowledgements have in common."""

    topic: str  # of the queue that was read: a normal or a retry topic
    group: str
    queue_id: int
    start_offset: int
    pop_ms: int
    broker_name: str


class PopCheckpoint(NamedTuple):
    """Messages of one queue that a group got in one pop.

    `diffs` are their queue offsets minus the start offset, ascending. Bit i of `acked` is set if message i
    was acknowledged before the record was written. `puts` is Apache's count of repeated puts, as text.
    """

    key: PopKey
    invisible_ms: int
    diffs: tuple[int, ...]
    acked: int = 0
    puts: str | None = None

    @property
    def identity(self) -> tuple[PopKey, str | None]:
        """Return what no other pop checkpoint has: Apache stores one again, with another count, for messages
        that it could not bring back."""
        return self.key, self.puts

    @property
    def revive_ms(self) -> int:
        """Return when the messages that are not acknowledged are visible again."""
        return self.key.pop_ms + self.invisible_ms

    def index_of(self, offset: int) -> int | None:
        """Return the place of a queue offset among the messages; None if it is none of them."""
        diff = offset - self.key.start_offset
        return self.diffs.index(diff) if diff in self.diffs else None


class PopAck(NamedTuple):
    """Acknowledged messages of a pop checkpoint, by their queue offsets."""

    key: PopKey
    offsets: tuple[int, ...]


def encode_checkpoint(checkpoint: PopCheckpoint) -> bytes:
    """Return the body of a `ck` record."""
    key = checkpoint.key
    puts = "" if checkpoint.puts is None else f'"rp":{_quoted(checkpoint.puts)},'
    return (
        f'{{"bm":{checkpoint.acked},"bn":{_quoted(key.broker_name)},"c":{_quoted(key.group)}'
        f',"d":[{",".join(map(str, checkpoint.diffs))}],"it":{checkpoint.invisible_ms}'
        f',"n":{len(checkpoint.diffs)},"pt":{key.pop_ms},"q":{key.queue_id}'
        f',"reviveTime":{checkpoint.revive_ms},"ro":0,{puts}"so":{key.start_offset}'
        f',"t":{_quoted(key.topic)}}}'
    ).encode()


def encode_ack(key: PopKey, offset: int) -> bytes:
    """Return the body of an `ack` record."""
    return f'{{"ao":{offset},{_ack_fields(key)}'.encode()


def encode_batch_ack(key: PopKey, offsets: Sequence[int]) -> bytes:
    """Return the body of a `bAck` record."""
    return f'{{"ao":0,"aol":[{",".join(map(str, offsets))}],{_ack_fields(key)}'.encode()


def _ack_fields(key: PopKey) -> str:
    """Return the fields of a key, and the end of the record. By hand, as there is one for each pop."""
    return (
        f'"bn":{_quoted(key.broker_name)},"c":{_quoted(key.group)},"pt":{key.pop_ms},"q":{key.queue_id}'
        f',"so":{key.start_offset},"t":{_quoted(key.topic)}}}'
    )


@lru_cache(4096)
def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def checkpoint_id(key: PopKey) -> str:
    """Return the unique key of a `ck` record."""
    return (
        f"{key.topic}@{key.queue_id}@{key.start_offset}@{key.group}@{key.pop_ms}@{key.broker_name}"
        f"@{CHECKPOINT_TAG}"
    )


def ack_id(key: PopKey, offset: int) -> str:
    """Return the unique key of an `ack` record."""
    return f"{key.topic}@{key.queue_id}@{offset}@{key.group}@{key.pop_ms}@{key.broker_name}@{ACK_TAG}"


def batch_ack_id(key: PopKey, offsets: Sequence[int]) -> str:
    """Return the unique key of a `bAck` record."""
    listed = ", ".join(map(str, offsets))
    return f"{key.topic}@{key.queue_id}@[{listed}]@{key.group}@{key.pop_ms}@{BATCH_ACK_TAG}"


def decode_checkpoint(body: bytes) -> PopCheckpoint:
    """Return the pop checkpoint of a `ck` body. Raises FormatError."""
    value = _loads(body)
    count = _number(value, "n", -128, 127)
    diffs = value.get("d") or []
    if not isinstance(diffs, list) or not all(type(diff) is int and 0 <= diff < 1 << 31 for diff in diffs):
        raise FormatError("d of a pop checkpoint must be a list of integers", found=text_excerpt(diffs))
    if not diffs:  # brokers before 5.1 leave the list out: the messages follow each other
        diffs = list(range(count))
    if not 0 < len(diffs) <= MAX_MESSAGES:
        raise FormatError("messages of a pop checkpoint", expected=f"1 to {MAX_MESSAGES}", found=len(diffs))
    puts = value.get("rp")
    return PopCheckpoint(
        _key(value),
        _number(value, "it", 0, _LONG),
        tuple(diffs),
        _number(value, "bm", -(1 << 31), (1 << 31) - 1) & 0xFFFFFFFF,
        None if puts is None else str(puts)[:20],
    )


def decode_ack(body: bytes) -> PopAck:
    """Return the acknowledgement of an `ack` or `bAck` body. Raises FormatError."""
    value = _loads(body)
    offsets = value.get("aol")
    if offsets is None:
        return PopAck(_key(value), (_number(value, "ao", 0, _LONG),))
    if not isinstance(offsets, list) or not offsets or not all(type(each) is int for each in offsets):
        raise FormatError("aol of an acknowledgement must be a list of integers", found=text_excerpt(offsets))
    return PopAck(_key(value), tuple(offsets))


def decode_record(tag: str | None, body: bytes) -> PopCheckpoint | PopAck:
    """Return what a record of the revive log says. Raises FormatError, also for another tag."""
    if tag == CHECKPOINT_TAG:
        return decode_checkpoint(body)
    if tag in (ACK_TAG, BATCH_ACK_TAG):
        return decode_ack(body)
    raise other_tag(tag)


def other_tag(tag: str | None) -> FormatError:
    """Return the error for a record of the revive log with a tag that none has."""
    return FormatError(
        "tag of a record of the revive log",
        expected=f"{CHECKPOINT_TAG}, {ACK_TAG} or {BATCH_ACK_TAG}",
        found=text_excerpt(tag),
    )


def _key(value: dict[str, object]) -> PopKey:
    return PopKey(
        _text(value, "t"),
        _text(value, "c"),
        _number(value, "q", 0, (1 << 31) - 1),
        _number(value, "so", 0, _LONG),
        _number(value, "pt", 0, _LONG),
        # Brokers before 5.0 leave it out
        _text(value, "bn") if value.get("bn") is not None else "",
    )


def _text(value: dict[str, object], name: str) -> str:
    found = value.get(name)
    if not isinstance(found, str) or not found:
        raise FormatError(f"{name} of a record of the revive log must be a text", found=text_excerpt(found))
    return found


def _number(value: dict[str, object], name: str, low: int, high: int) -> int:
    found = value.get(name)
    if type(found) is not int or not low <= found <= high:
        raise FormatError(
            f"{name} of a record of the revive log must be an integer of {low} to {high}",
            found=text_excerpt(found),
        )
    return found


def _loads(body: bytes) -> dict[str, object]:
    if len(body) > MAX_BYTES:
        raise FormatError(
            "bytes of a record of the revive log", expected=f"at most {MAX_BYTES}", found=len(body)
        )
    try:
        value = json.loads(body, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"a record of the revive log is not readable as JSON: {error!s:.80}") from None
    if not isinstance(value, dict):
        raise FormatError("a record of the revive log must be an object", found=text_excerpt(value))
    return value


def _refuse(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number of JSON")
