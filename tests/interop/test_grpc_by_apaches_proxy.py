"""Apache's proxy in CLUSTER mode before this broker, and clients of RocketMQ 5 before the proxy.

The proxy is a client of the broker: it pops, acknowledges and sends by the broker port.
"""

import asyncio

import pytest

from broker_store.client import Admin, Producer, PullConsumer
from tests.interop import clients
from tests.interop.brokers import ApacheProxy, OurBroker
from tests.interop.clients import BUILD, Running
from tests.interop.test_grpc_python import PROGRAMS, PYTHON

MESSAGES = 200


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    clients.require(clients.JAVA_GRPC)
    if not PYTHON.exists() or not (BUILD / "cp-proxy-5.5.0.txt").exists():
        pytest.skip(f"Apache's proxy or its Python client is not in {BUILD} (make deps)")
    directory = tmp_path_factory.mktemp("proxied")
    running = OurBroker(directory / "broker").start()
    proxy = ApacheProxy(directory / "proxy", running.nameserver)
    try:
        running.grpc = proxy.start().grpc
        yield running
    finally:
        proxy.stop()
        running.stop()


@pytest.fixture
def producer(broker, tmp_path):
    return clients.grpc_program(clients.JAVA_GRPC, broker.grpc, tmp_path)


async def create(broker, topic, kind="NORMAL"):
    async with Admin(broker.nameserver) as admin:
        await admin.create_topic(topic, read_queues=4, write_queues=4, attributes={"message.type": kind})


@pytest.mark.parametrize("kind", ["simple", "push"])
async def test_messages_go_through_the_proxy_and_back_once(kind, broker, producer):
    topic, group = f"Through{kind}", f"readers{kind}"
    await create(broker, topic)
    consumer = Running([PYTHON, PROGRAMS / "consume.py", broker.grpc, group, topic, kind, "*", "fail"])
    try:
        await asyncio.to_thread(consumer.until_ready)
        sent = await asyncio.to_thread(producer.run, "send", topic=topic, n=MESSAGES, threads=4)
        assert len(sent) == MESSAGES and not [line for line in sent if "error" in line]
        tries = 1 if kind == "simple" else 2  # the push consumer lets each fail once

        def is_all(lines):
            return len([line for line in lines if line.get("attempt") == tries]) == MESSAGES

        lines = await asyncio.to_thread(consumer.until, is_all)
    finally:
        consumer.kill()
    got = [line for line in lines if "body" in line]
    for attempt in range(1, tries + 1):
        ids = [line["id"] for line in got if line["attempt"] == attempt]
        assert sorted(ids) == sorted(line["id"] for line in sent)
    assert len(got) == MESSAGES * tries


async def test_the_rust_client_sends_and_receives_through_the_proxy(broker, tmp_path):
    """Its long polling timeout is the deadline of its call too. One of 5 s, as in other tests, the proxy refuses,
    also with Apache's broker: it demands that 5 s are left."""
    program = clients.grpc_program(clients.RUST_GRPC, broker.grpc, tmp_path)
    await create(broker, "Rust")
    sent = await asyncio.to_thread(program.run, "send", topic="Rust", n=20)
    wanted = {line["key"] for line in sent}
    consumer = program.start("simple", topic="Rust", group="readers-rust", await_s=15)
    try:
        await asyncio.to_thread(
            consumer.until, lambda lines: wanted <= {line["key"] for line in lines if "key" in line}
        )
        lines = consumer.seen()
    finally:
        consumer.kill()
    assert len(wanted) == 20 and len([line for line in lines if "key" in line]) == 20


async def test_messages_are_consumed_in_order_through_the_proxy(broker, producer, tmp_path):
    """The proxy pops in order for such a group. Two consumers share it."""
    await create(broker, "Ordered", "FIFO")
    async with Admin(broker.nameserver) as admin:
        policy = {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1_000]}}
        await admin.create_group("in-order", consumeMessageOrderly=True, groupRetryPolicy=policy)
    options = {"topic": "Ordered", "group": "in-order", "fails": 1}
    programs = [producer, clients.grpc_program(clients.JAVA_GRPC, broker.grpc, tmp_path)]
    consumers = [program.start("push", **options) for program in programs]
    wanted = {f"{number:02}" for number in range(40)}

    def done(lines):
        return [line for line in lines if line.get("attempt", 0) > 1]

    try:
        for consumer in consumers:
            await asyncio.to_thread(consumer.until_ready)
        async with Producer(broker.nameserver) as sender:
            for number in range(40):
                shard = {"__SHARDINGKEY": f"g{number % 4}"}
                await sender.send(
                    "Ordered", b"body", keys=f"{number:02}", properties=shard, queue_id=number % 4
                )
        await asyncio.to_thread(
            clients.until_together,
            consumers,
            lambda lines: wanted <= {line["key"] for line in done(lines)},
            120,
        )
    finally:
        for consumer in consumers:
            consumer.kill()
    got = sorted(
        (line for consumer in consumers for line in done(consumer.lines)), key=lambda line: line["at_ms"]
    )
    for group in range(4):
        keys = [line["key"] for line in got if line["group"] == f"g{group}"]
        assert keys == [f"{number:02}" for number in range(group, 40, 4)]


async def test_transactions_through_the_proxy_end_as_the_producer_decided(broker, producer):
    await create(broker, "Transactions", "TRANSACTION")
    program = producer.start("transact", topic="Transactions", n=8)
    got = []
    try:
        await asyncio.to_thread(program.until, lambda lines: len([x for x in lines if "asked" in x]) >= 4)
        async with asyncio.timeout(60), PullConsumer("readers", broker.nameserver) as consumer:
            queues = await consumer.queues("Transactions")
            offsets = dict.fromkeys(queues, 0)
            while len(got) < 4:  # the broker ends a half when it has the answer to its question
                for queue in queues:
                    batch = await consumer.pull(queue, offsets[queue], wait_ms=100)
                    got += batch.messages
                    offsets[queue] += len(batch.messages)
    finally:
        program.kill()
    numbers = sorted(int(message.properties["number"]) for message in got)
    assert numbers == [0, 2, 4, 6]
