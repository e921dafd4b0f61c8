"""Apache's Python client for RocketMQ 5 on the gRPC port, and ours that receives what it sent."""

import asyncio
import json
import subprocess
from pathlib import Path

import pytest

from broker_store.client import Admin, PullConsumer
from tests.interop.brokers import OurBroker, free_ports
from tests.interop.clients import BUILD

PYTHON = BUILD / "python-client" / "bin" / "python"
PROGRAM = Path(__file__).parent / "python" / "send.py"
MESSAGES = 500
RUN_LIMIT_S = 120


@pytest.fixture
def broker(tmp_path):
    if not PYTHON.exists():
        pytest.skip(f"Apache's Python client is not in {BUILD} (make deps)")
    port, _ = free_ports()
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
