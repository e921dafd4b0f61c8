"""Queues: units in files of equal size, found by number, trusted no further than they are good."""

import pytest

from broker_store.errors import DamagedStoreError
from broker_store.formats import queue_unit
from broker_store.formats.java_hash import java_hash
from tests.support.hand_store import HandStore, message, small_settings


def test_units_fill_files_of_twenty_and_are_found_by_number(open_store):
    store = open_store()
    results = [store.appender.put(message(tag="a")) for _ in range(45)]
    queue = store.queue_table.find("topic", 0)
    assert [file.path.name for file in queue.files] == [f"{base:020d}" for base in (0, 400, 800)]
    assert all(store.disk.size_of(file.path) == 400 for file in queue.files)
    for number, result in enumerate(results):
        assert queue.unit(number) == queue_unit.QueueUnit(
            result.log_offset, result.log_end - result.log_offset, java_hash("a")
        )
    assert (queue.unit(45), queue.unit(-1)) == (None, None)
    assert [unit.log_offset for unit in store.reads.read_units("topic", 0, 15, 100)] == [
        result.log_offset for result in results[15:20]
    ]


def test_full_files_that_are_on_disk_are_unmapped(open_store):
    store = open_store()
    for _ in range(45):
        store.appender.put(message(body=b"x" * 1000))
    store.flush(), store.round()
    for _ in range(16):
        store.appender.put(message(body=b"x" * 1000))
    assert [file.region is not None for file in store.queue_table.find("topic", 0).files][:2] == [
        False,
        False,
    ]


def test_no_file_is_made_before_the_first_message(open_store):
    store = open_store()
    store.confirmation.watch("topic", 5)
    assert store.queue_ids("topic") == [5] and not store.disk.exists(store.root / "consumequeue/topic")
    store.appender.put(message(queue_id=5))
    assert store.disk.list_names(store.root / "consumequeue/topic/5") == [f"{0:020d}"]


def test_a_queue_that_begins_in_a_file_gets_that_file_alone(open_store):
    """It got the next one too; a start that took it away left the queue with room in a file that was gone."""
    store = open_store()
    queue = store.queue_table.open("topic", 0)
    queue.begin_at_unit(31)
    assert [file.path.name for file in queue.files] == [f"{400:020d}"]
    assert [store.appender.put(message()).queue_offset for _ in range(10)] == list(range(31, 41))
    assert [file.path.name for file in queue.files] == [f"{400:020d}", f"{800:020d}"]
    assert [queue.unit_in_files(number).is_pre_blank for number in (20, 30, 31)] == [True, True, False]


@pytest.mark.parametrize(
    ("name", "length", "says"),
    [
        (f"{400:020d}", 399, "has 399 bytes, expected 400"),
        ("notes.txt", 400, "is no file of the store"),
        (f"{0:019d}", 400, "is no file of the store"),
    ],
)
def test_a_file_that_does_not_belong_refuses_the_start_and_is_named(open_store, clock, name, length, says):
    store = open_store()
    store.appender.put(message())
    store.close()
    path = store.root / "consumequeue/topic/0" / name
    path.write_bytes(bytes(length))
    with pytest.raises(DamagedStoreError, match=f"{name}.*{says}"):
        HandStore(small_settings(store.root), clock).open()
    path.unlink()
    assert open_store().reads.max_offset("topic", 0) == 1


@pytest.mark.parametrize(
    "name",
    [
        "commitlog/00000000000000016384",
        "consumequeue/topic/0/00000000000000000400",
        "timerlog/00000000000000000000",
    ],
)
def test_a_directory_in_the_place_of_the_next_file_refuses_the_start(open_store, clock, name):
    """The file could not be made when the one before it is full."""
    store = open_store()
    store.appender.put(message())
    store.close()
    path = store.root / name
    path.mkdir(parents=True)
    with pytest.raises(DamagedStoreError, match=f"{name}: is no regular file. Move it out of the store."):
        HandStore(small_settings(store.root), clock).open()
    path.rmdir()
    assert open_store().reads.max_offset("topic", 0) == 1


@pytest.mark.parametrize(
    ("setting", "field", "size"),
    [
        ("mappedFileSizeCommitLog", "mapped_file_size_commit_log", 32768),
        ("mappedFileSizeConsumeQueue", "mapped_file_size_consume_queue", 800),
    ],
)
def test_another_file_size_refuses_the_start_with_the_name_of_the_setting(
    open_store, clock, setting, field, size
):
    store = open_store()
    store.appender.put(message())
    store.close()
    with pytest.raises(DamagedStoreError, match=f"bytes, expected {size}. Set {setting} to the file size"):
        HandStore(small_settings(store.root, **{field: size}), clock).open()


def test_a_directory_that_is_no_queue_id_refuses_the_start(open_store, clock):
    store = open_store()
    store.appender.put(message())
    store.close()
    for name in ("x", "65536"):
        (store.root / "consumequeue/topic" / name).mkdir()
        with pytest.raises(DamagedStoreError, match="is no queue id"):
            HandStore(small_settings(store.root), clock).open()
        (store.root / "consumequeue/topic" / name).rmdir()


def test_a_last_file_of_length_zero_is_removed(open_store):
    store = open_store()
    store.appender.put(message())
    store.close()
    empty = store.root / f"consumequeue/topic/0/{400:020d}"
    empty.touch()
    assert open_store().reads.max_offset("topic", 0) == 1 and not empty.exists()


def test_a_new_queue_is_made_without_a_sync_and_its_names_are_on_the_disk_before_the_checkpoint_says_so(
    open_store,
):
    store = open_store()
    store.appender.put(message(topic="first"))
    synced = []
    sync_directory = store.disk.sync_directory
    store.disk.sync_directory = lambda path: (synced.append(path), sync_directory(path))[1]
    for queue_id in range(3):
        store.appender.put(message(queue_id=queue_id))
    assert synced == []
    store.flush(), store.round()
    queues = store.root / "consumequeue"
    assert {queues, queues / "topic", *(queues / "topic" / str(queue_id) for queue_id in range(3))} <= set(
        synced
    )
    assert store.status.positions().checkpoint_position == store.log.wrote


def test_only_queues_with_something_unsynced_are_read(open_store):
    store = open_store()
    for queue_id in range(2000):
        store.confirmation.watch("idle", queue_id)
    assert store.queue_table.unsynced() == []
    store.appender.put(message(queue_id=1)), store.appender.put(message(queue_id=7))
    assert [queue.queue_id for queue in store.queue_table.unsynced()] == [1, 7]
    store.flush(), store.round()
    assert store.queue_table.unsynced() == []
    store.appender.put(message(queue_id=7))
    assert [queue.queue_id for queue in store.queue_table.unsynced()] == [7]


def test_queues_are_kept_in_order_whatever_comes_and_goes(open_store):
    store = open_store()
    for topic, queue_id in (("b", 10), ("a", 1), ("b", 2), ("b-c", 0), ("c", 0), ("b", 0), ("a", 0)):
        store.appender.put(message(topic, queue_id))
    assert store.queues() == [("a", 0), ("a", 1), ("b", 0), ("b", 2), ("b", 10), ("b-c", 0), ("c", 0)]
    store.delete_topic("b")
    assert store.queues() == [("a", 0), ("a", 1), ("b-c", 0), ("c", 0)]
    store.appender.put(message("b", 3))
    assert store.queues() == [("a", 0), ("a", 1), ("b", 3), ("b-c", 0), ("c", 0)]
