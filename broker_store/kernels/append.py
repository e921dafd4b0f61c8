"""Append: a group of messages, encoded straight into the mapped commit log by one call.

    Message objects ──(describe)──► rows DESCRIPTOR_DONE .. DESCRIPTOR_COUNT ──► records at LOG_AT

The record's layout is in docs/spec/store-format.md section 2.1. A record in the file, low addresses left:

    LOG_ADDRESS                                LOG_AT                       LOG_ALLOCATED        LOG_SIZE
    │ record │ record │ record │ record │ ...  │ total │ magic │ ... │      │ no disk blocks yet │
                                                 written last

A row goes this way; the first step that does not hold ends it, and nothing of the row is written:

    status of the row        ──no──► refused: the row says why, and the group goes on with the next one
    sizes, properties        ──no──► refused
    fits into any log file   ──no──► refused (D_TOO_LARGE)
    fits into this log file  ──no──► LOG_FILE_FULL        Python makes the next file, then append_on
    disk blocks of the log   ──no──► LOG_NOT_ALLOCATED    Python allocates, then append_on
    disk blocks of its unit  ──no──► QUEUE_NOT_ALLOCATED  as above
    room for its index keys  ──no──► KEYS_NOT_ALLOCATED   as above
    written, queue offset assigned, LOG_AT moved

So a row is in the log as a whole or not at all, and a stop is never in the middle of a record: a full disk is
found by the allocation, not by a page fault of the write. The total size is written last. A process killed in
the middle leaves a length of zero there, which is where recovery ends the log.

A record leaves BLANK_BYTES of its file free, since the end-of-file record must fit after it (Apache's
CommitLog, END_FILE_MIN_BLANK_LENGTH).
"""

from __future__ import annotations

from numba import njit, types

from broker_store.kernels import context as c
from broker_store.kernels.crc import crc32
from broker_store.kernels.describe import describe_messages, take_group
from broker_store.kernels.dispatch import dispatch_records, max_keys
from broker_store.kernels.memory import (
    copy_memory,
    get,
    has_zero_byte,
    inlined,
    load_be16,
    load_be32,
    load_u8,
    put,
    store64,
    store_be16,
    store_be32,
    store_be64,
    store_u8,
)
from broker_store.kernels.objects import (
    argument,
    bytes_data,
    entry_point,
    has_failed,
    int_argument,
    new_int,
    wrong_call,
)
from broker_store.kernels.record_crc import PAIR_BYTES, has_record_crc, write_record_crc
from broker_store.kernels.record_head import (
    BATCHED_BODY_AT,
    BATCHED_BODY_LENGTH_AT,
    BATCHED_FLAG_AT,
    BLANK_BYTES,
    BLANK_MAGIC,
    BODY_AFTER_TRIES,
    BODY_CRC_AT,
    BODY_LENGTH_AFTER_TRIES,
    BORN_HOST_AT,
    BORN_IPV6,
    BORN_TIME_AT,
    CRC_MASK,
    FLAG_AT,
    HOST_BYTES,
    IPV6_MORE,
    LOG_OFFSET_AT,
    MAGIC_AT,
    MAGIC_V1,
    MAGIC_V2,
    MAX_PROPERTIES,
    MAX_TOPIC_V1,
    MIN_BATCHED,
    MIN_RECORD,
    PREPARED_AFTER_TRIES,
    PROPERTIES_LENGTH_BYTES,
    PROPERTY_END,
    QUEUE_ID_AT,
    QUEUE_OFFSET_AT,
    STORE_HOST_AFTER_STORE_TIME,
    STORE_IPV6,
    SYS_FLAG_AT,
    TOPIC_LENGTH_BYTES_V1,
    TOPIC_LENGTH_BYTES_V2,
)
from broker_store.kernels.waited import describe_waited

_WAITED = 2  # value of GROUP_BATCH
_NO_QUEUE_OFFSET = 0x4  # of the sys flag: the bit that prepared and rolled-back messages share


@inlined
def _crc_bytes(is_on, end, length):
    """Return how many bytes the record's CRC adds to properties of `length` bytes that end at address
    `end`."""
    if is_on == 0 or has_record_crc(end, length):
        return 0
    return PAIR_BYTES + (1 if length > 0 and load_u8(end - 1) != PROPERTY_END else 0)


@inlined
def _batch_extent(row, is_on):
    """Return (records, bytes of bodies and properties, upper bound of index entries), or a negative D_*
    status first.

    A batch is a chain of messages in one body. Each becomes a record of its own, with its own properties and
    then those that the producer gave for the whole batch:

        body   │ size │ magic │ crc │ flag │ body length │ body │ length │ properties │  next message ...
        record │ ... its own properties │ joint │ properties of the batch │ CRC │
    """
    # The client wrote these lengths. Each is bounded by what is left before it is used as a distance.
    at = get(row, c.D_BODY)
    end = at + get(row, c.D_BODY_LENGTH)
    more = get(row, c.D_PROPERTIES_LENGTH)
    more_end = get(row, c.D_PROPERTIES) + more
    count, total, keys = 0, 0, 0
    while at < end:
        if end - at < MIN_BATCHED:
            return -c.D_BAD_BATCH, 0, 0
        size = load_be32(at)
        body_length = load_be32(at + BATCHED_BODY_LENGTH_AT)
        if size < MIN_BATCHED or size > end - at or not 0 <= body_length <= size - MIN_BATCHED:
            return -c.D_BAD_BATCH, 0, 0
        properties_length = load_be16(at + BATCHED_BODY_AT + body_length)
        if properties_length < 0 or properties_length != size - MIN_BATCHED - body_length:
            return -c.D_BAD_BATCH, 0, 0
        own = at + MIN_BATCHED + body_length
        # The scan of a start refuses a record with a zero byte in its properties (REASON_SYNTAX).
        if has_zero_byte(own, properties_length):
            return -c.D_BAD_PROPERTIES, 0, 0
        # Between the two parts stands the byte that ends a property, unless the first part ends with it.
        is_open = properties_length > 0 and load_u8(own + properties_length - 1) != PROPERTY_END
        joint = 1 if is_open and more > 0 else 0
        last, last_length = (more_end, more) if more > 0 else (own + properties_length, properties_length)
        crc_bytes = _crc_bytes(is_on, last, last_length)
        if properties_length + joint + more + crc_bytes > MAX_PROPERTIES:
            return -c.D_PROPERTIES_TOO_LONG, 0, 0
        count += 1
        total += body_length + properties_length + joint + more + crc_bytes
        keys += max_keys(properties_length + joint + more)
        at += size
    if count == 0:
        return -c.D_BAD_BATCH, 0, 0
    return count, total, keys


@inlined
def _write_record(
    context, row, at, log_offset, queue_offset, flag, body, body_length, properties, properties_length
):
    """Encode one record at address `at`; return its size."""
    queue = get(row, c.D_QUEUE)
    topic = get(queue, c.Q_TOPIC)
    topic_length = get(topic, c.T_LENGTH)
    sys_flag = get(row, c.D_SYS_FLAG)
    base = get(row, c.D_PROPERTIES)
    base_length = get(row, c.D_PROPERTIES_LENGTH)
    if get(row, c.D_BATCH) == 0:
        base_length = 0  # of a single message they are `properties`
    joint = 0
    if (
        properties_length > 0
        and base_length > 0
        and load_u8(properties + properties_length - 1) != PROPERTY_END
    ):
        joint = 1
    all_properties = properties_length + joint + base_length

    # The total size is left out here: it is zero, as the file was made, until all the rest is written. The
    # body's CRC covers the body alone, as in Apache's store; RECORD_CRC adds one of the whole record.
    store_be32(at + MAGIC_AT, MAGIC_V1 if topic_length <= MAX_TOPIC_V1 else MAGIC_V2)
    store_be32(at + BODY_CRC_AT, (crc32(body, body_length) & CRC_MASK) if body_length > 0 else 0)
    store_be32(at + QUEUE_ID_AT, get(queue, c.Q_ID))
    store_be32(at + FLAG_AT, flag)
    store_be64(at + QUEUE_OFFSET_AT, queue_offset)
    store_be64(at + LOG_OFFSET_AT, log_offset)
    store_be32(at + SYS_FLAG_AT, sys_flag)
    store_be64(at + BORN_TIME_AT, get(row, c.D_BORN_MS))
    to = at + BORN_HOST_AT
    if sys_flag & BORN_IPV6:
        copy_memory(to, get(row, c.D_BORN_HOST), HOST_BYTES + IPV6_MORE)
        to += HOST_BYTES + IPV6_MORE
    else:
        store_be64(to, get(row, c.D_BORN_HOST))
        to += HOST_BYTES
    # One store time for the whole group. It never goes back along the log (Appender), which lookups by time
    # and the start of recovery rely on.
    store_be64(to, get(context, c.NOW_MS))
    to += STORE_HOST_AFTER_STORE_TIME
    if sys_flag & STORE_IPV6:
        copy_memory(to, get(row, c.D_STORE_HOST), HOST_BYTES + IPV6_MORE)
        to += HOST_BYTES + IPV6_MORE
    else:
        store_be64(to, get(row, c.D_STORE_HOST))
        to += HOST_BYTES
    store_be32(to, get(row, c.D_RECONSUME_TIMES))
    store_be64(to + PREPARED_AFTER_TRIES, get(row, c.D_PREPARED_OFFSET))
    store_be32(to + BODY_LENGTH_AFTER_TRIES, body_length)
    to += BODY_AFTER_TRIES
    copy_memory(to, body, body_length)
    to += body_length
    # A topic above 127 bytes has two bytes of length, and the magic number of version 2 says so.
    if topic_length <= MAX_TOPIC_V1:
        store_u8(to, topic_length)
        to += TOPIC_LENGTH_BYTES_V1
    else:
        store_be16(to, topic_length)
        to += TOPIC_LENGTH_BYTES_V2
    copy_memory(to, get(topic, c.T_NAME), topic_length)
    to += topic_length
    length_at = to
    store_be16(to, all_properties)
    to += PROPERTIES_LENGTH_BYTES
    copy_memory(to, properties, properties_length)
    to += properties_length
    if joint:
        store_u8(to, PROPERTY_END)
        to += 1
    if base_length > 0:
        copy_memory(to, base, base_length)
        to += base_length
    # A CRC property that was copied with the properties of another record holds that record's CRC: replace
    # it.
    had_crc = has_record_crc(to, all_properties)
    crc_bytes = _crc_bytes(get(context, c.RECORD_CRC), to, all_properties)
    if crc_bytes > 0:
        if crc_bytes > PAIR_BYTES:
            store_u8(to, PROPERTY_END)
        to += crc_bytes
        store_be16(length_at, all_properties + crc_bytes)
    store_be32(at, to - at)
    # After the size, since the CRC covers it.
    if had_crc or crc_bytes > 0:
        write_record_crc(at, to - at)
    return to - at


@inlined
def _refuse(context, row, number, status):
    """Note why a row is refused and go on to the next: one bad message does not hold up its group."""
    put(row, c.D_STATUS, status)
    put(context, c.REFUSED_ROWS, get(context, c.REFUSED_ROWS) + 1)
    put(context, c.DESCRIPTOR_DONE, number + 1)


@inlined
def _append_rows(context):
    """Append the remaining rows; return DONE, or the stop code of row DESCRIPTOR_DONE, of which nothing is
    written.

    Each word of progress is put into the context as soon as it is true, not at the end: after a stop code the
    next call begins with row DESCRIPTOR_DONE.
    """
    rows = get(context, c.DESCRIPTORS)
    count = get(context, c.DESCRIPTOR_COUNT)
    log = get(context, c.LOG_ADDRESS)
    base = get(context, c.LOG_BASE)
    size = get(context, c.LOG_SIZE)
    allocated = get(context, c.LOG_ALLOCATED)
    is_crc_on = get(context, c.RECORD_CRC)
    while get(context, c.DESCRIPTOR_DONE) < count:
        number = get(context, c.DESCRIPTOR_DONE)
        row = rows + number * c.D_WORDS * 8
        if get(row, c.D_STATUS) != c.D_OK:
            _refuse(context, row, number, get(row, c.D_STATUS))
            continue
        queue = get(row, c.D_QUEUE)
        sys_flag = get(row, c.D_SYS_FLAG)
        topic_length = get(get(queue, c.Q_TOPIC), c.T_LENGTH)
        fixed = MIN_RECORD + topic_length + (1 if topic_length > MAX_TOPIC_V1 else 0)
        fixed += (IPV6_MORE if sys_flag & BORN_IPV6 else 0) + (IPV6_MORE if sys_flag & STORE_IPV6 else 0)
        properties_length = get(row, c.D_PROPERTIES_LENGTH)
        is_batch = get(row, c.D_BATCH) == 1
        if is_batch:
            records, extent, keys = _batch_extent(row, is_crc_on)
            if records < 0:
                _refuse(context, row, number, -records)
                continue
            total = records * fixed + extent
        else:
            status = c.D_OK
            crc_bytes = _crc_bytes(is_crc_on, get(row, c.D_PROPERTIES) + properties_length, properties_length)
            if properties_length + crc_bytes > MAX_PROPERTIES:
                status = c.D_PROPERTIES_TOO_LONG
            elif has_zero_byte(get(row, c.D_PROPERTIES), properties_length):
                status = c.D_BAD_PROPERTIES
            if status != c.D_OK:
                _refuse(context, row, number, status)
                continue
            records = 1
            keys = max_keys(properties_length)
            total = fixed + get(row, c.D_BODY_LENGTH) + properties_length + crc_bytes
        put(row, c.D_COUNT, records)
        # A batch is one piece: all its records are in one file, in order, with consecutive queue offsets.
        at = get(context, c.LOG_AT)
        if total + BLANK_BYTES > size:
            _refuse(context, row, number, c.D_TOO_LARGE)
            continue
        if at + total + BLANK_BYTES > size:
            return c.LOG_FILE_FULL
        if at + total + BLANK_BYTES > allocated:
            return c.LOG_NOT_ALLOCATED
        # A half message (prepared) and its rollback have no place in a queue until the commit writes the
        # message again.
        queue_offset = get(queue, c.Q_NEXT)
        in_queue = (sys_flag & _NO_QUEUE_OFFSET) == 0
        if in_queue and queue_offset + records > get(queue, c.Q_APPEND_LIMIT):
            return c.QUEUE_NOT_ALLOCATED
        if get(context, c.INDEX_ENABLED) == 1:
            # An upper bound is reserved, as keys are counted only when they are written. Dispatch gives back
            # what is left. Where the bound does not fit, Python counts the keys of this one row exactly.
            queued = get(context, c.QUEUED_KEYS) + keys
            if queued > get(context, c.KEY_ROOM) and get(context, c.KEY_ROOM_GRANTED) != number:
                return c.KEYS_NOT_ALLOCATED
            put(context, c.QUEUED_KEYS, queued)

        # ---- nothing before this line has written to a file
        # From here on nothing can fail, so the row is written as a whole.
        put(row, c.D_LOG_OFFSET, base + at)
        put(row, c.D_QUEUE_OFFSET, queue_offset if in_queue else 0)
        put(row, c.D_SIZE, total)
        if is_batch:
            chain = get(row, c.D_BODY)
            to = at
            for record in range(records):
                body_length = load_be32(chain + BATCHED_BODY_LENGTH_AT)
                own_properties = chain + MIN_BATCHED + body_length
                to += _write_record(
                    context,
                    row,
                    log + to,
                    base + to,
                    queue_offset + record if in_queue else 0,
                    load_be32(chain + BATCHED_FLAG_AT),
                    chain + BATCHED_BODY_AT,
                    body_length,
                    own_properties,
                    load_be16(own_properties - PROPERTIES_LENGTH_BYTES),
                )
                chain += load_be32(chain)
        else:
            _write_record(
                context,
                row,
                log + at,
                base + at,
                queue_offset if in_queue else 0,
                get(row, c.D_FLAG),
                get(row, c.D_BODY),
                get(row, c.D_BODY_LENGTH),
                get(row, c.D_PROPERTIES),
                properties_length,
            )
        if in_queue:
            put(queue, c.Q_NEXT, queue_offset + records)
        put(context, c.LOG_AT, at + total)
        put(context, c.STORED_COUNT, get(context, c.STORED_COUNT) + records)
        put(context, c.STORED_BYTES, get(context, c.STORED_BYTES) + total)
        put(context, c.DESCRIPTOR_DONE, number + 1)
    return c.DONE


@inlined
def _go_on(context):
    """Describe the remaining messages and append their rows; return DONE or the stop code of a step.

    When all are appended they are confirmed and dispatched, unless a sync must come first (SYNC_FIRST).
    """
    stopped = c.DONE
    if get(context, c.DESCRIBED) < get(context, c.DESCRIPTOR_COUNT):
        stopped = (
            describe_waited(context) if get(context, c.GROUP_BATCH) == _WAITED else describe_messages(context)
        )
    if stopped == c.DONE:
        stopped = _append_rows(context)
    if stopped != c.DONE or get(context, c.SYNC_FIRST) == 1:
        return stopped
    # With ASYNC_FLUSH what is written may be read at once. With SYNC_FLUSH the loop sets CONFIRMED after the
    # sync and calls `dispatch` then, so that no consumer gets a message that a power cut could take back.
    put(context, c.CONFIRMED, get(context, c.LOG_BASE) + get(context, c.LOG_AT))
    return dispatch_records(context, 0x7FFFFFFFFFFFFFFF)


@inlined
def _begin(context, now_ms, kind):
    """Start a group."""
    put(context, c.NOW_MS, now_ms)
    put(context, c.GROUP_BATCH, kind)
    put(context, c.DESCRIBED, 0)
    put(context, c.DESCRIPTOR_DONE, 0)
    put(context, c.REFUSED_ROWS, 0)
    put(context, c.KEY_ROOM_GRANTED, -1)  # a grant is for a row of one group
    return _go_on(context)


@entry_point
def append_group(self, arguments, count):
    """(context, tuple of messages, store time, 1 when each body is a batch) -> DONE or a stop code.

    The caller holds the tuple until the group is finished.
    """
    if count != 4:
        return wrong_call()
    context = int_argument(arguments, 0)
    now_ms = int_argument(arguments, 2)
    is_batch = int_argument(arguments, 3)
    if has_failed():
        return 0  # an argument was no int: the exception is set
    # The interpreter lock is held from here to the end, so no other thread changes the messages meanwhile.
    take_group(context, argument(arguments, 1))
    return new_int(_begin(context, now_ms, is_batch))


@entry_point
def append_waited(self, arguments, count):
    """(context, bytes of waiting records, their length, how many, store time, row of the topic that they wait
    in, address of times or 0, address of room for properties) -> DONE or a stop code.

    The caller holds the bytes, the times and the room until the group is finished.
    """
    if count != 8:
        return wrong_call()
    context = int_argument(arguments, 0)
    records = bytes_data(argument(arguments, 1))
    length, number, now_ms = (
        int_argument(arguments, 2),
        int_argument(arguments, 3),
        int_argument(arguments, 4),
    )
    topic, times, room = int_argument(arguments, 5), int_argument(arguments, 6), int_argument(arguments, 7)
    if has_failed():
        return 0
    put(context, c.WAITED_AT, records)
    put(context, c.WAITED_END, records + length)
    put(context, c.WAITED_TOPIC, topic)
    put(context, c.WAITED_TIMES, times)
    put(context, c.WAITED_ROOM, room)
    put(context, c.DESCRIPTOR_COUNT, number)
    return new_int(_begin(context, now_ms, _WAITED))


@entry_point
def append_on(self, arguments, count):
    """(context) -> DONE or a stop code: continue the group after its stop was handled."""
    if count != 1:
        return wrong_call()
    context = int_argument(arguments, 0)
    if has_failed():
        return 0
    return new_int(_go_on(context))


@njit(types.void(types.int64, types.int64), cache=True)
def write_blank(address, remaining):
    """Write the end-of-file record (docs/spec/store-format.md section 2.5): int32 length of the rest, int32
    magic."""
    store_be32(address + MAGIC_AT, BLANK_MAGIC)
    store_be32(address, remaining)


@njit(types.int64(types.int64, types.int64, types.int64, types.int64), cache=True)
def record_offsets(address, length, log_offset, target):
    """Write the log offsets of the records that lie back to back at `address` to int64 at `target`; return
    their count."""
    at, count = 0, 0
    while at < length:
        store64(target + 8 * count, log_offset + at)
        at += load_be32(address + at)
        count += 1
    return count
