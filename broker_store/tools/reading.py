"""Commands that print the messages of queues."""

from __future__ import annotations

from collections.abc import AsyncIterator

from broker_store.client import PullConsumer
from broker_store.client.message import ReceivedMessage
from broker_store.client.pulling import PullResult, PullStatus
from broker_store.errors import MisuseError
from broker_store.protocol.message_queue import MessageQueue
from broker_store.tools import layout
from broker_store.tools.command import Line, Options, command, needed, option
from broker_store.tools.messages import READER, TOPIC, body_text, fact, host, with_bounds
from broker_store.tools.offsets import moment
from broker_store.tools.servers import Servers

# Apache's names of the outcomes of a pull.
STATUS = {
    PullStatus.FOUND: "FOUND",
    PullStatus.NO_NEW_MESSAGE: "NO_NEW_MSG",
    PullStatus.NO_MATCHED_MESSAGE: "NO_MATCHED_MSG",
    PullStatus.OFFSET_MOVED: "OFFSET_ILLEGAL",
}
BEGIN = option(
    "b", "beginTimestamp", "from this store time: milliseconds since 1970 or yyyy-MM-dd#HH:mm:ss:SSS"
)
END = option("e", "endTimestamp", "up to this store time, as --beginTimestamp")
CHARSET = option("c", "charsetName", "the encoding of bodies (default: UTF-8)")
TAGS = option("s", "subExpression", "tags, joined by || (default: all)")


def extended(message: ReceivedMessage, status: PullResult | None = None) -> str:
    """Return `MessageExt.toString`; with the bounds of the queue where a pull returned them."""
    record = message.record
    properties = with_bounds(message, status)
    body = ", ".join(str(byte - 256 if byte > 127 else byte) for byte in message.body)
    return (
        f"MessageExt [brokerName={message.broker_name}, queueId={record.queue_id}, storeSize={record.size}, "
        f"queueOffset={record.queue_offset}, sysFlag={record.sys_flag}, "
        f"bornTimestamp={record.born_timestamp}, bornHost=/{host(record.born_host)}, "
        f"storeTimestamp={record.store_timestamp}, "
        f"storeHost=/{host(record.store_host)}, msgId={message.offset_message_id}, "
        f"commitLogOffset={record.log_offset}, bodyCRC={record.body_crc}, "
        f"reconsumeTimes={record.reconsume_times}, "
        f"preparedTransactionOffset={record.prepared_transaction_offset}, "
        f"toString()=Message{{topic='{record.topic}', flag={record.flag}, "
        f"properties={layout.pairs(properties)}, body=[{body}], transactionId='null'}}]"
    )


async def _read(
    reader: PullConsumer, queue: MessageQueue, begin: int, end: int, tags: str = "*"
) -> AsyncIterator[PullResult]:
    """Read a queue from one offset to before another, in pieces."""
    offset = begin
    while offset < end:
        result = await reader.pull(queue, offset, tags=tags)
        yield result
        if result.status is PullStatus.NO_NEW_MESSAGE or result.next_offset <= offset:
            return
        offset = result.next_offset


async def _bounds(reader: PullConsumer, queue: MessageQueue, options: Options) -> tuple[int, int]:
    begin, end = await reader.min_offset(queue), await reader.max_offset(queue)
    if "beginTimestamp" in options:
        begin = await reader.offset_by_time(queue, moment(options.text("beginTimestamp")))
    if "endTimestamp" in options:
        end = await reader.offset_by_time(queue, moment(options.text("endTimestamp")))
    return begin, end


def _printed(message: ReceivedMessage, result: PullResult, encoding: str | None) -> Line:
    body = body_text(message, encoding) if encoding is not None else "NOT PRINT BODY"
    shown = fact(message) | ({"body": body} if encoding is not None else {})
    return Line(f"MSGID: {message.message_id} {extended(message, result)} BODY: {body}", shown)


@command(
    "printMsg",
    "Print Message Detail.",
    TOPIC,
    CHARSET,
    TAGS,
    BEGIN,
    END,
    option("d", "printBody", "whether to print bodies (default: true)", "true", "false"),
)
async def print_messages(servers: Servers, options: Options) -> AsyncIterator[Line]:
    encoding = (options.get("charsetName") or "UTF-8") if options.get("printBody") != "false" else None
    async with servers.reader(READER) as reader:
        for queue in await reader.queues(options.text("topic")):
            begin, end = await _bounds(reader, queue, options)
            shown = layout.queue(queue)
            yield Line(f"minOffset={begin}, maxOffset={end}, {shown}")
            async for result in _read(reader, queue, begin, end, options.get("subExpression") or "*"):
                for message in result.messages:
                    yield _printed(message, result, encoding)
                if result.status is PullStatus.NO_MATCHED_MESSAGE:
                    yield Line(
                        f"{shown} no matched msg. status={STATUS[result.status]}, offset={result.next_offset}"
                    )
                elif result.status is not PullStatus.FOUND:
                    yield Line(
                        f"{shown} print msg finished. status={STATUS[result.status]}, "
                        f"offset={result.next_offset}"
                    )
            yield Line("-" * 56)


@command(
    "printMsgByQueue",
    "Print Message Detail by queueId.",
    TOPIC,
    needed("a", "brokerName", "name of the broker"),
    needed("i", "queueId", "number of the queue"),
    CHARSET,
    TAGS,
    BEGIN,
    END,
    option("p", "print", "whether to print the messages (default: false)", "true", "false"),
    option("d", "printBody", "whether to print bodies (default: false)", "true", "false"),
    option("f", "calculate", "whether to count the messages of each tag (default: false)", "true", "false"),
)
async def print_queue(servers: Servers, options: Options) -> AsyncIterator[Line]:
    queue = MessageQueue(options.text("topic"), options.text("brokerName"), options.number("queueId", 0))
    encoding = (options.get("charsetName") or "UTF-8") if options.yes("printBody") else None
    tags: dict[str, int] = {}
    async with servers.reader(READER) as reader:
        begin, end = await _bounds(reader, queue, options)
        async for result in _read(reader, queue, begin, end, options.get("subExpression") or "*"):
            for message in result.messages:
                if options.yes("print"):
                    yield _printed(message, result, encoding)
                if message.tag:
                    tags[message.tag] = tags.get(message.tag, 0) + 1
    if options.yes("calculate"):
        for tag, count in sorted(tags.items(), key=lambda pair: -pair[1]):
            yield Line(layout.line("Tag: %-30s Count: %s", tag, count), {"tag": tag, "count": count})


@command(
    "consumeMessage",
    "Consume message.",
    TOPIC,
    option("b", "brokerName", "name of a broker: its queues alone"),
    option("i", "queueId", "number of a queue of that broker"),
    option("o", "offset", "the offset of that queue to begin at"),
    option("g", "consumerGroup", f"the group that reads (default: {READER}); its position does not move"),
    option("s", "beginTimestamp", "from this store time: milliseconds since 1970 or yyyy-MM-dd#HH:mm:ss:SSS"),
    END,
    option("c", "MessageNumber", "at most so many messages (default: 128)"),
)
async def consume(servers: Servers, options: Options) -> AsyncIterator[Line]:
    left = options.number("MessageNumber", 128)
    if left <= 0:
        raise MisuseError("Please input a positive messageNumber!")
    if "queueId" in options and "brokerName" not in options:
        raise MisuseError("Please set the brokerName before queueId!")
    if "offset" in options and "queueId" not in options:
        raise MisuseError("Please set queueId before offset!")
    async with servers.reader(options.get("consumerGroup") or READER) as reader:
        yield Line("Consume ok")
        for queue in await reader.queues(options.text("topic")):
            if options.get("brokerName") not in (None, queue.broker_name) or left <= 0:
                continue
            if "queueId" in options and options.number("queueId", 0) != queue.queue_id:
                continue
            begin, end = await _bounds(reader, queue, options)
            begin = options.number("offset", begin)
            shown = layout.queue(queue)
            async for result in _read(reader, queue, begin, end):
                for message in result.messages[:left]:
                    yield _printed(message, result, "UTF-8")
                left -= len(result.messages[:left])
                if result.status is not PullStatus.FOUND or left <= 0:
                    break
            else:
                yield Line(f"{shown} print msg finished. status=NO_NEW_MSG, offset={end}")
