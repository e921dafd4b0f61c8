"""Columns: a stretch of the log as a table of int64, a row a record, and the index hashes of its keys beside it.

For those who look at many records and few fields (the check, later the pipeline). The stretch was read into memory, so
a record may be cut by its end; such a one is left for the next stretch.
"""

from __future__ import annotations

from numba import njit, types

from broker_store.kernels import context as c
from broker_store.kernels.dispatch import find_properties, most_keys, name_hash
from broker_store.kernels.index import java_hash, key_hash
from broker_store.kernels.memory import get, load_be16, load_be32, load_be64, load_u8, put, store64
from broker_store.kernels.scan import check_record

_MAGIC_V1 = -626843481
_MAGIC_V2 = -626843477
_BLANK_MAGIC = -875286124
_BLANK = 32

# The context: what the caller sets, and what comes back.
L_ADDRESS = 0  # of the stretch in memory
L_LENGTH = 1  # its bytes
L_BASE = 2  # log offset of its first byte
L_FILE_LEFT = 3  # bytes from the stretch's start to the end of its log file
L_AT = 4  # in and out: next position in the stretch
L_MAX_RECORD = 5
L_ROWS = 6  # address of room for rows
L_ROW_ROOM = 7
L_ROW_COUNT = 8  # out
L_KEYS = 9  # address of room for key hashes
L_KEY_ROOM = 10
L_KEY_COUNT = 11  # out
L_REASON = 12  # out: what is wrong with the record at L_AT
L_WORDS = 16

# A row.
ROW_LOG_OFFSET = 0
ROW_SIZE = 1
ROW_SYS_FLAG = 2
ROW_QUEUE_ID = 3
ROW_QUEUE_OFFSET = 4
ROW_STORE_MS = 5
ROW_TAGS_CODE = 6  # hash of the tag, 0 without one; delays are for Python
ROW_TOPIC_HASH = 7
ROW_TOPIC_AT = 8  # position of the name in the stretch
ROW_TOPIC_LENGTH = 9
ROW_FIRST_KEY = 10  # number of its first key hash
ROW_KEY_COUNT = 11
ROW_WORDS = 12

TAG_KEY = 1 << 32  # marks the hash of a tag (5.4.0 and later index it) among the key hashes


@njit(types.int64(types.int64), cache=True, nogil=True)
def columns(context):
    """Rows from L_AT on; EXHAUSTED (end of the stretch or of the room), LOG_FILE_END (a blank) or BAD_RECORD."""
    address = get(context, L_ADDRESS)
    length = get(context, L_LENGTH)
    base = get(context, L_BASE)
    file_left = get(context, L_FILE_LEFT)
    max_record = get(context, L_MAX_RECORD)
    rows = get(context, L_ROWS)
    keys_room = get(context, L_KEYS)
    at = get(context, L_AT)
    count = 0
    key_count = 0
    stopped = c.EXHAUSTED
    while count < get(context, L_ROW_ROOM):
        record = address + at
        left = length - at
        if left < 8:
            if file_left - at < 8:
                put(context, L_REASON, c.REASON_NOT_A_RECORD)
                stopped = c.BAD_RECORD
            break
        total = load_be32(record)
        magic = load_be32(record + 4)
        if magic == _BLANK_MAGIC:
            stopped = c.LOG_FILE_END
            break
        if (magic == _MAGIC_V1 or magic == _MAGIC_V2) and left < total <= max_record and total <= file_left - at:
            break
        size, reason = check_record(record, left, base + at, max_record, True, False)
        if reason != 0:
            put(context, L_REASON, reason)
            stopped = c.BAD_RECORD
            break
        sys_flag = load_be32(record + 36)
        time_at = record + (68 if sys_flag & 0x10 else 56)
        body_at = time_at + (28 if sys_flag & 0x20 else 16) + 12
        name = body_at + 4 + load_be32(body_at)
        if magic == _MAGIC_V1:
            name_length = load_u8(name)
            name += 1
        else:
            name_length = load_be16(name)
            name += 2
        properties = name + name_length + 2
        properties_length = load_be16(properties - 2)
        if key_count + most_keys(properties_length) > get(context, L_KEY_ROOM):
            break
        keys, keys_length, tags, tags_length, unique, unique_length = find_properties(properties, properties_length)
        first_key = key_count
        if sys_flag & 0xC != 0xC:
            prefix = java_hash(0, name, name_length) * 31 + 35  # "#"
            if unique != 0:
                store64(keys_room + 8 * key_count, key_hash(java_hash(prefix, unique, unique_length)))
                key_count += 1
            start, end = keys, keys + keys_length
            while start < end:
                stop = start
                while stop < end and load_u8(stop) != _BLANK:
                    stop += 1
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
        store64(row + 8 * ROW_QUEUE_ID, load_be32(record + 12))
        store64(row + 8 * ROW_QUEUE_OFFSET, load_be64(record + 20))
        store64(row + 8 * ROW_STORE_MS, load_be64(time_at))
        store64(row + 8 * ROW_TAGS_CODE, java_hash(0, tags, tags_length) if tags != 0 else 0)
        store64(row + 8 * ROW_TOPIC_HASH, name_hash(name, name_length))
        store64(row + 8 * ROW_TOPIC_AT, name - address)
        store64(row + 8 * ROW_TOPIC_LENGTH, name_length)
        store64(row + 8 * ROW_FIRST_KEY, first_key)
        store64(row + 8 * ROW_KEY_COUNT, key_count - first_key)
        at += size
        count += 1
    put(context, L_AT, at)
    put(context, L_ROW_COUNT, count)
    put(context, L_KEY_COUNT, key_count)
    return stopped
