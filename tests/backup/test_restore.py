"""A restore makes the store that was saved, or none."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from broker_store.backup import manifest
from broker_store.backup.copying import Copier, Pace
from broker_store.backup.restore import Restore
from broker_store.backup.verify import verify
from broker_store.engine.disk.disk import Disk
from broker_store.errors import DamagedStoreError, StoreError
from broker_store.formats import config_json, timer_check
from broker_store.formats.timer_check import TimerCheck
from broker_store.formats.topics import HALF_TOPIC, SCHEDULE_TOPIC
from tests.backup.conftest import bodies_of
from tests.support.hand_store import START_MS, HandStore, findings, message, small_settings


def restore(backup: Path, data: Path, disk: Disk | None = None, step=None, until_ms: int | None = None):
    disk = disk or Disk()
    return Restore(backup, data, disk, Copier(disk, Pace(), step), until_ms).run()


def test_a_restored_store_has_all_messages_and_leaves_the_backup_as_it_is(writing, tmp_path):
    writing.store.flush()
    writing.back_up(tmp_path / "b1")
    before = {path: path.read_bytes() for path in (tmp_path / "b1").rglob("*") if path.is_file()}
    restore(tmp_path / "b1", tmp_path / "new")
    assert bodies_of(tmp_path / "new" / "store") == writing.sent
    with_more = HandStore(small_settings(tmp_path / "new" / "store")).begin()
    for number in range(300):
        assert with_more.appender.put(message("a", 0, b"later", keys=(str(number),))).ok
    with_more.close()
    assert before == {path: path.read_bytes() for path in before}


def test_only_an_empty_directory_is_taken(writing, tmp_path):
    writing.back_up(tmp_path / "b1")
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "kept").write_text("mine")
    with pytest.raises(StoreError, match="is not empty"):
        restore(tmp_path / "b1", tmp_path / "new")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["kept"]


def test_an_interrupted_backup_is_not_restored(writing, tmp_path):
    writing.back_up(tmp_path / "b1")
    (tmp_path / "b1" / manifest.FILE_NAME).unlink()
    with pytest.raises(StoreError, match="was interrupted"):
        restore(tmp_path / "b1", tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("fault", ["changed", "missing", "fifo"])
def test_a_damaged_backup_makes_no_store(writing, tmp_path, fault):
    made = writing.back_up(tmp_path / "b1", may_link=False)
    path = tmp_path / "b1" / next(file.path for file in made.files if "consumequeue" in file.path)
    if fault == "missing":
        path.unlink()
    elif fault == "fifo":  # to open it would wait for ever
        path.unlink()
        os.mkfifo(path)
        found = verify(Disk(), tmp_path / "b1", Copier(Disk(), Pace()))
        assert [f"{path}: is no regular file" in found.faults[0], len(found.faults)] == [True, 1]
    else:
        path.write_bytes(b"\7" + path.read_bytes()[1:])
    with pytest.raises(DamagedStoreError, match=str(path)):
        restore(tmp_path / "b1", tmp_path / "new")
    assert not (tmp_path / "new" / "store").exists()


def test_an_interrupted_restore_leaves_no_store(writing, tmp_path):
    writing.back_up(tmp_path / "b1")

    def stop(step, done, total):
        if done > total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        restore(tmp_path / "b1", tmp_path / "new", step=stop)
    assert (tmp_path / "new").exists() and not (tmp_path / "new" / "store").exists()
    with pytest.raises(StoreError, match="is not empty"):
        restore(tmp_path / "b1", tmp_path / "new")


@pytest.mark.parametrize("after_ms", [0, 1, 250, 500, 897, 898, 10_000_000])
def test_nothing_that_was_stored_after_a_moment_is_restored(writing, tmp_path, after_ms):
    until_ms = START_MS + after_ms
    writing.back_up(tmp_path / "b1")
    restored = restore(tmp_path / "b1", tmp_path / "new", until_ms=until_ms)
    expected = {
        queue: [body for body, at in zip(bodies, writing.times[queue], strict=True) if at <= until_ms]
        for queue, bodies in writing.sent.items()
    }
    found = bodies_of(tmp_path / "new" / "store")
    assert {queue: bodies for queue, bodies in found.items() if bodies} == {
        queue: bodies for queue, bodies in expected.items() if bodies
    }
    assert (restored.cut_at is None) == (expected == writing.sent)
    assert findings(tmp_path / "new" / "store") == []
    goes_on = HandStore(small_settings(tmp_path / "new" / "store")).begin()
    assert goes_on.appender.put(message("a", 0)).queue_offset == len(expected.get(("a", 0), []))
    goes_on.close()


def test_a_moment_at_the_end_of_a_log_file_removes_the_files_after_it(writing, tmp_path):
    made = writing.back_up(tmp_path / "b1")
    second = writing.store.log.files[1].base
    until_ms = writing.store.log.stored_ms(second) - 1
    restored = restore(tmp_path / "b1", tmp_path / "new", until_ms=until_ms)
    assert restored.log_end <= restored.cut_at == second < made.log_end
    assert findings(tmp_path / "new" / "store") == []


def test_a_moment_before_the_first_message_is_refused(writing, tmp_path):
    writing.back_up(tmp_path / "b1")
    with pytest.raises(StoreError, match="choose a later time, or an earlier backup"):
        restore(tmp_path / "b1", tmp_path / "new", until_ms=START_MS - 1)
    assert not (tmp_path / "new" / "store").exists()


def test_positions_lead_beyond_no_queue_and_what_the_broker_delivers_comes_again(writing, tmp_path):
    store = writing.store
    begin_ms = store.clock.now_ms
    for _ in range(40):  # level 2 is five seconds
        store.appender.put(message(SCHEDULE_TOPIC, 1, more={"DELAY": "2"}))
        store.appender.put(message(HALF_TOPIC, 0))
        store.clock.advance(1000)
    positions = {"a@g": {0: 5, 1: 10**6}, f"{HALF_TOPIC}@CID_RMQ_SYS_TRANS": {0: 39}, "gone@g": {3: 7}}
    version = {"counter": 1, "stateVersion": 0, "timestamp": 1}
    offsets = {"dataVersion": version, "popsIncluded": store.log.wrote, "offsetTable": positions}
    store.write_config("consumerOffset.json", config_json.write(offsets).encode())
    levels = {"dataVersion": version, "offsetTable": {2: 35, 3: 0}}
    store.write_config("delayOffset.json", config_json.write(levels).encode())
    check = timer_check.encode_page(TimerCheck(read_ms=begin_ms + 40_000))
    store.disk.write_file(store.root / timer_check.PATH, check)
    store.flush()
    writing.back_up(tmp_path / "b1")
    until_ms = begin_ms + 30_500
    restored = restore(tmp_path / "b1", tmp_path / "new", until_ms=until_ms)
    root = tmp_path / "new" / "store"
    assert findings(root) == []
    for name in ("consumerOffset.json", "consumerOffset.json.bak"):
        found = config_json.read((root / "config" / name).read_bytes())
        assert found["offsetTable"] == {
            "a@g": {0: 5, 1: len(writing.sent["a", 1])},
            f"{HALF_TOPIC}@CID_RMQ_SYS_TRANS": {0: 0},
            "gone@g": {3: 0},
        }
        assert found["popsIncluded"] == restored.log_end
    # Those that were due more than ten seconds before the moment are delivered: 0 to 15, at 5 to 20 s
    levels = config_json.read((root / "config" / "delayOffset.json").read_bytes())
    assert levels["offsetTable"] == {2: 16, 3: 0}
    assert timer_check.decode((root / timer_check.PATH).read_bytes()).read_ms <= until_ms - 10_000
    assert (
        json.loads((tmp_path / "b1" / manifest.FILE_NAME).read_text())["backup"]["log_end"] > restored.log_end
    )
