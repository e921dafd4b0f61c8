"""A file of the store, or the dashboard's database, that fails under a page or a REST request: a sentence, a
record, no traceback."""

from __future__ import annotations

import logging
import os
import sqlite3
from dataclasses import replace

import pytest
from django.db import OperationalError
from django.test import AsyncClient

from broker_store.errors import StoreError
from broker_store.repeated_log import RepeatedLog
from broker_store.rest.problems import CODES, problem_of
from mqadmin.cluster.embedded.condition import judge
from mqadmin.jobs.schedules import PipelineSchedule
from mqadmin.web import failures, middleware
from mqadmin.web.gateway import ClusterGateway
from tests.mqadmin.test_condition import QUIET
from tests.rest.test_http import World

pytestmark = pytest.mark.django_db(transaction=True)

FAILED = StoreError(
    "/data/store/consumequeue/Orders/0/00000000000000000000: opening failed: No such file or directory"
)


def fail(*arguments, **named):
    raise FAILED


@pytest.fixture
def refused(fake_cluster, monkeypatch):
    found = []
    # No line of the test before is a second old
    monkeypatch.setattr(failures, "_log", RepeatedLog(failures._log._log))
    monkeypatch.setattr(fake_cluster, "refuse", lambda cause, **case: found.append(cause), raising=False)
    return found


@pytest.mark.parametrize(
    ("part", "method", "path"),
    [
        ("topics", "detail", "/topics/Orders/"),
        ("store", "snapshot", "/store/"),
        ("store", "disk", "/store/disk/"),
    ],
)
def test_a_page_names_the_file_that_could_not_be_read(
    fake_cluster, client_of_role, refused, monkeypatch, caplog, part, method, path
):
    monkeypatch.setattr(getattr(fake_cluster, part), method, fail)
    answer = client_of_role("viewer").get(path)
    assert answer.status_code == 500
    page = answer.content.decode()
    assert "The store could not be read" in page and "consumequeue/Orders/0" in page and "doctor" in page
    assert not [entry for entry in caplog.records if entry.exc_info]
    assert any(
        "opening failed" in entry.getMessage() for entry in caplog.records if entry.levelno == logging.ERROR
    )
    assert refused == ["store failed"]


async def test_rest_says_that_a_file_failed_and_not_which(fake_cluster, refused, monkeypatch):
    """A failed read was answered "The store does not accept messages", which it did."""
    monkeypatch.setattr(fake_cluster.topics, "detail", fail)

    class Local(AsyncClient):
        def _base_scope(self, **request):
            return super()._base_scope(**request) | {"server": ("/data/run/web.sock", None)}

    answer = await Local(headers={"Host": "localhost"}).get("/api/v1/topics/Orders")
    assert answer.status_code == 500
    assert answer.json()["code"] == "store_failed"
    assert "/data" not in answer.content.decode() and "check_store" in answer.json()["hint"]
    assert refused == ["store failed"]
    assert problem_of(FAILED).document()["title"] == CODES["store_failed"][1]


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_hot_route_says_it_too(fake_cluster, refused, monkeypatch, caplog, method):
    """They are answered before Django."""
    monkeypatch.setattr(fake_cluster.pulls, "pull", fail)
    monkeypatch.setattr(fake_cluster.sends, "send_batch", fail)
    world = World()
    world.gateway = ClusterGateway(fake_cluster)
    path = "/api/v1/topics/orders/" + ("queues/0/messages" if method == "GET" else "messages")
    status, answer = await world.ask(method, path, b"" if method == "GET" else b'{"body":"x"}')
    assert (status, answer["code"]) == (500, "store_failed")
    assert "/data" not in str(answer)
    assert refused == ["store failed"]
    assert any("opening failed" in entry.getMessage() for entry in caplog.records)


@pytest.mark.parametrize("path", ["/", "/topics/", "/admin/", "/api/v1/topics"])
def test_a_database_that_does_not_answer_is_named(fake_cluster, client_of_role, monkeypatch, caplog, path):
    client = client_of_role("admin")

    def no_table(*arguments):
        raise OperationalError("no such table: django_session")

    monkeypatch.setattr(middleware.roles, "role_of", no_table)
    answer = client.get(path)
    assert answer.status_code == 503
    assert "database does not answer" in answer.content.decode()
    if path.startswith("/api/"):
        assert answer.json()["code"] == "database_unavailable"
    else:
        assert "no such table: django_session" in answer.content.decode()
        assert "test.sqlite3" in answer.content.decode()
    assert not [entry for entry in caplog.records if entry.exc_info]


@pytest.mark.parametrize("path", ["/pipeline/", "/admin/admin/logentry/"])
def test_so_is_one_that_fails_under_a_view(fake_cluster, client_of_role, monkeypatch, path):
    client = client_of_role("admin")
    monkeypatch.setattr(
        PipelineSchedule.objects.__class__,
        "get_queryset",
        lambda self: (_ for _ in ()).throw(OperationalError("disk I/O error")),
    )
    answer = client.get(path)
    assert answer.status_code == 503
    assert "disk I/O error" in answer.content.decode()


def made(path):
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE django_migrations (id)")
    connection.close()


def test_a_database_whose_file_is_removed_or_replaced_is_noticed(tmp_path):
    directory = tmp_path / "50 % of it?"
    directory.mkdir()
    path = str(directory / "mqadmin.sqlite3")
    made(path)
    assert failures.database_failure(path) == ""
    os.rename(path, path + ".away")
    assert failures.database_failure(path) == "mqadmin.sqlite3 was removed"
    made(path)
    assert failures.database_failure(path) == "mqadmin.sqlite3 is another file than the one that was opened"
    os.replace(path + ".away", path)
    assert failures.database_failure(path) == ""
    with open(path, "r+b") as file:
        file.write(bytes(4096))
    assert failures.database_failure(path).startswith("mqadmin.sqlite3 cannot be read: ")


def test_the_condition_says_so():
    found = judge(replace(QUIET, database_failed="mqadmin.sqlite3 was removed"))
    assert found.severity == "bad"
    assert "database does not answer" in found.sentence and "mqadmin.sqlite3 was removed" in found.sentence
