"""The overview's sentence: the whole rule as a table, and each sign measured on a live broker."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace

import pytest
from asgiref.sync import sync_to_async
from django.test import AsyncClient

from broker_store.broker.flow import RECENT_MS, Refusals
from broker_store.broker.history import SAMPLE_MS, History
from broker_store.broker.pauses import Pause
from broker_store.broker.topics import TopicConfig
from broker_store.engine.status.samples import Sample, SampleFiles, maximum_of, position_of
from broker_store.errors import StoreError
from broker_store.facts.marks import Mark
from broker_store.facts.memory import MemoryFacts
from broker_store.rest.new_messages import NewMessage
from broker_store.rest.problems import Problem
from mqadmin.cluster.embedded import condition, signs
from mqadmin.cluster.embedded.condition import Growth, Refusal, Signs, judge
from mqadmin.cluster.embedded.write_routes import Withheld
from mqadmin.facts.children import RunningChildren
from mqadmin.facts.replication import ControllerFacts, MasterFacts, SlaveLeftFacts
from mqadmin.views.overview import page as overview
from mqadmin.web import failures, live
from tests.mqadmin.test_cluster import cluster, process  # noqa: F401  (fixtures)
from tests.support.fake_cluster import FakeCluster

NOW, MINUTE, HOUR = 1_764_000_000_000, 60_000, 3_600_000
QUIET = Signs(NOW, "running", "Serving.", (), {}, (), Refusal(90, False, None), 0, (), 0, "")
FULL = ("disk_full", "the disk is 91 % full")


def held(mebibytes: int) -> MemoryFacts:
    """A process with so much anonymous memory, page tables included, in a control group of 512 MiB."""
    return MemoryFacts(
        at_ms=NOW, rss_bytes=900 << 20, anonymous_bytes=(mebibytes - 10) << 20, file_bytes=400 << 20,
        shared_bytes=0, page_table_bytes=10 << 20, maps=9, max_maps=65_530, descriptors=9, max_descriptors=1_024,
        limit_bytes=512 << 20, limit_source="/sys/fs/cgroup/memory.max", bounds_bytes=0, warning=None, parts=[],
    )  # fmt: skip


# (signs that are not quiet, severity, sentence, [(severity, kind, number, page)])
RULES = [
    ({}, "good", "Everything runs.", []),
    ({"refused": {"WAITED_TOO_LONG": 144}}, "bad", "144 sends were refused in the last 5 minutes, for " "“waited too long”.", [("bad", "refused", 144, "store_write")]),
    ({"refused": {"WAITED_TOO_LONG": 1}}, "bad", "1 send was refused in the last 5 minutes, for “waited " "too long”.", [("bad", "refused", 1, "store_write")]),
    ({"refused": {"disk full": 9, "no room": 2}}, "bad", "11 sends were refused in the last 5 minutes, 9 " "of them for “disk full”.", [("bad", "refused", 11, "store_write")]),
    ({"refused": {"malformed frame": 3}}, "warn", "3 other requests or connections were refused in the " "last 5 minutes, for “malformed frame”.", [("warn", "refused", 3, "store_write")]),
    ({"refused": {"malformed frame": 1, "WAITED_TOO_LONG": 2}}, "bad", "2 sends were refused in the last 5 " "minutes, for “waited too long”. And 1 " "more.", [("bad", "refused", 2, "store_write"), ("warn", "refused", 1, "store_write")]),
    ({"refused": {"topic name": 20}, "refused_sends": {"topic name": 20}}, "warn", "20 sends were refused in the last 5 " "minutes, for “topic name”.", [("warn", "refused", 20, "store_write")]),
    ({"refused": {"topic name": 21, "WAITED_TOO_LONG": 2}, "refused_sends": {"topic name": 20, "WAITED_TOO_LONG": 2}}, "bad", "2 sends were refused in the last 5 " "minutes, for “waited too long”. And 2 " "more.",
     [("bad", "refused", 2, "store_write"), ("warn", "refused", 20, "store_write"), ("warn", "refused", 1, "store_write")]),
    ({"refused": {"store failed": 3, "damaged store": 1}}, "bad", "4 requests failed in the last 5 minutes " "because of a file of the store; the " "broker's log names " "it.", [("bad", "failed", 4, "doctor")]),
    ({"refused": None}, "unknown", "Nothing is known to be wrong, but some things are unknown. The number of refused requests is unknown.", [("unknown", "refused", None, "store_write")]),
    ({"lags": (Growth("slow", 5_000, 1_200, 5 * MINUTE, 1_200),)}, "warn", "The lag of slow grows: 5,000 messages, " "1,200 more than 5 min 0 s ago.", [("warn", "lag", 5_000, "group")]),
    ({"lags": (Growth("beat", 5_000, 99, MINUTE, 99), Growth("nearly", 50_000, 4_999, MINUTE, 50_000), Growth("less", 10, -900, MINUTE, 0))}, "good", "Everything runs. 55,000 messages wait for 2 groups.", []),
    ({"lags": (Growth("dead", 1_000_000, 0, 5 * MINUTE, 0), Growth("less", 99, 0, MINUTE, 0))}, "good", "Everything runs. 1,000,000 messages " "wait for the group dead.", []),
    ({"lags": (Growth("behind", 300_000, 270_000, 5 * MINUTE, 3_000_000, 180_000),)}, "warn", "The lag of behind grows: 300,000 " "messages, 270,000 more than 5 min 0 s " "ago.", [("warn", "lag", 300_000, "group")]),
    ({"lags": (Growth("beat", 300_000, 270_000, 5 * MINUTE, 3_000_000, 29_999),)}, "good", "Everything runs. 300,000 messages wait for the group beat.", []),
    ({"lags": (Growth("repaired", 5_000, 1_200, 5 * MINUTE, 1_200, 0, True),)}, "good", "Everything runs. 5,000 messages wait " "for the group repaired.", []),
    ({"refused": {"MESSAGE_ILLEGAL": 2}, "refused_sends": {"MESSAGE_ILLEGAL": 2}}, "warn", "2 sends were refused in the last 5 " "minutes, for “message too large or " "malformed”.", [("warn", "refused", 2, "store_write")]),
    ({"lags": (Growth("a", 900, 900, MINUTE, 900), Growth("b", 190_000, 2_000, MINUTE, 20_000))}, "warn", "The lag of b grows: 190,000 messages, " "2,000 more than 1 min 0 s ago. And 1 " "more.", [("warn", "lag", 190_000, "group"), ("warn", "lag", 900, "group")]),
    ({"lags": None}, "unknown", "Nothing is known to be wrong, but some things are unknown. It is unknown whether the lag of groups grows.", [("unknown", "lag", None, "groups")]),
    ({"disk": Refusal(90, True, None)}, "bad", "The disk is 90 % full: sends are refused.", [("bad", "disk", 90, "disk")]),
    ({"disk": Refusal(90, False, NOW + HOUR)}, "bad", "In about 1 h 0 min the disk is 90 % full, and sends " "are refused.", [("bad", "disk", HOUR, "disk")]),
    ({"disk": Refusal(90, False, NOW + HOUR + MINUTE)}, "warn", "In about 1 h 1 min the disk is 90 % full, " "and sends are refused.", [("warn", "disk", HOUR + MINUTE, "disk")]),
    ({"disk": Refusal(90, False, NOW + 24 * HOUR + 1)}, "good", "Everything runs.", []),
    ({"disk": None}, "unknown", "Nothing is known to be wrong, but some things are unknown. The forecast of the disk is unknown.", [("unknown", "disk", None, "disk")]),
    ({"memory": held(409)}, "good", "Everything runs.", []),
    ({"memory": held(410)}, "warn", "The broker holds 410 MiB, 80 % of the 512 MiB that it may use (/sys/fs/cgroup/memory.max): beyond that the system ends a process.", [("warn", "memory", 80, "memory")]),
    ({"memory": held(487)}, "bad", "The broker holds 487 MiB, 95 % of the 512 MiB that it may use (/sys/fs/cgroup/memory.max): beyond that the system ends a process.", [("bad", "memory", 95, "memory")]),
    ({"flags": (("damage_found", "a record is damaged."),)}, "bad", "The store reports: a record is damaged.", [("bad", "flag", None, "store")]),
    ({"flags": (("deleted_early", "files go before their time"),)}, "warn", "The store reports: files go before their time.", [("warn", "flag", None, "store")]),
    ({"state": "read_only", "sentence": "Messages can be read, but sends are refused: a sync failed.", "flags": (("sync_failed", "a sync failed"),)}, "bad", "Messages can be read, but sends are refused: a sync failed.", [("bad", "state", None, "store")]),
    ({"state": "read_only", "sentence": "It is a look.", "flags": (("inspect", "a look"),)}, "warn", "It is a look.", [("warn", "state", None, "recovery")]),
    ({"withheld": Withheld("broker-a", 7, 7, "add it")}, "bad", "The name server gives out broker-a " "without write permission: clients cannot " "send; add it.", [("bad", "routes", 7, "topics")]),
    ({"withheld": Withheld("broker-a", 6, 7, "add it")}, "bad", "The name server gives out broker-a " "without write permission for 6 of 7 " "topics: clients cannot " "send; add it.", [("bad", "routes", 6, "topics")]),
    ({"pause": Pause(16.04, NOW)}, "warn", "The broker's event loop was blocked for 16.0 s at 16:00:00 UTC: no " "request was answered.", [("warn", "pause", 16_040, "store_write")]),
    ({"pause": Pause(1.0, NOW)}, "good", "Everything runs.", []),
    ({"failed_jobs": 1}, "warn", "1 job failed in the last 24 h.", [("warn", "jobs", 1, "jobs")]),
    ({"failed_jobs": None}, "unknown", "Nothing is known to be wrong, but some things are unknown. It is unknown whether jobs failed and what the last check of the store found: the queue of jobs does not answer.", [("unknown", "jobs", None, "jobs")]),
    ({"stopped_children": ("Redis", "the worker spark"), "failed_jobs": None}, "warn", "Redis, the worker spark do not run, so " "jobs wait. Messages are not touched by " "that. And 1 more.", [("warn", "children", 2, "jobs"), ("unknown", "jobs", None, "jobs")]),
    ({"findings": None}, "unknown", "Nothing is known to be wrong, but some things are unknown. The result of the last check of the store is unknown.", [("unknown", "damage", None, "doctor")]),
    ({"findings": 1}, "bad", "The last check of the store found 1 place that is damaged.", [("bad", "damage", 1, "doctor")]),
    ({"samples_failed": "no room"}, "warn", "Samples over time are missing, so rates and forecasts are " "out of date: no room.", [("warn", "samples", None, "disk")]),
    (
        {"samples_failed": "x", "findings": 2, "failed_jobs": 3, "lags": (Growth("g", 900, 900, MINUTE, 900),), "refused": {"a": 1, "no room": 1}, "flags": (FULL,), "disk": Refusal(90, True, None)},
        "bad", "The store reports: the disk is 91 % full. And 7 more.",
        [("bad", "flag", None, "store"), ("bad", "refused", 1, "store_write"), ("bad", "disk", 90, "disk"), ("bad", "damage", 2, "doctor"), ("warn", "refused", 1, "store_write"), ("warn", "lag", 900, "group"), ("warn", "jobs", 3, "jobs"), ("warn", "samples", None, "disk")],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "severity", "sentence", "notices"), RULES)
def test_the_rule_gives_each_sign_its_notice_and_the_most_severe_the_sentence(
    changes, severity, sentence, notices
):
    found = judge(replace(QUIET, **changes))
    assert (found.severity, found.sentence) == (severity, sentence)
    assert [(notice.severity, notice.kind, notice.number, notice.page) for notice in found.notices] == notices


REPLICATION = FakeCluster().store.replication()
CONTROLLER = ControllerFacts(
    leader="10.0.0.5:9878",
    error=None,
    broker_id=1,
    master_id=1,
    master_address="10.0.0.1:10911",
    master_epoch=1,
    in_sync=[1],
    set_epoch=1,
    counted=[1],
    epochs=[],
)
MASTER = MasterFacts(
    ha_address="10.0.0.1:10912",
    broker_address="10.0.0.1:10911",
    connected=True,
    stopped=False,
    error=None,
    received_bytes=0,
    end=0,
    behind_bytes=0,
    silent_ms=1,
    tables_at_ms=NOW,
    tables_error=None,
)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({}, None),
        ({"slaves": [], "left": None}, None),
        (
            {
                "slaves": [],
                "left": SlaveLeftFacts(address="10.0.0.2:4", at_ms=NOW, reported=REPLICATION.wrote - 2048),
            },
            "No slave is connected any more: the last one, at 10.0.0.2:4, left at 16:00:00 UTC, and 2.0 KiB of "
            "the log came since.",
        ),
        (
            {"slaves": [replace(REPLICATION.slaves[0], behind_bytes=300 << 20, in_step=False)]},
            "The slave at 10.0.0.2:41022 lacks 300.0 MiB of the log, more than haMaxGapNotInSync.",
        ),
        (
            {
                "slaves": [replace(REPLICATION.slaves[0], behind_bytes=2 << 10, in_step=False)],
                "controller": CONTROLLER,
            },
            "The slave at 10.0.0.2:41022 lacks 2.0 KiB of the log, and is not in the sync state set.",
        ),
        (
            {"slaves": [], "controller": replace(CONTROLLER, error="no leading controller is found.")},
            "The controllers give this broker no role now: no leading controller is found.",
        ),
        ({"slaves": [], "master": MASTER}, None),
        (
            {"slaves": [], "master": replace(MASTER, error="refused.", tables_error="x")},
            "This slave copies nothing: refused.",
        ),
        ({"slaves": [], "master": replace(MASTER, error="differs", stopped=True)}, None),
        (
            {"slaves": [], "master": replace(MASTER, tables_error="no rights")},
            "Topics, groups and offsets of the master are not taken over: no rights.",
        ),
    ],
)
def test_what_is_wrong_between_a_master_and_its_slaves_is_a_warning(changes, sentence):
    found = judge(replace(QUIET, replication=replace(REPLICATION, **changes)))
    if sentence is None:
        assert found.severity == "good"
    else:
        assert (found.severity, found.sentence) == ("warn", sentence)
        assert [(one.kind, one.page) for one in found.notices] == [("replication", "replication")]


@pytest.mark.parametrize("state", ["starting", "recovering", "closed", "failed"])
def test_a_broker_that_does_not_serve_is_judged_by_its_state_alone(state):
    found = condition.judge_state(NOW, state, "It says why.")
    assert (found.severity, found.sentence) == (
        "bad" if state in ("failed", "closed") else "warn",
        "It says why.",
    )


def test_refusals_of_late_are_counted_by_cause_and_forgotten_in_time():
    now = [NOW]
    refusals = Refusals(lambda: now[0])
    refusals.add("no room", 40)
    now[0] += RECENT_MS - 1
    refusals.add("no room", 4)
    refusals.add("malformed frame")
    refusals.add("topic name", 3, is_send=True)
    assert refusals.recent_sends() == {"topic name": 3} and refusals.recent()["topic name"] == 3
    assert refusals.recent() == {"no room": 44, "malformed frame": 1, "topic name": 3}
    now[0] += 1
    assert refusals.recent() == {"no room": 4, "malformed frame": 1, "topic name": 3}
    now[0] -= RECENT_MS  # a clock that was set back takes no refusal for one of the future
    assert refusals.recent() == {}
    assert refusals.counts() == {"no room": 44, "malformed frame": 1, "topic name": 3}


def _sample(at_ms: int, *places: tuple[str, int, int, int]) -> Sample:
    values = {}
    for group, queue_id, at, end in places:
        values |= {position_of(group, "orders", queue_id): at, maximum_of("orders", queue_id): end}
    return Sample(at_ms, SAMPLE_MS, values)


def test_a_lag_that_grows_is_measured_between_samples_of_the_present_and_over_the_same_queues():
    first = _sample(
        NOW - 20_000, ("slow", 0, 10, 100), ("quick", 1, 50, 50), ("CID_RMQ_SYS_TRANS", 0, 0, 100)
    )
    last = _sample(
        NOW,
        ("CID_RMQ_SYS_TRANS", 0, 0, 400),
        ("slow", 0, 20, 400),
        ("quick", 1, 90, 90),
        ("slow", 2, 0, 9_999),
        ("new", 3, 0, 300),
    )
    between = _sample(NOW - 10_000, ("slow", 0, 15, 200), ("new", 3, 0, 50))
    assert signs.lags_of([first, between, last], NOW) == (
        Growth("new", 300, 250, 10_000, 250),
        Growth("quick", 0, 0, 20_000, 40),
        Growth("slow", 10_379, 290, 20_000, 300),
    )
    assert signs.lags_of([last], NOW) is None and signs.lags_of([], NOW) is None


def _lags(*lags: int, came: int = 10_000) -> list[Sample]:
    """Samples of a group whose queue gets `came` messages between two."""
    return [
        _sample(NOW - (len(lags) - 1 - n) * 10_000, ("g", 0, n * came + 50_000 - lag, n * came + 50_000))
        for n, lag in enumerate(lags)
    ]


@pytest.mark.parametrize(
    ("lags", "steadily"),
    [
        ([900 * n for n in range(9)], 5_400),
        ([900 * n + 700 * (n % 2) for n in range(9)], 6_100 - 700),
        ([900 * n for n in range(5)], 0),  # too few samples
        ([0, 3_000] * 4 + [9_000], 0),  # a beat, though the last is the largest
        ([900, 950, 980, 300, 400, 500, 2_000, 2_100, 2_200], 0),  # it caught up in between
        ([5_000] * 9, 0),
    ],
)
def test_a_lag_grows_steadily_when_its_low_points_rise_in_all_thirds(lags, steadily):
    """900 of 10,000 a second are less than a tenth, and "Everything runs." stood over a group that never
    catches up."""
    [found] = signs.lags_of(_lags(*lags), NOW)
    assert (found.lag, found.steadily) == (lags[-1], steadily)


def test_a_queue_that_came_meanwhile_is_no_steady_growth_of_the_others():
    found = _lags(*[100] * 9)
    found[-3:] = [
        _sample(sample.at_ms, ("g", 1, 0, 90_000))._replace(
            values=sample.values | _sample(sample.at_ms, ("g", 1, 0, 90_000)).values
        )
        for sample in found[-3:]
    ]
    [growth] = signs.lags_of(found, NOW)
    assert (growth.lag, growth.steadily, growth.has_stopped) == (90_100, 0, False)


@pytest.mark.parametrize(
    ("lags", "has_stopped"),
    [
        ([0, 100, 200, 300, 400, 500, 600, 700, 800], False),
        ([0, 200, 400, 600, 600, 600, 600, 600, 600], True),  # nothing comes any more
        ([0, 300, 600, 900, 800, 700, 500, 400, 300], True),  # the group reads again
        ([100, 0, 50, 300, 250, 280, 500, 450, 480], False),
        ([0, 900, 0, 900, 0, 950, 0, 980, 990], False),
        ([0, 0, 900, 900, 900], False),  # too few samples
    ],
)
def test_a_lag_that_falls_or_stands_still_after_it_grew_grows_no_more(lags, has_stopped):
    [found] = signs.lags_of(_lags(*lags), NOW)
    assert (found.lag, found.has_stopped) == (lags[-1], has_stopped)


async def test_signs_are_measured_on_a_live_broker(cluster, tmp_path, monkeypatch):  # noqa: F811
    parts = cluster._host.process.parts
    # That of the tests is made by those that ask it
    monkeypatch.setattr(failures, "database_failure", lambda: "")
    cluster.jobs = signs.JobCounts(lambda time_ms: 2, lambda: 0)
    monkeypatch.setattr(
        cluster.store,
        "disk",
        lambda: replace(
            FakeCluster().store.disk(),
            marks=[
                Mark(
                    percent=90,
                    what="refused",
                    is_reached=False,
                    bytes_left=1,
                    at_ms=None,
                    earliest_ms=None,
                    latest_ms=None,
                )
            ],
        ),
    )
    now = [parts.clock()]
    history = History(
        parts.store,
        parts.offsets,
        parts.clients,
        SampleFiles(parts.store.disk, tmp_path / "samples"),
        entries=parts.all_lag_offsets,
        clock=lambda: now[0],
    )
    parts = cluster._host.process.parts = replace(parts, history=history)
    parts.offsets.commit("slow", "orders", 0, 0)
    for ago in (30_000, 20_000, 10_000, 0):
        await cluster.sends.send_batch("orders", [NewMessage(b"x", "", (), {}, 0)] * 60)
        await asyncio.to_thread(parts.history.step, now[0] - ago)
    for _ in range(144):
        parts.statistics.refuse("WAITED_TOO_LONG", value=300, limit=200, who="10.0.0.7:1")
    cluster.children = lambda: RunningChildren(redis="own", workers={"default": True, "spark": False})
    found = await asyncio.to_thread(cluster.condition)
    assert found.severity == "bad" and found.sentence.startswith(
        "144 sends were refused in the last 5 minutes"
    )
    assert [(notice.kind, notice.number) for notice in found.notices] == [
        ("refused", 144),
        ("lag", 240),
        ("children", 1),
        ("jobs", 2),
    ]
    assert "The lag of slow grows: 240 messages, 180 more than 30.0 s ago." in [
        notice.sentence for notice in found.notices
    ]


async def test_what_cannot_be_measured_is_not_known_and_hides_no_other_sign(cluster, monkeypatch):  # noqa: F811
    def fails(*_):
        raise Problem("jobs_unavailable")

    def unread(*_):
        raise StoreError("no")

    cluster.jobs = signs.JobCounts(fails, fails)
    monkeypatch.setattr(cluster.store, "disk", unread)
    cluster._host.process.parts.topics.put(TopicConfig("orders", 1, 1))
    found = await asyncio.to_thread(cluster.condition)
    assert found.severity == "unknown"
    assert {notice.kind for notice in found.notices} == {"disk", "lag", "jobs"}


async def test_a_redis_that_does_not_run_is_not_asked(cluster):  # noqa: F811
    """A halted one takes the request and leaves it without an answer."""
    asked = []
    cluster.jobs = signs.JobCounts(asked.append, lambda: asked.append("findings"))
    cluster.children = lambda: RunningChildren(redis="stopped", workers={"default": True})
    found = await asyncio.to_thread(cluster.condition)
    assert asked == []
    sentences = [notice.sentence for notice in found.notices if notice.kind in ("children", "jobs")]
    assert (
        sentences[0].startswith("Redis does not run, so jobs wait.")
        and "what the last check of the store found: the queue of jobs does not answer" in sentences[1]
    )


def test_children_that_do_not_run_are_named():
    assert signs.stopped(RunningChildren(redis="stopped", workers={"spark": True, "default": False})) == (
        "Redis",
        "the worker default",
    )
    assert signs.stopped(RunningChildren(redis="external", workers={"default": True})) == ()


def test_page_rest_and_command_say_the_same(client_of_role, fake_cluster):
    fake_cluster.signs = {
        "refused": {"WAITED_TOO_LONG": 144},
        "lags": (Growth("billing", 5_000, 1_200, 5 * MINUTE, 1_200),),
    }
    client = client_of_role("viewer")
    html = client.get("/").content.decode()
    assert (
        "Everything runs" not in html
        and "144 sends were refused" in html
        and 'href="/groups/billing/"' in html
        and 'href="/store/write/"' in html
    )
    frame = live.STREAMS["condition"].measure(fake_cluster, "")
    assert frame.html.strip() in html and "The lag of billing grows" in frame.html
    assert f'<span data-path="sentence">{frame.sentence}<' in html
    told = client.get("/api/v1/condition").json()
    assert (told["severity"], [notice["kind"] for notice in told["notices"]]) == (
        "bad",
        ["refused", "lag"],
    ) and told["notices"][0]["number"] == "144"


@pytest.mark.django_db(transaction=True)
async def test_the_page_does_not_wait_for_a_long_look(client_of_role, fake_cluster, monkeypatch):
    """Asked in the test's loop: Django's other client makes a loop for the request, and ends only when each
    thread of that loop has."""
    viewer = AsyncClient()
    viewer.cookies = (await sync_to_async(client_of_role)("viewer")).cookies
    ends = threading.Event()
    monkeypatch.setattr(overview, "CONDITION_SECONDS", 0.01)
    monkeypatch.setattr(fake_cluster, "condition", lambda: ends.wait(30) and {})
    try:
        assert "is being measured" in (await viewer.get("/")).content.decode()
    finally:
        ends.set()
