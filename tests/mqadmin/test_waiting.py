"""What waits is shown as it is: over a real store, through REST, the streams and the pages."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from broker_store.broker import half_message
from broker_store.formats import properties, record
from broker_store.formats.names import dead_letter_topic, retry_topic
from broker_store.formats.topics import SCHEDULE_TOPIC
from broker_store.messages import Message
from broker_store.rest.new_messages import NewMessage
from mqadmin.cluster.embedded import waiting
from mqadmin.facts.groups import Dead, Retrying
from mqadmin.facts.waiting import DueTopic, Halves
from mqadmin.web import live
from tests.mqadmin.test_cluster import _same_keys, cluster, process  # noqa: F401  (fixtures)
from tests.support.fake_cluster import FakeCluster


def _put(cluster, message: Message, *, delay_level: int = 0):  # noqa: F811
    parts = cluster._host.process.parts
    if delay_level:
        parts.delay.schedule(message, delay_level)
    result = parts.store.appender.put(message)
    assert result.ok
    return result


def _half(cluster, key: str, **pairs: str) -> record.StoredMessage:  # noqa: F811
    parts = cluster._host.process.parts
    message = Message(
        "orders",
        1,
        b"half",
        properties.encode({"PGROUP": "shop", "UNIQ_KEY": key, **pairs}),
        born_timestamp=parts.clock(),
    )
    half_message.prepare(message)
    return record.decode(parts.store.reads.records.record_at(_put(cluster, message).log_offset))


async def test_delayed_messages_are_counted_by_level_with_the_time_of_the_first(cluster):  # noqa: F811
    assert cluster.waiting.facts().delayed.levels == [] and cluster.waiting.facts().delayed.due_ms is None
    receipts = await cluster.sends.send_batch(
        "orders", [NewMessage(b"x", properties={"DELAY": level}, queue_id=1) for level in ("14", "14", "18")]
    )
    delayed = cluster.waiting.facts().delayed
    assert [(level.level, level.queue_id, level.delay_ms, level.waiting) for level in delayed.levels] == [
        (14, 13, 600_000, 2),
        (18, 17, 7_200_000, 1),
    ]
    stored, _ = await cluster.search.message_at(receipts[0].log_offset)
    assert (
        delayed.due_ms
        == delayed.levels[0].due_ms
        == pytest.approx(stored.store_timestamp + 600_000, abs=1_000)
    )
    fate = cluster.waiting.fate(stored)
    assert (stored.topic, fate.kind, fate.waits, fate.due_ms) == (
        SCHEDULE_TOPIC,
        "delayed",
        True,
        delayed.due_ms,
    )
    assert (fate.topic, fate.queue_id, fate.level) == ("orders", 1, 14)
    cluster._host.process.parts.delay._levels[13].offset = 1
    assert cluster.waiting.fate(stored).waits is False and cluster.waiting.facts().delayed.waiting == 2


async def test_timed_messages_are_counted_by_hour_and_topic_and_each_says_when_it_is_due(cluster):  # noqa: F811
    parts = cluster._host.process.parts
    now_ms = parts.clock()
    pairs = {"TIMER_DELIVER_MS": str(now_ms + 600_123), "UNIQ_KEY": "K1"}
    message = Message("orders", 1, b"x", properties.encode(pairs), born_timestamp=now_ms)
    assert parts.timer.admission.schedule(message, pairs) is None
    stored = record.decode(parts.store.reads.records.record_at(_put(cluster, message).log_offset))
    fate = cluster.waiting.fate(stored)
    assert (fate.kind, fate.waits, fate.topic, fate.queue_id, fate.recalls) == (
        "timed",
        True,
        "orders",
        1,
        None,
    )
    assert fate.due_ms == now_ms + 600_123
    while cluster.waiting.facts().timed.not_enqueued:
        parts.timer.step(parts.clock())
    timed = cluster.waiting.facts().timed
    assert (timed.enabled, timed.waiting, timed.topics) == (
        True,
        1,
        [DueTopic(topic="orders", messages=1)],
    )
    assert [hour.messages for hour in timed.hours] == [1] and abs(
        timed.hours[0].hour_ms - fate.due_ms
    ) <= 3_600_000


async def test_halves_wait_until_their_word_and_each_tells_how_often_it_was_asked_about(cluster):  # noqa: F811
    transactions = cluster._host.process.parts.transactions
    first, second, _ = (
        _half(cluster, "K1", TRANSACTION_CHECK_TIMES="3"),
        _half(cluster, "K2"),
        _half(cluster, "K3"),
    )
    assert cluster.waiting.facts().prepared.waiting == 3
    assert transactions.begin_end(second)
    transactions.end(second, committed=True)
    prepared, told = cluster.waiting.facts().prepared, await cluster.waiting.halves()
    assert (prepared.waiting, prepared.committed, prepared.most_checks) == (2, 1, 15)
    assert [(half.message_id, half.checks, half.topic, half.queue_id, half.group) for half in told.items] == [
        ("K1", 3, "orders", 1, "shop"),
        ("K3", 0, "orders", 1, "shop"),
    ]
    assert told.complete and not (await cluster.waiting.halves(1)).complete
    fate = cluster.waiting.fate(first)
    assert (fate.kind, fate.waits, fate.checks, fate.group, fate.topic) == (
        "prepared",
        True,
        3,
        "shop",
        "orders",
    )
    assert cluster.waiting.fate(second).waits is False
    # As after a start, when the records of who had a word are not read yet.
    transactions._op_read = -1
    assert cluster.waiting.facts().prepared.waiting is None and cluster.waiting.fate(first).waits is None
    assert await cluster.waiting.halves() == Halves(items=[], complete=None)


async def test_a_group_tells_what_it_sent_back_what_came_back_and_what_it_gave_up(cluster):  # noqa: F811
    parts = cluster._host.process.parts
    parts.offsets.commit("billing", "orders", 0, 0)
    assert (cluster.groups.detail("billing").retrying, cluster.groups.detail("billing").dead) == (
        Retrying(topic=retry_topic("billing"), topics=[], messages=0, lag=0),
        Dead(topic=dead_letter_topic("billing"), messages=0, last_store_ms=None),
    )
    for level, group in ((14, "billing"), (14, "other"), (15, "billing"), (14, "billing")):
        _put(
            cluster,
            Message(retry_topic(group), 0, b"x", properties.encode({"RETRY_TOPIC": "orders"})),
            delay_level=level,
        )
    told = await asyncio.to_thread(cluster.waiting.retries, "billing")
    assert [(level.level, level.count) for level in told.levels] == [(14, 2), (15, 1)]
    assert (told.delayed, told.complete) == (3, True)
    assert told.levels[1].due_ms == cluster.waiting.facts().delayed.levels[1].due_ms
    parts.topics.ensure(retry_topic("billing"), 1)
    parts.topics.ensure(dead_letter_topic("billing"), 1)
    came = _put(
        cluster,
        Message(
            retry_topic("billing"), 0, b"x", properties.encode({"RETRY_TOPIC": "orders"}), reconsume_times=1
        ),
    )
    dead = _put(
        cluster,
        Message(
            dead_letter_topic("billing"),
            0,
            b"x",
            properties.encode({"RETRY_TOPIC": "../orders"}),
            reconsume_times=17,
        ),
    )
    facts = cluster.groups.detail("billing")
    retries = retry_topic("billing")
    assert facts.retrying == Retrying(topic=retries, topics=[retries], messages=1, lag=1), (
        "it never took from there: all of it is left"
    )
    assert (facts.dead.messages, facts.dead.last_store_ms) == (1, dead.store_timestamp)
    parts.offsets.commit("billing", retry_topic("billing"), 0, 0)
    assert cluster.groups.detail("billing").retrying.lag == 1
    fates = [
        cluster.waiting.fate((await cluster.search.message_at(result.log_offset))[0])
        for result in (came, dead)
    ]
    assert [(fate.kind, fate.waits, fate.group, fate.topic) for fate in fates] == [
        ("retry", True, "billing", "orders"),
        ("dead", None, "billing", None),
    ]


async def test_counting_the_retries_of_a_group_stops_and_says_so(cluster, monkeypatch):  # noqa: F811
    monkeypatch.setattr(waiting, "MAX_SCANNED", 3)
    for _ in range(5):
        _put(cluster, Message(retry_topic("billing"), 0, b"x"), delay_level=14)
    told = await asyncio.to_thread(cluster.waiting.retries, "billing")
    assert (told.delayed, told.complete) == (3, False)


async def test_an_ordinary_message_has_no_fate(cluster):  # noqa: F811
    [receipt] = await cluster.sends.send_batch(
        "orders", [NewMessage(b"x", properties={"RETRY_TOPIC": "else"})]
    )
    assert cluster.waiting.fate((await cluster.search.message_at(receipt.log_offset))[0]) is None


async def test_its_shapes_are_those_the_pages_are_tested_with(cluster):  # noqa: F811
    fake = FakeCluster()
    [receipt] = await cluster.sends.send_batch("orders", [NewMessage(b"x", properties={"DELAY": "14"})])
    stored, _ = await cluster.search.message_at(receipt.log_offset)
    assert type(cluster.waiting.fate(stored)) is type(fake.waiting.fate(fake.stored("orders", 0, 44)))


async def test_what_waits_and_a_groups_retries_are_streams():
    sampler, watcher = live.Sampler(FakeCluster), live.Watcher()
    sampler._watchers.add(watcher)
    for key in (("waiting", ""), ("group.retries", "billing")):
        sampler.subscribe(watcher, key)
    await asyncio.gather(*sampler._measurements)
    frames = {frame["stream"]: frame["data"] for frame in live.orjson.loads(await watcher.take())}
    assert frames["waiting"]["prepared"]["waiting"] == 3 and frames["group.retries"]["delayed"] == 29


def test_the_page_shows_levels_and_halves_and_says_what_is_not_known(
    fake_cluster, client_of_role, monkeypatch
):
    client = client_of_role("viewer")
    page = client.get("/messages/waiting/").content.decode()
    assert "20,771" in page and ">30 min<" in page and "payments-service" in page and "3 of 15" in page
    assert "topic=SCHEDULE_TOPIC_XXXX&amp;queue=15&amp;offset=640000" in page
    unknown = fake_cluster.waiting.facts()
    unknown = replace(unknown, prepared=replace(unknown.prepared, waiting=None))
    monkeypatch.setattr(fake_cluster.waiting, "facts", lambda: unknown)
    assert "Not known yet" in client.get("/messages/waiting/").content.decode()


@pytest.mark.parametrize(
    ("log_offset", "sentence"),
    [
        (44_000, "level 16), then goes to"),
        (45_000, "(asked about 2 times). Committed, it goes to"),
        (46_000, "<strong>Timed:</strong> is due"),
        (47_000, "and not read again yet."),
        (48_000, "<strong>Given up</strong> by"),
    ],
)
def test_a_message_says_what_it_waits_for_and_where_it_goes(
    fake_cluster, client_of_role, log_offset, sentence
):
    page = client_of_role("viewer").get(f"/messages/{log_offset}/").content.decode()
    assert sentence in " ".join(page.split()) and '<a href="/topics/payments/">payments</a>' in page


def test_an_ordinary_message_says_nothing_of_waiting(fake_cluster, client_of_role):
    assert "then goes to" not in client_of_role("viewer").get("/messages/40000/").content.decode()


def test_a_group_shows_its_retries_and_leads_to_its_dead_letters(fake_cluster, client_of_role):
    client = client_of_role("viewer")
    page = client.get("/groups/billing/").content.decode()
    assert ">22<" in page and ">2 min<" in page and "topic=%25DLQ%25billing" in page
    assert (
        "No message that this group sent back waits"
        in client.get("/groups/search-index/retries").content.decode()
    )
    given_up = 'given up after <span data-path="retry_max_times" data-format="count">16</span> retries'
    assert given_up in client.get("/groups/nightly-report/").content.decode()


def test_rest_tells_what_waits(fake_cluster, client_of_role):
    client = client_of_role("viewer")
    assert client.get("/api/v1/waiting").json()["delayed"]["levels"][1]["waiting"] == "412"
    assert [
        half["group"] for half in client.get("/api/v1/waiting/prepared", {"limit": 2}).json()["items"]
    ] == ["payments-service"] * 2
    told = client.get("/api/v1/groups/billing/waiting").json()
    assert (told["delayed"]["complete"], told["dead"]["messages"], told["retrying"]["lag"]) == (
        True,
        "31",
        "3",
    )
    assert client.get("/api/v1/groups/nobody/waiting").status_code == 404
