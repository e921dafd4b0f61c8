"""Commands that move the positions of groups."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from datetime import datetime

from broker_store.errors import MisuseError
from broker_store.protocol.codes import RequestCode
from broker_store.protocol.message_queue import MessageQueue
from broker_store.protocol.offset_bodies import decode_offset_table
from broker_store.tools.command import Line, Options, command, needed, option
from broker_store.tools.progress import progress_of
from broker_store.tools.servers import Servers

GROUP = needed("g", "group", "name of the consumer group")
TOPIC = needed("t", "topic", "name of the topic")
CLUSTER = option("c", "cluster", "name of a cluster: its brokers alone")
END = -1


def moment(text: str) -> int:
    """Return milliseconds since 1970 for `now`, a number, or `2026-11-29#18:30:00:000` of this host's zone.
    Raises MisuseError."""
    if text == "now":
        return time.time_ns() // 1_000_000
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return round(datetime.strptime(text, "%Y-%m-%d#%H:%M:%S:%f").timestamp() * 1000)
    except ValueError:
        raise MisuseError(
            f"{text:.40}: expected now, milliseconds since 1970 or yyyy-MM-dd#HH:mm:ss:SSS"
        ) from None


async def reset(
    servers: Servers, addresses: list[str], group: str, topic: str, stamp_ms: int, *, is_forced: bool
) -> dict[MessageQueue, int]:
    """Move a group in a topic to a time at brokers, and return its new positions. Raises ClientError."""
    places: dict[MessageQueue, int] = {}
    for address in addresses:
        answer = await servers.ask(
            address,
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
            group=group,
            topic=topic,
            timestamp=stamp_ms,
            is_force=is_forced,
        )
        places |= decode_offset_table(answer.body)
    return dict(sorted(places.items()))


async def _addresses(servers: Servers, options: Options) -> list[str]:
    if cluster := options.get("cluster"):
        return await servers.masters_of(cluster)
    return [address for _, address in await servers.masters_of_topic(options.text("topic"))]


def _table(places: dict[MessageQueue, int]) -> list[Line]:
    row = "%-40s  %-40s  %-40s"
    return [Line(row % ("#brokerName", "#queueId", "#offset"))] + [
        Line(
            row % (of.broker_name, of.queue_id, offset),
            {"brokerName": of.broker_name, "queueId": of.queue_id, "offset": offset},
        )
        for of, offset in places.items()
    ]


@command(
    "resetOffsetByTime",
    "Reset consumer offset by timestamp(without client restart).",
    GROUP,
    TOPIC,
    needed("s", "timestamp", "now, milliseconds since 1970, yyyy-MM-dd#HH:mm:ss:SSS, or -1 for the end"),
    option("f", "force", "whether positions may also move forward (default: true)", "true", "false"),
    option("b", "broker", "address of a broker: one queue of it"),
    option("q", "queue", "that queue"),
    option("o", "offset", "the offset of that queue"),
    CLUSTER,
)
async def reset_by_time(servers: Servers, options: Options) -> AsyncIterator[Line]:
    group, topic, text = options.text("group"), options.text("topic"), options.text("timestamp")
    stamp_ms, broker = moment(text), options.get("broker")
    stamps = f"timestamp(string)[{text}], timestamp(long)[{stamp_ms}]"
    if broker is not None and "queue" in options:
        queue = options.number("queue", 0)
        yield Line(
            f"start reset consumer offset by specified, group[{group}], topic[{topic}], queueId[{queue}], "
            f"broker[{broker}], {stamps}"
        )
        if "offset" in options:
            offset = options.number("offset", 0)
        else:
            found = await servers.ask(
                broker,
                RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
                topic=topic,
                queue_id=queue,
                timestamp=stamp_ms,
            )
            offset = int((found.fields or {})["offset"])
        await servers.ask(
            broker,
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
            group=group,
            topic=topic,
            timestamp=stamp_ms,
            is_force=True,
            queue_id=queue,
            offset=offset,
        )
        yield Line(f"reset consumer offset to {offset}", {"queueId": queue, "offset": offset})
        return
    is_forced = options.get("force") != "false"
    addresses = await _addresses(servers, options)
    yield Line(
        f"start reset consumer offset by specified, group[{group}], topic[{topic}], "
        f"force[{'true' if is_forced else 'false'}], {stamps}"
    )
    for line in _table(await reset(servers, addresses, group, topic, stamp_ms, is_forced=is_forced)):
        yield line


@command(
    "skipAccumulatedMessage",
    "Skip all messages that are accumulated (not consumed) currently.",
    GROUP,
    TOPIC,
    option("f", "force", "whether positions may also move back (default: true)", "true", "false"),
    CLUSTER,
)
async def skip(servers: Servers, options: Options) -> AsyncIterator[Line]:
    addresses = await _addresses(servers, options)
    is_forced = options.get("force") != "false"
    places = await reset(
        servers, addresses, options.text("group"), options.text("topic"), END, is_forced=is_forced
    )
    for line in _table(places):
        yield line


@command(
    "cloneGroupOffset",
    "Clone offset from other group.",
    needed("s", "srcGroup", "the group whose positions are taken"),
    needed("d", "destGroup", "the group that gets them; it must exist"),
    needed("t", "topic", "name of the topic"),
    option("o", "offline", "has no effect, as in Apache's", "true", "false"),
)
async def clone(servers: Servers, options: Options) -> AsyncIterator[Line]:
    source, target, topic = (options.text(name) for name in ("srcGroup", "destGroup", "topic"))
    found = await progress_of(servers, source)
    masters = dict(await servers.masters_of_topic(topic))
    for of, at in found.offsets.items():
        if of.topic == topic and of.broker_name in masters:
            await servers.ask(
                masters[of.broker_name],
                RequestCode.UPDATE_CONSUMER_OFFSET,
                consumer_group=target,
                topic=topic,
                queue_id=of.queue_id,
                commit_offset=at.consumer_offset,
            )
    yield Line(
        f"clone group offset success. srcGroup[{source}], destGroup=[{target}], topic[{topic}]",
        {"srcGroup": source, "destGroup": target, "topic": topic},
    )
