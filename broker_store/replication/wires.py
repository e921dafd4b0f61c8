"""What a feeder and a slave say to each other, with fixed roles (protocol/ha.py) and in controller mode
(protocol/ha_epochs.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from broker_store.protocol import ha, ha_epochs
from broker_store.replication.epochs import EpochHistory

if TYPE_CHECKING:
    from broker_store.replication.feeder import Slave


class Wire(Protocol):
    """One of the two protocols. Feeder's thread."""

    report_bytes: int

    def take(self, slave: Slave, log_end: int) -> int | None:
        """Take what a slave has sent; return its last report, None without one. Raises ProtocolError."""

    def end_of_frame(self, offset: int) -> int | None:
        """Return the log offset at which a frame that begins at `offset` must end, None without such."""

    def head(self, slave: Slave, offset: int, size: int) -> bytes:
        """Return the head of a frame."""

    def has_news(self, slave: Slave) -> bool:
        """Return True if a heartbeat would state more than the last frame did."""


class PlainWire:
    """Fixed roles."""

    report_bytes = ha.REPORT.size

    def take(self, slave: Slave, log_end: int) -> int | None:
        return ha.last_report(slave.received)

    def end_of_frame(self, offset: int) -> int | None:
        return None

    def head(self, slave: Slave, offset: int, size: int) -> bytes:
        return ha.FRAME_HEAD.pack(offset, size)

    def has_news(self, slave: Slave) -> bool:
        return False


class EpochWire:
    """Controller mode: the slave greets with its id and gets the epochs of this log."""

    report_bytes = ha_epochs.REPORT.size

    def __init__(self, history: EpochHistory, confirmed: Callable[[], int]):
        """`confirmed` returns up to where the log is confirmed; any thread."""
        self._history, self._confirmed = history, confirmed

    def take(self, slave: Slave, log_end: int) -> int | None:
        if slave.number is None:
            greeting = ha_epochs.take_greeting(slave.received)
            if greeting is None:
                return None
            slave.number, slave.is_learner = greeting.number, greeting.is_learner
            slave.from_last_file = greeting.from_last_file
            slave.head = ha_epochs.write_history(self._history.entries, log_end)
        return ha_epochs.last_report(slave.received)

    def end_of_frame(self, offset: int) -> int | None:
        return self._history.at(offset)[1]

    def head(self, slave: Slave, offset: int, size: int) -> bytes:
        slave.told_confirmed = self._confirmed()
        return ha_epochs.write_frame_head(size, offset, self._history.at(offset)[0], slave.told_confirmed)

    def has_news(self, slave: Slave) -> bool:
        return self._confirmed() > slave.told_confirmed
