"""A file that is removed, replaced or cut under a running store: nothing more is acknowledged, no other bytes
are served, and a sentence says why."""

import errno
import os
import shutil
import subprocess
import sys

import pytest

from broker_store.errors import StoreError
from broker_store.formats import record
from broker_store.messages import GetRequest, GetStatus, PutStatus
from tests.support.hand_store import HandStore, message, small_settings

LOG_FILE = "commitlog/" + "0" * 20


def why(store) -> str:
    return next(flag.cause for flag in store.status.snapshot().flags if flag.name == "sync_failed")


def removed(path):
    path.unlink()


def directory_removed(path):
    shutil.rmtree(path.parent)


def replaced_by_a_copy(path):
    shutil.copy(path, path.with_name("copy"))
    os.replace(path.with_name("copy"), path)


def cut_behind_what_was_written(path):
    os.truncate(path, 8192)


CASES = {
    removed: "the file is gone",
    directory_removed: "the file is gone",
    replaced_by_a_copy: "another file has this name",
    cut_behind_what_was_written: "the file has 8,192 bytes",
}


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
@pytest.mark.parametrize("happens", CASES, ids=lambda happens: happens.__name__)
def test_what_a_sync_would_not_bring_to_the_disk_is_not_flushed(happens, flush, tmp_path):
    store = HandStore(small_settings(tmp_path / "store", flush_disk_type=flush)).begin()
    try:
        first = store.appender.put(message())
        store.flush()
        happens(tmp_path / "store" / LOG_FILE)
        store.appender.put(message())
        store.flush()
        assert store.log.flushed == first.log_end
        assert CASES[happens] in why(store) and LOG_FILE in why(store)
        assert store.appender.put(message()).status is PutStatus.SERVICE_NOT_AVAILABLE
    finally:
        store.die()


def test_it_is_noticed_without_a_message_too(tmp_path):
    store = HandStore(small_settings(tmp_path / "store")).begin()
    try:
        store.appender.put(message())
        store.flush()
        store.look_at_disk()
        assert store.state == "running"
        removed(tmp_path / "store" / LOG_FILE)
        store.look_at_disk()
        assert store.state == "read_only" and "the file is gone" in why(store)
    finally:
        store.die()


def test_an_older_log_file_that_was_taken_away_is_named_until_it_is_back(tmp_path):
    """All went on from the map, "Everything runs." stood above it, and a stop lost the file."""
    store, _ = written(tmp_path)
    try:
        store.look_at_disk()
        assert store.status.snapshot().flags == []
        path = store.log.files[0].path
        path.rename(tmp_path / "away")
        store.look_at_disk()
        (flag,) = store.status.snapshot().flags
        assert flag.name == "log_file_gone" and path.name in flag.cause
        assert store.appender.put(message()).ok
        (tmp_path / "away").rename(path)
        store.look_at_disk()
        assert store.status.snapshot().flags == []
        store.flush(), store.round()
        assert (
            store.cleaning.delete_expired(any_age=True, most=1) == 1
        )  # what the store removes itself is not named
        store.look_at_disk()
        assert store.status.snapshot().flags == []
    finally:
        store.die()


def written(tmp_path):
    """A store with some log and queue files that are not mapped, and the raw records by queue offset."""
    store = HandStore(small_settings(tmp_path / "store")).begin()
    bodies = {}
    while len(store.log.files) < 4:
        sent = message(body=b"%d-" % len(bodies) + bytes(300), keys=(f"k{len(bodies)}",))
        bodies[store.appender.put(sent).queue_offset] = sent.body
        store.flush()
    store.log.unmap_before(store.log.current.base)
    store.prepare()  # lets go of the maps
    assert store.log.files[0].region is None
    return store, bodies


def test_an_older_log_file_that_was_cut_gives_no_other_bytes(tmp_path):
    """The kernel read what lay after the map of the shorter file: zeros, other files of the process, or it
    was ended by SIGSEGV."""
    store, bodies = written(tmp_path)
    try:
        whole = record.decode(store.reads.get_blocking(GetRequest("topic", 0, 20, 1)).body)
        os.truncate(store.log.files[0].path, whole.log_offset)  # store offsets are places in the first file
        for number, body in bodies.items():
            found = store.reads.get_blocking(GetRequest("topic", 0, number, 1))
            result = store.reads.get(GetRequest("topic", 0, number, 1))
            if number < 20 or found.status is GetStatus.FOUND:
                assert record.decode(result.body).body == body
            else:
                assert result.status is GetStatus.MESSAGE_DAMAGED, number
            if number < 20:
                assert store.reads.query_keys("topic", f"k{number}", 4).offsets
        assert result.status is GetStatus.FOUND  # of a later file
        assert "made shorter" in next(
            flag.cause for flag in store.status.snapshot().flags if flag.name == "damage_found"
        )
    finally:
        store.die()


def test_an_older_queue_file_that_was_cut_fails_reads_of_what_it_lacks(tmp_path):
    """Units after the end of the map were read as zero: a consumer got the answer that nothing is there, and waited
    for ever."""
    store, bodies = written(tmp_path)
    try:
        first = store.queue_table.find("topic", 0).files[0]
        first.unmap()
        os.truncate(first.path, 40)
        assert record.decode(store.reads.get(GetRequest("topic", 0, 1, 1)).body).body == bodies[1]
        for number in (2, 10, 19):
            with pytest.raises(StoreError, match="made shorter"):
                store.reads.get(GetRequest("topic", 0, number, 1))
        assert record.decode(store.reads.get(GetRequest("topic", 0, 20, 1)).body).body == bodies[20]
        assert "made shorter" in next(
            flag.cause for flag in store.status.snapshot().flags if flag.name == "damage_found"
        )
    finally:
        store.die()
    with pytest.raises(
        StoreError, match="or move it out of the store: a queue's files are made again from the log"
    ):
        HandStore(small_settings(tmp_path / "store"), store.clock).begin()
    first.path.rename(tmp_path / "moved")  # as the start says
    again = HandStore(small_settings(tmp_path / "store"), store.clock).begin()
    assert record.decode(again.reads.get_blocking(GetRequest("topic", 0, 10, 1)).body).body == bodies[10]
    again.die()


def test_a_lock_that_was_removed_is_made_again(tmp_path):
    store, _ = written(tmp_path)
    try:
        (store.root / "lock").unlink()
        store.look_at_disk()
        assert store.state == "running" and (store.root / "lock").exists()
        assert _tries_to_open(store.root).endswith("lock is locked by another process")
        store.look_at_disk()
        assert store.appender.put(message()).ok
    finally:
        store.die()


def test_a_lock_that_cannot_be_made_again_sets_a_flag_and_is_tried_once_more(tmp_path, monkeypatch):
    """A full disk at that moment made the store read-only until the next start."""

    def no_room(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    store, _ = written(tmp_path)
    try:
        (store.root / "lock").unlink()
        with monkeypatch.context() as patched:
            patched.setattr(os, "pwrite", no_room)
            store.look_at_disk()
        assert [
            flag.cause
            for flag in store.status.snapshot().flags
            if flag.name == "lock_gone" and "no room on the disk" in flag.cause
        ]
        assert store.appender.put(message()).ok
        store.look_at_disk()
        assert (
            (store.root / "lock").exists()
            and store.status.snapshot().flags == []
            and store.appender.put(message()).ok
        )
    finally:
        store.die()


def test_a_store_whose_lock_was_removed_is_not_opened_by_another_process(tmp_path):
    """Two brokers wrote one store."""
    store, _ = written(tmp_path)
    try:
        (store.root / "lock").unlink()
        assert (
            f"lock was removed, but process {os.getpid()} still has the store open: stop it first"
            in _tries_to_open(store.root)
        )
        assert not (store.root / "lock").exists()
    finally:
        store.die()


def test_a_store_stops_writing_where_another_process_took_its_lock(tmp_path):
    store, _ = written(tmp_path)
    try:
        (store.root / "lock").unlink()
        (store.root / "lock").write_bytes(b"lock")
        store.look_at_disk()
        assert (
            store.state == "read_only"
            and "another file has this name now, so another process may write the store" in why(store)
        )
        assert store.appender.put(message()).status is PutStatus.SERVICE_NOT_AVAILABLE
    finally:
        store.die()


def _tries_to_open(root) -> str:
    """The answer to another process that takes the lock."""
    code = (
        "import sys, pathlib; from broker_store.engine.disk.disk import Disk\ntry: "
        "Disk().lock(pathlib.Path(sys.argv[1]))\nexcept Exception as error: print(error)"
    )
    return subprocess.run(
        [sys.executable, "-c", code, str(root / "lock")], capture_output=True, text=True, check=True
    ).stdout.strip()
