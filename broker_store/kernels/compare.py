"""Compare: rows of records (columns.py) with the queue units and index entries that they must have.

What agrees is counted or marked. What does not agree is left to Python, which reports what is wrong.

    units     of all queues, one queue after another, as in the files; one byte for each unit becomes 1
              when a record agrees with it
    table     one place for each queue, found by the hash of the topic's name and the queue id: Q_WORDS
              words, Q_HASH -1 in a free place
    entries   of the index, as in a file
"""

from __future__ import annotations

from numba import njit, types

from broker_store.kernels import context as c
from broker_store.kernels.columns import (
    ROW_FIRST_KEY,
    ROW_KEY_COUNT,
    ROW_LOG_OFFSET,
    ROW_QUEUE_ID,
    ROW_QUEUE_OFFSET,
    ROW_SIZE,
    ROW_STORE_MS,
    ROW_SYS_FLAG,
    ROW_TAGS_CODE,
    ROW_TOPIC_HASH,
    ROW_WORDS,
    TAG_KEY,
)
from broker_store.kernels.index import seconds_since
from broker_store.kernels.memory import (
    get,
    inlined,
    load32,
    load_be32,
    load_be64,
    prefetch_to_write,
    put,
    remainder,
    store32,
    store64,
    store_u8,
)
from broker_store.kernels.offsets import (
    ENTRY_BYTES,
    ENTRY_LOG_OFFSET_AT,
    ENTRY_PREVIOUS_AT,
    ENTRY_SECONDS_AT,
    UNIT_BYTES,
    UNIT_SIZE_AT,
    UNIT_TAGS_AT,
)
from broker_store.kernels.record_head import is_queued

HAS_NEGATIVE = 1  # a hash
STEPS_BACK = 2  # a log offset
# How many entries ahead a slot is prefetched: slots lie anywhere in megabytes, and each is a cache miss
_SLOTS_AHEAD = 32

Q_HASH = 0
Q_ID = 1
Q_FIRST = 2  # number of its first unit in `units`
Q_COUNT = 3  # of its units in `units`
Q_AT = 4  # position of its first unit in `units`
Q_WORDS = 5

# The context of `compare_units`.
U_ROWS = 0
U_COUNT = 1
U_TABLE = 2
U_MASK = 3  # places of the table - 1; their number is a power of two
U_UNITS = 4
U_AGREED = 5
U_ODD = 6  # out: numbers of the rows that agree with no unit, room for all rows
U_WORDS = 8

# The context of `compare_entries`.
E_ROWS = 0
E_COUNT = 1
E_ROW = 2  # in and out: row and key to continue with
E_KEY = 3
E_KEYS = 4
E_ENTRIES = 5
E_END = 6  # number of entries in memory
E_AT = 7  # in and out: the next entry
E_FIRST_NUMBER = 8  # number in the index file of the first entry in memory
E_BEGIN_MS = 9  # of the file
E_LATE = 10  # out: entries with another time than their record, room for all entries
E_LATE_COUNT = 11  # in and out
E_WORDS = 12


@inlined
def place_in(table, mask, hashed, queue_id):
    """Return the address of a queue's place in the table, or of the free one where it belongs."""
    number = (hashed ^ queue_id * 0x9E3779B1) & mask
    while True:
        place = table + 8 * Q_WORDS * number
        if get(place, Q_HASH) < 0 or (get(place, Q_HASH) == hashed and get(place, Q_ID) == queue_id):
            return place
        number = (number + 1) & mask


@njit(types.void(types.int64, types.int64, types.int64, types.int64), cache=True, nogil=True)
def fill_table(table, mask, queues, count):
    """Put `count` queues, Q_WORDS words each at `queues`, into a table whose words are all -1."""
    for number in range(count):
        queue = queues + 8 * Q_WORDS * number
        place = place_in(table, mask, get(queue, Q_HASH), get(queue, Q_ID))
        for word in range(Q_WORDS):
            put(place, word, get(queue, word))


@njit(types.int64(types.int64), cache=True, nogil=True)
def compare_units(context):
    """Mark the units that rows agree with; return how many rows with a unit do not agree."""
    table = get(context, U_TABLE)
    mask = get(context, U_MASK)
    units = get(context, U_UNITS)
    agreed = get(context, U_AGREED)
    odd = 0
    queue = table
    for number in range(get(context, U_COUNT)):
        row = get(context, U_ROWS) + 8 * ROW_WORDS * number
        if not is_queued(get(row, ROW_SYS_FLAG)):
            continue
        hashed, queue_id = get(row, ROW_TOPIC_HASH), get(row, ROW_QUEUE_ID)
        if get(queue, Q_HASH) != hashed or get(queue, Q_ID) != queue_id:
            queue = place_in(table, mask, hashed, queue_id)
        place = get(row, ROW_QUEUE_OFFSET) - get(queue, Q_FIRST)
        if get(queue, Q_HASH) >= 0 and 0 <= place < get(queue, Q_COUNT):
            at = get(queue, Q_AT) + place
            unit = units + UNIT_BYTES * at
            is_place = load_be64(unit) == get(row, ROW_LOG_OFFSET) and load_be32(unit + UNIT_SIZE_AT) == get(
                row, ROW_SIZE
            )
            if is_place and load_be64(unit + UNIT_TAGS_AT) == get(row, ROW_TAGS_CODE):
                store_u8(agreed + at, 1)
                continue
        store64(get(context, U_ODD) + 8 * odd, number)
        odd += 1
    return odd


@njit(types.int64(types.int64), cache=True, nogil=True)
def compare_entries(context):
    """Compare keys and entries in order; return DONE (no more rows), EXHAUSTED (no more entries) or DIFFERS
    at E_ROW, E_KEY and E_AT.

    A tag need not have an entry: brokers before 5.4 did not index it.
    """
    rows = get(context, E_ROWS)
    keys = get(context, E_KEYS)
    entries = get(context, E_ENTRIES)
    end = get(context, E_END)
    first_number = get(context, E_FIRST_NUMBER)
    begin_ms = get(context, E_BEGIN_MS)
    at = get(context, E_AT)
    key = get(context, E_KEY)
    number = get(context, E_ROW)
    late = get(context, E_LATE_COUNT)
    answer = c.DONE
    while number < get(context, E_COUNT):
        row = rows + 8 * ROW_WORDS * number
        place = get(row, ROW_LOG_OFFSET)
        last = get(row, ROW_FIRST_KEY) + get(row, ROW_KEY_COUNT)
        while key < last:
            if at >= end:
                answer = c.EXHAUSTED
                break
            hashed = get(keys, key)
            entry = entries + ENTRY_BYTES * at
            if load_be64(entry + ENTRY_LOG_OFFSET_AT) == place and load_be32(entry) == hashed & (TAG_KEY - 1):
                # The first entry of a file was written before the file had a begin time of its own.
                if first_number + at != 1 and load_be32(entry + ENTRY_SECONDS_AT) != seconds_since(
                    begin_ms, get(row, ROW_STORE_MS)
                ):
                    store64(get(context, E_LATE) + 8 * late, at)
                    late += 1
                at += 1
            elif hashed < TAG_KEY:
                answer = c.DIFFERS
                break
            key += 1
        if answer != c.DONE:
            break
        number += 1
    put(context, E_AT, at)
    put(context, E_KEY, key)
    put(context, E_ROW, number)
    put(context, E_LATE_COUNT, late)
    return answer


@inlined
def _slot_of(entry, slots):
    hashed = load_be32(entry)
    return remainder(-hashed if hashed < 0 else hashed, slots)


@njit(
    types.int64(types.int64, types.int64, types.int64, types.int64, types.int64, types.int64, types.int64),
    cache=True,
    nogil=True,
)
def wrong_links(entries, first, count, slots, newest, found, room):
    """Return how many of `count` entries do not name the entry before them in their slot; write (number,
    entry before) for as many as there is `room`.

    `newest` has an int32 for each slot: the newest entry before `first`; afterwards the newest of all. It
    starts with zeros.
    """
    wrong = 0
    for place in range(min(_SLOTS_AHEAD, count)):
        prefetch_to_write(newest + 4 * _slot_of(entries + ENTRY_BYTES * place, slots))
    for number in range(first, first + count):
        place = number - first
        if place + _SLOTS_AHEAD < count:
            prefetch_to_write(newest + 4 * _slot_of(entries + ENTRY_BYTES * (place + _SLOTS_AHEAD), slots))
        entry = entries + ENTRY_BYTES * place
        slot = _slot_of(entry, slots)
        before = load32(newest + 4 * slot)
        if load_be32(entry + ENTRY_PREVIOUS_AT) != before:
            if wrong < room:
                store64(found + 16 * wrong, number)
                store64(found + 16 * wrong + 8, before)
            wrong += 1
        store32(newest + 4 * slot, number)
    return wrong


@njit(types.int64(types.int64, types.int64), cache=True, nogil=True)
def flaws_of(entries, count):
    """Return what is wrong with entries by themselves: HAS_NEGATIVE, STEPS_BACK, both or 0."""
    flaws = 0
    before = -(1 << 62)
    for number in range(count):
        entry = entries + ENTRY_BYTES * number
        if load_be32(entry) < 0:
            flaws |= HAS_NEGATIVE
        place = load_be64(entry + ENTRY_LOG_OFFSET_AT)
        if place < before:
            flaws |= STEPS_BACK
        before = place
    return flaws


# A queue among the rows of a slice (`group_rows`).
G_HASH = 0
G_ID = 1
G_FIRST = 2  # queue offset of its first row
G_COUNT = 3
G_FIRST_ROW = 4  # number of its first row
G_LAST_AT = 5  # log offset of its last row's record
G_PLACE = 6  # address of its place in the table
G_WORDS = 7


@njit(
    types.int64(types.int64, types.int64, types.int64, types.int64, types.int64, types.int64),
    cache=True,
    nogil=True,
)
def group_rows(rows, count, table, mask, groups, room):
    """Write the queues of the rows, G_WORDS words each, and put them into the table, which is cleared first;
    return their number.

    Returns -1 when the queue offsets of a queue do not increase by one, or there are more than `room` queues.
    """
    for word in range((mask + 1) * Q_WORDS):
        put(table, word, -1)
    found = 0
    queue = table
    for number in range(count):
        row = rows + 8 * ROW_WORDS * number
        if not is_queued(get(row, ROW_SYS_FLAG)):
            continue
        hashed, queue_id, queue_offset = (
            get(row, ROW_TOPIC_HASH),
            get(row, ROW_QUEUE_ID),
            get(row, ROW_QUEUE_OFFSET),
        )
        if get(queue, Q_HASH) != hashed or get(queue, Q_ID) != queue_id:
            queue = place_in(table, mask, hashed, queue_id)
        if get(queue, Q_HASH) < 0:
            if found >= room:
                return -1
            put(queue, Q_HASH, hashed)
            put(queue, Q_ID, queue_id)
            put(queue, Q_FIRST, queue_offset)
            put(queue, Q_COUNT, 0)
            put(queue, Q_AT, found)
            group = groups + 8 * G_WORDS * found
            put(group, G_HASH, hashed)
            put(group, G_ID, queue_id)
            put(group, G_FIRST, queue_offset)
            put(group, G_FIRST_ROW, number)
            put(group, G_PLACE, queue)
            found += 1
        if queue_offset != get(queue, Q_FIRST) + get(queue, Q_COUNT):
            return -1
        put(queue, Q_COUNT, get(queue, Q_COUNT) + 1)
        group = groups + 8 * G_WORDS * get(queue, Q_AT)
        put(group, G_COUNT, get(queue, Q_COUNT))
        put(group, G_LAST_AT, get(row, ROW_LOG_OFFSET))
    return found


@njit(types.void(types.int64, types.int64, types.int64), cache=True, nogil=True)
def place_units(group, at, count):
    """Set where the units of a group begin among those in memory: at unit `at`. With a `count` of 0 none of
    its rows agrees."""
    place = get(group, G_PLACE)
    put(place, Q_AT, at)
    put(place, Q_COUNT, count)


@njit(types.int64(types.int64, types.int64, types.int64), cache=True, nogil=True)
def wrong_slots(slots, newest, count):
    """Return how many slots do not name the newest of their entries, given `newest` as `wrong_links` left
    it."""
    wrong = 0
    for slot in range(count):
        if load_be32(slots + 4 * slot) != load32(newest + 4 * slot):
            wrong += 1
    return wrong
