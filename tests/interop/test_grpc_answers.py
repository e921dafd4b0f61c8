"""Calls of consumers that are refused, or find nothing: our answers beside those of Apache's proxy."""

import asyncio
import contextlib
import threading

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from broker_store.client import Admin, Producer, PushConsumer
from broker_store.protocol.grpc.v2 import service_pb2 as s
from broker_store.protocol.grpc.v2.definition_pb2 import (
    Address,
    AddressScheme,
    ClientType,
    Code,
    Endpoints,
    FilterExpression,
    FilterType,
    LiteSubscriptionAction,
    MessageQueue,
    Resource,
    Settings,
    Subscription,
    SubscriptionEntry,
)
from tests.interop import clients
from tests.interop.brokers import ApacheBroker, OurBroker
from tests.support.grpc_calls import call_of, request_of

ENDPOINTS = Endpoints(scheme=AddressScheme.IPv4, addresses=[Address(host="127.0.0.1", port=8081)])
ORDERS, GROUP = Resource(name="Orders"), Resource(name="readers")
ADD, REMOVE, ADD_ALL, REMOVE_ALL = LiteSubscriptionAction.values()


class Client:
    """A client with an id of its own on a broker's gRPC port."""

    def __init__(self, broker, name="client-1"):
        self.channel = grpc.insecure_channel(f"127.0.0.1:{broker.grpc_port}")
        self.metadata = (
            ("x-mq-client-id", name), ("x-mq-language", "JAVA"), ("x-mq-client-version", "5.0.7"),
        )  # fmt: skip

    def call(self, name, request):
        return call_of(self.channel, name)(request, metadata=self.metadata, timeout=30)

    def receive(self, timeout=30, **fields):
        defaults = dict(
            group=GROUP, message_queue=MessageQueue(topic=ORDERS), batch_size=16,
            invisible_duration=Duration(seconds=30), long_polling_timeout=Duration(seconds=5),
            filter_expression=FilterExpression(type=FilterType.TAG, expression="*"),
        )  # fmt: skip
        request = s.ReceiveMessageRequest(**defaults | fields)
        return list(call_of(self.channel, "ReceiveMessage")(request, metadata=self.metadata, timeout=timeout))

    @contextlib.contextmanager
    def connected(self, settings=None):
        """Telemetry that is open: the answer, or the code and text of its failure."""
        ended = threading.Event()

        def commands():
            yield s.TelemetryCommand(settings=settings or settings_of())
            ended.wait()

        call = call_of(self.channel, "Telemetry")(commands(), metadata=self.metadata)
        try:
            yield next(call)
        except grpc.RpcError as error:
            yield error.code().name, error.details()
        finally:
            ended.set()
            call.cancel()


def settings_of(kind=ClientType.PUSH_CONSUMER, group=GROUP, topic=ORDERS, expression="*"):
    entry = SubscriptionEntry(topic=topic, expression=FilterExpression(expression=expression))
    return Settings(
        client_type=kind,
        access_point=ENDPOINTS,
        request_timeout=Duration(seconds=3),
        subscription=Subscription(group=group, subscriptions=[entry]),
    )


def prepared(broker):
    """A broker with a topic, groups and ten messages."""

    async def prepare():
        async with Admin(broker.nameserver) as admin:
            await admin.create_topic("Orders", read_queues=1, write_queues=1)
            for group in ("readers", "others", "fields", "%RETRY%mine"):
                await admin.create_group(group)
        async with Producer(broker.nameserver) as producer:
            for number in range(10):
                await producer.send("Orders", b"%d" % number, tag="TagA", keys=f"key{number}")

    asyncio.run(prepare())


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    clients.require(clients.JAVA_5)
    started = []
    try:
        for kind in (OurBroker, ApacheBroker):
            broker = kind(tmp_path_factory.mktemp(kind.__name__) / "data", has_grpc=True)
            started.append(broker)
            prepared(broker.start())
        yield started
    finally:
        for broker in started:
            broker.end()


def status(answer) -> tuple[int, str]:
    if isinstance(answer, list):
        (found,) = [part.status for part in answer if part.HasField("status")]
        return found.code, found.message
    return answer.status.code, answer.status.message


def ack(client, handle, group=GROUP, topic=ORDERS):
    request = s.AckMessageRequest(
        group=group, topic=topic, entries=[s.AckMessageEntry(message_id="m", receipt_handle=handle)]
    )
    return client.call("AckMessage", request)


def change(client, seconds, handle="x"):
    request = s.ChangeInvisibleDurationRequest(
        group=GROUP, topic=ORDERS, receipt_handle=handle, invisible_duration=Duration(seconds=seconds)
    )
    return client.call("ChangeInvisibleDuration", request)


def sync(client, *names, action=ADD, group=GROUP, topic=ORDERS):
    return client.call(
        "SyncLiteSubscription",
        s.SyncLiteSubscriptionRequest(action=action, topic=topic, group=group, lite_topic_set=names),
    )


def receive_of(**fields):
    return lambda client: client.receive(**fields)


def tags(expression):
    return FilterExpression(type=FilterType.TAG, expression=expression)


# Each is called by a client with Telemetry.
SAME = {
    "short time": receive_of(invisible_duration=Duration(seconds=9)),
    "long time": receive_of(invisible_duration=Duration(seconds=43_201)),
    "bad topic": receive_of(message_queue=MessageQueue(topic=Resource(name="a/b"))),
    "blank topic": receive_of(message_queue=MessageQueue(topic=Resource(name=""))),
    "system topic": receive_of(message_queue=MessageQueue(topic=Resource(name="RMQ_SYS_TRANS_HALF_TOPIC"))),
    "blank group": receive_of(group=Resource(name="")),
    "bad group": receive_of(group=Resource(name="a b")),
    "system group": receive_of(group=Resource(name="CID_RMQ_SYS_X")),
    "nothing for a tag": receive_of(group=Resource(name="others"), filter_expression=tags("TagZ")),
    "bad tags": receive_of(filter_expression=tags("||")),
    "no sql": receive_of(filter_expression=FilterExpression(type=FilterType.SQL)),
    "no time": receive_of(timeout=4),
    "assignment": lambda client: client.call(
        "QueryAssignment", s.QueryAssignmentRequest(topic=ORDERS, group=GROUP, endpoints=ENDPOINTS)
    ),
    "no entries": lambda client: client.call("AckMessage", s.AckMessageRequest(group=GROUP, topic=ORDERS)),
    "change too long": lambda client: change(client, 43_201),
    "change below zero": lambda client: change(client, -1),
    "change in a blank group": lambda client: client.call(
        "ChangeInvisibleDuration", s.ChangeInvisibleDurationRequest(topic=ORDERS)
    ),
    "heartbeat of a blank group": lambda client: client.call(
        "Heartbeat", s.HeartbeatRequest(client_type=ClientType.PUSH_CONSUMER)
    ),
    "heartbeat": lambda client: client.call(
        "Heartbeat", s.HeartbeatRequest(group=GROUP, client_type=ClientType.PUSH_CONSUMER)
    ),
    "termination": lambda client: client.call(
        "NotifyClientTermination", s.NotifyClientTerminationRequest(group=GROUP)
    ),
    "light topics of a regular group": lambda client: sync(client, "a"),
    "all light topics of a regular group": lambda client: sync(client, "a", action=ADD_ALL),
    "no light topic any more": lambda client: sync(client, action=REMOVE_ALL),
    "light topics of an unknown group": lambda client: sync(client, "a", group=Resource(name="unknown")),
    "light topics of a bad group": lambda client: sync(client, "a", group=Resource(name="a b")),
    "light topics of a bad topic": lambda client: sync(client, "a", topic=Resource(name="a/b")),
    "light topics of an unknown topic": lambda client: sync(client, "a", topic=Resource(name="Unknown")),
    "a bad light topic": lambda client: sync(client, "a", "a.b"),
    "a long light topic": lambda client: sync(client, "a" * 65),
    "a bad light topic among all": lambda client: sync(client, "a.b", action=ADD_ALL),
}
# Where Apache's proxy answers 50001 because of an exception inside, or text with its stack.
OTHER = {
    "unknown topic": (
        receive_of(message_queue=MessageQueue(topic=Resource(name="Unknown"))),
        Code.TOPIC_NOT_FOUND,
    ),
    "bad sql": (
        receive_of(filter_expression=FilterExpression(type=FilterType.SQL, expression="a >")),
        Code.ILLEGAL_FILTER_EXPRESSION,
    ),
    "forged": (lambda client: ack(client, "forged"), Code.INVALID_RECEIPT_HANDLE),
    "change forged": (lambda client: change(client, 1), Code.INVALID_RECEIPT_HANDLE),
    "forward forged": (
        lambda client: client.call(
            "ForwardMessageToDeadLetterQueue",
            s.ForwardMessageToDeadLetterQueueRequest(group=GROUP, topic=ORDERS, receipt_handle="x"),
        ),
        Code.INVALID_RECEIPT_HANDLE,
    ),
    "unknown change of light topics": (lambda client: sync(client, action=9), Code.BAD_REQUEST),
    "ack of an unknown topic": (
        lambda client: ack(client, "x", topic=Resource(name="Unknown")),
        Code.TOPIC_NOT_FOUND,
    ),
}
SETTINGS = {
    "consumer": settings_of(),
    "simple consumer": settings_of(ClientType.SIMPLE_CONSUMER),
    "blank group": settings_of(group=Resource(name="")),
    "bad group": settings_of(group=Resource(name="a b")),
    "group named as a retry topic": settings_of(group=Resource(name="%RETRY%mine")),
    "system group": settings_of(group=Resource(name="CID_RMQ_SYS_X")),
    "bad tags": settings_of(expression="||"),
    "neither": Settings(client_type=ClientType.PUSH_CONSUMER),
    "light topics": settings_of(ClientType.LITE_PUSH_CONSUMER),
    "light topics of an unknown group": settings_of(
        ClientType.LITE_PUSH_CONSUMER, group=Resource(name="unknown")
    ),
}


def answers(both, call) -> list[tuple[int, str]]:
    found = []
    for broker in both:
        client = Client(broker)
        with client.connected():
            found.append(status(call(client)))
    return found


@pytest.mark.parametrize("call", SAME.values(), ids=SAME)
def test_what_is_refused_is_answered_as_apaches_proxy_does(both, call):
    ours, theirs = answers(both, call)
    assert ours == theirs


@pytest.mark.parametrize(("call", "code"), OTHER.values(), ids=OTHER)
def test_what_apaches_proxy_does_not_foresee_has_a_code_of_its_own(both, call, code):
    ours, theirs = answers(both, call)
    assert (ours[0], theirs[0]) == (code, Code.INTERNAL_SERVER_ERROR)


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_settings_are_answered_as_apaches_proxy_does(both, settings):
    found = []
    for broker in both:
        with Client(broker).connected(settings) as answer:
            found.append(answer)
    ours, theirs = found
    assert ours == theirs


@pytest.mark.parametrize("group", ["%RETRY%his", "%DLQ%his"])
def test_a_group_may_be_named_as_a_topic_of_retries_as_at_apaches_broker(both, group):
    """Apache's validateGroup checks characters and length alone."""

    async def made_and_read(broker):
        async with Admin(broker.nameserver) as admin:
            await admin.create_group(group, retryMaxTimes=2)
            (address,) = (await admin.cluster_info()).brokers["broker-a"].addresses.values()
            config = (await admin.group_configs(address))[group]
        async with PushConsumer(group, broker.nameserver, consume_from="first").subscribe("Orders") as reader:
            found = []
            async for message in reader:
                found.append(message.body)
                if len(found) == 10:
                    break
        return config["retryMaxTimes"], sorted(found)

    ours, theirs = (asyncio.run(made_and_read(broker)) for broker in both)
    assert ours == theirs == (2, [b"%d" % number for number in range(10)])


@pytest.mark.parametrize("name", ["Heartbeat", "NotifyClientTermination"])
def test_a_client_without_settings_is_unknown(both, name):
    request = request_of(name, group=GROUP)
    if name == "Heartbeat":
        request.client_type = ClientType.PUSH_CONSUMER
    ours, theirs = (status(Client(broker, "unknown").call(name, request)) for broker in both)
    assert ours == theirs


def test_messages_have_the_same_fields(both):
    found = []
    for broker in both:
        client = Client(broker)
        with client.connected():
            parts = client.receive(batch_size=3, group=Resource(name="fields"))
        assert [part.WhichOneof("content") for part in parts] == [
            "status",
            *["message"] * 3,
            "delivery_timestamp",
        ]
        messages = [part.message for part in parts if part.HasField("message")]
        handle = messages[0].system_properties.receipt_handle.split(" ")
        assert (handle[0], *handle[4:9]) == ("0", "0", "broker-a", "0", "0", "0")
        for message in messages:
            system = message.system_properties
            assert system.message_id and system.receipt_handle and system.store_host
            for name in ("message_id", "receipt_handle", "store_host", "born_timestamp", "store_timestamp"):
                system.ClearField(name)
        found.append(messages)
    ours, theirs = found
    assert ours == theirs
