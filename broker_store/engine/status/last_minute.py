"""A number for each of the last seconds: the largest that was noted, or the sum.

One thread writes. Any thread reads: a place of the ring is a tuple, which is replaced as a whole.
"""

from __future__ import annotations

KEPT_SECONDS = 60


class LastMinute:
    """Seconds are whole seconds of one clock, which may go back."""

    def __init__(self) -> None:
        self._ring: list[tuple[int, float]] = [(-1, 0)] * KEPT_SECONDS

    def note_largest(self, second: int, value: float) -> None:
        place = second % KEPT_SECONDS
        kept, largest = self._ring[place]
        if kept != second or value > largest:
            self._ring[place] = (second, value)

    def add(self, second: int, value: float) -> None:
        place = second % KEPT_SECONDS
        kept, total = self._ring[place]
        self._ring[place] = (second, value + total if kept == second else value)

    def values(self, second: int) -> list[float | None]:
        """Return the numbers of the KEPT_SECONDS seconds that end with `second`, oldest first; None where
        none was noted."""
        ring = list(self._ring)
        wanted = range(second - KEPT_SECONDS + 1, second + 1)
        return [value if kept == at else None for at in wanted for kept, value in (ring[at % KEPT_SECONDS],)]

    def largest(self, second: int) -> float | None:
        """Return the largest of `values`; None when nothing was noted."""
        return max((value for value in self.values(second) if value is not None), default=None)
