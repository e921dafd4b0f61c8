"""Apache's producers for RocketMQ 5 on the gRPC port, with TLS as is their default, and consumers of the remoting
protocol that receive what they sent."""

import asyncio
import time

import pytest

from broker_store.client import Admin
from tests.interop import clients
from tests.interop.brokers import OurBroker
from tests.support.ports import free_port

KINDS = [clients.JAVA_GRPC, clients.GO_GRPC, clients.NODE_GRPC, clients.PYTHON_GRPC, clients.RUST_GRPC]
MESSAGES = 400


@pytest.fixture
def broker(tmp_path):
    clients.require(clients.JAVA_5)
    port = free_port()
    settings = {
        "recallMessageEnable": "true", "transactionTimeOut": 1000, "transactionCheckInterval": 1000,
    }  # fmt: skip
    running = OurBroker(tmp_path / "data", settings, arguments=("--no-web", "--grpc-port", str(port)))
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


def producers(kind, broker, tmp_path):
    return clients.grpc_program(kind, broker.grpc, tmp_path, broker.data / "tls" / "self-signed.crt")


def reader(broker, tmp_path):
    return clients.java_of(clients.JAVA_5, broker, tmp_path)


def create(broker, topic, kind="NORMAL"):
    async def ask():
        async with Admin(broker.nameserver) as admin:
            await admin.create_topic(topic, read_queues=4, write_queues=4, attributes={"message.type": kind})

    asyncio.run(ask())


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_producer_sends_is_stored_once(kind, broker, tmp_path):
    program = producers(kind, broker, tmp_path)
    create(broker, "Normal")
    sent = program.run("send", topic="Normal", n=MESSAGES, threads=8, size=1_000)
    assert len(sent) == MESSAGES and not [line for line in sent if "error" in line]
    found = stored(broker, "Normal", tmp_path)
    assert {key: line["id"] for key, line in found.items()} == {line["key"]: line["id"] for line in sent}


@pytest.mark.parametrize("kind", KINDS)
def test_messages_of_a_group_are_stored_in_order(kind, broker, tmp_path):
    program = producers(kind, broker, tmp_path)
    create(broker, "Ordered", "FIFO")
    sent = program.run("send", topic="Ordered", n=60, groups=6)
    assert len(sent) == 60 and not [line for line in sent if "error" in line]
    places: dict[int, list[tuple[int, int, int]]] = {}
    for line in stored(broker, "Ordered", tmp_path).values():
        number = int(line["number"])
        places.setdefault(number % 6, []).append((number, line["queue"], line["offset"]))
    for group in places.values():
        group.sort()
        assert len({queue for _, queue, _ in group}) == 1
        assert [offset for *_, offset in group] == sorted(offset for *_, offset in group)


@pytest.mark.parametrize("kind", KINDS)
def test_delayed_messages_come_at_their_time(kind, broker, tmp_path):
    program = producers(kind, broker, tmp_path)
    create(broker, "Delayed", "DELAY")
    # Two programs start before a message that is recalled is due. Some clients count seconds.
    recalls = kind in (clients.JAVA_GRPC, clients.NODE_GRPC, clients.PYTHON_GRPC)
    due_ms = (int(time.time()) + (25 if recalls else 7)) * 1_000
    sent = program.run("send", topic="Delayed", n=20, deliver_at=due_ms)
    assert len(sent) == 20 and not [line for line in sent if "error" in line]
    recalled = set()
    if recalls:  # the others do not show the handle
        (line,) = program.run("recall", topic="Delayed", handle=sent[0]["handle"])
        assert line["recalled"] == sent[0]["id"]
        recalled.add(sent[0]["key"])
    java = reader(broker, tmp_path)
    consumer = java.start("consume", group="readers", topics="Delayed")
    try:
        lines = consumer.until(
            lambda lines: len([line for line in lines if "key" in line]) >= 20 - len(recalled), 60
        )
    finally:
        consumer.kill()
    came = [line for line in lines if "key" in line]
    assert {line["key"] for line in came} == {line["key"] for line in sent} - recalled
    assert all(0 <= line["store_time"] - due_ms <= 1_000 for line in came)


FATES = {f"rkey{number}": number % 4 for number in range(40)}
KEPT = {key for key, fate in FATES.items() if fate in (0, 2)}
UNSURE = {key for key, fate in FATES.items() if fate in (2, 3)}


def asked(lines) -> set[str]:
    return {line["asked"] for line in lines if "asked" in line}


def until_stored(broker, topic, keys, tmp_path) -> None:
    """Wait until exactly these keys stand in a topic."""
    found: dict[str, dict] = {}
    deadline = time.monotonic() + 60
    while found.keys() != keys and time.monotonic() < deadline:
        found = stored(broker, topic, tmp_path)
    assert found.keys() == keys


@pytest.mark.parametrize("kind", KINDS)
def test_transactions_end_by_their_producer_or_by_a_check(kind, broker, tmp_path):
    program = producers(kind, broker, tmp_path)
    create(broker, "Transactions", "TRANSACTION")
    producer = program.start("transact", topic="Transactions", n=40)
    try:
        lines = producer.until(lambda lines: asked(lines) >= UNSURE, 90)
        assert {line["topic"] for line in lines if "asked" in line} == {"Transactions"}
        until_stored(broker, "Transactions", KEPT, tmp_path)
        producer.finish()
    finally:
        producer.kill()


def test_after_kill_9_a_producer_is_asked_about_what_it_left_open(broker, tmp_path):
    program = producers(clients.JAVA_GRPC, broker, tmp_path)
    create(broker, "Killed", "TRANSACTION")
    producer = program.start("transact", topic="Killed", n=40)
    try:
        producer.until(lambda lines: any("sent" in line for line in lines), 60)
        broker.kill9()
        broker.start()
        producer.until(lambda lines: asked(lines) >= UNSURE, 90)
        until_stored(broker, "Killed", KEPT, tmp_path)
    finally:
        producer.kill()
