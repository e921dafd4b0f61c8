"""Sends with an Idempotency-Key, and their answers for a caller that repeats one.

A caller that lost an answer repeats its request with the same key. It gets the first answer, and nothing is
stored again. If the first request is still in progress, the repeat waits for it. A request that was refused
as a whole is forgotten, because nothing was stored and a repeat may succeed.

Keys are kept in memory for ten minutes, up to MAX_RECEIPTS receipts; the oldest are dropped first. A repeat
after that, or after a restart, is a new send. All clients of this broker have at-least-once delivery; this
makes duplicates rarer.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from broker_store.rest.problems import Problem

KEPT_S = 600.0
MAX_RECEIPTS = 20_000
MAX_KEY_CHARACTERS = 255

Place = tuple[str, str, str]


def read_key(header: bytes | None) -> str | None:
    """Return the value of an Idempotency-Key header. Raises Problem if it is not a short visible text."""
    if header is None:
        return None
    key = header.decode("latin-1").strip()
    if not (0 < len(key) <= MAX_KEY_CHARACTERS and key.isascii() and key.isprintable()):
        raise Problem("invalid", f"Idempotency-Key wants 1 to {MAX_KEY_CHARACTERS} visible ASCII characters")
    return key


@dataclass(slots=True)
class _Sent:
    digest: bytes
    until: float
    task: asyncio.Task
    receipts: int = 1


class Repeats:
    """The recently used keys, by caller and topic."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        # In the order of their first use, which is the order in which they end
        self._sent: dict[Place, _Sent] = {}
        self._receipts = 0

    async def once(
        self, caller: str, topic: str, key: str, body: bytes, send: Callable[[], Awaitable[dict]]
    ) -> dict:
        """Return the answer of `send`, or that of an earlier equal request. Raises Problem if the key came
        with another body."""
        now = self._clock()
        self._forget(lambda sent: sent.until <= now)
        place, digest = (caller, topic, key), hashlib.sha256(body).digest()
        sent = self._sent.get(place)
        if sent is None:
            sent = self._sent[place] = _Sent(digest, now + KEPT_S, asyncio.ensure_future(send()))
            self._receipts += 1
            sent.task.add_done_callback(lambda task: self._answered(place, sent))
        elif sent.digest != digest:
            raise Problem("key_reused", f"Idempotency-Key {key[:60]} went with another body to topic {topic}")
        # A caller who goes away does not stop what others may be waiting for.
        return await asyncio.shield(sent.task)

    def _answered(self, place: Place, sent: _Sent) -> None:
        if sent.task.cancelled() or sent.task.exception() is not None:
            self._drop(place, sent)
            return
        if self._sent.get(place) is sent:
            more = max(1, len(sent.task.result().get("results", ()))) - sent.receipts
            sent.receipts += more
            self._receipts += more
            self._forget(lambda _: self._receipts > MAX_RECEIPTS)

    def _forget(self, ends: Callable[[_Sent], bool]) -> None:
        """Drop the oldest for as long as `ends` says so of it."""
        while self._sent:
            place, sent = next(iter(self._sent.items()))
            if not ends(sent):
                return
            self._drop(place, sent)

    def _drop(self, place: Place, sent: _Sent) -> None:
        if self._sent.get(place) is sent:
            del self._sent[place]
            self._receipts -= sent.receipts
