"""Light topics: their consumers are refused as by Apache's proxy (decision 84); tests/interop/test_grpc_answers.py
compares the sentences."""

import grpc
import pytest

from broker_store.broker.groups import LITE_BIND_TOPIC
from broker_store.protocol.grpc.v2 import service_pb2 as s
from broker_store.protocol.grpc.v2.definition_pb2 import (
    ClientType,
    Code,
    LiteSubscriptionAction,
    Resource,
)
from tests.server.grpc.conftest import settings_of

ADD, REMOVE, ADD_ALL, REMOVE_ALL = LiteSubscriptionAction.values()
NOT_SUPPORTED = "light topics are not supported"


async def synced(port, *names, action=ADD, topic="Orders", group="CG"):
    request = s.SyncLiteSubscriptionRequest(
        action=action, topic=Resource(name=topic), group=Resource(name=group), lite_topic_set=names
    )
    status = (await port.call("SyncLiteSubscription", request)).status
    return status.code, status.message


@pytest.mark.parametrize("action", [ADD, REMOVE, ADD_ALL, REMOVE_ALL])
async def test_a_group_that_is_not_bound_cannot_subscribe(opened, action):
    port = await opened()
    assert await synced(port, "a", action=action) == (Code.ILLEGAL_CONSUMER_GROUP, "group not found: CG")
    assert port.parts.groups.get("CG") is None
    port.parts.groups.find_or_create("CG")
    text = "lite group CG is expected to bind topic null, but actual is Orders"
    assert await synced(port, "a", action=action) == (Code.ILLEGAL_TOPIC, text)
    assert sum(port.parts.statistics.refusals.counts().values()) == 2


@pytest.mark.parametrize(
    ("names", "fields", "code"),
    [
        ((), {"topic": ""}, Code.ILLEGAL_TOPIC),
        ((), {"topic": "a/b", "group": ""}, Code.ILLEGAL_TOPIC),
        ((), {"topic": "RMQ_SYS_TRANS_HALF_TOPIC"}, Code.ILLEGAL_TOPIC),
        ((), {"group": ""}, Code.ILLEGAL_CONSUMER_GROUP),
        (("a.b",), {"group": "a b"}, Code.ILLEGAL_CONSUMER_GROUP),
        (("a", "a.b"), {}, Code.ILLEGAL_LITE_TOPIC),
        (("a" * 65,), {}, Code.ILLEGAL_LITE_TOPIC),
        ((" ",), {}, Code.ILLEGAL_LITE_TOPIC),
        # Names are checked where they are added one by one, as by Apache's proxy.
        (("a.b",), {"action": ADD_ALL}, Code.ILLEGAL_CONSUMER_GROUP),
        ((), {"action": 9}, Code.BAD_REQUEST),
    ],
)
async def test_what_is_checked_before_the_group_is_looked_up(opened, names, fields, code):
    port = await opened()
    assert (await synced(port, *names, **fields))[0] == code


async def test_a_group_that_apaches_broker_bound_is_told_that_light_topics_are_not_served(opened):
    port = await opened()
    port.parts.groups.find_or_create("CG").attributes = {LITE_BIND_TOPIC: "Orders"}
    assert await synced(port, "a") == (Code.NOT_IMPLEMENTED, NOT_SUPPORTED)
    text = "lite group CG is expected to bind topic Orders, but actual is Other"
    assert await synced(port, "a", topic="Other") == (Code.ILLEGAL_TOPIC, text)


@pytest.mark.parametrize(
    ("attributes", "text"),
    [({}, "regular group cannot use LITE mode: CG"), ({LITE_BIND_TOPIC: "Orders"}, NOT_SUPPORTED)],
)
async def test_the_settings_of_a_consumer_of_light_topics_end_its_telemetry(opened, attributes, text):
    port = await opened()
    port.parts.groups.find_or_create("CG").attributes = attributes
    call = port.telemetry()
    await call.write(s.TelemetryCommand(settings=settings_of(ClientType.LITE_PUSH_CONSUMER)))
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await call.read()
    assert failed.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert failed.value.details() == f"process client telemetryCommand failed. {text}"
    assert port.parts.clients.consumer_groups() == []
