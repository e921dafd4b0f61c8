"""What the broker holds back, as it is: delayed, prepared, sent back, given up.

    picture   how many wait, of each delay level, of halves and on the timer wheel, and when; on the loop,
              reads no record
    fate      where one message that lies in a topic of the broker's own will go, and when
    halves    the oldest halves that wait, one by one
    retries   the messages that a group sent back and that wait for their next try, by delay level

`halves` and `retries` read records: call them in a thread, with the places that were looked up on the loop.
None is "not known". A count stops after MAX_LOOKED records and says so: it reads all that waits, of every
client.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from broker_store.broker.half_message import CHECK_TIMES
from broker_store.broker.topics import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from broker_store.errors import NameError_
from broker_store.facts.knowing import Fate
from broker_store.formats import properties, record
from broker_store.formats.names import DLQ_PREFIX, RETRY_PREFIX, check_stored_topic, retry_topic
from broker_store.formats.record import StoredMessage
from broker_store.formats.timer_wheel import PRECISION_MS
from broker_store.messages import GetRequest, GetStatus
from broker_store.server.parts import BrokerParts

MAX_LOOKED = 10_000  # records read for one count: about a tenth of a second
MAX_TOPICS = 12  # shown of those that timed messages go to
READ_BYTES = 1 << 20
READ_COUNT = 512
PRODUCER_GROUP = "PGROUP"


def picture(parts) -> dict:
    """See EmbeddedCluster.waiting."""
    delay, levels = parts.delay, parts.delay.facts()
    return {
        "at_ms": parts.clock(),
        "delayed": {
            "waiting": sum(level["waiting"] for level in levels),
            "due_ms": min((level["due_ms"] for level in levels if level["due_ms"] is not None), default=None),
            "levels": [level | {"queue_id": level["level"] - 1} for level in levels],
            "delivered": delay.delivered,
            "dropped": delay.dropped,
            "failures": delay.failures,
        },
        "prepared": parts.transactions.facts() | {"most_checks": parts.settings.transaction_check_max},
        "timed": _timed(parts.timer.facts()),
    }


def _timed(facts: dict) -> dict:
    names = (
        "enabled",
        "waiting",
        "not_enqueued",
        "due",
        "behind_ms",
        "late_ms",
        "delivered",
        "rolled",
        "deleted",
        "dropped",
        "failures",
    )
    return {name: facts[name] for name in names} | {
        "hours": [{"hour_ms": hour_ms, "messages": messages} for hour_ms, messages in facts["hours"]],
        "topics": [
            {"topic": topic, "messages": messages}
            for topic, messages in sorted(facts["topics"].items(), key=lambda item: (-item[1], item[0]))[
                :MAX_TOPICS
            ]
        ],
    }


# One message


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageFate(Fate):
    """Where a message goes that lies in a topic of the broker's own, or of a group's retries."""

    kind: Literal["delayed", "prepared", "timed", "retry", "dead"]
    topic: str | None  # where it goes, or where it came from
    queue_id: int | None = None
    level: int | None = None  # of its delay
    checks: int | None = None  # times that its producer was asked
    group: str | None = None
    recalls: str | None = None  # the message that it takes back


def fate(parts: BrokerParts, stored: StoredMessage) -> MessageFate | None:
    """Return what becomes of such a message; None for any other."""
    topic = _topic(stored, properties.REAL_TOPIC)
    queue_id = _number(stored.properties.get(properties.REAL_QUEUE_ID))
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
        # Only its other records show whether one whose time has come was delivered, dropped or put on the
        # wheel again.
        waits = True if recalls is None and due_ms is not None and due_ms > parts.clock() else None
        return MessageFate(
            kind="timed", waits=waits, due_ms=due_ms, recalls=recalls, topic=topic, queue_id=queue_id
        )
    if stored.topic.startswith(RETRY_PREFIX):
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
        topic=_topic(stored, properties.RETRY_TOPIC),
    )


def _checks(stored: StoredMessage) -> int:
    return _number(stored.properties.get(CHECK_TIMES)) or 0


def _timer_due_ms(stored: StoredMessage) -> int | None:
    """When it is delivered: at the moment that it names, or at the latest when the second after its slot's is
    over."""
    out_ms, named_ms = (
        _number(stored.properties.get(properties.TIMER_OUT_MS)),
        _number(stored.properties.get(properties.TIMER_DELIVER_MS)),
    )
    if out_ms is None:
        return None
    return (
        named_ms
        if named_ms is not None and out_ms <= named_ms <= out_ms + PRECISION_MS
        else out_ms + PRECISION_MS
    )


def _topic(stored: StoredMessage, name: str) -> str | None:
    """The topic that a property names; None when it names none that could be: clients write properties."""
    try:
        return check_stored_topic(stored.properties.get(name, ""))
    except NameError_:
        return None


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 19 else None


# In a thread


def halves(store, offsets: list[int] | None, limit: int) -> dict:
    """The halves at the `offsets` of their queue, at most `limit`; `complete` False when there are more, None
    when not known."""
    items: list[dict[str, Any]] = []
    for offset in (offsets or [])[:limit]:
        result = store.reads.get_blocking(GetRequest(HALF_TOPIC, 0, offset, 1, READ_BYTES))
        if result.status is not GetStatus.FOUND:
            continue  # cleaned away since
        stored = record.decode(result.body, check_crc=False)
        items.append(
            {
                "log_offset": stored.log_offset,
                "queue_offset": stored.queue_offset,
                "message_id": stored.unique_key,
                "born_ms": stored.born_timestamp,
                "store_ms": stored.store_timestamp,
                "topic": _topic(stored, properties.REAL_TOPIC),
                "queue_id": _number(stored.properties.get(properties.REAL_QUEUE_ID)),
                "checks": _checks(stored),
                "group": stored.properties.get(PRODUCER_GROUP),
            }
        )
    items.sort(key=lambda half: half["born_ms"])
    return {"items": items, "complete": None if offsets is None else len(offsets) <= limit}


def retries(store, levels: list[dict], group: str) -> dict:
    """How many messages of a group wait for another try, of each level that holds any. `levels` are
    Delay.facts()."""
    wanted, left, found = retry_topic(group), MAX_LOOKED, []
    for level in levels:
        queue_id, offset = level["level"] - 1, level["max_offset"] - level["waiting"]
        count, first = 0, None
        while offset < level["max_offset"] and left > 0:
            result = store.reads.get_blocking(
                GetRequest(SCHEDULE_TOPIC, queue_id, offset, min(left, READ_COUNT), READ_BYTES)
            )
            if result.status is not GetStatus.FOUND:
                offset = max(offset + 1, result.next_offset)  # damaged, or cleaned away since
                left -= 1
                continue
            for stored in record.decode_all(result.body, check_crc=False):
                left -= 1
                if stored.properties.get(properties.REAL_TOPIC) == wanted:
                    count, first = count + 1, stored.queue_offset if first is None else first
            offset = max(offset + 1, result.next_offset)
        if count:
            units = store.reads.read_units(SCHEDULE_TOPIC, queue_id, first, 1)
            found.append(
                {
                    "level": level["level"],
                    "delay_ms": level["delay_ms"],
                    "count": count,
                    "due_ms": units[0][2] if units else None,
                }
            )
    return {"levels": found, "delayed": sum(level["count"] for level in found), "complete": left > 0}
