"""The admin over a cluster: lists, forms and actions reach the cluster, and each change leaves one record."""

from __future__ import annotations

import json

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group as UserGroup
from django.test import Client

from broker_store.rest.problems import Problem
from mqadmin.cluster.current import install_cluster
from mqadmin.web import tokens
from tests.support.fake_cluster import FakeCluster

pytestmark = pytest.mark.django_db


@pytest.fixture
def cluster():
    cluster = FakeCluster()
    install_cluster(cluster)
    yield cluster
    install_cluster(None)


def browser(role: str, *, staff: bool = True) -> Client:
    user = get_user_model().objects.create_user(
        f"{role}-user", password="long enough 12", is_staff=staff, is_superuser=role == "superuser"
    )
    if role in ("admin", "operator"):
        user.groups.add(UserGroup.objects.get_or_create(name=role)[0])
    client = Client(headers={"host": "localhost"})
    client.force_login(user)
    return client


def records() -> list[dict]:
    return [
        json.loads(entry.change_message) | {"name": entry.object_repr, "by": entry.user.username}
        for entry in LogEntry.objects.order_by("pk")
    ]


def test_topics_and_groups_are_listed_searched_and_sorted(cluster):
    admin = browser("superuser")
    page = admin.get("/admin/mqadmin/topic/").content.decode()
    for name in ("orders", "page-views", "%RETRY%billing"):
        assert name in page
    page = admin.get("/admin/mqadmin/topic/", {"q": "pay"}).content.decode()
    assert "payments" in page
    assert "page-views" not in page
    page = admin.get("/admin/mqadmin/topic/", {"o": "-6"}).content.decode()
    assert page.index("page-views") < page.index("payments")
    assert "5,220,947" in page
    page = admin.get("/admin/mqadmin/group/", {"o": "-8"}).content.decode()
    assert page.index("48,210") < page.index("nightly-report") and "unknown" in page
    assert admin.get("/admin/").status_code == 200


def test_a_topic_is_created_with_a_record(cluster):
    admin = browser("superuser")
    answer = admin.post(
        "/admin/mqadmin/topic/add/",
        {"name": "fresh", "read_queues": 4, "write_queues": 4, "perm": 6, "message_type": "NORMAL"},
    )
    assert answer.status_code == 302, answer.content
    assert cluster.asked == [("create_topic", "fresh", 4, 4, 6, False, "NORMAL")]
    (record,) = records()
    assert (record["action"], record["kind"], record["outcome"], record["name"], record["by"]) == (
        "create",
        "topic",
        "done",
        "fresh",
        "superuser-user",
    )


def test_a_name_that_is_a_path_or_taken_is_refused_in_the_form(cluster):
    admin = browser("superuser")
    for name in ("../x", "a b", "orders"):
        answer = admin.post(
            "/admin/mqadmin/topic/add/",
            {"name": name, "read_queues": 4, "write_queues": 4, "perm": 6, "message_type": "NORMAL"},
        )
        assert answer.status_code == 200, name
    assert cluster.asked == []
    assert records() == []


def test_the_form_offers_the_types_of_messages_that_the_broker_takes(cluster, monkeypatch):
    admin = browser("superuser")
    page = admin.get("/admin/mqadmin/topic/add/").content.decode()
    assert all(
        f'<option value="{kind}"' in page for kind in ("NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED")
    )
    assert '<option value="LITE"' not in page
    posted = {"name": "fresh", "read_queues": 4, "write_queues": 4, "perm": 6, "message_type": "LITE"}
    assert admin.post("/admin/mqadmin/topic/add/", posted).status_code == 200 and cluster.asked == []
    assert admin.post("/admin/mqadmin/topic/add/", posted | {"message_type": "FIFO"}).status_code == 302
    assert cluster.asked == [("create_topic", "fresh", 4, 4, 6, False, "FIFO")]

    def refuse(*_arguments, **_values):
        raise Problem("invalid", "MIXED message type is not supported.")

    monkeypatch.setattr(cluster.topics, "create", refuse)
    answer = admin.post("/admin/mqadmin/topic/add/", posted | {"message_type": "MIXED"})
    assert answer.status_code == 400 and "MIXED message type is not supported." in answer.content.decode()


def test_only_what_changed_is_sent(cluster):
    admin = browser("superuser")
    answer = admin.post(
        "/admin/mqadmin/topic/orders/change/",
        {"read_queues": 8, "write_queues": 12, "perm": 6, "message_type": "NORMAL"},
    )
    assert answer.status_code == 302
    assert cluster.asked == [("update_topic", "orders", {"write_queues": 12})]
    (record,) = records()
    assert record["detail"] == {"before": {"write_queues": 8}, "after": {"write_queues": 12}}


@pytest.mark.parametrize(
    ("kind", "name", "loss"),
    [
        ("topic", "orders", "1,804,221 messages can no longer be read"),
        ("group", "billing", "2 connected clients would start without an offset"),
    ],
)
def test_a_deletion_wants_the_name_typed_and_each_try_leaves_one_record(cluster, kind, name, loss):
    admin, path = browser("superuser"), f"/admin/mqadmin/{kind}/{name}/delete/"
    assert loss in admin.get(path).content.decode()
    assert records() == []
    for typed in ({"post": "yes"}, {"confirm": ""}, {"confirm": name.upper()}):
        page = admin.post(path, typed)
        assert (page.status_code, f"Type {name} to delete it." in page.content.decode()) == (200, True)
    assert cluster.asked == []
    assert [(record["action"], record["name"], record["outcome"]) for record in records()] == [
        ("delete", name, "confirmation_needed")
    ] * 3
    assert admin.post(path, {"confirm": name}).status_code == 302
    assert cluster.asked == [(f"delete_{kind}", name)]
    assert len(records()) == 4
    assert (
        records()[-1]["outcome"],
        {"messages", "lag"} & records()[-1]["detail"]["before"].keys() != set(),
    ) == ("done", True)


def test_of_a_list_one_is_deleted_at_a_time_by_the_page_that_asks_for_its_name(cluster):
    admin = browser("superuser")
    answer = admin.post(
        "/admin/mqadmin/topic/", {"action": "delete_one", "_selected_action": ["%RETRY%billing"]}, follow=True
    )
    assert "type %RETRY%billing to delete it" in answer.content.decode()
    answer = admin.post(
        "/admin/mqadmin/group/",
        {"action": "delete_one", "_selected_action": ["billing", "search-index"]},
        follow=True,
    )
    assert b"Choose one" in answer.content
    admin.post(
        "/admin/mqadmin/group/", {"action": "delete_selected", "_selected_action": ["billing"], "post": "yes"}
    )
    assert cluster.asked == [] and records() == []


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/admin/mqadmin/topic/orders/delete/", {"confirm": "orders"}),
        ("/admin/mqadmin/group/billing/delete/", {"confirm": "billing"}),
        ("/admin/mqadmin/topic/", {"action": "delete_one", "_selected_action": ["orders"]}),
        (
            "/admin/mqadmin/group/",
            {
                "action": "reset_offset",
                "_selected_action": ["billing"],
                "topic": "orders",
                "to": "earliest",
                "confirm": "billing",
            },
        ),
    ],
)
def test_what_a_viewer_may_not_do_leaves_one_record_of_the_refusal(cluster, path, fields):
    assert browser("viewer").post(path, fields).status_code == 403
    assert cluster.asked == []
    (record,) = records()
    assert (record["outcome"], record["detail"]["role"], record["name"]) == ("forbidden", "viewer", path)


def test_what_belongs_to_the_system_can_be_looked_at_only(cluster):
    admin = browser("superuser")
    assert admin.get("/admin/mqadmin/topic/TBW102/change/").status_code == 200
    assert (
        admin.post(
            "/admin/mqadmin/topic/TBW102/change/",
            {"read_queues": 1, "write_queues": 1, "perm": 6, "message_type": "NORMAL"},
        ).status_code
        == 403
    )
    assert admin.post("/admin/mqadmin/topic/TBW102/delete/", {"confirm": "TBW102"}).status_code == 403
    assert cluster.asked == []


def test_a_reset_previews_then_wants_the_name_then_moves(cluster):
    admin = browser("operator")
    action = {"action": "reset_offset", "_selected_action": ["billing"]}
    page = admin.post("/admin/mqadmin/group/", action)
    assert b"Show the moves" in page.content
    page = admin.post("/admin/mqadmin/group/", action | {"topic": "orders", "to": "earliest"})
    assert b"Moves of offsets" in page.content
    page = admin.post(
        "/admin/mqadmin/group/", action | {"topic": "orders", "to": "earliest", "confirm": "wrong"}
    )
    assert b"Type billing to move the offsets" in page.content
    assert cluster.asked == []
    assert [(record["action"], record["name"], record["outcome"]) for record in records()] == [
        ("reset_offset", "billing", "confirmation_needed")
    ]
    page = admin.post(
        "/admin/mqadmin/group/", action | {"topic": "orders", "to": "earliest", "confirm": "billing"}
    )
    assert page.status_code == 302
    assert cluster.asked == [("reset_offset", "billing", "orders", "earliest", None, None)]
    _, record = records()
    assert (record["action"], record["name"], len(record["detail"]["moves"])) == (
        "reset_offset",
        "billing",
        8,
    )


def test_each_role_may_what_it_may(cluster):
    viewer, operator, admin = browser("viewer"), browser("operator"), browser("admin")
    outsider = browser("outsider", staff=False)
    for client in (viewer, operator, admin):
        assert client.get("/admin/mqadmin/topic/").status_code == 200
    assert outsider.get("/admin/mqadmin/topic/").status_code == 302
    made = {"name": "fresh", "read_queues": 4, "write_queues": 4, "perm": 6, "message_type": "NORMAL"}
    assert viewer.post("/admin/mqadmin/topic/add/", made).status_code == 403
    assert operator.post("/admin/mqadmin/topic/add/", made).status_code == 403
    assert [(record["outcome"], record["detail"]["role"]) for record in records()] == [
        ("forbidden", "viewer"),
        ("forbidden", "operator"),
    ]
    assert admin.post("/admin/mqadmin/topic/add/", made).status_code == 302
    reset = {
        "action": "reset_offset",
        "_selected_action": ["billing"],
        "topic": "orders",
        "to": "earliest",
        "confirm": "billing",
    }
    viewer.post("/admin/mqadmin/group/", reset)
    assert [asked[0] for asked in cluster.asked] == ["create_topic"]
    assert viewer.get("/admin/mqadmin/apitoken/").status_code == 403
    assert viewer.get("/admin/admin/logentry/").status_code == 403
    assert admin.get("/admin/mqadmin/apitoken/").status_code == 200
    assert admin.get("/admin/admin/logentry/").status_code == 200
    for page in ("/admin/django_rq/dashboard/", "/admin/django_rq/dashboard/stats.json"):
        assert viewer.get(page).status_code == operator.get(page).status_code == 403
    assert outsider.get("/admin/django_rq/dashboard/").status_code in (302, 403)


def test_a_token_is_shown_once_and_revoked_by_an_action(cluster):
    admin = browser("superuser")
    page = admin.post(
        "/admin/mqadmin/apitoken/add/", {"name": "ci", "role": "viewer"}, follow=True
    ).content.decode()
    token = tokens.ApiToken.objects.get()
    text = page[page.index("mq_") :][:46]
    assert tokens.TABLE.caller(text, 0).name == "token:ci"
    assert text not in admin.get("/admin/mqadmin/apitoken/").content.decode()
    admin.post("/admin/mqadmin/apitoken/", {"action": "revoke", "_selected_action": [token.pk]})
    assert tokens.TABLE.caller(text, 0) is None
    assert [record["action"] for record in records()] == ["create", "delete"]
    assert text not in json.dumps(records())


def test_the_trail_cannot_be_changed(cluster):
    admin = browser("superuser")
    admin.post("/admin/mqadmin/topic/orders/delete/", {"confirm": "orders"})
    entry = LogEntry.objects.get()
    assert admin.get(f"/admin/admin/logentry/{entry.pk}/change/").status_code == 200
    assert admin.post(f"/admin/admin/logentry/{entry.pk}/delete/", {"post": "yes"}).status_code == 403
    assert admin.post("/admin/admin/logentry/add/", {}).status_code == 403


def test_while_the_broker_starts_the_admin_says_so(cluster):
    admin = browser("superuser")
    cluster.state_name = "recovering"
    page = admin.get("/admin/mqadmin/topic/")
    assert page.status_code == 503
    assert b"starting" in page.content


def test_a_reset_takes_a_time_in_words_and_keeps_what_it_cannot_read(
    client_of_role, fake_cluster, monkeypatch
):
    async def doubt(self, topic, time_ms, queue_id=None):
        return f"asked for {time_ms}"

    monkeypatch.setattr(type(fake_cluster.search), "time_doubt", doubt)
    client = client_of_role("admin")
    action = {"action": "reset_offset", "_selected_action": ["billing"], "topic": "orders", "to": "time"}
    shown = client.post("/admin/mqadmin/group/", action | {"value": "2026-11-22T09:00"}).content.decode()
    assert "Uncertain:</strong> asked for 1795338000000." in shown and 'value="2026-11-22T09:00"' in shown
    for to, value, said in (
        ("time", "soon", "is not a time"),
        ("offset", "soon", "is not a number from 0"),
        ("offset", "-1", "is not a number from 0"),
    ):
        refused = client.post("/admin/mqadmin/group/", action | {"to": to, "value": value}).content.decode()
        assert said in refused and f'value="{value}"' in refused and "Moves of offsets" not in refused
    assert [row for row in fake_cluster.asked if row[0] == "reset_offset"] == []
