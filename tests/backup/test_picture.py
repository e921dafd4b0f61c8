"""A backup holds what was on the disk when it was taken, whatever the broker does meanwhile."""

from __future__ import annotations

import itertools
import os
import shutil
from pathlib import Path

import pytest

from broker_store.backup import manifest
from broker_store.backup.copying import Copier, Pace
from broker_store.backup.picture import Picture
from broker_store.backup.source import Source
from broker_store.backup.verify import verify
from broker_store.engine.disk.disk import Disk, Usage
from broker_store.errors import DiskFullError, StoreError, StoreLockedError, SyncError
from broker_store.formats import broker_identity, epochs
from tests.backup.conftest import bodies_of
from tests.support.failing_disk import FailingDisk
from tests.support.hand_store import HandStore, findings, small_settings


class WithoutLinks(Disk):
    """A file system that knows no hard links and no shared blocks."""

    def link(self, source: Path, target: Path) -> None:
        raise StoreError(f"{target}: keeping {source.name} failed: Operation not permitted")

    def clone(self, source: Path, target: Path) -> bool:
        return False


def require_whole(directory: Path, sent: dict, at_least: dict) -> None:
    """Check that a backup is sound, and holds the first messages of each queue: at least those."""
    disk = Disk()
    assert verify(disk, directory, Copier(disk, Pace())).faults == []
    assert findings(directory / "store") == []
    copy = directory.parent / f"{directory.name}-opened"
    shutil.copytree(directory / "store", copy / "store")
    found = bodies_of(copy / "store")
    for queue, bodies in at_least.items():
        assert len(found[queue]) >= len(bodies)
    for queue, bodies in found.items():
        assert bodies == sent[queue][: len(bodies)]


def acknowledged(writing) -> dict:
    """What is on the disk now."""
    writing.store.flush()
    return {queue: list(bodies) for queue, bodies in writing.sent.items()}


def test_messages_that_are_sent_at_each_step_leave_the_backup_whole(writing, tmp_path):
    before = acknowledged(writing)

    def write_on(step):
        writing.write(120)
        if step in ("queues", "the index"):
            writing.store.flush()
            writing.store.round()

    writing.on_step = write_on
    made = writing.back_up(tmp_path / "b1")
    assert made.of_running_broker and made.log_end < writing.store.log.wrote
    assert {file.how for file in made.files} == {manifest.LINKED, manifest.COPIED}
    require_whole(tmp_path / "b1", writing.sent, before)


def test_a_backup_does_not_have_the_brokers_identity_in_a_set(writing, tmp_path):
    names = (broker_identity.FILE_NAME, broker_identity.TEMPORARY_NAME, epochs.FILE_NAME)
    for name in names:
        (tmp_path / "data" / "store" / name).write_bytes(b"of the living broker")
    made = writing.back_up(tmp_path / "b1")
    assert made.files and not [path for name in names for path in (tmp_path / "b1").rglob(name)]
    require_whole(tmp_path / "b1", writing.sent, {})


@pytest.mark.parametrize("disk", [Disk(), WithoutLinks()], ids=["links", "copies"])
def test_files_that_retention_deletes_meanwhile_do_not_harm(writing, tmp_path, disk):
    writing.write(600)

    def delete(step):
        writing.write(60)
        writing.store.flush()
        writing.store.round()
        writing.store.cleaning.delete_expired(any_age=True, most=1)

    writing.on_step = delete
    begin = writing.store.log.minimum
    made = writing.back_up(tmp_path / "b1", disk)
    assert writing.store.log.minimum > begin
    assert findings(tmp_path / "b1" / "store") == []
    assert made.log_begin <= writing.store.log.minimum


def test_a_log_that_is_deleted_as_fast_as_it_is_written_is_not_saved_with_a_gap(writing, tmp_path):
    def delete(step):
        writing.write(300)
        writing.store.flush()
        writing.store.round()
        writing.store.cleaning.delete_expired(any_age=True, most=100)

    writing.on_step = delete
    with pytest.raises(StoreError, match="before it was saved: the disk is nearly full"):
        writing.back_up(tmp_path / "b1")
    with pytest.raises(StoreError, match="was interrupted"):
        manifest.read(Disk(), tmp_path / "b1")


def test_a_file_that_is_deleted_before_it_is_taken_is_not_missed(writing, tmp_path):
    class Deleting(Disk):
        """Retention deletes the first files between the listing of the log and the first link."""

        is_done = False

        def clone(self, source: Path, target: Path) -> bool:
            if not self.is_done:
                self.is_done = True
                assert writing.store.cleaning.delete_expired(any_age=True, most=3) == 3
            return False

    writing.write(600)
    writing.store.flush()
    writing.store.round()
    disk = Deleting()
    made = writing.back_up(tmp_path / "b1", disk)
    assert disk.is_done and made.log_begin == writing.store.log.minimum > 0
    assert findings(tmp_path / "b1" / "store") == []


def test_a_second_backup_shares_what_is_the_same(writing, tmp_path):
    writing.back_up(tmp_path / "b1")
    writing.write(150)
    made = writing.back_up(tmp_path / "b2", earlier=tmp_path / "b1")
    assert made.earlier == "b1"
    shared = [file.path for file in made.files if file.how == manifest.SHARED]
    assert any("commitlog" in path for path in shared) and any("consumequeue" in path for path in shared)
    for path in shared:
        assert (tmp_path / "b1" / path).samefile(tmp_path / "b2" / path)
    require_whole(tmp_path / "b2", writing.sent, {})
    shutil.rmtree(tmp_path / "b1")
    disk = Disk()
    assert verify(disk, tmp_path / "b2", Copier(disk, Pace())).ok


def test_a_file_of_the_earlier_backup_that_was_changed_is_not_shared(writing, tmp_path):
    made = writing.back_up(tmp_path / "b1", may_link=False)
    name = next(file.path for file in made.files if "consumequeue" in file.path and file.data_bytes < 400)
    changed = tmp_path / "b1" / name
    changed.write_bytes(changed.read_bytes()[:-1] + b"x")
    made = writing.back_up(tmp_path / "b2", earlier=tmp_path / "b1")
    assert made.by_path[name].how == manifest.COPIED
    require_whole(tmp_path / "b2", writing.sent, {})


def test_a_closed_file_whose_time_was_changed_is_shared_by_its_bytes(writing, tmp_path):
    writing.back_up(tmp_path / "b1")
    for path in (writing.store.root / "commitlog").iterdir():
        os.utime(path, (1_000_000_000, 1_000_000_000))
    writing.back_up(tmp_path / "b2", earlier=tmp_path / "b1")
    require_whole(tmp_path / "b2", writing.sent, {})


def test_copies_share_no_block_with_the_store(writing, tmp_path):
    writing.back_up(tmp_path / "b1")
    made = writing.back_up(tmp_path / "b2", earlier=tmp_path / "b1", may_link=False)
    root = writing.store.root
    for file in made.files:
        assert not (
            (root.parent / file.path).exists()
            and (root.parent / file.path).samefile(tmp_path / "b2" / file.path)
        ), file.path
    third = writing.back_up(tmp_path / "b3", earlier=tmp_path / "b2", may_link=False)
    closed = [file for file in third.files if "commitlog" in file.path and file.source]
    assert closed and {file.how for file in closed} == {manifest.SHARED}


def test_a_store_without_a_broker_is_held_while_it_is_saved(writing, tmp_path):
    writing.store.close()
    settings = small_settings(writing.store.root)

    def start(step):
        with pytest.raises(StoreLockedError):
            HandStore(settings).begin()

    writing.on_step = lambda step: start(step) if step in ("queues", "the end of the log") else None
    disk = Disk()
    source = Source(settings=settings, live=lambda: None)
    made = Picture(source, tmp_path / "b1", disk, Copier(disk, Pace(), writing.step)).take()
    assert not made.of_running_broker
    require_whole(tmp_path / "b1", writing.sent, writing.sent)


def test_a_store_that_was_killed_is_saved_as_a_start_would_find_it(writing, tmp_path):
    settings = writing.store.settings
    writing.write(200)
    writing.store.die()
    before = {path: path.read_bytes() for path in settings.store_path_root_dir.rglob("*") if path.is_file()}
    disk = Disk()
    source = Source(settings=settings, live=lambda: None)
    Picture(source, tmp_path / "b1", disk, Copier(disk, Pace())).take()
    assert before == {path: path.read_bytes() for path in before}
    require_whole(tmp_path / "b1", writing.sent, writing.sent)


def test_a_broker_that_starts_is_not_saved(writing, tmp_path):
    source = Source(settings=writing.store.settings, live=lambda: None)
    disk = Disk()
    with pytest.raises(StoreLockedError, match="a start or a repair may be under way"):
        Picture(source, tmp_path / "b1", disk, Copier(disk, Pace())).take()


def test_a_broker_that_is_started_again_ends_the_backup(writing, tmp_path):
    live, first = writing.live, writing.live()
    writing.live = lambda: live()._replace(pid=first.pid + len(writing.steps))
    with pytest.raises(StoreError, match="started again during the backup"):
        writing.back_up(tmp_path / "b1")
    with pytest.raises(StoreError, match="was interrupted"):
        manifest.read(Disk(), tmp_path / "b1")


def test_a_backup_that_the_broker_does_not_sync_for_ends(writing, tmp_path):
    flushed = writing.store.log.flushed
    writing.write(10)
    source = Source(settings=writing.store.settings, live=lambda: writing.live()._replace(flushed=flushed))
    disk = Disk()
    with pytest.raises(StoreError, match="has not synced its log for 30 s"):
        Picture(source, tmp_path / "b1", disk, Copier(disk, Pace()), sleep=lambda seconds: None).take()


def test_each_step_that_is_interrupted_leaves_no_whole_backup(writing, tmp_path):
    writing.back_up(tmp_path / "whole")
    for number, step in enumerate(list(writing.steps)):
        writing.steps.clear()

        def stop(now, step=step):
            if now == step:
                raise KeyboardInterrupt

        writing.on_step = stop
        target = tmp_path / f"b{number}"
        with pytest.raises(KeyboardInterrupt):
            writing.back_up(target)
        with pytest.raises(StoreError, match="was interrupted"):
            manifest.read(Disk(), target)
    writing.on_step = lambda step: None
    with pytest.raises(StoreError, match="is not empty"):
        writing.back_up(tmp_path / "b0")


@pytest.mark.parametrize("error", [StoreError, DiskFullError, SyncError])
def test_any_call_to_the_disk_may_fail_and_no_half_backup_counts_as_whole(writing, tmp_path, error):
    calls = []
    writing.back_up(tmp_path / "all", FailingDisk(calls.append))
    for failing in range(0, len(calls), 7):
        numbers = itertools.count()

        def fail(call, numbers=numbers, failing=failing):
            if next(numbers) == failing:
                raise error(f"{call} failed")

        target = tmp_path / f"b{failing}"
        try:
            writing.back_up(target, FailingDisk(fail))
        except StoreError:
            with pytest.raises(StoreError):
                manifest.read(Disk(), target)
        else:  # a link that failed was replaced by a copy, or a call that only tidies up
            disk = Disk()
            assert verify(disk, target, Copier(disk, Pace())).ok
        shutil.rmtree(target, ignore_errors=True)
    assert writing.store.is_writable and len(calls) > 100


def test_a_disk_without_room_is_refused_before_a_byte_is_copied(writing, tmp_path):
    class Full(Disk):
        def usage(self, path: Path) -> Usage:
            return Usage(1 << 30, (1 << 30) // 20)

    with pytest.raises(DiskFullError, match="stay free: make room, or choose a directory on another disk"):
        writing.back_up(tmp_path / "b1", Full())
    assert not list((tmp_path / "b1").rglob("*"))


def test_what_was_changed_added_or_removed_is_found(writing, tmp_path):
    made = writing.back_up(tmp_path / "b1", may_link=False)
    disk = Disk()
    log, queue, config = (
        next(tmp_path / "b1" / file.path for file in made.files if part in file.path and file.data_bytes)
        for part in ("commitlog", "consumequeue", "ends")
    )
    raw = bytearray(log.read_bytes())
    raw[100] ^= 1
    log.write_bytes(raw)
    queue.unlink()
    config.write_bytes(config.read_bytes() + b"\1")
    (tmp_path / "b1" / "store" / "more").write_bytes(b"x")
    found = verify(disk, tmp_path / "b1", Copier(disk, Pace()))
    assert not found.ok
    assert [fault.rpartition(": ")[2] for fault in sorted(found.faults)] == sorted(
        (
            "its bytes are not those that were saved",
            "is missing",
            f"has {config.stat().st_size:,} bytes, not {config.stat().st_size - 1:,}",
            "it was added later",
        ),
        key=lambda words: [fault.endswith(words) for fault in sorted(found.faults)].index(True),
    )


def test_a_manifest_of_a_newer_program_is_refused_as_one(writing, tmp_path):
    writing.back_up(tmp_path / "b1")
    path = tmp_path / "b1" / manifest.FILE_NAME
    path.write_text(path.read_text().replace('"version": 1', '"version": 2', 1))
    with pytest.raises(StoreError, match="has version 2, this program reads 1: use a newer one"):
        manifest.read(Disk(), tmp_path / "b1")


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace('"log_end": ', '"log_end": 1'),
        lambda text: text[:-9],
        lambda text: text.replace('"store/ends"', '"../ends"'),
        lambda text: "[]",
        lambda text: "{}",
    ],
)
def test_a_manifest_that_was_changed_is_refused(writing, tmp_path, change):
    writing.back_up(tmp_path / "b1")
    path = tmp_path / "b1" / manifest.FILE_NAME
    path.write_text(change(path.read_text()))
    with pytest.raises(StoreError, match="Choose another backup"):
        manifest.read(Disk(), tmp_path / "b1")
