"""The hash index: adding keys and linking them (docs/spec/store-format.md section 5); lookup.py follows
chains.

    header 40 | slots x int32 | entries x 20: int32 key hash, int64 log offset, int32 seconds, int32 previous

A slot names its newest entry, each entry the one before it in the slot; 0 ends the chain.
"""

from __future__ import annotations

from numba import njit, types

from broker_store.kernels import context as c
from broker_store.kernels.memory import (
    get,
    inlined,
    load64,
    load_be32,
    load_be64,
    load_few,
    load_u8,
    prefetch_to_write,
    put,
    remainder,
    store64,
    store_be32,
    store_be64,
)
from broker_store.kernels.offsets import (
    ENTRY_BYTES,
    ENTRY_LOG_OFFSET_AT,
    ENTRY_PREVIOUS_AT,
    ENTRY_SECONDS_AT,
    HEADER_BEGIN_OFFSET_AT,
    HEADER_BYTES,
    HEADER_COUNT_AT,
    HEADER_END_OFFSET_AT,
    HEADER_END_TIME_AT,
    HEADER_SLOTS_USED_AT,
    SLOT_BYTES,
)

_INT_MAX = 2147483647
_NOT_ASCII = -0x7F7F7F7F7F7F7F80  # 0x8080808080808080 as int64
_REPLACEMENT = 0xFFFD
_POWERS = tuple(pow(31, power, 1 << 32) for power in range(9))


@inlined
def _eight_characters(word):
    """Return what eight ASCII characters, the first in the lowest byte, add to a hash.

    Pairs, then fours, then all eight are combined by one multiplication each, in place of eight steps.
    """
    pairs = (word & 0x00FF00FF00FF00FF) * 31 + ((word >> 8) & 0x00FF00FF00FF00FF)
    fours = (pairs & 0x0000FFFF0000FFFF) * _POWERS[2] + ((pairs >> 16) & 0x0000FFFF0000FFFF)
    return (fours & 0xFFFFFFFF) * _POWERS[4] + (fours >> 32)


@inlined
def _character(at, left):
    """Return (code point, bytes) of the first of `left` bytes.

    Invalid UTF-8 is U+FFFD, with as many bytes as Java's decoder replaces by one.
    """
    first = load_u8(at)
    if first < 0x80:
        return first, 1
    if left < 2 or not 0xC2 <= first <= 0xF4:
        return _REPLACEMENT, 1
    second = load_u8(at + 1)
    lowest = 0xA0 if first == 0xE0 else 0x90 if first == 0xF0 else 0x80
    highest = 0x8F if first == 0xF4 else 0xBF
    if not lowest <= second <= highest:
        return _REPLACEMENT, 1
    if first < 0xE0:
        return (first & 0x1F) << 6 | second & 0x3F, 2
    if left < 3 or load_u8(at + 2) & 0xC0 != 0x80:
        return _REPLACEMENT, 2
    third = load_u8(at + 2) & 0x3F
    if first < 0xF0:
        unit = (first & 0x0F) << 12 | (second & 0x3F) << 6 | third
        return _REPLACEMENT if 0xD800 <= unit < 0xE000 else unit, 3
    if left < 4 or load_u8(at + 3) & 0xC0 != 0x80:
        return _REPLACEMENT, 3
    return (first & 0x07) << 18 | (second & 0x3F) << 12 | third << 6 | load_u8(at + 3) & 0x3F, 4


@inlined
def java_hash(seed, address, length):
    """Continue String.hashCode over UTF-8 text, decoded to UTF-16 units as Java does it; return int32 as
    int64."""
    value = seed
    at, end = address, address + length
    while at + 8 <= end:
        word = load64(at)
        if word & _NOT_ASCII:
            break
        value = (value * _POWERS[8] + _eight_characters(word)) & 0xFFFFFFFF
        at += 8
    left = end - at
    if 0 < left < 8:
        word = load_few(at, left)
        if not word & _NOT_ASCII:
            # Moved to the end of the word: leading characters of 0 add nothing to the hash.
            value = (value * _POWERS[left] + _eight_characters(word << 8 * (8 - left))) & 0xFFFFFFFF
            at = end
    while at < end:
        unit, step = _character(at, end - at)
        if unit > 0xFFFF:
            unit -= 0x10000
            value = (value * 31 + (0xD800 | (unit >> 10))) & 0xFFFFFFFF
            unit = 0xDC00 | (unit & 0x3FF)
        value = (value * 31 + unit) & 0xFFFFFFFF
        at += step
    value &= 0xFFFFFFFF
    return value - 0x100000000 if value >= 0x80000000 else value


@inlined
def key_hash(java):
    """Apply Apache's indexKeyHashMethod: the absolute value, and 0 for the one int that has none."""
    if java == -2147483648:
        return 0
    return -java if java < 0 else java


@inlined
def seconds_since(begin_ms, store_ms):
    """Return the time of an entry: whole seconds since the file's begin, 0 while it has none."""
    if begin_ms <= 0:
        return 0
    return min(max((store_ms - begin_ms) // 1000, 0), _INT_MAX)


@inlined
def add_entry(address, slots, number, hashed, log_offset, seconds):
    """Write entry `number`; `link_entries` links it.

    Its slot lies anywhere in megabytes, mostly not in the cache. So the slot is only prefetched here, and
    linked some entries later. Until then the entry holds the slot's number in the field of the previous
    entry. No reader follows a slot to an entry that the header does not count yet.
    """
    slot = remainder(hashed, slots)
    prefetch_to_write(address + HEADER_BYTES + slot * SLOT_BYTES)
    entry = address + HEADER_BYTES + slots * SLOT_BYTES + number * ENTRY_BYTES
    store_be32(entry, hashed)
    store_be64(entry + ENTRY_LOG_OFFSET_AT, log_offset)
    store_be32(entry + ENTRY_SECONDS_AT, seconds)
    store_be32(entry + ENTRY_PREVIOUS_AT, slot)


@inlined
def link_entries(context, first, end):
    """Link entries `first` to `end` - 1, which `add_entry` wrote, in their order."""
    address = get(context, c.INDEX_ADDRESS)
    entries = address + HEADER_BYTES + get(context, c.INDEX_SLOTS) * SLOT_BYTES
    used = 0
    for number in range(first, end):
        entry = entries + number * ENTRY_BYTES
        slot = address + HEADER_BYTES + load_be32(entry + ENTRY_PREVIOUS_AT) * SLOT_BYTES
        previous = load_be32(slot)
        if previous <= 0 or previous >= number:
            previous = 0
            used += 1
        store_be32(entry + ENTRY_PREVIOUS_AT, previous)
        store_be32(slot, number)
    put(context, c.INDEX_SLOTS_USED, get(context, c.INDEX_SLOTS_USED) + used)


@inlined
def write_header(context):
    address = get(context, c.INDEX_ADDRESS)
    store_be64(address, get(context, c.INDEX_BEGIN_MS))
    store_be64(address + HEADER_END_TIME_AT, get(context, c.INDEX_END_MS))
    store_be64(address + HEADER_BEGIN_OFFSET_AT, get(context, c.INDEX_BEGIN_OFFSET))
    store_be64(address + HEADER_END_OFFSET_AT, get(context, c.INDEX_END_OFFSET))
    store_be32(address + HEADER_SLOTS_USED_AT, get(context, c.INDEX_SLOTS_USED))
    store_be32(address + HEADER_COUNT_AT, get(context, c.INDEX_COUNT))


@njit(types.int64(types.int64, types.int64, types.int64, types.int64), cache=True, nogil=True)
def link_slots(address, slots, first, count):
    """Link entries `first` to `count` - 1 again, in their order; return the number of slots that became used.

    A full rebuild starts with `first` = 1 on zeroed slots.
    """
    used = 0
    entries = address + HEADER_BYTES + slots * SLOT_BYTES
    for number in range(first, count):
        entry = entries + number * ENTRY_BYTES
        hashed = load_be32(entry)
        slot = address + HEADER_BYTES + (hashed % slots) * SLOT_BYTES
        previous = load_be32(slot)
        if previous <= 0 or previous >= number:
            previous = 0
            used += 1
        store_be32(entry + ENTRY_PREVIOUS_AT, previous)
        store_be32(slot, number)
    return used


@njit(types.int64(types.int64, types.int64, types.int64), cache=True, nogil=True)
def slots_used(address, slots, count):
    """Return how many slots the entries 1 to `count` - 1 use, -1 when slots or links differ from what
    `link_slots` makes.

    Every chain descends and holds only entries of its slot, so no entry is reached twice; when all are
    reached, each is in its place. Nothing is written: pages that are correct stay clean.
    """
    used = reached = 0
    entries = address + HEADER_BYTES + slots * SLOT_BYTES
    for slot in range(slots):
        number = load_be32(address + HEADER_BYTES + slot * SLOT_BYTES)
        if number == 0:
            continue
        used += 1
        above = count
        while number != 0:
            if number < 0 or number >= above:
                return -1
            entry = entries + number * ENTRY_BYTES
            if load_be32(entry) % slots != slot:
                return -1
            reached += 1
            above = number
            number = load_be32(entry + ENTRY_PREVIOUS_AT)
    return used if reached == count - 1 else -1


@njit(types.int64(types.int64, types.int64, types.int64, types.int64), cache=True, nogil=True)
def entries_below(entries, count, below, room):
    """Return the first of the entries 1 to `count` - 1 whose log offset decreases or is at or above `below`.

    The log offset of the last entry before it is written to `room`, -1 when there is none.
    """
    last = -1
    number = 1
    while number < count:
        offset = load_be64(entries + number * ENTRY_BYTES + 4)
        if offset < last or offset < 0 or offset >= below:
            break
        last = offset
        number += 1
    store64(room, last)
    return number


@njit(
    types.int64(
        types.int64, types.int64, types.int64, types.int64, types.int64, types.int64, types.int64, types.int64
    ),
    cache=True,
    nogil=True,
)
def settle_entries(entries, first, end, low, high, seconds, max_seconds, writes):
    """Count, of the entries `first` to `end` - 1, those whose log offset or seconds are out of order.

    Their log offsets must ascend from `low` to below `high`, and their seconds from `seconds` to
    `max_seconds`. With `writes` such an entry gets the values of the one before it: a lookup ends at an entry
    before its file's begin, and would not reach the older entries of the chain.
    """
    wrong = 0
    for number in range(first, end):
        at = entries + number * ENTRY_BYTES
        offset, after = load_be64(at + ENTRY_LOG_OFFSET_AT), load_be32(at + ENTRY_SECONDS_AT)
        if low <= offset < high:
            low = offset
        if seconds <= after <= max_seconds:
            seconds = after
        if offset != low or after != seconds:
            wrong += 1
            if writes:
                store_be64(at + ENTRY_LOG_OFFSET_AT, low)
                store_be32(at + ENTRY_SECONDS_AT, seconds)
    return wrong
