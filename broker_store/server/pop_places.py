"""Which queues a pop reads, and in which order (docs/spec/pop.md sections 5 and 9)."""

from __future__ import annotations

from collections import deque
from random import Random
from typing import NamedTuple

from broker_store.broker import priorities
from broker_store.formats.names import RETRY_PREFIX
from broker_store.formats.topics import MESSAGE_TYPE, PRIORITY
from broker_store.protocol.pop import NORMAL, RETRY_V1, RETRY_V2, topic_of
from broker_store.server.parts import BrokerParts
from broker_store.server.pop_request import ALL_QUEUES, Pop

KindAndQueue = tuple[int, int]


class Draw(NamedTuple):
    """Random numbers that choose the order of one pop.

    `retries` and `priority` are numbers of 0 to 99, which are compared with the percentages of the settings
    and of the group. `first` is the first queue of the topic that is read.
    """

    retries: int = 0
    priority: int = 0
    first: int = 0


def draw(random: Random, pop: Pop) -> Draw:
    """Return the numbers for one pop."""
    return Draw(random.randrange(100), random.randrange(100), random.randrange(max(1, pop.read_queues)))


def places_of(parts: BrokerParts, pop: Pop, drawn: Draw) -> deque[KindAndQueue]:
    """Return the queues in the order in which a pop reads them: those of the topic from the first on, or by
    priority, and those of the retry topics before or after them."""
    settings = parts.settings
    by_priority = _is_by_priority(parts, pop, drawn.priority)
    if pop.queue_id != ALL_QUEUES:
        queue_ids = [pop.queue_id]
    elif by_priority:
        queue_ids = list(range(pop.read_queues))
        if settings.priority_order_asc:
            queue_ids.reverse()
    else:
        queue_ids = [(drawn.first + number) % pop.read_queues for number in range(pop.read_queues)]
    normal = [(NORMAL, queue_id) for queue_id in queue_ids]
    if pop.is_order:  # what is not acknowledged is read again in its queue
        return deque(normal)
    retries = _retry_places(parts, pop)
    probability = (
        settings.pop_from_retry_probability_for_priority
        if by_priority
        else settings.pop_from_retry_probability
    )
    return deque(retries + normal if drawn.retries < probability else normal + retries)


def _is_by_priority(parts: BrokerParts, pop: Pop, drawn: int) -> bool:
    config = parts.topics.get(pop.topic)
    if pop.is_order or config is None or config.attributes.get(MESSAGE_TYPE) != PRIORITY:
        return False
    return drawn < priorities.factor_of(parts.groups.get(pop.group))


def _retry_places(parts: BrokerParts, pop: Pop) -> list[KindAndQueue]:
    """Return the queues of the group's retry topics for this topic, as far as they exist."""
    if pop.topic.startswith(RETRY_PREFIX):
        return []
    settings = parts.settings
    kinds = [RETRY_V1]
    if settings.enable_retry_topic_v2:
        kinds = [RETRY_V1, RETRY_V2] if settings.retrieve_message_from_pop_retry_topic_v1 else [RETRY_V2]
    return [
        (kind, queue_id)
        for kind in kinds
        if (config := parts.topics.get(topic_of(pop.topic, pop.group, kind))) is not None
        for queue_id in range(config.read_queues)
    ]
