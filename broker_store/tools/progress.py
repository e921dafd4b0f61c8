"""Commands about how far groups are."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, NamedTuple

from broker_store.client.errors import AnswerError, ClientError, NoRouteError
from broker_store.formats.names import RETRY_PREFIX, retry_topic
from broker_store.protocol import fastjson
from broker_store.protocol.codes import RequestCode, ResponseCode
from broker_store.protocol.command import version_name
from broker_store.protocol.members import loads_object
from broker_store.protocol.message_queue import MessageQueue
from broker_store.protocol.offset_bodies import ConsumeOffsets, decode_consume_stats
from broker_store.tools import layout
from broker_store.tools.command import Line, Options, command, needed, option
from broker_store.tools.connections import consumers_of, queues_in, rows_of, running_info
from broker_store.tools.servers import Servers


class Progress(NamedTuple):
    """Where a group is in each queue, and the messages it consumes a second."""

    offsets: dict[MessageQueue, ConsumeOffsets]
    per_second: float

    @property
    def behind(self) -> int:
        return sum(at.broker_offset - at.consumer_offset for at in self.offsets.values())

    @property
    def in_flight(self) -> int:
        return sum(_in_flight(at) for at in self.offsets.values())


def _in_flight(at: ConsumeOffsets) -> int:
    return max(at.pull_offset - at.consumer_offset, 0)


async def progress_of(
    servers: Servers, group: str, topic: str | None = None, cluster: str | None = None
) -> Progress:
    """Return the progress of a group, at the masters that have its retry topic, or of a cluster. Raises
    ClientError."""
    if cluster is not None:
        addresses = await servers.masters_of(cluster)
    else:
        addresses = [address for _, address in await servers.masters_of_topic(retry_topic(group))]
    offsets: dict[MessageQueue, ConsumeOffsets] = {}
    per_second = 0.0
    for address in addresses:
        answer = await servers.ask(address, RequestCode.GET_CONSUME_STATS, consumer_group=group, topic=topic)
        offsets |= decode_consume_stats(answer.body)
        per_second += float(loads_object(answer.body).get("consumeTps") or 0)
    return Progress(dict(sorted(offsets.items())), per_second)


@command(
    "consumerProgress",
    "Query consumer's progress, speed.",
    option("g", "groupName", "name of a consumer group: each of its queues"),
    option("t", "topicName", "name of a topic: its queues alone"),
    option("s", "showClientIP", "whether to show the client that reads each queue", "true", "false"),
    option("c", "cluster", "name of a cluster: its brokers alone"),
)
async def consumer_progress(servers: Servers, options: Options) -> AsyncIterator[Line]:
    if "groupName" not in options:
        async for line in _of_all(servers):
            yield line
        return
    group, shows_clients = options.text("groupName"), options.yes("showClientIP")
    found = await progress_of(servers, group, options.get("topicName"), options.get("cluster"))
    clients = await _clients_by_queue(servers, group) if shows_clients else {}
    heads = ["#Topic", "#Broker Name", "#QID", "#Broker Offset", "#Consumer Offset"]
    row = "%-64s  %-32s  %-4s  %-20s  %-20s  "
    row += "%-20s " * (3 if shows_clients else 2) + "%s"
    more = ["#Diff", "#Inflight", " #LastTime" if shows_clients else "#LastTime"]
    yield Line(row % (*heads, *(["#Client IP"] if shows_clients else []), *more))
    for of, at in found.offsets.items():
        last = layout.seconds(at.last_timestamp) if at.last_timestamp > 0 else "N/A"
        behind, in_flight = at.broker_offset - at.consumer_offset, _in_flight(at)
        client = clients.get(of, "N/A")
        places = (of.topic, of.broker_name, of.queue_id, at.broker_offset, at.consumer_offset)
        yield Line(
            row % (*places, *([client] if shows_clients else []), behind, in_flight, last),
            {
                "topic": of.topic,
                "brokerName": of.broker_name,
                "queueId": of.queue_id,
                "brokerOffset": at.broker_offset,
                "consumerOffset": at.consumer_offset,
                "diff": behind,
                "inflight": in_flight,
                "lastTimestamp": at.last_timestamp,
            }
            | ({"clientIP": clients.get(of)} if shows_clients else {}),
        )
    yield Line("")
    yield Line(f"Consume TPS: {found.per_second:.2f}")
    yield Line(f"Consume Diff Total: {found.behind}")
    yield Line(
        f"Consume Inflight Total: {found.in_flight}",
        {"consumeTps": found.per_second, "diffTotal": found.behind, "inflightTotal": found.in_flight},
    )


async def _clients_by_queue(servers: Servers, group: str) -> dict[MessageQueue, str]:
    """Return the address of the client that reads each queue, as the clients report."""
    clients: dict[MessageQueue, str] = {}
    try:
        connections = rows_of(await consumers_of(servers, group), "connectionSet")
    except ClientError:
        return clients
    for each in connections:
        name = str(each.get("clientId"))
        try:
            reported = await running_info(servers, group, name)
        except ClientError:
            continue  # its queues are shown without a client, as in Apache's
        for of, _ in queues_in(reported.get("mqTable")):
            clients[of] = name.partition("@")[0]
    return clients


async def _of_all(servers: Servers) -> AsyncIterator[Line]:
    row = "%-64s  %-6s  %-24s %-5s  %-14s  %-7s  %s"
    yield Line(row % ("#Group", "#Count", "#Version", "#Type", "#Model", "#TPS", "#Diff Total"))
    refused: AnswerError | None = None
    shown = 0
    for topic in await servers.admin.topics():
        if not topic.startswith(RETRY_PREFIX):
            continue
        group = topic.removeprefix(RETRY_PREFIX)
        try:
            found = await progress_of(servers, group)
        except (AnswerError, NoRouteError) as error:
            found = Progress({}, 0.0)
            if isinstance(error, AnswerError) and error.code == ResponseCode.NO_PERMISSION:
                refused = error
        try:
            connected: Mapping[str, Any] = await consumers_of(servers, group)
        except (AnswerError, NoRouteError):
            connected = {}
        clients = rows_of(connected, "connectionSet")
        if not found.offsets and not clients:
            continue
        shown += 1
        kind = {"CONSUME_ACTIVELY": "PULL", "CONSUME_PASSIVELY": "PUSH", "CONSUME_POP": "POP"}.get(
            str(connected.get("consumeType")), ""
        )
        oldest = min((int(each.get("version") or 0) for each in clients), default=0)
        version = version_name(oldest) if clients else "OFFLINE"
        model = str(connected.get("messageModel") or "") if clients else ""
        facts = (
            group,
            len(clients),
            version,
            kind if clients else "",
            model,
            int(found.per_second),
            found.behind,
        )
        names = ("group", "count", "version", "type", "model", "tps", "diffTotal")
        yield Line(row % facts, dict(zip(names, facts, strict=True)))
    if refused is not None and not shown:
        raise refused  # an empty table would say that there are no groups


@command(
    "brokerConsumeStats",
    "Fetch broker consume stats data.",
    needed("b", "brokerAddr", "address of the broker, host:port"),
    option("t", "timeoutMillis", "milliseconds for the request"),
    option("l", "level", "only queues that are so far behind (default: 0)"),
    option("o", "order", "only ordered topics", "true", "false"),
)
async def broker_consume_stats(servers: Servers, options: Options) -> AsyncIterator[Line]:
    found = await servers.ask_json(
        options.text("brokerAddr"), RequestCode.GET_BROKER_CONSUME_STATS, is_order=options.yes("order")
    )
    row = "%-64s  %-64s  %-32s  %-4s  %-20s  %-20s  %-20s  %s"
    yield Line(
        row
        % (
            "#Topic",
            "#Group",
            "#Broker Name",
            "#QID",
            "#Broker Offset",
            "#Consumer Offset",
            "#Diff",
            "#LastTime",
        )
    )
    least, total = options.number("level", 0), 0
    for of_group in found.get("consumeStatsList") or ():
        for group, tables in of_group.items():
            for table in tables:
                offsets = decode_consume_stats(fastjson.dumps(table))
                for of, at in sorted(offsets.items()):
                    behind = at.broker_offset - at.consumer_offset
                    total += behind
                    if behind < least or at.last_timestamp <= 0:
                        continue  # as in Apache's: nothing of the queue was consumed
                    last = layout.seconds(at.last_timestamp)
                    places = (of.broker_name, of.queue_id, at.broker_offset, at.consumer_offset)
                    yield Line(
                        row % (of.topic, group, *places, behind, last),
                        {"topic": of.topic, "group": group, "brokerName": of.broker_name}
                        | {"queueId": of.queue_id, "brokerOffset": at.broker_offset}
                        | {"consumerOffset": at.consumer_offset, "diff": behind}
                        | {"lastTimestamp": at.last_timestamp},
                    )
    yield Line("")
    yield Line(f"Diff Total: {total}", {"diffTotal": total})
