"""Throttling of threads that work in the background: scans and writes for which no request waits.

The interpreter and two cores are shared with the event loop. A background thread that computes for tens of
milliseconds delays every send by as much. A throttled thread sleeps between pieces of its work: four times as
long as a piece took (`pause`, which loops over large files and tables call). A thread that is not throttled
does not sleep there, so the same scan runs at full speed where a request waits for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

WORK_SHARE = 0.2  # of the time of a throttled thread
# Shorter work continues without a pause: a sleep and a wake-up cost some 0.05 ms of a core
MIN_WORK_S = 0.00025
# Of one pause. A piece that took longer than a quarter of it probably waited itself, for the disk or a core.
MAX_PAUSE_S = 0.01


class Throttle:
    """Limits one thread to WORK_SHARE of the time. `clock` and `sleep` count seconds."""

    def __init__(
        self, clock: Callable[[], float] = time.perf_counter, sleep: Callable[[float], None] = time.sleep
    ):
        self._clock, self._sleep = clock, sleep
        self._since = clock()
        self._is_stopped = False

    def stop_throttling(self) -> None:
        """Continue at full speed: a request now waits for the result. Called from any thread."""
        self._is_stopped = True

    def pause(self) -> None:
        """Sleep, unless the work since the last pause was short."""
        worked = self._clock() - self._since
        if worked >= MIN_WORK_S and not self._is_stopped:
            self._sleep(min(worked * (1 / WORK_SHARE - 1), MAX_PAUSE_S))
            self._since = self._clock()


_current: ContextVar[Throttle | None] = ContextVar("throttle", default=None)


def throttled_by(throttle: Throttle, function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Call `function` with a throttle of the caller, which can stop the throttling meanwhile; return its
    result."""
    token = _current.set(throttle)
    try:
        return function(*arguments, **named)
    finally:
        _current.reset(token)


def current() -> Throttle | None:
    """Return the throttle of the calling thread, None where it is not throttled."""
    return _current.get()


def in_pieces(entries: Iterable[T], piece: int = 64) -> Iterator[T]:
    """Yield the entries, with a `pause` after each `piece` of them."""
    for number, entry in enumerate(entries, 1):
        yield entry
        if number % piece == 0:
            pause()


def pause() -> None:
    """Pause where the calling thread is throttled; call it between two pieces of work."""
    throttle = _current.get()
    if throttle is not None:
        throttle.pause()
