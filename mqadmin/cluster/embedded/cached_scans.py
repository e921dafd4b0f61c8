"""A cache of long scans of the store: one scan serves all callers that ask for the same."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from broker_store import throttle

FRESH_S = 3.0  # the least time that a result serves
MAX_KEPT = 200
Value = TypeVar("Value")


class CachedScans:
    """A cache of scans, for threads. The result of a scan serves all callers for `fresh_s`, or for
    `cached_s_per_cpu_s` times the processor time that the scan took, if that is longer. So ten browsers cost
    one scan, and with `cached_s_per_cpu_s` = 100 all take at most a hundredth of a core together. There is
    one scan at a time. A throttled scan (broker_store/throttle.py) goes on at full speed while a caller that
    is not throttled waits for it."""

    def __init__(self, cached_s_per_cpu_s: int, fresh_s: float = FRESH_S):
        self._cached_s_per_cpu_s, self._fresh_s = cached_s_per_cpu_s, fresh_s
        self._guard = threading.Lock()
        self._throttled: throttle.Throttle | None = None  # of the scan under way
        self._waiting: set[object] = set()  # callers that are not throttled
        self._kept: dict[Hashable, tuple[float, Hashable, Any]] = {}

    def of(self, key: Hashable, make: Callable[[], Value], mark: Hashable = None) -> Value:
        """Return the result of `make` for `key`, of this call or of a recent one. A caller that comes during
        a scan waits for it. With a `mark`, a result also serves later, as long as the mark is equal."""
        me = object()
        if throttle.current() is None:
            self._waiting.add(me)
            self._stop_throttling()
        try:
            with self._guard:
                until, marked, value = self._kept.get(key, (0.0, None, None))
                if value is None or time.monotonic() > until and (mark is None or mark != marked):
                    if len(self._kept) >= MAX_KEPT:
                        self._kept.clear()
                    value, took = self._scan(make)
                    self._kept[key] = (
                        time.monotonic() + max(self._fresh_s, self._cached_s_per_cpu_s * took),
                        mark,
                        value,
                    )
                return value
        finally:
            self._waiting.discard(me)

    def _scan(self, make: Callable[[], Value]) -> tuple[Value, float]:
        """Return the result of `make`, and the processor time that it took in seconds."""
        began = time.thread_time()
        self._throttled = throttle.current()
        self._stop_throttling()
        try:
            return make(), time.thread_time() - began
        finally:
            self._throttled = None

    def _stop_throttling(self) -> None:
        """Let the scan under way run at full speed, if a caller waits that is not throttled.

        Each such caller calls this, and a scan when it begins, so that neither can miss the other."""
        throttled = self._throttled
        if throttled is not None and self._waiting:
            throttled.stop_throttling()
