"""Consume queues and index files as tables: what stands in the files, up to where a running broker has
dispatched."""

from __future__ import annotations

import pytest

pytest.importorskip("pyarrow", reason="Arrow comes with the Spark block of requirements.txt")

from broker_store.engine.disk.disk import Disk
from broker_store.engine.status.live_page import LivePage
from broker_store.errors import StoreError
from broker_store.formats import index_file, queue_unit
from broker_store.pipeline import derived
from broker_store.pipeline.columns import COLUMNS
from broker_store.pipeline.options import read_options
from tests.support import stores


def read(store, table: str, **given: object) -> list[dict]:
    options = read_options(
        {"path": str(store), "table": table, **{name: str(value) for name, value in given.items()}}
    )
    columns = tuple(COLUMNS[table])
    return [
        row
        for work in derived.pieces_of(options)
        for batch in derived.batches_of(work, columns, options)
        for row in batch.to_pylist()
    ]


def plain_units(store) -> list[tuple]:
    found = []
    for file in sorted((store / "consumequeue").rglob("0*")):
        if file.is_file():
            first = int(file.name) // queue_unit.SIZE
            for number, unit in enumerate(queue_unit.decode_all(file.read_bytes()), first):
                if unit.size and not unit.is_pre_blank:
                    found.append((file.parent.parent.name, int(file.parent.name), number, *unit))
    return found


@pytest.mark.parametrize("items", [1 << 20, 7])
def test_units_are_those_in_the_files_in_partitions_of_any_size(tmp_path, monkeypatch, items):
    monkeypatch.setattr(derived, "ITEMS", items)
    monkeypatch.setattr(derived, "ROWS", min(items, 1 << 16))
    store = stores.unpack("clean-small", tmp_path)
    assert sorted(tuple(row.values()) for row in read(store, "units")) == sorted(plain_units(store))


def test_units_behind_a_hole_are_given(tmp_path):
    store = stores.unpack("golden-clean", tmp_path)
    units = plain_units(store)
    topic, queue_id, number = next(one[:3] for one in units if one[2] == 1)
    file = store / "consumequeue" / topic / str(queue_id) / ("0" * 20)
    content = bytearray(file.read_bytes())
    content[20:40] = bytes(20)
    file.write_bytes(content)
    assert sorted(tuple(row.values()) for row in read(store, "units", topic=topic)) == sorted(
        one for one in units if one[0] == topic and one[:3] != (topic, queue_id, number)
    )


def test_entries_and_slots_are_those_in_the_files(tmp_path):
    store = stores.unpack("clean-small", tmp_path)
    entries, slots, files = [], [], []
    for path in sorted((store / "index").iterdir()):
        raw = path.read_bytes()
        header, geometry = index_file.decode_header(raw), index_file.IndexGeometry(500, 2000)
        files.append(
            (
                path.name,
                500,
                2000,
                header.count - 1,
                header.slots_used,
                header.begin_offset,
                header.end_offset,
            )
        )
        for number in range(1, header.count):
            one = index_file.decode_entry(raw, geometry.entry_at(number))
            entries.append((path.name, number, one.key_hash % 500, *one))
        found = ((slot, index_file.decode_slot(raw, geometry.slot_at(slot))) for slot in range(500))
        slots += [(path.name, slot, number) for slot, number in found if number]
    assert [tuple(row.values()) for row in read(store, "entries")] == entries
    assert [tuple(row.values()) for row in read(store, "slots")] == slots
    assert [tuple(row.values())[:7] for row in read(store, "index_files")] == files


def test_of_a_running_store_only_what_is_dispatched_is_given(tmp_path):
    store = stores.unpack("clean-small", tmp_path)
    whole = read(store, "units"), read(store, "entries")
    # Beside the store: it is found without being named
    page = LivePage(Disk(), store.parent / "run" / "live")
    try:
        page.publish(0, 900_000, 900_000, 5_000, 900_000, 0, "running")
        units, entries = read(store, "units"), read(store, "entries")
    finally:
        page.close()
    for part, all_of_it in ((units, whole[0]), (entries, whole[1])):
        assert part == [row for row in all_of_it if row["log_offset"] < 5_000]
        assert 0 < len(part) < len(all_of_it)


def test_a_directory_that_is_no_store_is_refused(tmp_path):
    with pytest.raises(StoreError, match="no store"):
        read(tmp_path, "units")
