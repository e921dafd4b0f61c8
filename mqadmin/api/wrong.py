"""What is wrong with a field of a request, in a sentence: pydantic's own messages are for programmers."""

from __future__ import annotations

from collections.abc import Mapping
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


def reason(entry: Mapping[str, Any]) -> str:
    """Return the sentence for an entry of a validation error."""
    kind, context = str(entry.get("type", "")), entry.get("ctx") or {}
    match kind:
        case "greater_than_equal":
            return f"want at least {context['ge']}"
        case "less_than_equal":
            return f"want at most {context['le']}"
        case "string_too_short":
            return f"want at least {_characters(context['min_length'])}"
        case "string_too_long":
            return f"want at most {_characters(context['max_length'])}"
        case "literal_error":
            return f"want {context['expected']}"
        case "value_error":
            return str(context.get("error") or entry["msg"]).removeprefix("Value error, ")
    return _SENTENCES.get(kind, "is not what this field takes; see /api/v1/docs")


def _characters(count: int) -> str:
    return f"{count:,} character{'' if count == 1 else 's'}"
