"""server.pop, server.pop_acks: pops, acknowledgements, invisible times, over the wire and with the timer."""

import asyncio

import pytest

from broker_store.broker.topics import TopicConfig
from broker_store.formats import pop_records, record
from broker_store.formats.timer_log import TIMER_TOPIC
from broker_store.messages import Message, PutResult, PutStatus
from broker_store.protocol import fastjson, pop
from broker_store.protocol.pop import Receipt
from broker_store.server.broker import Broker
from broker_store.server.parts import build_parts
from broker_store.server.pop_waiting import MAX_CHANGES_PER_TURN, MAX_ENDS_PER_TURN
from broker_store.server.router import Router
from tests.support.bit_set import write_bits
from tests.support.broker_harness import FakeChannel, Harness, turns
from tests.support.loop_turns import in_short_turns
from tests.support.wire_samples import sample

REVIVE_LOG = "rmq_sys_REVIVE_LOG_DefaultCluster"
RETRY = "%RETRY%CG_TopicX"


def stocked(*bodies: bytes, queue_id: int = 1, tags=(), **options) -> Harness:
    """Return a harness with a topic TopicX of four queues and messages in one of them."""
    harness = Harness(**{"pop_from_retry_probability": 0} | options)
    harness.parts.topics.put(TopicConfig("TopicX", 4, 4))
    harness.parts.timer.start()
    harness.parts.revive.start(harness.parts.offsets.query)
    harness.parts.revive.on_revived = harness.router.pops.waiting.revived
    put(harness, *bodies, queue_id=queue_id, tags=tags)
    return harness


def put(harness, *bodies: bytes, queue_id: int = 1, tags=()) -> None:
    for number, body in enumerate(bodies):
        tag = tags[number] if tags else "TagA"
        harness.store.appender.put(
            Message("TopicX", queue_id, body, f"TAGS\x01{tag}\x02UNIQ_KEY\x01U{number}\x02".encode())
        )


def pop_fields(
    queue_id=-1, *, group="CG", topic="TopicX", count=32, invisible_ms=10_000, poll_ms=0, mode=0, **more
):
    return dict(
        consumerGroup=group, topic=topic, queueId=queue_id, maxMsgNums=count, invisibleTime=invisible_ms,
        pollTime=poll_ms, initMode=mode, **more,
    )  # fmt: skip


async def popped(harness, *place, channel=None, **options):
    """The answer to a pop."""
    return await harness.ask(200050, channel=channel, **pop_fields(*place, **options))


def bodies(answer) -> list[bytes]:
    return [stored.body for stored in record.decode_all(answer.body)]


def receipts(answer, harness) -> dict[bytes, tuple[str, int, str, int]]:
    """Body -> (topic, queue id, receipt, offset) of each message, as a Java client makes them."""
    fields, found = answer.fields, {}
    starts = dict(
        ((int(kind), int(queue)), int(start))
        for kind, queue, start in (text.split(" ") for text in fields["startOffsetInfo"].split(";") if text)
    )
    for stored in record.decode_all(answer.body):
        text = stored.properties.get("POP_CK")
        if text is None:
            receipt = Receipt(
                starts[0, stored.queue_id], int(fields["popTime"]), int(fields["invisibleTime"]),
                int(fields["reviveQid"]), 0, harness.parts.broker_name, stored.queue_id, stored.queue_offset,
            )  # fmt: skip
            text = pop.write_receipt(receipt)
        kind = pop.read_receipt(text).kind
        found[stored.body] = (
            pop.topic_of(stored.topic, "CG", kind),
            stored.queue_id,
            text,
            stored.queue_offset,
        )
    return found


async def ack(harness, receipt, group="CG"):
    topic, queue_id, text, offset = receipt
    return await harness.ask(
        200051, consumerGroup=group, topic=topic, queueId=queue_id, extraInfo=text, offset=offset
    )


def run(harness, ms: int) -> None:
    """Let time pass: timer and revive steps when they are due."""
    parts, until_ms = harness.parts, harness.now_ms + ms
    while harness.now_ms < until_ms:
        harness.now_ms = min(until_ms, harness.now_ms + 100)
        for _ in range(20):
            parts.timer.step(harness.now_ms)
            parts.revive.step(harness.now_ms)


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


async def test_a_batch_of_acks():
    harness = stocked(b"a", b"b", b"c")
    answer = await popped(harness, 1)
    fields = answer.fields
    entry = {
        "c": "CG", "t": "TopicX", "r": "0", "so": 0, "q": 1, "rq": int(fields["reviveQid"]), "pt": int(fields["popTime"]),
        "it": 10_000, "b": write_bits([0, 2]),
    }  # fmt: skip
    body = fastjson.dumps({"brokerName": "broker-a", "acks": [entry]})
    assert (await harness.ask(200151, body)).code == 0
    batch = harness.store.messages(TIMER_TOPIC, 0)[-1]
    assert batch.tags == "bAck" and pop_records.decode_ack(batch.body).offsets == (0, 2)
    run(harness, 11_000)
    assert bodies(await popped(harness)) == [b"b"]
    assert (await harness.ask(200151, fastjson.dumps({"acks": []}))).code == 208
    beyond = fastjson.dumps({"acks": [entry | {"so": 50}]})
    assert (await harness.ask(200151, beyond)).code == 208


async def test_acks_of_one_turn_and_one_pop_are_one_record():
    harness = stocked(b"a", b"b", b"c", b"d")
    first = receipts(await popped(harness, 1, count=3), harness)
    second = receipts(await popped(harness, 1), harness)
    before = harness.store.max_offset(TIMER_TOPIC, 0)
    wanted = [first[b"c"], first[b"a"], second[b"d"], first[b"a"]]
    answers = await asyncio.gather(*[ack(harness, receipt) for receipt in wanted])
    assert [answer.code for answer in answers] == [0, 0, 0, 0]
    records = harness.store.messages(TIMER_TOPIC, 0)[before:]
    assert [(each.tags, pop_records.decode_ack(each.body).offsets) for each in records] == [
        ("bAck", (0, 2)),
        ("ack", (3,)),
    ]
    run(harness, 11_000)
    assert bodies(await popped(harness)) == [b"b"]


async def test_more_acks_than_a_pop_checkpoint_has_messages_are_several_records():
    """A forged receipt may name any message of its queue."""
    harness = stocked(*[b"%d" % number for number in range(70)])
    topic, queue_id, text, _ = receipts(await popped(harness, 1, count=1), harness)[b"0"]
    before = harness.store.max_offset(TIMER_TOPIC, 0)
    answers = await asyncio.gather(*[ack(harness, (topic, queue_id, text, offset)) for offset in range(70)])
    assert {answer.code for answer in answers} == {0}
    records = harness.store.messages(TIMER_TOPIC, 0)[before:]
    assert [len(pop_records.decode_ack(each.body).offsets) for each in records] == [32, 32, 6]


@pytest.mark.parametrize("fails", [None, RuntimeError("a fault of a part")])
async def test_acks_of_one_turn_are_answered_each_by_its_own_record(monkeypatch, fails):
    harness = stocked(b"a", b"b")
    first = receipts(await popped(harness, 1, count=1), harness)[b"a"]
    second = receipts(await popped(harness, 1), harness)[b"b"]
    put_ack = harness.parts.revive_log.put_ack

    def refuse_first(key, offsets, queue_id, due_ms):
        if offsets == [0]:
            if fails:
                raise fails
            return PutResult(PutStatus.SERVICE_NOT_AVAILABLE)
        return put_ack(key, offsets, queue_id, due_ms)

    monkeypatch.setattr(harness.parts.revive_log, "put_ack", refuse_first)
    answers = await asyncio.gather(ack(harness, first), ack(harness, second))
    assert [answer.code for answer in answers] == [1 if fails else 14, 0]


async def change(harness, receipt, invisible_ms, group="CG"):
    topic, queue_id, text, offset = receipt
    return await harness.ask(
        200053, consumerGroup=group, topic=topic, queueId=queue_id, extraInfo=text, offset=offset,
        invisibleTime=invisible_ms,
    )  # fmt: skip


async def test_an_invisible_time_is_changed():
    harness = stocked(b"a", b"b")
    answer = await popped(harness, 1)
    receipt = receipts(answer, harness)[b"a"]
    run(harness, 5_000)
    changed = await change(harness, receipt, 30_000)
    assert changed.code == 0 and changed.fields == {
        "popTime": str(harness.now_ms),
        "invisibleTime": "30000",
        "reviveQid": answer.fields["reviveQid"],
    }
    run(harness, 6_000)
    assert bodies(await popped(harness)) == [b"b"]
    run(harness, 24_500)
    (stored,) = record.decode_all((await popped(harness)).body)[-1:]
    assert (stored.body, stored.reconsume_times) == (b"a", 1)


@pytest.mark.parametrize("what", ["ack", "batch", "change", "another broker"])
async def test_a_receipt_with_another_invisible_time_or_broker_is_refused(what):
    harness = stocked(b"a")
    topic, queue_id, text, offset = receipts(await popped(harness, 1), harness)[b"a"]
    forged = pop.read_receipt(text)._replace(invisible_ms=70_000)
    if what == "ack":
        answer = await ack(harness, (topic, queue_id, pop.write_receipt(forged), offset))
    elif what == "change":
        answer = await change(harness, (topic, queue_id, pop.write_receipt(forged), offset), 30_000)
    else:
        broker, invisible_ms = ("broker-a", 70_000) if what == "batch" else ("broker-z", 10_000)
        entry = {
            "c": "CG", "t": "TopicX", "r": "0", "so": forged.start_offset, "q": 1, "rq": forged.revive_queue,
            "pt": forged.pop_ms, "it": invisible_ms, "b": write_bits([0]),
        }  # fmt: skip
        answer = await harness.ask(200151, fastjson.dumps({"brokerName": broker, "acks": [entry]}))
    assert answer.code == 13 and harness.parts.in_flight.invisible == 1
    run(harness, 11_000)
    assert bodies(await popped(harness)) == [b"a"]  # at its own time


async def test_a_changed_message_is_acknowledged_by_its_new_receipt():
    harness = stocked(b"a")
    topic, queue_id, text, offset = receipts(await popped(harness), harness)[b"a"]
    for _ in range(3):  # all in one millisecond
        fields = (await change(harness, (topic, queue_id, text, offset), 20_000)).fields
        receipt = Receipt(
            offset, int(fields["popTime"]), 20_000, int(fields["reviveQid"]), 0, "broker-a", 1, offset
        )
        text = pop.write_receipt(receipt)
    assert (await ack(harness, (topic, queue_id, text, offset))).code == 0
    run(harness, 60_000)
    assert (await popped(harness)).code == 210


async def test_three_changes_leave_one_message():
    harness = stocked(b"a")
    topic, queue_id, text, offset = receipts(await popped(harness), harness)[b"a"]
    for _ in range(3):
        fields = (await change(harness, (topic, queue_id, text, offset), 20_000)).fields
        receipt = Receipt(
            offset, int(fields["popTime"]), 20_000, int(fields["reviveQid"]), 0, "broker-a", 1, offset
        )
        text = pop.write_receipt(receipt)
    run(harness, 60_000)
    assert harness.store.max_offset(RETRY, 0) == 1


async def test_an_invisible_time_of_zero_brings_a_message_at_once():
    harness = stocked(b"a")
    receipt = receipts(await popped(harness), harness)[b"a"]
    assert (await change(harness, receipt, 0)).code == 0
    run(harness, 1_000)
    assert bodies(await popped(harness)) == [b"a"]


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


async def test_a_pop_waits_for_a_message():
    harness = stocked()
    request = harness.request(200050, **pop_fields(poll_ms=15_000))
    await turns()
    assert harness.channel.answers == []
    info = await harness.ask(200055, consumerGroup="CG", topic="TopicX", queueId=-1)
    assert info.fields == {"pollingNum": "1"}
    put(harness, b"a", queue_id=3)
    await turns()
    (answer,) = harness.channel.answers
    assert (
        answer.opaque == request.opaque and bodies(answer) == [b"a"] and harness.parts.parked_pops.count == 0
    )


async def test_a_pop_waits_for_queues_that_its_topic_gets_later():
    harness = stocked()
    harness.parts.topics.on_change = harness.router.pops.waiting.topics_changed
    groups = 3 * MAX_CHANGES_PER_TURN
    for number in range(groups):
        harness.request(200050, **pop_fields(poll_ms=15_000, group=f"G{number}"))
    await turns()
    harness.parts.topics.put(TopicConfig("TopicX", 8, 8))
    await turns()
    put(harness, b"a", queue_id=7)
    await turns()
    assert [bodies(answer) for answer in harness.channel.answers] == [[b"a"]] * groups
    harness.channel.answers.clear()
    harness.request(200050, **pop_fields(poll_ms=15_000, group="G0"))
    await turns()
    put(harness, b"b", queue_id=9)
    harness.parts.topics.put(TopicConfig("TopicX", 10, 10))
    await turns()
    assert [bodies(answer) for answer in harness.channel.answers] == [[b"b"]]
    harness.request(200050, **pop_fields(poll_ms=15_000, group="G0"))
    await turns()
    harness.parts.topics.put(TopicConfig("TopicX", 1, 1))
    await turns()
    put(harness, b"c", queue_id=9)
    put(harness, b"d", queue_id=0)
    await turns()
    assert [bodies(answer) for answer in harness.channel.answers][1:] == [[b"d"]]


async def test_one_message_wakes_one_pop_of_each_group():
    harness = stocked()
    for group in ("CG", "CG", "CG2"):
        harness.request(200050, **pop_fields(poll_ms=15_000, group=group))
    await turns()
    put(harness, b"a")
    await turns()
    assert [bodies(answer) for answer in harness.channel.answers] == [[b"a"], [b"a"]]
    assert harness.parts.parked_pops.count == 1
    put(harness, *(b"b%d" % number for number in range(40)))
    await turns()
    assert len(bodies(harness.channel.answers[-1])) == 32


async def test_pops_that_wait_share_what_came():
    harness = stocked()
    for _ in range(3):
        harness.request(200050, **pop_fields(poll_ms=15_000, count=1))
    await turns()
    harness.store.appender.put_many([Message("TopicX", 1, body) for body in (b"a", b"b")])
    await turns()
    assert [bodies(answer) for answer in harness.channel.answers] == [[b"a"], [b"b"]]


async def test_a_pop_that_waits_gets_what_comes_again():
    harness = stocked(b"a")
    await popped(harness, invisible_ms=5_000)
    harness.request(200050, **pop_fields(poll_ms=15_000))
    await turns()
    run(harness, 6_000)
    await turns()
    (answer,) = harness.channel.answers
    assert bodies(answer) == [b"a"] and answer.fields["startOffsetInfo"] == "1 0 0"


async def test_the_time_of_a_waiting_pop_ends():
    harness = stocked()
    request = harness.request(200050, **pop_fields(poll_ms=1_000))
    await turns()
    harness.now_ms += 1_001
    harness.router.pops.waiting._expire()
    harness.router.pops.waiting._timer.cancel()
    (answer,) = harness.channel.answers
    assert (answer.opaque, answer.code, answer.remark) == (request.opaque, 210, "NO_MESSAGE_IN_QUEUE")


async def test_pops_whose_time_ends_together_are_answered_in_turns():
    harness = stocked()
    for number in range(2 * MAX_ENDS_PER_TURN):
        harness.request(200050, **pop_fields(poll_ms=1_000, group=f"G{number}"))
    await turns()
    harness.now_ms += 1_001
    harness.router.pops.waiting._expire()
    assert len(harness.channel.answers) == MAX_ENDS_PER_TURN
    await turns()
    assert [answer.code for answer in harness.channel.answers] == [210] * 2 * MAX_ENDS_PER_TURN
    harness.router.pops.waiting._timer.cancel()


async def test_a_pop_that_comes_too_late_is_answered_with_zeros():
    harness = stocked(b"a")
    answer = await popped(harness, poll_ms=1_000, bornTime=harness.now_ms - 1_600)
    assert answer.code == 210
    assert answer.fields == {"popTime": "0", "invisibleTime": "0", "reviveQid": "0", "restNum": "0"}


async def test_places_to_wait_are_bounded():
    harness = stocked(pop_polling_size=1, max_pop_polling_size=2)
    harness.request(200050, **pop_fields(poll_ms=15_000))
    assert (await popped(harness, poll_ms=15_000)).code == 209
    harness.request(200050, **pop_fields(1, poll_ms=15_000))
    assert (await popped(harness, poll_ms=15_000, group="CG2")).code == 209


async def test_waiting_pops_end_with_their_connection_and_with_the_broker():
    harness = stocked()
    other = FakeChannel(50_001)
    harness.request(200050, channel=other, **pop_fields(poll_ms=15_000))
    harness.request(200050, **pop_fields(poll_ms=15_000))
    await turns()
    harness.parts.parked_pops.channel_closed(other)
    assert harness.parts.parked_pops.count == 1
    harness.router.pops.waiting.stop()
    assert [answer.code for answer in harness.channel.answers] == [210] and other.answers == []
    put(harness, b"a")
    await turns()


async def test_notifications():
    harness = stocked()
    fields = dict(consumerGroup="CG", topic="TopicX", queueId=-1, pollTime=0)
    nothing = {"hasMsg": "false", "pollingFull": "false"}
    assert (await harness.ask(200054, **fields)).fields == nothing
    harness.request(200054, **fields | {"pollTime": 15_000})
    await turns()
    assert harness.channel.answers == []
    put(harness, b"a")
    await turns()
    (answer,) = harness.channel.answers
    assert answer.fields == nothing | {"hasMsg": "true"}
    assert (await harness.ask(200054, **fields)).fields == nothing | {"hasMsg": "true"}
    await popped(harness)
    assert (await harness.ask(200054, **fields)).fields == nothing


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


async def test_cold_reads_lock_a_queue_for_the_group():
    harness = stocked(b"a")
    harness.store.cold = True
    first = harness.request(200050, **pop_fields(1))
    second = harness.request(200050, **pop_fields(1, poll_ms=15_000))
    await turns()
    assert harness.store.finish_cold_reads() == 1
    await turns()
    (answer,) = harness.channel.answers
    assert answer.opaque == first.opaque and bodies(answer) == [b"a"]
    harness.store.cold = False
    put(harness, b"b")
    await turns()
    assert harness.channel.answers[-1].opaque == second.opaque and bodies(harness.channel.answers[-1]) == [
        b"b"
    ]


async def test_a_topic_that_is_deleted_during_a_cold_read_gives_nothing_of_it():
    harness = stocked(*[b"old"] * 20)
    harness.store.cold = True
    request = harness.request(200050, **pop_fields(1))
    await turns()
    assert (await harness.ask(215, topic="TopicX")).code == 0
    harness.parts.topics.put(TopicConfig("TopicX", 4, 4))
    put(harness, b"new")
    harness.store.finish_cold_reads()
    await turns()
    (answer,) = harness.channel.answers
    assert (answer.opaque, answer.code) == (request.opaque, 210)
    harness.store.cold = False
    assert bodies(await popped(harness, 1)) == [b"new"]


async def test_a_connection_that_ends_during_a_cold_read_takes_no_message():
    harness = stocked(b"a")
    harness.store.cold = True
    other = FakeChannel(50_001)
    harness.request(200050, channel=other, **pop_fields(1))
    other.closed = True
    harness.request(200050, **pop_fields(1, poll_ms=15_000))
    await turns()
    harness.store.finish_cold_reads()
    await turns()
    harness.store.finish_cold_reads()
    await turns()
    assert bodies(harness.channel.answers[-1]) == [b"a"] and harness.store.max_offset(TIMER_TOPIC, 0) == 1


async def test_a_peer_that_does_not_read_is_given_nothing():
    harness = stocked(b"a")
    harness.store.cold = True
    harness.request(200050, **pop_fields(1))
    harness.channel.paused = True
    harness.store.finish_cold_reads()
    assert harness.store.max_offset(TIMER_TOPIC, 0) == 0
    harness.channel.resume()
    harness.store.finish_cold_reads()
    assert bodies(harness.channel.answers[-1]) == [b"a"]


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


GOOD_RECEIPT = "0 1700000000000 10000 0 0 broker-a 1 0"


@pytest.mark.parametrize(
    ("change_of", "code"),
    [
        ({"topic": "Nope"}, 17),
        ({"queueId": 4}, 13),
        ({"queueId": -1}, 13),
        ({"offset": 2}, 208),
        ({"offset": -1}, 208),
        ({"extraInfo": "nonsense"}, 29),
        ({"extraInfo": GOOD_RECEIPT.replace(" 0 0 broker", " 8 0 broker")}, 13),
        ({"extraInfo": GOOD_RECEIPT.replace(" 0 0 broker", " 999 0 broker")}, 13),
        ({"extraInfo": GOOD_RECEIPT.replace("10000", str(1 << 50))}, 1),
        ({"extraInfo": GOOD_RECEIPT.replace("broker-a", "broker-b")}, 13),
        ({"topic": REVIVE_LOG}, 13),
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, 13),
        ({"topic": f"%RETRY%CG_{REVIVE_LOG}", "queueId": 0}, 13),
        ({"consumerGroup": "Nope"}, 26),
        ({"consumerGroup": "bad name"}, 29),
    ],
)
async def test_wrong_acks_and_changes_store_nothing(change_of, code):
    harness = stocked(b"a")
    harness.parts.groups.find_or_create("CG")
    for topic in (REVIVE_LOG, "SCHEDULE_TOPIC_XXXX"):
        harness.store.appender.put(Message(topic, 1, b"r"))
    harness.parts.topics.ensure_pop_retry(f"%RETRY%CG_{REVIVE_LOG}")
    harness.store.appender.put(Message(f"%RETRY%CG_{REVIVE_LOG}", 0, b"r"))
    fields = dict(consumerGroup="CG", topic="TopicX", queueId=1, extraInfo=GOOD_RECEIPT, offset=0)
    answer = await harness.ask(200051, **fields | change_of)
    assert answer.code == code and answer.remark
    assert harness.store.max_offset(TIMER_TOPIC, 0) == 0
    if code != 1:
        answer = await harness.ask(200053, **fields | {"invisibleTime": 5} | change_of)
        assert answer.code == code and harness.store.max_offset(TIMER_TOPIC, 0) == 0
    assert (await harness.ask(200053, **fields | {"invisibleTime": 1 << 40})).code == 29


@pytest.mark.parametrize(
    ("change_of", "code"),
    [({"t": REVIVE_LOG}, 13), ({"c": "Nope"}, 26), ({"c": "bad name"}, 29), ({"t": "Nope"}, 17)],
)
async def test_a_batch_with_a_wrong_ack_stores_nothing(change_of, code):
    harness = stocked(b"a")
    harness.parts.groups.find_or_create("CG")
    harness.store.appender.put(Message(REVIVE_LOG, 1, b"r"))
    good = {
        "b": write_bits([0]), "c": "CG", "it": 10_000, "pt": harness.now_ms, "q": 1, "r": "0", "rq": 0, "so": 0,
        "t": "TopicX",
    }  # fmt: skip
    answer = await harness.ask(200151, fastjson.dumps({"acks": [good, good | change_of]}))
    assert answer.code == code and answer.remark
    assert harness.store.max_offset(TIMER_TOPIC, 0) == 0


async def test_records_of_the_broker_are_not_popped():
    harness = stocked()
    harness.store.appender.put(Message(REVIVE_LOG, 1, b"r"))
    answer = await popped(harness, topic=REVIVE_LOG)
    assert answer.code == 13 and "records of the broker" in answer.remark


async def test_a_message_that_is_not_invisible_gets_no_other_invisible_time():
    harness = stocked(b"a", b"b")
    first, second = receipts(await popped(harness, 1), harness).values()
    assert (await change(harness, first, 20_000)).code == 0
    again = await change(harness, first, 20_000)
    assert again.code == 13 and "not invisible" in again.remark
    assert (await ack(harness, second)).code == 0
    assert (await change(harness, second, 20_000)).code == 13
    harness.parts.groups.find_or_create("Other")
    assert (await change(harness, first, 20_000, "Other")).code == 13
    run(harness, 60_000)
    assert [stored.body for stored in harness.store.messages(RETRY, 0)] == [b"a"]


async def test_while_earlier_pops_are_searched_any_message_gets_another_invisible_time():
    harness = stocked(b"a")
    harness.parts.groups.find_or_create("CG")
    harness.parts.revive_log.in_flight.begin_search()
    assert (await change(harness, ("TopicX", 1, GOOD_RECEIPT, 0), 20_000)).code == 0


async def test_clients_cannot_send_to_the_revive_log():
    harness = stocked()
    assert (await harness.send(REVIVE_LOG)).code == 16
    assert harness.store.max_offset(REVIVE_LOG, 0) == 0


async def test_the_tool_that_rolls_back_has_nothing_to_do():
    assert (await stocked().ask(200056)).code == 0


async def test_pop_codes_in_a_binary_header():
    harness = stocked(b"a")
    answer = await harness.ask(200050, serialization=1, **pop_fields(1))
    assert answer.code == 0 and bodies(answer) == [b"a"]


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


def saved(harness) -> None:
    """Save offsets as a broker does."""
    harness.parts.pop_positions.settle(harness.store.flushed)
    harness.store.write_config("consumerOffset.json", harness.parts.offsets.picture()())


def killed(harness: Harness) -> Harness:
    """A new broker over the store of one that was killed: what was only in memory is gone."""
    after = Harness(pop_from_retry_probability=0)
    after.now_ms = harness.now_ms
    after.store = harness.store

    harness.store.clock = lambda: after.now_ms
    harness.store.begin()
    after.parts = build_parts(
        harness.parts.settings, harness.parts.store_settings, harness.store, lambda: after.now_ms,
        seconds=lambda: after.now_s,
    )  # fmt: skip
    after.router = Router(after.parts)
    harness.store.write_config("topics.json", harness.parts.topics.picture()())
    harness.store.write_config("subscriptionGroup.json", harness.parts.groups.picture()())
    Broker(after.parts).load()
    after.router.consume.start()
    after.router.consume._timer.cancel()
    after.parts.revive.on_revived = after.router.pops.waiting.revived
    return after


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


async def test_pops_use_the_queues_of_the_revive_log_in_turn():
    harness = stocked(revive_queue_num=3)
    assert harness.parts.topics.get(REVIVE_LOG).read_queues == 3
    queues = [(await popped(harness)).fields["reviveQid"] for _ in range(6)]
    assert queues == ["1", "2", "0"] * 2


async def test_a_waiting_pop_whose_time_ends_before_the_sync_has_one_answer():
    harness = stocked(sync_flush=True)
    harness.request(200050, **pop_fields(poll_ms=1_000))
    await turns()
    put(harness, b"a")
    harness.store.sync()
    await turns()
    harness.now_ms += 1_001
    harness.router.pops.waiting._expire()
    harness.router.pops.waiting._timer.cancel()
    assert harness.channel.answers == []
    harness.store.sync()
    (answer,) = harness.channel.answers
    assert bodies(answer) == [b"a"]


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


async def test_a_batch_of_many_acks_is_stored_in_turns(monkeypatch):
    """One of 2,000 kept the loop for a tenth of a second."""
    harness = stocked(b"a")
    harness.parts.groups.find_or_create("CG")
    entry = {
        "c": "CG", "t": "TopicX", "r": "0", "so": 0, "q": 1, "rq": 3, "pt": harness.now_ms, "it": 10_000,
        "b": write_bits([0]),
    }  # fmt: skip
    body = fastjson.dumps({"brokerName": "broker-a", "acks": [entry] * 2_000})

    async def acknowledge(number: int) -> None:
        harness.request(200151, body)
        while len(harness.channel.answers) <= number:
            await asyncio.sleep(0)

    # Stored at once it was the whole of a turn; the reading of the body still is, a tenth of the work.
    await in_short_turns(monkeypatch, acknowledge, lambda longest: longest.ms < 0.3 * longest.all_ms)
    assert {answer.code for answer in harness.channel.answers} == {0}
    assert len(harness.store.messages(TIMER_TOPIC, 0)) % 2_000 == 0
