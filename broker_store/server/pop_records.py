"""Records in the answers to pops (docs/spec/pop.md section 5)."""

from __future__ import annotations

from broker_store.errors import FormatError
from broker_store.formats import properties, record
from broker_store.protocol.pop import Receipt, write_receipt

_QUEUE_OFFSET_AT = record.FIXED_IPV4.offset["queue_offset"]


def message_places(body: bytes) -> tuple[list[tuple[int, int]], list[int]]:
    """Return start and size of each record in a body, and their queue offsets."""
    starts, offsets, at = [], [], 0
    while at < len(body):
        size = int.from_bytes(body[at : at + 4], "big")
        starts.append((at, size))
        begin = at + _QUEUE_OFFSET_AT
        offsets.append(int.from_bytes(body[begin : begin + 8], "big"))
        at += size
    return starts, offsets


def all_of_topic(body: bytes, topic: str, receipt: Receipt) -> bytes:
    """Return the records of a retry topic as those of its normal topic, each with its receipt."""
    starts, offsets = message_places(body)
    return b"".join(
        [
            as_of_topic(body[start : start + size], topic, receipt._replace(offset=found))
            for (start, size), found in zip(starts, offsets, strict=True)
        ]
    )


def as_of_topic(raw: bytes, topic: str, receipt: Receipt) -> bytes:
    """Return a record of a retry topic as one of its normal topic, with its receipt, as clients expect it."""
    stored = record.decode(raw, check_crc=False)
    encoded = properties.set_values(
        stored.raw_properties, {properties.POP_CHECKPOINT: write_receipt(receipt)}
    )
    message = stored.as_message(topic, stored.queue_id, encoded)
    message.prepared_transaction_offset = stored.prepared_transaction_offset
    try:
        return record.encode(message, stored.queue_offset, stored.log_offset, stored.store_timestamp)
    except FormatError:
        return raw  # no room for the receipt: the client makes it from the offsets in the answer
