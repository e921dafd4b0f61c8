"""Work over large tables on the event loop, cut into turns so that a send waits for at most one of them.

A scan of a table of 100,000 entries takes a tenth of a second in Python. `in_turns` yields it in pieces:
after TURN_S the loop runs other work before the next piece. The pieces come from a copy of the table as it
was at the beginning, so an entry may be removed from the table before its piece is yielded.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from typing import Any, TypeVar

TURN_S = 0.002
THREAD_S = 0.02
PIECE = 64  # entries between two readings of the clock

Entry = TypeVar("Entry")
Steps = Generator[Any, Any, Any]


async def in_turns(entries: Sequence[Entry], piece: int = PIECE) -> AsyncIterator[Sequence[Entry]]:
    """Yield the entries in pieces of `piece`; after TURN_S the loop runs other work before the next."""
    until_s = time.perf_counter() + TURN_S
    for begin in range(0, len(entries), piece):
        yield entries[begin : begin + piece]
        if time.perf_counter() >= until_s:
            await asyncio.sleep(0)
            until_s = time.perf_counter() + TURN_S


async def steps_in_turns(steps: Steps) -> None:
    """Take all steps of a generator that yields no functions; after TURN_S the loop runs other work."""
    until_s = time.perf_counter() + TURN_S
    for _ in steps:
        if time.perf_counter() >= until_s:
            await asyncio.sleep(0)
            until_s = time.perf_counter() + TURN_S


class StepsInTurn:
    """Takes the steps of generators, one generator after another, for TURN_S in each turn of the loop.

    A function that a step yields is called in a thread; its result is sent to the generator, or its exception
    raised there. Work that ends within its first turn, with no other before it, is done when `take` returns.
    """

    def __init__(self, after_turn: Callable[[], None] = lambda: None) -> None:
        """`after_turn` is called after each turn of work that takes more than one, and each THREAD_S while a
        function of it runs in a thread."""
        self._after_turn = after_turn
        self._waiting: deque[tuple[Steps, Callable[[Any, Exception | None], None]]] = deque()
        self._task: asyncio.Task | None = None

    def take(self, steps: Steps, done: Callable[[Any, Exception | None], None]) -> None:
        """Take the steps, then call `done(result, None)` or `done(None, error)`."""
        if self._task is None or self._task.done():
            is_over, wanted = _some(steps, None, done)
            if is_over:
                return
            self._waiting.append((steps, done))
            self._task = asyncio.get_running_loop().create_task(self._take_all(wanted), name="steps")
        else:
            self._waiting.append((steps, done))

    async def _take_all(self, wanted: Callable[[], object] | None) -> None:
        while self._waiting:
            steps, done = self._waiting[0]
            is_over = False
            while not is_over:
                self._after_turn()
                if wanted is None:
                    await asyncio.sleep(0)
                    is_over, wanted = _some(steps, None, done)
                    continue
                try:
                    found, error = await self._in_thread(wanted), None
                except Exception as raised:  # raised in the generator, which handles it
                    found, error = None, raised
                is_over, wanted = _some(steps, found, done, error)
            self._waiting.popleft()
            wanted = None

    async def _in_thread(self, function: Callable[[], object]) -> object:
        work = asyncio.ensure_future(asyncio.to_thread(function))
        try:
            while not work.done():
                await asyncio.wait({work}, timeout=THREAD_S)
                self._after_turn()
            return work.result()
        finally:
            work.cancel()

    async def stop(self) -> None:
        """Cancel what is not done."""
        self._waiting.clear()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


def _some(
    steps: Steps,
    sent: object,
    done: Callable[[Any, Exception | None], None],
    error: Exception | None = None,
) -> tuple[bool, Callable[[], object] | None]:
    """Take steps for TURN_S; return whether all are done, and the function that the last one yielded."""
    until_s = time.perf_counter() + TURN_S
    try:
        while True:
            wanted = steps.send(sent) if error is None else steps.throw(error)
            sent = error = None
            if callable(wanted):
                return False, wanted
            if time.perf_counter() >= until_s:
                return False, None
    except StopIteration as end:
        done(end.value, None)
    except Exception as raised:  # `done` handles it, as it handles the result
        done(None, raised)
    return True, None
