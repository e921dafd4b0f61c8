"""A slave's connection to the HA port of its master (protocol/ha.py).

    connect ──► compare the last record ──► report the end ──► frame head ──► body, into the map ──► report
       ▲              │ differs: stops for good                   │ another offset: closes
       └── 1 s ───────┴────────────────── closed, silent ◄────────┘

The frames of a master's log are received on the loop, by the socket into the map of the log (`LogCopy`).
After each frame the slave reports how far it has the log: up to *wrote*, with SYNC_FLUSH up to *flushed*.

Before each connection the last record of this log is compared with the master's at the same place. A log that
differs is never written to: the copy stops until an administrator decides. An empty log begins where the
master's begins, so a copy is whole.

Source: Apache's `DefaultHAClient`, which compares nothing.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from broker_store.config.store import StoreSettings
from broker_store.engine.log.log_copy import LogCopy
from broker_store.engine.store_protocol import Store
from broker_store.errors import BrokerStoreError, PeerError, StoreError
from broker_store.protocol.ha import FRAME_HEAD, MAX_FRAME_BODY, REPORT
from broker_store.protocol.host_port import split_address

log = logging.getLogger(__name__)
Connection = TypeVar("Connection", bound="Receiving")

RETRY_S = 1.0
CONNECT_TIMEOUT_S = 5.0
_CHECK_S = 0.5
NO_MASTER = "no master is known: none has registered at the name server, and haMasterAddress is not set"


class DifferentLogError(BrokerStoreError):
    """This log is no copy of the master's."""


@dataclass(frozen=True, slots=True)
class MasterAddress:
    """Where a master is: its HA port, and its broker port if that is known."""

    ha: str
    broker: str | None


class MasterQuestions(Protocol):
    """What a slave requests at the broker port of its master. Raises PeerError, OSError or TimeoutError if
    there is no answer."""

    async def compare(self, master: MasterAddress) -> None:
        """Raise DifferentLogError if the end of this log is not in that of the master."""

    async def log_of_master(self, master: MasterAddress) -> tuple[int, int]:
        """Return the log offsets at which the master's log begins and ends."""


class Follower:
    """Copies the log of a master. Loop's thread."""

    def __init__(
        self,
        settings: StoreSettings,
        store: Store,
        copy: LogCopy,
        *,
        find_master: Callable[[], MasterAddress | None],
        ask: MasterQuestions,
        on_lost: Callable[[], None] = lambda: None,
        tls: ssl.SSLContext | None = None,
    ):
        """`on_lost` is called after each attempt that failed: the master may have another address now. With
        `tls` it connects by TLS."""
        self._tls = tls
        self._settings, self._store, self._copy = settings, store, copy
        self._find_master, self._ask, self._on_lost = find_master, ask, on_lost
        self._is_sync = settings.flush_disk_type == "SYNC_FLUSH"
        self._task: asyncio.Task[None] | None = None
        self.master: str | None = None  # the HA port that it is connected to
        self.error: str | None = NO_MASTER  # why nothing is copied; None while connected
        self.has_stopped = False  # for good
        self.received_bytes = 0  # of the log, since the start
        self.heard_s = 0.0  # when the master last sent something (time.monotonic)
        self.master_end: int | None = (
            None  # up to where the master has sent or said that there is nothing more
        )

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Close the connection; what was received after the last whole record is taken away."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _run(self) -> None:
        while True:
            master = self._find_master()
            try:
                if master is None:
                    raise PeerError(NO_MASTER)
                await self._follow(master)
            except DifferentLogError as error:
                return self._stop_for_good(str(error))
            except (OSError, TimeoutError, BrokerStoreError) as error:
                if failure := self._store.flags.get("dispatch_failed"):
                    return self._stop_for_good(failure)
                self._failed(str(error) or f"{type(error).__name__} at {master and master.ha}")
            finally:
                self.master = None
            self._on_lost()
            await asyncio.sleep(RETRY_S)

    def _stop_for_good(self, why: str) -> None:
        self.error, self.has_stopped = why, True
        self._store.set_flag("copy_stopped", why)
        log.error("nothing is copied any more: %s", why)

    def _failed(self, why: str) -> None:
        if self.error != why:
            log.warning("the master's log is not copied now: %s", why)
        self.error = why

    async def _follow(self, master: MasterAddress) -> None:
        """Copy until the connection ends. Raises what ended it."""
        is_empty = self._is_empty
        there = await self._ask.log_of_master(master) if is_empty else None
        if not is_empty:
            await self._ask.compare(master)
        receiving = await self._connect(master, lambda: Receiving(self._copy, self._took))
        try:
            self._begin(there)
            await self._copy_until_end(master, receiving)
        finally:
            receiving.abort()
            self._copy.end()

    @property
    def _is_empty(self) -> bool:
        return self._store.log.wrote == self._store.log.minimum

    async def _connect(self, master: MasterAddress, make: Callable[[], Connection]) -> Connection:
        """Return a connection to the HA port. Raises OSError, TimeoutError, PeerError."""
        host, port = split_address(master.ha)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                _, receiving = await asyncio.get_running_loop().create_connection(
                    make, host, port, ssl=self._tls
                )
        except (OSError, TimeoutError) as failed:
            if self._tls is None or isinstance(failed, ConnectionRefusedError):
                raise
            raise PeerError(
                f"no TLS connection to the HA port {master.ha}: {str(failed) or type(failed).__name__}. A "
                f"master without TLS there, as Apache's, needs haTlsEnable=false at its slave"
            ) from failed
        return receiving

    async def _copy_until_end(self, master: MasterAddress, receiving: Receiving) -> None:
        """Report, and copy what comes, until the connection ends. Raises what ended it."""
        self.master, self.error, self.heard_s = master.ha, None, time.monotonic()
        log.info("the log of the master at %s is copied from %s on", master.ha, f"{self._store.log.wrote:,}")
        reported_s = time.monotonic()
        self._write_report(receiving, self._copy.received)
        while not receiving.ended.done():
            await asyncio.wait([receiving.ended], timeout=_CHECK_S)
            now_s = time.monotonic()
            if now_s - self.heard_s > self._settings.ha_housekeeping_interval / 1000:
                raise PeerError(f"the master at {master.ha} was silent for {now_s - self.heard_s:.0f} s")
            if now_s - reported_s > self._settings.ha_send_heartbeat_interval / 1000:
                reported_s = now_s
                self._report(receiving)
        if error := receiving.ended.result():
            raise error
        raise PeerError(f"the master at {master.ha} closed the connection")

    def _begin(self, there: tuple[int, int] | None) -> None:
        """Prepare the log; `there` is the extent of the master's, for an empty one."""
        own_end = self._copy.begin()
        if there is None:
            return
        begin, end = there
        if begin > own_end:
            self._copy.begin_at(begin)
        elif begin == own_end == 0 < end:
            # Apache's master sends a slave that reports 0 its last file alone
            self._copy.pass_first_byte()

    def _took(self, receiving: Receiving, count: int) -> None:
        """Count bytes that came; of heads too."""
        self.heard_s = time.monotonic()
        self.master_end = receiving.frame_end
        if not count:
            return
        self.received_bytes += count
        if receiving.has_whole_frame:
            self._report_when_safe(receiving)

    def _report_when_safe(self, receiving: Receiving) -> None:
        """Report what came, with SYNC_FLUSH after its sync."""
        if self._is_sync and self._store.flushed < self._store.log.wrote:
            self._store.confirmation.when_confirmed(
                self._store.log.wrote, lambda status: self._report(receiving)
            )
        else:
            self._report(receiving)

    def _report(self, receiving: Receiving) -> None:
        self._write_report(receiving, self._store.flushed if self._is_sync else self._store.log.wrote)

    def _write_report(self, receiving: Receiving, offset: int) -> None:
        if not receiving.transport.is_closing():
            receiving.transport.write(REPORT.pack(offset))


class Receiving(asyncio.BufferedProtocol):
    """One connection: heads into a buffer of its own, bodies into the log."""

    transport: asyncio.Transport
    head_bytes = FRAME_HEAD.size

    def __init__(self, copy: LogCopy, took: Callable[[Receiving, int], None]):
        self._copy, self._took = copy, took
        self._head = bytearray(self.head_bytes)
        self._have = 0  # bytes of the head
        self._body = 0  # bytes that the frame has left
        self.frame_end: int | None = None  # log offset
        self.ended: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

    @property
    def has_whole_frame(self) -> bool:
        """True if nothing of the last frame is missing."""
        return not self._body

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # that of TCP
        self.transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        try:
            if self._body:
                return self._copy.room()[: self._body]
        except StoreError as error:
            self._end(error)
        if self._have == len(self._head):
            self._have = 0  # after an error nothing that comes is used
        return memoryview(self._head)[self._have :]

    def buffer_updated(self, nbytes: int) -> None:
        if self.ended.done():
            return
        try:
            if self._body:
                self._body -= nbytes
                self._copy.took(nbytes)
                self._took(self, nbytes)
            else:
                self._have += nbytes
                if self._have == len(self._head):
                    self._begin_frame()
                    self._took(self, 0)
        except BrokerStoreError as error:
            self._end(error)

    def connection_lost(self, error: Exception | None) -> None:
        self._end(error)

    def abort(self) -> None:
        self.transport.abort()
        self._end(None)

    def _begin_frame(self) -> None:
        """Take the head of a frame. Raises PeerError for one that does not fit."""
        offset, size = FRAME_HEAD.unpack(self._head)
        self._have = 0
        if not 0 <= size <= MAX_FRAME_BODY or offset < 0:
            raise PeerError(f"the HA port sent a frame of {size} bytes at {offset}: it is no master's")
        if offset != self._copy.received:
            raise PeerError(f"the master sends from {offset:,}, and this log ends at {self._copy.received:,}")
        self._body, self.frame_end = size, offset + size

    def _end(self, error: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(error)
            self.transport.abort()
