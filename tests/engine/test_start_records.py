"""What a start found and did: as facts, compared with a plain reading of the files; and as a record, whatever
became of the start."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from broker_store.config.load import load_settings
from broker_store.engine.disk.disk import Disk
from broker_store.engine.start import start_records
from broker_store.engine.start.report import MAX_FINDINGS, MAX_STEPS, RecoveryReport
from broker_store.engine.start.start_records import StartRecords, names, parsed
from broker_store.engine.store import MessageStore
from broker_store.errors import DamagedStoreError, StoreError
from tests.support import plain_recovery, stores
from tests.support.failing_disk import FailingDisk
from tests.support.hand_store import Clock, HandStore, message, small_settings


def fill(store, count=80):
    for number in range(count):
        store.appender.put(message("orders", number % 3, b"x" * 300, keys=(f"k{number}",)))
    store.flush()


def facts_of(root, name, **more):
    """The report of a start on `root`, of one that fails as well."""
    settings = load_settings(overrides=stores.SIZES[name].overrides() | more, store_root=root).store
    store = MessageStore(settings)
    try:
        store.open()
    except DamagedStoreError:
        pass
    store.close()
    return store.report.as_dict()


@pytest.mark.parametrize("variant", [*stores.variants(), "clean", "clean-small"])
def test_the_facts_are_those_a_plain_reader_finds(variant, tmp_path):
    name = variant if variant in stores.NAMES else "crash"
    root = (
        stores.unpack(variant, tmp_path)
        if variant in stores.NAMES
        else stores.unpack_variant(variant, tmp_path)
    )
    plain = plain_recovery.read(root)
    report = facts_of(root, name, inspect="true")
    assert report["abort_found"] == plain.abort
    assert report["checkpoint"]["found"] == (plain.stamps is not None)
    if plain.stamps:
        assert [report["checkpoint"][key] for key in ("physic_ms", "logics_ms", "index_ms")] == list(
            plain.stamps[:3]
        )
    assert [(tried["file"], tried["first_ms"], tried["taken"]) for tried in report["tried"]] == plain.tried
    assert report["start"]["file"] == plain.start
    assert (report["messages"], report["scanned_bytes"]) == (plain.messages, plain.bytes)
    assert report["stopped"]["log_offset"] == plain.end
    assert (report["crc_failures"], report["stopped"]["data_follows"]) == (
        int(plain.crc_failed),
        plain.data_follows,
    )
    assert report["log_end"] == (None if report["state"] == "failed" else plain.end)


def test_a_start_that_damage_stops_says_so_in_facts_and_in_a_finding(tmp_path):
    report = facts_of(stores.unpack_variant("bitflip-early", tmp_path), "crash")
    assert (report["state"], report["stopped"]["verdict"]) == ("failed", "damage: the start stops")
    assert (
        report["findings"][-1]["severity"] == "error"
        and report["findings"][-1]["offset"] == report["stopped"]["at"]
    )
    accepted = facts_of(tmp_path / "store", "crash", acceptDamage="true")
    assert (accepted["state"], accepted["stopped"]["verdict"]) == ("done", "damage, accepted")


def test_what_is_cut_from_log_queues_and_index_stands_in_the_facts(open_store):
    store = open_store()
    fill(store)
    store.round()
    fill(store, 40)
    store.die()
    end = store.log.wrote
    path = store.log.file_at(end - 1).path
    at = end - 700 - store.log.file_at(end - 1).base
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(b"\xff" * 8)
    before = {queue: store.reads.max_offset(*queue) for queue in store.queues()}
    again = open_store()
    report = again.report.as_dict()
    lost = {
        queue: before[queue] - again.reads.max_offset(*queue)
        for queue in before
        if before[queue] > again.reads.max_offset(*queue)
    }
    cut = report["cut"]
    assert {
        (queue["topic"], queue["queue_id"]): queue["units"] for queue in cut["consumequeue"]["queues"]
    } == lost
    assert sum(lost.values()) == cut["consumequeue"]["units"] > 0
    assert cut["index"]["entries"] == sum(lost.values())
    assert cut["commitlog"] == {"bytes": report["cut_bytes"], "files": 0, "from": report["log_end"]}
    assert report["dispatched"]["units"] == report["redispatched"] == 0


class CountingDisk(Disk):
    """Its calls are the time."""

    now = 0

    def __getattribute__(self, name):
        if name in ("now", "__class__", "__dict__") or name.startswith("_"):
            return object.__getattribute__(self, name)
        CountingDisk.now += 1
        return object.__getattribute__(self, name)


@pytest.mark.parametrize("abort", [True, False])
def test_all_that_a_start_asks_of_the_disk_lies_within_its_steps(tmp_path, abort):
    root = stores.unpack_variant("kill9" if abort else stores.variants()[0], tmp_path)
    if not abort:
        (root / "abort").unlink()
    disk = CountingDisk()
    settings = load_settings(
        overrides=stores.SIZES["crash"].overrides() | {"acceptDamage": "true"}, store_root=root
    ).store
    store = MessageStore(settings, disk=disk, records=StartRecords(tmp_path / "recoveries", root, disk))
    store.report.timer = lambda: CountingDisk.now
    store.open()
    store.close()
    report = store.report.as_dict()
    assert report["between_ms"] == 0 < report["took_ms"], [
        (step["name"], step["duration_ms"]) for step in report["steps"]
    ]


def test_the_time_before_a_store_is_opened_is_not_recoverys(tmp_path):
    clock = Clock()
    store = HandStore(small_settings(tmp_path / "store"), clock)
    clock.advance(4_000)
    store.begin()
    report = store.report.as_dict()
    assert (report["before_ms"], report["started_ms"]) == (4_000, clock.now_ms)
    store.close()


def records_of(directory):
    return [json.loads((directory / name).read_bytes()) for name in names(Disk(), directory)]


def test_each_start_leaves_a_record_also_one_that_fails(tmp_path):
    root, kept, clock = tmp_path / "store", tmp_path / "recoveries", Clock()
    for _ in range(2):
        store = HandStore(small_settings(root), clock, records=StartRecords(kept, root))
        store.begin()
        fill(store)
        store.round()
        store.close()
    (root / "commitlog" / "foreign").write_text("x")
    with pytest.raises(DamagedStoreError):
        HandStore(small_settings(root), clock, records=StartRecords(kept, root)).begin()
    (root / "commitlog" / "foreign").unlink()
    found = records_of(kept)
    assert [record["state"] for record in found] == ["done", "done", "failed"]
    assert [record["id"] for record in found] == [str(clock.now_ms), f"{clock.now_ms}-1", f"{clock.now_ms}-2"]
    assert "foreign" in found[-1]["error"] and {record["store"] for record in found} == {"store"}
    assert {
        key: value for key, value in found[1].items() if key not in ("store", "pid", "boot")
    } == store.report.as_dict()


def test_a_start_that_is_killed_in_the_middle_is_a_record_too(tmp_path):
    program = f"""
import os, signal
from pathlib import Path
from broker_store.engine.start.start_records import StartRecords
from tests.support.hand_store import HandStore, small_settings
root = Path({str(tmp_path)!r}) / "store"
def on_step(report):
    if report.steps and report.steps[-1].name == "load the index":
        os.kill(os.getpid(), signal.SIGKILL)
HandStore(small_settings(root), records=StartRecords(root.parent / "recoveries", root, every_s=0)).open(on_step)
"""
    done = subprocess.run([sys.executable, "-c", program], timeout=60)
    assert done.returncode == -9
    (name,) = names(Disk(), tmp_path / "recoveries")
    raw = (tmp_path / "recoveries" / name).read_bytes()
    assert json.loads(raw)["state"] == "running"
    found = parsed(raw)
    assert found["state"] == "ended midway" and "“load the index”" in found["error"]
    store = HandStore(
        small_settings(tmp_path / "store"), records=StartRecords(tmp_path / "recoveries", tmp_path / "store")
    )
    store.begin()
    store.close()
    assert [record["state"] for record in records_of(tmp_path / "recoveries")] == ["ended midway", "done"]


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"[]", b'{"id": "1"}', b"[" * 100_000], ids=["empty", "torn", "list", "bare", "nested"]
)
def test_what_is_no_record_is_left_out(raw):
    assert parsed(raw) is None


def test_records_are_few_and_small(tmp_path, monkeypatch):
    kept = tmp_path / "recoveries"
    kept.mkdir()
    for number in range(1, 230):
        (kept / f"recovery-{number}.json").write_text("{}")
    (kept / "other.json").write_text("{}")
    report = RecoveryReport(1_000_000)
    report.begin(1_000_000)
    StartRecords(kept, tmp_path / "store").begin(report)
    found = names(Disk(), kept)
    assert (len(found), found[0], found[-1]) == (200, "recovery-31.json", "recovery-1000000.json")
    assert (kept / "other.json").exists()
    monkeypatch.setattr(start_records, "MAX_BYTES", 10_000)
    (kept / "recovery-99.json").write_text(" " * 9_990)
    report.id = "1000001"
    StartRecords(kept, tmp_path / "store").begin(report)
    assert (
        "recovery-99.json" not in names(Disk(), kept)
        and os.stat(kept / "recovery-1000001.json").st_size < 3_000
    )


def test_a_record_that_cannot_be_kept_does_not_stop_the_start(tmp_path):
    def on_call(name):
        raise StoreError("injected: input/output error")

    root = tmp_path / "store"
    store = HandStore(
        small_settings(root), records=StartRecords(tmp_path / "recoveries", root, FailingDisk(on_call))
    )
    store.begin()
    assert [finding["what"] for finding in store.report.as_dict()["findings"]] == [
        "the record of this start cannot be kept: injected: input/output error"
    ]
    store.close()


def test_a_report_is_bounded_whatever_is_added():
    now = [0.0]
    report = RecoveryReport(0, timer=lambda: now[0])
    report.begin(0)
    for number in range(1_000):
        with report.step("scan the log", f"{number:020d}") as step:
            now[0] += 0.001
            step.bytes, step.messages = 10, 1
        report.finding("info", "w" * 5_000)
        report.try_file("f", number, None, False, "")
        report.cut_queue("t" * 255, number, 0, 1)
    facts = report.as_dict()
    assert (
        len(facts["steps"]) == MAX_STEPS
        and facts["steps"][-1]["times"] == 1_001 - MAX_STEPS
        and facts["steps"][-1]["file"].endswith("999")
    )
    assert (
        sum(step["bytes"] for step in facts["steps"]) == 10_000
        and round(sum(step["duration_ms"] for step in facts["steps"])) == 1_000
    )
    assert (len(facts["findings"]), facts["findings_left_out"]) == (MAX_FINDINGS, 1_000 - MAX_FINDINGS)
    assert (len(facts["tried"]), facts["tried_left_out"]) == (100, 900)
    assert (
        facts["cut"]["consumequeue"]["queues_left_out"] == 900
        and facts["cut"]["consumequeue"]["units"] == 1_000
    )
    assert len(json.dumps(facts)) < 300_000


def test_the_remaining_time_follows_the_measured_rate():
    now = [0.0]
    report = RecoveryReport(0, timer=lambda: now[0])
    report.begin(0)
    report.total_bytes = 4_000
    with report.step("scan the log") as step:
        assert report.as_dict()["left_ms"] is None
        now[0], report.scanned_bytes, step.bytes = 0.5, 1_000, 1_000
        assert (report.as_dict()["left_ms"], report.as_dict()["scan_bytes_per_s"]) == (1_500, 2_000)
    assert report.as_dict()["left_ms"] is None
    with report.step("dispatch again") as step:
        step.of_bytes, step.bytes, now[0] = 300, 100, 0.6
        assert report.as_dict()["left_ms"] == 200
    report.finish("done")
    now[0] = 99.0
    assert (report.as_dict()["took_ms"], report.as_dict()["left_ms"], report.as_dict()["between_ms"]) == (
        600,
        None,
        0,
    )


def test_a_store_that_is_gone_is_not_begun_again(tmp_path):
    """Its disk may not be mounted: an empty store was begun in its place, and was READY."""
    root, kept = tmp_path / "store", tmp_path / "recoveries"
    store = HandStore(small_settings(root), records=StartRecords(kept, root)).begin()
    store.appender.put(message("T", 0))
    store.close()
    root.rename(tmp_path / "away")
    for _ in range(2):
        with pytest.raises(
            DamagedStoreError,
            match="nothing is left of the store that was opened at 20.* UTC: its disk is not mounted",
        ):
            HandStore(small_settings(root), records=StartRecords(kept, root)).begin()
        assert not [path for path in root.rglob("*") if path.is_file() and path.name != "lock"]
    HandStore(
        small_settings(tmp_path / "other"), records=StartRecords(kept, tmp_path / "other")
    ).begin().close()
    store = HandStore(small_settings(root, accept_damage=True), records=StartRecords(kept, root)).begin()
    assert [finding["what"].endswith("; accepted") for finding in store.report.as_dict()["findings"]] == [
        True
    ]
    assert store.appender.put(message("T", 0)).queue_offset == 0
    store.close()
    HandStore(small_settings(root), records=StartRecords(kept, root)).begin().close()


def test_a_store_that_has_its_queues_is_not_said_to_be_gone(tmp_path):
    root, kept = tmp_path / "store", tmp_path / "recoveries"
    store = HandStore(small_settings(root), records=StartRecords(kept, root)).begin()
    store.appender.put(message("T", 0))
    store.close()
    for name in ("commitlog", "ends", "checkpoint"):
        (root / name).rename(tmp_path / name)
    with pytest.raises(
        DamagedStoreError, match="there is no log file, but the store had a log: .* 1 message is not there"
    ):
        HandStore(small_settings(root), records=StartRecords(kept, root)).begin()
    for name in ("commitlog", "ends", "checkpoint"):
        shutil.rmtree(root / name, ignore_errors=True)
        (tmp_path / name).rename(root / name)
    HandStore(small_settings(root), records=StartRecords(kept, root)).begin().close()
