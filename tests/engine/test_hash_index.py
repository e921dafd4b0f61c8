"""The index: files that fill up one after another, named so that they sort by age."""

import pytest

from broker_store.engine.index import hash_index
from broker_store.engine.index.places import place_before, whole_place_of
from broker_store.errors import DamagedStoreError
from broker_store.formats.index_file import IndexGeometry
from tests.support.hand_store import HandStore, message, small_settings


def test_names_ascend_within_a_millisecond_and_when_the_clock_is_put_back(open_store, clock):
    store = open_store()
    for number in range(300):
        if number == 150:
            clock.advance(-3_600_000)
        store.appender.put(message(keys=(f"k{number}",)))
    names = [file.name for file in store.index.files]
    assert len(names) == 5 and names == sorted(set(names)) and {len(name) for name in names} == {17}
    assert names == store.disk.list_names(store.root / "index")


def test_a_full_file_hands_its_end_on_as_the_begin_of_the_next(open_store, clock):
    store = open_store()
    for number in range(70):
        clock.advance(1000)
        store.appender.put(message(keys=(f"k{number}",)))
    first, second = store.index.facts()
    assert (first.state, first.entries, second.state, second.entries) == (
        "full",
        63,
        "writing",
        7,
    )
    assert second.begin_ms == first.end_ms + 1000 and second.begin_offset > first.end_offset


@pytest.mark.parametrize(
    ("name", "length", "says"),
    [("2023111422132000", 1384, "17 digits"), ("20231114221320001", 1383, "expected 1384")],
)
def test_a_file_that_does_not_belong_refuses_the_start_and_is_named(open_store, clock, name, length, says):
    store = open_store()
    store.appender.put(message())
    store.close()
    path = store.root / "index" / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(bytes(length))
    with pytest.raises(DamagedStoreError, match=f"{name}.*{says}"):
        HandStore(small_settings(store.root), clock).open()
    path.unlink()
    open_store()


def test_a_file_of_length_zero_that_a_crash_left_is_removed(open_store):
    store = open_store()
    store.appender.put(message(keys=("k",)))
    store.die()
    (store.root / "index/20991231235959999").touch()
    store = open_store()
    assert len(store.index.files) == 1 and len(store.reads.query_keys("topic", "k", 9).records) == 1


def test_a_file_whose_entries_never_reached_the_disk_is_not_used(open_store):
    store = open_store()
    for number in range(80):
        store.appender.put(message(body=b"x" * 300, keys=(f"k{number}",)))
    store.flush(), store.round()
    store.die()
    last = store.index.files[-1]
    raw = bytearray(last.path.read_bytes())
    entries_at = IndexGeometry(16, 64).entries_at
    raw[entries_at:] = bytes(len(raw) - entries_at)
    last.path.write_bytes(raw)
    store = open_store()
    assert all(len(store.reads.query_keys("topic", f"k{number}", 9).records) == 1 for number in range(80))


def test_the_first_record_of_an_empty_log_is_found_by_its_key_though_the_index_has_a_file(open_store):
    """A power cut may take the log's records and leave the index file that was made for them."""
    store = open_store()
    store.index.give_room(1)
    store.close()
    store = open_store()
    assert store.appender.put(message(keys=("k",))).log_offset == 0
    assert len(store.reads.query_keys("topic", "k", 9).records) == 1


def test_a_spare_that_a_crash_left_does_not_have_keys_entered_twice(open_store):
    store = open_store()
    for number in range(62):
        store.appender.put(message(keys=(f"k{number}",)))
    store.close()
    spare = store.root / "index/20991231235959999"
    spare.write_bytes(bytes(36) + b"\0\0\0\1" + bytes(1384 - 40))
    store = open_store()
    assert [file.entries for file in store.index.facts()] == [62]
    assert len(store.reads.query_keys("topic", "k5", 9).records) == 1


def test_a_large_file_has_its_successor_made_ahead(open_store, monkeypatch):
    monkeypatch.setattr(hash_index, "_MIN_ENTRIES_FOR_SPARE", 60)
    store = open_store()
    for number in range(56):
        store.appender.put(message(keys=(f"k{number}",)))
    store.prepare()
    assert store.index.spares == []
    store.appender.put(message(keys=("k56",)))
    store.prepare()
    (spare,) = store.index.spares
    store.prepare()
    assert store.index.spares == [spare]
    for number in range(57, 64):
        store.appender.put(message(keys=(f"k{number}",)))
    assert store.index.files[1] is spare and store.index.spares == []
    assert all(len(store.reads.query_keys("topic", f"k{number}", 9).records) == 1 for number in range(64))


def test_a_message_with_more_keys_than_a_file_holds_fills_several(open_store):
    store = open_store()
    assert store.appender.put(message(keys=tuple(f"k{number}" for number in range(200)))).ok
    assert len(store.index.files) == 4
    assert all(store.reads.query_keys("topic", f"k{number}", 9).offsets == [0] for number in range(200))


def test_the_store_at_a_glance_reads_the_newest_index_file_only(open_store, monkeypatch):
    store = open_store()
    assert store.appender.put(message(keys=tuple(f"k{number}" for number in range(200)))).ok
    newest = store.index.facts()[-1]
    for file in store.index.files[:-1]:
        monkeypatch.setattr(file, "header", None)
    assert len(store.index.files) > 1 and store.status.snapshot().index == newest


@pytest.mark.parametrize(
    "damage", [(0, bytes(12)), (4, b"\1\2\3\4\5\6\7\0")], ids=["zero", "another log offset"]
)
def test_a_comparison_begins_before_a_record_of_whose_entries_some_are_damaged(open_store, damage):
    """Also where the damage lies at the end of a file, and the next file begins with whole entries."""
    store = open_store()
    for number in range(80):
        store.appender.put(message(keys=(f"k{number}",), tag="tag"))
    first, second = store.index.files[:2]
    torn, across = first.entry(62).log_offset, first.entry(63).log_offset
    assert first.entry(61).log_offset == torn < across == second.entry(1).log_offset
    at, raw = damage
    sound = bytes(first.map().read(first.geometry.entry_at(62) + at, len(raw)))
    first.map().write(first.geometry.entry_at(62) + at, raw)
    for place in (
        whole_place_of(store.index.files, second.entry(2).log_offset, 0, lambda _: True),
        place_before(store.index.files, 1),
    ):
        assert (place.file, place.entry) == (0, 61) and place.log_offset < torn
    first.map().write(first.geometry.entry_at(62) + at, sound)
