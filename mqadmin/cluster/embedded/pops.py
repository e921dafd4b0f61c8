"""Popped messages of the broker in this process (docs/spec/pop.md)."""

from __future__ import annotations

import heapq
from typing import NamedTuple

from broker_store.broker.pop.in_flight import OpenPop
from broker_store.engine.store_protocol import Store
from broker_store.errors import NotFoundError
from broker_store.formats import record
from broker_store.formats.names import RETRY_PREFIX, pop_retry_splits, popped_topic
from broker_store.messages import GetRequest, GetStatus
from broker_store.rest.problems import Problem
from broker_store.server.parts import BrokerParts
from mqadmin.cluster.embedded.host import Host
from mqadmin.cluster.protocol import Pops
from mqadmin.facts.pops import (
    SHOWN_MESSAGES,
    InvisibleMessage,
    InvisibleMessages,
    PopCounts,
    Popped,
    ReviveQueue,
)

READ_BYTES = 1 << 20
SEPARATOR = "-"  # in a key of the list


class _Key(NamedTuple):
    """The order of the list: by the time at which messages are visible again."""

    visible_ms: int
    serial: int  # of the pop
    offset: int


def pop_counts(parts: BrokerParts, group: str) -> PopCounts:
    """Return the counts of a group's popped messages."""
    counts, doubt = parts.in_flight.counts(group), parts.in_flight.doubt(group, parts.clock())
    return PopCounts(
        invisible=parts.in_flight.invisible_of(group),
        popped=counts.popped,
        acknowledged=counts.acknowledged,
        changed=counts.changed,
        came_again=counts.came_again,
        dropped=counts.dropped,
        without_effect=counts.without_effect,
        waiting_pops=parts.parked_pops.in_group(group),
        complete=not doubt,
        reason=doubt,
        refused=why_refused(parts),
    )


def why_refused(parts: BrokerParts) -> str:
    """Return why the broker refuses pops; empty if it does not."""
    if not parts.timer.enabled:
        return "timerWheelEnable is false, and popped messages come again by the timer wheel"
    if parts.store_settings.broker_role == "SLAVE":
        return "this broker is a slave"
    return ""


def popped(parts: BrokerParts) -> Popped:
    """Return the popped messages of all groups, and how far the revive log is read."""
    facts = parts.revive.facts()
    return Popped(
        refused=why_refused(parts),
        invisible=parts.in_flight.invisible,
        waiting_pops=parts.parked_pops.count,
        most_waiting_pops=parts.parked_pops.max_parked,
        topic=parts.revive_log.topic,
        on_wheel=parts.timer.waiting.of_topic(parts.revive_log.topic),
        queues=[
            ReviveQueue(
                queue_id=queue.queue_id,
                finished_offset=queue.finished if queue.finished >= 0 else None,
                read_offset=queue.read,
                max_offset=queue.end,
                lag=max(0, queue.end - queue.read),
                checkpoints=queue.in_hand,
                due_ms=queue.due_ms,
            )
            for queue in facts.queues
        ],
        acknowledged=facts.acknowledged,
        came_again=facts.revived,
        dropped=facts.dropped,
        invalid=facts.invalid,
        failures=facts.failures,
    )


def popped_from(parts: BrokerParts, retry_topic: str) -> tuple[str, str] | None:
    """Return the group and the topic of a pop retry topic; None for another retry topic."""
    if retry_topic.removeprefix(RETRY_PREFIX) in parts.groups.names:
        return None
    for group, topic in pop_retry_splits(retry_topic):
        if group in parts.groups.names and parts.topics.get(topic) is not None:
            return group, topic
    return None


class EmbeddedPops(Pops):
    """The implementation for the broker of this process."""

    def __init__(self, host: Host):
        self._host = host

    def invisible(
        self, group: str, after: str | None = None, limit: int = SHOWN_MESSAGES
    ) -> InvisibleMessages:
        parts, counts, pops = self._host.call(self._pops_of, group)
        begin = None if after is None else _read_key(after)
        # Each pop has a message at least, except the one at which the list goes on
        first = heapq.nsmallest(
            limit + 2, (pop for pop in pops if begin is None or _order(pop) >= begin[:2]), key=_order
        )
        keys = [(_Key(*_order(pop), offset), pop) for pop in first for offset in pop.offsets()]
        rows = [row for row in keys if begin is None or row[0] > begin][: limit + 1]
        return InvisibleMessages(
            at_ms=parts.clock(),
            counts=counts,
            messages=[_message(parts.store, key, pop) for key, pop in rows[:limit]],
            next=SEPARATOR.join(map(str, rows[limit - 1][0])) if len(rows) > limit else None,
        )

    def _pops_of(self, group: str) -> tuple[BrokerParts, PopCounts, list[OpenPop]]:
        parts = self._host.parts
        if group not in parts.groups.names:
            raise NotFoundError(f"group {group} does not exist")
        return parts, pop_counts(parts, group), parts.in_flight.pops_of(group)


def _order(pop: OpenPop) -> tuple[int, int]:
    return pop.checkpoint.revive_ms, pop.serial


def _read_key(text: str) -> _Key:
    try:
        visible_ms, serial, offset = map(int, text.split(SEPARATOR))
    except ValueError:
        raise Problem(
            "invalid", "the list of invisible messages has no such key; begin without one"
        ) from None
    return _Key(visible_ms, serial, offset)


def _message(store: Store, key: _Key, pop: OpenPop) -> InvisibleMessage:
    """Return a message with what its record says. In a thread."""
    given = pop.checkpoint.key
    result = store.reads.get_blocking(GetRequest(given.topic, given.queue_id, key.offset, 1, READ_BYTES))
    stored = (
        record.decode(result.body, check_crc=False)
        if result.status is GetStatus.FOUND and result.next_offset == key.offset + 1
        else None
    )
    return InvisibleMessage(
        topic=given.topic,
        of_topic=popped_topic(given.topic, given.group),
        queue_id=given.queue_id,
        offset=key.offset,
        log_offset=None if stored is None else stored.log_offset,
        message_id=None if stored is None else stored.message_id,
        popped_ms=given.pop_ms,
        visible_ms=key.visible_ms,
        given_out=None if stored is None else stored.reconsume_times + 1,
        client=pop.client,
        revive_queue=pop.revive_queue,
    )
