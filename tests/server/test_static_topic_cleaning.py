"""The cleaning of the mappings of static topics."""

import json
import time

from broker_store.formats.static_topics import MappingInfo
from broker_store.protocol.codes import RequestCode as R
from broker_store.protocol.route_bodies import TopicRoute
from broker_store.server.static_topic_cleaning import StaticTopicCleaning
from tests.server.test_static_topics import BLOCK, item, moved, pull, put


def cleaning(harness, others, leaders=None):
    """The cleaning of a broker. `leaders` are the logical queues of each broker in the route."""

    async def routes(topic):
        infos = {
            broker: MappingInfo(topic, 1, broker, epoch, leads=leads)
            for broker, (epoch, leads) in (leaders or {}).items()
        }
        return [TopicRoute((), (), mappings=infos)]

    others.routes = routes
    return StaticTopicCleaning(harness.parts, others)


def gens(harness):
    mapping = harness.parts.static_topics.get("Static")
    return {number: [each.gen for each in row] for number, row in mapping.rows.items()}


async def test_a_first_item_goes_when_its_messages_are_deleted_and_then_its_broker_may_go(monkeypatch):
    a, b, others = await moved()
    await cleaning(b, others).clean()
    assert gens(b) == {0: [0, 1]}
    monkeypatch.setattr(a.store.reads, "min_offset", lambda topic, queue_id: 5)
    await cleaning(b, others).clean()
    assert gens(b) == {0: [1]}
    assert b.parts.static_topics.get("Static").epoch == 2
    asked = len(others.asked)
    answer = await b.ask(R.GET_MIN_OFFSET, topic="Static", queueId=0)
    assert answer.fields == {"offset": str(BLOCK)}
    assert (await pull(b, 3)).fields["nextBeginOffset"] == str(BLOCK)
    assert len(others.asked) == asked


async def test_an_item_of_a_broker_that_does_not_answer_stays(monkeypatch):
    a, b, others = await moved()
    a.parts.topics.delete("Static")
    await cleaning(b, others).clean()
    assert gens(b) == {0: [0, 1]}


async def test_a_row_goes_when_the_queue_has_moved_on_from_the_next_leader():
    a, b, others = await moved()
    rows = [item("broker-a", 1, 0), item("b", 0, BLOCK, gen=1), item("b", 1, 2 * BLOCK, gen=2)]
    leaders = {"b": (3, {0: 0})}
    await cleaning(a, others, leaders).clean()
    assert gens(a) == {0: [0, 1]}, "b is the leader that is known here"
    names = [item("broker-a", 1, 0), item("c", 0, -1, gen=1)]
    await put(a, {0: names}, total=1, epoch=3, header={"force": "true"})
    await cleaning(a, others, leaders).clean()
    assert gens(a) == {0: [0, 1]}, "the leader has another epoch"
    await put(b, {0: rows}, total=1, epoch=3)
    await cleaning(a, others, leaders).clean()
    assert gens(a) == {}
    table = json.loads(a.store.config["topicQueueMapping.json"])["topicQueueMappingInfoMap"]
    assert table["Static"]["hostedQueues"] == {}


async def test_a_mapping_that_changes_meanwhile_is_left_for_the_next_time(monkeypatch):
    a, b, others = await moved()
    monkeypatch.setattr(a.store.reads, "min_offset", lambda topic, queue_id: 5)
    ask = others.request

    async def request(address, code, fields, body=b""):
        answer = await ask(address, code, fields, body)
        row = [item("broker-a", 1, 0), item("b", 0, BLOCK, gen=1)]
        await put(b, {0: row}, total=1, epoch=9)
        return answer

    monkeypatch.setattr(others, "request", request)
    await cleaning(b, others).clean()
    assert gens(b) == {0: [0, 1]} and b.parts.static_topics.get("Static").epoch == 9


async def test_it_runs_in_the_hours_of_delete_when_alone(monkeypatch):
    a, b, others = await moved()
    monkeypatch.setattr(a.store.reads, "min_offset", lambda topic, queue_id: 5)
    made, now = cleaning(b, others), time.localtime(b.now_ms / 1000).tm_hour
    for hours, expected in (({now} ^ set(range(24)), [0, 1]), ({now}, [1])):
        monkeypatch.setattr(type(b.parts.store_settings), "delete_hours", hours)
        await made.in_its_hours()
        assert gens(b) == {0: expected}
