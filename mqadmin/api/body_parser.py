"""Strict reading of JSON bodies: an object that has a name twice is ambiguous, and is refused."""

from __future__ import annotations

import json
from typing import Any

from django.http import HttpRequest
from ninja.parser import Parser

from broker_store.excerpts import text_excerpt
from broker_store.rest.problems import Problem


class OneValueParser(Parser):
    """A parser of bodies for Ninja that refuses repeated names. Ninja's own takes the last value of a name;
    other parsers of the same body may take the first."""

    def parse_body(self, request: HttpRequest) -> Any:
        """Return the value of the body. Raises Problem for a repeated name, ValueError for invalid JSON."""
        return json.loads(request.body, object_pairs_hook=_object)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        for repeated, _ in pairs:
            if repeated in seen:
                break
            seen.add(repeated)
        repeated = text_excerpt(repeated, 100)
        reason = "is given more than once; give it one value"
        raise Problem(
            "invalid_fields", f"{repeated}: {reason}", errors=[{"field": repeated, "reason": reason}]
        )
    return found
