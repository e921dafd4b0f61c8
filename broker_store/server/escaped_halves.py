"""Halves of transactions at an acting slave: those without an end are sent to another master, which asks
their producers.

    op records ──► which halves ended
    halves     ──► each other one is sent as a half again ──► the position moves past it

The position is that of the broker's own checks in the table of offsets. So the master, which takes that table
over when it comes again, checks none of them.

Source: Apache's `TransactionalMessageServiceImpl.check` at an acting slave.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from broker_store.broker.offsets import Offsets
from broker_store.broker.transactions import GROUP
from broker_store.engine.store_protocol import Store
from broker_store.formats import properties, record
from broker_store.formats.topics import HALF_TOPIC, OP_HALF_TOPIC
from broker_store.messages import GetRequest, GetResult, GetStatus, Message

MAX_AT_ONCE = 32
_NOT_KEPT: dict[str, str | None] = {
    properties.REAL_TOPIC: None,
    properties.REAL_QUEUE_ID: None,
    "TRANSACTION_CHECK_TIMES": None,
}


class EscapedHalves:
    """One time of acting; loop's thread. `send` returns False for what no other master has stored."""

    def __init__(self, store: Store, offsets: Offsets, send: Callable[[Message], Awaitable[bool]]):
        self._store, self._offsets, self._send = store, offsets, send
        self._op = self._offset(OP_HALF_TOPIC)
        self._half = self._offset(HALF_TOPIC)
        self._ended: set[int] = set()
        self.sent = 0

    def _offset(self, topic: str) -> int:
        return max(self._store.reads.min_offset(topic, 0), self._offsets.query(GROUP, topic, 0) or 0, 0)

    async def _records(self, topic: str, offset: int) -> tuple[list[record.StoredMessage], int]:
        """Return records of a queue from an offset on, and the offset after them."""
        later: asyncio.Future[GetResult] = asyncio.get_running_loop().create_future()
        result = self._store.reads.get(GetRequest(topic, 0, offset, MAX_AT_ONCE), later.set_result)
        if result is None:
            result = await later
        if result.status is GetStatus.FOUND:
            found = record.decode_all(result.body, check_crc=False)
            return found, found[-1].queue_offset + 1
        damaged = result.status is GetStatus.MESSAGE_DAMAGED
        return [], max(offset, result.next_offset + damaged)

    async def step(self) -> bool:
        """Send the next halves; return False if there are none, or one is not stored now."""
        while self._op < self._store.reads.max_offset(OP_HALF_TOPIC, 0):
            ops, following = await self._records(OP_HALF_TOPIC, self._op)
            for op in ops:
                self._ended.update(
                    int(text)
                    for text in op.body.decode("ascii", "replace").split(",")
                    if text.isdecimal() and len(text) < 19
                )
            if following <= self._op:
                return False
            self._op = following
        if self._half >= self._store.reads.max_offset(HALF_TOPIC, 0):
            return False
        halves, following = await self._records(HALF_TOPIC, self._half)
        for half in halves:
            if half.queue_offset not in self._ended:
                message = prepared(half)
                if message is not None:
                    if not await self._send(message):
                        return False
                    self.sent += 1
            self._move(half.queue_offset + 1)
        if following <= self._half and not halves:
            return False
        self._move(following)
        return True

    def _move(self, half: int) -> None:
        self._half = half
        self._offsets.commit(GROUP, HALF_TOPIC, 0, half)


def prepared(half: record.StoredMessage) -> Message | None:
    """Return a half as its producer sent it, for another broker; None if it does not name its topic."""
    topic = half.properties.get(properties.REAL_TOPIC)
    if not topic:
        return None
    message = half.as_message(topic, 0, half.properties_with(_NOT_KEPT))
    message.sys_flag |= record.TRANSACTION_PREPARED
    return message
