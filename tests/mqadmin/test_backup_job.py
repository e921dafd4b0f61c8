"""Backups as a job: in which directory, how many stay, what an interrupted one leaves, and their schedules."""

from __future__ import annotations

import os
import time

import pytest
from django.core.management import call_command

from broker_store.backup import manifest
from broker_store.engine.disk.disk import Disk
from broker_store.rest.callers import Caller
from broker_store.rest.problems import Problem
from mqadmin.jobs import backups, cron, parameters, queue, runs, schedules
from mqadmin.jobs.kinds import KINDS
from mqadmin.jobs.progress import JobFailed
from tests.mqadmin.test_schedules import due
from tests.support.fake_runs import job_of
from tests.support.hand_store import message, opened

OPERATOR, ADMIN = Caller("user:the-operator", "operator"), Caller("user:the-admin", "admin")


@pytest.fixture
def data(tmp_path, settings):
    """A data directory whose broker was stopped, and a directory of backups."""
    with opened(tmp_path / "data" / "store") as store:
        for number in range(50):
            store.appender.put(message(body=b"x" * 300, unique=f"u{number}"))
    settings.DATA_DIRECTORY, settings.BACKUP_DIRECTORY = tmp_path / "data", tmp_path / "backups"
    return tmp_path


@pytest.fixture
def at_times(monkeypatch):
    """Each backup has a name of its own, also within a second."""
    names = (f"2026-11-29T03-00-{number:02}Z" for number in range(60))
    monkeypatch.setattr(backups, "new_name", lambda now_s: next(names))


@pytest.mark.usefixtures("at_times")
def test_a_job_makes_a_whole_backup_shares_files_and_keeps_as_many_as_it_is_told(data):
    for _ in range(3):
        made = KINDS["backup"].run(keep=2)
    assert (made["backup"], made["earlier"]) == ("2026-11-29T03-00-02Z", "2026-11-29T03-00-01Z")
    assert made["removed"] == ["2026-11-29T03-00-00Z"]
    names = sorted(path.name for path in (data / "backups").iterdir())
    assert names == ["2026-11-29T03-00-01Z", "2026-11-29T03-00-02Z"]
    assert [manifest.read(Disk(), data / "backups" / name).log_end for name in names] == [
        int(made["log_end"])
    ] * 2
    assert (data / "backups").stat().st_mode & 0o777 == 0o700


@pytest.mark.usefixtures("at_times")
def test_a_job_that_fails_leaves_nothing_and_what_was_killed_is_removed_later(data):
    root = data / "backups"
    for name in ("2026-11-01T00-00-00Z", "2026-11-02T00-00-00Z", "by-hand"):
        (root / name).mkdir(parents=True)
        (root / name / "store").write_text("")
    long_ago = time.time() - 25 * 3600
    for name in ("2026-11-01T00-00-00Z", "by-hand"):
        os.utime(root / name, (long_ago, long_ago))
    (data / "data" / "store" / "commitlog").rename(data / "elsewhere")
    with pytest.raises(JobFailed, match="STORE is no store: it has no directory commitlog"):
        KINDS["backup"].run()
    assert sorted(path.name for path in root.iterdir()) == ["2026-11-02T00-00-00Z", "by-hand"]


def test_only_whole_backups_of_the_same_store_are_removed(data):
    root, other = data / "backups", data / "other"
    root.mkdir()
    with opened(other / "store") as store:
        store.appender.put(message())
    (root / "unfinished").mkdir()
    (root / "link").symlink_to(data)
    for number, source in enumerate([other, data / "data", data / "data"]):
        call_command("backup", str(root / f"b{number}"), "--data", str(source), "--quiet", "--keep", "1")
    assert sorted(path.name for path in root.iterdir()) == ["b0", "b2", "link", "unfinished"]
    assert (data / "data" / "store").is_dir()


@pytest.mark.parametrize("place", [None, "data", "data/backups", "."])
def test_a_job_writes_only_where_the_setting_says_and_outside_of_the_data(data, settings, place):
    settings.BACKUP_DIRECTORY = None if place is None else data / place
    with pytest.raises(Problem) as raised:
        queue.start("backup", {}, ADMIN)
    assert raised.value.code == "conflict" and "BROKER_BACKUP_DIR" in f"{raised.value} {raised.value.hint}"
    with pytest.raises(JobFailed):
        runs.back_up(keep=0, max_mb_s=0, copy_log=False)


@pytest.mark.parametrize(
    "wrong",
    [
        {"directory": "/etc"},
        {"keep": -1},
        {"keep": 1_001},
        {"keep": "1; rm"},
        {"max_mb_s": "--copy"},
        {"max_mb_s": True},
        {"copy_log": "yes"},
        {"copy_log": 1},
    ],
)
def test_a_wrong_parameter_is_refused(wrong):
    with pytest.raises(Problem):
        parameters.check_backup(wrong)


def test_a_backup_needs_an_administrator(data):
    with pytest.raises(Problem, match="needs the role admin"):
        queue.start("backup", {}, OPERATOR)


@pytest.mark.django_db(transaction=True)
def test_a_backup_has_a_schedule_and_starts_with_the_role_that_its_maker_has_then(
    monkeypatch, user_of_role, data
):
    started = []

    def start(kind, given, caller, **about):
        started.append((kind, given, caller, about))
        return job_of(id="job-1")

    monkeypatch.setattr(queue, "start", start)
    with pytest.raises(Problem, match="needs the role admin"):
        schedules.add("backup", {}, "0 3 * * *", OPERATOR)
    user_of_role("admin")
    made = schedules.add("backup", {"keep": "7"}, "0 3 * * *", ADMIN)
    assert (made.title, made.parameters) == ("Backup", {"keep": 7, "max_mb_s": 0, "copy_log": False})
    due(cron.Scheduler(connection=object())).enqueue_jobs()
    assert started == [("backup", made.parameters, ADMIN, {"schedule": made.id})]
