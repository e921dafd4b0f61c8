"""What handlers count for Apache's histograms: each request once, sizes of records, times of topics."""

from __future__ import annotations

import asyncio
from collections import Counter

from broker_store.broker.buckets import OTHER_CODE
from broker_store.broker.topics import TopicConfig
from broker_store.messages import PutStatus
from broker_store.protocol.codes import RequestCode, ResponseCode
from tests.support.broker_harness import Harness, turns


def requests_of(harness: Harness) -> Counter:
    """(code, answer, has waited, is oneway) -> number."""
    found = harness.parts.statistics.histograms.requests
    return Counter({key: buckets.count for key, buckets in found.items()})


async def test_each_send_counts_once_with_its_codes():
    harness = Harness()
    await asyncio.gather(*(harness.send(code=310) for _ in range(5)), harness.send(code=10))
    harness.store.refuse = PutStatus.MESSAGE_ILLEGAL
    await harness.send()
    harness.store.refuse = None
    await harness.send(body=b"")  # its handler refuses it
    await harness.send(oneway=True)
    await turns()
    assert requests_of(harness) == {
        (310, 0, False, False): 5,
        (10, 0, False, False): 1,
        (310, ResponseCode.MESSAGE_ILLEGAL, False, False): 2,
    }


async def test_a_send_that_waits_for_its_sync_has_that_time():
    harness = Harness(sync_flush=True)
    task = asyncio.ensure_future(harness.send())
    await turns()
    harness.now_s += 0.0505
    harness.store.sync()
    await task
    buckets = harness.parts.statistics.histograms.requests[310, 0, False, False]
    assert buckets.total == 50 and buckets.counts[5] == 1


async def test_a_pull_that_waits_is_one_of_long_polling():
    harness = Harness()
    harness.parts.topics.put(TopicConfig("Orders", 1, 1))
    await harness.ask(11, **harness.pull_fields(offset=0))
    harness.request(11, **harness.pull_fields(offset=0, flag=6))
    await harness.send()
    await turns()
    await harness.ask(11, **harness.pull_fields(offset=0))
    assert requests_of(harness) == {
        (11, ResponseCode.PULL_NOT_FOUND, False, False): 1,
        (11, 0, True, False): 1,
        (11, 0, False, False): 1,
        (310, 0, False, False): 1,
    }


async def test_codes_without_a_handler_are_one_kind():
    harness = Harness()
    for code in range(30_000, 30_050):
        await harness.ask(code)
    assert requests_of(harness) == {(OTHER_CODE, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, False, False): 50}


async def test_answers_of_coroutines_errors_and_oneway_requests_count_once():
    harness = Harness()
    await harness.ask(RequestCode.GET_BROKER_CONFIG)
    await harness.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup="none")
    await harness.ask(
        RequestCode.QUERY_MESSAGE, topic="none", key="k", maxNum=1, beginTimestamp=0, endTimestamp=1
    )
    fields = dict(consumerGroup="CG", topic="Orders", queueId=0, commitOffset=0)
    harness.request(RequestCode.UPDATE_CONSUMER_OFFSET, oneway=True, **fields)
    await turns()
    found = requests_of(harness)
    assert found.total() == 4
    assert sum(number for (_, _, _, oneway), number in found.items() if oneway) == 1


async def test_sizes_are_those_of_records_and_a_batch_counts_once_with_its_average():
    harness = Harness()
    await harness.send("Orders", body=b"x" * 10)
    await harness.send("Orders", body=b"x" * 5_000)
    (small, large) = harness.store.messages("Orders")
    sizes = harness.parts.statistics.histograms.message_sizes["Orders"]
    assert sizes.counts == [1, 0, 1, 0, 0, 0, 0] and sizes.total == small.size + large.size


async def test_a_timed_message_counts_with_the_time_it_waits():
    harness = Harness()
    due_ms = harness.now_ms + 90_000
    answer = await harness.send(
        "Orders", properties=f"TIMER_DELIVER_MS\x01{due_ms}\x02", born_timestamp=harness.now_ms
    )
    assert answer.code == 0, answer.remark
    (delays,) = harness.parts.statistics.histograms.delays.items()
    assert delays[0] == "Orders" and 85 <= delays[1].total <= 90 and delays[1].counts[1] == 1


async def test_requests_that_create_topics_and_groups_are_timed():
    harness = Harness()
    fields = dict(topic="T", defaultTopic="TBW102", readQueueNums=1, writeQueueNums=1, perm=6)
    fields |= dict(topicFilterType="SINGLE_TAG", topicSysFlag=0, order=False)
    assert (await harness.ask(17, **fields)).code == 0
    assert (await harness.ask(17, **fields | {"perm": 99})).code != 0
    assert (await harness.ask(200, body=b'{"groupName": "G"}')).code == 0
    assert (await harness.ask(200, body=b'{"groupName": "a b"}')).code != 0
    histograms = harness.parts.statistics.histograms
    assert {key: buckets.count for key, buckets in histograms.topics_put.items()} == {
        (True, False): 1,
        (False, False): 1,
    }
    assert {key: buckets.count for key, buckets in histograms.groups_put.items()} == {True: 1, False: 1}
