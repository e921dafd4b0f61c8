"""Which queues a pop reads, and in which order (docs/spec/pop.md section 5)."""

from __future__ import annotations

from collections import deque

from broker_store.formats.names import RETRY_PREFIX
from broker_store.protocol.pop import NORMAL, RETRY_V1, RETRY_V2, topic_of
from broker_store.server.parts import BrokerParts
from broker_store.server.pop_request import ALL_QUEUES, Pop

KindAndQueue = tuple[int, int]


def places_of(parts: BrokerParts, pop: Pop, chance: int, first: int = 0) -> deque[KindAndQueue]:
    """Return the queues in the order in which a pop reads them: those of the topic from the queue `first` on,
    and those of the retry topics before them if `chance`, a number of 0 to 99, is below
    popFromRetryProbability, else after them."""
    if pop.queue_id == ALL_QUEUES:
        normal = [(NORMAL, (first + number) % pop.read_queues) for number in range(pop.read_queues)]
    else:
        normal = [(NORMAL, pop.queue_id)]
    if pop.is_order:  # what is not acknowledged is read again in its queue
        return deque(normal)
    retries = _retry_places(parts, pop)
    if chance < parts.settings.pop_from_retry_probability:
        return deque(retries + normal)
    return deque(normal + retries)


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
