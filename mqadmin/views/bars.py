"""Rows that the template bars.html draws as bars."""

from __future__ import annotations

from dataclasses import dataclass

from broker_store.units import fields_of
from mqadmin.templatetags import units

MAX_BARS = 12


@dataclass(frozen=True, slots=True)
class Bar:
    """A row that is drawn as a bar."""

    name: str
    value: float
    tone: str


@dataclass(frozen=True, slots=True)
class DrawnBar(Bar):
    """A bar with its length."""

    share: str  # of the largest value, in per cent


def bars(rows: list[Bar]) -> list[DrawnBar]:
    """Return the first rows with their share of the largest, for a bar each."""
    most = max((row.value for row in rows), default=0)
    return [DrawnBar(**fields_of(row), share=units.share(row.value, most)) for row in rows[:MAX_BARS]]
