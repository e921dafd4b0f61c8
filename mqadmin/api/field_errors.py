"""What is wrong with a field of a request, in a sentence: pydantic's own messages are for programmers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_SENTENCES = {
    "missing": "is missing",
    "extra_forbidden": "is not known here",
    "int_parsing": "want an integer",
    "int_type": "want an integer",
    "int_from_float": "want an integer",
    "int_parsing_size": "is too large",
    "float_parsing": "want a number",
    "float_type": "want a number",
    "bool_parsing": "want true or false",
    "bool_type": "want true or false",
    "string_type": "want a text",
    "list_type": "want a list",
    "dict_type": "want an object",
    "model_type": "want an object",
    "model_attributes_type": "want an object",
    "json_invalid": "is not JSON",
}


# Of the errors that name a bound: its name in the error's context, and the begin of the sentence.
_BOUNDS = {
    "greater_than_equal": ("ge", "want at least"),
    "less_than_equal": ("le", "want at most"),
    "string_too_short": ("min_length", "want at least"),
    "string_too_long": ("max_length", "want at most"),
    "literal_error": ("expected", "want"),
}
MAX_FIELD = 100  # characters
MAX_REASON = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class WrongField:
    """A field of a request, and what is wrong with it."""

    field: str  # its place in the body or the query
    reason: str


def wrong_field(entry: Mapping[str, Any]) -> WrongField:
    """Return what an entry of pydantic's validation errors says."""
    pieces = list(entry.get("loc", ()))[1:]
    field = ".".join(map(str, pieces))
    return WrongField(field=field[:MAX_FIELD], reason=reason(entry)[:MAX_REASON])


def reason(entry: Mapping[str, Any]) -> str:
    """Return the sentence for an entry of a validation error."""
    kind, context = str(entry.get("type", "")), entry.get("ctx") or {}
    if kind in _BOUNDS:
        name, begin = _BOUNDS[kind]
        return f"{begin} {_characters(context[name]) if kind.startswith('string_') else context[name]}"
    if kind == "value_error":
        return str(context.get("error") or entry.get("msg")).removeprefix("Value error, ")
    return _SENTENCES.get(kind, "is not what this field takes; see /api/v1/docs")


def _characters(count: int) -> str:
    return f"{count:,} character{'' if count == 1 else 's'}"
