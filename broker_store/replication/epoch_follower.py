"""A slave in controller mode: its log is cut to the last common epoch before it copies.

    connect ──► greeting ──► history ──► compare epochs ──► report ──► frames
                                             │ own bytes after the common end: the store is cut there, and
                                             │ opened again (`on_cut`)
                                             └ no common epoch: stops for good

The epochs of two logs show where one went on without the other: what follows the common end here was never
confirmed, or the broker would not have lost its role. Where the epochs agree the last records are compared as
well, with those of fixed roles: a master that lost its log's end in a power cut goes on in the same epoch.

Records are shown to consumers when the master says that they are confirmed.

Source: Apache's `AutoSwitchHAClient`, which compares no records.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from typing import Any

from broker_store.config.store import StoreSettings
from broker_store.engine.log.log_copy import LogCopy
from broker_store.engine.store_protocol import Store
from broker_store.errors import BrokerStoreError, PeerError
from broker_store.formats.epochs import common_end, common_epoch
from broker_store.protocol import ha_epochs
from broker_store.protocol.ha_epochs import FrameHead, Greeting, History
from broker_store.replication.epochs import EpochHistory
from broker_store.replication.follower import (
    CONNECT_TIMEOUT_S,
    DifferentLogError,
    Follower,
    MasterAddress,
    MasterQuestions,
    Receiving,
)

log = logging.getLogger(__name__)

_SYNC_CHECK_S = 0.01


class CutFirst(BrokerStoreError):
    """This log has to be cut before it goes on; the store is opened again."""


class EpochFollower(Follower):
    """Copies the log of a master that a controller has elected. Loop's thread."""

    def __init__(
        self,
        settings: StoreSettings,
        store: Store,
        copy: LogCopy,
        *,
        number: int,
        history: EpochHistory,
        find_master: Callable[[], MasterAddress | None],
        ask: MasterQuestions,
        on_cut: Callable[[int], None],
        on_lost: Callable[[], None] = lambda: None,
        tls: ssl.SSLContext | None = None,
    ):
        """`number` is this broker's id. `on_cut` is called with the log offset at which the store has to be
        cut."""
        super().__init__(settings, store, copy, find_master=find_master, ask=ask, on_lost=on_lost, tls=tls)
        self._number, self._history, self._on_cut = number, history, on_cut
        self._confirmed = 0  # by the master
        self.has_fitted = False  # this log was a begin of a master's in this run
        self._receiving: EpochReceiving | None = None

    def connect_again(self) -> None:
        """Close the connection: there is another master now."""
        if self._receiving is not None:
            self._receiving.abort()

    async def _follow(self, master: MasterAddress) -> None:
        """Copy until the connection ends. Raises what ended it."""
        receiving = self._receiving = await self._connect(
            master, lambda: EpochReceiving(self._copy, self._took, self._took_head)
        )
        try:
            settings = self._settings
            greeting = Greeting(self._number, settings.sync_from_last_file, settings.async_learner)
            receiving.transport.write(ha_epochs.write_greeting(greeting))
            waited: list[asyncio.Future[Any]] = [receiving.history, receiving.ended]
            await asyncio.wait(waited, timeout=CONNECT_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
            if not receiving.history.done():
                error = receiving.ended.result() if receiving.ended.done() else None
                raise error or PeerError(f"the master at {master.ha} has sent no epochs")
            await self._fit(master, receiving.history.result())
            self.has_fitted = True
            await self._until_synced()  # a report never goes back
            self._copy.begin()
            self._store.confirmation.flush_listener = lambda: self._synced(receiving)
            await self._copy_until_end(master, receiving)
        finally:
            self._receiving = None
            self._store.confirmation.flush_listener = lambda: None
            receiving.abort()
            self._copy.end()

    async def _fit(self, master: MasterAddress, there: History) -> None:
        """Return if this log is a begin of the master's. Raises DifferentLogError where it cannot become
        one, CutFirst where it has to be cut, PeerError and others if that cannot be said."""
        own_end, own = self._store.log.wrote, self._history.entries
        if self._is_empty:
            return
        if not own:
            raise DifferentLogError(
                "this log has no epochs, so it is not known to be a copy: start with an empty store, or let "
                "the controller elect this broker first"
            )
        end = common_end(own, own_end, there.epochs, there.end)
        common = common_epoch(own, there.epochs)
        if end is None or common is None:
            raise DifferentLogError(
                f"this log and that of the master at {master.ha} have no epoch in common: here "
                f"{_named(own)}, there {_named(there.epochs)}. To copy that log, start with an empty store"
            )
        if end == own_end:
            try:
                await self._ask.compare(master)
                return
            except DifferentLogError as error:
                log.warning("%s; it is cut to the begin of the last common epoch", error)
                end = common.begin
        if end <= self._store.log.minimum:
            raise DifferentLogError(
                f"this log begins at {self._store.log.minimum:,}, and is the master's only up to {end:,}: "
                f"start with an empty store"
            )
        log.warning(
            "this log ends at %s, and is the master's up to %s: it is cut there",
            f"{own_end:,}",
            f"{end:,}",
        )
        self._on_cut(end)
        raise CutFirst(f"the log is cut at {end:,} before it is copied")

    def _took_head(self, head: FrameHead) -> None:
        """Take over the epoch of a frame, and what is confirmed. Raises StoreError, PeerError."""
        at = self._copy.received
        if head.size and head.offset != at:
            if at or not self._is_empty:
                raise PeerError(f"the master sends from {head.offset:,}, and this log ends at {at:,}")
            self._copy.begin_at(head.offset)
            at = head.offset
        # Apache's master states the next epoch with the last bytes of the one before.
        if head.epoch.number > self._history.last and head.epoch.begin <= at:
            self._history.begin(head.epoch)
        self._confirmed = head.confirmed

    def _took(self, receiving: Receiving, count: int) -> None:
        super()._took(receiving, count)
        self._store.confirmation.copied(min(self._confirmed, self._store.log.wrote))

    def _report_when_safe(self, receiving: Receiving) -> None:
        if not self._is_sync:  # else after the sync: what is reported comes before it is confirmed
            self._report(receiving)

    def _synced(self, receiving: Receiving) -> None:
        if self._is_sync:
            self._report(receiving)

    async def _until_synced(self) -> None:
        while self._is_sync and self._store.flushed < self._store.log.wrote:
            await asyncio.sleep(_SYNC_CHECK_S)

    def _write_report(self, receiving: Receiving, offset: int) -> None:
        if not receiving.transport.is_closing():
            receiving.transport.write(ha_epochs.write_report(offset))


class EpochReceiving(Receiving):
    """One connection: the history first, then frames."""

    head_bytes = ha_epochs.HISTORY_HEAD.size

    def __init__(
        self,
        copy: LogCopy,
        took: Callable[[Receiving, int], None],
        took_head: Callable[[FrameHead], None],
    ):
        super().__init__(copy, took)
        self._took_head = took_head
        self._history_head = b""
        self.history: asyncio.Future[History] = asyncio.get_running_loop().create_future()

    def _begin_frame(self) -> None:
        """Take the head of a frame, or of the history, or its entries. Raises PeerError, StoreError."""
        raw, self._have = bytes(self._head), 0
        if self.history.done():
            head = ha_epochs.read_frame_head(raw)
            self._took_head(head)
            self._body, self.frame_end = head.size, max(head.offset, 0) + head.size
            return
        if not self._history_head:
            size = ha_epochs.history_bytes(raw)
            self._history_head = raw
            if size:
                self._head = bytearray(size)
                return
            raw = b""
        self._head = bytearray(ha_epochs.FRAME_HEAD.size)
        self.history.set_result(ha_epochs.read_history(self._history_head, raw))


def _named(epochs: tuple) -> str:
    """Return the newest epochs as a text."""
    return ", ".join(f"{epoch.number} from {epoch.begin:,}" for epoch in epochs[-5:]) or "none"
