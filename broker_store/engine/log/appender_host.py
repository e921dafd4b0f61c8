"""What the appender asks of the store around it."""

from __future__ import annotations

from typing import Protocol


class AppenderHost(Protocol):
    """The store. All of it is called on the loop."""

    def check_disk(self) -> None:
        """See that there is room, before a new log file is made. Raises DiskFullError."""

    def log_rolled(self) -> None:
        """Note that the log goes on in a new file."""

    def settle(self, stopped: int) -> None:
        """Do what the dispatch kernel stopped for and let it go on."""

    def trouble(self, flag: str, cause: str) -> None:
        """Raise a running flag."""

    def sync_failed(self, cause: str) -> None:
        """Note that a sync failed, which is final."""

    def confirm(self, position: int) -> None:
        """Dispatch what was appended below `position`, and answer those that wait for it."""

    def appended(self, needs_blocks: bool) -> None:
        """Note that a group is in the log and there is something to do: a sync, a waiting pull, or blocks to
        prepare."""
