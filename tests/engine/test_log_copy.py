"""A slave's log: bytes of a master's log, in pieces of any size, make the same store; bad ones end the copy."""

import random
import re

import pytest

from broker_store.engine.disk.disk import Disk
from broker_store.errors import DamagedStoreError, DiskFullError, StoreError
from broker_store.formats import index_file
from broker_store.formats.index_file import FIRST_ENTRY
from broker_store.messages import GetRequest, PutStatus
from tests.support.hand_store import Clock, HandStore, findings, message, opened, small_settings


@pytest.fixture
def master(tmp_path):
    with opened(tmp_path / "master") as store:
        yield store


@pytest.fixture
def slave(tmp_path):
    with opened(tmp_path / "slave", broker_role="SLAVE") as store:
        store.copy.begin()
        yield store


def fill(store, count, first=0):
    for number in range(first, first + count):
        result = store.appender.put(
            message(queue_id=number % 3, body=bytes([number % 251]) * (number % 90), keys=(f"key{number}",))
        )
        assert result.status is PutStatus.PUT_OK
    store.clock.advance(1)


def log_of(store) -> bytes:
    """The log up to its end."""
    return b"".join(
        store.reads.records.log_bytes(offset, store.log.file_size)
        for offset in range(store.log.minimum, store.log.wrote, store.log.file_size)
    )


def index_of(store) -> list[bytes]:
    """The files of the index that have entries, oldest first. Their names are times of their creation."""
    contents = [path.read_bytes() for path in sorted((store.root / "index").iterdir())]
    return [content for content in contents if index_file.decode_header(content).count > FIRST_ENTRY]


def feed(copy, data: bytes, sizes) -> None:
    """Receive `data` in pieces of these sizes."""
    while data:
        room = copy.room()
        count = min(len(room), next(sizes), len(data))
        room[:count] = data[:count]
        del room
        copy.took(count)
        data = data[count:]


def sizes_of(most, seed=0):
    chance = random.Random(seed)
    while True:
        yield chance.randint(1, most)


@pytest.mark.parametrize("most", [1, 3, 100, 5_000, 1 << 20])
def test_pieces_of_any_size_make_the_same_store(most, master, slave):
    fill(master, 40 if most < 4 else 400)
    feed(slave.copy, log_of(master), sizes_of(most))
    assert slave.log.wrote == slave.confirmed == master.log.wrote
    assert log_of(slave) == log_of(master)
    for queue_id in range(3):
        assert slave.reads.max_offset("topic", queue_id) == master.reads.max_offset("topic", queue_id)
        request = GetRequest("topic", queue_id, 0, max_count=32)
        assert slave.reads.get(request) == master.reads.get(request)
    assert slave.reads.query_keys("topic", "key7", 32) == master.reads.query_keys("topic", "key7", 32)


def test_a_slave_that_closes_in_order_is_sound_and_goes_on(master, slave, tmp_path):
    fill(master, 100)
    data = log_of(master)
    feed(slave.copy, data[:-10], sizes_of(1_000))
    whole = slave.log.wrote
    assert len(data) - 200 < whole < len(data) - 10
    slave.copy.end()  # the record of which the rest has not come
    slave.close()
    assert findings(slave.root) == []
    with opened(slave.root, broker_role="SLAVE") as again:
        assert again.copy.begin() == whole
        feed(again.copy, data[whole:], sizes_of(50))
        assert log_of(again) == data


@pytest.mark.parametrize("seed", range(6))
def test_a_killed_slave_goes_on_with_its_last_whole_record(seed, master, tmp_path):
    fill(master, 300)
    data, chance = log_of(master), random.Random(seed)
    slave = HandStore(small_settings(tmp_path / "killed", broker_role="SLAVE")).begin()
    slave.copy.begin()
    cut = chance.randrange(1, len(data))
    feed(slave.copy, data[:cut], sizes_of(700, seed))
    whole = slave.log.wrote
    slave.die()
    with opened(slave.root, broker_role="SLAVE") as again:
        assert again.copy.begin() == whole
        feed(again.copy, data[whole:], sizes_of(700, seed))
        assert log_of(again) == data
        assert [again.reads.max_offset("topic", n) for n in range(3)] == [100] * 3


def fill_with_keys(store, count, chance):
    """Messages with 0 to 5 entries in the index, stored up to 3 s after one another."""
    for _ in range(count):
        keys = tuple(f"key{chance.randrange(50)}" for _ in range(chance.randrange(4)))
        unique, tag = chance.choice([None, "U1", "U2"]), chance.choice([None, "red"])
        assert store.appender.put(message(keys=keys, unique=unique, tag=tag)).ok
        store.clock.advance(chance.randrange(3_000))


@pytest.mark.parametrize("end", ["none", "in order", "kill -9"])
@pytest.mark.parametrize("seed", range(4))
def test_the_index_of_a_slave_is_the_masters_byte_for_byte(seed, end, master, tmp_path):
    """Headers, slots and entries follow from the log: each time in them is the store time of a record."""
    chance, root = random.Random(seed), tmp_path / "slave"
    clock = Clock(master.clock() + 3_600_000)  # that of the slave counts nowhere
    slave = HandStore(small_settings(root, broker_role="SLAVE"), clock).begin()
    for _ in range(3):
        begin = slave.copy.begin()
        fill_with_keys(master, 150, chance)
        data = log_of(master)
        at = len(data) if end == "none" else chance.randrange(begin, len(data))
        feed(slave.copy, data[begin:at], sizes_of(700, seed))
        if end == "in order":
            slave.copy.end()
            slave.close()
        elif end == "kill -9":
            slave.die()
        if end != "none":
            slave = HandStore(small_settings(root, broker_role="SLAVE"), clock).begin()
            begin = slave.copy.begin()
            feed(slave.copy, data[begin:], sizes_of(700, seed))
        assert slave.log.wrote == master.log.wrote
        assert index_of(slave) == index_of(master) and len(index_of(master)) > 3
        slave.copy.end()
    slave.close()
    master.close()
    assert index_of(slave) == index_of(master)


@pytest.mark.parametrize("seed", range(3))
def test_a_master_that_was_killed_goes_on_with_the_index_of_its_slave(seed, slave, tmp_path):
    chance, root = random.Random(seed), tmp_path / "killed"
    master = HandStore(small_settings(root)).begin()
    for _ in range(3):
        begin = slave.log.wrote
        fill_with_keys(master, 150, chance)
        feed(slave.copy, log_of(master)[begin:], sizes_of(700, seed))
        master.die()
        master = HandStore(small_settings(root), master.clock).begin()
        assert index_of(slave) == index_of(master) and len(index_of(master)) > 3
    master.close()


def test_a_copy_that_begins_in_the_middle_has_the_queues_from_there_on(master, tmp_path):
    fill(master, 400)
    begin = master.log.file_size
    with opened(tmp_path / "slave", broker_role="SLAVE") as slave:
        slave.copy.begin()
        slave.copy.begin_at(begin)
        feed(slave.copy, log_of(master)[begin:], sizes_of(900))
        assert slave.log.minimum == begin and log_of(slave) == log_of(master)[begin:]
        for queue_id in range(3):
            low = slave.reads.min_offset("topic", queue_id)
            assert (
                0
                < low
                < slave.reads.max_offset("topic", queue_id)
                == master.reads.max_offset("topic", queue_id)
            )
            request = GetRequest("topic", queue_id, low, max_count=32)
            assert slave.reads.get(request).body == master.reads.get(request).body != b""
        slave.round()
    assert findings(slave.root) == []
    with opened(slave.root, broker_role="SLAVE") as again:
        assert again.copy.begin() == master.log.wrote


def test_the_first_byte_of_a_log_need_not_come(master, slave):
    fill(master, 5)
    slave.copy.pass_first_byte()
    feed(slave.copy, log_of(master)[1:], sizes_of(60))
    assert log_of(slave) == log_of(master)


def test_a_copy_begins_only_where_a_file_may(master, slave):
    with pytest.raises(DamagedStoreError, match="set mappedFileSizeCommitLog"):
        slave.copy.begin_at(16384 + 100)
    fill(master, 5)
    feed(slave.copy, log_of(master), sizes_of(100))
    with pytest.raises(DamagedStoreError, match="this log ends at"):
        slave.copy.begin_at(32768)


@pytest.mark.parametrize("at", [0, 4, 8, 28, 100])
def test_a_record_that_is_not_sound_is_not_shown_and_ends_the_copy(at, master, slave):
    fill(master, 30)
    data = bytearray(log_of(master))
    begin = master.reads.read_units("topic", 0, 5, 1)[0][0]
    data[begin + at] ^= 0x55
    with pytest.raises(DamagedStoreError, match=re.escape(f"for {begin:,} of the log is no sound record")):
        feed(slave.copy, bytes(data), sizes_of(40))
    assert slave.log.wrote == slave.confirmed == begin
    slave.copy.end()
    slave.copy.begin()
    feed(slave.copy, log_of(master)[begin:], sizes_of(40))
    assert log_of(slave) == log_of(master)


def test_with_sync_flush_records_are_shown_when_they_are_on_the_disk(master, tmp_path):
    fill(master, 9)
    with opened(tmp_path / "slave", broker_role="SLAVE", flush_disk_type="SYNC_FLUSH") as slave:
        slave.copy.begin()
        feed(slave.copy, log_of(master), sizes_of(400))
        assert slave.log.wrote == master.log.wrote and slave.reads.max_offset("topic", 0) == 0
        slave.flush()
        assert slave.confirmed == master.log.wrote and slave.reads.max_offset("topic", 0) == 3


def test_a_slave_takes_no_put(slave):
    assert slave.appender.put(message()).status is PutStatus.SERVICE_NOT_AVAILABLE


def test_without_room_for_the_next_file_the_copy_ends_and_can_go_on(master, tmp_path):
    class FullDisk(Disk):
        is_full = False

        def create_region(self, path, size):
            if self.is_full and "commitlog" in str(path):
                raise DiskFullError("no space left")
            return super().create_region(path, size)

    fill(master, 300)
    data, disk = log_of(master), FullDisk()
    with opened(tmp_path / "slave", disk=disk, broker_role="SLAVE") as slave:
        slave.copy.begin()
        disk.is_full = True
        with pytest.raises(StoreError, match="no space left"):
            feed(slave.copy, data, sizes_of(500))
        slave.copy.end()
        disk.is_full = False
        begin = slave.copy.begin()
        feed(slave.copy, data[begin:], sizes_of(500))
        assert log_of(slave) == data


# A master that waits for slaves


@pytest.fixture
def waiting(tmp_path):
    with opened(tmp_path / "waiting", Clock(), broker_role="SYNC_MASTER", slave_timeout=3_000) as store:
        yield store


def put(store):
    answers = []
    result = store.appender.put(message())
    assert result.status is PutStatus.PUT_OK
    store.confirmation.when_confirmed(result.log_end, answers.append)
    return result, answers


def test_a_put_is_confirmed_when_slaves_have_it(waiting):
    first, answers = put(waiting)
    second, more = put(waiting)
    assert answers == more == [] and waiting.reads.max_offset("topic", 0) == 0
    waiting.confirmation.copied(first.log_end)
    assert answers == [PutStatus.PUT_OK] and more == [] and waiting.reads.max_offset("topic", 0) == 1
    waiting.confirmation.copied(second.log_end)
    assert more == [PutStatus.PUT_OK] and waiting.reads.max_offset("topic", 0) == 2


def test_a_report_inside_of_a_record_confirms_the_records_before_it(waiting):
    ends = [put(waiting)[0].log_end for _ in range(300)]  # some files of the log
    for number in (0, 1, 57, 200, 299):
        before = ends[number - 1] if number else 0
        for position in (before + 1, ends[number] - 1):
            waiting.confirmation.copied(position)
            assert waiting.confirmed == before and waiting.reads.max_offset("topic", 0) == number
        waiting.confirmation.copied(ends[number])
        assert waiting.confirmed == ends[number] and waiting.reads.max_offset("topic", 0) == number + 1


def test_late_slaves_leave_a_stored_put_without_confirmation(waiting):
    result, answers = put(waiting)
    waiting.clock.advance(3_000)
    waiting.tick()
    assert answers == [PutStatus.FLUSH_SLAVE_TIMEOUT] and waiting.reads.max_offset("topic", 0) == 0
    waiting.confirmation.copied(result.log_end)
    assert waiting.reads.max_offset("topic", 0) == 1


def test_with_both_a_put_waits_for_disk_and_slaves(tmp_path):
    with opened(tmp_path / "both", broker_role="SYNC_MASTER", flush_disk_type="SYNC_FLUSH") as store:
        result, answers = put(store)
        store.confirmation.copied(result.log_end)
        assert answers == []
        store.flush()
        assert answers == [PutStatus.PUT_OK]
        result, answers = put(store)
        store.flush()
        assert answers == []
        store.confirmation.copied(result.log_end)
        assert answers == [PutStatus.PUT_OK]


def test_what_slaves_lack_is_kept_when_the_store_closes(waiting):
    _, answers = put(waiting)
    waiting.close()
    assert answers == [PutStatus.FLUSH_SLAVE_TIMEOUT] and not (waiting.root / "abort").exists()
    with opened(waiting.root) as again:
        assert again.reads.max_offset("topic", 0) == 1


def test_one_replica_is_none_to_wait_for(tmp_path):
    with opened(tmp_path / "alone", broker_role="SYNC_MASTER", in_sync_replicas=1) as store:
        assert put(store)[1] == [PutStatus.PUT_OK]


def test_missing_slaves_refuse_puts(waiting):
    waiting.set_flag("slaves_missing", "0 slaves are in step")
    assert waiting.appender.put(message()).status is PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH
    assert waiting.state == "running" and not waiting.is_writable
    waiting.clear_flag("slaves_missing")
    assert waiting.appender.put(message()).status is PutStatus.PUT_OK


def test_a_topic_that_begins_again_ends_the_copy_and_one_that_was_deleted_here_does_not(tmp_path):
    with opened(tmp_path / "master") as master, opened(tmp_path / "slave", broker_role="SLAVE") as slave:
        slave.copy.begin()
        fill(master, 30)
        feed(slave.copy, log_of(master), sizes_of(500))
        master.delete_topic("topic")
        slave.delete_topic("topic")
        begin = master.log.wrote
        fill(master, 12)
        feed(slave.copy, log_of(master)[begin:], sizes_of(500))
        assert slave.reads.max_offset("topic", 0) == 4 == master.reads.max_offset("topic", 0)
        master.delete_topic("topic")
        begin = master.log.wrote
        fill(master, 3)
        with pytest.raises(StoreError, match="deleted at the master and made again"):
            feed(slave.copy, log_of(master)[begin:], sizes_of(500))
        assert slave.reads.max_offset("topic", 0) == 4
