"""Heat map and chains of an index file: the numbers of a plain slow reader, on stores of Apache's, ours and
damaged ones."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from broker_store.engine.disk import file_access
from broker_store.errors import NameError_, NotFoundError, StoreError
from broker_store.facts import chains, slots
from broker_store.facts.directory import StoreDirectory
from broker_store.formats import index_file
from broker_store.formats.index_file import IndexGeometry
from broker_store.units import fields_of
from tests.support import plain_index, stores
from tests.support.hand_store import Clock, message, opened

SMALL = IndexGeometry(16, 64)


def directory_of(root: Path, name: str | None = None) -> tuple[StoreDirectory, IndexGeometry]:
    sizes = None if name is None else stores.SIZES[name]
    geometry = SMALL if sizes is None else IndexGeometry(sizes.max_hash_slot_num, sizes.max_index_num)
    return StoreDirectory(root, geometry=geometry), geometry


def agrees(directory: StoreDirectory, geometry: IndexGeometry, name: str) -> tuple[dict, dict]:
    """Heat map and chains of a file, after they were compared with what the plain reader finds."""
    plain = plain_index.read(directory.root / "index" / name, geometry)
    picture, told = slots.heat_map(directory, name), chains.chains(directory, name)
    assert picture.cells == plain.cells(picture.cell_slots)
    assert (picture.counted, picture.entries) == (plain.used_in(0, geometry.slots), len(plain.entries))
    assert sum(row.cells for row in picture.shares) == len(picture.cells) <= picture.columns * picture.rows
    shares = [
        used / min(picture.cell_slots, geometry.slots - n * picture.cell_slots)
        for n, used in enumerate(picture.cells)
    ]
    assert [cell.share for cell in picture.emptiest] == sorted(shares)[: len(picture.emptiest)]
    assert [cell.share for cell in picture.fullest] == sorted(shares, reverse=True)[: len(picture.fullest)]
    assert all(
        plain.used_in(cell.first_slot, cell.last_slot) == cell.used
        for cell in picture.emptiest + picture.fullest
    )

    lengths = plain.lengths()
    assert sum(row.slots for row in told.lengths) == geometry.slots
    for row in told.lengths:
        assert row.slots == sum(lengths[length] for length in range(row.from_, row.to + 1))
        if row.to == row.from_ and row.from_ <= len(plain.entries):
            assert row.expected == pytest.approx(plain.even(row.from_), rel=1e-6, abs=1e-9)
    entries = sum(length * count for length, count in lengths.items())
    assert told.used == geometry.slots - lengths[0]
    if entries:
        assert told.touched_by_hit == sum(length**2 * count for length, count in lengths.items()) / entries
    by_length = sorted(((len(numbers), -slot) for slot, numbers in plain.of_slot.items()), reverse=True)[
        : chains.LONGEST
    ]
    assert [(chain.entries, -chain.slot) for chain in told.longest] == by_length
    for chain in told.longest:
        hashes = [plain.entries[number].key_hash for number in plain.chain(chain.slot)]
        assert chain.looked_at == len(hashes)
        assert chain.hashes == len(set(hashes))
        assert chain.foreign == len(hashes) - max((hashes.count(one) for one in hashes), default=0)
    assert (told.unreachable, told.unreachable_is_exact) == (plain.unreachable(), True)
    return picture, told


@pytest.mark.parametrize("name", stores.NAMES)
def test_a_store_of_the_real_broker_is_counted_as_a_plain_reader_counts_it(name, tmp_path):
    directory, geometry = directory_of(stores.unpack(name, tmp_path), name)
    files = [one for one, _, _ in directory.index_files()]
    assert files
    for file in files:
        picture, told = agrees(directory, geometry, file)
        assert picture.findings == told.findings == []
        assert picture.counted == picture.slots_used == told.used
        assert not picture.moving and told.broken == 0


def test_the_longest_chain_names_its_keys_and_how_many_of_its_entries_are_foreign(tmp_path):
    with opened(tmp_path / "store", Clock()) as store:
        for number in range(40):
            store.appender.put(message(keys=("hot",) if number % 2 else (f"k{number}",)))
        directory, geometry = directory_of(tmp_path / "store")
        (file,) = (name for name, _, _ in directory.index_files())
        _, told = agrees(directory, geometry, file)
    longest = told.longest[0]
    assert fields_of(longest.keys[0]) | {"log_offset": 0} == {
        "hash": index_file.key_hash("topic#hot"),
        "entries": 20,
        "log_offset": 0,
        "topic": "topic",
        "key": "hot",
    }
    assert longest.foreign_share == longest.foreign / longest.entries < 0.5
    assert told.touched_by_hit > 2 * told.even_touched_by_hit


def filled(tmp_path: Path) -> tuple[StoreDirectory, Path]:
    """An index file with 40 entries, to be damaged."""
    with opened(tmp_path / "store", Clock()) as store:
        for number in range(40):
            store.appender.put(message(keys=(f"k{number}",)))
    directory, _ = directory_of(tmp_path / "store")
    return directory, tmp_path / "store" / "index" / directory.index_files()[0][0]


def write(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def test_a_chain_that_loops_is_counted_within_bounds_and_said_to_turn_back(tmp_path):
    directory, path = filled(tmp_path)
    write(path, SMALL.entry_at(30) + index_file.ENTRY.offset["previous"], (35).to_bytes(4, "big"))
    _, told = agrees(directory, SMALL, path.name)
    assert told.broken == 1 and told.unreachable > 0
    assert "1 chain is not whole" in told.findings[0] and "not older" in told.findings[1]


def test_a_chain_cut_short_or_led_astray_loses_its_older_entries(tmp_path):
    directory, path = filled(tmp_path)
    plain = plain_index.read(path, SMALL)
    deep = max(plain.of_slot.values(), key=len)
    write(path, SMALL.entry_at(deep[-1]) + index_file.ENTRY.offset["previous"], bytes(4))
    _, told = agrees(directory, SMALL, path.name)
    assert (told.broken, told.unreachable) == (1, len(deep) - 1)
    stranger = next(number for number in range(1, deep[-1]) if number not in deep)
    write(path, SMALL.entry_at(deep[-1]) + index_file.ENTRY.offset["previous"], stranger.to_bytes(4, "big"))
    agrees(directory, SMALL, path.name)


def test_what_the_header_says_is_shown_beside_what_is_there(tmp_path):
    directory, path = filled(tmp_path)
    write(path, index_file.HEADER.offset["slots_used"], (3).to_bytes(4, "big"))
    picture, _ = agrees(directory, SMALL, path.name)
    assert picture.slots_used == 3
    assert picture.findings == [f"The header says that 3 slots are used, {picture.counted} are."]
    write(path, index_file.HEADER.offset["count"], (2_000_000_000).to_bytes(4, "big"))
    picture, told = agrees(directory, SMALL, path.name)
    assert "1,999,999,999 entries, the file has room for 63" in picture.findings[0]
    assert "those were read" in told.findings[0]


def test_slots_that_name_what_is_not_there_are_said(tmp_path):
    directory, path = filled(tmp_path)
    used = [slot for slot, number in enumerate(plain_index.read(path, SMALL).slots) if number]
    write(path, SMALL.slot_at(used[0]), (-7).to_bytes(4, "big", signed=True))
    write(path, SMALL.slot_at(used[1]), (60).to_bytes(4, "big"))
    picture, told = agrees(directory, SMALL, path.name)
    assert picture.counted == len(used) - 1
    assert [finding.split()[0] for finding in picture.findings] == ["The", "1", "Slots"]
    assert told.broken == 2


def test_an_empty_file_has_no_share_of_anything(tmp_path):
    geometry = IndexGeometry(1000, 4000)
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "index").mkdir()
    (tmp_path / "index" / "20260101000000000").write_bytes(bytes(geometry.file_bytes))
    directory = StoreDirectory(tmp_path)
    picture, told = agrees(directory, geometry, "20260101000000000")
    assert (picture.counted, picture.expected_share, picture.findings) == (0, 0, [])
    assert (told.mean_used, told.touched_by_hit, told.longest) == (None, None, [])
    assert told.lengths == [chains.ChainLengths(from_=0, to=0, slots=1000, expected=1000)]


@pytest.mark.parametrize("more", [1, 30, 400])
def test_a_count_that_a_writer_comes_into_is_of_the_moment_when_it_began(tmp_path, monkeypatch, more):
    geometry = IndexGeometry(500, 2000)
    with opened(
        tmp_path / "store", Clock(), max_hash_slot_num=geometry.slots, max_index_num=geometry.entries
    ) as store:
        for number in range(300):
            store.appender.put(message(keys=(f"k{number}",)))
        directory, name = StoreDirectory(store.root, geometry=geometry), store.index.facts()[0].name
        before = slots.tally_of(directory, name)
        read_into = file_access.Reader.read_into

        def interrupted(reader, target, offset):
            monkeypatch.undo()
            # Some keys again, so that slots with older entries are named again, too
            for number in range(250, 250 + more):
                store.appender.put(message(keys=(f"k{number}",)))
            return read_into(reader, target, offset)

        monkeypatch.setattr(file_access.Reader, "read_into", interrupted)
        during = slots.tally_of(directory, name)
        assert during.cells.tolist() == before.cells.tolist() and during.upto == before.upto
        assert during.header.count > during.before.count == before.header.count
        assert slots.picture_of(name, during, 0.0).findings == []
        assert slots.follow(directory, name, during, during.header)
        agrees(directory, geometry, name)
        assert during.cells.tolist() == slots.tally_of(directory, name).cells.tolist()


@pytest.mark.parametrize("more", [1, 40])
def test_the_longest_chain_is_told_while_a_writer_adds_to_it(tmp_path, monkeypatch, more):
    geometry = IndexGeometry(50, 2000)
    with opened(
        tmp_path / "store", Clock(), max_hash_slot_num=geometry.slots, max_index_num=geometry.entries
    ) as store:
        for _ in range(60):
            store.appender.put(message(keys=("hot",)))
        directory, name = StoreDirectory(store.root, geometry=geometry), store.index.facts()[0].name
        quiet = chains.chains(directory, name)
        read, headers = file_access.Reader.read, []

        def interrupted(reader, offset, length):
            found = read(reader, offset, length)
            headers.append(offset == 0)
            if sum(headers) == 2:  # the end of the count is known; the chains are not followed yet
                monkeypatch.undo()
                for _ in range(more):
                    store.appender.put(message(keys=("hot",)))
            return found

        monkeypatch.setattr(file_access.Reader, "read", interrupted)
        during = chains.chains(directory, name)
        assert during.longest == quiet.longest
        assert during.longest[0].looked_at == during.longest[0].entries >= 60
        assert (during.unreachable, during.findings) == (0, [])
        agrees(directory, geometry, name)


def test_a_chain_that_no_writer_makes_is_not_followed(tmp_path, monkeypatch):
    directory, path = filled(tmp_path)
    data, geometry = bytearray(path.read_bytes()), SMALL
    header = index_file.decode_header(data)
    named = header.count + 1  # by the first slot; it names itself
    data[geometry.slot_at(0) : geometry.slot_at(1)] = index_file.SLOT.pack(named)
    data[geometry.entry_at(named) : geometry.entry_at(named + 1)] = index_file.encode_entry(
        index_file.IndexEntry(0, 0, 0, named)
    )
    path.write_bytes(data)
    tally = slots.tally_of(directory, path.name)
    assert tally.upto is None and not slots.follow(directory, path.name, tally, header)
    assert any(
        "name entries up to" in finding for finding in slots.picture_of(path.name, tally, 0.0).findings
    )


def test_a_grid_has_as_many_cells_as_make_sense():
    assert slots.cell_slots(5_000_000) == 500
    for count in (1, 7, 16, 500, 1000, 5000, 99_999, 100_001, 5_000_001):
        cells = math.ceil(count / slots.cell_slots(count))
        assert 1 <= cells <= 10_000 and (cells == 1 or slots.cell_slots(count) >= slots.MIN_SLOTS_PER_CELL)


def test_only_a_name_of_an_index_file_that_is_there_is_read(tmp_path):
    directory, path = filled(tmp_path)
    with pytest.raises(NameError_):
        slots.heat_map(directory, "../commitlog/00000000000000000000")
    with pytest.raises(NotFoundError):
        slots.heat_map(directory, "20010101000000000")
    path.with_name("20010101000000000").write_bytes(bytes(999))
    with pytest.raises(StoreError, match="--slots"):
        chains.chains(StoreDirectory(directory.root), "20010101000000000")
