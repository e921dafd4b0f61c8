"""Rows as bars, of the template bars.html."""

from __future__ import annotations

from mqadmin.templatetags import units

MAX_BARS = 12


def bars(rows: list[dict]) -> list[dict]:
    """Return the first rows with their share of the largest, for a bar each."""
    most = max((row["value"] for row in rows), default=0)
    return [row | {"share": units.share(row["value"], most)} for row in rows[:MAX_BARS]]
