"""server.produce: sends."""

import asyncio
import struct

import pytest

from broker_store.broker.groups import SubscriptionGroup
from broker_store.broker.locks import LOCK_LIFE_MS
from broker_store.broker.topics import TopicConfig
from broker_store.formats.topics import SCHEDULE_TOPIC
from broker_store.messages import Message, PutStatus
from tests.support.broker_harness import FakeChannel, Harness, turns
from tests.support.wire_samples import sample


async def test_a_send_is_stored_and_answered_as_apaches_broker_does():
    harness = Harness()
    properties = (
        "KEYS\x01k1 k2\x02TAGS\x01TagA\x02WAIT\x01true\x02UNIQ_KEY\x017F0000010A2318B4AAC2000000000001\x02"
    )
    answer = await harness.send("TopicX", 1, b"hello", properties)
    golden = sample("sendv2").values
    assert answer.code == golden["code"]
    assert answer.fields == golden["extFields"] | {"msgId": "7F00000100002A9F0000000000000000"}
    (message,) = harness.store.messages("TopicX", 1)
    assert (message.body, message.queue_offset, message.born_host, message.born_timestamp) == (
        b"hello",
        0,
        (b"\x7f\x00\x00\x01", 50_000),
        5,
    )
    assert message.store_host == (b"\x7f\x00\x00\x01", 10911)
    assert message.properties == {
        "KEYS": "k1 k2", "TAGS": "TagA", "WAIT": "true", "UNIQ_KEY": "7F0000010A2318B4AAC2000000000001",
        "MSG_REGION": "DefaultRegion", "CLUSTER": "DefaultCluster", "TRACE_ON": "true",
    }  # fmt: skip
    assert message.size == 237, "as long as the record of the real broker (golden, view msg)"


@pytest.mark.parametrize(("code", "serialization"), [(10, 0), (310, 0), (310, 1), (10, 1)])
async def test_long_and_short_names_in_both_serialisations(code, serialization):
    harness = Harness()
    answer = await harness.send(code=code, serialization=serialization)
    assert (answer.code, answer.serialization) == (0, serialization)
    assert answer.fields["queueOffset"] == "0" and answer.fields["transactionId"] == "U1"


async def test_all_sends_of_a_turn_are_stored_together_and_each_connection_gets_its_own_answers():
    harness = Harness()
    channels = [FakeChannel(50_000 + number) for number in range(3)]
    await asyncio.gather(
        *(harness.send("Orders", 0, channel=channel) for channel in channels for _ in range(4))
    )
    assert harness.store.put_calls == [12]
    assert [message.born_host[1] for message in harness.store.messages("Orders")] == [50_000] * 4 + [
        50_001
    ] * 4 + [50_002] * 4


async def test_with_sync_flush_nobody_is_answered_before_the_log_is_synced():
    harness = Harness(sync_flush=True)
    task = asyncio.ensure_future(harness.send())
    await turns()
    assert not task.done() and harness.parts.sends.pending == 1
    harness.store.sync()
    assert (await task).code == 0 and harness.parts.sends.pending == 0


@pytest.mark.parametrize(
    ("status", "code", "sent"),
    [(PutStatus.FLUSH_DISK_TIMEOUT, 10, True), (PutStatus.SERVICE_NOT_AVAILABLE, 14, False)],
)
async def test_a_sync_that_fails_is_told_to_the_whole_group(status, code, sent):
    harness = Harness(sync_flush=True)
    tasks = [asyncio.ensure_future(harness.send()) for _ in range(3)]
    await turns()
    harness.store.sync(status)
    answers = await asyncio.gather(*tasks)
    assert [answer.code for answer in answers] == [code] * 3
    assert all(
        ("msgId" in answer.fields) is sent and answer.fields["MSG_REGION"] == "DefaultRegion"
        for answer in answers
    )


@pytest.mark.parametrize(
    ("status", "code"),
    [(PutStatus.SERVICE_NOT_AVAILABLE, 14), (PutStatus.MESSAGE_ILLEGAL, 13), (PutStatus.PROPERTIES_SIZE_EXCEEDED, 13), (PutStatus.OS_PAGE_CACHE_BUSY, 2),
     (PutStatus.CREATE_MAPPED_FILE_FAILED, 1), (PutStatus.UNKNOWN_ERROR, 1)],
)  # fmt: skip
async def test_each_refusal_of_the_store_has_its_code(status, code):
    harness = Harness()
    harness.store.refuse = status
    answer = await harness.send()
    assert answer.code == code and answer.remark and "{" not in answer.remark
    assert harness.parts.statistics.refusals.counts() == {status.name: 1}


async def test_a_store_that_raises_leaves_nobody_without_an_answer(caplog):
    harness = Harness()
    harness.store.put_many = lambda messages: 1 / 0
    assert (await harness.send()).code == 1
    assert "could not be stored" in caplog.text


async def test_an_unknown_topic_is_made_with_the_clients_number_of_queues():
    harness = Harness()
    assert (await harness.send("New")).code == 0
    config = harness.parts.topics.get("New")
    assert (config.read_queues, config.write_queues, config.perm) == (4, 4, 6)


async def test_without_auto_create_an_unknown_topic_is_refused():
    harness = Harness(auto_create_topic_enable=False)
    answer = await harness.send("Zed")
    golden = sample("sub no topic send").values
    assert (answer.code, answer.remark, answer.fields) == (17, golden["remark"], golden["extFields"])


@pytest.mark.parametrize(
    ("topic", "code", "name"),
    [("Topic X", 29, "sendv2 badtopic"), ("SCHEDULE_TOPIC_XXXX", 16, "send sys"), ("../../etc", 29, None), ("", 29, None), ("a" * 128, 29, None),
     ("RMQ_SYS_TRANS_HALF_TOPIC", 16, None), ("rmq_sys_unknown", 17, None), ("rmq_sys_wheel_timer", 16, None), ("%RETRY%../x", 29, None)],
)  # fmt: skip
async def test_topics_nobody_may_send_to(topic, code, name):
    harness = Harness()
    answer = await harness.send(topic)
    assert answer.code == code
    if name:
        assert answer.remark == sample(name).values["remark"]
    assert harness.store.queues() == []


async def test_a_queue_that_is_not_there_is_refused_and_a_negative_one_means_any():
    harness = Harness()
    harness.parts.topics.put(TopicConfig("TopicX", 4, 4, order=True))
    answer = await harness.send("TopicX", 44)
    assert (answer.code, answer.remark) == (
        29,
        sample("send badq").values["remark"].replace("44328", "50000")[:200],
    )
    answers = [await harness.send("TopicX", -1) for _ in range(50)]
    assert {int(answer.fields["queueId"]) for answer in answers} == {0, 1, 2, 3}


@pytest.mark.parametrize("header", [{"sys_flag": 4}, {"sys_flag": 8}, {"sys_flag": 0x80}, {"body": b""}])
async def test_what_is_not_supported_is_refused_by_name_and_not_stored(header):
    harness = Harness()
    answer = await harness.send(**header)
    assert answer.code == 13 and answer.remark
    assert harness.store.queues() == []


async def test_a_delay_level_sends_the_message_to_wait():
    harness = Harness()
    answer = await harness.send("TopicX", 1, properties="DELAY\x013\x02UNIQ_KEY\x01U1\x02")
    assert (answer.code, answer.fields["queueId"], answer.fields["queueOffset"]) == (0, "1", "0")
    (waiting,) = harness.store.messages(SCHEDULE_TOPIC, 2)
    assert (waiting.properties["REAL_TOPIC"], waiting.properties["REAL_QID"]) == ("TopicX", "1")
    assert harness.store.messages("TopicX", 1) == []


async def test_a_message_without_a_unique_key_gets_one():
    harness = Harness()
    answer = await harness.send(properties="")
    (message,) = harness.store.messages("Orders")
    assert len(message.unique_key) == 32 and answer.fields["transactionId"] == message.unique_key


async def test_properties_that_the_broker_sets_are_not_doubled():
    harness = Harness()
    await harness.send(
        properties="MSG_REGION\x01Elsewhere\x02POP_CK\x01x\x02UNIQ_KEY\x01U1\x02CLUSTER\x01Old\x02a\x01b"
    )
    raw = harness.store.messages("Orders")[0].raw_properties
    assert (
        raw
        == b"UNIQ_KEY\x01U1\x02a\x01b\x02MSG_REGION\x01DefaultRegion\x02CLUSTER\x01DefaultCluster\x02TRACE_ON\x01true\x02"
    )


async def test_records_of_a_topic_with_several_tags_a_message_carry_the_bit_for_it():
    harness = Harness()
    harness.parts.topics.put(TopicConfig("Tags", filter_type="MULTI_TAG"))
    await harness.send("Tags", sys_flag=1)
    await harness.send("Tags", body=inner(b"2", b"") + inner(b"3", b""), properties="", batch=True, code=320)
    await harness.send("Orders", sys_flag=1)
    assert [message.sys_flag for message in harness.store.messages("Tags")] == [3, 2, 2]
    assert [message.sys_flag for message in harness.store.messages("Orders")] == [1]


async def test_settings_name_region_and_trace():
    harness = Harness(region_id="eu", trace_on=False)
    answer = await harness.send()
    message = harness.store.messages("Orders")[0]
    assert answer.fields["MSG_REGION"] == message.properties["MSG_REGION"] == "eu"
    assert message.properties["TRACE_ON"] == "false"


async def test_a_unique_key_is_only_what_is_named_so():
    harness = Harness()
    answer = await harness.send(properties='TIMER\x01a\x02X_UNIQ_KEY\x01no\x02UNIQ_KEY\x01ye"s\x02')
    assert answer.fields["transactionId"] == 'ye"s'


def inner(body: bytes, properties: bytes) -> bytes:
    """One message of a batch (docs/spec/store-format.md section 2.6)."""
    return (
        struct.pack(">iiiii", 22 + len(body) + len(properties), 0, 0, 0, len(body))
        + body
        + struct.pack(">h", len(properties))
        + properties
    )


async def test_a_batch_is_stored_as_its_messages_and_answered_with_all_ids():
    harness = Harness()
    chain = inner(b"b1", b"KEYS\x01kk\x02UNIQ_KEY\x01U1\x02") + inner(b"b2", b"UNIQ_KEY\x01U2\x02")
    answer = await harness.send("TopicX", 2, chain, "", code=320, batch=True)
    first, second = harness.store.messages("TopicX", 2)
    assert answer.fields["msgId"] == f"{first.offset_id},{second.offset_id}"
    assert (answer.fields["queueOffset"], "transactionId" in answer.fields) == ("0", False)
    assert (first.body, first.unique_key, second.body, second.unique_key) == (b"b1", "U1", b"b2", "U2")
    assert first.properties["MSG_REGION"] == "DefaultRegion" and harness.parts.statistics.put.messages == 2


async def test_single_messages_and_batches_of_a_turn_keep_their_order():
    harness = Harness()
    chain = inner(b"2", b"") + inner(b"3", b"")
    await asyncio.gather(
        harness.send(body=b"1"),
        harness.send(body=chain, code=320, batch=True),
        harness.send(body=b"4"),
        harness.send(body=b"5"),
    )
    assert [message.body for message in harness.store.messages("Orders")] == [b"1", b"2", b"3", b"4", b"5"]


@pytest.mark.parametrize("header", [{"topic": "%RETRY%g", "code": 320}, {"topic": "%RETRY%g", "code": 310}, {"properties": "DELAY\x011\x02"}, {"properties": "TIMER_DELAY_SEC\x015\x02"},
                                    {"properties": "TRAN_MSG\x01true\x02"}, {"sys_flag": 4}])  # fmt: skip
async def test_batches_that_may_not_be(header):
    harness = Harness()
    answer = await harness.send(**({"body": inner(b"1", b""), "code": 320, "batch": True} | header))
    assert answer.code == 13 and harness.store.wrote == 0


async def test_a_batch_may_be_sent_by_the_code_of_single_messages_and_to_dead_letters():
    harness = Harness()
    chain = inner(b"1", b"UNIQ_KEY\x01U1\x02") + inner(b"2", b"UNIQ_KEY\x01U2\x02")
    assert (await harness.send(body=chain, code=310, batch=True)).code == 0
    assert [message.body for message in harness.store.messages("Orders")] == [b"1", b"2"]
    assert (await harness.send("%DLQ%CG", 0, chain, code=320, batch=True)).code == 0
    assert len(harness.store.messages("%DLQ%CG")) == 2


async def test_a_oneway_send_is_stored_and_not_answered():
    harness = Harness()
    await harness.send(oneway=True)
    await turns()
    assert len(harness.store.messages("Orders")) == 1 and harness.channel.answers == []


async def test_a_client_that_is_gone_is_not_written_to():
    harness = Harness()
    gone = FakeChannel()
    fields = dict(a="PG", b="Orders", c="TBW102", d=4, e=0, f=0, g=1, h=0, i="")
    harness.request(310, b"x", channel=gone, **fields)
    gone.closed = True
    await turns()
    assert gone.answers == [] and len(harness.store.messages("Orders")) == 1


async def test_a_consumers_own_retry_goes_to_the_dead_letters_when_it_is_spent():
    harness = Harness()
    await harness.send("%RETRY%CG", 0, b"again", reconsume_times=16)
    await harness.send("%RETRY%CG", 0, b"spent", reconsume_times=17)
    await harness.send("%RETRY%CG", 0, b"sooner", reconsume_times=3, max_reconsume_times=2)
    assert [message.body for message in harness.store.messages("%RETRY%CG")] == [b"again"]
    assert [message.body for message in harness.store.messages("%DLQ%CG")] == [b"spent", b"sooner"]


async def test_a_retry_that_is_spent_is_neither_delayed_nor_looks_like_it():
    harness = Harness()
    delayed = "UNIQ_KEY\x01U1\x02DELAY\x017\x02"
    await harness.send("%RETRY%CG", 0, b"again", delayed, reconsume_times=4)
    await harness.send("%RETRY%CG", 0, b"spent", delayed, reconsume_times=17)
    assert [
        message.properties["REAL_TOPIC"] for message in harness.store.messages("SCHEDULE_TOPIC_XXXX", 6)
    ] == ["%RETRY%CG"]
    (dead,) = harness.store.messages("%DLQ%CG")
    assert dead.properties["DELAY"] == "-1" and "REAL_TOPIC" not in dead.properties


async def test_what_a_consumer_in_order_gives_up_goes_to_the_dead_letters_at_once():
    harness = Harness()
    harness.parts.locks.lock("CG", "c1", [("Orders", 0)], harness.now_ms)
    await harness.send("%RETRY%CG", 0, b"given up", reconsume_times=3)
    await harness.send("%RETRY%Others", 0, b"again", reconsume_times=3)
    harness.now_ms += LOCK_LIFE_MS + 1
    await harness.send("%RETRY%CG", 0, b"again", reconsume_times=3)
    assert [message.body for message in harness.store.messages("%DLQ%CG")] == [b"given up"]
    assert [
        message.body for topic in ("%RETRY%CG", "%RETRY%Others") for message in harness.store.messages(topic)
    ] == [b"again"] * 2


async def test_retry_and_dead_letter_topics_have_apaches_queues_and_permissions():
    harness = Harness(auto_create_subscription_group=False)
    assert (await harness.send("%RETRY%CG", 0)).code == 26
    harness.parts.groups.put(SubscriptionGroup("CG", retry_queue_nums=2))
    assert (await harness.send("%RETRY%CG", 1)).code == 0
    assert (await harness.send("%RETRY%CG", 1, reconsume_times=17)).code == 0
    retry, dead = (harness.parts.topics.get(name) for name in ("%RETRY%CG", "%DLQ%CG"))
    assert [(topic.read_queues, topic.write_queues, topic.perm) for topic in (retry, dead)] == [
        (2, 2, 6),
        (1, 1, 6),
    ]


async def test_the_caps_on_topics_hold_on_the_wire():
    harness = Harness(max_auto_created_topics=14)
    assert (await harness.send("one")).code == 0
    answer = await harness.send("two")
    assert answer.code == 1 and "no room" in answer.remark
    assert (await harness.send("one")).code == 0


@pytest.mark.parametrize("field", ["a", "b", "d", "e", "f", "g", "h"])
async def test_a_missing_field_is_named(field):
    harness = Harness()
    fields = dict(a="PG", b="T", c="TBW102", d="4", e="0", f="0", g="1", h="0")
    del fields[field]
    answer = await harness.ask(310, b"x", **fields)
    assert answer.code == 29 and "field" in answer.remark


async def test_rest_and_others_store_by_the_same_group():
    harness = Harness()
    result = await harness.parts.sends.put(Message("Orders", 0, b"x"))
    assert result.ok and len(harness.store.messages("Orders")) == 1
