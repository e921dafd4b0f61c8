"""Looks into the store that take long, one for all who ask for the same thing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable

from broker_store import throttle

FRESH_S = 3.0
MOST_KEPT = 200


class SharedLooks:
    """For threads. A look serves everybody who asks within FRESH_S, or `rest` times the processor time that
    it took; so ten browsers cost one, and all of them together at most a `rest`-th of a core. There is one
    look at a time; one that is gentle hurries while somebody waits who is not (broker_store/throttle.py)."""

    def __init__(self, rest: int):
        self._rest = rest
        self._guard = threading.Lock()
        self._gentle: throttle.Throttle | None = None  # of the look under way
        self._waiting: set[object] = set()  # for it, and in a hurry
        self._kept: dict[Hashable, tuple[float, Hashable, dict]] = {}

    def of(self, key: Hashable, make: Callable[[], dict], mark: Hashable = None) -> dict:
        """What was looked at lately; who comes while a look is under way waits for it. With a `mark` it
        serves until that is another, and then as long as any."""
        me = object()
        if throttle.current() is None:
            self._waiting.add(me)
            self._hurry()
        try:
            with self._guard:
                until, marked, value = self._kept.get(key, (0.0, None, None))
                if value is None or time.monotonic() > until and (mark is None or mark != marked):
                    if len(self._kept) >= MOST_KEPT:
                        self._kept.clear()
                    value, took = self._look(make)
                    self._kept[key] = (time.monotonic() + max(FRESH_S, self._rest * took), mark, value)
                return value
        finally:
            self._waiting.discard(me)

    def _look(self, make: Callable[[], dict]) -> tuple[dict, float]:
        """What it gave, and the processor time it took."""
        began = time.thread_time()
        self._gentle = throttle.current()
        self._hurry()
        try:
            return make(), time.thread_time() - began
        finally:
            self._gentle = None

    def _hurry(self) -> None:
        """By whoever comes, and by the look when it begins: neither can miss the other."""
        gentle = self._gentle
        if gentle is not None and self._waiting:
            gentle.stop_throttling()
