"""An explained lookup: it keeps what the engine's own lookup finds, stops where that stops, and says why."""

from __future__ import annotations

from dataclasses import replace

import pytest

from broker_store.engine.status.store_state import LogPositions
from broker_store.facts.directory import StoreDirectory
from broker_store.facts.explain import FOR_EVER_MS, EntryStep, HashStep, LookupStep, explain
from broker_store.formats import index_file
from broker_store.formats.index_file import IndexGeometry
from broker_store.formats.java_hash import java_hash
from tests.support import stores
from tests.support.hand_store import START_MS, Clock, HandStore, message, opened, small_settings

SMALL = IndexGeometry(16, 64)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def store(tmp_path, clock):
    with opened(tmp_path / "store", clock) as store:
        yield store


def told(
    store: HandStore, key: str = "same", begin_ms: int = 0, end_ms: int = FOR_EVER_MS, limit: int = 64, **more
) -> list[LookupStep]:
    """The steps, after what they keep was compared with what the engine finds."""
    steps = explain(StoreDirectory(store.root, geometry=SMALL), "topic", key, begin_ms, end_ms, limit, **more)
    kept = sorted(step.log_offset for step in steps if isinstance(step, EntryStep) and step.kept)
    assert kept == store.reads.query_keys("topic", key, limit, begin_ms, end_ms).offsets
    assert sorted(step.log_offset for step in steps if isinstance(step, EntryStep) and step.counts) == sorted(
        store.index.walk("topic", key, limit, begin_ms, end_ms).find()[0]
    )
    assert steps[-1].step == "stop" and all(step.us >= 0 for step in steps)
    assert steps[-1].entries == sum(step.step == "entry" for step in steps)
    return steps


def only(steps: list[LookupStep], kind: str) -> list[LookupStep]:
    return [step for step in steps if step.step == kind]


def test_each_file_slot_and_entry_is_told_with_its_place_in_the_file(store):
    for number in range(60):
        store.appender.put(message(keys=(f"k{number}",)))
    steps = told(store, "k3")
    assert replace(steps[0], us=0) == HashStep(us=0, key="topic#k3", hash=abs(java_hash("topic#k3")))
    assert {"file", "slot", "entry", "chain end", "stop"} <= {step.step for step in steps}
    (slot,) = only(steps, "slot")
    raw = (store.root / "index" / slot.file).read_bytes()
    assert slot.slot == steps[0].hash % 16 and index_file.decode_slot(raw, slot.at) == slot.entry
    for step in only(steps, "entry"):
        entry = index_file.decode_entry(raw, step.at)
        assert (entry.key_hash, entry.log_offset, entry.previous) == (
            step.hash,
            step.log_offset,
            step.previous,
        )
        assert step.kept == (step.why == "the message has this key")


def test_it_stops_where_a_lookup_does_and_says_why(store, clock):
    for _ in range(200):
        clock.advance(1000)
        store.appender.put(message(keys=("same",)))
    names = [file.name for file in store.index.facts()][::-1]
    assert len(names) == 4

    def files(*range_ms, most=64):
        steps = told(store, "same", *(range_ms or (0, FOR_EVER_MS)), most)
        return [(step.file, step.used) for step in only(steps, "file")], steps[-1].why

    seen, why = files()
    assert (
        seen == [(name, True) for name in names[:2]]
        and why.startswith("64 entries were found")
        and "maxMsgsNumBatch" in why
    )
    seen, why = files(most=3)
    assert seen == [(names[0], True)] and why.startswith("3 entries were found")
    old_ms = START_MS + 10_000
    assert files(START_MS, old_ms) == (
        [(name, False) for name in names[:3]] + [(names[3], True)],
        "there is no older file",
    )
    assert (
        files(old_ms, old_ms)[0][-1] == (names[3], True)
        and files(old_ms, old_ms)[1] == "older files end before the time asked for"
    )
    assert files(clock.now_ms + 1, clock.now_ms + 2) == (
        [(names[0], False)],
        "older files end before the time asked for",
    )
    outside = [step.why for step in only(told(store, "same", old_ms, old_ms), "entry") if not step.kept]
    assert set(outside) == {"stored after the time asked for", "stored before the time asked for"}


def test_a_key_of_the_same_hash_takes_a_place_and_is_dropped_by_who_asked(store):
    assert java_hash("topic#Aa") == java_hash("topic#BB")
    store.appender.put(message(keys=("Aa",)))
    store.appender.put(message(keys=("BB",)))
    steps = explain(StoreDirectory(store.root, geometry=SMALL), "topic", "Aa")
    foreign, own = only(steps, "entry")
    assert (foreign.counts, foreign.kept, own.counts, own.kept) == (True, False, True, True)
    assert "another key of the same hash" in foreign.why and "BB" in foreign.why
    assert (steps[-1].counted, steps[-1].messages) == (2, 1)


def test_a_message_that_was_cleaned_away_is_said_to_be_gone(store, clock):
    for number in range(100):
        clock.advance(1000)
        store.appender.put(message(keys=("same", f"k{number}"), body=bytes(400)))
    first = store.log.files[0]
    log = store.root / "commitlog"
    (log / first.path.name).unlink()
    steps = explain(StoreDirectory(store.root, geometry=SMALL), "topic", "k1")
    (gone,) = [step for step in only(steps, "entry") if step.counts]
    assert not gone.kept and "its message is gone: the log begins at position 16,384 now" in gone.why


def test_what_the_index_lacks_at_either_end_is_told(store, tmp_path):
    for number in range(60):
        store.appender.put(message(keys=(f"k{number}",)))
    positions = LogPositions(dispatched=100, confirmed=300)
    (behind,) = only(told(store, "k1", positions=positions), "unindexed")
    assert (behind.log_offset, behind.bytes) == (100, 200) and "up to position 100 of 300" in behind.why
    assert not only(told(store, "k1", positions=store.status.positions()), "unindexed") and not only(
        told(store, "k1"), "unindexed"
    )

    path = store.root / "index" / store.index.facts()[0].name
    plain = StoreDirectory(store.root, geometry=SMALL)
    with plain.open_index(path.name) as (reader, _):
        header = index_file.decode_header(reader.read(0, 40))
        places = [
            index_file.decode_entry(reader.read(SMALL.entry_at(number), 20)).log_offset
            for number in (2, 50, 51)
        ]
    path.write_bytes(
        index_file.encode_header(header._replace(begin_offset=places[0], end_offset=places[1]))
        + path.read_bytes()[40:]
    )
    steps = explain(plain, "topic", "k1")
    (behind,), (gone,) = only(steps, "unindexed"), only(steps, "gone")
    assert behind.log_offset == places[2] and gone.log_offset == 0


def test_damage_ends_a_walk_and_is_named(store):
    for _ in range(30):
        store.appender.put(message(keys=("same",)))
    directory, path = (
        StoreDirectory(store.root, geometry=SMALL),
        store.root / "index" / store.index.facts()[0].name,
    )
    (slot,) = only(told(store), "slot")
    healthy = path.read_bytes()
    with path.open("r+b") as file:
        file.seek(SMALL.entry_at(20) + index_file.ENTRY.offset["previous"])
        file.write((25).to_bytes(4, "big"))
    steps = told(store)
    assert len(only(steps, "entry")) == 11 and only(steps, "chain end")[0].why.startswith(
        "damaged: entry 20 names entry 25"
    )
    with path.open("r+b") as file:
        file.write(healthy)
        file.seek(slot.at)
        file.write((40).to_bytes(4, "big"))
    steps = explain(directory, "topic", "same")
    assert "the header counts those up to 30" in only(steps, "slot")[0].why and not only(steps, "entry")
    with path.open("r+b") as file:
        file.write(healthy)


def test_what_is_long_is_not_told_without_end(tmp_path, clock):
    with opened(tmp_path / "other", clock, max_hash_slot_num=1, max_index_num=5000) as store:
        for number in range(1200):
            store.appender.put(message(keys=(f"k{number}",)))
        steps = explain(StoreDirectory(store.root, geometry=IndexGeometry(1, 5000)), "topic", "k0")
    assert len(steps) < 1_010 and "steps are shown at most" in steps[-1].why


def test_without_an_index_it_says_so(tmp_path, clock):
    store = HandStore(small_settings(tmp_path / "none", message_index_enable=False), clock).begin()
    store.appender.put(message(keys=("k",)))
    steps = explain(StoreDirectory(store.root, geometry=SMALL), "topic", "k")
    assert [step.step for step in steps] == ["hash", "unindexed", "stop"] and steps[
        -1
    ].why == "the index has no file"
    store.close()


@pytest.mark.parametrize("name", ["clean", "clean-small", "crash"])
def test_keys_of_the_real_broker_are_found_as_it_found_them(name, tmp_path):
    sizes = stores.SIZES[name]
    directory = StoreDirectory(
        stores.unpack(name, tmp_path), geometry=IndexGeometry(sizes.max_hash_slot_num, sizes.max_index_num)
    )
    asked = [one for one in stores.messages(name) if one["keys"]][::40]
    assert asked
    for one in asked:
        key = one["keys"].split()[0]
        steps = explain(directory, one["topic"], key)
        assert one["physicalOffset"] in [step.log_offset for step in only(steps, "entry") if step.kept]
