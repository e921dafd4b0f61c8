"""The type of a handler of messages, and the exceptions by which it decides about one.

A handler that returns has consumed the message. Any other exception means that it failed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from broker_store.client.message import ReceivedMessage

Handler = Callable[[ReceivedMessage], Awaitable[None] | None]


class RetryLater(Exception):
    """Raised by a handler to get the message again later. No traceback is logged.

    A concurrent consumer uses `level`: 0 for the broker's own increasing delays, else the delay level (3 is
    10 s, 18 is 2 h, unless the broker's settings differ). An orderly consumer tries again itself, after
    `after_s` seconds, or after one if it is None.
    """

    def __init__(self, level: int = 0, *, after_s: float | None = None):
        self.level, self.after_s = level, after_s
        super().__init__(f"again at delay level {level}" if level else "again later")


class GiveUp(Exception):
    """Raised by a handler when no further attempt can succeed: the message goes to the group's dead letters
    now."""
