"""Messages as they are stored in a retry topic when they come again, and those that a kill left there without
their acknowledgement (docs/spec/pop.md section 6).

    log    ... │ message in the retry topic │ message │ ■ end of the log: the acknowledgement is missing
"""

from __future__ import annotations

from collections.abc import Iterable

from broker_store.broker.pop.stored_records import records_of
from broker_store.engine.store_protocol import Store
from broker_store.formats import properties, record
from broker_store.formats.names import RETRY_PREFIX
from broker_store.formats.pop_records import MAX_MESSAGES, PopCheckpoint
from broker_store.messages import Message


def again(stored: record.StoredMessage, topic: str, checkpoint: PopCheckpoint) -> Message:
    """Return the message as it is stored in a retry topic."""
    encoded = stored.raw_properties
    if not stored.reconsume_times or properties.FIRST_POP_TIME not in stored.properties:
        encoded = stored.properties_with({properties.FIRST_POP_TIME: str(checkpoint.key.pop_ms)})
    message = stored.as_message(topic, 0, encoded)
    message.reconsume_times = min(stored.reconsume_times + 1, record.MAX_TRIES)
    return message


def is_stored_as(message: Message, stored: record.StoredMessage) -> bool:
    """Return whether a record of the retry topic is this message."""
    return (message.topic, message.body, message.reconsume_times, message.born_timestamp) == (
        stored.topic,
        stored.body,
        stored.reconsume_times,
        stored.born_timestamp,
    ) and properties.decode(message.properties) == properties.decode(stored.raw_properties)


def at_the_end(store: Store, topics: Iterable[str]) -> list[record.StoredMessage]:
    """Return the messages of a retry topic that are the last records of the log. Any thread, before the
    first put."""
    reads = store.reads
    for topic in topics:
        high = reads.max_offset(topic, 0) if topic.startswith(RETRY_PREFIX) else 0
        first, end = high, store.log.wrote
        while first > reads.min_offset(topic, 0) and high - first < MAX_MESSAGES:
            units = reads.read_units(topic, 0, first - 1, 1)
            if not units or units[0][0] + units[0][1] != end:
                break
            first, end = first - 1, units[0][0]
        if found := list(records_of(store, topic, 0, first, high)):
            return found
    return []
