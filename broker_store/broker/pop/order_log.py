"""The log of pops in order: after each change the state of one queue (docs/spec/pop.md section 8).

    pop, acknowledgement, invisible time ──► record {c, t, q, state} ──► the change in memory ──► answer

The topic has one queue. The newest record of a queue states all, so a start that reads the records since the
last save needs no other.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import NamedTuple

from broker_store.broker.pop import order_info
from broker_store.broker.pop.order_info import OrderInfo
from broker_store.broker.pop.revive_log import NEXT_OFFSET
from broker_store.broker.topics import Topics
from broker_store.engine.store_protocol import Store
from broker_store.errors import FormatError
from broker_store.excerpts import text_excerpt
from broker_store.formats import properties, record
from broker_store.messages import Message, PutResult

# Apache's broker has no such topic. By its prefix it is a system topic there, too.
PREFIX = "rmq_sys_POP_ORDER_LOG_"
TAG = "order"
MAX_BYTES = 16_384

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
        self.topic = PREFIX + cluster

    def put(self, place: Place, info: OrderInfo | None, next_offset: int | None) -> PutResult:
        """Store the state of a queue."""
        self._topics.ensure_own(self.topic)
        values = {properties.TAGS: TAG}
        if next_offset is not None:
            values[NEXT_OFFSET] = str(next_offset)
        host = self._host()
        return self._store.appender.put(
            Message(
                self.topic,
                0,
                encode(place, info),
                properties.encode(values),
                born_timestamp=self._clock(),
                born_host=host,
                store_host=host,
            )
        )


def encode(place: Place, info: OrderInfo | None) -> bytes:
    """Return the body of a record."""
    group, topic, queue_id = place
    value: dict[str, object] = {"c": group, "q": queue_id, "t": topic}
    if info is not None:
        value["state"] = order_info.to_json(info)
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def decode(stored: record.StoredMessage) -> OrderRecord:
    """Return what a record states. Raises FormatError."""
    body = stored.body
    if len(body) > MAX_BYTES:
        raise FormatError(
            "bytes of a record of pops in order", expected=f"at most {MAX_BYTES}", found=len(body)
        )
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"a record of pops in order is not readable as JSON: {error!s:.80}") from None
    if not isinstance(value, dict):
        raise FormatError("a record of pops in order must be an object", found=text_excerpt(value))
    group, topic, queue_id = value.get("c"), value.get("t"), value.get("q")
    if not isinstance(group, str) or not isinstance(topic, str) or not group or not topic:
        raise FormatError("c and t of a record of pops in order must be texts", found=text_excerpt(value))
    if type(queue_id) is not int or not 0 <= queue_id < 1 << 31:
        raise FormatError("q of a record of pops in order must be an int", found=text_excerpt(queue_id))
    state = value.get("state")
    text = stored.properties.get(NEXT_OFFSET, "")
    return OrderRecord(
        (group, topic, queue_id),
        None if state is None else order_info.from_json(state),
        int(text) if text.isdigit() and len(text) <= 18 else None,
    )
