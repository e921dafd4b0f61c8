from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_store.client.assigned_queue import AssignedQueue, ReadAhead
from broker_store.errors import MisuseError
from broker_store.protocol.message_queue import MessageQueue

QUEUE = MessageQueue("T", "b", 0)


def message(offset, size=100):
    return SimpleNamespace(queue_offset=offset, record=SimpleNamespace(size=size))


def test_the_place_is_the_lowest_unfinished_message():
    assigned = AssignedQueue(QUEUE, 5, ReadAhead())
    assert assigned.place == 5
    messages = [message(5), message(6), message(7)]
    assigned.add(messages, 8)
    assigned.finish(messages[1])
    assert (assigned.place, assigned.unfinished_range) == (5, (5, 7))
    assigned.finish(messages[0])
    assert assigned.place == 7
    assigned.finish(messages[2])
    assert (assigned.place, assigned.unfinished_range) == (8, (0, 0))


@given(st.integers(1, 20), st.data())
def test_the_place_never_passes_what_is_not_finished(count, data):
    assigned = AssignedQueue(QUEUE, 0, ReadAhead())
    messages = [message(offset) for offset in range(count)]
    assigned.add(messages, count)
    left = set(range(count))
    for item in data.draw(st.permutations(messages)):
        assert assigned.place == min(left)
        assigned.finish(item)
        left.remove(item.queue_offset)
    assert (assigned.place, assigned.unfinished_bytes) == (count, 0)


def test_there_is_no_room_beyond_the_bounds():
    assigned = AssignedQueue(QUEUE, 0, ReadAhead(messages=2, bytes=1000))
    assigned.add([message(0)], 1)
    assert assigned.room.is_set()
    assigned.add([message(1)], 2)
    assert not assigned.room.is_set()
    assigned.finish(message(0))
    assert assigned.room.is_set()
    assigned.add([message(2, 1000)], 3)
    assigned.finish(message(1))
    assert not assigned.room.is_set()


def test_there_is_no_room_far_behind_a_message_that_hangs():
    assigned = AssignedQueue(QUEUE, 0, ReadAhead(span=10))
    messages = [message(offset) for offset in range(9)]
    assigned.add(messages, 9)
    for done in messages[1:]:
        assigned.finish(done)
    assert assigned.room.is_set() and assigned.unfinished == 1
    assigned.add([], 10)
    assert not assigned.room.is_set()
    assigned.finish(messages[0])
    assert assigned.room.is_set() and assigned.place == 10


@pytest.mark.parametrize("name", ["messages", "bytes", "span", "count"])
def test_a_bound_of_nothing_is_refused(name):
    with pytest.raises(MisuseError, match=name):
        ReadAhead(**{name: 0})


def test_a_place_set_from_outside_forgets_what_was_read():
    assigned = AssignedQueue(QUEUE, 0, ReadAhead())
    assigned.add([message(0), message(1)], 2)
    assigned.move(0)
    assert (assigned.place, assigned.unfinished, assigned.generation) == (0, 0, 1)
    assigned.finish(message(1))
    assert assigned.place == 0


def test_a_dropped_queue_wakes_who_waits_for_room():
    assigned = AssignedQueue(QUEUE, 0, ReadAhead(messages=1))
    assigned.add([message(0)], 1)
    assigned.drop()
    assert assigned.room.is_set() and assigned.dropped


def test_it_is_idle_when_nothing_is_handled():
    assigned = AssignedQueue(QUEUE, 0, ReadAhead())
    assigned.begin_handling()
    assigned.begin_handling()
    assigned.end_handling()
    assert not assigned.idle.is_set()
    assigned.end_handling()
    assert assigned.idle.is_set()
