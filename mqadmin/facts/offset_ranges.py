"""Ranges of offsets of one queue."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Range = tuple[int, int]  # first offset, and the offset after the last


def within(ranges: Iterable[Range], low: int, end: int) -> list[Range]:
    """Return the parts of ranges that lie in [low, end), in order; parts that touch or overlap are joined."""
    merged: list[Range] = []
    for first, after in sorted((max(first, low), min(after, end)) for first, after in ranges):
        if first >= after:
            continue
        if merged and first <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(after, merged[-1][1])
        else:
            merged.append((first, after))
    return merged


def ranges_of(offsets: Sequence[int]) -> list[Range]:
    """Return ordered offsets as ranges."""
    return within(((offset, offset + 1) for offset in offsets), 0, 1 << 63)
