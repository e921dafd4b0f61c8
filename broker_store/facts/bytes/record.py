"""The fields of a record of the commit log, and of the blank that ends a file."""

from __future__ import annotations

from dataclasses import replace

from broker_store.errors import FormatError
from broker_store.facts.bytes.field import Field, Reading, edited, field, number, of_layout, time_words
from broker_store.facts.bytes.pieces import RecordBytes, Tone, piece
from broker_store.facts.pointers import UnitPointer, to_log
from broker_store.formats import record
from broker_store.formats.message_id import host_text
from broker_store.formats.record import StoredMessage

_MEANINGS = {
    "total_size": "length of the whole record; the next one begins that much further on",
    "magic": "which version of the record this is",
    "body_crc": "CRC-32 of the body without its highest bit, checked whenever an old record is read",
    "queue_id": "the queue of the topic",
    "flag": "a number of the producer's own",
    "queue_offset": "place in the queue: the number of its unit there",
    "log_offset": "place in the commit log; a record that states another place is not trusted",
    "sys_flag": "compression, transaction and address bits",
    "born_timestamp": "when the producer made it, by the producer's clock",
    "born_address": "address of the producer",
    "born_port": "port of the producer",
    "store_timestamp": "when the broker stored it",
    "store_address": "address of the broker",
    "store_port": "port of the broker",
    "reconsume_times": "how often a group has sent it back",
    "prepared_transaction_offset": "where its prepared half lies, 0 when it had none",
    "body_length": "length of the body",
    "body": "what the producer sent",
    "topic_length": "length of the topic's name",
    "topic": "name of the topic",
    "properties_length": "length of the properties",
    "properties": "name and value pairs: tag, keys, message id and the producer's own",
    "surplus": "bytes that belong to no field: the lengths in the record do not add up to its size",
}
_BLANK_MEANINGS = {
    "total_size": "how much of the file is left, these bytes included",
    "magic": "says that the log goes on in the next file",
    "unused": "never read",
}
_TRANSACTIONS = {
    record.TRANSACTION_PREPARED: "prepared",
    record.TRANSACTION_COMMIT: "committed",
    record.TRANSACTION_ROLLBACK: "rolled back",
}


def record_fields(buffer: bytes, at: int) -> tuple[list[Field], str]:
    """Return every field of the record that `buffer` begins with, at position `at` of the log, and what is
    wrong with it ("": nothing).

    The buffer may end before the record does. A length that leads beyond the record ends the list with a
    surplus.
    """
    total_size, magic = record.HEAD.unpack(buffer)
    (sys_flag,) = record.SYS_FLAG.unpack(buffer, record.SYS_FLAG_AT)
    layout = record.FIXED[(sys_flag >> 4) & 3]
    size = min(total_size, len(buffer))
    if layout.size > size:
        return [_surplus(at, 0, size)], f"it is {size} bytes long, and its fields alone take {layout.size}"
    body_length: int = layout.unpack(buffer)[layout.names.index("body_length")]
    body = buffer[layout.size : layout.size + max(0, body_length)]
    fields = of_layout(_MEANINGS, layout, buffer, at, _Reader(at, body, body_length).read)
    place = layout.size
    for name, length_name, prefix in (
        ("body", "", None),
        ("topic", "topic_length", record.TOPIC_LENGTH[magic]),
        ("properties", "properties_length", record.PROPERTIES_LENGTH),
    ):
        length = body_length
        if prefix is not None:
            if place + prefix.size > size:
                break
            (length,) = prefix.unpack(buffer, place)
            fields.append(
                field(_MEANINGS, length_name, at + place, prefix.size, number(length_name, length), length)
            )
            place += prefix.size
        if length < 0 or place + length > size:
            break
        words = _part_words(name, buffer[place : place + length])
        fields.append(field(_MEANINGS, name, at + place, length, Reading(words)))
        place += length
    if place < size:
        fields.append(_surplus(at, place, size - place))
    return fields, _problem(buffer, at)


def problem_words(problem: str) -> tuple[str, Tone]:
    """Return (sentence, tone) for what is wrong with a record ("": nothing)."""
    return (f"No reader takes this for a sound record: {problem}.", "bad") if problem else ("", "")


def _surplus(at: int, place: int, length: int) -> Field:
    return field(_MEANINGS, "surplus", at + place, length, Reading(f"{length:,} bytes", right=False))


def _problem(buffer: bytes, at: int) -> str:
    """Return why a reader would not take these bytes for a valid record; "" when it would."""
    try:
        record.decode(buffer, log_offset=at, max_size=len(buffer))
    except FormatError as error:
        return str(error)
    return ""


class _Reader:
    """Reads the fixed fields of the record at position `at` of the log."""

    def __init__(self, at: int, body: bytes, body_length: int):
        self._at, self._body, self._body_length = at, body, body_length

    def read(self, name: str, value: int | bytes) -> Reading:
        if isinstance(value, bytes):
            return Reading(host_text((value, 0)).rpartition(":")[0])
        if name == "magic":
            version = 2 if value == record.MAGIC_V2 else 1
            return Reading(f"{value & 0xFFFFFFFF:#010x} (version {version})")
        if name == "body_crc":
            return crc_reading(value, self._body, self._body_length)
        if name == "log_offset":
            right = value == self._at
            words = "" if right else f" (WRONG: it lies at {self._at:,})"
            return Reading(f"{value:,}{words}", right=right)
        if name in ("born_timestamp", "store_timestamp"):
            return Reading(time_words(value))
        if name == "sys_flag":
            return Reading(f"{value} ({sys_flag_words(value)})")
        if name == "prepared_transaction_offset" and value > 0:
            return Reading(f"{value:,}", to_log(value))
        return number(name, value)


def crc_reading(stated: int, body: bytes, body_length: int) -> Reading:
    """Compare the CRC that a record states with the one of its body."""
    if len(body) != body_length:
        return Reading(f"{stated & 0xFFFFFFFF:#010x} (not checked: the body does not end within these bytes)")
    found = record.body_crc(body)
    if found == stated:
        return Reading(f"{stated & 0xFFFFFFFF:#010x} (right)", right=True)
    return Reading(f"{stated & 0xFFFFFFFF:#010x} (WRONG: the body has {found:#010x})", right=False)


def sys_flag_words(sys_flag: int) -> str:
    """Return the names of the bits that are set."""
    words = []
    if sys_flag & record.SYS_COMPRESSED:
        words.append("compressed")
    if sys_flag & record.SYS_BORN_IPV6:
        words.append("IPv6 producer")
    if sys_flag & record.SYS_STORE_IPV6:
        words.append("IPv6 broker")
    transaction = sys_flag & record.SYS_TRANSACTION_MASK
    if transaction in _TRANSACTIONS:
        words.append(_TRANSACTIONS[transaction])
    return ", ".join(words) or "plain"


def _part_words(name: str, part: bytes) -> str:
    if name == "body":
        return f"{len(part):,} bytes"
    if name == "topic":
        return part.decode("utf-8", "replace")
    pairs = sum(1 for piece in part.split(b"\x02") if b"\x01" in piece)
    return f"{pairs} pairs"


def with_unit(fields: list[Field], stored: StoredMessage) -> list[Field]:
    """Return the fields of a valid record whose queue offset points to its unit, if it has one."""
    if not stored.is_queued:
        return fields
    unit = UnitPointer(topic=stored.topic, queue=stored.queue_id, unit=stored.queue_offset)
    return edited(fields, "queue_offset", lambda one: replace(one, pointer=unit))


def blank_fields(buffer: bytes, at: int, left: int) -> list[Field]:
    """Return the fields of the blank that ends a file of which `left` bytes were left."""

    def read(name: str, value: int) -> Reading:
        if name == "magic":
            return Reading(f"{value & 0xFFFFFFFF:#010x} (end of this file)")
        right = value == left
        return Reading(f"{value:,}" + ("" if right else f" (WRONG: {left:,} are left)"), right=right)

    fields = of_layout(_BLANK_MEANINGS, record.HEAD, buffer, at, read)
    unused = left - record.BLANK_BYTES
    if unused:
        words = Reading(f"{unused:,} bytes")
        fields.append(field(_BLANK_MEANINGS, "unused", at + record.BLANK_BYTES, unused, words))
    return fields


def record_bytes(raw: bytes, log_offset: int, max_bytes: int) -> RecordBytes:
    """Return the fields of a whole record and at most `max_bytes` of its bytes."""
    fields, problem = record_fields(raw, log_offset)
    whole = piece("record", "record", log_offset, len(raw), *problem_words(problem), fields)
    return RecordBytes(
        at=log_offset,
        length=min(len(raw), max_bytes),
        cut=max(0, len(raw) - max_bytes),
        hex=raw[:max_bytes].hex(),
        pieces=[whole],
    )
