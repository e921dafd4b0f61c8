"""What was popped and not acknowledged comes again, with the timer and over a kill."""

import pytest

from broker_store.formats import record
from broker_store.messages import Message
from broker_store.protocol import pop
from tests.support.broker_harness import turns
from tests.support.pop_calls import (
    RETRY,
    ack,
    bodies,
    killed,
    pop_fields,
    popped,
    put,
    receipts,
    run,
    saved,
    stocked,
)
from tests.support.wire_samples import sample


async def test_what_is_not_acknowledged_comes_again_after_its_time_and_the_rest_never():
    harness = stocked(b"a", b"b", b"c")
    answer = await popped(harness, 1)
    golden = sample("ack").values
    assert (await ack(harness, receipts(answer, harness)[b"b"])).code == golden["code"] == 0
    run(harness, 10_000)
    assert (await popped(harness)).code == 210
    run(harness, 1_000)
    again = await popped(harness, invisible_ms=20_000)
    assert bodies(again) == [b"a", b"c"]
    assert again.fields["startOffsetInfo"] == "1 0 0" and again.fields["msgOffsetInfo"] == "1 0 0,1"
    one, two = record.decode_all(again.body)
    assert (one.topic, one.reconsume_times, one.queue_id) == ("TopicX", 1, 0)
    assert one.properties["1ST_POP_TIME"] == answer.fields["popTime"]
    assert one.properties["POP_CK"] == (
        f"0 {again.fields['popTime']} 20000 {again.fields['reviveQid']} 1 broker-a 0 0"
    )
    assert pop.read_receipt(two.properties["POP_CK"]).offset == 1
    for receipt in receipts(again, harness).values():
        assert (await ack(harness, receipt)).code == 0
    run(harness, 60_000)
    assert (await popped(harness)).code == 210 and harness.store.max_offset(RETRY, 0) == 2


async def test_a_message_comes_again_and_again_with_the_count_of_its_tries():
    harness = stocked(b"a")
    await popped(harness)
    first_ms = harness.now_ms
    for tries in range(1, 4):
        run(harness, 11_000)
        (stored,) = record.decode_all((await popped(harness)).body)
        assert (stored.reconsume_times, stored.properties["1ST_POP_TIME"]) == (tries, str(first_ms))


async def test_version_2_of_the_retry_topic():
    harness = stocked(b"a", enable_retry_topic_v2=True)
    await popped(harness)
    run(harness, 11_000)
    again = await popped(harness)
    assert again.fields["startOffsetInfo"] == "2 0 0" and harness.store.max_offset("%RETRY%CG+TopicX", 0) == 1
    assert (await ack(harness, receipts(again, harness)[b"a"])).code == 0
    harness.parts.topics.ensure_pop_retry(RETRY)
    harness.store.appender.put(Message(RETRY, 0, b"old"))
    assert bodies(await popped(harness)) == [b"old"]


async def test_version_1_is_not_read_when_it_is_set_so():
    harness = stocked(enable_retry_topic_v2=True, retrieve_message_from_pop_retry_topic_v1=False)
    harness.parts.topics.ensure_pop_retry(RETRY)
    harness.store.appender.put(Message(RETRY, 0, b"old"))
    assert (await popped(harness)).code == 210


@pytest.mark.parametrize(("chance", "first"), [(0, b"new"), (100, b"old")])
async def test_retries_are_read_first_or_last(chance, first):
    harness = stocked(b"new", pop_from_retry_probability=chance)
    harness.parts.topics.ensure_pop_retry(RETRY)
    harness.store.appender.put(Message(RETRY, 0, b"old"))
    assert bodies(await popped(harness, count=1)) == [first]


async def test_with_sync_flush_messages_come_again_too():
    harness = stocked(sync_flush=True)
    put(harness, b"a")
    harness.store.sync()
    harness.request(200050, **pop_fields(1))
    harness.store.sync()
    await turns()
    harness.channel.answers.clear()
    for _ in range(30):
        run(harness, 500)
        harness.store.sync()
    assert harness.store.max_offset(RETRY, 0) == 1


async def test_many_messages_come_again_over_several_steps():
    harness = stocked(*(b"m%d" % number for number in range(500)))
    for _ in range(16):
        await popped(harness, 1)
    run(harness, 11_000)
    assert harness.parts.revive.counts["revived"] == 500
    assert not any(queue.in_hand for queue in harness.parts.revive._queues)
    found = []
    while (answer := await popped(harness)).code == 0:
        found += bodies(answer)
    assert sorted(found) == sorted(b"m%d" % number for number in range(500))


@pytest.mark.parametrize("save_at", ["never", "before", "after pop", "after ack", "after revive"])
async def test_after_a_kill_what_was_acknowledged_never_comes_and_the_rest_at_its_time(save_at):
    harness = stocked(b"a", b"b", b"c", b"d")
    saved(harness)  # a first save, without pops
    first = await popped(harness, 1, count=1)
    await ack(harness, receipts(first, harness)[b"a"])
    if save_at == "before":
        saved(harness)
    answer = await popped(harness, 1, count=2)
    if save_at == "after pop":
        saved(harness)
    await ack(harness, receipts(answer, harness)[b"b"])
    if save_at == "after ack":
        saved(harness)
    run(harness, 3_000)
    harness = killed(harness)
    assert bodies(await popped(harness, 1, invisible_ms=60_000)) == [b"d"]
    run(harness, 6_900)
    assert (await popped(harness)).code == 210
    run(harness, 1_000)
    if save_at == "after revive":
        saved(harness)
    harness = killed(harness)
    again = await popped(harness)
    assert bodies(again) == [b"c"]
    await ack(harness, receipts(again, harness)[b"c"])
    harness = killed(harness)
    run(harness, 30_000)
    assert (await popped(harness)).code == 210 and harness.store.max_offset(RETRY, 0) == 1
