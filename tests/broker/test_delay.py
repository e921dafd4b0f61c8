"""broker.delay: delay levels over a store in memory."""

import pytest

from broker_store.broker.delay import BATCH, PAUSE_MS, Delay, LevelFacts
from broker_store.errors import DamagedStoreError
from broker_store.formats import properties
from broker_store.formats.topics import SCHEDULE_TOPIC
from broker_store.messages import GetResult, GetStatus, Message, PutStatus
from tests.support.memory_store import LEVELS_MS, MemoryStore


class World:
    def __init__(self, **options):
        self.now_ms = 1_000_000
        self.store = MemoryStore(lambda: self.now_ms, **options)
        self.delay = Delay(self.store, levels_ms=LEVELS_MS, clock=lambda: self.now_ms)

    def send(self, level: int, body: bytes = b"x", **pairs) -> None:
        message = Message("Orders", 3, body, properties.encode({"KEYS": "k", **pairs}))
        self.delay.schedule(message, level)
        assert self.store.appender.put(message).ok

    def delivered(self):
        return self.store.messages("Orders", 3)


@pytest.fixture
def world():
    return World()


def test_a_message_waits_in_the_queue_of_its_level(world):
    world.send(2)
    (waiting,) = world.store.messages(SCHEDULE_TOPIC, 1)
    assert (
        waiting.properties["DELAY"],
        waiting.properties["REAL_TOPIC"],
        waiting.properties["REAL_QID"],
    ) == ("2", "Orders", "3")


@pytest.mark.parametrize("position", [5, 100_000, (1 << 63) - 1])
def test_a_position_beyond_the_end_keeps_back_no_message_that_waits(world, position):
    """Once it was lowered to the end, without a log line, and the waiting messages never came."""
    for _ in range(4):
        world.send(2)
        # The level waits 5 s: when the last of four messages is stored, three are not due yet.
        world.now_ms += 2_000
    world.delay.load(f'{{"offsetTable":{{2:{position}}}}}')
    told = world.delay.start()
    assert told == [f"delay level 2 was at {position:,} of its queue, which ends at 4: it goes on at 1"]
    world.delay.step(world.now_ms + 60_000)
    assert len(world.delivered()) == 3
    assert World().delay.start() == []


def test_a_level_above_the_highest_is_the_highest(world):
    world.send(99)
    assert len(world.store.messages(SCHEDULE_TOPIC, len(LEVELS_MS) - 1)) == 1


def test_it_is_delivered_when_it_is_due_and_not_before(world):
    world.send(2)
    due_ms = world.now_ms + 5_000
    assert world.delay.step(due_ms - 1) == due_ms
    assert world.delivered() == []
    world.delay.step(due_ms)
    (message,) = world.delivered()
    assert message.body == b"x" and message.properties["REAL_TOPIC"] == "Orders"
    assert world.delay.step(due_ms) is None
    assert len(world.delivered()) == 1


def test_an_arrival_is_told_while_a_level_is_empty(world):
    assert world.delay.step(world.now_ms) is None
    arrived = []
    world.store.confirmation.arrival_listener = arrived.extend
    world.send(1)
    assert arrived == [(SCHEDULE_TOPIC, 0)]
    assert world.delay.step(world.now_ms) == world.now_ms + 1_000
    world.send(1)
    assert len(arrived) == 1


def test_messages_of_a_level_keep_their_order_and_come_in_pieces(world):
    for number in range(300):
        world.send(1, str(number).encode())
    due_ms = world.now_ms + 1_000
    while (again_ms := world.delay.step(due_ms)) is not None:
        assert due_ms <= again_ms <= due_ms + PAUSE_MS
    assert [message.body for message in world.delivered()] == [str(number).encode() for number in range(300)]
    assert max(world.store.put_calls[300:]) <= BATCH


def test_a_step_over_many_levels_is_bounded_and_none_waits_for_the_others(world):
    for number in range(900):
        world.send(number % len(LEVELS_MS) + 1, b"%d" % number)
    due_ms = world.now_ms + max(LEVELS_MS)
    done = []
    while world.delay.step(due_ms) is not None:
        done.append(world.delay.delivered)
    assert (
        max(now - then for then, now in zip([0, *done], done, strict=False)) < 2 * BATCH and done[-1] == 900
    )
    # After as many steps as there are levels each has had its turn.
    assert {
        int(message.body) % len(LEVELS_MS) for message in world.delivered()[: done[len(LEVELS_MS) - 1]]
    } == set(range(len(LEVELS_MS)))


def test_what_the_store_refuses_is_tried_again(world):
    world.send(1)
    world.now_ms += 1_000
    world.store.refuse = PutStatus.SERVICE_NOT_AVAILABLE
    assert world.delay.step(world.now_ms) == world.now_ms + 100
    assert world.delay.failures == 1
    world.store.refuse = None
    assert world.delay.step(world.now_ms + 99) == world.now_ms + 100
    world.delay.step(world.now_ms + 100)
    assert len(world.delivered()) == 1


def test_a_cold_read_is_waited_for(world):
    world.send(1)
    world.now_ms += 1_000
    world.store.cold = True
    ready = []
    world.delay.on_ready = lambda: ready.append(True)
    assert world.delay.step(world.now_ms) is None
    assert world.delay.step(world.now_ms) is None
    world.store.finish_cold_reads()
    assert len(world.delivered()) == 1 and ready == [True]


def test_a_read_that_found_the_readers_busy_is_repeated_later(world):
    world.send(1)
    world.now_ms += 1_000
    get = world.store.reads.get
    world.store.get = lambda request, done: GetResult(GetStatus.NO_MATCHED_MESSAGE, request.offset, 0, 1)
    assert world.delay.step(world.now_ms) == world.now_ms + 100
    world.store.get = get
    world.delay.step(world.now_ms + 100)
    assert len(world.delivered()) == 1


def test_what_changed_on_the_disk_is_passed_over_and_counted_and_a_failed_read_is_repeated(world):
    world.send(1, b"bad")
    world.send(1, b"good")
    world.now_ms += 1_000
    get, status = world.store.reads.get, GetStatus.READ_FAILED
    world.store.get = lambda request, done: (
        GetResult(status, 0, 0, 2) if request.offset == 0 else get(request, done)
    )
    assert world.delay.step(world.now_ms) == world.now_ms + 100
    status = GetStatus.MESSAGE_DAMAGED
    while (due_ms := world.delay.step(world.now_ms + 100)) is not None:
        assert due_ms <= world.now_ms + 100 + PAUSE_MS
    assert [message.body for message in world.delivered()] == [b"good"] and world.delay.dropped == 1


def test_the_position_is_saved_only_as_far_as_the_log_is_synced():
    world = World(sync_flush=True)
    world.send(1)
    world.store.sync()
    world.now_ms += 1_000
    world.delay.step(world.now_ms)
    assert world.delay.picture(world.store.confirmed) is None
    world.store.sync()
    text = world.delay.picture(world.store.confirmed)().decode()
    assert "\n\t\t1:1\n" in text
    assert world.delay.picture(world.store.confirmed) is None


def test_after_a_restart_it_goes_on_where_it_was_saved(world):
    for number in range(3):
        world.send(1, str(number).encode())
    world.now_ms += 1_000
    world.delay.load('{"dataVersion":{},"offsetTable":{1:2,77:5}}')
    world.delay.start()
    world.delay.step(world.now_ms)
    assert [message.body for message in world.delivered()] == [b"2"]


def test_a_saved_position_outside_the_queue_is_brought_into_it(world):
    world.send(1)
    world.delay.load('{"offsetTable":{1:50}}')
    world.delay.start()
    assert world.delay.facts() == [
        LevelFacts(level=1, delay_ms=1_000, offset=0, max_offset=1, waiting=1, due_ms=world.now_ms + 1_000)
    ]


def test_what_waits_is_counted_by_level_and_says_when_the_first_is_due(world):
    for _ in range(3):
        world.send(1)
    world.now_ms += 400
    world.send(2)
    first, second = world.delay.facts()
    assert (first.waiting, first.due_ms - world.now_ms) == (3, 600)
    assert (second.waiting, second.due_ms - world.now_ms) == (1, world.delay._levels[1].delay_ms)
    assert [world.delay.waits(0, 0), world.delay.waits(99, 0)] == [True, None]
    world.now_ms += 600
    world.delay.step(world.now_ms)
    assert [level.waiting for level in world.delay.facts()] == [0, 1]
    assert [world.delay.waits(0, 2), world.delay.waits(1, 0)] == [False, True]


@pytest.mark.parametrize("text", ["{", "[]", '{"offsetTable":{"x":1}}', '{"offsetTable":{1:"a"}}'])
def test_a_file_that_cannot_be_read_is_named(world, text):
    with pytest.raises(DamagedStoreError, match=r"config/delayOffset\.json"):
        world.delay.load(text)


def test_what_does_not_say_where_it_belongs_is_dropped_and_counted(world):
    world.store.appender.put(Message(SCHEDULE_TOPIC, 0, b"x", b"DELAY\x011\x02"))
    world.store.appender.put(
        Message(
            SCHEDULE_TOPIC,
            0,
            b"x",
            b"DELAY\x011\x02REAL_TOPIC\x01RMQ_SYS_TRANS_HALF_TOPIC\x02REAL_QID\x010\x02",
        )
    )
    world.send(1)
    world.delay.step(world.now_ms + 1_000)
    assert world.delay.dropped == 2 and len(world.delivered()) == 1
