"""The page of threads and the loop, its REST resource and its verb, of a process with known measurements."""

from __future__ import annotations

import json
import threading

import pytest

from broker_store.facts.threads import Counted, ThreadTimes
from mqadmin.views.store.threads import verb

pytestmark = pytest.mark.django_db(transaction=True)

MS = 1_000_000
NOW_MS = 1_800_000_000_000


@pytest.fixture
def measured():
    """Two samples a second apart, a long turn and a wait for the lock."""
    now_ms = NOW_MS
    own, counts = threading.get_native_id(), {}
    times = ThreadTimes(lambda call: None, lambda: now_ms, count=lambda: dict(counts))
    times.start(threading.get_ident())
    counts[own] = Counted(0, 0)
    times.sample()
    now_ms += 1_000
    counts[own] = Counted(400 * MS, 30 * MS)
    times.sample()
    times.note_turn(120 * MS, "mqadmin.lists.read, line 7")
    times.note_lock_wait(3 * MS)
    yield times
    times.stop()


def test_the_page_names_the_longest_turn_and_where_it_was(fake_cluster, client_of_role, measured):
    text = client_of_role("viewer").get("/store/threads/").content.decode()
    assert "mqadmin.lists.read, line 7" in text and "120 ms" in text
    assert "event loop" in text and "400 ms" in text and "3 ms" in text


def test_the_page_is_there_before_the_first_turn_was_measured(fake_cluster, client_of_role):
    times = ThreadTimes(lambda call: None, lambda: NOW_MS)
    times.start(threading.get_ident())
    try:
        answer = client_of_role("viewer").get("/store/threads/")
        assert answer.status_code == 200 and "No turn yet" in answer.content.decode()
    finally:
        times.stop()


def test_rest_gives_the_facts(fake_cluster, client_of_role, measured):
    facts = client_of_role("viewer").get("/api/v1/store/threads").json()
    assert facts["loop"]["longest_turns"] == [
        {"at_ms": str(NOW_MS + 1_000 - 120), "took_us": 120_000.0, "where": "mqadmin.lists.read, line 7"}
    ]
    assert (facts["lock"]["lately"]["count"], facts["lately_ms"]) == (1, "1000")
    loop = next(work for work in facts["threads"] if work["name"] == "event loop")
    assert (loop["processor_ms"], loop["share"], loop["waited_ms"]) == (400, 0.4, 30)
    assert len(facts["seconds"]) == 60 and facts["seconds"][-1]["loop_us"] == 120_000


def test_a_process_that_measures_nothing_says_so(fake_cluster, client_of_role):
    viewer = client_of_role("viewer")
    assert "nothing is measured" in viewer.get("/store/threads/").content.decode()
    answer = viewer.get("/api/v1/store/threads")
    assert (answer.status_code, answer.json()["code"]) == (503, "starting")


class Command:
    as_json = False

    def __init__(self, found):
        self.found, self.tables = found, []
        self.stdout = self

    def write(self, text):
        assert text == ""

    def ask(self, options, online):
        return self.found

    def show(self, found):
        self.tables.append(json.dumps(found))

    def show_table(self, rows, columns, *, empty):
        self.tables.append([[row.get(key) for key in columns] for row in rows])


def test_the_verb_shows_waits_turns_collections_and_threads(fake_cluster, client_of_role, measured):
    command = Command(client_of_role("viewer").get("/api/v1/store/threads").json())
    verb.VERBS["threads"](command, {})
    waits, turns, collections, works = command.tables
    assert [row[0] for row in waits] == ["for the loop", "for the interpreter lock"]
    assert waits[1][-1] == 3_000
    assert turns[0][1:] == [120_000.0, "mqadmin.lists.read, line 7"]
    assert [row[0] for row in collections] == [0, 1, 2]
    assert ["event loop", 1, 400, 0.4, 30, None] in works
