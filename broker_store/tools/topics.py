"""Commands about topics."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from broker_store.errors import MisuseError, NotFoundError
from broker_store.formats.names import DLQ_PREFIX, RETRY_PREFIX
from broker_store.formats.topics import AUTO_CREATE_TOPIC, PERM_READ
from broker_store.protocol import fastjson
from broker_store.protocol.codes import RequestCode, ResponseCode
from broker_store.protocol.members import loads_object
from broker_store.protocol.message_queue import MessageQueue
from broker_store.protocol.offset_bodies import QueueOffsets, decode_topic_stats
from broker_store.protocol.route_bodies import MASTER_ID, route_json
from broker_store.protocol.topic_bodies import TopicConfig
from broker_store.tools import layout
from broker_store.tools.command import BROKER_OR_CLUSTER, Line, Options, command, flag, needed, option
from broker_store.tools.servers import Servers

ORDER_NAMESPACE = "ORDER_TOPIC_CONFIG"
UNIT_FLAG, UNIT_SUB_FLAG = 1, 2
TOPIC = needed("t", "topic", "name of the topic")


def attributes_of(text: str | None) -> dict[str, str]:
    """Return `+a=b,-c` as a table, keys with their sign. Raises MisuseError."""
    table = {}
    for part in (text or "").split(","):
        key, has_value, value = part.strip().partition("=")
        if not key:
            continue
        if key[0] not in "+-" or (key[0] == "+") != bool(has_value):
            raise MisuseError(f"--attributes {part.strip():.60}: expected +key=value or -key")
        table[key] = value
    return table


async def write_topic(
    servers: Servers, address: str, config: TopicConfig, attributes: dict[str, str] | None = None
) -> None:
    """Create or change a topic on a broker. Raises ClientError."""
    await servers.ask(
        address,
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        topic=config.name,
        default_topic=AUTO_CREATE_TOPIC,
        read_queue_nums=config.read_queue_nums,
        write_queue_nums=config.write_queue_nums,
        perm=config.perm,
        topic_filter_type=config.topic_filter_type,
        topic_sys_flag=config.topic_sys_flag,
        order=config.order,
        attributes=",".join(f"{key}={value}" if value else key for key, value in (attributes or {}).items()),
    )


@command(
    "updateTopic",
    "Update or create topic.",
    TOPIC,
    option("a", "attributes", "attributes: +a=b,+c=d,-e"),
    option("r", "readQueueNums", "number of queues for reading (default: 8)"),
    option("w", "writeQueueNums", "number of queues for writing (default: 8)"),
    option("p", "perm", "permission: 2 write, 4 read, 6 both (default: 6)"),
    option("o", "order", "whether the topic is ordered", "true", "false"),
    option("u", "unit", "whether it is a unit topic", "true", "false"),
    option("s", "hasUnitSub", "whether it has unit subscriptions", "true", "false"),
    one_of=(BROKER_OR_CLUSTER,),
)
async def update_topic(servers: Servers, options: Options) -> AsyncIterator[Line]:
    name, attributes = options.text("topic"), attributes_of(options.get("attributes"))
    config = TopicConfig(
        name,
        options.number("readQueueNums", 8),
        options.number("writeQueueNums", 8),
        options.number("perm", 6),
        topic_sys_flag=UNIT_FLAG * options.yes("unit") + UNIT_SUB_FLAG * options.yes("hasUnitSub"),
        order=options.yes("order"),
    )
    addresses = await servers.chosen(options)
    for address in addresses:
        await write_topic(servers, address, config, attributes)
        if "brokerAddr" not in options:
            yield Line(f"create topic to {address} success.")
    if config.order:
        names = await _names_of(servers, addresses)
        queues = ";".join(f"{each}:{config.write_queue_nums}" for each in sorted(names))
        await _order(servers, name, queues, is_cluster="clusterName" in options)
        kind = "cluster" if "clusterName" in options else "broker"
        yield Line(f"set {kind} orderConf. isOrder=true, orderConf=[{queues}]")
    if "brokerAddr" in options:
        yield Line(f"create topic to {addresses[0]} success.")
    yield Line(layout.topic(config, attributes), config.to_json() | {"brokers": addresses})


async def _names_of(servers: Servers, addresses: list[str]) -> list[str]:
    info = await servers.cluster_info()
    return [name for name, broker in info.brokers.items() if set(broker.addresses.values()) & set(addresses)]


async def _order(servers: Servers, topic: str, queues: str, *, is_cluster: bool) -> None:
    """Set the queues of an ordered topic at the name servers: all of them, or those of the named brokers."""
    if not is_cluster:
        known = await servers.admin.get_config(ORDER_NAMESPACE, topic) or ""
        table = dict(part.split(":", 1) for part in known.split(";") if ":" in part)
        table |= dict(part.split(":", 1) for part in queues.split(";") if ":" in part)
        queues = ";".join(f"{name}:{count}" for name, count in table.items())
    await servers.admin.put_config(ORDER_NAMESPACE, topic, queues)


@command(
    "updateTopicList",
    "create or update topic in batch",
    needed("f", "filename", "a file with a list of TopicConfig in JSON"),
    one_of=(BROKER_OR_CLUSTER,),
)
async def update_topic_list(servers: Servers, options: Options) -> AsyncIterator[Line]:
    body = fastjson.dumps({"topicConfigList": list_in(options.text("filename"))})
    for address in await servers.chosen(options):
        await servers.ask(address, RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body)
        yield Line(
            f"submit batch of topic config to {address} success, please check the result later.",
            {"broker": address},
        )


def list_in(file: str) -> list[Any]:
    """Return the list of objects in a file of JSON. Raises MisuseError."""
    try:
        found = json.loads(Path(file).read_text("utf-8"))
    except FileNotFoundError:
        raise MisuseError(f"the file path {file} does not exists") from None
    except (OSError, ValueError) as error:
        raise MisuseError(f"{file}: {error}") from None
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise MisuseError(f"{file}: expected a list of objects in JSON")
    return found


@command(
    "deleteTopic",
    "Delete topic from broker and NameServer.",
    TOPIC,
    needed("c", "clusterName", "the cluster of which it is deleted"),
)
async def delete_topic(servers: Servers, options: Options) -> AsyncIterator[Line]:
    topic, cluster = options.text("topic"), options.text("clusterName")
    await delete_everywhere(servers, topic, cluster)
    yield Line(
        f"delete topic [{topic}] from cluster [{cluster}] success.", {"topic": topic, "cluster": cluster}
    )
    yield Line(f"delete topic [{topic}] from NameServer success.")


async def delete_everywhere(servers: Servers, topic: str, cluster: str) -> None:
    """Delete a topic at the masters of a cluster and at the name servers. Raises ClientError."""
    for address in await servers.masters_of(cluster):
        await servers.ask(address, RequestCode.DELETE_TOPIC_IN_BROKER, topic=topic)
    for nameserver in servers.nameservers:
        await servers.ask(nameserver, RequestCode.DELETE_TOPIC_IN_NAMESRV, topic=topic, cluster_name=cluster)


@command(
    "updateTopicPerm",
    "Update topic perm.",
    TOPIC,
    needed("p", "perm", "permission: 2 write, 4 read, 6 both"),
    one_of=(BROKER_OR_CLUSTER,),
)
async def update_topic_perm(servers: Servers, options: Options) -> AsyncIterator[Line]:
    topic, perm = options.text("topic"), options.number("perm", 6)
    route = await servers.admin.route(topic)
    first = route.queues[0]
    before = TopicConfig(
        topic, first.read_queue_nums, first.write_queue_nums, first.perm, topic_sys_flag=first.topic_sys_flag
    )
    if "brokerAddr" in options:
        address = options.text("brokerAddr")
        names = [broker.broker_name for broker in route.brokers if broker.addresses.get(MASTER_ID) == address]
        if not names:
            raise NotFoundError("updateTopicPerm error broker not exit or broker is not master!.")
        old = next(each.perm for each in route.queues if each.broker_name == names[0])
        if old == perm:
            yield Line("new perm equals to the old one!")
            return
        after = replace(before, perm=perm)
        await write_topic(servers, address, after)
        yield Line(f"update topic perm from {old} to {perm} in {address} success.")
        yield Line(f"{layout.topic(after)}.", {"broker": address, "before": old, "after": perm})
        return
    for address in await servers.chosen(options):
        await write_topic(servers, address, replace(before, perm=perm))
        yield Line(
            f"update topic perm from {before.perm} to {perm} in {address} success.",
            {"broker": address, "before": before.perm, "after": perm},
        )


@command(
    "topicRoute",
    "Examine topic route info.",
    TOPIC,
    flag("l", "list", "print a table"),
)
async def topic_route(servers: Servers, options: Options) -> AsyncIterator[Line]:
    route = await servers.admin.route(options.text("topic"))
    if "list" not in options:
        document = route_json(route)
        yield Line(layout.pretty(document), document)
        return
    row = "%-45s %-32s %-50s %-10s %-11s %-5s"
    yield Line(row % ("#ClusterName", "#BrokerName", "#BrokerAddrs", "#ReadQueue", "#WriteQueue", "#Perm"))
    queues = {each.broker_name: each for each in route.queues}
    for broker in sorted(route.brokers, key=lambda each: each.broker_name):
        of = queues[broker.broker_name]
        shown = (broker.cluster, broker.broker_name, layout.pairs(broker.addresses))
        yield Line(
            row % (*shown, of.read_queue_nums, of.write_queue_nums, of.perm), broker.to_json() | of.to_json()
        )
    yield Line("-" * 158)
    read, write = (
        sum(getattr(each, name) for each in route.queues) for name in ("read_queue_nums", "write_queue_nums")
    )
    yield Line(row % ("Total:", len(queues), "", read, write, ""))


@command(
    "topicStatus",
    "Examine topic Status info.",
    TOPIC,
    option("c", "cluster", "name of a cluster: its brokers alone"),
)
async def topic_status(servers: Servers, options: Options) -> AsyncIterator[Line]:
    names = None
    if cluster := options.get("cluster"):
        names = {broker.broker_name for broker in await servers.brokers_of(cluster)}
    stats: dict[MessageQueue, QueueOffsets] = {}
    puts = 0.0
    for name, address in await servers.masters_of_topic(options.text("topic")):
        if names is None or name in names:
            answer = await servers.ask(address, RequestCode.GET_TOPIC_STATS_INFO, topic=options.text("topic"))
            stats |= decode_topic_stats(answer.body)
            puts += float(loads_object(answer.body).get("topicPutTps") or 0)
    yield Line(
        layout.line(
            "%-32s  %-4s  %-20s  %-20s    %s",
            "#Broker Name",
            "#QID",
            "#Min Offset",
            "#Max Offset",
            "#Last Updated",
        )
    )
    for of, at in sorted(stats.items()):
        updated = layout.millis(at.last_update_timestamp) if at.last_update_timestamp > 0 else ""
        yield Line(
            layout.line(
                "%-32s  %-4d  %-20d  %-20d    %s",
                of.broker_name,
                of.queue_id,
                at.min_offset,
                at.max_offset,
                updated,
            ),
            {
                "brokerName": of.broker_name,
                "queueId": of.queue_id,
                "minOffset": at.min_offset,
                "maxOffset": at.max_offset,
                "lastUpdateTimestamp": at.last_update_timestamp,
            },
        )
    yield Line("")
    yield Line(f"Topic Put TPS: {puts}", {"topicPutTps": puts})


@command("topicClusterList", "Get cluster info for topic.", TOPIC)
async def topic_cluster_list(servers: Servers, options: Options) -> AsyncIterator[Line]:
    route = await servers.admin.route(options.text("topic"))
    names = {broker.broker_name for broker in route.brokers}
    for cluster, brokers in sorted((await servers.cluster_info()).clusters.items()):
        if names & set(brokers):
            yield Line(cluster, {"cluster": cluster})


@command(
    "topicList",
    "Fetch all topic list from name server.",
    flag("c", "clusterModel", "with the clusters and groups of each topic"),
)
async def topic_list(servers: Servers, options: Options) -> AsyncIterator[Line]:
    topics = await servers.admin.topics()
    if "clusterModel" not in options:
        for topic in topics:
            yield Line(topic, {"topic": topic})
        return
    yield Line(layout.line("%-20s  %-48s  %-48s", "#Cluster Name", "#Topic", "#Consumer Group"))
    clusters = (await servers.cluster_info()).clusters
    for topic in topics:
        if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
            continue
        route = await servers.admin.route(topic)
        names = {broker.broker_name for broker in route.brokers}
        cluster = next((each for each, brokers in sorted(clusters.items()) if names & set(brokers)), "")
        for group in await servers.admin.groups_of_topic(topic, route) or [""]:
            yield Line(
                layout.line("%-20s  %-64s  %-64s", cluster, topic, group),
                {"cluster": cluster, "topic": topic, "group": group or None},
            )


@command(
    "updateOrderConf",
    "Create or update or delete order conf.",
    TOPIC,
    option("v", "orderConf", "brokerName1:queues;brokerName2:queues"),
    needed("m", "method", "what to do", "put", "get", "delete"),
)
async def update_order_conf(servers: Servers, options: Options) -> AsyncIterator[Line]:
    topic, method = options.text("topic"), options.text("method")
    if method == "put":
        if "orderConf" not in options:
            raise MisuseError("please set orderConf with option -v.")
        queues = options.text("orderConf")
        await _order(servers, topic, queues, is_cluster=True)
        yield Line(
            f"update orderConf success. topic=[{topic}], orderConf=[{queues}]",
            {"topic": topic, "orderConf": queues},
        )
    elif method == "get":
        found = await servers.admin.get_config(ORDER_NAMESPACE, topic)
        if found is None:
            raise NotFoundError(
                f"CODE: {int(ResponseCode.QUERY_NOT_FOUND)}  DESC: No config item, Namespace: "
                f"{ORDER_NAMESPACE} Key: {topic}"
            )
        yield Line(
            f"get orderConf success. topic=[{topic}], orderConf=[{found}] ",
            {"topic": topic, "orderConf": found},
        )
    else:
        await servers.admin.delete_config(ORDER_NAMESPACE, topic)
        yield Line(f"delete orderConf success. topic=[{topic}]", {"topic": topic})


@command(
    "allocateMQ",
    "Allocate MQ.",
    TOPIC,
    needed("i", "ipList", "addresses of consumers, joined by commas"),
)
async def allocate(servers: Servers, options: Options) -> AsyncIterator[Line]:
    """Print how the queues of a topic are shared by consumers, evenly and in order."""
    route, topic = await servers.admin.route(options.text("topic")), options.text("topic")
    queues = [
        {"brokerName": each.broker_name, "queueId": number, "topic": topic}
        for each in sorted(route.queues)
        for number in range(each.read_queue_nums)
        if each.perm & PERM_READ
    ]
    consumers = options.words("ipList")
    if not consumers:
        raise MisuseError("--ipList: expected an address")
    share, more = divmod(len(queues), len(consumers))
    result, begin = {}, 0
    for index, consumer in enumerate(consumers):
        end = begin + share + (index < more)
        result[consumer], begin = queues[begin:end], end
    yield Line(fastjson.dumps({"result": result}).decode(), {"result": result})
