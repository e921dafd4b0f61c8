"""The log of pops in order: after each change the state of one queue (docs/spec/pop.md section 8).

    pop, acknowledgement, invisible time ──► record {c, t, q, state} ──► the change in memory ──► answer

The topic has one queue. The newest record of a queue states all, so a start that reads the records since the
last save needs no other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from broker_store.broker.pop.revive_log import NEXT_OFFSET
from broker_store.broker.timer_request import parse_long
from broker_store.broker.topics import Topics
from broker_store.engine.store_protocol import Store
from broker_store.formats import properties, record
from broker_store.formats.order_info import (
    LOG_PREFIX,
    LOG_TAG,
    OrderInfo,
    OrderState,
    decode_state,
    encode_state,
)
from broker_store.messages import Message, PutResult

Place = tuple[str, str, int]  # group, topic, queue id


class OrderRecord(NamedTuple):
    """A record. `info` is None after a reset. `next_offset` is where the group's next pop begins, None if it
    has no offset any more."""

    place: Place
    info: OrderInfo | None
    next_offset: int | None


class OrderLog:
    """`host` returns the broker's address in records."""

    def __init__(
        self,
        store: Store,
        topics: Topics,
        *,
        cluster: str,
        clock: Callable[[], int],
        host: Callable[[], tuple[bytes, int]],
    ):
        self._store, self._topics, self._clock, self._host = store, topics, clock, host
        self.topic = LOG_PREFIX + cluster

    def put(self, place: Place, info: OrderInfo | None, next_offset: int | None) -> PutResult:
        """Store the state of a queue."""
        self._topics.ensure_own(self.topic)
        values = {properties.TAGS: LOG_TAG}
        if next_offset is not None:
            values[NEXT_OFFSET] = str(next_offset)
        host = self._host()
        return self._store.appender.put(
            Message(
                self.topic,
                0,
                encode_state(OrderState(*place, info)),
                properties.encode(values),
                born_timestamp=self._clock(),
                born_host=host,
                store_host=host,
            )
        )


def decode(stored: record.StoredMessage) -> OrderRecord:
    """Return what a record states. Raises FormatError."""
    state = decode_state(stored.body)
    offset = parse_long(stored.properties.get(NEXT_OFFSET))
    return OrderRecord(
        (state.group, state.topic, state.queue_id),
        state.info,
        None if offset is None or offset < 0 else offset,
    )
