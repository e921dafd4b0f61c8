"""Commands about rates."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from broker_store.client.errors import AnswerError, NoRouteError
from broker_store.formats.names import DLQ_PREFIX, RETRY_PREFIX
from broker_store.protocol.codes import RequestCode
from broker_store.tools import layout
from broker_store.tools.command import Line, Options, command, flag, option
from broker_store.tools.progress import progress_of
from broker_store.tools.servers import Servers


async def _stats(servers: Servers, addresses: list[str], name: str, key: str) -> tuple[float, int]:
    """Return messages a second of the last minute, and messages of the last day, of all brokers together."""
    per_second, of_day = 0.0, 0
    for address in addresses:
        try:
            found: Any = await servers.ask_json(
                address, RequestCode.VIEW_BROKER_STATS_DATA, stats_name=name, stats_key=key
            )
        except AnswerError:
            continue  # the broker has no such messages
        per_second += float(found["statsMinute"].get("tps") or 0)
        day = found["statsDay"].get("sum") or found["statsHour"].get("sum") or found["statsMinute"].get("sum")
        of_day += int(day or 0)
    return per_second, of_day


@command(
    "statsAll",
    "Topic and Consumer tps stats.",
    flag("a", "activeTopic", "only topics with messages of the last day"),
    option("t", "topic", "name of a topic: it alone"),
)
async def stats_all(servers: Servers, options: Options) -> AsyncIterator[Line]:
    head = "%-64s  %-64s %12s %11s %11s %14s %14s"
    yield Line(
        head
        % (
            "#Topic",
            "#Consumer Group",
            "#Accumulation",
            "#InTPS",
            "#OutTPS",
            "#InMsg24Hour",
            "#OutMsg24Hour",
        )
    )
    wanted = options.get("topic")
    for topic in await servers.admin.topics():
        if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)) or wanted not in (None, topic):
            continue
        try:
            addresses = [address for _, address in await servers.masters_of_topic(topic)]
        except NoRouteError:
            continue  # deleted meanwhile
        puts, of_day = await _stats(servers, addresses, "TOPIC_PUT_NUMS", topic)
        if "activeTopic" in options and of_day == 0:
            continue
        groups = await servers.admin.groups_of_topic(topic)
        for group in groups:
            gets, got = await _stats(servers, addresses, "GROUP_GET_NUMS", f"{topic}@{group}")
            behind: int | None
            try:
                behind = (await progress_of(servers, group, topic)).behind
            except (AnswerError, NoRouteError):
                behind = None
            yield Line(
                layout.line(
                    "%-64s  %-64s %12s %11.2f %11.2f %14d %14d",
                    topic,
                    group,
                    0 if behind is None else max(behind, 0),
                    puts,
                    gets,
                    of_day,
                    got,
                ),
                {"topic": topic, "group": group, "accumulation": behind, "inTps": puts, "outTps": gets}
                | {"in24Hours": of_day, "out24Hours": got},
            )
        if not groups:
            yield Line(
                layout.line(
                    "%-64s  %-64s %12d %11.2f %11s %14d %14s", topic, "", 0, puts, "", of_day, "NO_CONSUMER"
                ),
                {"topic": topic, "group": None, "inTps": puts, "in24Hours": of_day},
            )
