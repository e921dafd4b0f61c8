"""What is too old goes, and what the disk has no room for; nothing goes that is still needed."""

import os
import time
from pathlib import Path

import pytest

from broker_store.engine.disk.disk import Disk, Usage
from broker_store.engine.disk.map_table import MAPS
from broker_store.errors import StoreError
from broker_store.messages import GetRequest, GetStatus, PutStatus
from tests.support.hand_store import START_MS, message

HOUR_MS = 3_600_000


class UsedDisk(Disk):
    """Says how full it is."""

    used = 0.5

    maps = 1

    def spare_maps(self):
        return self.maps

    def usage(self, path):
        return Usage(1000, round(1000 * (1 - self.used)))


@pytest.fixture
def disk():
    return UsedDisk()


def filled(open_store, disk, **changes):
    """Five full log files, synced, last touched at the clock's time."""
    store = open_store(disk, **changes)
    for number in range(44):
        store.appender.put(message(queue_id=number % 2, body=b"x" * 1600, unique=f"u{number}"))
    store.flush(), store.round()
    for file in store.log.files:
        os.utime(file.path, (START_MS / 1000, START_MS / 1000))
    assert len(store.log.files) == 5
    return store


def test_young_files_stay_and_expired_ones_go_when_the_disk_is_tight(open_store, disk, clock):
    store = filled(open_store, disk)
    disk.used = 0.8
    store.look_at_disk()
    assert len(store.log.files) == 5
    clock.advance(72 * HOUR_MS)
    store.look_at_disk()
    assert len(store.log.files) == 1 and store.is_writable


def test_expired_files_wait_for_their_hour(open_store, disk, clock):
    store = filled(
        open_store,
        disk,
        file_reserved_time=1,
        delete_when=f"{time.localtime(START_MS / 1000 + 2 * 3600).tm_hour:02d}",
    )
    clock.advance(HOUR_MS + 1)
    store.look_at_disk()
    assert len(store.log.files) == 5
    clock.advance(HOUR_MS)
    store.look_at_disk()
    assert len(store.log.files) == 1


def test_a_disk_that_is_too_full_takes_the_oldest_of_any_age_a_few_at_a_time(open_store, disk):
    store = filled(open_store, disk, delete_file_batch_max=2)
    disk.used = 0.87
    store.look_at_disk()
    assert len(store.log.files) == 3 and store.is_writable
    (flag,) = store.status.snapshot().flags
    assert flag.name == "deleted_early" and flag.cause.startswith(
        "87.0 % of the disk is used: the oldest log files"
    )
    disk.used = 0.5
    store.look_at_disk()
    assert store.status.snapshot().flags == []


def test_what_went_in_its_time_is_no_alarm(open_store, disk, clock):
    store = filled(open_store, disk)
    clock.advance(72 * HOUR_MS)
    disk.used = 0.87
    store.look_at_disk()
    assert len(store.log.files) == 1 and store.status.snapshot().flags == []


def test_unless_that_is_switched_off(open_store, disk):
    store = filled(open_store, disk, clean_file_forcibly_enable=False)
    disk.used = 0.95
    store.look_at_disk()
    assert len(store.log.files) == 5


def test_a_full_disk_refuses_sends_reads_go_on_and_it_heals_by_itself(open_store, disk):
    store = filled(open_store, disk, clean_file_forcibly_enable=False)
    disk.used = 0.95
    store.look_at_disk()
    assert store.appender.put(message()).status is PutStatus.SERVICE_NOT_AVAILABLE
    assert (store.state, store.status.snapshot().flags[0].name) == ("read_only", "disk_full")
    assert store.status.blocked_by == ("disk_full", 95, 90)
    assert store.reads.get(GetRequest("topic", 0, 0)).status is GetStatus.FOUND
    disk.used = 0.5
    store.look_at_disk()
    assert store.appender.put(message()).ok and store.state == "running" and store.status.blocked_by is None


def test_the_thresholds_count_before_each_new_file(open_store, disk):
    store = open_store(disk)
    disk.used = 0.95
    statuses = {store.appender.put(message(body=b"x" * 3000)).status for _ in range(10)}
    assert statuses == {PutStatus.PUT_OK, PutStatus.SERVICE_NOT_AVAILABLE} and len(store.log.files) == 1
    assert store.status.blocked_by == ("no_room", 95, 90)


def test_minimum_offsets_files_of_queues_and_of_the_index_follow_the_log(open_store, disk):
    store = open_store(disk)
    for number in range(200):
        store.appender.put(message(queue_id=number % 2, body=b"x" * 600, unique=f"u{number}"))
    store.flush(), store.round()
    assert store.cleaning.delete_expired(any_age=True, most=5) == 5
    for queue_id in (0, 1):
        low = store.reads.min_offset("topic", queue_id)
        assert store.reads.read_units("topic", queue_id, low, 1)[0].log_offset >= store.log.minimum
        queue = store.queue_table.find("topic", queue_id)
        assert queue.files[0].base // 20 <= low < queue.files[0].end // 20 and len(
            store.disk.list_names(queue.directory)
        ) == len(queue.files)
    assert len(store.disk.list_names(store.root / "index")) == len(store.index.files) < 4
    found = [number for number in range(200) if store.reads.query_keys("topic", f"u{number}", 1).records]
    assert found == list(range(200 - len(found), 200))
    assert store.reads.records.record_at(0) is None


def test_the_minimum_is_the_same_after_a_start(open_store, disk):
    store = filled(open_store, disk)
    store.cleaning.delete_expired(any_age=True, most=2)
    before = [(store.reads.min_offset("topic", q), store.reads.max_offset("topic", q)) for q in (0, 1)]
    for end in (store.close, None):
        end() if end else store.die()
        store = open_store(disk)
        assert [
            (store.reads.min_offset("topic", q), store.reads.max_offset("topic", q)) for q in (0, 1)
        ] == before


def test_a_queue_whose_messages_all_went_keeps_its_numbers(open_store, disk):
    store = open_store(disk)
    for _ in range(7):
        store.appender.put(message("quiet"))
    for _ in range(30):
        store.appender.put(message(body=b"x" * 1600))
    store.flush(), store.round()
    store.cleaning.delete_expired(any_age=True)
    assert (store.reads.min_offset("quiet", 0), store.reads.max_offset("quiet", 0)) == (7, 7)
    assert store.reads.get(GetRequest("quiet", 0, 3)).status is GetStatus.OFFSET_TOO_SMALL
    store.close()
    store = open_store(disk)
    assert store.appender.put(message("quiet")).queue_offset == 7


def test_what_no_round_has_brought_to_the_disk_stays(open_store, disk):
    store = open_store(disk)
    for _ in range(30):
        store.appender.put(message(body=b"x" * 1600))
    store.flush()
    assert store.cleaning.delete_expired(any_age=True) == 0
    store.round()
    assert store.cleaning.delete_expired(any_age=True) > 0


def test_a_file_that_cannot_be_removed_stays_in_the_tables_and_is_tried_again(open_store, disk, monkeypatch):
    store = filled(open_store, disk)
    disk.used = 0.87
    with monkeypatch.context() as patch:

        def refused(*_, **__):
            raise StoreError("not permitted")

        patch.setattr(Disk, "unlink", refused)
        store.look_at_disk()
        assert len(store.log.files) == 5 and store.is_writable
        assert [flag.name for flag in store.status.snapshot().flags] == ["cleaning_failed"]
    store.look_at_disk()
    assert len(store.log.files) == 1 and [flag.name for flag in store.status.snapshot().flags] == [
        "deleted_early"
    ]


def test_a_look_that_fails_is_no_end(open_store, disk, monkeypatch):
    store = filled(open_store, disk)

    def refused(*_):
        raise StoreError("input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(UsedDisk, "usage", refused)
        store.look_at_disk()
    assert store.worker("retention").last_error is None and store.appender.put(message()).ok


def test_at_the_limit_of_maps_only_a_queue_without_files_is_refused(open_store, disk):
    store = open_store(disk)
    assert store.appender.put(message(queue_id=0)).ok
    disk.maps = 0
    assert store.appender.put(message(queue_id=1)).status is PutStatus.CREATE_MAPPED_FILE_FAILED
    assert store.appender.put(message(queue_id=0)).ok
    store.look_at_disk()
    assert [flag.name for flag in store.status.snapshot().flags] == ["map_limit"]
    disk.maps = 1
    store.look_at_disk()
    assert not store.status.snapshot().flags
    assert store.appender.put(message(queue_id=1)).queue_offset == 0


def test_an_eighth_of_the_maps_that_the_system_allows_is_kept():
    allowed = int(Path("/proc/sys/vm/max_map_count").read_text())
    assert allowed * 7 // 8 - len(MAPS) == Disk().spare_maps()
