"""TLS between a connection of the system and the protocol of a channel.

    transport ◄─records─► TlsTransport ◄─plain bytes─► protocol of the channel
                               │ handshakes
                               └──► one thread of the port (`TlsPort`)

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
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from broker_store.protocol.tls import TlsError, TlsSession
from broker_store.server.channel import FRAME_TIMEOUT_S

HANDSHAKE_TIMEOUT_S = 10.0
MAX_HANDSHAKES = 1_000


class TlsPort:
    """What the TLS connections of a port share. A new `context` is for new connections."""

    def __init__(self, context: ssl.SSLContext):
        self.context = context
        self.shaking: dict[TlsTransport, None] = {}  # whose handshake is under way, the oldest first
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tls-handshakes")

    def begin(self, transport: TlsTransport) -> None:
        """Begin a handshake. The oldest one is ended if there are too many."""
        if len(self.shaking) >= MAX_HANDSHAKES:
            oldest = next(iter(self.shaking))
            oldest.end_for("too many handshakes", f"{len(self.shaking)} TLS handshakes are under way")
        self.shaking[transport] = None

    def step(self, session: TlsSession) -> asyncio.Future[None]:
        """Go on with a handshake, in the thread."""
        return asyncio.get_running_loop().run_in_executor(self._thread, session.shake_hands)

    def close(self) -> None:
        """Begin no further step; one under way ends by itself."""
        self._thread.shutdown(wait=False, cancel_futures=True)


class SecureChannel(Protocol):
    """The protocol that is given the plain bytes (`grpc.channel.GrpcChannel`)."""

    def data_received(self, data: bytes) -> None: ...

    def count_kept(self) -> None:
        """Take notice that the bytes of unfinished records have changed."""

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...

    def connection_lost(self, error: Exception | None) -> None: ...

    def tls_failed(self, level: int, cause: str, text: str) -> None:
        """Log and count why the connection ends."""


class TlsTransport(asyncio.Protocol):
    """One connection: the protocol of the system's transport, and a transport for the channel's protocol."""

    __slots__ = ("session", "_raw", "_channel", "_port", "_loop", "_began_s", "_step", "_held")

    def __init__(self, raw: asyncio.Transport, channel: SecureChannel, port: TlsPort):
        self._raw, self._channel, self._port = raw, channel, port
        self._loop = asyncio.get_running_loop()
        self._began_s = self._loop.time()
        self.session = TlsSession(port.context, self._began_s)
        self._step: asyncio.Future[None] | None = None
        self._held: list[bytes] = []  # what came during a step of the handshake
        port.begin(self)

    # Callbacks of asyncio

    def data_received(self, data: bytes) -> None:
        if not self.session.is_open:
            self._shake_hands(data)
            return
        self._receive(data)

    def _receive(self, data: bytes) -> None:
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
            self._channel.data_received(plain)
        if session.kept != kept:
            self._channel.count_kept()
        if session.has_ended:
            self.close()

    def _shake_hands(self, data: bytes) -> None:
        if self._step is not None:
            self._held.append(data)
            return
        self.session.keep(data, self._loop.time())
        self._channel.count_kept()
        self._raw.pause_reading()
        self._step = self._port.step(self.session)
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
            self._port.shaking.pop(self, None)
            self._receive(b"".join(self._held))
            self._held.clear()
        elif self._held:
            data = b"".join(self._held)
            self._held.clear()
            self._shake_hands(data)

    def pause_writing(self) -> None:
        self._channel.pause_writing()

    def resume_writing(self) -> None:
        self._channel.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        self._port.shaking.pop(self, None)
        self._channel.connection_lost(error)

    # Methods of a transport

    def write(self, data: bytes) -> None:
        if self.session.is_open and not self._raw.is_closing():
            try:
                records = self.session.send(data)
            except TlsError as error:
                self.end_for(error.cause, str(error))
                self._raw.abort()
                return
            self._raw.write(records)

    def writelines(self, pieces: Iterable[bytes]) -> None:
        self.write(b"".join(pieces))

    def close(self) -> None:
        """End the connection after what was written has been sent."""
        if not self._raw.is_closing():
            if self._step is None and (out := self.session.close()):
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

    def end_for(self, cause: str, text: str) -> None:
        """Log and count why the connection ends, and end it after what was written."""
        self._port.shaking.pop(self, None)
        self._channel.tls_failed(logging.INFO, cause, text)
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
            cause, limit_s = "slow frame", FRAME_TIMEOUT_S
        else:
            return None
        return (cause, took_s, limit_s) if took_s > limit_s else None
