"""Dispatch: from the log to consume queue units and index entries, in the order of the log
(docs/spec/store-behaviour.md section 3).

    log     ...| record | record | record |...         DISPATCH_BASE + DISPATCH_AT ──► CONFIRMED
                          │
                          ├─ name ─► topic row ─► queue row      UNKNOWN_QUEUE: Python creates it
                          │
                          ├─ unit    at Q_DISPATCHED of the queue's file
                          │    number below it: the unit exists, nothing is written
                          │    number above it: QUEUE_HOLE
                          │    no room in the file: QUEUE_FILE_END, Python opens the next one
                          │    record below T_DELETED_BEFORE: of a deleted topic, gets no unit
                          │
                          └─ entries one for the unique key, each key and the tag, at INDEX_COUNT
                               log offset below INDEX_END_OFFSET: they exist, nothing is written
                               no room in the file: INDEX_FULL, Python opens the next one

The log is the truth: what is written here can always be written again from it. So a record may be dispatched
twice, after a stop or after a crash, and the second time adds nothing that is already there. A stop code
names what Python must do first (next log file, new queue, new queue or index file, delivery time of a delayed
record); then the same record is dispatched again. DISPATCH_AT moves only after unit and entries of a record
are written.
"""

from __future__ import annotations

from numba import njit, types

from broker_store.kernels import context as c
from broker_store.kernels.index import (
    add_entry,
    java_hash,
    key_hash,
    link_entries,
    seconds_since,
    write_header,
)
from broker_store.kernels.memory import (
    find_byte,
    get,
    inlined,
    load_be32,
    load_be64,
    load_u8,
    put,
    same_bytes,
    store64,
    store_be32,
    store_be64,
)
from broker_store.kernels.offsets import UNIT_BYTES, UNIT_SIZE_AT, UNIT_TAGS_AT
from broker_store.kernels.record_head import (
    BLANK_BYTES,
    BLANK_MAGIC,
    LOG_OFFSET_AT,
    MAGIC_AT,
    MIN_RECORD,
    NAME_END,
    PROPERTY_END,
    QUEUE_ID_AT,
    QUEUE_OFFSET_AT,
    bounded_parts,
    is_indexed,
    is_queued,
    is_record_magic,
)

_FNV_PRIME = 1099511628211
_FNV_START = 1469598103934665603
_BLANK = 32
_KEYS = int.from_bytes(b"KEYS", "big")
_TAGS = int.from_bytes(b"TAGS", "big")
_UNIQ_KEY = int.from_bytes(b"UNIQ_KEY", "big")
_D, _ELAY = int.from_bytes(b"D", "big"), int.from_bytes(b"ELAY", "big")
_MAX_LEVEL_DIGITS = 9  # of a delay level that this kernel reads: a number that fits 32 bits
# Entries between adding one to the index and linking it: about eight records of three. By then the prefetched
# slot is in the cache (`add_entry`).
_LINK_AFTER = 24


@inlined
def name_hash(address, length):
    """Return the FNV-1a hash of a name, without its sign bit. It is of the table of topics only: no file has
    it."""
    value = _FNV_START
    for at in range(length):
        value = (value ^ load_u8(address + at)) * _FNV_PRIME
    return value & 0x7FFFFFFFFFFFFFFF


@inlined
def find_topic(context, name, length):
    """Return the address of the topic's row, 0 when unknown.

    The table is open-addressing with linear probing. Python adds rows and keeps some of its places free, so
    the loop ends.
    """
    table = get(context, c.TOPIC_TABLE)
    mask = get(context, c.TOPIC_MASK)
    hashed = name_hash(name, length)
    place = hashed & mask
    while True:
        topic = get(table, place)
        if topic == 0:
            return 0
        if get(topic, c.T_HASH) == hashed and get(topic, c.T_LENGTH) == length:
            if same_bytes(get(topic, c.T_NAME), name, length):
                return topic
        place = (place + 1) & mask


@inlined
def find_queue(topic, queue_id):
    """Return the address of the queue's row, 0 when unknown. The id is a record's, so it is bounded here."""
    if queue_id < 0 or queue_id >= get(topic, c.T_QUEUE_COUNT):
        return 0
    return get(get(topic, c.T_QUEUES), queue_id)


@inlined
def max_keys(properties_length):
    """Return an upper bound of the index entries of a record: append reserves it and dispatch returns it.

    A key takes at least two bytes, itself and the blank after it; the three are the unique key, the tag, and
    the last key, which has no blank.
    """
    return properties_length // 2 + 3


@inlined
def find_properties(address, length):
    """Return (KEYS at, length, TAGS at, length, UNIQ_KEY at, length); address 0 where absent.

    Where a name is repeated, the last value counts.
    """
    keys, keys_length, tags, tags_length, unique, unique_length = 0, 0, 0, 0, 0, 0
    at, end = address, address + length
    while at < end:
        stop = find_byte(at, end, PROPERTY_END)
        mark = find_byte(at, stop, NAME_END)
        if mark > at and stop > mark + 1:
            name_length = mark - at
            value, value_length = mark + 1, stop - mark - 1
            if name_length == 4:
                name = load_be32(at)
                if name == _KEYS:
                    keys, keys_length = value, value_length
                elif name == _TAGS:
                    tags, tags_length = value, value_length
            elif name_length == 8 and load_be64(at) == _UNIQ_KEY:
                unique, unique_length = value, value_length
        at = stop + 1
    return keys, keys_length, tags, tags_length, unique, unique_length


@inlined
def delivery_ms(context, properties, length, store_ms):
    """Return the delivery time of a message with a delay level: 0 without a level, -1 when Python has to read
    the level."""
    at, end = properties, properties + length
    # The property's name is DELAY: its first byte, then the other four as one word.
    value, digits = 0, 0
    while at < end:
        stop = find_byte(at, end, PROPERTY_END)
        if stop - at > 6 and load_u8(at) == _D and load_be32(at + 1) == _ELAY and load_u8(at + 5) == NAME_END:
            value, digits = at + 6, stop - at - 6
        at = stop + 1
    # What is not plain digits is left to Python, which reads it as Java does: signs, blanks, other digits.
    if digits > _MAX_LEVEL_DIGITS:
        return -1
    level = 0
    for place in range(digits):
        digit = load_u8(value + place) - 48
        if digit < 0 or digit > 9:
            return -1
        level = 10 * level + digit
    level = min(level, get(context, c.DELAY_COUNT))
    return store_ms + get(get(context, c.DELAYS), level - 1) if level > 0 else 0


@inlined
def _index_record(
    context, topic, log_offset, store_ms, keys, keys_length, tags, tags_length, unique, unique_length
):
    """Write all entries of a record: unique key, each key, tag (5.4 and later). True when all are written.

    The first INDEX_KEYS_DONE of them are in the file before, which became full.
    """
    address, slots = get(context, c.INDEX_ADDRESS), get(context, c.INDEX_SLOTS)
    room = min(get(context, c.INDEX_LIMIT), get(context, c.INDEX_ALLOCATED))
    begin = get(context, c.INDEX_COUNT)
    done = get(context, c.INDEX_KEYS_DONE)
    seconds = seconds_since(get(context, c.INDEX_BEGIN_MS), store_ms)
    number, seen, is_full = begin, 0, False
    # A key's hash is that of "<topic>#<key>", a tag's of "<topic>#T#<tag>". The part before is hashed once
    # for each topic and continued from here.
    prefix = get(topic, c.T_KEY_HASH)
    at, end = unique, unique + unique_length
    for part in range(3):
        if part == 1:
            at, end = keys, keys + keys_length
        elif part == 2:
            at, end = tags, tags + tags_length
            prefix = ((prefix * 31 + 84) * 31 + 35) & 0xFFFFFFFF  # "T#"
        while at < end:
            stop = find_byte(at, end, _BLANK) if part == 1 else end  # keys are separated by blanks
            if stop > at:
                if seen >= done:  # those before are in the file before
                    if number >= room:
                        is_full = True
                        break
                    add_entry(
                        address,
                        slots,
                        number,
                        key_hash(java_hash(prefix, at, stop - at)),
                        log_offset,
                        seconds,
                    )
                    if number <= 1:
                        # The time of this entry still counts from the end of the file before.
                        put(context, c.INDEX_BEGIN_OFFSET, log_offset)
                        put(context, c.INDEX_BEGIN_MS, store_ms)
                        seconds = 0
                    number += 1
                seen += 1
            at = stop + 1
        if is_full:
            break
    if number > begin:
        put(context, c.INDEX_COUNT, number)
        put(context, c.INDEX_END_OFFSET, log_offset)
        put(context, c.INDEX_END_MS, store_ms)
    put(context, c.INDEX_KEYS_DONE, seen if is_full else 0)
    return not is_full


@inlined
def dispatch_records(context, most):
    """Dispatch records up to CONFIRMED, at most `most`; return DONE, EXHAUSTED or a stop code.

        read the head ─► topic and queue ─► unit ─► index entries ─► DISPATCH_AT moves
             │                 │              │           │
        BAD_RECORD       UNKNOWN_QUEUE   QUEUE_HOLE   INDEX_FULL
        LOG_FILE_END                     QUEUE_FILE_END
                                         DELAYED_RECORD, OTHER_UNIT, QUEUE_AGAIN

    A stop at any step leaves DISPATCH_AT at the record. When it is dispatched again, a unit that was written
    is below Q_DISPATCHED and entries are below INDEX_END_OFFSET, or counted by INDEX_KEYS_DONE.
    """
    address = get(context, c.DISPATCH_ADDRESS)
    base = get(context, c.DISPATCH_BASE)
    size = get(context, c.DISPATCH_SIZE)
    confirmed = get(context, c.CONFIRMED)
    max_record = get(context, c.MAX_RECORD)
    index_on = get(context, c.INDEX_ENABLED) == 1
    at = get(context, c.DISPATCH_AT)
    count = 0
    last_topic = 0
    queued_keys = get(context, c.QUEUED_KEYS)
    entries_before = linked = get(context, c.INDEX_COUNT)
    stopped = c.DONE
    while base + at < confirmed:
        if count >= most:
            stopped = c.EXHAUSTED
            break
        # In normal running the record was written by this process. In recovery it may be anything, so every
        # length is bounded by the file before it is used.
        record = address + at
        left = size - at
        if left < BLANK_BYTES:
            stopped = c.LOG_FILE_END
            break
        total = load_be32(record)
        magic = load_be32(record + MAGIC_AT)
        if magic == BLANK_MAGIC:
            stopped = c.LOG_FILE_END
            break
        if not is_record_magic(magic) or total < MIN_RECORD or total > left or total > max_record:
            stopped = c.BAD_RECORD
            break
        if load_be64(record + LOG_OFFSET_AT) != base + at:
            stopped = c.BAD_RECORD  # the file has another file's name or content
            break
        sys_flag, time_at, tries, _, name, name_length, properties, properties_length = bounded_parts(
            record, total
        )
        if tries == 0 or name_length == 0:
            stopped = c.BAD_RECORD
            break
        store_ms = load_be64(time_at)

        # Neighbours in the log are often of one topic: its name is compared before the table is asked.
        queue_id = load_be32(record + QUEUE_ID_AT)
        topic = last_topic
        if (
            topic == 0
            or get(topic, c.T_LENGTH) != name_length
            or not same_bytes(get(topic, c.T_NAME), name, name_length)
        ):
            topic = find_topic(context, name, name_length)
            if topic == 0:
                stopped = c.UNKNOWN_QUEUE
                break
            last_topic = topic
        # A topic that was deleted and made again begins with unit 0: records of its earlier life are passed.
        is_deleted = base + at < get(topic, c.T_DELETED_BEFORE)
        queue = find_queue(topic, queue_id)
        if queue == 0 and not is_deleted:
            stopped = c.UNKNOWN_QUEUE
            break
        keys, keys_length, tags, tags_length, unique, unique_length = find_properties(
            properties, properties_length
        )
        if is_queued(sys_flag) and not is_deleted:
            # The record says which unit it is. The unit is written only as the next one of its queue: one
            # below exists, one above would leave a hole that readers take for the queue's end.
            unit = load_be64(record + QUEUE_OFFSET_AT)
            following = get(queue, c.Q_DISPATCHED)
            if unit > following:
                put(context, c.STOPPED_QUEUE, queue)
                stopped = c.QUEUE_HOLE
                break
            if unit < following and base + at >= get(queue, c.Q_LOG_END) and get(context, c.COPIES_LOG) == 1:
                put(context, c.STOPPED_QUEUE, queue)
                stopped = c.QUEUE_AGAIN
                break
            if unit == following:
                if unit >= get(queue, c.Q_FILE_END) or unit < get(queue, c.Q_FILE_FIRST):
                    put(context, c.STOPPED_QUEUE, queue)
                    stopped = c.QUEUE_FILE_END
                    break
                # Consumers' filters compare this hash. In the topic of delayed messages the time at which
                # one is due takes its place, as in Apache's store.
                tags_code = java_hash(0, tags, tags_length) if tags != 0 else 0
                if get(topic, c.T_DELAYED) == 1:
                    due_ms = delivery_ms(context, properties, properties_length, store_ms)
                    if due_ms > 0:
                        tags_code = due_ms
                    elif due_ms < 0:
                        if get(context, c.TAGS_CODE_AT) != base + at:
                            stopped = c.DELAYED_RECORD
                            break
                        tags_code = get(context, c.TAGS_CODE)
                # KEEPS_UNITS is set in recovery: a unit that names another record is reported, not replaced.
                target = get(queue, c.Q_FILE_ADDRESS) + (unit - get(queue, c.Q_FILE_FIRST)) * UNIT_BYTES
                if (
                    get(context, c.KEEPS_UNITS) == 1
                    and load_be32(target + UNIT_SIZE_AT) != 0
                    and load_be64(target) != base + at
                ):
                    put(context, c.STOPPED_QUEUE, queue)
                    stopped = c.OTHER_UNIT
                    break
                # The size is written last: a reader takes a unit without a size for no unit.
                store_be64(target, base + at)
                store_be64(target + UNIT_TAGS_AT, tags_code)
                store_be32(target + UNIT_SIZE_AT, total)
                put(queue, c.Q_DISPATCHED, unit + 1)
                if get(context, c.COPIES_LOG) == 1:
                    put(queue, c.Q_NEXT, unit + 1)  # no append has given the number
                put(queue, c.Q_LOG_END, base + at + total)
                put(queue, c.Q_LAST_MS, store_ms)
                put(queue, c.Q_BYTES, get(queue, c.Q_BYTES) + total)
                # A pull waits here: the queue is noted once for each call, and the loop reads for the pull
                # in its next turn. Without room in the list Q_ARRIVED stays 0 and a later record notes it.
                if get(queue, c.Q_WATCHED) == 1 and get(queue, c.Q_ARRIVED) == 0:
                    arrivals = get(context, c.ARRIVAL_COUNT)
                    if arrivals < get(context, c.ARRIVAL_ROOM):
                        store64(get(context, c.ARRIVALS) + 8 * arrivals, queue)
                        put(context, c.ARRIVAL_COUNT, arrivals + 1)
                        put(queue, c.Q_ARRIVED, 1)
        if index_on:
            if get(context, c.INDEX_ADDRESS) == 0 or get(context, c.INDEX_COUNT) >= get(
                context, c.INDEX_LIMIT
            ):
                if base + at >= get(context, c.INDEX_END_OFFSET):
                    stopped = c.INDEX_FULL
                    break
            if is_indexed(sys_flag) and base + at >= get(context, c.INDEX_END_OFFSET):
                if not _index_record(
                    context,
                    topic,
                    base + at,
                    store_ms,
                    keys,
                    keys_length,
                    tags,
                    tags_length,
                    unique,
                    unique_length,
                ):
                    stopped = c.INDEX_FULL
                    break
            queued_keys -= max_keys(properties_length)  # what append reserved for this record
        at += total
        count += 1
        # An entry is linked some records after it was added: its slot, prefetched then, has come meanwhile.
        ready = get(context, c.INDEX_COUNT) - _LINK_AFTER
        if linked < ready:
            link_entries(context, linked, ready)
            linked = ready
        put(context, c.DISPATCH_AT, at)
        put(context, c.LAST_DISPATCHED_MS, store_ms)
    # Once for all records of the call. An entry is valid when the header counts it.
    added = get(context, c.INDEX_COUNT) - entries_before
    if added > 0:
        link_entries(context, linked, get(context, c.INDEX_COUNT))
        write_header(context)
        put(context, c.KEY_ROOM, get(context, c.KEY_ROOM) - added)
    put(context, c.QUEUED_KEYS, queued_keys)
    put(context, c.STOPPED_AT, base + at)
    put(context, c.DISPATCHED_COUNT, get(context, c.DISPATCHED_COUNT) + count)
    return stopped


@njit(types.int64(types.int64), cache=True)
def dispatch(context):
    """Dispatch in normal running, on the event loop: a short call that keeps the interpreter lock."""
    return dispatch_records(context, 0x7FFFFFFFFFFFFFFF)


@njit(types.int64(types.int64, types.int64), cache=True, nogil=True)
def catch_up(context, most):
    """Dispatch at most `most` records for the catch-up worker, without the interpreter lock."""
    return dispatch_records(context, most)
