"""server.pop_waiting: pops and notifications that wait are woken, and end."""

import pytest

from broker_store.broker.topics import TopicConfig
from broker_store.messages import Message
from broker_store.server.pop_waiting import MAX_CHANGES_PER_TURN, MAX_ENDS_PER_TURN
from tests.support.broker_harness import FakeChannel, turns
from tests.support.pop_calls import bodies, pop_fields, popped, put, run, stocked


async def test_a_pop_waits_for_a_message():
    harness = stocked()
    request = harness.request(200050, **pop_fields(poll_ms=15_000))
    await turns()
    assert harness.channel.answers == []
    info = await harness.ask(200055, consumerGroup="CG", topic="TopicX", queueId=-1)
    assert info.fields == {"pollingNum": "1"}
    put(harness, b"a", queue_id=3)
    await turns()
    (answer,) = harness.channel.answers
    assert (
        answer.opaque == request.opaque and bodies(answer) == [b"a"] and harness.parts.parked_pops.count == 0
    )


async def test_a_pop_waits_for_queues_that_its_topic_gets_later():
    harness = stocked()
    harness.parts.topics.on_change = harness.router.pops.waiting.topics_changed
    groups = 3 * MAX_CHANGES_PER_TURN
    for number in range(groups):
        harness.request(200050, **pop_fields(poll_ms=15_000, group=f"G{number}"))
    await turns()
    harness.parts.topics.put(TopicConfig("TopicX", 8, 8))
    await turns()
    put(harness, b"a", queue_id=7)
    await turns()
    assert [bodies(answer) for answer in harness.channel.answers] == [[b"a"]] * groups
    harness.channel.answers.clear()
    harness.request(200050, **pop_fields(poll_ms=15_000, group="G0"))
    await turns()
    put(harness, b"b", queue_id=9)
    harness.parts.topics.put(TopicConfig("TopicX", 10, 10))
    await turns()
    assert [bodies(answer) for answer in harness.channel.answers] == [[b"b"]]
    harness.request(200050, **pop_fields(poll_ms=15_000, group="G0"))
    await turns()
    harness.parts.topics.put(TopicConfig("TopicX", 1, 1))
    await turns()
    put(harness, b"c", queue_id=9)
    put(harness, b"d", queue_id=0)
    await turns()
    assert [bodies(answer) for answer in harness.channel.answers][1:] == [[b"d"]]


async def test_one_message_wakes_one_pop_of_each_group():
    harness = stocked()
    for group in ("CG", "CG", "CG2"):
        harness.request(200050, **pop_fields(poll_ms=15_000, group=group))
    await turns()
    put(harness, b"a")
    await turns()
    assert [bodies(answer) for answer in harness.channel.answers] == [[b"a"], [b"a"]]
    assert harness.parts.parked_pops.count == 1
    put(harness, *(b"b%d" % number for number in range(40)))
    await turns()
    assert len(bodies(harness.channel.answers[-1])) == 32


async def test_pops_that_wait_share_what_came():
    harness = stocked()
    for _ in range(3):
        harness.request(200050, **pop_fields(poll_ms=15_000, count=1))
    await turns()
    harness.store.appender.put_many([Message("TopicX", 1, body) for body in (b"a", b"b")])
    await turns()
    assert [bodies(answer) for answer in harness.channel.answers] == [[b"a"], [b"b"]]


async def test_a_pop_that_waits_gets_what_comes_again():
    harness = stocked(b"a")
    await popped(harness, invisible_ms=5_000)
    harness.request(200050, **pop_fields(poll_ms=15_000))
    await turns()
    run(harness, 6_000)
    await turns()
    (answer,) = harness.channel.answers
    assert bodies(answer) == [b"a"] and answer.fields["startOffsetInfo"] == "1 0 0"


async def test_the_time_of_a_waiting_pop_ends():
    harness = stocked()
    request = harness.request(200050, **pop_fields(poll_ms=1_000))
    await turns()
    harness.now_ms += 1_001
    harness.router.pops.waiting._expire()
    harness.router.pops.waiting._timer.cancel()
    (answer,) = harness.channel.answers
    assert (answer.opaque, answer.code, answer.remark) == (request.opaque, 210, "NO_MESSAGE_IN_QUEUE")


async def test_pops_whose_time_ends_together_are_answered_in_turns():
    harness = stocked()
    for number in range(2 * MAX_ENDS_PER_TURN):
        harness.request(200050, **pop_fields(poll_ms=1_000, group=f"G{number}"))
    await turns()
    harness.now_ms += 1_001
    harness.router.pops.waiting._expire()
    assert len(harness.channel.answers) == MAX_ENDS_PER_TURN
    await turns()
    assert [answer.code for answer in harness.channel.answers] == [210] * 2 * MAX_ENDS_PER_TURN
    harness.router.pops.waiting._timer.cancel()


async def test_places_to_wait_are_bounded():
    harness = stocked(pop_polling_size=1, max_pop_polling_size=2)
    harness.request(200050, **pop_fields(poll_ms=15_000))
    assert (await popped(harness, poll_ms=15_000)).code == 209
    harness.request(200050, **pop_fields(1, poll_ms=15_000))
    assert (await popped(harness, poll_ms=15_000, group="CG2")).code == 209


async def test_waiting_pops_end_with_their_connection_and_with_the_broker():
    harness = stocked()
    other = FakeChannel(50_001)
    harness.request(200050, channel=other, **pop_fields(poll_ms=15_000))
    harness.request(200050, **pop_fields(poll_ms=15_000))
    await turns()
    harness.parts.parked_pops.channel_closed(other)
    assert harness.parts.parked_pops.count == 1
    harness.router.pops.waiting.stop()
    assert [answer.code for answer in harness.channel.answers] == [210] and other.answers == []
    put(harness, b"a")
    await turns()


async def test_notifications():
    harness = stocked()
    fields = dict(consumerGroup="CG", topic="TopicX", queueId=-1, pollTime=0)
    nothing = {"hasMsg": "false", "pollingFull": "false"}
    assert (await harness.ask(200054, **fields)).fields == nothing
    harness.request(200054, **fields | {"pollTime": 15_000})
    await turns()
    assert harness.channel.answers == []
    put(harness, b"a")
    await turns()
    (answer,) = harness.channel.answers
    assert answer.fields == nothing | {"hasMsg": "true"}
    assert (await harness.ask(200054, **fields)).fields == nothing | {"hasMsg": "true"}
    await popped(harness)
    assert (await harness.ask(200054, **fields)).fields == nothing


async def test_a_waiting_pop_whose_time_ends_before_the_sync_has_one_answer():
    harness = stocked(sync_flush=True)
    harness.request(200050, **pop_fields(poll_ms=1_000))
    await turns()
    put(harness, b"a")
    harness.store.sync()
    await turns()
    harness.now_ms += 1_001
    harness.router.pops.waiting._expire()
    harness.router.pops.waiting._timer.cancel()
    assert harness.channel.answers == []
    harness.store.sync()
    (answer,) = harness.channel.answers
    assert bodies(answer) == [b"a"]


@pytest.mark.parametrize("is_order", [False, True])
@pytest.mark.parametrize("how", ["commit", "clone"])
async def test_a_pop_that_waits_is_answered_when_an_offset_is_set_back(how, is_order):
    harness = stocked(*[b"%d" % number for number in range(10)])
    for name in ("CG", "Other"):
        harness.parts.groups.find_or_create(name)
    harness.parts.offsets.commit("Other", "TopicX", 1, 2)
    order = {"order": "true", "attemptId": "a1"} if is_order else {}
    assert len(bodies(await popped(harness, 1, **order))) == 10
    harness.request(200050, **pop_fields(1, poll_ms=15_000, **order | {"attemptId": "a2"}))
    if how == "commit":
        fields = dict(consumerGroup="CG", topic="TopicX", queueId=1, commitOffset=0)
        assert (await harness.ask(15, **fields)).code == 0
    else:
        assert (await harness.ask(314, srcGroup="Other", destGroup="CG", topic="TopicX")).code == 0
    await turns()
    if how == "commit" and is_order:
        assert harness.channel.answers == []  # that is where the group is: the queue stays blocked
        return
    (answer,) = harness.channel.answers
    assert len(bodies(answer)) == (10 if how == "commit" else 8)
