"""The trail: one record for each change that was asked for, by any route, done or failed; no caller can delete
one."""

from __future__ import annotations

import dataclasses
import json

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth import get_user_model
from django.test import Client
from redis.exceptions import ConnectionError as NoRedis

from broker_store.errors import DiskFullError
from broker_store.rest.change_record import ChangeRecord
from broker_store.rest.problems import Problem
from mqadmin import audit
from mqadmin.api.system import _audit_page
from mqadmin.web import roles
from tests.support.fake_runs import job_of

pytestmark = pytest.mark.django_db

# What can do harm: (door, method, address, fields, call of the cluster or None for a job, action, name).
DANGEROUS = (
    ("api", "delete", "/api/v1/topics/orders?confirm=orders", None, "topics.delete", "delete", "orders"),
    ("api", "patch", "/api/v1/topics/orders", {"perm": 4}, "topics.update", "update", "orders"),
    ("api", "post", "/api/v1/topics", {"name": "fresh"}, "topics.create", "create", "fresh"),
    ("api", "delete", "/api/v1/groups/billing?confirm=billing", None, "groups.delete", "delete", "billing"),
    ("api", "patch", "/api/v1/groups/billing", {"orderly": True}, "groups.update", "update", "billing"),
    ("api", "post", "/api/v1/groups", {"name": "fresh"}, "groups.create", "create", "fresh"),
    ("api", "post", "/api/v1/groups/billing/offsets/reset", {"topic": "orders", "to": "latest", "dry_run": False, "confirm": "billing"}, "groups.reset_offsets", "reset_offset", "billing"),
    ("api", "post", "/api/v1/store/index/rebuild", {}, "index.rebuild", "rebuild_index", "index"),
    ("api", "delete", "/api/v1/store/index/rebuild", None, "index.cancel_rebuild", "cancel_rebuild", "index"),
    ("api", "post", "/api/v1/jobs", {"kind": "check_store"}, None, "start", "check_store"),
    ("api", "post", "/api/v1/jobs/some-job/cancel", {}, None, "cancel", "some-job"),
    ("form", "post", "/jobs/start", {"kind": "check_store"}, None, "start", "check_store"),
    ("form", "post", "/jobs/some-job/cancel", {}, None, "cancel", "some-job"),
    ("form", "post", "/admin/mqadmin/topic/add/", {"name": "fresh", "read_queues": 4, "write_queues": 4, "perm": 6, "message_type": "NORMAL"}, "topics.create", "create", "fresh"),
    ("form", "post", "/admin/mqadmin/topic/orders/change/", {"read_queues": 8, "write_queues": 12, "perm": 6, "message_type": "NORMAL"}, "topics.update", "update", "orders"),
    ("form", "post", "/admin/mqadmin/topic/orders/delete/", {"confirm": "orders"}, "topics.delete", "delete", "orders"),
    ("form", "post", "/admin/mqadmin/group/billing/delete/", {"confirm": "billing"}, "groups.delete", "delete", "billing"),
    ("form", "post", "/admin/mqadmin/group/",
     {"action": "reset_offset", "_selected_action": ["billing"], "topic": "orders", "to": "latest", "confirm": "billing"}, "groups.reset_offsets", "reset_offset", "billing"),
)  # fmt: skip
QUEUE_PAGES = (
    "failed/clear/",
    "empty/",
    "requeue-all/",
    "some-job/delete/",
    "some-job/requeue/",
    "some-job/enqueue/",
    "some-job/stop/",
)


@pytest.fixture
def administrator(fake_cluster, client_of_role) -> Client:
    client = client_of_role("admin")
    client.raise_request_exception = False
    return client


def records() -> list[audit.AuditRecord]:
    return [audit.read(entry) for entry in LogEntry.objects.order_by("pk")]


def ask(client: Client, door: str, method: str, address: str, fields: dict | None):
    if door == "form":
        return client.post(address, fields)
    return getattr(client, method)(address, json.dumps(fields or {}), content_type="application/json")


@pytest.mark.quick(9)
@pytest.mark.parametrize(
    "case", DANGEROUS, ids=lambda case: f"{case[1]} {case[2].partition('?')[0]} {case[5]}"
)
@pytest.mark.parametrize("fails", [False, True])
def test_each_dangerous_action_leaves_one_record_whether_it_succeeds_or_fails(
    administrator, fake_cluster, monkeypatch, case, fails
):
    door, method, address, fields, call, action, name = case

    def failing(*_, **__):
        raise (
            Problem("jobs_unavailable", "no Redis") if call is None else DiskFullError("/srv/store: no room")
        )

    if fails and call is not None:
        part, _, method_of_part = call.partition(".")
        owner = getattr(fake_cluster, part)
        real = getattr(owner, method_of_part)
        monkeypatch.setattr(
            owner,
            method_of_part,
            lambda *given, **named: real(*given, **named) if named.get("dry_run") else failing(),
        )
    for job_call in ("start", "cancel"):
        monkeypatch.setattr(f"mqadmin.jobs.queue.{job_call}", failing if fails else lambda *_, **__: JOB)
    ask(administrator, door, method, address, fields)
    (record,) = records()
    assert (record.action, record.name, record.by) == (action, name, "user:the-admin")
    assert (record.outcome != "done") == fails
    if not fails:
        assert record.outcome == "done"


UNCONFIRMED = [
    (
        door,
        method,
        address.replace("confirm=", "confirm=un"),
        fields and {name: "another" if name == "confirm" else value for name, value in fields.items()},
        action,
        name,
    )
    for door, method, address, fields, _, action, name in DANGEROUS
    if "confirm" in (fields or address)
]


@pytest.mark.parametrize(
    "case", UNCONFIRMED, ids=lambda case: f"{case[1]} {case[2].partition('?')[0]} {case[4]}"
)
def test_another_name_than_that_of_what_is_to_go_changes_nothing_and_leaves_one_record(
    administrator, fake_cluster, case
):
    *request, action, name = case
    ask(administrator, *request)
    assert fake_cluster.asked == []
    (record,) = records()
    assert (record.action, record.name, record.outcome, record.by) == (
        action,
        name,
        "confirmation_needed",
        "user:the-admin",
    )


def test_each_dangerous_action_that_cannot_be_taken_back_wants_the_name():
    assert [(case[0], case[4], case[5]) for case in UNCONFIRMED] == [
        (door, action, name)
        for door in ("api", "form")
        for action, name in (("delete", "orders"), ("delete", "billing"), ("reset_offset", "billing"))
    ]


JOB = job_of(by="user:the-admin")


@pytest.mark.parametrize("page", QUEUE_PAGES)
def test_what_is_done_to_queues_leaves_one_record_too(administrator, monkeypatch, page):
    def no_redis(*_, **__):
        raise NoRedis

    monkeypatch.setattr("django_rq.views.get_queue_by_index", no_redis)
    assert administrator.post(f"/admin/django_rq/dashboard/queues/0/{page}").status_code == 503
    (record,) = records()
    assert record.kind == "job" and record.outcome == "jobs_unavailable" and record.by == "user:the-admin"
    assert record.name == ("some-job" if "some-job" in page else "")


def test_a_user_who_is_in_the_trail_is_made_inactive_and_not_deleted(administrator):
    ask(administrator, *DANGEROUS[0][:4])
    user = get_user_model().objects.get(username="the-admin")
    assert administrator.post(f"/admin/auth/user/{user.pk}/delete/", {"post": "yes"}).status_code == 403
    administrator.post(
        "/admin/auth/user/", {"action": "delete_selected", "_selected_action": [user.pk], "post": "yes"}
    )
    assert get_user_model().objects.filter(pk=user.pk).exists()
    assert records()[0].name == "orders"


def test_an_action_that_cannot_be_recorded_is_not_done(administrator, fake_cluster, monkeypatch):
    def fails(*_, **__):
        raise OSError("no room for the record")

    monkeypatch.setattr(LogEntry.objects, "create", fails)
    assert ask(administrator, *DANGEROUS[0][:4]).status_code == 500
    assert fake_cluster.asked == []


def test_changes_through_the_brokers_port_stand_in_the_same_trail(administrator):
    change = ChangeRecord(
        1_795_244_402_754, "update", "topic", "orders", "done", "10.0.0.5:51000", "UPDATE_AND_CREATE_TOPIC (17)", "10.0.0.5@7", "JAVA", 505,
        detail={"before": None, "after": {"perm": 6}},
    )  # fmt: skip
    many = dataclasses.replace(
        change, name="T0", address="10.0.0.5", count=99_000, client_id=None, detail={"names": ["T0", "T1"]}
    )
    audit.write_changes([change, many])
    first, second = records()
    assert (first.by, first.action, first.kind, first.name, first.outcome) == (
        "wire:10.0.0.5:51000",
        "update",
        "topic",
        "orders",
        "done",
    )
    assert (
        first.at == "2026-11-21T07:00:02.754Z"
        and first.detail["client_id"] == "10.0.0.5@7"
        and first.detail["after"] == {"perm": 6}
    )
    assert (
        second.detail["count"] == 99_000
        and get_user_model().objects.filter(username__startswith="wire:").count() == 1
    )
    assert not get_user_model().objects.get(username="wire:clients").is_active
    assert [record.by for record in _audit_page(None, 10).items] == ["wire:10.0.0.5", "wire:10.0.0.5:51000"]
    assert "wire:10.0.0.5:51000" in administrator.get("/admin/admin/logentry/").content.decode()


def test_a_request_cannot_write_another_name_into_its_record(administrator):
    ask(
        administrator,
        "api",
        "post",
        "/api/v1/jobs",
        {"kind": "export_messages", "parameters": {"topic": "orders", "by": "user:another"}},
    )
    (record,) = records()
    assert record.by == "user:the-admin"


@pytest.mark.parametrize(
    ("long", "kept"),
    [
        ({"after": {"value": "v" * 9_000}}, {"after"}),
        ({"value": '\u2028"' * 9_000}, {"value"}),  # 8 characters of JSON each
        ({f"key{number}": "v" * 100 for number in range(90)}, {"key0", "key38", "keys_left_out"}),
        ({"k" * 500: "v" * 5_000}, {"k" * 80}),
    ],
)
def test_of_a_detail_that_is_too_long_the_first_characters_are_kept(administrator, long, kept):
    """All of it was dropped: the trail said that something had been changed, and not what."""
    with audit.audited(
        roles.caller_of(get_user_model().objects.get(username="the-admin")),
        "update",
        "topic",
        "orders",
        short=7,
        **long,
    ):
        pass
    (record,) = records()
    (entry,) = LogEntry.objects.all()
    assert len(entry.change_message) <= audit.MAX_DETAIL and record.outcome == "done"
    assert record.detail["short"] == 7 and record.detail.keys() >= kept
    assert "keys_left_out" in kept or "… (" in record.detail[min(kept)]
