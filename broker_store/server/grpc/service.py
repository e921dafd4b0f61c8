"""`apache.rocketmq.v2.MessagingService`: which method answers a call.

Each answer has a `Status{code, message}`; the status of gRPC itself is OK for every call that can be read and
that Apache's proxy has. One that is not served here is answered with NOT_IMPLEMENTED (50100).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from broker_store.protocol.grpc.framing import NOT_GRPC, GrpcError, GrpcStatus, message_of
from broker_store.protocol.grpc.v2 import service_pb2
from broker_store.protocol.grpc.v2.definition_pb2 import ClientType, Code, Status
from broker_store.protocol.grpc.v2.service_pb2 import (
    AckMessageRequest,
    ChangeInvisibleDurationRequest,
    EndTransactionRequest,
    ForwardMessageToDeadLetterQueueRequest,
    HeartbeatRequest,
    HeartbeatResponse,
    NotifyClientTerminationRequest,
    NotifyClientTerminationResponse,
    QueryAssignmentRequest,
    QueryRouteRequest,
    RecallMessageRequest,
    ReceiveMessageRequest,
    ReceiveMessageResponse,
    SendMessageRequest,
)
from broker_store.protocol.http2.connection import MAX_BODY_BYTES
from broker_store.protocol.http2.stream import Stream
from broker_store.server.grpc.acks import Acks
from broker_store.server.grpc.call import Call
from broker_store.server.grpc.channel import GrpcChannel
from broker_store.server.grpc.clients import CLIENT_ID, GrpcClient, GrpcClients
from broker_store.server.grpc.dead_letters import DeadLetters
from broker_store.server.grpc.ends import EndsOfTransactions, Recalls
from broker_store.server.grpc.questions import Questions
from broker_store.server.grpc.receives import Receives
from broker_store.server.grpc.renewals import Renewals
from broker_store.server.grpc.routes import Routes
from broker_store.server.grpc.sends import Sends, check_count
from broker_store.server.grpc.settings import Telemetry
from broker_store.server.grpc.statuses import FAILED, OK, Refused, refused_of
from broker_store.server.handler import Refusal
from broker_store.server.parts import BrokerParts
from broker_store.server.router import Router

log = logging.getLogger(__name__)

CONTENT_TYPE = "application/grpc"
# Of a call that sends no messages: it is parsed before it is checked, which takes seconds for a large one.
# The largest legal one acknowledges 1,024 messages, with 1 KiB for each.
MAX_SMALL_BODY_BYTES = 1 << 20


class _Method(NamedTuple):
    name: str
    request: type[Message]
    answer: type[Message]  # has a field `status`


_SERVICE = service_pb2.DESCRIPTOR.services_by_name["MessagingService"]
_PREFIX = f"/{_SERVICE.full_name}/"
TELEMETRY = f"{_PREFIX}Telemetry"
SEND_MESSAGE = f"{_PREFIX}SendMessage"
_METHODS = {
    _PREFIX + method.name: _Method(
        method.name, GetMessageClass(method.input_type), GetMessageClass(method.output_type)
    )
    for method in _SERVICE.methods
}
# Methods that Apache's proxy does not have either. It answers them by the status of gRPC.
NOT_IN_THE_PROXY = frozenset(("PullMessage", "UpdateOffset", "GetOffset", "QueryOffset"))
# (call, request) -> the answer, None if it comes later. Raises Refused.
_Handler = Callable[[Call, Message], Message | None]


class Service:
    """Answers the calls of all connections of the port."""

    def __init__(self, parts: BrokerParts, router: Router):
        self._parts = parts
        self._routes = Routes(parts)
        self._sends = Sends(parts, self._routes)
        self._transactions = EndsOfTransactions(parts, router.transactions.ends)
        self._recalls = Recalls(parts, self._routes)
        self._clients = GrpcClients(parts, router.clients)
        acks = router.pop_acks
        dead_letters = DeadLetters(parts, acks)
        self._renewals = Renewals(parts, acks, self._clients)
        self._receives = Receives(
            parts, self._routes, self._clients, router.pops, acks, dead_letters, self._renewals
        )
        self._acks = Acks(parts, self._routes, acks, dead_letters, self._renewals)
        self._telemetry: dict[Stream, Telemetry] = {}
        self._handlers: dict[str, _Handler] = {
            f"{_PREFIX}QueryRoute": self._query_route,
            f"{_PREFIX}Heartbeat": self._heartbeat,
            f"{_PREFIX}SendMessage": self._send_message,
            f"{_PREFIX}QueryAssignment": self._query_assignment,
            f"{_PREFIX}ReceiveMessage": self._receive_message,
            f"{_PREFIX}AckMessage": self._ack_message,
            f"{_PREFIX}ChangeInvisibleDuration": self._change_invisible_duration,
            f"{_PREFIX}ForwardMessageToDeadLetterQueue": self._forward,
            f"{_PREFIX}EndTransaction": self._end_transaction,
            f"{_PREFIX}RecallMessage": self._recall_message,
            f"{_PREFIX}NotifyClientTermination": self._notify_client_termination,
        }

    def stop(self) -> None:
        """Renew no message any more."""
        self._renewals.stop()

    # Calls with one message

    def is_long(self, path: str) -> bool:
        return path == TELEMETRY

    def max_body(self, path: str) -> int:
        return MAX_BODY_BYTES if path == SEND_MESSAGE else MAX_SMALL_BODY_BYTES

    def call(self, channel: GrpcChannel, stream: Stream, body: bytes) -> None:
        """Answer a call that has one message. Raises GrpcError."""
        fields = stream.fields
        path = fields[":path"]
        method = _METHODS.get(path)
        if not self._is_grpc(channel, stream) or method is None:
            return
        call = Call(channel, stream)
        try:
            message = message_of(body)
            if len(message) > MAX_SMALL_BODY_BYTES:
                check_count(message)
            request = method.request.FromString(message)
            if not fields.get(CLIENT_ID):
                raise _client_id_required()
            handler = self._handlers.get(path)
            if handler is None and method.name in NOT_IN_THE_PROXY:
                raise GrpcError(GrpcStatus.UNIMPLEMENTED, f"Method {path[1:]} is unimplemented")
            if handler is None:
                raise Refused(
                    Code.NOT_IMPLEMENTED, f"{method.name} is not implemented", f"gRPC: {method.name}"
                )
            answer = handler(call, request)
        except DecodeError:
            raise GrpcError(GrpcStatus.INTERNAL, f"a {method.name} that cannot be read") from None
        except GrpcError:
            raise
        except (Refused, Refusal) as error:
            refused = refused_of(error) if isinstance(error, Refusal) else error
            self._count(refused, channel, is_send=method.request is SendMessageRequest)
            answer = _with_status(method, refused.status)
        except Exception:  # a bug in one handler must not stop the others
            log.exception("%s failed", method.name)
            answer = _with_status(method, FAILED)
        if isinstance(answer, ReceiveMessageResponse):
            self._receives.refuse(call, answer.status)
        elif answer is not None:
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
        self._clients.heartbeat(call.client_id, request.group)
        return HeartbeatResponse(status=OK)

    def _send_message(self, call: Call, request: Message) -> None:
        assert isinstance(request, SendMessageRequest)
        self._sends.send(request, call.channel.remote_host, call.answer_bytes)

    def _end_transaction(self, call: Call, request: Message) -> Message | None:
        assert isinstance(request, EndTransactionRequest)
        return self._transactions.end(call, request)

    def _recall_message(self, call: Call, request: Message) -> None:
        assert isinstance(request, RecallMessageRequest)
        self._recalls.recall(call, request)

    def _notify_client_termination(self, call: Call, request: Message) -> Message:
        assert isinstance(request, NotifyClientTerminationRequest)
        self._clients.terminate(call.client_id, request.group)
        self._renewals.client_gone(call.client_id)
        return NotifyClientTerminationResponse(status=OK)

    def _query_assignment(self, call: Call, request: Message) -> Message:
        assert isinstance(request, QueryAssignmentRequest)
        return self._routes.assign(request)

    def _receive_message(self, call: Call, request: Message) -> None:
        assert isinstance(request, ReceiveMessageRequest)
        self._receives.receive(call, request)

    def _ack_message(self, call: Call, request: Message) -> None:
        assert isinstance(request, AckMessageRequest)
        self._acks.ack(call, request)

    def _change_invisible_duration(self, call: Call, request: Message) -> None:
        assert isinstance(request, ChangeInvisibleDurationRequest)
        self._acks.change_invisible_duration(call, request)

    def _forward(self, call: Call, request: Message) -> None:
        assert isinstance(request, ForwardMessageToDeadLetterQueueRequest)
        self._acks.forward(call, request)

    # Telemetry

    def opened(self, channel: GrpcChannel, stream: Stream) -> None:
        """Begin a Telemetry. Raises GrpcError."""
        with _ends_one_call("the beginning of Telemetry"):
            self._open(channel, stream)

    def _open(self, channel: GrpcChannel, stream: Stream) -> None:
        if not self._is_grpc(channel, stream):
            return
        channel.begin(stream)
        if not stream.fields.get(CLIENT_ID):
            refused = _client_id_required()
            self._count(refused, channel)
            channel.send(stream, service_pb2.TelemetryCommand(status=refused.status).SerializeToString())
            channel.finish(stream)
            return
        questions = Questions(
            lambda command: channel.send(stream, command.SerializeToString()), self._parts.clock
        )
        client = GrpcClient(stream.fields, channel, questions, partial(self.finished, channel, stream))
        self._telemetry[stream] = Telemetry(self._parts, self._clients, client)

    def received(self, channel: GrpcChannel, stream: Stream, piece: bytes) -> None:
        """Answer the commands of a client. Raises GrpcError."""
        with _ends_one_call("Telemetry"):
            self._receive(channel, stream, piece)

    def _receive(self, channel: GrpcChannel, stream: Stream, piece: bytes) -> None:
        telemetry = self._telemetry.get(stream)
        if telemetry is None:
            return
        try:
            answers = telemetry.received(piece)
        except DecodeError:
            raise GrpcError(GrpcStatus.INTERNAL, "a command that cannot be read") from None
        channel.keep(stream, telemetry.kept)
        for answer in answers:
            if isinstance(answer, Refused):
                self._count(answer, channel)
                raise GrpcError(
                    GrpcStatus.INVALID_ARGUMENT, f"process client telemetryCommand failed. {answer}"
                )
            channel.send(stream, answer.SerializeToString())

    def finished(self, channel: GrpcChannel, stream: Stream) -> None:
        self.gone(stream)
        channel.finish(stream)

    def gone(self, stream: Stream) -> None:
        """Forget a call. A bug is logged alone: the other calls of a connection that ends must be forgotten
        too."""
        try:
            self._forget(stream)
        except Exception:
            log.exception("the end of %s failed", stream)

    def _forget(self, stream: Stream) -> None:
        telemetry = self._telemetry.pop(stream, None)
        if telemetry is None:
            self._receives.gone(stream)
            return
        if self._clients.ended(telemetry.client):
            self._renewals.client_missed(telemetry.client.client_id)


@contextmanager
def _ends_one_call(what: str) -> Iterator[None]:
    """Make an error of gRPC of a bug, which ends its call and no other of the connection."""
    try:
        yield
    except GrpcError:
        raise
    except Exception:
        log.exception("%s failed", what)
        raise GrpcError(GrpcStatus.INTERNAL, FAILED.message) from None


def _client_id_required() -> Refused:
    return Refused(Code.CLIENT_ID_REQUIRED, "client id cannot be empty", "no client id")


def _with_status(method: _Method, status: Status) -> Message:
    return method.answer(status=status)
