"""What a browser that watches an index file's slots is sent: enough to keep its picture right, and no
more."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from broker_store.facts import slots
from broker_store.facts.directory import StoreDirectory
from broker_store.facts.slots import heat_map
from broker_store.formats.index_file import IndexGeometry
from mqadmin.cluster.embedded import slot_watch
from mqadmin.cluster.embedded.slot_watch import SlotWatch
from tests.support.hand_store import Clock, message, opened

GEOMETRY = IndexGeometry(500, 2000)


@pytest.fixture
def now(monkeypatch):
    now = [1_764_000_000.0]
    for module in (slot_watch, __import__("broker_store.facts.slots", fromlist=["time"])):
        monkeypatch.setattr(module.time, "time", lambda: now[0])
    return now


@pytest.fixture
def store(tmp_path):
    with opened(tmp_path / "store", Clock(), max_hash_slot_num=500, max_index_num=2000) as store:
        yield store


def put(store, *numbers: int) -> None:
    for number in numbers:
        store.appender.put(message(keys=(f"k{number}",)))


def test_a_picture_that_is_kept_up_with_any_frames_stays_the_whole_picture(store, now):
    put(store, 0)
    directory, watch, chance = StoreDirectory(store.root, geometry=GEOMETRY), SlotWatch(), random.Random(4)
    name = store.index.facts()[0].name
    first = heat_map(directory, name)
    cells, shown_ms, sizes, fetched = first.cells, first.at_ms, [], 0
    for second in range(1, 40):
        now[0] += 1
        put(store, *range(10 * second, 10 * second + chance.randrange(4)))
        frame = watch.measure(directory, name)
        if chance.random() < 0.3:
            continue  # a browser that is slow
        if frame.cells is not None or frame.since_ms > shown_ms:
            cells, fetched = heat_map(directory, name).cells, fetched + 1
        else:
            sizes.append(len(frame.changed) // 2)
            for cell, used in zip(frame.changed[::2], frame.changed[1::2], strict=True):
                cells[cell] = used
        shown_ms = frame.at_ms
        assert cells == heat_map(directory, name).cells
    assert 0 < max(sizes) < len(cells) / 2 and fetched <= 2 < len(sizes)


@pytest.fixture
def counted(monkeypatch):
    """A line for each time that all slots are counted."""
    counted = []
    monkeypatch.setattr(slot_watch, "tally_of", lambda *of: counted.append(of) or slots.tally_of(*of))
    return counted


def test_a_file_to_which_nothing_was_added_is_not_counted_again(store, now, counted):
    put(store, *range(5))
    directory, watch = StoreDirectory(store.root, geometry=GEOMETRY), SlotWatch()
    name = store.index.facts()[0].name
    frames = []
    for _ in range(12):
        now[0] += 1
        frames.append(watch.measure(directory, name))
    assert len(counted) == 1 and all(frame.changed == [] for frame in frames)
    assert frames[-1].at_ms - frames[0].at_ms == 11_000


def test_what_was_added_is_followed_and_all_is_counted_again_after_a_while(store, now, counted, monkeypatch):
    put(store, 0)
    seconds = [100.0]
    monkeypatch.setattr(slot_watch.time, "monotonic", lambda: seconds[0])
    directory, watch = StoreDirectory(store.root, geometry=GEOMETRY), SlotWatch()
    name = store.index.facts()[0].name
    for step in range(30):
        put(store, *range(40 * step, 40 * step + 40))  # keys again and new ones; slots are shared
        seconds[0] += 1
        watch.measure(directory, name)
        seen, plain = watch._files[name].picture, heat_map(directory, name)
        assert replace(seen, took_ms=0, at_ms=0) == replace(plain, took_ms=0, at_ms=0)
    assert len(counted) == 3 and plain.counted == plain.slots_used < plain.entries


def test_a_file_that_took_the_place_of_another_is_counted(store, tmp_path, now, counted):
    put(store, *range(5))
    directory, watch = StoreDirectory(store.root, geometry=GEOMETRY), SlotWatch()
    path = store.root / "index" / store.index.facts()[0].name
    copy = path.with_name("20010101000000000")
    copy.write_bytes(path.read_bytes())
    watch.measure(directory, copy.name)
    put(store, *range(5, 9))
    other = bytearray(path.read_bytes())
    other[:8] = (1).to_bytes(8, "big")  # it began at another time
    copy.write_bytes(other)
    watch.measure(directory, copy.name)
    assert len(counted) == 2


def test_when_most_cells_changed_all_of_them_come(store, now):
    put(store, 0)
    directory, watch = StoreDirectory(store.root, geometry=GEOMETRY), SlotWatch()
    name = store.index.facts()[0].name
    watch.measure(directory, name)
    put(store, *range(1, 400))
    frame = watch.measure(directory, name)
    assert frame.changed is None and frame.cells == heat_map(directory, name).cells


def test_only_some_files_are_remembered(store, now):
    put(store, *range(2_000))
    directory, watch = StoreDirectory(store.root, geometry=GEOMETRY), SlotWatch()
    source = store.root / "index" / store.index.facts()[0].name
    for number in range(slot_watch.MAX_FILES + 3):
        copy = source.with_name(f"{number + 1:017d}")
        copy.write_bytes(source.read_bytes())
        watch.measure(directory, copy.name)
    assert len(watch._files) == slot_watch.MAX_FILES
