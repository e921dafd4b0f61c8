"""Columns: a stretch of the log as a table of int64, one row for each record, with the index hashes of its
keys.

For scans of many records that need few fields: the check and the pipeline's audit. `compare.py` compares the
rows with queues and index.
"""

from __future__ import annotations

from numba import njit, types

from broker_store.kernels import context as c
from broker_store.kernels.dispatch import find_properties, max_keys, name_hash
from broker_store.kernels.index import java_hash, key_hash
from broker_store.kernels.memory import find_byte, get, load_be32, load_be64, put, same_bytes, store64
from broker_store.kernels.record_head import QUEUE_ID_AT, QUEUE_OFFSET_AT, is_indexed, parts_of
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

L_KEYS = W_OWN  # address of room for key hashes
L_KEY_ROOM = W_OWN + 1
L_KEY_COUNT = W_OWN + 2  # in and out
L_NEWEST_MS = W_OWN + 3  # in and out: the highest store time of all rows

# A row.
ROW_LOG_OFFSET = 0
ROW_SIZE = 1
ROW_SYS_FLAG = 2
ROW_QUEUE_ID = 3
ROW_QUEUE_OFFSET = 4
ROW_STORE_MS = 5
ROW_TAGS_CODE = 6  # hash of the tag, 0 without one; Python computes delivery times
ROW_TOPIC_HASH = 7
ROW_TOPIC_AT = 8  # position of the name in the stretch
ROW_TOPIC_LENGTH = 9
ROW_FIRST_KEY = 10  # number of its first key hash
ROW_KEY_COUNT = 11
ROW_WORDS = 12

TAG_KEY = 1 << 32  # marks the hash of a tag (5.4.0 and later index it) among the key hashes


@njit(types.int64(types.int64), cache=True, nogil=True)
def columns(context):
    """Write rows from W_AT on; return EXHAUSTED (end of the stretch or of the room), LOG_FILE_END (a blank)
    or BAD_RECORD."""
    address = get(context, W_ADDRESS)
    length = get(context, W_LENGTH)
    base = get(context, W_BASE)
    file_left = get(context, W_FILE_LEFT)
    max_record = get(context, W_MAX_RECORD)
    rows = get(context, W_ROWS)
    room = get(context, W_ROOM)
    keys_room = get(context, L_KEYS)
    key_room = get(context, L_KEY_ROOM)
    at = get(context, W_AT)
    count = get(context, W_COUNT)
    key_count = get(context, L_KEY_COUNT)
    newest_ms = get(context, L_NEWEST_MS)
    is_full = 0
    topic, topic_length, topic_hash, prefix = 0, -1, 0, 0  # of the record before, often the same topic
    while True:
        size, stopped, reason = next_record(address, length, base, file_left, max_record, at)
        if size == 0:
            put(context, W_REASON, reason)
            break
        record = address + at
        sys_flag, store_at, _, _, name, name_length, properties, properties_length = parts_of(record)
        if count >= room or key_count + max_keys(properties_length) > key_room:
            stopped, is_full = c.EXHAUSTED, 1
            break
        keys, keys_length, tags, tags_length, unique, unique_length = find_properties(
            properties, properties_length
        )
        first_key = key_count
        if name_length != topic_length or not same_bytes(topic, name, name_length):
            topic, topic_length, topic_hash = name, name_length, name_hash(name, name_length)
            prefix = java_hash(0, name, name_length) * 31 + 35  # "#"
        if is_indexed(sys_flag):
            if unique != 0:
                store64(keys_room + 8 * key_count, key_hash(java_hash(prefix, unique, unique_length)))
                key_count += 1
            start, end = keys, keys + keys_length
            while start < end:
                stop = find_byte(start, end, _BLANK)
                if stop > start:
                    store64(keys_room + 8 * key_count, key_hash(java_hash(prefix, start, stop - start)))
                    key_count += 1
                start = stop + 1
            if tags != 0:
                hashed = key_hash(java_hash((prefix * 31 + 84) * 31 + 35, tags, tags_length))  # "T#"
                store64(keys_room + 8 * key_count, hashed | TAG_KEY)
                key_count += 1
        row = rows + 8 * ROW_WORDS * count
        store64(row + 8 * ROW_LOG_OFFSET, base + at)
        store64(row + 8 * ROW_SIZE, size)
        store64(row + 8 * ROW_SYS_FLAG, sys_flag)
        store64(row + 8 * ROW_QUEUE_ID, load_be32(record + QUEUE_ID_AT))
        store64(row + 8 * ROW_QUEUE_OFFSET, load_be64(record + QUEUE_OFFSET_AT))
        store_ms = load_be64(store_at)
        newest_ms = max(newest_ms, store_ms)
        store64(row + 8 * ROW_STORE_MS, store_ms)
        store64(row + 8 * ROW_TAGS_CODE, java_hash(0, tags, tags_length) if tags != 0 else 0)
        store64(row + 8 * ROW_TOPIC_HASH, topic_hash)
        store64(row + 8 * ROW_TOPIC_AT, name - address)
        store64(row + 8 * ROW_TOPIC_LENGTH, name_length)
        store64(row + 8 * ROW_FIRST_KEY, first_key)
        store64(row + 8 * ROW_KEY_COUNT, key_count - first_key)
        at += size
        count += 1
    put(context, W_AT, at)
    put(context, W_COUNT, count)
    put(context, W_IS_FULL, is_full)
    put(context, L_KEY_COUNT, key_count)
    put(context, L_NEWEST_MS, newest_ms)
    return stopped
