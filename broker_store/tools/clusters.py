"""Commands about clusters as a whole."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from datetime import datetime

from broker_store.client.errors import ClientError
from broker_store.errors import BrokerStoreError
from broker_store.protocol.route_bodies import MASTER_ID
from broker_store.tools import layout
from broker_store.tools.command import Line, Options, command, flag, option
from broker_store.tools.sends import probe, size_of
from broker_store.tools.servers import Servers

HOUR_MS = 3_600_000
INTERVAL = option("i", "interval", "print again after so many seconds, until interrupted")


def _number(table: Mapping[str, str], name: str) -> float:
    """Return the first of the numbers of a value, 0.0 for none."""
    words = table.get(name, "").split()
    try:
        return float(words[0]) if words else 0.0
    except ValueError:
        return 0.0


def _whole(table: Mapping[str, str], name: str) -> int:
    return int(_number(table, name))


@command(
    "clusterList",
    "List cluster infos.",
    flag("m", "moreStats", "messages of yesterday and today"),
    INTERVAL,
    option("c", "clusterName", "name of a cluster: it alone"),
)
async def cluster_list(servers: Servers, options: Options) -> AsyncIterator[Line]:
    pause_s = options.number("interval", 0)
    shown = _more if "moreStats" in options else _each
    while True:
        async for line in shown(servers, options.get("clusterName")):
            yield line
        if pause_s <= 0:
            return
        await asyncio.sleep(pause_s)
        yield Line("")


async def _tables(
    servers: Servers, cluster: str | None
) -> AsyncIterator[tuple[str, str, int, str, dict[str, str] | None]]:
    """Yield (cluster, name, id, address, state) of each broker; the state is None for one that did not
    answer."""
    info = await servers.cluster_info()
    for name, brokers in sorted(info.clusters.items()):
        if cluster not in (None, name):
            continue
        for broker in sorted(brokers):
            if broker not in info.brokers:
                continue
            for number, address in sorted(info.brokers[broker].addresses.items()):
                try:
                    table: dict[str, str] | None = await servers.admin.broker_runtime_info(address)
                except ClientError:
                    table = None
                yield name, broker, number, address, table


async def _each(servers: Servers, cluster: str | None) -> AsyncIterator[Line]:
    head = "%-22s  %-22s  %-4s  %-22s %-16s  %16s  %30s  %-22s  %-11s  %-12s  %-8s  %-10s"
    row = "%-22s  %-22s  %-4s  %-22s %-16s  %16s  %30s  %-22s  %11s  %-12s  %-8s  %10s"
    yield Line(
        head
        % (
            "#Cluster Name",
            "#Broker Name",
            "#BID",
            "#Addr",
            "#Version",
            "#InTPS(LOAD)",
            "#OutTPS(LOAD)",
            "#Timer(Progress)",
            "#PCWait(ms)",
            "#Hour",
            "#SPACE",
            "#ACTIVATED",
        )
    )
    async for name, broker, number, address, table in _tables(servers, cluster):
        fact = {"cluster": name, "brokerName": broker, "brokerId": number, "address": address}
        if table is None:
            unknown = ("", "0.00(,ms)", "0.00(,ms|,ms)", "0-0(0.0w, 0.0, 0.0)", "", "0.00", "0.0000", "false")
            yield Line(row % (name, broker, number, address, *unknown), fact | {"answered": False})
            continue
        puts, gets = _number(table, "putTps"), _number(table, "getTransferredTps")
        send, pull, ack = (
            f"{table.get(f'{kind}ThreadPoolQueueSize', 'N')},"
            f"{table.get(f'{kind}ThreadPoolQueueHeadWaitTimeMills', 'N')}ms"
            for kind in ("send", "pull", "ack")
        )
        timer = layout.line(
            "%d-%d(%.1fw, %.1f, %.1f)",
            _whole(table, "timerReadBehind"),
            _whole(table, "timerOffsetBehind"),
            _whole(table, "timerCongestNum") / 10_000,
            _number(table, "timerEnqueueTps"),
            _number(table, "timerDequeueTps"),
        )
        earliest_ms = _whole(table, "earliestMessageTimeStamp")
        hours = (time.time() * 1000 - earliest_ms) / HOUR_MS
        disk = _number(table, "commitLogDiskRatio")
        version, is_active = table.get("brokerVersionDesc", ""), table.get("brokerActive", "false")
        yield Line(
            row
            % (
                name,
                broker,
                number,
                address,
                version,
                f"{puts:9.2f}({send})",
                f"{gets:9.2f}({pull}|{ack})",
                timer,
                table.get("pageCacheLockTimeMills", ""),
                f"{hours:2.2f}",
                f"{disk:.4f}",
                is_active,
            ),
            fact
            | {"answered": True, "version": version, "inTps": puts, "outTps": gets, "diskRatio": disk}
            | {"earliestMessageTimestamp": earliest_ms, "active": is_active == "true"},
        )


async def _more(servers: Servers, cluster: str | None) -> AsyncIterator[Line]:
    row = "%-16s  %-32s %14s %14s %14s %14s"
    heads = ("#InTotalYest", "#OutTotalYest", "#InTotalToday", "#OutTotalToday")
    yield Line(row % ("#Cluster Name", "#Broker Name", *heads))
    async for name, broker, number, _address, table in _tables(servers, cluster):
        if number != MASTER_ID and table is None:
            continue
        known = table or {}
        yesterday, today, now = (
            [_whole(known, f"msg{kind}Total{day}") for kind in ("Put", "Get")]
            for day in ("YesterdayMorning", "TodayMorning", "TodayNow")
        )
        numbers = [today[0] - yesterday[0], today[1] - yesterday[1], now[0] - today[0], now[1] - today[1]]
        names = ("inYesterday", "outYesterday", "inToday", "outToday")
        yield Line(
            row % (name, broker, *numbers),
            {"cluster": name, "brokerName": broker, "answered": table is not None}
            | dict(zip(names, numbers if table is not None else [None] * 4, strict=True)),
        )


@command(
    "clusterRT",
    "List All clusters Message Send RT.",
    option("a", "amount", "messages of each round (default: 100)"),
    option("s", "size", "bytes of each (default: 128)"),
    option("c", "cluster", "name of a cluster: it alone"),
    option("p", "printAsTlog", "print as a line of a log", "true", "false"),
    option("m", "machineRoom", "name of the machine room in such a line (default: noname)"),
    option("i", "interval", "seconds between two rounds (default: 10)"),
)
async def cluster_times(servers: Servers, options: Options) -> AsyncIterator[Line]:
    """Send to the topic of each broker's name, round after round, until interrupted."""
    clusters = await servers.clusters(options.get("cluster"))
    body, amount = probe(size_of(options, "size")), options.number("amount", 100)
    as_log, room = options.yes("printAsTlog"), options.get("machineRoom") or "noname"
    if not as_log:
        yield Line(
            layout.line(
                "%-24s  %-24s  %-4s  %-8s  %-8s",
                "#Cluster Name",
                "#Broker Name",
                "#RT",
                "#successCount",
                "#failCount",
            )
        )
    async with servers.producer() as producer:
        while True:
            for cluster in clusters:
                for broker in await servers.brokers_of(cluster):
                    sent, failed, total_ms = 0, 0, 0.0
                    for turn in range(amount):
                        began = time.monotonic()
                        try:
                            await producer.send(broker.broker_name, body)
                        except BrokerStoreError:
                            failed += 1
                        else:
                            sent += 1
                        if turn:
                            total_ms += (time.monotonic() - began) * 1000
                    mean = total_ms / max(amount - 1, 1)
                    fact = {"cluster": cluster, "brokerName": broker.broker_name, "rtMs": mean}
                    fact |= {"succeeded": sent, "failed": failed}
                    if as_log:
                        now = layout.seconds(int(datetime.now().timestamp() * 1000))
                        yield Line(f"{now}|{room}|{cluster}|{broker.broker_name}|{mean:.0f}", fact)
                    else:
                        yield Line(
                            layout.line(
                                "%-24s  %-24s  %-8s  %-16s  %-16s",
                                cluster,
                                broker.broker_name,
                                f"{mean:.2f}",
                                sent,
                                failed,
                            ),
                            fact,
                        )
            await asyncio.sleep(options.number("interval", 10))
