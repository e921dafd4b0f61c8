"""broker.timer_role: the timer of a slave, of a slave that acts for its master, and of a master that comes
again."""

import pytest

from broker_store.broker.timer import Timer
from broker_store.formats import record
from broker_store.formats.timer_check import TimerCheck
from broker_store.formats.timer_log import TIMER_TOPIC
from broker_store.messages import PutStatus
from tests.broker.test_timer import START_MS, World

SECOND_MS = START_MS // 1_000 * 1_000


class Slave(World):
    """A store with the messages of a master; `sent` has what it sent elsewhere while it acted."""

    def __init__(self, **options):
        self.sent, self.refuses, self.held, self.is_slow = [], False, [], False
        super().__init__(**options)

    def begin(self):
        self.timer = Timer(self.store, clock=lambda: self.now_ms, **self.options)
        self.timer.role.follows = True
        self.timer.start(["Orders"])

    def escape(self, due, done):
        if self.is_slow:
            self.held.append((due, done))
            return
        statuses = []
        for each, raw in due:
            if self.refuses:
                statuses.append(PutStatus.SERVICE_NOT_AVAILABLE)
                break
            self.sent.append((each.rolls, _body(raw)))
            statuses.append(PutStatus.PUT_OK)
        done(statuses)

    def follow(self, read_ms, offset, counter=3):
        self.timer.role.follow(TimerCheck(read_ms, 52 * offset, offset, offset, 0, read_ms, counter))
        self.run()

    def bodies_sent(self):
        return [body for _, body in self.sent]


def _body(raw):
    return record.decode(raw, check_crc=False).body


@pytest.fixture
def slave():
    return Slave()


def test_a_slave_has_on_its_wheel_what_its_master_has_and_delivers_nothing(slave):
    for number in range(4):
        slave.send(b"%d" % number, TIMER_DELAY_SEC=number + 1)
    slave.run()
    assert slave.timer.queue.offset == 0  # the master has said nothing yet
    slave.follow(SECOND_MS, 3)
    assert slave.timer.queue.offset == 3 and slave.timer.facts().waiting == 3
    slave.run(START_MS + 10_000)
    assert slave.bodies() == [] and slave.sent == [] and slave.timer.facts().waiting == 3
    assert slave.timer.check()[2:4] == (3, 3) and slave.timer.check().read_ms == SECOND_MS


def test_what_the_master_delivers_waits_no_more_and_is_not_put_on_the_wheel_later(slave):
    for number in range(4):
        slave.send(b"%d" % number, TIMER_DELAY_SEC=number + 1)
    slave.follow(SECOND_MS, 2)
    assert slave.timer.facts().topics == {"Orders": 2}
    slave.follow(SECOND_MS + 4_000, 4, counter=4)  # 2 was delivered before this slave put it on its wheel
    assert slave.timer.facts().topics == {"Orders": 1} and slave.timer.counts["enqueued"] == 3
    assert slave.timer.counts["dropped"] == 0 and slave.timer.queue.offset == 4


def test_an_acting_slave_sends_what_is_due_at_its_time_once(slave):
    for number in range(3):
        slave.send(b"%d" % number, TIMER_DELAY_SEC=number + 1)
    slave.follow(SECOND_MS, 2)
    assert slave.timer.role.act(slave.escape)
    slave.run(START_MS + 999)
    assert slave.sent == []
    slave.run(START_MS + 1_000)
    assert slave.bodies_sent() == [b"0"]
    slave.run(START_MS + 60_000)
    assert slave.bodies_sent() == [b"0", b"1", b"2"]  # the last was not on the master's wheel
    assert slave.bodies() == [] and slave.timer.facts().waiting == 0
    assert slave.timer.counts["delivered"] == 3


def test_what_is_not_sent_waits_and_is_sent_later(slave):
    slave.send(b"a", TIMER_DELAY_SEC=1)
    slave.send(b"b", TIMER_DELAY_SEC=1)
    slave.follow(SECOND_MS, 2)
    slave.timer.role.act(slave.escape)
    slave.refuses = True
    slave.run(START_MS + 5_000)
    assert slave.sent == [] and slave.timer.facts().waiting == 2
    assert slave.timer.check().read_ms <= START_MS + 1_000
    slave.refuses = False
    slave.run(START_MS + 8_000)
    assert slave.bodies_sent() == [b"a", b"b"]
    slave.timer.capture()
    assert slave.timer.check().read_ms == (START_MS + 8_000) // 1_000 * 1_000


def test_no_step_is_made_and_no_slot_passes_while_messages_are_sent(slave):
    slave.send(b"a", TIMER_DELAY_SEC=1)
    slave.send(b"b", TIMER_DELAY_SEC=2)
    slave.follow(SECOND_MS, 2)
    slave.timer.role.act(slave.escape)
    slave.is_slow = True
    slave.run(START_MS + 5_000)
    ((due, done),) = slave.held
    slave.timer.capture()
    assert slave.timer.check().read_ms <= START_MS + 1_000
    slave.is_slow = False
    done([PutStatus.PUT_OK] * len(due))
    slave.run(START_MS + 5_000)
    assert slave.bodies_sent() == [b"b"]


def test_a_slave_that_acts_again_sends_nothing_again(slave):
    for number in range(4):
        slave.send(b"%d" % number, TIMER_DELAY_SEC=number + 1)
    slave.follow(SECOND_MS, 4)
    slave.timer.role.act(slave.escape)
    slave.run(START_MS + 2_900)
    assert slave.bodies_sent() == [b"0", b"1"]
    slave.timer.role.end_acting()
    slave.run(START_MS + 3_500)
    assert slave.bodies_sent() == [b"0", b"1"] and slave.timer.facts().waiting == 2
    slave.timer.role.act(slave.escape)
    slave.run(START_MS + 9_000)
    assert slave.bodies_sent() == [b"0", b"1", b"2", b"3"] and slave.timer.facts().waiting == 0


def test_what_arrives_after_the_slave_ended_to_act_changes_nothing(slave):
    slave.send(b"a", TIMER_DELAY_SEC=1)
    slave.follow(SECOND_MS, 1)
    slave.timer.role.act(slave.escape)
    slave.is_slow = True
    slave.run(START_MS + 1_500)
    ((_, done),) = slave.held
    slave.timer.role.end_acting()
    done([PutStatus.PUT_OK])
    assert slave.timer.facts().waiting == 1 and slave.timer.slots.loaded == 0
    slave.follow(SECOND_MS + 2_000, 1)
    assert slave.timer.facts().waiting == 0


def test_a_slave_whose_master_never_said_how_far_it_is_does_not_act(slave):
    slave.send(b"a", TIMER_DELAY_SEC=1)
    assert not slave.timer.role.act(slave.escape)
    slave.run(START_MS + 5_000)
    assert slave.sent == [] and slave.timer.queue.offset == 0
    slave.timer.role.end_acting()
    slave.follow(SECOND_MS, 1)
    assert slave.timer.facts().waiting == 1


def test_an_acting_slave_that_was_restarted_goes_on_where_it_was(slave):
    for number in range(4):
        slave.send(b"%d" % number, TIMER_DELAY_SEC=number + 1)
    slave.follow(SECOND_MS, 4)
    slave.timer.role.act(slave.escape)
    slave.run(START_MS + 2_900)
    slave.restart()
    slave.run()
    assert slave.timer.role.act(slave.escape)
    slave.run(START_MS + 9_000)
    assert slave.bodies_sent() == [b"0", b"1", b"2", b"3"]


def test_a_slave_that_becomes_the_master_delivers_what_its_master_has_not(slave):
    for number in range(4):
        slave.send(b"%d" % number, TIMER_DELAY_SEC=number + 1)
    slave.follow(SECOND_MS + 2_000, 3)
    slave.timer.capture(ending=True)
    slave.store.timer_files.step(0)
    slave.store.timer_files.close()
    slave.store.begin()
    World.begin(slave)
    slave.run(START_MS + 9_000)
    assert slave.bodies() == [b"1", b"2", b"3"]


def test_a_master_that_became_a_slave_and_the_master_again_loses_nothing():
    """Its own timer log has other units than the log of the master that it followed."""
    broker = Slave()
    World.begin(broker)
    for number in range(4):
        broker.send(b"%d" % number, TIMER_DELAY_SEC=100 + number)
    broker.run()
    broker.restart()  # as a slave
    # The other had to read the queue again, without what was delivered before: its log is shorter
    broker.timer.role.follow(TimerCheck(SECOND_MS, 52, 4, 4, 0, SECOND_MS, 9))
    broker.run()
    broker.timer.capture(ending=True)
    broker.store.timer_files.step(0)
    broker.store.timer_files.close()
    broker.store.begin()
    World.begin(broker)
    broker.run(START_MS + 200_000)
    assert broker.bodies() == [b"0", b"1", b"2", b"3"]


def test_a_master_that_comes_again_leaves_out_what_its_slave_has_delivered():
    master, slave = World(), Slave()
    for world in (master, slave):
        for number in range(4):
            world.send(b"%d" % number, TIMER_DELAY_SEC=number + 1)
        world.run()
    master.send(b"never copied", TIMER_DELAY_SEC=2)
    master.run()
    slave.follow(*_numbers(master))
    slave.timer.role.act(slave.escape)
    slave.run(START_MS + 2_900)
    assert slave.bodies_sent() == [b"0", b"1"]
    master.now_ms = slave.now_ms
    master.restart()
    assert master.timer.role.take_newer(slave.timer.stated())
    master.run(START_MS + 9_000)
    assert master.bodies() == [b"never copied", b"2", b"3"]
    assert master.timer.facts().waiting == 0
    # And a later start does not deliver them either
    master.restart()
    master.run(START_MS + 20_000)
    assert master.bodies() == [b"never copied", b"2", b"3"]


def test_a_master_whose_queue_is_not_on_its_wheel_yet_leaves_out_what_its_slave_has_delivered():
    master, slave = World(), Slave()
    for world in (master, slave):
        for number in range(4):
            world.send(b"%d" % number, TIMER_DELAY_SEC=number + 1)
    slave.follow(SECOND_MS, 4)
    slave.timer.role.act(slave.escape)
    slave.run(START_MS + 2_900)
    master.now_ms = slave.now_ms
    master.restart()
    assert master.timer.queue.offset == 0 and master.timer.role.take_newer(slave.timer.stated())
    master.run(START_MS + 9_000)
    assert slave.bodies_sent() == [b"0", b"1"] and master.bodies() == [b"2", b"3"]
    assert master.timer.counts["dropped"] == 0


def _numbers(master):
    check = master.timer.stated()
    return check.read_ms, min(check.queue_offset, 4), check.counter


def test_numbers_of_a_slave_that_are_outdated_are_not_taken():
    master = World()
    master.send(b"a", TIMER_DELAY_SEC=1)
    for _ in range(8):
        master.timer.role.has_changed = True
        master.timer.capture()
    outdated = TimerCheck(SECOND_MS + 60_000, 52, 1, 1, 0, SECOND_MS, 1)
    assert not master.timer.role.take_newer(outdated)
    master.run(START_MS + 5_000)
    assert master.bodies() == [b"a"]


def test_a_master_states_what_is_on_the_disk_and_an_acting_slave_what_it_has_sent(slave):
    master = World()
    master.send(b"a", TIMER_DELAY_SEC=1)
    master.run()
    master.timer.capture()
    master.store.timer_files.step(0)
    saved = master.store.timer_files.check
    master.run(START_MS + 9_000)
    assert master.bodies() == [b"a"] and master.timer.stated() == saved
    master.timer.capture()
    master.store.timer_files.step(0)
    assert master.timer.stated().read_ms > START_MS + 2_000
    slave.send(b"a", TIMER_DELAY_SEC=1)
    slave.follow(SECOND_MS, 1, counter=3)
    slave.timer.role.act(slave.escape)
    slave.run(START_MS + 9_000)
    slave.timer.capture()
    assert slave.timer.stated().read_ms == (START_MS + 9_000) // 1_000 * 1_000
    assert slave.timer.stated().counter > 3 + 5


def test_a_message_that_came_late_for_its_second_does_not_count_as_delivered():
    """It is in a later slot of the master's wheel; a slave has it in its own."""
    master, slave = World(), Slave()
    for world in (master, slave):
        world.send(b"late", TIMER_DELAY_SEC=1)
        world.send(b"more", TIMER_DELAY_SEC=60)
    master.now_ms = START_MS + 7_000  # it was busy with something else
    master.timer.slots.pass_finished(master.now_ms)
    master.timer.queue.step(master.now_ms)
    assert master.timer.slots.read_ms > START_MS + 2_000 and master.bodies() == []
    stated = master.timer.stated()
    assert (stated.queue_offset, stated.read_ms <= START_MS + 1_000) == (2, True)
    slave.follow(stated.read_ms, 2)
    slave.timer.role.act(slave.escape)
    slave.run(START_MS + 8_000)
    assert slave.bodies_sent() == [b"late"]
    master.run(START_MS + 8_000)
    assert master.timer.stated().read_ms == master.timer.slots.read_ms


def test_a_rolled_message_goes_to_the_other_master_and_not_to_the_own_log(slave):
    slave = Slave(window_ms=10_000)
    slave.send(b"far", TIMER_DELAY_SEC=100)
    slave.follow(SECOND_MS, 1)
    slave.timer.role.act(slave.escape)
    slave.run(START_MS + 20_000)
    assert slave.sent == [(True, b"far")] and slave.timer.counts["rolled"] == 1
    assert slave.store.reads.max_offset(TIMER_TOPIC, 0) == 1 and slave.timer.facts().waiting == 0


def test_a_recalled_message_is_not_sent(slave):
    slave.send(b"a", key="A", TIMER_DELAY_SEC=3)
    slave.send(b"b", key="B", TIMER_DELAY_SEC=3)
    slave.send(b"0", key="A", TIMER_DELAY_SEC=3, TIMER_DEL_UNIQKEY="A")
    slave.follow(SECOND_MS, 3)
    slave.timer.role.act(slave.escape)
    slave.run(START_MS + 9_000)
    assert slave.bodies_sent() == [b"b"] and slave.timer.counts["deleted"] == 1


def test_a_slave_that_ends_to_act_sends_the_rest_of_the_second_that_it_has_begun_and_no_other(slave):
    for number in range(3):
        slave.send(b"%d" % number, TIMER_DELAY_MS=1_000 + 300 * number)
    slave.send(b"next", TIMER_DELAY_MS=2_000)
    slave.follow(SECOND_MS, 4)
    slave.timer.role.act(slave.escape)
    slave.run(START_MS + 1_000)
    assert slave.bodies_sent() == [b"0"] and slave.timer.has_begun_a_slot
    slave.timer.role.finishes = True
    slave.run(START_MS + 5_000)
    assert slave.bodies_sent() == [b"0", b"1", b"2"] and not slave.timer.has_begun_a_slot
    slave.timer.role.end_acting()
    slave.restart()
    slave.timer.role.act(slave.escape)
    slave.run(START_MS + 6_000)
    assert slave.bodies_sent() == [b"0", b"1", b"2", b"next"]
