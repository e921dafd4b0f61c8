"""Writes the config files in a thread, one at a time, each in its newest state.

A table passes a function that makes the text, so neither encoding nor the disk delays the loop. A file that
cannot be written, for example because the disk is full, is written again later. Nothing else waits for it,
because the log has all messages.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from broker_store.errors import BrokerStoreError
from broker_store.throttle import Throttle, throttled_by

log = logging.getLogger(__name__)

RETRY_S = 5.0


class ConfigWriter:
    """Saves config files. `write(name, data)` is the store's."""

    def __init__(self, write: Callable[[str, bytes], None]):
        self._write = write
        self._waiting: dict[str, Callable[[], bytes]] = {}
        self._writing = ""
        self._task: asyncio.Task | None = None
        self._throttle: Throttle | None = None  # of the encoding that runs now
        self._is_closing = False
        self.failed: dict[str, str] = {}

    def save(self, name: str, make_text: Callable[[], bytes]) -> None:
        """Write a file soon. It replaces an earlier text of the same file that is still waiting."""
        self._waiting[name] = make_text
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._write_all())

    def is_under_way(self, name: str) -> bool:
        """Return True if a saved file is not written yet."""
        return name in self._waiting or name == self._writing

    async def _write_all(self) -> None:
        while self._waiting:
            self._writing = name = next(iter(self._waiting))
            make_text = self._waiting.pop(name)
            try:
                await asyncio.to_thread(self._write_one, name, make_text)
                self.failed.pop(name, None)
            except (BrokerStoreError, OSError) as error:
                self.failed[name] = str(error)
                log.warning("config/%s could not be written, it is tried again: %s", name, error)
                self._waiting.setdefault(name, make_text)
                await asyncio.sleep(RETRY_S)
            finally:
                self._writing = ""

    def _write_one(self, name: str, make_text: Callable[[], bytes]) -> None:
        """Encode and write a file. The thread encodes at a fifth of its speed, because it shares the
        interpreter with the loop."""
        self._throttle = throttle = Throttle()
        if self._is_closing:
            throttle.stop_throttling()
        self._write(name, throttled_by(throttle, make_text))

    async def close(self, limit_s: float = 1.0) -> None:
        """Wait at most `limit_s` seconds until all is written."""
        self._is_closing = True
        if self._throttle is not None:
            self._throttle.stop_throttling()
        if self._task is not None and not self._task.done():
            done, _ = await asyncio.wait({self._task}, timeout=limit_s)
            if not done:
                self._task.cancel()
                log.warning(
                    "config files not written at the end: %s",
                    ", ".join(dict.fromkeys(name for name in (self._writing, *self._waiting) if name)),
                )
