"""The steps after the log's end, and the write path, as pages and REST show them."""

from __future__ import annotations

import struct

import pytest

from broker_store.engine.log import write_path as w
from broker_store.engine.log.write_path import MeasuredGroup, WritePath
from broker_store.engine.status.store_state import LogPositions
from broker_store.facts import dispatch, write_path
from broker_store.facts.directory import StoreDirectory
from broker_store.facts.distributions import RunNumbers
from broker_store.units import fields_of
from tests.support import stores
from tests.support.hand_store import HandStore, message, small_settings


@pytest.fixture
def store(tmp_path):
    store = HandStore(small_settings(tmp_path / "store")).begin()
    yield store
    store.close()


def test_nothing_lags_in_an_empty_store(store):
    race = dispatch.of(store)
    assert race.slowest is None
    assert race.sentence.startswith("Nothing lags")
    assert race.sinks["checkpoint_position"] == dispatch.Sink(position=0, lag_bytes=0, lag_ms=0)


def test_each_sink_has_its_distance_in_bytes_and_the_age_of_what_it_lacks(store):
    for _ in range(3):
        store.appender.put(message())
        store.clock.advance(100)
    store.flush()
    store.round()
    end = store.status.positions().wrote
    store.appender.put(message())
    store.clock.advance(30)
    race = dispatch.of(store)
    lacks = dispatch.Sink(position=end, lag_bytes=store.status.positions().wrote - end, lag_ms=30)
    assert race.sinks["flushed"] == race.sinks["checkpoint_position"] == lacks
    assert race.sinks["dispatched"].lag_bytes == race.sinks["dispatched"].lag_ms == 0
    assert race.slowest == "flushed"
    assert race.sentence.startswith(
        f"The slowest is “Flushed”, {lacks.lag_bytes:,} bytes and 30 ms before the end of the log"
    )


def test_with_sync_flush_a_paused_flusher_holds_up_confirming_and_dispatching_too(tmp_path):
    store = HandStore(small_settings(tmp_path / "store", flush_disk_type="SYNC_FLUSH")).begin()
    store.appender.put(message())
    store.clock.advance(700)
    race = dispatch.of(store)
    assert {
        name: race.sinks[name].lag_ms for name in ("confirmed", "dispatched", "flushed")
    } == dict.fromkeys(("confirmed", "dispatched", "flushed"), 700)
    assert race.slowest == "confirmed"
    store.flush()
    assert dispatch.of(store).slowest is None
    store.close()


def test_of_equals_the_one_that_lacks_the_older_record_is_the_slowest():
    positions = LogPositions(wrote=1_000, confirmed=1_000, dispatched=100, flushed=400)
    race = dispatch.race(positions, {"dispatched": 20, "flushed": 900})
    assert race.slowest == "flushed"
    assert race.sentence.endswith("The checkpoint was not set in this run yet.")


def test_positions_that_are_not_known_are_not_zero():
    race = dispatch.race(LogPositions(), {})
    assert race.sinks["flushed"] == dispatch.Sink()
    assert "not known" in race.sentence


def test_flushing_is_told_with_its_rounds(store):
    store.appender.put(message())
    assert dispatch.flush(store).unflushed_messages == 1
    store.flush()
    store.round()
    facts = dispatch.flush(store)
    assert facts.round.last_duration_ms > 0
    assert facts.round.position == store.status.positions().wrote
    assert facts.sync_us.since_start.count == facts.count == 1


def test_the_write_path_is_told_by_stage_and_its_shares_add_up():
    path = WritePath(lambda: 0)
    for number in range(1, 101):
        path.groups += 1
        path.end(MeasuredGroup(1, 0.0, 0.001, 0.003, 0.001, 500 * number), number, 0.006, 0.010)
    facts = write_path.facts(path, "ASYNC_FLUSH", 5_000)
    assert {name: stage.lately.mean for name, stage in facts.stages.items()} == {
        "gather": 1_000.0, "append": 2_000.0, "dispatch": 1_000.0, "flush": 2_000.0, "answer": 4_000.0,
    }  # fmt: skip
    assert sum(stage.share for stage in facts.stages.values()) == pytest.approx(1)
    assert facts.whole.since_start.longest == 10_000.0
    assert facts.lately_ms is None
    places = facts.group_messages.places
    assert places.since_start == [1, 2, 4, 8, 16, 32, 37, 0, 0, 0, 0]
    assert facts.group_messages.bounds == [2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0]
    assert max(places.shares) == 1


def test_with_async_flush_no_wait_for_a_sync_is_told():
    path = WritePath(lambda: 0)
    path.end(MeasuredGroup(1, 0.0, 0.001, 0.003, 0.001, 500), 1, None, 0.010)
    stages = write_path.facts(path, "ASYNC_FLUSH", 0).stages
    assert (stages["flush"].since_start.mean, stages["flush"].share) == (None, 0)
    assert stages["answer"].since_start.mean == 6_000.0


def test_each_place_of_a_histogram_holds_what_is_below_its_bound():
    path, sizes = WritePath(lambda: 0), [3, 255, 256, 5_000, 1 << 21, (1 << 22) - 1, 1 << 22, 1 << 30]
    for size in sizes:
        path.end(MeasuredGroup(1, 0.0, 0.0, 0.0, 0.0, size), 1, 0.0, 0.0)
    facts = write_path.facts(path, "ASYNC_FLUSH", 0).group_bytes
    bounds = [0, *facts.bounds, float("inf")]
    expected = [
        sum(low <= size < high for size in sizes) for low, high in zip(bounds, bounds[1:], strict=False)
    ]
    assert facts.places.since_start == expected


def test_what_was_not_measured_is_not_known():
    facts = write_path.facts(WritePath(lambda: 0), "ASYNC_FLUSH", 0)
    assert facts.whole.since_start == RunNumbers(
        count=0, mean=None, p50=None, p90=None, p99=None, p999=None, longest=None
    )
    assert facts.stages["flush"].share is None
    assert facts.waits["log_roll"].last_at_ms is None


def test_percentiles_do_not_exceed_the_longest(store):
    store.write_path.synced(0.001, 1_000)
    facts = write_path.sync_facts(store.write_path)
    assert facts.since_start.p999 == facts.since_start.longest == 1_000.0
    assert w.SYNC not in store.write_path.waits


def plain_race(root) -> dict:
    """From the files, slowly: the log's end, where queues, index and checkpoint stand, and how much younger
    the newest record is than what they lack."""
    records = stores.good_records("crash", root)
    end = records[-1].log_offset + records[-1].size
    units = [
        struct.unpack_from(">qi", raw, at)
        for path in root.glob("consumequeue/*/*/*")
        for raw in [path.read_bytes()]
        for at in range(0, len(raw), 20)
    ]
    index = sorted((root / "index").glob("*")) if (root / "index").is_dir() else []
    last_indexed = struct.unpack_from(">q", index[-1].read_bytes(), 24)[0] if index else None
    stamps = (
        struct.unpack(">3q", (root / "checkpoint").read_bytes()[:24])
        if (root / "checkpoint").exists()
        else None
    )
    places = {
        "queues": max((offset + size for offset, size in units if size > 0), default=0),
        "index": next(
            (found.log_offset + found.size for found in records if found.log_offset == last_indexed), None
        ),
        "checkpoint_position": None
        if stamps is None
        else 0
        if min(stamps) <= 0
        else next((found.log_offset for found in records if found.store_timestamp > min(stamps)), end),
    }
    times = {found.log_offset: found.store_timestamp for found in records} | {
        end: records[-1].store_timestamp
    }
    return {
        name: None
        if place is None
        else (min(place, end), end - min(place, end), records[-1].store_timestamp - times[min(place, end)])
        for name, place in places.items()
    }


@pytest.mark.parametrize(
    "variant",
    [
        "kill9",
        "no-index",
        "no-last-index",
        "no-consumequeue",
        "no-fixa-queues",
        "no-last-queue-files",
        "log-behind",
        "no-checkpoint",
        "nothing-but-log",
    ],
)
@pytest.mark.parametrize("stamps", [None, (1_700_003_009_000, 1_700_003_007_000, 1_700_003_011_000)])
def test_the_files_of_a_crashed_store_tell_each_step_as_a_plain_reader_does(variant, stamps, tmp_path):
    root = stores.unpack_variant(variant, tmp_path)
    if stamps is not None and (root / "checkpoint").exists():
        (root / "checkpoint").write_bytes(
            struct.pack(">3q", *stamps) + (root / "checkpoint").read_bytes()[24:]
        )
    race = dispatch.of_files(StoreDirectory(root))
    plain = plain_race(root)
    assert {
        name: None if sink.position is None else tuple(fields_of(sink).values())
        for name, sink in race.sinks.items()
    } == plain | {"confirmed": None, "flushed": None}
    for name, title in dispatch.FILE_SINKS.items():
        assert (f"{title} not known" in race.sentence) == (plain[name] is None)
        assert (f"{title} " in race.sentence) == (plain[name] is None or plain[name][1] > 0)
