"""The page of memory, its REST resource and its verb, of a process with known measurements."""

from __future__ import annotations

import json

import pytest

from broker_store.facts import memory
from broker_store.facts.memory import COUNTED, Growing, MemoryWatch
from mqadmin.metrics.measured import measure
from mqadmin.metrics.ours import metrics_of
from mqadmin.views.store.memory import verb

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def measured(tmp_path):
    part = Growing("maps of files", lambda: 4096, COUNTED, 1 << 50, "maxMappedFiles", "files are unmapped")
    watch = MemoryWatch(tmp_path, [part])
    watch.start()
    yield watch
    watch.stop()


def test_the_page_has_each_part_its_bound_and_the_warning(fake_cluster, client_of_role, measured):
    text = client_of_role("viewer").get("/store/memory/").content.decode()
    assert "maps of files" in text and "4.0 KiB" in text and "1,024 TiB" in text
    assert "maxMappedFiles" in text and "files are unmapped" in text and "not assigned" in text
    assert "the bounds allow" in text


def test_rest_gives_the_facts_that_add_up(fake_cluster, client_of_role, measured):
    facts = client_of_role("viewer").get("/api/v1/store/memory").json()
    assert sum(int(part["bytes"]) for part in facts["parts"]) == int(facts["rss_bytes"])
    assert facts["parts"][-1]["how"] == "the rest" and facts["maps"] > 0


async def test_a_scrape_has_each_part_and_its_bound(fake_cluster, measured):
    measured.facts()
    found = {
        sample.labels["part"]: sample.value
        for family in metrics_of(await measure(fake_cluster))
        for sample in family.samples
        if sample.name == "broker_memory_bytes"
    }
    bounds = [
        sample.value
        for family in metrics_of(await measure(fake_cluster))
        for sample in family.samples
        if sample.name == "broker_memory_bound_bytes"
    ]
    assert found["maps of files"] == 4096 and bounds == [1 << 50]
    assert sum(found.values()) == measured.facts().rss_bytes


def test_parts_beside_the_broker_count_until_they_end(measured):
    part = Growing("answers that are not sent, dashboard", lambda: 77, COUNTED, 1_000, "MAX", "it ends")
    before = measured.bounds_bytes
    end = memory.count_beside([part])
    assert {one.name: one.bytes for one in measured.facts().parts}[part.name] == 77
    assert measured.bounds_bytes == before + 1_000
    end()
    end()
    assert measured.bounds_bytes == before


def test_a_process_that_measures_nothing_says_so(fake_cluster, client_of_role):
    viewer = client_of_role("viewer")
    assert "nothing is measured" in viewer.get("/store/memory/").content.decode()
    answer = viewer.get("/api/v1/store/memory")
    assert (answer.status_code, answer.json()["code"]) == (503, "starting")


class _Command:
    """What a verb writes."""

    def __init__(self, found, as_json):
        self.found, self.as_json, self.rows, self.shown, self.lines = found, as_json, [], None, []
        self.stdout = self

    def ask(self, options, question):
        return self.found

    def show(self, found):
        self.shown = found

    def show_table(self, rows, columns, empty):
        self.rows += rows

    def write(self, line):
        self.lines.append(line)


def test_the_verb_shows_the_parts_or_the_json(fake_cluster, client_of_role, measured):
    found = json.loads(client_of_role("viewer").get("/api/v1/store/memory").content)
    command = _Command(found, as_json=False)
    verb.memory(command, None)
    assert "maps of files" in [row["name"] for row in command.rows]
    assert "bytes resident" in command.lines[0] and "the bounds allow" in command.lines[1]
    command = _Command(found, as_json=True)
    verb.memory(command, None)
    assert command.shown is found
