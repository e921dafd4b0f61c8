"""Where a pop begins: offsets that are set, and topics and groups that are deleted."""

import pytest

from broker_store.broker.topics import TopicConfig
from broker_store.errors import DiskFullError
from broker_store.server.admin.groups import forget_group
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


async def test_offsets_are_reset_while_a_group_pops():
    harness = stocked(b"a", b"b", b"c")
    await popped(harness, 1)
    harness.parts.offsets.reset("CG", "TopicX", 1, 1)
    assert bodies(await popped(harness, 1)) == [b"b", b"c"]
    harness.request(200050, **pop_fields(1, poll_ms=15_000))
    await turns()
    harness.parts.offsets.reset("CG", "TopicX", 1, 2)
    harness.router.reset("CG", "TopicX", [1])
    await turns()
    assert bodies(harness.channel.answers[-1]) == [b"c"]


async def test_a_new_group_begins_where_its_mode_says():
    harness = stocked(b"a", b"b", given={"memory_bytes": 1})
    assert bodies(await popped(harness, 1, mode=1)) == [b"b"]
    assert bodies(await popped(harness, 1, mode=0, group="CG2")) == [b"a", b"b"]
    harness = stocked(b"a", b"b")
    assert bodies(await popped(harness, 1, mode=1)) == [b"a", b"b"]


@pytest.mark.parametrize(("committed", "found"), [(7, []), (-5, [b"a"])])
async def test_wrong_offsets_are_corrected(committed, found):
    harness = stocked(b"a")
    harness.parts.offsets.commit("CG", "TopicX", 1, committed)
    assert bodies(await popped(harness, 1)) == found
    put(harness, b"b")
    assert bodies(await popped(harness, 1)) == [b"b"]


async def test_a_deleted_topic_takes_the_retry_topics_of_its_pops_along():
    harness = stocked(b"a")
    await popped(harness)
    run(harness, 11_000)
    await popped(harness)
    harness.parts.topics.put(TopicConfig("Other", 1, 1))
    harness.parts.topics.ensure_pop_retry("%RETRY%CG_Other")
    assert harness.parts.topics.get(RETRY) is not None
    assert (await harness.ask(215, topic="TopicX")).code == 0
    assert harness.parts.topics.get(RETRY) is None and harness.store.max_offset(RETRY, 0) == 0
    assert harness.parts.offsets.of("CG", RETRY) == {}
    assert harness.parts.topics.get("%RETRY%CG_Other") is not None
    run(harness, 20_000)
    assert harness.parts.topics.get(RETRY) is None


async def test_pops_of_a_deleted_topic_bring_back_no_message_of_a_new_one():
    harness = stocked(*[b"old"] * 40)
    for _ in range(40):
        await popped(harness, 1, count=1)
    assert harness.parts.in_flight.invisible == 40
    assert (await harness.ask(215, topic="TopicX")).code == 0
    assert harness.parts.in_flight.invisible == 0
    harness.parts.topics.put(TopicConfig("TopicX", 4, 4))
    put(harness, *[b"new"] * 40)
    harness.now_ms += 1_000
    new = await popped(harness, 1, invisible_ms=30_000)
    assert len(bodies(new)) == 32 and harness.parts.in_flight.invisible == 32
    run(harness, 20_000)
    assert harness.store.max_offset(RETRY, 0) == 0 and harness.parts.in_flight.invisible == 32
    run(harness, 20_000)  # those of the new topic come
    assert harness.store.max_offset(RETRY, 0) == 32


async def test_what_a_group_acknowledges_after_its_deletion_does_not_come_again():
    """The position of a pop before the deletion is not committed yet when the new group pops."""
    harness = stocked(*[b"old"] * 10)
    assert len(bodies(await popped(harness, 1))) == 10
    assert (await harness.ask(207, groupName="CG", cleanOffset="true")).code == 0
    put(harness, *[b"new"] * 5)
    given = bodies(await popped(harness, 1))
    for _ in range(5):
        run(harness, 100)
        given += bodies(await popped(harness, 1))
    # The new group begins as a new group does, and gets each message once.
    assert given == [b"old"] * 10 + [b"new"] * 5
    assert harness.parts.offsets.query("CG", "TopicX", 1) == 15


@pytest.mark.parametrize("is_killed", [False, True])
async def test_pops_of_a_deleted_group_bring_back_nothing_for_a_new_one(is_killed):
    """It gets all messages, as a new group does, and what it acknowledges does not come again."""
    harness = stocked(b"a", b"b", b"c")
    saved(harness)
    await popped(harness, 1, invisible_ms=2_000)
    saved(harness)
    assert (await harness.ask(207, groupName="CG", cleanOffset="true")).code == 0
    if is_killed:
        harness = killed(harness)
    harness.now_ms += 1
    answer = await popped(harness, 1, invisible_ms=30_000)
    assert bodies(answer) == [b"a", b"b", b"c"]
    for receipt in list(receipts(answer, harness).values())[:2]:
        assert (await ack(harness, receipt)).code == 0
    if is_killed:  # the offsets are saved with what the new group did, and not forgotten again
        saved(harness)
        harness = killed(harness)
    run(harness, 20_000)
    assert bodies(await popped(harness, 1)) == []
    run(harness, 15_000)
    assert bodies(await popped(harness, 1)) == [b"c"]


@pytest.mark.parametrize("is_killed", [False, True])
async def test_a_group_that_is_deleted_without_its_offsets_goes_on_and_gets_what_it_popped(is_killed):
    harness = stocked(b"a", b"b")
    await popped(harness, 1, invisible_ms=2_000)
    saved(harness)
    assert (await harness.ask(207, groupName="CG", cleanOffset="false")).code == 0
    if is_killed:
        harness = killed(harness)
    assert bodies(await popped(harness, 1)) == []
    run(harness, 4_000)
    assert sorted(bodies(await popped(harness, 1))) == [b"a", b"b"]


async def test_the_state_of_a_deleted_group_in_order_does_not_come_back_after_a_kill():
    harness = stocked(b"a", b"b")
    saved(harness)
    order = {"order": "true", "attemptId": "a1"}
    answer = await popped(harness, 1, count=1, **order)
    assert (await ack(harness, receipts(answer, harness)[b"a"])).code == 0
    assert bodies(await popped(harness, 1, **order)) == [b"b"]
    assert (await harness.ask(207, groupName="CG", cleanOffset="true")).code == 0
    after = killed(harness)
    assert bodies(await popped(after, 1, **order | {"attemptId": "a2"})) == [b"a", b"b"]


async def test_a_group_whose_deletion_cannot_be_noted_stays(monkeypatch):
    harness = stocked(b"a")
    await popped(harness, 1)

    def fail(name, data):
        raise DiskFullError("no room")

    monkeypatch.setattr(harness.store, "write_config", fail)
    with pytest.raises(DiskFullError):
        forget_group(harness.parts, "CG", clean_offset=True)
    assert harness.parts.groups.get("CG") is not None
    assert harness.parts.offsets.query("CG", "TopicX", 1) == 0


@pytest.mark.parametrize("how", ["commit", "clone"])
async def test_an_offset_that_is_set_back_counts_for_the_next_pop(how):
    """The position of the last pop is not committed yet."""
    harness = stocked(*[b"%d" % number for number in range(10)])
    for name in ("CG", "Other"):
        harness.parts.groups.find_or_create(name)
    harness.parts.offsets.commit("Other", "TopicX", 1, 2)
    assert len(bodies(await popped(harness, 1))) == 10
    if how == "commit":
        fields = dict(consumerGroup="CG", topic="TopicX", queueId=1, commitOffset=2)
        assert (await harness.ask(15, **fields)).code == 0
    else:
        assert (await harness.ask(314, srcGroup="Other", destGroup="CG", topic="TopicX")).code == 0
    assert harness.parts.offsets.query("CG", "TopicX", 1) == 2
    assert bodies(await popped(harness, 1)) == [b"%d" % number for number in range(2, 10)]
    run(harness, 1_000)
    assert harness.parts.offsets.query("CG", "TopicX", 1) == 10


@pytest.mark.parametrize("is_order", [False, True])
@pytest.mark.parametrize("source", ["Other", "CG"])
async def test_a_clone_leaves_queues_alone_that_it_does_not_set(source, is_order):
    """The position of the last pop is not committed yet."""
    harness = stocked(*[b"%d" % number for number in range(10)])
    for name in ("CG", "Other"):
        harness.parts.groups.find_or_create(name)
    harness.parts.offsets.commit("Other", "TopicX", 2, 0)
    assert len(bodies(await popped(harness, 1, count=6, order=is_order, attemptId="a1"))) == 6
    assert (await harness.ask(314, srcGroup=source, destGroup="CG", topic="TopicX")).code == 0
    after = await popped(harness, 1, order=is_order, attemptId="a2")
    assert bodies(after) == ([] if is_order else [b"%d" % number for number in range(6, 10)])


async def test_offsets_of_a_deleted_topic_do_not_come_back_after_a_kill():
    harness = stocked(*[b"old"] * 20)
    await popped(harness, 1)
    harness.parts.offsets.commit("Puller", "TopicX", 1, 20)
    saved(harness)
    assert (await harness.ask(215, topic="TopicX")).code == 0
    harness.parts.topics.put(TopicConfig("TopicX", 4, 4))
    put(harness, *[b"new"] * 30)
    after = killed(harness)
    assert after.parts.offsets.query("Puller", "TopicX", 1) is None
    assert bodies(await popped(after, 1)) == [b"new"] * 30
