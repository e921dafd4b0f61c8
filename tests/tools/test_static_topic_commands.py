"""updateStaticTopic and remappingStaticTopic over three brokers in this process."""

import contextlib

import pytest

from broker_store.client.errors import AnswerError
from broker_store.formats.static_topics import MAX_ITEMS, MappingItem
from broker_store.protocol.codes import RequestCode
from broker_store.tools import static_topics
from broker_store.tools.run import FAILED, MISUSED, SUCCEEDED
from broker_store.tools.servers import Servers
from tests.client.conftest import Cluster
from tests.support.hand_store import message
from tests.tools.test_commands import mqadmin

BLOCK = 10_000
PUT = RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC


class Brokers:
    """Brokers a, b and c of one cluster."""

    def __init__(self):
        self.a = Cluster(broker_name="a")
        self.of = {"a": self.a} | {name: Cluster(self.a, broker_name=name) for name in "bc"}

    async def __aenter__(self):
        async with contextlib.AsyncExitStack() as stack:
            for broker in self.of.values():
                await broker.start()
                stack.push_async_callback(broker.stop)
            self._stack = stack.pop_all()
        self.nameservers = self.a.nameservers
        return self

    async def __aexit__(self, *_):
        await self._stack.aclose()

    def mapping(self, name):
        return self.of[name].parts.static_topics.get("T")

    def rows(self, name):
        return {
            number: [(item.broker, item.queue_id, item.logic_offset) for item in row]
            for number, row in self.mapping(name).rows.items()
        }

    def store(self, name, queue_id, count):
        """Let a physical queue have so many messages more."""
        self.of[name].store.put_many([message(topic="T", queue_id=queue_id) for _ in range(count)])


@pytest.fixture
async def brokers():
    async with Brokers() as brokers:
        yield brokers


async def made(brokers, queues="2", at="a"):
    printed = await mqadmin(brokers, "updateStaticTopic", "-t", "T", "-qn", queues, "-b", at)
    assert (printed.code, printed.complaints) == (SUCCEEDED, [])
    return printed


async def test_queues_are_shared_out_and_the_other_brokers_know_the_topic(brokers):
    printed = await made(brokers, "3", "a,b")
    assert printed.lines == [
        "static topic T has 3 queues.",
        "#QID   #Broker Name                      #Broker QID  #Begin Offset",
        "0      a                                 0            0",
        "1      b                                 0            0",
        "2      a                                 1            0",
    ]
    assert {name: brokers.mapping(name).leads for name in "abc"} == {"a": {0: 0, 2: 1}, "b": {1: 0}, "c": {}}
    assert {brokers.of[name].parts.topics.get("T").queues for name in "ab"} == {1, 2}
    assert brokers.of["c"].parts.topics.get("T").queues == 0
    assert len({(brokers.mapping(name).epoch, brokers.mapping(name).total_queues) for name in "abc"}) == 1


async def test_more_queues_are_added_and_never_fewer(brokers):
    await made(brokers)
    await made(brokers, "4", "c")
    assert (brokers.mapping("a").leads, brokers.mapping("c").leads) == ({0: 0, 1: 1}, {2: 0, 3: 1})
    epoch = brokers.mapping("a").epoch
    assert "do nothing" in (await made(brokers, "4", "b")).lines[0]
    assert brokers.mapping("a").epoch == epoch
    fewer = await mqadmin(brokers, "updateStaticTopic", "-t", "T", "-qn", "3", "-c", "C")
    assert (fewer.code, fewer.complaints) == (
        MISUSED,
        ["Cannot decrease the queue num for static topic 3 < 4"],
    )


async def test_queues_move_and_begin_behind_the_end_of_the_old_leader(brokers):
    await made(brokers)
    brokers.store("a", 0, 3)
    brokers.store("a", 1, BLOCK // 2)
    moved = await mqadmin(brokers, "remappingStaticTopic", "-t", "T", "-b", "b", "--json")
    assert moved.facts == [
        {"queue": 0, "brokerName": "b", "queueId": 0, "logicOffset": BLOCK},
        {"queue": 1, "brokerName": "b", "queueId": 1, "logicOffset": 2 * BLOCK},
    ]
    rows = {0: [("a", 0, 0), ("b", 0, BLOCK)], 1: [("a", 1, 0), ("b", 1, 2 * BLOCK)]}
    assert brokers.rows("a") == brokers.rows("b") == rows
    assert (brokers.mapping("a").leads, brokers.mapping("c").rows) == ({}, {})
    brokers.store("b", 0, 2)
    await mqadmin(brokers, "remappingStaticTopic", "-t", "T", "-b", "a,c")
    assert brokers.rows("a")[0] == [*rows[0], ("a", 2, 2 * BLOCK)]
    assert brokers.rows("c")[1] == [*rows[1], ("c", 0, 3 * BLOCK)]
    again = await mqadmin(brokers, "remappingStaticTopic", "-t", "T", "-b", "c,a")
    assert again.lines[0] == "0 queues of static topic T were moved."


class Ended(Servers):
    """Servers of which the write of a mapping with this number is not sent."""

    left = 0

    async def ask(self, address, code, *given, **header):
        if code == PUT:
            type(self).left -= 1
            if type(self).left < 0:
                raise AnswerError(code, 1, "the command ended here", address)
        return await super().ask(address, code, *given, **header)


@pytest.mark.parametrize("after", range(6))
@pytest.mark.parametrize("next_at", ["b", "c"])
async def test_a_move_that_ended_in_the_middle_is_finished_by_the_next_command(
    brokers, monkeypatch, after, next_at
):
    await made(brokers)
    brokers.store("a", 0, 3)
    Ended.left = after
    with monkeypatch.context() as patched:
        patched.setattr("broker_store.tools.run.Servers", Ended)
        ended = await mqadmin(brokers, "remappingStaticTopic", "-t", "T", "-b", "b")
    assert ended.code == FAILED and "the command ended here" in ended.complaints[0]
    if after:  # the new leader takes sends already
        brokers.store("b", 0, 1)
    done = await mqadmin(brokers, "remappingStaticTopic", "-t", "T", "-b", next_at)
    assert (done.code, done.complaints) == (SUCCEEDED, [])
    parts = [("a", 0, 0), ("b", 0, BLOCK)]
    if next_at == "c":
        parts = [*parts, ("c", 0, 2 * BLOCK)] if after else [("a", 0, 0), ("c", 0, BLOCK)]
    assert brokers.rows(next_at)[0] == parts
    assert brokers.mapping(next_at).leads == {0: 0, 1: 1}
    assert len({brokers.mapping(name).epoch for name in "abc"}) == 1


async def test_a_creation_that_ended_in_the_middle_is_repeated_by_force(brokers, monkeypatch):
    Ended.left = 1
    with monkeypatch.context() as patched:
        patched.setattr("broker_store.tools.run.Servers", Ended)
        words = ("updateStaticTopic", "-t", "T", "-qn", "2", "-b", "a,b")
        assert (await mqadmin(brokers, *words)).code == FAILED
    refused = await mqadmin(brokers, *words)
    assert refused.code == FAILED and "no broker has queue 1, of 2" in refused.complaints[0]
    moved = await mqadmin(brokers, "remappingStaticTopic", "-t", "T", "-b", "a")
    assert moved.code == FAILED and "no broker has queue 1, of 2" in moved.complaints[0]
    assert (await mqadmin(brokers, *words, "-fr", "true")).code == SUCCEEDED
    assert (brokers.mapping("a").leads, brokers.mapping("b").leads) == ({0: 0}, {1: 0})


async def test_what_cannot_be_changed_is_refused_and_nothing_is_written(brokers):
    await made(brokers)
    await mqadmin(brokers, "updateTopic", "-c", "C", "-t", "Plain")
    refused = {
        ("updateStaticTopic", "-t", "Plain", "-qn", "2", "-b", "a"): "topic Plain of broker a is not static",
        ("updateStaticTopic", "-t", "T", "-qn", "0", "-b", "a"): "--totalQueueNum 0: expected 1 to 1024",
        ("updateStaticTopic", "-t", "T", "-qn", "9", "-b", "none"): "no master of broker none is registered",
        ("updateStaticTopic", "-t", "T", "-qn", "9", "-b", ","): "no broker is named",
        ("updateStaticTopic", "-t", "T", "-qn", "9", "-c", "none"): "no cluster none; there are C",
        ("remappingStaticTopic", "-t", "New", "-b", "a"): "No topic route to do the remapping",
        ("remappingStaticTopic", "-t", "T", "-b", "a", "-mf", "f"): "--mapFile",
    }
    before = [brokers.mapping(name) for name in "abc"]
    for words, why in refused.items():
        printed = await mqadmin(brokers, *words)
        assert printed.code in (FAILED, MISUSED) and why in printed.complaints[0], (words, printed.complaints)
    assert [brokers.mapping(name) for name in "abc"] == before


async def test_a_queue_whose_leader_is_not_registered_is_not_moved(brokers):
    await made(brokers, at="b")
    await mqadmin(brokers, "remappingStaticTopic", "-t", "T", "-b", "c")
    await brokers.of["c"].stop()
    before = brokers.rows("b")
    refused = await mqadmin(brokers, "remappingStaticTopic", "-t", "T", "-b", "a")
    assert (refused.code, refused.complaints) == (
        FAILED,
        ["mqadmin remappingStaticTopic: queue 0 has a part at broker c, which is not registered: start it"],
    )
    assert brokers.rows("b") == before and brokers.rows("a") == {}


@pytest.mark.parametrize(
    ("offset", "begin"),
    [(0, BLOCK), (1, BLOCK), (4_999, BLOCK), (5_000, 2 * BLOCK), (9_999, 2 * BLOCK), (BLOCK, 2 * BLOCK)],
)
def test_a_part_begins_half_a_block_behind_the_end_or_more(offset, begin):
    assert static_topics.next_block(offset) == begin


@pytest.mark.parametrize(
    ("leaders", "targets", "moved"),
    [
        ("aabb", "ab", {}),
        ("aaab", "ab", {2: "b"}),
        ("aaabb", "ab", {}),
        ("bbbaa", "ab", {}),
        ("aaaa", "bc", {0: "b", 1: "b", 2: "c", 3: "c"}),
        ("aabc", "bc", {0: "b", 1: "c"}),
        ("a", "abc", {}),
        ("aaaaa", "abc", {2: "b", 3: "b", 4: "c"}),
    ],
)
def test_queues_are_shared_out_evenly_and_as_few_move_as_can_be(leaders, targets, moved):
    rows = {number: (MappingItem(0, 0, leader, 0),) for number, leader in enumerate(leaders)}
    assert static_topics.moves(rows, list(targets)) == moved


def test_a_part_that_the_leader_has_removed_does_not_come_back():
    item = MappingItem(1, 0, "b", BLOCK)
    parts = {name: static_topics.Part("h:1", None, 1, 1) for name in "abc"}
    parts["a"].rows[0] = (MappingItem(0, 0, "a", 0), item)  # a led it before
    parts["b"].rows[0] = (item,)
    assert static_topics.StaticTopic(None, "T", parts, force=False).rows == {0: (item,)}


def test_a_queue_of_too_many_parts_is_not_moved():
    part = static_topics.Part("h:1", None, 1, 1)
    part.rows[0] = tuple(MappingItem(gen, 0, "a", gen * BLOCK) for gen in range(MAX_ITEMS))
    topic = static_topics.StaticTopic(None, "T", {"a": part, "b": part}, force=False)
    with pytest.raises(static_topics.PeerError, match="queue 0 has 64 parts already"):
        topic.move(["b"])
