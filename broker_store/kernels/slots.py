"""How full an index file is and how long its chains are, counted over slices of its bytes
(docs/spec/store-format.md section 5).

    slots x int32 (newest entry, 0: none) | entries x 20: int32 key hash, int64 log offset, int32 seconds,
    int32 previous

No chain is followed: that would be a jump through hundreds of megabytes for each entry. A chain's length is
the number of entries whose hash falls into its slot, and a chain is whole when each of them names the one
before it and the slot names the last. So one scan from front to back finds both, with a table of one word for
each slot:

    lowest 31 bits: entries so far | bit 31: a wrong link was found | highest 32 bits: the last entry
"""

from __future__ import annotations

from numba import njit, types

from broker_store.kernels.memory import inlined, load64, load_be32, remainder, store64
from broker_store.kernels.offsets import ENTRY_BYTES, ENTRY_PREVIOUS_AT, SLOT_BYTES

_LENGTH = 0x7FFFFFFF
_BROKEN = 0x80000000
EXACT = 64  # lengths with a count of their own; above, one bucket for each power of two
BUCKETS = EXACT + 25

# Words of a scan.
W_WRONG, W_HIGHEST, W_NEWER = range(3)
# Words of `gather_chains`.
G_USED, G_ENTRIES, G_SQUARES, G_BROKEN, G_LISTED, G_WORDS = range(6)


@njit(types.int64(*[types.int64] * 10), cache=True, nogil=True)
def count_used(address, first, count, per_cell, entries, cells, words, limit, newer, room):
    """Add the used ones of `count` slots, the first of which is number `first`, to the int64 of their cell;
    return their number.

    A slot is used when it names an entry for which the file has room (below `entries`). W_WRONG: others that
    are not 0; W_HIGHEST: the highest entry named; W_NEWER: slots that name `limit` or more, of which the
    first `room` are written to `newer` as (slot, entry), two int64 each.
    """
    total = 0
    wrong = load64(words + 8 * W_WRONG)
    highest = load64(words + 8 * W_HIGHEST)
    met = load64(words + 8 * W_NEWER)
    at = 0
    while at < count:
        cell = (first + at) // per_cell
        end = min(count, (cell + 1) * per_cell - first)
        used = 0
        for slot in range(at, end):
            number = load_be32(address + slot * SLOT_BYTES)
            if 0 < number < entries:
                used += 1
                highest = max(highest, number)
                if number >= limit:
                    if met < room:
                        store64(newer + 16 * met, first + slot)
                        store64(newer + 16 * met + 8, number)
                    met += 1
            elif number != 0:
                wrong += 1
        store64(cells + 8 * cell, load64(cells + 8 * cell) + used)
        total += used
        at = end
    store64(words + 8 * W_WRONG, wrong)
    store64(words + 8 * W_HIGHEST, highest)
    store64(words + 8 * W_NEWER, met)
    return total


@njit(
    types.int64(types.int64, types.int64, types.int64, types.int64, types.int64, types.int64),
    cache=True,
    nogil=True,
)
def add_to_chains(address, first, count, slots, table, words):
    """Add `count` entries, the first of which is number `first`, to the table; return how many have a
    negative hash, which no key has (W_WRONG)."""
    wrong = 0
    for number in range(count):
        entry = address + number * ENTRY_BYTES
        hashed = load_be32(entry)
        if hashed < 0:
            wrong += 1
            continue
        place = table + 8 * remainder(hashed, slots)
        word = load64(place)
        state = (word & 0xFFFFFFFF) + 1
        if load_be32(entry + ENTRY_PREVIOUS_AT) != word >> 32:
            state |= _BROKEN
        store64(place, (first + number) << 32 | state)
    store64(words + 8 * W_WRONG, load64(words + 8 * W_WRONG) + wrong)
    return wrong


@njit(
    types.int64(types.int64, types.int64, types.int64, types.int64, types.int64, types.int64, types.int64),
    cache=True,
    nogil=True,
)
def compare_slots(address, first, count, end, newer_end, table, words):
    """Mark the chains of those of `count` slots that do not name their last entry; return their number.

    The table contains the entries below `end`. In a file that is being filled a slot may also name an entry
    from `end` to below `newer_end` (W_NEWER).
    """
    broken = newer = 0
    for slot in range(count):
        number = load_be32(address + slot * SLOT_BYTES)
        place = table + 8 * (first + slot)
        word = load64(place)
        if number == word >> 32:
            continue
        if end <= number < newer_end:
            newer += 1
            continue
        store64(place, word | _BROKEN)
        broken += 1
    store64(words + 8 * W_NEWER, load64(words + 8 * W_NEWER) + newer)
    return broken


@inlined
def _bucket(length):
    bucket = length
    if length >= EXACT:
        bucket = EXACT
        while length >= 2 * EXACT:
            length >>= 1
            bucket += 1
    return bucket


@njit(
    types.int64(
        types.int64, types.int64, types.int64, types.int64, types.int64, types.int64, types.int64, types.int64
    ),
    cache=True,
    nogil=True,
)
def gather_chains(table, slots, buckets, longest, longest_room, broken, broken_room, words):
    """Summarize a complete table; return the number of pairs at `longest`.

    `buckets`: int64 chains by length. `longest`: pairs (length, slot), longest first, then lowest slot.
    `broken`: the first slots with a broken chain. `words`: sums (G_*).
    """
    used = entries = squares = broken_count = listed = kept = 0
    for slot in range(slots):
        state = load64(table + 8 * slot) & 0xFFFFFFFF
        length = state & _LENGTH
        if state & _BROKEN:
            if broken_count < broken_room:
                store64(broken + 8 * broken_count, slot)
                listed += 1
            broken_count += 1
        bucket = buckets + 8 * _bucket(length)
        store64(bucket, load64(bucket) + 1)
        if length == 0:
            continue
        used += 1
        entries += length
        squares += length * length
        if kept == longest_room and length <= load64(longest + 16 * (kept - 1)):
            continue
        at = kept if kept < longest_room else kept - 1
        while at > 0 and load64(longest + 16 * (at - 1)) < length:
            store64(longest + 16 * at, load64(longest + 16 * (at - 1)))
            store64(longest + 16 * at + 8, load64(longest + 16 * (at - 1) + 8))
            at -= 1
        store64(longest + 16 * at, length)
        store64(longest + 16 * at + 8, slot)
        kept = min(kept + 1, longest_room)
    store64(words + 8 * G_USED, used)
    store64(words + 8 * G_ENTRIES, entries)
    store64(words + 8 * G_SQUARES, squares)
    store64(words + 8 * G_BROKEN, broken_count)
    store64(words + 8 * G_LISTED, listed)
    return kept
