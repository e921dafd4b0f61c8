"""Reads records of the revive log, whose bytes may be foreign.

The body of a record repeats what its unique key and its delivery time say. A body that contradicts them was
overwritten: what it names was not popped then, or not for that time.
"""

from __future__ import annotations

from broker_store.broker.skipped_records import SkippedRecords
from broker_store.broker.timer_request import parse_long
from broker_store.engine.store_protocol import Store
from broker_store.errors import FormatError
from broker_store.excerpts import text_excerpt
from broker_store.formats import pop_records, properties, record
from broker_store.formats.pop_records import ACK_TAG, BATCH_ACK_TAG, CHECKPOINT_TAG, PopAck, PopCheckpoint

# Between the delivery of a pop checkpoint and the end of its invisible time. Brokers write one second.
MAX_AHEAD_MS = 3_600_000
_KEY_CHARACTERS = 400  # both names have up to 127
NOT_AGAIN = (
    "If it was a pop checkpoint, messages of that pop that were not acknowledged do not come again: set the "
    "offset of the group back to have them again. If it was an acknowledgement, its messages come again"
)
TOO_EARLY = (
    "It may have been the last pop of a group before the end of the last run: then its messages are given "
    "again before their time"
)


def read_checkpoint(stored: record.StoredMessage) -> PopCheckpoint:
    """Return the pop checkpoint of a record with its tag. Raises FormatError."""
    found = pop_records.decode_checkpoint(stored.body)
    if found.key.broker_name:  # brokers before 5.0 write none, and another unique key
        _check_key(stored, pop_records.checkpoint_id(found.key))
    due_ms = parse_long(stored.properties.get(properties.TIMER_DELIVER_MS))
    if due_ms is not None and not 0 <= found.revive_ms - due_ms <= MAX_AHEAD_MS:
        raise FormatError(
            "the end of the invisible time is not that of the delivery time",
            expected=f"soon after {due_ms}",
            found=found.revive_ms,
        )
    return found


def checkpoint_of(stored: record.StoredMessage) -> PopCheckpoint | None:
    """Return the pop checkpoint of a record; None if it is another one, or invalid."""
    if stored.tags != CHECKPOINT_TAG:
        return None
    try:
        return read_checkpoint(stored)
    except FormatError:
        return None


def read_ack(stored: record.StoredMessage) -> PopAck:
    """Return the acknowledgement of a record. Raises FormatError, also for another tag."""
    tag = stored.tags
    if tag not in (ACK_TAG, BATCH_ACK_TAG):
        raise pop_records.other_tag(tag)
    found = pop_records.decode_ack(stored.body)
    if tag == BATCH_ACK_TAG:
        _check_key(stored, pop_records.batch_ack_id(found.key, found.offsets))
    elif found.key.broker_name:
        _check_key(stored, pop_records.ack_id(found.key, found.offsets[0]))
    return found


def _check_key(stored: record.StoredMessage, expected: str) -> None:
    """Raise FormatError if a record has another unique key than its body demands."""
    found = stored.unique_key
    if found and found != expected:
        raise FormatError(
            "unique key of a record of the revive log is not that of its body",
            expected=text_excerpt(expected, _KEY_CHARACTERS),
            found=text_excerpt(found, _KEY_CHARACTERS),
        )


class SkippedPopRecords:
    """Notes records of the revive log that are skipped, also those that wait in the timer topic. `advice`
    says what follows, and what to do."""

    def __init__(self, store: Store, advice: str):
        self._store, self._advice = store, advice
        self._records = SkippedRecords(store)

    def invalid(self, stored: record.StoredMessage, cause: object) -> None:
        """Note a record that is as it was stored, and means nothing."""
        key = stored.unique_key
        whose = f"; its key is {text_excerpt(key, _KEY_CHARACTERS)}" if key else ""
        self._records.note(
            stored.topic,
            stored.queue_id,
            stored.queue_offset,
            stored.log_offset,
            f"{cause}{whose}",
            self._advice,
        )

    def damaged(self, topic: str, queue_id: int, queue_offset: int) -> None:
        """Note a record that is not as it was stored."""
        units = self._store.reads.read_units(topic, queue_id, queue_offset, 1)
        log_offset = units[0][0] if units else None
        self._records.note(topic, queue_id, queue_offset, log_offset, "it is damaged", self._advice)
