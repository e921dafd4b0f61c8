"""Work of the broker that is done in steps, each at its time: delayed messages, transactions, the timer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from broker_store.broker.step_pacing import PAUSE_MS
from broker_store.errors import StoreError
from broker_store.server.parts import BrokerParts

# A clock that jumps, or what becomes due beyond this, is looked at again at the latest then.
LONGEST_WAIT_S = 60.0
STEP_RETRY_S = 5.0
_WHAT_WAITS = {
    "delay": "messages with a delay level wait",
    "transactions": "transactions without an end are not asked for",
    "timer": "messages with a time wait; the next start makes missing files of timerlog and timerwheel from "
    "the messages",
}


class Work(Protocol):
    """Work in steps."""

    on_ready: Callable[[], None]  # called when a step is due earlier than the last one said

    def step(self, now_ms: int) -> int | None:
        """Do what is due. Return when the next step is due, in milliseconds; None if that is not known."""


class RepeatedWork:
    """Repeats the `step(now_ms)` of one kind of work: it says when to come again (ms), None when its
    `on_ready` will tell.

    While a file of the store fails it, the store has a flag that says what waits, and the step is tried each
    STEP_RETRY_S, whatever arrives.
    """

    def __init__(self, name: str, kind: Work, parts: BrokerParts):
        self._name, self._kind, self._parts = name, kind, parts
        self._failed_s: float | None = None  # on the loop's clock
        self._timer: asyncio.TimerHandle | None = None
        self._at_s = self._not_before_s = 0.0

    def start(self) -> None:
        self._kind.on_ready = self._soon
        self._soon()

    def stop(self) -> None:
        self._kind.on_ready = lambda: None
        if self._timer is not None:
            self._timer.cancel()

    def now(self) -> None:
        """Take the step that is due."""
        now_ms = self._parts.clock()
        next_ms = self._kind.step(now_ms)
        wait_s = LONGEST_WAIT_S if next_ms is None else max(0.0, (next_ms - now_ms) / 1000)
        self._in(min(wait_s, LONGEST_WAIT_S))

    def _soon(self) -> None:
        self._in(0.0)

    def shortly(self) -> None:
        """Have a step in a moment: what arrives until then is taken together."""
        self._in(PAUSE_MS / 1000)

    def _in(self, wait_s: float) -> None:
        """Have the next step no later than in `wait_s`, or than STEP_RETRY_S after one that failed."""
        loop = asyncio.get_running_loop()
        at_s = max(loop.time() + wait_s, self._not_before_s)
        if self._timer is not None:
            if self._at_s <= at_s:
                return
            self._timer.cancel()
        self._at_s = at_s
        self._timer = loop.call_at(at_s, self._run)

    def _run(self) -> None:
        self._timer = None
        # A step that fails in a way that was not foreseen is told by the loop, and is not the last one
        self._in(LONGEST_WAIT_S)
        try:
            self.now()
        except StoreError as error:
            self._failed_s = asyncio.get_running_loop().time()
            self._not_before_s = self._failed_s + STEP_RETRY_S
            self._parts.store.trouble(f"{self._name}_failed", f"{_WHAT_WAITS[self._name]}: {error}")
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            self._in(0.0)
        else:
            # A step may have left out what failed before.
            if (
                self._failed_s is not None
                and asyncio.get_running_loop().time() - self._failed_s > 2 * STEP_RETRY_S
            ):
                self._failed_s = None
                self._parts.store.trouble_over(f"{self._name}_failed")
