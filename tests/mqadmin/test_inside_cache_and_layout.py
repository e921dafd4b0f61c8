"""Cache and layout of the store: the page, REST, the stream and the command show what the plain reader finds
in the files."""

from __future__ import annotations

import asyncio
import io
import json
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
from django.core.management import CommandError, call_command
from django.test import AsyncClient

from broker_store.config.broker import BrokerSettings
from broker_store.config.load import load_settings
from broker_store.engine.store import MessageStore, wall_clock_ms
from broker_store.errors import NameError_
from broker_store.facts.layout import LogSpan
from broker_store.server.parts import build_parts
from broker_store.units import document_of
from mqadmin.cluster.current import current_cluster, install_cluster
from mqadmin.cluster.embedded import cache_scans, cached_scans, layout_scans
from mqadmin.cluster.embedded import index as embedded
from mqadmin.cluster.embedded.cluster import EmbeddedCluster
from mqadmin.templatetags.strips import strip
from mqadmin.views.store.cache import facts as views
from mqadmin.views.store.layout.page import shades_of
from mqadmin.web import live
from mqadmin.web.parts import check_address
from tests.support import plain_layout, stores
from tests.support.fake_cluster import FakeCluster

TOPIC = "FixA"


@pytest.fixture
def root(tmp_path):
    return stores.unpack("crash", tmp_path)


@pytest.fixture
async def inspected(root):
    """A crashed store of Apache's, opened to be inspected."""
    loop = asyncio.get_running_loop()
    overrides = stores.SIZES["crash"].overrides() | {"inspect": "true"}
    settings = load_settings(overrides=overrides, store_root=root).store
    store = MessageStore(settings, wake=loop.call_soon_threadsafe)
    await asyncio.to_thread(store.open)
    parts = build_parts(BrokerSettings(listen_port=0, broker_ip1="127.0.0.1"), settings, store, wall_clock_ms)
    store.start()
    cluster = EmbeddedCluster(SimpleNamespace(store=store, parts=parts), loop)
    parts.offsets.commit("readers", TOPIC, 1, 40)
    install_cluster(cluster)
    yield cluster
    install_cluster(None)
    await asyncio.to_thread(store.close)


@pytest.fixture
def fake():
    install_cluster(FakeCluster())
    yield current_cluster()
    install_cluster(None)


class LocalClient(AsyncClient):
    def _base_scope(self, **request):
        return super()._base_scope(**request) | {"server": ("/data/run/web.sock", None)}


async def rest(path: str, **query):
    answer = await LocalClient(headers={"Host": "localhost"}).get(f"/api/v1/store/{path}", query)
    return answer.status_code, answer.json()


def offline(*arguments) -> str:
    output = io.StringIO()
    call_command("store", *map(str, arguments), stdout=output, stderr=io.StringIO())
    return output.getvalue()


async def test_the_shapes_are_those_the_pages_are_tested_with(inspected):
    fake = FakeCluster()
    mine, theirs = await asyncio.to_thread(inspected.store.cache), fake.store.cache()
    assert type(mine) is type(theirs) and mine.totals.keys() == theirs.totals.keys()
    one, their_one = await inspected.store.layout(TOPIC, None), await fake.store.layout("orders", None)
    each, their_each = await inspected.store.layout(None, None), await fake.store.layout(None, None)
    assert (type(one), type(each)) == (type(their_one), type(their_each))


@pytest.mark.django_db(transaction=True)
async def test_a_crashed_store_that_is_looked_at_is_told_as_the_plain_reader_tells_it(inspected, root):
    plain = plain_layout.laid(root, [(TOPIC, queue_id) for queue_id in range(4)], 240)
    status, found = await rest("layout", topic=TOPIC)
    assert status == 200 and (found["topics"], found["queues"], found["complete"]) == ([TOPIC], 4, True)
    assert [found[name] for name in ("messages", "bytes", "gone")] == [
        str(plain[name]) for name in ("messages", "bytes", "gone")
    ]
    assert [int(cell) for cell in found["cell_bytes"]] == plain["cell_bytes"]
    assert {name: int(found["jumps"][name]) for name in ("p50", "p99", "max")} == {
        name: plain["jumps"][name] for name in ("p50", "p99", "max")
    }
    assert found["pages"]["per_byte"] == pytest.approx(plain["pages"]["per_byte"])
    _, group = await rest("layout", group="readers")
    assert (
        int(group["messages"])
        == sum(len(plain_layout.units_of(root, TOPIC, queue_id)) for queue_id in range(4)) - 40
    )
    status, picture = await rest("cache", topic=TOPIC, queue_files=1)
    assert status == 200 and sum(file["kind"] == "consumequeue" for file in picture["files"]) == 1
    (reader,) = picture["groups"]
    place = plain_layout.units_of(root, TOPIC, 1)[40][1]
    assert (reader["group"], reader["log_offset"]) == ("readers", str(place))
    assert reader["lag_bytes"] == str(plain_layout.log_of(root)[2] - place)


@pytest.mark.django_db
async def test_the_pages_of_a_crashed_store_show_what_the_plain_reader_finds(
    inspected, root, django_user_model
):
    client = AsyncClient(headers={"Host": "localhost"})
    await client.aforce_login(await django_user_model.objects.acreate_user("someone"))
    plain = plain_layout.laid(root, [(TOPIC, queue_id) for queue_id in range(4)], 240)
    text = (await client.get("/store/layout/", {"topic": TOPIC})).content.decode()
    assert (
        f"{plain['messages']:,} messages of 4 queues" in text
        and f"{plain['pages']['per_byte']:.2f} bytes for each delivered" in text
    )
    assert f"{plain['share'] * 100:.1f} % of the log" in text and "GET /api/v1/store/layout" in text
    text = (await client.get("/store/cache/")).content.decode()
    files = sorted(path.name for path in (root / "commitlog").iterdir())
    assert re.findall(r'log-file">(\d{20})<', text) == files
    assert (
        '<a href="/groups/readers/">readers</a>' in text
        and "readers reads here" in text
        and "the log ends here" in text
    )
    for query, address in (
        ({"topic": TOPIC, "group": "", "from": " "}, f"/store/layout/?topic={TOPIC}"),
        ({"group": "readers"}, "/store/layout/?group=readers"),
        ({}, "/store/layout/"),
    ):
        told = re.findall(
            r'data-stream="part" data-name="([^"]*)"',
            (await client.get("/store/layout/", query)).content.decode(),
        )
        assert told == [address] and check_address(address)
    text = (await client.get("/store/layout/", {"topic": "%RETRY%FixGroup"})).content.decode()
    assert 'data-name="/store/layout/?topic=%25RETRY%25FixGroup"' in text
    text = (await client.get("/store/layout/", {"topic": "Nowhere"})).content.decode()
    assert "There is no queue of Nowhere in the store." in text
    text = (await client.get("/store/layout/", {"topic": TOPIC, "group": "readers"})).content.decode()
    assert "Choose a topic or a group" in text


@pytest.mark.django_db(transaction=True)
async def test_a_question_that_contradicts_itself_is_refused(fake):
    for query in ({"topic": "orders", "group": "billing"}, {"from_ms": 1, "from_offset": 1}):
        assert (await rest("layout", **query))[0] == 400
    assert (await rest("layout", topic="nowhere"))[0] == 404
    assert (await rest("layout", from_ms=-1))[0] == 422
    assert (await rest("cache", queue_files=-1))[0] == 422


def test_the_commands_read_a_store_without_its_broker(root):
    found = json.loads(offline("layout", TOPIC, "--store", root, "--json"))
    plain = plain_layout.laid(root, [(TOPIC, queue_id) for queue_id in range(4)], 240)
    assert (found["messages"], found["bytes"], found["cell_bytes"]) == (
        plain["messages"],
        plain["bytes"],
        plain["cell_bytes"],
    )
    assert found["estimate_ms"] in (0, None), "nobody measured cold reads"
    table = offline("layout", "--store", root).splitlines()
    assert table[0].split()[:3] == ["TOPIC", "MESSAGES", "BYTES"] and any(
        line.split()[:2] == [TOPIC, f"{plain['messages']:,}"] for line in table
    )
    assert "of each queue" not in offline("layout", TOPIC, "--store", root)
    for wrong in ((TOPIC, "--group", "g"), ("--from-ms", "1", "--from-offset", "1")):
        with pytest.raises(CommandError, match="Choose a t"):
            offline("layout", *wrong, "--store", root)
    with pytest.raises(CommandError, match="committed no offset"):
        offline("layout", "--group", "nobody", "--store", root)
    (root / "config").mkdir(exist_ok=True)
    (root / "config" / "consumerOffset.json").write_text('{"offsetTable":{"FixA@readers":{0:7}}}')
    cached = json.loads(offline("cache", "--store", root, "--json", "--queue-files", "3"))
    assert [file["kind"] for file in cached["files"]].count("consumequeue") == 3
    assert cached["groups"][0]["log_offset"] == plain_layout.units_of(root, TOPIC, 0)[7][1]
    text = offline("cache", "--store", root)
    assert "memory.available_bytes" in text and "readers" in text


async def test_one_look_serves_all_who_ask_within_some_seconds(inspected):
    first = await asyncio.to_thread(inspected.store.cache)
    assert await asyncio.to_thread(inspected.store.cache) is first
    inspected._host.parts.statistics.delivered("cold ones", TOPIC, 3, 300, cold=True)
    inspected.store._cache_scans = cache_scans.CacheScans(inspected._host)
    again = await asyncio.to_thread(inspected.store.cache)
    assert again.groups[0].group == "cold ones" and again.groups[0].cold_messages == 3
    assert again.groups[0].lag_bytes is None, "it committed no offset: its position is unknown"
    frame = live.STREAMS["store.cache"].measure(inspected, "")
    assert live.STREAMS["store.cache"].ticks * live.TICK_SECONDS == 10 and frame.older == 0


async def test_a_choice_and_every_topic_are_one_look_that_serves_all_who_watch(inspected, monkeypatch):
    asked, plain = [], plain_layout.laid
    monkeypatch.setattr(
        layout_scans,
        "reading_facts",
        lambda host, ask=layout_scans.reading_facts: asked.append(1) or ask(host),
    )
    both = await asyncio.to_thread(inspected.store.watched_layout, TOPIC, None)
    assert (both.one.topics, len(asked)) == ([TOPIC], 1)
    stream = live.STREAMS["store.layout"]
    assert stream.in_thread and stream.ticks * live.TICK_SECONDS == 10
    frame = await asyncio.to_thread(stream.measure, inspected, stream.check(f"topic/{TOPIC}"))
    assert frame.one is both.one and await inspected.store.layout(None, None) is both.each and len(asked) == 1
    assert (
        frame.one.cell_bytes
        == plain(inspected._host.directory().root, [(TOPIC, queue_id) for queue_id in range(4)], 240)[
            "cell_bytes"
        ]
    )
    frame = await asyncio.to_thread(stream.measure, inspected, stream.check("group/readers"))
    assert frame.one.start.group == "readers" and frame.each.items == both.each.items and len(asked) == 2
    from_there = await inspected.store.layout_of_both(TOPIC, None, None, both.one.log.end)
    assert from_there.one.messages == 0 and len(asked) == 3, "a start of one's own is a look of one's own"
    for name in (TOPIC, "queue/x", "topic/a b", "group/"):
        with pytest.raises(NameError_):
            stream.check(name)


async def test_chains_are_counted_again_when_something_was_added_and_once_for_all(inspected, monkeypatch):
    counted, now, count, header_of = [], [1000.0], embedded.chains, embedded.header_of
    monkeypatch.setattr(embedded, "chains", lambda *asked: counted.append(asked) or count(*asked))
    # A count takes a second
    monkeypatch.setattr(
        cached_scans, "time", SimpleNamespace(monotonic=lambda: now[0], thread_time=iter(range(100)).__next__)
    )
    name, stream = inspected.index.facts()[0].name, live.STREAMS["store.chains"]
    assert stream.in_thread and stream.ticks * live.TICK_SECONDS == 10

    async def counts(seconds: float, added: int) -> int:
        now[0] += seconds
        monkeypatch.setattr(
            embedded, "header_of", lambda *of: (header := header_of(*of))._replace(count=header.count + added)
        )
        watched, shown = await asyncio.gather(
            asyncio.to_thread(stream.measure, inspected, stream.check(name)), inspected.index.chains(name)
        )
        assert watched == document_of(shown), "the same count"
        return len(counted)

    assert [
        await counts(*call)
        for call in ((0, 0), (1e6, 0), (0, 1), (embedded.CACHED_S_PER_CPU_S - 1, 2), (2, 2), (1e6, 2))
    ] == [1, 1, 2, 2, 3, 3]
    with pytest.raises(NameError_):
        stream.check("")


def test_a_long_log_is_shown_by_its_newest_files_and_those_in_which_a_group_stands():
    picture = FakeCluster().store.cache()
    log = [replace(picture.files[0], name=str(number), base=number * 100, size=100) for number in range(100)]
    groups = [replace(picture.groups[0], log_offset=place) for place in (1_250, None)]
    shown = views.for_page(replace(picture, files=log, groups=groups))
    assert [file.name for file in shown.files] == [
        "12",
        *map(str, range(100 - views.PAGE_LOG_FILES, 100)),
    ]
    assert shown.older == 100 - views.PAGE_LOG_FILES - 1


def test_neighbours_of_one_tone_are_one_rectangle_and_a_trace_is_still_seen():
    drawn = strip([1, 1, 0, 0.001, 0.5, 1, 1, 1], 1.0)["runs"]
    assert [(run["x"], run["width"], run["level"]) for run in drawn] == [
        ("0.000", "25.000", 5),
        ("37.500", "12.500", 1),
        ("50.000", "12.500", 3),
        ("62.500", "37.500", 5),
    ]
    assert strip(None)["unknown"] and not strip([])["unknown"]
    topic = replace(FakeCluster().store.watched_layout(None, None).each.items[0], cell_bytes=[0, 25, 100])
    strip_of_topic = shades_of(topic, LogSpan(begin=0, end=300, file_bytes=300, cut=False))
    assert (strip_of_topic.shades, strip_of_topic.fullest) == ([0.0, 0.5, 1.0], 1.0)
