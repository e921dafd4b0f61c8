"""engine.timer_files: the timer log, the wheel made from it, and where a start goes on."""

import random
import shutil
from pathlib import Path

import pytest

from broker_store.check.walk import check_store
from broker_store.engine.disk.disk import Disk
from broker_store.engine.start.start_records import StartRecords
from broker_store.engine.timer.timer_files import TimerFiles, WheelEntry
from broker_store.errors import DamagedStoreError, DiskFullError, SyncError
from broker_store.formats import record, timer_check, timer_log, timer_wheel
from broker_store.formats.timer_check import TimerCheck
from broker_store.messages import Message
from tests.engine.test_golden_stores import files_of, open_store
from tests.support import stores
from tests.support.crash_states import choices, disk_of
from tests.support.failing_disk import FailingDisk
from tests.support.hand_store import Clock, HandStore, message, small_settings
from tests.support.simulated_disk import SimulatedDisk

FILE_SIZE = 4096  # 78 units and a blank
NOW_S = 1_800_000_000
SIZE = 100  # of each record


class World:
    """Timer files on a directory; record n of the log is message n of the timer topic's queue."""

    def __init__(self, root, disk=None, slots=timer_wheel.SLOTS):
        self.root, self.disk, self.slots = root, disk or Disk(), slots
        self.disk.make_directory(root)
        self.flushed = self.log_end = self.queue_minimum = 0
        self.files = self.open()

    def open(self):
        files = TimerFiles(self.disk, self.root, FILE_SIZE, lambda: self.flushed, self.slots)
        files.open(self.log_end, self.record_at, self.queue_minimum)
        return files

    def reopen(self):
        self.files.close()
        self.files = self.open()
        return self.files

    def record_at(self, log_offset):
        message = Message("rmq_sys_wheel_timer", 0, b"x", b"")
        return record.encode(message, log_offset // SIZE, log_offset, 1)

    def add(self, *seconds, magic=timer_log.DEFAULT):
        entries = [
            WheelEntry(NOW_S + second, magic, NOW_S * 1000, self.log_end + SIZE * number, SIZE, 7)
            for number, second in enumerate(seconds)
        ]
        while entries:
            done, _ = self.files.append(entries)
            self.log_end += SIZE * done
            entries = entries[done:]

    def save(self, read_s=NOW_S):
        number = self.log_end // SIZE
        self.flushed = self.log_end
        self.files.save(TimerCheck(read_s * 1000, self.files.log_end, number, number), self.log_end)
        self.files.step(0)

    def chain(self, second):
        """The log offsets of a slot's units, oldest first."""
        slot = self.files.slot(NOW_S + second)
        found, position = [], timer_log.NONE if slot is None else slot.last
        while position != timer_log.NONE and (unit := self.files.unit(position)) is not None:
            assert unit.slot_ms == (NOW_S + second) * 1000
            found.append(unit.log_offset // SIZE)
            position = unit.previous
        return found[::-1]


@pytest.fixture
def world(tmp_path):
    made = World(tmp_path / "store")
    yield made
    made.files.close()


def test_a_store_without_timer_messages_has_no_timer_files(world):
    world.files.step(0)
    world.files.close()
    assert list(world.root.iterdir()) == []


def test_units_of_a_second_are_a_chain_over_many_files(world):
    world.add(*(number % 3 for number in range(400)))
    for second in range(3):
        assert world.chain(second) == list(range(second, 400, 3))
        slot = world.files.slot(NOW_S + second)
        assert slot.count == len(range(second, 400, 3)) and slot.first == second * timer_log.SIZE
    names = sorted(path.name for path in (world.root / "timerlog").iterdir())
    assert names == [f"{base:020d}" for base in range(0, 6 * FILE_SIZE, FILE_SIZE)]
    assert world.files.slot(NOW_S + 3) is None


def test_a_start_makes_the_wheel_from_the_log(world):
    world.add(*(number % 5 for number in range(200)))
    world.add(2, magic=timer_log.DEFAULT | timer_log.DELETE)
    world.save()
    slots = [world.files.slot(NOW_S + second) for second in range(5)]
    content = (world.root / "timerwheel").read_bytes()
    assert world.reopen().pending(NOW_S) == [
        (NOW_S + second, 39 if second == 2 else 40) for second in range(5)
    ]
    (world.root / "timerwheel").unlink()
    world.reopen()
    assert [world.files.slot(NOW_S + second) for second in range(5)] == slots
    assert (world.root / "timerwheel").read_bytes() == content
    by_topic, by_hour = world.files.count_from(NOW_S + 1)
    assert by_topic == {7: 160} and by_hour == {NOW_S // 3600 * 3_600_000: 160}


def test_what_was_appended_after_the_saved_numbers_is_cut_and_taken_from_the_queue_again(world):
    world.add(1, 2, 1)
    world.save()
    world.add(*[1] * 100)
    files = world.reopen()
    assert (files.queue_offset, files.log_end, world.chain(1), files.taken_again_before) == (
        3,
        3 * timer_log.SIZE,
        [0, 2],
        0,
    )
    assert len(list((world.root / "timerlog").iterdir())) == 1
    world.log_end = 3 * SIZE
    world.add(1)
    assert world.chain(1) == [0, 2, 3]


def test_numbers_wait_until_the_log_is_on_the_disk(world):
    world.add(1)
    world.files.save(TimerCheck(1000, world.files.log_end, 1, 1), world.log_end)
    world.files.step(0)
    assert world.files.check == TimerCheck()
    world.flushed = world.log_end
    world.files.step(0)
    assert world.files.check.queue_offset == 1
    assert timer_check.decode((world.root / "config" / "timercheck").read_bytes()) == world.files.check


class Meanwhile(int):
    """A log offset at whose comparison the loop does something else."""

    def __new__(cls, value, act):
        made = super().__new__(cls, value)
        made.act = act
        return made

    def __le__(self, other):
        self.act()
        return int(self) <= other

    def __gt__(self, other):
        self.act()
        return int(self) > other


def test_numbers_that_are_dropped_while_the_worker_compares_them_let_no_later_ones_be_written(world):
    world.add(*range(20))

    def save(number, act=None):
        at = number * SIZE
        world.files.save(TimerCheck(1000, 0, number, number), at if act is None else Meanwhile(at, act))

    save(1, act=lambda: save(17))
    for number in range(2, 17):  # as many as may wait
        save(number)
    world.flushed = SIZE
    world.files.step(0)
    assert world.files.check.queue_offset == 1, "the commit log is on the disk up to message 1 only"
    world.flushed = 17 * SIZE
    world.files.step(0)
    assert world.files.check.queue_offset == 17


def test_units_whose_messages_the_log_lost_are_cut(world):
    world.add(1, 2, 3)
    world.save()
    world.log_end -= SIZE
    files = world.reopen()
    assert (files.log_end, files.queue_offset) == (2 * timer_log.SIZE, 2)
    assert world.chain(3) == []


def test_of_apaches_numbers_the_last_unit_says_how_far_the_queue_was_read(world):
    world.add(1, 2, 3)
    apaches = TimerCheck(NOW_S * 1000, timer_log.SIZE, 3, 3)
    (world.root / "config").mkdir()
    (world.root / "config" / "timercheck").write_bytes(timer_check.encode(apaches).ljust(4096, b"\0"))
    files = world.reopen()
    assert (files.queue_offset, files.log_end, world.chain(3)) == (3, 3 * timer_log.SIZE, [2])
    # It may have noted less than it did; then it goes on where it noted, as it does itself.
    (world.root / "config" / "timercheck").write_bytes(
        timer_check.encode(apaches._replace(master_queue_offset=2)).ljust(4096, b"\0")
    )
    assert world.reopen().queue_offset == 2


def test_a_timer_log_that_is_lost_is_made_again_from_the_queue(world):
    world.add(1, 2, 3)
    world.save(NOW_S + 2)
    world.files.close()
    shutil.rmtree(world.root / "timerlog")
    files = world.reopen()
    assert (files.queue_offset, files.log_end, files.taken_again_before) == (0, 0, 3)
    assert files.pending(NOW_S + 2) == []


@pytest.mark.parametrize("left", [None, b"", b"x" * 20])
def test_units_without_a_note_of_how_far_they_were_delivered_are_named(world, left):
    """What was delivered came again, and no word was said."""
    world.add(1, 2, 3)
    world.save(NOW_S + 2)
    world.files.close()
    assert not world.reopen().lacks_check
    path = world.root / "config" / "timercheck"
    path.unlink() if left is None else path.write_bytes(left)
    assert world.reopen().lacks_check


@pytest.mark.parametrize("start", ["noted", "not known"])
def test_a_start_says_that_the_note_is_missing_where_a_stop_must_have_left_it(tmp_path, start):
    root = tmp_path / "store"

    def opened():
        records = StartRecords(tmp_path / "recoveries", root) if start == "noted" else None
        return HandStore(small_settings(root), records=records).begin()

    store = opened()
    stored = store.appender.put(message(timer_log.TIMER_TOPIC, 0))
    store.timer_files.append([WheelEntry(NOW_S, 1, NOW_S * 1000 - 5_000, stored.log_offset, 100, 1)])
    store.close()
    (root / "config" / "timercheck").unlink(missing_ok=True)
    again = opened()
    found = [
        finding["what"]
        for finding in again.report.as_dict()["findings"]
        if finding["file"] == "config/timercheck"
    ]
    assert [what.startswith("is missing or empty, though each stop writes it") for what in found] == [
        True
    ] * (start == "noted")
    again.close()
    # The unit names no real timer message, which the check of what tests leave would find
    shutil.rmtree(root)


def test_a_timer_log_that_lost_its_first_file_is_made_again_from_the_queue(world):
    """As after retention it began with its second file, and 78 messages never came."""
    world.add(*range(1, 101))
    world.save()
    world.files.close()
    (world.root / "timerlog" / f"{0:020d}").unlink()
    files = world.reopen()
    assert (files.queue_offset, files.log_end, files.taken_again_before) == (0, 0, 100)


def test_a_timer_log_whose_first_file_retention_removed_goes_on(world):
    world.add(*range(1, 101))
    world.save()
    world.files.delete_before(78 * SIZE)
    world.queue_minimum = 78
    world.reopen()
    assert (world.files.queue_offset, world.files.taken_again_before, world.chain(79), world.chain(100)) == (
        100,
        0,
        [78],
        [99],
    )


def test_a_timer_log_file_with_the_content_of_another_ends_the_log(world):
    world.add(*range(1, 101))
    world.save()
    world.files.close()
    first, second = sorted((world.root / "timerlog").iterdir())
    shutil.copy(first, second)
    files = world.reopen()
    assert (files.queue_offset, files.log_end, files.taken_again_before) == (78, FILE_SIZE, 100)
    assert (world.chain(78), world.chain(79)) == ([77], [])


@pytest.mark.parametrize("at", [0, 4, 12, 13, 33, 39, 51])
def test_a_unit_that_is_damaged_ends_the_log(world, at):
    world.add(*[1] * 5)
    world.save()
    path = world.root / "timerlog" / f"{0:020d}"
    content = bytearray(path.read_bytes())
    content[3 * timer_log.SIZE : 3 * timer_log.SIZE + max(at, 16)] = bytes(max(at, 16))
    path.write_bytes(content)
    files = world.reopen()
    assert world.chain(1)[:3] == [0, 1, 2]
    if at < 36:  # what it says of its message is zero; after that nothing shows it
        assert (files.log_end, files.queue_offset, files.taken_again_before) == (3 * timer_log.SIZE, 3, 5)


def test_files_whose_messages_are_gone_are_removed_and_chains_end_there(world):
    world.add(*[1] * 200)
    world.files.delete_before(77 * SIZE)
    assert len(world.chain(1)) == 200
    world.files.delete_before(78 * SIZE)
    assert world.chain(1) == list(range(78, 200))
    world.files.delete_before(10_000 * SIZE)
    assert len(world.chain(1)) == 200 - 2 * 78
    world.save()
    world.queue_minimum = 2 * 78
    world.reopen()
    assert len(world.chain(1)) == 200 - 2 * 78


def test_a_second_of_two_weeks_later_takes_over_the_slot(tmp_path):
    world = World(tmp_path / "store", slots=128)
    world.add(1, 2)
    world.add(129)
    assert world.files.slot(NOW_S + 1) is None and world.chain(129) == [2]
    world.save()
    world.reopen()
    assert world.files.slot(NOW_S + 1) is None and world.chain(129) == [2] and world.chain(2) == [1]


def test_the_messages_of_a_range_of_seconds_are_counted_around_the_ring(tmp_path):
    world = World(tmp_path / "store", slots=128)
    assert world.files.count_between(NOW_S, NOW_S + 128) == 0, "there is no file"
    world.add(*range(128), 5, 5)
    world.add(5, magic=timer_log.DEFAULT | timer_log.DELETE)
    for begin, end in ((0, 5), (5, 6), (6, 128), (100, 128), (0, 128), (7, 7)):
        expected = end - begin + (1 if begin <= 5 < end else 0)
        assert world.files.count_between(NOW_S + begin, NOW_S + end) == expected, (begin, end)
    world.add(129)
    assert world.files.count_between(NOW_S, NOW_S + 4) == 3, "its slot is that of another second now"


def test_the_first_second_of_a_range_that_holds_messages_is_found_around_the_ring(tmp_path):
    world = World(tmp_path / "store", slots=1024)

    def first(begin, end):
        return world.files.first_held(NOW_S + begin, NOW_S + end) - NOW_S

    assert first(0, 1024) == 1024, "there is no file"
    held = [3, 4, 300, 1000]
    world.add(*held)
    for begin in range(0, 1024, 7):
        for end in (begin, begin + 1, 300, 301, 1024):
            expected = min((second for second in held if begin <= second < end), default=max(begin, end))
            assert first(begin, max(begin, end)) == expected, (begin, end)
    world.add(3 + 1024)
    assert first(0, 1024) == 4, "that slot is of another second now"


def test_a_full_disk_changes_nothing(tmp_path):
    disk = SimulatedDisk(lambda: 0)
    world = World(tmp_path / "store", disk, slots=128)
    world.add(*[1] * 78)
    before = world.files.log_end, world.chain(1)
    disk.free = 0
    with pytest.raises(DiskFullError):
        world.add(1)
    assert (world.files.log_end, world.chain(1)) == before
    disk.free = 1 << 30
    world.add(1)
    assert world.chain(1) == list(range(79))


@pytest.mark.parametrize("call", ["create", "allocate"])
def test_numbers_that_find_no_room_are_written_when_there_is_some(tmp_path, call):
    failing = ""

    def on_call(name):
        if name == failing:
            raise DiskFullError(f"no room, {name}")

    world = World(tmp_path / "store", FailingDisk(on_call), slots=128)
    world.add(1, 2)
    failing = call
    world.save()
    world.files.step(0)
    assert world.files.check == TimerCheck() and not (world.root / timer_check.PATH).exists()
    failing = ""
    world.files.step(0)
    assert world.files.check.queue_offset == 2
    world.add(3)
    failing = call  # the file has its blocks
    world.save()
    assert world.files.check.queue_offset == 3
    assert world.reopen().queue_offset == 3
    world.files.close()


def test_newer_numbers_replace_those_that_found_no_room(tmp_path):
    is_full = True

    def on_call(name):
        if is_full and name == "allocate":
            raise DiskFullError("no room")

    world = World(tmp_path / "store", FailingDisk(on_call), slots=128)
    world.files.save(TimerCheck(1), 0)
    world.files.step(0)
    world.files.save(TimerCheck(2), 0)
    world.files.step(0)
    is_full = False
    world.files.step(0)
    assert world.files.check == TimerCheck(2)
    world.files.close()


def test_a_sync_of_the_numbers_that_fails_is_still_final(tmp_path):
    def on_call(name):
        if name == "sync":
            raise SyncError("injected")

    world = World(tmp_path / "store", FailingDisk(on_call), slots=128)
    world.files.save(TimerCheck(1), 0)
    with pytest.raises(SyncError):
        world.files.step(0)
    world.files.close()


@pytest.mark.parametrize("call", ["create", "allocate"])
@pytest.mark.parametrize("before", [0, 78], ids=["first file", "next file"])
def test_a_file_of_the_timer_log_that_got_no_blocks_is_made_again(tmp_path, call, before):
    is_full = False

    def on_call(name):
        if is_full and name == call:
            raise DiskFullError(f"no room, {name}")

    world = World(tmp_path / "store", FailingDisk(on_call), slots=128)
    world.add(*[1] * before)
    is_full = True
    for _ in range(2):
        with pytest.raises(DiskFullError):
            world.add(1)
    assert world.chain(1) == list(range(before))
    is_full = False
    world.add(1)
    assert world.chain(1) == list(range(before + 1))
    world.files.close()


@pytest.mark.quick(1)
@pytest.mark.parametrize("seed", range(6))
def test_whatever_a_power_cut_leaves_each_message_stands_on_the_wheel_once(seed):
    rng = random.Random(seed)
    clock = Clock()
    points = []
    disk = SimulatedDisk(clock)
    world = World(Path("/data/store"), disk, slots=128)
    disk.on_event = lambda what: points.append(
        (disk.crash_point(what), world.flushed, world.log_end, world.files.check)
    )
    for _ in range(12):
        world.add(*(rng.randrange(100) for _ in range(rng.randrange(60))))
        disk.event("appended")
        if rng.random() < 0.6:
            world.save()
        if rng.random() < 0.2:
            disk.kill()
            world.reopen()
            world.log_end = world.files.queue_offset * SIZE
    opened = 0
    for point, flushed, log_end, check in rng.sample(points, 25):
        for choice in choices(point, rng, 4):
            after = World.__new__(World)
            after.root, after.disk, after.slots = world.root, disk_of(point, choice, clock), 128
            after.queue_minimum, after.flushed = 0, rng.choice((flushed, log_end))
            after.log_end = after.flushed
            after.files = after.open()
            on_wheel = sorted(number for second in range(100) for number in after.chain(second))
            assert on_wheel == list(range(after.files.queue_offset)), (seed, point.what, choice)
            assert (
                after.files.check.queue_offset >= check.queue_offset and after.files.taken_again_before == 0
            )
            # It goes on, and starts once more.
            after.log_end = after.files.queue_offset * SIZE
            after.add(*(rng.randrange(100) for _ in range(30)))
            after.save()
            after.reopen()
            assert sorted(number for second in range(100) for number in after.chain(second)) == list(
                range(len(on_wheel) + 30)
            )
            opened += 1
    assert opened > 40


def test_a_wheel_of_another_length_is_named(world):
    (world.root / "timerwheel").write_bytes(bytes(64))
    with pytest.raises(
        DamagedStoreError,
        match="timerwheel: has 64 bytes, expected 38707200 \\(1209600 slots of 32 bytes; no setting "
        "changes that\\)",
    ):
        world.open()


@pytest.mark.parametrize("name", ["broker-dir", "golden-clean"])
def test_a_real_brokers_timer_files_are_opened_without_a_changed_byte(name, tmp_path):
    root = stores.unpack(name, tmp_path, timer=True)
    before = files_of(root)
    size = len(before[f"timerlog/{0:020d}"])
    with open_store(name, root, mappedFileSizeTimerLog=size) as store:
        files = store.timer_files
        assert (
            files.queue_offset == store.reads.max_offset("rmq_sys_wheel_timer", 0) == files.check.queue_offset
        )
        assert files.log_end == files.check.log_flushed == files.queue_offset * timer_log.SIZE
        assert files.pending(files.check.read_ms // 1000) == []
        assert len(files.pending(1)) == {"broker-dir": 2, "golden-clean": 4}[name]
    assert files_of(root) == before
    assert check_store(root).findings == []
