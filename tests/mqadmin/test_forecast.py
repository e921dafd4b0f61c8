"""The disk's forecast and the offset timelines by the door, REST, pages, streams and commands: live, and on a
crashed Apache store."""

from __future__ import annotations

import asyncio
import io
import json
import re
from dataclasses import replace

import pytest
from django.core.management import CommandError, call_command
from django.test import Client

from broker_store.broker.history import History
from broker_store.config.broker import BrokerSettings
from broker_store.config.store import StoreSettings
from broker_store.engine.disk.disk import Disk
from broker_store.engine.status.samples import SampleFiles
from broker_store.engine.store import MessageStore, wall_clock_ms
from broker_store.errors import NotFoundError
from broker_store.facts.directory import StoreDirectory
from broker_store.facts.disk import DiskForecast
from broker_store.facts.disk_scan import disk_of, timeline_of
from broker_store.server.broker import Broker
from broker_store.server.parts import build_parts
from mqadmin.cluster.embedded.cluster import EmbeddedCluster
from mqadmin.views.store.disk.page import labels_of
from mqadmin.web import live
from tests.mqadmin.test_cluster import _fill, _same_keys, cluster, process  # noqa: F401  (fixtures)
from tests.support import plain_forecast as plain
from tests.support.fake_cluster import FakeCluster, FakeStore
from tests.support.stores import SIZES, unpack


def offline(*arguments) -> str:
    out = io.StringIO()
    call_command(*map(str, arguments), stdout=out, stderr=io.StringIO())
    return out.getvalue()


@pytest.fixture
def crashed(tmp_path):
    """A store that Apache's broker left when it was killed, with a group that had read some of a queue."""
    root = unpack("crash", tmp_path)
    topic, queue_id = max(
        (
            (topic.name, int(queue.name))
            for topic in (root / "consumequeue").iterdir()
            for queue in topic.iterdir()
        ),
        key=lambda queue: len(plain.units(root, *queue)),
    )
    (root / "config").mkdir(exist_ok=True)
    (root / "config" / "consumerOffset.json").write_text(
        json.dumps({"offsetTable": {f"{topic}@slow": {str(queue_id): 7}}})
    )
    return root, topic, queue_id


async def test_its_shapes_are_those_the_pages_are_tested_with(cluster, tmp_path):  # noqa: F811
    await _fill(cluster, 40)
    parts = cluster._host.process.parts
    history = History(
        parts.store,
        parts.offsets,
        parts.clients,
        SampleFiles(Disk(), tmp_path / "samples"),
        entries=parts.all_lag_offsets,
        clock=parts.clock,
    )
    parts = cluster._host.process.parts = replace(parts, history=history)
    parts.offsets.commit("billing", "orders", 0, 5)
    now_ms = parts.clock()
    for ago in (40_000, 20_000, 0):
        parts.history.step(now_ms - ago)
    parts.offsets.reset("billing", "orders", 1, 2)
    await asyncio.to_thread(parts.store.cleaning.delete_expired)
    fake = FakeCluster()
    disk, forecast, timeline = await asyncio.gather(
        *(
            asyncio.to_thread(look)
            for look in (
                cluster.store.disk,
                cluster.store.disk_forecast,
                lambda: cluster.store.timeline("billing"),
            )
        )
    )
    for mine, theirs in (
        (disk, fake.store.disk()),
        (forecast, fake.store.disk_forecast()),
        (timeline, fake.store.timeline("billing")),
    ):
        _same_keys(mine, theirs)
    for mine, theirs in (
        (disk.marks[0], fake.store.disk().marks[0]),
        (timeline.queues[0], fake.store.timeline("billing").queues[0]),
    ):
        _same_keys(mine, theirs)
    (queue, other) = timeline.queues
    assert (queue.consumer_offset, queue.max_offset, queue.lag, queue.read_per_s) == (
        5,
        20,
        15,
        0.0,
    )
    assert other.consumer_offset == 2 and [event.kind for event in timeline.events] == ["reset"]
    assert [point.lag for point in timeline.history.points] == [
        15,
        15,
        15,
    ] and timeline.queues_not_sampled == 0
    assert await asyncio.to_thread(cluster.store.disk) is disk, "what was looked at just now serves everybody"
    with pytest.raises(NotFoundError):
        await asyncio.to_thread(cluster.store.timeline, "nobody")


async def test_a_crashed_store_that_is_only_looked_at_is_forecast_as_a_start_would_find_it(crashed):
    root, topic, queue_id = crashed
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    sizes = SIZES["crash"]
    settings = StoreSettings(
        store_path_root_dir=root,
        mapped_file_size_commit_log=sizes.mapped_file_size_commit_log,
        mapped_file_size_consume_queue=sizes.mapped_file_size_consume_queue,
        max_hash_slot_num=sizes.max_hash_slot_num,
        max_index_num=sizes.max_index_num,
        inspect=True,
    )
    store = MessageStore(settings)
    store.open()
    parts = build_parts(BrokerSettings(), settings, store, wall_clock_ms)
    Broker(parts).load()
    store.start()
    looked = EmbeddedCluster(type("Process", (), {"store": store, "parts": parts}))
    forecast, timeline = looked.store.disk_forecast(1), looked.store.timeline("slow")
    assert forecast.is_running is False and forecast.log.end == store.log.wrote
    lost = {
        file.name: sum(loss.messages for loss in file.losses if loss.group == "slow")
        for file in forecast.files
    }
    assert lost == {
        file.name: plain.unread(root, topic, queue_id, 7, file.base, file.base + file.size)[0]
        for file in forecast.files
    } and any(lost.values())
    (queue,) = timeline.queues
    assert (queue.consumer_offset, queue.max_offset) == (
        7,
        store.reads.max_offset(topic, queue_id),
    ) and queue.cliff.verdict in ("unknown", "lost")
    assert timeline.queues_not_sampled is None and timeline.is_running is False
    store.close()
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before


def test_the_commands_read_a_crashed_store_without_a_broker(crashed):
    root, topic, queue_id = crashed
    disk = json.loads(offline("store", "disk", "--store", root, "--json"))
    assert disk["log"]["end"] == plain.log_end(root) == disk_of(StoreDirectory(root)).log.end
    shown = offline("store", "disk", "--store", root)
    assert "ABOVE %" in shown and re.search(r"commitlog +[\d,]+", shown)
    forecast = json.loads(offline("store", "forecast", "--store", root, "--retention-hours", 5, "--json"))
    assert forecast["is_what_if"] and forecast["settings"]["retention_hours"] == 5
    assert "slow" in offline("store", "forecast", "--store", root) and forecast["files"]
    timeline = json.loads(offline("group", "timeline", "slow", "--store", root, "--json"))
    (queue,) = timeline["queues"]
    known = plain.units(root, topic, queue_id)
    assert (queue["topic"], queue["max_offset"], queue["lag"]) == (
        topic,
        known[-1][0] + 1,
        known[-1][0] + 1 - 7,
    )
    shown = offline("group", "timeline", "slow", "--store", root)
    assert topic in shown and "queues not sampled: –" in shown and timeline["queues_not_sampled"] is None
    with pytest.raises(CommandError, match="nobody has no positions"):
        offline("group", "timeline", "nobody", "--store", root)
    with pytest.raises(CommandError, match="1 to 8760"):
        offline("store", "forecast", "--store", root, "--retention-hours", 0)
    assert timeline_of(StoreDirectory(root), "slow", 6).queues[0].lag == queue["lag"]


def test_who_would_lose_messages_is_unknown_without_the_positions_of_groups(crashed):
    root, *_ = crashed
    (root / "config" / "consumerOffset.json").unlink()
    shown = offline("store", "forecast", "--store", root)
    assert (
        re.search(r"^0{20} .* unknown$", shown, re.MULTILINE)
        and "their readers are unknown: there is no readable config/consumerOffset.json" in shown
    )
    assert "no group" not in shown
    (root / "config" / "consumerOffset.json").write_text('{"offsetTable": {}}')
    shown = offline("store", "forecast", "--store", root)
    assert (
        re.search(r"^0{20} .* no group$", shown, re.MULTILINE)
        and "read by all groups" in shown
        and "unknown" not in shown
    )


@pytest.mark.parametrize("knows", [True, False])
def test_the_page_tells_unknown_readers_from_none(knows, fake_cluster, client_of_role, monkeypatch):
    forecast = FakeStore.disk_forecast

    def of_no_group(self, *arguments) -> DiskForecast:
        facts = forecast(self, *arguments)
        return replace(
            facts,
            knows_groups=knows,
            files=[replace(file, losses=[], losses_left_out=0) for file in facts.files],
            forced=replace(facts.forced, losses=[]),
        )

    monkeypatch.setattr(FakeStore, "disk_forecast", of_no_group)
    text = client_of_role("viewer").get("/store/disk/").content.decode()
    assert (
        "no group</span>" in text,
        "No group would lose" in text,
        "would lose unread messages is unknown" in text,
    ) == (knows, knows, not knows)


def test_rest_gives_the_same_and_refuses_what_no_retention_can_be(fake_cluster, client_of_role):
    client: Client = client_of_role("viewer")
    disk = client.get("/api/v1/store/disk").json()
    assert (
        disk["file_system"]["total_bytes"] == str(250 << 30)
        and disk["marks"][0]["percent"] == 75
        and "files" not in disk
    )
    forecast = client.get("/api/v1/store/disk/forecast?retention_hours=12").json()
    assert (
        forecast["is_what_if"]
        and forecast["settings"]["retention_hours"] == 12
        and forecast["files"][3]["goes_ms"] is None
    )
    assert client.get("/api/v1/store/disk/forecast?retention_hours=0").status_code == 422
    timeline = client.get("/api/v1/groups/billing/timeline?hours=2").json()
    assert (
        timeline["queues"][0]["cliff"]["verdict"] == "falls"
        and timeline["history"]["points"][0]["lag"] == "1400"
    )
    assert client.get("/api/v1/groups/nobody/timeline").status_code == 404


def test_the_page_names_who_loses_and_says_unknown_for_what_is_not_known(fake_cluster, client_of_role):
    client = client_of_role("viewer")
    text = client.get("/store/disk/").content.decode()
    assert "nightly-report" in text and "not in time" in text and text.count('class="unknown"') >= 2
    assert "would lose 41,204 unread messages" in text and "What if: files" not in text
    assert (
        "What if: files are kept for <strong>12 hours"
        in client.get("/store/disk/?retention_hours=12").content.decode()
    )
    assert "is not a number" in client.get("/store/disk/?retention_hours=x").content.decode()
    assert "is not a number from 1 to" in client.get("/store/disk/?retention_hours=0").content.decode()
    part = client.get("/store/disk/", HTTP_HX_REQUEST="true").content.decode()
    assert "<html" not in part and "nightly-report" in part


def test_a_groups_page_has_its_timeline_with_breaks_and_events(fake_cluster, client_of_role):
    client = client_of_role("viewer")
    text = client.get("/groups/billing/").content.decode()
    assert (
        "falls off" in text
        and "12 deleted unread" in text
        and "set from no offset to 40" in text
        and "10.0.3.14@7100 came" in text
    )
    assert text.count('<polyline class="line"') == 2, "the line breaks where nothing was sampled"
    assert (
        "This group has not read from any queue"
        in client.get("/groups/nightly-report/timeline").content.decode()
    )
    assert client.get("/groups/nobody/timeline").status_code == 404


def test_a_groups_page_says_how_many_of_its_queues_have_no_samples(fake_cluster, client_of_role, monkeypatch):
    timeline = FakeStore.timeline
    client = client_of_role("viewer")
    assert "not sampled" not in client.get("/groups/billing/").content.decode()
    for changes, said in (
        (
            {"queues_not_sampled": 3},
            ["3 of this group's queues are not sampled", "A sample holds 5,000 numbers"],
        ),
        (
            {"queues_not_sampled": None},
            [
                'queues that are not sampled is <span class="unknown">unknown</span>: no sample was taken '
                "in the last minutes"
            ],
        ),
        ({"queues_not_sampled": None, "is_running": False}, ["unknown</span>: no broker runs on this store"]),
    ):
        monkeypatch.setattr(
            FakeStore,
            "timeline",
            lambda self, group, hours=6, changes=changes: replace(timeline(self, group, hours), **changes),
        )
        page = client.get("/groups/billing/").content.decode()
        assert all(part in page for part in said)
        told = client.get("/api/v1/groups/billing/timeline").json()
        assert told["queues_not_sampled"] == changes["queues_not_sampled"]


async def test_both_are_streams_looked_at_in_a_thread(fake_cluster):
    for key in (("store.disk", ""), ("group.timeline", "billing")):
        assert live.STREAMS[key[0]].in_thread
        kind, body = live.Sampler()._outcome(key)
        assert kind == "snapshot" and json.loads(body)["at_ms"]
    assert live.STREAMS["store.disk"].ticks * live.TICK_SECONDS == 10.0


@pytest.mark.parametrize(
    ("percents", "lines"), [([75, 85, 90], [1, 2, 1]), ([84, 85, 86], [1, 2, 3]), ([60, 75, 90], [1, 1, 1])]
)
def test_labels_of_marks_do_not_touch(percents, lines):
    labels = labels_of(percents)
    assert [label.percent for label in labels.texts] == percents
    heights = sorted({label.y for label in labels.texts})
    assert [heights.index(label.y) + 1 for label in labels.texts] == lines
    assert labels.height > heights[-1]
