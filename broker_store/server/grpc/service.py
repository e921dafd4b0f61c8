"""`apache.rocketmq.v2.MessagingService`: which method answers a call.

Each answer has a `Status{code, message}`; the status of gRPC itself is OK for every call that can be read. A
call that is not served yet is answered with NOT_IMPLEMENTED (50100).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from broker_store.protocol.grpc.framing import NOT_GRPC, GrpcError, GrpcStatus, message_of
from broker_store.protocol.grpc.v2 import service_pb2
from broker_store.protocol.grpc.v2.definition_pb2 import ClientType, Code, Status
from broker_store.protocol.grpc.v2.service_pb2 import (
    HeartbeatRequest,
    HeartbeatResponse,
    NotifyClientTerminationRequest,
    NotifyClientTerminationResponse,
    QueryRouteRequest,
    SendMessageRequest,
)
from broker_store.protocol.http2.stream import Stream
from broker_store.server.grpc.channel import GrpcChannel
from broker_store.server.grpc.routes import Routes
from broker_store.server.grpc.sends import Sends
from broker_store.server.grpc.settings import Telemetry
from broker_store.server.grpc.statuses import OK, Refused
from broker_store.server.parts import BrokerParts

log = logging.getLogger(__name__)

CLIENT_ID = "x-mq-client-id"
CONTENT_TYPE = "application/grpc"


class Call(NamedTuple):
    """A call under way."""

    channel: GrpcChannel
    stream: Stream

    def answer(self, message: Message) -> None:
        self.channel.answer(self.stream, message.SerializeToString())


class _Method(NamedTuple):
    name: str
    request: type[Message]
    answer: type[Message]  # has a field `status`


_SERVICE = service_pb2.DESCRIPTOR.services_by_name["MessagingService"]
_PREFIX = f"/{_SERVICE.full_name}/"
TELEMETRY = f"{_PREFIX}Telemetry"
_METHODS = {
    _PREFIX + method.name: _Method(
        method.name, GetMessageClass(method.input_type), GetMessageClass(method.output_type)
    )
    for method in _SERVICE.methods
}
# (call, request) -> the answer, None if it comes later. Raises Refused.
_Handler = Callable[[Call, Message], Message | None]


class Service:
    """Answers the calls of all connections of the port."""

    def __init__(self, parts: BrokerParts):
        self._parts = parts
        self._routes = Routes(parts)
        self._sends = Sends(parts, self._routes)
        self._telemetry: dict[Stream, Telemetry] = {}
        self._handlers: dict[str, _Handler] = {
            f"{_PREFIX}QueryRoute": self._query_route,
            f"{_PREFIX}Heartbeat": self._heartbeat,
            f"{_PREFIX}SendMessage": self._send_message,
            f"{_PREFIX}NotifyClientTermination": self._notify_client_termination,
        }

    # Calls with one message

    def is_long(self, path: str) -> bool:
        return path == TELEMETRY

    def call(self, channel: GrpcChannel, stream: Stream, body: bytes) -> None:
        """Answer a call that has one message. Raises GrpcError."""
        fields = stream.fields
        path = fields[":path"]
        method = _METHODS.get(path)
        if not self._is_grpc(channel, stream) or method is None:
            return
        call = Call(channel, stream)
        try:
            request = method.request.FromString(message_of(body))
            if not fields.get(CLIENT_ID):
                raise _client_id_required()
            handler = self._handlers.get(path)
            if handler is None:
                raise Refused(
                    Code.NOT_IMPLEMENTED, f"{method.name} is not implemented", f"gRPC: {method.name}"
                )
            answer = handler(call, request)
        except DecodeError:
            raise GrpcError(GrpcStatus.INTERNAL, f"a {method.name} that cannot be read") from None
        except GrpcError:
            raise
        except Refused as refused:
            self._count(refused, channel, is_send=method.request is SendMessageRequest)
            answer = _with_status(method, refused.status)
        except Exception:  # a bug in one handler must not stop the others
            log.exception("%s failed", method.name)
            status = Status(
                code=Code.INTERNAL_SERVER_ERROR, message="error inside the broker; its log has the details"
            )
            answer = _with_status(method, status)
        if answer is not None:
            call.answer(answer)

    def _is_grpc(self, channel: GrpcChannel, stream: Stream) -> bool:
        """Return whether a stream is a call of this service. Others are answered here."""
        fields = stream.fields
        if fields[":method"] != "POST" or not fields.get("content-type", "").startswith(CONTENT_TYPE):
            channel.refuse(stream, NOT_GRPC)
            return False
        if fields[":path"] not in _METHODS:
            channel.fail(
                stream, GrpcError(GrpcStatus.UNIMPLEMENTED, f"there is no method {fields[':path']:.120}")
            )
            return False
        return True

    def _count(self, refused: Refused, channel: GrpcChannel, *, is_send: bool = False) -> None:
        self._parts.statistics.refuse(
            refused.cause,
            value=refused.value,
            limit=refused.limit,
            who=channel.remote,
            said=str(refused),
            is_send=is_send,
        )

    def _query_route(self, call: Call, request: Message) -> Message:
        assert isinstance(request, QueryRouteRequest)
        return self._routes.query(request)

    def _heartbeat(self, call: Call, request: Message) -> Message:
        assert isinstance(request, HeartbeatRequest)
        if request.client_type == ClientType.CLIENT_TYPE_UNSPECIFIED:
            raise Refused(Code.UNRECOGNIZED_CLIENT_TYPE, "the type of the client is not known", "client type")
        return HeartbeatResponse(status=OK)

    def _send_message(self, call: Call, request: Message) -> None:
        assert isinstance(request, SendMessageRequest)
        self._sends.send(request, call.channel.remote_host, call.answer)

    def _notify_client_termination(self, call: Call, request: Message) -> Message:
        assert isinstance(request, NotifyClientTerminationRequest)
        return NotifyClientTerminationResponse(status=OK)

    # Telemetry

    def opened(self, channel: GrpcChannel, stream: Stream) -> None:
        if not self._is_grpc(channel, stream):
            return
        channel.begin(stream)
        if not stream.fields.get(CLIENT_ID):
            refused = _client_id_required()
            self._count(refused, channel)
            channel.send(stream, service_pb2.TelemetryCommand(status=refused.status).SerializeToString())
            channel.finish(stream)
            return
        self._telemetry[stream] = Telemetry(self._parts.store_settings.max_message_size)

    def received(self, channel: GrpcChannel, stream: Stream, piece: bytes) -> None:
        """Answer the commands of a client. Raises GrpcError."""
        telemetry = self._telemetry.get(stream)
        if telemetry is None:
            return
        try:
            answers = telemetry.received(piece)
        except DecodeError:
            raise GrpcError(GrpcStatus.INTERNAL, "a command that cannot be read") from None
        channel.keep(stream, telemetry.kept)
        for answer in answers:
            channel.send(stream, answer.SerializeToString())

    def finished(self, channel: GrpcChannel, stream: Stream) -> None:
        self.gone(stream)
        channel.finish(stream)

    def gone(self, stream: Stream) -> None:
        self._telemetry.pop(stream, None)


def _client_id_required() -> Refused:
    return Refused(Code.CLIENT_ID_REQUIRED, "client id cannot be empty", "no client id")


def _with_status(method: _Method, status: Status) -> Message:
    return method.answer(status=status)
