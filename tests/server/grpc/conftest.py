"""A gRPC port over a store in memory, and calls by grpcio."""

from __future__ import annotations

import asyncio

import grpc
import grpc.aio
import pytest

from broker_store.broker.topics import TopicConfig
from broker_store.formats import properties
from broker_store.messages import Message as StoreMessage
from broker_store.protocol.grpc.v2 import service_pb2
from broker_store.protocol.grpc.v2.definition_pb2 import Address, AddressScheme, Endpoints, Message, Resource
from broker_store.server.certificate import Certificate
from broker_store.server.grpc.port import open_grpc_port
from broker_store.server.grpc.service import _METHODS
from tests.support.broker_harness import Harness

ENDPOINTS = Endpoints(scheme=AddressScheme.IPv4, addresses=[Address(host="10.1.2.3", port=8081)])
METADATA = (("x-mq-client-id", "client-1"), ("x-mq-language", "PYTHON"))


async def until(condition) -> None:
    """Wait until a condition holds, at most 30 s."""
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.001)


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
        self.port = await open_grpc_port(self.parts, self.harness.router, "127.0.0.1", 0, certificate)
        self.channel = self.connect()

    def connect(self, **options) -> grpc.aio.Channel:
        return grpc.aio.insecure_channel(
            f"127.0.0.1:{self.port.port}",
            options=[("grpc.use_local_subchannel_pool", 1), *options.items()],
        )

    async def stop(self) -> None:
        await self.channel.close()
        await self.port.close()

    async def call(self, name: str, request, *, channel=None, metadata=METADATA, **options):
        method = _METHODS[f"/apache.rocketmq.v2.MessagingService/{name}"]
        call = (channel or self.channel).unary_unary(
            f"/apache.rocketmq.v2.MessagingService/{name}",
            method.request.SerializeToString,
            method.answer.FromString,
        )
        return await call(request, metadata=metadata, timeout=30, **options)

    async def receive(self, request, *, channel=None, metadata=METADATA, timeout=30):
        """The whole answer to a receive."""
        call = self.receiving(request, channel=channel, metadata=metadata, timeout=timeout)
        return [answer async for answer in call]

    def receiving(self, request, *, channel=None, metadata=METADATA, timeout=30):
        """A receive under way."""
        call = (channel or self.channel).unary_stream(
            "/apache.rocketmq.v2.MessagingService/ReceiveMessage",
            service_pb2.ReceiveMessageRequest.SerializeToString,
            service_pb2.ReceiveMessageResponse.FromString,
        )
        return call(request, metadata=metadata, timeout=timeout)

    def telemetry(self, metadata=METADATA):
        """A Telemetry call."""
        return self.channel.stream_stream(
            "/apache.rocketmq.v2.MessagingService/Telemetry",
            service_pb2.TelemetryCommand.SerializeToString,
            service_pb2.TelemetryCommand.FromString,
        )(metadata=metadata)

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
            for _ in range(20):
                harness.parts.timer.step(harness.now_ms)
                harness.parts.revive.step(harness.now_ms)

    async def send(self, *messages: Message, **options):
        return await self.call("SendMessage", service_pb2.SendMessageRequest(messages=messages), **options)


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
