"""Records as messages of gRPC, as Apache's proxy gives them to consumers (docs/spec/grpc.md section 6)."""

from __future__ import annotations

from hashlib import md5

from google.protobuf.timestamp_pb2 import Timestamp

from broker_store.formats import properties, record
from broker_store.formats.message_id import host_text
from broker_store.protocol.grpc.v2.definition_pb2 import (
    DeadLetterQueue,
    Digest,
    DigestType,
    Encoding,
    Message,
    MessageType,
    Resource,
    SystemProperties,
)
from broker_store.server.grpc.property_names import RESERVED

# The years 1 to 9999
_MIN_MS, _MAX_MS = -62_135_596_800_000, 253_402_300_799_999
_DELAYED = (
    properties.DELAY, properties.TIMER_DELIVER_MS, properties.TIMER_DELAY_SECONDS, properties.TIMER_DELAY_MS,
)  # fmt: skip


def received_message(stored: record.StoredMessage, topic: Resource, handle: str, now_ms: int) -> Message:
    """Return a record as the message that a consumer of `topic` gets."""
    message = message_of(stored, topic, now_ms)
    message.system_properties.receipt_handle = handle
    return message


def message_of(stored: record.StoredMessage, topic: Resource, now_ms: int) -> Message:
    """Return a record as a message that was not received."""
    pairs = stored.properties
    system = SystemProperties(
        message_id=stored.message_id,
        keys=stored.keys,
        body_digest=Digest(type=DigestType.MD5, checksum=digest_of(stored.body)),
        body_encoding=Encoding.GZIP if stored.sys_flag & record.SYS_COMPRESSED else Encoding.IDENTITY,
        message_type=_type(pairs),
        born_timestamp=timestamp(stored.born_timestamp),
        born_host=pairs.get(properties.BORN_HOST) or host_text(stored.born_host).rpartition(":")[0],
        store_timestamp=timestamp(stored.store_timestamp),
        store_host=host_text(stored.store_host),
        queue_id=stored.queue_id,
        queue_offset=stored.queue_offset,
        delivery_attempt=attempt_of(stored),
    )
    if (tag := pairs.get(properties.TAGS)) is not None:
        system.tag = tag
    if (delivery_ms := _delivery_ms(pairs, now_ms)) is not None:
        system.delivery_timestamp.CopyFrom(timestamp(delivery_ms))
    if (priority := _number(pairs.get(properties.PRIORITY))) is not None and priority < 1 << 31:
        system.priority = priority
    if (key := pairs.get(properties.SHARDING_KEY)) is not None:
        system.message_group = key
    if (lite := pairs.get(properties.LITE_TOPIC)) is not None:
        system.lite_topic = lite
    if (trace := pairs.get(properties.TRACE_CONTEXT)) is not None:
        system.trace_context = trace
    origin, origin_id = pairs.get(properties.DLQ_ORIGIN_TOPIC), pairs.get(properties.DLQ_ORIGIN_MESSAGE_ID)
    if origin is not None and origin_id is not None:
        system.dead_letter_queue.CopyFrom(DeadLetterQueue(topic=origin, message_id=origin_id))
    user = {name: value for name, value in pairs.items() if name not in RESERVED}
    return Message(topic=topic, user_properties=user, system_properties=system, body=stored.body)


def attempt_of(stored: record.StoredMessage) -> int:
    """Return the number of the attempt in which a record is given."""
    return min(stored.reconsume_times + 1, record.MAX_TRIES)


def timestamp(ms: int) -> Timestamp:
    """Return a time in milliseconds since 1970 as protobuf has it. Times out of its range, which a producer
    may set, are moved to its ends: Java's client cannot read others."""
    ms = max(_MIN_MS, min(ms, _MAX_MS))
    return Timestamp(seconds=ms // 1_000, nanos=ms % 1_000 * 1_000_000)


def digest_of(body: bytes) -> str:
    """Return the MD5 of a body, in upper case: clients compare it as text."""
    return md5(body, usedforsecurity=False).hexdigest().upper()


def _type(pairs: dict[str, str]) -> MessageType:
    if pairs.get(properties.TRANSACTION_PREPARED, "").lower() == "true":
        return MessageType.TRANSACTION
    if any(name in pairs for name in _DELAYED):
        return MessageType.DELAY
    if properties.SHARDING_KEY in pairs:
        return MessageType.FIFO
    if properties.PRIORITY in pairs:
        return MessageType.PRIORITY
    return MessageType.LITE if properties.LITE_TOPIC in pairs else MessageType.NORMAL


def _delivery_ms(pairs: dict[str, str], now_ms: int) -> int | None:
    seconds = _number(pairs.get(properties.TIMER_DELAY_SECONDS))
    if seconds is not None and seconds < 1 << 31:
        return now_ms + seconds * 1_000
    return _number(pairs.get(properties.TIMER_DELIVER_MS))


def _number(text: str | None) -> int | None:
    """Return a number of a property; None if it is none."""
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 15 else None
