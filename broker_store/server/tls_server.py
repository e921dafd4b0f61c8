"""What all TLS connections of a process share: the certificate, the thread of handshakes, and the mode.

server = TlsServer(certificate, is_required=False)
await server.open()      # before the first port opens
await server.close()     # after the last one is closed
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from broker_store.errors import BrokerStoreError
from broker_store.protocol.tls import TlsSession
from broker_store.server.certificate import Certificate, Contexts

if TYPE_CHECKING:
    from broker_store.server.tls_transport import TlsTransport

log = logging.getLogger(__name__)

# How often the files of the certificate are read again: one that was replaced is used for new connections.
CERTIFICATE_INTERVAL_S = 10.0
MAX_HANDSHAKES = 1_000


class TlsServer:
    """The server's side of TLS. With `is_required` a connection without TLS is closed at its first byte."""

    def __init__(self, certificate: Certificate, *, is_required: bool = False):
        self.is_required = is_required
        self.shaking: dict[TlsTransport, None] = {}  # whose handshake is under way, the oldest first
        self._certificate = certificate
        self._contexts: Contexts | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tls-handshakes")
        self._renewal: asyncio.Task[None] | None = None
        self._failure = ""

    @property
    def context(self) -> ssl.SSLContext:
        """The context of new connections."""
        return self.contexts.rpc

    @property
    def contexts(self) -> Contexts:
        assert self._contexts is not None  # `open` comes before the first port
        return self._contexts

    async def open(self) -> None:
        """Read the certificate, or make it. Raises ConfigError, StoreError."""
        self._contexts = await asyncio.to_thread(self._certificate.open)
        self._renewal = asyncio.create_task(self._renew(), name="certificate")

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(CERTIFICATE_INTERVAL_S)
            await self.renew()

    async def renew(self) -> None:
        """Use files that were replaced. A failure is logged once, and the former certificate stays."""
        try:
            contexts = await asyncio.to_thread(self._certificate.changed)
        except BrokerStoreError as error:
            if str(error) != self._failure:
                log.warning("the certificate of TLS connections stays as it was: %s", error)
            self._failure = str(error)
            return
        if contexts is not None:
            self._contexts = contexts
            log.info("new TLS connections get the certificate that was replaced")
        self._failure = ""

    def begin(self, transport: TlsTransport) -> None:
        """Begin a handshake. The oldest one is ended if there are too many; if most of them are of one
        address, its oldest."""
        if len(self.shaking) >= MAX_HANDSHAKES:
            of_host = Counter(one.host for one in self.shaking)
            host, most = of_host.most_common(1)[0]
            oldest = next(one for one in self.shaking if most <= MAX_HANDSHAKES // 2 or one.host == host)
            oldest.end_for("too many handshakes", f"{len(self.shaking)} TLS handshakes are under way")
        self.shaking[transport] = None

    def step(self, session: TlsSession) -> asyncio.Future[None]:
        """Go on with a handshake, in the thread."""
        return asyncio.get_running_loop().run_in_executor(self._thread, session.shake_hands)

    def close(self) -> None:
        """Begin no further step; one under way ends by itself."""
        if self._renewal is not None:
            self._renewal.cancel()
            self._renewal = None
        self._thread.shutdown(wait=False, cancel_futures=True)


class HttpTls:
    """The same for a port of HTTP/1.1. Such a port answers a request without TLS itself, with a reason, so
    no connection without TLS is closed at its first byte."""

    is_required = False

    def __init__(self, server: TlsServer):
        self._server = server
        self.shaking = server.shaking

    @property
    def context(self) -> ssl.SSLContext:
        """The context of new connections."""
        return self._server.contexts.http

    def begin(self, transport: TlsTransport) -> None:
        """Begin a handshake. It counts with those of all ports."""
        self._server.begin(transport)

    def step(self, session: TlsSession) -> asyncio.Future[None]:
        """Go on with a handshake, in the thread."""
        return self._server.step(session)
