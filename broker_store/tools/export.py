"""Commands that write what brokers know into files of JSON."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from broker_store.client.errors import AnswerError, ClientError, NoRouteError
from broker_store.errors import MisuseError
from broker_store.formats.names import DLQ_PREFIX, RETRY_PREFIX, SYSTEM_GROUP_PREFIX, SYSTEM_GROUPS
from broker_store.formats.topics import HALF_TOPIC, SCHEDULE_TOPIC
from broker_store.protocol.codes import RequestCode
from broker_store.protocol.command import version_name
from broker_store.protocol.route_bodies import MASTER_ID
from broker_store.tools import layout
from broker_store.tools.command import BROKER_OR_CLUSTER, Line, Options, command, flag, needed, option
from broker_store.tools.connections import consumers_of, rows_of
from broker_store.tools.servers import Servers

CLUSTER = needed("c", "clusterName", "name of the cluster")
FOLDER = option("f", "filePath", "directory of the file (default: export)")
CONFIGS = (
    "autoCreateSubscriptionGroup",
    "autoCreateTopicEnable",
    "brokerClusterName",
    "brokerId",
    "brokerName",
    "brokerRole",
    "fileReservedTime",
    "filterServerNums",
    "flushDiskType",
    "maxMessageSize",
    "messageDelayLevel",
    "msgTraceTopicName",
    "slaveReadEnable",
    "traceOn",
    "traceTopicEnable",
    "useTLS",
)
# Groups of Apache's own, beside SYSTEM_GROUPS: those of producers, and of jobs that are no more.
FURTHER_GROUPS = (
    "DEFAULT_CONSUMER",
    "DEFAULT_PRODUCER",
    "SCHEDULE_CONSUMER",
    "__MONITOR_CONSUMER",
    "CLIENT_INNER_PRODUCER",
    "SELF_TEST_P_GROUP",
)


def write(folder: str | None, name: str, document: object) -> Path:
    """Write a document into a file that only the user reads, and return its path. Raises MisuseError."""
    file = Path(folder or "export") / name
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as out:
            out.write(layout.pretty(document))
    except OSError as error:
        raise MisuseError(f"{file}: {error.strerror}") from None
    return file


@command("exportConfigs", "Export configs.", CLUSTER, FOLDER)
async def configs(servers: Servers, options: Options) -> AsyncIterator[Line]:
    masters = slaves = 0
    settings: dict[str, Mapping[str, str]] = {}
    for broker in await servers.brokers_of(options.text("clusterName")):
        slaves += sum(number != MASTER_ID for number in broker.addresses)
        if MASTER_ID not in broker.addresses:
            continue
        masters += 1
        known = await servers.admin.broker_config(broker.addresses[MASTER_ID])
        settings[broker.broker_name] = {key: known[key] for key in CONFIGS if key in known}
    scale = {"namesrvSize": len(servers.nameservers), "slaveBrokerSize": slaves, "masterBrokerSize": masters}
    document = {"clusterScale": scale, "brokerConfigs": settings}
    file = write(options.get("filePath"), "configs.json", document)
    yield Line(f"export {file} success", {"file": str(file)} | document)


async def _topics(servers: Servers, address: str, *, with_special: bool) -> dict[str, Any]:
    """Return the topics of a broker that are not its own, in Apache's JSON."""
    found: dict[str, Any] = await servers.ask_json(address, RequestCode.GET_ALL_TOPIC_CONFIG)
    own = set(
        (await servers.ask_json(address, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)).get("topicList")
        or ()
    )
    table = {
        name: config
        for name, config in found.get("topicConfigTable", {}).items()
        if name not in own and (with_special or not name.startswith((RETRY_PREFIX, DLQ_PREFIX)))
    }
    return {"dataVersion": found.get("dataVersion"), "topicConfigTable": table}


async def _groups(servers: Servers, address: str) -> dict[str, Any]:
    """Return the groups of a broker that are not its own, in Apache's JSON."""
    found: dict[str, Any] = await servers.ask_json(address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    table = {
        name: config
        for name, config in found.get("subscriptionGroupTable", {}).items()
        if name not in (*SYSTEM_GROUPS, *FURTHER_GROUPS) and not name.startswith(SYSTEM_GROUP_PREFIX)
    }
    return {"dataVersion": found.get("dataVersion"), "subscriptionGroupTable": table}


@command(
    "exportMetadata",
    "Export metadata.",
    FOLDER,
    flag("t", "topic", "topics alone"),
    flag("g", "subscriptionGroup", "groups alone"),
    flag("s", "specialTopic", "with retry and dead letter topics"),
    one_of=(BROKER_OR_CLUSTER,),
)
async def metadata(servers: Servers, options: Options) -> AsyncIterator[Line]:
    folder, with_special = options.get("filePath"), "specialTopic" in options
    if "brokerAddr" in options:
        address = options.text("brokerAddr")
        if "topic" in options:
            name, document = "topic.json", await _topics(servers, address, with_special=with_special)
        elif "subscriptionGroup" in options:
            name, document = "subscriptionGroup.json", await _groups(servers, address)
        else:
            raise MisuseError("with --brokerAddr, --topic or --subscriptionGroup is needed")
    else:
        name = "metadata.json"
        topics: dict[str, Any] = {}
        groups: dict[str, Any] = {}
        for address in await servers.masters_of(options.text("clusterName")):
            for topic, config in (await _topics(servers, address, with_special=with_special))[
                "topicConfigTable"
            ].items():
                _add_queues(topics, topic, config)
            groups |= (await _groups(servers, address))["subscriptionGroupTable"]
        document = {}
        if "subscriptionGroup" not in options:
            name = "topic.json" if "topic" in options else name
            document["topicConfigTable"] = topics
        if "topic" not in options:
            name = "subscriptionGroup.json" if "subscriptionGroup" in options else name
            document["subscriptionGroupTable"] = groups
        document["exportTime"] = time.time_ns() // 1_000_000
    file = write(folder, name, document)
    yield Line(f"export {file} success", {"file": str(file)} | document)


def _add_queues(topics: dict[str, Any], name: str, config: dict[str, Any]) -> None:
    """Add a topic of another broker: its queues are added to those that are known."""
    known = topics.get(name)
    if known is None:
        topics[name] = dict(config)
        return
    for count in ("readQueueNums", "writeQueueNums"):
        known[count] = int(known.get(count) or 0) + int(config.get(count) or 0)


@command("exportMetrics", "Export metrics.", CLUSTER, FOLDER)
async def metrics(servers: Servers, options: Options) -> AsyncIterator[Line]:
    report: dict[str, Any] = {}
    tps = dict.fromkeys(
        ("totalNormalInTps", "totalNormalOutTps", "totalTransInTps", "totalScheduleInTps"), 0.0
    )
    of_day = dict.fromkeys(
        ("normalOneDayInNum", "normalOneDayOutNum", "transOneDayInNum", "scheduleOneDayInNum"), 0
    )
    for broker in await servers.brokers_of(options.text("clusterName")):
        if MASTER_ID not in broker.addresses:
            continue
        address = broker.addresses[MASTER_ID]
        runtime = await servers.admin.broker_runtime_info(address)
        settings = await servers.admin.broker_config(address)
        topics = (await _topics(servers, address, with_special=False))["topicConfigTable"]
        groups = (await _groups(servers, address))["subscriptionGroupTable"]
        halves = await _per_second(servers, address, HALF_TOPIC)
        delayed = await _per_second(servers, address, SCHEDULE_TOPIC)
        rates = {
            "normalInTps": _first(runtime, "putTps"),
            "normalOutTps": _first(runtime, "getTransferredTps"),
            "transInTps": halves[0],
            "scheduleInTps": delayed[0],
        }
        day = {
            "normalOneDayInNum": _of_yesterday(runtime, "Put"),
            "normalOneDayOutNum": _of_yesterday(runtime, "Get"),
            "transOneDayInNum": halves[1],
            "scheduleOneDayInNum": delayed[1],
        }
        for name, rate in rates.items():
            tps[f"total{name[0].upper()}{name[1:]}"] += rate
        for name, count in day.items():
            of_day[name] += count
        processors = settings.get("clientCallbackExecutorThreads")
        report[broker.broker_name] = {
            "runtimeEnv": {} if processors is None else {"cpuNum": processors},
            "runtimeQuota": {
                "diskRatio": {
                    name: runtime.get(name) for name in ("commitLogDiskRatio", "consumeQueueDiskRatio")
                },
                "tps": rates,
                "oneDayNum": day,
                "messageAverageSize": runtime.get("putMessageAverageSize"),
                "topicSize": len(topics),
                "groupSize": len(groups),
            },
            "runtimeVersion": {
                "rocketmqVersion": runtime.get("brokerVersionDesc"),
                "clientInfo": sorted(await _clients(servers, groups)),
            },
        }
    document = {"evaluateReport": report, "totalData": {"totalTps": tps, "totalOneDayNum": of_day}}
    file = write(options.get("filePath"), "metrics.json", document)
    yield Line(f"export {file} success", {"file": str(file)} | document)


def _first(table: Mapping[str, str], name: str) -> float:
    words = table.get(name, "").split()
    return float(words[0]) if words else 0.0


def _of_yesterday(table: Mapping[str, str], kind: str) -> int:
    today, yesterday = (int(table.get(f"msg{kind}Total{day}Morning") or 0) for day in ("Today", "Yesterday"))
    return today - yesterday


async def _per_second(servers: Servers, address: str, topic: str) -> tuple[float, int]:
    """Return messages a second of the last minute and messages of the last day that a topic got."""
    try:
        found = await servers.ask_json(
            address, RequestCode.VIEW_BROKER_STATS_DATA, stats_name="TOPIC_PUT_NUMS", stats_key=topic
        )
    except AnswerError:
        return 0.0, 0  # it got none
    return float(found["statsMinute"].get("tps") or 0), int(found["statsDay"].get("sum") or 0)


async def _clients(servers: Servers, groups: Mapping[str, Any]) -> set[str]:
    """Return `LANGUAGE%version` of the consumers of groups."""
    found: set[str] = set()
    for group in groups:
        try:
            connected = await consumers_of(servers, group)
        except (AnswerError, NoRouteError):
            continue  # no consumer is online
        for each in rows_of(connected, "connectionSet"):
            found.add(f"{each.get('language')}%{version_name(int(each.get('version') or 0))}")
    return found


@command(
    "exportPopRecord",
    "Export pop consumer record",
    option("d", "dryRun", "change nothing", "true", "false"),
    one_of=(BROKER_OR_CLUSTER,),
)
async def pop_records(servers: Servers, options: Options) -> AsyncIterator[Line]:
    """Have brokers write the records of pops into the log, from where they were kept beside it."""
    is_dry = options.yes("dryRun")
    for address in await servers.chosen(options):
        name = (await servers.admin.broker_config(address)).get("brokerName", "")
        about = f"brokerName={name}, brokerAddr={address}, dryRun={'true' if is_dry else 'false'}"
        fact = {"brokerName": name, "broker": address, "dryRun": is_dry}
        try:
            if not is_dry:
                await servers.ask(address, RequestCode.POP_ROLLBACK)
        except ClientError as error:
            yield Line(f"Export broker records error, {about}\n{error}", fact | {"error": str(error)})
        else:
            yield Line(f"Export broker records, {about}", fact)
