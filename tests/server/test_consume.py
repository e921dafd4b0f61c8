"""server.consume: pulls, parked pulls, offsets, send-back."""

import asyncio
import json

import pytest

from broker_store.broker.groups import SubscriptionGroup
from broker_store.broker.topics import TopicConfig
from broker_store.formats import record
from broker_store.formats.topics import PERM_READ, PERM_WRITE, SCHEDULE_TOPIC
from broker_store.messages import GetResult, GetStatus, Message
from broker_store.protocol.client_bodies import ConsumerData, Heartbeat, Subscription, encode_heartbeat
from broker_store.protocol.command import VERSION_WITH_MAX_TRIES, Command
from broker_store.server import consume
from tests.support import stores
from tests.support.broker_harness import FakeChannel, Harness, turns
from tests.support.wire_samples import sample


def stocked(*bodies: bytes, tags=(), **options) -> Harness:
    """Return a harness with a topic TopicX of four queues and messages in queue 1."""
    harness = Harness(**options)
    harness.parts.topics.put(TopicConfig("TopicX", 4, 4))
    for number, body in enumerate(bodies):
        tag = tags[number] if tags else "TagA"
        harness.store.appender.put(
            Message("TopicX", 1, body, f"TAGS\x01{tag}\x02UNIQ_KEY\x01U{number}\x02".encode())
        )
    return harness


def beat(
    harness: Harness,
    group="CG",
    topics=("TopicX",),
    *,
    expression="*",
    model="CLUSTERING",
    channel=None,
    client="c1",
) -> None:
    data = ConsumerData(
        group,
        message_model=model,
        subscriptions=tuple(Subscription(topic, expression, version=5) for topic in topics),
    )
    harness.request(34, encode_heartbeat(Heartbeat(client, (), (data,))), channel=channel)


def bodies(answer) -> list[bytes]:
    return [stored.body for stored in record.decode_all(answer.body)]


def golden_of(name: str) -> dict:
    return sample(name).values


async def test_what_is_found_is_answered_as_apaches_broker_does():
    harness = stocked(b"hello")
    answer = await harness.pull("TopicX", 1, 0)
    golden = golden_of("pull")
    assert (answer.code, answer.remark, answer.fields) == (0, golden["remark"], golden["extFields"])
    assert bodies(answer) == [b"hello"]


@pytest.mark.parametrize("serialization", [0, 1])
async def test_both_serialisations_carry_the_records(serialization):
    harness = stocked(b"a", b"b")
    answer = await harness.ask(361, serialization=serialization, **harness.pull_fields("TopicX", 1, 0))
    assert (answer.serialization, answer.code, bodies(answer)) == (serialization, 0, [b"a", b"b"])


@pytest.mark.parametrize(
    ("queue_id", "offset", "code", "name"),
    [
        (1, 7, 21, "pull2"),
        (0, 0, 19, "pull empty queue off0 flag4"),
        (0, 5, 21, "pull empty queue off5"),
        (99, 0, 29, "pull bad queue"),
    ],
)
async def test_offsets_and_queues_that_are_not_there(queue_id, offset, code, name):
    harness = stocked(b"hello")
    answer = await harness.pull("TopicX", queue_id, offset)
    golden = golden_of(name)
    assert (answer.code, answer.remark, answer.fields) == (
        code,
        golden["remark"].replace("44328", "50000"),
        golden["extFields"],
    )


async def test_a_tag_that_matches_nothing_moves_the_consumer_on():
    harness = stocked(b"1", b"2")
    answer = await harness.pull("TopicX", 1, 0, tags="TagZ")
    golden = golden_of("pull tag mismatch")
    assert (answer.code, answer.remark, answer.fields) == (20, golden["remark"], golden["extFields"])
    assert bodies(await harness.pull("TopicX", 1, 0, tags="TagA || TagZ")) == [b"1", b"2"]


async def test_who_may_not_pull():
    harness = stocked(b"x", auto_create_subscription_group=False)
    assert (await harness.pull("TopicX", 1)).code == 26
    harness.parts.groups.put(SubscriptionGroup("CG", consume_enable=False))
    assert (await harness.pull("TopicX", 1)).code == 16
    harness.parts.groups.put(SubscriptionGroup("CG"))
    assert (await harness.pull("TopicX", 1)).code == 0
    harness.parts.topics.put(TopicConfig("TopicX", 4, 4, PERM_WRITE))
    assert (await harness.pull("TopicX", 1)).code == 16
    assert (await Harness(broker_permission=2).pull("TopicX", 1)).code == 16


async def test_an_unknown_topic_has_apaches_text():
    answer = await stocked().pull("NoTopic", 0)
    assert (answer.code, answer.remark) == (17, golden_of("pull no topic")["remark"])
    assert (await stocked().pull("../etc", 0)).code == 29
    assert (await stocked().pull("TopicX", 0, group="../g")).code == 29


async def test_without_a_subscription_in_the_request_the_heartbeats_counts():
    harness = stocked(b"1", b"2", tags=("TagA", "TagB"))
    answer = await harness.pull("TopicX", 1, flag=0)
    assert (answer.code, answer.remark) == (24, golden_of("pull no heartbeat")["remark"])
    beat(harness, topics=("Other",))
    assert (await harness.pull("TopicX", 1, flag=0)).code == 24
    beat(harness, expression="TagB")
    assert bodies(await harness.pull("TopicX", 1, flag=0)) == [b"2"]
    assert (await harness.pull("TopicX", 1, flag=0, subVersion=6)).code == 25


async def test_broadcasting_is_for_groups_that_may():
    harness = stocked(b"1")
    harness.parts.groups.put(SubscriptionGroup("CG", consume_broadcast_enable=False))
    beat(harness, model="BROADCASTING")
    assert (await harness.pull("TopicX", 1, flag=0)).code == 16


async def test_expressions_that_cannot_be_used_are_refused():
    harness = stocked(b"1")
    assert (await harness.pull("TopicX", 1, tags=" || ")).code == 23
    assert (await harness.pull("TopicX", 1, expressionType="SQL92", tags="a > '5'")).code == 23
    assert (await harness.pull("TopicX", 1, expressionType="FOO", tags="a > 5")).code == 23


async def test_lite_pull_may_be_forbidden_and_pull_goes_on():
    harness = stocked(b"x", lite_pull_message_enable=False)
    refused = await harness.ask(361, **harness.pull_fields("TopicX", 1, 0))
    assert (refused.code, refused.remark) == (16, "the broker[127.0.0.1] for lite pull consumer is forbidden")
    assert (await harness.pull("TopicX", 1, 0)).code == 0


async def test_the_broker_notes_how_far_a_broadcasting_group_is():
    harness, other = stocked(b"1", b"2", b"3"), FakeChannel()
    beat(harness, model="BROADCASTING")
    beat(harness, model="BROADCASTING", channel=other, client="c2")
    await harness.pull("TopicX", 1, 3, flag=0)
    await harness.ask(11, channel=other, **harness.pull_fields("TopicX", 1, 2, flag=0))
    harness.parts.broadcast.step(harness.now_ms)
    assert harness.parts.offsets.of_broadcast("CG") == {"TopicX": {1: 2}}
    assert (
        await harness.ask(14, consumerGroup="CG", topic="TopicX", queueId=1, setZeroIfNotFound=False)
    ).code == 22
    for options, group in (({}, "CLUSTERING"), (dict(enable_broadcast_offset_store=False), "BROADCASTING")):
        quiet = stocked(b"1", **options)
        beat(quiet, model=group)
        await quiet.pull("TopicX", 1, 1, flag=0)
        quiet.parts.broadcast.step(quiet.now_ms)
        assert quiet.parts.offsets.to_json()["offsetTable"] == {}


async def test_a_broadcasting_client_that_asks_for_what_is_not_there_is_as_far_as_where_it_is_sent():
    harness = stocked(b"1", b"2", b"3")
    beat(harness, model="BROADCASTING")
    told = await harness.pull("TopicX", 1, 1_000, flag=0)
    assert (told.code, told.fields["nextBeginOffset"]) == (21, "3")
    harness.parts.broadcast.step(harness.now_ms)
    assert harness.parts.offsets.of_broadcast("CG") == {"TopicX": {1: 3}}
    harness.park("TopicX", 1, 3, flag=0)
    await turns()
    harness.parts.broadcast.step(harness.now_ms)
    assert harness.parts.parked.count == 1 and harness.parts.offsets.of_broadcast("CG") == {"TopicX": {1: 3}}


@pytest.mark.parametrize("serialization", [0, 1])
async def test_a_pull_is_told_the_flags_of_topic_and_group(serialization):
    harness = stocked(b"1")
    harness.parts.topics.put(TopicConfig("TopicX", 4, 4, sys_flag=1))
    harness.parts.groups.put(SubscriptionGroup("CG", group_sys_flag=5))
    answer = await harness.ask(11, serialization=serialization, **harness.pull_fields("TopicX", 1, 0))
    assert (answer.code, answer.fields["topicSysFlag"], answer.fields["groupSysFlag"]) == (0, "1", "5")


async def test_a_pull_that_is_forbidden_says_by_what():
    async def kind(model="CLUSTERING", flag=4, code=11, *, group=None, topic=None, readable=True, **settings):
        harness = stocked(b"1", **settings)
        harness.parts.groups.put(group or SubscriptionGroup("CG"))
        harness.parts.topics.put(topic or TopicConfig("TopicX", 4, 4))
        harness.parts.groups.set_may_read("CG", "TopicX", readable)
        beat(harness, model=model)
        answer = await harness.ask(code, **harness.pull_fields("TopicX", 1, 0, flag=flag))
        assert answer.code == 16
        return answer.fields["forbiddenType"]

    assert await kind(broker_permission=2) == "1"
    assert await kind(code=361, lite_pull_message_enable=False) == "1"
    assert await kind(group=SubscriptionGroup("CG", consume_enable=False)) == "2"
    assert await kind(topic=TopicConfig("TopicX", 4, 4, perm=2)) == "3"
    assert await kind("BROADCASTING", 0, group=SubscriptionGroup("CG", consume_broadcast_enable=False)) == "4"
    assert await kind(readable=False) == await kind(readable=False, flag=0) == "5"


async def test_a_proxy_is_told_where_its_broadcasting_client_begins():
    harness = stocked(b"1", b"2")
    proxied = dict(requestSource=1, proxyFrowardClientId="phone")
    told = await harness.pull("TopicX", 1, -1, **proxied)
    assert (told.code, told.remark, told.fields["nextBeginOffset"]) == (21, "OFFSET_RESET", "0")
    assert bodies(await harness.pull("TopicX", 1, 0, **proxied)) == [b"1", b"2"]
    await harness.pull("TopicX", 1, 2, **proxied)
    told = await harness.pull("TopicX", 1, -1, **proxied)
    assert (told.code, told.fields["nextBeginOffset"]) == (21, "2")
    far = stocked(b"1" * 1_000, b"2", given={"memory_bytes": 2_000})
    assert (await far.pull("TopicX", 1, -1, **proxied)).fields["nextBeginOffset"] == "2"
    assert (await harness.pull("TopicX", 1, 0, requestSource=1, proxyFrowardClientId="x" * 256)).code == 0
    assert (await harness.pull("TopicX", 1, 0, requestSource="x")).code == 29


# Parked pulls


async def test_a_pull_that_finds_nothing_waits_for_the_next_message():
    harness = stocked()
    request = harness.park("TopicX", 1)
    await turns()
    assert harness.channel.answers == [] and harness.parts.parked.count == 1
    await harness.send("TopicX", 1, b"new", channel=FakeChannel())
    await turns()
    (answer,) = harness.channel.answers
    assert (answer.opaque, answer.code, bodies(answer)) == (request.opaque, 0, [b"new"])
    assert harness.parts.parked.count == 0 and not harness.store._watched


async def test_senders_are_answered_before_those_who_wait():
    harness = stocked()
    harness.park("TopicX", 1)
    await harness.send("TopicX", 1, b"new")
    await turns()
    assert [answer.fields.get("nextBeginOffset") for answer in harness.channel.answers] == ["1"], (
        "the send's answer came first and was taken"
    )


async def test_when_its_time_is_over_it_is_answered_with_nothing_new():
    harness = stocked()
    harness.park("TopicX", 1, suspend_ms=1_500)
    harness.now_ms += 1_499
    harness.router.consume._expire()
    assert harness.channel.answers == []
    harness.now_ms += 1
    harness.router.consume._expire()
    harness.router.consume._timer.cancel()
    (answer,) = harness.channel.answers
    golden = golden_of("pull held")
    assert (answer.code, answer.remark, answer.fields) == (
        golden["code"],
        golden["remark"],
        golden["extFields"],
    )


async def test_without_long_polling_it_waits_the_short_time():
    harness = stocked(long_polling_enable=False, short_polling_time_mills=300)
    harness.park("TopicX", 1, suspend_ms=15_000)
    parked = harness.parts.parked
    assert parked.expired(harness.now_ms + 299) == [] and len(parked.expired(harness.now_ms + 300)) == 1


async def test_a_selective_consumer_is_woken_only_for_its_tag_and_keeps_what_it_passed_over():
    harness = stocked()
    harness.park("TopicX", 1, tags="TagB")
    for _ in range(3):
        harness.store.appender.put(Message("TopicX", 1, b"no", b"TAGS\x01TagA\x02"))
        await turns()
    assert harness.channel.answers == [] and harness.parts.parked.waiting_on(("TopicX", 1))[0].offset == 3
    harness.store.appender.put(Message("TopicX", 1, b"yes", b"TAGS\x01TagB\x02"))
    await turns()
    (answer,) = harness.channel.answers
    assert (answer.fields["nextBeginOffset"], bodies(answer)) == ("4", [b"yes"])


async def test_what_it_passed_over_is_told_when_its_time_is_over():
    harness = stocked()
    harness.park("TopicX", 1, tags="TagB", suspend_ms=1_000)
    harness.store.appender.put(Message("TopicX", 1, b"no", b"TAGS\x01TagA\x02"))
    await turns()
    harness.now_ms += 1_000
    harness.router.consume._expire()
    harness.router.consume._timer.cancel()
    (answer,) = harness.channel.answers
    assert (answer.code, answer.fields["nextBeginOffset"]) == (20, "1")


async def test_thousands_who_wait_are_served_in_pieces_between_which_senders_have_their_turn():
    harness = stocked()
    waiting, sender = FakeChannel(), FakeChannel()
    for _ in range(consume.MAX_WAKES_PER_TURN * 3):
        harness.park("TopicX", 1, channel=waiting)
    await harness.send("TopicX", 1, b"new", channel=sender)
    served = len(waiting.answers)
    await harness.send("TopicX", 2, b"other", channel=sender)
    assert served <= consume.MAX_WAKES_PER_TURN and len(waiting.answers) < consume.MAX_WAKES_PER_TURN * 3
    await turns()
    assert len(waiting.answers) == consume.MAX_WAKES_PER_TURN * 3 and harness.parts.parked.count == 0


async def test_a_client_that_is_gone_is_not_waited_for():
    harness = stocked()
    harness.park("TopicX", 1)
    harness.parts.parked.channel_closed(harness.channel)
    assert harness.parts.parked.count == 0 and not harness.store._watched


async def test_a_client_that_does_not_read_is_served_when_it_does():
    harness = stocked()
    harness.park("TopicX", 1)
    harness.channel.paused = True
    harness.store.appender.put(Message("TopicX", 1, b"new"))
    await turns()
    assert harness.channel.answers == []
    harness.channel.resume()
    assert bodies(harness.channel.answers[0]) == [b"new"]


async def test_at_the_end_everyone_is_answered():
    harness = stocked()
    harness.park("TopicX", 1)
    harness.park("TopicX", 2)
    harness.router.consume.stop()
    assert [answer.code for answer in harness.channel.answers] == [19, 19]


# Cold reads


async def test_a_cold_read_is_answered_when_it_comes_back():
    harness = stocked(b"old")
    harness.store.cold = True
    harness.request(11, **harness.pull_fields("TopicX", 1, 0))
    assert harness.channel.answers == [] and harness.channel.held == 1
    harness.store.finish_cold_reads()
    assert harness.channel.held == 0 and bodies(harness.channel.answers[0]) == [b"old"]


async def test_cold_reads_that_come_back_to_a_client_that_does_not_read_wait_for_it_and_not_in_memory():
    harness = stocked(b"old")
    harness.store.cold = True
    harness.request(11, **harness.pull_fields("TopicX", 1, 0))
    harness.channel.paused = True
    harness.store.finish_cold_reads()
    assert harness.channel.answers == [] and harness.channel.held == 1
    harness.channel.resume()
    assert harness.channel.answers == [] and harness.channel.held == 1, "it is read anew"
    harness.store.finish_cold_reads()
    assert harness.channel.held == 0 and [bodies(answer) for answer in harness.channel.answers] == [[b"old"]]


async def test_of_several_that_wait_for_a_client_to_read_each_waits_for_it_again():
    harness = stocked(b"old")
    harness.store.cold = True
    for _ in range(2):
        harness.request(11, **harness.pull_fields("TopicX", 1, 0))
    harness.channel.paused = True
    harness.store.finish_cold_reads()
    harness.store.cold = False
    write_bytes = harness.channel.write_bytes

    def fill(*pieces):
        write_bytes(*pieces)
        harness.channel.paused = True

    harness.channel.write_bytes = fill
    harness.channel.resume()
    assert len(harness.channel.answers) == 1 and harness.channel.held == 1
    harness.channel.resume()
    assert len(harness.channel.answers) == 2 and harness.channel.held == 0


async def test_reads_are_counted_by_group_and_cold_ones_among_them():
    harness = stocked(b"old")
    await harness.pull("TopicX", 1, 0)
    harness.store.cold = True
    harness.request(11, **harness.pull_fields("TopicX", 1, 0))
    harness.request(11, **harness.pull_fields("TopicX", 1, 1))
    harness.store.finish_cold_reads()
    (read,) = harness.parts.statistics.reads()
    assert (read.topic, read.reads, read.messages) == ("TopicX", 2, 2), "one found nothing"
    assert (read.cold_reads, read.cold_messages, 2 * read.cold_bytes) == (1, 1, read.bytes)


async def test_a_message_that_comes_during_a_cold_read_is_not_missed():
    harness = stocked()
    harness.store.cold = True
    harness.park("TopicX", 1)
    harness.store.finish_cold_reads()
    assert harness.parts.parked.count == 1
    harness.store.appender.put(Message("TopicX", 1, b"new"))
    await turns()
    harness.store.finish_cold_reads()
    assert bodies(harness.channel.answers[0]) == [b"new"]


async def test_an_arrival_while_a_woken_pull_reads_is_not_missed():
    harness = stocked()
    harness.park("TopicX", 1, tags="TagB")
    harness.store.appender.put(Message("TopicX", 1, b"no", b"TAGS\x01TagA\x02"))
    reads = []
    get = harness.store.reads.get

    def slow(request, done):
        """Read now and deliver the result later."""
        result = get(request)
        reads.append(lambda: done(result))

    harness.store.get = slow
    await turns()
    harness.store.appender.put(Message("TopicX", 1, b"yes", b"TAGS\x01TagB\x02"))
    await turns()
    while reads and not harness.channel.answers:
        reads.pop(0)()
        await turns()
    assert bodies(harness.channel.answers[0]) == [b"yes"]


async def test_a_cold_read_for_a_client_that_is_gone_writes_nothing():
    harness = stocked(b"old")
    harness.store.cold = True
    harness.request(11, **harness.pull_fields("TopicX", 1, 0))
    harness.channel.closed = True
    harness.store.finish_cold_reads()
    assert harness.channel.answers == [] and harness.channel.held == 0


async def test_a_read_that_found_the_readers_busy_is_repeated_and_not_answered(monkeypatch):
    monkeypatch.setattr(consume, "BUSY_RETRY_S", 0.0)
    harness = stocked(b"old")
    busy = [GetResult(GetStatus.NO_MATCHED_MESSAGE, 0, 0, 1)] * 2
    get = harness.store.reads.get
    harness.store.get = lambda request, done: busy.pop() if busy else get(request, done)
    assert bodies(await harness.pull("TopicX", 1, 0)) == [b"old"]
    assert harness.channel.held == 0


# Offsets


async def test_offsets_are_committed_and_read():
    harness = stocked(b"1")
    queue = dict(consumerGroup="CG", topic="TopicX", queueId=1)
    assert (await harness.ask(14, **queue)).fields == golden_of("qoff")["extFields"]
    missing = await harness.ask(14, setZeroIfNotFound=False, **queue)
    golden = golden_of("qoff none nozero")
    assert (missing.code, missing.remark) == (golden["code"], golden["remark"])
    unknown = await harness.ask(15, commitOffset=1, **(queue | {"consumerGroup": "NOGRP"}))
    assert (unknown.code, unknown.remark) == (26, golden_of("uoff unknown group")["remark"])
    harness.parts.groups.find_or_create("CG")
    assert (await harness.ask(15, commitOffset=1, **queue)).code == 0
    assert (await harness.ask(14, **queue)).fields == {"offset": "1"}
    assert (await harness.ask(15, commitOffset=1, **(queue | {"topic": "Nope"}))).code == 17
    assert (await harness.ask(15, commitOffset=-1, **queue)).code == 29
    assert (await harness.ask(15, commitOffset=1, **(queue | {"queueId": 4}))).code == 29


async def test_a_pull_commits_what_it_says_once():
    harness = stocked(b"1", b"2")
    harness.park("TopicX", 1, 2, flag=5, commit=2)
    assert harness.parts.offsets.query("CG", "TopicX", 1) == 2
    harness.parts.offsets.commit("CG", "TopicX", 1, 1)
    harness.store.appender.put(Message("TopicX", 1, b"3"))
    await turns()
    assert harness.parts.offsets.query("CG", "TopicX", 1) == 1


async def test_a_new_group_begins_at_the_first_message_only_while_that_is_near():
    harness = stocked(b"1" * 1_000, b"2", given={"memory_bytes": 2_000})
    answer = await harness.ask(14, consumerGroup="CG", topic="TopicX", queueId=1)
    assert answer.code == 22


async def test_an_empty_queue_begins_at_its_first_message_so_that_none_is_missed():
    harness = stocked(b"1")
    assert (await harness.ask(14, consumerGroup="CG", topic="TopicX", queueId=3)).fields == {"offset": "0"}
    assert (
        await harness.ask(14, consumerGroup="CG", topic="TopicX", queueId=3, setZeroIfNotFound=True)
    ).fields == {"offset": "0"}
    missing = await harness.ask(14, consumerGroup="CG", topic="TopicX", queueId=3, setZeroIfNotFound=False)
    assert (missing.code, missing.remark) == (
        22,
        "Not found, do not set to zero, maybe this group boot first",
    )


async def test_a_group_that_is_new_where_the_first_messages_are_gone_decides_itself():
    harness = stocked(b"1", b"2")
    harness.store.min_offset = lambda topic, queue_id: 1
    answer = await harness.ask(14, consumerGroup="CG", topic="TopicX", queueId=1)
    assert (answer.code, answer.remark) == (
        22,
        "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first",
    )
    harness.parts.offsets.commit("CG", "TopicX", 1, 0)
    assert (await harness.ask(14, consumerGroup="CG", topic="TopicX", queueId=1)).fields == {"offset": "0"}


async def test_a_reset_is_told_by_the_next_pull_and_to_those_that_wait():
    harness = stocked(b"1", b"2")
    harness.parts.groups.find_or_create("CG")
    harness.park("TopicX", 1, 2)
    answer = await harness.ask(
        222, channel=FakeChannel(), group="CG", topic="TopicX", timestamp=0, isForce=True
    )
    assert answer.code == 0
    late = await harness.ask(
        15, channel=FakeChannel(), consumerGroup="CG", topic="TopicX", queueId=0, commitOffset=7
    )
    assert (late.code, late.remark, harness.parts.offsets.query("CG", "TopicX", 0)) == (
        0,
        "Offset has been previously reset",
        0,
    )
    (told,) = harness.channel.answers
    assert (told.code, told.remark, told.fields["nextBeginOffset"]) == (21, "OFFSET_RESET", "0")
    assert harness.parts.parked.count == 0
    other_queue = await harness.pull("TopicX", 0, 0)
    assert (other_queue.code, other_queue.remark) == (21, "OFFSET_RESET")
    assert bodies(await harness.pull("TopicX", 1, 0)) == [b"1", b"2"]


# Send-back


async def send_back(harness: Harness, offset: int = 0, level: int = 0, group: str = "CG", **more):
    return await harness.ask(
        36, offset=offset, group=group, delayLevel=level, originMsgId="x", originTopic="TopicX", **more
    )


async def test_a_message_that_is_sent_back_waits_and_comes_again_in_the_retry_topic():
    harness = stocked(b"hard")
    beat(harness)
    assert (await send_back(harness)).code == 0
    (waiting,) = harness.store.messages(SCHEDULE_TOPIC, 2)
    assert waiting.reconsume_times == 1
    expected = {
        "TAGS": "TagA",
        "UNIQ_KEY": "U0",
        "WAIT": "false",
        "RETRY_TOPIC": "TopicX",
        "DELAY": "3",
        "REAL_TOPIC": "%RETRY%CG",
        "REAL_QID": "0",
    }
    assert waiting.properties == expected | {
        "ORIGIN_MESSAGE_ID": harness.store.messages("TopicX", 1)[0].offset_id
    }
    harness.parts.delay.step(harness.now_ms + 10_000)
    (again,) = harness.store.messages("%RETRY%CG")
    assert (again.body, again.reconsume_times) == (b"hard", 1)
    assert harness.parts.statistics.sent_back_of("CG", "TopicX").messages == 1
    await send_back(harness, again.log_offset)
    counted = json.loads((await harness.ask(315, statsName="SNDBCK_PUT_NUMS", statsKey="TopicX@CG")).body)
    assert harness.parts.statistics.sent_back_of("CG", "TopicX").messages == 2 and counted.keys() == {
        "statsMinute",
        "statsHour",
        "statsDay",
    }
    harness.parts.statistics.forget_topic("TopicX")
    assert (await harness.ask(315, statsName="SNDBCK_PUT_NUMS", statsKey="TopicX@CG")).code == 1


async def test_an_invented_origin_gets_no_meter():
    harness = stocked()
    harness.store.appender.put(Message("TopicX", 1, b"x", b"RETRY_TOPIC\x01Invented\x02"))
    assert (await send_back(harness)).code == 0
    assert harness.parts.statistics.sent_back_of("CG", "Invented") is None


async def test_each_try_waits_longer_and_the_origin_stays():
    harness = stocked(b"hard")
    beat(harness)
    await send_back(harness)
    harness.parts.delay.step(harness.now_ms + 10_000)
    first = harness.store.messages("%RETRY%CG")[0]
    await send_back(harness, first.log_offset)
    (second,) = harness.store.messages(SCHEDULE_TOPIC, 3)
    assert (second.properties["DELAY"], second.reconsume_times) == ("4", 2)
    assert (
        second.properties["ORIGIN_MESSAGE_ID"] == first.properties["ORIGIN_MESSAGE_ID"]
        and second.properties["RETRY_TOPIC"] == "TopicX"
    )


@pytest.mark.parametrize("request_says", [{"maxReconsumeTimes": 0}, {"level": -1}])
async def test_what_was_tried_often_enough_goes_to_the_dead_letters(request_says):
    harness = stocked(b"hopeless")
    beat(harness)
    assert (await send_back(harness, **request_says)).code == 0
    (dead,) = harness.store.messages("%DLQ%CG")
    assert (dead.body, dead.properties["DELAY"], dead.properties["RETRY_TOPIC"]) == (
        b"hopeless",
        "0",
        "TopicX",
    )
    assert harness.parts.topics.get("%DLQ%CG").queues == 1


async def test_a_group_decides_how_often():
    harness = stocked(b"hopeless")
    harness.parts.groups.put(SubscriptionGroup("CG", retry_max_times=0))
    await send_back(harness)
    assert len(harness.store.messages("%DLQ%CG")) == 1


async def test_a_request_decides_how_often_before_its_group_unless_it_comes_from_before_that_was_known():
    harness = stocked(b"x")
    harness.parts.groups.put(SubscriptionGroup("CG", retry_max_times=0))
    assert (await send_back(harness, maxReconsumeTimes=3)).code == 0
    assert len(harness.store.messages(SCHEDULE_TOPIC, 2)) == 1 and not harness.store.messages("%DLQ%CG")
    fields = dict(
        offset="0", group="CG", delayLevel="0", originMsgId="x", originTopic="TopicX", maxReconsumeTimes="3"
    )
    harness.router.handle(
        Command(36, "JAVA", VERSION_WITH_MAX_TRIES - 1, 99, 0, None, fields, b"", 0), harness.channel
    )
    await turns()
    assert len(harness.store.messages("%DLQ%CG")) == 1


async def test_tries_and_a_dead_letter_are_the_records_that_apaches_broker_wrote(tmp_path):
    log = b"".join(
        path.read_bytes() for path in sorted((stores.unpack("broker-dir", tmp_path) / "commitlog").iterdir())
    )
    # One message of the fixture waits for its second try with its content, is delivered again, and becomes a
    # dead letter.
    sent, waiting, again, dead = (
        record.decode(log[at : at + int.from_bytes(log[at : at + 4], "big")])
        for at in (15_621, 19_785, 21_327, 46_030)
    )
    group = again.topic.removeprefix("%RETRY%")
    harness = Harness()
    harness.parts.topics.put(TopicConfig(sent.topic, 4, 4))
    harness.store.appender.put(
        Message(
            sent.topic,
            sent.queue_id,
            sent.body,
            sent.raw_properties,
            sent.flag,
            sent.sys_flag,
            sent.born_timestamp,
            sent.born_host,
        )
    )
    origin = harness.store.messages(sent.topic, sent.queue_id)[0].offset_id

    def same(ours, apaches):
        assert ours.properties == apaches.properties | {"ORIGIN_MESSAGE_ID": origin}
        assert (ours.topic, ours.queue_id, ours.reconsume_times, ours.sys_flag) == (
            apaches.topic,
            apaches.queue_id,
            apaches.reconsume_times,
            apaches.sys_flag,
        )
        assert (ours.body, ours.flag, ours.born_timestamp, ours.born_host) == (
            apaches.body,
            apaches.flag,
            apaches.born_timestamp,
            apaches.born_host,
        )

    assert (await send_back(harness, level=1, group=group)).code == 0
    same(harness.store.messages(SCHEDULE_TOPIC, 0)[0], waiting)
    harness.parts.delay.step(harness.now_ms + 1_000)
    second = harness.store.messages(again.topic)[0]
    same(second, again)
    assert (await send_back(harness, second.log_offset, level=-1, group=group)).code == 0
    same(harness.store.messages(dead.topic)[0], dead)


async def test_the_wait_between_tries_grows_by_level_and_stays_at_the_highest():
    harness = stocked(b"x", store_settings={"message_delay_level": "1s 5s 10s 30s"})
    beat(harness)
    offset, levels = 0, []
    for _ in range(4):
        await send_back(harness, offset)
        waiting = max(
            (
                message
                for queue_id in range(4)
                for message in harness.store.messages(SCHEDULE_TOPIC, queue_id)
            ),
            key=lambda message: message.log_offset,
        )
        levels.append(waiting.properties["DELAY"])
        offset = waiting.log_offset
    assert levels == ["3", "4", "4", "4"]


@pytest.mark.parametrize(
    ("said", "topic", "queue_id", "tries"),
    [
        (-5, SCHEDULE_TOPIC, 2, -4),
        (-(1 << 31), SCHEDULE_TOPIC, 2, 1 - (1 << 31)),
        ((1 << 31) - 1, "%DLQ%CG", 0, (1 << 31) - 1),
    ],
)
async def test_a_number_of_tries_that_a_producer_made_up_neither_hinders_a_try_nor_overflows(
    said, topic, queue_id, tries
):
    harness = Harness()
    await harness.send("TopicX", reconsume_times=said)
    assert (await send_back(harness)).code == 0
    assert [message.reconsume_times for message in harness.store.messages(topic, queue_id)] == [tries]


async def test_retries_are_spread_over_the_groups_queues_that_there_are():
    harness = stocked(b"x" * 8, b"y")
    harness.parts.groups.put(SubscriptionGroup("CG", retry_queue_nums=3))
    for message in harness.store.messages("TopicX", 1):
        await send_back(harness, message.log_offset, level=1)
    assert harness.parts.topics.get("%RETRY%CG").queues == 3
    harness.parts.delay.step(harness.now_ms + 1_000)
    spread = {queue_id for topic, queue_id in harness.store.queues() if topic == "%RETRY%CG"}
    assert len(spread) == 2
    one_queue = stocked(b"x" * 7)
    beat(one_queue)
    one_queue.parts.groups.put(SubscriptionGroup("CG", retry_queue_nums=64))
    await send_back(one_queue, level=1)
    assert one_queue.store.messages(SCHEDULE_TOPIC, 0)[0].properties["REAL_QID"] == "0"


async def test_dead_letters_are_consumed_like_other_messages():
    harness = stocked(b"hopeless")
    await send_back(harness, level=-1)
    assert bodies(await harness.pull("%DLQ%CG", 0, group="undertakers")) == [b"hopeless"]
    (dead,) = harness.store.messages("%DLQ%CG")
    assert (await send_back(harness, dead.log_offset, level=1, group="undertakers")).code == 0
    harness.parts.delay.step(harness.now_ms + 1_000)
    assert harness.store.messages("%RETRY%undertakers")[0].properties["RETRY_TOPIC"] == "TopicX"


async def test_the_checks_of_a_send_back_come_in_apaches_order():
    harness = stocked(b"x", auto_create_subscription_group=False, broker_permission=4)
    unknown = await send_back(harness, 999)
    assert (unknown.code, unknown.remark.startswith("subscription group not exist, CG \nSee ")) == (26, True)
    harness.parts.groups.put(SubscriptionGroup("CG", retry_queue_nums=0))
    assert (await send_back(harness, 999)).code == 16
    harness = stocked(b"x")
    harness.parts.groups.put(SubscriptionGroup("CG", retry_queue_nums=0))
    assert (await send_back(harness, 999)).code == 0
    harness.parts.groups.put(SubscriptionGroup("CG"))
    harness.parts.topics.put(TopicConfig("%RETRY%CG", 1, 1, PERM_READ))
    forbidden = await send_back(harness, 999)
    assert (forbidden.code, forbidden.remark) == (16, "the topic[%RETRY%CG] sending message is forbidden")
    assert (await send_back(harness, level=-1)).code == 16
    assert (
        harness.store.queues() == [("TopicX", 1)]
        and harness.parts.statistics.refusals.counts()["permission"] == 2
    )


async def test_what_cannot_be_sent_back():
    harness = stocked(b"x")
    missing = await send_back(harness, 999)
    assert (missing.code, missing.remark) == (1, "look message by offset failed, 999")
    assert (await harness.ask(36, offset=0, group="../g", delayLevel=0)).code == 29
    harness.parts.groups.put(SubscriptionGroup("CG", retry_queue_nums=0))
    assert (await send_back(harness)).code == 0
    assert harness.store.queues() == [("TopicX", 1)]


async def test_a_parked_pull_and_many_messages_in_one_turn_make_one_answer():
    harness = stocked()
    harness.park("TopicX", 1)
    other = FakeChannel()
    await asyncio.gather(
        *(harness.send("TopicX", 1, str(number).encode(), channel=other) for number in range(10))
    )
    await turns()
    (answer,) = harness.channel.answers
    assert bodies(answer) == [str(number).encode() for number in range(10)]
