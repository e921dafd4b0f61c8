"""The longest turn of an asyncio loop, by processor time of its thread, so that what else runs on the machine
counts little."""

from __future__ import annotations

import asyncio
import gc
import json
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager


class Longest:
    """`ms` is the processor time of the longest callback so far, `what` its description; `all_ms` is that of
    all callbacks.

    `reading_ms` is the time of a reading of 1 MiB of plain JSON, after it is done.
    """

    def __init__(self) -> None:
        self.ms = self.all_ms = self.reading_ms = 0.0
        self.what = ""


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Keep the collector out of what is measured: it walks the whole process, 0.4 s after thousands of
    tests."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


# 1.04 MiB of plain JSON. How long this Python takes to read it says how fast the machine is at this moment.
_PLAIN = json.dumps([{"topic": f"t{number}", "queue": number} for number in range(30_000)])


class Taken:
    """`readings` is the processor time of a thread, in readings of 1 MiB of plain JSON."""

    readings = 0.0


@contextmanager
def time_taken() -> Iterator[Taken]:
    """Measure what this thread does, and a reading before and after it: a bound holds on a slow machine too.

    Within `no_garbage_collection`, which collects once and so is not part of this.
    """
    taken = Taken()
    before = _reading_s()
    began = time.thread_time()
    yield taken
    took = time.thread_time() - began
    taken.readings = took / max(before, _reading_s())


def _reading_s() -> float:
    began = time.thread_time()
    json.loads(_PLAIN)
    return time.thread_time() - began


@contextmanager
def longest_turn(monkeypatch) -> Iterator[Longest]:
    """Measure each callback that the loop runs. What the garbage collector does is another matter, and is
    left out."""
    longest = Longest()
    run = asyncio.Handle._run

    def measured(handle: asyncio.Handle) -> None:
        began = time.thread_time_ns()
        run(handle)
        took_ms = (time.thread_time_ns() - began) / 1e6
        longest.all_ms += took_ms
        if took_ms > longest.ms:
            longest.ms, longest.what = took_ms, repr(handle)[:300]

    with no_garbage_collection(), monkeypatch.context() as patch:
        before = _reading_s()
        patch.setattr(asyncio.Handle, "_run", measured)
        yield longest
        longest.reading_ms = max(before, _reading_s()) * 1e3


async def in_short_turns(
    monkeypatch, act: Callable[[int], Awaitable], is_short: Callable[[Longest], bool]
) -> object:
    """Do `act(number)` up to three times, until `is_short` holds of its longest turn, and return what it
    returned.

    A machine that stands still during a turn makes that turn long once; work that is not cut into turns is
    long each time.
    """
    for number in range(3):
        with longest_turn(monkeypatch) as longest:
            result = await act(number)
        if is_short(longest):
            return result
    raise AssertionError((longest.ms, longest.all_ms, longest.reading_ms, longest.what, result))
