"""Work in steps, each at its time: delayed messages, transactions, timer messages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from broker_store.broker.step_pacing import PAUSE_MS
from broker_store.errors import StoreError
from broker_store.server.parts import BrokerParts

# The longest wait, so that a clock that jumps, or work that is due later, is checked again.
LONGEST_WAIT_S = 60.0
STEP_RETRY_S = 5.0
_WHAT_WAITS = {
    "delay": "messages with a delay level wait",
    "transactions": "producers are not asked about transactions without an end",
    "revive": "popped messages that are not acknowledged wait",
    "earlier_pops": "what was popped before the start is not known; no message is affected",
    "order": "queues popped in order stay blocked",
    "timer": "timer messages wait; the next start restores missing files of timerlog and timerwheel from "
    "the messages",
}


class Work(Protocol):
    """Work that is done in steps."""

    on_ready: Callable[[], None]  # called if a step is due earlier than the last one returned

    def step(self, now_ms: int) -> int | None:
        """Do what is due. Return when the next step is due, in milliseconds; None if `on_ready` will be
        called for it."""


class RepeatedWork:
    """Repeats the steps of one kind of work.

    If a file of the store makes a step fail, a flag of the store has the reason and what waits. Then the step
    is tried again each STEP_RETRY_S, and not at each arrival.
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
        """Do a step now."""
        now_ms = self._parts.clock()
        next_ms = self._kind.step(now_ms)
        wait_s = LONGEST_WAIT_S if next_ms is None else max(0.0, (next_ms - now_ms) / 1000)
        self._in(min(wait_s, LONGEST_WAIT_S))

    def _soon(self) -> None:
        self._in(0.0)

    def shortly(self) -> None:
        """Do a step in PAUSE_MS, together for all that arrives until then."""
        self._in(PAUSE_MS / 1000)

    def _in(self, wait_s: float) -> None:
        """Schedule the next step in at most `wait_s`, but not earlier than STEP_RETRY_S after one that
        failed."""
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
        # After an unexpected error, which the loop logs, there is another step, too.
        self._in(LONGEST_WAIT_S)
        try:
            self.now()
        except StoreError as error:
            self._failed_s = asyncio.get_running_loop().time()
            self._not_before_s = self._failed_s + STEP_RETRY_S
            self._parts.store.set_flag(f"{self._name}_failed", f"{_WHAT_WAITS[self._name]}: {error}")
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            self._in(0.0)
        else:
            # One step is not enough to clear the flag: it may have left out the work that failed.
            if (
                self._failed_s is not None
                and asyncio.get_running_loop().time() - self._failed_s > 2 * STEP_RETRY_S
            ):
                self._failed_s = None
                self._parts.store.clear_flag(f"{self._name}_failed")
