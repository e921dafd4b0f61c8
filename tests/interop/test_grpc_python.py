"""Apache's Python client for RocketMQ 5 on the gRPC port, and ours of the broker port on the other side."""

import asyncio
import json
import subprocess
from pathlib import Path

import pytest

from broker_store.client import Admin, Producer, PullConsumer
from tests.interop.brokers import OurBroker
from tests.interop.clients import BUILD, Running
from tests.support.ports import free_port

PYTHON = BUILD / "python-client" / "bin" / "python"
PROGRAMS = Path(__file__).parent / "python"
PROGRAM = PROGRAMS / "send.py"
MESSAGES = 500
RUN_LIMIT_S = 120


@pytest.fixture
def broker(tmp_path):
    if not PYTHON.exists():
        pytest.skip(f"Apache's Python client is not in {BUILD} (make deps)")
    port = free_port()
    running = OurBroker(tmp_path / "data", arguments=("--no-web", "--grpc-port", str(port)))
    running.grpc = f"127.0.0.1:{port}"
    try:
        yield running.start()
    finally:
        running.stop()


async def test_what_the_python_client_sends_is_stored_and_received(broker):
    assert f"grpc={broker.grpc}" in broker.ready_line
    async with Admin(broker.nameserver) as admin:
        await admin.create_topic("Orders", read_queues=4, write_queues=4)
    ran = await asyncio.to_thread(
        subprocess.run,
        [PYTHON, PROGRAM, broker.grpc, "Orders", str(MESSAGES), "8"],
        capture_output=True,
        text=True,
        timeout=RUN_LIMIT_S,
    )
    assert ran.returncode == 0, ran.stderr[-4_000:]
    sent = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
    assert len(sent) == MESSAGES
    got = []
    async with PullConsumer("readers", broker.nameserver) as consumer:
        for queue in await consumer.queues("Orders"):
            offset = 0
            while batch := (await consumer.pull(queue, offset, wait_ms=0)).messages:
                got += batch
                offset = batch[-1].queue_offset + 1
    assert {(m.keys[0], m.message_id) for m in got} == {(line["key"], line["id"]) for line in sent}
    assert {(m.tag, m.properties["color"]) for m in got} == {("TagA", "red")}
    assert len(got) == MESSAGES
    # The client sends to each queue in turn, and the offset of each answer is that of its message.
    offsets = {m.keys[0]: m.queue_offset for m in got}
    assert all(offsets[line["key"]] == line["offset"] for line in sent)


@pytest.mark.parametrize(
    ("kind", "consume_type"), [("simple", "CONSUME_ACTIVELY"), ("push", "CONSUME_PASSIVELY")]
)
async def test_what_our_producer_sends_the_python_client_receives_and_acknowledges(
    broker, kind, consume_type
):
    async with Admin(broker.nameserver) as admin:
        await admin.create_topic("Orders", read_queues=4, write_queues=4)
    consumer = Running([PYTHON, PROGRAMS / "consume.py", broker.grpc, "readers", "Orders", kind, "TagA"])
    try:
        await asyncio.to_thread(consumer.until_ready)
        async with Producer(broker.nameserver) as producer:
            for number in range(100):
                tag = "TagA" if number % 4 else "TagB"
                key, properties = f"key{number}", {"color": "red"}
                await producer.send("Orders", b"body %d" % number, tag=tag, keys=key, properties=properties)
        lines = await asyncio.to_thread(consumer.until, lambda lines: len(lines) > 75)
        async with Admin(broker.nameserver) as admin:
            connected = await admin.consumer_connections("readers", f"127.0.0.1:{broker.broker_port}")
        await asyncio.to_thread(consumer.finish)
        async with Admin(broker.nameserver) as admin:
            assert await admin.consumer_connections("readers", f"127.0.0.1:{broker.broker_port}") is None
    finally:
        consumer.kill()
    got = [line for line in lines if "body" in line]
    assert sorted(line["body"] for line in got) == sorted(f"body {n}" for n in range(100) if n % 4)
    assert {(line["tag"], line["attempt"], line["is_corrupted"]) for line in got} == {("TagA", 1, False)}
    assert all(line["properties"]["color"] == "red" and len(line["keys"]) == 1 for line in got)
    (member,) = connected["connectionSet"]
    assert member["language"] == "PYTHON" and connected["consumeType"] == consume_type
    assert connected["subscriptionTable"]["Orders"]["subString"] == "TagA"


async def test_messages_of_a_group_are_consumed_in_order(broker):
    async with Admin(broker.nameserver) as admin:
        await admin.create_topic("Ordered", read_queues=1, write_queues=1)
        await admin.create_group("readers", consumeMessageOrderly=True)
    command = [PYTHON, PROGRAMS / "consume.py", broker.grpc, "readers", "Ordered", "push"]
    consumer = Running(command)
    try:
        await asyncio.to_thread(consumer.until_ready)
        async with Producer(broker.nameserver) as producer:
            for number in range(30):
                await producer.send("Ordered", b"%d" % number, properties={"__SHARDINGKEY": "g"})
        lines = await asyncio.to_thread(consumer.until, lambda lines: len(lines) > 30)
    finally:
        consumer.kill()
    assert [line["body"] for line in lines if "body" in line] == [str(number) for number in range(30)]


async def test_a_message_that_fails_comes_again_by_the_groups_policy(broker):
    async with Admin(broker.nameserver) as admin:
        await admin.create_topic("Orders", read_queues=1, write_queues=1)
    command = [PYTHON, PROGRAMS / "consume.py", broker.grpc, "readers", "Orders", "push", "*", "fail"]
    consumer = Running(command)
    try:
        await asyncio.to_thread(consumer.until_ready)
        async with Producer(broker.nameserver) as producer:
            await producer.send("Orders", b"body")
        lines = await asyncio.to_thread(consumer.until, lambda lines: len(lines) > 2)
    finally:
        consumer.kill()
    assert [line["attempt"] for line in lines if "body" in line] == [1, 2]
