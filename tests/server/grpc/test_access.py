"""The gRPC port with access control."""

from __future__ import annotations

import hashlib
import hmac
import json

import grpc
import pytest

from broker_store.access.policies import read_policies
from broker_store.access.users import User
from broker_store.protocol.grpc.v2 import service_pb2 as s
from broker_store.protocol.grpc.v2.definition_pb2 import ClientType, Code, MessageQueue
from tests.server.grpc.conftest import (
    GROUP,
    METADATA,
    ORDERS,
    connected,
    message,
    of_producer,
    route,
    settings_of,
)
from tests.support.grpc_calls import METHODS, request_of

ROOT_SECRET = "the-secret-of-root-0001"
ON = {
    "authentication_enabled": True,
    "authorization_enabled": True,
    "init_authentication_user": json.dumps({"username": "root", "password": ROOT_SECRET}),
}
TIME = "20240102T030405Z"
QUEUE = MessageQueue(topic=ORDERS)
# A call of each method that is served, which demands something of the topic Orders or of the group CG.
CALLS = [
    ("QueryRoute", route("Orders")),
    ("SendMessage", s.SendMessageRequest(messages=[message()])),
    ("QueryAssignment", s.QueryAssignmentRequest(topic=ORDERS, group=GROUP)),
    ("Heartbeat", s.HeartbeatRequest(client_type=ClientType.PUSH_CONSUMER, group=GROUP)),
    ("ReceiveMessage", s.ReceiveMessageRequest(group=GROUP, message_queue=QUEUE)),
    ("AckMessage", s.AckMessageRequest(group=GROUP, topic=ORDERS)),
    ("ChangeInvisibleDuration", s.ChangeInvisibleDurationRequest(group=GROUP, topic=ORDERS)),
    ("ForwardMessageToDeadLetterQueue", s.ForwardMessageToDeadLetterQueueRequest(group=GROUP, topic=ORDERS)),
    ("EndTransaction", s.EndTransactionRequest(topic=ORDERS)),
    ("RecallMessage", s.RecallMessageRequest(topic=ORDERS)),
    ("NotifyClientTermination", s.NotifyClientTerminationRequest(group=GROUP)),
]


def signed_by(name: str, secret: str) -> tuple[tuple[str, str], ...]:
    """Return the metadata of a call that a user has signed."""
    signature = hmac.new(secret.encode(), TIME.encode(), hashlib.sha1).hexdigest()
    stated = f"MQv2-HMAC-SHA1 Credential={name}, SignedHeaders=x-mq-date-time, Signature={signature}"
    return (*METADATA, ("authorization", stated), ("x-mq-date-time", TIME))


ROOT = signed_by("root", ROOT_SECRET)
ANN = signed_by("ann", "ann-secret")


def let_ann(port, *rules: tuple[str, str]) -> None:
    """Make a normal user with rights."""
    access = port.parts.access
    state = access.state.created(User("ann", "ann-secret"), None)
    entries = [{"resource": resource, "actions": [action], "decision": "Allow"} for resource, action in rules]
    if entries:
        state = state.with_policies("ann", read_policies([{"entries": entries}]))
    access.replace(state)


async def status_of(port, name: str, request, metadata=METADATA):
    """Return the status of the answer to a call."""
    if name != "ReceiveMessage":
        return (await port.call(name, request, metadata=metadata)).status
    return (await port.receive(request, metadata=metadata))[0].status


def test_each_method_with_one_message_that_is_served_has_a_call_here():
    named = {name for name, _ in CALLS}
    assert named <= set(METHODS)
    assert len(named) == 11


@pytest.mark.parametrize(("name", "request_"), CALLS, ids=[name for name, _ in CALLS])
async def test_a_call_passes_only_with_a_signature_and_a_right(opened, name, request_):
    port = await opened(**ON)
    let_ann(port)
    unsigned = await status_of(port, name, request_)
    assert (unsigned.code, unsigned.message) == (Code.UNAUTHORIZED, "username cannot be null.")
    wrong = await status_of(port, name, request_, signed_by("root", "wrong"))
    assert (wrong.code, wrong.message) == (Code.UNAUTHORIZED, "check signature failed.")
    without_right = await status_of(port, name, request_, ANN)
    assert without_right.code == Code.UNAUTHORIZED
    assert "User:ann has no permission to access" in without_right.message
    counts = port.parts.statistics.refusals.counts()
    assert (counts["not authenticated"], counts["not authorized"]) == (2, 1)
    allowed = await status_of(port, name, request_, ROOT)
    assert allowed.code != Code.UNAUTHORIZED
    assert not port.stored() or name == "SendMessage"


@pytest.mark.parametrize("name", sorted(set(METHODS) - {"Telemetry"}))
async def test_without_a_signature_no_method_answers_more_than_that(opened, name):
    port = await opened(**ON)
    try:
        status = await status_of(port, name, request_of(name))
    except grpc.aio.AioRpcError as error:
        assert error.code() == grpc.StatusCode.UNIMPLEMENTED
    else:
        assert status.code == Code.UNAUTHORIZED


async def test_a_right_to_send_is_no_right_to_receive(opened):
    port = await opened(**ON)
    let_ann(port, ("Topic:Orders", "Pub"))
    sent = await port.send(message(), metadata=ANN)
    assert sent.status.code == Code.OK
    received = await status_of(port, *CALLS[4], ANN)
    assert received.code == Code.UNAUTHORIZED
    other = await port.send(message(topic="Other"), metadata=ANN)
    assert other.status.code == Code.UNAUTHORIZED


async def test_a_telemetry_needs_a_signature(opened):
    port = await opened(**ON)
    call = port.telemetry()
    answer = await call.read()
    assert (answer.status.code, answer.status.message) == (Code.UNAUTHORIZED, "username cannot be null.")
    assert await call.read() == grpc.aio.EOF


@pytest.mark.parametrize("settings", [settings_of(), of_producer("Orders")], ids=["consumer", "producer"])
async def test_settings_need_rights_on_what_they_name(opened, settings):
    port = await opened(**ON)
    let_ann(port)
    call = port.telemetry(ANN)
    await call.write(s.TelemetryCommand(settings=settings))
    with pytest.raises(grpc.aio.AioRpcError, match="User:ann has no permission"):
        await call.read()
    assert port.parts.groups.get("CG") is None
    _, answer = await connected(port, settings, ROOT)
    assert answer.status.code == Code.OK


async def test_white_lists_name_messages(opened):
    name = "apache.rocketmq.v2.QueryRouteRequest"
    port = await opened(**ON, authentication_whitelist=name, authorization_whitelist=name)
    assert (await port.call("QueryRoute", route("Orders"))).status.code == Code.OK
    assert (await port.send(message())).status.code == Code.UNAUTHORIZED
