"""server.admin: the requests of Apache's DefaultMQAdminExt."""

import json
from dataclasses import replace

import pytest

from broker_store.broker.put_times import NAMES
from broker_store.broker.topics import TopicConfig
from broker_store.engine.status.store_state import DiskSpace
from broker_store.errors import DamagedStoreError
from broker_store.formats.names import dead_letter_topic, retry_topic
from broker_store.messages import Message
from broker_store.protocol import client_bodies, fastjson, offset_bodies, table_bodies
from broker_store.protocol.client_bodies import ConsumerData, Heartbeat, Subscription
from broker_store.protocol.command import Command
from broker_store.protocol.message_queue import MessageQueue
from broker_store.server.channel import RequestTimeout
from tests.support.broker_harness import FakeChannel, Harness
from tests.support.memory_store import MemoryStore
from tests.support.wire_samples import sample

TOPIC = dict(
    topic="T2",
    defaultTopic="TBW102",
    readQueueNums=8,
    writeQueueNums=8,
    perm=6,
    topicFilterType="SINGLE_TAG",
    topicSysFlag=0,
    order=False,
)


@pytest.fixture
async def harness():
    """A broker in the state of the golden answers: TopicX with one message, a consumer of group CG on c1."""
    harness = Harness()
    harness.parts.topics.put(TopicConfig("TopicX", 4, 4))
    harness.store.appender.put(Message("TopicX", 1, b"hello", b"TAGS\x01TagA\x02UNIQ_KEY\x01U\x02"))
    data = ConsumerData("CG", subscriptions=(Subscription("TopicX", version=1),))
    harness.consumer = FakeChannel(53_534)
    await harness.ask(
        34,
        client_bodies.encode_heartbeat(Heartbeat("127.0.0.1@1", ("PG",), (data,))),
        channel=harness.consumer,
    )
    harness.consumer.answers.clear()
    return harness


async def test_topics_are_made_changed_shown_and_deleted(harness):
    assert (await harness.ask(17, attributes="+message.type=NORMAL", **TOPIC)).code == 0
    assert (await harness.ask(351, topic="T2")).body == sample("get topic").body
    assert (await harness.ask(17, attributes="-message.type", **(TOPIC | {"perm": 4}))).code == 0
    changed = json.loads((await harness.ask(351, topic="T2")).body)
    assert (changed["perm"], changed["attributes"]) == (4, {})
    assert (await harness.ask(215, topic="T2")).code == 0
    golden = sample("get topic none").values
    none = await harness.ask(351, topic="T9")
    assert (none.code, none.remark) == (golden["code"], golden["remark"])
    assert (await harness.ask(215, topic="T2")).code == 0, (
        "deleting what is not there succeeds, as with Apache"
    )


@pytest.mark.parametrize(
    "change",
    [
        {"topic": "../x"},
        {"topic": "TBW102"},
        {"topic": "rmq_sys_x"},
        {"readQueueNums": 129},
        {"writeQueueNums": -1},
        # fmt: skip
        {"perm": 99},
        {"attributes": "nonsense"},
        {"attributes": "++message.type=NORMAL"},
        {"attributes": "+queue.type=BatchCQ"},
        {"readQueueNums": "x"},
    ],
)
async def test_topics_that_may_not_be(harness, change):
    before = harness.parts.topics.to_json()
    assert (await harness.ask(17, **(TOPIC | change))).code == 29
    assert harness.parts.topics.to_json() == before
    assert (await harness.ask(215, topic="SCHEDULE_TOPIC_XXXX")).code == 29


async def test_topics_in_a_list_are_made_together_or_not_at_all(harness):
    def body(*names):
        return json.dumps({"topicConfigList": [TopicConfig(name).to_json() for name in names]}).encode()

    assert (await harness.ask(18, body("A", "B"))).code == 0
    assert (await harness.ask(18, body("C", "../D"))).code == 29
    assert harness.parts.topics.get("B") and harness.parts.topics.get("C") is None
    assert (await harness.ask(18, b"{}")).code == 29


async def test_all_topics_have_apaches_shape(harness):
    value = fastjson.loads((await harness.ask(21)).body)
    assert set(value) == {
        "dataVersion",
        "mappingDataVersion",
        "topicConfigTable",
        "topicQueueMappingDetailMap",
    }
    assert value["topicConfigTable"]["TopicX"]["readQueueNums"] == 4


async def test_a_topics_statistics(harness):
    stats = offset_bodies.decode_topic_stats((await harness.ask(202, topic="TopicX")).body)
    assert stats[MessageQueue("TopicX", "broker-a", 1)] == (0, 1, harness.now_ms)
    assert stats[MessageQueue("TopicX", "broker-a", 0)] == (0, 0, 0)
    assert (await harness.ask(202, topic="Nope")).code == 17


async def test_deleting_a_topic_takes_queues_and_offsets_with_it(harness):
    harness.parts.offsets.commit("CG", "TopicX", 1, 1)
    await harness.ask(215, topic="TopicX")
    assert harness.store.queues() == [] and harness.parts.offsets.groups() == []


async def test_groups_are_made_shown_and_deleted(harness):
    body = json.dumps({"groupName": "G5", "consumeEnable": True, "retryMaxTimes": 3}).encode()
    assert (await harness.ask(200, body)).code == 0
    assert (await harness.ask(352, group="G5")).body == sample("get group").body
    assert (await harness.ask(225, b'{"groupConfigList":[{"groupName":"G6"},{"groupName":"G7"}]}')).code == 0
    table = fastjson.loads((await harness.ask(201)).body)["subscriptionGroupTable"]
    assert {"G5", "G6", "G7", "TOOLS_CONSUMER"} <= set(table)
    harness.parts.offsets.commit("G5", "TopicX", 0, 1)
    assert (await harness.ask(207, groupName="G5", cleanOffset=True)).code == 0
    golden = sample("grp unknown 352").values
    gone = await harness.ask(352, group="no group")
    assert (gone.code, gone.remark) == (golden["code"], golden["remark"]) and harness.parts.offsets.of_group(
        "G5"
    ) == {}


async def test_asking_for_a_new_group_creates_it_as_apaches_broker_does(harness):
    assert fastjson.loads((await harness.ask(352, group="G8")).body)["groupName"] == "G8"
    assert harness.parts.groups.get("G8") is not None


async def test_asking_for_a_group_creates_none_without_the_setting():
    harness = Harness(auto_create_subscription_group=False)
    assert (await harness.ask(352, group="G8")).code == 26


async def test_attributes_of_a_group_are_changed_as_those_of_a_topic(harness):
    async def put(attributes, code=200):
        group = {"groupName": "G9", "attributes": attributes}
        body = group if code == 200 else {"groupConfigList": [group]}
        return await harness.ask(code, json.dumps(body).encode())

    def kept():
        return harness.parts.groups.get("G9").attributes

    assert (await put({"+priority.factor": "50", "+a": "b"})).code == 0
    assert kept() == {"priority.factor": "50", "a": "b"}
    assert (await put({})).code == 0
    assert kept() == {"priority.factor": "50", "a": "b"}
    assert (await put({"-a": "", "+priority.factor": "60"}, 225)).code == 0
    assert kept() == {"priority.factor": "60"}


@pytest.mark.parametrize("name", ["+priority.factor", "priority.factor"])
async def test_a_priority_factor_that_apache_refuses(harness, name):
    """Its broker says `value is not in range(0, 100)` with code 1."""

    async def put(text):
        body = json.dumps({"groupName": "G9", "attributes": {name: text}}).encode()
        return await harness.ask(200, body)

    for text in ("0", "100", "+7", "007"):
        assert (await put(text)).code == 0
    for text in ("101", "-1", "abc", " 5", "", "9" * 30):
        answer = await put(text)
        assert answer.code == 1 and answer.remark == "priority.factor: value is not in range(0, 100)"
    assert harness.parts.groups.get("G9").attributes == {"priority.factor": "007"}
    harness.parts.groups.get("G9").attributes["priority.factor"] = "of another version"
    assert (await put("of another version")).code == 0


@pytest.mark.parametrize("name", ["+lite.bind.topic", "lite.bind.topic"])
async def test_no_group_is_bound_to_a_light_topic(harness, name):
    body = json.dumps({"groupName": "G9", "attributes": {name: "T"}}).encode()
    answer = await harness.ask(200, body)
    assert (answer.code, answer.remark) == (29, "lite.bind.topic: light topics are not supported.")
    assert harness.parts.groups.get("G9") is None


async def test_a_group_that_apaches_broker_bound_can_be_changed(harness):
    harness.parts.groups.find_or_create("G9").attributes = {"lite.bind.topic": "T"}
    assert (await harness.ask(200, b'{"groupName":"G9","retryMaxTimes":3}')).code == 0
    assert harness.parts.groups.get("G9").attributes == {"lite.bind.topic": "T"}
    body = b'{"groupName":"G9","attributes":{"-lite.bind.topic":""}}'
    assert (await harness.ask(200, body)).code == 0
    assert harness.parts.groups.get("G9").attributes == {}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"groupName":"../x"}',
        b'{"groupName":"g","retryQueueNums":1000}',
        b'{"groupName":"g","retryMaxTimes":"x"}',
        b'{"groupName":"g","groupRetryPolicy":{"type":"SOMETIMES"}}',
    ],
)
async def test_groups_that_may_not_be(harness, body):
    assert (await harness.ask(200, body)).code == 29
    assert harness.parts.groups.get("g") is None
    assert (await harness.ask(207, groupName="TOOLS_CONSUMER")).code == 29


async def test_a_group_may_be_forbidden_to_read_a_topic(harness):
    async def readable(**says):
        answer = await harness.ask(353, group="CG", topic="TopicX", **says)
        assert fastjson.loads(answer.body).keys() == {"group", "readable", "topic"}
        return fastjson.loads(answer.body)["readable"]

    assert await readable() is True
    assert await readable(readable=False) is False
    for refused in (await harness.pull("TopicX", 1, flag=0), await harness.pull("TopicX", 1, flag=4)):
        assert (refused.code, refused.remark) == (16, "the consumer group[CG] is forbidden for topic[TopicX]")
    assert (await harness.pull("TopicX", 1, group="Others")).code == 0
    assert harness.parts.groups.to_json()["forbiddenTable"] == {"CG": {"TopicX": 4}}
    assert await readable(readable=True) is True and await readable() is True
    assert (await harness.pull("TopicX", 1)).code == 0 and harness.parts.groups.to_json()[
        "forbiddenTable"
    ] == {}
    assert (await harness.ask(353, group="NOPE", topic="TopicX", readable=False)).code == 26
    assert (await harness.ask(353, group="CG", topic="Nope", readable=False)).code == 17


async def test_progress_counts_retry_topics_in_which_the_group_has_no_offset(harness):
    async def progress():
        stats = offset_bodies.decode_consume_stats((await harness.ask(208, consumerGroup="CG")).body)
        every = fastjson.loads((await harness.ask(317, isOrder=False)).body)
        return {str(queue.topic): at[:2] for queue, at in stats.items() if queue.queue_id == 0}, every[
            "totalDiff"
        ]

    sent_back, popped = "%RETRY%CG", "%RETRY%CG_TopicX"
    harness.parts.offsets.commit("CG", "TopicX", 0, 0)
    harness.parts.offsets.commit("CG", "TopicX", 1, 1)
    assert await progress() == ({"TopicX": (0, 0)}, 0)
    for topic in (sent_back, popped):
        harness.parts.topics.put(TopicConfig(topic, 1, 1))
        for _ in range(2):
            harness.store.appender.put(Message(topic, 0, b"again", b""))
    assert await progress() == ({"TopicX": (0, 0), sent_back: (2, 0), popped: (2, 0)}, 4)
    harness.parts.offsets.commit("CG", popped, 0, 2)
    assert await progress() == ({"TopicX": (0, 0), sent_back: (2, 0), popped: (2, 2)}, 2)


async def test_progress_of_a_group(harness):
    harness.parts.offsets.commit("CG", "TopicX", 1, 1)
    stats = offset_bodies.decode_consume_stats((await harness.ask(208, consumerGroup="CG")).body)
    assert stats[MessageQueue("TopicX", "broker-a", 1)] == (1, 1, harness.now_ms, 1)
    assert stats[MessageQueue("TopicX", "broker-a", 0)] == (0, 0, 0, 0)
    assert offset_bodies.decode_consume_stats((await harness.ask(208, consumerGroup="NOPE")).body) == {}
    one = offset_bodies.decode_consume_stats(
        (await harness.ask(208, consumerGroup="CG", topicList="TopicX;Other;")).body
    )
    assert set(one) == set(stats)
    every = fastjson.loads((await harness.ask(317, isOrder=False)).body)
    assert every["totalDiff"] == 0 and {"CG"} in [set(entry) for entry in every["consumeStatsList"]]


async def test_all_offsets_have_apaches_shape(harness):
    harness.parts.offsets.commit("CG", "TopicX", 1, 1)
    assert fastjson.loads((await harness.ask(43)).body)["offsetTable"] == {"TopicX@CG": {1: 1}}
    assert fastjson.loads((await harness.ask(45)).body)["offsetTable"] == {}


async def test_offsets_are_reset_by_time_by_number_and_to_the_end(harness):
    reset = dict(group="CG", topic="TopicX", isForce=True)

    async def offsets(**more):
        answer = await harness.ask(222, **(reset | more))
        return (
            {
                queue.queue_id: offset
                for queue, offset in offset_bodies.decode_offset_table(answer.body).items()
            }
            if answer.code == 0
            else answer.code
        )

    assert await offsets(timestamp=-1) == {0: 0, 1: 1, 2: 0, 3: 0}
    assert await offsets(timestamp=0) == {0: 0, 1: 0, 2: 0, 3: 0}
    assert await offsets(timestamp=0, queueId=1) == {1: 0}
    assert await offsets(timestamp=0, queueId=1, offset=1) == {1: 1}
    assert await offsets(timestamp=0, queueId=1, offset=5) == 29
    assert await offsets(timestamp=0, queueId=9) == 29
    assert await offsets(timestamp=0, topic="Nope") == 17 and await offsets(timestamp=0, group="NOPE") == 26
    assert (await harness.ask(222, **reset, timestamp=0, queueId=1)).body == sample("reset").body


async def test_offsets_are_cloned_between_groups(harness):
    harness.parts.offsets.commit("CG", "TopicX", 1, 1)
    assert (await harness.ask(314, srcGroup="CG", destGroup="NEW", topic="TopicX")).code == 26
    harness.parts.groups.find_or_create("NEW")
    assert (await harness.ask(314, srcGroup="CG", destGroup="NEW", topic="TopicX")).code == 0
    assert harness.parts.offsets.of_group("NEW") == {"TopicX": {1: 1}}
    harness.parts.offsets.commit("NEW", "TopicX", 1, 0)
    assert fastjson.loads((await harness.ask(308, compareGroup="CG", topic="TopicX")).body) == {
        "correctionOffsets": {1: 0}
    }


async def test_connections_have_apaches_shape(harness):
    consumer = fastjson.loads((await harness.ask(203, consumerGroup="CG")).body)
    golden = fastjson.loads(sample("consumerconn").body)
    golden["connectionSet"][0]["version"] = consumer["connectionSet"][0]["version"]
    assert consumer == golden
    producer = fastjson.loads((await harness.ask(204, producerGroup="PG")).body)
    assert producer["connectionSet"][0]["clientId"] == "127.0.0.1@1"
    for code, name, field in (
        (203, "consconn unknown", "consumerGroup"),
        (204, "prod unknown", "producerGroup"),
    ):
        unknown = await harness.ask(code, **{field: "NOPE"})
        assert (unknown.code, unknown.remark) == (sample(name).values["code"], sample(name).values["remark"])
    assert fastjson.loads((await harness.ask(328)).body)["data"]["PG"][0]["remoteIP"] == "/127.0.0.1:53534"


async def test_who_reads_a_topic_and_what_a_group_reads(harness):
    harness.parts.offsets.commit("OFFLINE", "TopicX", 1, 1)
    assert fastjson.loads((await harness.ask(300, topic="TopicX")).body)["groupList"] == ["CG", "OFFLINE"]
    assert fastjson.loads((await harness.ask(343, group="OFFLINE")).body)["topicList"] == ["TopicX"]
    assert (
        fastjson.loads((await harness.ask(345, group="CG", topic="TopicX")).body)["subscriptionData"][
            "subVersion"
        ]
        == 1
    )
    none = fastjson.loads((await harness.ask(345, group="OFFLINE", topic="TopicX")).body)
    assert none == {"group": "OFFLINE", "topic": "TopicX"}


async def test_units_of_a_queue(harness):
    answer = await harness.ask(321, topic="TopicX", queueId=1, index=0, count=2)
    value = fastjson.loads(answer.body)
    assert (value["maxQueueIndex"], value["minQueueIndex"], len(value["queueData"])) == (1, 0, 1)
    assert (value["queueData"][0]["eval"], value["queueData"][0]["tagsCode"]) == (False, 2598919)
    subscribed = fastjson.loads(
        (await harness.ask(321, topic="TopicX", queueId=1, index=0, count=2, consumerGroup="CG")).body
    )
    assert subscribed["queueData"][0]["eval"] is True and subscribed["subscriptionData"]["topic"] == "TopicX"
    empty = fastjson.loads((await harness.ask(321, topic="TopicX", queueId=0, index=0, count=2)).body)
    assert (empty["maxQueueIndex"], empty["queueData"]) == (0, [])
    unknown = await harness.ask(321, topic="TopicX", queueId=9, index=0, count=2)
    assert (unknown.code, unknown.remark) == (1, "9@TopicX is not exist!")


async def test_a_time_span_for_each_queue(harness):
    harness.now_ms += 500
    spans = fastjson.loads((await harness.ask(303, topic="TopicX", group="CG")).body)["consumeTimeSpanSet"]
    one = next(span for span in spans if span["messageQueue"]["queueId"] == 1)
    assert (one["minTimeStamp"], one["maxTimeStamp"], one["delayTime"]) == (
        harness.now_ms - 500,
        harness.now_ms - 500,
        500,
    )


async def test_a_consumer_is_asked_for_an_administrator(harness):
    harness.consumer.reply = lambda command: command.answer(0, None, None, b'{"properties":{}}')
    answer = await harness.ask(307, consumerGroup="CG", clientId="127.0.0.1@1", jstackEnable=False)
    assert (answer.code, answer.body) == (0, b'{"properties":{}}')
    golden = {"clientId": "127.0.0.1@1", "jstackEnable": "false", "consumerGroup": "CG"}
    assert (harness.consumer.asked[0].code, harness.consumer.asked[0].fields) == (307, golden)
    offline = await harness.ask(307, consumerGroup="CG", clientId="nobody")
    assert (offline.code, offline.remark) == (1, "The Consumer <CG> <nobody> not online")


async def test_a_consumer_is_given_one_message_to_consume(harness):
    stored = harness.store.messages("TopicX", 1)[0]
    harness.consumer.reply = lambda command: command.answer(0, None, None, b'{"consumeResult":"CR_SUCCESS"}')
    answer = await harness.ask(309, consumerGroup="CG", clientId="127.0.0.1@1", msgId=stored.offset_id)
    assert b"CR_SUCCESS" in answer.body
    asked = harness.consumer.asked[0]
    assert asked.body == harness.store.reads.records.record_at(0) and asked.fields["brokerName"] == "broker-a"
    assert (await harness.ask(309, consumerGroup="CG", clientId="127.0.0.1@1", msgId="nonsense")).code == 1


async def test_a_consumer_that_does_not_answer(harness):
    def silence(command: Command):
        raise RequestTimeout("no answer")

    harness.consumer.reply = silence
    answer = await harness.ask(307, consumerGroup="CG", clientId="127.0.0.1@1")
    assert answer.code == 207
    status = await harness.ask(223, topic="TopicX", group="CG")
    assert fastjson.loads(status.body) == {"consumerTable": {}, "messageQueueTable": {}}


async def test_configuration_is_shown_and_dangerous_keys_are_never_changed_over_the_wire(harness):
    text = (await harness.ask(26)).body.decode()
    assert (
        "brokerName=broker-a\n" in text
        and "listenPort=10911\n" in text
        and text.split("\n") == sorted(text.split("\n")[:-1]) + [""]
    )
    for body in (
        b"storePathRootDir=/tmp/x\n",
        b"filterServerNums=1\nrocketmqHome=/x\n",
        b"flushDiskType=SYNC_FLUSH\n",
        b"",
    ):
        assert (await harness.ask(25, body)).code == 16


# The keys of Apache's broker 5.5.0 on a new store, with `brokerVersion` of 5.3.3, without the key that has a
# directory in its name.
APACHE_RUNTIME_KEYS = frozenset(
    """EndTransactionQueueSize EndTransactionThreadPoolQueueCapacity ackThreadPoolQueueCapacity ackThreadPoolQueueHeadWaitTimeMills
    ackThreadPoolQueueSize bootTimestamp brokerActive brokerVersion brokerVersionDesc commitLogDirCapacity commitLogDiskRatio commitLogMaxOffset
    commitLogMinOffset consumeQueueDiskRatio dispatchBehindBytes dispatchMaxBuffer earliestMessageTimeStamp getFoundTps getMessageEntireTimeMax
    getMissTps getTotalTps getTransferredTps litePullThreadPoolQueueCapacity litePullThreadPoolQueueHeadWaitTimeMills litePullThreadPoolQueueSize
    msgGetTotalTodayMorning msgGetTotalTodayNow msgGetTotalYesterdayMorning msgPutTotalTodayMorning msgPutTotalTodayNow msgPutTotalYesterdayMorning
    pageCacheLockTimeMills pullThreadPoolQueueCapacity pullThreadPoolQueueHeadWaitTimeMills pullThreadPoolQueueSize putLatency99 putLatency999
    putMessageAverageSize putMessageDistributeTime putMessageEntireTimeMax putMessageFailedTimes putMessageSizeTotal putMessageTimesTotal putTps
    queryThreadPoolQueueCapacity queryThreadPoolQueueHeadWaitTimeMills queryThreadPoolQueueSize remainHowManyDataToFlush
    remainTransientStoreBufferNumbs runtime sendThreadPoolQueueCapacity sendThreadPoolQueueHeadWaitTimeMills sendThreadPoolQueueSize
    startAcceptSendRequestTimeStamp timerCongestNum timerDequeueTps timerEnqueueTps timerOffsetBehind timerReadBehind""".split()
)


async def runtime(harness):
    return table_bodies.decode_table((await harness.ask(28)).body)


async def test_the_runtime_table_has_every_key_of_apaches_broker(harness):
    table = await runtime(harness)
    directory = harness.parts.store_settings.store_path_commit_log
    assert set(table) >= APACHE_RUNTIME_KEYS | {"getTransferedTps"} | {f"commitLogDiskRatio_{directory}"}
    assert all(
        name.startswith("scheduleMessageOffset_")
        for name in set(table)
        - APACHE_RUNTIME_KEYS
        - {"getTransferedTps"}
        - {f"commitLogDiskRatio_{directory}"}
    )
    assert all(
        len(table[name].split(" ")) == 3
        for name in ("putTps", "getFoundTps", "getMissTps", "getTotalTps", "getTransferredTps")
    )
    assert table["earliestMessageTimeStamp"] == str(harness.now_ms)
    # As rocketmq-exporter parses it: words, each a range and a whole number.
    ranges = [word.split(":") for word in table["putMessageDistributeTime"].split(" ") if word]
    assert [name for name, _ in ranges] == [f"[{name}]" for name in NAMES] and all(
        count.isdigit() for _, count in ranges
    )


async def test_what_the_runtime_table_cannot_know_is_minus_one_and_not_zero(harness):
    fresh = Harness()
    fresh.store.status.snapshot = lambda: replace(MemoryStore.snapshot(fresh.store), disk=DiskSpace())
    table = await runtime(fresh)
    assert (
        table["earliestMessageTimeStamp"],
        table["commitLogDiskRatio"],
        table["consumeQueueDiskRatio"],
    ) == ("-1", "-1", "-1")
    assert "commitLogDirCapacity" not in table


async def test_reads_with_and_without_messages_and_messages_are_told_apart(harness):
    harness.store.appender.put(Message("TopicX", 1, b"second", b"UNIQ_KEY\x01V\x02"))
    assert (await harness.pull("TopicX", 1)).code == 0  # one read, two messages
    for offset in (2, 2, 2):
        assert (await harness.pull("TopicX", 1, offset)).code != 0
    harness.now_ms += 10_000
    harness.parts.statistics.tick(harness.now_ms)
    table = await runtime(harness)
    first = {
        name: table[name].split(" ")[0]
        for name in ("getFoundTps", "getMissTps", "getTotalTps", "getTransferredTps")
    }
    assert first == {
        "getFoundTps": "0.1",
        "getMissTps": "0.3",
        "getTotalTps": "0.4",
        "getTransferredTps": "0.2",
    }
    assert table["getMessageEntireTimeMax"].isdigit() and harness.parts.statistics.longest_read_s > 0


async def test_puts_are_counted_by_how_long_they_took(harness):
    sends = harness.parts.sends
    for took_s in (0.0, 0.004, 0.04, 11.0):
        sends.add(Message("TopicX", 0, b"x", b"UNIQ_KEY\x01W\x02"), lambda context, result: None, None)
        harness.now_s += took_s
        sends.flush()
    table = await runtime(harness)
    assert table["putMessageEntireTimeMax"] == "11000"
    counted = {
        word.split(":")[0]: int(word.split(":")[1]) for word in table["putMessageDistributeTime"].split()
    }
    assert {name: count for name, count in counted.items() if count} == {
        "[<=0ms]": 1,
        "[0~10ms]": 1,
        "[10~50ms]": 1,
        "[10s~]": 1,
    }
    harness.parts.statistics.tick(harness.now_ms + 60_000)
    harness.parts.statistics.tick(harness.now_ms + 120_000)
    assert "1" not in (await runtime(harness))["putMessageDistributeTime"].replace("1s", "").replace(
        "1~", ""
    ).replace("10", "")


async def test_what_timers_do_a_second_is_measured(harness):
    harness.parts.statistics.timed(enqueued=40, delivered=20)
    harness.now_ms += 10_000
    harness.parts.statistics.tick(harness.now_ms)
    table = await runtime(harness)
    assert (table["timerEnqueueTps"], table["timerDequeueTps"]) == ("4.0", "2.0")


async def test_cleaning_on_demand_succeeds_and_takes_what_is_expired(harness):
    for code, cleanings in ((306, 0), (316, 0), (329, 1)):
        assert (await harness.ask(code)).code == 0
        assert harness.store.cleanings == cleanings
    assert harness.parts.topics.get("TopicX") is not None and harness.store.reads.max_offset("TopicX", 1) == 1


@pytest.mark.parametrize("kind", ["UNSPECIFIED", "TRANSACTION", "PRIORITY", "FIFO", "DELAY", "NORMAL"])
async def test_message_types_that_apache_takes(harness, kind):
    assert (await harness.ask(17, attributes=f"+message.type={kind}", **TOPIC)).code == 0
    assert harness.parts.topics.get("T2").attributes == {"message.type": kind}


async def test_light_topics_are_refused(harness):
    """They were once accepted, and messages of such a topic were handled as any others."""
    answer = await harness.ask(17, attributes="+message.type=LITE", **TOPIC)
    assert answer.code == 29 and answer.remark.startswith("LITE message type is not supported: ")
    assert harness.parts.topics.get("T2") is None
    harness.parts.topics.put(TopicConfig("T2", attributes={"message.type": "LITE"}))
    assert (await harness.ask(17, attributes="-message.type", **TOPIC)).code == 0, (
        "one that another broker made can be changed back"
    )


async def test_message_types_that_apache_refuses(harness):
    mixed = await harness.ask(17, attributes="+message.type=MIXED", **TOPIC)
    assert (mixed.code, mixed.remark) == (29, "MIXED message type is not supported.")
    wrong = await harness.ask(17, attributes="+message.type=normal", **TOPIC)
    assert (wrong.code, wrong.remark) == (
        1,
        "value is not in set: [UNSPECIFIED, TRANSACTION, PRIORITY, FIFO, DELAY, LITE, NORMAL]",
    )
    items = [
        TopicConfig("L1").to_json() | {"attributes": {name: "MIXED"}}
        for name in ("+message.type", "message.type")
    ]
    for item in items:
        assert (await harness.ask(18, json.dumps({"topicConfigList": [item]}).encode())).code == 29
    assert harness.parts.topics.get("T2") is None and harness.parts.topics.get("L1") is None


async def test_the_attributes_of_a_list_are_changes_as_those_of_one_topic(harness):
    async def put(attributes):
        item = TopicConfig("L1").to_json() | {"attributes": attributes}
        assert (await harness.ask(18, json.dumps({"topicConfigList": [item]}).encode())).code == 0
        return harness.parts.topics.get("L1").attributes

    assert await put({"+message.type": "FIFO"}) == {"message.type": "FIFO"}
    assert await put({"-message.type": ""}) == {}


async def test_sums_of_a_topic_a_group_and_the_broker(harness):
    statistics, clock = harness.parts.statistics, harness.parts.clock
    statistics.stored("TopicX", 6, 60)
    statistics.delivered("CG", "TopicX", 3, 300)
    harness.now_ms += 10_000
    statistics.tick(clock())

    async def ask(name, key):
        answer = await harness.ask(315, statsName=name, statsKey=key)
        return (answer.code, answer.remark) if answer.code else json.loads(answer.body)

    assert await ask("TOPIC_PUT_NUMS", "TopicX") == dict.fromkeys(
        ("statsMinute", "statsHour", "statsDay"), {"sum": 6, "tps": 0.6}
    )
    assert (await ask("GROUP_GET_NUMS", "TopicX@CG"))["statsDay"] == {"sum": 3, "tps": 0.3}
    assert (await ask("GROUP_GET_SIZE", "TopicX@CG"))["statsHour"] == {"sum": 300, "tps": 30.0}
    assert (await ask("BROKER_PUT_NUMS", "DefaultCluster"))["statsMinute"]["sum"] == 6
    assert (await ask("BROKER_GET_NUMS", "DefaultCluster"))["statsMinute"]["sum"] == 3
    for name, key in (
        ("TOPIC_PUT_NUMS", "Nope"),
        ("TOPIC_PUT_SIZE", "TopicX"),
        ("GROUP_GET_NUMS", "TopicX"),
        ("BROKER_PUT_NUMS", "Other"),
        ("", ""),
    ):
        assert await ask(name, key) == (1, f"The stats <{name}> <{key}> not exist")


async def test_what_nobody_knows_is_answered_as_apache_does(harness):
    golden = sample("unk").values
    answer = await harness.ask(9999)
    assert (answer.code, answer.remark) == (golden["code"], golden["remark"])
    harness.request(9999, oneway=True)
    assert harness.channel.answers == []


@pytest.mark.parametrize("code", [200070, 2001, 5001, -5])
async def test_what_comes_later_says_so(harness, code):
    assert (await harness.ask(code)).code == 3


async def test_a_handler_that_fails_says_nothing_of_the_inside(harness, caplog):
    harness.store.max_offset = lambda topic, queue_id: 1 / 0
    answer = await harness.ask(30, topic="TopicX", queueId=0)
    assert (answer.code, answer.remark) == (1, "error inside the broker; its log has the details")
    assert "failed" in caplog.text


async def test_a_store_that_fails_names_its_files_to_the_log_alone(harness, caplog):
    def fails(topic, queue_id):
        raise DamagedStoreError("another place", file="/srv/broker/store/commitlog/0", offset=7)

    harness.store.max_offset = fails
    answer = await harness.ask(30, topic="TopicX", queueId=0)
    assert (answer.code, answer.remark) == (
        1,
        "the store failed: damaged store; the broker's log has the details",
    )
    assert "/srv/broker/store/commitlog/0 at 7" in caplog.text


async def test_retry_and_dead_letter_topics_of_a_deleted_group_are_deleted_by_who_asks(harness):
    await harness.ask(207, groupName="CG")
    assert harness.parts.topics.get(retry_topic("CG")) is not None
    assert (await harness.ask(215, topic=retry_topic("CG"))).code == 0
    assert (await harness.ask(215, topic=dead_letter_topic("CG"))).code == 0
