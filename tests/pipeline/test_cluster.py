"""The same command on a standalone master with two workers, started here."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="Spark is in requirements.txt and not installed here")

import pyspark

from broker_store.pipeline.session import java_home
from tests.pipeline import plain
from tests.pipeline.conftest import LIGHT
from tests.support import stores

PROJECT = Path(__file__).resolve().parents[2]
JVM = LIGHT["spark.driver.extraJavaOptions"]


class Started:
    """A Spark daemon as a child, in the foreground; `word(pattern)` waits for what it says."""

    def __init__(self, environment: dict[str, str], name: str, *arguments: str):
        spark_class = Path(pyspark.__file__).parent / "bin" / "spark-class"
        line = [
            str(spark_class),
            f"org.apache.spark.deploy.{name}",
            "--host",
            "127.0.0.1",
            "--webui-port",
            "0",
            *arguments,
        ]
        self._process = subprocess.Popen(
            line, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )

    def word(self, pattern: str) -> str:
        for line in self._process.stderr:
            found = re.search(pattern, line)
            if found:
                return found.group(0)
        raise AssertionError(f"it ended with {self._process.wait()} before it said {pattern}")

    def end(self) -> None:
        self._process.terminate()
        self._process.communicate(timeout=60)


@pytest.fixture
def master(tmp_path):
    environment = {
        **os.environ,
        "JAVA_HOME": str(java_home(tmp_path)),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": JVM,
        "SPARK_WORKER_DIR": str(tmp_path / "work"),
    }
    started = [Started(environment, "master.Master", "--port", "0")]
    try:
        address = started[0].word(r"spark://127\.0\.0\.1:\d+")
        for _ in range(2):
            started.append(Started(environment, "worker.Worker", "--cores", "1", "--memory", "600m", address))
        for worker in started[1:]:
            worker.word("Successfully registered")
        yield address
    finally:
        for one in reversed(started):
            one.end()


@pytest.fixture
def job(tmp_path, master):
    """A function that runs a job on the two workers, over the store at `tmp_path / "clean-small"`, and gives
    its result."""

    light = LIGHT | {"spark.executor.extraJavaOptions": JVM}
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_text(
        "".join(f"{name} {value}\n" for name, value in light.items())
    )

    def run(*line: str) -> dict:
        environment = {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "mqadmin.settings",
            "BROKER_DATA_DIR": str(tmp_path),
            "SPARK_MASTER": master,
            "SPARK_CONF_DIR": str(tmp_path / "conf"),
        }
        store = stores.unpack("clean-small", tmp_path)
        command = [
            sys.executable,
            "manage.py",
            "pipeline",
            *line,
            "--data",
            str(tmp_path),
            "--store",
            str(store),
            "--heap",
            "512m",
            "--json",
        ]
        with tempfile.TemporaryFile("w+") as errors:
            done = subprocess.run(
                command, cwd=PROJECT, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True
            )
            errors.seek(0)
            assert done.returncode == 0, errors.read()[-3000:]
        return json.loads(done.stdout.splitlines()[-1])

    return run


@pytest.fixture
def records(tmp_path):
    directory = tmp_path / "plain"
    directory.mkdir()
    return plain.records(stores.unpack("clean-small", directory))


@pytest.mark.takes(80)
@pytest.mark.slow
def test_an_archive_is_the_same_on_two_workers(job, records, tmp_path):
    archived = job("archive", "--out", str(tmp_path / "archive"))
    assert (archived["records"], archived["to"]) == (len(records), records[-1].log_offset + records[-1].size)


@pytest.mark.slow
@pytest.mark.proof
def test_an_audit_is_the_same_on_two_workers(job, records):
    audited = job("audit")
    assert audited["ok"] and audited["counts"]["records"] == len(records)


@pytest.mark.slow
@pytest.mark.proof
def test_statistics_are_the_same_on_two_workers(job, records):
    plain.assert_statistics(job("statistics"), records)


@pytest.mark.slow
@pytest.mark.proof
def test_a_lineage_is_the_same_on_two_workers(job, records):
    key = next(iter(next(one for one in records if one.keys).keys))
    assert {row["log_offset"] for row in job("lineage", "--key", key)["records"]} >= {
        one.log_offset for one in records if key in one.keys
    }
