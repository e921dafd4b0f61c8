"""Fields: every field of the records in a stretch of the log, one column for each field, to make tables of
them.

Numbers are stored in their columns; for text and bytes the columns hold place in the stretch and length. The
wanted ones are then copied together by `gather`, so that no record becomes a Python object.

    rows     field f of record i at rows + f * COLUMN + 8 * i; COLUMN is no power of two, so that the fields
             of a record do not share one set of the processor's cache
    pieces   (place, length) of each key, or of each property's name and value, and where each record's begin
"""

from __future__ import annotations

from numba import njit, types

from broker_store.kernels import context as c
from broker_store.kernels.columns import TAG_KEY
from broker_store.kernels.dispatch import find_properties
from broker_store.kernels.index import java_hash, key_hash
from broker_store.kernels.memory import (
    copy_memory,
    find_byte,
    get,
    load_be32,
    load_be64,
    put,
    same_bytes,
    store64,
)
from broker_store.kernels.record_head import (
    BODY_AFTER_TRIES,
    BODY_CRC_AT,
    BORN_TIME_AT,
    FLAG_AT,
    MAGIC_AT,
    MAGIC_V1,
    NAME_END,
    PREPARED_AFTER_TRIES,
    PROPERTY_END,
    QUEUE_ID_AT,
    QUEUE_OFFSET_AT,
    STORE_HOST_AFTER_STORE_TIME,
    TRANSACTION_MASK,
    TRANSACTION_ROLLBACK,
    parts_of,
)
from broker_store.kernels.record_head import BORN_HOST_AT as HEAD_BORN_HOST_AT
from broker_store.kernels.walk import (
    W_ADDRESS,
    W_AT,
    W_BASE,
    W_COUNT,
    W_FILE_LEFT,
    W_IS_FULL,
    W_LENGTH,
    W_MAX_RECORD,
    W_OWN,
    W_REASON,
    W_ROOM,
    W_ROWS,
    next_record,
)

_BLANK = 32

X_COLUMN = W_OWN  # bytes from one field of a record to its next
X_WITH_KEYS = W_OWN + 1  # 1: read keys, tags and unique key from the properties

LOG_OFFSET = 0
SIZE = 1
VERSION = 2
BODY_CRC = 3
QUEUE_ID = 4
FLAG = 5
QUEUE_OFFSET = 6
SYS_FLAG = 7
BORN_MS = 8
BORN_HOST_AT = 9
STORE_MS = 10
STORE_HOST_AT = 11
RECONSUME_TIMES = 12
PREPARED_OFFSET = 13
BODY_AT = 14
BODY_LENGTH = 15
TOPIC_AT = 16
TOPIC_LENGTH = 17
PROPERTIES_AT = 18
PROPERTIES_LENGTH = 19
KEYS_AT = 20  # -1 in these three where the property is absent
KEYS_LENGTH = 21
TAGS_AT = 22
TAGS_LENGTH = 23
UNIQUE_KEY_AT = 24
UNIQUE_KEY_LENGTH = 25
FIELD_COUNT = 26


@njit(types.int64(types.int64), cache=True, nogil=True)
def fields(context):
    """Write rows from W_AT on; return EXHAUSTED (end of the stretch or of the room), LOG_FILE_END (a blank)
    or BAD_RECORD."""
    address = get(context, W_ADDRESS)
    length = get(context, W_LENGTH)
    base = get(context, W_BASE)
    file_left = get(context, W_FILE_LEFT)
    max_record = get(context, W_MAX_RECORD)
    rows = get(context, W_ROWS)
    room = get(context, W_ROOM)
    column = get(context, X_COLUMN)
    with_keys = get(context, X_WITH_KEYS) == 1
    at = get(context, W_AT)
    count = get(context, W_COUNT)
    is_full = 0
    while True:
        if count >= room:
            stopped, is_full = c.EXHAUSTED, 1
            break
        size, stopped, reason = next_record(address, length, base, file_left, max_record, at)
        if size == 0:
            put(context, W_REASON, reason)
            break
        record = address + at
        sys_flag, store_at, tries, body_length, name, name_length, properties, properties_length = parts_of(
            record
        )
        row = rows + 8 * count
        store64(row + LOG_OFFSET * column, base + at)
        store64(row + SIZE * column, size)
        store64(row + VERSION * column, 1 if load_be32(record + MAGIC_AT) == MAGIC_V1 else 2)
        store64(row + BODY_CRC * column, load_be32(record + BODY_CRC_AT))
        store64(row + QUEUE_ID * column, load_be32(record + QUEUE_ID_AT))
        store64(row + FLAG * column, load_be32(record + FLAG_AT))
        store64(row + QUEUE_OFFSET * column, load_be64(record + QUEUE_OFFSET_AT))
        store64(row + SYS_FLAG * column, sys_flag)
        store64(row + BORN_MS * column, load_be64(record + BORN_TIME_AT))
        store64(row + BORN_HOST_AT * column, at + HEAD_BORN_HOST_AT)
        store64(row + STORE_MS * column, load_be64(store_at))
        store64(row + STORE_HOST_AT * column, store_at + STORE_HOST_AFTER_STORE_TIME - address)
        store64(row + RECONSUME_TIMES * column, load_be32(tries))
        store64(row + PREPARED_OFFSET * column, load_be64(tries + PREPARED_AFTER_TRIES))
        store64(row + BODY_AT * column, tries + BODY_AFTER_TRIES - address)
        store64(row + BODY_LENGTH * column, body_length)
        store64(row + TOPIC_AT * column, name - address)
        store64(row + TOPIC_LENGTH * column, name_length)
        store64(row + PROPERTIES_AT * column, properties - address)
        store64(row + PROPERTIES_LENGTH * column, properties_length)
        if with_keys:
            keys, keys_length, tags, tags_length, unique, unique_length = find_properties(
                properties, properties_length
            )
            store64(row + KEYS_AT * column, keys - address if keys != 0 else -1)
            store64(row + KEYS_LENGTH * column, keys_length)
            store64(row + TAGS_AT * column, tags - address if tags != 0 else -1)
            store64(row + TAGS_LENGTH * column, tags_length)
            store64(row + UNIQUE_KEY_AT * column, unique - address if unique != 0 else -1)
            store64(row + UNIQUE_KEY_LENGTH * column, unique_length)
        at += size
        count += 1
    put(context, W_AT, at)
    put(context, W_COUNT, count)
    put(context, W_IS_FULL, is_full)
    return stopped


@njit(types.int64(types.int64, types.int64, types.int64, types.int64, types.int64), cache=True, nogil=True)
def gather(source, places, lengths, count, target):
    """Copy `count` pieces of `source` one after another to `target`; return their bytes."""
    at = target
    for number in range(count):
        length = get(lengths, number)
        copy_memory(at, source + get(places, number), length)
        at += length
    return at - target


@njit(
    types.int64(types.int64, types.int64, types.int64, types.int64, types.int64, types.int64),
    cache=True,
    nogil=True,
)
def split_words(source, places, lengths, count, pieces, begins):
    """Find the words between blanks of `count` texts: (place, length) each at `pieces`, the number of a
    text's first at `begins`; return their number.

    There must be room for (length + 1) // 2 of each text.
    """
    found = 0
    for number in range(count):
        store64(begins + 8 * number, found)
        at = source + get(places, number)
        end = at + get(lengths, number)
        while at < end:
            stop = find_byte(at, end, _BLANK)
            if stop > at:
                store64(pieces + 16 * found, at - source)
                store64(pieces + 16 * found + 8, stop - at)
                found += 1
            at = stop + 1
    store64(begins + 8 * count, found)
    return found


@njit(
    types.int64(types.int64, types.int64, types.int64, types.int64, types.int64, types.int64),
    cache=True,
    nogil=True,
)
def split_properties(source, places, lengths, count, pieces, begins):
    """Find the pairs of `count` properties strings: (place, length) of name and of value each; return their
    number.

    Of two equal names the last value counts. There must be room for length // 4 + 1 of each string.
    """
    found = 0
    for number in range(count):
        first = found
        store64(begins + 8 * number, first)
        at = source + get(places, number)
        end = at + get(lengths, number)
        while at < end:
            stop = find_byte(at, end, PROPERTY_END)
            mark = find_byte(at, stop, NAME_END)
            if mark > at and stop > mark + 1:
                pair = first
                while pair < found:
                    known = pieces + 32 * pair
                    if get(known, 1) == mark - at and same_bytes(source + get(known, 0), at, mark - at):
                        break
                    pair += 1
                known = pieces + 32 * pair
                store64(known, at - source)
                store64(known + 8, mark - at)
                store64(known + 16, mark + 1 - source)
                store64(known + 24, stop - mark - 1)
                if pair == found:
                    found += 1
            at = stop + 1
    store64(begins + 8 * count, found)
    return found


@njit(
    types.int64(types.int64, types.int64, types.int64, types.int64, types.int64, types.int64),
    cache=True,
    nogil=True,
)
def hash_keys(source, rows, column, count, hashes, begins):
    """Write the index hashes of `count` records: unique key, each key, tag (with TAG_KEY); the number of a
    record's first at `begins`; return their number.

    `column` is the bytes from one field of a record to its next. There must be room for
    (KEYS_LENGTH + 1) // 2 + 2 of each record.
    """
    found = 0
    for number in range(count):
        store64(begins + 8 * number, found)
        row = rows + 8 * number
        if get(row + SYS_FLAG * column, 0) & TRANSACTION_MASK == TRANSACTION_ROLLBACK:
            continue
        # "#"
        prefix = (
            java_hash(0, source + get(row + TOPIC_AT * column, 0), get(row + TOPIC_LENGTH * column, 0)) * 31
            + 35
        )
        unique = get(row + UNIQUE_KEY_AT * column, 0)
        if unique >= 0:
            store64(
                hashes + 8 * found,
                key_hash(java_hash(prefix, source + unique, get(row + UNIQUE_KEY_LENGTH * column, 0))),
            )
            found += 1
        at = source + get(row + KEYS_AT * column, 0)
        end = at + get(row + KEYS_LENGTH * column, 0)
        while at < end:
            stop = find_byte(at, end, _BLANK)
            if stop > at:
                store64(hashes + 8 * found, key_hash(java_hash(prefix, at, stop - at)))
                found += 1
            at = stop + 1
        tags = get(row + TAGS_AT * column, 0)
        if tags >= 0:
            # "T#"
            hashed = key_hash(
                java_hash((prefix * 31 + 84) * 31 + 35, source + tags, get(row + TAGS_LENGTH * column, 0))
            )
            store64(hashes + 8 * found, hashed | TAG_KEY)
            found += 1
    store64(begins + 8 * count, found)
    return found


@njit(types.void(types.int64, types.int64, types.int64, types.int64, types.int64), cache=True, nogil=True)
def hash_tags(source, places, lengths, count, codes):
    """Write the tags code of `count` records to `codes`: the hash of the tag, 0 without one (place -1)."""
    for number in range(count):
        place = get(places, number)
        store64(codes + 8 * number, java_hash(0, source + place, get(lengths, number)) if place >= 0 else 0)
