"""Pops of a slave that acts for its master: it gives messages when another master has stored their record.

    pop ──► pop checkpoint ──► another master ──► stored ──► the messages are given, the offset is committed
    acknowledgement, changed invisible time ──► the same queue of the same master ──► stored ──► answer

That master lets come again what is not acknowledged (broker/pop/others.py; Apache's in the same way). So no
message is given without a record. One comes twice whose record is stored while its answer is lost.

Source: Apache's `EscapeBridge.putMessageToSpecificQueue`. Its slave gives the messages before the record is
stored, and sends all its records to one queue.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from broker_store.broker.offsets import TooManyOffsetsError
from broker_store.broker.pop.revive_counts import ACK, CHECKPOINT
from broker_store.broker.pop.revive_log import Done
from broker_store.formats.names import popped_topic
from broker_store.formats.pop_records import PopCheckpoint, PopKey
from broker_store.messages import Message, PutStatus
from broker_store.server.escape import EscapeBridge, group_of
from broker_store.server.parts import BrokerParts

log = logging.getLogger(__name__)

# Records that are being sent; more are not taken.
MAX_UNDER_WAY = 1_000
# Pops of which this slave remembers where their records are, about 700 bytes each. For the others the routes
# of the name servers decide, as before their pop.
MAX_REMEMBERED = 50_000
_FORGOTTEN_AT_ONCE = 8


@dataclass(slots=True)
class _Given:
    """A pop checkpoint that another master has stored. Bits of `over` are set for messages that were
    acknowledged since, or changed."""

    checkpoint: PopCheckpoint
    broker: str
    over: int = 0

    def bits_of(self, offsets: Sequence[int]) -> int:
        indexes = (self.checkpoint.index_of(offset) for offset in offsets)
        return sum(1 << index for index in set(indexes) if index is not None)


class PopEscapes:
    """Loop's thread. It is the `elsewhere` of the revive log while this slave gives messages to pops."""

    def __init__(self, parts: BrokerParts, bridge: EscapeBridge):
        self._parts, self._bridge = parts, bridge
        self._given: dict[PopKey, _Given] = {}
        self._is_on = False
        self._beginning: asyncio.Task[None] | None = None
        self.under_way: set[asyncio.Task[None]] = set()

    def begin(self) -> None:
        """Take pops, as soon as it is known what the master has given last."""
        self._is_on = True
        self._beginning = asyncio.get_running_loop().create_task(self._begin())

    async def _begin(self) -> None:
        parts = self._parts
        # The copied offsets are some seconds old; the copied log has the records of the pops after them.
        moves = await asyncio.to_thread(
            parts.pop_positions.popped_by_master,
            parts.revive_log.topic,
            parts.revive_log.queues,
            lambda: not self._is_on,
        )
        try:
            moved = parts.pop_positions.move_on(moves, lambda topic: parts.topics.get(topic) is not None)
        except TooManyOffsetsError as error:
            log.warning("messages of the last pops of the master may come twice: %s", error)
        else:
            if moved:
                log.info("%d offsets were moved to where the last pops of the master left them", moved)
        if self._is_on:
            parts.revive_log.elsewhere = self

    async def end(self) -> None:
        """Take no pops any more. What is being sent is in `under_way`."""
        self._is_on = False
        self._parts.revive_log.elsewhere = None
        if self._beginning is not None:
            await asyncio.wait([self._beginning])

    # As RecordsElsewhere (broker/pop/revive_log.py)

    def put_checkpoint(
        self, checkpoint: PopCheckpoint, queue_id: int, done: Done, *, changed: PopKey | None = None
    ) -> None:
        def stored(broker: str | None) -> None:
            if broker is not None:
                self._remember(checkpoint, broker)
            done(self._counted(checkpoint.key, CHECKPOINT, broker))

        message = self._parts.revive_log.checkpoint_for_other(checkpoint, queue_id)
        self._send(message, checkpoint.key, self._broker_of(changed), stored)

    def put_ack(self, key: PopKey, offsets: Sequence[int], queue_id: int, due_ms: int, done: Done) -> None:
        given = self._given.get(key)
        new = 0 if given is None else given.bits_of(offsets) & ~given.over
        if given is not None:
            given.over |= new

        def stored(broker: str | None) -> None:
            if broker is None and given is not None:
                given.over &= ~new
            done(self._counted(key, ACK, broker))

        message = self._parts.revive_log.ack_for_other(key, offsets, queue_id, due_ms)
        self._send(message, key, self._broker_of(key), stored)

    def is_over(self, key: PopKey, offset: int) -> bool:
        given = self._given.get(key)
        return given is not None and given.over & given.bits_of([offset]) > 0

    # The records

    def _counted(self, key: PopKey, kind: str, broker: str | None) -> PutStatus:
        """Return the status of a record, and count it. A group may have been deleted meanwhile."""
        status = PutStatus.PUT_TO_REMOTE_BROKER_FAIL if broker is None else PutStatus.PUT_OK
        if self._parts.groups.get(key.group) is not None:
            self._parts.revive_log.counts.stored[key.group][key.topic, kind, status] += 1
        return status

    def _broker_of(self, key: PopKey | None) -> str | None:
        """Return the broker that has stored the record of a pop; None if that is not remembered."""
        given = None if key is None else self._given.get(key)
        return None if given is None else given.broker

    def _remember(self, checkpoint: PopCheckpoint, broker: str) -> None:
        now_ms = self._parts.clock()
        for _ in range(_FORGOTTEN_AT_ONCE):
            oldest = next(iter(self._given.values()), None)
            if oldest is None or (oldest.checkpoint.revive_ms > now_ms and len(self._given) < MAX_REMEMBERED):
                break
            del self._given[oldest.checkpoint.key]
        self._given[checkpoint.key] = _Given(checkpoint, broker)

    def _send(
        self, message: Message, key: PopKey, broker: str | None, stored: Callable[[str | None], None]
    ) -> None:
        """Send a record, and call `stored` later with the name of the broker that has stored it."""
        loop = asyncio.get_running_loop()
        if len(self.under_way) >= MAX_UNDER_WAY:
            loop.call_soon(stored, None)
            return
        task = loop.create_task(self._send_one(message, key, broker, stored))
        self.under_way.add(task)
        task.add_done_callback(self.under_way.discard)

    async def _send_one(
        self, message: Message, key: PopKey, broker: str | None, stored: Callable[[str | None], None]
    ) -> None:
        found = None
        try:
            group = group_of(message, self._parts.broker_name)
            found = await self._bridge.send(message, group, popped_topic(key.topic, key.group), broker)
        finally:  # also if this slave ends to act meanwhile
            stored(found)
