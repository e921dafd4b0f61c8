"""Apache's producers for RocketMQ 5 on the gRPC port, with TLS as is their default, and consumers of the remoting
protocol that receive what they sent."""

import asyncio

import pytest

from broker_store.client import Admin
from tests.interop import clients
from tests.interop.brokers import OurBroker, free_ports

KINDS = [clients.JAVA_GRPC, clients.GO_GRPC]
MESSAGES = 400


@pytest.fixture
def broker(tmp_path):
    clients.require(clients.JAVA_5)
    port, _ = free_ports()
    running = OurBroker(tmp_path / "data", arguments=("--no-web", "--grpc-port", str(port)))
    running.grpc = f"127.0.0.1:{port}"
    try:
        yield running.start()
    finally:
        running.stop()


def stored(broker, topic, tmp_path) -> dict[str, dict]:
    """What Java's remoting client reads of a topic, by key; each key once."""
    lines = [line for line in reader(broker, tmp_path).run("pull", topics=topic) if "key" in line]
    found = {line["key"]: line for line in lines}
    assert len(found) == len(lines)
    return found


def reader(broker, tmp_path):
    return clients.java_of(clients.JAVA_5, broker, tmp_path)


def create(broker, topic, kind="NORMAL"):
    async def ask():
        async with Admin(broker.nameserver) as admin:
            await admin.create_topic(topic, read_queues=4, write_queues=4, attributes={"+message.type": kind})

    asyncio.run(ask())


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_producer_sends_is_stored_once(kind, broker, tmp_path):
    program = clients.grpc_program(kind, broker.grpc, tmp_path)
    create(broker, "Normal")
    sent = program.run("send", topic="Normal", n=MESSAGES, threads=8, size=1_000)
    assert len(sent) == MESSAGES and not [line for line in sent if "error" in line]
    found = stored(broker, "Normal", tmp_path)
    assert {key: line["id"] for key, line in found.items()} == {line["key"]: line["id"] for line in sent}
