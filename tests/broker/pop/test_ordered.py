"""broker.pop.ordered, order_info and order_log: against a simple model with kills, and their file."""

import json
import re
from dataclasses import replace

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from broker_store.broker.deleted_groups import DeletedGroups
from broker_store.broker.offsets import Offsets
from broker_store.broker.pop import order_log, ordered
from broker_store.broker.pop.in_flight import InFlight
from broker_store.broker.pop.order_log import OrderLog
from broker_store.broker.pop.ordered import CLEAN_INTERVAL_MS, MAX_IDLE_MS, OrderedQueues, read_file
from broker_store.broker.pop.positions import PopPositions
from broker_store.broker.topics import TopicConfig, Topics
from broker_store.errors import DamagedStoreError, FormatError
from broker_store.formats import order_info, record
from broker_store.formats.order_info import MAX_OFFSETS, OrderInfo, following
from broker_store.messages import Message
from tests.support.memory_store import MemoryStore

LOG, REVIVE_LOG = "rmq_sys_POP_ORDER_LOG_DefaultCluster", "rmq_sys_REVIVE_LOG_DefaultCluster"
PLACE = ("CG", "TopicX", 1)
START_MS = 1_800_000_000_000
# As 5.5.0 wrote it
APACHES_FILE = """{
	"orderInfoCount":1,
	"orderedConsumptionLevel":"QUEUE",
	"table":{
		"T@G":{
			0:{
				"a":"a1",
				"cm":2,
				"i":4000,
				"l":1795914236786,
				"o":[0,1,2],
				"oc":{},
				"ot":{
					0:1795914237804,
					2:1795914238805
				},
				"popTime":1795914236786
			}
		}
	}
}"""


class World:
    """A store, and the parts that pops in order need. `kill` leaves the log and the files."""

    def __init__(self, messages: int = 0):
        self.now_ms = START_MS
        self.store = MemoryStore(lambda: self.now_ms)
        self.saved_offsets = self.saved_states = None
        self.exists = lambda place: True
        for number in range(messages):
            self.send(number)
        self.begin()
        self.save_offsets()  # as a broker does at its start

    def send(self, number: int) -> None:
        self.store.put(Message("TopicX", 1, b"m%d" % number))

    def begin(self) -> None:
        clock = lambda: self.now_ms  # noqa: E731
        self.topics = Topics(cluster="DefaultCluster", broker="broker-a", clock=clock)
        self.topics.put(TopicConfig("TopicX", 4, 4))
        self.offsets = Offsets(clock=clock, log_end=lambda: self.store.wrote)
        if self.saved_offsets is not None:
            self.offsets.load(self.saved_offsets)
            self.offsets.forget_deleted(self.store.tombstones.before)
        saved_ms = self.offsets.data_version.timestamp
        self.positions = PopPositions(self.store, self.offsets, DeletedGroups(self.store))
        log = OrderLog(
            self.store, self.topics, cluster="DefaultCluster", clock=clock, host=lambda: (b"\x7f\0\0\1", 1)
        )
        self.ordered = OrderedQueues(
            self.store,
            self.positions,
            log,
            clock=clock,
            exists=lambda place: self.exists(place),
            in_flight=InFlight(),
        )
        if self.saved_states is not None:
            self.ordered.load(self.saved_states)
        self.positions.restore(REVIVE_LOG, 8, LOG, lambda topic: True)
        self.ordered.restore(saved_ms)
        self.freed = []
        self.ordered.on_free = self.freed.append

    kill = begin

    def save_states(self) -> None:
        self.positions.settle(self.store.flushed)
        if self.ordered.dirty:
            self.saved_states = self.ordered.picture()().decode()

    def save_offsets(self) -> None:
        self.positions.settle(self.store.flushed)
        self.saved_offsets = self.offsets.picture()().decode()

    @property
    def position(self) -> int:
        return self.positions.next_offset(*PLACE) or 0

    def pop(
        self, count: int, attempt: str | None = None, invisible_ms: int = 10_000
    ) -> tuple[list[int], dict[int, int]] | None:
        """Return the messages that a pop gives, and their counts; None if the queue is blocked."""
        if self.offsets.query(*PLACE) is None:
            self.offsets.commit(*PLACE, 0)
        if self.offsets.take_reset(*PLACE) is not None:
            self.positions.drop(*PLACE)
            self.ordered.clear(PLACE)
        begin = self.position
        if self.ordered.is_blocked(PLACE, attempt, self.now_ms):
            return None
        read = range(begin, min(begin + count, self.store.max_offset("TopicX", 1)))
        wanted = self.ordered.wanted(PLACE, read)
        if not wanted:
            return [], {}
        given = self.ordered.give(PLACE, attempt, self.now_ms, invisible_ms, wanted)
        assert given.put.ok
        return wanted, given.counts

    def reset(self, offset: int) -> None:
        """Set the group's offset as an administrator does."""
        has_record = self.ordered.state(PLACE) is not None
        self.offsets.reset(*PLACE, offset)
        self.positions.drop(*PLACE)
        self.ordered.clear(PLACE)
        if not has_record:  # then only the file has it
            self.save_states()
            self.save_offsets()


class Model:
    """What a group may get: the obvious way."""

    def __init__(self):
        self.messages = 0
        self.acked: set[int] = set()
        self.given: dict[int, int] = {}  # how often each was given, with another attempt each time
        self.visible_ms: dict[int, int] = {}
        self.attempt: str | None = None
        self.pop_ms: dict[int, int] = {}

    @property
    def position(self) -> int:
        return next((n for n in range(self.messages) if n not in self.acked), self.messages)

    def reset(self, offset: int) -> None:
        self.acked = set(range(offset))
        for table in (self.given, self.visible_ms, self.pop_ms):
            table.clear()
        self.attempt = None

    def pop(self, count: int, attempt: str | None, now_ms: int, invisible_ms: int):
        open_ms = [self.visible_ms.get(n, 0) for n in range(self.messages) if n not in self.acked]
        is_same = attempt is not None and attempt == self.attempt
        if not is_same and any(at_ms > now_ms for at_ms in open_ms):
            return None
        begin = self.position
        taken = [n for n in range(begin, min(begin + count, self.messages)) if n not in self.acked]
        for n in taken:
            # A message that a repeated attempt gets for the first time
            self.given[n] = self.given.get(n, 0) + (not is_same or n not in self.given)
            self.visible_ms[n] = now_ms + invisible_ms
            self.pop_ms[n] = now_ms
        if taken:
            self.attempt = attempt
        return taken, {n: self.given[n] - 1 for n in taken if self.given[n] > 1}


class Ordered(RuleBasedStateMachine):
    """Random pops, acknowledgements, changes, saves and kills."""

    @initialize()
    def begin(self):
        self.world, self.model = World(), Model()

    @rule(count=st.integers(1, 5))
    def send(self, count):
        for _ in range(count):
            self.world.send(self.model.messages)
            self.model.messages += 1

    @rule(
        count=st.integers(1, 8),
        attempt=st.sampled_from([None, "a", "b"]),
        invisible_ms=st.sampled_from([1_000, 5_000]),
    )
    def pop(self, count, attempt, invisible_ms):
        self.world.now_ms += 1  # receipts of two pops differ
        expected = self.model.pop(count, attempt, self.world.now_ms, invisible_ms)
        assert self.world.pop(count, attempt, invisible_ms) == expected

    @precondition(lambda self: self.model.pop_ms)
    @rule(data=st.data())
    def acknowledge(self, data):
        newest_ms = max(self.model.pop_ms.values())
        n = data.draw(st.sampled_from(sorted(self.model.pop_ms)))
        changed = self.world.ordered.acknowledge(PLACE, [n], self.model.pop_ms[n])
        if n in self.model.acked or self.model.pop_ms[n] != newest_ms:
            assert changed == (None, []) or n in self.model.acked
        else:
            assert changed.put.ok and not changed.unknown
            self.model.acked.add(n)

    @precondition(lambda self: self.model.pop_ms)
    @rule(data=st.data(), invisible_ms=st.integers(0, 8_000))
    def change(self, data, invisible_ms):
        newest_ms = max(self.model.pop_ms.values())
        n = data.draw(st.sampled_from(sorted(self.model.pop_ms)))
        visible_ms = self.world.now_ms + invisible_ms
        changed = self.world.ordered.change(PLACE, n, self.model.pop_ms[n], visible_ms)
        if n not in self.model.acked and self.model.pop_ms[n] == newest_ms:
            assert changed.put.ok
            self.model.visible_ms[n] = visible_ms
        else:
            assert changed.put is None

    @rule(data=st.data())
    def reset(self, data):
        offset = data.draw(st.integers(0, self.model.messages))
        self.world.reset(offset)
        self.model.reset(offset)

    @rule(ms=st.integers(1, 6_000))
    def wait(self, ms):
        self.world.now_ms += ms
        self.world.ordered.step(self.world.now_ms)

    @rule(and_offsets=st.booleans())
    def save(self, and_offsets):
        self.world.now_ms += 1
        self.world.save_states()
        if and_offsets:
            self.world.save_offsets()

    @rule()
    def kill(self):
        self.world.kill()

    @invariant()
    def positions_are_equal(self):
        if hasattr(self, "world"):
            assert self.world.position == self.model.position


TestOrdered = Ordered.TestCase


def test_states_of_apaches_file_are_read_and_written_the_same():
    found, included = read_file(APACHES_FILE)
    info = found["T", "G"][0]
    assert included is None
    assert (info.offsets, info.left(), info.attempt_id, info.next_offset()) == ((0, 1, 2), [0, 2], "a1", 0)
    assert info.free_ms() == 1795914238805
    world = World(3)
    world.offsets.commit("G", "T", 0, 0)
    world.ordered.load(APACHES_FILE)
    text = world.ordered.picture()().decode()
    assert text.startswith('{\n\t"recordsIncluded":')
    squeeze = lambda text: re.sub(r"\s", "", text)  # noqa: E731
    written = squeeze(text).partition('"table":')[2]
    assert written == squeeze(APACHES_FILE).partition('"table":')[2].replace('"oc":{},', "")


def test_what_the_file_has_beyond_a_queue_is_left_out():
    """After a power cut: new messages get the numbers of those that were lost."""
    world = World(2)
    world.offsets.commit("G", "T", 0, 0)
    world.saved_states = APACHES_FILE.replace("T@G", "TopicX@CG").replace("0:{\n", "1:{\n")
    world.begin()
    info = world.ordered.state(PLACE)
    assert (info.offsets, info.acked, info.changed_ms) == ((0, 1), 2, {0: 1795914237804, 2: 1795914238805})


@pytest.mark.parametrize("is_saved", [False, True])
def test_what_was_popped_of_a_deleted_topic_does_not_come_back_after_a_kill(is_saved):
    world = World(3)
    world.pop(3)
    if is_saved:
        world.save_states()
        world.save_offsets()
    world.store.delete_topic("TopicX")
    world.send(10)
    world.send(11)
    world.kill()
    assert world.ordered.state(PLACE) is None and world.position == 0
    assert world.pop(3) == ([0, 1], {})
    world.kill()
    assert world.ordered.is_blocked(PLACE, None, world.now_ms)


def test_records_after_the_end_that_a_power_cut_left_are_not_included():
    world = World(2)
    world.saved_states = '{"recordsIncluded":999999999,"table":{}}'
    world.kill()
    assert world.ordered.dirty
    world.save_states()
    world.pop(1)
    world.kill()
    assert world.ordered.is_blocked(PLACE, None, world.now_ms)


def test_without_a_sound_file_the_states_are_read_from_the_log():
    world = World(6)
    world.pop(3)
    world.ordered.acknowledge(PLACE, [0], world.now_ms)
    world.now_ms += 3_600_000
    world.save_offsets()
    before = world.ordered.state(PLACE)
    world.saved_states = None  # a start begins without the content of a damaged file
    world.kill()
    assert world.ordered.state(PLACE) == before and before.left()
    assert world.ordered.dirty


def test_what_no_pop_leaves_does_not_block_a_queue():
    world = World(6)
    late = START_MS + 2 * MAX_IDLE_MS
    for state in (f'"popTime":{late}', f'"popTime":5,"i":{late}', f'"popTime":5,"ot":{{1:{late}}}'):
        world.saved_states = f'{{"table":{{"TopicX@CG":{{1:{{"o":[0,1],{state}}}}}}}}}'
        world.kill()
        assert not world.ordered.is_blocked(PLACE, None, world.now_ms)


@pytest.mark.parametrize(
    "state",
    [
        "5",
        '{"o":[0,0],"popTime":5}',
        '{"o":[5,3,2],"popTime":5}',
        '{"o":[-1],"popTime":5}',
        '{"o":[1],"popTime":"5"}',
        '{"o":[1]}',
        '{"o":[1],"popTime":5,"i":-1}',
        '{"o":[1],"popTime":5,"cm":1.5}',
        '{"o":[1],"popTime":5,"cm":9223372036854775808}',
        '{"o":[1],"popTime":5,"a":7}',
        f'{{"o":[1],"popTime":5,"a":"{"x" * 256}"}}',
        '{"o":[1],"popTime":5,"oc":{"x":1}}',
        '{"o":[1],"popTime":5,"ot":{1:-5}}',
        f'{{"o":{list(range(1, 66))},"popTime":5}}',
    ],
)
def test_an_invalid_state_is_refused(state):
    with pytest.raises(FormatError):
        order_info.from_json(json.loads(re.sub(r"\{1:", '{"1":', state)))
    world = World()
    with pytest.raises(DamagedStoreError, match="consumerOrderInfo"):
        world.ordered.load(f'{{"table":{{"T@G":{{0:{state}}}}}}}')
    assert len(world.ordered) == 0


@pytest.mark.parametrize(
    "text",
    [
        "5",
        "{}",
        '{"table":5}',
        '{"table":{"TG":{}}}',
        '{"table":{"T@G":{"x":{}}}}',
        '{"recordsIncluded":-1,"table":{}}',
    ],
)
def test_an_invalid_file_is_refused(text):
    with pytest.raises(FormatError):
        read_file(text)


def test_states_without_messages_to_acknowledge_are_left_out():
    text = '{"table":{"T@G":{0:{"popTime":5},1:{"o":null,"popTime":5},2:{"o":[4,1],"cm":3,"popTime":5}}}}'
    assert read_file(text) == ({}, None)


def test_the_bit_of_the_highest_place_is_a_negative_long():
    info = OrderInfo(5, 10, tuple(range(64)), acked=1 << 63 | 1)
    value = order_info.to_json(info)
    assert value["cm"] == -(1 << 63) + 1
    assert order_info.from_json(value) == info


def test_messages_that_remain_are_bounded():
    before = OrderInfo(5, 10, tuple(range(60)), counts={59: 3})
    info = following(before, None, 20, 10, list(range(100, 132)))
    assert info.offsets == tuple(range(100, 132))
    info = following(replace(before, offsets=tuple(range(40, 100))), None, 20, 10, list(range(8, 40)))
    assert len(info.offsets) == MAX_OFFSETS and info.offsets[:33] == tuple(range(8, 41))
    assert info.visible_ms(40) == 15 and info.visible_ms(39) == 30


def test_a_record_that_is_not_ours_is_not_read():
    for body in (b"x", b"5", b"{}", b'{"c":"","q":1,"t":"T"}', b'{"c":"G","q":-1,"t":"T"}', b"[" * 20_000):
        raw = record.encode(Message(LOG, 0, body), 0, 0, 5)
        with pytest.raises(FormatError):
            order_log.decode(record.decode(raw))
    world = World(1)
    world.store.put(Message(LOG, 0, b"nonsense"))
    world.pop(1)
    world.kill()
    assert world.ordered.is_blocked(PLACE, None, world.now_ms)


def test_a_record_states_all_of_a_queue():
    world = World(2)
    world.pop(2, "one")
    world.ordered.acknowledge(PLACE, [0], START_MS)
    (_, stored) = world.store.messages(LOG, 0)
    assert json.loads(stored.body) == {
        "c": "CG", "q": 1, "t": "TopicX",
        "state": {"a": "one", "cm": 1, "i": 10_000, "l": START_MS, "o": [0, 1], "popTime": START_MS},
    }  # fmt: skip
    assert stored.properties == {"TAGS": "order", "POP_NEXT": "1"}
    assert order_log.decode(stored).info == world.ordered.state(PLACE)


def test_a_reset_survives_a_kill_and_is_not_undone_by_older_acknowledgements():
    world = World(5)
    world.pop(4)
    world.save_states()
    world.save_offsets()
    world.ordered.acknowledge(PLACE, [0, 1], START_MS)
    world.offsets.reset(*PLACE, 1)
    world.positions.drop(*PLACE)
    world.ordered.clear(PLACE)
    world.kill()
    assert world.position == 1 and not world.ordered.is_blocked(PLACE, None, world.now_ms)
    assert world.pop(9) == ([1, 2, 3, 4], {})


def test_an_offset_set_back_gives_acknowledged_messages_again():
    world = World(5)
    world.pop(4)
    world.ordered.acknowledge(PLACE, [0, 1], START_MS)
    world.positions.settle(world.store.flushed)
    world.offsets.commit(*PLACE, 0)
    assert world.pop(9) == ([0, 1, 2, 3, 4], {})


def test_a_queue_is_reported_when_it_becomes_free():
    world = World(3)
    world.pop(2, invisible_ms=1_000)
    assert world.ordered.step(world.now_ms) == START_MS + 1_000
    world.ordered.change(PLACE, 1, START_MS, START_MS + 3_000)
    assert world.ordered.step(START_MS + 1_000) == START_MS + 3_000
    assert world.freed == []
    world.now_ms = START_MS + 3_000
    world.ordered.step(world.now_ms)
    assert world.freed == [PLACE]
    world.pop(2)
    world.ordered.acknowledge(PLACE, [0, 1], world.now_ms)
    assert world.freed == [PLACE, PLACE] and len(world.ordered) == 0


def test_the_end_of_a_block_is_reported_after_a_kill():
    world = World(3)
    world.pop(2, invisible_ms=1_000)
    world.kill()
    assert world.ordered.step(world.now_ms) == START_MS + 1_000
    world.now_ms += 1_000
    world.ordered.step(world.now_ms)
    assert world.freed == [PLACE]


def test_many_shorter_times_leave_few_entries():
    world = World(1)
    world.pop(1, invisible_ms=50_000)
    for number in range(1_000):
        world.ordered.change(PLACE, 0, START_MS, START_MS + 40_000 - number)
    assert len(world.ordered._ends) < 100
    world.now_ms += 39_001
    world.ordered.step(world.now_ms)
    assert world.freed == [PLACE]


def test_a_state_without_a_pop_is_removed_after_a_day():
    world = World(1)
    world.pop(1)
    world.now_ms += MAX_IDLE_MS + 10_000
    world.ordered.step(world.now_ms)
    assert len(world.ordered) == 1
    world.now_ms += CLEAN_INTERVAL_MS
    world.ordered.step(world.now_ms)
    assert len(world.ordered) == 0 and world.ordered.dirty


def test_states_of_what_is_gone_are_left_out_at_a_start():
    world = World(1)
    world.pop(1)
    world.exists = lambda place: False
    world.kill()
    assert len(world.ordered) == 0


def test_without_room_a_pop_is_refused(monkeypatch):
    monkeypatch.setattr(ordered, "MAX_ENTRIES", 0)
    world = World(1)
    with pytest.raises(ordered.TooManyOrderedError, match="at most 0"):
        world.pop(1)


def test_a_repeated_attempt_is_not_counted_again():
    world = World(messages=3)
    counts = world.ordered._in_flight.counts_of(PLACE[0])
    assert world.pop(2, "a") == world.pop(2, "a") == ([0, 1], {})
    assert (counts.popped, counts.came_again) == (2, 0)
    assert world.pop(3, "a") == ([0, 1, 2], {}), "a repeated attempt may get more"
    assert (counts.popped, counts.came_again) == (3, 0)
    world.now_ms += 10_000
    assert world.pop(2, "b") == ([0, 1], {0: 1, 1: 1})
    assert (counts.popped, counts.came_again) == (5, 2)
    assert world.pop(2, "b") == ([0, 1], {0: 1, 1: 1})
    assert (counts.popped, counts.came_again) == (5, 2)
