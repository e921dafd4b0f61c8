"""What an acting slave sends to another master of its cluster: what is due, and halves without an end.

    delay levels  ─┐
    timer wheel   ─┼─► one message after another ──► `EscapeBridge` ──► stored: counted here
    halves        ─┘

Of the timer wheel come also the records of pops: that master brings the popped messages back (pop/others.py).
While this slave sends, it gives messages to pops (`pop_escapes.py`).

Each position moves when the other master has stored a message. So each goes on once, unless the answer is
lost, or this broker is killed before it has saved the position. An orderly end (`set_on(False)`, a stop)
waits for the message that is being sent, and counts it.

Source: Apache's `EscapeBridge`, `ScheduleMessageService` and `TimerMessageStore` at an acting slave.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from broker_store.broker.loaded_slots import WaitingMessage
from broker_store.broker.pop.revive_log import LOG_END, NEXT_OFFSET
from broker_store.broker.timer_request import parse_long
from broker_store.errors import BrokerStoreError, FormatError
from broker_store.formats import pop_records, properties, record
from broker_store.formats.names import popped_topic
from broker_store.formats.timer_wheel import PRECISION_MS
from broker_store.formats.topics import FORBIDDEN_TO_SEND
from broker_store.messages import Message, MovedOn, PutStatus
from broker_store.server.escape import EscapeBridge, group_of
from broker_store.server.escaped_halves import EscapedHalves
from broker_store.server.other_brokers import OtherBrokers
from broker_store.server.parts import BrokerParts
from broker_store.server.pop_escapes import PopEscapes
from broker_store.server.repeated_work import RepeatedWork

log = logging.getLogger(__name__)

HALVES_INTERVAL_S = 1.0
END_S = 2.5  # a master that comes again waits 3 s for it
_NO_PLACE: dict[str, str | None] = {properties.REAL_TOPIC: None, properties.REAL_QUEUE_ID: None}
_NO_LEVEL: dict[str, str | None] = {properties.DELAY: None, **_NO_PLACE}


class Escapes:
    """Loop's thread."""

    def __init__(self, parts: BrokerParts, brokers: OtherBrokers):
        self._parts = parts
        self.bridge = EscapeBridge(parts.broker_name, brokers)
        self.pops = PopEscapes(parts, self.bridge)
        self._delay = RepeatedWork("delay", parts.delay, parts)
        self._halves: asyncio.Task[None] | None = None
        self._sends: set[asyncio.Task[None]] = set()
        self._is_on = self._is_wanted = self._sends_timed = self._sends_half = False
        self._switch: asyncio.Task[None] | None = None

    def set_on(self, wanted: bool) -> asyncio.Task[None]:
        """Begin or end to send; the task is done when that has happened."""
        self._is_wanted = wanted
        if self._switch is None or self._switch.done():
            self._switch = asyncio.get_running_loop().create_task(self._apply())
        return self._switch

    async def stop(self) -> None:
        await self.set_on(False)

    async def _apply(self) -> None:
        while self._is_on != self._is_wanted:
            if self._is_wanted:
                self._begin()
            else:
                await self._end()

    def _begin(self) -> None:
        parts = self._parts
        self._is_on = self._sends_timed = True
        parts.delay.escape = self._escape_delayed
        self._delay.start()
        if parts.timer.enabled and not parts.timer.role.act(self._escape_timed):
            log.warning("timer messages wait for their master, which has never said how far it is with them")
        self._halves = asyncio.get_running_loop().create_task(self._send_halves())
        if parts.timer.enabled:  # else no master of this name gives messages to pops
            self.pops.begin()

    async def _end(self) -> None:
        """Send the rest of the second that the timer has begun, and wait for the messages that are being
        sent, so that they are counted; both for at most END_S. Offsets of pops are committed then."""
        parts, loop = self._parts, asyncio.get_running_loop()
        until_s = loop.time() + END_S
        self._is_on = False
        self._delay.stop()
        await self.pops.end()
        parts.timer.role.finishes = True
        while parts.timer.has_begun_a_slot and loop.time() < until_s:
            await asyncio.sleep(0.01)
        self._sends_timed = False
        under_way = self._sends | self.pops.under_way
        if self._halves is not None:
            if self._sends_half:
                under_way.add(self._halves)
            else:
                self._halves.cancel()
        if under_way:
            _, late = await asyncio.wait(under_way, timeout=max(0.0, until_s - loop.time()))
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        self._halves = None
        parts.delay.escape = None
        parts.timer.role.end_acting()

    # What is due

    def _escape_delayed(self, records: bytes, done: Callable[[MovedOn], None]) -> None:
        messages = [_due(each) for each in record.decode_all(records, check_crc=False)]
        self._send_all(messages, lambda: self._is_on, lambda statuses: done(MovedOn(statuses)))

    def _escape_timed(
        self,
        due: Sequence[tuple[WaitingMessage, bytes]],
        done: Callable[[Sequence[PutStatus]], None],
    ) -> None:
        now_ms = self._parts.clock()
        revive_topic = self._parts.revive_log.topic
        messages = [_timed(each, raw, now_ms, revive_topic) for each, raw in due]
        self._send_all(messages, lambda: self._sends_timed, done)

    def _send_all(
        self,
        messages: Sequence[Message | None],
        may_send: Callable[[], bool],
        done: Callable[[list[PutStatus]], None],
    ) -> None:
        """Send messages, and call `done` with what became of the first of them: all, unless one is not
        stored, or this slave ends to act."""
        task = asyncio.get_running_loop().create_task(self._send_each(messages, may_send, done))
        self._sends.add(task)
        task.add_done_callback(self._sends.discard)

    async def _send_each(
        self,
        messages: Sequence[Message | None],
        may_send: Callable[[], bool],
        done: Callable[[list[PutStatus]], None],
    ) -> None:
        statuses: list[PutStatus] = []
        try:
            for message in messages:
                if not may_send():
                    break
                if message is None:
                    statuses.append(PutStatus.MESSAGE_ILLEGAL)
                elif await self._send(message):
                    statuses.append(PutStatus.PUT_OK)
                else:  # not final: it and all after it are sent again later
                    statuses.append(PutStatus.SERVICE_NOT_AVAILABLE)
                    break
        finally:
            done(statuses)

    async def _send(self, message: Message) -> bool:
        """Send a message; return whether another master has stored it."""
        popped = None
        if message.topic == self._parts.revive_log.topic:
            tag = properties.get(message.properties, properties.TAGS)
            key = pop_records.decode_record(tag, message.body).key
            popped = popped_topic(key.topic, key.group)
        group = group_of(message, self._parts.broker_name)
        return await self.bridge.send(message, group, popped) is not None

    # Halves of transactions

    async def _send_halves(self) -> None:
        halves = EscapedHalves(self._parts.store, self._parts.offsets, self._send_half)
        while self._is_on:
            try:
                while await halves.step():
                    pass
            except BrokerStoreError as error:
                log.warning("halves of transactions are not sent to another master: %s", error)
            if self._is_on:
                await asyncio.sleep(HALVES_INTERVAL_S)

    async def _send_half(self, message: Message) -> bool:
        if not self._is_on:
            return False
        self._sends_half = True
        try:
            return await self._send(message)
        finally:
            self._sends_half = False


def _real_topic(stored: record.StoredMessage) -> str | None:
    """Return the topic of a message that waited; None if it may not be sent there."""
    topic = stored.properties.get(properties.REAL_TOPIC)
    return topic if topic and topic not in FORBIDDEN_TO_SEND else None


def _due(delayed: record.StoredMessage) -> Message | None:
    """Return a delayed message as it belongs to its topic; None for one that may not be sent there."""
    topic = _real_topic(delayed)
    if topic is None:
        return None
    return delayed.as_message(topic, 0, delayed.properties_with(_NO_LEVEL))


def _timed(each: WaitingMessage, raw: bytes, now_ms: int, revive_topic: str) -> Message | None:
    """Return a timer message as it belongs to its topic; None for one that may not be sent there. A rolled
    one waits on the other master's wheel for the rest of its time.

    A record of the revive log keeps its queue. Without a broker's name it says nothing at another broker.
    """
    stored = record.decode(raw, check_crc=False)
    topic = _real_topic(stored)
    if topic is None:
        return None
    changes: dict[str, str | None] = (
        _rest_of_time(stored)
        if each.rolls
        else {
            properties.TIMER_ENQUEUE_MS: str(each.write_ms),
            properties.TIMER_DEQUEUE_MS: str(now_ms),
        }
    )
    queue_id = 0
    if topic == revive_topic:
        try:
            if not pop_records.decode_record(stored.tags, stored.body).key.broker_name:
                return None
        except FormatError:
            return None
        queue_id = parse_long(stored.properties.get(properties.REAL_QUEUE_ID)) or 0
        changes |= dict.fromkeys((NEXT_OFFSET, LOG_END))
    return stored.as_message(topic, queue_id, stored.properties_with(_NO_PLACE | changes))


def _rest_of_time(stored: record.StoredMessage) -> dict[str, str | None]:
    """Return the properties by which another broker delivers a message at the time that it has requested."""
    deliver_ms = parse_long(stored.properties.get(properties.TIMER_DELIVER_MS))
    if deliver_ms is None:
        deliver_ms = (parse_long(stored.properties.get(properties.TIMER_OUT_MS)) or 0) + PRECISION_MS
    return {
        **dict.fromkeys(properties.TIMER_ASKING),
        properties.TIMER_OUT_MS: None,
        properties.TIMER_DELIVER_MS: str(deliver_ms),
    }
