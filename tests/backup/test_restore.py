"""A restore makes the store that was saved, or none."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker_store.backup import manifest
from broker_store.backup.copying import Copier, Pace
from broker_store.backup.restore import Restore
from broker_store.engine.disk.disk import Disk
from broker_store.errors import DamagedStoreError, StoreError
from tests.backup.conftest import bodies_of
from tests.support.hand_store import HandStore, message, small_settings


def restore(backup: Path, data: Path, disk: Disk | None = None, step=None):
    disk = disk or Disk()
    return Restore(backup, data, disk, Copier(disk, Pace(), step)).run()


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


@pytest.mark.parametrize("fault", ["changed", "missing"])
def test_a_damaged_backup_makes_no_store(writing, tmp_path, fault):
    made = writing.back_up(tmp_path / "b1", may_link=False)
    path = tmp_path / "b1" / next(file.path for file in made.files if "consumequeue" in file.path)
    if fault == "missing":
        path.unlink()
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
