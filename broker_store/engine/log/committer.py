"""Committing: what was appended to a buffer of the pool is copied to its file (transientStorePoolEnable).

    log     ...............flushed.........committed.........wrote
            | on the disk  | in the file,  | in a buffer of
            |              | shown         | this process

A kill of the process loses what is not committed. So no consumer, no slave and no sync gets it.
"""

from __future__ import annotations

from collections.abc import Callable

from broker_store.engine.disk.system import PAGE
from broker_store.engine.log.commit_log import CommitLog


class LogCommitter:
    """The step that commits, by Apache's rule: when `least_pages` are appended or a file is full, or after
    `thorough_ms` what is there. `on_committed(position)` is called in the worker's thread."""

    def __init__(
        self,
        log: CommitLog,
        stored: Callable[[], int],
        on_committed: Callable[[int], None],
        *,
        least_pages: int,
        thorough_ms: int,
    ):
        self._log, self._stored, self._on_committed = log, stored, on_committed
        self._least_pages, self._thorough_ms = least_pages, thorough_ms
        self._last_ms = 0
        # Of the messages of this run, how many at least are committed. Written by the worker's thread.
        self.messages = 0

    def step(self, now_ms: int) -> bool:
        # The count first: what is committed below then has at least as many.
        stored = self._stored()
        wrote, committed = self._log.wrote, self._log.committed
        is_due = not 0 <= now_ms - self._last_ms < self._thorough_ms
        if is_due:
            self._last_ms = now_ms
        is_due |= wrote // self._log.file_size > committed // self._log.file_size  # a file is full
        if wrote <= committed or (not is_due and wrote // PAGE - committed // PAGE < self._least_pages):
            return False
        self._log.commit(wrote)
        self.messages = stored
        self._last_ms = now_ms
        self._on_committed(wrote)
        return False
