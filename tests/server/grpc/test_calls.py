"""The gRPC port with grpcio as its client."""

from __future__ import annotations

import asyncio
import gzip

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from broker_store.broker.topics import TopicConfig
from broker_store.messages import PutStatus
from broker_store.protocol.grpc.v2 import service_pb2 as s
from broker_store.protocol.grpc.v2.definition_pb2 import (
    Address,
    ClientType,
    Code,
    Encoding,
    Endpoints,
    MessageQueue,
    MessageType,
    Permission,
    Publishing,
    Resource,
    Settings,
)
from broker_store.server.grpc import channel as channel_module
from broker_store.server.grpc import clients
from broker_store.server.grpc import routes as routes_module
from broker_store.server.grpc.service import NOT_IN_THE_PROXY, SEND_MESSAGE
from broker_store.server.grpc.unparsed import MAX_MESSAGES
from tests.server.grpc.conftest import ENDPOINTS, METADATA, connected, message, of_producer, route
from tests.support.grpc_calls import METHODS, path_of, request_of
from tests.support.waits import until

SERVED = {
    "QueryRoute", "Heartbeat", "SendMessage", "NotifyClientTermination", "Telemetry", "QueryAssignment",
    "ReceiveMessage", "AckMessage", "ChangeInvisibleDuration", "ForwardMessageToDeadLetterQueue",
    "EndTransaction", "RecallMessage", "SyncLiteSubscription",
}  # fmt: skip


async def test_a_route_has_each_queue_with_the_endpoints_of_the_request(opened):
    port = await opened()
    port.parts.topics.put(TopicConfig("Uneven", 1, 3))
    answer = await port.call("QueryRoute", route("Uneven"))
    assert answer.status.code == Code.OK
    assert [(queue.id, queue.permission) for queue in answer.message_queues] == [
        (0, Permission.READ_WRITE),
        (1, Permission.WRITE),
        (2, Permission.WRITE),
    ]
    (first, *_) = answer.message_queues
    assert (first.topic.name, first.broker.name, first.broker.endpoints) == ("Uneven", "broker-a", ENDPOINTS)
    assert list(first.accept_message_types) == [MessageType.NORMAL]


@pytest.mark.parametrize(
    ("kind", "taken"),
    [
        ("FIFO", [MessageType.FIFO]),
        ("MIXED", [1, 2, 3, 4]),
        ("LITE", [MessageType.LITE]),
        ("UNSPECIFIED", [0]),
    ],
)
async def test_a_route_has_the_types_of_messages_that_a_topic_takes(opened, kind, taken):
    port = await opened()
    port.parts.topics.put(TopicConfig("Typed", 1, 1, attributes={"message.type": kind}))
    answer = await port.call("QueryRoute", route("Typed"))
    assert list(answer.message_queues[0].accept_message_types) == taken


async def test_a_broker_without_the_permission_to_write_offers_queues_to_read(opened):
    port = await opened(broker_permission=4)
    answer = await port.call("QueryRoute", route())
    assert {queue.permission for queue in answer.message_queues} == {Permission.READ}


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (route("Unknown"), Code.TOPIC_NOT_FOUND),
        (route("a/b"), Code.ILLEGAL_TOPIC),
        (route(""), Code.ILLEGAL_TOPIC),
        (route("TBW102"), Code.ILLEGAL_TOPIC),
        (
            s.QueryRouteRequest(topic=Resource(name="Orders"), endpoints=Endpoints()),
            Code.ILLEGAL_ACCESS_POINT,
        ),
    ],
)
async def test_a_route_that_there_is_not_is_refused(opened, request_, code):
    port = await opened()
    answer = await port.call("QueryRoute", request_)
    assert (answer.status.code, len(answer.message_queues)) == (code, 0)
    assert sum(port.parts.statistics.refusals.counts().values()) == 1


ADDRESS = ENDPOINTS.addresses[0]


@pytest.mark.parametrize("method", ["QueryRoute", "QueryAssignment"])
@pytest.mark.parametrize(
    ("more", "code", "text"),
    [
        ({"endpoints": Endpoints(addresses=[ADDRESS] * 16)}, Code.OK, "OK"),
        (
            {"endpoints": Endpoints(addresses=[ADDRESS] * 17)},
            Code.ILLEGAL_ACCESS_POINT,
            "a route is asked for with 17 addresses in the endpoints, most is 16",
        ),
        (
            {"endpoints": Endpoints(addresses=[Address(host="h" * 5_000, port=1)])},
            Code.ILLEGAL_ACCESS_POINT,
            "a route is asked for with 5008 bytes of endpoints, most is 4096",
        ),
        (
            {"topic": Resource(name="Orders", resource_namespace="n" * 2_000)},
            Code.ILLEGAL_TOPIC,
            "a topic and its namespace have 2011 bytes, most is 1024",
        ),
    ],
)
async def test_what_each_queue_of_an_answer_has_from_its_request_is_bounded(
    opened, method, more, code, text, monkeypatch
):
    port = await opened()
    port.parts.topics.put(TopicConfig("Orders", 128, 128))
    made = []
    monkeypatch.setattr(
        routes_module, "MessageQueue", lambda **fields: made.append(1) or MessageQueue(**fields)
    )
    request = {"topic": Resource(name="Orders"), "endpoints": ENDPOINTS} | more
    if method == "QueryAssignment":
        request["group"] = Resource(name="CG")
    answer = await port.call(method, getattr(s, f"{method}Request")(**request))
    assert (answer.status.code, answer.status.message) == (code, text)
    wanted = 128 if method == "QueryRoute" else 1
    assert len(made) == (wanted if code == Code.OK else 0)


async def test_the_namespace_of_a_resource_is_not_used(opened):
    port = await opened()
    answer = await port.call("QueryRoute", route("Orders", "n"))
    assert answer.status.code == Code.OK and answer.message_queues[0].topic.resource_namespace == "n"
    sent = message()
    sent.topic.resource_namespace = "n"
    assert (await port.send(sent)).status.code == Code.OK
    assert [len(port.harness.store.messages("Orders", queue)) for queue in range(4)] == [1, 0, 0, 0]


async def test_a_message_is_stored_with_its_properties(opened):
    port = await opened()
    sent = message(
        gzip.compress(b"hello"), user={"color": "red", "empty": ""}, message_id="01AB", tag="TagA",
        keys=["k1", "k2"], message_type=MessageType.NORMAL, born_timestamp=Timestamp(seconds=7, nanos=5_000_000),
        born_host="host-1", trace_context="trace", body_encoding=Encoding.GZIP,
    )  # fmt: skip
    answer = await port.send(sent)
    assert answer.status.code == Code.OK
    (entry,) = answer.entries
    assert (entry.status.code, entry.message_id, entry.offset) == (Code.OK, "01AB", 0)
    (stored,) = port.stored()
    assert (stored.body, stored.sys_flag, stored.born_timestamp) == (sent.body, 1, 7_005)
    assert stored.born_host[0] == b"\x7f\0\0\1" and stored.store_host == (b"\x7f\x00\x00\x01", 10911)
    assert stored.properties == {
        "color": "red", "UNIQ_KEY": "01AB", "TAGS": "TagA", "KEYS": "k1 k2", "TRACE_CONTEXT": "trace",
        "__BORNHOST": "host-1", "BORN_TIMESTAMP": "7005",
        "MSG_REGION": "DefaultRegion", "CLUSTER": "DefaultCluster", "TRACE_ON": "true",
    }  # fmt: skip


async def test_sends_of_a_turn_are_stored_together_and_each_is_answered(opened):
    port = await opened()
    channels = [port.connect() for _ in range(4)]
    answers = await asyncio.gather(
        *(
            port.send(message(b"body %d" % number, message_id=f"id{number}"), channel=channels[number % 4])
            for number in range(1_200)
        )
    )
    assert [answer.entries[0].message_id for answer in answers] == [f"id{number}" for number in range(1_200)]
    assert {answer.status.code for answer in answers} == {Code.OK}
    stored = port.stored()
    assert sorted(one.body for one in stored) == sorted(b"body %d" % number for number in range(1_200))
    assert [len(port.harness.store.messages("Orders", queue)) for queue in range(4)] == [300] * 4
    assert sum(port.harness.store.put_calls) == 1_200 and len(port.harness.store.put_calls) < 1_200
    for channel in channels:
        await channel.close()


async def test_a_call_with_several_messages_is_answered_once(opened):
    port = await opened()
    answer = await port.send(*(message(b"%d" % number, message_id=f"id{number}") for number in range(5)))
    assert answer.status.code == Code.OK
    assert [(entry.message_id, entry.offset) for entry in answer.entries] == [
        (f"id{number}", number) for number in range(5)
    ]


async def test_with_sync_flush_a_send_is_answered_after_the_sync(opened):
    port = await opened(sync_flush=True)
    task = asyncio.ensure_future(port.send(message()))
    await until(lambda: port.parts.sends.pending)
    await asyncio.sleep(0.01)
    assert not task.done()
    port.harness.store.sync(PutStatus.FLUSH_DISK_TIMEOUT)
    answer = await task
    assert answer.status.code == answer.entries[0].status.code == Code.MASTER_PERSISTENCE_TIMEOUT


async def test_the_number_of_messages_of_a_call_is_bounded(opened):
    port = await opened()
    assert (await port.send()).status.code == Code.MESSAGE_CORRUPTED
    assert (await port.send(*[message()] * (MAX_MESSAGES + 1))).status.code == Code.BAD_REQUEST


async def test_sends_are_refused_while_the_broker_is_overloaded(opened):
    port = await opened(send_thread_pool_queue_capacity=1, sync_flush=True)
    waiting = asyncio.ensure_future(port.send(message()))
    await until(lambda: port.parts.sends.pending)
    answer = await port.send(message())
    assert answer.status.code == Code.TOO_MANY_REQUESTS
    port.harness.store.sync()
    assert (await waiting).status.code == Code.OK


async def test_a_store_that_takes_no_messages_is_reported(opened, monkeypatch):
    port = await opened()
    monkeypatch.setattr(port.harness.store, "rejects_sends", "slave", raising=False)
    assert (await port.send(message())).status.code == Code.TOO_MANY_REQUESTS


async def test_heartbeats_and_terminations_are_answered(opened):
    port = await opened()
    beat = s.HeartbeatRequest(client_type=ClientType.PRODUCER)
    early = await port.call("Heartbeat", beat)
    call, _ = await connected(port, of_producer())
    ok = await port.call("Heartbeat", beat)
    unknown = await port.call("Heartbeat", s.HeartbeatRequest())
    ended = await port.call("NotifyClientTermination", s.NotifyClientTerminationRequest())
    again = await port.call("NotifyClientTermination", s.NotifyClientTerminationRequest())
    codes = [answer.status.code for answer in (early, ok, unknown, ended, again)]
    no_settings = Code.UNRECOGNIZED_CLIENT_TYPE
    assert codes == [no_settings, Code.OK, Code.UNRECOGNIZED_CLIENT_TYPE, Code.OK, no_settings]
    assert early.status.message == "cannot find client settings for this client"
    call.cancel()


async def test_a_client_may_terminate_after_its_telemetry(opened):
    """The Rust client ends its Telemetry first."""
    port = await opened()
    call, _ = await connected(port, of_producer())
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF
    codes = [
        (await port.call("NotifyClientTermination", s.NotifyClientTerminationRequest())).status.code
        for _ in range(2)
    ]
    assert codes == [Code.OK, Code.UNRECOGNIZED_CLIENT_TYPE]


async def test_few_ids_of_clients_whose_telemetry_ended_are_kept(opened, monkeypatch):
    monkeypatch.setattr(clients, "MAX_ENDED", 2)
    port = await opened()
    ids = ("c1", "c2", "c3")
    for client_id in ids:
        call, _ = await connected(port, of_producer(), (("x-mq-client-id", client_id),))
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
    request = s.NotifyClientTerminationRequest()
    answers = [
        await port.call("NotifyClientTermination", request, metadata=(("x-mq-client-id", client_id),))
        for client_id in ids
    ]
    assert [answer.status.code for answer in answers] == [
        Code.UNRECOGNIZED_CLIENT_TYPE, Code.OK, Code.OK,
    ]  # fmt: skip


@pytest.mark.parametrize("name", sorted(set(METHODS) - SERVED))
async def test_what_is_not_served_is_answered_so(opened, name):
    port = await opened()
    assert name in NOT_IN_THE_PROXY
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await port.call(name, request_of(name))
    assert failed.value.code() == grpc.StatusCode.UNIMPLEMENTED and name in failed.value.details()


@pytest.mark.parametrize("name", ["QueryRoute", "PullMessage"])
async def test_a_client_has_an_id(opened, name):
    port = await opened()
    answer = await port.call(name, request_of(name), metadata=())
    assert answer.status.code == Code.CLIENT_ID_REQUIRED


async def test_a_bug_in_a_handler_is_answered_without_details(opened, monkeypatch, caplog):
    port = await opened()

    def fail(name):
        raise RuntimeError("secret")

    monkeypatch.setattr(port.parts.topics, "get", fail)
    answer = await port.call("QueryRoute", route())
    assert answer.status.code == Code.INTERNAL_SERVER_ERROR and "secret" not in answer.status.message
    assert "secret" in caplog.text


async def test_a_producer_gets_its_settings_with_those_of_the_broker(opened):
    port = await opened()
    call = port.telemetry()
    given = Settings(
        client_type=ClientType.PRODUCER,
        access_point=ENDPOINTS,
        request_timeout=Duration(seconds=3),
        publishing=Publishing(topics=[Resource(name="Orders")]),
    )
    for _ in range(3):  # a client sends them again every five minutes
        await call.write(s.TelemetryCommand(settings=given))
        answer = await call.read()
        assert answer.status.code == Code.OK
        settings = answer.settings
        assert settings.publishing.topics[0].name == "Orders" and settings.access_point == ENDPOINTS
        assert (settings.publishing.max_body_size, settings.publishing.validate_message_type) == (
            4 << 20,
            True,
        )
        policy = settings.backoff_policy
        assert policy.max_attempts == 3 and policy.exponential_backoff.initial.nanos == 10_000_000
        assert policy.exponential_backoff.multiplier == 2
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF
    assert await call.code() == grpc.StatusCode.OK


async def test_telemetry_needs_an_id_too(opened):
    port = await opened()
    call = port.telemetry(())
    assert (await call.read()).status.code == Code.CLIENT_ID_REQUIRED
    assert await call.read() is grpc.aio.EOF


async def test_a_cancelled_telemetry_is_forgotten(opened):
    port = await opened()
    call, _ = await connected(port, of_producer())
    (connection,) = port.port.channels
    assert len(connection.handler._telemetry) == 1
    call.cancel()
    await port.call("QueryRoute", route())
    assert connection.handler._telemetry == {}


async def test_bytes_that_are_no_request_end_their_call(opened):
    port = await opened()
    for path, body, code in (
        (path_of("QueryRoute"), b"\xff\xff", grpc.StatusCode.INTERNAL),
        (path_of("Nothing"), b"", grpc.StatusCode.UNIMPLEMENTED),
        ("/other", b"", grpc.StatusCode.UNIMPLEMENTED),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await port.channel.unary_unary(path)(body, metadata=METADATA)
        assert failed.value.code() == code
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await port.call("QueryRoute", route("O" * 100), compression=grpc.Compression.Gzip)
    assert failed.value.code() == grpc.StatusCode.UNIMPLEMENTED
    assert (await port.call("QueryRoute", route())).status.code == Code.OK


@pytest.mark.parametrize(
    ("piece", "code"),
    [
        (b"\xff\xff", grpc.StatusCode.INTERNAL),
        (bytes(9 << 20), grpc.StatusCode.RESOURCE_EXHAUSTED),
    ],
)
async def test_commands_that_cannot_be_read_end_telemetry(opened, piece, code):
    port = await opened()
    call = port.channel.stream_stream(path_of("Telemetry"))(metadata=METADATA)
    await call.write(s.TelemetryCommand(settings=of_producer()).SerializeToString())
    assert s.TelemetryCommand.FromString(await call.read()).status.code == Code.OK
    with pytest.raises((grpc.aio.AioRpcError, asyncio.InvalidStateError)):
        await call.write(piece)
        await call.read()
    assert await call.code() == code
    assert (await port.call("QueryRoute", route())).status.code == Code.OK


async def test_large_bodies_arrive(opened):
    port = await opened()
    body = bytes(range(256)) * (4 << 12)
    answers = await asyncio.gather(*(port.send(message(body)) for _ in range(6)))
    assert [answer.status.code for answer in answers] == [Code.OK] * 6
    stored = port.stored()
    assert [one.body == body for one in stored] == [True] * 6
    assert port.port.kept_bytes == 0


async def test_unfinished_requests_of_all_connections_are_bounded(opened):
    port = await opened()
    port.port.shares.unfinished_bytes = 100_000
    with pytest.raises(grpc.aio.AioRpcError):
        await port.send(message(bytes(1 << 20)))
    assert port.parts.statistics.refusals.counts()["unfinished frames"]
    other = port.connect()  # the first may not have learned yet that its connection was closed
    assert (await port.send(message(bytes(1_000)), channel=other)).status.code == Code.OK
    await other.close()


async def test_the_connection_with_most_of_the_unfinished_requests_is_closed(opened, caplog):
    port = await opened()
    assert (await port.send(message())).status.code == Code.OK
    port.port.shares.unfinished_bytes = 100_000
    other = port.connect()
    endless = other.stream_unary(path_of("SendMessage"))(metadata=METADATA)
    await endless.write(bytes(60_000))
    await until(lambda: port.port.kept_bytes > 60_000)
    (holder,) = [channel for channel in port.port.channels if channel.kept]
    begun = port.channel.stream_unary(path_of("SendMessage"))(metadata=METADATA)
    await begun.write(bytes(45_000))
    await until(lambda: holder.closed)
    assert port.port.kept_bytes < 60_000 and holder not in port.port.channels
    assert (await port.send(message())).status.code == Code.OK and not begun.done()
    assert f"closing {holder.remote}: unfinished requests" in caplog.text
    assert port.parts.statistics.refusals.counts()["unfinished frames"] == 1
    begun.cancel()
    await other.close()


async def test_unfinished_commands_of_all_connections_are_bounded(opened):
    port = await opened()
    port.port.shares.unfinished_bytes = 100_000
    call = port.channel.stream_stream(path_of("Telemetry"))(metadata=METADATA)
    with pytest.raises((grpc.aio.AioRpcError, asyncio.InvalidStateError)):
        await call.write(bytes(1 << 20))  # within the bound of a command
        await call.read()
    assert port.parts.statistics.refusals.counts()["unfinished frames"]
    other = port.connect()  # the first may not have learned yet that its connection was closed
    assert (await port.send(message(), channel=other)).status.code == Code.OK
    assert port.port.kept_bytes == 0
    await other.close()


async def test_a_request_that_does_not_end_is_overdue_however_many_do(opened):
    port = await opened()
    await port.call("QueryRoute", route())
    (connection,) = port.port.channels
    endless = port.channel.stream_unary(path_of("SendMessage"))(metadata=METADATA)
    await endless.write(b"x" * 300)
    await until(lambda: connection.kept)
    now_s = asyncio.get_running_loop().time()
    await port.call("QueryRoute", route())
    assert connection.overdue(now_s) is None
    assert connection.overdue(now_s + channel_module.FRAME_TIMEOUT_S + 1)[0] == "slow frame"
    connection.pause_writing()
    assert connection.overdue(now_s + channel_module.FRAME_TIMEOUT_S + 1) is None
    connection.resume_writing()
    endless.cancel()
    await until(lambda: connection.connection.unfinished_since() is None)
    assert connection.overdue(now_s + channel_module.FRAME_TIMEOUT_S + 1) is None


async def test_one_connection_too_many_is_closed(opened):
    port = await opened(max_connections=1)
    assert (await port.call("QueryRoute", route())).status.code == Code.OK
    second = port.connect()
    with pytest.raises(grpc.aio.AioRpcError):
        await port.call("QueryRoute", route(), channel=second, wait_for_ready=False)
    await second.close()


async def test_a_port_that_closes_ends_the_calls_that_wait(opened, caplog):
    port = await opened(sync_flush=True)
    sending = asyncio.ensure_future(port.send(message(b"one")))
    await until(lambda: port.harness.store._confirmations)
    await port.port.close()
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await sending
    assert failed.value.code() == grpc.StatusCode.UNAVAILABLE and port.port.channels == set()
    port.harness.store.sync()
    await asyncio.sleep(0)
    assert not [entry for entry in caplog.records if entry.levelname == "ERROR"]


async def test_a_large_request_that_sends_no_message_ends_its_call_before_it_is_read(opened, monkeypatch):
    port = await opened()
    assert (await port.call("QueryRoute", route("O" * 1_000_000))).status.code == Code.ILLEGAL_TOPIC
    (connection,) = port.port.channels
    called = []
    call = connection.handler.call
    monkeypatch.setattr(connection.handler, "call", lambda *given: called.append(1) or call(*given))
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await port.call("QueryRoute", route("O" * 5_000_000))
    assert failed.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED and called == []
    assert failed.value.details() == "a request of more than 1048576 bytes"
    assert port.parts.statistics.refusals.counts()["large request"] == 1
    assert (await port.send(message(bytes(3 << 20)))).status.code == Code.OK
    assert not connection.closed and connection.connection.streams == {} and port.port.kept_bytes == 0


async def test_a_large_send_of_too_many_messages_is_refused_before_it_is_parsed(opened, monkeypatch):
    port = await opened()
    many = [message(bytes(2_000))] * MAX_MESSAGES
    assert (await port.send(*many)).status.code == Code.OK
    (connection,) = port.port.channels
    handled = []
    monkeypatch.setitem(connection.handler._handlers, SEND_MESSAGE, lambda *given: handled.append(given))
    answer = await port.send(*many, message(bytes(2_000)))
    assert (answer.status.code, handled) == (Code.BAD_REQUEST, [])
    assert answer.status.message == f"a send has at most {MAX_MESSAGES} messages"
