"""broker.timer: messages with a time of delivery, over a store in memory and timer files on a simulated
disk."""

import json

import pytest

from broker_store.broker.step_pacing import PAUSE_MS
from broker_store.broker.timer import MAX_DELIVERED_PER_STEP, Timer
from broker_store.broker.timer_queue import MAX_ENQUEUED_PER_STEP
from broker_store.broker.timer_request import is_timed
from broker_store.errors import DiskFullError
from broker_store.formats import properties
from broker_store.formats.timer_log import TIMER_TOPIC
from broker_store.messages import GetResult, GetStatus, Message, PutStatus
from tests.support.memory_store import MemoryStore

DAY_MS = 86_400_000
START_MS = 1_800_000_000_300  # 300 ms into a second


class World:
    def __init__(self, **options):
        self.now_ms = START_MS
        self.store = MemoryStore(lambda: self.now_ms, sync_flush=options.pop("sync_flush", False))
        self.options = options
        self.ready = []
        self.begin()

    def begin(self):
        self.timer = Timer(self.store, clock=lambda: self.now_ms, **self.options)
        self.timer.on_ready = lambda: self.ready.append(True)
        self.timer.start(["Orders"])

    def restart(self, saved=True):
        """Restart as after a stop in order, or after a kill."""
        if saved:
            self.timer.capture(ending=True)
            self.store.timer_files.step(0)
        self.store.timer_files.close()
        self.store.begin()
        self.begin()

    def send(self, body: bytes = b"x", *, key="K", topic="Orders", queue_id=3, **pairs) -> PutStatus | None:
        told = {properties.UNIQUE_KEY: key, **{name: str(value) for name, value in pairs.items()}}
        message = Message(topic, queue_id, body, properties.encode(told))
        assert is_timed(told)
        status = self.timer.admission.schedule(message, told)
        if status is None:
            assert self.store.appender.put(message).ok
        return status

    def run(self, until_ms: int | None = None) -> None:
        """Make each step at the time that the one before returned, up to a time."""
        until_ms = self.now_ms if until_ms is None else until_ms
        for _ in range(20_000):
            due_ms = self.timer.step(self.now_ms)
            if due_ms is None or due_ms > until_ms:
                break
            self.now_ms = max(self.now_ms, due_ms)
        else:
            raise AssertionError("the steps do not end")
        self.now_ms = until_ms

    def delivered(self, topic="Orders", queue_id=3):
        return self.store.messages(topic, queue_id)

    def bodies(self):
        return [message.body for message in self.delivered()]


@pytest.fixture
def world():
    return World()


# Accepting ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "out_ms"),
    [
        ({"TIMER_DELAY_SEC": 60}, START_MS + 60_000 - 300),
        ({"TIMER_DELAY_MS": 1_500}, START_MS + 1_700 - 1_000),
        ({"TIMER_DELAY_MS": 700}, START_MS - 300),  # a whole second: the slot before it
        ({"TIMER_DELIVER_MS": START_MS + 10_001}, START_MS + 9_700),
        ({"TIMER_DELIVER_MS": START_MS + 10_700}, START_MS + 9_700),
        (
            {"TIMER_DELIVER_MS": START_MS + 5, "TIMER_DELAY_MS": 9_000, "TIMER_DELAY_SEC": 20},
            START_MS + 19_700,
        ),
        ({"TIMER_DELIVER_MS": START_MS + 5, "TIMER_DELAY_MS": 9_000}, START_MS + 8_700),
    ],
)
def test_a_message_waits_in_the_timer_topic_for_its_second(world, asked, out_ms):
    assert world.send(**asked) is None
    (waiting,) = world.delivered(TIMER_TOPIC, 0)
    told = waiting.properties
    assert (int(told["TIMER_OUT_MS"]), told["REAL_TOPIC"], told["REAL_QID"]) == (out_ms, "Orders", "3")
    assert all(told[name] == str(value) for name, value in asked.items())


@pytest.mark.parametrize(
    "asked",
    [
        {"TIMER_DELAY_SEC": 0},
        {"TIMER_DELAY_MS": -5},
        {"TIMER_DELIVER_MS": START_MS},
        {"TIMER_DELIVER_MS": "+7"},
    ],
)
def test_one_whose_time_is_over_goes_to_its_topic_at_once(world, asked):
    assert world.send(**asked) is None
    (message,) = world.delivered()
    assert "TIMER_OUT_MS" not in message.properties
    assert world.send(TIMER_DEL_UNIQKEY="K", **asked) is PutStatus.WHEEL_TIMER_MSG_ILLEGAL


@pytest.mark.parametrize(
    "asked",
    [
        {"TIMER_DELAY_SEC": "soon"}, {"TIMER_DELAY_MS": "1.5"}, {"TIMER_DELIVER_MS": "9" * 19}, {"TIMER_DELIVER_MS": "1" * 4000}, {"TIMER_DELAY_SEC": "\u0661"},
        {"TIMER_DELAY_SEC": 3 * 86_400 + 1}, {"TIMER_DELAY_MS": 3 * DAY_MS + 1}, {"TIMER_DELIVER_MS": START_MS + 3 * DAY_MS + 1},
    ],
)  # fmt: skip
def test_what_is_no_time_or_too_far_ahead_is_refused(world, asked):
    assert world.send(**asked) is PutStatus.WHEEL_TIMER_MSG_ILLEGAL
    assert world.store.queues() == []


def test_the_longest_delay_is_taken(world):
    assert world.send(TIMER_DELAY_SEC=3 * 86_400) is None


def test_without_the_wheel_every_timer_message_is_refused():
    world = World(enabled=False)
    assert world.send(TIMER_DELAY_SEC=5) is PutStatus.WHEEL_TIMER_NOT_ENABLE


def test_a_crowded_second_takes_fewer_and_then_none():
    chances = iter([0.9, 0.05])
    world = World(max_per_slot=10, chance=lambda: next(chances))
    for _ in range(11):
        assert world.send(TIMER_DELAY_SEC=5) is None
        world.run()
    # One beyond ten: refused with a chance of one in ten.
    assert world.send(TIMER_DELAY_SEC=5) is None
    assert world.send(TIMER_DELAY_SEC=5) is PutStatus.WHEEL_TIMER_FLOW_CONTROL
    assert world.timer.admission.refused_for == (11, 10)
    assert world.send(TIMER_DELAY_SEC=6) is None
    world = World(max_per_slot=10, chance=lambda: 0.999)
    accepted = 0
    while world.send(TIMER_DELAY_SEC=5) is None:
        world.run()
        accepted += 1
    assert accepted == 20


def test_a_message_that_has_its_slot_does_not_ask_again(world):
    assert not is_timed({"TIMER_DELAY_SEC": "5", "TIMER_OUT_MS": "1"})
    assert not is_timed({"DELAY": "3"})


# Delivering ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "asked", [{"TIMER_DELAY_SEC": 2}, {"TIMER_DELAY_MS": 2_000}, {"TIMER_DELIVER_MS": START_MS + 2_000}]
)
def test_it_comes_at_its_millisecond_and_not_before(world, asked):
    world.send(**asked)
    world.run(START_MS + 1_999)
    assert world.delivered() == []
    world.run(START_MS + 2_000)
    (message,) = world.delivered()
    assert message.properties["TIMER_ENQUEUE_MS"] == str(START_MS - 300)
    assert message.properties["TIMER_DEQUEUE_MS"] == str(START_MS + 2_000)
    assert {"TIMER_OUT_MS", "REAL_TOPIC", "REAL_QID", *asked} <= message.properties.keys()
    world.run(START_MS + 100_000)
    assert len(world.delivered()) == 1


def test_a_message_of_apaches_that_does_not_say_when_comes_when_its_slot_is_over(world):
    told = properties.encode({"TIMER_OUT_MS": "1800000001000", "REAL_TOPIC": "Orders", "REAL_QID": "3"})
    world.store.appender.put(Message(TIMER_TOPIC, 0, b"x", told))
    world.run(1_800_000_001_999)
    assert world.delivered() == []
    world.run(1_800_000_002_000)
    assert len(world.delivered()) == 1


def test_many_of_a_second_come_in_the_order_of_their_times_and_in_pieces(world):
    for number in range(300):
        world.send(b"%d" % number, TIMER_DELIVER_MS=START_MS + 5_000 + (number * 7) % 900)
    before = len(world.store.put_calls)
    world.run(START_MS + 6_000)
    assert world.bodies() == [
        b"%d" % number for number in sorted(range(300), key=lambda number: ((number * 7) % 900, number))
    ]
    assert max(world.store.put_calls[before:]) <= MAX_DELIVERED_PER_STEP
    # After a delivery there is a short pause, so that messages that become due meanwhile are delivered
    # together.
    assert world.timer.facts().late_ms < PAUSE_MS


def test_a_step_does_no_more_than_a_bound(world):
    for number in range(1_000):
        world.send(b"%d" % number, TIMER_DELAY_SEC=1)
    reads = []
    get_records = world.store.reads.records.get_records
    world.store.get_records = lambda offsets, done: (reads.append(len(offsets)), get_records(offsets, done))[
        1
    ]
    steps = 0
    while len(world.delivered()) < 1_000:
        world.now_ms += 1 if world.timer.step(world.now_ms) != world.now_ms else 0
        steps += 1
    assert (
        max(reads) <= MAX_DELIVERED_PER_STEP
        and max(world.store.put_calls[1_000:]) <= MAX_DELIVERED_PER_STEP
        and steps > 1_000 // MAX_ENQUEUED_PER_STEP
    )


def test_what_comes_for_a_second_that_is_being_delivered_joins_it(world):
    world.send(b"first", TIMER_DELIVER_MS=1_800_000_002_100)
    world.run(1_800_000_002_100)
    world.send(b"second", TIMER_DELIVER_MS=1_800_000_002_500)
    world.run(1_800_000_002_499)
    assert world.bodies() == [b"first"]
    world.run(1_800_000_002_500)
    assert world.bodies() == [b"first", b"second"]
    world.run(1_800_000_010_000)
    assert len(world.delivered()) == 2


def test_a_second_that_is_near_is_not_read_again_and_one_that_is_far_is(world):
    loads = []
    get_records = world.store.reads.records.get_records
    world.store.get_records = lambda offsets, done: (loads.append(world.now_ms), get_records(offsets, done))[
        1
    ]
    world.send(b"near", TIMER_DELAY_SEC=5)
    world.send(b"far", TIMER_DELAY_SEC=100)
    world.run(START_MS + 100_000)
    assert world.bodies() == [b"near", b"far"]
    assert [at_ms - START_MS for at_ms in loads if at_ms < START_MS + 90_000] == [5_000]
    assert len(loads) == 3


def test_what_is_too_much_for_memory_is_read_again_and_nothing_is_late(world, monkeypatch):
    monkeypatch.setattr("broker_store.broker.loaded_slots.MAX_LOADED", 50)
    for number in range(300):
        world.send(b"%d" % number, TIMER_DELAY_MS=2_000 + number * 20)
    most = 0
    for now_ms in range(START_MS, START_MS + 9_000, 10):
        world.run(now_ms)
        most = max(most, world.timer.slots.loaded)
    assert world.bodies() == [b"%d" % number for number in range(300)]
    assert most <= 300 and world.timer.facts().late_ms <= 10
    assert world.timer.slots.loaded == 0 and world.timer.slots.in_order() == []


def test_one_that_was_read_from_the_queue_after_its_second_comes_at_once(world):
    world.send(b"late", TIMER_DELAY_MS=500)
    world.now_ms += 60_000
    world.run()
    assert world.bodies() == [b"late"]
    assert world.timer.facts().late_ms == 59_500


def test_after_a_pause_everything_that_fell_due_comes_and_what_is_not_due_waits(world):
    for second in range(1, 100):
        world.send(b"%d" % second, TIMER_DELAY_SEC=second)
    world.run()
    world.now_ms += 50_000
    world.run()
    assert world.bodies() == [b"%d" % second for second in range(1, 51)]
    world.run(START_MS + 99_000)
    assert len(world.delivered()) == 99


def test_an_arrival_is_told_only_when_all_before_it_are_on_the_wheel(world):
    assert world.timer.step(world.now_ms) is None
    arrived = []
    world.store.confirmation.arrival_listener = arrived.extend
    for _ in range(4):
        world.send(TIMER_DELAY_SEC=50)
        assert arrived == [(TIMER_TOPIC, 0)]
        # One step reads all messages and returns a much later time, so it must be notified of the next
        # message.
        assert world.timer.step(world.now_ms) > world.now_ms
        arrived.clear()
    assert world.timer.facts().waiting == 4


def test_what_the_store_refuses_is_tried_again(world):
    world.send(TIMER_DELAY_SEC=1)
    world.run()
    world.now_ms += 1_000
    world.store.refuse = PutStatus.SERVICE_NOT_AVAILABLE
    while (due_ms := world.timer.step(world.now_ms)) == world.now_ms:
        pass
    assert due_ms == world.now_ms + 100 and world.timer.counts["failures"] == 1
    world.store.refuse = None
    assert world.timer.step(world.now_ms + 99) == due_ms
    world.run(due_ms)
    assert len(world.delivered()) == 1


# The queue, the slot when it was far ahead, the message
@pytest.mark.parametrize(("seconds", "reads"), [(1, 2), (60, 3)])
def test_cold_reads_are_waited_for(world, seconds, reads):
    world.send(TIMER_DELAY_SEC=seconds)
    world.store.cold = True
    for _ in range(reads):
        while world.timer.step(world.now_ms) is not None:
            world.now_ms += 500
        assert world.store.finish_cold_reads() == 1
    assert len(world.delivered()) == 1 and len(world.ready) == reads


def test_a_read_that_failed_is_repeated_and_what_is_gone_or_damaged_is_passed_over(world):
    world.send(b"gone", TIMER_DELAY_SEC=1)
    world.send(b"here", TIMER_DELAY_SEC=1)
    get, get_records = world.store.reads.get, world.store.reads.records.get_records
    world.store.get = lambda request, done: GetResult(GetStatus.READ_FAILED, request.offset, 0, 2)
    assert world.timer.step(world.now_ms) == world.now_ms + 100
    world.store.get = get
    world.run(world.now_ms + 100)
    world.store.get_records = lambda offsets, done: done(None)
    world.now_ms += 800
    assert world.timer.step(world.now_ms) == world.now_ms + 100
    world.store.get_records = lambda offsets, done: [
        None if offset == 0 else raw for offset, raw in zip(offsets, get_records(offsets, done), strict=True)
    ]
    world.run(world.now_ms + 1_000)
    assert world.bodies() == [b"here"] and world.timer.counts["dropped"] == 1
    assert world.timer.facts().waiting == 0


def test_a_damaged_message_of_the_queue_is_passed_over(world):
    world.send(b"bad", TIMER_DELAY_SEC=1)
    world.send(b"good", TIMER_DELAY_SEC=1)
    get = world.store.reads.get
    world.store.get = lambda request, done: (
        GetResult(GetStatus.MESSAGE_DAMAGED, 0, 0, 2) if request.offset == 0 else get(request, done)
    )
    world.run(world.now_ms + 2_000)
    assert world.bodies() == [b"good"]


@pytest.mark.parametrize(
    "told",
    [
        {}, {"TIMER_OUT_MS": "x", "REAL_TOPIC": "Orders", "REAL_QID": "3"}, {"TIMER_OUT_MS": "1800000000000", "REAL_QID": "3"},
        {"TIMER_OUT_MS": "1800000000000", "REAL_TOPIC": "Orders", "REAL_QID": "-1"}, {"TIMER_OUT_MS": "1800000000000", "REAL_TOPIC": "Orders"},
        {"TIMER_OUT_MS": "1800000000000", "REAL_TOPIC": "Orders", "REAL_QID": "99999"},
        {"TIMER_OUT_MS": "1800000000000", "REAL_TOPIC": "RMQ_SYS_TRANS_HALF_TOPIC", "REAL_QID": "0"},
        {"TIMER_OUT_MS": "1800000000000", "REAL_TOPIC": TIMER_TOPIC, "REAL_QID": "0"},
    ],
)  # fmt: skip
def test_what_does_not_say_where_and_when_it_belongs_is_dropped_and_counted(world, told):
    world.store.appender.put(Message(TIMER_TOPIC, 0, b"x", properties.encode(told)))
    world.send(TIMER_DELAY_SEC=1)
    world.run(world.now_ms + 5_000)
    assert world.timer.counts["dropped"] == 1 and len(world.delivered()) == 1
    assert {queue for queue in world.store.queues()} == {(TIMER_TOPIC, 0), ("Orders", 3)}


def test_properties_that_leave_no_room_for_its_times_do_not_cost_the_message(world):
    world.send(KEYS="k" * (properties.MAX_BYTES - 120), TIMER_DELAY_SEC=1)
    world.run(world.now_ms + 1_000)
    (message,) = world.delivered()
    assert "TIMER_DEQUEUE_MS" not in message.properties


def test_a_full_disk_keeps_messages_in_the_queue(world):
    world.send(TIMER_DELAY_SEC=1)
    append = world.store.timer_files.append

    def full(*_):
        raise DiskFullError("no room")

    world.store.timer_files.append = full
    assert world.timer.step(world.now_ms) == world.now_ms + 100
    world.store.timer_files.append = append
    world.run(world.now_ms + 1_000)
    assert len(world.delivered()) == 1


# Rolling and deleting -----------------------------------------------------------------------------


def test_a_message_beyond_the_window_is_stored_once_more_and_comes_at_its_time():
    world = World(window_ms=60_000)
    world.send(TIMER_DELIVER_MS=START_MS + 200_000)
    world.run(START_MS + 199_999)
    assert world.delivered() == []
    waiting = world.delivered(TIMER_TOPIC, 0)
    # After 60 s 140 are left and after 120 s 80. The rest is too short for a whole window, so the window is
    # half.
    assert [message.properties.get("TIMER_ROLL_TIMES") for message in waiting] == [None, "1", "2", "3"]
    assert {message.properties["TIMER_OUT_MS"] for message in waiting} == {str(START_MS + 200_000 - 300)}
    assert world.timer.facts().waiting == 1
    world.run(START_MS + 200_000)
    (message,) = world.delivered()
    assert message.properties["TIMER_ROLL_TIMES"] == "3" and world.timer.counts["rolled"] == 3


@pytest.mark.parametrize("key", ["K1", "Orders+K1"])
def test_a_request_to_delete_takes_the_message_with_its_key(world, key):
    world.send(b"kept", key="K2", TIMER_DELAY_SEC=10)
    world.send(b"deleted", key="K1", TIMER_DELAY_SEC=10)
    world.run(START_MS + 3_000)
    world.send(b"0", key="K1", TIMER_DEL_UNIQKEY=key, TIMER_DELIVER_MS=START_MS - 300 + 10_001)
    world.run(START_MS + 20_000)
    assert world.bodies() == [b"kept"]
    assert world.timer.counts["deleted"] == 1 and world.timer.facts().waiting == 0


def test_a_request_to_delete_in_the_same_second_comes_in_time_for_what_is_not_delivered(world):
    world.send(b"soon", key="K1", TIMER_DELIVER_MS=1_800_000_005_100)
    world.send(b"later", key="K2", TIMER_DELIVER_MS=1_800_000_005_900)
    world.run(1_800_000_005_400)
    for key in ("K1", "K2"):
        world.send(b"0", key=key, TIMER_DEL_UNIQKEY=key, TIMER_DELIVER_MS=1_800_000_005_999)
    world.run(1_800_000_010_000)
    assert world.bodies() == [b"soon"]


def test_a_request_to_delete_of_another_second_or_topic_takes_nothing(world):
    world.send(key="K1", TIMER_DELAY_SEC=10)
    world.send(b"0", key="K1", TIMER_DEL_UNIQKEY="K1", TIMER_DELAY_SEC=12)
    world.send(b"0", key="K1", TIMER_DEL_UNIQKEY="Bills+K1", TIMER_DELAY_SEC=10)
    world.run(START_MS + 20_000)
    assert len(world.delivered()) == 1


def test_a_request_to_delete_rolls_with_its_message():
    world = World(window_ms=60_000)
    world.send(key="K1", TIMER_DELAY_SEC=150)
    world.send(b"0", key="K1", TIMER_DEL_UNIQKEY="K1", TIMER_DELAY_SEC=150)
    world.run(START_MS + 300_000)
    assert world.delivered() == [] and world.timer.counts["deleted"] == 1


# Starting again -----------------------------------------------------------------------------------


def test_after_a_stop_in_order_nothing_is_lost_or_doubled(world):
    for number in range(100):
        world.send(b"%d" % number, key=f"K{number}", TIMER_DELAY_MS=1_000 + number * 50)
    for _ in range(6):
        world.run(world.now_ms + 900)
        while world.timer.has_begun_a_slot:
            world.run(world.now_ms + 10)
        world.restart()
    world.run(START_MS + 10_000)
    assert world.bodies() == [b"%d" % number for number in range(100)]


@pytest.mark.parametrize("pause_ms", [0, 500, 60_000])
def test_what_was_noted_while_its_second_was_under_way_does_not_come_again(world, pause_ms):
    world.send(TIMER_DELIVER_MS=1_800_000_002_100)
    world.run(1_800_000_002_100)
    world.timer.capture()
    world.run(world.now_ms + pause_ms)
    world.restart()
    world.run(world.now_ms + 10_000)
    assert len(world.delivered()) == 1


def test_what_comes_for_the_second_in_which_the_broker_was_stopped_is_not_lost(world):
    world.send(b"first", TIMER_DELIVER_MS=1_800_000_002_100)
    world.run(1_800_000_002_100)
    world.restart()
    world.send(b"second", TIMER_DELIVER_MS=1_800_000_002_300)
    world.run(1_800_000_002_299)
    assert world.bodies() == [b"first"]
    world.run(1_800_000_004_000)
    assert world.bodies() == [b"first", b"second"]


def test_after_a_kill_nothing_is_lost_or_early_and_only_what_was_not_noted_comes_again(world):
    for second in range(1, 10):
        world.send(b"%d" % second, TIMER_DELAY_SEC=second)
    world.run(START_MS + 3_000)
    world.timer.capture()
    world.store.timer_files.step(0)
    for second in range(10, 15):
        world.send(b"%d" % second, TIMER_DELAY_SEC=second - 3)
    world.run(START_MS + 5_000)
    world.restart(saved=False)
    assert world.timer.facts().waiting == 7  # slots from the third second on; the rest is in the queue
    world.run(START_MS + 100_000)
    bodies = world.bodies()
    assert set(bodies) == {b"%d" % second for second in range(1, 15)}
    assert sorted(body for body in set(bodies) if bodies.count(body) > 1) == [b"3", b"4", b"5"]
    for message in world.delivered():
        assert message.store_timestamp >= int(message.properties["TIMER_OUT_MS"]) + 300


def test_numbers_are_noted_only_as_far_as_the_log_is_synced():
    world = World(sync_flush=True)
    world.send(TIMER_DELAY_SEC=1)
    world.store.sync()
    world.run(START_MS + 1_000)
    world.timer.capture()
    world.store.timer_files.step(0)
    assert world.store.timer_files.check.queue_offset == 0
    world.store.sync()
    world.store.timer_files.step(0)
    assert world.store.timer_files.check.queue_offset == 1


def test_an_idle_timer_notes_nothing(world):
    world.send(TIMER_DELAY_SEC=1)
    world.run(START_MS + 5_000)
    world.timer.capture()
    world.store.timer_files.step(0)
    version = world.store.timer_files.check.counter
    world.run(START_MS + 50_000)
    world.timer.capture()
    world.store.timer_files.step(0)
    assert world.store.timer_files.check.counter == version == 1


def lose_timer_log_at(world, now_ms):
    """Run to `now_ms`, save the progress, and remove the files of the timer log."""
    world.run(now_ms)
    world.timer.capture()
    world.store.timer_files.step(0)
    for path in [path for path in world.store.timer_disk.files if "timerlog" in str(path)]:
        world.store.timer_disk.unlink(path)


def test_a_lost_timer_log_is_made_again_without_what_was_delivered(world):
    for second in (1, 2, 30, 40):
        world.send(b"%d" % second, TIMER_DELAY_SEC=second)
    lose_timer_log_at(world, START_MS + 5_000)
    world.restart(saved=False)
    world.run(START_MS + 50_000)
    assert world.bodies() == [b"1", b"2", b"30", b"40"]


def test_what_became_due_while_the_broker_was_down_comes_also_where_the_timer_log_is_lost(world):
    """Once the wheel was set to the time of the start before the queue was read again, so all late messages
    counted as delivered."""
    for second in (1, 20, 30, 400):
        world.send(b"%d" % second, TIMER_DELAY_SEC=second)
    lose_timer_log_at(world, START_MS + 5_000)
    world.now_ms = START_MS + 100_000
    world.restart(saved=False)
    world.run(START_MS + 120_000)
    assert world.bodies() == [b"1", b"20", b"30"]
    world.run(START_MS + 420_000)
    assert world.bodies() == [b"1", b"20", b"30", b"400"]


def test_read_time_is_not_older_than_the_wheel(world):
    world.send(TIMER_DELAY_SEC=1)
    world.run()
    world.restart()
    world.now_ms += 30 * DAY_MS
    world.begin()
    assert world.timer.check().read_ms == (world.now_ms - 300) - (7 * 86_400 - 60) * 1_000


# Facts --------------------------------------------------------------------------------------------


def test_facts_say_what_waits_and_how_late_it_is(world):
    world.send(TIMER_DELAY_SEC=2)
    world.send(TIMER_DELAY_SEC=3 * 3600)
    world.send(topic="Bills", TIMER_DELAY_SEC=3 * 3600)
    assert world.timer.facts().not_enqueued == 3
    world.run()
    facts = world.timer.facts()
    hour_ms = START_MS // 3_600_000 * 3_600_000
    assert (facts.waiting, facts.not_enqueued, facts.due, facts.overdue_ms) == (3, 0, 0, 0)
    assert facts.hours == [(hour_ms, 1), (hour_ms + 3 * 3_600_000, 2)]
    assert facts.topics == {"Orders": 2, "Bills": 1}
    world.run(START_MS + 1_500)
    world.now_ms = START_MS + 2_700
    assert (world.timer.facts().due, world.timer.facts().overdue_ms) == (1, 700)
    world.run()
    facts = world.timer.facts()
    assert (facts.waiting, facts.due, facts.late_ms, facts.delivered) == (2, 0, 700, 1)
    world.restart()
    facts = world.timer.facts()
    assert facts.hours == [(hour_ms + 3 * 3_600_000, 2)] and facts.topics == {"Orders": 1}
    assert world.timer.waiting.metrics_json()["timingCount"]["Orders"]["count"] == 1


def test_the_file_of_metrics_says_how_many_wait_for_whoever_takes_the_store_over(world):
    assert json.loads(world.timer.waiting.metrics_picture()())["timingCount"] == {}, (
        "what another broker left is replaced by the first"
    )
    assert world.timer.waiting.metrics_picture() is None
    world.send(TIMER_DELAY_SEC=1)
    world.send(TIMER_DELAY_SEC=5)
    world.run()
    text = world.timer.waiting.metrics_picture()().decode()
    assert "\n" not in text and " " not in text
    value = json.loads(text)
    assert (
        value["timingCount"] == {"Orders": {"count": 2, "timeStamp": START_MS}}
        and value["dataVersion"]["counter"] == 2
    )
    world.run(START_MS + 1_500)
    assert json.loads(world.timer.waiting.metrics_picture()())["timingCount"]["Orders"]["count"] == 1
    world.restart()
    assert json.loads(world.timer.waiting.metrics_picture()())["timingCount"]["Orders"]["count"] == 1
