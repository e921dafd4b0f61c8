"""Sentences for the errors in fields of a request. Pydantic's own messages are for programmers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_SENTENCES = {
    "missing": "is missing",
    "extra_forbidden": "is not a known field",
    "int_parsing": "expected an integer",
    "int_type": "expected an integer",
    "int_from_float": "expected an integer",
    "int_parsing_size": "is too large",
    "float_parsing": "expected a number",
    "float_type": "expected a number",
    "bool_parsing": "expected true or false",
    "bool_type": "expected true or false",
    "string_type": "expected a string",
    "list_type": "expected a list",
    "dict_type": "expected an object",
    "model_type": "expected an object",
    "model_attributes_type": "expected an object",
    "json_invalid": "is not JSON",
}


# Errors that have a bound -> the name of the bound in the error's context, and the begin of the sentence.
_BOUNDS = {
    "greater_than_equal": ("ge", "expected at least"),
    "less_than_equal": ("le", "expected at most"),
    "string_too_short": ("min_length", "expected at least"),
    "string_too_long": ("max_length", "expected at most"),
    "literal_error": ("expected", "expected"),
}
MAX_FIELD = 100  # characters
MAX_REASON = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class WrongField:
    """A field of a request, and what is wrong with it."""

    field: str  # its place in the body or the query
    reason: str


def wrong_field(entry: Mapping[str, Any]) -> WrongField:
    """Return the field and the reason of an entry of pydantic's validation errors."""
    pieces = list(entry.get("loc", ()))[1:]
    field = ".".join(map(str, pieces))
    return WrongField(field=field[:MAX_FIELD], reason=reason(entry)[:MAX_REASON])


def reason(entry: Mapping[str, Any]) -> str:
    """Return the sentence for an entry of pydantic's validation errors."""
    kind, context = str(entry.get("type", "")), entry.get("ctx") or {}
    if kind in _BOUNDS:
        name, begin = _BOUNDS[kind]
        return f"{begin} {_characters(context[name]) if kind.startswith('string_') else context[name]}"
    if kind == "value_error":
        return str(context.get("error") or entry.get("msg")).removeprefix("Value error, ")
    return _SENTENCES.get(kind, "is not what this field takes; see /api/v1/docs")


def _characters(count: int) -> str:
    return f"{count:,} character{'' if count == 1 else 's'}"
