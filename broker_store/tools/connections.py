"""Commands about the clients of brokers, and what a consumer reports about itself."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from broker_store.client.errors import AnswerError
from broker_store.errors import MisuseError
from broker_store.formats.names import retry_topic
from broker_store.protocol import fastjson
from broker_store.protocol.codes import RequestCode
from broker_store.protocol.command import version_name
from broker_store.protocol.members import loads_object
from broker_store.protocol.message_queue import MessageQueue
from broker_store.tools import layout
from broker_store.tools.command import Line, Options, command, flag, needed, option
from broker_store.tools.servers import Servers

GROUP = needed("g", "consumerGroup", "name of the consumer group")
BROKER = option("b", "brokerAddr", "address of a broker, host:port")


async def consumers_of(servers: Servers, group: str, broker: str | None = None) -> dict[str, Any]:
    """Return the consumers of a group and their subscriptions, of the first broker that knows some, in
    Apache's JSON. Raises ClientError."""
    addresses = (
        [broker] if broker else [each for _, each in await servers.masters_of_topic(retry_topic(group))]
    )
    refused: AnswerError | None = None
    for address in addresses:
        try:
            found = await servers.ask_json(
                address, RequestCode.GET_CONSUMER_CONNECTION_LIST, consumer_group=group
            )
        except AnswerError as error:
            refused = error
        else:
            if isinstance(found, dict):
                return found
    if refused is not None:
        raise refused
    return {}


async def running_info(
    servers: Servers, group: str, client: str, *, with_stack: bool = False
) -> dict[str, Any]:
    """Return what a consumer reports about itself, in Apache's JSON. Raises ClientError."""
    refused: AnswerError | None = None
    for _, address in await servers.masters_of_topic(retry_topic(group)):
        try:
            found = await servers.ask_json(
                address,
                RequestCode.GET_CONSUMER_RUNNING_INFO,
                consumer_group=group,
                client_id=client,
                jstack_enable=with_stack,
            )
        except AnswerError as error:
            refused = error
        else:
            return found if isinstance(found, dict) else {}
    if refused is not None:
        raise refused
    return {}


def rows_of(found: Mapping[str, Any], name: str) -> Sequence[Mapping[str, Any]]:
    """Return a list of objects of an answer; none if it has another type."""
    rows = found.get(name)
    return [each for each in rows if isinstance(each, Mapping)] if isinstance(rows, (list, tuple)) else []


def subscriptions_of(found: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    table = found.get("subscriptionTable")
    return [table[name] for name in sorted(table)] if isinstance(table, Mapping) else []


def _version(of: Mapping[str, Any]) -> str:
    return version_name(int(of.get("version") or 0))


@command(
    "consumerConnection",
    "Query consumer's socket connection, client version and subscription.",
    GROUP,
    BROKER,
)
async def consumer_connection(servers: Servers, options: Options) -> AsyncIterator[Line]:
    found = await consumers_of(servers, options.text("consumerGroup"), options.get("brokerAddr"))
    yield Line(layout.line("%-36s %-22s %-10s %s", "#ClientId", "#ClientAddr", "#Language", "#Version"))
    for each in rows_of(found, "connectionSet"):
        shown = (each.get("clientId"), each.get("clientAddr"), each.get("language"), _version(each))
        yield Line(layout.line("%-36s %-22s %-10s %s", *shown), dict(each))
    yield Line("")
    yield Line("Below is subscription:")
    yield Line(layout.line("%-20s %s", "#Topic", "#SubExpression"))
    for each in subscriptions_of(found):
        yield Line(layout.line("%-20s %s", each.get("topic"), each.get("subString")), dict(each))
    yield Line("")
    facts = {name: found.get(name) for name in ("consumeType", "messageModel", "consumeFromWhere")}
    yield Line(f"ConsumeType: {facts['consumeType']}")
    yield Line(f"MessageModel: {facts['messageModel']}")
    yield Line(f"ConsumeFromWhere: {facts['consumeFromWhere']}", facts)


@command(
    "producerConnection",
    "Query producer's socket connection and client version.",
    needed("g", "producerGroup", "name of the producer group"),
    needed("t", "topic", "a topic to which it sends"),
)
async def producer_connection(servers: Servers, options: Options) -> AsyncIterator[Line]:
    number = 0
    group = options.text("producerGroup")
    for _, address in (await servers.masters_of_topic(options.text("topic")))[:1]:
        found = await servers.ask_json(
            address, RequestCode.GET_PRODUCER_CONNECTION_LIST, producer_group=group
        )
        for each in rows_of(found, "connectionSet"):
            number += 1
            shown = (
                number,
                each.get("clientId"),
                each.get("clientAddr"),
                each.get("language"),
                _version(each),
            )
            yield Line(layout.line("%04d  %-32s %-22s %-8s %s", *shown), dict(each))


@command(
    "producer",
    "Query producer's instances, connection, status, etc.",
    needed("b", "broker", "address of the broker, host:port"),
)
async def producers(servers: Servers, options: Options) -> AsyncIterator[Line]:
    found = await servers.ask_json(options.text("broker"), RequestCode.GET_ALL_PRODUCER_INFO)
    data = found.get("data") if isinstance(found, dict) else None
    for group, instances in (data or {}).items():
        if not instances:
            yield Line(f"producer group ({group}) instances are empty", {"group": group, "clientId": None})
        for each in instances:
            yield Line(
                f"producer group ({group}) instance : clientId={each.get('clientId')},"
                f"remoteIP={each.get('remoteIP')}, language={each.get('language')}, "
                f"version={each.get('version')}, lastUpdateTimestamp={each.get('lastUpdateTimestamp')}",
                {"group": group} | each,
            )


@command(
    "consumerStatus",
    "Query consumer's internal data structure.",
    GROUP,
    option("i", "clientId", "id of a client: what it reports"),
    BROKER,
    flag("s", "jstack", "with the stacks of its threads"),
)
async def consumer_status(servers: Servers, options: Options) -> AsyncIterator[Line]:
    """Write what each consumer of a group reports into a file of its own, and compare; or print what one
    reports."""
    group, client = options.text("consumerGroup"), options.get("clientId")
    if client is not None:
        found = await running_info(servers, group, client, with_stack="jstack" in options)
        for text in running_lines(found):
            yield Line(text)
        yield Line("", found)
        return
    connections = rows_of(await consumers_of(servers, group, options.get("brokerAddr")), "connectionSet")
    folder = str(int(time.time() * 1000))
    yield Line(
        layout.line("%-10s %-40s %-20s %s", "#Index", "#ClientId", "#Version", "#ConsumerRunningInfoFile")
    )
    reported: dict[str, dict[str, Any]] = {}
    for number, each in enumerate(connections, 1):
        name = str(each.get("clientId"))
        try:
            found = await running_info(servers, group, name, with_stack="jstack" in options)
        except AnswerError as error:
            yield Line(
                f"{name}: CODE: {int(error.code)}  DESC: {error.remark}", {"clientId": name, "file": None}
            )
            continue
        reported[name] = found
        file = Path(folder) / name.replace("/", "_")
        _write(file, "\n".join(running_lines(found)) + "\n")
        yield Line(
            layout.line("%-10d %-40s %-20s %s", number, name, _version(each), file),
            dict(each) | {"file": str(file)},
        )
    if not reported:
        return
    subscriptions = {fastjson.dumps(_subscribed(found)) for found in reported.values()}
    yield Line("")
    yield Line("")
    if len(subscriptions) > 1:
        yield Line(
            "WARN: Different subscription in the same group of consumer!!!", {"sameSubscription": False}
        )
        return
    yield Line("Same subscription in the same group of consumer", {"sameSubscription": True})
    yield Line("")
    yield Line("Rebalance OK")


def _subscribed(found: Mapping[str, Any]) -> list[list[object]]:
    return sorted(
        [each.get(name) for name in ("topic", "subString", "expressionType", "classFilterMode")]
        for each in rows_of(found, "subscriptionSet")
    )


def _write(file: Path, text: str) -> None:
    """Write a file that only its owner reads. Raises MisuseError."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as out:
            out.write(text)
    except OSError as error:
        raise MisuseError(f"{file}: {error.strerror}") from None


def running_lines(found: Mapping[str, Any]) -> list[str]:
    """Return `ConsumerRunningInfo.formatString`, without an empty last line."""
    lines = ["#Consumer Properties#"]
    lines += [f"{name:<40s}: {each}" for name, each in (found.get("properties") or {}).items()]
    lines += ["", "", "#Consumer Subscription#"]
    subscriptions = sorted(rows_of(found, "subscriptionSet"), key=lambda each: str(each.get("topic")))
    for number, each in enumerate(subscriptions, 1):
        is_class = layout.value(bool(each.get("classFilterMode")))
        lines.append(
            layout.line(
                "%03d Topic: %-40s ClassFilter: %-8s SubExpression: %s",
                number,
                each.get("topic"),
                is_class,
                each.get("subString"),
            )
        )
    queues = queues_in(found.get("mqTable"))
    head = ("#Topic", "#Broker Name", "#QID")
    lines += [
        "",
        "",
        "#Consumer Offset#",
        layout.line("%-64s  %-32s  %-4s  %-20s", *head, "#Consumer Offset"),
    ]
    for of, info in queues:
        row = (of.topic, of.broker_name, of.queue_id, info.get("commitOffset", 0))
        lines.append(layout.line("%-32s  %-32s  %-4d  %-20d", *row))
    lines += [
        "",
        "",
        "#Consumer MQ Detail#",
        layout.line("%-64s  %-32s  %-4s  %-20s", *head, "#ProcessQueueInfo"),
    ]
    lines += [
        layout.line("%-64s  %-32s  %-4d  %s", of.topic, of.broker_name, of.queue_id, _process_queue(info))
        for of, info in queues
    ]
    lines += [
        "",
        "",
        "#Consumer Pop Detail#",
        layout.line("%-32s  %-32s  %-4s  %-20s", *head, "#ProcessQueueInfo"),
    ]
    for of, info in queues_in(found.get("mqPopTable")):
        shown = (
            f"PopProcessQueueInfo [waitAckCount:{info.get('waitAckCount', 0)}, "
            f"droped:{layout.value(bool(info.get('droped')))}, "
            f"lastPopTimestamp:{info.get('lastPopTimestamp', 0)}]"
        )
        lines.append(layout.line("%-32s  %-32s  %-4d  %s", of.topic, of.broker_name, of.queue_id, shown))
    lines += ["", "", "#Consumer RT&TPS#"]
    lines.append(
        layout.line(
            "%-64s  %14s %14s %14s %14s %18s %25s",
            "#Topic",
            "#Pull RT",
            "#Pull TPS",
            "#Consume RT",
            "#ConsumeOK TPS",
            "#ConsumeFailed TPS",
            "#ConsumeFailedMsgsInHour",
        )
    )
    for topic, status in sorted((found.get("statusTable") or {}).items()):
        numbers = [
            float(status.get(name) or 0)
            for name in ("pullRT", "pullTPS", "consumeRT", "consumeOKTPS", "consumeFailedTPS")
        ]
        lines.append(
            layout.line(
                "%-32s  %14.2f %14.2f %14.2f %14.2f %18.2f %25d",
                topic,
                *numbers,
                int(status.get("consumeFailedMsgs") or 0),
            )
        )
    lines += ["", "", "#User Consume Info#"]
    lines += [f"{name}: {each}" for name, each in (found.get("userConsumerInfo") or {}).items()]
    if found.get("jstack"):
        lines += ["", "", "#Consumer jstack#", str(found["jstack"])]
    return lines


def queues_in(table: object) -> list[tuple[MessageQueue, Mapping[str, Any]]]:
    """Return the rows of a table whose keys are queues, in order."""
    rows = []
    for key, info in table.items() if isinstance(table, Mapping) else ():
        of = MessageQueue.from_json(loads_object(key.encode()) if isinstance(key, str) else key)
        rows.append((of, info if isinstance(info, Mapping) else {}))
    return sorted(rows, key=lambda row: row[0])


def _process_queue(info: Mapping[str, Any]) -> str:
    """Return `ProcessQueueInfo.toString`."""
    numbers = (
        "commitOffset cachedMsgMinOffset cachedMsgMaxOffset cachedMsgCount cachedMsgSizeInMiB "
        "transactionMsgMinOffset transactionMsgMaxOffset transactionMsgCount"
    ).split()
    shown = [f"{name}={info.get(name, 0)}" for name in numbers]
    shown.append(f"locked={layout.value(bool(info.get('locked')))}")
    shown.append(f"tryUnlockTimes={info.get('tryUnlockTimes', 0)}")
    stamps = ("lastLockTimestamp", "lastPullTimestamp", "lastConsumeTimestamp")
    shown.append(f"lastLockTimestamp={_human(info.get(stamps[0]))}")
    shown.append(f"droped={layout.value(bool(info.get('droped')))}")
    shown += [f"{name}={_human(info.get(name))}" for name in stamps[1:]]
    return f"ProcessQueueInfo [{', '.join(shown)}]"


def _human(stamp: object) -> str:
    """Return a time as `UtilAll.timeMillisToHumanString`: 20261129175618703."""
    stamp_ms = int(stamp) if isinstance(stamp, int) else 0
    text = layout.seconds(stamp_ms)
    return "".join(letter for letter in text if letter.isdigit()) + f"{stamp_ms % 1000:03d}"
