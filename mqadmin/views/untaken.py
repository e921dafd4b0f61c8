"""What of a page's query string the page did not take: a page is drawn all the same, and says it."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from django.http import QueryDict

MAX_SHOWN = 3  # sentences; an address may hold thousands of names
SHOWN_CHARACTERS = 30


def untaken(asked: QueryDict, fields: Mapping[str, Collection[str] | None]) -> list[str]:
    """A sentence for each name that is none of `fields`, and for each value that its field does not have (None: it takes any)."""
    found = []
    for name in asked:
        value = asked[name]
        if name not in fields:
            found.append(f"The page has no field {name[:SHOWN_CHARACTERS]!r}: it was not taken.")
        elif (values := fields[name]) is not None and value not in values:
            found.append(f"{name} {value[:SHOWN_CHARACTERS]!r} was not taken: it is one of {', '.join(values)}.")
        if len(found) > MAX_SHOWN:
            return [*found[:MAX_SHOWN], "There is more in the address that was not taken."]
    return found
