"""Sends a message that was not consumed back to its broker, which delivers it again.

The broker that has the message is asked to store it under the group's retry topic
(CONSUMER_SEND_MSG_BACK). This fails if the broker cannot be reached or no longer has the message. Then the
client sends the message to the retry topic like any other, as Java's does: another broker may store it. In
both ways the broker counts attempts, and moves a message with too many to the dead letters.
"""

from __future__ import annotations

import logging

from broker_store.client.errors import ClientError
from broker_store.client.message import ReceivedMessage
from broker_store.client.producer import Producer
from broker_store.client.pulling import QueueReader
from broker_store.client.session import Session
from broker_store.formats import properties, record
from broker_store.formats.names import retry_topic
from broker_store.protocol.codes import RequestCode
from broker_store.protocol.headers import write_header

log = logging.getLogger(__name__)

TO_DEAD_LETTERS = -1
# The level of the first retry; each further one is a step longer (docs/spec/store-behaviour.md section 11).
FIRST_LEVEL = 3
INNER_GROUP = "CLIENT_INNER_PRODUCER"  # the group of such a producer in Java's client
COMPRESSION_BITS = record.SYS_COMPRESSED | record.SYS_COMPRESSION_MASK


class SendBack:
    """`max_retries` of None leaves the number of attempts to the group's settings at the broker."""

    def __init__(self, session: Session, reader: QueueReader, group: str, max_retries: int | None):
        self._session, self._reader = session, reader
        self._group, self._max_retries = group, max_retries
        self._producer: Producer | None = None

    async def send_back(self, message: ReceivedMessage, level: int) -> None:
        """Have the message delivered again after the time of a delay level, 0 for the broker's choice. Raises
        ClientError."""
        try:
            await self._ask(message, level)
        except ClientError as error:
            log.info(
                "%s sends %r to its retry topic, since it could not be sent back: %s",
                self._group,
                message,
                error,
            )
            await self._send(message, level)

    async def _ask(self, message: ReceivedMessage, level: int) -> None:
        fields = write_header(
            RequestCode.CONSUMER_SEND_MSG_BACK,
            offset=message.record.log_offset,
            group=self._group,
            delay_level=level,
            origin_msg_id=message.message_id,
            origin_topic=message.record.topic,
            unit_mode=False,
            max_reconsume_times=self._max_retries,
        )
        await self._session.ask(
            await self._reader.address(message.queue), RequestCode.CONSUMER_SEND_MSG_BACK, fields
        )

    async def _send(self, message: ReceivedMessage, level: int) -> None:
        if self._producer is None:
            self._producer = Producer(self._session.nameservers, INNER_GROUP, timeout=self._session.timeout)
            await self._producer.start()
        reconsumed = message.record.reconsume_times
        pairs = {
            name: value
            for name, value in message.properties.items()
            if name != properties.TRANSACTION_PREPARED
        }
        pairs.setdefault(properties.ORIGIN_MESSAGE_ID, message.message_id)
        pairs[properties.RETRY_TOPIC] = message.topic
        max_retries = self._max_retries
        if level == TO_DEAD_LETTERS:
            pairs.pop(properties.DELAY, None)
            max_retries = 0  # so this is one too many
        else:
            pairs[properties.DELAY] = str(level or FIRST_LEVEL + reconsumed)
        await self._producer.send_counted(
            retry_topic(self._group),
            message.record.body,
            properties.encode(pairs).decode(),
            message.record.sys_flag & COMPRESSION_BITS,
            reconsumed + 1,
            max_retries,
        )

    async def close(self) -> None:
        """Close the producer that retried sends, if there is one. Idempotent."""
        if self._producer is not None:
            await self._producer.close()
