"""Describe: from `Message` objects to the rows that append takes, field by field at their addresses.

    MESSAGES ──► Message, Message, ...  ──►  rows DESCRIBED .. DESCRIPTOR_COUNT

Reading eleven fields in Python costs more than appending the message; here each is one load. The layout words
(M_*) hold only for CPython's own classes, so the type of each object is compared first. A message with
another type (a bytearray, a subclass of int) stops the kernel with NOT_PLAIN: Python converts it, and the
same message is described again. The interpreter lock is held, and the caller holds the messages.
"""

from __future__ import annotations

from broker_store.kernels import context as c
from broker_store.kernels.dispatch import find_queue, find_topic
from broker_store.kernels.memory import (
    copy_memory,
    find_byte,
    get,
    inlined,
    load32,
    load64,
    load_be32,
    load_u8,
    put,
    store_be32,
)
from broker_store.kernels.record_head import BORN_IPV6, INNER_BATCH, STORE_IPV6

_TYPE = 8  # of any object: the address of its type
_SIZE = 16  # of str, bytes, int and tuple
_STR_STATE = 32
_STR_COMPACT_ASCII = 0x60
_INT_DIGITS = 24  # of 30 bits each
TUPLE_ITEMS = 24
_BOTH_V6 = 0x30


@inlined
def _is_int(layout, object):
    """True if it is an int that fits 64 bits."""
    if load64(object + _TYPE) != get(layout, c.M_INT_TYPE):
        return False
    count = load64(object + _SIZE)
    if get(layout, c.M_INT_TAGGED) == 1:
        count >>= 3
    elif count < 0:
        count = -count
    return count < 3 or (count == 3 and load32(object + _INT_DIGITS + 8) < 8)


@inlined
def _int_value(layout, object):
    size = load64(object + _SIZE)
    if get(layout, c.M_INT_TAGGED) == 1:
        count, negative = size >> 3, size & 3 == 2
    else:
        count, negative = (-size if size < 0 else size), size < 0
    value = 0
    if count > 0:
        value = load32(object + _INT_DIGITS)
    if count > 1:
        value |= load32(object + _INT_DIGITS + 4) << 30
    if count > 2:
        value |= load32(object + _INT_DIGITS + 8) << 60
    return -value if negative else value


@inlined
def _host(layout, host, room):
    """Return (value for the row, bytes of the address): for IPv4 address and port as one int64, for IPv6 the
    address of both at `room`.

    0 bytes when `host` is not (bytes of 4 or 16, int).
    """
    if load64(host + _TYPE) != get(layout, c.M_TUPLE_TYPE) or load64(host + _SIZE) != 2:
        return 0, 0
    address, port = load64(host + TUPLE_ITEMS), load64(host + TUPLE_ITEMS + 8)
    if load64(address + _TYPE) != get(layout, c.M_BYTES_TYPE) or not _is_int(layout, port):
        return 0, 0
    length, data = load64(address + _SIZE), address + get(layout, c.M_BYTES_DATA)
    number = _int_value(layout, port)
    if length == 4:
        return (load_be32(data) << 32) | (number & 0xFFFFFFFF), 4
    if length == 16:
        copy_memory(room, data, 16)
        store_be32(room + 16, number)
        return room, 16
    return 0, 0


@inlined
def names_inner_count(properties, length):
    """True if the properties hold INNER_NUM\\x01, which only the batch consume queues of Apache may have."""
    at, end = properties, properties + length
    while True:
        at = find_byte(at, end, 1)
        if at == end:
            return False
        # "I", "NNER_NUM"
        if at - properties >= 9 and load_u8(at - 9) == 73 and load64(at - 8) == 0x4D554E5F52454E4E:
            return True
        at += 1


@inlined
def take_group(context, messages):
    """Set the next group, a tuple of messages."""
    put(context, c.MESSAGES, messages + TUPLE_ITEMS)
    put(context, c.DESCRIPTOR_COUNT, load64(messages + _SIZE))


@inlined
def describe_messages(context):
    """Make the remaining rows; return DONE, or the stop code of message DESCRIBED."""
    layout = get(context, c.LAYOUT)
    messages = get(context, c.MESSAGES)
    count = get(context, c.DESCRIPTOR_COUNT)
    number = get(context, c.DESCRIBED)
    bytes_type = get(layout, c.M_BYTES_TYPE)
    last_name, topic = 0, 0
    while number < count:
        message = get(messages, number)
        row = get(context, c.DESCRIPTORS) + number * c.D_WORDS * 8
        put(context, c.DESCRIBED, number)
        name = load64(message + get(layout, c.M_TOPIC))
        if name != last_name:
            if load64(name + _TYPE) != get(layout, c.M_STR_TYPE):
                return c.NOT_PLAIN
            if load32(name + _STR_STATE) & _STR_COMPACT_ASCII != _STR_COMPACT_ASCII:
                return c.NOT_PLAIN
            topic = find_topic(context, name + get(layout, c.M_STR_DATA), load64(name + _SIZE))
            if topic == 0 or get(topic, c.T_TAKES) == 0:
                return c.QUEUE_NOT_OPEN
            last_name = name
        queue_id = load64(message + get(layout, c.M_QUEUE_ID))
        body = load64(message + get(layout, c.M_BODY))
        properties = load64(message + get(layout, c.M_PROPERTIES))
        flag = load64(message + get(layout, c.M_FLAG))
        sys_flag = load64(message + get(layout, c.M_SYS_FLAG))
        born_ms = load64(message + get(layout, c.M_BORN_TIMESTAMP))
        reconsume_times = load64(message + get(layout, c.M_RECONSUME_TIMES))
        prepared = load64(message + get(layout, c.M_PREPARED_OFFSET))
        if load64(body + _TYPE) != bytes_type or load64(properties + _TYPE) != bytes_type:
            return c.NOT_PLAIN
        if not (_is_int(layout, queue_id) and _is_int(layout, flag) and _is_int(layout, sys_flag)):
            return c.NOT_PLAIN
        if not (_is_int(layout, born_ms) and _is_int(layout, reconsume_times) and _is_int(layout, prepared)):
            return c.NOT_PLAIN
        room = get(context, c.ROW_HOSTS) + number * c.HOST_ROOM
        born_host, born_bytes = _host(layout, load64(message + get(layout, c.M_BORN_HOST)), room)
        stored_by = load64(message + get(layout, c.M_STORE_HOST))
        if stored_by == get(layout, c.M_NONE):
            stored_by = get(context, c.STORE_HOST)
        store_host, store_bytes = _host(layout, stored_by, room + c.HOST_ROOM // 2)
        if born_bytes == 0 or store_bytes == 0:
            return c.NOT_PLAIN
        queue = find_queue(topic, _int_value(layout, queue_id))
        if queue == 0:
            return c.QUEUE_NOT_OPEN
        flags = _int_value(layout, sys_flag)
        body_length, properties_length = load64(body + _SIZE), load64(properties + _SIZE)
        properties += get(layout, c.M_BYTES_DATA)
        number += 1
        if (
            body_length > get(context, c.MAX_BODY)
            or flags & INNER_BATCH
            or names_inner_count(properties, properties_length)
        ):
            put(row, c.D_STATUS, c.D_ILLEGAL)
            continue
        flags &= ~_BOTH_V6
        if born_bytes == 16:
            flags |= BORN_IPV6
        if store_bytes == 16:
            flags |= STORE_IPV6
        put(row, c.D_QUEUE, queue)
        put(row, c.D_BODY, body + get(layout, c.M_BYTES_DATA))
        put(row, c.D_BODY_LENGTH, body_length)
        put(row, c.D_PROPERTIES, properties)
        put(row, c.D_PROPERTIES_LENGTH, properties_length)
        put(row, c.D_FLAG, _int_value(layout, flag))
        put(row, c.D_SYS_FLAG, flags)
        put(row, c.D_BORN_MS, _int_value(layout, born_ms))
        put(row, c.D_BORN_HOST, born_host)
        put(row, c.D_STORE_HOST, store_host)
        put(row, c.D_RECONSUME_TIMES, _int_value(layout, reconsume_times))
        put(row, c.D_PREPARED_OFFSET, _int_value(layout, prepared))
        put(row, c.D_BATCH, get(context, c.GROUP_BATCH))
        put(row, c.D_STATUS, c.D_OK)
    put(context, c.DESCRIBED, count)
    return c.DONE
