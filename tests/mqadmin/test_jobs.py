"""Jobs, with a real Redis and real workers: what may run, progress, cancel, and how everything ends."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import django_rq
import pytest
import redis
from django.conf import settings
from django_rq.queues import get_queue_by_index
from rq.job import Job
from rq.serializers import JSONSerializer

from broker_store.rest.callers import Caller
from broker_store.rest.problems import Problem
from mqadmin.cluster.current import install_cluster
from mqadmin.jobs import exports
from mqadmin.jobs import facts as job_facts
from mqadmin.jobs import queue as job_queue
from mqadmin.jobs.progress import Progress
from mqadmin.jobs.worker import AllowedJob
from mqadmin.process import children
from mqadmin.web import server
from tests.support import left_behind, stores
from tests.support.fake_cluster import FakeCluster

pytestmark = pytest.mark.slow

MANAGE = Path(__file__).resolve().parents[2] / "manage.py"
OPERATOR = Caller("user:op", "operator")
ADMIN = Caller("user:admin", "admin")
PATIENCE_SECONDS = 120.0  # a busy machine takes its time
PASSWORD = "of-this-test"


class World:
    """A data directory with the real broker's store, Redis, workers, and a dashboard over a fake cluster."""

    def __init__(self, directory: Path):
        self.directory = directory
        self.children = children.Children(
            directory,
            redis_url=None,
            redis_password=PASSWORD,
            manage=MANAGE,
            environment=_environment(),
            wanted=children.QUEUES,
        )

    async def __aenter__(self) -> World:
        stores.unpack("golden-clean", self.directory).rename(self.directory / "store")
        self.cluster = FakeCluster()
        install_cluster(self.cluster)
        self.web = await server.serve(
            asyncio.get_running_loop(), "127.0.0.1", 0, self.directory / "run" / "web.sock"
        )
        assert await self.children.start() == []
        return self

    async def __aexit__(self, *_) -> None:
        await asyncio.to_thread(self.children.stop)
        await self.web.stop()
        install_cluster(None)

    async def reaches(self, job_id: str, *states: str) -> job_facts.Job:
        """The job, once it is in one of these states."""
        return await self.until(job_id, lambda job: job.state in states)

    async def until(self, job_id: str, holds) -> job_facts.Job:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            job = await asyncio.to_thread(job_queue.find, job_id)
            if holds(job) or time.monotonic() > deadline:
                assert holds(job), job
                return job
            await asyncio.sleep(0.02)


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("REDIS_URL", "BROKER_DATA_DIR")}
    return kept | {"DJANGO_SETTINGS_MODULE": "mqadmin.settings"}


@pytest.fixture
def directory(tmp_path, monkeypatch):
    """The data directory, for this process as for its children."""
    url = children.redis_url(tmp_path / "run" / "redis.sock", PASSWORD)
    monkeypatch.setattr(settings, "DATA_DIRECTORY", tmp_path)
    for queue in settings.RQ_QUEUES.values():
        monkeypatch.setitem(queue, "URL", url)
    return tmp_path


async def start(kind: str, parameters: dict | None = None, caller: Caller = OPERATOR) -> str:
    return (await asyncio.to_thread(job_queue.start, kind, parameters or {}, caller)).id


async def test_a_check_an_export_and_a_cancel_and_no_foreign_code(directory):
    async with World(directory) as world:
        waiting = await start("check_store")
        exported = await start("export_messages", {"topic": "payments", "form": "csv", "limit": 700})
        # A check of the store comes back with what it found, an export with its file.
        checked = await world.reaches(waiting, "done", "failed")
        assert (checked.state, checked.by) == ("done", "user:op")
        assert checked.result["ok"] is True
        assert checked.result["counts"]["records"] == 70
        assert str(directory) not in str(checked.result)
        done = await world.reaches(exported, "done", "failed")
        assert done.result["messages"] == 700
        assert done.has_file
        assert len((directory / "exports" / done.result["file"]).read_text().splitlines()) == 701

        # A long one shows how far it is, and a cancel ends it and removes what it had written.
        long = await start("export_messages", {"topic": "page-views", "limit": 5_000_000})
        running = await world.until(long, lambda job: job.progress is not None)
        assert running.progress.done > 0
        assert (directory / "exports" / f"{long}.part").exists()
        await asyncio.to_thread(job_queue.cancel, long, OPERATOR)
        ended = await world.reaches(long, "canceled")
        assert ended.canceled_by == "user:op"
        assert not (directory / "exports" / f"{long}.part").exists()
        with pytest.raises(Problem, match="ended already"):
            await asyncio.to_thread(job_queue.cancel, long, OPERATOR)

        # What another program put into Redis is not run.
        for name, data in _bombs(directory).items():
            await asyncio.to_thread(_put, name, data)
            assert (await world.reaches(name, "failed", "done")).state == "failed", name
        assert not (directory / "owned").exists()
        states = {job.id: job.state for job in await asyncio.to_thread(job_queue.listing)}
        assert states[waiting] == "done"
        await asyncio.to_thread(_tell_late, waiting)


def _bombs(directory: Path) -> dict[str, bytes]:
    command = f"touch {directory}/owned"

    class Bomb:
        def __reduce__(self):
            return os.system, (command,)

    return {
        "pickle": pickle.dumps(("mqadmin.jobs.check_store", None, (Bomb(),), {})),
        "foreign": json.dumps(["os.system", None, [command], {}]).encode(),
        "method": json.dumps(["format", "{}", [command], {}]).encode(),
        "inner": json.dumps(["mqadmin.jobs._run_command", None, [command], {}]).encode(),
    }


def _put(name: str, data: bytes) -> None:
    queue = django_rq.get_queue("default")
    job = Job.create(
        "mqadmin.jobs.check_store",
        id=name,
        connection=queue.connection,
        serializer=JSONSerializer,
        origin="default",
    )
    job.save()
    queue.connection.hset(job.key, "data", data)
    queue.push_job_id(name)


def _tell_late(job_id: str) -> None:
    """The running job's copy of its record is older than the cancel."""
    running, stopped = job_queue._fetch(job_id), job_queue._fetch(job_id)
    stopped.set_canceled_by("user:op", 1_800_000_000_000)
    Progress(running)("at work", 1, 2, last=True)
    told = job_queue.find(job_id)
    assert (told.canceled_by, told.progress.text) == ("user:op", "at work")


async def test_redis_asks_for_a_password_and_does_what_jobs_need_and_no_more(directory):
    async with World(directory) as world:
        await asyncio.to_thread(
            _try_what_is_refused, directory / "run" / "redis.sock", world.children._redis.process.pid
        )


def _try_what_is_refused(socket_path: Path, pid: int) -> None:
    with redis.Redis.from_url(f"unix://{socket_path}") as stranger, pytest.raises(redis.AuthenticationError):
        stranger.get("rq:workers")
    assert PASSWORD.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()
    with redis.Redis.from_url(children.redis_url(socket_path, PASSWORD)) as known:
        known.set("rq:of-this-test", "1")
        # And no refusal: django-rq's page of queues, which reads it, said that Redis does not answer
        with pytest.raises(KeyError):
            known["connection_pool"]
        for command in (
            "CONFIG SET dir /tmp",
            "CONFIG GET *",
            "REPLICAOF 127.0.0.1 1",
            "SHUTDOWN",
            "FLUSHALL",
            "KEYS *",
            # fmt: skip
            "SET elsewhere 1",
            "SET connection_pool 1",
            "PUBLISH elsewhere x",
            "ACL SETUSER default nopass",
            "SAVE",
        ):
            with pytest.raises(redis.exceptions.NoPermissionError):
                known.execute_command(*command.split())


def test_every_queue_reads_json_alone_also_for_the_pages_of_django_rq():
    by_name = [django_rq.get_queue(name) for name in settings.RQ_QUEUES]
    by_index = [get_queue_by_index(index) for index in range(len(by_name))]
    assert {queue.serializer for queue in (*by_name, *by_index)} == {JSONSerializer}


async def test_stopping_marks_running_jobs_as_interrupted_and_leaves_no_process(directory):
    async with World(directory) as world:
        long = await start("export_messages", {"topic": "page-views", "limit": 5_000_000})
        await world.until(long, lambda job: job.progress is not None)
        workers = world.children.workers().values()
        sessions = [world.children._redis.process.pid, world.children._jobs.process.pid, *workers]
        assert len(children.session_members(*sessions)) >= 5
        seen = []

        def interrupted():
            job_queue.mark_interrupted()
            seen.append(job_queue.find(long).state)

        began = time.monotonic()
        await asyncio.to_thread(world.children.stop, interrupted)
        assert time.monotonic() - began < 4.0
        assert seen == ["interrupted"]
        assert children.session_members(*sessions) == []


async def test_what_ran_when_everything_was_killed_is_marked_at_the_next_start_and_its_children_are_gone(
    directory,
):
    async with World(directory) as world:
        long = await start("check_store")
        await world.until(long, lambda job: job.state == "running")
        worker = world.children.workers()["default"]
        started = await asyncio.to_thread(_descendants, worker, 2)
        world.children._jobs.process.kill()  # as the kernel does when its parent was killed
        await asyncio.to_thread(_until_gone, started)
        await asyncio.to_thread(world.children._redis.process.terminate)
        await asyncio.to_thread(world.children._redis.process.wait)
        again = children.Children(
            directory,
            redis_url=None,
            redis_password=PASSWORD,
            manage=MANAGE,
            environment=_environment(),
            wanted=children.QUEUES,
        )
        try:
            assert await again.start(job_queue.mark_interrupted) == []
            assert (await asyncio.to_thread(job_queue.find, long)).state == "interrupted"
        finally:
            await asyncio.to_thread(again.stop)


def _descendants(session: int, least: int) -> list[int]:
    """The processes of a session beside its leader, once there are at least so many that the job's child is
    among them."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        found = [pid for pid in children.session_members(session) if pid != session]
        if (
            any(b"check_store" in Path(f"/proc/{pid}/cmdline").read_bytes() for pid in found)
            and len(found) >= least
        ):
            return found
        assert time.monotonic() < deadline, found
        time.sleep(0.01)


def _until_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while alive := [pid for pid in pids if left_behind.is_alive(pid)]:
        assert time.monotonic() < deadline, alive
        time.sleep(0.01)


async def test_a_redis_or_worker_that_dies_is_started_again_and_the_list_survives(directory, monkeypatch):
    monkeypatch.setattr(children, "RESTART_SECONDS", 0.05)
    async with World(directory) as world:
        watch = asyncio.create_task(world.children.watch())
        try:
            exported = await start("export_messages", {"topic": "orders", "limit": 1})
            await world.reaches(exported, "done")
            killed = [world.children._redis.process, world.children._jobs.process]
            killed[0].terminate()  # with TERM it saves; a kill may cost the last minute
            killed[1].kill()
            deadline = time.monotonic() + PATIENCE_SECONDS
            while not (
                world.children._redis.process is not killed[0]
                and await children._answers_ping(directory / "run" / "redis.sock")
            ):
                assert time.monotonic() < deadline
                await asyncio.sleep(0.02)
            assert (await world.reaches(exported, "done")).result["messages"] == 1
            again = await start("export_messages", {"topic": "orders", "limit": 1})
            await world.reaches(again, "done")
        finally:
            watch.cancel()


async def test_a_worker_that_dies_is_started_again_and_shown_as_stopped_until_then(directory):
    async with World(directory) as world:
        exported = await start("export_messages", {"topic": "orders", "limit": 1})
        await world.reaches(exported, "done")
        killed = world.children.workers()["default"]
        os.kill(killed, signal.SIGKILL)
        await asyncio.to_thread(_until, lambda: not world.children.state().workers["default"])
        assert world.children.state().workers["spark"]
        await asyncio.to_thread(_until, lambda: world.children.state().workers["default"])
        assert world.children.workers()["default"] != killed
        again = await start("export_messages", {"topic": "orders", "limit": 1})
        await world.reaches(again, "done")
        assert "jobs-default ended with -9" in (directory / "logs" / "jobs.log").read_text()


def _until(holds) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_log_is_its_owners_alone_and_a_long_one_is_put_aside(tmp_path, monkeypatch):
    monkeypatch.setattr(children, "MAX_LOG_BYTES", 10)
    path = tmp_path / "worker.log"
    for text in (b"short", b" and longer", b"new"):
        with children._open_log(path) as output:
            output.write(text)
    assert path.read_bytes() == b"new"
    assert (tmp_path / "worker.log.1").read_bytes() == b"short and longer"
    assert path.stat().st_mode & 0o777 == 0o600


async def test_each_kind_has_its_role_and_its_parameters(directory):
    for kind, parameters, caller, code in (
        ("check_store", {}, Caller("user:v", "viewer"), "forbidden"),
        ("rebuild_index", {}, OPERATOR, "forbidden"),
        ("os.system", {}, ADMIN, "invalid"),
        ("check_store", {"path": "/etc"}, ADMIN, "invalid"),
        ("export_messages", {}, ADMIN, "invalid"),
        ("export_messages", {"topic": "a", "form": "../x"}, ADMIN, "invalid"),
        ("export_messages", {"topic": "a", "limit": 1 << 40}, ADMIN, "invalid"),
        ("export_messages", {"topic": "a", "begin_ms": "tomorrow"}, ADMIN, "invalid"),
        ("check_store", {}, ADMIN, "jobs_unavailable"),
    ):
        with pytest.raises(Problem) as refused:
            job_queue.start(kind, parameters, caller)
        assert refused.value.code == code, kind


def test_cells_that_a_spreadsheet_would_run_get_an_apostrophe():
    for text in ("=1+1", "+1", "-1", "@x", "\tx", "\rx"):
        assert exports.cell(text) == "'" + text
    assert exports.cell("plain") == "plain"
    assert exports.cell(["a", "b"]) == "a b"
    assert exports.cell(7) == 7
    assert exports.cell(None) is None


def test_old_exports_and_halves_are_taken_away_and_nothing_else(tmp_path):
    for name in ("a.csv", "b.part", "c.jsonl", "d.txt"):
        (tmp_path / name).touch()
    os.utime(tmp_path / "c.jsonl", (2_000_000_000, 2_000_000_000))
    exports.remove_old(tmp_path, time.time() + 10)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c.jsonl", "d.txt"]


class _WaitingQueue:
    """A queue that holds jobs of these callers."""

    connection = None

    def __init__(self, name: str, callers: list[str]):
        self.name, self.callers = name, callers

    @property
    def count(self) -> int:
        return len(self.callers)

    def get_job_ids(self) -> list[str]:
        return [f"{self.name} {caller}" for caller in self.callers]


def _waiting(monkeypatch, default: list[str], spark: list[str]) -> None:
    monkeypatch.setattr(
        job_queue, "_queues", lambda: [_WaitingQueue("default", default), _WaitingQueue("spark", spark)]
    )
    monkeypatch.setattr(
        AllowedJob,
        "fetch_many",
        lambda ids, **_: [SimpleNamespace(meta={"by": one.split(" ")[1]}) for one in ids],
    )


def test_one_user_may_have_so_many_jobs_waiting_in_all_queues_together(monkeypatch):
    most = job_queue.MAX_WAITING_OF_USER
    _waiting(monkeypatch, ["user:op"] * 7 + ["user:admin"], ["user:op"] * (most - 7))
    with pytest.raises(
        Problem, match=f"{most} jobs of user:op are waiting, at most {most} of one user may"
    ) as refused:
        job_queue.start("check_store", {}, OPERATOR)
    assert refused.value.code == "limit_reached" and "cancel" in refused.value.hint
    job_queue._check_room(ADMIN)


def test_all_users_together_may_have_so_many_jobs_waiting(monkeypatch):
    _waiting(monkeypatch, [f"user:{number}" for number in range(job_queue.MAX_WAITING - 3)], ["user:x"] * 3)
    with pytest.raises(
        Problem, match=f"{job_queue.MAX_WAITING} jobs are waiting, at most {job_queue.MAX_WAITING} may"
    ):
        job_queue.start("check_store", {}, OPERATOR)
