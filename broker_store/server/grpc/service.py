"""`apache.rocketmq.v2.MessagingService`: which method answers a call.

Each answer has a `Status{code, message}`; the status of gRPC itself is OK for every call that can be read and
that Apache's proxy has.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from broker_store.broker import flow
from broker_store.protocol.grpc.framing import NOT_GRPC, GrpcError, GrpcStatus, body_of, message_of
from broker_store.protocol.grpc.v2 import service_pb2
from broker_store.protocol.grpc.v2.definition_pb2 import ClientType, Code, Status
from broker_store.protocol.grpc.v2.service_pb2 import (
    HeartbeatRequest,
    HeartbeatResponse,
    NotifyClientTerminationRequest,
    NotifyClientTerminationResponse,
    ReceiveMessageResponse,
    SendMessageRequest,
    TelemetryCommand,
)
from broker_store.protocol.http2.connection import MAX_BODY_BYTES
from broker_store.protocol.http2.stream import Stream
from broker_store.server.grpc.access import check_rights, check_settings, user_of
from broker_store.server.grpc.acks import Acks
from broker_store.server.grpc.call import Call
from broker_store.server.grpc.channel import GrpcChannel
from broker_store.server.grpc.clients import CLIENT_ID, GrpcClient, GrpcClients
from broker_store.server.grpc.dead_letters import DeadLetters
from broker_store.server.grpc.ends import EndsOfTransactions, Recalls
from broker_store.server.grpc.lite import LiteSubscriptions
from broker_store.server.grpc.questions import Questions
from broker_store.server.grpc.receives import Receives
from broker_store.server.grpc.renewals import Renewals
from broker_store.server.grpc.routes import Routes
from broker_store.server.grpc.sends import Sends
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

    @property
    def message(self) -> str:
        """Return the full name of the message of a call."""
        return self.request.DESCRIPTOR.full_name


_SERVICE = service_pb2.DESCRIPTOR.services_by_name["MessagingService"]
_PREFIX = f"/{_SERVICE.full_name}/"
TELEMETRY = f"{_PREFIX}Telemetry"
SEND_MESSAGE = f"{_PREFIX}SendMessage"
_BODY_LIMITS = {TELEMETRY: None, SEND_MESSAGE: MAX_BODY_BYTES}
_METHODS = {
    _PREFIX + method.name: _Method(
        method.name, GetMessageClass(method.input_type), GetMessageClass(method.output_type)
    )
    for method in _SERVICE.methods
}
_TELEMETRY_MESSAGE = TelemetryCommand.DESCRIPTOR.full_name
# Methods that Apache's proxy does not have either. It answers them by the status of gRPC.
NOT_IN_THE_PROXY = frozenset(("PullMessage", "UpdateOffset", "GetOffset", "QueryOffset"))
# (call, the request of its method) -> the answer, None if it comes later. Raises Refused and Refusal.
_Handler = Callable[[Call, Any], Message | None]


class Service:
    """Answers the calls of all connections of the port."""

    def __init__(self, parts: BrokerParts, router: Router):
        self._parts = parts
        self._access = parts.access
        self._routes = Routes(parts)
        self._clients = GrpcClients(parts, router.clients)
        pop_acks = router.pop_acks
        dead_letters = DeadLetters(parts, pop_acks)
        self._renewals = Renewals(parts, pop_acks, self._clients)
        self._receives = Receives(
            parts, self._routes, self._clients, router.pops, pop_acks, dead_letters, self._renewals
        )
        acks = Acks(parts, self._routes, pop_acks, dead_letters, self._renewals)
        self._sends = Sends(parts, self._routes)
        self._telemetry: dict[Stream, Telemetry] = {}
        handlers: dict[str, _Handler] = {
            "QueryRoute": lambda call, request: self._routes.query(request),
            "QueryAssignment": lambda call, request: self._routes.assign(request),
            "Heartbeat": self._heartbeat,
            "SendMessage": self._sends.send,
            "ReceiveMessage": self._receives.receive,
            "AckMessage": acks.ack,
            "ChangeInvisibleDuration": acks.change_invisible_duration,
            "ForwardMessageToDeadLetterQueue": acks.forward,
            "EndTransaction": EndsOfTransactions(parts, router.transactions.ends).end,
            "RecallMessage": Recalls(parts, self._routes).recall,
            "NotifyClientTermination": self._notify_client_termination,
            "SyncLiteSubscription": lambda call, request: LiteSubscriptions(parts).sync(request),
        }
        self._handlers = {_PREFIX + name: handler for name, handler in handlers.items()}

    def stop(self) -> None:
        """Renew no message any more."""
        self._renewals.stop()

    # Calls with one message

    def body_limit(self, path: str) -> int | None:
        return _BODY_LIMITS.get(path, MAX_SMALL_BODY_BYTES)

    def call(self, channel: GrpcChannel, stream: Stream, body: bytes) -> None:
        """Answer a call that has one message. Raises GrpcError."""
        method = self._method(channel, stream)
        if method is None:
            return
        fields = stream.fields
        path = fields[":path"]
        try:
            # Most sends end here; all others, and what is wrong with a call, are read with protobuf.
            user = self._user_of(channel, stream, method.message)
            if (
                path == SEND_MESSAGE
                and fields.get(CLIENT_ID)
                and self._sends.send_usual(channel, stream, body, user)
            ):
                return
            call = Call(channel, stream, user)
            message = message_of(body)
            if len(message) > MAX_SMALL_BODY_BYTES:
                self._sends.check(message)  # no other request may be so large
            request = method.request.FromString(message)
            if not fields.get(CLIENT_ID):
                raise _client_id_required()
            if self._access is not None:
                check_rights(self._access, call, request)
            handler = self._handlers.get(path)
            if handler is None:  # of NOT_IN_THE_PROXY
                raise GrpcError(GrpcStatus.UNIMPLEMENTED, f"Method {path[1:]} is unimplemented")
            answer = handler(call, request)
        except DecodeError:
            raise GrpcError(GrpcStatus.INTERNAL, f"a {method.name} that cannot be read") from None
        except GrpcError:
            raise
        except (Refused, Refusal) as error:
            answer = self._refused(error, method, channel)
        except Exception:  # a bug in one handler must not stop the others
            log.exception("%s failed", method.name)
            answer = _with_status(method, FAILED)
        if isinstance(answer, ReceiveMessageResponse):
            self._receives.refuse(Call(channel, stream), answer.status)
        elif answer is not None:
            channel.answer(stream, body_of(answer))

    def _user_of(self, channel: GrpcChannel, stream: Stream, message: str) -> str | None:
        """Return the name of the user that sent a call, None if there is no access control or the call needs
        no proof. Raises Refused, also if the user has too many connections; this one is then closed."""
        if self._access is None:
            return None
        user = user_of(self._access, stream, message, channel.remote)
        if user is None or self._parts.shares.has_user(channel.remote, user):
            return user
        if not channel.listener.has_room_for_user(channel, user):
            channel.loop.call_soon(channel.close)
            raise Refused(Code.TOO_MANY_REQUESTS, flow.TOO_MANY_OF_USER, "calls of one user")
        return user

    def _method(self, channel: GrpcChannel, stream: Stream) -> _Method | None:
        """Return the method of a call. None for a request that is no call of this service; it is answered
        here."""
        fields = stream.fields
        if fields[":method"] != "POST" or not fields.get("content-type", "").startswith(CONTENT_TYPE):
            channel.refuse(stream, NOT_GRPC)
            return None
        method = _METHODS.get(fields[":path"])
        if method is None:
            channel.fail(
                stream, GrpcError(GrpcStatus.UNIMPLEMENTED, f"there is no method {fields[':path']:.120}")
            )
        return method

    def _refused(self, error: Refused | Refusal, method: _Method, channel: GrpcChannel) -> Message:
        """Count a refusal and return its answer. A variable of `call` would keep the error, and by its frames
        the request, until the garbage collector comes."""
        refused = refused_of(error) if isinstance(error, Refusal) else error
        self._count(refused, channel, is_send=method.request is SendMessageRequest)
        return _with_status(method, refused.status)

    def _count(self, refused: Refused, channel: GrpcChannel, *, is_send: bool = False) -> None:
        self._parts.statistics.refuse(
            refused.cause,
            value=refused.value,
            limit=refused.limit,
            who=channel.remote,
            said=str(refused),
            is_send=is_send,
        )

    def _heartbeat(self, call: Call, request: HeartbeatRequest) -> HeartbeatResponse:
        if request.client_type == ClientType.CLIENT_TYPE_UNSPECIFIED:
            raise Refused(Code.UNRECOGNIZED_CLIENT_TYPE, "the type of the client is not known", "client type")
        self._clients.heartbeat(call.client_id, request.group, call.user)
        return HeartbeatResponse(status=OK)

    def _notify_client_termination(
        self, call: Call, request: NotifyClientTerminationRequest
    ) -> NotifyClientTerminationResponse:
        self._clients.terminate(call.client_id, request.group, call.user)
        self._renewals.client_gone(call.client_id)
        return NotifyClientTerminationResponse(status=OK)

    # Telemetry

    def opened(self, channel: GrpcChannel, stream: Stream) -> None:
        """Begin a Telemetry. Raises GrpcError."""
        with _ends_one_call("the beginning of Telemetry"):
            self._open(channel, stream)

    def _open(self, channel: GrpcChannel, stream: Stream) -> None:
        if self._method(channel, stream) is None:
            return
        channel.begin(stream)
        try:
            user = self._user_of(channel, stream, _TELEMETRY_MESSAGE)
            if not stream.fields.get(CLIENT_ID):
                raise _client_id_required()
        except Refused as refused:
            self._count(refused, channel)
            channel.send(stream, body_of(TelemetryCommand(status=refused.status)))
            channel.finish(stream)
            return
        questions = Questions(lambda command: channel.send(stream, body_of(command)), self._parts.clock)
        client = GrpcClient(stream.fields, channel, questions, partial(self.finished, channel, stream), user)
        access, call = self._access, Call(channel, stream, user)
        check = None if access is None else partial(check_settings, access, call)
        self._telemetry[stream] = Telemetry(self._parts, self._clients, client, channel.last_s, check)

    def received(self, channel: GrpcChannel, stream: Stream, piece: bytes) -> None:
        """Answer the commands of a client. Raises GrpcError."""
        with _ends_one_call("Telemetry"):
            self._receive(channel, stream, piece)

    def _receive(self, channel: GrpcChannel, stream: Stream, piece: bytes) -> None:
        telemetry = self._telemetry.get(stream)
        if telemetry is None:
            return
        try:
            answers = telemetry.received(piece, channel.last_s)
        except DecodeError:
            raise GrpcError(GrpcStatus.INTERNAL, "a command that cannot be read") from None
        channel.keep(stream, telemetry.kept)
        for answer in answers:
            if isinstance(answer, Refused):
                self._count(answer, channel)
                raise GrpcError(
                    GrpcStatus.INVALID_ARGUMENT, f"process client telemetryCommand failed. {answer}"
                )
            channel.send(stream, body_of(answer))

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
