"""Access control of the gRPC port: who sends a call, and what the call demands (docs/spec/access.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from google.protobuf.message import Message

from broker_store.access.control import AccessControl
from broker_store.access.denied import Denied
from broker_store.access.resources import Action, Demand, on_group, on_topic_itself
from broker_store.protocol.grpc.v2.definition_pb2 import ClientType, Code, Settings
from broker_store.protocol.grpc.v2.service_pb2 import SendMessageRequest, TelemetryCommand
from broker_store.protocol.http2.stream import Stream
from broker_store.server.grpc.call import Call
from broker_store.server.grpc.statuses import Refused

PUB, SUB = Action.PUB, Action.SUB
_SEND_NAME = SendMessageRequest.DESCRIPTOR.full_name
_AUTHORIZATION, _DATE_TIME = "authorization", "x-mq-date-time"
_PRODUCERS = (ClientType.PRODUCER, ClientType.CLIENT_TYPE_UNSPECIFIED)


def user_of(access: AccessControl, stream: Stream, message: str, remote: str) -> str | None:
    """Return the name of the user that sent a call with a message of that name, from the address `remote`.
    Raises Refused."""
    fields = stream.fields
    try:
        return access.authenticate_call(message, fields.get(_AUTHORIZATION), fields.get(_DATE_TIME))
    except Denied as error:
        access.note(error, remote)
        raise _refused(error) from None


def check_rights(access: AccessControl, call: Call, request: Message) -> None:
    """Raise Refused if the sender of a call may not do what its message demands."""
    _require(access, call, request.DESCRIPTOR, demands_of(request))


def check_send_right(access: AccessControl, user: str | None, topic: str, remote: str) -> None:
    """Raise Refused if a user may not send to a topic: what `check_rights` does for a send whose message was
    not parsed."""
    try:
        access.authorize_call(_SEND_NAME, user, (on_topic_itself(topic, PUB),), remote)
    except Denied as error:
        access.note(error, remote)
        raise _refused(error) from None


def check_settings(access: AccessControl, call: Call, settings: Settings) -> None:
    """Raise Refused if the sender of settings may not publish or subscribe what they name."""
    _require(access, call, TelemetryCommand.DESCRIPTOR, _of_settings(settings))


def _require(access: AccessControl, call: Call, kind: Any, demands: Iterator[Demand]) -> None:
    try:
        access.authorize_call(kind.full_name, call.user, demands, call.channel.remote)
    except Denied as error:
        access.note(error, call.channel.remote)
        raise _refused(error) from None


def _refused(error: Denied) -> Refused:
    return Refused(Code.UNAUTHORIZED, str(error), error.cause)


def demands_of(request: Message) -> Iterator[Demand]:
    """Yield what a message demands; nothing for those that are not served."""
    build = _BUILDS.get(request.DESCRIPTOR.name)
    return iter(()) if build is None else build(request)


def _of_settings(settings: Settings) -> Iterator[Demand]:
    for topic in settings.publishing.topics:
        yield on_topic_itself(topic.name, PUB)
    if settings.HasField("subscription"):
        yield on_group(settings.subscription.group.name, SUB)
        for entry in settings.subscription.subscriptions:
            yield on_topic_itself(entry.topic.name, SUB)


def _send(request: Any) -> Iterator[Demand]:
    """The handler refuses a call whose messages are not all of the first one's topic."""
    if request.messages:
        yield on_topic_itself(request.messages[0].topic.name, PUB)


def _publish(request: Any) -> Iterator[Demand]:
    yield on_topic_itself(request.topic.name, PUB)


def _heartbeat(request: Any) -> Iterator[Demand]:
    if request.client_type not in _PRODUCERS:
        yield on_group(request.group.name, SUB)


def _terminate(request: Any) -> Iterator[Demand]:
    if request.group.name:
        yield on_group(request.group.name, SUB)


def _group(request: Any) -> Iterator[Demand]:
    yield on_group(request.group.name, SUB)


def _receive(request: Any) -> Iterator[Demand]:
    yield on_group(request.group.name, SUB)
    yield on_topic_itself(request.message_queue.topic.name, SUB)


def _consume(request: Any) -> Iterator[Demand]:
    yield on_group(request.group.name, SUB)
    yield on_topic_itself(request.topic.name, SUB)


def _route(request: Any) -> Iterator[Demand]:
    yield on_topic_itself(request.topic.name, PUB, SUB)


_BUILDS: dict[str, Callable[[Any], Iterator[Demand]]] = {
    "SendMessageRequest": _send,
    "RecallMessageRequest": _publish,
    "EndTransactionRequest": _publish,
    "HeartbeatRequest": _heartbeat,
    "NotifyClientTerminationRequest": _terminate,
    "ChangeInvisibleDurationRequest": _group,
    "ReceiveMessageRequest": _receive,
    "AckMessageRequest": _consume,
    "SyncLiteSubscriptionRequest": _consume,
    "ForwardMessageToDeadLetterQueueRequest": _consume,
    "QueryAssignmentRequest": _consume,
    "QueryRouteRequest": _route,
}
