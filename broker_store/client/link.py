"""One connection to a server: asyncio around the protocol core.

Many requests may be under way on a link; each waits for the answer with its opaque number. The server sends
requests too (rebalance notices, offset resets). They go to `on_request`, and its answer, if any, is written.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from pathlib import Path

from broker_store.client.errors import ConnectionLost, RequestTimeout
from broker_store.errors import PeerError, ProtocolError
from broker_store.protocol import host_port
from broker_store.protocol.command import Command
from broker_store.protocol.connection import Connection
from broker_store.protocol.framing import MAX_FRAME_BYTES, encode_frame
from broker_store.protocol.tls import ClientCertificate, client_context

log = logging.getLogger(__name__)

OnRequest = Callable[[Command, "Link"], None]

# Above this much unsent data `drained` waits.
HIGH_WATER_BYTES = 1 << 20
# Nothing came for so long after a request: the network may have forgotten the connection.
FORGOTTEN_S = 10.0
_OPAQUE_MASK = 0x7FFFFFFF


class Link(asyncio.Protocol):
    """An open connection to `address` (host:port)."""

    def __init__(self, address: str, on_request: OnRequest):
        self.address = address
        self._on_request = on_request
        self._loop = asyncio.get_running_loop()
        # The answer to a batch names the place of each of its messages in its header.
        self._connection = Connection(max_header_bytes=MAX_FRAME_BYTES)
        self._transport: asyncio.Transport | None = None
        self._waiting: dict[int, asyncio.Future[Command]] = {}
        self._opaque = 0
        self._asked_s: float | None = None  # when the first request was written after something came
        self._writable = asyncio.Event()
        self._writable.set()
        self._ended: asyncio.Future[None] = self._loop.create_future()

    # Callbacks of asyncio

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # that of TCP
        # No isinstance: the transports of uvloop are no subclass of asyncio.Transport.
        self._transport = transport
        transport.set_write_buffer_limits(high=HIGH_WATER_BYTES)

    def data_received(self, data: bytes) -> None:
        self._asked_s = None
        try:
            commands = self._connection.receive(data)
        except ProtocolError as error:
            log.warning("%s sent what is no frame, closing: %s", self.address, error)
            if self._transport is not None:
                self._transport.abort()
            return
        for command in commands:
            if command.flag & 1:
                future = self._waiting.pop(command.opaque, None)
                if future is not None and not future.done():
                    future.set_result(command)
            else:
                self._on_request(command, self)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, error: Exception | None) -> None:
        self._writable.set()
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(ConnectionLost(f"the connection to {self.address} ended"))
        if not self._ended.done():
            self._ended.set_result(None)

    # Calls of the client

    @property
    def closed(self) -> bool:
        return self._open_transport() is None

    async def drained(self) -> None:
        """Wait until the server has read most of what was written."""
        await self._writable.wait()

    def write(self, command: Command) -> None:
        """Write a command that waits for no answer. Raises ConnectionLost."""
        transport = self._open_transport()
        if transport is None:
            raise ConnectionLost(f"the connection to {self.address} ended")
        transport.write(encode_frame(command))

    def _open_transport(self) -> asyncio.Transport | None:
        transport = self._transport
        return None if transport is None or transport.is_closing() else transport

    async def request(self, command: Command, timeout: float) -> Command:
        """Write a request and wait at most `timeout` seconds. Raises ConnectionLost, RequestTimeout."""
        if not self._writable.is_set():
            await self._wait_writable(timeout)
        opaque = self._opaque = (self._opaque + 1) & _OPAQUE_MASK
        command.opaque = opaque
        self.write(command)
        future: asyncio.Future[Command] = self._loop.create_future()
        self._waiting[opaque] = future
        if self._asked_s is None:
            self._asked_s = self._loop.time()
        timer = self._loop.call_later(timeout, self._time_out, opaque, command.code, timeout)
        try:
            return await future
        finally:
            timer.cancel()
            self._waiting.pop(opaque, None)

    async def _wait_writable(self, timeout: float) -> None:
        try:
            async with asyncio.timeout(timeout):
                await self._writable.wait()
        except TimeoutError:
            raise RequestTimeout(f"{self.address} did not read for {timeout:g} s") from None

    def _time_out(self, opaque: int, code: int, timeout: float) -> None:
        future = self._waiting.pop(opaque, None)
        if future is not None and not future.done():
            future.set_exception(
                RequestTimeout(f"{self.address} did not answer request {int(code)} in {timeout:g} s")
            )
        if self._asked_s is not None and self._loop.time() - self._asked_s >= FORGOTTEN_S:
            transport = self._open_transport()
            if transport is not None:  # the next request opens another
                log.warning("nothing comes from %s on this connection, closing it", self.address)
                transport.abort()

    async def close(self) -> None:
        """End the connection after what was written has left, within a second."""
        if self._transport is None:
            return
        self._transport.close()
        done, _ = await asyncio.wait([self._ended], timeout=1.0)
        if not done:
            self._transport.abort()


def tls_context(
    authorities: str | None = None,
    *,
    certificate: str | None = None,
    key: str | None = None,
    key_password: str = "",
) -> ssl.SSLContext:
    """Return what clients need as `tls`. `authorities` is a file in PEM, one of whose certificates must have
    signed the server's. Without it any certificate is accepted, as by Apache's clients: that protects against
    readers, not against impostors. `certificate` and `key` are files in PEM for servers that ask clients for
    one (tls.server.need.client.auth); without `key` both are in one file. Raises OSError, and ValueError for
    files without what is needed."""
    own = ClientCertificate(certificate, key or certificate, key_password) if certificate else None
    return client_context(None if authorities is None else Path(authorities).read_text("ascii"), own)


async def open_link(
    address: str, on_request: OnRequest, timeout: float, tls: ssl.SSLContext | None = None
) -> Link:
    """Connect. Raises ConnectionLost."""
    host, port = split_address(address)
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout):
            _, link = await loop.create_connection(lambda: Link(address, on_request), host, port, ssl=tls)
    except TimeoutError:
        raise ConnectionLost(f"no connection to {address} within {timeout:g} s") from None
    except OSError as error:
        raise ConnectionLost(f"no connection to {address}: {error}") from None
    return link


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of `host:port` or `[v6]:port`. Raises ConnectionLost: addresses come from servers
    too."""
    try:
        return host_port.split_address(address)
    except PeerError as error:
        raise ConnectionLost(str(error)) from None
