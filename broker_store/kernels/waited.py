"""Waited: from records that waited for their time to the rows that append takes, to append them to their real
queue.

    record in SCHEDULE_TOPIC_XXXX or rmq_sys_wheel_timer ──► row of the queue that its REAL_TOPIC and REAL_QID
                                                             name

The record keeps body, flags, hosts, times and properties. A timer message also gets the times at which it was
put on the wheel and taken off; its properties are written again with them, in room that the caller provides.
The records lie back to back in memory that the caller holds. Their lengths are verified: one that does not
add up has no destination, nor have those after it.
"""

from __future__ import annotations

from broker_store.kernels import context as c
from broker_store.kernels.describe import names_inner_count
from broker_store.kernels.dispatch import find_queue, find_topic
from broker_store.kernels.memory import (
    copy_memory,
    find_byte,
    get,
    inlined,
    load64,
    load_be32,
    load_be64,
    load_u8,
    put,
    same_bytes,
    store64,
    store_u8,
    write_decimal,
)
from broker_store.kernels.record_head import (
    BODY_AFTER_TRIES,
    BORN_HOST_AT,
    BORN_IPV6,
    BORN_TIME_AT,
    FLAG_AT,
    INNER_BATCH,
    MAGIC_AT,
    MAX_PROPERTIES,
    MIN_RECORD,
    NAME_END,
    PREPARED_AFTER_TRIES,
    PROPERTY_END,
    STORE_HOST_AFTER_STORE_TIME,
    STORE_IPV6,
    bounded_parts,
    is_record_magic,
)

MAX_ADDED_BYTES = 80  # that the two times add to a record's properties
_MAX_QUEUE_ID = 65535
_MAX_QUEUE_DIGITS = 9


def _word(text: str) -> int:
    """Return eight letters as they lie in memory."""
    return int.from_bytes(text.encode(), "little")


# TIMER_ENQUEUE_MS and TIMER_DEQUEUE_MS differ in two letters.
_TIMER_EN, _TIMER_DE, _QUEUE_MS = _word("TIMER_EN"), _word("TIMER_DE"), _word("QUEUE_MS")
_REAL_TOP, _REAL_QID = _word("REAL_TOP"), _word("REAL_QID")
_I, _C = ord("I"), ord("C")


@inlined
def _real_place(properties, length):
    """Return (address of REAL_TOPIC's value, its length, the queue id or -1), from the last property of each
    name."""
    topic, topic_length, queue_at, digits = 0, 0, 0, 0
    at, end = properties, properties + length
    while at < end:
        stop = find_byte(at, end, PROPERTY_END)
        if (
            stop - at > 11
            and load64(at) == _REAL_TOP
            and load_u8(at + 8) == _I
            and load_u8(at + 9) == _C
            and load_u8(at + 10) == NAME_END
        ):
            topic, topic_length = at + 11, stop - at - 11
        elif stop - at > 9 and load64(at) == _REAL_QID and load_u8(at + 8) == NAME_END:
            queue_at, digits = at + 9, stop - at - 9
        at = stop + 1
    if digits == 0 or digits > _MAX_QUEUE_DIGITS:
        return topic, topic_length, -1
    queue_id = 0
    for place in range(digits):
        digit = load_u8(queue_at + place) - 48
        if digit < 0 or digit > 9:
            return topic, topic_length, -1
        queue_id = 10 * queue_id + digit
    return topic, topic_length, queue_id if queue_id <= _MAX_QUEUE_ID else -1


@inlined
def _write_time(target, second_word, time_ms):
    """Write a property with a time; return the address after it."""
    store64(target, second_word)
    store64(target + 8, _QUEUE_MS)
    store_u8(target + 16, NAME_END)
    end = write_decimal(target + 17, time_ms)
    store_u8(end, PROPERTY_END)
    return end + 1


@inlined
def _with_times(target, properties, length, enqueued_ms, dequeued_ms):
    """Write the properties with these two times in place of any they had; return their bytes."""
    to, at, end = target, properties, properties + length
    while at < end:
        stop = find_byte(at, end, PROPERTY_END)
        size = stop - at
        is_time = (
            size >= 16
            and (load64(at) == _TIMER_EN or load64(at) == _TIMER_DE)
            and load64(at + 8) == _QUEUE_MS
        )
        if is_time and size > 16:
            is_time = load_u8(at + 16) == NAME_END
        if size > 0 and not is_time:
            copy_memory(to, at, size)
            store_u8(to + size, PROPERTY_END)
            to += size + 1
        at = stop + 1
    return _write_time(_write_time(to, _TIMER_EN, enqueued_ms), _TIMER_DE, dequeued_ms) - target


@inlined
def describe_waited(context):
    """Make the remaining rows; return DONE, or QUEUE_NOT_OPEN with the destination of record DESCRIBED in its
    row."""
    count = get(context, c.DESCRIPTOR_COUNT)
    number = get(context, c.DESCRIBED)
    end = get(context, c.WAITED_END)
    waits_in = get(context, c.WAITED_TOPIC)
    times = get(context, c.WAITED_TIMES)
    room = get(context, c.WAITED_ROOM)
    while number < count:
        record = get(context, c.WAITED_AT)
        row = get(context, c.DESCRIPTORS) + number * c.D_WORDS * 8
        put(context, c.DESCRIBED, number)
        put(row, c.D_QUEUE, 0)
        put(row, c.D_STATUS, c.D_NO_PLACE)
        number += 1
        if end - record < MIN_RECORD:
            continue
        total = load_be32(record)
        if not is_record_magic(load_be32(record + MAGIC_AT)) or total < MIN_RECORD or total > end - record:
            put(context, c.WAITED_AT, end)
            continue
        put(context, c.WAITED_AT, record + total)
        sys_flag, store_at, tries, body_length, name, name_length, properties, properties_length = (
            bounded_parts(record, total)
        )
        if tries == 0:
            continue
        if get(waits_in, c.T_LENGTH) != name_length or not same_bytes(
            get(waits_in, c.T_NAME), name, name_length
        ):
            continue  # another record lies there now
        real, real_length, queue_id = _real_place(properties, properties_length)
        if real_length == 0 or queue_id < 0:
            continue
        topic = find_topic(context, real, real_length)
        queue = 0
        if topic != 0 and get(topic, c.T_IS_REAL) == 1:
            queue = find_queue(topic, queue_id)
        if queue == 0:
            put(row, c.D_PROPERTIES, real)
            put(row, c.D_PROPERTIES_LENGTH, real_length)
            put(row, c.D_QUEUE_OFFSET, queue_id)
            put(row, c.D_SIZE, total)
            put(context, c.WAITED_AT, record)
            return c.QUEUE_NOT_OPEN
        if (
            body_length > get(context, c.MAX_BODY)
            or sys_flag & INNER_BATCH
            or names_inner_count(properties, properties_length)
        ):
            put(row, c.D_STATUS, c.D_ILLEGAL)
            continue
        prepared = load_be64(tries + PREPARED_AFTER_TRIES)
        if times != 0:
            prepared = 0
            length = _with_times(
                room, properties, properties_length, get(times, number - 1), get(context, c.NOW_MS)
            )
            if length <= MAX_PROPERTIES:  # else the message is delivered without the times
                properties, properties_length = room, length
                room += length
        put(row, c.D_QUEUE, queue)
        put(row, c.D_BODY, tries + BODY_AFTER_TRIES)
        put(row, c.D_BODY_LENGTH, body_length)
        put(row, c.D_PROPERTIES, properties)
        put(row, c.D_PROPERTIES_LENGTH, properties_length)
        put(row, c.D_FLAG, load_be32(record + FLAG_AT))
        put(row, c.D_SYS_FLAG, sys_flag)
        put(row, c.D_BORN_MS, load_be64(record + BORN_TIME_AT))
        born_host = record + BORN_HOST_AT
        put(row, c.D_BORN_HOST, born_host if sys_flag & BORN_IPV6 else load_be64(born_host))
        store_host = store_at + STORE_HOST_AFTER_STORE_TIME
        put(row, c.D_STORE_HOST, store_host if sys_flag & STORE_IPV6 else load_be64(store_host))
        put(row, c.D_RECONSUME_TIMES, load_be32(tries))
        put(row, c.D_PREPARED_OFFSET, prepared)
        put(row, c.D_BATCH, 0)
        put(row, c.D_STATUS, c.D_OK)
        put(context, c.WAITED_ROOM, room)
    put(context, c.DESCRIBED, count)
    return c.DONE
