"""Reads stretches of a queue for a start, which may wait for the disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from broker_store.engine.store_protocol import Store
from broker_store.formats import record
from broker_store.messages import GetRequest, GetStatus

_READ_AT_ONCE = 256
# Before the newest record, where no position in the log says from where on to read. Files are saved a few
# seconds after the first record, or as soon as the disk allows; without pops they may be days old, and the
# queue long.
MAX_UNSAVED_MS = 600_000


def records_of(
    store: Store,
    topic: str,
    queue_id: int,
    begin: int,
    end: int,
    damaged: Callable[[int], None] = lambda queue_offset: None,
) -> Iterator[record.StoredMessage]:
    """Yield the records of a queue from queue offset `begin` to before `end`, without those that are gone or
    damaged. `damaged(queue offset)` is called for the latter. Any thread but the loop's."""
    while begin < end:
        result = store.reads.get(GetRequest(topic, queue_id, begin, min(_READ_AT_ONCE, end - begin)))
        assert result is not None  # without a function to call, it waits for the disk
        if result.status is GetStatus.FOUND:
            yield from record.decode_all(result.body, check_crc=False)
        elif result.status is GetStatus.MESSAGE_DAMAGED:
            damaged(result.next_offset)
        begin = max(begin + 1, result.next_offset)


def first_at(store: Store, topic: str, queue_id: int, log_offset: int) -> int:
    """Return the first queue offset whose record lies at or after `log_offset`."""
    reads = store.reads
    low, high = reads.min_offset(topic, queue_id), reads.max_offset(topic, queue_id)
    while low < high:
        middle = (low + high) // 2
        units = reads.read_units(topic, queue_id, middle, 1)
        if units and units[0][0] < log_offset:
            low = middle + 1
        else:
            high = middle
    return low


def first_since(store: Store, topic: str, queue_id: int, since_ms: int) -> int:
    """Return the first queue offset whose record was stored at or after `since_ms`, and at most
    MAX_UNSAVED_MS before the newest one."""
    reads = store.reads
    end = reads.max_offset(topic, queue_id)
    newest = next(records_of(store, topic, queue_id, end - 1, end), None) if end else None
    if newest is not None:
        since_ms = max(since_ms, newest.store_timestamp - MAX_UNSAVED_MS)
    return reads.times.offset_by_time(topic, queue_id, since_ms)
