"""Static topics at one broker, and at two whose requests to each other go through the test."""

import asyncio
import json
from dataclasses import replace

import pytest

from broker_store.broker.topics import TopicConfig
from broker_store.errors import PeerError, StoreError
from broker_store.formats import record, static_topics
from broker_store.formats.static_topics import MAX_ITEMS, MAX_LOGICAL_QUEUES, read_file
from broker_store.protocol.codes import RequestCode as R
from broker_store.protocol.codes import ResponseCode
from broker_store.protocol.offset_bodies import decode_consume_stats
from tests.support.broker_harness import Harness

BLOCK = 10_000


def item(broker, queue_id, logic_offset, gen=0, **changed):
    return {"bname": broker, "endOffset": -1, "gen": gen, "logicOffset": logic_offset, "queueId": queue_id,
            "startOffset": 0, "timeOfEnd": -1, "timeOfStart": -1} | changed  # fmt: skip


def mapping(rows, broker="broker-a", *, total=2, epoch=1, topic="Static", **changed):
    return {"bname": broker, "currIdMap": {}, "dirty": False, "epoch": epoch, "hostedQueues": rows,
            "scope": "__global__", "topic": topic, "totalQueues": total} | changed  # fmt: skip


def fields(queues=2, **changed):
    return {"topic": "Static", "defaultTopic": "TBW102", "readQueueNums": str(queues), "perm": "6",
            "writeQueueNums": str(queues), "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0"} | changed  # fmt: skip


async def put(harness, rows, *, queues=2, header=None, **changed):
    body = json.dumps(mapping(rows, harness.parts.broker_name, **changed)).encode()
    return await harness.ask(R.UPDATE_AND_CREATE_STATIC_TOPIC, body, **fields(queues, **(header or {})))


class Others:
    """The other brokers, in place of connections."""

    def __init__(self, harnesses):
        self._harnesses = {harness.parts.broker_name: harness for harness in harnesses}
        self.asked = []

    async def address_of(self, broker, topic):
        return broker

    async def request(self, address, code, fields, body=b""):
        self.asked.append((address, code, fields))
        return await self._harnesses[address].ask(code, body, **fields)


def two():
    brokers = [Harness(broker_name="broker-a"), Harness(broker_name="b")]
    others = Others(brokers)
    for broker in brokers:
        broker.router.logical_queues.brokers = others
    return *brokers, others


# Queue 1 of the store is queue 0 of the clients, and the other way round.
CROSSED = {0: [item("broker-a", 1, 0)], 1: [item("broker-a", 0, 0)]}


async def moved(*, decided=True):
    """Two brokers after queue 0 has moved from `broker-a`, where it has five messages, to `b`, where it has
    three."""
    a, b, others = two()
    assert (await put(a, {0: [item("broker-a", 1, 0)]}, total=1)).code == 0
    for _ in range(5):
        await a.send("Static", 0)
    row = [item("broker-a", 1, 0), item("b", 0, BLOCK if decided else -1, gen=1)]
    assert (await put(b, {0: row}, total=1, epoch=2)).code == 0
    assert (await put(a, {0: [row[0], item("b", 0, -1, gen=1)]}, total=1, epoch=2)).code == 0
    for _ in range(3):
        await b.send("Static", 0)
    return a, b, others


def offsets_of(answer):
    names = ("nextBeginOffset", "minOffset", "maxOffset", "offsetDelta")
    return answer.code, *(int(answer.fields[name]) for name in names)


async def pull(harness, offset, *, serialization=0, **options):
    fields = harness.pull_fields("Static", 0, offset, **options)
    return await harness.ask(R.PULL_MESSAGE, serialization=serialization, **fields)


# Create and change


async def test_a_send_goes_to_the_physical_queue_and_is_answered_with_the_logical_one():
    harness = Harness()
    assert (await put(harness, CROSSED)).code == 0
    for number in range(3):
        answer = await harness.send("Static", 0)
        assert (answer.fields["queueId"], answer.fields["queueOffset"]) == ("0", str(number))
    assert harness.store.reads.max_offset("Static", 1) == 3
    assert harness.store.reads.max_offset("Static", 0) <= 0


async def test_a_send_without_a_queue_goes_to_one_that_this_broker_leads():
    harness = Harness()
    await put(harness, {0: [item("b", 0, 0)], 1: [item("broker-a", 0, 0)]})
    answer = await harness.send("Static", -1)
    assert (answer.fields["queueId"], answer.fields["queueOffset"]) == ("1", "0")


async def test_a_delayed_message_is_answered_with_its_logical_queue():
    harness = Harness()
    await put(harness, CROSSED)
    answer = await harness.send("Static", 0, properties="UNIQ_KEY\x01U\x02DELAY\x013\x02")
    assert (answer.code, answer.fields["queueId"]) == (0, "0")


async def test_a_queue_of_another_leader_is_refused():
    harness = Harness()
    await put(harness, {0: [item("broker-a", 0, 0), item("b", 0, -1, gen=1)]})
    for answer in (
        await harness.send("Static", 0),
        await harness.send("Static", 1),
        await pull(harness, 0),
        await harness.ask(R.GET_MAX_OFFSET, topic="Static", queueId=0),
        await harness.ask(R.QUERY_CONSUMER_OFFSET, topic="Static", queueId=0, consumerGroup="CG"),
    ):
        assert answer.code == ResponseCode.NOT_LEADER_FOR_QUEUE, answer
    assert harness.store.reads.max_offset("Static", 0) <= 0


async def test_the_mapping_is_on_disk_before_it_acts_and_goes_with_its_topic():
    harness = Harness()
    await put(harness, CROSSED)
    table = read_file(harness.store.config["topicQueueMapping.json"])[0]
    assert table == harness.parts.static_topics.table
    assert (await harness.ask(R.DELETE_TOPIC_IN_BROKER, topic="Static")).code == 0
    assert not harness.parts.static_topics.table
    assert read_file(harness.parts.static_topics.picture()().decode())[0] == {}


async def test_nothing_is_changed_if_the_mapping_cannot_be_written(monkeypatch):
    def write(name, data):
        raise StoreError("no room")

    harness = Harness()
    monkeypatch.setattr(harness.store, "write_config", write)
    assert (await put(harness, CROSSED)).code == ResponseCode.SYSTEM_ERROR
    assert not harness.parts.static_topics.table and harness.parts.topics.get("Static") is None


async def test_the_settings_of_the_topic_have_the_mapping_for_those_who_ask():
    harness = Harness()
    await put(harness, CROSSED)
    plain = json.loads((await harness.ask(R.GET_TOPIC_CONFIG, topic="Static")).body)
    assert "mappingDetail" not in plain and plain["writeQueueNums"] == 2
    body = (await harness.ask(R.GET_TOPIC_CONFIG, topic="Static", lo=True)).body
    assert b'"hostedQueues":{0:[' in body
    everything = (await harness.ask(R.GET_ALL_TOPIC_CONFIG)).body
    mapped = harness.parts.static_topics.get("Static")
    found = static_topics.read_answer(everything.decode())
    assert found == ({"Static": mapped}, harness.parts.static_topics.data_version)


async def test_the_attributes_and_the_order_of_a_topic_stay():
    harness = Harness()
    config = TopicConfig("Static", 1, 1, order=True, attributes={"message.type": "NORMAL"})
    harness.parts.topics.put(config)
    await put(harness, CROSSED)
    assert harness.parts.topics.get("Static") == replace(config, read_queues=2, write_queues=2)


@pytest.mark.parametrize(
    ("rows", "changed", "what"),
    [
        (CROSSED, {"topic": "Other"}, "field topic is 'Other', expected Static"),
        (CROSSED, {"bname": "b"}, "field bname is 'b', expected broker-a"),
        (CROSSED, {"total": MAX_LOGICAL_QUEUES + 1}, "field totalQueues is 1025, expected at most 1024"),
        (CROSSED, {"total": 1}, "field hostedQueues is 1, expected queues below totalQueues 1"),
        ({0: [item("broker-a", 2, 0)]}, {}, "field queueId of queue 0 is 2, expected less than the 2"),
        (
            {0: [item("b", 0, gen, gen) for gen in range(MAX_ITEMS + 1)]},
            {},
            "field hostedQueues 0 is 65, expected at most 64 items",
        ),
        ({0: [item("b", 0, 0), item("b", 0, 0, gen=1)]}, {}, "logicOffset must be more than 0"),
        ({0: 5}, {}, "queue 0 needs an array of items"),
        (CROSSED, {"header": {"writeQueueNums": "1025"}}, "field writeQueueNums is 1025, expected 0 to 1024"),
        (CROSSED, {"header": {"topic": "TBW102"}}, "conflict with system topic"),
        (CROSSED, {"header": {"topic": "a b"}}, "contains illegal characters"),
    ],
)
async def test_a_wrong_request_changes_nothing_and_names_what_is_wrong(rows, changed, what):
    harness = Harness()
    answer = await put(harness, rows, **changed)
    assert answer.code == ResponseCode.INVALID_PARAMETER and what in answer.remark, answer.remark
    assert not harness.parts.static_topics.table and harness.parts.topics.get("Static") is None


async def test_an_older_mapping_is_refused_unless_it_is_forced():
    harness = Harness()
    await put(harness, CROSSED, epoch=5)
    answer = await put(harness, CROSSED, epoch=4)
    assert answer.code == ResponseCode.INVALID_PARAMETER and "epoch 4 is less than 5" in answer.remark
    assert (await put(harness, CROSSED, epoch=4, header={"force": "true"})).code == 0
    assert harness.parts.static_topics.get("Static").epoch == 4


# Read


async def test_a_pull_reads_the_item_in_which_its_offset_lies():
    _, b, others = await moved()
    other = await pull(b, 3)
    assert offsets_of(other) == (0, 5, 0, BLOCK, 0)
    assert [stored.queue_offset for stored in record.decode_all(other.body, check_crc=True)] == [3, 4]
    [asked] = others.asked
    assert (asked[0], asked[1]) == ("broker-a", R.PULL_MESSAGE)
    assert {name: asked[2][name] for name in ("queueId", "queueOffset", "sysFlag", "lo", "bname")} == {
        "queueId": "1", "queueOffset": "3", "sysFlag": "4", "lo": "false", "bname": "broker-a",
    }  # fmt: skip
    own = await pull(b, BLOCK + 1)
    assert offsets_of(own) == (0, BLOCK + 3, BLOCK, BLOCK + 3, BLOCK)
    assert [stored.queue_offset for stored in record.decode_all(own.body, check_crc=True)] == [1, 2]
    assert len(others.asked) == 1


@pytest.mark.parametrize("serialization", [0, 1])
async def test_the_answer_has_the_difference_of_the_offsets_in_both_headers(serialization):
    _, b, _ = await moved()
    assert offsets_of(await pull(b, BLOCK, serialization=serialization))[4] == BLOCK


async def test_a_pull_at_the_end_of_an_item_goes_on_at_the_next_one():
    _, b, _ = await moved()
    for offset in (5, 6, BLOCK - 1):
        code, following, *_ = offsets_of(await pull(b, offset, flag=6))
        assert (code, following) == (ResponseCode.PULL_RETRY_IMMEDIATELY, BLOCK)


async def test_a_pull_waits_for_no_message_in_an_item_whose_next_one_is_not_decided():
    _, b, _ = await moved(decided=False)
    code, following, *_ = offsets_of(await pull(b, 5, flag=6))
    assert (code, following) == (ResponseCode.PULL_NOT_FOUND, 5)
    assert b.parts.parked.count == 0


async def test_a_send_before_the_offset_is_decided_has_none():
    _, b, _ = await moved(decided=False)
    answer = await b.send("Static", 0)
    assert (answer.code, answer.fields["queueId"], answer.fields["queueOffset"]) == (0, "0", "-1")


async def test_a_pull_beyond_the_end_is_set_back_and_one_at_the_end_waits():
    _, b, _ = await moved()
    assert offsets_of(await pull(b, BLOCK + 9, flag=6))[:2] == (ResponseCode.PULL_OFFSET_MOVED, BLOCK + 3)
    b.request(R.PULL_MESSAGE, **b.pull_fields("Static", 0, BLOCK + 3, flag=6))
    assert b.parts.parked.count == 1 and not b.channel.answers
    await b.send("Static", 0)
    for _ in range(20):
        await asyncio.sleep(0)
    [answer] = b.channel.answers
    assert offsets_of(answer) == (0, BLOCK + 4, BLOCK, BLOCK + 4, BLOCK)


async def test_pulls_that_wait_are_answered_when_their_queue_moves():
    harness = Harness()
    await put(harness, {0: [item("broker-a", 1, 0)]}, total=1)
    await pull(harness, 0)  # makes the group
    harness.request(R.PULL_MESSAGE, **harness.pull_fields("Static", 0, 0, flag=6))
    assert harness.parts.parked.count == 1
    await put(harness, {0: [item("broker-a", 1, 0), item("b", 0, -1, gen=1)]}, total=1, epoch=2)
    assert harness.parts.parked.count == 0
    [answer] = harness.channel.answers
    assert offsets_of(answer)[:2] == (ResponseCode.PULL_NOT_FOUND, 0)


async def test_a_pull_commits_the_offset_of_its_own_item():
    _, b, _ = await moved()
    await pull(b, BLOCK + 2, flag=5, commit=BLOCK + 1)
    assert b.parts.offsets.query("CG", "Static", 0) == 1
    await pull(b, BLOCK + 2, flag=5, commit=4)  # of the item before: the client commits it by itself
    assert b.parts.offsets.query("CG", "Static", 0) == 1


async def test_largest_smallest_and_searched_offset_and_earliest_time():
    a, b, others = await moved()
    queue = {"topic": "Static", "queueId": 0}
    assert (await b.ask(R.GET_MAX_OFFSET, **queue)).fields == {"offset": str(BLOCK + 3)}
    assert (await b.ask(R.GET_MIN_OFFSET, **queue)).fields == {"offset": "0"}
    earliest = await b.ask(R.GET_EARLIEST_MSG_STORETIME, **queue)
    assert earliest.fields == {"timestamp": str(a.now_ms)}
    search = R.SEARCH_OFFSET_BY_TIMESTAMP
    assert (await b.ask(search, timestamp=a.now_ms, **queue)).fields == {"offset": "0"}
    assert (await b.ask(search, timestamp=a.now_ms + 1, **queue)).fields["offset"] == str(BLOCK + 3)
    assert {fields["queueId"] for _, _, fields in others.asked} == {"1"}


async def test_a_request_with_lo_false_is_for_the_physical_queue():
    a, _, _ = await moved()
    queue = {"topic": "Static", "queueId": 1, "lo": "false"}
    assert (await a.ask(R.GET_MAX_OFFSET, **queue)).fields == {"offset": "5"}
    answer = await a.ask(R.PULL_MESSAGE, **a.pull_fields("Static", 1, 2, lo="false"))
    assert answer.code == 0 and "offsetDelta" not in answer.fields and answer.fields["nextBeginOffset"] == "5"


async def test_an_offset_of_a_group_is_kept_in_its_item():
    a, b, _ = await moved()
    queue = {"topic": "Static", "queueId": 0, "consumerGroup": "CG"}
    for harness in (a, b):
        await pull(harness, 0, **({} if harness is b else {"lo": "false"}))  # makes the group
    assert (await b.ask(R.QUERY_CONSUMER_OFFSET, **queue)).code == ResponseCode.QUERY_NOT_FOUND
    assert (await b.ask(R.UPDATE_CONSUMER_OFFSET, commitOffset=4, **queue)).code == 0
    assert a.parts.offsets.query("CG", "Static", 1) == 4
    assert (await b.ask(R.QUERY_CONSUMER_OFFSET, **queue)).fields == {"offset": "4"}
    assert (await b.ask(R.UPDATE_CONSUMER_OFFSET, commitOffset=BLOCK + 2, **queue)).code == 0
    assert b.parts.offsets.query("CG", "Static", 0) == 2
    assert (await b.ask(R.QUERY_CONSUMER_OFFSET, **queue)).fields == {"offset": str(BLOCK + 2)}


async def test_a_broker_that_does_not_answer_is_named():
    _, b, others = await moved()

    async def address_of(broker, topic):
        raise PeerError("no name server knows this broker with this topic")

    others.address_of = address_of
    for answer in (await pull(b, 0), await b.ask(R.GET_MIN_OFFSET, topic="Static", queueId=0)):
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.remark.startswith("broker broker-a, which has queue 1 of the topic: no name server")


async def test_an_error_of_the_other_broker_is_passed_on_as_its_word():
    a, b, _ = await moved()
    a.parts.topics.put(TopicConfig("Static", 2, 2, perm=2))
    answer = await pull(b, 0)
    assert answer.code == ResponseCode.SYSTEM_ERROR and "it answered 16" in answer.remark


async def test_a_logical_queue_is_locked_under_the_name_that_the_client_gives_it():
    _, b, _ = await moved()
    await pull(b, 0)  # makes the group
    queue = {"brokerName": "__syslo__global__", "queueId": 0, "topic": "Static"}
    body = {"consumerGroup": "CG", "clientId": "c", "mqSet": [queue, queue | {"queueId": 1}]}
    answer = await b.ask(R.LOCK_BATCH_MQ, json.dumps(body).encode())
    assert json.loads(answer.body)["lockOKMQSet"] == [queue]


async def test_what_a_group_has_not_read_is_minus_one_in_its_progress():
    harness = Harness()
    await put(harness, CROSSED)
    answer = await harness.ask(R.GET_CONSUME_STATS, consumerGroup="CG", topic="Static")
    assert {row.consumer_offset for row in decode_consume_stats(answer.body).values()} == {-1}


async def test_a_static_topic_keeps_the_queues_that_its_mapping_names():
    harness = Harness()
    await put(harness, {0: [item("broker-a", 3, 0)]}, queues=4, total=1)
    fewer = await harness.ask(R.UPDATE_AND_CREATE_TOPIC, **fields(3))
    assert fewer.code != 0 and "at least 4, those of the static topic" in fewer.remark
    assert harness.parts.topics.get("Static").queues == 4
    assert (await harness.ask(R.UPDATE_AND_CREATE_TOPIC, **fields(4, perm="4"))).code == 0
