"""Dead letters are sent again after a plan was shown and the group's name typed: at the page, by REST and by
the command."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from django.contrib.admin.models import LogEntry
from django.db import DatabaseError

from broker_store.broker.topics import TopicConfig
from broker_store.client import ClientError, MessageQueue, NoRouteError
from broker_store.errors import MisuseError, NotFoundError
from broker_store.formats import properties
from broker_store.formats.names import check_topic, dead_letter_topic
from broker_store.messages import Message
from broker_store.protocol.route_bodies import QueueData, TopicRoute
from broker_store.rest.callers import Caller
from broker_store.rest.problems import Problem
from mqadmin import audit
from mqadmin.cluster.embedded import dead_letters as plans
from mqadmin.facts.dead_letters import RESENDER, ResendPlan, TopicOfLetters
from mqadmin.facts.offset_ranges import within
from mqadmin.jobs import dead_letters, runs
from mqadmin.jobs import queue as job_queue
from mqadmin.jobs.facts import Resent
from mqadmin.jobs.left_out import LeftOut, of_group
from mqadmin.jobs.progress import JobFailed
from mqadmin.process.run_file import RunFile
from tests.mqadmin.test_cluster import cluster, process  # noqa: F401  (fixtures)
from tests.support import fake_runs


def _give_up(cluster, count: int, **pairs: str) -> list[int]:  # noqa: F811
    parts = cluster._host.process.parts
    parts.topics.put(TopicConfig(dead_letter_topic("billing"), 1, 1))
    for topic in ("orders", "payments", "archive", "SCHEDULE_TOPIC_XXXX"):
        parts.offsets.commit("billing", topic, 0, 0)
    found = [
        parts.store.appender.put(
            Message(
                dead_letter_topic("billing"), 0, b"x", properties.encode(pairs), born_timestamp=parts.clock()
            )
        )
        for _ in range(count)
    ]
    return [result.store_timestamp for result in found]


async def test_the_plan_counts_what_would_be_sent_and_what_was_sent_before(cluster):  # noqa: F811
    times = (
        _give_up(cluster, 3, RETRY_TOPIC="orders")
        + _give_up(cluster, 2, RETRY_TOPIC="payments")
        + _give_up(cluster, 1)
    )
    cluster._host.process.parts.offsets.commit(RESENDER, dead_letter_topic("billing"), 0, 2)
    cluster._host.process.parts.topics.put(TopicConfig("%RETRY%billing", 1, 1))
    plan = await asyncio.to_thread(cluster.dead_letters.plan, "billing", "group", 100, {})
    assert plan == ResendPlan(
        group="billing",
        to="group",
        limit=100,
        goes_to="%RETRY%billing",
        messages=4,
        left=0,
        sent_before=2,
        left_out_before=0,
        skipped=1,
        topics=[
            TopicOfLetters(topic="payments", messages=2, exists=False, is_taken=False, is_read=True),
            TopicOfLetters(topic="orders", messages=1, exists=True, is_taken=True, is_read=True),
        ],
        without_topic=0,
        to_send=3,
        of_limit=4,
        cannot="",
        complete=True,
        oldest_ms=times[2],
        newest_ms=times[5],
    )
    few = await asyncio.to_thread(cluster.dead_letters.plan, "billing", "topic", 1, {})
    assert (few.messages, few.left, few.goes_to, few.topics) == (
        1,
        3,
        None,
        [TopicOfLetters(topic="orders", messages=1, exists=True, is_taken=True, is_read=True)],
    )
    to_topics = await asyncio.to_thread(cluster.dead_letters.plan, "billing", "topic", 100, {})
    assert (to_topics.messages, to_topics.without_topic, to_topics.to_send) == (4, 2, 1)
    assert (few.oldest_ms, few.newest_ms) == (times[2], times[2])


async def test_a_plan_reads_within_its_bound_and_says_so(cluster, monkeypatch):  # noqa: F811
    _give_up(cluster, 5, RETRY_TOPIC="orders")
    monkeypatch.setattr(plans, "MAX_READ", 3)
    plan = await asyncio.to_thread(cluster.dead_letters.plan, "billing", "group", 100, {})
    assert (plan.messages, plan.topics, plan.complete) == (
        5,
        [TopicOfLetters(topic="orders", messages=3, exists=True, is_taken=True, is_read=True)],
        False,
    )


async def test_a_group_without_dead_letters_has_nothing_to_send_and_one_that_is_not_there_is_missing(cluster):  # noqa: F811
    cluster._host.process.parts.offsets.commit("billing", "orders", 0, 0)
    plan = await asyncio.to_thread(cluster.dead_letters.plan, "billing", "group", 100, {})
    assert (plan.messages, plan.topics, plan.oldest_ms, plan.complete, plan.cannot) == (
        0,
        [],
        None,
        True,
        "",
    )
    with pytest.raises(NotFoundError):
        await asyncio.to_thread(cluster.dead_letters.plan, "nobody", "group", 100, {})


class _Reader:
    """Dead letters in one queue, by the topic each came from; `there` are the topics that a name server
    knows."""

    def __init__(self, origins, there):
        self.origins, self.there, self.place = origins, there, None

    async def __aenter__(self):
        return self

    async def __aexit__(self, *raised):
        pass

    async def queues(self, topic):
        check_topic(topic)
        if topic not in self.there:
            raise NoRouteError(topic)
        return [MessageQueue(topic, "broker-a", 0)]

    async def min_offset(self, queue):
        return 0

    async def max_offset(self, queue):
        return len(self.origins)

    async def committed(self, queue):
        return self.place

    async def commit(self, queue, offset):
        self.place = offset

    async def pull(self, queue, offset, max_count):
        found = [_dead_letter(number, origin) for number, origin in enumerate(self.origins)][
            offset : offset + max_count
        ]
        return SimpleNamespace(messages=found, next_offset=offset + len(found))


def _dead_letter(number, origin):
    return SimpleNamespace(
        queue_offset=number,
        record=SimpleNamespace(properties={"RETRY_TOPIC": origin} if origin else {}, body=b"x", sys_flag=0),
    )


class _Producer(_Reader):
    """Keeps the topics that it sent to. It fails at the send with the number `fails_at`."""

    def __init__(self, fails_at=None):
        self.sent, self.fails_at = [], fails_at

    async def send_counted(self, topic, *rest):
        if len(self.sent) == self.fails_at:
            raise ClientError("refused")
        self.sent.append(topic)


class _Admin:
    """Routes of the topics that a reader's name server knows; those of `read_only` take no messages. The group
    reads all topics but those of `unread`."""

    def __init__(self, reader, read_only, unread):
        self.there, self.read_only = reader.there, read_only
        self.read = {*reader.origins, *reader.there} - set(unread)

    async def __aenter__(self):
        return self

    async def __aexit__(self, *raised):
        pass

    async def route(self, topic):
        if topic not in self.there:
            raise NoRouteError(topic)
        return TopicRoute((QueueData("broker-a", 1, 1, 4 if topic in self.read_only else 6, 0),), ())

    async def consume_stats(self, group):
        assert group == "billing"
        return {MessageQueue(topic, "broker-a", 0): None for topic in self.read}


class _Kept(dict):
    """What is left out, by queue, in place of the database."""

    def begin(self, queue_id, low, place):
        self[queue_id] = within(self.get(queue_id, ()), low, place)
        return list(self[queue_id])

    def replace(self, queue_id, first, end, kept):
        others = (
            part
            for a, b in self.get(queue_id, ())
            for part in ((a, min(b, first)), (max(a, end), b))
            if part[0] < part[1]
        )
        self[queue_id] = within([*others, *kept], 0, 1 << 63)


def _resend(monkeypatch, reader, producer, to="topic", read_only=(), left_out=None, limit=100, unread=()):
    monkeypatch.setattr(dead_letters, "Admin", lambda nameserver, **signer: _Admin(reader, read_only, unread))
    monkeypatch.setattr(dead_letters, "PullConsumer", lambda group, nameserver, **signer: reader)
    monkeypatch.setattr(dead_letters, "Producer", lambda nameserver, group, **signer: producer)
    return dead_letters.resend(
        "127.0.0.1:9876",
        "billing",
        to,
        limit,
        lambda sent, of: None,
        _Kept() if left_out is None else left_out,
    )


async def test_a_topic_that_is_not_there_is_not_made_by_sending_its_dead_letters_again(monkeypatch):
    reader, producer = (
        _Reader(["orders", "Gone", "../../x", "", "orders"], {"orders", "%DLQ%billing"}),
        _Producer(),
    )
    found = await _resend(monkeypatch, reader, producer)
    assert found == Resent(sent=2, left=0, came_back=0, skipped=1, without_topic=2)
    assert (producer.sent, reader.place) == (["orders", "orders"], 5)


async def test_the_group_alone_gets_what_its_topic_gave_up_also_when_that_topic_is_gone(monkeypatch):
    reader, producer = _Reader(["Gone"], {"%DLQ%billing", "%RETRY%billing"}), _Producer()
    assert (await _resend(monkeypatch, reader, producer, "group")).sent == 1
    assert producer.sent == ["%RETRY%billing"]


@pytest.mark.parametrize(
    "origin",
    [
        "archive",
        "SCHEDULE_TOPIC_XXXX",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "rmq_sys_REVIVE_LOG_DefaultCluster",
    ],
)
async def test_a_topic_that_takes_no_messages_keeps_back_no_letter_behind_it(monkeypatch, origin):
    """The run failed there, and each further run at the same letter."""
    reader, producer = _Reader(["orders", origin, "orders"], {"orders", "%DLQ%billing", origin}), _Producer()
    found = await _resend(monkeypatch, reader, producer, read_only={"archive"})
    assert found == Resent(sent=2, left=0, came_back=0, skipped=0, without_topic=1) and reader.place == 3


@pytest.mark.parametrize("origin", ["secret", "%RETRY%other", "%DLQ%other"])
async def test_a_letter_that_names_a_topic_which_its_group_does_not_read_is_left_out(
    cluster,  # noqa: F811
    monkeypatch,
    origin,
):
    """The send has the rights of a super user, and a producer may write any name as the origin."""
    reader, producer = _Reader(["orders", origin, "orders"], {"orders", "%DLQ%billing", origin}), _Producer()
    found = await _resend(monkeypatch, reader, producer, unread={origin})
    assert found == Resent(sent=2, left=0, came_back=0, skipped=0, without_topic=1)
    assert producer.sent == ["orders", "orders"]
    cluster._host.process.parts.topics.put(TopicConfig(origin, 1, 1))
    _give_up(cluster, 2, RETRY_TOPIC="orders")
    _give_up(cluster, 1, RETRY_TOPIC=origin)
    plan = await asyncio.to_thread(cluster.dead_letters.plan, "billing", "topic", 100, {})
    assert (plan.to_send, plan.without_topic) == (2, 1)
    assert [(one.topic, one.is_taken, one.is_read, one.may_be_sent_to) for one in plan.topics] == [
        ("orders", True, True, True),
        (origin, True, False, False),
    ]


async def test_what_was_left_out_is_tried_again_by_each_run_and_sent_once(monkeypatch):
    """It lay before the committed offset of the first run, and every page said that it had been sent."""
    reader, producer, kept = (
        _Reader(["orders", "archive", "Gone", "orders", ""], {"orders", "%DLQ%billing", "archive"}),
        _Producer(),
        _Kept(),
    )
    first = await _resend(monkeypatch, reader, producer, read_only={"archive"}, left_out=kept)
    assert (first.sent, first.without_topic, first.skipped, reader.place, kept) == (
        2,
        2,
        1,
        5,
        {0: [(1, 3), (4, 5)]},
    )
    reader.there |= {"Gone"}
    again = await _resend(monkeypatch, reader, producer, read_only={"archive"}, left_out=kept)
    assert (again.sent, again.without_topic, again.skipped, kept) == (1, 1, 1, {0: [(1, 2), (4, 5)]})
    reader.there |= {"%RETRY%billing"}
    to_group = await _resend(monkeypatch, reader, producer, "group", left_out=kept)
    assert (to_group.sent, to_group.skipped, kept) == (1, 1, {0: [(4, 5)]})
    assert producer.sent == ["orders", "orders", "Gone", "%RETRY%billing"]


async def test_letters_left_out_before_keep_back_none_behind_them_and_the_limit_counts_what_is_sent(
    monkeypatch,
):
    reader, producer, kept = (
        _Reader(["Gone", "Gone", "orders", "orders", "orders"], {"orders", "%DLQ%billing"}),
        _Producer(),
        _Kept(),
    )
    found = [await _resend(monkeypatch, reader, producer, left_out=kept, limit=2) for _ in range(3)]
    assert [(one.sent, one.without_topic, one.left) for one in found] == [
        (0, 2, 3),
        (2, 2, 1),
        (1, 2, 0),
    ]
    reader.there |= {"Gone"}
    assert (await _resend(monkeypatch, reader, producer, left_out=kept, limit=1)).sent == 1 and kept == {
        0: [(1, 2)]
    }


async def test_a_letter_that_failed_while_it_was_tried_again_stays_left_out(monkeypatch):
    reader, kept = _Reader(["Gone", "Gone", "Gone"], {"orders", "%DLQ%billing"}), _Kept()
    await _resend(monkeypatch, reader, _Producer(), left_out=kept)
    reader.there |= {"Gone"}
    with pytest.raises(ClientError):
        await _resend(monkeypatch, reader, _Producer(fails_at=1), left_out=kept)
    assert (kept, reader.place) == ({0: [(1, 3)]}, 3)


async def test_the_plan_counts_what_was_left_out_and_is_tried_again(cluster):  # noqa: F811
    times = (
        _give_up(cluster, 2, RETRY_TOPIC="orders")
        + _give_up(cluster, 2, RETRY_TOPIC="payments")
        + _give_up(cluster, 2, RETRY_TOPIC="orders")
    )
    cluster._host.process.parts.offsets.commit(RESENDER, dead_letter_topic("billing"), 0, 4)

    async def planned(limit, left_out):
        found = await asyncio.to_thread(cluster.dead_letters.plan, "billing", "topic", limit, left_out)
        return {
            name: getattr(found, name)
            for name in (
                "messages",
                "to_send",
                "left",
                "sent_before",
                "left_out_before",
                "without_topic",
                "oldest_ms",
            )
        }

    was = {0: [(2, 4)]}
    assert await planned(100, was) == {
        "messages": 4,
        "to_send": 2,
        "left": 0,
        "sent_before": 2,
        "left_out_before": 2,
        "without_topic": 2,
        "oldest_ms": times[2],
    }
    assert await planned(1, was) == {
        "messages": 3,
        "to_send": 1,
        "left": 1,
        "sent_before": 2,
        "left_out_before": 2,
        "without_topic": 2,
        "oldest_ms": times[2],
    }
    cluster._host.process.parts.topics.put(TopicConfig("payments", 1, 1))
    assert await planned(1, was) == {
        "messages": 1,
        "to_send": 1,
        "left": 3,
        "sent_before": 2,
        "left_out_before": 2,
        "without_topic": 0,
        "oldest_ms": times[2],
    }
    # Rows after the committed offset do not count
    assert (await planned(100, {0: [(2, 60)], 7: [(0, 9)]}))["left_out_before"] == 2


async def test_a_run_with_the_limit_of_its_plan_sends_what_the_plan_says(cluster, monkeypatch):  # noqa: F811
    """The page's form sent the count of the letters instead, of which those left out before use nothing: more
    was sent than was typed."""
    _give_up(cluster, 3, RETRY_TOPIC="payments")
    _give_up(cluster, 2, RETRY_TOPIC="orders")
    cluster._host.process.parts.offsets.commit(RESENDER, dead_letter_topic("billing"), 0, 3)
    plan = await asyncio.to_thread(cluster.dead_letters.plan, "billing", "topic", 1, {0: [(0, 3)]})
    assert (plan.messages, plan.to_send, plan.of_limit, plan.left) == (4, 1, 1, 1)
    reader, producer, kept = (
        _Reader(["payments"] * 3 + ["orders"] * 2, {"orders", "%DLQ%billing"}),
        _Producer(),
        _Kept({0: [(0, 3)]}),
    )
    reader.place = 3
    found = await _resend(monkeypatch, reader, producer, left_out=kept, limit=plan.of_limit)
    assert (found.sent, found.left, kept) == (plan.to_send, plan.left, {0: [(0, 3)]})


async def test_a_limit_larger_than_a_run_takes_is_not_planned_for_letters_left_out_before(
    cluster,  # noqa: F811
    monkeypatch,
):
    _give_up(cluster, 5, RETRY_TOPIC="payments")
    cluster._host.process.parts.offsets.commit(RESENDER, dead_letter_topic("billing"), 0, 5)
    monkeypatch.setattr(plans, "MAX_READ", 3)
    plan = await asyncio.to_thread(cluster.dead_letters.plan, "billing", "topic", 4, {0: [(0, 5)]})
    assert (plan.messages, plan.of_limit, plan.complete) == (5, 4, False)


async def test_letters_beyond_the_limit_of_those_left_out_before_are_left(monkeypatch):
    reader, kept = _Reader(["Gone"] * 5, {"Gone", "%DLQ%billing"}), _Kept({0: [(0, 5)]})
    reader.place = 5
    found = await _resend(monkeypatch, reader, _Producer(), left_out=kept, limit=2)
    assert (found.sent, found.left, kept) == (2, 3, {0: [(2, 5)]})


async def test_letters_left_out_before_are_read_many_at_a_time_for_a_small_limit(monkeypatch):
    reader, kept = _Reader(["Gone"] * 64 + ["orders"], {"orders", "%DLQ%billing"}), _Kept({0: [(0, 64)]})
    reader.place, pulls, pull = 64, [], reader.pull

    async def counted(queue, offset, max_count):
        pulls.append(offset)
        return await pull(queue, offset, max_count)

    reader.pull = counted
    found = await _resend(monkeypatch, reader, _Producer(), left_out=kept, limit=1)
    assert (found.sent, found.without_topic, pulls) == (1, 64, [0, 32, 64])


def test_a_database_that_fails_in_a_run_is_told_with_what_may_be_sent_twice(monkeypatch):
    async def failing(nameserver, group, to, limit, tell, left_out, credentials, tls):
        tell(3, 9)
        raise DatabaseError("database is locked")

    monkeypatch.setattr(runs.run_file, "read", lambda directory: RunFile(nameserver="127.0.0.1:9876"))
    monkeypatch.setattr(dead_letters, "resend", failing)
    with pytest.raises(
        JobFailed,
        match="the database failed: database is locked; 3 were sent before it, and the next run may send "
        "up to 32 others once more",
    ):
        runs.resend_dead_letters("billing", "group", 9)


@pytest.mark.django_db
def test_the_database_keeps_what_was_left_out():
    kept, other = LeftOut("billing"), LeftOut("payments")
    other.replace(0, 0, 9, [(3, 4)])
    kept.replace(0, 0, 32, [(1, 3), (5, 6), (30, 32)])
    kept.replace(0, 32, 40, [(32, 33)])
    assert of_group("billing") == {0: [(1, 3), (5, 6), (30, 32), (32, 33)]}
    assert kept.begin(0, 2, 33) == [(2, 3), (5, 6), (30, 33)]
    kept.replace(0, 30, 32, [(31, 32)])
    assert of_group("billing") == {0: [(2, 3), (5, 6), (31, 32), (32, 33)]}
    kept.replace(0, 5, 6, [])
    assert kept.begin(0, 0, 3) == [(2, 3)] and of_group("billing") == {0: [(2, 3)]}
    assert of_group("payments") == {0: [(3, 4)]}


async def test_nothing_is_passed_over_while_the_broker_takes_no_messages_at_all(monkeypatch):
    reader, producer = _Reader(["orders", "orders"], {"orders", "%DLQ%billing"}), _Producer()
    with pytest.raises(NoRouteError, match="none for %DLQ%billing"):
        await _resend(monkeypatch, reader, producer, read_only={"orders", "%DLQ%billing"})
    assert (producer.sent, reader.place) == ([], 0)


@pytest.mark.parametrize("there", [set(), {"%RETRY%billing"}], ids=["none", "read only"])
async def test_a_group_without_a_retry_topic_is_told_what_to_do(monkeypatch, there):
    reader, producer = _Reader(["orders"], {"orders", "%DLQ%billing"} | there), _Producer()
    with pytest.raises(MisuseError, match="when a consumer of the group connects"):
        await _resend(monkeypatch, reader, producer, "group", read_only={"%RETRY%billing"})
    assert (producer.sent, reader.place) == ([], None)


async def test_the_plan_says_what_a_run_cannot_do(cluster):  # noqa: F811
    cluster._host.process.parts.topics.put(TopicConfig("archive", 1, 1, 4))
    for origin in ("orders", "archive", "SCHEDULE_TOPIC_XXXX"):
        _give_up(cluster, 1, RETRY_TOPIC=origin)
    plan = await asyncio.to_thread(cluster.dead_letters.plan, "billing", "topic", 100, {})
    assert (plan.to_send, plan.without_topic, plan.cannot) == (1, 2, "")
    assert {topic.topic: topic.is_taken for topic in plan.topics} == {
        "orders": True,
        "archive": False,
        "SCHEDULE_TOPIC_XXXX": False,
    }
    plan = await asyncio.to_thread(cluster.dead_letters.plan, "billing", "group", 100, {})
    assert (plan.to_send, plan.cannot[:37]) == (0, "The group has no writable retry topic")


async def test_what_was_sent_before_a_refusal_is_not_sent_again(monkeypatch):
    reader, producer = _Reader(["orders"] * 3, {"orders", "%DLQ%billing"}), _Producer(fails_at=2)
    with pytest.raises(ClientError):
        await _resend(monkeypatch, reader, producer)
    assert (len(producer.sent), reader.place) == (2, 2)


@pytest.fixture
def started(monkeypatch):
    """What was put on a queue."""
    found, start = [], job_queue.start

    class Queue:
        name, count = "default", 0

        def create_job(self, function, **options):
            found.append(options["kwargs"])
            raise Problem("limit_reached", "it is only looked at here")

    monkeypatch.setattr(job_queue, "_queues", lambda: [Queue()])
    assert start is job_queue.start
    return found


def test_the_page_shows_the_plan_and_asks_for_the_name(client_of_role, fake_cluster, started):
    client = client_of_role("operator")
    address = "/groups/billing/dead-letters/"
    html = client.get(address).content.decode()
    assert (
        'name="limit" value="27"' in html
        and "<strong>27</strong>" in html
        and "%RETRY%billing" in html
        and "Type <strong>billing</strong> to confirm" in html
        and "orders" in html
    )
    refused = client.post(address, {"to": "topic", "limit": "20", "confirm": "billin"}).content.decode()
    assert (
        "Type billing to confirm." in refused
        and 'value="billin"' in refused
        and "their own topics" in refused
        and started == []
    )
    wrong = client.get(address + "?limit=many&to=topic").content.decode()
    assert 'value="many"' in wrong and "&#x27;many&#x27; is not a number" in wrong
    assert client.post(address, {"limit": "many", "confirm": "billing"}).status_code == 400 and started == []
    client.post(address, {"to": "topic", "limit": "20", "confirm": "billing"})
    assert started == [{"group": "billing", "to": "topic", "limit": 20}]
    outcomes = [audit.read(entry).outcome for entry in LogEntry.objects.order_by("id")]
    assert outcomes == ["confirmation_needed", "limit_reached"]


def test_the_jobs_page_leads_to_the_plan_and_starts_nothing(client_of_role, fake_cluster, started):
    answer = client_of_role("operator").post(
        "/jobs/start", {"kind": "resend_dead_letters", "group": "billing", "to": "topic"}
    )
    assert (answer.status_code, answer["Location"], started) == (
        302,
        "/groups/billing/dead-letters/?to=topic",
        [],
    )


def test_the_job_wants_the_name_by_rest_too(client_of_role, fake_cluster, started):
    client = client_of_role("operator")
    parameters = {"group": "billing", "limit": 5}

    def ask(**more):
        return client.post(
            "/api/v1/jobs",
            {"kind": "resend_dead_letters", "parameters": parameters, **more},
            content_type="application/json",
        )

    for more in ({}, {"confirm": None}, {"confirm": "orders"}):
        assert (ask(**more).status_code, ask(**more).json()["code"]) == (409, "confirmation_needed")
    assert started == []
    missing = client.post(
        "/api/v1/jobs",
        {"kind": "resend_dead_letters", "parameters": {"group": "bill"}, "confirm": "bill"},
        content_type="application/json",
    )
    assert (missing.status_code, missing.json()["code"], started) == (404, "not_found", [])
    assert ask(confirm="billing").json()["code"] == "limit_reached" and started == [
        {"group": "billing", "to": "group", "limit": 5}
    ]
    plan = client.get("/api/v1/groups/billing/dead-letters?most=5").json()
    assert (plan["messages"], plan["left"], plan["sent_before"]) == ("5", "22", "4")


def test_what_is_repeated_is_confirmed_again(fake_cluster, monkeypatch, started):
    caller = Caller("user:somebody", "operator")
    monkeypatch.setattr(job_queue, "_fetch", lambda id: SimpleNamespace(id=id))
    monkeypatch.setattr(
        job_queue,
        "describe",
        lambda job: fake_runs.job_of(
            kind="resend_dead_letters", state="done", parameters={"group": "billing"}
        ),
    )
    with pytest.raises(Problem, match="confirm it by typing billing"):
        job_queue.retry("x", caller)
    assert started == []
