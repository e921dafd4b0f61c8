"""A call of the gRPC port under way."""

from __future__ import annotations

from typing import NamedTuple

from google.protobuf.message import Message

from broker_store.protocol.grpc.framing import body_of, timeout_ms
from broker_store.protocol.http2.stream import Stream
from broker_store.server.grpc.channel import GrpcChannel
from broker_store.server.grpc.clients import CLIENT_ID

_TIMEOUT = "grpc-timeout"


class Call(NamedTuple):
    """A call of a client on a connection."""

    channel: GrpcChannel
    stream: Stream
    user: str | None = None  # who sent it; None if nothing is authenticated, or the call needs no proof

    def answer(self, message: Message) -> None:
        self.channel.answer(self.stream, body_of(message))

    @property
    def client_id(self) -> str:
        return self.stream.fields.get(CLIENT_ID, "")

    def timeout_ms(self) -> int | None:
        """Return how long the client waits for the answer; None if it does not say."""
        return timeout_ms(self.stream.fields.get(_TIMEOUT, ""))
