"""The listening port for RocketMQ 5 clients: plain connections and those with TLS."""

from __future__ import annotations

import asyncio
import logging
import socket

from broker_store.errors import BrokerStoreError
from broker_store.server.certificate import Certificate
from broker_store.server.grpc.channel import GrpcChannel
from broker_store.server.grpc.service import Service
from broker_store.server.listener import Listener, bind_for
from broker_store.server.parts import BrokerParts
from broker_store.server.router import Router
from broker_store.server.tls_transport import TlsPort

log = logging.getLogger(__name__)

# How often the files of the certificate are read again: one that was replaced is used for new connections.
CERTIFICATE_INTERVAL_S = 3_600.0


class GrpcListener(Listener[GrpcChannel]):
    """The port. Without a certificate it has plain connections alone."""

    def __init__(self, parts: BrokerParts, router: Router, certificate: Certificate | None):
        service = self._service = Service(parts, router)
        super().__init__(
            lambda its: GrpcChannel(service, self),
            parts.settings.max_connections,
            None,
            lambda command, channel, waited_ms, waiting: None,
            parts.statistics.refuse,
        )
        self._certificate = certificate
        self.queued_bytes = 0
        self.tls: TlsPort | None = None
        self._renewal: asyncio.Task[None] | None = None

    async def open(self, listening: socket.socket) -> None:
        """Accept connections on a bound socket. Raises ConfigError, StoreError."""
        if self._certificate is not None:
            self.tls = TlsPort(await asyncio.to_thread(self._certificate.open))
            self._renewal = asyncio.create_task(self._renew(self._certificate, self.tls), name="certificate")
        await super().open(listening)

    async def _renew(self, certificate: Certificate, tls: TlsPort) -> None:
        while True:
            await asyncio.sleep(CERTIFICATE_INTERVAL_S)
            try:
                context = await asyncio.to_thread(certificate.changed)
            except BrokerStoreError as error:
                log.warning("the certificate of the gRPC port stays as it was: %s", error)
            else:
                if context is not None:
                    tls.context = context

    async def close(self, limit_s: float = 1.0) -> None:
        if self._renewal is not None:
            self._renewal.cancel()
            self._renewal = None
        await super().close(limit_s)
        self._service.stop()
        if self.tls is not None:
            self.tls.close()


async def open_grpc_port(
    parts: BrokerParts, router: Router, host: str, port: int, certificate: Certificate | None = None
) -> GrpcListener:
    """Return the port, which accepts connections. `router` has what it shares with the broker port. Raises
    OSError if the port is taken, and ConfigError or StoreError for the certificate."""
    listening = bind_for(host, port, "--grpc-port")
    listener = GrpcListener(parts, router, certificate)
    try:
        await listener.open(listening)
    except BaseException:
        listening.close()
        raise
    return listener
