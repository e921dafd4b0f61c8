"""How long the chains of an index file are, beside what an even hash would give, and which are the longest.

One walk over the entries (kernels/slots.py) with a table of 8 bytes a slot, which is let go at the end: 40 MB
for a file of Apache's default size. Only chains that are not whole, and the longest, are followed entry by
entry, within bounds.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from broker_store.engine.disk.file_access import Reader
from broker_store.errors import FormatError, NotFoundError
from broker_store.facts.directory import StoreDirectory
from broker_store.facts.slots import PIECE_BYTES, bounded_count
from broker_store.formats import index_file, properties, record
from broker_store.formats.index_file import ENTRY, FIRST_ENTRY, HEADER, SLOT, IndexEntry, IndexGeometry
from broker_store.kernels import slots as kernels
from broker_store.throttle import pause
from broker_store.units import Moment, Small

LONGEST = 10  # chains that are read one by one
MAX_ENTRIES_READ = 1_000  # of each of these chains, the newest
HASHES = 3  # of a chain, the commonest, whose key is looked up in the log
BROKEN = 1_000  # chains that are not whole and are followed
BROKEN_STEPS = 100_000  # entries of all of those together
SMALL = 0.5  # slots; a length that neither has nor should have more of them ends the list


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainKey:
    """Entries of a chain with one hash; topic and key are None when its message is not in the log."""

    hash: int
    entries: int
    log_offset: int  # of the message of the newest
    topic: str | None
    key: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LongChain:
    """One of the longest chains."""

    slot: int
    entries: int
    looked_at: int  # of these, the newest
    foreign: int  # entries with another hash than the commonest
    foreign_share: float | None  # 0 to 1: of those read
    hashes: int
    keys: list[ChainKey]  # the commonest hashes


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainLengths:
    """The chains of some lengths, in entries."""

    from_: int
    to: int
    slots: Small  # that have such a chain
    expected: float  # that would with an even hash


@dataclass(frozen=True, slots=True, kw_only=True)
class Chains:
    """The chains of an index file, beside what an even hash would give."""

    name: str
    at_ms: Moment
    took_ms: float
    slots: Small
    entries: int
    max_entries: int
    moving: bool  # something was added meanwhile
    used: int  # slots with a chain
    expected_used: float
    mean: float  # entries of a slot
    mean_used: float | None  # entries of a chain
    # Entries that a lookup walks over. A key that is there is one of the entries, drawn at random; its whole
    # chain is walked. One that is not has any slot.
    touched_by_hit: float | None
    even_touched_by_hit: float | None
    touched_by_miss: float
    lengths: list[ChainLengths]
    longest: list[LongChain]
    broken: int  # chains that are not whole
    unreachable: int  # entries that no lookup reaches
    unreachable_is_exact: bool  # else there are at least so many
    findings: list[str]


def chains(directory: StoreDirectory, name: str) -> Chains:
    """The chains of the file `name` as they are now."""
    began = time.perf_counter()
    with directory.open_index(name) as (reader, geometry):
        header = index_file.decode_header(reader.read(0, HEADER.size))
        end = bounded_count(header, geometry)
        walk = _Walk(reader, geometry, end)
        newer = walk.compare(newer_below=geometry.entries)
        now = index_file.decode_header(reader.read(0, HEADER.size))
        moving = now.count != header.count
        if newer and not moving:
            walk.compare(newer_below=end)  # nothing fills the file, so these are wrong
        walk.gather()
        unreachable, looped, followed = walk.follow_broken()
        longest = [_chain(directory, reader, geometry, end, slot, length) for length, slot in walk.longest]
    entries, squares = walk.sums[kernels.G_ENTRIES], walk.sums[kernels.G_SQUARES]
    slots, broken = geometry.slots, walk.sums[kernels.G_BROKEN]
    return Chains(
        name=name,
        at_ms=int(time.time() * 1000),
        took_ms=(time.perf_counter() - began) * 1e3,
        slots=slots,
        entries=end - FIRST_ENTRY,
        max_entries=geometry.entries - FIRST_ENTRY,
        moving=moving,
        used=walk.sums[kernels.G_USED],
        expected_used=slots * (1 - (1 - 1 / slots) ** entries),
        mean=entries / slots,
        mean_used=entries / walk.sums[kernels.G_USED] if walk.sums[kernels.G_USED] else None,
        touched_by_hit=squares / entries if entries else None,
        even_touched_by_hit=1 + (entries - 1) / slots if entries else None,
        touched_by_miss=entries / slots,
        lengths=_lengths(walk.buckets, entries, slots),
        longest=longest,
        broken=broken,
        unreachable=unreachable,
        unreachable_is_exact=followed,
        findings=list(_findings(header.count, geometry, walk.wrong, broken, unreachable, looped, followed)),
    )


class _Walk:
    """One pass over the entries, one over the slots, and what the table says then."""

    def __init__(self, reader: Reader, geometry: IndexGeometry, end: int):
        self._reader, self._geometry, self._end = reader, geometry, end
        self._table = np.zeros(geometry.slots, dtype=np.int64)
        self._piece = np.empty(PIECE_BYTES, dtype=np.uint8)
        words = np.zeros(3, dtype=np.int64)
        for first, count in self._pieces(FIRST_ENTRY, end, ENTRY.size, geometry.entry_at):
            kernels.add_to_chains(
                self._piece.ctypes.data,
                first,
                count,
                geometry.slots,
                self._table.ctypes.data,
                words.ctypes.data,
            )
        self.wrong = int(words[kernels.W_WRONG])

    def _pieces(
        self, first: int, end: int, size: int, place: Callable[[int], int]
    ) -> Iterator[tuple[int, int]]:
        """(number of the first, how many) of what was read into the piece, from `first` to `end`."""
        while first < end:
            wanted = min(PIECE_BYTES // size, end - first)
            count = self._reader.read_into(memoryview(self._piece)[: wanted * size], place(first)) // size
            if not count:
                return
            yield first, count
            first += count
            pause()

    def compare(self, newer_below: int) -> int:
        """Mark chains whose slot does not name their last entry; how many name a newer one below that number
        instead."""
        words = np.zeros(3, dtype=np.int64)
        for first, count in self._pieces(0, self._geometry.slots, SLOT.size, self._geometry.slot_at):
            table = self._table.ctypes.data
            kernels.compare_slots(
                self._piece.ctypes.data, first, count, self._end, newer_below, table, words.ctypes.data
            )
        return int(words[kernels.W_NEWER])

    def gather(self) -> None:
        buckets, longest = np.zeros(kernels.BUCKETS, dtype=np.int64), np.zeros(2 * LONGEST, dtype=np.int64)
        broken, words = np.zeros(BROKEN, dtype=np.int64), np.zeros(kernels.G_WORDS, dtype=np.int64)
        kept = kernels.gather_chains(
            self._table.ctypes.data,
            self._geometry.slots,
            buckets.ctypes.data,
            longest.ctypes.data,
            LONGEST,
            broken.ctypes.data,
            BROKEN,
            words.ctypes.data,
        )
        self.buckets, self.sums = buckets.tolist(), words.tolist()
        self.longest = [(int(longest[2 * n]), int(longest[2 * n + 1])) for n in range(kept)]
        self._broken = broken[: self.sums[kernels.G_LISTED]].tolist()

    def follow_broken(self) -> tuple[int, int, bool]:
        """(entries that no walk from their slot reaches, chains that turn back, whether all were followed) of
        the broken chains."""
        unreachable = looped = steps = 0
        for slot in self._broken:
            length = int(self._table[slot]) & 0x7FFFFFFF
            reached = 0
            previous = None
            for number, entry in follow(self._reader, self._geometry, slot, self._end):
                steps += 1
                reached += entry.key_hash >= 0 and entry.key_hash % self._geometry.slots == slot
                previous = (number, entry.previous)
                if steps >= BROKEN_STEPS:
                    return unreachable, looped, False
            unreachable += length - reached
            looped += previous is not None and previous[1] >= previous[0]
        return unreachable, looped, len(self._broken) == self.sums[kernels.G_BROKEN]


def follow(reader: Reader, geometry: IndexGeometry, slot: int, end: int) -> Iterator[tuple[int, IndexEntry]]:
    """(number, entry) of a slot's chain below `end`, newest first, as long as it descends.

    While a writer adds to the file its slots name newer entries: those are passed over. Where no writer runs,
    a slot that names an entry which the header does not count leads nowhere, as for a lookup.
    """
    number = index_file.decode_slot(reader.read(geometry.slot_at(slot), SLOT.size))
    if number >= end:
        now = bounded_count(index_file.decode_header(reader.read(0, HEADER.size)), geometry)
        top = geometry.entries if now > end else end
    else:
        top = end
    while 0 < number < top:
        entry = index_file.decode_entry(reader.read(geometry.entry_at(number), ENTRY.size))
        if number < end:
            yield number, entry
        if entry.previous >= number:
            return
        number = entry.previous


def _chain(
    directory: StoreDirectory, reader: Reader, geometry: IndexGeometry, end: int, slot: int, length: int
) -> LongChain:
    """One long chain: whose entries it holds. Foreign ones have another hash than most of what was looked
    at."""
    hashes: Counter[int] = Counter()
    newest: dict[int, int] = {}
    for number, (_, entry) in enumerate(follow(reader, geometry, slot, end)):
        if number == MAX_ENTRIES_READ:
            break
        hashes[entry.key_hash] += 1
        newest.setdefault(entry.key_hash, entry.log_offset)
    looked_at, common = hashes.total(), hashes.most_common(HASHES)
    foreign = looked_at - common[0][1] if common else 0
    return LongChain(
        slot=slot,
        entries=length,
        looked_at=looked_at,
        foreign=foreign,
        foreign_share=foreign / looked_at if looked_at else None,
        hashes=len(hashes),
        keys=[_key_of(directory, newest[hashed], hashed, entries) for hashed, entries in common],
    )


def _key_of(directory: StoreDirectory, log_offset: int, hashed: int, entries: int) -> ChainKey:
    """Topic and key of the message at a place of the log that have this hash."""
    found = ChainKey(hash=hashed, entries=entries, log_offset=log_offset, topic=None, key=None)
    try:
        message = record.decode(directory.record_at(log_offset), log_offset=log_offset, check_crc=False)
    except (FormatError, NotFoundError):
        return found
    for text in index_file.texts_of(
        message.topic, message.unique_key, message.properties.get(properties.KEYS), message.tags
    ):
        if index_file.key_hash(text) == hashed:
            key = text.removeprefix(message.topic + index_file.KEY_SEPARATOR)
            return replace(found, topic=message.topic, key=key)
    return found


def _lengths(buckets: list[int], entries: int, slots: int) -> list[ChainLengths]:
    """Slots by the length of their chain, and how many an even hash would give: one by one to somewhat beyond
    the mean, then in ranges that double."""
    mean = entries / slots
    single = next((end for end in (16, 32) if end > mean + 4 * math.sqrt(mean)), kernels.EXACT)
    ranges = [(length, length) for length in range(single)]
    while ranges[-1][1] < kernels.EXACT - 1:
        ranges.append((ranges[-1][1] + 1, 2 * ranges[-1][1] + 1))
    ranges += [
        (kernels.EXACT << more, (kernels.EXACT << more + 1) - 1)
        for more in range(kernels.BUCKETS - kernels.EXACT)
    ]
    found = []
    for low, high in ranges:
        have = (
            sum(buckets[low : high + 1])
            if high < kernels.EXACT
            else buckets[kernels.EXACT + (low // kernels.EXACT).bit_length() - 1]
        )
        expected = _expected(low, high, entries, slots)
        found.append(ChainLengths(from_=low, to=high, slots=have, expected=expected))
    while len(found) > 1 and not found[-1].slots and found[-1].expected < SMALL:
        found.pop()
    return found


def _expected(low: int, high: int, entries: int, slots: int) -> float:
    """How many of `slots` get `low` to `high` of `entries` thrown evenly (the binomial distribution)."""
    mean = entries / slots
    # Beyond that there is nothing to add up
    high = min(high, entries, math.ceil(mean + 12 * math.sqrt(mean) + 30))
    if slots == 1:
        return float(low <= entries <= high)
    total = 0.0
    for length in range(low, high + 1):
        ways = math.lgamma(entries + 1) - math.lgamma(length + 1) - math.lgamma(entries - length + 1)
        total += math.exp(ways - length * math.log(slots) + (entries - length) * math.log1p(-1 / slots))
    return slots * total


def _findings(
    count: int,
    geometry: IndexGeometry,
    wrong: int,
    broken: int,
    unreachable: int,
    looped: int,
    followed: bool,
) -> Iterator[str]:
    if count > geometry.entries:
        yield (
            f"The header counts {count - FIRST_ENTRY:,} entries, the file has room for "
            f"{geometry.entries - FIRST_ENTRY:,}; those were read."
        )
    if wrong:
        yield f"{wrong:,} {'entry has' if wrong == 1 else 'entries have'} a negative hash, which no key has."
    if broken:
        least = "" if followed else "at least "
        yield (
            f"{broken:,} {'chain is' if broken == 1 else 'chains are'} not whole: {least}{unreachable:,} "
            f"of the entries {'is' if unreachable == 1 else 'are'} not reached from the slot, so no "
            f"lookup finds {'it' if unreachable == 1 else 'them'}."
        )
    if looped:
        yield (
            f"{looped:,} {'chain names' if looped == 1 else 'chains name'} an entry that is not older; a "
            f"lookup ends there."
        )
