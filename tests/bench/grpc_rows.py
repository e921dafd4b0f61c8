"""The section `grpc` of `make bench`: clients of RocketMQ 5 beside Apache's proxy in LOCAL mode.

The Java client (`peers/bench-grpc`) sends and receives with its defaults, so by TLS. The C client h2load sends
the same call again and again, plain and by TLS: it needs so little that the server sets the speed.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import time
from pathlib import Path

from broker_store.client import Admin
from broker_store.protocol.grpc.framing import with_prefix
from broker_store.protocol.grpc.v2.definition_pb2 import (
    Encoding,
    Message,
    MessageType,
    Resource,
    SystemProperties,
)
from broker_store.protocol.grpc.v2.service_pb2 import SendMessageRequest
from tests.interop.brokers import ApacheBroker, OurBroker
from tests.interop.clients import BUILD

PEERS = Path(__file__).parent / "peers"
QUEUES = 8
GROUP = "BenchGrpcGroup"  # of BenchGrpc.java
LIMIT_S = 600
DISPATCH_S = 20
SEND = "/apache.rocketmq.v2.MessagingService/SendMessage"
H2_CONNECTIONS, H2_STREAMS = 4, 16

Broker = OurBroker | ApacheBroker
Line = dict[str, float]


def make_topic(broker: Broker, topic: str) -> None:
    """Make a topic, and the group of the Java client: Apache's proxy ends the Telemetry of a new group."""

    async def make() -> None:
        async with Admin(broker.nameserver) as admin:
            await admin.create_topic(topic, read_queues=QUEUES, write_queues=QUEUES)
            await admin.create_group(GROUP)

    asyncio.run(make())


def messages_of(broker: Broker, topic: str) -> int:
    """Return how many messages a topic has."""

    async def ask() -> int:
        async with Admin(broker.nameserver) as admin:
            return sum(offsets.max_offset for offsets in (await admin.topic_stats(topic)).values())

    return asyncio.run(ask())


def java(broker: Broker, topic: str, scenario: str, **options: object) -> Line:
    """Run a scenario of the Java client, and return the line that it prints."""
    words = [f"{name}={value}" for name, value in ({"pid": broker.pid} | options).items()]
    done = subprocess.run(
        [str(PEERS / "bench-grpc.sh"), f"127.0.0.1:{broker.grpc_port}", topic, scenario, *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env={"RMQ_BUILD": str(BUILD), "PATH": "/usr/local/bin:/usr/bin:/bin"},
        timeout=LIMIT_S,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith(b"{")]
    if not lines:
        raise SystemExit(f"{scenario} {words} failed ({done.returncode}): {done.stderr.decode()[:3000]}")
    line: Line = json.loads(lines[-1])
    if line["bad"]:
        raise SystemExit(f"{scenario} {words}: {line['bad']} requests failed: {done.stderr.decode()[-500:]}")
    return line


def call_of(topic: str, size: int) -> bytes:
    """Return the body of a call that sends one message."""
    message = Message(
        topic=Resource(name=topic),
        body=b"x" * size,
        system_properties=SystemProperties(
            tag="TagA",
            keys=["key"],
            message_id="01BENCH0000000000000000000000001",
            body_encoding=Encoding.IDENTITY,
            message_type=MessageType.NORMAL,
        ),
    )
    return with_prefix(SendMessageRequest(messages=[message]).SerializeToString())


def h2load(broker: Broker, topic: str, seconds: float, directory: Path, *, tls: bool) -> Line:
    """Run the C client for some seconds; return its calls a second and the messages stored a second."""
    directory.mkdir(parents=True, exist_ok=True)
    body = directory / "call.bin"
    body.write_bytes(call_of(topic, 1024))
    before = messages_of(broker, topic)
    done = subprocess.run(
        [
            "h2load", f"-c{H2_CONNECTIONS}", f"-m{H2_STREAMS}", "-t1", f"-D{seconds:.0f}", f"-d{body}",
            "-Hcontent-type: application/grpc", "-Hte: trailers", "-Hx-mq-client-id: h2load",
            "-Hx-mq-language: JAVA", "-Hx-mq-protocol: GRPC_V2",
            f"{'https' if tls else 'http'}://127.0.0.1:{broker.grpc_port}{SEND}",
        ],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=LIMIT_S,
    )  # fmt: skip
    text = done.stdout.decode()
    counts = re.search(r"(\d+) succeeded, (\d+) failed, (\d+) errored", text)
    if counts is None or int(counts[2]) or int(counts[3]):
        raise SystemExit(f"h2load failed: {text[-1000:]} {done.stderr.decode()[-500:]}")
    deadline_s = time.monotonic() + DISPATCH_S
    while (stored := messages_of(broker, topic) - before) < int(counts[1]) and time.monotonic() < deadline_s:
        time.sleep(0.2)  # Apache's broker fills its queues later than it answers
    if stored < int(counts[1]):
        raise SystemExit(f"h2load was answered {counts[1]} times, {stored} messages are stored")
    return {"scenario": f"h2load tls={tls}", "calls_s": int(counts[1]) / seconds}
