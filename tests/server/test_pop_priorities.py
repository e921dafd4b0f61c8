"""server.pop_places: pops of a topic whose messages have priorities, and sends to it."""

import asyncio

import pytest

from broker_store.broker.groups import SubscriptionGroup
from broker_store.broker.topics import TopicConfig
from broker_store.formats.timer_log import TIMER_TOPIC
from broker_store.formats.topics import HALF_TOPIC, SCHEDULE_TOPIC
from broker_store.messages import Message
from tests.support.broker_harness import turns
from tests.support.pop_calls import RETRY, bodies, pop_fields, popped, put, run, stocked

PRIORITY = "_SYS_MSG_PRIORITY_"


def with_priorities(kind="PRIORITY", **options):
    """Return a harness whose TopicX has a message of each priority: `q0`, `q1`, `q2` and `q3`."""
    harness = stocked(**options)
    harness.parts.topics.put(TopicConfig("TopicX", 4, 4, attributes={"message.type": kind}))
    for queue_id in (1, 3, 0, 2):
        put(harness, b"q%d" % queue_id, queue_id=queue_id)
    return harness


def with_factor(harness, factor):
    harness.parts.groups.put(SubscriptionGroup("CG", attributes={"priority.factor": factor}))
    return harness


async def one_by_one(harness, count=4, **options):
    return [bodies(await popped(harness, count=1, **options))[0] for _ in range(count)]


@pytest.mark.parametrize("ascends", [True, False])
async def test_the_highest_priority_comes_first(ascends):
    harness = with_priorities(priority_order_asc=ascends)
    wanted = [b"q3", b"q2", b"q1", b"q0"] if ascends else [b"q0", b"q1", b"q2", b"q3"]
    peeked = await harness.ask(200052, consumerGroup="CG", topic="TopicX", queueId=-1, maxMsgNums=32)
    assert bodies(peeked) == wanted
    assert bodies(await popped(harness)) == wanted, "one pop takes them from the highest on"
    assert await one_by_one(with_priorities(priority_order_asc=ascends)) == wanted


async def test_a_lower_priority_waits_while_there_is_a_higher_one():
    harness = with_priorities()
    put(harness, *(b"high%d" % number for number in range(20)), queue_id=3)
    assert await one_by_one(harness, 22) == [b"q3", *(b"high%d" % number for number in range(20)), b"q2"]
    put(harness, b"late", queue_id=3)
    assert await one_by_one(harness, 3) == [b"late", b"q1", b"q0"]


@pytest.mark.parametrize("kind", ["NORMAL", "MIXED", "FIFO"])
async def test_other_topics_are_read_from_any_queue_on(kind):
    firsts = set()
    for seed in range(40):
        harness = with_priorities(kind)
        harness.router.pops.random.seed(seed)
        firsts.update(await one_by_one(harness, 1))
    assert len(firsts) == 4


@pytest.mark.parametrize(("factor", "least", "most"), [("0", 0, 0), ("50", 30, 70), ("100", 100, 100)])
async def test_so_many_pops_of_a_group_are_by_priority(factor, least, most):
    """The others begin at any queue, here at one of 100."""
    harness = with_factor(stocked(), factor)
    harness.parts.topics.put(TopicConfig("TopicX", 100, 100, attributes={"message.type": "PRIORITY"}))
    harness.router.pops.random.seed(5)
    for queue_id in range(99):
        for _ in range(100):
            harness.store.appender.put(Message("TopicX", queue_id, b"low"))
    for _ in range(100):
        harness.store.appender.put(Message("TopicX", 99, b"high"))
    found = await one_by_one(harness, 100)
    assert least <= found.count(b"high") <= most + 5


async def test_a_factor_of_another_version_is_the_default():
    assert await one_by_one(with_factor(with_priorities(), "of another version"), 1) == [b"q3"]


async def test_an_order_of_queues_is_for_pops_of_all_queues():
    harness = with_priorities()
    assert bodies(await popped(harness, 1)) == [b"q1"]
    firsts = set()
    for seed in range(40):
        harness = with_priorities()
        harness.router.pops.random.seed(seed)
        answer = await popped(harness, count=1, order=True, attemptId="a")
        firsts.update(bodies(answer))
    assert len(firsts) == 4, "a pop in order has no priorities"


@pytest.mark.parametrize(("chance", "place"), [(0, -1), (100, 0)])
async def test_messages_that_come_again_have_the_lowest_priority_or_the_highest(chance, place):
    harness = with_priorities(pop_from_retry_probability=50, pop_from_retry_probability_for_priority=chance)
    assert await one_by_one(harness, 1) == [b"q3"]
    put(harness, b"new", queue_id=3)
    run(harness, 11_000)
    assert harness.store.max_offset(RETRY, 0) == 1
    found = await one_by_one(harness, 5)
    assert found[place] == b"q3"
    found.remove(b"q3")
    assert found == [b"new", b"q2", b"q1", b"q0"]


async def test_a_message_that_comes_again_keeps_its_priority():
    harness = stocked()
    harness.parts.topics.put(TopicConfig("TopicX", 4, 4, attributes={"message.type": "PRIORITY"}))
    await harness.send("TopicX", 0, b"paid", f"UNIQ_KEY\x01U1\x02{PRIORITY}\x012\x02")
    assert (await popped(harness)).fields["msgOffsetInfo"] == "0 2 0"
    run(harness, 11_000)
    (again,) = harness.store.messages(RETRY, 0)
    assert again.properties[PRIORITY] == "2"


async def test_a_pop_that_waits_gets_the_message_of_any_priority():
    harness = stocked()
    harness.parts.topics.put(TopicConfig("TopicX", 4, 4, attributes={"message.type": "PRIORITY"}))
    waiting = asyncio.ensure_future(harness.ask(200050, **pop_fields(poll_ms=5_000)))
    await turns()
    assert not waiting.done()
    assert (await harness.send("TopicX", 3, b"low", f"{PRIORITY}\x010\x02")).code == 0
    answer = await waiting
    assert (bodies(answer), answer.fields["msgOffsetInfo"]) == ([b"low"], "0 0 0")


# Properties of a message to queue 1 -> its queue, and whether the priority is kept
SENT = {
    "a priority": ({PRIORITY: "2"}, 2, True),
    "the lowest": ({PRIORITY: "0"}, 0, True),
    "more than there are queues": ({PRIORITY: "99"}, 3, True),
    "as Java's parseInt reads it": ({PRIORITY: "+02"}, 2, True),
    "the largest": ({PRIORITY: "2147483647"}, 3, True),
    "too large": ({PRIORITY: "2147483648"}, 1, True),
    "negative": ({PRIORITY: "-1"}, 1, True),
    "no number": ({PRIORITY: "high"}, 1, True),
    "of a transaction that is no half": ({PRIORITY: "2", "TRAN_MSG": "false"}, 2, True),
    "in order": ({PRIORITY: "2", "__SHARDINGKEY": "k"}, 1, False),
    "a name that ends so": ({"x" + PRIORITY: "2"}, 1, None),
}


@pytest.mark.parametrize("case", SENT)
async def test_a_priority_chooses_the_queue(case):
    """Also in a topic of another type, as by Apache's broker."""
    pairs, queue_id, is_kept = SENT[case]
    harness = stocked()
    text = "".join(f"{name}\x01{value}\x02" for name, value in ({"UNIQ_KEY": "U1"} | pairs).items())
    answer = await harness.send("TopicX", 1, b"x", text)
    assert (answer.code, answer.fields["queueId"]) == (0, str(queue_id))
    (stored,) = harness.store.messages("TopicX", queue_id)
    wanted = pairs if is_kept is not False else {name: pairs[name] for name in pairs if name != PRIORITY}
    assert {name: stored.properties.get(name) for name in pairs} == {name: wanted.get(name) for name in pairs}
    assert stored.properties["UNIQ_KEY"] == "U1" and stored.properties["CLUSTER"] == "DefaultCluster"


@pytest.mark.parametrize(
    ("special", "waits_in"),
    [
        ({"TIMER_DELAY_MS": "5000"}, TIMER_TOPIC),
        ({"TIMER_DELAY_SEC": "5"}, TIMER_TOPIC),
        ({"DELAY": "1"}, SCHEDULE_TOPIC),
        ({"TRAN_MSG": "true"}, HALF_TOPIC),
    ],
)
async def test_a_message_that_waits_loses_its_priority(special, waits_in):
    harness = stocked()
    text = "".join(f"{name}\x01{value}\x02" for name, value in {PRIORITY: "2", **special}.items())
    answer = await harness.send("TopicX", 1, b"x", text, sys_flag=4 if "TRAN_MSG" in special else 0)
    assert (answer.code, answer.fields["queueId"]) == (0, "1")
    (stored,) = harness.store.messages(waits_in)
    assert PRIORITY not in stored.properties and stored.properties["REAL_QID"] == "1"


async def test_a_batch_has_no_priorities():
    harness = stocked()
    answer = await harness.send("TopicX", 1, b"x", f"{PRIORITY}\x012\x02", batch=True, code=320)
    assert (answer.code, answer.fields["queueId"]) == (0, "1")
