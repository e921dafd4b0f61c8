"""broker.pop.in_flight and earlier_pops: what is invisible to a group, from a pop to its end and after a
start."""

import pytest

from broker_store.broker.pop.earlier_pops import RECORDS_PER_STEP, EarlierPops
from broker_store.broker.pop.in_flight import MAX_EARLY_OF_POP, SEARCHING, GroupCounts, InFlight, Left
from broker_store.broker.pop.revive import GRACE_MS
from broker_store.formats.pop_records import PopCheckpoint, PopKey
from broker_store.messages import Message
from tests.broker.pop.test_revive import RETRY, START_MS, World
from tests.support.loop_turns import no_garbage_collection, time_taken


def checkpoint(start=0, diffs=(0, 1, 2), *, group="CG", pop_ms=START_MS, queue_id=1, invisible_ms=10_000):
    return PopCheckpoint(PopKey("TopicX", group, queue_id, start, pop_ms, "broker-a"), invisible_ms, diffs)


def offsets_of(in_flight, group="CG"):
    return [(pop.client, pop.offsets()) for pop in in_flight.pops_of(group)]


def search(world) -> EarlierPops:
    found = EarlierPops(
        world.store, world.timer, world.positions, world.log.in_flight, world.others, topic=world.log.topic
    )
    found.start()
    return found


def to_the_end(search: EarlierPops) -> int:
    """Step until the search ends; return how many steps it took."""
    for steps in range(10_000):
        if search.step(START_MS) is None:
            return steps
    raise AssertionError("the search does not end")


def test_a_pop_is_invisible_until_its_last_message_left_it():
    in_flight = InFlight()
    one, other = checkpoint(), checkpoint(3, (0, 4), queue_id=2)
    in_flight.given(one, 4, "client-1")
    in_flight.given(other, 5, None)
    assert offsets_of(in_flight) == [("client-1", [0, 1, 2]), (None, [3, 7])]
    assert in_flight.invisible == in_flight.invisible_of("CG") == 5
    assert in_flight.invisible_of("CG", "TopicX", 2) == 2 and in_flight.invisible_of("CG", "TopicY") == 0
    in_flight.left(one.key, [1], 4, Left.ACKNOWLEDGED)
    in_flight.left(one.key, [0, 2], 4, Left.CAME_AGAIN)
    in_flight.left(other.key, [7], 5, Left.DROPPED)
    assert offsets_of(in_flight) == [(None, [3])] and in_flight.invisible == 1
    assert in_flight.counts("CG") == GroupCounts(popped=5, acknowledged=1, came_again=2, dropped=1)
    in_flight.finished(other.key)
    assert (in_flight.pops_of("CG"), in_flight.pops_in("TopicX", 2), in_flight.invisible) == ([], [], 0)
    assert in_flight.counts("CG").popped == 5


def test_acknowledgements_too_late_or_twice_have_no_effect_and_are_counted():
    in_flight = InFlight()
    one = checkpoint()
    in_flight.given(one, 4, None)
    in_flight.left(one.key, [0, 1], 4, Left.ACKNOWLEDGED)
    in_flight.left(one.key, [1, 2], 4, Left.ACKNOWLEDGED)
    in_flight.left(one.key, [0, 1, 2], 4, Left.ACKNOWLEDGED)
    counts = in_flight.counts("CG")
    assert (counts.acknowledged, counts.without_effect) == (3, 4)
    in_flight.given(checkpoint(3), 4, None)
    in_flight.left(checkpoint(3).key, [3], 5, Left.ACKNOWLEDGED)  # by another queue of the revive log
    assert (counts.acknowledged, counts.without_effect) == (3, 5)
    in_flight.left(checkpoint(group="Forged").key, [0], 4, Left.ACKNOWLEDGED)
    assert in_flight.counts("Forged") == GroupCounts()


def test_a_message_with_another_invisible_time_keeps_its_client_and_is_not_popped_twice():
    in_flight = InFlight()
    in_flight.given(checkpoint(), 4, "client-1")
    in_flight.given(checkpoint(1, (0,), pop_ms=START_MS + 5), 4, None, changed=checkpoint().key)
    in_flight.left(checkpoint().key, [1], 4, Left.CHANGED)
    assert offsets_of(in_flight) == [("client-1", [0, 2]), ("client-1", [1])]
    assert in_flight.counts("CG") == GroupCounts(popped=3, changed=1)


def test_queues_know_the_pops_of_all_groups():
    in_flight = InFlight()
    in_flight.given(checkpoint(), 4, "a")
    in_flight.given(checkpoint(group="CG2"), 4, "b")
    in_flight.given(checkpoint(queue_id=2), 4, "c")
    assert [pop.client for pop in in_flight.pops_in("TopicX", 1)] == ["a", "b"]
    in_flight.forget_pops("CG")
    in_flight.forget_counts("CG")
    assert [pop.client for pop in in_flight.pops_in("TopicX", 1)] == ["b"] and in_flight.invisible == 3
    assert in_flight.counts("CG") == GroupCounts()


def test_above_the_limit_pops_are_not_kept_and_a_doubt_says_so_for_their_time():
    in_flight = InFlight(max_pops=2)
    for number in range(3):
        in_flight.given(checkpoint(number * 3, invisible_ms=1_000 * (number + 1)), 0, None)
    assert in_flight.invisible_of("CG") == 6 and in_flight.counts("CG").popped == 9
    assert "at most 2 pops" in in_flight.doubt("CG", START_MS + 2_999)
    assert in_flight.doubt("CG", START_MS + 3_000) == in_flight.doubt("CG2", START_MS) == ""
    in_flight.left(checkpoint(6).key, [6], 4, Left.ACKNOWLEDGED)
    assert in_flight.counts("CG").without_effect == 0  # it may be of the pop that was not kept


def test_revive_counts_what_came_again_and_what_is_gone():
    world = World(3)
    world.ack(world.pop(0, 3), 1)
    counts = world.log.in_flight.counts("CG")
    assert (counts.popped, counts.acknowledged, world.log.in_flight.invisible) == (3, 1, 2)
    world.run(10_000 + GRACE_MS)
    assert world.again() == [b"m0", b"m2"]
    assert (counts.came_again, counts.dropped, world.log.in_flight.invisible) == (2, 0, 0)
    key = world.pop(0, 3)
    world.topics.delete("TopicX")
    world.run(11_000)
    assert (counts.dropped, world.log.in_flight.pops_of("CG")) == (3, []) and key.group == "CG"


@pytest.mark.parametrize("is_killed", [False, True])
def test_what_came_again_is_counted_also_of_pops_for_which_there_was_no_room(is_killed):
    world = World(5)
    world.log.in_flight._max_pops = 2
    for start in range(5):
        world.pop(start, 1)
    if is_killed:
        world.run(500)
        world.save()
        world.crash(timer_saved=True)
        world.log.in_flight._max_pops = 2
        to_the_end(search(world))
    world.run(12_000)
    counts = world.log.in_flight.counts("CG")
    assert (counts.came_again, counts.popped, world.log.in_flight.invisible) == (5, 0 if is_killed else 5, 0)


def test_what_comes_again_while_earlier_pops_are_searched_is_counted_once():
    world = World(2)
    world.pop(0, 2)
    world.run(9_500)
    world.save()
    world.crash(timer_saved=True)
    world.log.in_flight.begin_search()
    key = PopKey("TopicX", "CG", 1, 7, START_MS, "broker-a")
    world.log.in_flight.left(key, [7], 0, Left.CAME_AGAIN)
    world.log.in_flight.found(PopCheckpoint(key, 10_000, (0, 1)), 0)
    assert world.log.in_flight.counts("CG").came_again == 1
    assert offsets_of(world.log.in_flight) == [(None, [8])]


def test_what_comes_again_for_a_group_that_was_made_again_is_counted():
    """It was deleted, but not its offsets."""
    world = World(2)
    world.pop(0, 2)
    world.groups.delete("CG")
    world.log.in_flight.forget_counts("CG")
    assert world.log.in_flight.invisible_of("CG") == 2
    world.groups.find_or_create("CG")
    world.run(11_000)
    assert world.again() == [b"m0", b"m1"] and world.log.in_flight.counts("CG").came_again == 2


def test_a_pop_whose_messages_are_acknowledged_does_not_return_when_its_record_is_delivered():
    world = World(3)
    world.ack(world.pop(0, 3), 0, 1, 2)
    world.run(9_500)
    assert world.store.messages(world.log.topic, 0) and world.log.in_flight.invisible == 0


def test_pop_checkpoints_that_the_timer_had_delivered_before_a_start_are_found_in_the_revive_log():
    world = World(3)
    world.ack(world.pop(0, 3), 1)
    world.run(9_500)
    assert world.store.messages(world.log.topic, 0)
    world.save()
    world.crash(timer_saved=True)
    to_the_end(search(world))
    world.revive.step(world.now_ms)
    assert [pop.offsets() for pop in world.log.in_flight.pops_of("CG")] == [[0, 2]]


def test_pops_of_before_a_start_are_found_without_what_was_acknowledged():
    world = World(40)
    keys = [world.pop(start, 2, queue=start % 8) for start in range(0, 40, 2)]
    for key in keys[:10]:
        world.ack(key, key.start_offset, key.start_offset + 1, queue=key.start_offset % 8)
    world.ack(keys[12], 24, queue=0)
    world.run(2_000)
    world.save()
    world.crash(timer_saved=True)
    in_flight = world.log.in_flight
    found = search(world)
    assert in_flight.doubt("CG", world.now_ms) == SEARCHING and in_flight.pops_of("CG") == []
    # An acknowledgement comes before its pop is found
    world.ack(keys[11], 22, queue=6)
    to_the_end(found)
    expected = [[key.start_offset, key.start_offset + 1] for key in keys[10:]]
    expected[1], expected[2] = [23], [25]
    assert sorted(pop.offsets() for pop in in_flight.pops_of("CG")) == expected
    assert in_flight.doubt("CG", world.now_ms) == ""
    assert in_flight.counts("CG") == GroupCounts(acknowledged=1)
    assert {pop.revive_queue for pop in in_flight.pops_of("CG")} == {
        key.start_offset % 8 for key in keys[10:]
    }
    world.run(9_000 + GRACE_MS)
    assert in_flight.pops_of("CG") == [] and len(world.again(RETRY)) == sum(map(len, expected))
    assert in_flight.counts("CG").came_again == sum(map(len, expected))


def test_a_start_without_pops_on_the_wheel_searches_nothing():
    world = World(3)
    found = search(world)
    assert found.step(START_MS) is None and world.log.in_flight.doubt("CG", START_MS) == ""


def test_the_search_takes_few_records_a_step_and_skips_those_of_others(monkeypatch):
    world = World(600)
    for start in range(300):
        world.pop(start, 1)
        later = Message("TopicX", 0, b"x" * 10_000, b"TIMER_DELAY_SEC\x0160\x02TAGS\x01ck\x02")
        assert world.timer.admission.schedule(later, {"TIMER_DELAY_SEC": "60", "TAGS": "ck"}) is None
        world.store.put(later)
    world.run(500)
    world.save()
    world.crash(timer_saved=True)
    found = search(world)
    assert to_the_end(found) >= 600 // RECORDS_PER_STEP
    assert len(world.log.in_flight.pops_of("CG")) == 300


def test_the_search_ends_at_its_limit_and_says_so(monkeypatch):
    monkeypatch.setattr("broker_store.broker.pop.earlier_pops.MAX_RECORDS", 100)
    world = World(300)
    for start in range(300):
        world.pop(start, 1)
    world.run(500)
    world.save()
    world.crash(timer_saved=True)
    to_the_end(search(world))
    assert len(world.log.in_flight.pops_of("CG")) == 100
    assert "the newest 100 records" in world.log.in_flight.doubt("CG", world.now_ms)


@pytest.mark.parametrize("is_cold", [False, True])
def test_reads_from_the_disk_go_on_when_they_arrive(is_cold):
    world = World(10)
    world.pop(0, 10)
    world.run(500)
    world.save()
    world.crash(timer_saved=True)
    found = search(world)
    ready = []
    found.on_ready = lambda: ready.append(found.step(world.now_ms))
    world.store.cold = is_cold
    found.step(world.now_ms)
    if is_cold:
        assert world.log.in_flight.pops_of("CG") == []
        world.store.finish_cold_reads()
        assert ready
    assert [pop.offsets() for pop in world.log.in_flight.pops_of("CG")] == [list(range(10))]


def test_many_pops_that_are_forgotten_together_take_several_steps():
    in_flight = InFlight()
    for number in range(30_000):
        in_flight.given(checkpoint(number, (0,), pop_ms=number, queue_id=number % 2), 0, None)
    in_flight.given(checkpoint(group="Other"), 0, None)
    with no_garbage_collection(), time_taken() as taken:
        in_flight.forget_pops("CG")
    assert taken.readings < 0.1 and in_flight.invisible == 3
    in_flight.forget_topic("TopicX")
    assert in_flight.invisible == 0 and in_flight.pops_in("TopicX", 1) == []
    in_flight.free_some()
    assert in_flight.has_forgotten
    for _ in range(30):
        in_flight.free_some()
    assert not in_flight.has_forgotten


def test_what_is_kept_of_a_pop_that_is_not_found_yet_is_bounded():
    in_flight = InFlight(max_pops=2)
    in_flight.begin_search()
    for number in range(3):
        key = checkpoint(pop_ms=START_MS + number).key
        for _ in range(MAX_EARLY_OF_POP + 10):
            in_flight.left(key, [0], 4, Left.ACKNOWLEDGED)
    assert [len(early) for early in in_flight._early.values()] == [MAX_EARLY_OF_POP] * 2
    in_flight.found(checkpoint(), 4)
    assert offsets_of(in_flight) == [(None, [1, 2])] and in_flight.counts("CG").acknowledged == 1
