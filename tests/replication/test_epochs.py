"""Epochs of a log, who is in sync, and what a master in controller mode sends."""

import itertools

import pytest

from broker_store.engine.disk.disk import Disk
from broker_store.errors import DamagedStoreError
from broker_store.formats.epochs import FILE_NAME, MAX_EPOCHS, Epoch
from broker_store.protocol import ha_epochs
from broker_store.protocol.controller_bodies import SyncStateSet
from broker_store.protocol.ha_epochs import FrameHead, Greeting, History
from broker_store.replication.epochs import EpochHistory
from broker_store.replication.feeder import Slave
from broker_store.replication.sync_state_set import InSync
from broker_store.replication.wires import EpochWire
from tests.engine.test_log_copy import fill, log_of
from tests.replication.test_feeder import Port, Seconds
from tests.support.hand_store import opened


def history_of(root, *entries):
    history = EpochHistory(Disk(), root)
    for entry in entries:
        history.begin(Epoch(*entry))
    return history


# Epochs


def test_epochs_are_there_after_a_start(tmp_path):
    history = history_of(tmp_path, (1, 0), (2, 700))
    assert history.last == 2
    assert EpochHistory(Disk(), tmp_path).entries == history.entries == ((1, 0), (2, 700))
    assert EpochHistory(Disk(), tmp_path / "none").last == -1


def test_an_epoch_without_a_byte_is_replaced_by_the_next(tmp_path):
    assert history_of(tmp_path, (1, 0), (2, 700), (5, 700)).entries == ((1, 0), (5, 700))


def test_a_cut_takes_away_epochs_that_begin_after_it(tmp_path):
    history = history_of(tmp_path, (1, 0), (2, 700), (3, 900))
    history.cut(900)
    assert EpochHistory(Disk(), tmp_path).entries == history.entries == ((1, 0), (2, 700))
    history.cut(0)
    assert history.entries == () and not (tmp_path / FILE_NAME).exists()


def test_epochs_before_the_begin_of_the_log_go_away(tmp_path):
    history = history_of(tmp_path, (1, 0), (2, 700), (3, 900))
    history.drop_before(700)
    assert history.entries == ((2, 700), (3, 900))
    history.drop_before(5_000)
    assert history.entries == ((3, 900),)


def test_the_number_of_epochs_is_bounded(tmp_path):
    history = EpochHistory(Disk(), tmp_path)
    history.entries = tuple(Epoch(number, number) for number in range(MAX_EPOCHS))
    history.begin(Epoch(MAX_EPOCHS, MAX_EPOCHS))
    assert len(history.entries) == MAX_EPOCHS and history.entries[0] == (1, 1)


def test_each_offset_has_an_epoch(tmp_path):
    history = history_of(tmp_path, (1, 100), (2, 700))
    assert [history.at(offset) for offset in (0, 100, 699)] == [((1, 100), 700)] * 3
    assert history.at(700) == history.at(1 << 40) == ((2, 700), None)


def test_a_file_of_epochs_that_cannot_be_read_stops_the_start(tmp_path):
    (tmp_path / FILE_NAME).write_bytes(b"1\n17\n1-0\n")
    with pytest.raises(DamagedStoreError, match="CRC"):
        EpochHistory(Disk(), tmp_path)


# The sync state set


def slave(number, reported=None, caught_up_s=None, connected_s=100.0, is_learner=False):
    return Slave(
        None, "a:1", connected_s, 0.0, 0.0, reported,
        number=number, caught_up_s=caught_up_s, is_learner=is_learner,
    )  # fmt: skip


def in_sync(*members, epoch=3, behind_s=15.0):
    seconds = Seconds()
    return InSync(1, SyncStateSet(frozenset(members), epoch), behind_s, seconds), seconds


def wanted(master, *slaves, confirmed=400, begin=0):
    master.note(slaves, begin)
    return master.wanted(slaves, confirmed, begin)


def test_what_all_of_the_set_have_is_held():
    one, _ = in_sync(1, 2, 3)
    assert one.held_by_all([slave(2, 500), slave(3, 400), slave(4, 10)], 900) == 400
    assert one.held_by_all([slave(2, 500), slave(3)], 900) is None
    assert one.held_by_all([slave(2, 500)], 900) is None
    # of two connections of one slave the newer counts
    assert one.held_by_all([slave(2, 500), slave(3, 400), slave(3, 300)], 900) == 300
    alone, _ = in_sync(1)
    assert alone.held_by_all([slave(2, 5)], 900) == 900


@pytest.mark.parametrize(
    ("one", "joins"),
    [
        (slave(2, 500), True),
        (slave(2, 499), False),
        (slave(2, 500, is_learner=True), False),
        (slave(2), False),
    ],
)
def test_a_slave_joins_when_it_has_what_is_confirmed_and_the_epoch(one, joins):
    master, _ = in_sync(1)
    assert wanted(master, one, confirmed=400, begin=500) == ({1, 2} if joins else None)
    assert wanted(master, one, confirmed=500, begin=400) == ({1, 2} if joins else None)


def test_a_slave_leaves_with_its_connection_and_when_it_lacks_something_for_long():
    master, seconds = in_sync(1, 2)
    assert wanted(master, slave(2, 300)) is None
    seconds.now += 14
    assert wanted(master, slave(2, 300)) is None
    assert wanted(master) == {1}
    seconds.now += 2
    assert wanted(master, slave(2, 300)) == {1}
    assert wanted(master, slave(2, 300, caught_up_s=110.0)) is None


def test_a_member_has_time_to_connect_to_a_new_master():
    master, seconds = in_sync(1, 2)
    assert wanted(master) is None
    assert wanted(master, slave(2)) is None
    seconds.now += 16
    assert wanted(master) == {1}
    master, seconds = in_sync(1, 2)
    seconds.now += 16
    assert wanted(master, slave(2)) == {1}


def test_a_slave_that_follows_closely_is_counted_before_it_joins():
    """Under load its report never reaches what a master alone has confirmed meanwhile."""
    master, seconds = in_sync(1)
    close = slave(2, 380, caught_up_s=seconds.now - 0.5)
    assert wanted(master, close, begin=300) is None and master.counted == {1, 2}
    close.reported = 400  # what is confirmed has waited for it
    assert wanted(master, close, begin=300) == {1, 2}
    master.take(SyncStateSet(frozenset({1, 2}), 4))
    assert wanted(master, close, begin=300) is None and master.counted == {1, 2}


@pytest.mark.parametrize(
    "changes", [{"caught_up_s": 98.0}, {"caught_up_s": None}, {"is_learner": True}, {"reported": 299}]
)
def test_a_slave_that_does_not_follow_closely_is_not_counted(changes):
    master, seconds = in_sync(1)
    one = slave(2, **{"reported": 380, "caught_up_s": seconds.now, **changes})
    assert wanted(master, one, begin=300) is None and master.counted == {1}


def test_sends_wait_for_a_slave_that_joins_for_a_short_time_only():
    master, seconds = in_sync(1)
    close = slave(2, 380, caught_up_s=seconds.now)
    master.note([close], 0)
    assert master.counted == {1, 2}
    for passed, counted in ((1.9, {1, 2}), (0.2, {1}), (5.0, {1}), (5.1, {1, 2})):
        seconds.now += passed
        close.caught_up_s = seconds.now
        master.note([close], 0)
        assert master.counted == counted, passed
    master.note([], 0)
    assert master.counted == {1}


def test_until_the_controller_answers_both_sets_are_counted():
    master, _ = in_sync(1, 2)
    master.ask(frozenset({1}))
    assert master.counted == {1, 2}
    master.ask(frozenset({1, 3}))
    assert master.counted == {1, 2, 3} and master.members == {1, 2}
    assert not master.take(SyncStateSet(frozenset({1}), 3))
    assert master.take(SyncStateSet(frozenset({1, 3}), 4))
    assert master.counted == master.members == {1, 3}
    master.ask(frozenset({1}))
    master.refused()
    assert master.counted == {1, 3}


# What a master sends


@pytest.fixture
def store(tmp_path):
    with opened(tmp_path / "store") as opened_store:
        fill(opened_store, 40)
        yield opened_store


def port_of(store, *entries, **changes):
    history = history_of(store.root, *entries)
    wire = EpochWire(history, lambda: store.confirmed)
    return Port(store, wire=wire, ha_transfer_batch_size=1_024, ha_send_heartbeat_interval=5_000, **changes)


@pytest.fixture
def port(store):
    made = port_of(store, (1, 0), (2, 700))
    yield made
    made.feeder.close()
    for one in made.sockets:
        one.close()


def greeted(port, number=2):
    """A slave that has greeted, and the history that it got."""
    one = port.connect()
    one.sendall(ha_epochs.write_greeting(Greeting(number)))
    head = port.read(one, ha_epochs.HISTORY_HEAD.size)
    return one, ha_epochs.read_history(head, port.read(one, ha_epochs.history_bytes(head)))


def frame(port, one):
    head = ha_epochs.read_frame_head(port.read(one, ha_epochs.FRAME_HEAD.size))
    return head, port.read(one, head.size)


def test_a_slave_gets_the_epochs_and_the_log_and_no_frame_of_two_epochs(port):
    one, there = greeted(port)
    end = port.store.log.wrote
    assert there == History(((1, 0), (2, 700)), end)
    assert port.feeder.slaves[0].number == 2 and port.feeder.slaves[0].reported is None
    one.sendall(ha_epochs.write_report(0))
    data, at, borders = b"", 0, []
    while at < end:
        head, piece = frame(port, one)
        assert head.offset == at and head.confirmed == end
        assert head.epoch == ((1, 0) if at < 700 else (2, 700))
        data, at = data + piece, at + head.size
        borders.append(at)
    assert data == log_of(port.store)[:end] and 700 in borders
    one.sendall(ha_epochs.write_report(end))
    port.step(2)
    assert port.feeder.slaves[0].reported == end and port.feeder.slaves[0].caught_up_s == port.seconds.now


def test_a_heartbeat_says_what_is_confirmed(port, monkeypatch):
    one, there = greeted(port)
    confirmed = itertools.count(there.end, 5)
    one.sendall(ha_epochs.write_report(there.end))
    port.step(2)
    port.after(5.0)
    assert frame(port, one) == (FrameHead(0, there.end, Epoch(2, 700), there.end), b"")
    wire = port.feeder._wire
    monkeypatch.setattr(wire, "_confirmed", lambda: next(confirmed))
    port.after(0.2)  # soon: more is confirmed than the last frame said
    head, _ = frame(port, one)
    assert head.size == 0 and head.confirmed > there.end


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\n",
        ha_epochs.write_report(0) + bytes(4),
        ha_epochs.write_greeting(Greeting(2)) * 2,
        ha_epochs.write_greeting(Greeting(2)) + ha_epochs.write_report(1 << 40),
        ha_epochs.write_greeting(Greeting(2)) + ha_epochs.write_report(-1),
    ],
)
def test_a_slave_that_says_something_else_is_closed(port, said):
    one = port.connect()
    one.sendall(said)
    port.step(3)
    assert port.is_closed(one) and port.feeder.slaves == ()


def test_a_slave_has_caught_up_when_it_has_what_there_was_at_a_report(port):
    one, there = greeted(port)
    half = there.end // 2
    one.sendall(ha_epochs.write_report(half))
    port.step(2)
    (known,) = port.feeder.slaves
    began_s = port.seconds.now
    assert (known.goal, known.caught_up_s) == (there.end, None)
    fill(port.store, 5)
    port.seconds.now += 3
    one.sendall(ha_epochs.write_report(there.end))
    port.step(2)
    assert known.caught_up_s == began_s and known.goal == port.store.log.wrote > there.end


@pytest.mark.parametrize("reported", [0, 1])
def test_a_slave_without_a_log_may_have_the_last_file_alone(tmp_path, reported):
    with opened(tmp_path / "files", mapped_file_size_commit_log=1 << 14) as files:
        fill(files, 400)
        last = files.log.files[-1].base
        assert last > files.log.minimum == 0
        port = port_of(files, (1, 0), (2, 700))
        one = port.connect()
        one.sendall(ha_epochs.write_greeting(Greeting(2, from_last_file=True)))
        head = port.read(one, ha_epochs.HISTORY_HEAD.size)
        port.read(one, ha_epochs.history_bytes(head))
        one.sendall(ha_epochs.write_report(reported))
        first, _ = frame(port, one)
        assert first.offset == (reported or last)  # one that has a log goes on where it ends
        port.feeder.close()
        one.close()
