"""Commands about the units of queues."""

from __future__ import annotations

from collections.abc import AsyncIterator

from broker_store.protocol.codes import RequestCode
from broker_store.tools import layout
from broker_store.tools.command import Line, Options, command, needed, option
from broker_store.tools.servers import Servers

RULE = "=" * 38


@command(
    "queryCq",
    "Query cq command.",
    needed("t", "topic", "name of the topic"),
    needed("q", "queue", "number of the queue"),
    needed("i", "index", "the first unit: an offset in the queue"),
    option("c", "count", "number of units (default: 10)"),
    option("b", "broker", "address of a broker, host:port (default: the first of the topic)"),
    option("g", "consumer", "a group: whether its filter passes each unit"),
)
async def query_queue(servers: Servers, options: Options) -> AsyncIterator[Line]:
    topic = options.text("topic")
    address = options.get("broker") or (await servers.masters_of_topic(topic))[0][1]
    found = await servers.ask_json(
        address,
        RequestCode.QUERY_CONSUME_QUEUE,
        topic=topic,
        queue_id=options.number("queue", 0),
        index=options.number("index", 0),
        count=options.number("count", 10),
        consumer_group=options.get("consumer"),
    )
    if found.get("subscriptionData") is not None:
        yield Line(f"Subscription data: \n{layout.pretty(found['subscriptionData'])}\n{RULE}")
    if found.get("filterData") is not None:
        yield Line(f"Filter data: \n{found['filterData']}\n{RULE}")
    least, most = found.get("minQueueIndex"), found.get("maxQueueIndex")
    yield Line(
        f"Queue data: \nmax: {most}, min: {least}\n{RULE}", {"minQueueIndex": least, "maxQueueIndex": most}
    )
    begin = options.number("index", 0)
    for number, unit in enumerate(found.get("queueData") or (), begin):
        shown = ", ".join(
            (
                *(f"{name}={unit.get(name)}" for name in ("physicOffset", "physicSize", "tagsCode")),
                *(f"{name}='{layout.value(unit.get(name))}'" for name in ("extendDataJson", "bitMap")),
                f"eval={layout.value(bool(unit.get('eval')))}",
                f"msg='{layout.value(unit.get('msg'))}'",
            )
        )
        yield Line(f"idx: {number}\nConsumeQueueData{{{shown}}}\n{RULE}", {"index": number} | unit)
