"""Messages as a client's user sees them: to be sent, acknowledged, received."""

from __future__ import annotations

import itertools
import os
import random
import socket
import struct
import time
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from broker_store.errors import FormatError, MisuseError
from broker_store.formats import properties as property_format
from broker_store.formats import record
from broker_store.formats.message_id import UniqueId, encode_unique_id
from broker_store.formats.record import StoredMessage
from broker_store.protocol.message_queue import MessageQueue

MAX_BODY_BYTES = record.MAX_BODY
# Limit of a decompressed body; senders compress bodies of at most MAX_BODY_BYTES.
MAX_INFLATED_BYTES = 4 * MAX_BODY_BYTES

# When a message is shown: at most one of them, which is what Apache's clients send
# (docs/spec/store-behaviour.md sections 8 and 9).
DELAY_LEVEL, TIMER_DELAY, TIMER_DELIVER_AT = property_format.DELAY, "TIMER_DELAY_MS", "TIMER_DELIVER_MS"
_SET_BY_ARGUMENTS = {
    property_format.TAGS: "tag=",
    property_format.KEYS: "keys=",
    DELAY_LEVEL: "delay_level=",
    TIMER_DELAY: "delay_s=",
    "TIMER_DELAY_SEC": "delay_s=",
    TIMER_DELIVER_AT: "deliver_at=",
    property_format.UNIQUE_KEY: "nothing, it is made for each message",
    property_format.WAIT: "nothing, it is always true",
}
_BATCH_HEAD = struct.Struct(">iiiii")
_BATCH_PROPERTIES = struct.Struct(">h")


@dataclass(slots=True, frozen=True)
class Outgoing:
    """A message to be sent. `keys` are for lookup, `tag` is for filtering.

    At most one of three delays its delivery. `delay_level` is one of the broker's delay levels (1 is 1 s, 18
    is 2 h, unless its settings differ), which every broker has. `delay_s` is a time in
    seconds, `deliver_at` a moment, as an aware datetime or in milliseconds since 1970: these need a broker
    with timers (this one, Apache's from 5 on), are exact to a second, and lie at most three days ahead unless
    its settings differ.
    """

    body: bytes
    tag: str | None = None
    keys: str | Iterable[str] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    delay_level: int | None = None
    delay_s: float | None = None
    deliver_at: datetime | int | None = None

    def __post_init__(self) -> None:
        # An iterator can be read once, and keys are read for the message and for its trace.
        object.__setattr__(self, "keys", (self.keys,) if isinstance(self.keys, str) else tuple(self.keys))

    @property
    def waits(self) -> bool:
        """Return whether the message is delivered later."""
        return not (self.delay_level is None and self.delay_s is None and self.deliver_at is None)


@dataclass(slots=True, frozen=True)
class SendReceipt:
    """The place of a sent message. `status` is SEND_OK, or names what a replica or the disk had not
    confirmed in time.

    `message_id` is the unique key that this producer made (Apache's msgId); `offset_message_id` names the
    broker and the place in its log (Apache's offsetMsgId). A message that waits for its time lies elsewhere
    until then: `queue_id` and `queue_offset` are not the place at which it is delivered. `recall_handle`
    recalls such a message, if the broker allows it.
    """

    topic: str
    broker_name: str
    queue_id: int
    queue_offset: int
    message_id: str
    offset_message_id: str
    status: str = "SEND_OK"
    recall_handle: str | None = None

    @property
    def queue(self) -> MessageQueue:
        """The queue in which the message is stored."""
        return MessageQueue(self.topic, self.broker_name, self.queue_id)


def outgoing(
    body: bytes | Outgoing,
    tag: str | None,
    keys: str | Iterable[str],
    properties: Mapping[str, str] | None,
    delay_level: int | None = None,
    delay_s: float | None = None,
    deliver_at: datetime | int | None = None,
) -> Outgoing:
    """Return the arguments of a send as an Outgoing; an Outgoing is returned unchanged. Raises MisuseError
    when both are given."""
    if not isinstance(body, Outgoing):
        return Outgoing(body, tag, keys, properties or {}, delay_level, delay_s, deliver_at)
    delays = (delay_level, delay_s, deliver_at)
    if tag or keys or properties or any(value is not None for value in delays):
        raise MisuseError("an Outgoing holds tag, keys, properties and delay itself; give them there")
    return body


def encode_properties(message: Outgoing, unique_key: str) -> str:
    """Return the properties string. Raises MisuseError for values that a message cannot have."""
    if not isinstance(message.body, (bytes, bytearray, memoryview)):
        raise MisuseError(f"a body must be bytes, not {type(message.body).__name__}")
    if len(message.body) > MAX_BODY_BYTES:
        raise MisuseError(f"a body of {len(message.body)} bytes, at most {MAX_BODY_BYTES} can be sent")
    pairs = {}
    for name, value in message.properties.items():
        if name in _SET_BY_ARGUMENTS:
            raise MisuseError(f"property {name} is the client's; use {_SET_BY_ARGUMENTS[name]}")
        pairs[name] = str(value)
    keys = message.keys
    if any(not key or any(letter.isspace() for letter in key) for key in keys):
        raise MisuseError(f"keys {keys!r:.100} must not be empty nor hold blanks")
    if keys:
        pairs[property_format.KEYS] = property_format.join_keys(keys)
    if message.tag:
        pairs[property_format.TAGS] = message.tag
    pairs |= _waiting(message)
    pairs[property_format.UNIQUE_KEY] = unique_key
    pairs[property_format.WAIT] = "true"
    try:
        encoded = property_format.encode(pairs)
    except FormatError as error:
        raise MisuseError(str(error)) from None
    if len(encoded) > property_format.MAX_BYTES:
        raise MisuseError(
            f"properties of {len(encoded)} bytes, at most {property_format.MAX_BYTES} can be sent"
        )
    return encoded.decode()


def _waiting(message: Outgoing) -> dict[str, str]:
    """Return the property that delays the delivery of a message."""
    pairs = {}
    if message.delay_level is not None:
        if message.delay_level < 1:
            raise MisuseError(f"delay_level {message.delay_level} must be at least 1; leave it out for none")
        pairs[DELAY_LEVEL] = str(message.delay_level)
    if message.delay_s is not None:
        if not message.delay_s > 0:
            raise MisuseError(f"delay_s {message.delay_s} must be more than 0; leave it out for none")
        pairs[TIMER_DELAY] = str(round(message.delay_s * 1000))
    if message.deliver_at is not None:
        pairs[TIMER_DELIVER_AT] = str(milliseconds(message.deliver_at))
    if len(pairs) > 1:
        raise MisuseError(
            "a message waits by delay_level, by delay_s or by deliver_at, not by several of them"
        )
    return pairs


def milliseconds(moment: datetime | int) -> int:
    """Return milliseconds since 1970. Raises MisuseError for a datetime without a time zone."""
    if isinstance(moment, int):
        return moment
    if not isinstance(moment, datetime):
        raise MisuseError(
            f"{moment!r:.60} is no time; use an aware datetime or whole milliseconds since 1970"
        )
    if moment.tzinfo is None:
        raise MisuseError(
            f"{moment} has no time zone, and the broker may stand in another one; use an aware datetime"
        )
    return round(moment.timestamp() * 1000)


def encode_batch_part(body: bytes, properties: str) -> bytes:
    """Return a message as it is in the body of a batch: size, magic 0, CRC 0, flag 0, body, properties
    (docs/spec/store-format.md section 2.6)."""
    encoded = properties.encode()
    size = _BATCH_HEAD.size + len(body) + _BATCH_PROPERTIES.size + len(encoded)
    return _BATCH_HEAD.pack(size, 0, 0, 0, len(body)) + body + _BATCH_PROPERTIES.pack(len(encoded)) + encoded


class UniqueKeys:
    """Makes the unique keys of one client, in Java's format, so that Java's tools can parse them."""

    def __init__(self, address: str):
        self._address = socket.inet_aton(address)
        self._process = os.getpid()
        self._loader_hash = random.getrandbits(32)
        self._counter = itertools.count()
        self._month_start_ms = 0
        self._month_end_ms = 0

    def make(self) -> str:
        now_ms = time.time_ns() // 1_000_000
        if not self._month_start_ms <= now_ms < self._month_end_ms:
            first = datetime.fromtimestamp(now_ms / 1000).replace(
                day=1, hour=0, minute=0, second=0, microsecond=0
            )
            following = first.replace(year=first.year + first.month // 12, month=first.month % 12 + 1)
            self._month_start_ms = int(first.timestamp() * 1000)
            self._month_end_ms = int(following.timestamp() * 1000)
        month_ms = now_ms - self._month_start_ms
        return encode_unique_id(
            UniqueId(self._address, self._process, self._loader_hash, month_ms, next(self._counter))
        )


class ReceivedMessage:
    """A message from a broker.

    `topic` is the topic it was sent to, also when it is delivered again through the group's retry topic;
    `queue` is the queue it was read from. Times are milliseconds since 1970. `attempt` counts from 1.
    """

    __slots__ = ("_body", "broker_name", "record", "retries_here")

    def __init__(self, stored: StoredMessage, broker_name: str):
        self.record = stored
        self.broker_name = broker_name
        self.retries_here = 0
        self._body: bytes | None = None

    @property
    def body(self) -> bytes:
        """Return the body, decompressed when its sender compressed it with zlib. Raises FormatError for
        another compression."""
        if self._body is None:
            self._body = _inflated(self.record)
        return self._body

    @property
    def topic(self) -> str:
        """Return the topic it was sent to, also when it is delivered again."""
        return self.record.properties.get(property_format.RETRY_TOPIC) or self.record.topic

    @property
    def queue(self) -> MessageQueue:
        """The queue from which the message was read."""
        return MessageQueue(self.record.topic, self.broker_name, self.record.queue_id)

    @property
    def queue_offset(self) -> int:
        """Return its number in that queue."""
        return self.record.queue_offset

    @property
    def tag(self) -> str | None:
        """Return the tag, by which consumers filter."""
        return self.record.tags

    @property
    def keys(self) -> tuple[str, ...]:
        """Return the keys by which the message is found."""
        return self.record.keys

    @property
    def properties(self) -> dict[str, str]:
        """Return all its properties, including those with Apache's names."""
        return self.record.properties

    @property
    def message_id(self) -> str:
        """Return the unique key that its producer made (Apache's msgId): the same at each delivery."""
        return self.record.message_id

    @property
    def offset_message_id(self) -> str:
        """Return the id of the broker and the place in its log (Apache's offsetMsgId): another one at each
        delivery through the retry topic."""
        return self.record.offset_id

    @property
    def born_timestamp(self) -> int:
        """Return when its producer sent it, by the producer's clock; milliseconds since 1970."""
        return self.record.born_timestamp

    @property
    def store_timestamp(self) -> int:
        """Return when its broker stored it; milliseconds since 1970."""
        return self.record.store_timestamp

    @property
    def attempt(self) -> int:
        """Return the number of this delivery to the group: 1 for the first."""
        return self.record.reconsume_times + self.retries_here + 1

    def __repr__(self) -> str:
        place = f"{self.record.topic}/{self.record.queue_id}@{self.record.queue_offset}"
        return f"<message {self.message_id} {place} {len(self.record.body)} B>"


def decode_messages(body: bytes, broker_name: str) -> list[ReceivedMessage]:
    """Return the messages of an answer. Raises FormatError."""
    return [ReceivedMessage(stored, broker_name) for stored in record.decode_all(body)]


def _inflated(stored: StoredMessage) -> bytes:
    if not stored.is_compressed:
        return stored.body
    kind = stored.sys_flag & record.SYS_COMPRESSION_MASK
    if kind not in (0, record.COMPRESSION_ZLIB):
        name = {record.COMPRESSION_LZ4: "LZ4", record.COMPRESSION_ZSTD: "ZSTD"}.get(kind, f"{kind:#x}")
        raise FormatError(
            f"the body is compressed with {name}, which this client cannot inflate; see record.body"
        )
    inflater = zlib.decompressobj()
    try:
        body = inflater.decompress(stored.body, MAX_INFLATED_BYTES)
    except zlib.error as error:
        raise FormatError(f"the body cannot be inflated: {error}") from None
    if not inflater.eof:
        raise FormatError(f"the body is cut, or larger than {MAX_INFLATED_BYTES} bytes", found=len(body))
    return body
