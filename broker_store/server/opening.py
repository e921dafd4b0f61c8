"""An accepted connection until its first bytes show what it is.

    accepted ─► PROXY prologue? ─► first byte 0x16 ─► TLS handshake ─► channel over `TlsTransport`
                                └► any other ────────────────────────► channel over the system's transport

The prologue is read only from the addresses of `proxyProtocolAddresses`: a client that may send one chooses
the address that the broker sees. An `Opening` counts among the connections of its port. It is closed after
`idle_timeout_s` of its port without a byte, PROLOGUE_TIMEOUT_S within a prologue, and HANDSHAKE_TIMEOUT_S
within a handshake.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from broker_store.config.checks import Network
from broker_store.errors import ProtocolError
from broker_store.protocol.proxy_prologue import Peer, begins_prologue, read_prologue
from broker_store.protocol.tls import HANDSHAKE
from broker_store.server.addresses import address_text, parsed_address
from broker_store.server.tls_transport import Handshakes, SecureChannel, TlsTransport

PROLOGUE_TIMEOUT_S = 10.0


class AcceptedChannel(SecureChannel, Protocol):
    """The protocol of a connection whose first bytes are known (`Channel`, `GrpcChannel`)."""

    def serve(self, transport: asyncio.Transport | TlsTransport, peer: Peer) -> None:
        """Serve the connection. `peer` is the client's (address, port)."""


class PortTls(Handshakes, Protocol):
    """TLS of a port (`tls_server.TlsServer`, `tls_server.HttpTls`)."""

    is_required: bool  # a connection without TLS is closed at its first byte


class OpeningPort(Protocol):
    """The port that accepted the connection (`listener.Listener`, and that of the dashboard)."""

    @property
    def tls(self) -> PortTls | None: ...

    idle_timeout_s: float  # until the first byte
    proxies: tuple[Network, ...]  # which may send a PROXY prologue

    def admit(self, opening: Opening) -> bool: ...

    def moved(self, opening: Opening) -> bool:
        """Count a connection for the client that its prologue names. Return False if there is no room for
        it."""

    def opened(self, opening: Opening) -> AcceptedChannel:
        """Return the channel that takes the place of an opening."""

    def gone(self, connection: Opening) -> None: ...

    def keep(self, connection: Opening, kept: int) -> None: ...

    def count_end(self, connection: Opening, level: int, cause: str, text: str) -> None: ...


class Opening(asyncio.Protocol):
    """A connection whose channel is not made yet."""

    __slots__ = (
        "remote", "kept", "_port", "_raw", "_peer", "_since_s", "_data", "_tls", "_loop",
        "_may_have_prologue",
    )  # fmt: skip

    def __init__(self, port: OpeningPort):
        self.remote = ""
        self.kept = 0
        self._port = port
        self._loop = asyncio.get_running_loop()
        self._since_s = self._loop.time()
        self._peer: Peer = ("127.0.0.1", 0)
        self._data = b""  # of a prologue that is not complete
        self._tls: TlsTransport | None = None
        self._may_have_prologue = False

    # Callbacks of asyncio

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # that of TCP
        self._raw = transport
        self._peer = transport.get_extra_info("peername") or self._peer
        self.remote = address_text(self._peer)
        if self._port.proxies:
            address = parsed_address(self._peer[0])
            self._may_have_prologue = any(address in network for network in self._port.proxies)
        if not self._port.admit(self):
            transport.abort()

    def data_received(self, data: bytes) -> None:
        port = self._port
        if self._data:
            data, self._data = self._data + data, b""
            port.keep(self, 0)
        if self._may_have_prologue and begins_prologue(data):
            self._read_prologue(data)
            return
        tls = port.tls
        if tls is not None and data[0] == HANDSHAKE:
            self._tls = TlsTransport(self._raw, self, tls)
            self._raw.set_protocol(self._tls)
            self._tls.data_received(data)
        elif tls is not None and tls.is_required:
            self._end_for("connection without TLS", "this port needs TLS (tls.server.mode is enforcing)")
        else:
            channel = port.opened(self)
            self._raw.set_protocol(channel)  # type: ignore[arg-type]  # it is a protocol of asyncio too
            channel.serve(self._raw, self._peer)
            channel.data_received(data)

    def _read_prologue(self, data: bytes) -> None:
        try:
            found = read_prologue(data)
        except ProtocolError as error:
            self._end_for("PROXY prologue", str(error))
            return
        if found is None:
            self._data = data
            self._port.keep(self, len(data))
            return
        self._may_have_prologue = False  # a second one is the client's, not the proxy's
        self._since_s = self._loop.time()
        if found.peer is not None and not self._is_of_proxy(found.peer):
            self._peer = found.peer
            self.remote = address_text(found.peer)
            if not self._port.moved(self):
                self.abort()
                return
        if len(data) > found.size:
            self.data_received(data[found.size :])

    def _is_of_proxy(self, peer: Peer) -> bool:
        """Return whether a client is on the machine of its proxy, which is another one than this. It has the
        proxy's address: by loopback it would be taken for a program of this machine."""
        return parsed_address(peer[0]).is_loopback and not parsed_address(self._peer[0]).is_loopback

    def _end_for(self, cause: str, text: str) -> None:
        self._port.count_end(self, logging.INFO, cause, text)
        self.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._port.keep(self, 0)
        self._port.gone(self)

    # For `TlsTransport`, until the handshake is done

    def secured(self, transport: TlsTransport) -> SecureChannel:
        """Return the channel of a connection whose handshake is done."""
        self._tls = None  # the channel has it now
        channel = self._port.opened(self)
        channel.serve(transport, self._peer)
        channel.count_kept()  # a record may have come with the end of the handshake, and be incomplete
        return channel

    def count_kept(self) -> None:
        if self._tls is not None:
            self._port.keep(self, self._tls.session.kept)

    def tls_failed(self, level: int, cause: str, text: str) -> None:
        self._port.count_end(self, level, cause, text)

    def pause_writing(self) -> None:
        """Do nothing: a handshake writes little, and waits for the peer."""

    def resume_writing(self) -> None:
        """Do nothing."""

    # For the port

    def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        self._raw.abort()

    def overdue(self, now_s: float) -> tuple[str, float, float] | None:
        """Return why the connection has to be closed at loop time `now_s` (cause, seconds, limit), or
        None."""
        if self._tls is not None:
            return self._tls.overdue(now_s, 0.0)
        took_s = now_s - self._since_s
        if self._data:
            cause, limit_s = "slow PROXY prologue", PROLOGUE_TIMEOUT_S
        else:
            cause, limit_s = "idle connection", self._port.idle_timeout_s
        return (cause, took_s, limit_s) if took_s > limit_s else None
