"""What a handler of messages is, and what it can say about one beside "done" (it returns) and "failed" (it
raises)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from broker_store.client.message import ReceivedMessage

Handler = Callable[[ReceivedMessage], Awaitable[None] | None]


class RetryLater(Exception):
    """Raised by a handler: bring the message again, and this is no failure worth a traceback.

    A concurrent consumer uses `level`: 0 for the broker's own growing steps, else the delay level (3 is
    10 s, 18 is 2 h, unless the broker's settings say otherwise). An orderly consumer, which tries again on
    the spot, pauses for `after_s` seconds, one when it is None.
    """

    def __init__(self, level: int = 0, *, after_s: float | None = None):
        self.level, self.after_s = level, after_s
        super().__init__(f"again at delay level {level}" if level else "again later")


class GiveUp(Exception):
    """Raised by a handler: no further attempt can help, so the message goes to the group's dead letters
    now."""
