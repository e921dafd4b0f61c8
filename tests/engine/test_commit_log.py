"""The log: files that follow one another, blanks between them, blocks and files made ahead."""

import threading

import pytest

from broker_store.engine.disk.region import Region
from broker_store.engine.log import commit_log
from broker_store.errors import DiskFullError
from broker_store.formats import record
from broker_store.messages import PutStatus
from tests.support.hand_store import message
from tests.support.reference import walk_log


def test_a_record_that_does_not_fit_begins_the_next_file_behind_a_blank(open_store):
    store = open_store()
    first = store.appender.put(message(body=b"x" * 9000))
    second = store.appender.put(message(body=b"x" * 9000))
    assert second.log_offset == 16384
    head = record.read_head(store.disk.read_file(store.log.files[0].path), first.log_end)
    assert head.is_blank and head.total_size == 16384 - first.log_end


def test_eight_bytes_are_always_left_for_the_blank(open_store):
    store = open_store()
    room = 16384 - record.BLANK_BYTES - store.appender.put(message(body=b"")).log_end * 2
    result = store.appender.put(message(body=b"x" * room))
    assert result.log_end == 16384 - record.BLANK_BYTES
    assert store.appender.put(message(body=b"")).log_offset == 16384
    assert (
        walk_log([(file.base, store.disk.read_file(file.path)) for file in store.log.files]).end
        == store.log.wrote
    )


def test_the_next_file_is_made_ahead_and_used(open_store):
    store = open_store()
    store.appender.put(message(body=b"x" * 9000))
    store.prepare()
    prepared = store.log.prepared
    assert prepared.base == 16384 and store.disk.list_names(store.log.directory) == [
        f"{0:020d}",
        f"{16384:020d}",
    ]
    store.appender.put(message(body=b"x" * 9000))
    assert store.log.current is prepared and store.log.prepared is None


def test_pages_are_touched_a_step_at_a_time_and_on_into_the_next_file(open_store, monkeypatch):
    monkeypatch.setattr(commit_log, "POPULATE_AHEAD", 12288)
    monkeypatch.setattr(commit_log, "POPULATE_STEP", 1024)
    store = open_store()
    store.appender.put(message(body=b"x" * 9000))
    wrote = store.status.positions().wrote
    assert store.log.prepare() and store.log.current.populated == wrote + 1024
    while store.log.prepare():
        pass
    assert store.log.current.populated == 16384
    assert 12288 - 1024 < store.log.prepared.populated + 16384 - wrote <= 12288


def test_a_start_waits_for_no_page_to_be_touched(open_store, monkeypatch):
    touched = []
    monkeypatch.setattr(Region, "populate", lambda region, *_: touched.append(region.path.name))
    store = open_store()
    assert touched == []
    store.prepare()
    assert touched == [f"{0:020d}"]


def test_beside_syncs_of_single_groups_a_step_is_shorter_and_pages_come_singly(open_store, monkeypatch):
    asked = []
    monkeypatch.setattr(Region, "fault_singly", lambda region: asked.append(region.path))

    def told() -> list[str]:
        return [path.name for path in asked if path.parent.name == "commitlog"]

    monkeypatch.setattr(commit_log, "SYNCED_POPULATE_STEP", 512)
    open_store().close()
    assert told() == []
    store = open_store(flush_disk_type="SYNC_FLUSH")
    assert store.log.prepare() and store.log.current.populated == 512
    store.appender.put(message(body=b"x" * 9000))
    store.prepare()
    assert told() == [f"{0:020d}", f"{16384:020d}"]
    assert [path.parent.parent.name for path in asked if path.parent.name != "commitlog"] == ["topic"], (
        "and the file of the new queue"
    )


def test_a_file_made_ahead_and_not_used_is_found_empty_and_made_again(open_store):
    store = open_store()
    store.appender.put(message(body=b"x" * 9000))
    store.prepare()
    store.close()
    store = open_store()
    assert store.status.positions().wrote < 16384 and len(store.log.files) == 1
    assert store.appender.put(message(body=b"x" * 9000)).log_offset == 16384


def test_full_files_that_are_on_disk_are_unmapped_and_still_read(open_store, monkeypatch):
    closed = []
    monkeypatch.setattr(Region, "close", lambda region: closed.append(region.path))
    store = open_store(mapped_file_size_commit_log=4096)
    for number in range(20):
        store.appender.put(message(body=b"%d" % number * 700))
        store.flush()
    assert [file.region is not None for file in store.log.files][:5] == [False] * 5
    assert len(closed) < 5  # not on the loop: that takes long
    store.prepare()
    assert closed[:5] == [file.path for file in store.log.files][:5]
    assert all(
        store.reads.records.record_at(found.log_offset)
        for found in walk_log([(f.base, store.disk.read_file(f.path)) for f in store.log.files]).records
    )


def test_when_no_file_can_be_made_the_log_is_unchanged_and_goes_on_when_there_is_room(
    open_store, monkeypatch
):
    store = open_store()
    good = [store.appender.put(message(body=b"x" * 5000)) for _ in range(3)]
    before = store.disk.read_file(store.log.files[0].path)
    with monkeypatch.context() as patch:

        def full(*_):
            raise DiskFullError("no room")

        patch.setattr(Region, "allocate", full)
        for _ in range(2):
            assert store.appender.put(message(body=b"x" * 5000)).status is PutStatus.SERVICE_NOT_AVAILABLE
        assert [flag.name for flag in store.status.snapshot().flags] == ["no_room"]
        assert store.disk.list_names(store.log.directory) == [f"{0:020d}"]
        assert store.disk.read_file(store.log.files[0].path) == before
        assert all(store.reads.records.record_at(result.log_offset) for result in good)
    assert store.appender.put(message()).status is PutStatus.SERVICE_NOT_AVAILABLE
    store.look_at_disk()
    assert store.status.snapshot().flags == []
    result = store.appender.put(message(body=b"x" * 5000))
    assert (result.status, result.queue_offset, result.log_offset) == (PutStatus.PUT_OK, 3, 16384)


@pytest.mark.parametrize("where", ["queue", "index"])
def test_a_message_without_room_for_its_unit_or_keys_leaves_no_trace(open_store, monkeypatch, where):
    store = open_store()
    store.appender.put(message(queue_id=0, keys=("k",)))
    wrote = store.log.wrote
    part = store.queue_table.find("topic", 0).directory.parent if where == "queue" else store.root / "index"
    real = Region.allocate

    def full(region, offset, length):
        if region.path.is_relative_to(part):
            raise DiskFullError("no room")
        real(region, offset, length)

    with monkeypatch.context() as patch:
        patch.setattr(Region, "allocate", full)
        keys = tuple(f"k{number}" for number in range(70)) if where == "index" else ()
        assert store.appender.put(message(queue_id=1, keys=keys)).status is PutStatus.SERVICE_NOT_AVAILABLE
        assert store.log.wrote == wrote and store.reads.max_offset("topic", 1) == 0
    store.look_at_disk()
    assert store.appender.put(message(queue_id=1)).queue_offset == 0


def test_a_sync_waits_for_one_that_another_thread_began(open_store, monkeypatch):
    """A file that the second had synced to its end could be unmapped under the first."""
    store = open_store(mapped_file_size_commit_log=4096)
    end = store.appender.put(message(body=b"x" * 2000)).log_end
    real = Region.sync
    ranges, within = [], []

    def sync(region, offset, length):
        within.append(offset)
        if not others and region is store.log.files[0].region:
            # A thread that syncs the log now cannot have it: the deletion of a topic on the loop, beside the
            # flusher.
            other = threading.Thread(target=store.log.sync, args=(end,))
            others.append(other)
            other.start()
            other.join(0.3)
            assert other.is_alive() and len(within) == 1
        ranges.append((offset, length))
        real(region, offset, length)

    others = []
    monkeypatch.setattr(Region, "sync", sync)
    store.log.sync(end)
    others[0].join()
    assert ranges == [(0, end)] and store.log.flushed == end
