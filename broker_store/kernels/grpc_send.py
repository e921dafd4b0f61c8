"""A usual SendMessage of gRPC, from the bytes of its body to what the store needs of it, and its answer.

`server/grpc/sends.py` reads every call with protobuf, checks it, and says what is wrong with it. This kernel
reads the calls of usual producers: one message of the type NORMAL, whose fields come once and in the order of
their numbers, and whose texts are printable ASCII. All checks of `server/grpc/sent_messages.py` pass for such
a message, and its properties are the same. For any other call the kernel returns an empty tuple.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from broker_store.formats import properties as p
from broker_store.kernels.memory import (
    constant_bytes,
    copy_memory,
    find_byte,
    inlined,
    is_printable,
    load64,
    load_be32,
    load_u8,
    same_bytes,
    store_u8,
    write_decimal,
)
from broker_store.kernels.objects import (
    answer,
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
    new_int,
    new_text,
    new_tuple,
    put_into_tuple,
    text_argument,
    wrong_call,
)
from broker_store.kernels.protobuf import (
    PREFIX_BYTES,
    number_at,
    piece_at,
    varint_bytes,
    write_prefix,
    write_varint,
)
from broker_store.kernels.record_head import NAME_END, PROPERTY_END

# (topic, message id, body, encoded properties, born time in milliseconds, number of the body's encoding), or
# an empty tuple.
UsualSend = tuple[str, str, bytes, bytes, int, int] | tuple[()]

_MAX_USER_PROPERTIES = 16  # each is compared with those before
_MAX_USER_BYTES = 16 << 10  # with tag and keys, as the proxy
_MAX_TEXT_BYTES = 1 << 10  # of each other text, longer ones are left to protobuf
# For the properties of the user, and those of the broker with their names and separators.
_ROOM_BYTES = 2 * _MAX_USER_BYTES + 8 * _MAX_TEXT_BYTES
_MAX_SECONDS = 1 << 40
_MAX_NANOS = 999_999_999
_FIFO, _GZIP = 2, 2

# The first byte of a field (kernels/protobuf.py).
_REQUEST_MESSAGES = 0x0A
_MESSAGE_TOPIC, _MESSAGE_USER, _MESSAGE_SYSTEM, _MESSAGE_BODY = 0x0A, 0x12, 0x1A, 0x22
_RESOURCE_NAME = 0x12
_ENTRY_KEY, _ENTRY_VALUE = 0x0A, 0x12
_TAG, _KEYS, _MESSAGE_ID, _DIGEST, _ENCODING, _TYPE, _BORN, _BORN_HOST = (
    0x0A, 0x12, 0x1A, 0x22, 0x28, 0x30, 0x3A, 0x42,
)  # fmt: skip
_QUEUE_ID = 0x68
_TRACE_CONTEXT = 0x92  # the first byte of two, the second is 1
_ANSWER_ENTRIES, _ENTRY_ID, _ENTRY_OFFSET = 0x12, 0x12, 0x20
_FIRST_NUMBER, _SECOND_NUMBER, _SECOND_TEXT = 0x08, 0x10, 0x12

_SPACE, _BAR = 0x20, 0x7C

_TAGS_NAME = constant_bytes(p.TAGS + p.NAME_VALUE_SEPARATOR)
_KEYS_NAME = constant_bytes(p.KEYS + p.NAME_VALUE_SEPARATOR)
_UNIQUE_KEY_NAME = constant_bytes(p.UNIQUE_KEY + p.NAME_VALUE_SEPARATOR)
_TRACE_CONTEXT_NAME = constant_bytes(p.TRACE_CONTEXT + p.NAME_VALUE_SEPARATOR)
_BORN_HOST_NAME = constant_bytes(p.BORN_HOST + p.NAME_VALUE_SEPARATOR)
_BORN_TIMESTAMP_NAME = constant_bytes(p.BORN_TIMESTAMP + p.NAME_VALUE_SEPARATOR)


@inlined
def _is_text(at, length):
    """Return whether a text is printable ASCII and not blank."""
    if not is_printable(at, at + length):
        return False
    for number in range(length):
        if load_u8(at + number) != _SPACE:
            return True
    return False


@inlined
def _text(at, end):
    """Return the length of a text and the position of its first byte; position 0 if it is not read here."""
    length, at = piece_at(at, end)
    if at == 0 or length > _MAX_TEXT_BYTES or not _is_text(at, length):
        return 0, 0
    return length, at


@inlined
def _write_name(to, name):
    for number in range(len(name)):
        store_u8(to + number, name[number])
    return to + len(name)


@inlined
def _write(to, source, length, last):
    """Write a text and the byte after it; return the position after both."""
    copy_memory(to, source, length)
    store_u8(to + length, last)
    return to + length + 1


@inlined
def _is_repeated(name, length, at, end):
    """Return whether a name is among the properties that were written."""
    while at < end:
        last = find_byte(at, end, NAME_END)
        if last - at == length and same_bytes(at, name, length):
            return True
        at = find_byte(last, end, PROPERTY_END) + 1
    return False


@inlined
def _write_user_property(at, end, refused, room, to):
    """Write a property of the user; return its bytes and the position after it, position 0 if it is not read
    here."""
    if at >= end or load_u8(at) != _ENTRY_KEY:
        return 0, 0
    name_bytes, name = piece_at(at + 1, end)
    if name == 0 or not _is_text(name, name_bytes):
        return 0, 0
    at = name + name_bytes
    if at >= end or load_u8(at) != _ENTRY_VALUE:
        return 0, 0
    value_bytes, value = piece_at(at + 1, end)
    if value == 0 or value + value_bytes != end or not _is_text(value, value_bytes):
        return 0, 0
    size = name_bytes + value_bytes
    if to - room + size > _MAX_USER_BYTES or _is_repeated(name, name_bytes, room, to):
        return 0, 0
    key = new_text(name, name_bytes)
    is_refused = is_in_set(refused, key)
    decref(key)
    if is_refused:
        return 0, 0
    return size, _write(_write(to, name, name_bytes, NAME_END), value, value_bytes, PROPERTY_END)


@inlined
def _time(at, end):
    """Return the seconds and nanoseconds of a timestamp; -1 for seconds if it is not read here."""
    seconds = 0
    nanos = 0
    if at < end and load_u8(at) == _FIRST_NUMBER:
        seconds, at = number_at(at + 1, end)
        if at == 0:
            return -1, 0
    if at < end and load_u8(at) == _SECOND_NUMBER:
        nanos, at = number_at(at + 1, end)
        if at == 0:
            return -1, 0
    if at != end or seconds >= _MAX_SECONDS or nanos > _MAX_NANOS:
        return -1, 0
    return seconds, nanos


@inlined
def _is_digest(at, end):
    """Return whether this is a digest: the number of its kind, and its text."""
    if at < end and load_u8(at) == _FIRST_NUMBER:
        kind, at = number_at(at + 1, end)
        if at == 0 or kind > 0x7F:
            return False
    if at < end and load_u8(at) == _SECOND_TEXT:
        length, at = _text(at + 1, end)
        if at == 0:
            return False
        at += length
    return at == end


@inlined
def _write_system(at, end, size, to):
    """Write the properties of the broker. Return (position after them or 0 if they are not read here, message
    id, its bytes, born time in milliseconds, encoding of the body). `size` are the bytes of the user's."""
    last = 0
    id_at, id_bytes = 0, 0
    trace_at, trace_bytes = 0, 0
    host_at, host_bytes = 0, 0
    seconds, nanos = 0, 0
    encoding = 0
    while at < end:
        field = load_u8(at)
        at += 1
        if field == _TRACE_CONTEXT:
            if at >= end or load_u8(at) != 1:
                return 0, 0, 0, 0, 0
            at += 1
        if field < last or (field == last and field != _KEYS):
            return 0, 0, 0, 0, 0
        if last == _KEYS and field != _KEYS:
            store_u8(to - 1, PROPERTY_END)
        if field == _ENCODING or field == _TYPE or field == _QUEUE_ID:
            value, at = number_at(at, end)
            if at == 0 or (field == _ENCODING and value > _GZIP) or (field == _TYPE and value > _FIFO):
                return 0, 0, 0, 0, 0
            if field == _ENCODING:
                encoding = value
            elif field == _QUEUE_ID and value > 0x7FFFFFFF:
                return 0, 0, 0, 0, 0
        elif field == _BORN or field == _DIGEST:
            length, at = piece_at(at, end)
            if at == 0:
                return 0, 0, 0, 0, 0
            if field == _BORN:
                seconds, nanos = _time(at, at + length)
                if seconds < 0:
                    return 0, 0, 0, 0, 0
            elif not _is_digest(at, at + length):
                return 0, 0, 0, 0, 0
            at += length
        else:
            length, at = _text(at, end)
            if at == 0:
                return 0, 0, 0, 0, 0
            if field == _TAG:
                if find_byte(at, at + length, _BAR) != at + length:
                    return 0, 0, 0, 0, 0
                to = _write(_write_name(to, _TAGS_NAME), at, length, PROPERTY_END)
                size += length
            elif field == _KEYS:
                if last != _KEYS:
                    to = _write_name(to, _KEYS_NAME)
                size += length
                if size > _MAX_USER_BYTES:
                    return 0, 0, 0, 0, 0
                to = _write(to, at, length, _SPACE)
            elif field == _MESSAGE_ID:
                id_at, id_bytes = at, length
                to = _write(_write_name(to, _UNIQUE_KEY_NAME), at, length, PROPERTY_END)
            elif field == _BORN_HOST:
                host_at, host_bytes = at, length
            elif field == _TRACE_CONTEXT:
                trace_at, trace_bytes = at, length
            else:
                return 0, 0, 0, 0, 0
            at += length
        last = field
    if id_bytes == 0 or size > _MAX_USER_BYTES:
        return 0, 0, 0, 0, 0
    if trace_bytes:
        to = _write(_write_name(to, _TRACE_CONTEXT_NAME), trace_at, trace_bytes, PROPERTY_END)
    if host_bytes:
        to = _write(_write_name(to, _BORN_HOST_NAME), host_at, host_bytes, PROPERTY_END)
    born_ms = seconds * 1_000 + nanos // 1_000_000
    if seconds:
        to = write_decimal(_write_name(to, _BORN_TIMESTAMP_NAME), born_ms)
        store_u8(to, PROPERTY_END)
        to += 1
    return to, id_at, id_bytes, born_ms, encoding


@inlined
def _read_message(at, end, refused, added, room, made):
    """Fill the tuple with what the message at `at` says; return whether it was read."""
    if at >= end or load_u8(at) != _MESSAGE_TOPIC:
        return False
    length, at = piece_at(at + 1, end)
    if at == 0 or length == 0 or load_u8(at) != _RESOURCE_NAME:
        return False
    topic_bytes, topic = _text(at + 1, at + length)
    if topic == 0 or topic + topic_bytes != at + length:
        return False
    at += length
    to = room
    size = 0
    count = 0
    while at < end and load_u8(at) == _MESSAGE_USER:
        length, at = piece_at(at + 1, end)
        if at == 0 or count == _MAX_USER_PROPERTIES:
            return False
        more, to = _write_user_property(at, at + length, refused, room, to)
        if to == 0:
            return False
        size += more
        count += 1
        at += length
    if at >= end or load_u8(at) != _MESSAGE_SYSTEM:
        return False
    length, at = piece_at(at + 1, end)
    if at == 0:
        return False
    to, id_at, id_bytes, born_ms, encoding = _write_system(at, at + length, size, to)
    if to == 0:
        return False
    at += length
    if at >= end or load_u8(at) != _MESSAGE_BODY:
        return False
    length, at = piece_at(at + 1, end)
    if at == 0 or at + length != end:
        return False
    added_bytes = bytes_size(added)
    encoded = new_bytes(0, to - room + added_bytes)
    if encoded != 0:
        copy_memory(bytes_data(encoded), room, to - room)
        copy_memory(bytes_data(encoded) + (to - room), bytes_data(added), added_bytes)
    put_into_tuple(made, 0, new_text(topic, topic_bytes))
    put_into_tuple(made, 1, new_text(id_at, id_bytes))
    put_into_tuple(made, 2, new_bytes(at, length))
    put_into_tuple(made, 3, encoded)
    put_into_tuple(made, 4, new_int(born_ms))
    put_into_tuple(made, 5, new_int(encoding))
    return True


@entry_point
def _read_send(self, arguments, count):
    """`_read_send(refused, added, room, body)`: see `usual_sends`."""
    if count != 4:
        return wrong_call()
    body = argument(arguments, 3)
    data = bytes_data(body)
    added = argument(arguments, 1)
    bytes_data(added)
    room = bytearray_data(argument(arguments, 2))
    if has_failed():
        return 0
    made = new_tuple(6)
    if made == 0:
        return 0
    end = data + bytes_size(body)
    at = data + PREFIX_BYTES
    # The prefix: not compressed, and one message.
    if end - at > 1 and load_u8(data) == 0 and load_be32(data + 1) == end - at:
        if load_u8(at) == _REQUEST_MESSAGES:
            length, at = piece_at(at + 1, end)
            if at != 0 and at + length == end:
                if _read_message(at, end, argument(arguments, 0), added, room, made):
                    return answer(made)
    decref(made)
    if has_failed():
        return 0
    return new_tuple(0)


@entry_point
def _stored_answer(self, arguments, count):
    """`_stored_answer(room, status, message_id, queue_offset)`: see `stored_answers`."""
    if count != 4:
        return wrong_call()
    room = bytearray_data(argument(arguments, 0))
    status = argument(arguments, 1)
    status_data = bytes_data(status)
    message_id = text_argument(arguments, 2, room)
    queue_offset = int_argument(arguments, 3)
    if has_failed():
        return 0
    id_bytes = load64(room)
    status_bytes = bytes_size(status)
    entry_bytes = status_bytes + 1 + varint_bytes(id_bytes) + id_bytes
    if queue_offset > 0:
        entry_bytes += 1 + varint_bytes(queue_offset)
    size = status_bytes + 1 + varint_bytes(entry_bytes) + entry_bytes
    made = new_bytes(0, PREFIX_BYTES + size)
    if made != 0:
        to = write_prefix(bytes_data(made), size)
        copy_memory(to, status_data, status_bytes)
        to += status_bytes
        store_u8(to, _ANSWER_ENTRIES)
        to = write_varint(to + 1, entry_bytes)
        copy_memory(to, status_data, status_bytes)
        to += status_bytes
        store_u8(to, _ENTRY_ID)
        to = write_varint(to + 1, id_bytes)
        copy_memory(to, message_id, id_bytes)
        to += id_bytes
        if queue_offset > 0:
            store_u8(to, _ENTRY_OFFSET)
            write_varint(to + 1, queue_offset)
    return made


def stored_answers(status: bytes) -> Callable[[str, int], bytes]:
    """Return a function of the id of a message and its offset in its queue, which makes the body of the
    answer `SendMessageResponse{status, entries {status, message_id, offset}}`, with the prefix of its
    message. The id is not empty, and has no lone surrogates.

    `status` is an answer with the status alone. Each stored message has such an answer. It takes 0.2 µs,
    with protobuf 2.4.
    """
    return partial(_stored_answer, bytearray(8), status)


def usual_sends(refused: frozenset[str], added: bytes) -> Callable[[bytes], UsualSend]:
    """Return a function that reads the body of a SendMessage, with the prefix of its message. Names of
    properties in `refused` are left to protobuf; `added` is put after the properties of each message."""
    return partial(_read_send, refused | {p.TRACE_CONTEXT}, added, bytearray(_ROOM_BYTES))
