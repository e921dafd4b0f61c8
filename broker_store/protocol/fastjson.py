"""The JSON dialect of Java's fastjson, read and written (docs/spec/remoting.md section 2).

Beyond JSON it has numbers without quotes as keys (`{0:"a"}`), whole objects as keys
(`{{"brokerName":"b","queueId":0,"topic":"T"}:7}`) and references to a value that was written before
(`{"$ref":"$.a.b[0]"}`). Reading takes all three, and plain JSON at full speed; writing gives the form that
every known client reads: number keys unquoted, object keys as objects, names sorted, no blanks, null members
left out.

What cannot be read raises FieldError("body", ...): the frame was sound, so its sender gets an answer. Depth
is bounded because both directions recurse. References share the value they point to, they do not copy it.
What all of them stand for is bounded, and a reference to a value that contains it is refused.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable
from itertools import islice
from json.decoder import scanstring  # type: ignore[attr-defined]  # the stubs leave it out
from typing import Any, NoReturn, TypeAlias

from broker_store.errors import FieldError
from broker_store.protocol.framing import strict_loads

try:
    import orjson
except ImportError:
    orjson = None  # type: ignore[assignment]  # the client must work without it

# The deepest body that any client sends has 6 levels.
MAX_DEPTH = 64
# Steps of all different references of one body. A body with 50,000 references to queues of one table has
# 100,000.
MAX_STEPS = 200_000
# What references may stand for: Apache shares queues, offsets and brokers, objects of at most 10 members.
NODES_PER_REFERENCE = 16
MIN_NODES = 10_000

_NUMBER = re.compile(r"-?\d{1,19}(?:\.\d{1,40})?(?:[eE][+-]?\d{1,3})?(?![\d.])", re.ASCII)
_BLANKS = re.compile(r"[ \t\r\n]*")
_CONSTANTS = {"true": True, "false": False, "null": None}
_escape = json.encoder.encode_basestring

# What holds other values. Keys are texts, ints or ObjectKeys, and members are of any kind.
Container: TypeAlias = dict[Any, Any] | list[Any]


class ObjectKey:
    """An object that stands as a key: immutable, hashable, equal by content.

    `key["queueId"]` and `key.get("queueId")` read a member.
    """

    __slots__ = ("_hash", "members")

    def __init__(self, members: dict[str, object]):
        self.members = tuple(sorted(members.items()))
        self._hash = hash(self.members)

    def __getitem__(self, name: str) -> object:
        for member, value in self.members:
            if member == name:
                return value
        raise KeyError(name)

    def get(self, name: str, default: object = None) -> object:
        return next((value for member, value in self.members if member == name), default)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObjectKey) and self.members == other.members

    def __repr__(self) -> str:
        return f"ObjectKey({dict(self.members)!r})"


def loads(data: bytes) -> object:
    """The value in a body: dict, list, str, int, float, bool or None. Raises FieldError."""
    return _read(data, follows=True)


def loads_without_references(data: bytes) -> object:
    """What `loads` gives, but each reference stays the object `{"$ref": path}`. Raises FieldError."""
    return _read(data, follows=False)


def _read(data: bytes, follows: bool) -> object:
    try:
        try:
            value = orjson.loads(data) if orjson else strict_loads(data)
        except ValueError:
            value = _read_dialect(bytes(data).decode())
        return _References(value).resolved() if follows and b'"$ref"' in data else value
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
    """What of a body is too much to be read at once, as a sentence; else nothing. A bound from above: marks
    in texts count too.

    Each value costs the reader far more than its bytes do: half a million empty lists are one megabyte and
    take 0.1 s, keys that are numbers 0.4 s.
    """
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


# The most of a text that is read by one call into compiled code, which keeps every other thread from running.
_MAX_AT_ONCE = 4_096


def loads_in_pieces(data: bytes, tables: frozenset[str]) -> object:
    """What `loads` gives, read for a thread: no call into compiled code takes long, so the other threads go
    on.

    Of the members named in `tables`, and of the value itself, each member is read at once where it is short;
    what else is large is read letter by letter. Raises FieldError.
    """
    try:
        value = _PieceReader(data.decode(), tables).read()
        return _References(value).resolved() if b'"$ref"' in data else value
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
# In front of a key that was none of JSON's, in the text that JSON's reader is given: a letter for private use
# that is not in it.
_MARKS = range(0xE000, 0xE040)


def _read_dialect(text: str) -> object:
    """The value in a text of the dialect: its keys become texts, JSON's reader reads it, and the keys are
    restored."""
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
    for place, child in _containers(value):
        value[place] = _with_keys(child, mark, depth + 1)
    if isinstance(value, dict) and any(name[:1] == mark for name in value):
        return {_key_of(name[1:]) if name[:1] == mark else name: member for name, member in value.items()}
    return value


def _key_of(text: str) -> int | ObjectKey:
    if text[0] != "{":
        return int(text)
    members: Any = orjson.loads(text) if orjson else strict_loads(text.encode())
    return ObjectKey(members)


def _wrong(data: bytes, want: str) -> FieldError:
    return FieldError("body", bytes(data[:50]), want)


class _Reader:
    """A recursive descent over the text."""

    def __init__(self, text: str):
        self.text = text

    def read(self) -> object:
        value, at = self._value(self._skip(0), 0)
        if at != len(self.text):
            raise ValueError(f"something behind the value at {at}")
        self.text.encode()
        return value

    def _skip(self, at: int) -> int:
        blanks = _BLANKS.match(self.text, at)
        assert blanks is not None  # the pattern also matches no blank
        return blanks.end()

    def _value(self, at: int, depth: int) -> tuple[object, int]:
        """The value that starts at `at` and the place behind it and its blanks."""
        if depth > MAX_DEPTH:
            raise ValueError(f"deeper than {MAX_DEPTH} levels")
        text = self.text
        first = text[at : at + 1]
        if first == '"':
            value, at = scanstring(text, at + 1, True)
            value.encode()  # a lone surrogate is no text
        elif first == "{":
            value, at = self._object(at + 1, depth)
        elif first == "[":
            value, at = self._array(at + 1, depth)
        elif match := _NUMBER.match(text, at):
            value, at = _number(match.group()), match.end()
        else:
            for name, constant in _CONSTANTS.items():
                if text.startswith(name, at):
                    value, at = constant, at + len(name)
                    break
            else:
                raise ValueError(f"no value at {at}")
        return value, self._skip(at)

    def _object(self, at: int, depth: int) -> tuple[dict[Any, Any], int]:
        text = self.text
        members: dict[str | int | ObjectKey, object] = {}
        at = self._skip(at)
        if text[at : at + 1] == "}":
            return members, at + 1
        while True:
            key, at = self._value(at, depth + 1)
            if isinstance(key, dict):
                key = ObjectKey(key)
            elif type(key) is not str and type(key) is not int:
                raise ValueError(f"no key before {at}")
            if text[at : at + 1] != ":":
                raise ValueError(f"no colon at {at}")
            members[key], at = self._value(self._skip(at + 1), depth + 1)
            if text[at : at + 1] == "}":
                return members, at + 1
            at = self._comma(at)

    def _array(self, at: int, depth: int) -> tuple[list[Any], int]:
        text = self.text
        values: list[object] = []
        at = self._skip(at)
        if text[at : at + 1] == "]":
            return values, at + 1
        while True:
            value, at = self._value(at, depth + 1)
            values.append(value)
            if text[at : at + 1] == "]":
                return values, at + 1
            at = self._comma(at)

    def _comma(self, at: int) -> int:
        if self.text[at : at + 1] != ",":
            raise ValueError(f"no comma at {at}")
        return self._skip(at + 1)


class _PieceReader(_Reader):
    """Reads the members of tables, and of the outermost object, each by one call where they are short."""

    def __init__(self, text: str, tables: frozenset[str]):
        super().__init__(text)
        self._tables = tables
        self._scan = json.JSONDecoder(parse_constant=_refuse_constant).scan_once  # type: ignore[attr-defined]  # the stubs leave it out
        self._is_table = True

    def _object(self, at: int, depth: int) -> tuple[dict[Any, Any], int]:
        if not self._is_table:
            return super()._object(at, depth)
        text = self.text
        members: dict[str, object] = {}
        at = self._skip(at)
        if text[at : at + 1] == "}":
            return members, at + 1
        while True:
            if text[at : at + 1] != '"':
                raise ValueError(f"no name at {at}")
            name, at = scanstring(text, at + 1, True)
            name.encode()
            at = self._skip(at)
            if text[at : at + 1] != ":":
                raise ValueError(f"no colon at {at}")
            members[name], at = self._member(name, self._skip(at + 1), depth + 1)
            at = self._skip(at)
            if text[at : at + 1] == "}":
                return members, at + 1
            at = self._comma(at)

    def _member(self, name: str, at: int, depth: int) -> tuple[object, int]:
        is_table = name in self._tables
        if not is_table:
            piece = self.text[at : at + _MAX_AT_ONCE]
            try:
                value, end = self._scan(piece, 0)
                if end < len(piece):  # a number that ends with the piece may go on
                    if "\\u" in piece[:end]:
                        json.dumps(value, ensure_ascii=False).encode()  # a lone surrogate is no text
                    return value, at + end
            except (StopIteration, ValueError):
                pass  # it is long, or in the dialect
        self._is_table = is_table
        try:
            return self._value(at, depth)
        finally:
            self._is_table = True


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _number(text: str) -> int | float:
    if text.lstrip("-").isdigit():
        return int(text)
    return float(text)


class _References:
    """Replaces each `{"$ref": path}` in a value by what the path leads to.

    Each path is followed once, and what all references bring is counted: a small body cannot stand for a
    large value.
    """

    def __init__(self, root: Any):
        self.root = root
        self._key_texts: dict[int, dict[str | int, ObjectKey]] = {}
        self._found: dict[str, object] = {}
        self._steps_left = MAX_STEPS
        self._references = self._written = 0
        self._sizes: dict[int, tuple[int, int] | None] = {}

    def resolved(self) -> object:
        if (path := _reference(self.root)) is not None:
            raise ValueError(f"references lead in a circle: {path:.60}")
        self._replace_in(self.root)
        if self._references:
            most = self._written + NODES_PER_REFERENCE * self._references + MIN_NODES
            self._size(self.root, most)
        return self.root

    def _replace_in(self, value: Any) -> None:
        self._written += len(value) if isinstance(value, dict | list) else 0
        for place, child in _containers(value):
            path = _reference(child)
            if path is None:
                self._replace_in(child)
            else:
                self._references += 1
                value[place] = self._follow(path, 0)

    def _follow(self, path: str, hops: int) -> object:
        if path in self._found:
            return self._found[path]
        if hops > MAX_DEPTH:
            raise ValueError(f"references lead in a circle: {path:.60}")
        steps = _steps(path)
        self._steps_left -= len(steps)
        if self._steps_left < 0:
            raise ValueError(f"references of more than {MAX_STEPS} steps in one body")
        value = self.root
        for step in steps:
            value = self._member(value, step)
            onward = _reference(value)
            if onward is not None:
                value = self._follow(onward, hops + 1)
        self._found[path] = value
        return value

    def _size(self, value: Container, most: int) -> tuple[int, int]:
        """(the values below a value with each reference written out, their levels); ValueError above the
        bounds."""
        key = id(value)
        if key in self._sizes:
            known = self._sizes[key]
            if known is None:
                raise ValueError("a reference leads to what contains it")
            return known
        self._sizes[key] = None
        nodes, levels = len(value), 0
        for _place, child in _containers(value):
            below, deep = self._size(child, most)
            nodes += below
            levels = max(levels, deep)
            if nodes > most or levels >= MAX_DEPTH:
                raise ValueError(f"references that stand for more than {most} values or {MAX_DEPTH} levels")
        self._sizes[key] = nodes, levels + 1
        return nodes, levels + 1

    def _member(self, value: object, step: str | int) -> object:
        if isinstance(value, list) and isinstance(step, int):
            return value[step]
        if not isinstance(value, dict):
            raise ValueError(f"a reference into a {type(value).__name__}")
        if step in value:
            return value[step]
        if isinstance(step, str) and step.isdigit() and int(step) in value:
            return value[int(step)]
        # An object as a key appears as its Java text.
        texts = self._key_texts.get(id(value))
        if texts is None:
            texts = {_java_text(key): key for key in value if isinstance(key, ObjectKey)}
            self._key_texts[id(value)] = texts
        return value[texts[step]]


def _containers(value: object) -> list[tuple[Any, Container]]:
    """(place, member) of each member that is an object or an array."""
    if isinstance(value, dict):
        return [pair for pair in value.items() if type(pair[1]) is dict or type(pair[1]) is list]
    if isinstance(value, list):
        return [pair for pair in enumerate(value) if type(pair[1]) is dict or type(pair[1]) is list]
    return []


def _reference(value: object) -> str | None:
    if isinstance(value, dict) and len(value) == 1 and isinstance(path := value.get("$ref"), str):
        return path
    return None


def _java_text(key: ObjectKey) -> str:
    topic, broker, queue = key.get("topic"), key.get("brokerName"), key.get("queueId")
    return f"MessageQueue [topic={topic}, brokerName={broker}, queueId={queue}]"


_STEP = re.compile(r"\.((?:[^.\[\\]++|\\.)*+)|\[(-?\d{1,10})\]", re.ASCII | re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


def _steps(path: str) -> list[str | int]:
    """`$.a.b[0]` as ["a", "b", 0]; a backslash takes the next letter as it is."""
    if not path.startswith("$") or len(path) > 4096:
        raise ValueError(f"an unknown reference {path:.60}")
    steps: list[str | int] = []
    at = 1
    while at < len(path):
        match = _STEP.match(path, at)
        if match is None:
            raise ValueError(f"an unknown reference {path:.60}")
        name, number = match.groups()
        steps.append(_ESCAPED.sub(r"\1", name) if number is None else int(number))
        at = match.end()
        if len(steps) > MAX_DEPTH:
            raise ValueError(f"a reference of more than {MAX_DEPTH} steps")
    return steps


# Writing


def dumps(value: object) -> bytes:
    """The value as fastjson would write it; keys may be text, int or ObjectKey."""
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
_ENTRIES_AT_ONCE = 128


def dumps_table(head: dict[str, object], name: str, entries: Iterable[tuple[str, object]]) -> bytes:
    """An object with the members `head` and a table `name`, as `dumps` writes it but for the order, for a
    thread: piece by piece."""
    pieces = []
    entries = iter(entries)
    while some := dict(islice(entries, _ENTRIES_AT_ONCE)):
        pieces.append(dumps(some)[1:-1])
    written = dumps(head)[:-1]
    return b"".join((written, b"," if head else b"", dumps(name), b":{", b",".join(pieces), b"}}"))


def dumps_strict(value: object) -> bytes:
    """JSON that every parser takes: keys quoted, all beyond ASCII as \\uXXXX (the route of name servers >=
    4.9.4)."""
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
