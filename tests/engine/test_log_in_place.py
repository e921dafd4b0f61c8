"""A log file that is removed, replaced or cut under a running store: nothing more is acknowledged, and a sentence says why."""

import os
import shutil

import pytest

from broker_store.messages import PutStatus
from tests.support.hand_store import HandStore, message, small_settings

LOG_FILE = "commitlog/" + "0" * 20


def why(store) -> str:
    return next(flag["cause"] for flag in store.snapshot()["flags"] if flag["name"] == "sync_failed")


def removed(path):
    path.unlink()


def directory_removed(path):
    shutil.rmtree(path.parent)


def replaced_by_a_copy(path):
    shutil.copy(path, path.with_name("copy"))
    os.replace(path.with_name("copy"), path)


def cut_behind_what_was_written(path):
    os.truncate(path, 8192)


CASES = {removed: "the file is gone", directory_removed: "the file is gone", replaced_by_a_copy: "another file has this name", cut_behind_what_was_written: "the file has 8,192 bytes"}


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
@pytest.mark.parametrize("happens", CASES, ids=lambda happens: happens.__name__)
def test_what_a_sync_would_not_bring_to_the_disk_is_not_flushed(happens, flush, tmp_path):
    store = HandStore(small_settings(tmp_path / "store", flush_disk_type=flush)).begin()
    try:
        first = store.put(message())
        store.flush()
        happens(tmp_path / "store" / LOG_FILE)
        store.put(message())
        store.flush()
        assert store.log.flushed == first.log_end
        assert CASES[happens] in why(store) and LOG_FILE in why(store)
        assert store.put(message()).status is PutStatus.SERVICE_NOT_AVAILABLE
    finally:
        store.die()


def test_it_is_noticed_without_a_message_too(tmp_path):
    store = HandStore(small_settings(tmp_path / "store")).begin()
    try:
        store.put(message())
        store.flush()
        store.look_at_disk()
        assert store.state == "running"
        removed(tmp_path / "store" / LOG_FILE)
        store.look_at_disk()
        assert store.state == "read_only" and "the file is gone" in why(store)
    finally:
        store.die()
