"""broker.pop.revive, horizon and positions: over a store in memory, with timer and crashes."""

import itertools
import re

import pytest

from broker_store.broker.deleted_groups import DeletedGroups
from broker_store.broker.groups import Groups
from broker_store.broker.offsets import Offsets
from broker_store.broker.pop.earlier_pops import EarlierPops
from broker_store.broker.pop.others import PopsOfOthers
from broker_store.broker.pop.positions import PopPositions
from broker_store.broker.pop.revive import GRACE_MS, MAX_REVIVED_PER_STEP, UNREADABLE_RETRY_MS, Revive
from broker_store.broker.pop.revive_log import ReviveLog
from broker_store.broker.pop.stored_records import MAX_UNSAVED_MS
from broker_store.broker.timer import Timer
from broker_store.broker.topics import TopicConfig, Topics
from broker_store.formats import pop_records, properties
from broker_store.formats.pop_records import REVIVE_GROUP, PopCheckpoint, PopKey
from broker_store.formats.timer_log import TIMER_TOPIC
from broker_store.messages import GetResult, GetStatus, Message, PutStatus
from tests.support import stores
from tests.support.memory_store import MemoryStore

LOG = "rmq_sys_REVIVE_LOG_DefaultCluster"
ORDER_LOG = "rmq_sys_POP_ORDER_LOG_DefaultCluster"
RETRY = "%RETRY%CG_TopicX"
START_MS = 1_800_000_000_300


class World:
    """A store with a topic of messages, and the parts that bring popped messages back."""

    def __init__(self, messages: int = 0, *, sync_flush: bool = False, version: int = 1):
        self.now_ms, self.version = START_MS, version
        self.store = MemoryStore(lambda: self.now_ms, sync_flush=sync_flush)
        self.topics = Topics(cluster="DefaultCluster", broker="broker-a", clock=lambda: self.now_ms)
        self.topics.put(TopicConfig("TopicX", 4, 4))
        self.groups = Groups(clock=lambda: self.now_ms)
        self.groups.find_or_create("CG")
        self.saved = None
        for number in range(messages):
            self.store.put(Message("TopicX", 1, b"m%d" % number, b"KEYS\x01k\x02"))
        self.begin()

    def begin(self) -> None:
        clock = lambda: self.now_ms  # noqa: E731
        self.timer = Timer(self.store, clock=clock)
        self.timer.start([LOG])
        self.offsets = Offsets(clock=clock, log_end=lambda: self.store.wrote)
        if self.saved is not None:
            self.offsets.load(self.saved)
            self.offsets.forget_deleted(self.store.tombstones.before)
        self.positions = PopPositions(self.store, self.offsets, DeletedGroups(self.store))
        self.positions.restore(LOG, 8, ORDER_LOG, lambda topic: self.topics.get(topic) is not None)
        self.others = PopsOfOthers("broker-a")
        self.log = ReviveLog(
            self.store,
            self.timer.admission,
            topic=LOG,
            queues=8,
            clock=clock,
            host=lambda: (b"\x7f\0\0\1", 1),
        )
        self.revive = Revive(
            self.store, self.timer, self.positions, self.log, self.topics, self.groups, clock=clock,
            others=self.others, version=self.version,
        )  # fmt: skip
        self.revived = []
        self.revive.on_revived = self.revived.append
        self.revive.start(self.offsets.query)

    def save(self) -> None:
        self.positions.settle(self.store.flushed)
        self.saved = self.offsets.picture()().decode()

    def crash(self, *, timer_saved: bool = False) -> None:
        """Start again after a kill: memory is gone, and files are as they were saved."""
        if timer_saved:
            self.timer.capture()
            self.store.timer_files.step(0)
        self.store.timer_files.close()
        self.store.begin()
        self.begin()

    def pop(self, start: int, count: int, *, invisible_ms: int = 10_000, queue: int = 0) -> PopKey:
        key = PopKey("TopicX", "CG", 1, start, self.now_ms, "broker-a")
        checkpoint = PopCheckpoint(key, invisible_ms, tuple(range(count)))
        put = self.log.put_checkpoint(checkpoint, queue, start + count)
        assert put.ok
        if self.offsets.query("CG", "TopicX", 1) is None:
            self.offsets.commit("CG", "TopicX", 1, start)
        self.positions.move(("CG", "TopicX", 1), start + count, put.log_offset, put.log_end)
        return key

    def ack(self, key: PopKey, *offsets: int, invisible_ms: int = 10_000, queue: int = 0) -> None:
        assert self.log.put_ack(key, offsets, queue, key.pop_ms + invisible_ms).ok

    def run(self, ms: int, step_ms: int = 100) -> None:
        until_ms = self.now_ms + ms
        while self.now_ms < until_ms:
            self.now_ms = min(until_ms, self.now_ms + step_ms)
            for number in range(20):
                due = {part.step(self.now_ms) for part in (self.timer, self.revive)}
                if self.now_ms not in due and number >= 3:  # what one appends is work for the other
                    break

    def again(self, topic: str = RETRY) -> list[bytes]:
        return [stored.body for stored in self.store.messages(topic, 0)]


def is_done(revive: Revive) -> bool:
    """True if all of the revive log is read, and no pop checkpoint is open."""
    reads, topic = revive._store.reads, revive._log.topic
    return all(
        not queue.in_hand and queue.read == reads.max_offset(topic, queue.queue_id)
        for queue in revive._queues
    )


def test_messages_come_again_half_a_second_after_their_time():
    world = World(3)
    key = world.pop(0, 3)
    world.ack(key, 1)
    world.run(10_000 + GRACE_MS - 100)
    assert world.again() == []
    world.run(100)
    assert world.again() == [b"m0", b"m2"]
    stored = world.store.messages(RETRY, 0)[0]
    assert stored.properties == {"KEYS": "k", "1ST_POP_TIME": str(START_MS)}
    assert (stored.reconsume_times, stored.queue_id) == (1, 0)
    assert [each[:5] for each in world.revived] == [("TopicX", "CG", RETRY, 1, 2)] * 2


def test_records_of_the_broker_never_come_again():
    world = World(3)
    topic = "rmq_sys_REVIVE_LOG_DefaultCluster"
    world.topics.put(TopicConfig(topic, 1, 1))
    world.store.put(Message(topic, 0, b"r"))
    key = PopKey(topic, "CG", 0, 0, world.now_ms, "broker-a")
    assert world.log.put_checkpoint(PopCheckpoint(key, 1_000, (0,)), 0).ok
    world.run(5_000)
    assert world.revive.counts["dropped"] == 1 and world.topics.get(f"%RETRY%CG_{topic}") is None


def test_acks_are_counted_and_finish_a_checkpoint_before_its_time():
    world = World(3)
    key = world.pop(0, 3)
    world.ack(key, 0, 2)
    world.ack(key, 1)
    world.ack(key, 1)
    world.run(10_400)
    counts = world.revive.counts
    assert (counts["acknowledged"], counts["revived"]) == (3, 0) and is_done(world.revive)


def test_what_comes_again_is_acknowledged_in_the_revive_log():
    world = World(3)
    key = world.pop(0, 3, queue=5)
    world.ack(key, 0, queue=5)
    world.run(11_000)
    own = world.store.messages(LOG, 5)[2:]
    assert [pop_records.decode_ack(stored.body) for stored in own] == [(key, (1, 2))]
    world.run(1_000)
    assert world.offsets.query(REVIVE_GROUP, LOG, 5) == 2


def test_the_committed_offset_is_that_of_the_last_finished_record():
    world = World(3)
    world.pop(0, 1)
    world.run(5_000)
    late = world.pop(1, 1)
    world.run(5_600)
    assert world.again() == [b"m0"]
    # Record 0 is the first pop checkpoint, 1 the broker's acknowledgement; the second checkpoint waits.
    assert world.offsets.query(REVIVE_GROUP, LOG, 0) == 1
    world.run(3_500)
    assert world.store.max_offset(LOG, 0) == 3 and world.offsets.query(REVIVE_GROUP, LOG, 0) == 1
    world.ack(late, 1)
    world.run(2_000)
    assert world.offsets.query(REVIVE_GROUP, LOG, 0) == world.store.max_offset(LOG, 0) - 1 == 3


@pytest.mark.parametrize("saves", range(8))
def test_a_crash_at_any_save_brings_nothing_twice_and_loses_nothing(saves):
    """Offsets and timer are saved before some of the events, in all eight combinations."""
    before_revive, after_revive, timer_saved = (bool(saves >> bit & 1) for bit in range(3))
    world = World(4)
    world.save()
    first = world.pop(0, 2)
    world.ack(first, 0)
    world.pop(2, 2)
    if before_revive:
        world.save()
    world.crash(timer_saved=timer_saved)
    assert world.positions.next_offset("CG", "TopicX", 1) == 4
    world.run(11_000)
    assert world.again() == [b"m1", b"m2", b"m3"]
    if after_revive:
        world.save()
    world.crash(timer_saved=timer_saved)
    world.run(20_000)
    assert world.again() == [b"m1", b"m2", b"m3"]


def test_a_copy_after_the_position_of_a_checkpoint_finished_long_before_brings_nothing():
    """Kills came so soon after each other that the timer delivered a copy in one run, the position was not
    saved, and the next start remembered only what was newer than the timer's time."""
    world = World(1)
    world.pop(0, 1)
    world.run(11_000)
    world.run(1_000)
    world.save()
    assert world.offsets.query(REVIVE_GROUP, LOG, 0) == 1
    world.crash()
    world.run(5_000)
    assert world.store.max_offset(LOG, 0) == 3  # with the copy
    world.crash(timer_saved=True)
    world.run(20_000)
    assert world.again() == [b"m0"]


def test_a_checkpoint_that_the_timer_delivers_twice_is_finished_once():
    world = World(2)
    key = world.pop(0, 2)
    world.ack(key, 1)
    world.run(12_000)
    assert world.again() == [b"m0"]
    world.save()
    for stored in world.store.messages(LOG, 0)[:2]:
        world.store.put(Message(LOG, 0, stored.body, stored.raw_properties))
    world.run(3_000)
    world.save()
    records = world.store.max_offset(LOG, 0)
    world.crash()  # the timer's position is not saved
    world.run(10_000)
    assert world.store.max_offset(LOG, 0) > records
    assert world.again() == [b"m0"]


class Killed(Exception):
    """Stands for kill -9 at this point."""


@pytest.mark.parametrize("crashes", [1, 3])
def test_a_kill_between_a_message_and_its_acknowledgement_brings_it_once(crashes):
    world = World(5)
    world.save()
    key = world.pop(0, 4)
    world.ack(key, 1)
    world.pop(4, 1)

    def killed(*_):
        raise Killed

    world.log.put_ack = killed
    with pytest.raises(Killed):
        world.run(12_000)
    assert world.again() == [b"m0"]
    for _ in range(crashes):
        world.crash()
        world.revive.step(world.now_ms)
    world.run(20_000)
    assert sorted(world.again()) == [b"m0", b"m2", b"m3", b"m4"]


def test_equal_messages_are_told_apart_by_their_number():
    world = World()
    for _ in range(3):
        world.store.put(Message("TopicX", 1, b"same"))
    world.save()
    for start in range(3):
        world.pop(start, 1)

    def killed(*_):
        raise Killed

    world.log.put_ack = killed
    with pytest.raises(Killed):
        world.run(12_000)
    world.crash()
    world.run(20_000)
    assert world.again() == [b"same"] * 3


def test_nothing_comes_before_the_backlog_of_a_start_is_read():
    """Acknowledgements of the broker itself stand far after their pop checkpoints, after several kills."""
    world = World(3)
    world.save()
    world.pop(0, 1)
    world.run(12_000)
    assert world.again() == [b"m0"]
    for _ in range(5):
        world.crash()  # the timer's position is never saved, nor the offset of the revive log
        for _ in range(30):
            world.timer.step(world.now_ms)
            world.revive.step(world.now_ms)
        world.now_ms += 10_000
    world.run(10_000)
    assert world.again() == [b"m0"]


def test_positions_are_found_again_where_the_last_pop_left_them():
    world = World(10)
    world.save()
    world.pop(0, 2)
    world.save()
    world.pop(2, 3)
    world.pop(5, 1, invisible_ms=500)  # goes to the revive log at once
    world.crash()
    assert world.positions.next_offset("CG", "TopicX", 1) == 6


def test_a_reset_that_was_saved_is_not_undone_by_older_pops():
    world = World(10)
    world.pop(0, 5)
    world.run(1_000)
    world.offsets.reset("CG", "TopicX", 1, 1)
    world.positions.drop("CG", "TopicX", 1)
    assert world.offsets.take_reset("CG", "TopicX", 1) == 1
    world.save()
    world.crash()
    assert world.positions.next_offset("CG", "TopicX", 1) == 1


def test_a_changed_invisible_time_moves_no_position():
    world = World(10)
    world.save()
    world.pop(0, 2)
    key = PopKey("TopicX", "CG", 1, 7, world.now_ms, "broker-a")
    world.log.put_checkpoint(PopCheckpoint(key, 60_000, (0,)), 0)
    world.crash()
    assert world.positions.next_offset("CG", "TopicX", 1) == 2


def test_an_offset_is_committed_when_its_checkpoint_is_synced():
    world = World(sync_flush=True)
    world.offsets.commit("CG", "TopicX", 1, 0)
    world.pop(0, 1)
    world.positions.settle(world.store.flushed)
    assert world.offsets.query("CG", "TopicX", 1) == 0
    assert world.positions.next_offset("CG", "TopicX", 1) == 1
    world.store.sync()
    world.positions.settle(world.store.flushed)
    assert world.offsets.query("CG", "TopicX", 1) == 1


def test_a_deleted_group_gets_no_offset_again():
    world = World(3)
    world.pop(0, 2)
    world.offsets.forget_group("CG")
    world.positions.settle(world.store.flushed)
    assert world.offsets.query("CG", "TopicX", 1) is None


@pytest.mark.parametrize("gone", ["topic", "group"])
def test_what_has_no_topic_or_group_any_more_is_skipped(gone):
    world = World(2)
    world.pop(0, 2)
    if gone == "topic":
        world.topics.delete("TopicX")
    else:
        world.groups.delete("CG")
    world.run(12_000)
    assert world.revive.counts["dropped"] == 2 and world.topics.get(RETRY) is None


def make_again(world: World, messages: int) -> None:
    """Delete the topic, and create it with new messages."""
    world.topics.delete("TopicX")
    world.store.delete_topic("TopicX")
    world.offsets.forget_topic("TopicX")
    world.positions.drop_topic("TopicX")
    world.log.in_flight.forget_topic("TopicX")
    world.topics.put(TopicConfig("TopicX", 4, 4))
    for number in range(messages):
        world.store.put(Message("TopicX", 1, b"n%d" % number))


@pytest.mark.parametrize("is_killed", [False, True])
def test_pops_of_a_deleted_topic_bring_back_no_message_of_a_new_one(is_killed):
    world = World(4)
    world.save()
    for start in range(4):
        world.pop(start, 1, queue=start)
    make_again(world, 6)
    assert world.log.in_flight.invisible == 0
    world.now_ms += 500
    key = world.pop(2, 4, invisible_ms=5_000)
    world.ack(key, 2, invisible_ms=5_000)
    if is_killed:
        world.crash()
    world.run(12_000)
    assert world.again() == [b"n3", b"n4", b"n5"] and is_done(world.revive)
    assert world.revive.counts["dropped"] == 4


@pytest.mark.parametrize("is_saved", [False, True])
def test_positions_of_a_deleted_topic_do_not_come_back_after_a_kill(is_saved):
    world = World(4)
    world.save()
    world.pop(0, 4)
    if is_saved:
        world.save()
    make_again(world, 6)
    world.crash()
    assert world.positions.next_offset("CG", "TopicX", 1) is None
    world.pop(0, 2)
    world.crash()
    assert world.positions.next_offset("CG", "TopicX", 1) == 2


def test_pops_of_a_deleted_topic_that_a_start_finds_are_not_invisible():
    world = World(4)
    world.save()
    world.pop(0, 1)
    world.run(9_500)
    world.pop(1, 1)
    world.save()
    make_again(world, 6)
    world.crash(timer_saved=True)
    search = EarlierPops(
        world.store, world.timer, world.positions, world.log.in_flight, world.others, topic=LOG
    )
    search.start()
    while search.step(world.now_ms) is not None:
        pass
    world.revive.step(world.now_ms)
    assert sum(len(queue.in_hand) for queue in world.revive._queues) == 1
    assert world.log.in_flight.invisible == 0 and world.log.in_flight.earlier_doubt == ""


def test_a_start_does_not_take_a_message_of_a_new_topic_for_one_that_came_again():
    world = World()
    world.store.put(Message("TopicX", 1, b"same", born_timestamp=7))
    world.save()
    world.pop(0, 1, invisible_ms=1_000)
    make_again(world, 0)
    world.store.put(Message("TopicX", 1, b"same", born_timestamp=7))
    world.topics.ensure_pop_retry(RETRY)
    world.run(900)
    world.store.put(
        Message(RETRY, 0, b"same", b"1ST_POP_TIME\x01%d\x02" % START_MS, reconsume_times=1, born_timestamp=7)
    )
    world.crash(timer_saved=True)
    assert world.revive._owed == []


def test_messages_that_are_gone_are_dropped_and_the_others_come():
    world = World(3)
    world.pop(0, 8)
    world.run(12_000)
    assert world.again() == [b"m0", b"m1", b"m2"] and world.revive.counts["dropped"] == 5


def test_what_cannot_be_stored_comes_later():
    world = World(2)
    world.pop(0, 2)
    world.run(10_000)
    world.store.refuse = PutStatus.SERVICE_NOT_AVAILABLE
    world.run(3_000)
    assert world.again() == [] and world.revive.counts["failures"] > 1
    world.store.refuse = None
    world.run(1_000)
    assert world.again() == [b"m0", b"m1"]


def test_a_place_that_cannot_be_read_does_not_hold_up_the_others():
    world = World(4)
    get, broken = world.store.get, {0}

    def failing(request, done=None):
        if request.topic == "TopicX" and request.offset in broken:
            return GetResult(GetStatus.READ_FAILED, request.offset, 0, 4)
        return get(request, done)

    world.store.get = failing
    world.pop(0, 1)
    world.pop(1, 2)
    world.run(12_000)
    assert world.again() == [b"m1", b"m2"] and world.revive.counts["failures"] == 1
    broken.clear()
    world.run(UNREADABLE_RETRY_MS)
    assert world.again() == [b"m1", b"m2", b"m0"]


def test_a_damaged_message_is_dropped():
    world = World(3)
    get = world.store.get

    def damaged(request, done=None):
        if request.topic == "TopicX" and request.offset == 1:
            return GetResult(GetStatus.MESSAGE_DAMAGED, 1, 0, 3)
        if request.topic == "TopicX" and request.offset == 0:
            request.max_count = 1
        return get(request, done)

    world.store.get = damaged
    world.pop(0, 3)
    world.run(12_000)
    assert world.again() == [b"m0", b"m2"] and world.revive.counts["dropped"] == 1


def test_cold_reads():
    world = World(3)
    world.pop(0, 3)
    world.store.cold = True
    ready = []
    world.revive.on_ready = lambda: ready.append(True)
    for _ in range(150):
        world.run(100)
        world.store.finish_cold_reads()
    assert world.again() == [b"m0", b"m1", b"m2"] and ready


def test_wrong_records_are_skipped_and_counted():
    world = World(1)
    for tag in ("ck", "ack", "bAck", "other"):
        world.store.put(Message(LOG, 0, b"{}", properties.encode({"TAGS": tag})))
    world.store.put(Message(LOG, 0, b"x"))
    world.pop(0, 1)
    world.run(12_000)
    assert world.revive.counts["invalid"] == 5 and world.again() == [b"m0"]


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"UNIQ_KEY": "TopicX@1@0@CG@5@broker-a@ck"}, "unique key of a record of the revive log is not that"),
        (
            {"TIMER_DELIVER_MS": str(START_MS)},
            "the end of the invisible time is not that of the delivery time",
        ),
        ({"TIMER_DELIVER_MS": str(START_MS + 9_000)}, "the end of the invisible time is not that of the"),
        ({"TAGS": "kc"}, "tag of a record of the revive log"),
    ],
)
def test_a_record_whose_body_contradicts_its_properties_is_skipped_with_a_sentence(changes, cause, caplog):
    world = World(2)
    key = PopKey("TopicX", "CG", 1, 0, START_MS, "broker-a")
    body = pop_records.encode_checkpoint(PopCheckpoint(key, 3_600_000 + 10_000, (0,)))
    values = {
        "TAGS": "ck",
        "UNIQ_KEY": pop_records.checkpoint_id(key),
        "TIMER_DELIVER_MS": str(START_MS + 3_600_000 + 9_000),
    }
    world.store.put(Message(LOG, 3, body, properties.encode(values | changes)))
    world.pop(1, 1)
    world.run(12_000)
    assert world.again() == [b"m1"] and world.revive.counts["invalid"] == 1
    (line,) = caplog.messages
    assert line.startswith(f"record 0 of {LOG}/3, at ") and cause in line
    assert "commitlog/00000000000000000000, byte " in line and "set the offset of the group back" in line


@pytest.mark.parametrize("tag", ["ack", "bAck"])
def test_an_acknowledgement_whose_body_contradicts_its_key_has_no_effect(tag, caplog):
    world = World(2)
    key = world.pop(0, 2)
    if tag == "ack":
        body, of = pop_records.encode_ack(key, 0), pop_records.ack_id(key, 1)
    else:
        body, of = pop_records.encode_batch_ack(key, [0, 1]), pop_records.batch_ack_id(key, [1, 2])
    world.store.put(Message(LOG, 0, body, properties.encode({"TAGS": tag, "UNIQ_KEY": of})))
    world.run(12_000)
    assert world.again() == [b"m0", b"m1"] and world.revive.counts["invalid"] == 1
    assert "its messages come again" in caplog.text


def test_a_damaged_record_is_skipped_with_a_sentence(caplog):
    world = World(2)
    world.pop(0, 1)
    world.pop(1, 1)
    get = world.store.get

    def damaged(request, done=None):
        if request.topic == LOG and request.offset == 0:
            return GetResult(GetStatus.MESSAGE_DAMAGED, 0, 0, 2)
        return get(request, done)

    world.store.get = damaged
    world.run(12_000)
    assert world.again() == [b"m1"] and world.revive.counts["invalid"] == 1
    (line,) = caplog.messages
    assert line.startswith(f"record 0 of {LOG}/0, at ") and "it is damaged" in line


def test_few_of_many_foreign_records_have_a_sentence(caplog):
    world = World(1)
    for number in range(100):
        world.store.put(Message(LOG, number % 8, b"{}", b"TAGS\x01ck\x02"))
    world.run(2_000)
    assert world.revive.counts["invalid"] == 100
    assert len(caplog.messages) == 20 and caplog.messages[-1].endswith("Further ones are only counted.")


@pytest.mark.parametrize("text", ["x", "²", "-1", "0", "7", "9" * 18])
def test_a_pop_that_states_an_impossible_position_moves_none_and_has_a_sentence(text, caplog):
    world = World(3)
    key = PopKey("TopicX", "CG", 1, 0, START_MS, "broker-a")
    values = {
        "TAGS": "ck",
        "UNIQ_KEY": pop_records.checkpoint_id(key),
        "POP_NEXT": text,
        "TIMER_DELIVER_MS": str(START_MS - 1_000),
    }
    body = pop_records.encode_checkpoint(PopCheckpoint(key, 0, (0,)))
    world.store.put(Message(LOG, 0, body, properties.encode(values)))
    world.crash()
    assert world.offsets.query("CG", "TopicX", 1) is None
    assert "POP_NEXT of a pop checkpoint" in caplog.text and "again before their time" in caplog.text


def test_a_step_is_bounded():
    world = World(200)
    for start in range(0, 200, 20):
        world.pop(start, 20)
    world.now_ms += 12_000
    for _ in range(200):
        world.timer.step(world.now_ms)
    counts = [0]
    while world.revive.step(world.now_ms) == world.now_ms:
        counts.append(world.store.max_offset(RETRY, 0))
    assert counts[-1] == 200 and len(counts) >= 4
    assert max(after - before for before, after in itertools.pairwise(counts)) < 2 * MAX_REVIVED_PER_STEP


def test_an_acknowledgement_that_the_timer_still_has_is_waited_for():
    """The timer is stopped over the end of the invisible time, as by a pause of the loop."""
    world = World(1)
    key = world.pop(0, 1)
    world.run(9_900)
    world.ack(key, 0)
    world.now_ms += 5_000
    for _ in range(50):
        world.revive.step(world.now_ms)
    assert world.again() == []
    world.run(1_000)
    assert world.again() == [] and world.revive.counts["acknowledged"] == 1


def test_with_sync_flush_an_acknowledgement_that_is_not_synced_is_waited_for():
    world = World(sync_flush=True)
    world.store.put(Message("TopicX", 1, b"m0"))
    key = world.pop(0, 1)
    world.store.sync()
    for _ in range(99):
        world.run(100)
        world.store.sync()
    world.ack(key, 0)
    world.run(3_000)
    assert world.again() == []
    for _ in range(20):
        world.store.sync()
        world.run(100)
    assert world.again() == [] and world.revive.counts["acknowledged"] == 1


def test_messages_of_retry_topics_go_back_to_them():
    world = World(1)
    world.topics.ensure_pop_retry("%RETRY%CG+TopicX")
    world.store.put(Message("%RETRY%CG+TopicX", 0, b"old", b"1ST_POP_TIME\x01123\x02", reconsume_times=4))
    key = PopKey("%RETRY%CG+TopicX", "CG", 0, 0, world.now_ms, "broker-a")
    world.log.put_checkpoint(PopCheckpoint(key, 5_000, (0,)), 0)
    world.run(6_000)
    _, again = world.store.messages("%RETRY%CG+TopicX", 0)
    assert (again.reconsume_times, again.properties["1ST_POP_TIME"]) == (5, "123")


def test_a_checkpoint_that_apache_stored_again_is_another_one():
    world = World(1)
    world.save()
    key = world.pop(0, 1)
    world.ack(key, 0)
    world.run(11_000)
    world.save()
    world.crash()
    world.log.put_checkpoint(PopCheckpoint(key, 20_000, (0,), 0, "1"), 0)
    world.run(21_000)
    assert world.again() == [b"m0"]


def test_version_2():
    world = World(1, version=2)
    world.pop(0, 1)
    world.run(11_000)
    assert world.again("%RETRY%CG+TopicX") == [b"m0"]


def test_properties_without_room_for_the_time_of_the_pop():
    world = World()
    full = b"a\x01" + b"x" * (properties.MAX_BYTES - 3) + b"\x02"
    world.store.put(Message("TopicX", 1, b"m0", full))
    world.pop(0, 1)
    world.run(11_000)
    (stored,) = world.store.messages(RETRY, 0)
    assert stored.raw_properties == full


def test_the_revive_log_of_apaches_broker_is_read_on(tmp_path):
    """The golden store has pop checkpoints that its broker had finished, and its offset of the log."""
    root = stores.unpack("golden-clean", tmp_path)
    offsets = Offsets(clock=lambda: START_MS)
    offsets.load((root / "config" / "consumerOffset.json").read_text())
    committed = {
        queue: offset
        for group, topic, queues in offsets.everything()
        if group == REVIVE_GROUP and topic == LOG
        for queue, offset in queues.items()
    }
    assert committed == {0: 0, 1: 2}
    assert offsets.pops_included is None


def test_timer_topic_is_where_records_wait():
    world = World(1)
    world.pop(0, 1)
    assert world.store.max_offset(TIMER_TOPIC, 0) == 1 and world.store.max_offset(LOG, 0) == 0


def test_records_after_the_end_that_a_power_cut_left_are_not_included():
    """Before the next save a kill would have hidden them from a start."""
    world = World(3)
    world.pop(0, 1)
    world.save()
    world.saved = re.sub(r'("popsIncluded":)\d+', r"\g<1>999999999", world.saved)
    world.crash()
    assert world.offsets.dirty
    world.save()
    world.pop(1, 2)
    world.crash()
    assert world.positions.next_offset("CG", "TopicX", 1) == 3


def test_a_start_without_pops_before_reads_what_is_newer_than_ten_minutes():
    """Of a store whose offsets were last saved days ago it read the whole timer topic."""
    world = World(3)
    world.save()
    for _ in range(50):
        world.store.put(Message(TIMER_TOPIC, 0, b"old"))
    world.now_ms += 2 * MAX_UNSAVED_MS
    world.pop(0, 2)
    counted = []
    get = world.store.reads.get
    world.store.reads.get = lambda request, *done: counted.append(get(request, *done)) or counted[-1]
    offsets = Offsets(clock=lambda: world.now_ms)
    offsets.load(world.saved)
    offsets.commit("CG", "TopicX", 1, 0)
    assert (
        PopPositions(world.store, offsets, DeletedGroups(world.store)).restore(
            LOG, 8, ORDER_LOG, lambda topic: True
        )
        == 1
    )
    assert offsets.query("CG", "TopicX", 1) == 2
    assert sum(result.count for result in counted) < 10
