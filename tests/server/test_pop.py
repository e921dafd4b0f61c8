"""server.pop: what a pop gives, over the wire."""

import pytest

from broker_store.broker.topics import TopicConfig
from broker_store.formats import pop_records
from broker_store.formats.pop_records import PopCheckpoint, PopKey
from broker_store.formats.timer_log import TIMER_TOPIC
from broker_store.messages import Message, PutStatus
from tests.support.broker_harness import turns
from tests.support.pop_calls import REVIVE_LOG, ack, bodies, pop_fields, popped, put, receipts, run, stocked
from tests.support.wire_samples import sample


async def test_what_is_found_is_answered_as_apaches_broker_does():
    harness = stocked(b"hello")
    harness.now_ms = 1795244468000
    answer = await popped(harness, 1, group="CG2", invisible_ms=60_000)
    golden = sample("pop").values
    assert (answer.code, answer.remark) == (0, golden["remark"])
    assert answer.fields == golden["extFields"] | {"reviveQid": answer.fields["reviveQid"]}
    assert bodies(answer) == [b"hello"]
    (stored,) = harness.store.messages(TIMER_TOPIC, 0)
    assert stored.body == (
        b'{"bm":0,"bn":"broker-a","c":"CG2","d":[0],"it":60000,"n":1,"pt":1795244468000,"q":1,'
        b'"reviveTime":1795244528000,"ro":0,"so":0,"t":"TopicX"}'
    )
    properties = stored.properties
    assert properties.pop("POP_NEXT") == "1"
    assert properties.pop("POP_LOG") == str(stored.log_offset)
    assert properties == {
        "REAL_TOPIC": REVIVE_LOG,
        "TIMER_DELIVER_MS": "1795244527000",
        "UNIQ_KEY": "TopicX@1@0@CG2@1795244468000@broker-a@ck",
        "TAGS": "ck",
        "TIMER_OUT_MS": "1795244526000",
        "REAL_QID": answer.fields["reviveQid"],
    }


async def test_a_pop_of_all_queues_takes_from_each():
    harness = stocked(b"a", b"b", b"c")
    put(harness, b"d", b"e", queue_id=2)
    put(harness, b"f", queue_id=0)
    answer = await popped(harness)
    assert sorted(bodies(answer)) == [b"a", b"b", b"c", b"d", b"e", b"f"]
    assert sorted(answer.fields["msgOffsetInfo"].split(";")) == ["0 0 0", "0 1 0,1,2", "0 2 0,1"]
    assert sorted(answer.fields["startOffsetInfo"].split(";")) == ["0 0 0", "0 1 0", "0 2 0"]
    assert answer.fields["restNum"] == "0"
    assert len(harness.store.messages(TIMER_TOPIC, 0)) == 3


async def test_nothing_is_answered_as_apaches_broker_does():
    harness = stocked()
    answer = await popped(harness, invisible_ms=15_000)
    golden = sample("pop none").values
    assert (answer.code, answer.remark) == (golden["code"], golden["remark"])
    changing = {"popTime": answer.fields["popTime"], "reviveQid": answer.fields["reviveQid"]}
    assert answer.fields == golden["extFields"] | changing


async def test_a_message_is_given_once_and_the_rest_is_counted():
    harness = stocked(b"a", b"b", b"c")
    first = await popped(harness, 1, count=2)
    assert (bodies(first), first.fields["restNum"]) == ([b"a", b"b"], "1")
    second = await popped(harness, 1)
    assert bodies(second) == [b"c"] and second.fields["startOffsetInfo"] == "0 1 2"
    assert (await popped(harness, 1)).code == 210
    assert bodies(await popped(harness, 1, group="CG2")) == [b"a", b"b", b"c"]


async def test_each_queue_of_a_topic_with_many_may_be_read_first():
    """Of 128 the last 28 were read only when the others had not enough messages."""
    harness = stocked(queue_id=0)
    harness.parts.topics.put(TopicConfig("TopicX", 128, 128))
    for number in range(4_000):
        put(harness, b"%d" % (number % 128), queue_id=number % 128)
    harness.router.pops.random.seed(1)
    found = {bodies(await popped(harness, count=1))[0] for _ in range(600)}
    assert len({queue for queue in map(int, found) if queue >= 100}) > 20


async def test_a_dead_letter_topic_is_popped_as_any():
    harness = stocked()
    harness.parts.topics.ensure_dead_letter("Other")
    harness.store.appender.put(Message("%DLQ%Other", 0, b"dead"))
    assert bodies(await popped(harness, topic="%DLQ%Other")) == [b"dead"]
    run(harness, 11_000)
    again = await popped(harness, topic="%DLQ%Other")
    assert bodies(again) == [b"dead"] and again.fields["startOffsetInfo"] == "1 0 0"


async def test_tags_filter_and_what_is_rejected_is_passed():
    harness = stocked(b"a", b"b", b"c", tags=("A", "B", "A"))
    answer = await popped(harness, 1, exp="A", expType="TAG")
    assert bodies(answer) == [b"a", b"c"] and answer.fields["msgOffsetInfo"] == "0 1 0,2"
    checkpoint = pop_records.decode_checkpoint(harness.store.messages(TIMER_TOPIC, 0)[0].body)
    assert checkpoint.diffs == (0, 2)
    put(harness, b"d", tags=("B",))
    assert (await popped(harness, 1, exp="A", expType="TAG")).code == 210
    assert harness.parts.pop_positions.next_offset("CG", "TopicX", 1) == 4
    assert (await ack(harness, receipts(answer, harness)[b"c"])).code == 0
    run(harness, 11_000)
    assert bodies(await popped(harness)) == [b"a"]


async def test_properties_filter():
    harness = stocked(b"a", b"b", tags=("A", "B"))
    answer = await popped(harness, 1, exp="TAGS = 'B'", expType="SQL92")
    assert bodies(answer) == [b"b"]
    assert (await popped(harness, 1, exp="(", expType="SQL92")).code == 23


async def test_peeked_messages_stay_visible():
    harness = stocked(b"a", b"b")
    fields = dict(consumerGroup="CG", topic="TopicX", queueId=-1, maxMsgNums=32)
    for _ in range(2):
        answer = await harness.ask(200052, **fields)
        assert (answer.code, answer.remark, bodies(answer)) == (0, "FOUND", [b"a", b"b"])
    assert harness.store.max_offset(TIMER_TOPIC, 0) == 0
    assert harness.parts.offsets.query("CG", "TopicX", 1) is None
    await popped(harness)
    assert (await harness.ask(200052, **fields)).code == 19


async def test_a_pop_that_comes_too_late_is_answered_with_zeros():
    harness = stocked(b"a")
    answer = await popped(harness, poll_ms=1_000, bornTime=harness.now_ms - 1_600)
    assert answer.code == 210
    assert answer.fields == {"popTime": "0", "invisibleTime": "0", "reviveQid": "0", "restNum": "0"}


async def test_nothing_is_given_whose_checkpoint_is_not_stored():
    harness = stocked(b"a")
    harness.store.refuse = PutStatus.SERVICE_NOT_AVAILABLE
    answer = await popped(harness, 1)
    assert answer.code == 14 and answer.body == b"" and "SERVICE_NOT_AVAILABLE" in answer.remark
    harness.store.refuse = None
    assert bodies(await popped(harness, 1)) == [b"a"]


async def test_with_sync_flush_nothing_is_given_before_the_checkpoint_is_synced():
    harness = stocked(sync_flush=True)
    put(harness, b"a")
    harness.store.sync()
    harness.request(200050, **pop_fields(1))
    await turns()
    assert harness.channel.answers == []
    assert harness.parts.offsets.query("CG", "TopicX", 1) == 0
    harness.parts.pop_positions.settle(harness.store.flushed)
    assert harness.parts.offsets.query("CG", "TopicX", 1) == 0
    harness.store.sync()
    await turns()
    (answer,) = harness.channel.answers
    assert bodies(answer) == [b"a"]
    harness.parts.pop_positions.settle(harness.store.flushed)
    assert harness.parts.offsets.query("CG", "TopicX", 1) == 1
    harness.channel.answers.clear()
    topic, queue_id, text, offset = receipts(answer, harness)[b"a"]
    harness.request(200051, consumerGroup="CG", topic=topic, queueId=queue_id, extraInfo=text, offset=offset)
    await turns()
    assert harness.channel.answers == []
    harness.store.sync(PutStatus.FLUSH_DISK_TIMEOUT)
    (answer,) = harness.channel.answers
    assert answer.code == 10


@pytest.mark.parametrize(
    ("change_of", "settings", "code"),
    [
        ({"topic": "Nope"}, {}, 17),
        ({"topic": "../x"}, {}, 29),
        ({"queueId": 4}, {}, 29),
        ({"queueId": -2}, {}, 29),
        ({"maxMsgNums": 33}, {}, 29),
        ({"maxMsgNums": 0}, {}, 29),
        ({"invisibleTime": 0}, {}, 29),
        ({"invisibleTime": 1 << 40}, {}, 29),
        ({"order": "true", "attemptId": "x" * 256}, {}, 29),
        ({"exp": "||", "expType": "TAG"}, {}, 23),
        ({"exp": "x", "expType": "NOPE"}, {}, 23),
        ({"consumerGroup": "New"}, {"auto_create_subscription_group": False}, 26),
        ({"consumerGroup": "bad name"}, {}, 29),
        ({}, {"store_settings": {"timer_wheel_enable": False}}, 1),
        ({}, {"broker_permission": 2}, 16),
    ],
)
async def test_a_pop_that_is_not_allowed_changes_nothing(change_of, settings, code):
    harness = stocked(b"a", **settings)
    answer = await harness.ask(200050, **pop_fields(1) | change_of)
    assert answer.code == code and answer.remark
    assert harness.store.max_offset(TIMER_TOPIC, 0) == 0


async def test_forbidden_groups_and_topics():
    harness = stocked(b"a")
    harness.parts.groups.find_or_create("CG").consume_enable = False
    assert (await popped(harness, 1)).code == 16
    harness.parts.groups.find_or_create("CG").consume_enable = True
    harness.parts.groups.set_may_read("CG", "TopicX", False)
    assert (await popped(harness, 1)).code == 16
    harness.parts.groups.set_may_read("CG", "TopicX", True)
    harness.parts.topics.put(TopicConfig("TopicX", 4, 4, 2))
    assert (await popped(harness, 1)).code == 16


async def test_records_of_the_broker_are_not_popped():
    harness = stocked()
    harness.store.appender.put(Message(REVIVE_LOG, 1, b"r"))
    answer = await popped(harness, topic=REVIVE_LOG)
    assert answer.code == 13 and "records of the broker" in answer.remark


async def test_clients_cannot_send_to_the_revive_log():
    harness = stocked()
    assert (await harness.send(REVIVE_LOG)).code == 16
    assert harness.store.max_offset(REVIVE_LOG, 0) == 0


def _record(name):
    key = PopKey("TopicX", "CG", 1, 0, 1_000, name)
    body = pop_records.encode_checkpoint(PopCheckpoint(key, 1_000, (0,)))
    return (
        body,
        f"TAGS\x01ck\x02UNIQ_KEY\x01{pop_records.checkpoint_id(key)}\x02POP_NEXT\x019\x02POP_LOG\x019\x02",
    )


@pytest.mark.parametrize(("name", "tag", "is_taken"), [
    ("broker-b", "ck", True), ("broker-a", "ck", False), ("", "ck", False), ("broker-b", "other", False),
    ("broker-b", "ack", False),
])  # fmt: skip
async def test_records_of_pops_at_other_brokers_are_taken_without_what_only_this_broker_states(
    name, tag, is_taken
):
    harness = stocked()
    assert harness.parts.broker_name == "broker-a"
    body, pairs = _record(name)
    answer = await harness.send(REVIVE_LOG, body=body, properties=pairs.replace("ck\x02", f"{tag}\x02", 1))
    assert answer.code == (0 if is_taken else 16)
    found = [stored.properties for stored in harness.store.messages(REVIVE_LOG, 0)]
    assert len(found) == is_taken and all("POP_NEXT" not in each and "POP_LOG" not in each for each in found)


async def test_a_pop_checkpoint_of_another_broker_waits_in_the_timer_for_its_time():
    """In the revive log it would be held in memory until then."""
    harness = stocked()
    now_ms = harness.parts.clock()
    for invisible_ms, code in ((60_000, 0), (1 << 60, 13)):
        key = PopKey("TopicX", "CG", 1, 0, now_ms, "broker-b")
        body = pop_records.encode_checkpoint(PopCheckpoint(key, invisible_ms, (0,)))
        pairs = f"TAGS\x01ck\x02UNIQ_KEY\x01{pop_records.checkpoint_id(key)}\x02"
        assert (await harness.send(REVIVE_LOG, body=body, properties=pairs)).code == code
    (waiting,) = harness.store.messages("rmq_sys_wheel_timer", 0)
    assert waiting.properties["TIMER_DELIVER_MS"] == str(now_ms + 59_000)
    assert waiting.properties["REAL_TOPIC"] == REVIVE_LOG
    assert harness.store.messages(REVIVE_LOG, 0) == []


async def test_records_of_pops_at_other_brokers_need_topic_and_group_here():
    harness = stocked()
    body, pairs = _record("broker-b")
    assert (await harness.send(REVIVE_LOG, body=body, properties=pairs)).code == 0
    assert harness.parts.groups.get("CG") is not None  # made for it
    harness.parts.groups.creates_itself = False
    harness.parts.groups.delete("CG")
    assert (await harness.send(REVIVE_LOG, body=body, properties=pairs)).code == 26
    harness.parts.topics.delete("TopicX")
    assert (await harness.send(REVIVE_LOG, body=body, properties=pairs)).code == 17
    assert len(harness.store.messages(REVIVE_LOG, 0)) == 1


async def test_the_tool_that_rolls_back_has_nothing_to_do():
    assert (await stocked().ask(200056)).code == 0


async def test_pop_codes_in_a_binary_header():
    harness = stocked(b"a")
    answer = await harness.ask(200050, serialization=1, **pop_fields(1))
    assert answer.code == 0 and bodies(answer) == [b"a"]


async def test_pops_use_the_queues_of_the_revive_log_in_turn():
    harness = stocked(revive_queue_num=3)
    assert harness.parts.topics.get(REVIVE_LOG).read_queues == 3
    queues = [(await popped(harness)).fields["reviveQid"] for _ in range(6)]
    assert queues == ["1", "2", "0"] * 2
