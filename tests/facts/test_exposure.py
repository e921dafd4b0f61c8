"""If it crashed now: what would be lost and what a start would do, against a plain reader and against
starts."""

from __future__ import annotations

import json
import shutil

import pytest

from broker_store.config.load import load_settings
from broker_store.engine.start.start_records import StartRecords
from broker_store.engine.store import MessageStore
from broker_store.facts import exposure
from broker_store.facts.directory import StoreDirectory
from broker_store.formats.checkpoint import Checkpoint, encode
from tests.support.hand_store import Clock, HandStore, message, small_settings
from tests.support.plain_exposure import start_of
from tests.support.stores import SIZES, unpack_variant, variants

NO_RATE = exposure.ScanRate(bytes_per_s=None, other_ms=None, measured_by=0, why_unknown="none")


@pytest.fixture
def store(tmp_path, clock):
    store = HandStore(small_settings(tmp_path / "data" / "store"), clock).begin()
    yield store
    store.close()


@pytest.fixture
def clock():
    return Clock()


def fill(store: HandStore, files: int) -> None:
    """Messages a second apart until the log has so many files."""
    while len(store.log.files) < files:
        store.appender.put(message(body=b"x" * 1_500))
        store.clock.advance(1_000)


def started(root, **changes) -> dict:
    """The report of a start on a copy of the store."""
    copy = root.parent / "copy" / "store"
    shutil.copytree(root, copy)
    try:
        again = MessageStore(small_settings(copy, **changes))
        again.open()
        again.close()
        return again.report.as_dict()
    finally:
        shutil.rmtree(copy.parent)


def test_the_start_is_the_one_that_recovery_then_makes(store):
    """At each of many moments of a store's life: before the first checkpoint, after it, long after it."""
    seen = set()
    for _ in range(12):
        fill(store, len(store.log.files) + 1)
        if len(store.log.files) % 3 == 0:
            store.flush()
            store.round()
        told = exposure.of(StoreDirectory(store.root), store.status.snapshot(), NO_RATE)
        plain = start_of(store.root)
        assert (told.start.file, told.restart.rescan_bytes) == (plain.file, plain.rescan_bytes)
        report = started(store.root)
        chosen = next(step for step in report["steps"] if step["name"] == "choose the file to scan from")
        # Recovery counts the blanks that close files as read, as far as it reached them.
        assert (chosen["file"], report["log_end"], report["kind"]) == (plain.file, plain.log_end, "abnormal")
        assert report["scanned_bytes"] <= told.restart.rescan_bytes
        seen.add(plain.file)
    assert len(seen) > 2


@pytest.mark.parametrize("variant", variants())
def test_of_a_store_that_apaches_broker_left_the_files_tell_it(variant, tmp_path):
    root = unpack_variant(variant, tmp_path)
    told, plain = exposure.of_files(StoreDirectory(root), NO_RATE), start_of(root)
    assert told.losses is None
    if not (root / "abort").exists():
        assert (told.state, told.start) == ("closed", None)
        return
    assert (told.state, told.start.file, told.start.position) == (
        "crashed",
        plain.file,
        plain.position,
    )
    settings = load_settings(None, SIZES["crash"].overrides(), store_root=root).store
    store = MessageStore(settings)
    try:
        store.open()
    except Exception:
        if store.report.as_dict()["state"] != "failed":
            raise
    chosen = [
        step for step in store.report.as_dict()["steps"] if step["name"] == "choose the file to scan from"
    ]
    assert [step["file"] for step in chosen] in ([plain.file], [])
    store.close()


@pytest.mark.parametrize(
    "stamps",
    [
        None,
        (0, 0),
        (5, 5),
        (1_700_000_020_000, 1_700_000_000_000),
        (1_700_000_030_000, 1_700_000_040_000),
        (1 << 60, 1 << 60),
    ],
)
def test_any_checkpoint_gives_the_start_that_the_rule_says(store, stamps):
    fill(store, 6)
    if stamps is None:
        (store.root / "checkpoint").unlink(missing_ok=True)
    else:
        (store.root / "checkpoint").write_bytes(encode(Checkpoint(*stamps)))
    assert exposure.start_of_recovery(StoreDirectory(store.root)).file == start_of(store.root).file


def test_a_log_file_whose_first_record_is_damaged_is_not_begun_with(store):
    fill(store, 5)
    store.flush()
    store.round()
    before = start_of(store.root).file
    raw = bytearray((store.root / "commitlog" / before).read_bytes())
    raw[100] ^= 1
    (store.root / "commitlog" / before).write_bytes(raw)
    told = exposure.start_of_recovery(StoreDirectory(store.root)).file
    assert told == start_of(store.root).file < before


def test_what_a_power_cut_takes_is_what_was_not_synced_and_a_killed_process_loses_nothing(store):
    fill(store, 2)
    store.flush()
    for _ in range(3):
        store.appender.put(message())
        store.clock.advance(50)
    told = exposure.losses(store.status.snapshot())
    assert told.process.acknowledged == exposure.Lost(bytes=0, messages=0, oldest_ms=0)
    positions = store.status.positions()
    assert told.power.acknowledged == exposure.Lost(
        bytes=positions.wrote - positions.flushed, messages=3, oldest_ms=150
    )


def test_with_sync_flush_nothing_that_was_acknowledged_can_be_lost(tmp_path, clock):
    store = HandStore(small_settings(tmp_path / "store", flush_disk_type="SYNC_FLUSH"), clock).begin()
    store.appender.put(message())
    told = exposure.losses(store.status.snapshot())
    assert told.power.written.messages == 1
    assert told.power.acknowledged.messages == 0
    store.close()


def report(started_ms: int, size: int, took_ms: float, **changes) -> dict:
    steps = [
        {"name": "load the index", "at_ms": 0.0, "bytes": 0, "messages": 0, "times": 1, "duration_ms": 30.0},
        {
            "name": "scan the log",
            "at_ms": 30.0,
            "bytes": size,
            "messages": 9,
            "times": 1,
            "duration_ms": took_ms,
        },
    ]
    return {
        "id": str(started_ms),
        "purpose": "start",
        "started_ms": started_ms,
        "finished_ms": started_ms + 500,
        "state": "done",
        "steps": steps,
    } | changes


def test_the_rate_is_that_of_earlier_starts_which_read_enough(tmp_path):
    assert exposure.scan_rate(exposure.reports(tmp_path / "none")).bytes_per_s is None
    kept = [report(1_000, 2 << 20, 10.0), report(2_000, 100, 5.0), report(3_000, 6 << 20, 10.0)]
    kept += [report(4_000, 6 << 20, 10.0, state="failed"), report(5_000, 6 << 20, 1.0, purpose="dry run")]
    for one in kept:
        (tmp_path / f"recovery-{one['started_ms']}.json").write_text(json.dumps(one))
    (tmp_path / "recovery-6000.json").write_text("torn")
    rate = exposure.scan_rate(exposure.reports(tmp_path))
    assert rate == exposure.ScanRate(
        bytes_per_s=(8 << 20) / 0.020, other_ms=490.0, measured_by=2, why_unknown=None
    )
    start = exposure.Start(file="", position=1 << 20, first_ms=None, limit_ms=None, why="")
    assert exposure.restart(start, 9 << 20, rate).estimated_ms == 510
    assert exposure.restart(start, 9 << 20, NO_RATE).estimated_ms is None
    assert exposure.restart(None, 9 << 20, rate).rescan_bytes is None


def test_the_estimate_is_near_what_a_start_takes(tmp_path):
    """One start gives the rate, the next is estimated by it; both read some 20 MiB."""
    root, kept = tmp_path / "data" / "store", tmp_path / "data" / "recoveries"
    sizes = {"mapped_file_size_commit_log": 64 << 20, "max_hash_slot_num": 5_000, "max_index_num": 20_000}

    def begun() -> HandStore:
        return HandStore(small_settings(root, **sizes), records=StartRecords(kept, root)).begin()

    store = begun()
    for _ in range(5_000):
        store.appender.put(message(body=b"x" * 4_000))
    store.die()
    begun().die()
    told = exposure.of_files(StoreDirectory(root), exposure.scan_rate(exposure.reports(kept)))
    assert told.restart.measured_by == 1
    store = begun()
    found = store.report.as_dict()
    store.close()
    assert found["scanned_bytes"] == told.restart.rescan_bytes > 20_000_000
    # The same work on the same files; the rest is what else the machine does.
    assert 0.1 < (found["finished_ms"] - found["started_ms"] + 1) / (told.restart.estimated_ms + 1) < 10


def test_of_a_store_closed_in_order_no_crash_is_told(store):
    fill(store, 2)
    store.close()
    told = exposure.of_files(StoreDirectory(store.root), NO_RATE)
    assert (told.state, told.start, told.restart.rescan_bytes) == ("closed", None, None)
    assert told.restart.log_end == start_of(store.root).log_end
