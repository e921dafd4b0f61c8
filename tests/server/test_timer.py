"""server.timer: timer messages over the wire, recall, check point and metrics."""

import base64

import pytest

from broker_store.broker.topics import TopicConfig
from broker_store.formats import recall_handle, timer_check
from broker_store.formats.recall_handle import RecallHandle
from broker_store.formats.timer_log import TIMER_TOPIC
from broker_store.protocol import fastjson
from tests.support.broker_harness import Harness
from tests.support.wire_samples import sample

RECALL, CHECK_POINT, METRICS = 370, 60, 61


def told(**pairs) -> str:
    return "".join(f"{name}\x01{value}\x02" for name, value in pairs.items())


def harness_of(**settings) -> Harness:
    harness = Harness(**{"recall_message_enable": True} | settings)
    harness.parts.topics.put(TopicConfig("TopicX", 4, 4))
    harness.parts.timer.start()
    return harness


def run(harness, until_ms) -> None:
    timer = harness.parts.timer
    for _ in range(1000):
        due_ms = timer.step(harness.now_ms)
        if due_ms is None or due_ms > until_ms:
            break
        harness.now_ms = max(harness.now_ms, due_ms)
    harness.now_ms = until_ms


async def send(harness, key="U1", **pairs):
    return await harness.send("TopicX", 1, properties=told(UNIQ_KEY=key, **pairs))


async def test_the_answer_to_a_timer_message_has_apaches_fields_and_a_handle():
    harness = harness_of()
    answer = await send(harness, TIMER_DELAY_SEC=60)
    assert answer.code == 0
    assert answer.fields.keys() == sample("sendv2 timer").values["extFields"].keys()
    handle = recall_handle.decode(answer.fields["recallHandle"])
    assert handle == ("TopicX", "broker-a", str(harness.now_ms + 59_001), "U1")
    assert (answer.fields["queueId"], answer.fields["queueOffset"], answer.fields["transactionId"]) == (
        "1",
        "0",
        "U1",
    )
    (waiting,) = harness.store.messages(TIMER_TOPIC, 0)
    assert waiting.properties["REAL_TOPIC"] == "TopicX" and waiting.properties["REAL_QID"] == "1"
    run(harness, harness.now_ms + 60_000)
    (delivered,) = harness.store.messages("TopicX", 1)
    assert delivered.body == b"hello" and delivered.unique_key == "U1"


async def test_in_binary_too_and_oneway_without_an_answer():
    harness = harness_of()
    answer = await harness.send(
        "TopicX", 1, properties=told(UNIQ_KEY="U1", TIMER_DELAY_MS=5000), serialization=1
    )
    assert recall_handle.decode(answer.fields["recallHandle"]).unique_key == "U1"
    await harness.send("TopicX", 1, properties=told(UNIQ_KEY="U2", TIMER_DELAY_MS=5000), oneway=True)
    await send(harness)
    assert harness.store.reads.max_offset(TIMER_TOPIC, 0) == 2 and harness.channel.answers == []


async def test_one_without_a_time_to_come_has_no_handle():
    harness = harness_of()
    answer = await send(harness, TIMER_DELIVER_MS=5)
    assert "recallHandle" not in answer.fields and harness.store.reads.max_offset("TopicX", 1) == 1


@pytest.mark.parametrize(
    ("pairs", "settings", "code", "remark"),
    [
        ({"TIMER_DELAY_SEC": 259_201}, {}, 13, "timer message illegal, the delay time should not be bigger " "than the max delay 259200000ms; " "or if set del msg, "
         "the delay time should be bigger than the current time"),
        ({"TIMER_DELAY_SEC": "x"}, {}, 13, "timer message illegal"),
        ({"TIMER_DELIVER_MS": 5, "TIMER_DEL_UNIQKEY": "k"}, {}, 13, "timer message illegal"),
        ({"TIMER_DELAY_SEC": 11}, {"timer_max_delay_sec": 10}, 13, "timer message illegal, the delay time " "should not be bigger than the max delay " "10000ms"),
        ({"TIMER_DELAY_SEC": 5}, {"store_settings": {"timer_wheel_enable": False}}, 1, "accurate timer message is not enabled, " "timerWheelEnable is false"),
    ],
)  # fmt: skip
async def test_what_the_wheel_does_not_take_is_refused_in_apaches_words(pairs, settings, code, remark):
    harness = harness_of(**settings)
    answer = await send(harness, **pairs)
    assert (
        answer.code == code and answer.remark.startswith(remark[:200]) and "recallHandle" not in answer.fields
    )
    assert harness.store.queues() == []


async def test_a_crowded_second_is_under_flow_control():
    harness = harness_of(timer_congest_num_each_slot=1)
    for _ in range(2):
        assert (await send(harness, TIMER_DELAY_SEC=5)).code == 0
        run(harness, harness.now_ms)
    answer = await send(harness, TIMER_DELAY_SEC=5)
    assert answer.code == 1
    assert (
        answer.remark
        == (
            "timer message is under flow control, max num limit is 2 or the current value is greater "
            "than 1 and less than 2, trigger random flow control"
        )
        or (await send(harness, TIMER_DELAY_SEC=5)).code == 1
    )


async def test_a_delay_level_counts_more_and_takes_the_times_out():
    harness = harness_of()
    answer = await send(harness, DELAY=2, TIMER_DELAY_SEC=60, TIMER_DELAY_MS=7, TIMER_DELIVER_MS=9)
    assert answer.code == 0 and "recallHandle" not in answer.fields
    (waiting,) = harness.store.messages("SCHEDULE_TOPIC_XXXX", 1)
    assert not any(name.startswith("TIMER_") for name in waiting.properties)


# Recall -------------------------------------------------------------------------------------------


async def recall(harness, handle, topic="TopicX", **more):
    return await harness.ask(RECALL, producerGroup="PG", topic=topic, recallHandle=handle, **more)


async def test_a_message_that_was_recalled_does_not_come():
    harness = harness_of()
    first, second = [
        (await send(harness, key, TIMER_DELAY_SEC=10)).fields["recallHandle"] for key in ("U1", "U2")
    ]
    answer = await recall(harness, first)
    assert (answer.code, answer.fields["msgId"], answer.fields["MSG_REGION"]) == (0, "U1", "DefaultRegion")
    request = harness.store.messages(TIMER_TOPIC, 0)[2]
    assert (
        request.body == b"0"
        and request.tags == "_RECALL_TAG_"
        and request.properties["TIMER_DEL_UNIQKEY"] == "U1"
    )
    assert (
        request.properties["PGROUP"] == "PG"
        and request.properties["TIMER_OUT_MS"]
        == harness.store.messages(TIMER_TOPIC, 0)[0].properties["TIMER_OUT_MS"]
    )
    run(harness, harness.now_ms + 20_000)
    assert [message.unique_key for message in harness.store.messages("TopicX", 1)] == ["U2"]
    late = await recall(harness, second)
    assert (late.code, late.remark) == (604, "recall failed, timestamp invalid")


async def test_recall_is_off_unless_it_is_set():
    harness = harness_of(recall_message_enable=False)
    handle = (await send(harness, TIMER_DELAY_SEC=10)).fields["recallHandle"]
    answer = await recall(harness, handle)
    assert (answer.code, answer.remark) == (16, "recall failed, operation is forbidden")


def handle_of(harness, topic="TopicX", broker="broker-a", ahead_ms=5_001, key="U1"):
    return recall_handle.encode(RecallHandle(topic, broker, str(harness.now_ms + ahead_ms), key))


@pytest.mark.parametrize(
    ("change", "code", "remark"),
    [
        ({"handle": "no handle"}, 604, "recall handle is invalid"),
        ({"handle": base64.urlsafe_b64encode(b"v2 a b c d").decode()}, 604, "recall handle is invalid"),
        ({"topic": "Other"}, 17, "recall failed, the topic[Other] not exist"),
        ({"made": {"topic": "Other"}}, 604, "recall failed, topic not match"),
        ({"made": {"broker": "broker-b"}}, 604, "recall failed, broker service not available"),
        ({"made": {"ahead_ms": 0}}, 604, "recall failed, timestamp invalid"),
        ({"made": {"ahead_ms": 3 * 86_400_000}}, 604, "recall failed, timestamp invalid"),
        (
            {"handle": base64.urlsafe_b64encode(b"v1 TopicX broker-a soon k").decode()},
            604,
            "recall failed, timestamp invalid",
        ),
        ({"made": {"key": "a\x01b"}}, 1, "recall failed, execute error"),
        ({"made": {"key": "k" * 40_000}}, 1, "recall failed, execute error"),
    ],
)
async def test_what_cannot_be_recalled_is_answered_and_changes_nothing(change, code, remark):
    harness = harness_of()
    handle = change.get("handle") or handle_of(harness, **change.get("made", {}))
    answer = await recall(harness, handle, change.get("topic", "TopicX"))
    assert (answer.code, answer.remark) == (code, remark)
    assert harness.store.queues() == []


async def test_a_slave_recalls_nothing_and_a_broker_without_writing_as_it_is_set():
    harness = harness_of(store_settings={"broker_role": "SLAVE"})
    assert (await recall(harness, handle_of(harness))).code == 11
    harness = harness_of(broker_permission=4, allow_recall_when_broker_not_writeable=False)
    assert (await recall(harness, handle_of(harness))).code == 14
    harness = harness_of(broker_permission=4)
    assert (await recall(harness, handle_of(harness))).code == 0


@pytest.mark.parametrize("fields", [{}, {"topic": "TopicX"}, {"recallHandle": "x"}])
async def test_a_recall_without_its_fields_is_answered(fields):
    harness = harness_of()
    answer = await harness.ask(RECALL, **fields)
    assert answer.code != 0 and harness.store.queues() == []


# Check point and metrics --------------------------------------------------------------------------


async def test_check_point_and_metrics_tell_how_far_the_wheel_is():
    harness = harness_of()
    await send(harness, TIMER_DELAY_SEC=60)
    run(harness, harness.now_ms)
    answer = await harness.ask(CHECK_POINT)
    check = timer_check.decode(answer.body)
    assert len(answer.body) == 56 and (check.queue_offset, check.master_queue_offset, check.log_flushed) == (
        1,
        1,
        52,
    )
    assert check.read_ms == harness.now_ms // 1000 * 1000
    metrics = fastjson.loads((await harness.ask(METRICS)).body)
    assert metrics["timingCount"] == {"TopicX": {"count": 1, "timeStamp": harness.now_ms}}
    assert metrics.keys() == fastjson.loads(sample("timer metrics").body).keys()
    info = fastjson.loads((await harness.ask(28)).body)["table"]
    assert (info["timerCongestNum"], info["timerOffsetBehind"], info["timerReadBehind"]) == ("1", "0", "0")


async def test_a_broker_without_a_wheel_says_so():
    harness = harness_of(store_settings={"timer_wheel_enable": False})
    assert [(await harness.ask(code)).code for code in (CHECK_POINT, METRICS)] == [1, 1]
