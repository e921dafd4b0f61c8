"""Statistics and lineage against a plain reader; the command that runs a job as a child process, and its
end."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
from django.template.loader import render_to_string

pytest.importorskip("pyspark", reason="Spark is in requirements.txt and not installed here")

from broker_store.messages import Message
from broker_store.pipeline import jobs
from broker_store.pipeline.results import RESULTS
from broker_store.units import document_of, fact_of, fields_of
from mqadmin.jobs import pipeline
from mqadmin.views.pipeline.reports import report_of
from tests.pipeline import plain
from tests.support import stores
from tests.support.hand_store import Clock, opened

pytestmark = pytest.mark.slow

PROJECT = Path(__file__).resolve().parents[2]


def test_statistics_equal_those_of_a_plain_slow_reader(spark, tmp_path):
    store = stores.unpack("clean-small", tmp_path)
    plain.assert_statistics(jobs.statistics(spark, store), plain.records(store))


def test_what_a_task_sorts_does_not_grow_with_the_store(spark, tmp_path, monkeypatch):
    store = stores.unpack("clean-small", tmp_path)
    before = spark.conf.get("spark.sql.shuffle.partitions")
    log_bytes = sum(path.stat().st_size for path in (store / "commitlog").iterdir())
    with jobs.shuffles_of(spark, store):
        assert spark.conf.get("spark.sql.shuffle.partitions") == before
    monkeypatch.setattr(jobs, "SHUFFLED_BYTES", log_bytes // 7)
    with jobs.shuffles_of(spark, store):
        assert int(spark.conf.get("spark.sql.shuffle.partitions")) in (7, 8)
        plain.assert_statistics(jobs.statistics(spark, store), plain.records(store))
    assert spark.conf.get("spark.sql.shuffle.partitions") == before


def test_lineage_follows_a_key_across_topics_and_groups_are_those_of_retries(spark, tmp_path):
    root = tmp_path / "store"
    clock = Clock()
    messages = [
        Message("orders", 0, b"1", b"KEYS\1o-1 x\2UNIQ_KEY\1U1\2"),
        Message("orders", 0, b"2", b"KEYS\1o-11\2"),
        Message("payments", 1, b"3", b"KEYS\1o-1\2"),
        Message(
            "SCHEDULE_TOPIC_XXXX",
            2,
            b"1",
            b"KEYS\1o-1\2DELAY\x013\2REAL_TOPIC\1%RETRY%g\2",
            reconsume_times=1,
        ),
        Message("%RETRY%g", 0, b"1", b"KEYS\1o-1\2UNIQ_KEY\1U1\2", reconsume_times=1),
        Message("%DLQ%g", 0, b"1", b"KEYS\1o-1\2", reconsume_times=16),
        Message("audit", 0, b"9", b"ORIGIN_MESSAGE_ID\1o-1\2"),
    ]
    with opened(root, clock) as store:
        for message in messages:
            clock.advance(1_000)
            store.appender.put(message)
    result = jobs.lineage(spark, root, "o-1")
    assert [(row["topic"], row["step"]) for row in result["records"]] == [
        ("orders", "stored"),
        ("payments", "stored"),
        ("SCHEDULE_TOPIC_XXXX", "waits for delivery to %RETRY%g (level 3)"),
        ("%RETRY%g", "delivered to group g again, attempt 1"),
        ("%DLQ%g", "given up by group g after 16 attempts"),
        ("audit", "stored"),
    ]
    assert {row["group"]: row["messages"] for row in jobs.statistics(spark, root)["groups"]} == {"g": 2}


def test_a_choice_of_topic_and_time_leaves_the_rest_uncounted(spark, tmp_path):
    store = stores.unpack("clean-small", tmp_path)
    records = plain.records(store)
    topic = Counter(one.topic for one in records).most_common(1)[0][0]
    times = sorted({one.store_timestamp for one in records if one.topic == topic})
    middle = times[len(times) // 2]
    mine = [one for one in records if one.topic == topic and one.store_timestamp >= middle]
    result = jobs.statistics(spark, store, topic=topic, from_time=middle)
    assert [(row["topic"], row["messages"]) for row in result["topics"]] == [(topic, len(mine))]
    assert result["index"] == []
    key = next(key for one in mine for key in one.keys)
    found = jobs.lineage(spark, store, key, topic=topic, to_time=middle)["records"]
    assert [row["log_offset"] for row in found] == [
        one.log_offset
        for one in records
        if one.topic == topic and key in one.keys and one.store_timestamp < middle
    ]


def test_what_the_jobs_give_is_what_their_pages_and_lists_show(spark, tmp_path):
    store = stores.unpack("clean-small", tmp_path)
    some = next(one for one in plain.records(store) if one.keys)
    results = {
        "audit": jobs.audit(spark, store),
        "statistics": jobs.statistics(spark, store),
        "lineage": jobs.lineage(spark, store, next(iter(some.keys))),
        "archive": jobs.archive(spark, store, tmp_path / "archive"),
    }
    assert results.keys() == RESULTS.keys() == pipeline.JOBS.keys()
    for name, result in results.items():
        assert json.loads(json.dumps(result)) == result
        known = fact_of(RESULTS[name], result)
        assert document_of(known) == result
        page = render_to_string(f"pipeline/{name}.html", {"report": report_of(known), "run": {"given": []}})
        assert "unknown" not in page
        assert None not in fields_of(pipeline.summary(known)).values()


def command(*arguments: str, data: Path) -> subprocess.Popen:
    """A job in a process of its own, as a worker runs it."""
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "mqadmin.settings", "BROKER_DATA_DIR": str(data)}
    line = [
        sys.executable,
        "manage.py",
        "pipeline",
        *arguments,
        "--data",
        str(data),
        "--cores",
        "1",
        "--heap",
        "512m",
        "--json",
        "--progress",
    ]
    return subprocess.Popen(
        line,
        cwd=PROJECT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def in_session(leader: int) -> list[int]:
    """Processes of the session that a process leads, those that have ended and are not yet waited for left
    out."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, session = path.read_text().rpartition(")")[2].split()[:4]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(session) == leader and state != "Z":
            found.append(int(path.parent.name))
    return found


def test_the_command_tells_how_far_it_is_and_its_end_ends_every_process_of_it(tmp_path):
    store = stores.unpack("golden-clean", tmp_path)
    child = command("lineage", "--key", "nobody's", "--store", str(store), data=tmp_path)
    events = [json.loads(line) for line in child.stdout if line.startswith("{")]
    errors = child.communicate(timeout=120)[1]
    assert child.returncode == 0, errors[-2000:]
    assert events[0]["progress"]["text"] == "starting Spark"
    assert events[-1]["result"] == {"key": "nobody's", "records": [], "complete": True}
    assert in_session(child.pid) == []


def test_a_job_that_is_called_off_leaves_no_process_behind(tmp_path):
    store = stores.unpack("golden-clean", tmp_path)
    child = command("audit", "--store", str(store), data=tmp_path)
    for line in child.stdout:
        if '"log, queues and index"' in line:
            break
    assert len(in_session(child.pid)) > 1
    child.send_signal(signal.SIGTERM)
    child.communicate(timeout=120)
    assert child.returncode not in (0, None)
    assert in_session(child.pid) == []


def test_a_wrong_store_is_told_before_spark_starts(tmp_path):
    child = command("audit", "--store", str(tmp_path / "nowhere"), data=tmp_path)
    output, errors = child.communicate(timeout=60)
    assert (child.returncode, output) == (1, "")
    assert errors == f"CommandError: {tmp_path}/nowhere is no store: it has no directory commitlog\n"


def test_progress_never_goes_back_within_a_step(monkeypatch):
    """Spark's stages come one after another: what the first did stays counted when the second comes."""
    monkeypatch.setattr(jobs, "PROGRESS_SECONDS", 0.001)
    active: list[int] = []
    stages = {}

    class Tracker:
        def getActiveStageIds(self):
            return list(active)

        def getStageInfo(self, stage):
            return stages.get(stage)

    told: queue.Queue = queue.Queue()

    def until(expected: tuple, stage: int, total: int, done: int, running: int) -> str:
        """The step of the first word that is as expected, once `stage` stands so."""
        stages[stage] = SimpleNamespace(numTasks=total, numCompletedTasks=done, numActiveTasks=running)
        active[:] = [stage] if done < total else []
        while (found := told.get(timeout=10))[1:] != expected:
            assert found[1] <= expected[0]
        return found[0]

    spark = SimpleNamespace(sparkContext=SimpleNamespace(statusTracker=Tracker))
    with jobs.reporting(spark, lambda *given: told.put(given)) as on_progress:
        on_progress("topics", 0, 0)
        until((2, 5, 2), 0, 5, 2, 2)
        until((5, 5, 0), 0, 5, 5, 0)
        assert until((5, 7, 1), 1, 2, 0, 1) == "topics"
        until((7, 7, 0), 1, 2, 2, 0)
        on_progress("keys", 0, 0)
        while told.get(timeout=10) != ("keys", 0, 0):
            pass
        assert until((1, 4, 2), 2, 4, 1, 2) == "keys"
