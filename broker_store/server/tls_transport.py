"""TLS between a connection of the system and the protocol of a channel.

    transport ◄─records─► TlsTransport ◄─plain bytes─► protocol of the channel
                               │ handshakes
                               └──► one thread of the process (`TlsServer`)

A handshake computes a signature, for milliseconds with some keys. So its steps run in a thread, one after
another, and a connection is not read during a step. Data is encrypted and decrypted on the loop.

The cost of peers that do not end their handshakes is bounded: each has HANDSHAKE_TIMEOUT_S, and when
MAX_HANDSHAKES are under way, a further one ends the oldest.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Iterable
from typing import Any, Protocol

from broker_store.protocol.tls import TlsError, TlsSession

HANDSHAKE_TIMEOUT_S = 10.0
RECORD_TIMEOUT_S = 60.0  # from the first byte of a record to its last


class Owner(Protocol):
    """The protocol of a connection before and after its handshake."""

    def count_kept(self) -> None:
        """Take notice that the bytes of unfinished records have changed."""

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...

    def connection_lost(self, error: Exception | None) -> None: ...

    def tls_failed(self, level: int, cause: str, text: str) -> None:
        """Log and count why the connection ends."""


class SecureChannel(Owner, Protocol):
    """The protocol that is given the plain bytes (`channel.Channel`, `grpc.channel.GrpcChannel`, and those of
    the dashboard)."""

    def data_received(self, data: bytes) -> None: ...


class BeforeHandshake(Owner, Protocol):
    """What a connection has until its handshake is done (`opening.Opening`)."""

    remote: str  # ip:port of the client

    def secured(self, transport: TlsTransport) -> SecureChannel:
        """Return the channel, which takes its place."""


class Handshakes(Protocol):
    """What connections share (`tls_server.TlsServer`, `tls_server.HttpTls`)."""

    shaking: dict[TlsTransport, None]  # whose handshake is under way, the oldest first

    @property
    def context(self) -> ssl.SSLContext:
        """The context of new connections."""

    def begin(self, transport: TlsTransport) -> None:
        """Begin a handshake."""

    def step(self, session: TlsSession) -> asyncio.Future[None]:
        """Go on with a handshake, in a thread."""


class TlsTransport(asyncio.Protocol):
    """One connection: the protocol of the system's transport, and a transport for the channel's protocol."""

    __slots__ = (
        "session", "_raw", "_before", "_channel", "_server", "_loop", "_began_s", "_step", "_held",
        "_has_sent_all",
    )  # fmt: skip

    def __init__(self, raw: asyncio.Transport, before: BeforeHandshake, server: Handshakes):
        self._raw, self._server = raw, server
        # One of both until the connection has ended. None is kept after that: each refers to this transport,
        # and a cycle would stay in memory until the collector runs.
        self._before: BeforeHandshake | None = before
        self._channel: SecureChannel | None = None  # before the handshake is done
        self._loop = asyncio.get_running_loop()
        self._began_s = self._loop.time()
        self.session = TlsSession(server.context, self._began_s)
        self._step: asyncio.Future[None] | None = None
        self._held: list[bytes] = []  # what came during a step of the handshake
        self._has_sent_all = False
        server.begin(self)

    # Callbacks of asyncio

    def data_received(self, data: bytes) -> None:
        channel = self._channel
        if self._has_sent_all:
            return  # what a peer sends after an answer that ends the connection
        if channel is None:
            self._shake_hands(data)
        else:
            self._receive(channel, data)

    def _receive(self, channel: SecureChannel, data: bytes) -> None:
        session = self.session
        kept = session.kept
        try:
            plain = session.receive(data, self._loop.time())
        except TlsError as error:
            self._raw.write(session.take())
            self.end_for(error.cause, str(error))
            return
        if out := session.take():
            self._raw.write(out)
        if plain:
            channel.data_received(plain)
        if session.kept != kept:
            channel.count_kept()
        if session.has_ended:
            self.close()

    def _shake_hands(self, data: bytes) -> None:
        if self._step is not None:
            self._held.append(data)
            return
        self.session.keep(data, self._loop.time())
        if (owner := self._owner) is not None:
            owner.count_kept()
        self._raw.pause_reading()
        self._step = self._server.step(self.session)
        self._step.add_done_callback(self._stepped)

    def _stepped(self, step: asyncio.Future[None]) -> None:
        """Send what a step of the handshake made; when that is done, handle the data that came with it."""
        self._step = None
        raw, session = self._raw, self.session
        if step.cancelled() or raw.is_closing():
            if not step.cancelled():
                step.exception()  # it was the last step of a connection that ends
            return
        if out := session.take():
            raw.write(out)
        error = step.exception()
        if isinstance(error, TlsError):
            self.end_for(error.cause, str(error))
            return
        if error is not None:
            raise error
        raw.resume_reading()
        if session.is_open:
            self._server.shaking.pop(self, None)
            before, self._before = self._before, None
            assert before is not None  # the connection has not ended, and has no channel
            self._channel = channel = before.secured(self)
            data = b"".join(self._held)
            self._held.clear()
            self._receive(channel, data)
        elif self._held:
            data = b"".join(self._held)
            self._held.clear()
            self._shake_hands(data)

    def pause_writing(self) -> None:
        if (owner := self._owner) is not None:
            owner.pause_writing()

    def resume_writing(self) -> None:
        if (owner := self._owner) is not None:
            owner.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        self._server.shaking.pop(self, None)
        owner, self._before, self._channel = self._owner, None, None
        if owner is not None:
            owner.connection_lost(error)

    @property
    def _owner(self) -> Owner | None:
        return self._channel or self._before

    # Methods of a transport

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return what is known of the connection, as asyncio's transports do; `ssl_object` and `sslcontext`
        are those of the session."""
        if name == "ssl_object":
            return self.session.ssl_object
        if name == "sslcontext":
            return self.session.ssl_object.context
        return self._raw.get_extra_info(name, default)

    def set_protocol(self, protocol: SecureChannel) -> None:
        """Give the plain bytes to another protocol from now on."""
        self._channel = protocol

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._raw.set_write_buffer_limits(high, low)

    def write(self, data: bytes) -> None:
        if self.session.is_open and not self._has_sent_all and not self._raw.is_closing():
            try:
                records = self.session.send(data)
            except TlsError as error:
                self.end_for(error.cause, str(error))
                self._raw.abort()
                return
            self._raw.write(records)

    def writelines(self, pieces: Iterable[bytes]) -> None:
        self.write(b"".join(pieces))

    def write_eof(self) -> None:
        """Send nothing more. What the peer sends from now on is dropped."""
        if not self._has_sent_all and not self._raw.is_closing():
            self._has_sent_all = True
            if out := self.session.close():
                self._raw.write(out)
            self._raw.write_eof()

    def close(self) -> None:
        """End the connection after what was written has been sent."""
        if not self._raw.is_closing():
            if self._step is None and not self._has_sent_all and (out := self.session.close()):
                self._raw.write(out)
            self._raw.close()

    def abort(self) -> None:
        self._raw.abort()

    def is_closing(self) -> bool:
        return self._raw.is_closing()

    def pause_reading(self) -> None:
        self._raw.pause_reading()

    def resume_reading(self) -> None:
        self._raw.resume_reading()

    def get_write_buffer_size(self) -> int:
        return self._raw.get_write_buffer_size()

    # Limits

    @property
    def host(self) -> str:
        """Return the address of a client whose handshake is under way."""
        return "" if self._before is None else self._before.remote.rpartition(":")[0]

    def end_for(self, cause: str, text: str) -> None:
        """Log and count why the connection ends, and end it after what was written."""
        self._server.shaking.pop(self, None)
        if (owner := self._owner) is not None:
            owner.tls_failed(logging.INFO, cause, text)
        self._raw.close()

    def overdue(self, now_s: float, resumed_s: float) -> tuple[str, float, float] | None:
        """Return why the connection has to be closed at loop time `now_s` (cause, seconds, limit), or None.
        It was not read before `resumed_s`."""
        session = self.session
        if not session.is_open:
            took_s = now_s - self._began_s
            cause, limit_s = "slow TLS handshake", HANDSHAKE_TIMEOUT_S
        elif session.unfinished_since_s is not None:
            took_s = now_s - max(session.unfinished_since_s, resumed_s)
            cause, limit_s = "slow frame", RECORD_TIMEOUT_S
        else:
            return None
        return (cause, took_s, limit_s) if took_s > limit_s else None
