"""The commit log record (docs/spec/store-format.md section 2), of both versions, with IPv4 and IPv6 hosts,
and the blank.

    total size, magic, body CRC, queue id, flag          4 bytes each
    queue offset, physical offset                        8 each
    sys flag                                             4
    born timestamp                                       8
    born host: 4 or 16 address bytes, port               8 or 20
    store timestamp                                      8
    store host                                           8 or 20
    reconsume times, prepared transaction offset         4, 8
    body length, body                                    4 + n
    topic length, topic                                  1 + t (V1) or 2 + t (V2)
    properties length, properties                        2 + p

Up to the body everything is fixed once the two IPv6 bits of the sys flag are known, so there are four tables.
A record states its own length three times over (total, sum of parts, place of the next) and its own place;
`decode` checks all of them before it uses any of them, because recovery also reads torn and stale bytes.

A file ends in a blank: the rest of the file as total size, BLANK_MAGIC, and nothing more. So 8 bytes are
always left.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from broker_store.errors import FormatError
from broker_store.formats import message_id, properties
from broker_store.formats.layout import Layout, ReadBuffer
from broker_store.messages import LOOPBACK_HOST, Message

MAGIC_V1 = 0xDAA320A7 - (1 << 32)
MAGIC_V2 = 0xDAA320AB - (1 << 32)
BLANK_MAGIC = 0xCBD43194 - (1 << 32)

SYS_COMPRESSED = 0x1
SYS_MULTI_TAGS = 0x2
SYS_TRANSACTION_MASK = 0xC
TRANSACTION_NONE, TRANSACTION_PREPARED, TRANSACTION_COMMIT, TRANSACTION_ROLLBACK = 0x0, 0x4, 0x8, 0xC
SYS_BORN_IPV6 = 0x10
SYS_STORE_IPV6 = 0x20
SYS_NEED_UNWRAP = 0x40
SYS_INNER_BATCH = 0x80
SYS_COMPRESSION_MASK = 0x700
COMPRESSION_LZ4, COMPRESSION_ZSTD, COMPRESSION_ZLIB = 0x100, 0x200, 0x300

CRC_MASK = 0x7FFFFFFF  # Apache stores the CRC in a signed int and drops the sign
MAX_TOPIC_V1 = 127  # its length is a signed byte
MAX_TOPIC_V2 = 32767
MAX_PROPERTIES = properties.MAX_BYTES
MAX_TRIES = (1 << 31) - 1
RECORD_CRC_BEGIN = b"__CRC32#\x01"
RECORD_CRC_BYTES = len(RECORD_CRC_BEGIN) + 11  # ten digits, the lowest first, and the end of the pair
MAX_BODY = 4 * 1024 * 1024  # Apache's default of maxMessageSize
MAX_BEYOND_BODY = 64 * 1024  # what a record may have besides its body
MAX_RECORD = MAX_BODY + MAX_BEYOND_BODY


def _fixed(born_address_bytes: int, store_address_bytes: int) -> Layout:
    return Layout(
        ("total_size", "i"),
        ("magic", "i"),
        ("body_crc", "i"),
        ("queue_id", "i"),
        ("flag", "i"),
        ("queue_offset", "q"),
        ("log_offset", "q"),
        ("sys_flag", "i"),
        ("born_timestamp", "q"),
        ("born_address", f"{born_address_bytes}s"),
        ("born_port", "i"),
        ("store_timestamp", "q"),
        ("store_address", f"{store_address_bytes}s"),
        ("store_port", "i"),
        ("reconsume_times", "i"),
        ("prepared_transaction_offset", "q"),
        ("body_length", "i"),
    )


# By the two IPv6 bits of the sys flag, as (sys_flag >> 4) & 3: bit 0 born host, bit 1 store host.
FIXED = (_fixed(4, 4), _fixed(16, 4), _fixed(4, 16), _fixed(16, 16))
FIXED_IPV4 = FIXED[0]
SYS_FLAG_AT = FIXED_IPV4.offset["sys_flag"]  # the same in all four
MIN_RECORD = FIXED_IPV4.size + 1 + 2  # empty body, topic and properties

HEAD = Layout(("total_size", "i"), ("magic", "i"))
BLANK_BYTES = HEAD.size  # the room every file keeps for its blank
SYS_FLAG = Layout(("sys_flag", "i"))
STORE_TIMESTAMP = Layout(("store_timestamp", "q"))
PROPERTIES_LENGTH = Layout(("length", "h"))
TOPIC_LENGTH = {MAGIC_V1: Layout(("length", "b")), MAGIC_V2: Layout(("length", "h"))}

# A message inside the body of a batch, before its body and its properties with their length
# (docs/spec/store-format.md section 2.6).
BATCHED = Layout(("size", "i"), ("magic", "i"), ("body_crc", "i"), ("flag", "i"), ("body_length", "i"))


class Head(NamedTuple):
    """The first eight bytes of a record or blank."""

    total_size: int
    magic: int

    @property
    def is_record(self) -> bool:
        return self.magic in TOPIC_LENGTH

    @property
    def is_blank(self) -> bool:
        return self.magic == BLANK_MAGIC


@dataclass(slots=True)
class StoredMessage:
    """A record as it was read. Hosts are (address of 4 or 16 bytes, port), times milliseconds,
    `raw_properties` as stored."""

    size: int
    magic: int
    body_crc: int
    queue_id: int
    flag: int
    queue_offset: int
    log_offset: int
    sys_flag: int
    born_timestamp: int
    born_host: tuple[bytes, int]
    store_timestamp: int
    store_host: tuple[bytes, int]
    reconsume_times: int
    prepared_transaction_offset: int
    body: bytes
    topic: str
    raw_properties: bytes
    _properties: dict[str, str] | None = field(default=None, repr=False, compare=False)

    @property
    def properties(self) -> dict[str, str]:
        """The properties by name, decoded when first asked for."""
        if self._properties is None:
            self._properties = properties.decode(self.raw_properties)
        return self._properties

    @property
    def tags(self) -> str | None:
        return self.properties.get(properties.TAGS)

    @property
    def keys(self) -> tuple[str, ...]:
        """The single keys of the KEYS property."""
        return properties.split_keys(self.properties.get(properties.KEYS))

    @property
    def unique_key(self) -> str | None:
        return self.properties.get(properties.UNIQUE_KEY)

    @property
    def offset_id(self) -> str:
        """The id that names the broker and the place in its log."""
        return message_id.encode_offset_id(self.store_host, self.log_offset)

    @property
    def message_id(self) -> str:
        """What a client shows as msgId: the unique key, or the offset id of a message without one."""
        return self.unique_key or self.offset_id

    def as_message(self, topic: str, queue_id: int, encoded: bytes) -> Message:
        """Return the message to be stored again, with these properties."""
        return Message(
            topic,
            queue_id,
            self.body,
            encoded,
            self.flag,
            self.sys_flag,
            self.born_timestamp,
            self.born_host,
            self.store_host,
            self.reconsume_times,
        )

    def properties_with(self, changes: Mapping[str, str | None]) -> bytes:
        """Return the properties with changes, or as stored if there is no room for these: a message without
        them is better than none."""
        encoded = properties.set_values(self.raw_properties, changes)
        return encoded if len(encoded) <= MAX_PROPERTIES else self.raw_properties

    @property
    def version(self) -> int:
        return 2 if self.magic == MAGIC_V2 else 1

    @property
    def transaction_type(self) -> int:
        return self.sys_flag & SYS_TRANSACTION_MASK

    @property
    def is_queued(self) -> bool:
        """Return whether the record has a unit in its queue: prepared and rolled back ones have none."""
        return self.transaction_type in (TRANSACTION_NONE, TRANSACTION_COMMIT)

    @property
    def is_indexed(self) -> bool:
        """Return whether the record's keys are in the index: all but those rolled back."""
        return self.transaction_type != TRANSACTION_ROLLBACK

    @property
    def is_compressed(self) -> bool:
        return bool(self.sys_flag & SYS_COMPRESSED)


def body_crc(body: ReadBuffer) -> int:
    """The CRC-32 of a body as a record holds it; 0 for an empty one."""
    return zlib.crc32(body) & CRC_MASK


def record_crc_pair(record_before: bytes) -> bytes:
    """The property that states the CRC of a record whose other bytes are `record_before`
    (docs/spec/store-format.md section 2.4)."""
    digits = f"{zlib.crc32(record_before) & CRC_MASK:010d}"[::-1]
    return RECORD_CRC_BEGIN + digits.encode() + b"\x02"


def has_record_crc(raw_properties: bytes) -> bool:
    """Return whether properties end with the pair; one in the middle was copied from another message and
    does not count."""
    return (
        raw_properties[-RECORD_CRC_BYTES:].startswith(RECORD_CRC_BEGIN)
        and raw_properties.endswith(b"\x02")
        and len(raw_properties) >= RECORD_CRC_BYTES
    )


def read_head(buffer: ReadBuffer, offset: int = 0) -> Head:
    """Size and magic of what begins at `offset`."""
    return Head(*HEAD.unpack(buffer, offset))


def encode_blank(size: int) -> bytes:
    """The eight bytes that close a file with `size` bytes left (they count themselves)."""
    return HEAD.pack(size, BLANK_MAGIC)


def record_size(message: Message) -> int:
    """Return how many bytes `encode` will make of a message."""
    topic_bytes = len(message.topic.encode())
    _, fixed = _sys_flag_and_layout(message)
    return (
        fixed.size
        + len(message.body)
        + TOPIC_LENGTH[_magic_for(topic_bytes)].size
        + topic_bytes
        + PROPERTIES_LENGTH.size
        + len(message.properties)
    )


def encode(message: Message, queue_offset: int, log_offset: int, store_timestamp: int) -> bytes:
    """The record of a message at its place in queue and log; FormatError when a part is too long for its
    length field.

    A prepared or rolled back message gets queue offset 0, whatever is given. A message without a store host
    gets the loopback address. Version 2 is written only for a topic that does not fit version 1.
    """
    topic = message.topic.encode()
    _check_length("topic", topic, MAX_TOPIC_V2)
    _check_length("properties", message.properties, MAX_PROPERTIES)
    magic = _magic_for(len(topic))
    sys_flag, fixed = _sys_flag_and_layout(message)
    born_address, born_port = message.born_host
    store_address, store_port = message.store_host or LOOPBACK_HOST
    queued = sys_flag & SYS_TRANSACTION_MASK in (TRANSACTION_NONE, TRANSACTION_COMMIT)
    return b"".join(
        (
            fixed.pack(
                record_size(message),
                magic,
                body_crc(message.body),
                message.queue_id,
                message.flag,
                queue_offset if queued else 0,
                log_offset,
                sys_flag,
                message.born_timestamp,
                born_address,
                born_port,
                store_timestamp,
                store_address,
                store_port,
                message.reconsume_times,
                message.prepared_transaction_offset,
                len(message.body),
            ),
            message.body,
            TOPIC_LENGTH[magic].pack(len(topic)),
            topic,
            PROPERTIES_LENGTH.pack(len(message.properties)),
            message.properties,
        )
    )


def decode(
    buffer: ReadBuffer,
    offset: int = 0,
    *,
    log_offset: int | None = None,
    max_size: int = MAX_RECORD,
    check_crc: bool = True,
) -> StoredMessage:
    """The record at `offset` of a buffer; FormatError when it is anything but a whole and sound one.

    With `log_offset` given, the record must state that it lies there. Every length is bounded by the record's
    size, and that by `max_size` and the buffer, before it is used.
    """
    total_size, magic = HEAD.unpack(buffer, offset)
    topic_length_layout = TOPIC_LENGTH.get(magic)
    if topic_length_layout is None:
        raise FormatError(
            "no record begins here, its magic is wrong", offset=offset, found=f"{magic & 0xFFFFFFFF:#x}"
        )
    if not MIN_RECORD <= total_size <= min(max_size, len(buffer) - offset):
        limit = min(max_size, len(buffer) - offset)
        raise FormatError(
            "the size of a record is out of bounds", offset=offset, expected=limit, found=total_size
        )
    (sys_flag,) = SYS_FLAG.unpack(buffer, offset + SYS_FLAG_AT)
    fixed = FIXED[(sys_flag >> 4) & 3]
    end = offset + total_size
    if offset + fixed.size > end:
        raise FormatError(
            "a record is shorter than its fields", offset=offset, expected=fixed.size, found=total_size
        )
    values = fixed.unpack(buffer, offset)
    (_, _, crc, queue_id, flag, queue_offset, stated_offset, _, born_timestamp, born_address, born_port) = (
        values[:11]
    )
    (store_timestamp, store_address, store_port, reconsume_times, prepared_offset, body_length) = values[11:]
    if log_offset is not None and stated_offset != log_offset:
        raise FormatError(
            "a record states another place in the log",
            offset=offset,
            expected=log_offset,
            found=stated_offset,
        )
    at = offset + fixed.size
    body, at = _part("body", buffer, at, body_length, end - topic_length_layout.size - PROPERTIES_LENGTH.size)
    (topic_length,) = topic_length_layout.unpack(buffer, at)
    topic, at = _part(
        "topic", buffer, at + topic_length_layout.size, topic_length, end - PROPERTIES_LENGTH.size
    )
    (properties_length,) = PROPERTIES_LENGTH.unpack(buffer, at)
    raw_properties, at = _part("properties", buffer, at + PROPERTIES_LENGTH.size, properties_length, end)
    if at != end:
        raise FormatError(
            "the parts of a record do not add up", offset=offset, expected=total_size, found=at - offset
        )
    if check_crc and body and zlib.crc32(body) & CRC_MASK != crc:
        raise FormatError(
            "the body of a record has another CRC",
            offset=offset,
            expected=crc,
            found=zlib.crc32(body) & CRC_MASK,
        )
    if check_crc and log_offset is not None and has_record_crc(raw_properties):
        # Only what lies in a log: on its way to a client a record may get other properties.
        wanted = record_crc_pair(bytes(buffer[offset : end - RECORD_CRC_BYTES]))
        if raw_properties[-RECORD_CRC_BYTES:] != wanted:
            raise FormatError("a record has another CRC than its properties state", offset=offset)
    try:
        topic_text = topic.decode()
    except UnicodeDecodeError:
        raise FormatError("the topic of a record is not UTF-8", offset=offset, found=topic[:40]) from None
    return StoredMessage(
        total_size,
        magic,
        crc,
        queue_id,
        flag,
        queue_offset,
        stated_offset,
        sys_flag,
        born_timestamp,
        (born_address, born_port),
        store_timestamp,
        (store_address, store_port),
        reconsume_times,
        prepared_offset,
        body,
        topic_text,
        raw_properties,
    )


def decode_all(buffer: ReadBuffer, *, check_crc: bool = True) -> list[StoredMessage]:
    """The records that lie back to back in a buffer, as in the body of a pull answer."""
    messages = []
    at = 0
    while at < len(buffer):
        message = decode(buffer, at, check_crc=check_crc)
        messages.append(message)
        at += message.size
    return messages


def _part(name: str, buffer: ReadBuffer, start: int, length: int, limit: int) -> tuple[bytes, int]:
    """The bytes of one part and where the next begins; `limit` is where the part must have ended."""
    if length < 0 or start + length > limit:
        raise FormatError(
            f"the {name} length is out of bounds", offset=start, expected=limit - start, found=length
        )
    return bytes(buffer[start : start + length]), start + length


def _check_length(name: str, value: bytes, limit: int) -> None:
    if len(value) > limit:
        raise FormatError(f"the {name} of a message is too long", expected=limit, found=len(value))


def _magic_for(topic_bytes: int) -> int:
    return MAGIC_V2 if topic_bytes > MAX_TOPIC_V1 else MAGIC_V1


def _sys_flag_and_layout(message: Message) -> tuple[int, Layout]:
    """The sys flag with its IPv6 bits as the hosts are, and the table that follows from them."""
    store_host = message.store_host or LOOPBACK_HOST
    ipv6 = (len(message.born_host[0]) == 16) | (len(store_host[0]) == 16) << 1
    return message.sys_flag & ~(SYS_BORN_IPV6 | SYS_STORE_IPV6) | ipv6 << 4, FIXED[ipv6]
