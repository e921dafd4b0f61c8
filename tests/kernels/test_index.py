"""Hashes, chains and slots of the index, against the formats and the slow store."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_store.engine.rows import Words
from broker_store.formats import index_file
from broker_store.formats.index_file import IndexEntry, IndexGeometry, IndexHeader
from broker_store.formats.java_hash import java_hash, java_text
from broker_store.kernels import context as c
from broker_store.kernels import index
from broker_store.kernels.lookup import walk_files
from broker_store.kernels.residency import BLOCK_BYTES, PAGE_BITS, PAGES_PER_BLOCK, STRIDE
from tests.support.reference import IndexModel, hash_of

SLOTS, ENTRIES = 8, 200
GEOMETRY = IndexGeometry(SLOTS, ENTRIES)
BEGIN_MS = 1_700_000_000_000


def held(data: bytes) -> np.ndarray:
    return np.frombuffer(data + b"\0" * 8, dtype=np.uint8).copy()


@given(st.text(st.characters(exclude_categories=("Cs",))))
def test_any_text_hashes_as_in_java(text):
    data = text.encode()
    memory = held(data)
    assert index.java_hash(0, memory.ctypes.data, len(data)) == java_hash(text)


@given(st.text(st.characters(exclude_categories=("Cs",))), st.text(st.characters(exclude_categories=("Cs",))))
def test_a_hash_goes_on_where_another_ended(left, right):
    data = right.encode()
    memory = held(data)
    assert index.java_hash(java_hash(left), memory.ctypes.data, len(data)) == java_hash(left + right)


# Bytes at whose sides Java's decoder decides otherwise.
EDGES = bytes.fromhex("41 80 8f 90 9f a0 bf c1 c2 df e0 e2 ed ef f0 f4 f5 ff")


@given(st.lists(st.sampled_from(EDGES), max_size=12).map(bytes) | st.binary(max_size=20))
def test_bytes_that_are_no_utf8_hash_as_the_text_that_java_makes_of_them(data):
    memory = held(data)
    assert index.java_hash(0, memory.ctypes.data, len(data)) == java_hash(java_text(data))


def test_the_hash_that_has_no_absolute_value_counts_as_0():
    assert [index.key_hash(value) for value in (5, -5, 0, 2**31 - 1, -(2**31))] == [5, 5, 0, 2**31 - 1, 0]


def model_of(puts) -> IndexModel:
    model = IndexModel(SLOTS, ENTRIES)
    now = BEGIN_MS
    for number, (key, later_ms) in enumerate(puts):
        now += later_ms
        model.put(f"T#k{key}", number * 100, now)
    return model


def follow(memory, key, begin_ms, end_ms, room):
    """What a lookup finds when `memory` is the only index file, all of it in memory."""
    known = Known(len(memory))
    known.pages[:] = 1
    return Lookup(memory, GEOMETRY, known).walk(key, begin_ms, end_ms, room)


class Known:
    """What is known about the pages of a file, as engine/disk/residency.py keeps it."""

    ROUND = 7

    def __init__(self, size):
        blocks = -(-size // BLOCK_BYTES)
        self.words = np.zeros(blocks * STRIDE // 8, dtype=np.int64)
        self.words[:: STRIDE // 8] = self.ROUND
        self.pages = self.words.view(np.uint8).reshape(blocks, STRIDE)[:, 8:]

    def add(self, page):
        self.pages[divmod(page, PAGES_PER_BLOCK)] = 1


class Lookup:
    """The words of a lookup in one file."""

    def __init__(self, memory, geometry, known):
        self.words, self.read, self.files, self.residency = (
            Words(c.K_WORDS),
            Words(c.R_WORDS),
            Words(1),
            Words(1),
        )
        self.found, self.held = Words(geometry.entries), (memory, known)
        self.files[0], self.residency[0] = memory.ctypes.data, known.words.ctypes.data
        self.words.array[: c.K_FOUND_ROOM + 1] = (
            self.files.address,
            1,
            geometry.slots,
            self.found.address,
            geometry.entries,
        )
        self.words[c.K_ENTRIES], self.words[c.K_RESIDENCY] = geometry.entries, self.residency.address
        self.read[c.R_LOOKUP], self.read[c.R_ROUND] = self.words.address, Known.ROUND

    def walk(self, key, begin_ms, end_ms, room):
        """Log offsets; None when pages have to be asked about."""
        topic, text = held(b"T"), held(f"k{key}".encode())
        self.words[c.K_TOPIC_LENGTH], self.words[c.K_KEY_LENGTH] = 1, len(f"k{key}")
        count = walk_files(self.read.address, topic.ctypes.data, text.ctypes.data, room, begin_ms, end_ms)
        return None if count < 0 else self.found.array[:count].tolist()


puts = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 3000)), max_size=ENTRIES - 1)


@given(puts, st.integers(0, 12), st.integers(-5000, 300_000), st.integers(0, 300_000), st.integers(1, 20))
def test_a_chain_gives_what_the_slow_walk_gives_newest_first(made, key, begin, length, room):
    model = model_of(made)
    begin_ms, end_ms = BEGIN_MS + begin, BEGIN_MS + begin + length
    expected = []
    hashed = hash_of(f"T#k{key}")
    for number in model.chain(hashed % SLOTS):
        entry = model.entries[number]
        at_ms = model.header.begin_timestamp + entry.seconds * 1000
        if entry.key_hash == hashed and begin_ms <= at_ms <= end_ms:
            expected.append(entry.log_offset)
    assert follow(held(model.to_bytes()), key, begin_ms, end_ms, room) == expected[:room]


@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=900), st.integers(0, 30), st.sets(st.integers(0, 13))
)
def test_a_walk_touches_only_pages_that_are_known_to_be_in_memory(keys, key, there):
    geometry = IndexGeometry(4096, 1000)
    model = IndexModel(geometry.slots, geometry.entries)
    for number, each in enumerate(keys):
        model.put(f"T#k{each}", number, BEGIN_MS)
    whole = held(model.to_bytes())
    # Until it is asked for and brought, a page holds what would lead any walk astray.
    memory, known = np.full(len(whole), 1, dtype=np.uint8), Known(len(whole))
    lookup = Lookup(memory, geometry, known)

    def bring(page):
        memory[page << PAGE_BITS : page + 1 << PAGE_BITS] = whole[page << PAGE_BITS : page + 1 << PAGE_BITS]
        known.add(page)

    for page in there:
        bring(page)
    brought = set(there)
    while (found := lookup.walk(key, 0, 2**62, geometry.entries)) is None:
        place, size = lookup.read[c.R_ASK_PLACE], lookup.read[c.R_ASK_BYTES]
        asked = set(range(place >> PAGE_BITS, (place + size - 1 >> PAGE_BITS) + 1))
        assert lookup.read[c.R_ASK_FILE] == 0 and asked - brought
        for page in asked - brought:
            bring(page)
        brought |= asked
    assert found == [number for number, each in reversed(list(enumerate(keys))) if each == key]
    touched = {0, hash_of(f"T#k{key}") % geometry.slots * 4 + index_file.HEADER.size >> PAGE_BITS}
    for number in model.chain(hash_of(f"T#k{key}") % geometry.slots):
        touched |= {geometry.entry_at(number) >> PAGE_BITS, geometry.entry_at(number) + 19 >> PAGE_BITS}
    assert brought == touched | there


@given(puts, st.lists(st.tuples(st.integers(1, ENTRIES), st.integers(-5, ENTRIES + 5)), max_size=20))
def test_a_damaged_chain_that_loops_or_points_nowhere_still_ends(made, pokes):
    model = model_of(made)
    memory = held(model.to_bytes())
    for number, previous in pokes:
        at = GEOMETRY.entry_at(min(number, ENTRIES - 1)) + 16
        memory[at : at + 4] = np.frombuffer(previous.to_bytes(4, "big", signed=True), dtype=np.uint8)
    for key in range(3):
        found = follow(memory, key, 0, 2**62, ENTRIES)
        assert len(found) < ENTRIES and set(found) <= {entry.log_offset for entry in model.entries[1:]}


@pytest.mark.parametrize("count", [ENTRIES + 1, 2**31 - 1])
def test_a_header_that_counts_more_entries_than_a_file_holds_leads_nowhere(count):
    memory = held(model_of([(1, 0), (2, 0)]).to_bytes())
    memory[36:40] = np.frombuffer(count.to_bytes(4, "big"), dtype=np.uint8)
    slot_at = index_file.HEADER.size + hash_of("T#k1") % SLOTS * 4
    for slot in (ENTRIES, 1 << 30):
        memory[slot_at : slot_at + 4] = np.frombuffer(slot.to_bytes(4, "big"), dtype=np.uint8)
        assert follow(memory, 1, 0, 2**62, ENTRIES) == []


@given(puts)
def test_slots_linked_anew_from_the_entries_are_those_that_were(made):
    model = model_of(made)
    memory = held(model.to_bytes())
    memory[index_file.HEADER.size : GEOMETRY.entries_at] = 0
    for number in range(1, model.header.count):
        at = GEOMETRY.entry_at(number) + 16
        memory[at : at + 4] = 255
    used = index.link_slots(memory.ctypes.data, SLOTS, 1, model.header.count)
    assert memory[: GEOMETRY.file_bytes].tobytes() == model.to_bytes()
    assert used == model.header.slots_used


@given(puts)
def test_links_that_are_right_are_told_from_any_that_is_not(made):
    model = model_of(made)
    memory, count = held(model.to_bytes()), model.header.count
    assert index.slots_used(memory.ctypes.data, SLOTS, count) == model.header.slots_used
    linked = [
        *range(index_file.HEADER.size, GEOMETRY.entries_at, 4),
        *(GEOMETRY.entry_at(number) + 16 for number in range(1, count)),
    ]
    for at in linked:
        right = memory[at : at + 4].copy()
        for wrong in {-1, 0, 1, 2, count - 1, count} - {int.from_bytes(right.tobytes(), "big")}:
            memory[at : at + 4] = np.frombuffer(wrong.to_bytes(4, "big", signed=True), dtype=np.uint8)
            assert index.slots_used(memory.ctypes.data, SLOTS, count) == -1
        memory[at : at + 4] = right


@given(
    st.lists(st.integers(-2, 60), max_size=ENTRIES - 1),
    st.lists(st.integers(0, 9), max_size=3),
    st.integers(0, 70),
)
def test_entries_are_in_order_up_to_the_first_that_steps_back_or_lies_beyond(offsets, more, below):
    offsets = [*sorted(offsets), *more]
    expected, last = 0, -1
    while expected < len(offsets) and last <= offsets[expected] < below and offsets[expected] >= 0:
        last = offsets[expected]
        expected += 1
    raw = np.frombuffer(
        bytes(20) + b"".join(index_file.ENTRY.struct.pack(7, offset, 0, 0) for offset in offsets),
        dtype=np.uint8,
    )
    room = np.zeros(1, dtype=np.int64)
    assert index.entries_below(raw.ctypes.data, len(offsets) + 1, below, room.ctypes.data) == expected + 1
    assert int(room[0]) == last


def test_an_entry_with_a_negative_time_ends_the_walk():
    model = IndexModel(SLOTS, ENTRIES, IndexHeader(BEGIN_MS, BEGIN_MS, 0, 0, 1, 3))
    hashed = hash_of("T#k1")
    model.entries += [IndexEntry(hashed, 100, 0, 0), IndexEntry(hashed, 200, -1, 1)]
    model.slot_heads[hashed % SLOTS] = 2
    assert follow(held(model.to_bytes()), 1, 0, 2**62, 10) == []


@pytest.mark.parametrize(("seconds", "offset"), [(-5, 300), (2**31 - 1, 300), (4, 5_000), (4, 0), (0, 300)])
def test_an_entry_that_steps_out_gets_place_and_time_of_the_one_before(seconds, offset):
    entries = [
        IndexEntry(9, 100, 3, 0),
        IndexEntry(8, 200, 4, 0),
        IndexEntry(7, offset, seconds, 0),
        IndexEntry(6, 400, 6, 0),
    ]
    memory = held(bytes(index_file.ENTRY.size) + b"".join(map(index_file.encode_entry, entries)))
    bounds = (memory.ctypes.data, 1, 5, 100, 500, 3, 6)
    assert index.settle_entries(*bounds, False) == 1 and index_file.decode_entry(memory, 60) == entries[2]
    assert index.settle_entries(*bounds, True) == 1
    settled = [index_file.decode_entry(memory, at) for at in range(20, 100, 20)]
    assert [(entry.log_offset, entry.seconds) for entry in settled] == [
        (100, 3),
        (200, 4),
        (offset if 200 <= offset < 500 else 200, seconds if 4 <= seconds <= 6 else 4),
        (400, 6),
    ]
    assert [entry.key_hash for entry in settled] == [9, 8, 7, 6] and not index.settle_entries(*bounds, True)
