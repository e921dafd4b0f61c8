"""Priorities of messages (docs/spec/pop.md section 9).

The priority of a message is a number from 0 on. It chooses the queue of the message. Pops of a topic of the
type PRIORITY read the queues in the order of their numbers.
"""

from __future__ import annotations

from broker_store.broker.groups import PRIORITY_FACTOR, SubscriptionGroup
from broker_store.broker.timer_request import parse_long
from broker_store.formats import properties

MARK = f"{properties.PRIORITY}\x01".encode()
MAX_FACTOR = 100  # percent; also that of a group without the attribute
_MAX_PRIORITY = (1 << 31) - 1
_DELAYED = (properties.DELAY, *properties.TIMER_ASKING)
_NAMES = properties.any_of(
    (properties.PRIORITY, properties.TRANSACTION_PREPARED, properties.SHARDING_KEY, *_DELAYED)
)


def queue_of(priority: int, write_queues: int) -> int:
    """Return the queue of a priority. Priorities for which there is no queue have the last one."""
    return max(0, min(priority, write_queues - 1))


def placed(encoded: bytes, queue_id: int, write_queues: int) -> tuple[int, bytes]:
    """Return the queue of a message and its properties, as Apache's broker changes them
    (SendMessageProcessor).

    A priority chooses the queue. A message that is delayed, in order or of a transaction loses its priority.
    A priority that is not a number from 0 on has no effect.
    """
    pairs = properties.get_some(encoded, _NAMES)
    priority = parse_long(pairs.get(properties.PRIORITY))
    if priority is None or not 0 <= priority <= _MAX_PRIORITY:
        return queue_id, encoded
    if (
        pairs.get(properties.TRANSACTION_PREPARED, "").lower() == "true"
        or properties.SHARDING_KEY in pairs
        or any(name in pairs for name in _DELAYED)
    ):
        return queue_id, properties.set_values(encoded, {properties.PRIORITY: None})
    return queue_of(priority, write_queues), encoded


def factor_of(group: SubscriptionGroup | None) -> int:
    """Return in how many of 100 pops a group reads queues by priority (its attribute priority.factor)."""
    factor = parse_long(group.attributes.get(PRIORITY_FACTOR)) if group is not None else None
    return MAX_FACTOR if factor is None else factor


def is_factor(text: str) -> bool:
    """Return whether a group may have a text as its priority.factor."""
    factor = parse_long(text)
    return factor is not None and 0 <= factor <= MAX_FACTOR
