"""The store as every part of a check sees it, and the progress of a check."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from broker_store.check.report import CheckReport
from broker_store.engine.disk.disk import Disk


class StoppedError(Exception):
    """Raised when `should_stop` of a check returned True; the check ends with what it has found."""


class Progress:
    """Counts the bytes that are read. Raises StoppedError when the check should stop."""

    def __init__(
        self,
        on_progress: Callable[[int, int, str], None] | None,
        should_stop: Callable[[], bool] | None,
    ):
        self._on_progress, self._should_stop = on_progress, should_stop
        self._done_bytes = 0
        self.total_bytes = 0

    def step(self, name: str, done_bytes: int | None = None) -> None:
        """Report the current step. Without `done_bytes` the count stays: the step reads no log."""
        if done_bytes is not None:
            self._done_bytes = done_bytes
        if self._on_progress:
            self._on_progress(self._done_bytes, self.total_bytes, name)
        if self._should_stop and self._should_stop():
            raise StoppedError


@dataclass(frozen=True, slots=True)
class CheckedStore:
    """The store that is checked, and the report that its findings go into. It does not change during a
    check.

    `limit` is the log offset up to which a store in use is checked, None for one that is not in use. `late`
    is the severity of what the next start makes again by itself (`rules.late_severity`); `beyond` is that of
    units that point after the end of the log.
    """

    root: Path
    log_directory: Path
    disk: Disk
    report: CheckReport
    progress: Progress
    is_unclean: bool
    limit: int | None
    late: str
    beyond: str

    @property
    def is_in_use(self) -> bool:
        return self.limit is not None
