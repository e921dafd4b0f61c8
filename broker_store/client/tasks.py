"""A message that is being handled, and the results of handling."""

from __future__ import annotations

import asyncio

from broker_store.client import tracing
from broker_store.client.assigned_queue import AssignedQueue
from broker_store.client.handling import GiveUp, RetryLater
from broker_store.client.message import ReceivedMessage
from broker_store.client.send_back import TO_DEAD_LETTERS


class Task:
    """A message to be handled. `outcome` is a future if the reader of an orderly queue waits for the result
    of a loop."""

    __slots__ = ("assigned", "handled", "message", "outcome")

    def __init__(self, assigned: AssignedQueue, message: ReceivedMessage):
        self.assigned, self.message = assigned, message
        self.outcome: asyncio.Future[Exception | None] | None = None
        self.handled: tracing.Handled | None = None

    def release(self) -> None:
        """Complete the outcome of a message that is not handled here, so that it is delivered again."""
        if self.outcome is not None and not self.outcome.done():
            self.outcome.set_result(RetryLater())


def send_back_level(problem: Exception) -> int:
    """Return the delay level at which a message that was not consumed is sent back."""
    if isinstance(problem, GiveUp):
        return TO_DEAD_LETTERS
    return problem.level if isinstance(problem, RetryLater) else 0


def return_code(problem: Exception | None) -> int:
    """Return the result of handling as Java's number in a trace."""
    if problem is None:
        return tracing.CONSUMED
    return tracing.TO_COME_AGAIN if isinstance(problem, (RetryLater, GiveUp)) else tracing.FAILED
