"""The listening port for RocketMQ 5 clients."""

from __future__ import annotations

from broker_store.broker.shares import Full, Held
from broker_store.protocol.http2.stream import Stream
from broker_store.server.grpc.channel import GrpcChannel
from broker_store.server.grpc.service import Service
from broker_store.server.grpc.turns import Turns
from broker_store.server.listener import NOTHING_BEFORE, Before, Listener, bind_for
from broker_store.server.parts import BrokerParts
from broker_store.server.router import Router


class GrpcListener(Listener[GrpcChannel]):
    """The port."""

    def __init__(self, parts: BrokerParts, router: Router, before: Before):
        service = self._service = Service(parts, router)
        super().__init__(
            lambda its: GrpcChannel(service, self),
            parts.settings.max_connections,
            None,
            lambda command, channel, waited_ms, waiting: None,
            parts.statistics.refuse,
            before,
            parts.shares,
        )
        self.queued_bytes = 0
        self.turns: Turns[GrpcChannel, Stream] = Turns(lambda stream: service.gone(stream))
        self._queued = Held(parts.shares, parts.shares.unfinished_bytes)

    def has_room_for_user(self, connection: GrpcChannel, user: str) -> bool:
        """Note that a connection is one of a user, who signs its calls. Return False if the user has too
        many."""
        queued = connection.queued
        self._queued.give(self.holders_of(connection), queued)
        is_admitted = super().has_room_for_user(connection, user)
        self._queued.take(self.holders_of(connection), queued)
        return is_admitted

    def queue(self, connection: GrpcChannel, size: int) -> Full | None:
        """Count bytes that wait for windows. Return the holder that has too many of them, None if all may
        have so many."""
        self.queued_bytes += size
        holders = self.holders_of(connection)
        if size < 0:
            self._queued.give(holders, -size)
            return None
        self._queued.take(holders, size)
        return self._queued.full(holders, 0)

    async def close(self, limit_s: float = 1.0) -> None:
        await super().close(limit_s)
        self._service.stop()


async def open_grpc_port(
    parts: BrokerParts, router: Router, host: str, port: int, before: Before = NOTHING_BEFORE
) -> GrpcListener:
    """Return the port, which accepts connections. `router` has what it shares with the broker port. Raises
    OSError if the port is taken."""
    listening = bind_for(host, port, "--grpc-port")
    listener = GrpcListener(parts, router, before)
    try:
        await listener.open(listening)
    except BaseException:
        listening.close()
        raise
    return listener
