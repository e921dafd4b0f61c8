"""Flow control in the handlers: Apache's codes and texts, and each refusal counted with its numbers
(docs/spec/store-behaviour.md section 15)."""

import pytest

from broker_store.messages import PutStatus
from broker_store.protocol.codes import ResponseCode
from broker_store.protocol.command import Command
from broker_store.server import produce, router, send_group
from tests.support.broker_harness import Harness, turns

BUSY = int(ResponseCode.SYSTEM_BUSY)


def last(harness: Harness) -> dict:
    return harness.parts.statistics.refusals.facts()[0]


async def test_sends_are_rejected_while_the_page_cache_is_busy_and_by_a_slave():
    harness = Harness()
    harness.store.rejects_sends, harness.store.appender.busy_took_ms = "page_cache_busy", 1_700
    answer = await harness.send()
    assert (answer.code, answer.remark) == (
        BUSY,
        "[REJECTREQUEST]system busy, start flow control for a while",
    )
    assert answer.fields["MSG_REGION"] == "DefaultRegion" and harness.store.wrote == 0
    facts = last(harness)
    assert (facts["cause"], facts["count"], facts["value"], facts["limit"]) == (
        "page cache busy",
        1,
        1_700,
        1_000,
    )
    assert (facts["who"], facts["said"], facts["at_ms"]) == (
        harness.channel.remote,
        answer.remark,
        harness.now_ms,
    )
    harness.store.rejects_sends = "slave"
    assert (await harness.send()).code == BUSY and last(harness)["cause"] in ("slave", "page cache busy")
    assert harness.parts.statistics.refusals.counts() == {"page cache busy": 1, "slave": 1}


async def test_sends_that_wait_when_the_page_cache_becomes_busy_are_dropped_and_commits_are_not():
    harness = Harness()
    harness.request(310, b"body", **send_fields())
    results = []
    harness.parts.sends.add(
        produce.Message("Orders", 0, b"patient"), lambda context, result: results.append(result.status), None
    )
    harness.now_s += 0.02
    harness.store.rejects_sends, harness.store.appender.busy_took_ms = "page_cache_busy", 1_001
    await turns()
    (answer,) = harness.channel.answers
    assert answer.code == BUSY
    assert (
        answer.remark
        == "[PCBUSY_CLEAN_QUEUE]broker busy, start flow control for a while, period in queue: 20ms, "
        "size of queue: 2"
    )
    assert results == [PutStatus.PUT_OK], "what a transaction or a reply stores is left to the store"
    assert last(harness) == {
        "cause": "PAGE_CACHE_BUSY_WAITED",
        "count": 1,
        "at_ms": harness.now_ms,
        "value": 1_001,
        "limit": 1_000,
        "who": "127.0.0.1:50000",
        "said": "",
    }


def send_fields(topic="BenchmarkTest") -> dict:
    return dict(
        zip("abcdefghij", ("PG", topic, "TBW102", 4, 0, 0, 5, 0, "UNIQ_KEY\x01U\x02", 0), strict=True)
    )


async def test_a_send_that_waited_longer_than_its_limit_is_answered_and_not_stored(monkeypatch):
    monkeypatch.setattr(send_group, "MAX_GROUP_MESSAGES", 2)
    harness = Harness()
    for _ in range(5):
        harness.request(310, b"body", **send_fields())
    harness.parts.sends.flush()
    harness.now_s += 0.201
    # These arrived while the first group was stored, so they are as late.
    harness.request(310, b"body", **send_fields())
    await turns()
    answers = {answer.opaque: answer for answer in harness.channel.answers}
    assert [answers[opaque].code for opaque in range(1, 7)] == [0, 0, BUSY, BUSY, BUSY, BUSY]
    assert (
        answers[3].remark
        == "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, period in queue: 201ms, "
        "size of queue: 4"
    )
    assert harness.store.put_calls == [2]
    facts = last(harness)
    assert (facts["cause"], facts["count"], facts["value"], facts["limit"]) == (
        "WAITED_TOO_LONG",
        4,
        201,
        200,
    )


@pytest.mark.parametrize(
    ("settings", "later_s"),
    [
        ({}, 0.199),
        ({"broker_fast_failure_enable": False}, 60.0),
        ({"wait_time_mills_in_send_queue": 60_000}, 60.0),
    ],
)
async def test_within_the_limit_or_without_one_a_send_that_waited_is_stored(monkeypatch, settings, later_s):
    monkeypatch.setattr(send_group, "MAX_GROUP_MESSAGES", 1)
    harness = Harness(**settings)
    for _ in range(3):
        harness.request(310, b"body", **send_fields())
    harness.parts.sends.flush()
    harness.now_s += later_s
    await turns()
    assert [answer.code for answer in harness.channel.answers] == [0, 0, 0]


async def test_more_sends_than_may_be_under_way_are_overload_also_while_they_wait_for_their_sync():
    harness = Harness(sync_flush=True, send_thread_pool_queue_capacity=2)
    for _ in range(3):
        harness.request(310, b"body", **send_fields())
    await turns()
    (refused,) = harness.channel.answers
    assert (refused.opaque, refused.code, refused.remark) == (
        3,
        BUSY,
        "[OVERLOAD]system busy, start flow control for a while",
    )
    harness.request(310, b"body", **send_fields())
    assert [answer.opaque for answer in harness.channel.answers] == [3, 4], "two are stored and not synced"
    assert (
        last(harness)["cause"],
        last(harness)["count"],
        last(harness)["value"],
        last(harness)["limit"],
    ) == ("overload of sends", 2, 2, 2)
    harness.store.sync()
    harness.channel.answers.clear()
    harness.request(310, b"body", **send_fields())
    await turns()
    harness.store.sync()
    assert [answer.code for answer in harness.channel.answers] == [0]


async def test_a_pull_that_cannot_be_parked_is_busy_and_no_reason_to_ask_again_at_once():
    harness = Harness(max_parked_pulls=1)
    await harness.send()
    harness.channel.answers.clear()
    harness.park("Orders", 0, 1)
    harness.park("Orders", 0, 1)
    (answer,) = harness.channel.answers
    assert (answer.code, answer.remark) == (BUSY, "[OVERLOAD]system busy, start flow control for a while")
    assert (last(harness)["cause"], last(harness)["value"], last(harness)["limit"]) == ("parked pulls", 1, 1)
    assert harness.parts.parked.count == 1


async def test_more_requests_that_wait_for_something_than_allowed_are_overload(monkeypatch):
    monkeypatch.setattr(router, "MAX_TASKS", 0)
    harness = Harness()
    answer = await harness.ask(323, msgId="7F000001000000010000000000000000")
    assert (answer.code, answer.remark) == (BUSY, "[OVERLOAD]system busy, start flow control for a while")
    assert (last(harness)["cause"], last(harness)["limit"]) == ("overload of requests", 0)


async def test_a_request_that_waited_on_its_connection_is_judged_by_its_kind():
    harness = Harness()
    for code, within_ms in ((310, 200), (11, 5_000), (34, 31_000), (37, 3_000), (25, 5_000)):
        command = Command.request(code, opaque=9)
        assert harness.router.waited(command, harness.channel, within_ms, 7) is None
        answer = harness.router.waited(command, harness.channel, within_ms + 1, 7)
        assert (answer.code, answer.opaque) == (BUSY, 9)
        assert (
            answer.remark
            == f"[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, period in queue: "
            f"{within_ms + 1}ms, size of queue: 7"
        )
        assert (last(harness)["value"], last(harness)["limit"]) == (within_ms + 1, within_ms)
    assert harness.router.waited(Command.request(15), harness.channel, 1 << 40, 7) is None


async def test_bounds_of_topics_and_groups_are_told_with_their_numbers():
    harness = Harness(max_auto_created_topics=0, max_auto_created_groups=0)
    assert (await harness.send("New")).code == int(ResponseCode.SYSTEM_ERROR)
    facts = last(harness)
    assert (facts["cause"], facts["value"], facts["limit"]) == (
        "too many topics",
        len(harness.parts.topics),
        0,
    )
    harness.now_ms += 1
    assert (await harness.pull("BenchmarkTest", group="New")).code != 0
    facts = last(harness)
    assert (facts["cause"], facts["value"], facts["limit"], facts["who"]) == (
        "limit of groups",
        len(harness.parts.groups),
        0,
        harness.channel.remote,
    )


async def test_what_a_handler_refuses_by_itself_is_counted_by_its_code_and_nothing_found_is_not():
    harness = Harness()
    await harness.ask(15, consumerGroup="nobody", topic="T", queueId=0, commitOffset=0)
    await harness.ask(25, b"x=1")
    await harness.ask(14, consumerGroup="G", topic="T", queueId=0, setZeroIfNotFound=False)
    assert harness.parts.statistics.refusals.counts() == {
        "subscription group not exist": 1,
        "change of a setting": 1,
    }


async def test_what_a_number_decided_is_told_with_that_number_and_its_limit():
    harness = Harness(timer_max_delay_sec=10, max_topics=0)
    await harness.ask(200, b'{"groupName":"CG"}')
    queues = harness.parts.topics.get("BenchmarkTest").queues

    async def refused(answer) -> tuple:
        facts = max(harness.parts.statistics.refusals.facts(), key=lambda facts: facts["at_ms"])
        harness.now_ms += 1
        assert answer.code and facts["said"] == answer.remark and facts["who"] == harness.channel.remote
        return facts["cause"], facts["value"], facts["limit"]

    harness.now_ms += 1
    assert await refused(await harness.send("BenchmarkTest", 9_999)) == ("queue id", 9_999, queues - 1)
    assert await refused(await harness.pull("BenchmarkTest", 9_998)) == ("queue id", 9_998, queues - 1)
    assert await refused(
        await harness.ask(15, consumerGroup="CG", topic="BenchmarkTest", queueId=7_777, commitOffset=0)
    ) == ("queue id", 7_777, queues - 1)
    assert await refused(
        await harness.ask(15, consumerGroup="CG", topic="BenchmarkTest", queueId=0, commitOffset=-3)
    ) == ("commit offset", -3, None)
    late = await harness.send("BenchmarkTest", properties="TIMER_DELAY_SEC\x0111\x02")
    assert await refused(late) == ("WHEEL_TIMER_MSG_ILLEGAL", 11_000, 10_000)
    count = len(harness.parts.topics)
    assert await refused(await harness.ask(36, group="CG", offset=0, delayLevel=0)) == (
        "too many topics",
        count,
        0,
    )
    assert await refused(await harness.send("%RETRY%CG", reconsume_times=20)) == ("too many topics", count, 0)


async def test_what_the_store_refuses_is_counted_by_its_reason_and_a_length_only_where_it_decided():
    harness = Harness(store_settings={"max_message_size": 1_024})

    async def refused(**request) -> tuple:
        harness.now_ms += 1
        answer = await harness.send(**request)
        facts = last(harness)
        assert answer.code and (facts["who"], facts["said"]) == (
            "127.0.0.1:50000 to BenchmarkTest",
            answer.remark,
        )
        return facts["cause"], facts["value"], facts["limit"]

    harness.store.refuse, harness.store.status.blocked_by = (
        PutStatus.SERVICE_NOT_AVAILABLE,
        ("disk_full", 95, 90),
    )
    assert await refused(topic="BenchmarkTest") == ("disk full", 95, 90)
    harness.store.status.blocked_by = ("sync_failed", None, None)
    assert await refused(topic="BenchmarkTest") == ("sync failed", None, None)
    harness.store.refuse = PutStatus.MESSAGE_ILLEGAL
    assert await refused(topic="BenchmarkTest", body=b"x" * 1_025) == ("MESSAGE_ILLEGAL", 1_025, 1_024)
    assert await refused(topic="BenchmarkTest") == ("MESSAGE_ILLEGAL", None, None)
    harness.store.refuse = PutStatus.PROPERTIES_SIZE_EXCEEDED
    assert await refused(topic="BenchmarkTest") == ("PROPERTIES_SIZE_EXCEEDED", None, None)
