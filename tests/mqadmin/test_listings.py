"""Orders and pieces of very many topics and groups: what they hold, and that no turn of the loop goes over a
whole table."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace

import pytest

from mqadmin.cluster.embedded.cluster import EmbeddedCluster
from mqadmin.cluster.embedded.listings import Listings
from mqadmin.facts.overview import WorstLag
from tests.support.broker_harness import Harness
from tests.support.hand_store import message, opened
from tests.support.loop_turns import Longest, in_short_turns

TOPICS, GROUPS, QUEUES = 20_000, 4_000, 6_000
MAX_TURN_MS = 10.0  # of processor time; the longest of these walks takes 29 ms in one turn


def is_short(longest: Longest) -> bool:
    """Whether work was cut into turns: on a busy machine a turn takes longer, and so does the whole."""
    return longest.ms < max(MAX_TURN_MS, longest.all_ms / 3)


@pytest.fixture
async def harness():
    """A broker with very many topics, groups and offsets, of which three topics hold messages and one group
    lags."""
    harness = Harness(max_topics=2 * TOPICS)
    version = {"counter": 1, "stateVersion": 0, "timestamp": 1}
    topics = {
        f"t{number:05d}": {"topicName": f"t{number:05d}", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
        for number in range(TOPICS)
    }
    groups = {f"g{number:05d}": {"groupName": f"g{number:05d}"} for number in range(GROUPS)}
    offsets = {f"t{number:05d}@g{number % GROUPS:05d}": {"0": 0} for number in range(TOPICS)}
    parts = harness.parts
    for table, name, entries in (
        (parts.topics, "topicConfigTable", topics),
        (parts.groups, "subscriptionGroupTable", groups),
        (parts.offsets, "offsetTable", offsets),
    ):
        table.load(json.dumps({"dataVersion": version, name: entries}))
    for number, count in ((7, 3), (9, 2), (11, 1)):
        for _ in range(count):
            assert (await harness.send(topic=f"t{number:05d}")).code == 0
    parts.statistics.tick(parts.clock() + 1_000)
    return harness


async def test_orders_and_pieces_are_whole_and_no_turn_is_long(harness, monkeypatch):
    listings = Listings(harness.parts)
    found = {}

    async def list_all(_number: int) -> None:
        for name, wanted in {
            "by name": lambda: listings.topic_names("normal", "", "name", 10, 2), "searched": lambda: listings.topic_names("all", "t0999", "name", 0, 3),
            "by messages": lambda: listings.topic_names("normal", "", "messages", 0, 3), "by in": lambda: listings.topic_names("normal", "", "in", 0, 3),
            "busiest": lambda: listings.busiest_topics(3), "by lag": lambda: listings.group_names("normal", "", "lag", 0, 3), "most behind": lambda: listings.most_behind(3),
        }.items():  # fmt: skip
            found[name] = await asyncio.ensure_future(wanted())

    await in_short_turns(monkeypatch, list_all, is_short)
    names, count = found["by name"]
    assert names == ["t00010", "t00011"] and count == TOPICS == listings.topic_counts()["normal"]
    assert found["searched"] == (["t09990", "t09991", "t09992"], 10)
    assert found["by messages"] == found["by in"] == (["t00007", "t00009", "t00011"], TOPICS)
    assert found["busiest"] == ["t00007", "t00009", "t00011"]
    assert found["by lag"] == (["g00007", "g00009", "g00011"], GROUPS) and found["most behind"] == [
        "g00007",
        "g00009",
        "g00011",
    ]


async def test_the_overview_measures_some_groups_at_a_time_and_finds_the_worst(harness, monkeypatch):

    async def measure_all(_number: int) -> None:
        listings = Listings(harness.parts)
        for _ in range(GROUPS):
            await asyncio.sleep(0)
            worst, top = listings.worst_lag(), listings.top_topics()
            if worst == WorstLag(group="g00007", lag=3):
                break
        assert worst == WorstLag(group="g00007", lag=3) and [row.name for row in top] == [
            "t00007",
            "t00009",
            "t00011",
        ]

    await in_short_turns(monkeypatch, measure_all, is_short)


@pytest.mark.slow
async def test_files_of_very_many_queues_are_told_in_turns(tmp_path, monkeypatch):
    queues = [(f"t{number:05d}", queue_id) for number in range(QUEUES // 2) for queue_id in (0, 3)]
    with opened(tmp_path / "store") as store:
        for queue in queues:
            assert store.appender.put(message(*queue)).ok
        cluster = EmbeddedCluster(SimpleNamespace(store=store, parts=SimpleNamespace(store=store)))
        found = {}

        async def list_all(_number: int) -> None:
            for name, wanted in {
                "map": lambda: cluster.files.all("index", "consumequeue"), "of a topic": lambda: cluster.files.all(topic="t00007"),
                "a page": lambda: cluster.files.of_queues("", 10, 4), "searched": lambda: cluster.files.of_queues("t0199", 2, 50),
            }.items():  # fmt: skip
                found[name] = await asyncio.ensure_future(wanted())

        await in_short_turns(monkeypatch, list_all, is_short)

        def of(files: list) -> list[tuple[str, int]]:
            return [(file.topic, file.queue_id) for file in files]

        assert of(found["map"]) == [(None, None), *queues] and of(found["of a topic"]) == [
            ("t00007", 0),
            ("t00007", 3),
        ]
        assert (of(found["a page"][0]), found["a page"][1]) == (queues[10:14], QUEUES)
        assert (of(found["searched"][0]), found["searched"][1]) == (
            [queue for queue in queues if "t0199" in queue[0]][2:],
            20,
        )
        assert {file.max_offset - file.min_offset for file in found["a page"][0]} == {1}
