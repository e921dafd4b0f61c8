"""How much of its time a thread works that looks at something nobody waits for.

A look that is made again and again while a page is open has time, and whoever sends a message meanwhile has
not: with two cores each piece of the look takes one from the loop or from its clients, and a thread that runs
on for tens of milliseconds takes it for as long. Under `gently` the thread rests between pieces (`rest`,
which loops over large files call), four times as long as a piece took. Elsewhere `rest` does nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import ParamSpec, TypeVar

P, T = ParamSpec("P"), TypeVar("T")

SHARE = 0.2  # of the time, that it works
LEAST_S = 0.00025  # a shorter piece goes on: to fall asleep and wake up costs some 0.05 ms of a core
MOST_REST_S = 0.01  # a piece that took longer waited for something itself


class Pace:
    """Of one thread."""

    def __init__(
        self, clock: Callable[[], float] = time.perf_counter, sleep: Callable[[float], None] = time.sleep
    ):
        self._clock, self._sleep = clock, sleep
        self._since = clock()
        self._hurries = False

    def hurry(self) -> None:
        """No more rests: somebody waits after all. From any thread."""
        self._hurries = True

    def rest(self) -> None:
        worked = self._clock() - self._since
        if worked >= LEAST_S and not self._hurries:
            self._sleep(min(worked * (1 / SHARE - 1), MOST_REST_S))
            self._since = self._clock()


_current: ContextVar[Pace | None] = ContextVar("pace", default=None)


def gently(function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """`function`, which rests between its pieces."""
    return at_pace(Pace(), function, *arguments, **named)


def at_pace(pace: Pace, function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """As `gently`, with the pace of a caller who may have to `hurry` it."""
    token = _current.set(pace)
    try:
        return function(*arguments, **named)
    finally:
        _current.reset(token)


def current() -> Pace | None:
    """Of the look that this thread makes gently; None elsewhere."""
    return _current.get()


def in_pieces(entries: Iterable[T], few: int = 64) -> Iterator[T]:
    """Yield the entries, with a `rest` after each `few` of them."""
    for number, entry in enumerate(entries, 1):
        yield entry
        if number % few == 0:
            rest()


def rest() -> None:
    """Between two pieces of a look."""
    pace = _current.get()
    if pace is not None:
        pace.rest()
