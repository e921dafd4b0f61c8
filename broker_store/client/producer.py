"""Sends messages.

    async with Producer("127.0.0.1:9876", "my-group") as producer:
        receipt = await producer.send("Orders", b"...", tag="paid", keys=["order-7"])

        answer = await producer.request("Prices", b"AAPL")        # waits for the consumer's reply
        ...
        await producer.reply(message, b"171.3")                   # the consumer sends it like this

Messages without a queue are sent to all writable queues of the topic in turn. Those with one `ordering_key`
go to one queue, where an orderly consumer handles them in the order of their sends (await each before the
next). A send without a known result (timeout, lost connection) is tried again within its time. So a message
may be stored twice, and its two copies have the same id: consumers must expect that of any at-least-once
system. A send that was refused is tried again, at another broker if there is one, when its code is among
those that Apache's Java client tries again. Messages of a topic without a route are sent to the brokers of
TBW102, which create the topic if they are allowed to.
"""

from __future__ import annotations

import asyncio
import ssl
import uuid
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Self

from broker_store.access.signatures import Credentials
from broker_store.client import tracing
from broker_store.client.batches import BatchPart, make_batches
from broker_store.client.delivery import Delivery, now_ms
from broker_store.client.errors import (
    ClientError,
    NoRouteError,
    PartlySent,
    RequestTimeout,
)
from broker_store.client.message import (
    MAX_BODY_BYTES,
    Outgoing,
    ReceivedMessage,
    SendReceipt,
    UniqueKeys,
    encode_batch_part,
    encode_properties,
    outgoing,
)
from broker_store.client.queue_choice import (
    ANYWHERE,
    Place,
    QueueChoice,
    make_place,
)
from broker_store.client.receipts import make_receipt, traced_region
from broker_store.client.replies import CORRELATION, MESSAGE_TYPE, REPLY_TO_CLIENT, TIME_TO_LIVE, Replies
from broker_store.client.session import REQUEST_TIMEOUT_S, RequestHandler, Session, local_address
from broker_store.errors import BrokerStoreError, FormatError, MisuseError
from broker_store.formats import properties as property_format
from broker_store.formats import recall_handle
from broker_store.formats.names import check_group
from broker_store.protocol.client_bodies import Heartbeat
from broker_store.protocol.codes import RequestCode
from broker_store.protocol.headers import write_header
from broker_store.protocol.message_queue import MessageQueue

# Of one request of send_many. Larger requests only delay the other requests of the connection.
BATCH_BYTES = 1 << 20


class Producer:
    """Sends for a producer group.

    `timeout` (seconds) bounds each send with all its attempts. `trace` writes a record of each message that
    was sent to RMQ_SYS_TRACE_TOPIC, for Apache's tools. With `credentials` each request is signed;
    with `tls` (`tls_context`) each connection has TLS.
    """

    def __init__(
        self,
        nameservers: str | Iterable[str],
        group: str = "DEFAULT_PRODUCER",
        *,
        timeout: float = REQUEST_TIMEOUT_S,
        client_id: str | None = None,
        trace: bool = False,
        credentials: Credentials | None = None,
        tls: ssl.SSLContext | None = None,
    ):
        self.group = check_group(group)
        self._timeout = timeout
        self._replies = Replies()
        self._session = Session(
            nameservers,
            client_id=client_id,
            timeout=timeout,
            credentials=credentials,
            tls=tls,
            heartbeat=self._heartbeat,
            handlers=self._handlers(),
        )
        self._choice = QueueChoice(self._session)
        self._delivery = Delivery(self._session, self._choice, self.group)
        self._keys = UniqueKeys(local_address())
        self._tracer = (
            tracing.Tracer(
                lambda: Producer(self._session.nameservers, tracing.GROUP, credentials=credentials, tls=tls),
                self._keys.make,
                self.group,
            )
            if trace
            else None
        )

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Start the heartbeats; connections are made when they are needed."""
        self._session.start()

    async def close(self) -> None:
        """Unregister at the brokers and close the connections. Idempotent."""
        if self._tracer is not None:
            await self._tracer.close()
        await self._session.unregister(producer_group=self.group)
        await self._session.close()

    def _heartbeat(self) -> Heartbeat:
        return Heartbeat(self._session.client_id, producers=(self.group,))

    def _handlers(self) -> dict[int, RequestHandler]:
        """Return the handlers of requests that brokers send, by request code."""
        return {int(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT): self._replies.on_reply}

    # Sending

    async def send(
        self,
        topic: str,
        body: bytes | Outgoing,
        *,
        tag: str | None = None,
        keys: str | Iterable[str] = (),
        properties: Mapping[str, str] | None = None,
        delay_level: int | None = None,
        delay_s: float | None = None,
        deliver_at: datetime | int | None = None,
        ordering_key: str | None = None,
        queue_id: int | None = None,
        broker_name: str | None = None,
        timeout: float | None = None,
    ) -> SendReceipt:
        """Send one message and wait until the broker has it. Outgoing explains `tag` to `deliver_at`.

        `ordering_key`: messages of one key go to one queue, which is the one that Java's
        SelectMessageQueueByHash takes for the same string. `timeout` is in seconds, for all attempts. Raises
        ClientError, MisuseError, NameError_.
        """
        message = outgoing(body, tag, keys, properties, delay_level, delay_s, deliver_at)
        unique_key = self._keys.make()
        encoded = encode_properties(message, unique_key)
        return await self._send(
            topic, message, encoded, unique_key, make_place(queue_id, broker_name, ordering_key), timeout
        )

    async def _send(
        self,
        topic: str,
        message: Outgoing,
        encoded: str,
        unique_key: str,
        place: Place = ANYWHERE,
        timeout: float | None = None,
        sys_flag: int = 0,
    ) -> SendReceipt:
        began_ms = now_ms()
        answer, queue = await self._delivery.deliver(
            RequestCode.SEND_MESSAGE_V2,
            topic,
            bytes(message.body),
            encoded,
            place,
            timeout or self._timeout,
            sys_flag,
        )
        fields = answer.fields or {}
        receipt = make_receipt(answer, fields, queue, unique_key, fields.get("msgId", ""), 0)
        if self._tracer is not None:
            kind = tracing.HALF if sys_flag else tracing.DELAYED if message.waits else tracing.NORMAL
            self._tracer.sent(receipt, message, began_ms, kind, traced_region(fields))
        return receipt

    async def send_again(self, message: ReceivedMessage) -> SendReceipt:
        """Send a message that was received to its topic once more, with its id, tag, keys and all other
        properties. Raises ClientError, FormatError."""
        pairs = dict(message.properties)
        unique_key = pairs.setdefault(property_format.UNIQUE_KEY, self._keys.make())
        encoded = property_format.encode(pairs).decode()
        return await self._send(message.record.topic, Outgoing(message.body), encoded, unique_key)

    async def send_counted(
        self,
        topic: str,
        body: bytes,
        properties: str,
        sys_flag: int,
        reconsume_times: int,
        max_reconsume_times: int | None,
    ) -> None:
        """Send a message that was consumed `reconsume_times` and not finished; for consumers that send one
        back. Raises ClientError."""
        counted = {"j": str(reconsume_times)}
        if max_reconsume_times is not None:
            counted["l"] = str(max_reconsume_times)
        await self._delivery.deliver(
            RequestCode.SEND_MESSAGE_V2, topic, body, properties, ANYWHERE, self._timeout, sys_flag, counted
        )

    async def send_batch(
        self,
        topic: str,
        messages: Sequence[Outgoing | bytes],
        *,
        ordering_key: str | None = None,
        queue_id: int | None = None,
        broker_name: str | None = None,
        timeout: float | None = None,
    ) -> list[SendReceipt]:
        """Send several messages as one: all are stored, one after the other in one queue, or none.

        All together may be as large as one message; `send_many` has no such limit. None may be delayed.
        Raises ClientError, MisuseError, NameError_.
        """
        if not messages:
            raise MisuseError("a batch needs at least one message")
        parts = [self._batch_part(message) for message in messages]
        size = sum(len(part.encoded) for part in parts)
        if size > MAX_BODY_BYTES:
            raise MisuseError(
                f"a batch of {size} bytes, at most {MAX_BODY_BYTES} can be sent; send_many cuts it"
            )
        return await self._send_parts(topic, parts, make_place(queue_id, broker_name, ordering_key), timeout)

    async def send_many(
        self,
        topic: str,
        messages: Iterable[Outgoing | bytes],
        *,
        ordering_key: str | None = None,
        queue_id: int | None = None,
        broker_name: str | None = None,
        batch_bytes: int = BATCH_BYTES,
        timeout: float | None = None,
    ) -> list[SendReceipt]:
        """Send any number of messages in batches of at most `batch_bytes`, one after the other; `timeout` is
        for each batch.

        A batch is stored as a whole or not at all. When one fails after others PartlySent is raised; its
        `receipts` are those of the messages before it. Raises ClientError, MisuseError, NameError_.
        """
        place = make_place(queue_id, broker_name, ordering_key)
        receipts: list[SendReceipt] = []
        try:
            for parts in make_batches(map(self._batch_part, messages), min(batch_bytes, MAX_BODY_BYTES)):
                receipts += await self._send_parts(topic, parts, place, timeout)
        except BrokerStoreError as error:
            if not receipts:
                raise
            raise PartlySent(topic, receipts, error) from error
        return receipts

    def _batch_part(self, message: Outgoing | bytes) -> BatchPart:
        if not isinstance(message, Outgoing):
            message = Outgoing(message)
        if message.waits:
            raise MisuseError(
                "a message of a batch cannot wait for a time: brokers treat a batch as one message; "
                "send it alone"
            )
        unique_key = self._keys.make()
        return BatchPart(
            message,
            unique_key,
            encode_batch_part(bytes(message.body), encode_properties(message, unique_key)),
        )

    async def _send_parts(
        self, topic: str, parts: list[BatchPart], place: Place, timeout: float | None
    ) -> list[SendReceipt]:
        began_ms = now_ms()
        body = b"".join(part.encoded for part in parts)
        answer, queue = await self._delivery.deliver(
            RequestCode.SEND_BATCH_MESSAGE, topic, body, "", place, timeout or self._timeout
        )
        fields = answer.fields or {}
        offset_message_ids = fields.get("msgId", "").split(",")
        offset_message_ids += [""] * (len(parts) - len(offset_message_ids))
        receipts = [
            make_receipt(answer, fields, queue, part.unique_key, offset_message_ids[number], number)
            for number, part in enumerate(parts)
        ]
        if self._tracer is not None:
            for receipt, part in zip(receipts, parts, strict=True):
                self._tracer.sent(receipt, part.message, began_ms, tracing.NORMAL, traced_region(fields))
        return receipts

    async def send_oneway(
        self,
        topic: str,
        body: bytes | Outgoing,
        *,
        tag: str | None = None,
        keys: str | Iterable[str] = (),
        properties: Mapping[str, str] | None = None,
        ordering_key: str | None = None,
        queue_id: int | None = None,
        broker_name: str | None = None,
    ) -> str:
        """Send without waiting for an answer; return the message's id. The message may be lost without an
        error. Raises ClientError when no broker can be reached."""
        message = outgoing(body, tag, keys, properties)
        unique_key = self._keys.make()
        encoded = encode_properties(message, unique_key)
        queue, address = await self._choice.choose(
            topic, make_place(queue_id, broker_name, ordering_key), None
        )
        fields = self._delivery.fields(RequestCode.SEND_MESSAGE_V2, queue, encoded)
        await self._session.send_oneway(address, RequestCode.SEND_MESSAGE_V2, fields, bytes(message.body))
        return unique_key

    async def recall(self, topic: str, handle: str, *, timeout: float | None = None) -> str:
        """Recall a message that was sent with `delay_s` or `deliver_at` and is not delivered yet; return its
        id.

        `handle` is the `recall_handle` of its receipt. After a success the broker drops the message if it
        still waits at its time. Brokers refuse it with NO_PERMISSION unless recallMessageEnable is set.
        Raises ClientError, and MisuseError for an invalid handle.
        """
        try:
            broker_name = recall_handle.decode(handle).broker_name
        except FormatError as error:
            raise MisuseError(
                f"{error}; a handle stands in the receipt of a message sent with delay_s or deliver_at"
            ) from None
        _, addresses = await self._choice.writable(topic)
        if broker_name not in addresses:
            raise NoRouteError(
                f"the message lies on broker {broker_name}, which is not in the route of topic {topic}"
            )
        fields = write_header(
            RequestCode.RECALL_MESSAGE, producer_group=self.group, topic=topic, recall_handle=handle
        )
        answer = await self._session.ask(
            addresses[broker_name], RequestCode.RECALL_MESSAGE, fields, timeout=timeout
        )
        message_id = (answer.fields or {}).get("msgId", "")
        if self._tracer is not None:
            self._tracer.recalled(topic, message_id)
        return message_id

    async def request(
        self,
        topic: str,
        body: bytes,
        *,
        tag: str | None = None,
        keys: str | Iterable[str] = (),
        properties: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> ReceivedMessage:
        """Send a message and wait, at most `timeout` seconds, for the reply of its consumer.

        Raises ClientError, RequestTimeout among them, MisuseError, NameError_.
        """
        timeout = timeout or self._timeout
        correlation = uuid.uuid4().hex
        asked = {
            CORRELATION: correlation,
            REPLY_TO_CLIENT: self._session.client_id,
            TIME_TO_LIVE: str(int(timeout * 1000)),
        }
        await self.queues(topic)
        await self._session.be_known()
        future = self._replies.expect(correlation)
        try:
            async with asyncio.timeout(timeout):
                await self.send(
                    topic,
                    body,
                    tag=tag,
                    keys=keys,
                    properties={**(properties or {}), **asked},
                    timeout=timeout,
                )
                return await future
        except TimeoutError as error:
            if isinstance(error, ClientError):
                raise
            raise RequestTimeout(
                f"no reply came to the request in topic {topic} within {timeout:g} s"
            ) from None
        finally:
            self._replies.forget(correlation)

    async def reply(self, message: ReceivedMessage, body: bytes, *, timeout: float | None = None) -> None:
        """Answer a message that was sent by `request`. Raises MisuseError for another one, ClientError when
        its producer cannot be reached."""
        known = message.properties
        cluster, correlation, client = (
            known.get(name) for name in (property_format.CLUSTER, CORRELATION, REPLY_TO_CLIENT)
        )
        if not (cluster and correlation and client):
            raise MisuseError(f"{message!r} asks for no reply: it was not sent by request()")
        reply_properties = {
            MESSAGE_TYPE: "reply",
            CORRELATION: correlation,
            REPLY_TO_CLIENT: client,
            TIME_TO_LIVE: known.get(TIME_TO_LIVE, "0"),
        }
        encoded = encode_properties(Outgoing(body, properties=reply_properties), self._keys.make())
        topic = f"{cluster}_REPLY_TOPIC"
        # Only the broker that holds the request has the connection of its producer.
        place = Place(broker_name=message.broker_name or None)
        await self._delivery.deliver(
            RequestCode.SEND_REPLY_MESSAGE_V2, topic, bytes(body), encoded, place, timeout or self._timeout
        )

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues that messages of a topic can be sent to."""
        return list((await self._choice.writable(topic))[0])
