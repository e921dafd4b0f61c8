"""django-rq's pages over a Redis of our own without workers: what they start again, what their records say, what is not there."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from pathlib import Path

import django_rq
import pytest
from django.conf import settings
from django.contrib.admin.models import LogEntry
from rq.job import JobStatus

from broker_store.server.http import Caller
from mqadmin import audit, children, jobs

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
    environment = {name: value for name, value in os.environ.items() if name not in ("REDIS_URL", "BROKER_DATA_DIR")}
    redis = children.Children(tmp_path, redis_url=None, redis_password=PASSWORD, manage=Path("manage.py"), environment=environment, wanted=())
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
    job_id = jobs.start(kind, parameters or {}, ADMIN, confirm="billing")["id"]
    job = jobs._fetch(job_id)
    queue.remove(job_id)
    job.set_status(state)
    with queue.connection.pipeline() as pipeline:
        registry = queue.finished_job_registry if state is JobStatus.FINISHED else queue.failed_job_registry
        registry.add(job, jobs.KEEP_SECONDS, pipeline=pipeline)
        pipeline.execute()
    return job_id


def record() -> dict:
    (entry,) = LogEntry.objects.all()
    return audit.read(entry)


@pytest.fixture(autouse=True)
def letters_exist(monkeypatch):
    monkeypatch.setitem(jobs.KINDS, "resend_dead_letters", dataclasses.replace(jobs.KINDS["resend_dead_letters"], precondition=lambda checked: None))


def test_a_bulk_action_is_done_and_recorded_with_its_name(admin, queue):
    first, second = ended(queue, "check_store"), ended(queue, "check_store")
    answer = admin.post(f"{PAGES}/queues/actions/0/", {"action": "delete", "job_ids": [first, second]})
    assert answer.status_code == 302
    assert jobs.listing() == []
    assert (record()["action"], record()["outcome"]) == ("actions", "done")
    assert record()["detail"]["job_ids"] == [first, second]
