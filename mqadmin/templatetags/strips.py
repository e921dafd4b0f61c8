"""Strips: drawings of a file or of the log, cell by cell from left to right. A cell with a higher value has a
stronger colour."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from django import template

register = template.Library()

TONES = 5


@dataclass(frozen=True, slots=True)
class StripMark:
    """A mark across a strip."""

    at: float  # a share of the width
    kind: str
    title: str

    @property
    def x(self) -> str:
        """The place in per cent."""
        return f"{self.at * 100:.3f}"


@register.inclusion_tag("strip.html")
def strip(cells, most=1.0, tone="flushed", marks: Sequence[StripMark] = (), label=""):
    """Draw a strip. `cells` are numbers from 0 to `most`, None for unknown; neighbours of one tone become one
    rectangle."""
    runs, at = [], 0
    for level, run in groupby(cells or (), lambda value: _tone(value, most)):
        count = len(list(run))
        if level:
            runs.append(
                {
                    "x": f"{at * 100 / len(cells):.3f}",
                    "width": f"{count * 100 / len(cells):.3f}",
                    "level": level,
                }
            )
        at += count
    return {"runs": runs, "unknown": cells is None, "tone": tone, "marks": marks, "label": label}


def _tone(value: float, most: float) -> int:
    """Return 0 for an empty cell, else 1 to TONES."""
    return 0 if not value or not most else max(1, min(TONES, -int(-value * TONES // most)))
