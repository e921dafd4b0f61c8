"""Scans of the store that take long, one for all callers that ask for the same thing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from broker_store import throttle

FRESH_S = 3.0
MAX_KEPT = 200
Value = TypeVar("Value")


class CachedScans:
    """For threads. A scan serves all callers for FRESH_S, or for `cached_s_per_cpu_s` times the processor
    time that it took, if that is longer. So ten browsers cost one scan, and with 100 they take at most a
    hundredth of a core together. There is one scan at a time. A throttled one (broker_store/throttle.py) goes
    on at full speed while a caller waits that is not throttled."""

    def __init__(self, cached_s_per_cpu_s: int):
        self._cached_s_per_cpu_s = cached_s_per_cpu_s
        self._guard = threading.Lock()
        self._throttled: throttle.Throttle | None = None  # of the scan under way
        self._waiting: set[object] = set()  # callers that are not throttled
        self._kept: dict[Hashable, tuple[float, Hashable, Any]] = {}

    def of(self, key: Hashable, make: Callable[[], Value], mark: Hashable = None) -> Value:
        """What was scanned lately; a caller that comes during a scan waits for it. With a `mark` it serves
        until that is another, and then as long as any."""
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
                        time.monotonic() + max(FRESH_S, self._cached_s_per_cpu_s * took),
                        mark,
                        value,
                    )
                return value
        finally:
            self._waiting.discard(me)

    def _scan(self, make: Callable[[], Value]) -> tuple[Value, float]:
        """What it gave, and the processor time it took."""
        began = time.thread_time()
        self._throttled = throttle.current()
        self._stop_throttling()
        try:
            return make(), time.thread_time() - began
        finally:
            self._throttled = None

    def _stop_throttling(self) -> None:
        """Called by each caller that is not throttled, and by the scan when it begins: neither can miss the
        other."""
        throttled = self._throttled
        if throttled is not None and self._waiting:
            throttled.stop_throttling()
