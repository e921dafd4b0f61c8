"""Statistics by Spark over a store of the real broker, through the data source."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import stores

PROJECT = Path(__file__).resolve().parents[2]
pytest.importorskip("pyspark", reason="Spark is in requirements.txt and not installed here")


def test_the_command_counts_each_topic_and_tells_how_far_it_is(tmp_path):
    store = stores.unpack("golden-clean", tmp_path)
    # A process of its own, as the job runs it: a JVM in the tests' process would outlive this test.
    command = [sys.executable, "manage.py", "pipeline", "statistics", "--data", str(tmp_path), "--store", str(store), "--json", "--progress"]
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "mqadmin.settings", "BROKER_DATA_DIR": str(tmp_path)}
    done = subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr[-2000:]
    events = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert events[0]["progress"]["text"] == "starting Spark"
    result = events[-1]["result"]
    assert (result["messages"], result["bytes"], result["complete"]) == (70, 24_400, True)
    (topic,) = [topic for topic in result["topics"] if topic["topic"] == "TopicX"]
    assert (topic["messages"], topic["queues"], topic["smallest"]) == (11, 4, 173)
