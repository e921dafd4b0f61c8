"""Popped messages of the broker in this process (docs/spec/pop.md)."""

from __future__ import annotations

import heapq
import zlib
from typing import NamedTuple

from broker_store.broker.pop.in_flight import OpenPop
from broker_store.engine.store_protocol import Store
from broker_store.errors import NotFoundError
from broker_store.formats import record
from broker_store.formats.names import RETRY_PREFIX, pop_retry_splits, popped_topic
from broker_store.formats.order_info import OrderInfo
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
MAX_QUEUES_IN_ORDER = 1_000  # of a group; the loop reads the state of each
SEPARATOR = "."  # in a key of the list


class _Key(NamedTuple):
    """The order of the list: by the time at which messages are visible again."""

    visible_ms: int
    serial: int  # of the pop; below 0 of a queue that was popped in order
    offset: int


class _Row(NamedTuple):
    """A message of the list. `given_out` is None if its record has that."""

    key: _Key
    topic: str
    group: str
    queue_id: int
    popped_ms: int
    client: str | None
    revive_queue: int | None
    given_out: int | None = None


class Invisible(NamedTuple):
    """How many messages are invisible, and why there may be more; an empty doubt if there are not."""

    messages: int
    doubt: str


def invisible_of(parts: BrokerParts, group: str, topic: str | None = None) -> Invisible:
    """Return how many messages are invisible to a group, of all topics or of one."""
    now_ms = parts.clock()
    queues = parts.ordered.queues_of(group, MAX_QUEUES_IN_ORDER)
    in_order = sum(
        _invisible_in_order(info, now_ms) for place, info, _ in queues if topic in (None, place[1])
    )
    doubt = parts.in_flight.doubt(group, now_ms)
    if len(queues) == MAX_QUEUES_IN_ORDER:
        doubt = f"of the queues that the group popped in order, {MAX_QUEUES_IN_ORDER:,} are counted"
    return Invisible(parts.in_flight.invisible_of(group, topic) + in_order, doubt)


def invisible_in_queue(parts: BrokerParts, group: str, topic: str, queue_id: int) -> int:
    """Return how many messages of a queue are invisible to a group."""
    info = parts.ordered.state((group, topic, queue_id))
    in_order = 0 if info is None else _invisible_in_order(info, parts.clock())
    return parts.in_flight.invisible_of(group, topic, queue_id) + in_order


def _invisible_in_order(info: OrderInfo, now_ms: int) -> int:
    return sum(info.visible_ms(offset) > now_ms for offset in info.left())


def pop_counts(parts: BrokerParts, group: str) -> PopCounts:
    """Return the counts of a group's popped messages."""
    counts, invisible = parts.in_flight.counts(group), invisible_of(parts, group)
    return PopCounts(
        invisible=invisible.messages,
        popped=counts.popped,
        acknowledged=counts.acknowledged,
        changed=counts.changed,
        came_again=counts.came_again,
        dropped=counts.dropped,
        without_effect=counts.without_effect,
        waiting_pops=parts.parked_pops.in_group(group),
        complete=not invisible.doubt,
        reason=invisible.doubt,
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
        invisible_doubt=parts.in_flight.doubt(None, parts.clock()),
        queues_in_order=len(parts.ordered),
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
        parts, counts, pops, in_order = self._host.call(self._popped, group)
        begin = None if after is None else _read_key(after)
        # Each pop has a message at least, except the one at which the list goes on
        first = heapq.nsmallest(
            limit + 2, (pop for pop in pops if begin is None or _order(pop) >= begin[:2]), key=_order
        )
        rows = [row for pop in first for row in _rows(pop)] + in_order
        shown = heapq.nsmallest(limit + 1, (row for row in rows if begin is None or row.key > begin))
        return InvisibleMessages(
            at_ms=parts.clock(),
            counts=counts,
            messages=[_message(parts.store, row) for row in shown[:limit]],
            next=SEPARATOR.join(map(str, shown[limit - 1].key)) if len(shown) > limit else None,
        )

    def _popped(self, group: str) -> tuple[BrokerParts, PopCounts, list[OpenPop], list[_Row]]:
        parts = self._host.parts
        if group not in parts.groups.names:
            raise NotFoundError(f"group {group} does not exist")
        return parts, pop_counts(parts, group), parts.in_flight.pops_of(group), _rows_in_order(parts, group)


def _order(pop: OpenPop) -> tuple[int, int]:
    return pop.checkpoint.revive_ms, pop.serial


def _rows(pop: OpenPop) -> list[_Row]:
    key, visible_ms = pop.checkpoint.key, pop.checkpoint.revive_ms
    return [
        _Row(
            _Key(visible_ms, pop.serial, offset),
            key.topic,
            key.group,
            key.queue_id,
            key.pop_ms,
            pop.client,
            pop.revive_queue,
        )
        for offset in pop.offsets()
    ]


def _rows_in_order(parts: BrokerParts, group: str) -> list[_Row]:
    """Return the messages that are invisible to a group by pops in order."""
    now_ms = parts.clock()
    rows = []
    for (_, topic, queue_id), info, client in parts.ordered.queues_of(group, MAX_QUEUES_IN_ORDER):
        serial = -1 - zlib.crc32(f"{topic}@{queue_id}".encode())
        rows += [
            _Row(
                _Key(info.visible_ms(offset), serial, offset),
                topic,
                group,
                queue_id,
                info.pop_ms,
                client,
                None,
                info.counts.get(offset, 0) + 1,
            )
            for offset in info.left()
            if info.visible_ms(offset) > now_ms
        ]
    return rows


def _read_key(text: str) -> _Key:
    try:
        visible_ms, serial, offset = map(int, text.split(SEPARATOR))
    except ValueError:
        raise Problem(
            "invalid", "the list of invisible messages has no such key; begin without one"
        ) from None
    return _Key(visible_ms, serial, offset)


def _message(store: Store, row: _Row) -> InvisibleMessage:
    """Return a message with what its record says. In a thread."""
    offset = row.key.offset
    result = store.reads.get_blocking(GetRequest(row.topic, row.queue_id, offset, 1, READ_BYTES))
    stored = (
        record.decode(result.body, check_crc=False)
        if result.status is GetStatus.FOUND and result.next_offset == offset + 1
        else None
    )
    given_out = row.given_out
    if given_out is None and stored is not None:
        given_out = stored.reconsume_times + 1
    return InvisibleMessage(
        topic=row.topic,
        of_topic=popped_topic(row.topic, row.group),
        queue_id=row.queue_id,
        offset=offset,
        log_offset=None if stored is None else stored.log_offset,
        message_id=None if stored is None else stored.message_id,
        popped_ms=row.popped_ms,
        visible_ms=row.key.visible_ms,
        given_out=given_out,
        client=row.client,
        revive_queue=row.revive_queue,
    )
