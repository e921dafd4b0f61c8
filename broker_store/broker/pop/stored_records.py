"""Reads stretches of a queue for a start, which may wait for the disk."""

from __future__ import annotations

from collections.abc import Iterator

from broker_store.engine.store_protocol import Store
from broker_store.formats import record
from broker_store.messages import GetRequest, GetStatus

_READ_AT_ONCE = 256


def records_of(
    store: Store, topic: str, queue_id: int, begin: int, end: int
) -> Iterator[record.StoredMessage]:
    """Yield the records of a queue from queue offset `begin` to before `end`, without those that are gone or
    damaged. Any thread but the loop's."""
    while begin < end:
        result = store.reads.get(GetRequest(topic, queue_id, begin, min(_READ_AT_ONCE, end - begin)))
        assert result is not None  # without a function to call, it waits for the disk
        if result.status is GetStatus.FOUND:
            yield from record.decode_all(result.body, check_crc=False)
        begin = max(begin + 1, result.next_offset)
