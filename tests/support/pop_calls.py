"""A broker with a topic TopicX that groups pop, requests of pops to it, and its restart after a kill."""

from broker_store.broker.topics import TopicConfig
from broker_store.formats import record
from broker_store.messages import Message
from broker_store.protocol import pop
from broker_store.protocol.pop import Receipt
from broker_store.server.broker import Broker
from broker_store.server.parts import build_parts
from broker_store.server.router import Router
from tests.support.broker_harness import Harness

REVIVE_LOG = "rmq_sys_REVIVE_LOG_DefaultCluster"
RETRY = "%RETRY%CG_TopicX"


def stocked(*bodies: bytes, queue_id: int = 1, tags=(), **options) -> Harness:
    """Return a harness with a topic TopicX of four queues and messages in one of them."""
    harness = Harness(**{"pop_from_retry_probability": 0} | options)
    harness.parts.topics.put(TopicConfig("TopicX", 4, 4))
    harness.parts.timer.start()
    harness.parts.revive.start(harness.parts.offsets.query)
    harness.parts.revive.on_revived = harness.router.pops.waiting.revived
    put(harness, *bodies, queue_id=queue_id, tags=tags)
    return harness


def put(harness, *bodies: bytes, queue_id: int = 1, tags=()) -> None:
    for number, body in enumerate(bodies):
        tag = tags[number] if tags else "TagA"
        harness.store.appender.put(
            Message("TopicX", queue_id, body, f"TAGS\x01{tag}\x02UNIQ_KEY\x01U{number}\x02".encode())
        )


def pop_fields(
    queue_id=-1, *, group="CG", topic="TopicX", count=32, invisible_ms=10_000, poll_ms=0, mode=0, **more
):
    return dict(
        consumerGroup=group, topic=topic, queueId=queue_id, maxMsgNums=count, invisibleTime=invisible_ms,
        pollTime=poll_ms, initMode=mode, **more,
    )  # fmt: skip


async def popped(harness, *place, channel=None, **options):
    """The answer to a pop."""
    return await harness.ask(200050, channel=channel, **pop_fields(*place, **options))


def bodies(answer) -> list[bytes]:
    return [stored.body for stored in record.decode_all(answer.body)]


def receipts(answer, harness) -> dict[bytes, tuple[str, int, str, int]]:
    """Body -> (topic, queue id, receipt, offset) of each message, as a Java client makes them."""
    fields, found = answer.fields, {}
    starts = dict(
        ((int(kind), int(queue)), int(start))
        for kind, queue, start in (text.split(" ") for text in fields["startOffsetInfo"].split(";") if text)
    )
    for stored in record.decode_all(answer.body):
        text = stored.properties.get("POP_CK")
        if text is None:
            receipt = Receipt(
                starts[0, stored.queue_id], int(fields["popTime"]), int(fields["invisibleTime"]),
                int(fields["reviveQid"]), 0, harness.parts.broker_name, stored.queue_id, stored.queue_offset,
            )  # fmt: skip
            text = pop.write_receipt(receipt)
        kind = pop.read_receipt(text).kind
        found[stored.body] = (
            pop.topic_of(stored.topic, "CG", kind),
            stored.queue_id,
            text,
            stored.queue_offset,
        )
    return found


async def ack(harness, receipt, group="CG"):
    topic, queue_id, text, offset = receipt
    return await harness.ask(
        200051, consumerGroup=group, topic=topic, queueId=queue_id, extraInfo=text, offset=offset
    )


def run(harness, ms: int) -> None:
    """Let time pass: timer and revive steps when they are due."""
    parts, until_ms = harness.parts, harness.now_ms + ms
    while harness.now_ms < until_ms:
        harness.now_ms = min(until_ms, harness.now_ms + 100)
        for _ in range(20):
            parts.timer.step(harness.now_ms)
            parts.revive.step(harness.now_ms)


async def change(harness, receipt, invisible_ms, group="CG"):
    topic, queue_id, text, offset = receipt
    return await harness.ask(
        200053, consumerGroup=group, topic=topic, queueId=queue_id, extraInfo=text, offset=offset,
        invisibleTime=invisible_ms,
    )  # fmt: skip


def saved(harness) -> None:
    """Save offsets as a broker does."""
    harness.parts.pop_positions.settle(harness.store.flushed)
    harness.store.write_config("consumerOffset.json", harness.parts.offsets.picture()())


def killed(harness: Harness) -> Harness:
    """A new broker over the store of one that was killed: what was only in memory is gone."""
    after = Harness(pop_from_retry_probability=0)
    after.now_ms = harness.now_ms
    after.store = harness.store

    harness.store.clock = lambda: after.now_ms
    harness.store.begin()
    after.parts = build_parts(
        harness.parts.settings, harness.parts.store_settings, harness.store, lambda: after.now_ms,
        seconds=lambda: after.now_s,
    )  # fmt: skip
    after.router = Router(after.parts)
    harness.store.write_config("topics.json", harness.parts.topics.picture()())
    harness.store.write_config("subscriptionGroup.json", harness.parts.groups.picture()())
    Broker(after.parts).load()
    after.router.consume.start()
    after.router.consume._timer.cancel()
    after.parts.revive.on_revived = after.router.pops.waiting.revived
    return after
