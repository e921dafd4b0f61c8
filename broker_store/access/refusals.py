"""Refused requests, counted by cause and user.

A row has the name of a user only if there is such a user: a client may state any other name,
and each would be a row. Beyond MAX_ROWS all further users are counted in the row without a user.
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_ROWS = 1_000
MAX_TEXT_CHARACTERS = 500


@dataclass(slots=True)
class RefusedOfUser:
    """The refusals of one cause, with the last case. `user` is None for requests of no known user."""

    cause: str
    user: str | None
    count: int
    at_ms: int
    address: str
    text: str  # of the answer


class AccessRefusals:
    """The refusals since the start."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str | None], RefusedOfUser] = {}

    def note(self, cause: str, user: str | None, address: str, text: str, now_ms: int) -> None:
        """Count a refusal. `user` is the name of a known user, or None."""
        key = (cause, user)
        row = self._rows.get(key)
        if row is None and user is not None and len(self._rows) >= MAX_ROWS:
            key = (cause, None)
            row = self._rows.get(key)
        if row is None:
            row = self._rows[key] = RefusedOfUser(cause, key[1], 0, now_ms, address, "")
        row.count += 1
        row.at_ms, row.address, row.text = now_ms, address, text[:MAX_TEXT_CHARACTERS]

    def rows(self) -> list[RefusedOfUser]:
        """Return all rows, the latest case first."""
        return sorted(self._rows.values(), key=lambda row: row.at_ms, reverse=True)
