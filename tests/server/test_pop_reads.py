"""server.pop: cold reads, and peers that end or do not read meanwhile."""

import pytest

from broker_store.broker.topics import TopicConfig
from broker_store.formats.timer_log import TIMER_TOPIC
from broker_store.protocol.command import Command
from tests.support.broker_harness import FakeChannel, turns
from tests.support.pop_calls import bodies, pop_fields, popped, put, run, stocked


async def test_cold_reads_lock_a_queue_for_the_group():
    harness = stocked(b"a")
    harness.store.cold = True
    first = harness.request(200050, **pop_fields(1))
    second = harness.request(200050, **pop_fields(1, poll_ms=15_000))
    await turns()
    assert harness.store.finish_cold_reads() == 1
    await turns()
    (answer,) = harness.channel.answers
    assert answer.opaque == first.opaque and bodies(answer) == [b"a"]
    harness.store.cold = False
    put(harness, b"b")
    await turns()
    assert harness.channel.answers[-1].opaque == second.opaque and bodies(harness.channel.answers[-1]) == [
        b"b"
    ]


async def test_a_topic_that_is_deleted_during_a_cold_read_gives_nothing_of_it():
    harness = stocked(*[b"old"] * 20)
    harness.store.cold = True
    request = harness.request(200050, **pop_fields(1))
    await turns()
    assert (await harness.ask(215, topic="TopicX")).code == 0
    harness.parts.topics.put(TopicConfig("TopicX", 4, 4))
    put(harness, b"new")
    harness.store.finish_cold_reads()
    await turns()
    (answer,) = harness.channel.answers
    assert (answer.opaque, answer.code) == (request.opaque, 210)
    harness.store.cold = False
    assert bodies(await popped(harness, 1)) == [b"new"]


CLOSED = {
    "deleted": (207, dict(groupName="CG", cleanOffset=False), b""),
    "deleted with its offsets": (207, dict(groupName="CG", cleanOffset=True), b""),
    "disabled": (200, {}, b'{"groupName":"CG","consumeEnable":false}'),
    "forbidden": (353, dict(group="CG", topic="TopicX", readable=False), b""),
}


@pytest.mark.parametrize("how", CLOSED)
@pytest.mark.parametrize("is_parked", [True, False])
async def test_a_pop_whose_group_is_deleted_or_closed_meanwhile_takes_no_message(how, is_parked):
    """A message given to a group that is gone could not come again: a new one of the name would miss it."""
    harness = stocked(*[] if is_parked else [b"a"])
    harness.store.cold = not is_parked
    harness.request(200050, **pop_fields(1, poll_ms=15_000))
    await turns()
    code, fields, body = CLOSED[how]
    assert (await harness.ask(code, body, **fields)).code == 0
    if is_parked:
        put(harness, b"a")
    harness.store.finish_cold_reads()
    harness.store.cold = False
    await turns(20)
    assert harness.channel.answers == [] and harness.store.max_offset(TIMER_TOPIC, 0) == 0
    if how.startswith("deleted"):
        run(harness, 15_000)
        assert bodies(await popped(harness, 1)) == [b"a"]


async def test_a_notification_does_not_say_that_a_deleted_group_has_messages():
    harness = stocked()
    fields = pop_fields(1, poll_ms=15_000)
    harness.request(
        200054, **{name: fields[name] for name in ("consumerGroup", "topic", "queueId", "pollTime")}
    )
    await turns()
    assert (await harness.ask(207, groupName="CG", cleanOffset=True)).code == 0
    put(harness, b"a")
    await turns(20)
    assert harness.channel.answers == []


async def test_a_connection_that_ends_during_a_cold_read_takes_no_message():
    harness = stocked(b"a")
    harness.store.cold = True
    other = FakeChannel(50_001)
    harness.request(200050, channel=other, **pop_fields(1))
    other.closed = True
    harness.request(200050, **pop_fields(1, poll_ms=15_000))
    await turns()
    harness.store.finish_cold_reads()
    await turns()
    harness.store.finish_cold_reads()
    await turns()
    assert bodies(harness.channel.answers[-1]) == [b"a"] and harness.store.max_offset(TIMER_TOPIC, 0) == 1


async def test_a_peer_that_does_not_read_is_given_nothing():
    harness = stocked(b"a")
    harness.store.cold = True
    harness.request(200050, **pop_fields(1))
    harness.channel.paused = True
    harness.store.finish_cold_reads()
    assert harness.store.max_offset(TIMER_TOPIC, 0) == 0
    harness.channel.resume()
    harness.store.finish_cold_reads()
    assert bodies(harness.channel.answers[-1]) == [b"a"]


async def test_a_peer_that_reads_again_after_the_time_of_its_pop_has_one_answer():
    """A second one would have messages that no client reads, and that are invisible."""
    harness = stocked()
    request = harness.request(200050, **pop_fields(1, poll_ms=15_000))
    await turns()
    harness.store.cold = True
    put(harness, b"a")
    await turns()
    harness.channel.paused = True
    assert harness.store.finish_cold_reads() == 1
    harness.store.cold = False
    harness.now_ms += 15_000
    harness.router.pops.waiting._expire()
    harness.channel.resume()
    await turns()
    (answer,) = harness.channel.answers
    assert (answer.opaque, answer.code) == (request.opaque, 210)
    assert bodies(await popped(harness, 1)) == [b"a"]


async def _reads_its_second_queue(harness) -> Command:
    """Return a waiting pop that found a message in one queue, and reads the next one from disk."""
    request = harness.request(200050, **pop_fields(poll_ms=15_000))
    await turns()
    harness.store.cold = True
    put(harness, b"a", queue_id=1)
    put(harness, b"a", queue_id=2)
    await turns()
    assert harness.store.finish_cold_reads() == 1
    await turns()
    assert harness.channel.answers == []
    return request


@pytest.mark.parametrize("stops", [False, True])
async def test_a_pop_whose_time_ends_while_it_reads_its_second_queue_gets_the_messages_of_the_first(stops):
    """They are invisible for an hour, and no client would get them."""
    harness = stocked()
    request = await _reads_its_second_queue(harness)
    harness.now_ms += 15_000
    if stops:
        harness.router.pops.waiting.stop()
    else:
        harness.router.pops.waiting._expire()
    (answer,) = harness.channel.answers
    assert (answer.opaque, bodies(answer)) == (request.opaque, [b"a"])
    harness.store.finish_cold_reads()
    await turns()
    assert harness.channel.answers == [answer] and harness.router.pops._read_on == {}
    harness.store.cold = False
    assert bodies(await popped(harness)) == [b"a"]


async def test_a_peer_that_does_not_read_any_more_is_given_the_messages_of_the_first_queue():
    """They are invisible, and its connection may end before it reads again."""
    harness = stocked()
    await _reads_its_second_queue(harness)
    harness.channel.paused = True
    harness.store.finish_cold_reads()
    await turns()
    (answer,) = harness.channel.answers
    assert bodies(answer) == [b"a"]


async def test_a_pop_that_waits_for_a_retry_topic_that_another_one_reads_gets_what_that_leaves():
    harness = stocked(b"a")
    await popped(harness, 1, invisible_ms=1_000)
    run(harness, 3_000)
    harness.store.cold = True
    other = FakeChannel(50_001)
    harness.request(200050, channel=other, **pop_fields(1))
    harness.request(200050, **pop_fields(2, poll_ms=15_000))
    await turns()
    other.closed = True
    harness.store.cold = False
    assert harness.store.finish_cold_reads() == 1
    await turns()
    (answer,) = harness.channel.answers
    assert bodies(answer) == [b"a"]


@pytest.mark.parametrize("how", ["commit", "clone"])
@pytest.mark.parametrize(("wanted", "again"), [("*", [b"a", b"b", b"c"]), ("First", [b"a"])])
async def test_an_offset_that_is_set_back_during_a_cold_read_counts(how, wanted, again):
    """What was read lies after it, whether it is given or the filter rejects it."""
    harness = stocked(b"a", b"b", b"c", tags=("First", "TagA", "TagA"))
    await popped(harness, 1, count=2)
    harness.parts.pop_positions.settle(harness.store.flushed)
    harness.parts.groups.find_or_create("Other")
    harness.store.cold = True
    request = harness.request(200050, **pop_fields(1, exp=wanted, expType="TAG"))
    await turns()
    if how == "commit":
        place = dict(consumerGroup="CG", topic="TopicX", queueId=1)
        assert (await harness.ask(15, **place, commitOffset=0)).code == 0
    else:
        harness.parts.offsets.commit("Other", "TopicX", 1, 0)
        assert (await harness.ask(314, srcGroup="Other", destGroup="CG", topic="TopicX")).code == 0
    while harness.store.finish_cold_reads():
        await turns()
    (answer,) = [answer for answer in harness.channel.answers if answer.opaque == request.opaque]
    assert bodies(answer) == again
