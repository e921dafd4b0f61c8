"""The properties string of a message: `name \\x01 value \\x02`, repeated (docs/spec/store-format.md section
2.3).

The order carries no meaning. Apache writes a \\x02 after every pair; some old clients leave out the last
one, so it is never relied upon. Reading is as lenient as Apache's: what is no pair is dropped, of two equal
names the last wins. Text is UTF-8; bytes that are not come out as replacement characters, as they do from
Apache's decoder.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

from broker_store.errors import FormatError
from broker_store.excerpts import excerpt
from broker_store.formats.java_hash import java_text

NAME_VALUE_SEPARATOR = "\x01"
PAIR_SEPARATOR = "\x02"
MAX_BYTES = 32767  # the length is a signed short

KEYS = "KEYS"
TAGS = "TAGS"
WAIT = "WAIT"
DELAY = "DELAY"
RETRY_TOPIC = "RETRY_TOPIC"
REAL_TOPIC = "REAL_TOPIC"
REAL_QUEUE_ID = "REAL_QID"
PRODUCER_GROUP = "PGROUP"
TRANSACTION_PREPARED = "TRAN_MSG"
UNIQUE_KEY = "UNIQ_KEY"
LIGHT_QUEUES = "INNER_MULTI_DISPATCH"  # names of light queues that the message is in too, with commas
LIGHT_QUEUE_OFFSETS = "INNER_MULTI_QUEUE_OFFSET"
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
RECONSUME_TIME = "RECONSUME_TIME"
MAX_RECONSUME_TIMES = "MAX_RECONSUME_TIMES"
MESSAGE_REGION = "MSG_REGION"
TRACE_ON = "TRACE_ON"
CLUSTER = "CLUSTER"
INNER_NUM = "INNER_NUM"
POP_CHECKPOINT = "POP_CK"
FIRST_POP_TIME = "1ST_POP_TIME"
MIN_OFFSET = "MIN_OFFSET"
MAX_OFFSET = "MAX_OFFSET"
DLQ_ORIGIN_TOPIC = "DLQ_ORIGIN_TOPIC"
DLQ_ORIGIN_MESSAGE_ID = "DLQ_ORIGIN_MESSAGE_ID"
TIMER_DELAY_SECONDS = "TIMER_DELAY_SEC"
TIMER_DELAY_MS = "TIMER_DELAY_MS"
TIMER_DELIVER_MS = "TIMER_DELIVER_MS"
# What a producer may ask for; the first that is there counts
TIMER_ASKING = (TIMER_DELAY_SECONDS, TIMER_DELAY_MS, TIMER_DELIVER_MS)
TIMER_OUT_MS = "TIMER_OUT_MS"
TIMER_ENQUEUE_MS = "TIMER_ENQUEUE_MS"
TIMER_DEQUEUE_MS = "TIMER_DEQUEUE_MS"
TIMER_ROLL_TIMES = "TIMER_ROLL_TIMES"
TIMER_DELETE_KEY = "TIMER_DEL_UNIQKEY"
# System properties of gRPC
BORN_HOST = "__BORNHOST"
BORN_TIMESTAMP = "BORN_TIMESTAMP"
TRACE_CONTEXT = "TRACE_CONTEXT"
SHARDING_KEY = "__SHARDINGKEY"
PRIORITY = "_SYS_MSG_PRIORITY_"
LITE_TOPIC = "__LITE_TOPIC"
KEY_SEPARATOR = " "


def encode(pairs: Mapping[str, str | None]) -> bytes:
    """The stored form of `pairs`; a value of None is left out, as Apache does.

    FormatError for an empty name or value (which no reader would give back) and for a separator within one.
    """
    given = [(name, value) for name, value in pairs.items() if value is not None]
    text = "".join([f"{name}\x01{value}\x02" for name, value in given])
    is_plain = text.count("\x01") == text.count("\x02") == len(given)
    if not is_plain or "\x01\x02" in text or "\x02\x01" in text or text[:1] == "\x01":
        text = "".join([_pair(name, value) for name, value in given])  # raises for the pair that cannot be
    return text.encode("utf-8", "replace")


def _pair(name: str, value: str) -> str:
    if not name or not value:
        raise FormatError(
            f"property {excerpt(name)} needs a name and a value, each of at least one character"
        )
    for separator in (NAME_VALUE_SEPARATOR, PAIR_SEPARATOR):
        if separator in name or separator in value:
            raise FormatError(f"property {excerpt(name)} holds the separator {separator!r}")
    return f"{name}{NAME_VALUE_SEPARATOR}{value}{PAIR_SEPARATOR}"


def decode(encoded: bytes | str) -> dict[str, str]:
    """The pairs of a stored string; a piece that is no pair is dropped."""
    text = encoded if isinstance(encoded, str) else java_text(bytes(encoded))
    pairs = {}
    for piece in text.split(PAIR_SEPARATOR):
        name, separator, value = piece.partition(NAME_VALUE_SEPARATOR)
        if name and value:
            pairs[name] = value
    return pairs


def get(encoded: bytes, name: str) -> str | None:
    """The value of one property without reading the others; None when it is absent."""
    wanted = name.encode() + b"\x01"
    at = len(encoded)
    while (at := encoded.rfind(wanted, 0, at)) >= 0:
        if not at or encoded[at - 1] == 2:
            begin = at + len(wanted)
            end = encoded.find(b"\x02", begin)
            if value := encoded[begin : None if end < 0 else end]:
                return java_text(value)
    return None


def get_some(encoded: bytes, names: re.Pattern[bytes]) -> dict[str, str]:
    """Return the properties that a pattern of `any_of` finds, by name."""
    return {name.decode(): java_text(value) for name, value in names.findall(b"\x02" + encoded)}


def any_of(names: Iterable[str]) -> re.Pattern[bytes]:
    """Return a pattern of these names for `get_some`."""
    return re.compile(b"\x02(" + b"|".join([re.escape(name.encode()) for name in names]) + b")\x01([^\x02]+)")


def append(encoded: bytes, more: bytes) -> bytes:
    """Return `more` after `encoded`, with a \\x02 between them when the first does not end with one
    (docs/spec/store-format.md section 2.6)."""
    if encoded and more and not encoded.endswith(b"\x02"):
        return encoded + b"\x02" + more
    return encoded + more


@lru_cache(maxsize=64)
def _parts_to_remove(names: tuple[str, ...]) -> re.Pattern[bytes]:
    """Return a pattern that finds a property of one of these names, or an empty piece."""
    return re.compile(
        b"\x02(?:\x02|(?:" + b"|".join([re.escape(name.encode()) for name in names]) + b")[\x01\x02])"
    )


def set_values(encoded: bytes, changes: Mapping[str, str | None]) -> bytes:
    """Return `encoded` with the properties in `changes` set, or removed if the value is None. The others keep
    their bytes and places."""
    encoded = bytes(encoded)
    if encoded[-1:] == b"\x02" and _parts_to_remove(tuple(changes)).search(b"\x02" + encoded) is None:
        return encoded + encode(changes)
    names = [name.encode() for name in changes]
    kept = [piece for piece in encoded.split(b"\x02") if piece and piece.partition(b"\x01")[0] not in names]
    return b"".join(piece + b"\x02" for piece in kept) + encode(changes)


def split_keys(keys: str | None) -> tuple[str, ...]:
    """The single keys of a KEYS value: the non-empty pieces between single spaces."""
    return tuple(key for key in keys.split(KEY_SEPARATOR) if key) if keys else ()


def join_keys(keys: Iterable[str]) -> str:
    """The KEYS value for several keys."""
    return KEY_SEPARATOR.join(keys)
