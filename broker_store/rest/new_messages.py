"""Messages of a REST request: read from JSON, and checked as far as the request alone allows.

A Problem names each wrong field. Values are counted before the JSON is parsed, because it is parsed in one
call, during which no other thread runs.
"""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import orjson

from broker_store.rest.problems import Problem

MAX_VALUES = 50_000  # in a body
MAX_PROPERTIES = 8_191  # of a message: 32,767 bytes of properties, and the shortest takes four
MAX_WRONG_FIELDS = 20  # fields that an answer names
MAX_MESSAGES = 1_000  # in one request
MAX_INT32 = (1 << 31) - 1
MAX_TAG_CHARACTERS = 255


@dataclass(slots=True)
class NewMessage:
    """One message of a REST request, checked as far as the request alone allows. With a `queue_id` of None
    the broker chooses the queue."""

    body: bytes
    tag: str = ""
    keys: tuple[str, ...] = ()
    properties: dict[str, str] = field(default_factory=dict)
    queue_id: int | None = None
    flag: int = 0


# In texts, where they count as nothing, and elsewhere. A text longer than one match is gone through piece by
# piece.
_TEXT_OR_VALUE = re.compile(rb'"(?:[^"\\]{1,1024}+|\\.){0,64}+"|[\[{,"]', re.DOTALL)
_TEXT_OR_NAMED = re.compile(rb'"(?:[^"\\]{1,1024}+|\\.){0,64}+"|[:"]', re.DOTALL)
_ESCAPED_COLON = re.compile(rb"\\u003[aA]")  # a colon of the text that was read, none of the body
_PIECE_OF_TEXT = re.compile(rb'(?:[^"\\]{1,1024}+|\\.){0,64}+', re.DOTALL)
_COUNTED_BYTES_PER_CALL = 1 << 20


def check_values(body: bytes) -> None:
    """Raise Problem if a body has more values than MAX_VALUES: JSON is parsed in one call, during which no
    other thread runs. Five million empty lists take two seconds."""
    if (
        _count_with_texts(body, b",", b"[", b"{") > MAX_VALUES
        and _count_outside_texts(body, _TEXT_OR_VALUE, MAX_VALUES) > MAX_VALUES
    ):
        raise Problem(
            "too_large", f"the body has more than {MAX_VALUES} values", "send fewer messages in one request"
        )


def _check_names(body: bytes, messages: list[dict]) -> None:
    """A Problem when an object of a body names a field twice, of which the reader took the last: the body has
    more colons than the fields and texts of `messages`, which were read, have."""
    members = sum(len(message) + len(message.get("properties") or ()) for message in messages)
    colons = _count_with_texts(body, b":")
    if colons <= members or (
        colons == members + sum(map(_colons_in_texts, messages)) and not _ESCAPED_COLON.search(body)
    ):
        return
    if _count_outside_texts(body, _TEXT_OR_NAMED, members) > members:
        raise Problem("invalid_fields", "a field is given more than once in one object; give it one value")


def _colons_in_texts(message: dict) -> int:
    """Return how many colons the texts of a message have."""
    keys, properties = message.get("keys") or (), message.get("properties") or {}
    count = message["body"].count(":") + (message.get("tag") or "").count(":")
    count += keys.count(":") if isinstance(keys, str) else sum(key.count(":") for key in keys)
    return count + sum(name.count(":") + value.count(":") for name, value in properties.items())


def _count_with_texts(body: bytes, *marks: bytes) -> int:
    """Return how often marks occur, those within texts too: an upper bound, found fast."""
    return sum(
        body.count(mark, at, at + _COUNTED_BYTES_PER_CALL)
        for at in range(0, len(body), _COUNTED_BYTES_PER_CALL)
        for mark in marks
    )


def _count_outside_texts(body: bytes, text_or_mark: re.Pattern[bytes], most: int) -> int:
    """Return how often marks occur outside of texts; the count ends one above `most`."""
    count, at = 0, 0
    while count <= most and (match := text_or_mark.search(body, at)):
        at = match.end()
        if body[at - 1] == 0x22:
            if match.end() - match.start() == 1:  # a long text begins
                while (piece := _PIECE_OF_TEXT.match(body, at)) and piece.end() > at:
                    at = piece.end()
                at += 1
            continue
        count += 1
    return count


def read_messages(body: bytes) -> tuple[list[NewMessage], bool]:
    """Return the messages of a body, and True if they came as a list."""
    check_values(body)
    try:
        value = orjson.loads(body)
    except ValueError as error:  # also for nesting that is too deep
        raise Problem("invalid", f"the body is not JSON: {error}") from None
    if isinstance(value, list):
        if not 1 <= len(value) <= MAX_MESSAGES:
            raise Problem(
                "too_large" if value else "invalid",
                f"a list of {len(value)} messages, expected 1 to {MAX_MESSAGES}",
            )
        messages, is_list = [read_message(item, f"[{index}]") for index, item in enumerate(value)], True
    else:
        messages, is_list, value = [read_message(value, "")], False, [value]
    _check_names(body, value)
    return messages, is_list


_FIELDS = frozenset({"body", "body_encoding", "tag", "keys", "properties", "queue_id", "flag"})


def read_message(value: object, place: str) -> NewMessage:
    """Return one message from JSON. Raises Problem, which names each wrong field."""
    if not isinstance(value, dict):
        raise Problem("invalid_fields", f"message{place} is not an object")
    wrong = [
        _wrong(place, name, "not known")
        for name in islice((name for name in value if name not in _FIELDS), MAX_WRONG_FIELDS)
    ]
    body, body_error = _read_body(value.get("body"), value.get("body_encoding", "utf-8"))
    if body_error:
        wrong.append(_wrong(place, "body", body_error))
    tag = _or_default(value.get("tag"), "")
    if not _is_text(tag, MAX_TAG_CHARACTERS):
        wrong.append(
            _wrong(
                place,
                "tag",
                f"expected a string of at most {MAX_TAG_CHARACTERS} characters without control characters",
            )
        )
    keys = _or_default(value.get("keys"), [])
    keys = ([keys] if keys else []) if isinstance(keys, str) else keys
    if not isinstance(keys, list) or not all(_is_text(key, 1024) and key and " " not in key for key in keys):
        wrong.append(_wrong(place, "keys", "expected strings without blanks, none empty"))
    properties = _or_default(value.get("properties"), {})
    if isinstance(properties, dict) and len(properties) > MAX_PROPERTIES:
        wrong.append(
            _wrong(
                place,
                "properties",
                f"has {len(properties)} names, at most {MAX_PROPERTIES} fit into a message",
            )
        )
    elif not isinstance(properties, dict) or not all(
        _is_text(k, 255) and k and _is_text(v, 32767) and v for k, v in properties.items()
    ):
        wrong.append(_wrong(place, "properties", "expected an object of strings, names and values not empty"))
    queue_id, flag = value.get("queue_id"), value.get("flag", 0)
    if queue_id is not None and not _is_int(queue_id, 0, MAX_INT32):
        wrong.append(_wrong(place, "queue_id", "expected a queue number from 0"))
    if not _is_int(flag, -MAX_INT32 - 1, MAX_INT32):
        wrong.append(_wrong(place, "flag", "expected a 32-bit integer"))
    if wrong:
        raise Problem(
            "invalid_fields",
            "; ".join(f"{entry['field']}: {entry['reason']}" for entry in wrong[:5]),
            errors=wrong[:MAX_WRONG_FIELDS],
        )
    return NewMessage(body, tag, tuple(keys), dict(properties), queue_id, flag)


def _read_body(text: object, encoding: object) -> tuple[bytes, str]:
    if not isinstance(text, str):
        return b"", "expected a string"
    if encoding == "utf-8":
        return text.encode(), ""
    if encoding != "base64":
        return b"", "body_encoding is utf-8 or base64"
    try:
        return base64.b64decode(text, validate=True), ""
    except (binascii.Error, ValueError):
        return b"", "is not base64"


def _or_default(value: Any, default: Any) -> Any:
    """The value of a field, `default` where it is null or absent. Other empty values are kept: their types
    are checked."""
    return default if value is None else value


def _is_text(value: object, limit: int) -> bool:
    """A string that can stand in a properties string: its separators are control characters."""
    return (
        isinstance(value, str)
        and len(value) <= limit
        and not ("\x00" in value or "\x01" in value or "\x02" in value)
    )


def _is_int(value: object, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _wrong(place: str, name: str, reason: str) -> dict:
    return {"field": f"{place}.{name}".lstrip(".")[:100], "reason": reason}
