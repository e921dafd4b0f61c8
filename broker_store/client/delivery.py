"""Sends one message, or one batch, to one broker after another until one has stored it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping

from broker_store.client.errors import AnswerError, ClientError, ConnectionLost, RequestTimeout
from broker_store.client.queue_choice import DEFAULT_QUEUE_NUMS, Place, QueueChoice
from broker_store.client.receipts import STATUS_NAMES
from broker_store.client.session import Session
from broker_store.formats.topics import AUTO_CREATE_TOPIC
from broker_store.protocol.codes import RequestCode, ResponseCode
from broker_store.protocol.command import Command
from broker_store.protocol.message_queue import MessageQueue

log = logging.getLogger(__name__)

MAX_ATTEMPTS = 3
# Pause before the same broker is tried again.
RETRY_PAUSE_S = 0.1
# Java's list (docs/spec/store-behaviour.md section 15), and FLOW_CONTROL, which means the same as
# SYSTEM_BUSY.
_RETRIED_CODES = {
    ResponseCode.SYSTEM_BUSY,
    ResponseCode.SYSTEM_ERROR,
    ResponseCode.SERVICE_NOT_AVAILABLE,
    ResponseCode.TOPIC_NOT_EXIST,
    ResponseCode.NO_PERMISSION,
    ResponseCode.NO_BUYER_ID,
    ResponseCode.NOT_IN_CURRENT_UNIT,
    ResponseCode.GO_AWAY,
    ResponseCode.FLOW_CONTROL,
}


class Delivery:
    """The sends of a producer group, each with its attempts."""

    def __init__(self, session: Session, choice: QueueChoice, group: str):
        self._session, self._choice, self._group = session, choice, group

    async def deliver(
        self,
        code: int,
        topic: str,
        body: bytes,
        properties: str,
        place: Place,
        timeout: float,
        sys_flag: int = 0,
        counted: Mapping[str, str] | None = None,
    ) -> tuple[Command, MessageQueue]:
        """Send until a broker has stored it, the time is over, or the error is none that another attempt can
        change."""
        deadline = time.monotonic() + timeout
        avoid = None
        for attempt in range(1, MAX_ATTEMPTS + 1):
            queue, address = await self._choice.choose(topic, place, avoid)
            if queue.broker_name == avoid:
                await asyncio.sleep(RETRY_PAUSE_S)
            left = deadline - time.monotonic()
            try:
                if left <= 0:
                    raise RequestTimeout(f"topic {topic} took no message within {timeout:g} s")
                fields = {**self.fields(code, queue, properties, sys_flag), **(counted or {})}
                answer = await self._session.ask(
                    address, code, fields, body, timeout=left, accept=STATUS_NAMES
                )
                return answer, queue
            except ClientError as error:
                final = attempt == MAX_ATTEMPTS or time.monotonic() >= deadline
                if final or (isinstance(error, AnswerError) and error.code not in _RETRIED_CODES):
                    raise
                log.info("attempt %d: %s", attempt, error)
                avoid = queue.broker_name
                if isinstance(error, ConnectionLost):
                    await self._choice.refetch(topic)
        raise AssertionError("the last attempt returns or raises")

    def fields(self, code: int, queue: MessageQueue, properties: str, sys_flag: int = 0) -> dict[str, str]:
        """Return the header fields of SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE by their short wire names, which
        is faster than `write_header`."""
        return {
            "a": self._group,
            "b": queue.topic,
            "c": AUTO_CREATE_TOPIC,
            "d": str(DEFAULT_QUEUE_NUMS),
            "e": str(queue.queue_id),
            "f": str(sys_flag),
            "g": str(now_ms()),
            "h": "0",
            "i": properties,
            "j": "0",
            "k": "false",
            "m": "true" if code == RequestCode.SEND_BATCH_MESSAGE else "false",
            "n": queue.broker_name,
        }


def now_ms() -> int:
    return time.time_ns() // 1_000_000
