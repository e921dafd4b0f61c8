"""Lists in pieces: `limit` items after `cursor`, at most MAX_LIMIT; the answer's `next` is the cursor of the
rest, null at the end.

A cursor holds the sort key of the last item of the page. So no item is repeated or skipped when others are
created or deleted between two pages. A cursor is opaque to clients.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated, Generic, TypeVar

from ninja import Query

from broker_store.rest.http import MAX_LIMIT
from broker_store.rest.problems import Problem
from mqadmin.jobs.facts import Job

Item = TypeVar("Item")

DEFAULT_LIMIT = MAX_LIMIT  # a request without a limit gets the largest page
MAX_CURSOR = 1_024
# Of the routes that list
Limit = Annotated[int, Query(ge=1, le=MAX_LIMIT)]
Cursor = Annotated[str | None, Query(max_length=MAX_CURSOR)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed(Generic[Item]):
    """A piece of a list, as schemas.Page."""

    items: list[Item]
    next: str | None  # cursor of the rest; None: there is none
    total: int  # in the whole list


def page(items: Iterable[Item], key: Callable[[Item], str], cursor: str | None, limit: int) -> Listed[Item]:
    """Return a piece of a list, sorted here by `key`, whose values are unique."""
    ordered = sorted(items, key=key)
    after = None if not cursor else read_cursor(cursor)
    rest = ordered if after is None else [item for item in ordered if key(item) > after]
    given = rest[:limit]
    following = make_cursor(key(given[-1])) if len(rest) > limit else None
    return Listed(items=given, next=following, total=len(ordered))


def page_after(
    after: Callable[[str | None, int], list[Item]],
    key: Callable[[Item], str],
    cursor: str | None,
    limit: int,
    total: int,
) -> Listed[Item]:
    """Return a piece of a list that is kept in order elsewhere: `after(key, count)` returns the first items
    after `key`."""
    found = after(None if not cursor else read_cursor(cursor), limit + 1)
    given = found[:limit]
    following = make_cursor(key(given[-1])) if len(found) > limit else None
    return Listed(items=given, next=following, total=total)


def newest_first(job: Job) -> str:
    """Return the sort key of a job in a list that begins with the newest."""
    return f"{(1 << 53) - (job.created_ms or 0):017d}/{job.id}"


def make_cursor(key: str) -> str:
    return base64.urlsafe_b64encode(key.encode()).decode().rstrip("=")


def read_cursor(cursor: str) -> str:
    try:
        if len(cursor) > MAX_CURSOR:
            raise ValueError
        return base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True).decode()
    except (ValueError, binascii.Error):
        raise Problem(
            "invalid", "the cursor is not one that this interface returned; begin without a cursor"
        ) from None
