"""Commands that read messages."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from broker_store.client.errors import AnswerError, ClientError, NoRouteError
from broker_store.client.message import ReceivedMessage
from broker_store.client.pulling import PullResult
from broker_store.errors import FormatError, MisuseError, NotFoundError
from broker_store.formats import traces
from broker_store.formats.message_id import decode_offset_id
from broker_store.formats.traces import TraceEvent
from broker_store.protocol.codes import RequestCode, ResponseCode
from broker_store.protocol.message_queue import MessageQueue
from broker_store.tools import layout
from broker_store.tools.command import Line, Options, command, flag, needed, option
from broker_store.tools.connections import consumers_of, subscriptions_of
from broker_store.tools.progress import progress_of
from broker_store.tools.servers import Servers

READER = "TOOLS_CONSUMER"
HOUR_MS = 3_600_000
LAST_MS = (1 << 63) - 1
MAX_COUNT, MAX_OF_ONE_ID = 64, 32
TOPIC = needed("t", "topic", "name of the topic")
ID = needed("i", "msgId", "id of the message")
BODY_FORMAT = option("f", "bodyFormat", "print the body too, in this encoding")
BODY_DIRECTORY = option("", "bodyDir", "write the body into a file of this directory")
NOT_FOUND = f"CODE: {int(ResponseCode.NO_MESSAGE)}  DESC: query message by key finished, but no message."


def host(of: tuple[bytes, int]) -> str:
    """Return an address of a record: 127.0.0.1:10911."""
    address = ipaddress.ip_address(of[0])
    return f"[{address}]:{of[1]}" if address.version == 6 else f"{address}:{of[1]}"


def fact(message: ReceivedMessage) -> dict[str, Any]:
    """Return what a message's record has, but for its body."""
    record = message.record
    return {
        "msgId": message.message_id,
        "offsetMsgId": message.offset_message_id,
        "topic": record.topic,
        "brokerName": message.broker_name,
        "queueId": record.queue_id,
        "queueOffset": record.queue_offset,
        "commitLogOffset": record.log_offset,
        "storeSize": record.size,
        "sysFlag": record.sys_flag,
        "reconsumeTimes": record.reconsume_times,
        "bornTimestamp": record.born_timestamp,
        "storeTimestamp": record.store_timestamp,
        "bornHost": host(record.born_host),
        "storeHost": host(record.store_host),
        "bodyCRC": record.body_crc,
        "bodySize": len(record.body),
        "properties": dict(record.properties),
    }


def with_bounds(message: ReceivedMessage, status: PullResult | None) -> dict[str, str]:
    """Return the properties, with the queue's bounds where a pull returned them, as Java's client does."""
    properties = dict(message.record.properties)
    if status is not None:
        properties |= {"MIN_OFFSET": str(status.min_offset), "MAX_OFFSET": str(status.max_offset)}
    return properties


def body_text(message: ReceivedMessage, encoding: str) -> str:
    """Return the body as text; bytes that are none are replaced. Raises MisuseError."""
    try:
        return message.body.decode(encoding, "replace")
    except LookupError:
        raise MisuseError(f"there is no encoding {encoding:.40}") from None


async def details(
    servers: Servers,
    message: ReceivedMessage,
    *,
    options: Options,
    status: PullResult | None = None,
    with_offset_id: bool = True,
) -> AsyncIterator[Line]:
    """Print a message in full, the groups of its topic, and whether each consumed it."""
    encoding = options.get("bodyFormat")
    record = message.record
    rows: list[tuple[str, object]] = [("OffsetID:", message.offset_message_id)] if with_offset_id else []
    rows += [
        ("Topic:", record.topic),
        ("Tags:", f"[{layout.value(message.tag)}]"),
        ("Keys:", f"[{layout.value(record.properties.get('KEYS'))}]"),
        ("Queue ID:", record.queue_id),
        ("Queue Offset:", record.queue_offset),
        ("CommitLog Offset:", record.log_offset),
        ("Reconsume Times:", record.reconsume_times),
        ("Born Timestamp:", layout.millis(record.born_timestamp)),
        ("Store Timestamp:", layout.millis(record.store_timestamp)),
        ("Born Host:", host(record.born_host)),
        ("Store Host:", host(record.store_host)),
        ("System Flag:", record.sys_flag),
        ("Properties:", layout.pairs(with_bounds(message, status))),
        ("Message Body Path:", _written(message, options.get("bodyDir"))),
    ]
    if encoding is not None:
        rows.append(("Message Body:", body_text(message, encoding)))
    for name, value in rows:
        yield Line(layout.line("%-20s %s", name, value))
    tracks = await _tracks(servers, message)
    yield Line("", fact(message) | {"tracks": tracks})
    yield Line("")
    if not tracks:
        yield Line("WARN: No Consumer")
    for each in tracks:
        yield Line(f"MessageTrack [{', '.join(f'{key}={layout.value(of)}' for key, of in each.items())}]")


def _written(message: ReceivedMessage, folder: str | None) -> str:
    """Write the body to a file that only the user reads, and return its path; without a directory write
    nothing. Apache's always writes, into a directory that all users share. Raises MisuseError."""
    if folder is None:
        return "not written; --bodyDir DIR writes it"
    file = Path(folder) / "".join(letter for letter in message.message_id if letter.isalnum())
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as out:
            out.write(message.body)
    except OSError as error:
        raise MisuseError(f"{file}: {error.strerror}") from None
    return str(file)


async def _tracks(servers: Servers, message: ReceivedMessage) -> list[dict[str, object]]:
    """Return, for each group of the topic, whether it consumed the message, by Apache's names."""
    tracks: list[dict[str, object]] = []
    for group in await servers.admin.groups_of_topic(message.record.topic):
        kind, why = "UNKNOWN", None
        try:
            found = await consumers_of(servers, group)
        except AnswerError as error:
            kind = "NOT_ONLINE" if error.code == ResponseCode.CONSUMER_NOT_ONLINE else kind
            why = f"CODE:{int(error.code)} DESC:{error.remark}"
        except NoRouteError as error:
            why = str(error)
        else:
            try:
                kind = await _track(servers, message, group, found)
            except ClientError as error:
                why = str(error)
        tracks.append({"consumerGroup": group, "trackType": kind, "exceptionDesc": why})
    return tracks


async def _track(servers: Servers, message: ReceivedMessage, group: str, found: dict[str, Any]) -> str:
    if found.get("consumeType") != "CONSUME_PASSIVELY":
        return "PULL" if found.get("consumeType") == "CONSUME_ACTIVELY" else "UNKNOWN"
    if found.get("messageModel") == "BROADCASTING":
        return "CONSUME_BROADCASTING"
    at = (await progress_of(servers, group)).offsets.get(message.queue)
    if at is None or at.consumer_offset <= message.queue_offset:
        return "NOT_CONSUME_YET"
    for each in subscriptions_of(found):
        tags = {tag.strip() for tag in str(each.get("subString")).split("||")}
        if each.get("topic") == message.record.topic and not ({"*", message.tag} & tags):
            return "CONSUMED_BUT_FILTERED"
    return "CONSUMED"


async def _by_id(servers: Servers, topic: str, text: str) -> ReceivedMessage:
    """Return the message with an offset id, or the last one with a unique key. Raises NotFoundError,
    ClientError."""
    try:
        decode_offset_id(text)
    except FormatError:
        pass
    else:
        try:
            return await servers.admin.view_message(text)
        except (NotFoundError, ClientError):
            pass  # A unique key may look like an offset id, as it may to Apache's.
    found = await servers.admin.query_messages(topic, text, max_count=MAX_OF_ONE_ID, unique=True)
    if not found:
        raise NotFoundError(NOT_FOUND)
    return found[-1]


async def _directly(servers: Servers, message: ReceivedMessage, group: str, client: str) -> Line:
    """Have a client consume a message, and return its result."""
    address = await servers.address_of(message.record.topic, message.broker_name)
    found = await servers.ask_json(
        address,
        RequestCode.CONSUME_MESSAGE_DIRECTLY,
        consumer_group=group,
        client_id=client,
        msg_id=message.offset_message_id,
        broker_name=message.broker_name,
        topic=message.record.topic,
    )
    names = ("order", "autoCommit", "consumeResult", "remark", "spentTimeMills")
    shown = ", ".join(f"{name}={layout.value(found.get(name))}" for name in names)
    return Line(f"ConsumeMessageDirectlyResult [{shown}]", found)


@command(
    "queryMsgById",
    "Query Message by Id.",
    TOPIC,
    ID,
    option("g", "consumerGroup", "with --clientId: have that client consume the message"),
    option("d", "clientId", "id of a client of the group"),
    option("s", "sendMessage", "send the message again", "true", "false"),
    BODY_FORMAT,
    BODY_DIRECTORY,
)
async def by_id(servers: Servers, options: Options) -> AsyncIterator[Line]:
    topic = options.text("topic")
    for text in options.text("msgId").split(","):
        if options.yes("sendMessage"):
            yield await _sent_again(servers, topic, text.strip())
            continue
        message = await _by_id(servers, topic, text.strip())
        if "consumerGroup" in options and "clientId" in options:
            yield await _directly(servers, message, options.text("consumerGroup"), options.text("clientId"))
        else:
            async for line in details(servers, message, options=options):
                yield line


async def _sent_again(servers: Servers, topic: str, text: str) -> Line:
    message = await _by_id(servers, topic, text)
    async with servers.producer() as producer:
        receipt = await producer.send_again(message)
    return Line(
        f"prepare resend msg. originalMsgId={text}SendResult [sendStatus={receipt.status}, "
        f"msgId={receipt.message_id}, offsetMsgId={receipt.offset_message_id}, "
        f"messageQueue={layout.queue(receipt.queue)}, queueOffset={receipt.queue_offset}, recallHandle=null]",
        {"originalMsgId": text, "msgId": receipt.message_id, "status": receipt.status},
    )


@command(
    "queryMsgByUniqueKey",
    "Query Message by Unique key.",
    TOPIC,
    ID,
    option("g", "consumerGroup", "with --clientId: have that client consume the message"),
    option("d", "clientId", "id of a client of the group"),
    flag("a", "showAll", f"print all messages with the id, at most {MAX_OF_ONE_ID}"),
    option("s", "startTime", "stored from then on, in milliseconds since 1970"),
    option("e", "endTime", "stored up to then, in milliseconds since 1970"),
    BODY_DIRECTORY,
)
async def by_unique_key(servers: Servers, options: Options) -> AsyncIterator[Line]:
    found = await servers.admin.query_messages(
        options.text("topic"),
        options.text("msgId"),
        max_count=MAX_OF_ONE_ID,
        begin_ms=options.number("startTime", 0),
        end_ms=options.number("endTime", LAST_MS),
        unique=True,
    )
    if not found:
        raise NotFoundError(NOT_FOUND)
    if "consumerGroup" in options and "clientId" in options:
        yield await _directly(servers, found[-1], options.text("consumerGroup"), options.text("clientId"))
        return
    for message in found if "showAll" in options else found[-1:]:
        async for line in details(servers, message, options=options, with_offset_id=False):
            yield line


@command(
    "queryMsgByKey",
    "Query Message by Key.",
    TOPIC,
    needed("k", "msgKey", "a key of the messages"),
    option("b", "beginTimestamp", "stored from then on, in milliseconds since 1970"),
    option("e", "endTimestamp", "stored up to then, in milliseconds since 1970"),
    option("m", "maxNum", f"at most so many (default: {MAX_COUNT})"),
)
async def by_key(servers: Servers, options: Options) -> AsyncIterator[Line]:
    topic, key = options.text("topic"), options.text("msgKey")
    found = await servers.admin.query_messages(
        topic,
        key,
        max_count=options.number("maxNum", MAX_COUNT),
        begin_ms=options.number("beginTimestamp", 0),
        end_ms=options.number("endTimestamp", LAST_MS),
    )
    if not found:
        raise NotFoundError(NOT_FOUND)
    row = "%-50s %4s %40s %-200s"
    yield Line(row % ("#Message ID", "#QID", "#Offset", "#IndexKey"))
    for message in found:
        record = message.record
        hour_ms = record.store_timestamp // HOUR_MS * HOUR_MS
        index_key = f"{hour_ms}@{topic}@K@{key}@{message.message_id}@{record.log_offset}"
        yield Line(row % (message.message_id, record.queue_id, record.queue_offset, index_key), fact(message))


@command(
    "queryMsgByOffset",
    "Query Message by offset.",
    TOPIC,
    needed("b", "brokerName", "name of the broker"),
    needed("i", "queueId", "number of the queue"),
    needed("o", "offset", "offset in the queue"),
    BODY_FORMAT,
    BODY_DIRECTORY,
)
async def by_offset(servers: Servers, options: Options) -> AsyncIterator[Line]:
    queue = MessageQueue(options.text("topic"), options.text("brokerName"), options.number("queueId", 0))
    async with servers.reader(READER) as reader:
        result = await reader.pull(queue, options.number("offset", 0), max_count=1)
    for message in result.messages[:1]:
        async for line in details(servers, message, options=options, status=result):
            yield line


@command(
    "queryMsgTraceById",
    "Query a message trace.",
    ID,
    option("t", "traceTopic", "name of the topic for traces (default: RMQ_SYS_TRACE_TOPIC)"),
    option("b", "beginTimestamp", "stored from then on, in milliseconds since 1970"),
    option("e", "endTimestamp", "stored up to then, in milliseconds since 1970"),
    option("c", "maxNum", f"at most so many (default: {MAX_COUNT})"),
)
async def trace(servers: Servers, options: Options) -> AsyncIterator[Line]:
    wanted = options.text("msgId")
    found = await servers.admin.query_messages(
        options.get("traceTopic") or "RMQ_SYS_TRACE_TOPIC",
        wanted,
        max_count=options.number("maxNum", MAX_COUNT),
        begin_ms=options.number("beginTimestamp", 0),
        end_ms=options.number("endTimestamp", LAST_MS),
    )
    if not found:
        raise NotFoundError(NOT_FOUND)
    events = [
        (event, message)
        for message in found
        for event in traces.decode(message.body)
        if event.message_id == wanted
    ]
    row = "%-10s %-20s %-20s %-20s %-10s %-10s"
    sent = [(event, message) for event, message in events if event.kind == "sent"]
    if sent:
        yield Line(row % ("#Type", "#ProducerGroup", "#ClientHost", "#SendTime", "#CostTimes", "#Status"))
        for event, message in sent:
            yield _trace_line(row, "Pub", event, message)
        yield Line("")
    ends = {event.request_id: event for event, _ in events if event.kind == "consumed"}
    handed = [(event, message) for event, message in events if event.kind == "handed"]
    for group in sorted({event.group for event, _ in handed}):
        yield Line(row % ("#Type", "#ConsumerGroup", "#ClientHost", "#ConsumerTime", "#CostTimes", "#Status"))
        for event, message in handed:
            if event.group == group:
                end = ends.get(event.request_id)
                whole = event if end is None else event._replace(took_ms=end.took_ms, success=end.success)
                yield _trace_line(row, "Sub", whole, message)
        yield Line("")


def _trace_line(row: str, kind: str, event: TraceEvent, message: ReceivedMessage) -> Line:
    client = host(message.record.born_host).rpartition(":")[0]
    status = {True: "success", False: "failed", None: "unknown"}[event.success]
    took = f"{event.took_ms}ms" if event.took_ms is not None else "-"
    at = layout.seconds(event.at_ms) if event.at_ms is not None else "-"
    return Line(
        row % (kind, event.group, client, at, took, status),
        {"type": kind, "group": event.group, "clientHost": client, "timestamp": event.at_ms}
        | {"costTime": event.took_ms, "status": status},
    )
