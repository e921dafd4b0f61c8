"""Fields: every field of the records in a stretch of the log, a column a field, for those who make tables of them.

Numbers stand in their columns; of text and bytes the place in the stretch and the length do. What is wanted of those is
then copied together by `gather`, so that no record becomes a Python object. The stretch was read into memory: a record
that its end cuts is left for the next one.

    rows     field f of record i at rows + 8 * (f * ROOM + i)
    pieces   (place, length) of each key, or of each property's name and value, and where each record's begin
"""

from __future__ import annotations

from numba import njit, types

from broker_store.kernels import context as c
from broker_store.kernels.columns import TAG_KEY
from broker_store.kernels.dispatch import find_properties
from broker_store.kernels.index import java_hash, key_hash
from broker_store.kernels.memory import copy_memory, find_byte, get, load_be16, load_be32, load_be64, load_u8, put, same_bytes, store64
from broker_store.kernels.scan import check_record

_MAGIC_V1 = -626843481
_MAGIC_V2 = -626843477
_BLANK_MAGIC = -875286124
_PROPERTY_END = 2
_NAME_END = 1
_BLANK = 32

# The context: what the caller sets, and what comes back.
X_ADDRESS = 0  # of the stretch in memory
X_LENGTH = 1  # its bytes
X_BASE = 2  # log offset of its first byte
X_FILE_LEFT = 3  # bytes from the stretch's start to the end of its log file
X_AT = 4  # in and out: next position in the stretch
X_MAX_RECORD = 5
X_ROWS = 6  # address of room for rows
X_ROOM = 7  # how many
X_COUNT = 8  # out
X_REASON = 9  # out: what is wrong with the record at X_AT
X_WITH_KEYS = 10  # 1: the properties are looked through for keys, tags and unique key
X_WORDS = 16

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
    """Rows from X_AT on; EXHAUSTED (end of the stretch or of the room), LOG_FILE_END (a blank) or BAD_RECORD."""
    address = get(context, X_ADDRESS)
    length = get(context, X_LENGTH)
    base = get(context, X_BASE)
    file_left = get(context, X_FILE_LEFT)
    max_record = get(context, X_MAX_RECORD)
    room = get(context, X_ROOM)
    with_keys = get(context, X_WITH_KEYS) == 1
    column = 8 * room
    at = get(context, X_AT)
    count = 0
    stopped = c.EXHAUSTED
    while count < room:
        record = address + at
        left = length - at
        if left < 8:
            if file_left - at < 8:
                put(context, X_REASON, c.REASON_NOT_A_RECORD)
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
            put(context, X_REASON, reason)
            stopped = c.BAD_RECORD
            break
        sys_flag = load_be32(record + 36)
        store_at = record + (68 if sys_flag & 0x10 else 56)
        tries_at = store_at + (28 if sys_flag & 0x20 else 16)
        body_length = load_be32(tries_at + 12)
        name = tries_at + 16 + body_length
        if magic == _MAGIC_V1:
            name_length = load_u8(name)
            name += 1
        else:
            name_length = load_be16(name)
            name += 2
        properties = name + name_length + 2
        properties_length = load_be16(properties - 2)
        row = get(context, X_ROWS) + 8 * count
        store64(row + LOG_OFFSET * column, base + at)
        store64(row + SIZE * column, size)
        store64(row + VERSION * column, 1 if magic == _MAGIC_V1 else 2)
        store64(row + BODY_CRC * column, load_be32(record + 8))
        store64(row + QUEUE_ID * column, load_be32(record + 12))
        store64(row + FLAG * column, load_be32(record + 16))
        store64(row + QUEUE_OFFSET * column, load_be64(record + 20))
        store64(row + SYS_FLAG * column, sys_flag)
        store64(row + BORN_MS * column, load_be64(record + 40))
        store64(row + BORN_HOST_AT * column, at + 48)
        store64(row + STORE_MS * column, load_be64(store_at))
        store64(row + STORE_HOST_AT * column, store_at + 8 - address)
        store64(row + RECONSUME_TIMES * column, load_be32(tries_at))
        store64(row + PREPARED_OFFSET * column, load_be64(tries_at + 4))
        store64(row + BODY_AT * column, tries_at + 16 - address)
        store64(row + BODY_LENGTH * column, body_length)
        store64(row + TOPIC_AT * column, name - address)
        store64(row + TOPIC_LENGTH * column, name_length)
        store64(row + PROPERTIES_AT * column, properties - address)
        store64(row + PROPERTIES_LENGTH * column, properties_length)
        if with_keys:
            keys, keys_length, tags, tags_length, unique, unique_length = find_properties(properties, properties_length)
            store64(row + KEYS_AT * column, keys - address if keys != 0 else -1)
            store64(row + KEYS_LENGTH * column, keys_length)
            store64(row + TAGS_AT * column, tags - address if tags != 0 else -1)
            store64(row + TAGS_LENGTH * column, tags_length)
            store64(row + UNIQUE_KEY_AT * column, unique - address if unique != 0 else -1)
            store64(row + UNIQUE_KEY_LENGTH * column, unique_length)
        at += size
        count += 1
    put(context, X_AT, at)
    put(context, X_COUNT, count)
    return stopped


@njit(types.int64(types.int64, types.int64, types.int64, types.int64, types.int64), cache=True, nogil=True)
def gather(source, places, lengths, count, target):
    """Copy `count` pieces of `source` one behind another to `target`; returns their bytes."""
    at = target
    for number in range(count):
        length = get(lengths, number)
        copy_memory(at, source + get(places, number), length)
        at += length
    return at - target


@njit(types.int64(types.int64, types.int64, types.int64, types.int64, types.int64, types.int64), cache=True, nogil=True)
def split_words(source, places, lengths, count, pieces, begins):
    """The words between blanks of `count` texts: (place, length) each at `pieces`, their number; each text's first at `begins`.

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


@njit(types.int64(types.int64, types.int64, types.int64, types.int64, types.int64, types.int64), cache=True, nogil=True)
def split_properties(source, places, lengths, count, pieces, begins):
    """The pairs of `count` properties strings: (place, length) of name and of value each; of two equal names the last value.

    There must be room for length // 4 + 1 of each string.
    """
    found = 0
    for number in range(count):
        first = found
        store64(begins + 8 * number, first)
        at = source + get(places, number)
        end = at + get(lengths, number)
        while at < end:
            stop = find_byte(at, end, _PROPERTY_END)
            mark = find_byte(at, stop, _NAME_END)
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


@njit(types.int64(types.int64, types.int64, types.int64, types.int64, types.int64, types.int64), cache=True, nogil=True)
def hash_keys(source, rows, column, count, hashes, begins):
    """The index hashes of `count` records: unique key, each key, tag (with TAG_KEY); where each record's begin at `begins`.

    `column` is the bytes from one field of a record to its next. There must be room for (KEYS_LENGTH + 1) // 2 + 2 of each.
    """
    found = 0
    for number in range(count):
        store64(begins + 8 * number, found)
        row = rows + 8 * number
        if get(row + SYS_FLAG * column, 0) & 0xC == 0xC:
            continue
        prefix = java_hash(0, source + get(row + TOPIC_AT * column, 0), get(row + TOPIC_LENGTH * column, 0)) * 31 + 35  # "#"
        unique = get(row + UNIQUE_KEY_AT * column, 0)
        if unique >= 0:
            store64(hashes + 8 * found, key_hash(java_hash(prefix, source + unique, get(row + UNIQUE_KEY_LENGTH * column, 0))))
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
            hashed = key_hash(java_hash((prefix * 31 + 84) * 31 + 35, source + tags, get(row + TAGS_LENGTH * column, 0)))  # "T#"
            store64(hashes + 8 * found, hashed | TAG_KEY)
            found += 1
    store64(begins + 8 * count, found)
    return found


@njit(types.void(types.int64, types.int64, types.int64, types.int64, types.int64), cache=True, nogil=True)
def hash_tags(source, places, lengths, count, codes):
    """The tags code of `count` records at `codes`: the hash of the tag, 0 without one (place -1)."""
    for number in range(count):
        place = get(places, number)
        store64(codes + 8 * number, java_hash(0, source + place, get(lengths, number)) if place >= 0 else 0)
