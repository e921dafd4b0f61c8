"""Recursive-descent readers of fastjson's dialect: one for a whole text, and one that works in short
calls."""

from __future__ import annotations

import json
import re
from json.decoder import scanstring  # type: ignore[attr-defined]  # the stubs leave it out
from typing import Any, NoReturn

from broker_store.protocol.fastjson_values import MAX_DEPTH, ObjectKey

_NUMBER = re.compile(r"-?\d{1,19}(?:\.\d{1,40})?(?:[eE][+-]?\d{1,3})?(?![\d.])", re.ASCII)
_BLANKS = re.compile(r"[ \t\r\n]*")
_CONSTANTS = {"true": True, "false": False, "null": None}


# The most of a text that is read by one call into compiled code, which keeps every other thread from running.
_MAX_CHARACTERS_PER_CALL = 4_096


class Reader:
    """A recursive descent over the text."""

    def __init__(self, text: str):
        self.text = text

    def read(self) -> object:
        value, at = self._value(self._skip(0), 0)
        if at != len(self.text):
            raise ValueError(f"something after the value at {at}")
        self.text.encode()
        return value

    def _skip(self, at: int) -> int:
        blanks = _BLANKS.match(self.text, at)
        assert blanks is not None  # the pattern also matches no blank
        return blanks.end()

    def _value(self, at: int, depth: int) -> tuple[object, int]:
        """Return the value that starts at `at`, and the position after it and its blanks."""
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


class PieceReader(Reader):
    """Reads the members of tables, and of the outermost object, each in one call if they are short."""

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
            piece = self.text[at : at + _MAX_CHARACTERS_PER_CALL]
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
