"""The processes beside the broker: what they import, and so how much memory each of them holds for as long as
the broker runs."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from redis import ConnectionPool

from mqadmin.process import children

PROJECT = Path(__file__).resolve().parents[2]
# 57 when this was written: Django's models, rq and redis; with the pages, REST and the kernels it was 122
MAX_CHILD_MB = 75.0
# What only the broker's process needs: the kernels, REST, the admin's pages, the websocket.
OF_THE_BROKER = (
    "numba",
    "llvmlite",
    "numpy",
    "pydantic",
    "ninja",
    "unfold",
    "channels",
    "uvicorn",
    "mqadmin.urls",
    "mqadmin.cluster.embedded",
    "broker_store.engine.store",
)
LOOK = """
import json, sys
import django
django.setup()
from django.core.management import get_commands, load_command_class
from django.core.management.base import BaseCommand
command = load_command_class(get_commands()[sys.argv[1]], sys.argv[1])
for module in sys.argv[2:]:
    __import__(module)
line = next(line for line in open("/proc/self/status") if line.startswith("RssAnon:"))
print(json.dumps({"modules": sorted(sys.modules), "rss_anon_mb": int(line.split()[1]) / 1000, "checks": list(command.requires_system_checks)}))
"""


def test_a_child_imports_nothing_that_only_the_broker_needs(tmp_path):
    environment = os.environ | {"DJANGO_SETTINGS_MODULE": children.SETTINGS, "BROKER_DATA_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", LOOK, "run_jobs", "mqadmin.jobs.processes"],
        cwd=PROJECT,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout)
    assert [name for name in OF_THE_BROKER if name in found["modules"]] == []
    assert found["checks"] == [], "Django's checks import every page"
    assert "mqadmin.jobs.cron" in found["modules"]
    assert found["rss_anon_mb"] < MAX_CHILD_MB


def test_the_redis_program_is_found_without_importing_its_package(tmp_path):
    look = (
        "import sys; from mqadmin.process.children import redis_program; print(redis_program()); print([name for "
        "name in sys.modules if name.startswith('valkey')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", look], cwd=PROJECT, capture_output=True, text=True, check=True
    )
    program, imported = done.stdout.splitlines()
    assert os.access(program, os.X_OK)
    assert imported == "[]"


def test_a_machine_for_which_there_is_no_redis_is_told_what_to_do(monkeypatch):
    monkeypatch.setattr(children.platform, "machine", lambda: "riscv64")
    with pytest.raises(ImportError, match="linux-riscv64/valkey-server is not there.*set REDIS_URL"):
        children.redis_program()


def test_the_dashboard_starts_without_what_pages_and_rest_need(tmp_path):
    look = "import json, sys, mqadmin.web.asgi; print(json.dumps(sorted(sys.modules)))"
    environment = os.environ | {
        "DJANGO_SETTINGS_MODULE": "mqadmin.settings",
        "BROKER_DATA_DIR": str(tmp_path),
    }
    done = subprocess.run(
        [sys.executable, "-c", look], cwd=PROJECT, env=environment, capture_output=True, text=True, check=True
    )
    imported = json.loads(done.stdout)
    assert [
        name
        for name in ("ninja", "pydantic", "mqadmin.api", "mqadmin.urls", "django.test")
        if name in imported
    ] == []
    assert "mqadmin.web.live" in imported


@pytest.mark.parametrize(
    ("url", "bounded"),
    [
        ("unix://:pw@/d/run/redis.sock", "unix://:pw@/d/run/redis.sock?socket_timeout=2"),
        ("redis://h:6379/0?protocol=3", "redis://h:6379/0?protocol=3&socket_timeout=2"),
        ("redis://h:6379/0?socket_timeout=30", "redis://h:6379/0?socket_timeout=30"),
    ],
)
def test_each_wait_for_redis_has_a_bound(url, bounded):
    assert children.with_timeout(url) == bounded
    assert ConnectionPool.from_url(bounded).connection_kwargs["socket_timeout"] in (2, 30)


FORKS = """import ctypes, os, signal
def named(name): ctypes.CDLL(None).prctl(15, name)
if os.fork() == 0:
    os.setsid()
    named(b"jobs-default")
    if os.fork() == 0: os.setpgrp()
elif input() == "forked": named(b"jobs")
signal.pause()"""


@pytest.mark.parametrize("halted", ["jobs", "worker", "its job"])
def test_a_halted_worker_or_job_is_seen_and_is_not_ended(tmp_path, monkeypatch, halted):
    monkeypatch.setattr(children.subprocess, "DEVNULL", subprocess.PIPE)
    jobs = children.Child(
        "jobs",
        [sys.executable, "-c", FORKS],
        parent_death_signal=signal.SIGKILL,
        log_file=tmp_path / "jobs.log",
    )
    all_of_them = children.Children(
        tmp_path,
        redis_url="redis://elsewhere",
        redis_password="",
        manage=Path("manage.py"),
        wanted=("default",),
    )
    all_of_them._jobs = jobs

    def runs() -> bool:
        return all_of_them.state().workers["default"]

    try:
        assert runs(), "it counts as running until all are forked"
        _until(lambda: "default" in all_of_them.workers())
        worker = all_of_them.workers()["default"]
        _until(lambda: len(children.session_members(worker)) == 2)
        jobs.process.stdin.write(b"forked\n")
        jobs.process.stdin.close()
        (job,) = {*children.session_members(worker)} - {worker}
        assert runs()
        pid = {"jobs": jobs.process.pid, "worker": worker, "its job": job}[halted]
        os.kill(pid, signal.SIGSTOP)
        _until(lambda: not runs())
        assert jobs.running
        os.kill(pid, signal.SIGCONT)
        _until(runs)
    finally:
        jobs.kill_sessions()
    assert not runs() and children.session_members(worker) == []


def _until(holds) -> None:
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize(
    "make",
    [os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/null", path)],
    ids=["FIFO", "directory", "link"],
)
@pytest.mark.parametrize("name", ["redis", "jobs"])
async def test_a_log_of_another_kind_costs_the_jobs_alone(tmp_path, monkeypatch, name, make):
    """An open of a FIFO held the start for ever, and no signal ended it."""

    def open_at_once(path, flags, mode=0o777, *, _open=os.open, **more):
        assert flags & os.O_NONBLOCK or not stat.S_ISFIFO(os.stat(path).st_mode), (
            "this open would wait for a reader"
        )
        return _open(path, flags, mode, **more)

    (tmp_path / "logs").mkdir()
    make(tmp_path / "logs" / f"{name}.log")
    monkeypatch.setattr(os, "open", open_at_once)
    url = None if name == "redis" else "redis://127.0.0.1:1/0"
    started = children.Children(tmp_path, redis_url=url, redis_password="pw", manage=PROJECT / "manage.py")
    try:
        (failure,) = await started.start()
    finally:
        started.stop()
    assert (
        failure == f"jobs are not available: {tmp_path / 'logs' / name}.log is no regular file, so a child "
        f"process cannot write its log there: move it away and start the broker again"
    )


def test_a_long_log_is_put_aside(tmp_path, monkeypatch):
    monkeypatch.setattr(children, "MAX_LOG_BYTES", 4)
    (tmp_path / "redis.log").write_text("long")
    for written, kept in ((b"er", ["redis.log"]), (b"new", ["redis.log", "redis.log.1"])):
        with children._open_log(tmp_path / "redis.log") as log:
            log.write(written)
        assert sorted(os.listdir(tmp_path)) == kept
    assert [(tmp_path / name).read_bytes() for name in kept] == [b"new", b"longer"]
