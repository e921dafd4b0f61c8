"""server.pop, server.pop_acks: pops in order, over the wire. Answers are those of Apache's broker, 5.5.0."""

import pytest

from broker_store.broker.pop import ordered
from broker_store.broker.topics import TopicConfig
from broker_store.formats import record
from broker_store.messages import Message, PutStatus
from broker_store.protocol import fastjson, pop
from broker_store.protocol.pop import Receipt
from broker_store.server.broker import Broker
from broker_store.server.parts import build_parts
from broker_store.server.router import Router
from tests.support.bit_set import write_bits
from tests.support.broker_harness import FakeChannel, Harness, turns

ORDER_LOG = "rmq_sys_POP_ORDER_LOG_DefaultCluster"
PLACE = ("CG", "TopicX", 1)


def stocked(*bodies: bytes, queue_id: int = 1, **options) -> Harness:
    """Return a harness with a topic TopicX of four queues and messages in one of them."""
    harness = Harness(**options)
    harness.parts.topics.put(TopicConfig("TopicX", 4, 4))
    harness.parts.timer.start()
    put(harness, *bodies, queue_id=queue_id)
    return harness


def put(harness, *bodies: bytes, queue_id: int = 1, tag: str = "TagA") -> None:
    for body in bodies:
        harness.store.appender.put(Message("TopicX", queue_id, body, f"TAGS\x01{tag}\x02".encode()))


def fields_of(queue_id=1, *, count=32, invisible_ms=10_000, poll_ms=0, attempt=None, **more):
    attempts = {} if attempt is None else {"attemptId": attempt}
    return dict(
        consumerGroup="CG", topic="TopicX", queueId=queue_id, maxMsgNums=count, invisibleTime=invisible_ms,
        pollTime=poll_ms, initMode=0, order=True, **attempts, **more,
    )  # fmt: skip


async def popped(harness, *place, **options):
    """Return the answer to a pop in order."""
    return await harness.ask(200050, **fields_of(*place, **options))


def bodies(answer) -> list[bytes]:
    return [stored.body for stored in record.decode_all(answer.body)]


def receipt(answer, offset: int, queue_id: int = 1) -> str:
    """Return the receipt that a client makes for a message."""
    fields = answer.fields
    starts = dict(text.split(" ")[1:] for text in fields["startOffsetInfo"].split(";"))
    return pop.write_receipt(
        Receipt(
            int(starts[str(queue_id)]),
            int(fields["popTime"]),
            int(fields["invisibleTime"]),
            int(fields["reviveQid"]),
            0,
            "broker-a",
            queue_id,
            offset,
        )
    )


async def ack(harness, answer, offset: int, queue_id: int = 1):
    return await harness.ask(
        200051, consumerGroup="CG", topic="TopicX", queueId=queue_id, extraInfo=receipt(answer, offset, queue_id),
        offset=offset,
    )  # fmt: skip


async def change(harness, answer, offset: int, invisible_ms: int):
    return await harness.ask(
        200053, consumerGroup="CG", topic="TopicX", queueId=1, extraInfo=receipt(answer, offset),
        offset=offset, invisibleTime=invisible_ms,
    )  # fmt: skip


def position(harness) -> int | None:
    return harness.parts.pop_positions.next_offset(*PLACE)


def tick(harness, ms: int) -> None:
    harness.now_ms += ms
    harness.parts.ordered.step(harness.now_ms)


async def test_a_queue_gives_nothing_until_all_its_messages_are_acknowledged():
    harness = stocked(b"a", b"b", b"c")
    first = await popped(harness, count=2)
    assert bodies(first) == [b"a", b"b"]
    assert first.fields == {
        "popTime": str(harness.now_ms), "invisibleTime": "10000", "reviveQid": "999", "restNum": "1",
        "startOffsetInfo": "0 1 0", "msgOffsetInfo": "0 1 0,1", "orderCountInfo": "0 1 0",
    }  # fmt: skip
    blocked = await popped(harness)
    assert (blocked.code, blocked.fields["orderCountInfo"]) == (210, "")
    assert (await ack(harness, first, 0)).code == 0
    assert position(harness) == 1
    assert (await popped(harness)).code == 210
    assert (await ack(harness, first, 1)).code == 0
    assert position(harness) == 2
    assert bodies(await popped(harness)) == [b"c"]


async def test_what_is_not_acknowledged_comes_again_in_its_queue_with_its_count():
    harness = stocked(b"a", b"b", b"c")
    first = await popped(harness, count=2)
    harness.now_ms += 9_999
    assert (await popped(harness)).code == 210
    harness.now_ms += 1
    again = await popped(harness)
    assert bodies(again) == [b"a", b"b", b"c"]
    assert again.fields["orderCountInfo"] == "0 qo1%0 1;0 qo1%1 1;0 1 0"
    harness.now_ms += 10_000
    third = await popped(harness, count=2)
    assert third.fields["orderCountInfo"] == "0 qo1%0 2;0 qo1%1 2;0 1 2"
    # An acknowledgement of a message that was popped again since has no effect, as in Apache's broker.
    assert (await ack(harness, first, 0)).code == 0
    assert position(harness) == 0
    assert (await ack(harness, third, 0)).code == 0
    assert position(harness) == 1


async def test_an_attempt_that_is_repeated_gets_the_same_messages_and_counts():
    harness = stocked(b"a", b"b")
    await popped(harness, attempt="one", invisible_ms=1_000)
    harness.now_ms += 1_000
    await popped(harness, attempt="two")
    again = await popped(harness, attempt="two")
    assert bodies(again) == [b"a", b"b"]
    assert again.fields["orderCountInfo"] == "0 qo1%0 1;0 qo1%1 1;0 1 1"
    assert (await popped(harness, attempt="three")).code == 210
    assert (await popped(harness)).code == 210


async def test_a_message_acknowledged_after_one_that_was_not_does_not_come_again():
    """Apache's broker gives it again."""
    harness = stocked(b"a", b"b", b"c", b"d", b"e")
    first = await popped(harness, count=4)
    for offset in (1, 3):
        assert (await ack(harness, first, offset)).code == 0
    assert position(harness) == 0
    harness.now_ms += 10_000
    second = await popped(harness, count=1)
    assert bodies(second) == [b"a"]
    await ack(harness, second, 0)
    third = await popped(harness)
    assert bodies(third) == [b"c", b"e"]
    assert third.fields["msgOffsetInfo"] == "0 1 2,4"
    assert third.fields["orderCountInfo"] == "0 qo1%2 1;0 1 0"
    assert (await ack(harness, third, 4)).code == (await ack(harness, third, 2)).code == 0
    assert position(harness) == 5 and len(harness.parts.ordered) == 0


async def test_a_changed_invisible_time_blocks_the_queue_for_longer_or_shorter():
    harness = stocked(b"a", b"b")
    first = await popped(harness)
    harness.now_ms += 100
    answer = await change(harness, first, 0, 500)
    assert answer.fields == {
        "popTime": first.fields["popTime"], "invisibleTime": "600", "reviveQid": "999",
    }  # fmt: skip
    await change(harness, first, 1, 2_000)
    harness.now_ms += 1_999
    assert (await popped(harness)).code == 210
    harness.now_ms += 1
    assert bodies(await popped(harness)) == [b"a", b"b"]


async def test_a_change_for_an_acknowledged_or_older_message_has_no_effect():
    harness = stocked(b"a", b"b")
    first = await popped(harness, invisible_ms=1_000)
    await ack(harness, first, 0)
    before = harness.store.max_offset(ORDER_LOG, 0)
    assert (await change(harness, first, 0, 5_000)).code == 0
    harness.now_ms += 1_000
    second = await popped(harness, invisible_ms=1_000)
    assert (await change(harness, first, 1, 50_000)).code == 0
    harness.now_ms += 1_000
    assert bodies(await popped(harness)) == [b"b"] and second.code == 0
    assert harness.store.max_offset(ORDER_LOG, 0) == before + 2


async def test_other_queues_are_not_blocked_and_each_is_told_in_the_answer():
    harness = stocked(b"a", b"b")
    put(harness, b"c", queue_id=2)
    answer = await popped(harness, -1)
    assert sorted(bodies(answer)) == [b"a", b"b", b"c"]
    assert sorted(answer.fields["orderCountInfo"].split(";")) == ["0 1 0", "0 2 0"]
    assert (await popped(harness, -1)).code == 210
    await ack(harness, answer, 0, queue_id=2)
    put(harness, b"d", queue_id=2)
    assert bodies(await popped(harness, -1)) == [b"d"]


async def test_a_parked_pop_is_answered_when_the_last_message_is_acknowledged():
    harness = stocked(b"a", b"b")
    first = await popped(harness, count=1)
    waiting = FakeChannel(50_001)
    harness.request(200050, channel=waiting, **fields_of(poll_ms=15_000))
    await turns()
    assert not waiting.answers
    await ack(harness, first, 0)
    await turns()
    (answer,) = waiting.answers
    assert bodies(answer) == [b"b"]


async def test_a_parked_pop_is_answered_when_the_block_ends():
    """Apache's broker checks once, at the end of the first message's time."""
    harness = stocked(b"a", b"b")
    first = await popped(harness)
    await change(harness, first, 1, 3_000)
    await change(harness, first, 0, 1_000)
    waiting = FakeChannel(50_001)
    harness.request(200050, channel=waiting, **fields_of(-1, poll_ms=15_000))
    for ms in (1_000, 1_999):
        tick(harness, ms)
        await turns()
        assert not waiting.answers
    tick(harness, 1)
    await turns()
    (answer,) = waiting.answers
    assert bodies(answer) == [b"a", b"b"]


async def test_a_shorter_time_ends_a_block_earlier():
    harness = stocked(b"a")
    first = await popped(harness)
    waiting = FakeChannel(50_001)
    harness.request(200050, channel=waiting, **fields_of(poll_ms=15_000))
    await change(harness, first, 0, 0)
    assert harness.parts.ordered.step(harness.now_ms) > harness.now_ms
    await turns()
    assert [bodies(answer) for answer in waiting.answers] == [[b"a"]]


async def test_a_notification_in_order_does_not_count_blocked_queues():
    harness = stocked(b"a", b"b")
    first = await popped(harness, count=1, attempt="one")
    question = dict(consumerGroup="CG", topic="TopicX", queueId=1, pollTime=0, order=True)
    assert (await harness.ask(200054, **question)).fields["hasMsg"] == "false"
    assert (await harness.ask(200054, **question, attemptId="one")).fields["hasMsg"] == "true"
    waiting = FakeChannel(50_001)
    harness.request(200054, channel=waiting, **question | {"pollTime": 15_000})
    assert not waiting.answers
    await ack(harness, first, 0)
    await turns()
    assert waiting.answers[0].fields["hasMsg"] == "true"


async def test_retry_topics_are_not_read_in_order():
    harness = stocked(pop_from_retry_probability=100)
    harness.parts.topics.put(TopicConfig("%RETRY%CG_TopicX", 1, 1))
    harness.store.appender.put(Message("%RETRY%CG_TopicX", 0, b"again"))
    assert (await popped(harness, -1)).code == 210


async def test_a_batch_of_acknowledgements_takes_messages_in_order_too():
    harness = stocked(*(b"m%d" % number for number in range(5)))
    answer = await popped(harness, count=4)
    entry = {
        "c": "CG", "it": 10_000, "pt": int(answer.fields["popTime"]), "q": 1, "r": "0", "rq": 999, "so": 0,
        "t": "TopicX",
    }  # fmt: skip
    body = {"acks": [entry | {"b": write_bits([0, 1, 3])}], "brokerName": "broker-a"}
    records = harness.store.max_offset(ORDER_LOG, 0)
    assert (await harness.ask(200151, fastjson.dumps(body))).code == 0
    assert position(harness) == 2
    assert harness.store.max_offset(ORDER_LOG, 0) == records + 1
    body = {"acks": [entry | {"b": write_bits([2, 4])}], "brokerName": "broker-a"}
    assert (await harness.ask(200151, fastjson.dumps(body))).code == 13  # 4 was not given, 2 counts
    assert position(harness) == 4


async def test_acknowledgements_of_what_was_not_given_are_refused_and_repeated_ones_are_not():
    harness = stocked(b"a", b"b", b"c")
    answer = await popped(harness, count=1)
    assert (await ack(harness, answer, 2)).code == 13
    assert (await ack(harness, answer, 0)).code == 0
    records = harness.store.max_offset(ORDER_LOG, 0)
    assert (await ack(harness, answer, 0)).code == 0
    assert (await ack(harness, answer, 1)).code == 13
    assert harness.store.max_offset(ORDER_LOG, 0) == records and position(harness) == 1


async def test_a_reset_frees_the_queue_and_older_acknowledgements_do_not_undo_it():
    harness = stocked(b"a", b"b", b"c")
    first = await popped(harness, count=2)
    await ack(harness, first, 0)
    waiting = FakeChannel(50_001)
    harness.request(200050, channel=waiting, **fields_of(poll_ms=15_000))
    harness.parts.offsets.reset("CG", "TopicX", 1, 0)
    harness.router.reset("CG", "TopicX", [1])
    assert (await ack(harness, first, 1)).code == 13
    await turns()
    assert [bodies(answer) for answer in waiting.answers] == [[b"a", b"b", b"c"]]
    assert position(harness) == 0


async def test_a_client_moves_a_message_to_the_dead_letters_and_acknowledges_it():
    harness = stocked(b"a", b"b")
    answer = await popped(harness, count=1)
    (stored,) = record.decode_all(answer.body)
    sent_back = await harness.ask(
        36, offset=stored.log_offset, group="CG", delayLevel=-1, originMsgId="x", originTopic="TopicX"
    )
    assert sent_back.code == (await ack(harness, answer, 0)).code == 0
    assert [dead.body for dead in harness.store.messages("%DLQ%CG", 0)] == [b"a"]
    assert bodies(await popped(harness)) == [b"b"]


async def test_messages_that_the_filter_rejects_are_passed():
    harness = stocked()
    for number in range(6):
        put(harness, b"m%d" % number, tag="AB"[number % 2])
    answer = await popped(harness, expType="TAG", exp="B")
    assert answer.fields["msgOffsetInfo"] == "0 1 1,3,5"
    assert (await popped(harness, expType="TAG", exp="B")).code == 210
    for offset in (1, 3):
        await ack(harness, answer, offset)
    assert position(harness) == 5
    await ack(harness, answer, 5)
    assert position(harness) == 6


async def test_a_pop_without_order_is_not_blocked_and_moves_the_position():
    harness = stocked(b"a", b"b")
    first = await popped(harness)
    other = await harness.ask(200050, **fields_of() | {"order": False})
    assert bodies(other) == [b"a", b"b"] and "orderCountInfo" not in other.fields
    assert (await ack(harness, first, 0)).code == 0
    assert position(harness) == 2


async def test_what_is_acknowledged_while_a_thread_reads_is_not_given():
    harness = stocked(b"a", b"b", b"c")
    first = await popped(harness, count=2, attempt="one")
    harness.store.cold = True
    waiting = FakeChannel(50_001)
    harness.request(200050, channel=waiting, **fields_of(attempt="one"))
    assert not waiting.answers
    assert (await ack(harness, first, 0)).code == 0
    harness.store.cold = False
    harness.store.finish_cold_reads()
    await turns()
    (answer,) = waiting.answers
    assert bodies(answer) == [b"b", b"c"]


async def test_with_sync_flush_answers_wait_for_the_sync():
    harness = stocked(b"a", sync_flush=True)
    harness.store.sync()
    harness.request(200050, **fields_of())
    await turns()
    assert not harness.channel.answers
    harness.store.sync()
    await turns()
    (answer,) = harness.channel.answers
    harness.channel.answers.clear()
    harness.request(
        200051, consumerGroup="CG", topic="TopicX", queueId=1, extraInfo=receipt(answer, 0), offset=0
    )
    await turns()
    assert not harness.channel.answers
    harness.store.sync()
    await turns()
    assert harness.channel.answers[0].code == 0


async def test_what_cannot_be_stored_changes_nothing():
    harness = stocked(b"a")
    harness.store.refuse = PutStatus.SERVICE_NOT_AVAILABLE
    assert (await popped(harness)).code == 14
    harness.store.refuse = None
    answer = await popped(harness)
    assert bodies(answer) == [b"a"]
    harness.store.refuse = PutStatus.SERVICE_NOT_AVAILABLE
    assert (await ack(harness, answer, 0)).code == 14
    assert (await change(harness, answer, 0, 0)).code == 14
    harness.store.refuse = None
    assert position(harness) == 0
    assert (await popped(harness)).code == 210


async def test_more_queues_than_the_bound_are_refused(monkeypatch):
    monkeypatch.setattr(ordered, "MAX_ENTRIES", 1)
    harness = stocked(b"a")
    put(harness, b"b", queue_id=2)
    first = await popped(harness)
    refused = await popped(harness, 2)
    assert refused.code == 1 and "order" in refused.remark
    await ack(harness, first, 0)
    assert bodies(await popped(harness, 2)) == [b"b"]


async def test_clients_cannot_send_to_the_log_of_pops_in_order():
    harness = stocked(b"a")
    await popped(harness)
    assert (await harness.send(ORDER_LOG)).code != 0


@pytest.mark.parametrize("what", ["topic", "group"])
async def test_a_deleted_topic_or_group_leaves_nothing(what):
    harness = stocked(b"a")
    await popped(harness)
    if what == "topic":
        await harness.ask(215, topic="TopicX")
    else:
        await harness.ask(207, groupName="CG", cleanOffset=True)
    assert len(harness.parts.ordered) == 0


async def test_a_broker_that_starts_again_goes_on_where_it_was(tmp_path):
    """Also without the file, which is written some seconds later: the log has all."""
    harness = stocked(b"a", b"b", b"c")
    first = await popped(harness, attempt="one")
    await ack(harness, first, 1)
    await change(harness, first, 2, 20_000)
    harness.store.begin()
    parts = build_parts(
        harness.parts.settings, harness.parts.store_settings, harness.store, lambda: harness.now_ms
    )
    parts.topics.put(TopicConfig("TopicX", 4, 4))
    parts.groups.find_or_create("CG")
    Broker(parts).load()
    harness.parts, harness.router = parts, Router(parts)
    assert position(harness) == 0
    harness.now_ms += 19_999
    assert (await popped(harness)).code == 210
    harness.now_ms += 1
    again = await popped(harness)
    assert bodies(again) == [b"a", b"c"]
    assert again.fields["orderCountInfo"] == "0 qo1%0 1;0 qo1%2 1;0 1 1"


@pytest.mark.parametrize("is_left", [True, False])
async def test_a_change_with_a_pop_time_of_the_future_is_refused(is_left):
    harness = stocked(b"a", b"b")
    first = await popped(harness)
    if not is_left:
        await ack(harness, first, 0)
        await ack(harness, first, 1)
    first.fields["popTime"] = str(harness.now_ms + 60_000)
    answer = await change(harness, first, 0, 5_000)
    assert answer.code == 13 and answer.remark.startswith(
        "offset is illegal: group CG was not given offset 0"
    )


async def test_a_change_after_the_clock_was_set_back_is_made():
    harness = stocked(b"a")
    first = await popped(harness)
    harness.now_ms -= 60_000
    answer = await change(harness, first, 0, 5_000)
    assert (answer.code, answer.fields["invisibleTime"]) == (0, "0")
