"""The logical queue that a request names, of a static topic (formats/static_topics.py).

client ──► leader of the logical queue ──► its own store
                                       ──► the broker of an older item; lo=false: a physical queue
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from broker_store.broker.static_topics import item_at
from broker_store.formats.static_topics import MappingItem, Row, TopicMapping
from broker_store.protocol.codes import ResponseCode
from broker_store.server.handler import Refusal


class LogicalQueue(NamedTuple):
    """A logical queue that this broker leads."""

    mapping: TopicMapping
    number: int
    row: Row

    @property
    def leader(self) -> MappingItem:
        return self.row[-1]

    def item_at(self, logical: int) -> MappingItem:
        """Return the item of a logical offset. Raises Refusal if none is decided: the queue is being moved,
        and its first item is gone."""
        item = item_at(self.row, logical)
        if item is None:
            raise Refusal(
                ResponseCode.SYSTEM_ERROR,
                f"queue {self.number} of topic {self.mapping.topic:.127} has no item with an offset yet",
                "logical queue without an offset",
            )
        return item


def not_leader(mapping: TopicMapping, number: int) -> Refusal:
    """Return the refusal of a request for a logical queue that another broker leads. Clients find the
    leader in their next route."""
    return Refusal(
        ResponseCode.NOT_LEADER_FOR_QUEUE,
        f"{mapping.topic:.127}-{number} does not exit in request process of current broker "
        f"{mapping.broker:.60}",
        "not the leader of a logical queue",
    )


def queue_of(
    mapping: TopicMapping, number: int, fields: Mapping[str, str] | None, *, any_queue: bool = False
) -> LogicalQueue | None:
    """Return the logical queue of a request; None if it names a physical one (lo=false), as other brokers do.

    Raises Refusal if this broker does not lead the queue. With `any_queue` a negative number means any queue
    that it leads.
    """
    stated = (fields or {}).get("lo")
    if stated is not None and stated.lower() != "true":
        return None
    if number < 0 and any_queue:
        number = next(iter(mapping.leads), number)
    row = mapping.rows.get(number, ())
    if not mapping.is_leader_of(row):
        raise not_leader(mapping, number)
    return LogicalQueue(mapping, number, row)


def other_failed(item: MappingItem, why: str) -> Refusal:
    """Return the refusal of a request that the broker of an item did not answer as it should."""
    return Refusal(
        ResponseCode.SYSTEM_ERROR,
        f"broker {item.broker:.60}, which has queue {item.queue_id} of the topic: {why:.120}",
        "other broker failed",
    )
