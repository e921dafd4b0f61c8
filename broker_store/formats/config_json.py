"""The JSON of config/*.json, as Apache RocketMQ 5.5.0 writes it and as any version wrote it
(docs/spec/store-format.md section 8).

Its writer puts integer keys without quotes, which no JSON parser accepts, so they are quoted with a mark
before parsing and turned into ints after. Files from Apache 5.3.3 have another layout, which makes no
difference to parsing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from json.encoder import encode_basestring
from typing import Any, NoReturn

from broker_store.errors import FormatError
from broker_store.excerpts import text_excerpt

# A string (passed over), or an object key that is a bare integer.
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_STRING_OR_BARE_KEY = re.compile(r'"(?:[^"\\]|\\.)*"|([{,]\s*)(-?\d{1,19})(\s*:)', re.DOTALL)
# In one piece of a table's text: the interpreter's lock is held while a piece is made, for about 0.5 ms.
ENTRIES_PER_PIECE = 64
_BARE_MARK = "\ufdd0"  # a code point that is no character: no key of Apache's starts with it


@dataclass(frozen=True, slots=True)
class DataVersion:
    """Which of two copies of a table is newer: by state version, then counter, then timestamp (ms)."""

    state_version: int = 0
    counter: int = 0
    timestamp: int = 0

    def next(self, now_ms: int, state_version: int | None = None) -> DataVersion:
        """The version after one more change."""
        return DataVersion(
            self.state_version if state_version is None else state_version, self.counter + 1, now_ms
        )

    def is_older_than(self, other: DataVersion) -> bool:
        own = (self.state_version, self.counter, self.timestamp)
        return own < (other.state_version, other.counter, other.timestamp)

    def to_json(self) -> dict[str, int]:
        return {"counter": self.counter, "stateVersion": self.state_version, "timestamp": self.timestamp}

    @classmethod
    def from_json(cls, value: object) -> DataVersion:
        """From the parsed object; a missing number (4.9 has no stateVersion) or a missing object counts as
        0."""
        if value is None:
            return cls()
        if not isinstance(value, dict) or not all(isinstance(number, int) for number in value.values()):
            raise FormatError("dataVersion must be an object of integers", found=str(value)[:60])
        return cls(value.get("stateVersion", 0), value.get("counter", 0), value.get("timestamp", 0))


def read(text: str | bytes) -> object:
    """The value of a file: unquoted integer keys come back as int, quoted ones as str (see `int_keys`)."""
    try:
        if isinstance(text, bytes):
            text = text.decode()
        try:
            # Without bare keys, as in topics.json, it is JSON: five times as fast, which is seconds for
            # 100,000 topics.
            value = json.loads(text, parse_constant=_refuse_constant, strict=False)
        except json.JSONDecodeError:
            # A bare key, or what the next lines refuse
            quoted = _STRING_OR_BARE_KEY.sub(_quote, text)
            value = json.loads(
                quoted, object_pairs_hook=_object, parse_constant=_refuse_constant, strict=False
            )
        if _SURROGATE.search(text):
            # A lone one is no text: the file could not be written again
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except (ValueError, RecursionError) as error:
        raise FormatError(f"is not readable as JSON: {error}") from None


def read_table(text: str, name: str) -> tuple[dict[str, Any], dict[str, Any], DataVersion]:
    """(the whole value, its table `name`, its version) of a file that holds a table; FormatError when it does
    not."""
    value = read(text)
    if not isinstance(value, dict):
        raise FormatError(f"must be an object that holds {name}", found=text_excerpt(value))
    if name not in value:
        raise FormatError(f"must hold {name}, which is missing")
    if not isinstance(value[name], dict):
        raise FormatError(f"{name} must be an object", found=text_excerpt(value[name]))
    return value, value[name], DataVersion.from_json(value.get("dataVersion"))


def int_keys(value: object, what: str) -> dict[int, object]:
    """A table whose keys are integers, whether the writer quoted them or not; FormatError when one is not."""
    if not isinstance(value, dict):
        raise FormatError(f"{what} must be an object", found=text_excerpt(value))
    try:
        return {int(key): item for key, item in value.items()}
    except ValueError as error:
        raise FormatError(f"{what} has a key that is no integer: {error}") from None


def write(value: object) -> str:
    """The text of a file in the layout of 5.5.0: tabs, no blank after a colon, no line end, None left out of
    objects.

    Entries keep the order of the dict; Apache writes the fields of an object in alphabetical order and the
    entries of a map in the order of its hash table, which means nothing.
    """
    return _text(value, 1)


def write_table(head: Mapping[str, object], name: str, entries: Iterable[tuple[str, object]]) -> bytes:
    """The text of an object with the members `head` and a table `name`, as `write` makes it, in UTF-8.

    For large tables in a thread, so that other threads go on meanwhile: Python joins bytes of more than 1 MiB
    without the interpreter's lock. Text of any length it joins and encodes with the lock held.
    """
    return b"".join(list(table_pieces(head, name, entries)))


def table_pieces(
    head: Mapping[str, object], name: str, entries: Iterable[tuple[str, object]]
) -> Iterator[bytes]:
    """Return what `write_table` joins, at most ENTRIES_PER_PIECE entries in each."""
    members = "".join(f"\n\t{_key(key)}:{_text(item, 2)}," for key, item in head.items())
    yield f"{{{members}\n\t{_key(name)}:{{".encode()
    entries = iter(entries)
    before = ""
    while some := list(islice(entries, ENTRIES_PER_PIECE)):
        yield (before + ",".join([f"\n\t\t{_key(key)}:{_text(item, 3)}" for key, item in some])).encode()
        before = ","
    yield b"\n\t}\n}" if before else b"}\n}"


def _quote(match: re.Match[str]) -> str:
    before, key, after = match.groups()
    return match.group() if key is None else f'{before}"{_BARE_MARK}{key}"{after}'


def _object(pairs: list[tuple[str, object]]) -> dict[str | int, object]:
    return {int(key[1:]) if key.startswith(_BARE_MARK) else key: value for key, value in pairs}


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _text(value: object, depth: int) -> str:
    """The text of a value whose members stand after `depth` tabs."""
    if type(value) is str:
        return encode_basestring(value)
    if type(value) is int:
        return str(value)
    if isinstance(value, dict):
        return _block(
            "{}",
            [f"{_key(key)}:{_text(item, depth + 1)}" for key, item in value.items() if item is not None],
            depth,
        )
    if isinstance(value, list | tuple):
        return _block("[]", [_text(item, depth + 1) for item in value], depth)
    return json.dumps(value, ensure_ascii=False)


def _block(brackets: str, texts: list[str], depth: int) -> str:
    if not texts:
        return brackets
    indent = "\n" + "\t" * depth
    return brackets[0] + indent + f",{indent}".join(texts) + indent[:-1] + brackets[1]


def _key(key: object) -> str:
    return str(key) if isinstance(key, int) else encode_basestring(str(key))
