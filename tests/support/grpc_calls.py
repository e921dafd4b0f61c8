"""Calls of the service of RocketMQ 5 by grpcio, on its blocking channels and on those of asyncio."""

from __future__ import annotations

from google.protobuf.message_factory import GetMessageClass

from broker_store.protocol.grpc.v2 import service_pb2

SERVICE = "apache.rocketmq.v2.MessagingService"
METHODS = service_pb2.DESCRIPTOR.services_by_name["MessagingService"].methods_by_name


def path_of(name: str) -> str:
    return f"/{SERVICE}/{name}"


def request_of(name: str, **fields):
    """Return a request of a method."""
    return GetMessageClass(METHODS[name].input_type)(**fields)


def call_of(channel, name: str):
    """Return what calls a method on a channel, as a stub of grpcio does."""
    method = METHODS[name]
    sides = (
        "stream" if streams else "unary" for streams in (method.client_streaming, method.server_streaming)
    )
    request, answer = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
    return getattr(channel, "_".join(sides))(path_of(name), request.SerializeToString, answer.FromString)
