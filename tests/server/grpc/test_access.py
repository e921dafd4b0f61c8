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
from broker_store.server.grpc.sends import Sends
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
from tests.support.broker_harness import refusal_counts
from tests.support.grpc_calls import METHODS, request_of
from tests.support.waits import until

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
    ("SyncLiteSubscription", s.SyncLiteSubscriptionRequest(topic=ORDERS, group=GROUP)),
    ("NotifyClientTermination", s.NotifyClientTerminationRequest(group=GROUP)),
]


def signed_by(name: str, secret: str) -> tuple[tuple[str, str], ...]:
    """Return the metadata of a call that a user has signed."""
    signature = hmac.new(secret.encode(), TIME.encode(), hashlib.sha1).hexdigest()
    stated = f"MQv2-HMAC-SHA1 Credential={name}, SignedHeaders=x-mq-date-time, Signature={signature}"
    return (*METADATA, ("authorization", stated), ("x-mq-date-time", TIME))


ROOT = signed_by("root", ROOT_SECRET)
ANN = signed_by("ann", "ann-secret")


DENIED = {"resource": "Topic:Orders", "actions": ["Pub"], "decision": "Deny"}


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
    assert len(named) == 12


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
    assert refusal_counts(port.parts.access.refusals) == {
        ("not authenticated", None): 1,
        ("not authenticated", "root"): 1,
        ("not authorized", "ann"): 1,
    }
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


async def test_a_send_that_a_kernel_reads_has_its_right_checked_in_each_call(opened, monkeypatch):
    """Also on a connection and with a signature that were good before."""
    parsed = []
    send = Sends.send
    monkeypatch.setattr(Sends, "send", lambda *given: parsed.append(given) or send(*given))
    port = await opened(**ON)
    access = port.parts.access

    async def code(metadata=ANN, topic="Orders") -> int:
        return (await port.send(message(topic=topic), metadata=metadata)).status.code

    let_ann(port, ("Topic:Orders", "Pub"))
    granted = access.state
    assert await code() == Code.OK and await code(topic="Other") == Code.UNAUTHORIZED
    access.replace(granted.with_policies("ann", read_policies([{"entries": [DENIED]}])))
    assert await code() == Code.UNAUTHORIZED
    access.replace(granted)
    assert await code() == Code.OK
    access.replace(granted.updated("ann", None, secret="another-secret"))
    assert await code() == Code.UNAUTHORIZED
    assert await code(signed_by("ann", "another-secret")) == Code.OK
    access.replace(granted.without_user("ann", None))
    assert await code() == Code.UNAUTHORIZED
    assert await code(METADATA) == Code.UNAUTHORIZED and await code(ROOT) == Code.OK
    assert not parsed and len(port.stored("Orders")) == 4
    assert port.parts.statistics.refusals.counts() == {"not authorized": 2, "not authenticated": 3}


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


@pytest.mark.parametrize("settings", [settings_of(), of_producer("Orders")], ids=["consumer", "producer"])
async def test_a_client_is_ended_or_replaced_by_its_own_user_alone(opened, settings):
    port = await opened(**ON)
    let_ann(port, ("*", "All"))
    call, answer = await connected(port, settings, ROOT)
    assert answer.status.code == Code.OK
    other = port.telemetry(ANN)
    await other.write(s.TelemetryCommand(settings=settings))
    with pytest.raises(grpc.aio.AioRpcError, match="client-1 is that of another user"):
        await other.read()
    for name, request in (
        ("NotifyClientTermination", s.NotifyClientTerminationRequest(group=GROUP)),
        ("Heartbeat", s.HeartbeatRequest(client_type=ClientType.PUSH_CONSUMER, group=GROUP)),
    ):
        refused = await status_of(port, name, request, ANN)
        assert (refused.code, refused.message) == (
            Code.UNAUTHORIZED,
            "client client-1 is that of another user",
        )
        assert (await status_of(port, name, request, ROOT)).code == Code.OK
        call, answer = await connected(port, settings, ROOT)  # it was ended by its own user
    assert answer.status.code == Code.OK


async def test_a_client_whose_telemetry_ended_is_ended_by_its_own_user_alone(opened):
    """Its messages would be visible to others at once, though it may come back."""
    port = await opened(**ON)
    let_ann(port)
    call, _ = await connected(port, settings_of(), ROOT)
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF
    request = s.NotifyClientTerminationRequest()
    assert (await status_of(port, "NotifyClientTermination", request, ANN)).code == Code.UNAUTHORIZED
    assert (await status_of(port, "NotifyClientTermination", request, ROOT)).code == Code.OK


async def test_white_lists_name_messages(opened):
    name = "apache.rocketmq.v2.QueryRouteRequest"
    port = await opened(**ON, authentication_whitelist=name, authorization_whitelist=name)
    assert (await port.call("QueryRoute", route("Orders"))).status.code == Code.OK
    assert (await port.send(message())).status.code == Code.UNAUTHORIZED


async def test_a_user_has_half_of_the_connections_and_a_further_one_is_closed(opened):
    port = await opened(**ON, max_connections=4)
    let_ann(port, ("Topic:*", "Pub"))
    clients = [port.connect() for _ in range(3)]
    try:
        codes = [
            (await port.call("QueryRoute", route("Orders"), channel=client, metadata=ANN)).status.code
            for client in clients
        ]
        assert codes == [Code.OK, Code.OK, Code.TOO_MANY_REQUESTS]
        counts = port.parts.statistics.refusals.counts()
        assert counts == {"connections of one user": 1, "calls of one user": 1}
        await until(lambda: len(port.port.channels) == 2)
        root = await port.call("QueryRoute", route("Orders"), channel=port.channel, metadata=ROOT)
        assert root.status.code == Code.OK
        assert dict(port.port._held.counts) == {"user ann": 2, "user root": 1}
        await clients[0].close()
        await until(lambda: dict(port.port._held.counts) == {"user ann": 1, "user root": 1})
    finally:
        for client in clients:
            await client.close()
