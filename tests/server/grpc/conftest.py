"""A gRPC port over a store in memory, and calls by grpcio."""

from __future__ import annotations

import grpc
import grpc.aio
import pytest
from google.protobuf.duration_pb2 import Duration

from broker_store.broker.topics import TopicConfig
from broker_store.engine.disk.disk import Disk
from broker_store.formats import properties
from broker_store.messages import Message as StoreMessage
from broker_store.protocol.grpc.v2 import service_pb2 as s
from broker_store.protocol.grpc.v2.definition_pb2 import (
    Address,
    AddressScheme,
    ClientType,
    Endpoints,
    FilterExpression,
    FilterType,
    Message,
    Publishing,
    Resource,
    Settings,
    Subscription,
    SubscriptionEntry,
)
from broker_store.server.certificate import Certificate
from broker_store.server.grpc.port import open_grpc_port
from broker_store.server.grpc.service import Service
from broker_store.server.listener import Before
from broker_store.server.tls_server import TlsServer
from tests.support.broker_harness import Harness
from tests.support.grpc_calls import METHODS, call_of

ENDPOINTS = Endpoints(scheme=AddressScheme.IPv4, addresses=[Address(host="10.1.2.3", port=8081)])
METADATA = (("x-mq-client-id", "client-1"), ("x-mq-language", "PYTHON"))
ORDERS, GROUP = Resource(name="Orders"), Resource(name="CG")


class Grpc:
    """A port and a client's channel to it."""

    def __init__(self, harness: Harness):
        self.harness = harness
        self.parts = parts = harness.parts
        parts.topics.put(TopicConfig("Orders", 4, 4))
        parts.timer.start()
        parts.revive.start(parts.offsets.query)
        parts.revive.on_revived = harness.router.pops.waiting.revived

    async def start(self, certificate: Certificate | None) -> None:
        self.tls = None if certificate is None else TlsServer(certificate)
        if self.tls is not None:
            await self.tls.open()
        self.port = await open_grpc_port(self.parts, self.harness.router, "127.0.0.1", 0, Before(self.tls))
        self.channel = self.connect()

    def connect(self, **options) -> grpc.aio.Channel:
        return grpc.aio.insecure_channel(
            f"127.0.0.1:{self.port.port}",
            options=[("grpc.use_local_subchannel_pool", 1), *options.items()],
        )

    async def stop(self) -> None:
        await self.channel.close()
        await self.port.close()
        if self.tls is not None:
            self.tls.close()

    async def call(self, name: str, request, *, channel=None, metadata=METADATA, **options):
        """The answer to a call: to one with a stream of answers the only one."""
        call = call_of(channel or self.channel, name)(request, metadata=metadata, timeout=30, **options)
        if not METHODS[name].server_streaming:
            return await call
        (answer,) = [answer async for answer in call]
        return answer

    async def receive(self, request, *, channel=None, metadata=METADATA, timeout=30):
        """The whole answer to a receive."""
        call = self.receiving(request, channel=channel, metadata=metadata, timeout=timeout)
        return [answer async for answer in call]

    def receiving(self, request, *, channel=None, metadata=METADATA, timeout=30):
        """A receive under way."""
        return call_of(channel or self.channel, "ReceiveMessage")(request, metadata=metadata, timeout=timeout)

    def telemetry(self, metadata=METADATA, *, channel=None):
        """A Telemetry call."""
        return call_of(channel or self.channel, "Telemetry")(metadata=metadata)

    @property
    def service(self) -> Service:
        """The service of the only connection."""
        (connection,) = self.port.channels
        return connection.handler

    def stored(self, topic: str = "Orders") -> list:
        """The messages of a topic's four queues, queue after queue."""
        return [one for queue in range(4) for one in self.harness.store.messages(topic, queue)]

    def put(
        self, *bodies: bytes, topic: str = "Orders", queue_id: int = 0, tag: str = "TagA", **more
    ) -> None:
        """Store messages."""
        for number, body in enumerate(bodies):
            values = {"TAGS": tag, "UNIQ_KEY": f"U{number}"} | more
            self.harness.store.appender.put(StoreMessage(topic, queue_id, body, properties.encode(values)))

    def pass_time(self, ms: int) -> None:
        """Move the clock on, and do what is due: of the timer and of what comes again."""
        harness, until_ms = self.harness, self.harness.now_ms + ms
        while harness.now_ms < until_ms:
            harness.now_ms = min(until_ms, harness.now_ms + 100)
            for number in range(20):
                due = {part.step(harness.now_ms) for part in (harness.parts.timer, harness.parts.revive)}
                if harness.now_ms not in due and number >= 3:  # what one appends is work for the other
                    break

    async def send(self, *messages: Message, **options):
        return await self.call("SendMessage", s.SendMessageRequest(messages=messages), **options)


def message(body: bytes = b"hello", topic: str = "Orders", *, user: dict | None = None, **system) -> Message:
    made = Message(topic=Resource(name=topic), body=body, user_properties=user or {})
    system = {"message_id": "01AA"} | system
    for name, value in system.items():
        field = getattr(made.system_properties, name)
        if isinstance(value, list):
            field.extend(value)
        elif hasattr(field, "CopyFrom"):
            field.CopyFrom(value)
        else:
            setattr(made.system_properties, name, value)
    return made


def route(topic: str = "Orders", namespace: str = "") -> s.QueryRouteRequest:
    return s.QueryRouteRequest(topic=Resource(name=topic, resource_namespace=namespace), endpoints=ENDPOINTS)


def settings_of(kind=ClientType.PUSH_CONSUMER, group="CG", topic="Orders", expression="*", of=FilterType.TAG):
    """Settings of a consumer."""
    entry = SubscriptionEntry(
        topic=Resource(name=topic), expression=FilterExpression(type=of, expression=expression)
    )
    return Settings(
        client_type=kind,
        access_point=ENDPOINTS,
        request_timeout=Duration(seconds=3),
        subscription=Subscription(group=Resource(name=group), subscriptions=[entry]),
    )


def of_producer(*topics: str) -> Settings:
    """Settings of a producer."""
    publishing = Publishing(topics=[Resource(name=topic) for topic in topics])
    return Settings(client_type=ClientType.PRODUCER, publishing=publishing)


async def connected(port: Grpc, settings: Settings | None = None, metadata=METADATA):
    """A Telemetry whose first command has settings (of a consumer unless given), and its answer."""
    call = port.telemetry(metadata)
    await call.write(s.TelemetryCommand(settings=settings or settings_of()))
    answer = await call.read()
    return call, answer


@pytest.fixture
async def opened():
    """Open ports: `await opened(settings)`."""
    ports: list[Grpc] = []

    async def make(certificate: Certificate | None = None, **settings) -> Grpc:
        made = Grpc(Harness(**settings))
        await made.start(certificate)
        ports.append(made)
        return made

    yield make
    for port in ports:
        await port.stop()


@pytest.fixture
async def port(opened, tmp_path):
    certificate = Certificate(None, tmp_path / "tls", ["127.0.0.1"], lambda: 1_800_000_000_000, Disk())
    made = await opened(certificate)
    made.wires = []
    yield made
    for wire in made.wires:
        wire.writer.transport.abort()
