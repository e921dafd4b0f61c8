"""Replies to the requests of a producer, and the properties that connect both."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from broker_store.client.message import ReceivedMessage
from broker_store.formats import properties as property_format
from broker_store.formats import record
from broker_store.formats.record import StoredMessage
from broker_store.messages import LOOPBACK_HOST
from broker_store.protocol.codes import RequestCode
from broker_store.protocol.command import Command
from broker_store.protocol.headers import read_header

# Properties of a request and its reply.
CORRELATION = "CORRELATION_ID"
REPLY_TO_CLIENT = "REPLY_TO_CLIENT"
TIME_TO_LIVE = "TTL"
MESSAGE_TYPE = "MSG_TYPE"


class Replies:
    """The requests of a producer that have no reply yet, by their correlation id."""

    def __init__(self) -> None:
        self._requests: dict[str, asyncio.Future[ReceivedMessage]] = {}

    def expect(self, correlation: str) -> asyncio.Future[ReceivedMessage]:
        """Return a future that `on_reply` completes with the reply; `forget` must follow."""
        future = self._requests[correlation] = asyncio.get_running_loop().create_future()
        return future

    def forget(self, correlation: str) -> None:
        """Remove the future of a reply."""
        del self._requests[correlation]

    def on_reply(self, command: Command) -> Command:
        """Complete the request that a reply of the broker belongs to."""
        fields = command.fields or {}
        pairs = property_format.decode(fields.get("properties", ""))
        waiting = self._requests.get(pairs.get(CORRELATION, ""))
        if waiting is not None and not waiting.done():
            waiting.set_result(ReceivedMessage(_pushed(fields, command.body), ""))
        return command.answer()


def _pushed(fields: Mapping[str, str], body: bytes) -> StoredMessage:
    """Return the message of a pushed reply. Its header has the fields of a record, but no place in a log."""
    header = read_header(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, fields)
    return StoredMessage(
        size=0,
        magic=record.MAGIC_V1,
        body_crc=record.body_crc(body),
        queue_id=header.queue_id,
        flag=header.flag,
        queue_offset=-1,
        log_offset=-1,
        sys_flag=header.sys_flag,
        born_timestamp=header.born_timestamp,
        born_host=LOOPBACK_HOST,
        store_timestamp=header.store_timestamp,
        store_host=LOOPBACK_HOST,
        reconsume_times=header.reconsume_times or 0,
        prepared_transaction_offset=0,
        body=body,
        topic=header.topic,
        raw_properties=(header.properties or "").encode(),
    )
