"""The JSON dialect of Java's fastjson, reading and writing (docs/spec/remoting.md section 2).

Beyond JSON it has numbers without quotes as keys (`{0:"a"}`), objects as keys
(`{{"brokerName":"b","queueId":0,"topic":"T"}:7}`) and references to an earlier value (`{"$ref":"$.a.b[0]"}`).
All three are read, and plain JSON at full speed. Written is the form that every known client reads: number
keys without quotes, object keys as objects, names sorted, no blanks, null members left out.

A body that cannot be parsed raises FieldError("body", ...): the frame was valid, so its sender gets an
answer. Depth is bounded because reading and writing recurse. References share their value without a copy. The
number of values that all references stand for is bounded, and a reference to a value that contains it is
refused.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any

from broker_store.errors import FieldError
from broker_store.protocol.fastjson_reader import PieceReader, Reader
from broker_store.protocol.fastjson_references import References
from broker_store.protocol.fastjson_values import MAX_DEPTH, ObjectKey, containers
from broker_store.protocol.framing import strict_loads

try:
    import orjson
except ImportError:
    orjson = None  # type: ignore[assignment]  # the client must work without it
_escape = json.encoder.encode_basestring


def loads(data: bytes) -> object:
    """Return the value in a body: dict, list, str, int, float, bool or None. Raises FieldError."""
    return _read(data, follows=True)


def loads_without_references(data: bytes) -> object:
    """Do as `loads`, but leave each reference as the object `{"$ref": path}`. Raises FieldError."""
    return _read(data, follows=False)


def _read(data: bytes, follows: bool) -> object:
    try:
        try:
            value = orjson.loads(data) if orjson else strict_loads(data)
        except ValueError:
            value = _read_dialect(bytes(data).decode())
        return References(value).resolved() if follows and b'"$ref"' in data else value
    except RecursionError:
        raise _wrong(data, "fewer levels") from None
    except (ValueError, TypeError, IndexError, KeyError) as error:
        raise _wrong(data, f"fastjson text ({error!s:.80})") from None


# How much may stand in a body that is read on the loop. 1,000 groups as Apache writes them have 43,000 marks.
MAX_MARKS = 65_536
MAX_DIALECT_KEYS = 4_096
_SHORT = 16 << 10  # bytes; a shorter body is read without counting: it takes some milliseconds at most
_DIALECT_KEY = re.compile(rb"[{,]\s*+(?:-?\d{1,19}+\s*+:|\{)")


def too_many(data: bytes) -> str:
    """Return why a body has too many values to be parsed in one call, or an empty text. The count is an
    upper bound: marks inside of texts count, too."""
    if len(data) <= _SHORT:
        return ""
    marks = sum(map(data.count, (b"{", b"[", b",", b":")))
    if marks > MAX_MARKS:
        return f"at most {MAX_MARKS} of the marks {{ [ , : in a body, not {marks}"
    keys = sum(1 for _ in _DIALECT_KEY.finditer(data))
    return (
        f"at most {MAX_DIALECT_KEYS} keys in a body that are no texts, not {keys}"
        if keys > MAX_DIALECT_KEYS
        else ""
    )


def loads_in_pieces(data: bytes, tables: frozenset[str]) -> object:
    """Do as `loads` for use in a thread: no single call into compiled code is long, so other threads run
    between."""
    try:
        value = PieceReader(data.decode(), tables).read()
        return References(value).resolved() if b'"$ref"' in data else value
    except RecursionError:
        raise _wrong(data, "fewer levels") from None
    except (ValueError, TypeError, IndexError, KeyError) as error:
        raise _wrong(data, f"fastjson text ({error!s:.80})") from None


# What the dialect has beyond JSON, keys that are numbers or flat objects: everything up to the next such key
# in one match, so that a text is gone over once. Possessive repeats keep no places to return to.
_STRING = r'"(?:[^"\\]++|\\.)*+"'
_FLAT = rf"\{{\s*+(?:{_STRING}\s*+:\s*+(?:{_STRING}|[-+.\w]++)\s*+(?:,\s*+(?=\")|(?=\}})))*+\}}"
_KEY = rf"(?:-?\d{{1,19}}+|{_FLAT})(?=\s*+:)"
_UP_TO_KEY = re.compile(
    rf'((?:[^"{{,]++|{_STRING}|[{{,](?!\s*+{_KEY}))*+)(?:([{{,]\s*+)({_KEY})|\Z)', re.ASCII | re.DOTALL
)
# Python before 3.11.5, as that of Debian 12, fails to match alternatives within a possessive repeat
# (gh-106052): there the text is read by descent, which takes longer.
HAS_POSSESSIVE = _UP_TO_KEY.match('{{"a":1}:2}') is not None
# In front of a key that was none of JSON's, in the text that JSON's reader is given: a letter for private use
# that is not in it.
_MARKS = range(0xE000, 0xE040)


def _read_dialect(text: str) -> object:
    """The value in a text of the dialect: its keys become texts, JSON's reader reads it, and the keys are
    restored."""
    if not HAS_POSSESSIVE:
        return Reader(text).read()
    lowered = text.lower() if "\\u" in text else ""
    mark = next(
        (chr(letter) for letter in _MARKS if chr(letter) not in text and f"\\u{letter:04x}" not in lowered),
        None,
    )
    if mark is None:
        raise ValueError("every letter for private use stands in the text")
    pieces: list[str] = []
    at = 0
    while at < len(text):
        match = _UP_TO_KEY.match(text, at)
        if match is None:
            raise ValueError(f"no value at {at}")
        before, start, key = match.groups()
        pieces += (before,) if key is None else (before, start, json.dumps(mark + key, ensure_ascii=False))
        at = match.end()
    data = "".join(pieces).encode()
    return _with_keys(orjson.loads(data) if orjson else strict_loads(data), mark, 0)


def _with_keys(value: Any, mark: str, depth: int) -> Any:
    """The value with its marked keys restored, in place but for the objects that have some."""
    if depth > MAX_DEPTH:
        raise ValueError(f"deeper than {MAX_DEPTH} levels")
    for place, child in containers(value):
        value[place] = _with_keys(child, mark, depth + 1)
    if isinstance(value, dict) and any(name[:1] == mark for name in value):
        return {_key_of(name[1:]) if name[:1] == mark else name: member for name, member in value.items()}
    return value


def _key_of(text: str) -> int | ObjectKey:
    if text[0] != "{":
        return int(text)
    members: Any = orjson.loads(text) if orjson else strict_loads(text.encode())
    return ObjectKey(members)


def _wrong(data: bytes, expected: str) -> FieldError:
    return FieldError("body", bytes(data[:50]), expected)


def dumps(value: object) -> bytes:
    """Return the value as fastjson would write it; keys may be text, int or ObjectKey."""
    if orjson:
        try:
            data = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
            if b":null" not in data:
                return data
        except TypeError:
            pass  # a key that JSON does not have, or an ObjectKey as a value
    parts: list[str] = []
    _write(value, parts.append)
    return "".join(parts).encode("utf-8", "replace")


# Entries of a table that are written by one call.
_ENTRIES_PER_CALL = 128


def dumps_table(head: Mapping[str, object], name: str, entries: Iterable[tuple[str, object]]) -> bytes:
    """Return an object with the members `head` and a table `name` as `dumps` writes it, except for the order.
    It is encoded in pieces, for use in a thread."""
    pieces = []
    entries = iter(entries)
    while some := dict(islice(entries, _ENTRIES_PER_CALL)):
        pieces.append(dumps(some)[1:-1])
    written = dumps(head)[:-1]
    return b"".join((written, b"," if head else b"", dumps(name), b":{", b",".join(pieces), b"}}"))


def dumps_strict(value: object) -> bytes:
    """Return JSON that every parser reads: keys quoted, characters beyond ASCII as \\uXXXX (the route of name
    servers >= 4.9.4)."""
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()


def _write(value: object, put: Callable[[str], None]) -> None:
    if value is None:
        put("null")
    elif isinstance(value, str):
        put(_escape(value))
    elif isinstance(value, bool):
        put("true" if value else "false")
    elif isinstance(value, int):
        put(str(int(value)))
    elif isinstance(value, float):
        put(repr(value) if math.isfinite(value) else "null")
    elif isinstance(value, dict):
        _write_members(value, put)
    elif isinstance(value, ObjectKey):
        _write_members(dict(value.members), put)
    elif isinstance(value, (list, tuple, set, frozenset)):
        before = "["
        for item in value:
            put(before)
            _write(item, put)
            before = ","
        put("]" if before == "," else "[]")
    else:
        raise TypeError(f"fastjson has no form for {type(value).__name__}")


def _write_members(members: dict[Any, Any], put: Callable[[str], None]) -> None:
    names = sorted(members) if all(isinstance(key, str) for key in members) else members
    before = "{"
    for name in names:
        value = members[name]
        if value is None:
            continue
        put(before)
        _write(name, put)
        put(":")
        _write(value, put)
        before = ","
    put("}" if before == "," else "{}")
