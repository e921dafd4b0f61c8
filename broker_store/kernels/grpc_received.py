"""A record of the log as the message of gRPC that a consumer receives.

`server/grpc/received_messages.py` makes every message with protobuf. This kernel makes the messages of usual
records: normal ones and those of a message group, with hosts of IPv4 and with properties in printable ASCII.
For any other record it returns empty bytes.

    prefix │ ReceiveMessageResponse ─ message ┬ topic
                                              ├ user properties
                                              ├ system properties
                                              └ body

The parts are written in the order of their numbers, as protobuf does.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from broker_store.formats import properties as p
from broker_store.formats import record
from broker_store.kernels.memory import (
    constant_bytes,
    copy_memory,
    find_byte,
    get,
    inlined,
    is_printable,
    load64,
    load_be32,
    load_be64,
    load_u8,
    put,
    store_u8,
    write_decimal,
)
from broker_store.kernels.objects import (
    argument,
    bytearray_data,
    bytes_data,
    bytes_size,
    decref,
    entry_point,
    has_failed,
    int_argument,
    is_in_set,
    new_bytes,
    new_text,
    text_argument,
    wrong_call,
)
from broker_store.kernels.protobuf import PREFIX_BYTES, varint_bytes, write_prefix, write_varint
from broker_store.kernels.record_head import (
    BODY_AFTER_TRIES,
    BORN_HOST_AT,
    BORN_IPV6,
    BORN_TIME_AT,
    MAGIC_AT,
    MIN_RECORD,
    NAME_END,
    PROPERTY_END,
    QUEUE_ID_AT,
    QUEUE_OFFSET_AT,
    STORE_HOST_AFTER_STORE_TIME,
    STORE_IPV6,
    bounded_parts,
    is_record_magic,
)

# (bytes with records, place of one, topic as a field 1, handle, digest in hexadecimal, number of this
# attempt) -> the answer with the message and its prefix, empty for a record that is not usual.
ReceivedMessage = Callable[[bytes, int, bytes, str, str, int], bytes]

_COMPRESSED = record.SYS_COMPRESSED
_MAX_MS = 253_402_300_799_999  # the end of the year 9999
# Properties have at most 32 KiB. A pair of 4 bytes makes an entry of 8, and a key of 2 bytes a field of 3.
_MAX_WRITTEN = 1 << 16
_SYSTEM_AT = _MAX_WRITTEN
_WORDS_AT = 3 * _MAX_WRITTEN
_MAX_HANDLE_BYTES = 1 << 10
_MAX_DIGEST_BYTES = 64
# Places among the words: two each.
_TAGS_PLACE, _KEYS_PLACE, _ID_PLACE, _HOST_PLACE, _TRACE_PLACE, _GROUP_PLACE, _SPECIAL = range(7)
_ROOM_BYTES = _WORDS_AT + 8 * (2 * _SPECIAL + 2)

# The first byte of a field (kernels/protobuf.py).
_ANSWER_MESSAGE = 0x12
_MESSAGE_USER, _MESSAGE_SYSTEM, _MESSAGE_BODY = 0x12, 0x1A, 0x22
_ENTRY_KEY, _ENTRY_VALUE = 0x0A, 0x12
_TAG, _KEYS, _MESSAGE_ID, _DIGEST, _ENCODING, _TYPE = 0x0A, 0x12, 0x1A, 0x22, 0x28, 0x30
_BORN, _BORN_HOST, _STORED, _STORE_HOST, _HANDLE = 0x3A, 0x42, 0x4A, 0x52, 0x62
_QUEUE_ID, _QUEUE_OFFSET = 0x68, 0x70
_ATTEMPT, _GROUP, _TRACE_CONTEXT = 0x80, 0x8A, 0x92  # with a second byte, which is 1
_FIRST_NUMBER, _SECOND_NUMBER, _SECOND_TEXT = 0x08, 0x10, 0x12
_MD5, _IDENTITY, _GZIP, _NORMAL, _FIFO = 2, 1, 2, 1, 2

_SPACE, _POINT, _COLON = 0x20, 0x2E, 0x3A

_TAGS_NAME = constant_bytes(p.TAGS)
_KEYS_NAME = constant_bytes(p.KEYS)
_ID_NAME = constant_bytes(p.UNIQUE_KEY)
_HOST_NAME = constant_bytes(p.BORN_HOST)
_TRACE_NAME = constant_bytes(p.TRACE_CONTEXT)
_GROUP_NAME = constant_bytes(p.SHARDING_KEY)
# What makes a message one of another type, or a dead letter.
OTHER_KINDS = frozenset(
    (
        p.TRANSACTION_PREPARED, p.DELAY, p.TIMER_DELIVER_MS, p.TIMER_DELAY_SECONDS, p.TIMER_DELAY_MS,
        p.PRIORITY, p.LITE_TOPIC, p.DLQ_ORIGIN_TOPIC, p.DLQ_ORIGIN_MESSAGE_ID,
    )
)  # fmt: skip


@inlined
def _is(at, length, name):
    if length != len(name):
        return False
    for number in range(length):
        if load_u8(at + number) != name[number]:
            return False
    return True


@inlined
def _write_text(to, field, at, length):
    """Write a field with a text; return the position after it."""
    store_u8(to, field)
    to = write_varint(to + 1, length)
    copy_memory(to, at, length)
    return to + length


@inlined
def _write_long_text(to, field, at, length):
    """Write a field whose number takes two bytes, with a text; return the position after it."""
    store_u8(to, field)
    return _write_text(to + 1, 1, at, length)


@inlined
def _write_number(to, field, value):
    store_u8(to, field)
    return write_varint(to + 1, value)


@inlined
def _write_time(to, field, ms):
    """Write a field with a timestamp of at least a second; return the position after it."""
    store_u8(to, field)
    end = _write_number(to + 2, _FIRST_NUMBER, ms // 1_000)
    if ms % 1_000:
        end = _write_number(end, _SECOND_NUMBER, ms % 1_000 * 1_000_000)
    store_u8(to + 1, end - to - 2)
    return end


@inlined
def _write_address(to, host):
    """Write an address of IPv4 as text; return the position after it."""
    for number in range(4):
        if number:
            store_u8(to, _POINT)
            to += 1
        to = write_decimal(to, load_u8(host + number))
    return to


@inlined
def _write_host(to, field, host, with_port):
    """Write a field with an address of IPv4 as text, and its port; return the position after it."""
    store_u8(to, field)
    end = _write_address(to + 2, host)
    if with_port:
        store_u8(end, _COLON)
        end = write_decimal(end + 1, load_be32(host + 4))
    store_u8(to + 1, end - to - 2)
    return end


@inlined
def _write_keys(to, at, end):
    """Write a field for each key: the pieces between spaces that are not empty. Return the position after
    them."""
    while at < end:
        last = find_byte(at, end, _SPACE)
        if last > at:
            to = _write_text(to, _KEYS, at, last - at)
        at = last + 1
    return to


@inlined
def _write_user_property(to, name, name_bytes, value, value_bytes):
    store_u8(to, _MESSAGE_USER)
    size = 2 + varint_bytes(name_bytes) + name_bytes + varint_bytes(value_bytes) + value_bytes
    to = write_varint(to + 1, size)
    to = _write_text(to, _ENTRY_KEY, name, name_bytes)
    return _write_text(to, _ENTRY_VALUE, value, value_bytes)


@inlined
def _place_of(name, length):
    """Return the place of a property among the words, -1 for one that has none."""
    if _is(name, length, _TAGS_NAME):
        return _TAGS_PLACE
    if _is(name, length, _KEYS_NAME):
        return _KEYS_PLACE
    if _is(name, length, _ID_NAME):
        return _ID_PLACE
    if _is(name, length, _HOST_NAME):
        return _HOST_PLACE
    if _is(name, length, _TRACE_NAME):
        return _TRACE_PLACE
    return _GROUP_PLACE if _is(name, length, _GROUP_NAME) else -1


@inlined
def _user_properties(at, end, reserved, other_kinds, room, found):
    """Write the properties of the user to `room`; return the position after them, 0 if the properties are not
    read here.

    Position and length of the values of TAGS, KEYS, UNIQ_KEY, __BORNHOST, TRACE_CONTEXT and __SHARDINGKEY are
    put into the words of `found`.
    """
    to = room
    for word in range(2 * _SPECIAL):
        put(found, word, 0)
    while at < end:
        last = find_byte(at, end, PROPERTY_END)
        value = find_byte(at, last, NAME_END) + 1
        name_bytes = value - 1 - at
        value_bytes = last - value
        if name_bytes <= 0 or value_bytes <= 0:
            return 0
        if not (is_printable(at, value - 1) and is_printable(value, last)):
            return 0
        place = _place_of(at, name_bytes)
        if place >= 0:
            if get(found, 2 * place + 1):
                return 0
            put(found, 2 * place, value)
            put(found, 2 * place + 1, value_bytes)
        # The trace context and the message group are properties of the user too.
        if place < 0 or place >= _TRACE_PLACE:
            name = new_text(at, name_bytes)
            is_other = is_in_set(other_kinds, name)
            is_reserved = is_in_set(reserved, name)
            decref(name)
            if is_other:
                return 0
            if not is_reserved:
                to = _write_user_property(to, at, name_bytes, value, value_bytes)
        at = last + 1
    return to


@inlined
def _system_properties(
    record, sys_flag, store_at, found, handle, handle_bytes, digest, digest_bytes, attempt, to
):
    """Write the system properties; return the position after them."""
    if get(found, 2 * _TAGS_PLACE + 1):
        to = _write_text(to, _TAG, get(found, 2 * _TAGS_PLACE), get(found, 2 * _TAGS_PLACE + 1))
    keys = get(found, 2 * _KEYS_PLACE)
    to = _write_keys(to, keys, keys + get(found, 2 * _KEYS_PLACE + 1))
    to = _write_text(to, _MESSAGE_ID, get(found, 2 * _ID_PLACE), get(found, 2 * _ID_PLACE + 1))
    store_u8(to, _DIGEST)
    end = _write_text(_write_number(to + 2, _FIRST_NUMBER, _MD5), _SECOND_TEXT, digest, digest_bytes)
    store_u8(to + 1, end - to - 2)
    to = _write_number(end, _ENCODING, _GZIP if sys_flag & _COMPRESSED else _IDENTITY)
    group_bytes = get(found, 2 * _GROUP_PLACE + 1)
    to = _write_number(to, _TYPE, _FIFO if group_bytes else _NORMAL)
    to = _write_time(to, _BORN, load_be64(record + BORN_TIME_AT))
    host_bytes = get(found, 2 * _HOST_PLACE + 1)
    if host_bytes:
        to = _write_text(to, _BORN_HOST, get(found, 2 * _HOST_PLACE), host_bytes)
    else:
        to = _write_host(to, _BORN_HOST, record + BORN_HOST_AT, False)
    to = _write_time(to, _STORED, load_be64(store_at))
    to = _write_host(to, _STORE_HOST, store_at + STORE_HOST_AFTER_STORE_TIME, True)
    to = _write_text(to, _HANDLE, handle, handle_bytes)
    queue_id = load_be32(record + QUEUE_ID_AT)
    if queue_id:
        to = _write_number(to, _QUEUE_ID, queue_id)
    to = _write_number(to, _QUEUE_OFFSET, load_be64(record + QUEUE_OFFSET_AT))
    store_u8(to, _ATTEMPT)
    to = _write_number(to + 1, 1, attempt)
    if group_bytes:
        to = _write_long_text(to, _GROUP, get(found, 2 * _GROUP_PLACE), group_bytes)
    trace_bytes = get(found, 2 * _TRACE_PLACE + 1)
    if trace_bytes:
        to = _write_long_text(to, _TRACE_CONTEXT, get(found, 2 * _TRACE_PLACE), trace_bytes)
    return to


@inlined
def _is_usual(record, sys_flag, store_at):
    """Return whether hosts, times and places of a record are written here."""
    born_ms, stored_ms = load_be64(record + BORN_TIME_AT), load_be64(store_at)
    return (
        sys_flag & (BORN_IPV6 | STORE_IPV6) == 0
        and 1_000 <= born_ms <= _MAX_MS
        and 1_000 <= stored_ms <= _MAX_MS
        and load_be32(record + QUEUE_ID_AT) >= 0
        and load_be64(record + QUEUE_OFFSET_AT) >= 0
        and load_be32(record + BORN_HOST_AT + 4) >= 0
        and load_be32(store_at + STORE_HOST_AFTER_STORE_TIME + 4) >= 0
    )


@inlined
def _made(topic, topic_bytes, user, user_bytes, system, system_bytes, body, body_bytes):
    """Return the answer with its prefix; 0 if it could not be made."""
    body_field = 1 + varint_bytes(body_bytes) + body_bytes if body_bytes else 0
    size = topic_bytes + user_bytes + 1 + varint_bytes(system_bytes) + system_bytes + body_field
    answer_bytes = 1 + varint_bytes(size) + size
    made = new_bytes(0, PREFIX_BYTES + answer_bytes)
    if made != 0:
        to = write_prefix(bytes_data(made), answer_bytes)
        to = _write_number(to, _ANSWER_MESSAGE, size)
        copy_memory(to, topic, topic_bytes)
        to += topic_bytes
        copy_memory(to, user, user_bytes)
        to = _write_text(to + user_bytes, _MESSAGE_SYSTEM, system, system_bytes)
        if body_bytes:
            _write_text(to, _MESSAGE_BODY, body, body_bytes)
    return made


@entry_point
def _received_message(self, arguments, count):
    """`_received_message(reserved, other_kinds, room, records, at, topic, handle, digest, attempt)`: see
    `received_messages`."""
    if count != 9:
        return wrong_call()
    room = bytearray_data(argument(arguments, 2))
    records = argument(arguments, 3)
    data = bytes_data(records)
    at = int_argument(arguments, 4)
    topic = argument(arguments, 5)
    topic_data = bytes_data(topic)
    attempt = int_argument(arguments, 8)
    if has_failed():
        return 0
    found = room + _WORDS_AT
    lengths = found + 8 * 2 * _SPECIAL
    handle = text_argument(arguments, 6, lengths)
    digest = text_argument(arguments, 7, lengths + 8)
    if has_failed():
        return 0
    handle_bytes, digest_bytes = load64(lengths), load64(lengths + 8)
    left = bytes_size(records) - at
    if at < 0 or left < MIN_RECORD or handle_bytes > _MAX_HANDLE_BYTES or digest_bytes > _MAX_DIGEST_BYTES:
        return new_bytes(0, 0)
    record = data + at
    total = load_be32(record)
    if total < MIN_RECORD or total > left or not is_record_magic(load_be32(record + MAGIC_AT)):
        return new_bytes(0, 0)
    sys_flag, store_at, tries, body_bytes, name, name_bytes, properties, properties_bytes = bounded_parts(
        record, total
    )
    if store_at == 0 or attempt < 1 or not _is_usual(record, sys_flag, store_at):
        return new_bytes(0, 0)
    end = _user_properties(
        properties,
        properties + properties_bytes,
        argument(arguments, 0),
        argument(arguments, 1),
        room,
        found,
    )
    if has_failed():
        return 0
    if end == 0 or get(found, 2 * _ID_PLACE + 1) == 0:
        return new_bytes(0, 0)
    system = room + _SYSTEM_AT
    system_end = _system_properties(
        record, sys_flag, store_at, found, handle, handle_bytes, digest, digest_bytes, attempt, system
    )
    body = tries + BODY_AFTER_TRIES
    return _made(
        topic_data,
        bytes_size(topic),
        room,
        end - room,
        system,
        system_end - system,
        body,
        body_bytes,
    )


def received_messages(reserved: frozenset[str]) -> ReceivedMessage:
    """Return a function that makes the answer for a record. Names of properties in `reserved` are those that
    are not the user's."""
    return partial(_received_message, reserved, OTHER_KINDS, bytearray(_ROOM_BYTES))
