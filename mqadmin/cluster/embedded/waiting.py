"""Messages that the broker of this process holds back: delayed, half, timed and sent-back messages.

Code that reads records runs in a thread, with offsets that were read on the loop. A count ends after
MAX_SCANNED records, and its result states that: it scans all messages that wait, of every producer.
"""

from __future__ import annotations

from typing import Literal

from broker_store.broker.half_message import CHECK_TIMES
from broker_store.broker.timer_counts import TimerFacts
from broker_store.engine.store_protocol import Store
from broker_store.facts.journey.waiting import number_in, topic_in
from broker_store.formats import properties, record
from broker_store.formats.names import DLQ_PREFIX, RETRY_PREFIX, retry_topic
from broker_store.formats.record import StoredMessage
from broker_store.formats.timer_log import TIMER_TOPIC
from broker_store.formats.timer_wheel import PRECISION_MS
from broker_store.formats.topics import HALF_TOPIC, SCHEDULE_TOPIC
from broker_store.messages import GetRequest, GetStatus
from broker_store.server.parts import BrokerParts
from broker_store.units import fields_of
from mqadmin.cluster.embedded.host import Host
from mqadmin.cluster.embedded.pops import popped, popped_from
from mqadmin.cluster.protocol import WaitingMessages
from mqadmin.facts.waiting import (
    SHOWN_HALVES,
    Delayed,
    DelayLevel,
    DueHour,
    DueTopic,
    Half,
    Halves,
    MessageFate,
    Prepared,
    Retries,
    RetryLevel,
    Timed,
    Waiting,
)

MAX_SCANNED = 10_000  # records read for one count: about a tenth of a second
MAX_TOPICS = 12  # topics of timed messages that are shown
READ_BYTES = 1 << 20
READ_COUNT = 512
PRODUCER_GROUP = "PGROUP"


class EmbeddedWaiting(WaitingMessages):
    """The implementation for the broker of this process."""

    def __init__(self, host: Host):
        self._host = host

    def facts(self) -> Waiting:
        parts = self._host.parts
        delay = parts.delay
        levels = _levels(parts)
        return Waiting(
            at_ms=parts.clock(),
            delayed=Delayed(
                waiting=sum(level.waiting for level in levels),
                due_ms=min((level.due_ms for level in levels if level.due_ms is not None), default=None),
                levels=levels,
                delivered=delay.delivered,
                dropped=delay.dropped,
                failures=delay.failures,
            ),
            prepared=Prepared(**parts.transactions.facts(), most_checks=parts.settings.transaction_check_max),
            timed=_timed(parts.timer.facts()),
            popped=popped(parts),
        )

    def fate(self, stored: StoredMessage) -> MessageFate | None:
        return fate_of(self._host.parts, stored)

    async def halves(self, limit: int = SHOWN_HALVES) -> Halves:
        parts = self._host.parts
        offsets = parts.transactions.waiting_offsets(limit + 1)
        items = await self._host.in_thread(_halves_at, parts.store, (offsets or [])[:limit])
        return Halves(items=items, complete=None if offsets is None else len(offsets) <= limit)

    def retries(self, group: str) -> Retries:
        parts, levels = self._host.call(lambda: (self._host.parts, _levels(self._host.parts)))
        return _retries(parts.store, levels, group)


def _levels(parts: BrokerParts) -> list[DelayLevel]:
    return [DelayLevel(**fields_of(level), queue_id=level.level - 1) for level in parts.delay.facts()]


def _timed(facts: TimerFacts) -> Timed:
    most = sorted(facts.topics.items(), key=lambda item: (-item[1], item[0]))[:MAX_TOPICS]
    return Timed(
        enabled=facts.enabled,
        waiting=facts.waiting,
        not_enqueued=facts.not_enqueued,
        due=facts.due,
        overdue_ms=facts.overdue_ms,
        late_ms=facts.late_ms,
        delivered=facts.delivered,
        rolled=facts.rolled,
        deleted=facts.deleted,
        dropped=facts.dropped,
        failures=facts.failures,
        hours=[DueHour(hour_ms=hour_ms, messages=messages) for hour_ms, messages in facts.hours],
        topics=[DueTopic(topic=topic, messages=messages) for topic, messages in most],
    )


# One message


def fate_of(parts: BrokerParts, stored: StoredMessage) -> MessageFate | None:
    """Return the fate of a message that is in a topic of the broker's own, or in a retry or dead letter
    topic; None for any other message."""
    topic = topic_in(stored, properties.REAL_TOPIC)
    queue_id = number_in(stored, properties.REAL_QUEUE_ID)
    if stored.topic == SCHEDULE_TOPIC:
        units = parts.store.reads.read_units(SCHEDULE_TOPIC, stored.queue_id, stored.queue_offset, 1)
        return MessageFate(
            kind="delayed",
            waits=parts.delay.waits(stored.queue_id, stored.queue_offset),
            due_ms=units[0][2] if units else None,
            level=stored.queue_id + 1,
            topic=topic,
            queue_id=queue_id,
        )
    if stored.topic == HALF_TOPIC:
        return MessageFate(
            kind="prepared",
            waits=parts.transactions.waits(stored.queue_offset),
            due_ms=None,
            checks=_checks(stored),
            group=stored.properties.get(PRODUCER_GROUP),
            topic=topic,
            queue_id=queue_id,
        )
    if stored.topic == TIMER_TOPIC:
        due_ms, recalls = _timer_due_ms(stored), stored.properties.get(properties.TIMER_DELETE_KEY)
        # After its time, only its other records show whether it was delivered, dropped or put on the wheel
        # again.
        waits = True if recalls is None and due_ms is not None and due_ms > parts.clock() else None
        return MessageFate(
            kind="timed", waits=waits, due_ms=due_ms, recalls=recalls, topic=topic, queue_id=queue_id
        )
    if stored.topic.startswith(RETRY_PREFIX):
        popped_by = popped_from(parts, stored.topic)
        if popped_by is not None:
            return _of_popped(parts, stored, *popped_by)
        return _of_group(parts, stored, "retry", stored.topic.removeprefix(RETRY_PREFIX))
    if stored.topic.startswith(DLQ_PREFIX):
        return _of_group(parts, stored, "dead", stored.topic.removeprefix(DLQ_PREFIX))
    return None


def _of_group(
    parts: BrokerParts, stored: StoredMessage, kind: Literal["retry", "dead"], group: str
) -> MessageFate:
    at = parts.offsets.query(group, stored.topic, stored.queue_id)
    return MessageFate(
        kind=kind,
        waits=None if at is None else stored.queue_offset >= at,
        due_ms=None,
        group=group,
        topic=topic_in(stored, properties.RETRY_TOPIC),
    )


def _of_popped(parts: BrokerParts, stored: StoredMessage, group: str, topic: str) -> MessageFate:
    at = parts.pop_positions.next_offset(group, stored.topic, stored.queue_id)
    return MessageFate(
        kind="popped",
        waits=at is None or stored.queue_offset >= at,
        due_ms=None,
        group=group,
        topic=topic,
    )


def _checks(stored: StoredMessage) -> int:
    """Return how often the producer of a half message was asked about it."""
    return number_in(stored, CHECK_TIMES) or 0


def _timer_due_ms(stored: StoredMessage) -> int | None:
    """Return the time in ms at which a timed message is delivered: the moment that it names; without one, the
    end of its slot. None where the message has no slot."""
    out_ms, named_ms = (
        number_in(stored, properties.TIMER_OUT_MS),
        number_in(stored, properties.TIMER_DELIVER_MS),
    )
    if out_ms is None:
        return None
    if named_ms is not None and out_ms <= named_ms <= out_ms + PRECISION_MS:
        return named_ms
    return out_ms + PRECISION_MS


# In a thread


def _halves_at(store: Store, offsets: list[int]) -> list[Half]:
    """Return the half messages at these offsets of their queue that still exist, the oldest first."""
    items = []
    for offset in offsets:
        result = store.reads.get_blocking(GetRequest(HALF_TOPIC, 0, offset, 1, READ_BYTES))
        if result.status is not GetStatus.FOUND:
            continue  # deleted by retention meanwhile
        stored = record.decode(result.body, check_crc=False)
        items.append(
            Half(
                log_offset=stored.log_offset,
                queue_offset=stored.queue_offset,
                message_id=stored.unique_key,
                born_ms=stored.born_timestamp,
                store_ms=stored.store_timestamp,
                topic=topic_in(stored, properties.REAL_TOPIC),
                queue_id=number_in(stored, properties.REAL_QUEUE_ID),
                checks=_checks(stored),
                group=stored.properties.get(PRODUCER_GROUP),
            )
        )
    return sorted(items, key=lambda half: half.born_ms)


def _retries(store: Store, levels: list[DelayLevel], group: str) -> Retries:
    """Return the number of messages of a group that wait for another try, by level that holds any."""
    wanted, left, found = retry_topic(group), MAX_SCANNED, []
    for level in levels:
        offset, count, first = level.max_offset - level.waiting, 0, None
        while offset < level.max_offset and left > 0:
            result = store.reads.get_blocking(
                GetRequest(SCHEDULE_TOPIC, level.queue_id, offset, min(left, READ_COUNT), READ_BYTES)
            )
            if result.status is not GetStatus.FOUND:
                offset = max(offset + 1, result.next_offset)  # damaged, or deleted by retention meanwhile
                left -= 1
                continue
            for stored in record.decode_all(result.body, check_crc=False):
                left -= 1
                if stored.properties.get(properties.REAL_TOPIC) == wanted:
                    count, first = count + 1, stored.queue_offset if first is None else first
            offset = max(offset + 1, result.next_offset)
        if first is not None:
            units = store.reads.read_units(SCHEDULE_TOPIC, level.queue_id, first, 1)
            due_ms = units[0][2] if units else None
            found.append(RetryLevel(level=level.level, delay_ms=level.delay_ms, count=count, due_ms=due_ms))
    return Retries(levels=found, delayed=sum(level.count for level in found), complete=left > 0)
