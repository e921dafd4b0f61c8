"""server.pop_acks: acknowledgements and invisible times, over the wire."""

import asyncio

import pytest

from broker_store.formats import pop_records, record
from broker_store.formats.timer_log import TIMER_TOPIC
from broker_store.messages import Message, PutResult, PutStatus
from broker_store.protocol import fastjson, pop
from broker_store.protocol.pop import Receipt
from tests.support.bit_set import write_bits
from tests.support.broker_harness import turns
from tests.support.loop_turns import in_short_turns
from tests.support.pop_calls import (
    RETRY,
    REVIVE_LOG,
    ack,
    bodies,
    change,
    popped,
    receipts,
    run,
    stocked,
)

GOOD_RECEIPT = "0 1700000000000 10000 0 0 broker-a 1 0"


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


async def test_a_change_that_comes_after_an_acknowledgement_is_refused():
    """Both were in one turn of the loop. The change was stored first, so the message came again."""
    harness = stocked(b"a", b"b")
    topic, queue_id, text, offset = receipts(await popped(harness, 1), harness)[b"a"]
    fields = dict(consumerGroup="CG", topic=topic, queueId=queue_id, extraInfo=text, offset=offset)
    acked = harness.request(200051, **fields)
    changed = harness.request(200053, **fields, invisibleTime=2_000)
    await turns()
    assert {one.opaque: one.code for one in harness.channel.answers} == {acked.opaque: 0, changed.opaque: 13}
    run(harness, 15_000)
    assert bodies(await popped(harness, 1)) == [b"b"]


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
        ({"extraInfo": GOOD_RECEIPT.replace("10000", str(1 << 50))}, 13),
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
    answer = await harness.ask(200053, **fields | {"invisibleTime": 5} | change_of)
    assert answer.code == code and harness.store.max_offset(TIMER_TOPIC, 0) == 0
    assert (await harness.ask(200053, **fields | {"invisibleTime": 1 << 40})).code == 29


@pytest.mark.parametrize(
    ("change_of", "code"),
    [
        ({"t": REVIVE_LOG}, 13),
        ({"c": "Nope"}, 26),
        ({"c": "bad name"}, 29),
        ({"t": "Nope"}, 17),
        ({"it": 1 << 50}, 13),
    ],
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
