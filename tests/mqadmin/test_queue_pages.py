"""django-rq's pages over a Redis of our own without workers: what they start again, what their records say,
what is not there."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import pickle
from pathlib import Path

import django_rq
import pytest
from django.conf import settings
from django.contrib.admin.models import LogEntry
from rq.job import JobStatus

from broker_store.rest.callers import Caller
from mqadmin import audit
from mqadmin.jobs import kinds, runs
from mqadmin.jobs import queue as job_queue
from mqadmin.process import children

ADMIN = Caller("user:the-admin", "admin")
PAGES = "/admin/django_rq/dashboard"
PASSWORD = "of-this-test"
LETTERS = {"group": "billing", "to": "group", "limit": 10}


@pytest.fixture
def queue(tmp_path, monkeypatch):
    """The queue `default`, in a Redis that no worker reads."""
    url = children.redis_url(tmp_path / "run" / "redis.sock", PASSWORD)
    for options in settings.RQ_QUEUES.values():
        monkeypatch.setitem(options, "URL", url)
    environment = {
        name: value for name, value in os.environ.items() if name not in ("REDIS_URL", "BROKER_DATA_DIR")
    }
    redis = children.Children(
        tmp_path,
        redis_url=None,
        redis_password=PASSWORD,
        manage=Path("manage.py"),
        environment=environment,
        wanted=(),
    )
    assert asyncio.run(redis.start()) == []
    yield django_rq.get_queue("default")
    redis.stop()


@pytest.fixture
def admin(client_of_role, fake_cluster, queue):
    client = client_of_role("admin")
    client.raise_request_exception = False
    return client


def ended(queue, kind: str, parameters: dict | None = None, state: JobStatus = JobStatus.FINISHED) -> str:
    """The id of a job that has ended."""
    job_id = job_queue.start(kind, parameters or {}, ADMIN, confirm="billing").id
    job = job_queue._fetch(job_id)
    queue.remove(job_id)
    job.set_status(state)
    with queue.connection.pipeline() as pipeline:
        registry = queue.finished_job_registry if state is JobStatus.FINISHED else queue.failed_job_registry
        registry.add(job, runs.KEEP_SECONDS, pipeline=pipeline)
        pipeline.execute()
    return job_id


def record() -> audit.AuditRecord:
    (entry,) = LogEntry.objects.all()
    return audit.read(entry)


@pytest.fixture(autouse=True)
def letters_exist(monkeypatch):
    monkeypatch.setitem(
        kinds.KINDS,
        "resend_dead_letters",
        dataclasses.replace(kinds.KINDS["resend_dead_letters"], precondition=lambda checked: None),
    )


def test_a_bulk_action_is_done_and_recorded_with_its_name(admin, queue):
    first, second = ended(queue, "check_store"), ended(queue, "check_store")
    answer = admin.post(f"{PAGES}/queues/actions/0/", {"action": "delete", "job_ids": [first, second]})
    assert answer.status_code == 302
    assert job_queue.listing() == []
    assert (record().action, record().outcome) == ("actions", "done")
    assert record().detail["job_ids"] == [first, second]


@pytest.mark.parametrize(
    "address", ["https://elsewhere.example/", "//elsewhere.example", "javascript:alert(1)"]
)
def test_a_bulk_action_leads_to_no_other_host(admin, queue, address):
    answer = admin.post(
        f"{PAGES}/queues/actions/0/",
        {"action": "delete", "job_ids": [ended(queue, "check_store")], "next_url": address},
    )
    assert answer.status_code == 302 and answer["Location"].startswith(PAGES)


@pytest.mark.parametrize(
    ("page", "state"),
    [("enqueue", JobStatus.FINISHED), ("enqueue", JobStatus.FAILED), ("requeue", JobStatus.FAILED)],
)
def test_a_job_that_wants_a_name_typed_is_not_started_again_by_a_click(admin, queue, page, state):
    letters = ended(queue, "resend_dead_letters", LETTERS, state)
    answer = admin.post(f"{PAGES}/queues/0/{letters}/{page}/")
    assert answer.status_code == 409
    assert 'href="/groups/billing/dead-letters/"' in answer.content.decode()
    assert queue.job_ids == []
    assert (record().name, record().outcome) == (letters, "confirmation_needed")
    assert record().detail.items() >= {"kind": "resend_dead_letters", "parameters": LETTERS}.items()


def test_another_job_is_started_again_and_its_record_says_what_it_is(admin, queue):
    export = ended(queue, "export_messages", {"topic": "orders"})
    assert admin.post(f"{PAGES}/queues/0/{export}/enqueue/").status_code == 302
    assert queue.job_ids == [export]
    assert record().detail["kind"] == "export_messages"
    assert record().detail["parameters"]["topic"] == "orders"


@pytest.mark.parametrize("page", ["0/requeue-all/", "actions/0/"])
def test_a_bulk_requeue_leaves_out_what_wants_a_name_typed_and_says_so(admin, queue, page):
    letters, check = (
        ended(queue, kind, parameters, JobStatus.FAILED)
        for kind, parameters in (("resend_dead_letters", LETTERS), ("check_store", {}))
    )
    answer = admin.post(
        f"{PAGES}/queues/{page}", {"action": "requeue", "job_ids": [letters, check, "gone"]}, follow=True
    )
    assert queue.job_ids == [check]
    shown = answer.content.decode()
    assert (
        "Left out 1 of 2 jobs" in shown
        and 'href="/groups/billing/dead-letters/"' in shown
        and "requeued 1 job!" in shown
    )
    assert record().outcome == "done"
    assert (
        record().detail.items()
        >= {"left_out": [letters], "jobs": [{"id": check, "kind": "check_store", "parameters": {}}]}.items()
    )


@pytest.mark.parametrize("page", ["0/requeue-all/", "actions/0/"])
def test_a_bulk_requeue_of_such_jobs_alone_is_refused(admin, queue, page):
    letters = ended(queue, "resend_dead_letters", LETTERS, JobStatus.FAILED)
    answer = admin.post(f"{PAGES}/queues/{page}", {"action": "requeue", "job_ids": [letters]})
    assert answer.status_code == 409
    assert queue.job_ids == []
    assert (record().outcome, record().detail["left_out"]) == ("confirmation_needed", [letters])


def test_the_record_of_a_large_bulk_action_is_not_cut(admin, queue):
    chosen = [ended(queue, "export_messages", {"topic": "t" * 120}, JobStatus.FAILED) for _ in range(2)]
    admin.post(f"{PAGES}/queues/actions/0/", {"action": "delete", "job_ids": chosen + ["x" * 200] * 900})
    assert (record().detail["items"], len(record().detail["jobs"])) == (902, 2)


def test_a_requeue_of_all_where_none_failed_starts_nothing(admin, queue):
    assert admin.post(f"{PAGES}/queues/0/requeue-all/").status_code == 302
    assert queue.job_ids == []


@pytest.mark.parametrize(
    "page",
    [
        "queues/9/",
        "queues/99999999999999999999/",
        "queues/9/failed/",
        "workers/9/",
        "workers/0/nope/",
        "workers/0/rq:worker:gone/",
        # fmt: skip
        "queues/0/nope/enqueue/",
        "queues/0/nope/delete/",
        "cron-schedulers/99999999999999999999/x/",
    ],
)
def test_what_is_not_there_is_said_so(admin, page):
    answer = admin.get(f"{PAGES}/{page}")
    assert answer.status_code == 404
    if "cron" not in page:
        assert "There is no " in answer.content.decode()


@pytest.mark.parametrize("page", ["9/requeue-all/", "actions/9/", "0/nope/requeue/", "0/nope/stop/"])
def test_a_change_of_what_is_not_there_is_not_found_and_recorded(admin, page):
    assert admin.post(f"{PAGES}/queues/{page}", {"action": "delete", "job_ids": ["nope"]}).status_code == 404
    assert record().outcome == "not_found"


def test_a_requeue_of_a_job_that_did_not_fail_is_a_conflict(admin, queue):
    check = ended(queue, "check_store")
    answer = admin.post(f"{PAGES}/queues/0/{check}/requeue/")
    assert answer.status_code == 409
    assert "state does not allow this" in answer.content.decode()
    assert (record().outcome, record().detail["kind"]) == ("conflict", "check_store")


def running(queue) -> str:
    """The id of a job that a worker has begun."""
    job_id = job_queue.start("check_store", {}, ADMIN).id
    job = job_queue._fetch(job_id)
    queue.remove(job_id)
    job.prepare_for_execution("somebody", queue.connection)
    return job_id


@pytest.mark.parametrize("is_running", [True, False])
def test_a_job_that_runs_or_waits_is_not_started_a_second_time(admin, queue, is_running):
    job_id = running(queue) if is_running else job_queue.start("check_store", {}, ADMIN).id
    waiting = queue.job_ids
    assert admin.post(f"{PAGES}/queues/0/{job_id}/enqueue/").status_code == 409
    assert (
        admin.post(f"{PAGES}/queues/actions/0/", {"action": "requeue", "job_ids": [job_id]}).status_code
        == 409
    )
    assert queue.job_ids == waiting
    assert [audit.read(entry).outcome for entry in LogEntry.objects.all()] == ["conflict", "conflict"]


def test_a_bulk_requeue_leaves_out_what_runs_and_says_so(admin, queue):
    begun, failed = running(queue), ended(queue, "check_store", state=JobStatus.FAILED)
    answer = admin.post(
        f"{PAGES}/queues/actions/0/", {"action": "requeue", "job_ids": [begun, failed]}, follow=True
    )
    assert (
        queue.job_ids == [failed]
        and "Left out 1 of 2 jobs, which run or wait already." in answer.content.decode()
    )
    assert (record().outcome, record().detail["under_way"]) == ("done", [begun])


@pytest.mark.parametrize("page", ["0/requeue-all/", "actions/0/"])
def test_a_bulk_requeue_starts_as_many_as_may_wait_and_counts_the_others(admin, queue, monkeypatch, page):
    """Any number of failed jobs was queued again, past the bound of each other door."""
    failed = [ended(queue, "check_store", state=JobStatus.FAILED) for _ in range(5)]
    job_queue.start("check_store", {}, ADMIN)
    monkeypatch.setattr(job_queue, "MAX_WAITING", 4)
    admin.post(f"{PAGES}/queues/{page}", {"action": "requeue", "job_ids": failed})
    assert queue.count == 4 and record().detail["no_room"] == 2
    left = queue.failed_job_registry.get_job_ids()
    for again in (page, f"0/{left[0]}/requeue/"):
        answer = admin.post(f"{PAGES}/queues/{again}", {"action": "requeue", "job_ids": left})
        assert answer.status_code == 429 and "at most 4 may" in answer.content.decode()
    assert queue.count == 4


def test_a_stop_of_a_job_that_does_not_run_is_a_conflict(admin, queue):
    """It was recorded as done."""
    check = ended(queue, "check_store")
    assert admin.post(f"{PAGES}/queues/0/{check}/stop/").status_code == 409
    assert (
        admin.post(
            f"{PAGES}/queues/actions/0/", {"action": "stop", "job_ids": [check, ended(queue, "check_store")]}
        ).status_code
        == 409
    )
    assert [audit.read(entry).outcome for entry in LogEntry.objects.all()] == ["conflict", "conflict"]


@pytest.mark.parametrize("page", ["0/{}/stop/", "actions/0/"])
def test_the_worker_of_a_running_job_is_told_to_stop_it(admin, queue, page):
    begun = running(queue)
    heard = queue.connection.pubsub()
    heard.subscribe("rq:pubsub:somebody")
    assert heard.get_message(timeout=5)["type"] == "subscribe"
    answer = admin.post(
        f"{PAGES}/queues/" + page.format(begun), {"action": "stop", "job_ids": [begun]}, follow=True
    )
    assert b"stop-job" in heard.get_message(timeout=5)["data"] and answer.status_code == 200
    assert "1 of 1 jobs are being stopped." in answer.content.decode()
    assert (record().outcome, record().detail["told_to_stop"]) == ("done", 1)
    heard.close()


def test_nothing_is_read_as_a_pickle(admin, queue, tmp_path):
    class Bomb:
        def __reduce__(self):
            return os.system, (f"touch {tmp_path}/owned",)

    failed = ended(queue, "check_store", state=JobStatus.FAILED)
    queue.connection.hset(f"rq:job:{failed}", "meta", pickle.dumps(Bomb()))
    for page, status in ((f"{failed}/stop/", 409), ("failed/clear/", 302)):
        assert admin.post(f"{PAGES}/queues/0/{page}").status_code == status
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize("confirm", ["", "?confirm=billing"])
def test_a_retry_by_rest_is_recorded_with_what_it_starts(admin, queue, confirm):
    letters = ended(queue, "resend_dead_letters", LETTERS)
    answer = admin.post(f"/api/v1/jobs/{letters}/retry{confirm}")
    assert answer.status_code == (202 if confirm else 409)
    assert (record().action, record().name, record().outcome) == (
        "retry",
        letters,
        "done" if confirm else "confirmation_needed",
    )
    assert record().detail == {
        "kind": "resend_dead_letters",
        "parameters": LETTERS,
        **({"id": answer.json()["id"]} if confirm else {}),
    }
