"""Takes messages from a broker, which chooses them, and acknowledges them one by one.

    async with PopConsumer("my-group", "127.0.0.1:9876") as consumer:
        for message in await consumer.pop("Orders", wait_s=10):
            ...
            await consumer.acknowledge(message)

A message is invisible to the group for `invisible_s`. What is not acknowledged by then comes again. So any
number of consumers of a group can read the same queue (docs/spec/pop.md).

With `in_order` a queue gives no messages to the group until those of before are acknowledged or visible
again.
"""

from __future__ import annotations

import asyncio
import itertools
import ssl
import uuid
from collections.abc import Iterable, Mapping
from typing import Self

from broker_store.access.signatures import Credentials
from broker_store.client.message import ReceivedMessage
from broker_store.client.pulling import QueueReader
from broker_store.client.send_back import TO_DEAD_LETTERS, SendBack
from broker_store.client.session import REQUEST_TIMEOUT_S, Session
from broker_store.client.subscription import ALL, make_subscription, wants
from broker_store.errors import MisuseError
from broker_store.formats import properties, record
from broker_store.formats.names import check_group, check_topic
from broker_store.protocol.client_bodies import Subscription
from broker_store.protocol.codes import RequestCode, ResponseCode
from broker_store.protocol.headers import read_int, read_long, write_header
from broker_store.protocol.message_queue import MessageQueue
from broker_store.protocol.pop import (
    NORMAL,
    Receipt,
    read_order_counts,
    read_receipt,
    read_start_offsets,
    topic_of,
    write_receipt,
)

MAX_COUNT = 32
ALL_QUEUES = -1
_FROM_FIRST, _FROM_LAST = 0, 1  # initMode: where a group without an offset begins
_NOTHING = (ResponseCode.NO_MESSAGE, ResponseCode.POLLING_FULL, ResponseCode.POLLING_TIMEOUT)


class PoppedMessage(ReceivedMessage):
    """A message that a PopConsumer took.

    `receipt` acknowledges it. `visible_ms` is when it is visible again, by the broker's clock.
    """

    __slots__ = ("receipt",)

    def __init__(self, stored: record.StoredMessage, broker_name: str, receipt: Receipt):
        super().__init__(stored, broker_name)
        self.receipt = receipt

    @property
    def visible_ms(self) -> int:
        """Return when it is visible again, in milliseconds since 1970 of the broker's clock."""
        return self.receipt.pop_ms + self.receipt.invisible_ms


class PopConsumer:
    """Pops for a consumer group.

    `invisible_s` is for how long a message is invisible to the group, `consume_from` where a group without an
    offset begins: "first" or "last". `timeout` (seconds) bounds each request; for a pop with `wait_s` the
    wait is added. With `credentials` each request is signed; with `tls` (`tls_context`) each connection has
    TLS.
    """

    def __init__(
        self,
        group: str,
        nameservers: str | Iterable[str],
        *,
        invisible_s: float = 60.0,
        in_order: bool = False,
        consume_from: str = "first",
        timeout: float = REQUEST_TIMEOUT_S,
        client_id: str | None = None,
        credentials: Credentials | None = None,
        tls: ssl.SSLContext | None = None,
    ):
        if consume_from not in ("first", "last"):
            raise MisuseError(f'consume_from must be "first" or "last", not {consume_from!r:.40}')
        self.group = check_group(group)
        self.invisible_s, self.in_order = invisible_s, in_order
        self._init_mode = _FROM_FIRST if consume_from == "first" else _FROM_LAST
        self._session = Session(
            nameservers, client_id=client_id, timeout=timeout, credentials=credentials, tls=tls
        )
        self._reader = QueueReader(self._session, group)
        self._back = SendBack(self._session, self._reader, group, None)
        self._turns = itertools.count()

    async def __aenter__(self) -> Self:
        self._session.start()
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End the connections. Idempotent."""
        await self._back.close()
        await self._session.close()

    async def pop(
        self,
        topic: str,
        *,
        max_count: int = MAX_COUNT,
        tags: str = ALL,
        sql: str | None = None,
        wait_s: float = 0.0,
        attempt_id: str | None = None,
    ) -> list[PoppedMessage]:
        """Take at most `max_count` (1 to 32) messages of one broker; an empty list if there are none.

        The brokers of the topic are asked in turn. With `wait_s` each waits for its part of that time for a
        message. Messages have one of the tags, or pass the SQL92 expression `sql`. With `in_order` an
        `attempt_id` that is given again gives the messages of the last pop again: for a pop whose answer was
        lost. Raises ClientError; FieldError and FormatError for an invalid answer; MisuseError.
        """
        if not 1 <= max_count <= MAX_COUNT:
            raise MisuseError(f"max_count {max_count} must be 1 to {MAX_COUNT}")
        subscription = make_subscription(check_topic(topic), tags, 0, sql=sql)
        brokers = sorted({queue.broker_name for queue in await self._reader.queues(topic)})
        first = next(self._turns) % len(brokers) if brokers else 0
        for wait_ms in (0, round(wait_s * 1000 / max(1, len(brokers)))):
            for broker_name in brokers[first:] + brokers[:first]:
                found = await self._pop(broker_name, subscription, max_count, wait_ms, attempt_id)
                if found:
                    return found
            if wait_s <= 0:
                break
        return []

    async def _pop(
        self,
        broker_name: str,
        subscription: Subscription,
        max_count: int,
        wait_ms: int,
        attempt_id: str | None,
    ) -> list[PoppedMessage]:
        if attempt_id is None and self.in_order:
            attempt_id = str(uuid.uuid4())
        fields = write_header(
            RequestCode.POP_MESSAGE,
            consumer_group=self.group,
            topic=subscription.topic,
            queue_id=ALL_QUEUES,
            max_msg_nums=max_count,
            invisible_time=_milliseconds(self.invisible_s),
            poll_time=wait_ms,
            born_time=0,  # the broker's clock counts
            init_mode=self._init_mode,
            exp_type=subscription.expression_type,
            exp=subscription.expression,
            order=self.in_order,
            attempt_id=attempt_id,
        )
        answer = await self._session.ask(
            await self._address(subscription.topic, broker_name),
            RequestCode.POP_MESSAGE,
            fields,
            timeout=wait_ms / 1000 + self._session.timeout,
            accept=(ResponseCode.SUCCESS, *_NOTHING),
        )
        if answer.code != ResponseCode.SUCCESS:
            return []
        messages = _messages(answer.body, answer.fields or {}, broker_name)
        wanted = [message for message in messages if wants(subscription, message.tag)]
        # Brokers compare hashes of tags: what only has the same hash must not come again.
        others = [message for message in messages if not wants(subscription, message.tag)]
        await self.acknowledge(*others)
        return wanted

    async def acknowledge(self, *messages: PoppedMessage) -> None:
        """Report that messages were consumed: they do not come again. Raises ClientError, after all were
        tried."""
        results = await asyncio.gather(*map(self._acknowledge, messages), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def _acknowledge(self, message: PoppedMessage) -> None:
        code = RequestCode.ACK_MESSAGE
        await self._session.ask(await self._address_of(message), code, self._fields(code, message))

    async def change_invisible(self, message: PoppedMessage, invisible_s: float) -> None:
        """Make a message visible again `invisible_s` from now, in place of its present time. Raises
        ClientError, MisuseError."""
        code = RequestCode.CHANGE_MESSAGE_INVISIBLETIME
        fields = self._fields(code, message, invisible_time=_milliseconds(invisible_s))
        answer = (await self._session.ask(await self._address_of(message), code, fields)).fields or {}
        message.receipt = message.receipt._replace(
            start_offset=message.receipt.start_offset if message.receipt.is_order else message.queue_offset,
            pop_ms=read_long("popTime", answer.get("popTime")),
            invisible_ms=read_long("invisibleTime", answer.get("invisibleTime")),
            revive_queue=read_int("reviveQid", answer.get("reviveQid")),
        )

    async def give_up(self, message: PoppedMessage) -> None:
        """Move a message to the dead letters of the group, and acknowledge it. Raises ClientError."""
        await self._back.send_back(message, TO_DEAD_LETTERS)
        await self.acknowledge(message)

    def _fields(self, code: RequestCode, message: PoppedMessage, **more: object) -> dict[str, str]:
        receipt = message.receipt
        return write_header(
            code,
            consumer_group=self.group,
            topic=topic_of(message.record.topic, self.group, receipt.kind),
            queue_id=receipt.queue_id,
            extra_info=write_receipt(receipt),
            offset=message.queue_offset,
            **more,
        )

    async def _address_of(self, message: PoppedMessage) -> str:
        return await self._address(message.record.topic, message.broker_name)

    async def _address(self, topic: str, broker_name: str) -> str:
        return await self._reader.address(MessageQueue(topic, broker_name, 0))


def _milliseconds(seconds: float) -> int:
    if not seconds >= 0:
        raise MisuseError(f"a message cannot be invisible for {seconds} s")
    return round(seconds * 1000)


def _messages(body: bytes, fields: Mapping[str, str], broker_name: str) -> list[PoppedMessage]:
    """Return the messages of an answer. Raises FieldError, FormatError."""
    starts = read_start_offsets(fields.get("startOffsetInfo", ""))
    counts = read_order_counts(fields.get("orderCountInfo", ""))
    pop_ms, invisible_ms = (read_long(name, fields.get(name)) for name in ("popTime", "invisibleTime"))
    revive_queue = read_int("reviveQid", fields.get("reviveQid"))
    messages = []
    for stored in record.decode_all(body):
        text = stored.properties.get(properties.POP_CHECKPOINT)
        queue_id, offset = stored.queue_id, stored.queue_offset
        if text is None:  # it lies in the topic that was popped
            start = starts.get((NORMAL, queue_id), offset)
            receipt = Receipt(
                start, pop_ms, invisible_ms, revive_queue, NORMAL, broker_name, queue_id, offset
            )
        else:
            receipt = read_receipt(text)
        stored.reconsume_times += counts.get((queue_id, offset), 0)
        messages.append(PoppedMessage(stored, broker_name, receipt))
    return messages
