"""Files of idle queues are unmapped at the limit, and mapped again when they are used."""

import numpy as np
import pytest

from broker_store.engine.queue.queue_maps import MIN_FILES, default_limit
from broker_store.kernels import context as c
from broker_store.messages import PutStatus
from tests.support.hand_store import message


@pytest.fixture
def store(open_store):
    """With room for four files of queues beside those that are mapped at the start."""
    opened = open_store(max_mapped_files=1)
    opened.appender.put(message("first"))
    maps = opened._parts.queues.maps
    maps.limit = opened.disk.mapped_files() + 3
    return opened


def mapped(store) -> list[str]:
    return [
        queue.topic for queue in store.queue_table if any(file.region is not None for file in queue.files)
    ]


def synced(store, clock) -> None:
    store.flush(), store.round()
    clock.advance(10)


def test_the_queue_whose_last_message_is_oldest_is_unmapped_and_nothing_is_lost(store, clock):
    synced(store, clock)
    for topic in ("second", "third", "fourth", "first"):
        assert store.appender.put(message(topic)).ok
        synced(store, clock)
    assert store.appender.put(message("fifth")).ok
    assert sorted(mapped(store)) == ["fifth"]  # some at once: a scan serves several
    assert store._parts.queues.maps.unmapped == 4
    for topic in ("second", "third", "fourth"):
        assert store.appender.put(message(topic)).queue_offset == 1
        assert len(store.reads.read_units(topic, 0, 0, 10)) == 2
    assert store.appender.put(message("first")).queue_offset == 2


def test_a_queue_with_units_that_are_not_on_the_disk_stays_mapped(store):
    for topic in ("second", "third", "fourth", "fifth"):
        assert store.appender.put(message(topic)).ok
    assert sorted(mapped(store)) == ["fifth", "first", "fourth", "second", "third"]
    assert store._parts.queues.maps.unmapped == 0


def test_sends_that_can_wait_wait_until_others_are_synced(store, clock):
    files = store.appender.new_files
    for topic in ("second", "third", "fourth"):
        assert store.appender.put(message(topic)).ok
    files.until_s = 1e18
    assert store.appender.put(message("fifth")).status is PutStatus.PUT_OFF
    assert files.waits_for_sync and store.worker("round-flusher").nudges == 1
    assert store.appender.put(message("first")).ok  # its file is mapped
    store.flush()
    store.worker("round-flusher").run(clock())  # before its time: it was pressed
    files.waits_for_sync = False
    assert store.appender.put(message("fifth")).ok


def test_a_queue_that_is_unmapped_keeps_its_blocks_and_takes_no_more_of_them(open_store, clock):
    store = open_store(mapped_file_size_consume_queue=1 << 20)
    store.appender.put(message())
    synced(store, clock)
    queue = store.queue_table.find("topic", 0)
    before = queue.files[0].allocated
    for _ in range(20):
        queue.unmap_idle()
        assert store.appender.put(message()).ok
        synced(store, clock)
    assert queue.files[0].allocated == before and queue.maximum == 21


def test_units_of_an_unmapped_queue_are_asked_about_before_they_are_read(open_store, clock):
    store = open_store()
    store.appender.put(message())
    synced(store, clock)
    queue = store.queue_table.find("topic", 0)
    queue.unmap_idle()
    assert queue.row[c.Q_HOT] == 1 and queue.row[c.Q_FILE_ADDRESS] == 0
    assert store.appender.put(message()).ok
    assert queue.row[c.Q_HOT] == 1


def test_at_the_limit_a_read_maps_no_file_of_a_queue(open_store, clock):
    store = open_store()
    for topic in ("first", "second"):
        store.appender.put(message(topic))
    synced(store, clock)
    first = store.queue_table.find("first", 0)
    first.unmap_idle()
    store._parts.queues.maps.limit = store.disk.mapped_files()
    store.appender.put(message("second"))  # not on the disk
    assert not first.enter_for_reading(0)
    assert len(store.reads.read_units("first", 0, 0, 10)) == 1
    synced(store, clock)
    assert first.enter_for_reading(0) and mapped(store) == ["first"]


def test_a_start_leaves_no_queue_mapped_that_it_compared(open_store, clock):
    store = open_store()
    for number in range(6):
        store.appender.put(message(f"topic-{number}"))
    store.close()
    assert mapped(open_store()) == []


def test_the_scan_finds_the_oldest_first(open_store, clock):
    store = open_store()
    for topic in ("b", "a", "c"):
        store.appender.put(message(topic))
        synced(store, clock)
    store.appender.put(message("d"))
    found = store._parts.context.idle_queues(2)
    assert [store.queue_table.by_row(address).topic for address in found] == ["b", "a"]
    assert np.array(found).dtype == np.int64


def test_the_limit_follows_the_memory():
    assert default_limit(512 << 20) == 2_048
    assert default_limit(16 << 30) == 65_536
    assert default_limit(64 << 20) == MIN_FILES
