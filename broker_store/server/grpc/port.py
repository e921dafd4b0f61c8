"""The listening port for RocketMQ 5 clients."""

from __future__ import annotations

from broker_store.server.grpc.channel import GrpcChannel
from broker_store.server.grpc.service import Service
from broker_store.server.listener import Listener, bind_for
from broker_store.server.parts import BrokerParts


async def open_grpc_port(parts: BrokerParts, host: str, port: int) -> Listener[GrpcChannel]:
    """Return the port, which accepts connections. Raises OSError if it is taken."""
    listening = bind_for(host, port, "--grpc-port")
    service = Service(parts)
    listener = Listener[GrpcChannel](
        lambda its: GrpcChannel(service, its),
        parts.settings.max_connections,
        None,
        lambda command, channel, waited_ms, waiting: None,
        parts.statistics.refuse,
    )
    await listener.open(listening)
    return listener
