"""A budget of frames or records that cost work and have no request: it bounds floods of them."""

from __future__ import annotations


class Budget:
    """A number of events that are allowed at once; it grows again with time and with useful work."""

    __slots__ = ("_most", "_per_s", "_left", "_filled_s")

    def __init__(self, most: int, per_s: int, now_s: float):
        self._most, self._per_s = float(most), per_s
        self._left = self._most
        self._filled_s = now_s

    def spend(self, cost: int, now_s: float) -> bool:
        """Take `cost` from the budget. Return False if so much is not left."""
        if self._left < cost:
            self.earn((now_s - self._filled_s) * self._per_s)
            self._filled_s = now_s
        self._left -= cost
        return self._left >= 0

    def earn(self, credit: float) -> None:
        """Add `credit`, up to the whole budget."""
        left = self._left + credit
        self._left = left if left < self._most else self._most
