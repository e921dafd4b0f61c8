"""Commands that send messages."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

from broker_store.client.message import SendReceipt
from broker_store.errors import BrokerStoreError, MisuseError, NotFoundError
from broker_store.formats.topics import PERM_WRITE
from broker_store.tools import layout
from broker_store.tools.command import Line, Options, command, needed, option
from broker_store.tools.servers import Servers

TOPIC = needed("t", "topic", "name of the topic")
MAX_BODY = 4 << 20
PROBE_TEXT = b"hello jodie"


def size_of(options: Options, name: str, default: int = 128) -> int:
    """Return a size in bytes that a message can have. Raises MisuseError."""
    size = options.number(name, default)
    if not 0 < size <= MAX_BODY:
        raise MisuseError(f"--{name} {size}: expected 1 to {MAX_BODY} bytes")
    return size


def probe(size: int) -> bytes:
    """Return a body of a size, of Apache's text."""
    return (PROBE_TEXT * (size // len(PROBE_TEXT) + 1))[:size]


def _fact(receipt: SendReceipt) -> dict[str, object]:
    return {
        "brokerName": receipt.broker_name,
        "queueId": receipt.queue_id,
        "queueOffset": receipt.queue_offset,
        "status": receipt.status,
        "msgId": receipt.message_id,
        "offsetMsgId": receipt.offset_message_id,
    }


@command(
    "sendMessage",
    "Send a message.",
    TOPIC,
    needed("p", "body", "the body, as text"),
    option("k", "key", "its keys, joined by blanks"),
    option("c", "tags", "its tag"),
    option("b", "broker", "name of the broker that gets it"),
    option("i", "qid", "number of the queue of that broker"),
)
async def send(servers: Servers, options: Options) -> AsyncIterator[Line]:
    if "qid" in options and "broker" not in options:
        raise MisuseError("Broker name must be set if the queue is chosen!")
    row = "%-32s  %-4s  %-20s    %s"
    async with servers.producer() as producer:
        receipt = await producer.send(
            options.text("topic"),
            options.text("body").encode(),
            tag=options.get("tags"),
            keys=(options.get("key") or "").split(),
            broker_name=options.get("broker"),
            queue_id=options.number("qid", 0) if "qid" in options else None,
        )
    yield Line(row % ("#Broker Name", "#QID", "#Send Result", "#MsgId"))
    yield Line(
        row % (receipt.broker_name, receipt.queue_id, receipt.status, receipt.message_id), _fact(receipt)
    )


@command(
    "checkMsgSendRT",
    "Check message send response time.",
    TOPIC,
    option("a", "amount", "number of messages (default: 100)"),
    option("s", "size", "bytes of each (default: 128)"),
)
async def check_times(servers: Servers, options: Options) -> AsyncIterator[Line]:
    topic, body = options.text("topic"), probe(size_of(options, "size"))
    route = await servers.admin.route(topic)
    queues = [
        (each.broker_name, number)
        for each in sorted(route.queues)
        if each.perm & PERM_WRITE
        for number in range(each.write_queue_nums)
    ]
    if not queues:
        raise NotFoundError(f"no queue of topic {topic} can be written")
    row = "%-32s  %-4s  %-20s    %s"
    yield Line(row % ("#Broker Name", "#QID", "#Send Result", "#RT"))
    spent: list[int] = []
    async with servers.producer() as producer:
        for turn in range(options.number("amount", 100)):
            name, number = queues[turn % len(queues)]
            began, was_sent = time.monotonic(), "true"
            try:
                await producer.send(topic, body, broker_name=name, queue_id=number)
            except BrokerStoreError:
                was_sent = "false"
            took_ms = int((time.monotonic() - began) * 1000)
            spent.append(took_ms)
            yield Line(
                row % (name, number, was_sent, took_ms),
                {"brokerName": name, "queueId": number, "sent": was_sent == "true", "rtMs": took_ms},
            )
    # The first is left out, as in Apache's: it includes the connection.
    mean = sum(spent[1:]) / len(spent[1:]) if len(spent) > 1 else 0.0
    yield Line(f"Avg RT: {mean:.2f}", {"averageRtMs": mean})


@command(
    "sendMsgStatus",
    "Send msg to broker.",
    needed("b", "brokerName", "name of the broker, which is also the topic"),
    option("s", "messageSize", "bytes of each message (default: 128)"),
    option("c", "count", "number of messages (default: 50)"),
)
async def send_status(servers: Servers, options: Options) -> AsyncIterator[Line]:
    topic, body = options.text("brokerName"), probe(size_of(options, "messageSize"))
    async with servers.producer() as producer:
        for turn in range(options.number("count", 50) + 1):
            began = time.monotonic()
            receipt = await producer.send(topic, body)
            took_ms = int((time.monotonic() - began) * 1000)
            if turn == 0:
                continue  # it includes the connection, as in Apache's
            yield Line(
                f"rt={took_ms}ms, SendResult=SendResult [sendStatus={receipt.status}, "
                f"msgId={receipt.message_id}, offsetMsgId={receipt.offset_message_id}, "
                f"messageQueue={layout.queue(receipt.queue)}, queueOffset={receipt.queue_offset}, "
                f"recallHandle={layout.value(receipt.recall_handle)}]",
                _fact(receipt) | {"rtMs": took_ms},
            )
