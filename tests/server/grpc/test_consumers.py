"""Consumers on the gRPC port, with grpcio as their client: settings, receives, acknowledgements."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import socket
import tracemalloc

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from broker_store.broker.filters import MAX_EXPRESSION_CHARACTERS
from broker_store.broker.groups import SubscriptionGroup
from broker_store.broker.topics import TopicConfig
from broker_store.formats.http2_frame import (
    DATA,
    FLAG_END_STREAM,
    HEADERS,
    SETTING_INITIAL_WINDOW_SIZE,
)
from broker_store.formats.topics import PERM_WRITE
from broker_store.messages import Message as StoreMessage
from broker_store.messages import PutStatus
from broker_store.protocol.grpc.framing import with_prefix
from broker_store.protocol.grpc.v2 import service_pb2 as s
from broker_store.protocol.grpc.v2.definition_pb2 import (
    Broker,
    ClientType,
    Code,
    DigestType,
    Encoding,
    FilterExpression,
    FilterType,
    MessageQueue,
    MessageType,
    Resource,
    Settings,
)
from broker_store.protocol.http2.connection import PREFACE
from broker_store.protocol.http2.fields import encode_fields
from broker_store.protocol.http2.frames import (
    SETTINGS_ACK,
    frame_head,
    headers_frame,
    scan_frames,
    settings_frame,
    window_update,
)
from broker_store.protocol.pop import Receipt, read_receipt
from broker_store.server.grpc import acks as acks_module
from broker_store.server.grpc import receives as receives_module
from broker_store.server.grpc.handles import Handle, write_handle
from broker_store.server.grpc.renewals import Renewals
from tests.server.grpc.conftest import ENDPOINTS, GROUP, METADATA, ORDERS, connected, settings_of
from tests.support.grpc_calls import path_of
from tests.support.waits import LIMIT_S, until

DLQ = "%DLQ%CG"


def asked(*, topic="Orders", group="CG", count=32, expression="*", of=FilterType.TAG, invisible_s=20, **more):
    return s.ReceiveMessageRequest(
        group=Resource(name=group),
        message_queue=MessageQueue(topic=Resource(name=topic), id=-1, broker=Broker(name="broker-a")),
        filter_expression=FilterExpression(type=of, expression=expression),
        batch_size=count,
        invisible_duration=Duration(seconds=invisible_s),
        long_polling_timeout=more.pop("poll", Duration(seconds=5)),
        **more,
    )


def messages_of(answers) -> list:
    return [answer.message for answer in answers if answer.HasField("message")]


def bodies(answers) -> list[bytes]:
    return [message.body for message in messages_of(answers)]


def status_of(answers):
    (status,) = [answer.status for answer in answers if answer.HasField("status")]
    return status


async def received(port, **options):
    return messages_of(await port.receive(asked(**options)))


async def waited_for_nothing(port, **options) -> list:
    """The answers to a receive that waits until its time is over."""
    call = port.receiving(asked(**options))
    await until(lambda: port.parts.parked_pops.count == 1)
    port.harness.now_ms += 5_001
    port.harness.router.pops.waiting._expire()
    port.harness.router.pops.waiting._timer.cancel()
    return [answer async for answer in call]


async def nothing_is_left(port, **options) -> bool:
    """Whether a receive finds nothing when its time is over."""
    return status_of(await waited_for_nothing(port, **options)).code == Code.MESSAGE_NOT_FOUND


async def waits_for_sync(port) -> None:
    """Wait until a call waits for the disk."""
    await until(lambda: port.harness.store._confirmations)


async def with_syncs(port, call):
    """The result of a call, with the log synced in each turn."""
    task = asyncio.ensure_future(call)

    def is_done() -> bool:
        port.harness.store.sync()
        return task.done()

    await until(is_done)
    return await task


async def ack(port, *handles: str, topic="Orders", group="CG", metadata=METADATA):
    request = s.AckMessageRequest(
        group=Resource(name=group),
        topic=Resource(name=topic),
        entries=[s.AckMessageEntry(message_id="id", receipt_handle=handle) for handle in handles],
    )
    return await port.call("AckMessage", request, metadata=metadata)


# Settings and registration


async def test_a_consumer_gets_its_settings_with_those_of_the_broker(opened):
    port = await opened()
    call, answer = await connected(port)
    assert answer.status.code == Code.OK
    subscription, policy = answer.settings.subscription, answer.settings.backoff_policy
    assert (subscription.fifo, subscription.receive_batch_size) == (False, 32)
    assert subscription.long_polling_timeout.seconds == 20 and subscription.group.name == "CG"
    assert policy.max_attempts == 17
    steps = [step.seconds for step in policy.customized_backoff.next]
    assert steps == [1, 5, 10, 30, *range(60, 660, 60), 1_200, 1_800, 3_600, 7_200]
    call.cancel()


@pytest.mark.parametrize(
    ("policy", "wanted"),
    [
        (
            {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1_500, 60_000]}},
            [(1, 500_000_000), (60, 0)],
        ),
        ({"type": "EXPONENTIAL"}, (5, 7_200, 2.0)),
        (
            {
                "type": "EXPONENTIAL",
                "exponentialRetryPolicy": {"initial": 1_000, "max": 9_000, "multiplier": 3},
            },
            (1, 9, 3.0),
        ),
    ],
)
async def test_a_consumer_gets_the_retry_policy_of_its_group(opened, policy, wanted):
    port = await opened()
    port.parts.groups.put(
        SubscriptionGroup("CG", retry_max_times=4, retry_policy=policy, consume_message_orderly=True)
    )
    call, answer = await connected(port)
    backoff = answer.settings.backoff_policy
    assert (backoff.max_attempts, answer.settings.subscription.fifo) == (5, True)
    if isinstance(wanted, list):
        assert [(step.seconds, step.nanos) for step in backoff.customized_backoff.next] == wanted
    else:
        exponential = backoff.exponential_backoff
        assert (exponential.initial.seconds, exponential.max.seconds, exponential.multiplier) == wanted
    call.cancel()


async def test_a_consumer_is_a_member_of_its_group_until_its_telemetry_ends(opened):
    port = await opened()
    clients = port.parts.clients
    metadata = (
        ("x-mq-client-id", "c1"), ("x-mq-language", "GOLANG"), ("x-mq-client-version", "5.1.2"),
    )  # fmt: skip
    call, _ = await connected(
        port, settings_of(ClientType.SIMPLE_CONSUMER, expression="a > 1", of=FilterType.SQL), metadata
    )
    group = clients.consumer_group("CG")
    (member,) = group.members.values()
    assert (member.client_id, member.language, member.version) == ("c1", "GO", 413 + 20 + 4)
    assert member.channel.remote.startswith("127.0.0.1:")
    assert (group.consume_type, group.message_model) == ("CONSUME_ACTIVELY", "CLUSTERING")
    subscription = group.subscriptions["Orders"]
    assert (subscription.expression, subscription.expression_type) == ("a > 1", "SQL92")
    call.cancel()
    await until(lambda: clients.consumer_group("CG") is None)


async def test_a_consumer_that_terminates_leaves_its_group(opened):
    port = await opened()
    call, _ = await connected(port)
    ended = await port.call("NotifyClientTermination", s.NotifyClientTerminationRequest(group=GROUP))
    assert ended.status.code == Code.OK and port.parts.clients.consumer_group("CG") is None
    call.cancel()


async def test_heartbeats_keep_a_consumer_and_one_without_is_forgotten(opened):
    port = await opened()
    call, _ = await connected(port)
    beat = s.HeartbeatRequest(client_type=ClientType.PUSH_CONSUMER, group=GROUP)
    for _ in range(3):
        port.harness.now_ms += 60_000
        assert (await port.call("Heartbeat", beat)).status.code == Code.OK
    assert port.parts.clients.scan(port.harness.now_ms) == []
    port.harness.now_ms += 120_001
    for channel in port.parts.clients.scan(port.harness.now_ms):
        channel.close()
    assert await call.read() is grpc.aio.EOF
    assert (await port.call("Heartbeat", beat)).status.code == Code.UNRECOGNIZED_CLIENT_TYPE


async def test_a_client_that_opens_telemetry_again_stays_when_the_first_one_ends(opened):
    port = await opened()
    first, _ = await connected(port)
    second, _ = await connected(port)
    first.cancel()
    await until(lambda: len(port.service._telemetry) == 1)
    assert port.parts.clients.consumer_group("CG").client_ids() == ["client-1"]
    second.cancel()
    await until(lambda: port.parts.clients.consumer_group("CG") is None)


async def test_settings_that_come_again_replace_the_subscription(opened):
    port = await opened()
    call, _ = await connected(port)
    for topic, group in (("Other", "CG"), ("Other", "CG2")):
        port.harness.now_ms += 1
        await call.write(s.TelemetryCommand(settings=settings_of(topic=topic, group=group)))
        assert (await call.read()).status.code == Code.OK
        assert list(port.parts.clients.consumer_group(group).subscriptions) == ["Other"]
    assert port.parts.clients.consumer_group("CG") is None
    call.cancel()


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (
            settings_of(group="a/b"),
            "the specified group[a/b] contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$",
        ),
        (settings_of(group=""), "the specified group is blank"),
        (
            settings_of(group="a" * 121),
            f"the specified group[{'a' * 121}] is longer than group max length: 120.",
        ),
        (settings_of(group="CID_RMQ_SYS_TRANS"), "cannot use system consumer group"),
        (
            settings_of(topic="a/b"),
            "The specified topic[a/b] contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$",
        ),
        (settings_of(topic=""), "The specified topic is blank"),
        (settings_of(topic="a" * 128), "The specified topic is longer than topic max length 127."),
        (settings_of(expression=" || "), "expression format is not correct"),
        (settings_of(expression="", of=FilterType.SQL), "expression format is not correct"),
        (settings_of(ClientType.LITE_PUSH_CONSUMER), "group not found: CG"),
        (settings_of(ClientType.LITE_PUSH_CONSUMER, group=""), "the specified group is blank"),
        (settings_of(ClientType.LITE_SIMPLE_CONSUMER), "LITE_SIMPLE_CONSUMER"),
        (settings_of(ClientType.PRODUCER), "PRODUCER"),
        (settings_of(99), "UNRECOGNIZED"),
        (settings_of(-1), "UNRECOGNIZED"),
    ],
)
async def test_settings_that_cannot_be_are_refused(opened, settings, text):
    port = await opened()
    call = port.telemetry()
    await call.write(s.TelemetryCommand(settings=settings))
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await call.read()
    assert failed.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert failed.value.details() == f"process client telemetryCommand failed. {text}"
    assert port.parts.clients.consumer_groups() == []
    assert sum(port.parts.statistics.refusals.counts().values()) == 1
    (connection,) = port.port.channels  # it goes on
    assert connection.handler._telemetry == {} and not connection.closed


async def test_sql_that_cannot_be_parsed_is_refused_by_a_receive_and_not_by_settings(opened):
    port = await opened()
    call, answer = await connected(port, settings_of(expression="a >", of=FilterType.SQL))
    assert answer.status.code == Code.OK
    assert port.parts.clients.consumer_group("CG").subscriptions["Orders"].expression == "a >"
    status = status_of(await port.receive(asked(expression="a >", of=FilterType.SQL)))
    assert status.code == Code.ILLEGAL_FILTER_EXPRESSION
    call.cancel()


@pytest.mark.parametrize("method", ["_open", "_receive", "_forget"])
async def test_a_bug_in_telemetry_ends_no_other_call(opened, method, monkeypatch, caplog):
    port = await opened()
    other, _ = await connected(port, metadata=(("x-mq-client-id", "other"),))
    (connection,) = port.port.channels
    service = connection.handler
    forget = service._forget

    def failing(*given):
        if method == "_forget":
            forget(*given)
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(service, method, failing)
        if method == "_forget":
            call, _ = await connected(port)
            call.cancel()
            await until(lambda: "ZeroDivisionError" in caplog.text)
        else:
            call = port.telemetry()
            with pytest.raises((grpc.aio.AioRpcError, asyncio.InvalidStateError)):
                await call.write(s.TelemetryCommand(settings=settings_of()))
                await call.read()
            assert await call.code() == grpc.StatusCode.INTERNAL
            assert "ZeroDivisionError" in caplog.text  # grpcio has its own text if its write fails
    await until(lambda: len(service._telemetry) == 1)
    assert port.parts.clients.consumer_group("CG").client_ids() == ["other"]
    await other.write(s.TelemetryCommand(settings=settings_of()))
    assert (await other.read()).status.code == Code.OK and not connection.closed
    other.cancel()


async def test_settings_of_neither_kind_end_telemetry(opened):
    port = await opened()
    call = port.telemetry()
    await call.write(s.TelemetryCommand(settings=Settings()))
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await call.read()
    assert failed.value.code() == grpc.StatusCode.INVALID_ARGUMENT


# Assignments


async def test_a_consumer_is_assigned_all_queues_as_one(opened):
    port = await opened()
    request = s.QueryAssignmentRequest(topic=ORDERS, group=GROUP, endpoints=ENDPOINTS)
    answer = await port.call("QueryAssignment", request)
    assert answer.status.code == Code.OK
    (assignment,) = answer.assignments
    queue = assignment.message_queue
    assert (queue.id, queue.topic.name, queue.broker.name) == (-1, "Orders", "broker-a")
    assert queue.broker.endpoints == ENDPOINTS and not queue.accept_message_types


async def test_a_consumer_in_order_is_assigned_each_queue(opened):
    port = await opened()
    port.parts.groups.put(SubscriptionGroup("CG", consume_message_orderly=True))
    port.parts.topics.put(TopicConfig("Uneven", 2, 5))
    request = s.QueryAssignmentRequest(topic=Resource(name="Uneven"), group=GROUP, endpoints=ENDPOINTS)
    answer = await port.call("QueryAssignment", request)
    assert [assignment.message_queue.id for assignment in answer.assignments] == [0, 1]


@pytest.mark.parametrize(
    ("topic", "group", "code"),
    [
        ("Unknown", "CG", Code.TOPIC_NOT_FOUND),
        ("WriteOnly", "CG", Code.FORBIDDEN),
        ("Orders", "a b", Code.ILLEGAL_CONSUMER_GROUP),
        ("Unknown", "a b", Code.ILLEGAL_CONSUMER_GROUP),
        ("a b", "a b", Code.ILLEGAL_TOPIC),
    ],
)
async def test_an_assignment_that_cannot_be_is_refused(opened, topic, group, code):
    port = await opened()
    port.parts.topics.put(TopicConfig("WriteOnly", 1, 1, perm=PERM_WRITE))
    request = s.QueryAssignmentRequest(topic=Resource(name=topic), group=Resource(name=group))
    answer = await port.call("QueryAssignment", request)
    assert (answer.status.code, len(answer.assignments)) == (code, 0)


# Receives


async def test_a_receive_is_answered_status_first_and_a_message_in_each_frame(opened):
    port = await opened()
    port.harness.now_ms = 1_795_244_468_000
    port.put(b"one", KEYS="k1 k2", color="red", TRACE_CONTEXT="trace", MSG_REGION="r")
    port.put(b"two", queue_id=2)
    answers = await port.receive(asked())
    kinds = [answer.WhichOneof("content") for answer in answers]
    assert kinds == ["status", "message", "message", "delivery_timestamp"]
    assert (answers[0].status.code, answers[0].status.message) == (Code.OK, "OK")
    assert answers[-1].delivery_timestamp.seconds == 1_795_244_468
    first = next(message for message in messages_of(answers) if message.body == b"one")
    system = first.system_properties
    assert first.topic.name == "Orders"
    assert dict(first.user_properties) == {"color": "red", "TRACE_CONTEXT": "trace"}
    assert (system.message_id, system.tag, list(system.keys)) == ("U0", "TagA", ["k1", "k2"])
    assert (system.queue_id, system.queue_offset, system.delivery_attempt) == (0, 0, 1)
    assert (system.body_digest.type, system.body_digest.checksum) == (
        DigestType.MD5, hashlib.md5(b"one").hexdigest().upper(),
    )  # fmt: skip
    assert (system.body_encoding, system.message_type) == (Encoding.IDENTITY, MessageType.NORMAL)
    assert system.store_timestamp.seconds == 1_795_244_468 and system.trace_context == "trace"
    assert system.receipt_handle.startswith("0 1795244468000 20000 ")


@pytest.mark.parametrize(
    ("pairs", "kind"),
    [
        ({"TRAN_MSG": "true"}, MessageType.TRANSACTION),
        ({"TIMER_DELIVER_MS": "1795244468000"}, MessageType.DELAY),
        ({"DELAY": "3"}, MessageType.DELAY),
        ({"__SHARDINGKEY": "g"}, MessageType.FIFO),
        ({"_SYS_MSG_PRIORITY_": "3"}, MessageType.PRIORITY),
    ],
)
async def test_the_type_of_a_message_follows_its_properties(opened, pairs, kind):
    port = await opened()
    port.put(b"one", **pairs)
    (message,) = await received(port)
    assert message.system_properties.message_type == kind
    assert message.system_properties.message_group == pairs.get("__SHARDINGKEY", "")


async def test_a_message_with_values_out_of_range_is_given(opened):
    port = await opened()
    for born_ms in (-(1 << 62), 1 << 62):
        bad = b"TAGS\x01\xff\x02UNIQ_KEY\x01\xed\xa0\x80\x02TIMER_DELIVER_MS\x0199999999999999\x02"
        port.harness.store.appender.put(StoreMessage("Orders", 0, b"x", bad, born_timestamp=born_ms))
    first, last = await received(port)
    for message, year in ((first, 1), (last, 9999)):
        assert message.system_properties.born_timestamp.ToDatetime().year == year
    assert first.system_properties.message_id == "\ufffd" == first.system_properties.tag
    assert (await ack(port, last.system_properties.receipt_handle)).status.code == Code.OK


async def test_a_bug_in_an_answer_is_answered_without_details(opened, monkeypatch, caplog):
    port = await opened()
    port.put(b"one")

    def fail(*_):
        raise RuntimeError("secret")

    monkeypatch.setattr(receives_module, "received_message", fail)
    status = status_of(await port.receive(asked()))
    assert status.code == Code.INTERNAL_SERVER_ERROR and "secret" not in status.message
    assert "secret" in caplog.text


async def test_what_was_acknowledged_never_comes_again_and_the_rest_after_its_time(opened):
    port = await opened()
    port.put(b"one", b"two")
    one, two = await received(port)
    answer = await ack(port, one.system_properties.receipt_handle)
    assert (answer.status.code, answer.entries[0].status.code, answer.entries[0].message_id) == (
        Code.OK, Code.OK, "id",
    )  # fmt: skip
    port.pass_time(21_000)
    (again,) = await received(port)
    assert (again.body, again.topic.name, again.system_properties.delivery_attempt) == (b"two", "Orders", 2)
    assert again.system_properties.message_id == two.system_properties.message_id
    assert (await ack(port, again.system_properties.receipt_handle)).status.code == Code.OK
    port.pass_time(60_000)
    assert await nothing_is_left(port)


async def test_a_receive_waits_for_a_message(opened):
    port = await opened()
    call = port.receiving(asked())
    await until(lambda: port.parts.parked_pops.count == 1)
    port.put(b"one")
    assert bodies([answer async for answer in call]) == [b"one"]
    assert port.parts.parked_pops.count == 0


async def test_the_time_of_a_receive_ends(opened):
    answers = await waited_for_nothing(await opened())
    assert [answer.WhichOneof("content") for answer in answers] == ["status", "delivery_timestamp"]
    status = status_of(answers)
    assert (status.code, status.message) == (Code.MESSAGE_NOT_FOUND, "no new message")


async def test_places_to_wait_are_bounded(opened):
    port = await opened(pop_polling_size=1)
    call = port.receiving(asked())
    await until(lambda: port.parts.parked_pops.count == 1)
    status = status_of(await port.receive(asked()))
    assert (status.code, status.message) == (Code.TOO_MANY_REQUESTS, "polling full")
    call.cancel()


async def test_tags_and_sql_filter(opened):
    port = await opened()
    port.put(b"a", tag="A", n="1")
    port.put(b"b", tag="B", n="2")
    port.put(b"c", tag="C", n="3")
    assert bodies(await port.receive(asked(expression="A || C"))) == [b"a", b"c"]
    assert bodies(await port.receive(asked(expression="n > 1", of=FilterType.SQL, group="CG2"))) == [
        b"b",
        b"c",
    ]


async def test_a_tag_that_only_shares_its_hash_is_acknowledged(opened):
    port = await opened()
    port.put(b"a", tag="BB")
    status = status_of(await port.receive(asked(expression="Aa")))
    assert (status.code, status.message) == (Code.MESSAGE_NOT_FOUND, "no match message")
    port.pass_time(60_000)
    assert await nothing_is_left(port, expression="Aa || BB")


REFUSED = {
    "topic": (asked(topic="Unknown"), Code.TOPIC_NOT_FOUND),
    "system topic": (asked(topic="TBW102"), Code.ILLEGAL_TOPIC),
    "group": (asked(group="a b"), Code.ILLEGAL_CONSUMER_GROUP),
    "system group": (asked(group="CID_RMQ_SYS_TRANS"), Code.ILLEGAL_CONSUMER_GROUP),
    "short time": (asked(invisible_s=9), Code.ILLEGAL_INVISIBLE_TIME),
    "long time": (asked(invisible_s=43_201), Code.ILLEGAL_INVISIBLE_TIME),
    "expression": (asked(expression=" || "), Code.ILLEGAL_FILTER_EXPRESSION),
    "sql": (asked(expression="a >", of=FilterType.SQL), Code.ILLEGAL_FILTER_EXPRESSION),
    "no sql": (asked(expression="", of=FilterType.SQL), Code.ILLEGAL_FILTER_EXPRESSION),
    "no batch": (asked(count=0), Code.BAD_REQUEST),
    "not readable": (asked(topic="WriteOnly"), Code.FORBIDDEN),
}


@pytest.mark.parametrize(("request_", "code"), REFUSED.values(), ids=REFUSED)
async def test_a_receive_that_is_not_allowed_is_refused(opened, request_, code):
    port = await opened()
    port.parts.topics.put(TopicConfig("WriteOnly", 1, 1, perm=PERM_WRITE))
    answers = await port.receive(request_)
    assert [answer.WhichOneof("content") for answer in answers] == ["status", "delivery_timestamp"]
    assert answers[0].status.code == code
    assert sum(port.parts.statistics.refusals.counts().values()) == 1


async def test_the_sentences_are_those_of_apaches_proxy(opened):
    port = await opened()
    assert status_of(await port.receive(asked(invisible_s=9))).message == (
        "the invisibleTime is too small. min is 10000"
    )
    assert status_of(await port.receive(asked(invisible_s=43_201))).message == (
        "the invisibleTime is too large. max is 43200000"
    )


async def test_a_receive_whose_topic_would_make_its_messages_large_is_refused(opened):
    port = await opened()
    request = asked()
    request.message_queue.topic.resource_namespace = "n" * 2_000
    status = status_of(await port.receive(request))
    assert (status.code, status.message) == (
        Code.ILLEGAL_TOPIC,
        "a topic and its namespace have 2011 bytes, most is 1024",
    )
    request.message_queue.topic.resource_namespace = "n" * 1_000
    port.put(b"0")
    (message,) = messages_of(await port.receive(request))
    assert message.topic == request.message_queue.topic


async def test_a_batch_of_more_than_32_has_32(opened):
    port = await opened()
    port.put(*(b"%d" % number for number in range(40)))
    assert len(await received(port, count=1_000)) == 32


async def test_a_receive_waits_within_the_time_of_its_call(opened):
    port = await opened()
    status = status_of(await port.receive(asked(), timeout=4.9))
    assert (status.code, status.message) == (
        Code.ILLEGAL_POLLING_TIME,
        "The deadline time remaining is not enough for polling, please check network condition",
    )
    call = port.receiving(asked(poll=Duration(seconds=20)), timeout=12)
    await until(lambda: port.parts.parked_pops.count == 1)
    (deadline_ms, _, _) = port.parts.parked_pops._deadlines[0]
    assert 11_000 < deadline_ms - port.harness.now_ms <= 12_000  # grpcio rounds the time up
    call.cancel()


async def test_a_receive_that_is_cancelled_takes_no_message(opened):
    port = await opened()
    call = port.receiving(asked())
    await until(lambda: port.parts.parked_pops.count == 1)
    call.cancel()
    await until(lambda: port.parts.parked_pops.count == 0)
    port.put(b"one")
    assert bodies(await port.receive(asked())) == [b"one"]
    assert port.service._receives._under_way == {}


async def test_messages_of_a_client_that_went_meanwhile_are_visible_a_second_later(opened):
    port = await opened(sync_flush=True)
    port.put(b"one")
    port.harness.store.sync()
    call = port.receiving(asked(invisible_s=3_600))
    await waits_for_sync(port)
    service = port.service
    call.cancel()
    await until(lambda: not service._receives._under_way)
    port.harness.store.sync()
    port.pass_time(1_000)
    port.harness.store.sync()
    port.pass_time(2_000)
    port.harness.store.sync()
    port.pass_time(2_000)
    port.harness.store.sync()
    assert bodies(await with_syncs(port, port.receive(asked()))) == [b"one"]


async def test_messages_of_a_queue_are_visible_a_second_after_its_receive_ended_in_the_read_of_another(
    opened,
):
    port = await opened()
    store = port.harness.store
    store.cold = True
    port.put(b"a", queue_id=0)
    port.put(b"a", queue_id=1)
    call = port.receiving(asked(invisible_s=3_600))
    await until(lambda: store._cold_reads)
    assert store.finish_cold_reads() == 1
    await until(lambda: store._cold_reads)
    receives = port.service._receives
    call.cancel()
    await until(lambda: not receives._under_way)
    store.finish_cold_reads()
    store.cold = False
    assert bodies(await port.receive(asked())) == [b"a"]
    port.pass_time(5_000)
    assert bodies(await port.receive(asked())) == [b"a"]


async def test_a_topic_that_is_deleted_before_the_answer_ends_a_receive(opened):
    port = await opened(sync_flush=True)
    port.put(b"a", tag="BB")
    port.harness.store.sync()
    waiting = asyncio.ensure_future(port.receive(asked(expression="Aa")))
    await waits_for_sync(port)
    port.parts.topics.delete("Orders")
    port.harness.store.sync()
    assert status_of(await waiting).message == "no match message"
    assert port.parts.statistics.refusals.counts()["no topic"] == 1


async def test_a_pop_checkpoint_that_is_not_stored_gives_no_message(opened):
    port = await opened()
    port.put(b"one")
    port.harness.store.refuse = PutStatus.SERVICE_NOT_AVAILABLE
    status = status_of(await port.receive(asked()))
    assert status.code == Code.INTERNAL_SERVER_ERROR
    port.harness.store.refuse = None
    assert bodies(await port.receive(asked())) == [b"one"]


async def test_large_messages_come_one_by_one_and_a_client_that_does_not_read_gets_no_more(opened):
    port = await opened()
    port.put(*(bytes([number]) * (3 << 20) for number in range(12)))
    call = port.receiving(asked())
    sizes = []
    async for answer in call:
        (connection,) = port.port.channels
        sizes.append((len(answer.message.body), connection.connection.queued))
    assert [size for size, _ in sizes] == [0, 3 << 20, 0]
    # One answer waits at most: a pop has 256 KiB, or one message.
    assert max(queued for _, queued in sizes) < 4 << 20


# Handles


async def test_a_handle_of_another_group_or_topic_or_that_was_changed_is_refused(opened):
    port = await opened()
    port.parts.topics.put(TopicConfig("Other", 4, 4))
    port.put(b"one")
    (message,) = await received(port)
    text = message.system_properties.receipt_handle
    words = text.split(" ")
    forged = [
        " ".join([*words[:number], str(int(word) + 1), *words[number + 1 :]])
        for number, word in enumerate(words[:9])
        if word.isdigit()
    ]
    stored = port.harness.store.max_offset("rmq_sys_wheel_timer", 0)
    bad = [*forged, text[:-1], "", "x", " ", "0 " * 400, text + " 1", words[0]]
    for handle in bad:
        answer = await ack(port, handle)
        assert (answer.status.code, answer.entries[0].status.code) == (Code.INVALID_RECEIPT_HANDLE,) * 2
    port.parts.groups.put(SubscriptionGroup("CG2"))
    for options in ({"group": "CG2"}, {"topic": "Other"}):
        assert (await ack(port, text, **options)).status.code == Code.INVALID_RECEIPT_HANDLE
        assert (await changed(port, text, 1, **options)).status.code == Code.INVALID_RECEIPT_HANDLE
    assert port.harness.store.max_offset("rmq_sys_wheel_timer", 0) == stored
    assert (await ack(port, text)).status.code == Code.OK


async def test_a_handle_that_is_over_or_of_another_broker_is_refused(opened):
    port = await opened()
    port.put(b"one")
    (message,) = await received(port)
    text = message.system_properties.receipt_handle
    port.harness.now_ms += 20_000
    answer = await ack(port, text)
    assert (answer.entries[0].status.code, answer.entries[0].status.message) == (
        Code.INVALID_RECEIPT_HANDLE, "receipt handle is expired",
    )  # fmt: skip
    receipt = Handle(_receipt(port)._replace(broker_name="broker-b"), 0, "Orders", "CG")
    answer = await ack(port, write_handle(receipt))
    assert answer.status.code == Code.INVALID_RECEIPT_HANDLE


def _receipt(port):
    return Receipt(0, port.harness.now_ms, 20_000, 0, 0, "broker-a", 0, 0)


async def test_results_of_a_call_that_differ_are_marked(opened):
    port = await opened()
    port.put(b"one")
    (message,) = await received(port)
    answer = await ack(port, message.system_properties.receipt_handle, "forged")
    assert answer.status.code == Code.MULTIPLE_RESULTS
    assert [entry.status.code for entry in answer.entries] == [Code.OK, Code.INVALID_RECEIPT_HANDLE]
    assert (await ack(port)).status.message == "ack message result is empty"
    many = await ack(port, *["x"] * (acks_module.MAX_ENTRIES + 1))
    assert many.status.code == Code.BAD_REQUEST


async def test_many_messages_are_acknowledged_in_turns(opened):
    port = await opened()
    port.put(*(b"%d" % number for number in range(300)))
    handles = []
    while len(handles) < 300:
        handles += [message.system_properties.receipt_handle for message in await received(port)]
    answer = await ack(port, *handles)
    assert answer.status.code == Code.OK and len(answer.entries) == 300
    port.pass_time(60_000)
    assert await nothing_is_left(port)


async def test_with_sync_flush_an_acknowledgement_is_answered_after_the_sync(opened):
    port = await opened(sync_flush=True)
    port.put(b"one")
    port.harness.store.sync()
    waiting = asyncio.ensure_future(received(port))
    await waits_for_sync(port)
    assert not waiting.done()
    port.harness.store.sync()
    (message,) = await waiting
    acking = asyncio.ensure_future(ack(port, message.system_properties.receipt_handle))
    await waits_for_sync(port)
    assert not acking.done()
    port.harness.store.sync(PutStatus.FLUSH_DISK_TIMEOUT)
    assert (await acking).status.code == Code.MASTER_PERSISTENCE_TIMEOUT


async def changed(port, handle: str, seconds: int, *, topic="Orders", group="CG"):
    request = s.ChangeInvisibleDurationRequest(
        group=Resource(name=group),
        topic=Resource(name=topic),
        receipt_handle=handle,
        invisible_duration=Duration(seconds=seconds),
    )
    return await port.call("ChangeInvisibleDuration", request)


async def test_a_group_in_order_moves_a_message_to_the_dead_letters_after_its_last_attempt(opened):
    port = await opened()
    port.parts.groups.put(SubscriptionGroup("CG", consume_message_orderly=True, retry_max_times=1))
    port.put(b"one", b"two")
    for attempt in ("a", "b"):
        assert [message.body for message in await received(port, count=1, attempt_id=attempt)] == [b"one"]
        port.harness.now_ms += 20_000
    answers = await port.receive(asked(count=1, attempt_id="c"))
    assert status_of(answers).code == Code.MESSAGE_NOT_FOUND
    await until(lambda: port.harness.store.max_offset("%DLQ%CG", 0))
    assert [message.body for message in await received(port, attempt_id="d")] == [b"two"]


async def test_an_invisible_time_is_changed_and_the_new_handle_counts(opened):
    port = await opened()
    port.put(b"one", b"two")
    one, two = await received(port)
    longer = await changed(port, one.system_properties.receipt_handle, 60)
    assert longer.status.code == Code.OK
    shorter = await changed(port, two.system_properties.receipt_handle, 0)
    assert shorter.status.code == Code.OK
    port.pass_time(2_000)
    assert [message.body for message in await received(port)] == [b"two"]
    port.pass_time(21_000)
    assert (await ack(port, one.system_properties.receipt_handle)).status.code == Code.INVALID_RECEIPT_HANDLE
    assert (await ack(port, longer.receipt_handle)).status.code == Code.OK
    assert (await changed(port, two.system_properties.receipt_handle, 43_201)).status.code == (
        Code.ILLEGAL_INVISIBLE_TIME
    )


# In order


async def ordered(opened, **group):
    port = await opened()
    port.parts.groups.put(SubscriptionGroup("CG", consume_message_orderly=True, **group))
    call, answer = await connected(port)
    assert answer.settings.subscription.fifo
    return port, call


async def test_a_group_in_order_gets_no_more_of_a_queue_before_it_has_acknowledged(opened):
    port, call = await ordered(opened)
    port.put(*(b"%d" % number for number in range(4)), __SHARDINGKEY="g")
    first = await received(port, count=2)
    assert [message.body for message in first] == [b"0", b"1"]
    waiting = asyncio.ensure_future(received(port, count=2))
    await until(lambda: port.parts.parked_pops.count)
    assert (await ack(port, first[1].system_properties.receipt_handle)).status.code == Code.OK
    assert port.parts.parked_pops.count == 1
    assert (await ack(port, first[0].system_properties.receipt_handle)).status.code == Code.OK
    assert [message.body for message in await waiting] == [b"2", b"3"]
    call.cancel()


async def test_a_message_in_order_that_fails_comes_again_before_the_others(opened):
    port, call = await ordered(opened, retry_max_times=1)
    port.put(b"0", b"1", __SHARDINGKEY="g")
    for attempt in (1, 2):
        (message,) = await received(port, count=1)
        assert (message.body, message.system_properties.delivery_attempt) == (b"0", attempt)
        assert (await changed(port, message.system_properties.receipt_handle, 1)).status.code == Code.OK
        port.pass_time(1_000)
    status = status_of(await port.receive(asked(count=1)))
    assert status.message == "no match message"
    (dead,) = port.harness.store.messages(DLQ, 0)
    assert dead.body == b"0"
    assert [message.body for message in await received(port, count=1)] == [b"1"]
    call.cancel()


async def test_a_repeated_attempt_in_order_gets_its_messages_again(opened):
    port, call = await ordered(opened)
    port.put(b"0", b"1")
    first = await received(port, count=2, attempt_id="a1")
    again = await received(port, count=2, attempt_id="a1")
    assert [message.body for message in again] == [b"0", b"1"] == [message.body for message in first]
    handles = [message.system_properties.receipt_handle for message in again]
    assert (await ack(port, *handles)).status.code == Code.OK
    assert await nothing_is_left(port)
    call.cancel()


async def test_an_attempt_id_that_is_too_long_is_an_error_of_the_client(opened):
    port, call = await ordered(opened)
    status = status_of(await port.receive(asked(attempt_id="a" * 256)))
    assert (status.code, status.message) == (Code.BAD_REQUEST, "attempt_id must have at most 255 characters")
    port.put(b"0")
    assert [message.body for message in await received(port, attempt_id="a" * 255)] == [b"0"]
    call.cancel()


async def test_an_expression_that_is_too_long_is_refused_by_its_size(opened):
    port = await opened()
    long = "a" * (MAX_EXPRESSION_CHARACTERS + 1)
    status = status_of(await port.receive(asked(expression=long, of=FilterType.SQL)))
    assert status.code == Code.ILLEGAL_FILTER_EXPRESSION
    assert status.message == f"SQL92: an expression of {len(long)} characters, most is {len(long) - 1}"
    status = status_of(await port.receive(asked(expression=long)))
    assert (status.code, status.message) == (Code.ILLEGAL_FILTER_EXPRESSION, "subString split error")


async def test_an_offset_that_a_group_was_not_given_in_order_is_refused(opened):
    port, call = await ordered(opened)
    port.put(b"0", b"1")
    (message,) = await received(port, count=1)
    words = message.system_properties.receipt_handle.split(" ")
    receipt = read_receipt(" ".join(words[:8]))._replace(offset=1)
    answer = await ack(port, write_handle(Handle(receipt, 0, "Orders", "CG")))
    assert answer.status.code == Code.INVALID_RECEIPT_HANDLE
    call.cancel()


async def test_messages_in_order_are_renewed_and_forwarded(opened):
    port, call = await ordered(opened)
    port.put(b"0", b"1")
    (message,) = await received(port, count=1, auto_renew=True, invisible_s=0)
    let_pass(port, 600_000)
    waiting = asyncio.ensure_future(received(port, count=1))
    await until(lambda: port.parts.parked_pops.count)
    assert (await forward(port, message.system_properties.receipt_handle)).status.code == Code.OK
    assert [message.body for message in await waiting] == [b"1"]
    assert [dead.body for dead in port.harness.store.messages(DLQ, 0)] == [b"0"]
    call.cancel()


# Dead letters


async def forward(port, handle: str, group="CG"):
    request = s.ForwardMessageToDeadLetterQueueRequest(
        group=Resource(name=group), topic=ORDERS, receipt_handle=handle
    )
    return await port.call("ForwardMessageToDeadLetterQueue", request)


@pytest.mark.parametrize("cold", [False, True])
async def test_a_message_is_forwarded_to_the_dead_letters_of_its_group(opened, cold):
    port = await opened()
    port.put(b"one")
    (message,) = await received(port)
    port.harness.store.cold = cold
    forwarding = asyncio.ensure_future(forward(port, message.system_properties.receipt_handle))
    if cold:
        await until(lambda: port.harness.store._cold_reads)
        port.harness.store.cold = False
        port.harness.store.finish_cold_reads()
    answer = await forwarding
    assert (answer.status.code, answer.status.message) == (Code.OK, "OK")
    (dead,) = port.harness.store.messages(DLQ, 0)
    assert (dead.body, dead.properties["UNIQ_KEY"], dead.properties["RETRY_TOPIC"]) == (
        b"one",
        "U0",
        "Orders",
    )
    port.pass_time(60_000)
    assert await nothing_is_left(port)


async def test_a_forged_handle_makes_no_dead_letter(opened):
    port = await opened()
    port.put(b"one", b"two")
    one, _ = await received(port)
    assert (await forward(port, "forged")).status.code == Code.INVALID_RECEIPT_HANDLE
    elsewhere = Handle(_receipt(port), 7, "Orders", "CG")
    answer = await forward(port, write_handle(elsewhere))
    assert answer.status.code == Code.INVALID_RECEIPT_HANDLE
    assert port.harness.store.max_offset(DLQ, 0) == 0


@pytest.mark.parametrize("first", ["forward", "ack"])
async def test_a_message_that_is_not_invisible_makes_no_dead_letter_of_its_handle(opened, first):
    port = await opened()
    port.put(b"one", b"two")
    one, two = [message.system_properties.receipt_handle for message in await received(port)]
    ended = forward(port, one) if first == "forward" else ack(port, one)
    assert (await ended).status.code == Code.OK
    before = port.harness.store.max_offset(DLQ, 0)
    for _ in range(2):
        answer = await forward(port, one)
        assert (answer.status.code, answer.status.message) == (Code.OK, "OK")
    assert port.harness.store.max_offset(DLQ, 0) == before == (first == "forward")
    assert (await forward(port, two)).status.code == Code.OK
    assert port.harness.store.max_offset(DLQ, 0) == before + 1


@pytest.mark.parametrize("stored", [True, False])
async def test_forwards_of_a_message_at_once_have_one_result(opened, stored):
    port = await opened(sync_flush=True)
    port.put(b"one", b"two")
    one, two = [
        message.system_properties.receipt_handle for message in await with_syncs(port, received(port))
    ]
    if not stored:
        port.harness.store.refuse = PutStatus.SERVICE_NOT_AVAILABLE
    calls = [asyncio.ensure_future(forward(port, handle)) for handle in (one, one, two, one)]
    if stored:
        (connection,) = port.port.channels
        await until(lambda: len(connection.connection.streams) == 4)
    answers = await with_syncs(port, asyncio.gather(*calls))
    wanted = Code.OK if stored else Code.INTERNAL_SERVER_ERROR
    assert [answer.status.code for answer in answers] == [wanted] * 4
    assert port.harness.store.max_offset(DLQ, 0) == (2 if stored else 0)


async def test_a_handle_that_no_pop_gave_makes_no_dead_letter(opened):
    port = await opened()
    port.put(b"one")
    (message,) = await received(port)
    words = message.system_properties.receipt_handle.split(" ")
    receipt = read_receipt(" ".join(words[:8]))._replace(revive_queue=99)
    handle = write_handle(Handle(receipt, int(words[8]), "Orders", "CG"))
    assert (await forward(port, handle)).status.code == Code.INVALID_RECEIPT_HANDLE
    assert (await ack(port, handle)).status.code == Code.INVALID_RECEIPT_HANDLE
    assert port.harness.store.max_offset(DLQ, 0) == 0


async def test_a_message_in_order_is_one_dead_letter(opened):
    port, call = await ordered(opened)
    port.put(b"0", b"1")
    (message,) = await received(port, count=1)
    for _ in range(2):
        assert (await forward(port, message.system_properties.receipt_handle)).status.code == Code.OK
    assert [dead.body for dead in port.harness.store.messages(DLQ, 0)] == [b"0"]
    call.cancel()


async def test_a_group_that_does_not_exist_has_no_dead_letters(opened):
    port = await opened()
    port.put(b"one")
    (message,) = await received(port)
    port.parts.groups.delete("CG")
    handle = message.system_properties.receipt_handle
    assert (await forward(port, handle)).status.code == Code.CONSUMER_GROUP_NOT_FOUND
    assert port.parts.topics.get(DLQ) is None
    assert (await ack(port, handle)).status.code == Code.CONSUMER_GROUP_NOT_FOUND
    assert (await ack(port, handle, group="Other")).status.code == Code.CONSUMER_GROUP_NOT_FOUND
    assert (await changed(port, handle, 10, group="Other")).status.code == Code.CONSUMER_GROUP_NOT_FOUND


@pytest.mark.parametrize("place", [1 << 63, (1 << 64) + 1, -1, "+0", "00", "0_0", "٣", "", "1e3"])
async def test_a_handle_with_a_wrong_log_offset_is_refused(opened, place):
    port = await opened()
    port.put(b"one")
    handle = write_handle(Handle(_receipt(port), place, "Orders", "CG"))
    port.parts.groups.put(SubscriptionGroup("CG"))
    assert (await forward(port, handle)).status.code == Code.INVALID_RECEIPT_HANDLE
    assert (await ack(port, handle)).status.code == Code.INVALID_RECEIPT_HANDLE


@pytest.mark.parametrize("number", [1 << 63, "+0", "00", "0_0", "٣", ""])
@pytest.mark.parametrize("field", ["start_offset", "queue_id", "offset"])
async def test_a_handle_with_a_wrong_number_is_refused(opened, field, number):
    port = await opened()
    port.put(b"one")
    port.parts.groups.put(SubscriptionGroup("CG"))
    handle = write_handle(Handle(_receipt(port)._replace(**{field: number}), 0, "Orders", "CG"))
    assert (await ack(port, handle)).status.code == Code.INVALID_RECEIPT_HANDLE


async def test_a_message_that_was_given_too_often_becomes_a_dead_letter(opened):
    port = await opened()
    port.parts.groups.put(SubscriptionGroup("CG", retry_max_times=1))
    port.put(b"one")
    for attempt in (1, 2):
        (message,) = await received(port, invisible_s=10)
        assert message.system_properties.delivery_attempt == attempt
        port.pass_time(11_000)
    status = status_of(await port.receive(asked()))
    assert (status.code, status.message) == (Code.MESSAGE_NOT_FOUND, "no match message")
    (dead,) = port.harness.store.messages(DLQ, 0)
    assert dead.body == b"one"
    port.pass_time(60_000)
    assert await nothing_is_left(port)


# Renewed messages


def renewals_of(port) -> Renewals:
    return port.service._renewals


def let_pass(port, ms: int) -> None:
    """Let time pass, also for what is renewed."""
    for _ in range(ms // 1_000):
        port.pass_time(1_000)
        renewals_of(port)._tick()


async def test_a_message_of_a_push_consumer_stays_invisible_while_the_client_lives(opened):
    port = await opened()
    call, _ = await connected(port)
    port.put(b"one")
    (message,) = await received(port, auto_renew=True, invisible_s=0)
    assert message.system_properties.receipt_handle.split(" ")[2] == "60000"
    let_pass(port, 600_000)
    assert len(renewals_of(port)) == 1
    assert port.harness.store.max_offset("%RETRY%CG_Orders", 0) == 0
    assert (await ack(port, message.system_properties.receipt_handle)).status.code == Code.OK
    assert len(renewals_of(port)) == 0
    let_pass(port, 600_000)
    assert port.harness.store.max_offset("%RETRY%CG_Orders", 0) == 0
    call.cancel()


async def test_messages_of_a_push_consumer_that_terminates_come_again_a_second_later(opened):
    port = await opened()
    call, _ = await connected(port)
    port.put(b"one", b"two")
    one, _ = await received(port, auto_renew=True)
    assert (await ack(port, one.system_properties.receipt_handle)).status.code == Code.OK
    await port.call("NotifyClientTermination", s.NotifyClientTerminationRequest(group=GROUP))
    await asyncio.sleep(0)
    port.pass_time(2_000)
    assert bodies(await port.receive(asked())) == [b"two"]
    call.cancel()


@pytest.mark.parametrize("comes_back", [False, True])
async def test_messages_of_a_push_consumer_that_loses_its_connection_wait_whether_it_comes_back(
    opened, comes_back
):
    port = await opened()
    call, _ = await connected(port)
    port.put(b"one")
    (message,) = await received(port, auto_renew=True)
    let_pass(port, 120_000)  # its handle is not the one that the client got
    call.cancel()
    await until(lambda: port.parts.clients.consumer_group("CG") is None)
    if comes_back:
        call, _ = await connected(port)
    let_pass(port, 9_000)
    assert len(renewals_of(port)) == 1
    let_pass(port, 2_000)
    await asyncio.sleep(0)
    let_pass(port, 2_000)
    if comes_back:
        assert (await ack(port, message.system_properties.receipt_handle)).status.code == Code.OK
    else:
        assert len(renewals_of(port)) == 0
        assert bodies(await port.receive(asked())) == [b"one"]
    call.cancel()


async def test_a_message_is_renewed_for_three_hours_and_comes_by_the_policy_of_its_group(opened):
    port = await opened()
    policy = {
        "type": "EXPONENTIAL",
        "exponentialRetryPolicy": {"initial": 7_000, "max": 9_000, "multiplier": 2},
    }
    port.parts.groups.put(SubscriptionGroup("CG", retry_policy=policy))
    call, _ = await connected(port)
    port.put(b"one")
    await received(port, auto_renew=True)
    renewals, began_ms = renewals_of(port), port.harness.now_ms
    while len(renewals):
        port.harness.now_ms += 10_000
        renewals._tick()
        assert port.harness.now_ms < began_ms + 4 * 3_600_000 + 1
    assert port.harness.now_ms >= began_ms + 3 * 3_600_000
    port.pass_time(6_900)
    assert port.harness.store.max_offset("%RETRY%CG_Orders", 0) == 0
    port.pass_time(1_500)
    assert port.harness.store.max_offset("%RETRY%CG_Orders", 0) == 1
    call.cancel()


class Elsewhere:
    """Another master, which answers later; `changed` has the pops whose messages it was to change."""

    def __init__(self):
        self.status, self.changed = PutStatus.PUT_TO_REMOTE_BROKER_FAIL, []

    def put_checkpoint(self, checkpoint, queue_id, done, *, changed=None):
        self.changed.append(changed)
        asyncio.get_running_loop().call_soon(done, self.status)

    def put_ack(self, key, offsets, queue_id, due_ms, done):
        asyncio.get_running_loop().call_soon(done, self.status)

    def is_over(self, key, offset):
        return False


async def test_a_renewal_that_another_master_does_not_store_is_attempted_again_for_the_same_pop(opened):
    port = await opened()
    call, _ = await connected(port)
    port.put(b"one")
    await received(port, auto_renew=True)
    elsewhere = port.parts.revive_log.elsewhere = Elsewhere()
    (renewed,) = renewals_of(port)._of_clients["client-1"].values()
    given = renewed.handle
    let_pass(port, 51_000)
    for _ in range(3):
        await asyncio.sleep(0)
    assert len(elsewhere.changed) == 1 and renewed.handle == given
    elsewhere.status = PutStatus.PUT_OK
    let_pass(port, 6_000)
    for _ in range(3):
        await asyncio.sleep(0)
    first, second = elsewhere.changed
    assert first == second == given.popped.target.key
    assert renewed.handle != given and len(renewals_of(port)) == 1
    call.cancel()


async def test_no_message_is_renewed_after_the_port_has_closed(opened):
    port = await opened()
    call, _ = await connected(port)
    port.put(b"one")
    await received(port, auto_renew=True)
    renewals = renewals_of(port)
    await port.call("NotifyClientTermination", s.NotifyClientTerminationRequest(group=GROUP))
    await port.port.close()
    assert renewals._timer is None and not renewals._returned
    call.cancel()


async def test_messages_of_a_push_consumer_without_telemetry_are_not_renewed(opened):
    port = await opened()
    port.put(b"one", b"two")
    one, _ = await received(port, auto_renew=True, invisible_s=0)
    assert len(renewals_of(port)) == 0
    assert (await ack(port, one.system_properties.receipt_handle)).status.code == Code.OK
    port.pass_time(61_000)
    assert bodies(await port.receive(asked())) == [b"two"]


async def test_the_number_of_renewed_messages_is_bounded(opened, monkeypatch):
    port = await opened()
    monkeypatch.setattr(Renewals, "limit", 2)
    call, _ = await connected(port)
    port.put(b"one", b"two", b"three")
    one, *_ = await received(port, auto_renew=True, count=2)
    status = status_of(await port.receive(asked(auto_renew=True)))
    assert status.code == Code.TOO_MANY_REQUESTS
    await ack(port, one.system_properties.receipt_handle)
    assert bodies(await port.receive(asked(auto_renew=True))) == [b"three"]
    call.cancel()


async def test_what_cannot_be_renewed_any_more_is_not_given(opened, monkeypatch):
    """Receives that waited went over the bound, each by a whole batch."""
    port = await opened()
    port.parts.topics.put(TopicConfig("Empty", 1, 1))
    monkeypatch.setattr(Renewals, "limit", 1)
    call, _ = await connected(port)
    port.put(b"one", b"two", b"three")
    (one,) = await received(port, auto_renew=True, count=3)
    assert one.body == b"one" and len(renewals_of(port)) == 1
    assert (await ack(port, one.system_properties.receipt_handle)).status.code == Code.OK
    port.pass_time(2_000)
    (two,) = await received(port, auto_renew=True, count=2)
    assert two.body == b"two"
    assert (await ack(port, two.system_properties.receipt_handle)).status.code == Code.OK
    waiting = port.receiving(asked(auto_renew=True, topic="Empty"))
    await until(lambda: port.parts.parked_pops.count == 1)
    port.pass_time(2_000)
    assert bodies(await port.receive(asked(auto_renew=True))) == [b"three"]
    port.put(b"four", topic="Empty")
    assert status_of([answer async for answer in waiting]).code == Code.TOO_MANY_REQUESTS
    assert port.parts.statistics.refusals.counts() == {"renewed messages": 1}
    call.cancel()


async def test_a_client_that_goes_again_has_its_time_again(opened):
    port = await opened()
    call, _ = await connected(port)
    port.put(b"one")
    await received(port, auto_renew=True)
    for _ in range(3):
        call.cancel()
        await until(lambda: port.parts.clients.consumer_group("CG") is None)
        let_pass(port, 6_000)
        assert len(renewals_of(port)) == 1
        call, _ = await connected(port)
    call.cancel()
    await until(lambda: port.parts.clients.consumer_group("CG") is None)
    let_pass(port, 11_000)
    assert len(renewals_of(port)) == 0 and not renewals_of(port)._missed


async def test_what_clients_leave_that_terminate_again_and_again_is_bounded(opened):
    port = await opened()
    client = (await connected(port))[0] and port.service._clients.find("client-1")
    renewals = renewals_of(port)
    receipt = Receipt(0, port.harness.now_ms, 60_000, 0, 0, "broker-a", 0, 0)
    for number in range(20_000):
        renewals.add(client, f"handle {number}", Handle(receipt, 0, "Orders", "CG"), 0)
        if number % 32 == 31:
            renewals.client_gone(client.client_id)
            renewals._returned.clear()
    assert len(renewals) == 0 and len(renewals._due) <= 1_100


@pytest.mark.parametrize("why", ["refused", "not stored"])
@pytest.mark.parametrize("what", ["ack", "change", "forward"])
async def test_a_message_is_renewed_on_if_what_its_client_says_is_not_stored(opened, what, why):
    port = await opened()
    call, _ = await connected(port)
    port.put(b"one")
    (message,) = await received(port, auto_renew=True)
    handle = message.system_properties.receipt_handle
    let_pass(port, 55_000)  # it has another handle now
    group = "Other" if why == "refused" else "CG"
    if why == "refused":
        port.parts.groups.put(SubscriptionGroup("Other"))
    else:
        port.harness.store.refuse = PutStatus.SERVICE_NOT_AVAILABLE
    match what:
        case "ack":
            answer = await ack(port, handle, group=group)
        case "change":
            answer = await changed(port, handle, 0, group=group)
        case "forward":
            answer = await forward(port, handle, group)
    assert answer.status.code != Code.OK and len(renewals_of(port)) == 1
    port.harness.store.refuse = None
    let_pass(port, 200_000)
    assert len(renewals_of(port)) == 1 and port.harness.store.max_offset("%RETRY%CG_Orders", 0) == 0
    assert (await ack(port, handle)).status.code == Code.OK and len(renewals_of(port)) == 0
    call.cancel()


async def test_a_message_whose_client_has_gone_is_not_renewed_on_for_a_refused_acknowledgement(opened):
    port = await opened()
    call, _ = await connected(port)
    port.put(b"one")
    (message,) = await received(port, auto_renew=True)
    renewals = renewals_of(port)
    taken = renewals.take("client-1", message.system_properties.receipt_handle)
    assert taken.renewed is not None and len(renewals) == 0
    renewals._clients.ended(renewals._clients.find("client-1"))
    renewals.put_back(taken)
    assert len(renewals) == 1
    let_pass(port, 12_000)
    assert len(renewals) == 0
    call.cancel()


async def test_a_renewal_that_is_not_stored_is_tried_again_and_then_ends(opened, caplog):
    port = await opened()
    call, _ = await connected(port)
    port.put(b"one")
    await received(port, auto_renew=True)
    renewals = renewals_of(port)
    port.harness.store.refuse = PutStatus.SERVICE_NOT_AVAILABLE
    for _ in range(55):
        port.harness.now_ms += 1_000
        renewals._tick()
    assert len(renewals) == 1
    for _ in range(15):
        port.harness.now_ms += 1_000
        renewals._tick()
    assert len(renewals) == 0 and "is not renewed: SERVICE_NOT_AVAILABLE" in caplog.text
    call.cancel()


# Bounds and faults


@pytest.mark.parametrize("sync_flush", [False, True])
async def test_a_client_that_opens_no_window_is_given_one_answer_and_later_the_others(opened, sync_flush):
    port = await opened(sync_flush=sync_flush)
    reader, writer = await asyncio.open_connection("127.0.0.1", port.port.port)
    writer.write(PREFACE + settings_frame({SETTING_INITIAL_WINDOW_SIZE: 0}))
    fields = [
        (":method", "POST"), (":scheme", "http"), (":path", path_of("ReceiveMessage")),
        ("content-type", "application/grpc"), ("x-mq-client-id", "raw"),
    ]  # fmt: skip
    body = with_prefix(asked(poll=Duration(seconds=20)).SerializeToString())
    for stream in range(1, 49, 2):
        writer.write(headers_frame(stream, encode_fields(fields), 0))
        writer.write(frame_head(len(body), DATA, FLAG_END_STREAM, stream) + body)
    await until(lambda: port.parts.parked_pops.count == 24)
    (connection,) = port.port.channels
    for number in range(24):
        port.put(bytes([number]) * (2 << 20), queue_id=number % 4)
    for _ in range(20):
        if sync_flush:
            port.harness.store.sync()
        await asyncio.sleep(0.001)
    # 1 MiB may wait, and the answer that goes beyond it.
    assert 2 << 20 < connection.connection.queued < 4 << 20 and connection.paused
    assert port.parts.parked_pops.count >= 22
    writer.write(settings_frame({SETTING_INITIAL_WINDOW_SIZE: 1 << 30}) + window_update(0, 1 << 30))
    data, ended, most = b"", 0, 0
    end_s = asyncio.get_running_loop().time() + LIMIT_S
    while ended < 24:
        assert asyncio.get_running_loop().time() < end_s, f"{ended} calls have ended"
        if sync_flush:
            port.harness.store.sync()
        with contextlib.suppress(TimeoutError):  # the next messages may need another sync
            piece = await asyncio.wait_for(reader.read(1 << 20), 0.02)
            assert piece, "the connection was ended"
            data += piece
        rows = scan_frames(data, len(data), 1 << 24)
        ended += sum(bool(kind >> 8 == HEADERS and kind & FLAG_END_STREAM) for kind in rows[::4])
        data = data[rows[-1] :] if rows else data
        most = max(most, connection.unsent + connection._promised)
    assert most < 8 << 20 and connection._promised == 0
    assert port.parts.parked_pops.count == 0
    writer.close()


async def test_receives_that_wait_cost_no_work_until_a_message_comes(opened, monkeypatch):
    port = await opened(pop_polling_size=2_000)
    calls = [
        port.receiving(asked(poll=Duration(seconds=20), group=f"g{number % 7}")) for number in range(500)
    ]
    await until(lambda: port.parts.parked_pops.count == 500)
    work = []
    pops = port.harness.router.pops
    for name in ("_advance", "_begin", "_has_message"):
        method = getattr(pops, name)
        monkeypatch.setattr(pops, name, lambda *a, _m=method, _n=name, **k: (work.append(_n), _m(*a, **k))[1])
    reads = port.harness.store.get
    monkeypatch.setattr(port.harness.store, "get", lambda *a: (work.append("get"), reads(*a))[1])
    for _ in range(19_000 // 250):
        port.harness.now_ms += 250
        pops.waiting._expire()
        pops.waiting._timer.cancel()
    assert work == []
    port.put(b"one", topic="Orders")
    await until(lambda: port.parts.parked_pops.count == 493)
    # One receive of each group read, and no other.
    assert work.count("_begin") == work.count("get") == 7
    for call in calls:
        call.cancel()


@pytest.mark.parametrize("what", ["receive", "given", "ack", "change", "forward", "telemetry", "settings"])
async def test_a_client_is_killed_in_the_middle_of_a_call(opened, what, caplog):
    port = await opened(sync_flush=True)
    port.put(b"one", b"two")
    port.harness.store.sync()
    (message,) = await with_syncs(port, received(port, count=1))
    handle = message.system_properties.receipt_handle
    (first,) = port.port.channels
    service = first.handler
    common = dict(group=GROUP, topic=ORDERS, receipt_handle=handle)
    requests = {
        "ack": ("AckMessage", s.AckMessageRequest(
            group=GROUP, topic=ORDERS, entries=[s.AckMessageEntry(receipt_handle=handle)])),
        "change": ("ChangeInvisibleDuration", s.ChangeInvisibleDurationRequest(
            **common, invisible_duration=Duration(seconds=30))),
        "forward": ("ForwardMessageToDeadLetterQueue", s.ForwardMessageToDeadLetterQueueRequest(**common)),
    }  # fmt: skip
    channel = port.connect()
    if what == "receive":
        call = port.receiving(
            asked(topic="Orders", group="empty", poll=Duration(seconds=20)), channel=channel
        )
        port.harness.store.sync()
        await until(lambda: service._receives._under_way)
    elif what == "given":
        call = port.receiving(asked(), channel=channel)
        await waits_for_sync(port)
    elif what in requests:
        name, request = requests[what]
        call = asyncio.ensure_future(port.call(name, request, channel=channel))
        await waits_for_sync(port)
        assert not call.done()
    else:
        call = port.telemetry(channel=channel)
        await call.write(s.TelemetryCommand(settings=settings_of()))
        if what == "settings":
            await call.read()
        await until(lambda: service._telemetry)
    (killed,) = port.port.channels - {first}
    killed.transport.abort()
    await until(lambda: len(port.port.channels) == 1)
    for _ in range(4):
        port.harness.store.sync()
        await asyncio.sleep(0)
    assert service._receives._under_way == {} and service._telemetry == {}
    assert port.parts.parked_pops.count == 0 and port.parts.clients.consumer_groups() == []
    assert not [entry for entry in caplog.records if entry.levelname == "ERROR" and "broker" in entry.name]
    # The broker works on, and gives the message that the killed client did not get.
    for _ in range(6):
        port.pass_time(1_000)
        port.harness.store.sync()
    again = await with_syncs(port, received(port))
    assert b"two" in [message.body for message in again]
    if isinstance(call, asyncio.Future):
        with pytest.raises(grpc.aio.AioRpcError):
            await call
    await channel.close()


async def test_a_client_with_telemetry_takes_little_memory(opened):
    port = await opened()
    command = with_prefix(s.TelemetryCommand(settings=settings_of()).SerializeToString())

    def connect(number: int) -> socket.socket:
        fields = [
            (":method", "POST"), (":scheme", "http"), (":path", path_of("Telemetry")),
            ("content-type", "application/grpc"), ("x-mq-client-id", f"host@{number}@0@abcdefghijkl"),
        ]  # fmt: skip
        client = socket.create_connection(("127.0.0.1", port.port.port))
        client.sendall(
            PREFACE + settings_frame({}) + SETTINGS_ACK + headers_frame(1, encode_fields(fields), 0)
            + frame_head(len(command), DATA, 0, 1) + command
        )  # fmt: skip
        return client

    def known() -> int:
        group = port.parts.clients.consumer_group("CG")
        return 0 if group is None else len(group.members)

    clients = [connect(0)]
    await until(lambda: known() == 1)
    tracemalloc.start()
    try:
        before = tracemalloc.take_snapshot()
        for number in range(1, 201):
            clients.append(connect(number))
            await asyncio.sleep(0)
        await until(lambda: known() == 201)
        after = tracemalloc.take_snapshot()
    finally:
        tracemalloc.stop()
        for client in clients:
            client.close()
    grown = sum(row.size_diff for row in after.compare_to(before, "filename"))
    # Without the settings, which protobuf keeps: 1,000 clients take 12.5 KB each of the process.
    assert grown / 200 < 20_000
    await until(lambda: known() == 0)
