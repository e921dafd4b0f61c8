"""Rules for single records of the log, which the pipeline's audit shares: whether a good one lies at a place,
and what it states of itself."""

from __future__ import annotations

from collections.abc import Iterator

from broker_store.engine.disk.file_access import Reader
from broker_store.engine.log.row_buffer import MAX_RECORD
from broker_store.errors import FormatError
from broker_store.formats import record
from broker_store.kernels import context as c

# What is wrong with a record, by the reason code of the kernels
REASONS = {
    c.REASON_NOT_A_RECORD: "no record begins here, the magic is wrong",
    c.REASON_LENGTH: "a length is out of bounds or the parts do not add up",
    c.REASON_PLACE: "the record states another place in the log",
    c.REASON_BODY_CRC: "the body has another CRC",
    c.REASON_SYNTAX: "the topic or the properties hold what they may not",
    c.REASON_RECORD_CRC: "the CRC of the whole record, in its properties, is wrong",
}

_MAGICS = [magic.to_bytes(4, "big", signed=True) for magic in (record.MAGIC_V1, record.MAGIC_V2)]
_BOTH_BEGIN = _MAGICS[0][:3]  # this is searched: the two magics differ only in their last byte
_LAST_BYTES = [magic[3:] for magic in _MAGICS]
_MAGIC_AT = record.HEAD.offset["magic"]


def good_record(
    reader: Reader, at: int, room: int | None = None, log_offset: int | None = None
) -> record.StoredMessage | None:
    """Return the good record at byte `at` of a log file; None when there is none.

    It ends within `room` bytes, the rest of the file. It states that it lies at `log_offset`; with None it
    may state any place.
    """
    try:
        head = record.read_head(reader.read(at, record.BLANK_BYTES))
        longest = min(MAX_RECORD, reader.size - at if room is None else room)
        if not head.is_record or not record.MIN_RECORD <= head.total_size <= longest:
            return None
        return record.decode(reader.read(at, head.total_size), log_offset=log_offset, max_size=MAX_RECORD)
    except FormatError:
        return None


def magic_places(data: bytes) -> Iterator[int]:
    """Yield positions at which a record may begin: four bytes before each magic of a record."""
    at = data.find(_BOTH_BEGIN)
    while at >= 0:
        if at >= _MAGIC_AT and data[at + 3 : at + 4] in _LAST_BYTES:
            yield at - _MAGIC_AT
        at = data.find(_BOTH_BEGIN, at + 1)


def states_place(found: record.StoredMessage | None, topic: str, queue_id: int, number: int) -> bool:
    """Return whether a record states that it is message `number` of a queue; False without a record."""
    return found is not None and (found.topic, found.queue_id, found.queue_offset) == (
        topic,
        queue_id,
        number,
    )
