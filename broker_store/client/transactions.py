"""Sends messages that are delivered only when a local transaction is committed.

    def check(message):                      # called when the broker has no outcome, also after a restart
        return orders.is_paid(message.keys[0])   # True: deliver, False: discard, None: ask again later

    async with TransactionProducer("127.0.0.1:9876", "payments", check) as producer:
        async with producer.transaction("Paid", b"...", keys=["order-7"]):
            orders.pay(7)

The message is stored as a half first, which no consumer gets. When the block ends it is committed; when the
block raises it is rolled back. An outcome that does not reach the broker is no error: the broker calls
`check` until it has one.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import inspect
import logging
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping

from broker_store.access.signatures import Credentials
from broker_store.client.errors import ClientError
from broker_store.client.message import (
    Outgoing,
    ReceivedMessage,
    SendReceipt,
    decode_messages,
    encode_properties,
    outgoing,
)
from broker_store.client.producer import Producer
from broker_store.client.session import REQUEST_TIMEOUT_S, RequestHandler
from broker_store.errors import FormatError, MisuseError
from broker_store.formats import message_id, record
from broker_store.protocol.codes import RequestCode
from broker_store.protocol.command import Command
from broker_store.protocol.headers import write_header

log = logging.getLogger(__name__)

# Checks that are being answered, as many as in Java's client (checkRequestHoldMax). The broker repeats
# further ones later.
MAX_HELD = 2_000

Check = Callable[[ReceivedMessage], bool | None | Awaitable[bool | None]]


class Half:
    """A message that waits for its outcome. `receipt` has its place; its topic is not the one in
    which it is delivered."""

    def __init__(self, producer: TransactionProducer, topic: str, receipt: SendReceipt, message: Outgoing):
        self._producer, self._message = producer, message
        self.topic, self.receipt = topic, receipt

    @property
    def message_id(self) -> str:
        """The id that the message will have."""
        return self.receipt.message_id

    async def commit(self) -> bool:
        """Deliver the message to consumers. False when the broker got no commit; it will call `check`
        then."""
        return await self._producer._end(self, record.TRANSACTION_COMMIT)

    async def rollback(self) -> bool:
        """Discard the message. False as for `commit`."""
        return await self._producer._end(self, record.TRANSACTION_ROLLBACK)


class TransactionProducer(Producer):
    """A producer whose messages wait for a transaction. `check(message)` returns the outcome of one: a
    coroutine function, or a plain one, which runs in a thread.

    The other arguments are Producer's.
    """

    def __init__(
        self,
        nameservers: str | Iterable[str],
        group: str,
        check: Check,
        *,
        timeout: float = REQUEST_TIMEOUT_S,
        client_id: str | None = None,
        trace: bool = False,
        credentials: Credentials | None = None,
        tls: ssl.SSLContext | None = None,
    ):
        if not callable(check):
            raise MisuseError(
                "check must be a function of a message: without it a lost word could never be found again"
            )
        self._check = check
        self._held = 0
        self._is_full = False
        super().__init__(
            nameservers,
            group,
            timeout=timeout,
            client_id=client_id,
            trace=trace,
            credentials=credentials,
            tls=tls,
        )

    def _handlers(self) -> dict[int, RequestHandler]:
        return super()._handlers() | {int(RequestCode.CHECK_TRANSACTION_STATE): self._asked}

    @contextlib.asynccontextmanager
    async def transaction(
        self,
        topic: str,
        body: bytes | Outgoing,
        *,
        tag: str | None = None,
        keys: str | Iterable[str] = (),
        properties: Mapping[str, str] | None = None,
    ) -> AsyncIterator[Half]:
        """Store a half, run the block, and commit; roll back when the block raises. Raises ClientError before
        the block runs."""
        half = await self.begin(topic, body, tag=tag, keys=keys, properties=properties)
        try:
            yield half
        except BaseException:
            await half.rollback()
            raise
        await half.commit()

    async def begin(
        self,
        topic: str,
        body: bytes | Outgoing,
        *,
        tag: str | None = None,
        keys: str | Iterable[str] = (),
        properties: Mapping[str, str] | None = None,
    ) -> Half:
        """Store a half, which waits for its `commit` or `rollback`. Raises ClientError, MisuseError,
        NameError_."""
        message = outgoing(body, tag, keys, properties)
        unique_key = self._keys.make()
        own = {"TRAN_MSG": "true", "PGROUP": self.group}
        encoded = encode_properties(
            dataclasses.replace(message, properties={**message.properties, **own}), unique_key
        )
        receipt = await self._send(topic, message, encoded, unique_key, sys_flag=record.TRANSACTION_PREPARED)
        half = Half(self, topic, receipt, message)
        if receipt.status != "SEND_OK":
            # The local transaction must not depend on a half that a power cut could remove.
            await half.rollback()
            raise ClientError(
                f"the half for topic {topic} is stored, but not as safely as the broker's settings "
                f"ask ({receipt.status}); it is rolled back"
            )
        return half

    async def _end(self, half: Half, kind: int) -> bool:
        host, log_offset = message_id.decode_offset_id(half.receipt.offset_message_id)
        return await self._say(
            host, half.topic, half.receipt.queue_offset, log_offset, half.message_id, kind, half._message
        )

    async def _say(
        self,
        host: tuple[bytes, int],
        topic: str,
        queue_offset: int,
        log_offset: int,
        unique_key: str,
        kind: int,
        message: Outgoing | ReceivedMessage,
    ) -> bool:
        from_check = isinstance(message, ReceivedMessage)
        fields = write_header(
            RequestCode.END_TRANSACTION,
            topic=topic,
            producer_group=self.group,
            tran_state_table_offset=queue_offset,
            commit_log_offset=log_offset,
            commit_or_rollback=kind,
            from_transaction_check=from_check,
            msg_id=unique_key,
            transaction_id=unique_key,
        )
        try:
            await self._session.ask(message_id.host_text(host), RequestCode.END_TRANSACTION, fields)
        except ClientError as error:
            log.warning("the word for %s did not get through, the broker will ask: %s", unique_key, error)
            return False
        if self._tracer is not None:
            self._tracer.ended(
                topic,
                unique_key,
                message,
                message_id.host_text(host),
                kind == record.TRANSACTION_COMMIT,
                from_check,
            )
        return True

    async def _verdict(self, message: ReceivedMessage) -> bool | None:
        check = self._check
        is_async = inspect.iscoroutinefunction(check)
        verdict = check(message) if is_async else await asyncio.to_thread(check, message)
        return await verdict if inspect.isawaitable(verdict) else verdict

    async def _asked(self, command: Command) -> None:
        """Answer a broker's check of a half."""
        if self._held >= MAX_HELD:
            if not self._is_full:
                log.warning(
                    "check has not answered %d questions yet: others are passed over, the broker "
                    "will ask again",
                    self._held,
                )
            self._is_full = True
            return
        self._held += 1
        try:
            await self._answer(command)
        finally:
            self._held -= 1
            if self._held <= MAX_HELD // 2:
                self._is_full = False  # logged again only then: a check that is always slow is logged once

    async def _answer(self, command: Command) -> None:
        try:
            (message,) = decode_messages(command.body, (command.fields or {}).get("bname", ""))
        except (FormatError, ValueError) as error:
            log.warning("a question about a half cannot be read: %s", error)
            return
        try:
            verdict = await self._verdict(message)
        except Exception:
            log.exception("check failed for %r; the broker asks again", message)
            return
        if verdict is None:
            return
        half, kind = message.record, record.TRANSACTION_COMMIT if verdict else record.TRANSACTION_ROLLBACK
        await self._say(
            half.store_host, half.topic, half.queue_offset, half.log_offset, message.message_id, kind, message
        )
