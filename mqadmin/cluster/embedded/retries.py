"""The retry topics of a group: that of messages that it sent back, and those of messages that it popped."""

from __future__ import annotations

from collections.abc import Iterable

from broker_store.engine.store_protocol import Store
from broker_store.formats.names import RETRY_PREFIX, pop_retry_topic, retry_topic
from broker_store.server.parts import BrokerParts


def retry_topics(parts: BrokerParts, group: str, topics: Iterable[str]) -> list[str]:
    """Return the retry topics of a group that exist. `topics` are those that it has offsets of."""
    sent_back = retry_topic(group)
    found = [] if parts.topics.get(sent_back) is None else [sent_back]
    return found + pop_retry_topics(parts, group, topics)


def pop_retry_topics(parts: BrokerParts, group: str, topics: Iterable[str]) -> list[str]:
    """Return the retry topics with messages of `topics` that a group popped. A pop commits an offset of its
    topic, so the topics with offsets lead to all of them, by two look-ups each.

    A name that is also the retry topic of another group belongs to that group.
    """
    return [
        name
        for topic in topics
        if not topic.startswith(RETRY_PREFIX)
        for name in (pop_retry_topic(topic, group), pop_retry_topic(topic, group, version=2))
        if parts.topics.get(name) is not None and name.removeprefix(RETRY_PREFIX) not in parts.groups.names
    ]


def without_offset(parts: BrokerParts, group: str, retries: Iterable[str]) -> list[str]:
    """Return the retry topics in which a group has no offset: all their messages are its lag."""
    return [name for name in retries if not parts.offsets.of(group, name)]


def kept_messages(store: Store, topic: str) -> int:
    """Return the number of messages that a topic holds; 0 if it does not exist."""
    return sum(
        store.reads.max_offset(topic, queue_id) - store.reads.min_offset(topic, queue_id)
        for queue_id in store.queue_ids(topic)
    )
