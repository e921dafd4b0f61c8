"""What a start would do, on stores as they are: nothing is changed, and it says what a start then finds."""

import dataclasses
import errno
import os

import pytest

from broker_store.config.store import StoreSettings
from broker_store.engine.disk.disk import Disk
from broker_store.engine.start.start_records import StartRecords
from broker_store.engine.store import MessageStore
from broker_store.errors import NotFoundError, StoreError
from broker_store.facts import recoveries
from broker_store.facts.directory import StoreDirectory
from broker_store.facts.starts import report_of
from tests.support import plain_recovery, stores
from tests.support.hand_store import HandStore, message, small_settings


def tree(directory):
    return {
        path: (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else None)
        for path in directory.rglob("*")
    }


@pytest.mark.quick(5)
@pytest.mark.parametrize("variant", stores.variants())
def test_a_dry_run_says_what_a_start_then_does(variant, tmp_path):
    root = stores.unpack_variant(variant, tmp_path)
    before, plain = tree(tmp_path), plain_recovery.read(root)
    sizes = dataclasses.asdict(stores.SIZES["crash"])
    found = StoreDirectory(root).sizes()
    assert found.mapped_file_size_commit_log is not None
    seen = {name: size for name, size in dataclasses.asdict(found).items() if size is not None}
    assert seen.items() <= sizes.items()
    settings = recoveries.settings_for(StoreDirectory(root), StoreSettings(**sizes))
    told = recoveries.dry_run(settings)
    assert tree(tmp_path) == before
    assert (told.purpose, told.stopped.log_offset) == ("dry run", plain.end)
    store = MessageStore(settings)
    if told.state == "failed":
        with pytest.raises(Exception, match="start again with --accept-damage"):
            store.open()
        assert "--accept-damage" in told.error
        return
    did = report_of(store.open().as_dict())
    store.close()
    for fact in (
        "kind",
        "log_end",
        "messages",
        "scanned_bytes",
        "cut_bytes",
        "cut",
        "redispatched",
        "dispatched",
        "start",
        "tried",
        "stopped",
    ):
        assert getattr(told, fact) == getattr(did, fact), fact


def test_on_a_store_in_use_it_says_what_a_start_would_do_if_the_process_died_now(tmp_path):
    store = HandStore(small_settings(tmp_path / "store")).begin()
    for number in range(120):
        store.appender.put(message("orders", number % 3, b"x" * 300, keys=(f"k{number}",)))
    before = tree(tmp_path)
    told = recoveries.dry_run(recoveries.settings_for(StoreDirectory(store.root)))
    assert tree(tmp_path) == before
    assert (told.state, told.kind, told.abort_found) == ("done", "abnormal", True)
    assert (told.log_end, told.messages, told.redispatched, told.cut_bytes) == (
        store.log.wrote,
        120,
        0,
        0,
    )
    assert store.appender.put(message("orders", 0)).ok
    store.close()


@pytest.mark.parametrize("step", ["judge the end of the log", "cut the log at its end"])
def test_what_is_stored_while_it_looks_is_not_told_as_cut(step, tmp_path):
    store = HandStore(small_settings(tmp_path / "store")).begin()
    store.appender.put(message("orders", 0, keys=("before",)))
    end = store.log.wrote

    def store_one_more(report):
        if report.step == step and store.log.wrote == end:
            assert store.appender.put(message("orders", 0, b"x" * 300, keys=("meanwhile",))).ok

    told = recoveries.dry_run(recoveries.settings_for(StoreDirectory(store.root)), on_change=store_one_more)
    assert (told.state, told.in_use, told.log_end, told.came_meanwhile) == (
        "done",
        True,
        end,
        store.log.wrote - end,
    )
    assert (
        told.stopped.verdict,
        told.cut_bytes,
        told.cut.commitlog.bytes,
        told.findings,
    ) == ("end of the log", 0, 0, [])
    assert recoveries.dry_run(recoveries.settings_for(StoreDirectory(store.root))).came_meanwhile == 0
    store.close()
    assert recoveries.dry_run(recoveries.settings_for(StoreDirectory(store.root))).in_use is False


def test_it_ends_when_it_is_told_to_or_takes_too_long(tmp_path):
    root = stores.unpack("crash", tmp_path)
    settings = recoveries.settings_for(StoreDirectory(root))
    seen = []
    with pytest.raises(recoveries.DryRunStopped, match="was stopped"):
        recoveries.dry_run(settings, on_change=seen.append, should_stop=lambda: len(seen) > 5)
    with pytest.raises(recoveries.DryRunStopped, match="took longer than 0 s"):
        recoveries.dry_run(settings, limit_s=0.0)


def test_records_are_listed_newest_first_and_what_is_none_is_left_out(tmp_path):
    kept, root = tmp_path / "recoveries", tmp_path / "store"
    for _ in range(3):
        store = HandStore(small_settings(root), records=StartRecords(kept, root)).begin()
        store.clock.advance(1)
        store.close()
    (kept / "recovery-5.json").write_text("[1")
    (kept / "recovery-6.json").write_text("{}")
    found = recoveries.listing(kept, Disk())
    assert [record.state for record in found] == ["done"] * 3 and found[0].id > found[-1].id
    assert recoveries.one(kept, found[0].id).log_end == 0
    for id in ("5", "6", "7", "../recoveries/1", ""):
        with pytest.raises(NotFoundError):
            recoveries.one(kept, id)


@pytest.mark.parametrize("closed", ["", "consumequeue"])
def test_a_store_that_this_user_may_not_enter_is_refused_with_what_to_do(tmp_path, monkeypatch, closed):
    """It was a traceback of `is_dir`, which lets only a missing file pass."""

    lstat = os.lstat

    def of_a_closed_directory(path, **more):
        if str(path).startswith(f"{root / closed}/"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return lstat(path, **more)

    root = stores.unpack("clean-small", tmp_path)
    with pytest.raises(
        StoreError,
        match="reading its attributes failed: Permission denied; read the store as the user that owns it, or let "
        "this user read and enter ",
    ):
        monkeypatch.setattr(os, "lstat", of_a_closed_directory)
        recoveries.settings_for(StoreDirectory(root, Disk()))
