"""What a browser that watches an index file's slots is sent: enough to keep its picture right, and no more."""

from __future__ import annotations

import random

import pytest

from broker_store.formats.index_file import IndexGeometry
from broker_store.inside.directory import StoreDirectory
from broker_store.inside.slots import heat_map
from mqadmin.inside import slot_watch
from mqadmin.inside.slot_watch import SlotWatch
from tests.support.hand_store import Clock, message, opened

GEOMETRY = IndexGeometry(500, 2000)


@pytest.fixture
def now(monkeypatch):
    now = [1_764_000_000.0]
    for module in (slot_watch, __import__("broker_store.inside.slots", fromlist=["time"])):
        monkeypatch.setattr(module.time, "time", lambda: now[0])
    return now


@pytest.fixture
def store(tmp_path):
    with opened(tmp_path / "store", Clock(), max_hash_slot_num=500, max_index_num=2000) as store:
        yield store


def put(store, *numbers: int) -> None:
    for number in numbers:
        store.put(message(keys=(f"k{number}",)))


def test_a_picture_that_is_kept_up_with_any_frames_stays_the_whole_picture(store, now):
    put(store, 0)
    directory, watch, chance = StoreDirectory(store.root, geometry=GEOMETRY), SlotWatch(), random.Random(4)
    name = store.index_files()[0]["name"]
    first = heat_map(directory, name)
    cells, shown_ms, sizes, fetched = first["cells"], first["at_ms"], [], 0
    for second in range(1, 40):
        now[0] += 1
        put(store, *range(10 * second, 10 * second + chance.randrange(4)))
        frame = watch.look(directory, name)
        if chance.random() < 0.3:
            continue  # a browser that is slow
        if frame["cells"] is not None or frame["since_ms"] > shown_ms:
            cells, fetched = heat_map(directory, name)["cells"], fetched + 1
        else:
            sizes.append(len(frame["changed"]) // 2)
            for cell, used in zip(frame["changed"][::2], frame["changed"][1::2], strict=True):
                cells[cell] = used
        shown_ms = frame["at_ms"]
        assert cells == heat_map(directory, name)["cells"]
    assert 0 < max(sizes) < len(cells) / 2 and fetched <= 2 < len(sizes)


def test_a_file_to_which_nothing_was_added_is_not_counted_again(store, now, monkeypatch):
    put(store, *range(5))
    directory, watch, counted = StoreDirectory(store.root, geometry=GEOMETRY), SlotWatch(), []
    monkeypatch.setattr(slot_watch, "heat_map", lambda *of: counted.append(of) or heat_map(*of))
    name = store.index_files()[0]["name"]
    frames = []
    for _ in range(12):
        now[0] += 1
        frames.append(watch.look(directory, name))
    assert len(counted) == 1 and all(frame["changed"] == [] for frame in frames)
    assert frames[-1]["at_ms"] - frames[0]["at_ms"] == 11_000
    put(store, 6)
    watch.look(directory, name)
    assert len(counted) == 2


def test_when_most_cells_changed_all_of_them_come(store, now):
    put(store, 0)
    directory, watch = StoreDirectory(store.root, geometry=GEOMETRY), SlotWatch()
    name = store.index_files()[0]["name"]
    watch.look(directory, name)
    put(store, *range(1, 400))
    frame = watch.look(directory, name)
    assert frame["changed"] is None and frame["cells"] == heat_map(directory, name)["cells"]


def test_only_some_files_are_remembered(store, now):
    put(store, *range(2_000))
    directory, watch = StoreDirectory(store.root, geometry=GEOMETRY), SlotWatch()
    source = store.root / "index" / store.index_files()[0]["name"]
    for number in range(slot_watch.MOST_FILES + 3):
        copy = source.with_name(f"{number + 1:017d}")
        copy.write_bytes(source.read_bytes())
        watch.look(directory, copy.name)
    assert len(watch._files) == slot_watch.MOST_FILES
