"""The pages and REST of access: what they show, that they show no secret, and who changes what."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth import authenticate, get_user_model
from django.contrib.auth.models import Group

from broker_store.access.users import User
from broker_store.rest.problems import Problem
from mqadmin import audit
from mqadmin.cluster.embedded.access import EmbeddedAccess
from mqadmin.facts.access import AccessRule
from mqadmin.models import FirstLogin
from mqadmin.views.access.rights import RIGHTS
from mqadmin.web import tokens
from tests.mqadmin.test_access import CALLERS, lines
from tests.server.test_access import ANN, ON, R, ask
from tests.support.broker_harness import Harness

pytestmark = pytest.mark.django_db

SECRET = "a-secret-that-is-not-shown"
SECRETS = ("the-secret-of-root", "the-secret-of-billing", "the-secret-of-old", SECRET)


@pytest.fixture
def admin(fake_cluster, client_of_role):
    return client_of_role("admin")


@pytest.fixture
def viewer(fake_cluster, client_of_role):
    return client_of_role("viewer")


def send(client, method: str, address: str, body: dict | None = None):
    return getattr(client, method)(address, json.dumps(body or {}), content_type="application/json")


def records() -> list[audit.AuditRecord]:
    return [audit.read(entry) for entry in LogEntry.objects.order_by("pk")]


# What is shown


def test_the_page_shows_users_refusals_and_what_is_open(viewer):
    text = viewer.get("/access/").content.decode()
    for shown in ("billing", "old-importer", "disabled", "but for 34", "no known user", "not authenticated"):
        assert shown in text
    assert "New user" not in text and "The audit trail is for administrators" in text


def test_with_access_control_off_the_page_says_so_and_how_to_turn_it_on(admin, fake_cluster):
    fake_cluster.access.control = None
    text = admin.get("/access/").content.decode()
    assert "Access control is off" in text and "authenticationEnabled=true" in text
    assert "New user" not in text
    state = admin.get("/api/v1/access").json()
    assert (state["authenticates"], state["counts"], state["refusals"]) == (False, None, [])
    answer = admin.get("/api/v1/access/users")
    assert (answer.status_code, answer.json()["code"]) == (409, "conflict")
    assert "authenticationEnabled=true" in answer.json()["hint"]
    answer = admin.post("/access/", {"name": "x", "password": SECRET, "type": "Normal", "status": "enable"})
    assert answer.status_code == 400 and "access control is off" in answer.content.decode().lower()


def test_without_rights_the_page_says_that_each_user_may_do_everything(admin, fake_cluster):
    fake_cluster.access.control.authorizes = False
    assert "authorizationEnabled is off" in admin.get("/access/").content.decode()
    answer = admin.get("/api/v1/access/decision?user=shop&resource=Topic:x&action=Pub").json()
    assert answer["is_allowed"] and "authorizationEnabled is off" in answer["why"]


def test_before_the_broker_serves_the_page_shows_the_start(admin, fake_cluster):
    fake_cluster.state_name = "starting"
    assert "starting" in admin.get("/access/").content.decode()
    assert admin.get("/api/v1/access").status_code == 503


def test_a_search_that_finds_no_user_says_so(viewer):
    assert "No user has “zzz” in its name" in viewer.get("/access/?q=zzz").content.decode()


def test_no_page_and_no_answer_has_a_secret(admin, fake_cluster):
    admin.post("/access/", {"name": "new", "password": SECRET, "type": "Normal", "status": "enable"})
    admin.post("/access/users/new", {"do": "password", "password": SECRET})
    wrong = admin.post("/access/", {"name": "new", "password": SECRET, "type": "Normal", "status": "enable"})
    assert wrong.status_code == 400
    created = send(admin, "post", "/api/v1/access/users", {"name": "newer", "password": SECRET})
    too_long = send(admin, "post", "/api/v1/access/users", {"name": "n", "password": SECRET * 99})
    assert (created.status_code, too_long.status_code) == (201, 422)
    answers = [wrong, created, too_long]
    for address in ("/access/", "/access/dashboard/", "/access/users/new", "/access/users/billing"):
        answers.append(admin.get(address))
    for address in ("access", "access/users", "access/users/root", "auth/users", "audit"):
        answers.append(admin.get(f"/api/v1/{address}"))
    trail = " ".join(LogEntry.objects.values_list("change_message", flat=True))
    for secret in SECRETS:
        assert secret not in trail
        assert all(secret not in answer.content.decode() for answer in answers)
    assert fake_cluster.access.control.state.users["new"].secret == SECRET


# The decision


@pytest.mark.parametrize(
    ("question", "is_allowed", "why", "rule"),
    [
        ("user=billing&resource=Topic:orders&action=pub", True, "Custom policy: Allow Pub", "Topic:orders"),
        ("user=billing&resource=Topic:orders&action=Get", False, "no rule matches", None),
        ("user=billing&resource=Group:g&action=Sub", True, "Default policy", "Group:*"),
        ("user=billing&resource=Topic:%25RETRY%25g&action=Sub", True, "Default policy", "Group:*"),
        ("user=billing&resource=Topic:pay1&action=Pub", False, "ask again with an address", None),
        ("user=billing&resource=Topic:pay1&action=Pub&address=10.1.2.3", False, "Deny All", "Topic:pay*"),
        (
            "user=billing&resource=Topic:pay1&action=Pub&address=::ffff:10.1.2.3",
            False,
            "Deny All",
            "Topic:pay*",
        ),
        ("user=billing&resource=Topic:pay1&action=Pub&address=9.1.2.3", False, "no rule matches", None),
        ("user=root&resource=Topic:pay1&action=Pub", True, "Super user", None),
        ("user=old-importer&resource=Topic:pay1&action=Pub", False, "disable", None),
        ("user=shop&resource=Cluster:DefaultCluster&action=Get", False, "no rule matches", None),
    ],
)
def test_a_question_is_answered_with_the_rule_that_decides(viewer, question, is_allowed, why, rule):
    answer = viewer.get(f"/api/v1/access/decision?{question}").json()
    assert (answer["is_allowed"], answer["rule"] and answer["rule"]["resource"]) == (is_allowed, rule)
    assert why in answer["why"]
    page = viewer.get(f"/access/?{question}").content.decode()
    assert ("<strong>Yes</strong>" in page, "<strong>No</strong>" in page) == (is_allowed, not is_allowed)


@pytest.mark.parametrize(
    ("question", "status", "wrong"),
    [
        ("user=none&resource=Topic:x&action=Pub", 404, "there is no user"),
        ("user=shop&resource=Topic:x*&action=Pub", 400, "resource: 'Topic:x*' has no one name"),
        ("user=shop&resource=topics&action=Pub", 400, "resource: 'topics' is none"),
        ("user=shop&resource=Any:x&action=Pub", 400, "resource: 'Any:x' is none"),
        ("user=shop&resource=Topic:x&action=Any", 400, "action: 'Any' is none"),
        ("user=shop&resource=Topic:x&action=Pub&address=10.0.0.0/8", 400, "is no address"),
    ],
)
def test_a_question_that_cannot_be_asked_is_refused_with_what_is_wrong(viewer, question, status, wrong):
    answer = viewer.get(f"/api/v1/access/decision?{question}")
    assert answer.status_code == status and wrong in answer.json()["detail"]
    page = viewer.get(f"/access/?{question}")
    assert page.status_code == 200 and "notice bad" in page.content.decode()


def test_the_page_of_a_user_marks_the_rule_that_decides(viewer):
    text = viewer.get("/access/users/billing?resource=Topic:orders&action=Sub").content.decode()
    assert text.count("decides</span>") == 1 and "Add or replace a rule" not in text
    assert viewer.get("/access/users/missing").status_code == 404


# Changes


def test_a_user_is_made_changed_and_deleted_by_the_page_with_records(admin, fake_cluster):
    state = lambda: fake_cluster.access.control.state  # noqa: E731
    given = {"name": "a/b c", "password": SECRET, "type": "Normal", "status": "enable"}
    address = admin.post("/access/", given)["location"]
    assert state().users["a/b c"].secret == SECRET
    assert "Normal user" in admin.get(address).content.decode()
    admin.post(address, {"do": "change", "type": "Super", "status": "disable"})
    assert (state().users["a/b c"].is_super, state().users["a/b c"].is_disabled) == (True, True)
    admin.post(address, {"do": "password", "password": "another-secret"})
    assert state().users["a/b c"].secret == "another-secret"
    assert admin.post(address, {"do": "delete", "confirm": "b"}).status_code == 400
    admin.post(address, {"do": "delete", "confirm": "a/b c"})
    assert "a/b c" not in state().users
    assert [(one.action, one.kind, one.name, one.outcome, one.by) for one in records()] == [
        ("create", "user", "a/b c", "done", "user:the-admin"),
        ("update", "user", "a/b c", "done", "user:the-admin"),
        ("update", "user", "a/b c", "done", "user:the-admin"),
        ("delete", "user", "a/b c", "confirmation_needed", "user:the-admin"),
        ("delete", "user", "a/b c", "done", "user:the-admin"),
    ]
    assert records()[1].detail == {
        "before": {"type": "Normal", "status": "enable"},
        "after": {"type": "Super", "status": "disable"},
    }
    assert records()[2].detail == {"before": {}, "after": {"password": "changed"}}
    text = admin.get("/access/").content.decode()
    assert "confirmation_needed" in text and "delete user" in text


def test_a_rule_is_kept_replaced_and_deleted_by_the_page(admin, fake_cluster):
    rule = {"do": "put_rule", "policy": "Custom", "resource": "topic:new", "verdict": "Deny"}
    given = {**rule, "actions": ["Pub", "Sub"], "addresses": "10.0.0.0/8, 9.9.9.9"}
    assert admin.post("/access/users/shop", given).status_code == 302
    (kept,) = fake_cluster.access.detail("shop").rules
    assert kept == AccessRule(
        policy="Custom",
        resource="Topic:new",
        actions=["Pub", "Sub"],
        addresses=["10.0.0.0/8", "9.9.9.9"],
        verdict="Deny",
    )
    admin.post("/access/users/shop", {**given, "verdict": "Allow", "actions": ["All"], "addresses": ""})
    assert [one.verdict for one in fake_cluster.access.detail("shop").rules] == ["Allow"]
    gone = {"do": "delete_rule", "policy": "Custom", "resource": "Topic:new"}
    assert admin.post("/access/users/shop", gone).status_code == 302
    assert fake_cluster.access.detail("shop").rules == []
    assert admin.post("/access/users/shop", gone).status_code == 400
    found = records()
    assert [(one.action, one.kind, one.name, one.outcome) for one in found] == [
        ("update", "acl", "User:shop", "done"),
        ("update", "acl", "User:shop", "done"),
        ("delete", "acl", "User:shop", "done"),
        ("delete", "acl", "User:shop", "not_found"),
    ]
    assert found[1].detail["before"] == ["Custom: Deny Pub, Sub on Topic:new from 10.0.0.0/8, 9.9.9.9"]
    assert found[1].detail["rule"] == "Custom: Allow All on topic:new"


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"resource": "topics"}, "expected *, or a type"),
        ({"resource": "Topic:a*b*"}, "expected *, or a type"),
        ({"resource": "Topic:"}, "expected *, or a type"),
        ({"actions": []}, "give at least one"),
        ({"actions": ["Any"]}, "expected one of All, Pub"),
        ({"addresses": "10.0.0.0/99"}, "expected an address"),
        ({"verdict": "Maybe"}, "is none of Allow, Deny"),
    ],
)
def test_a_rule_that_there_cannot_be_is_refused_with_what_is_wrong(admin, fake_cluster, given, sentence):
    rule = {
        "do": "put_rule",
        "policy": "Custom",
        "resource": "Topic:x",
        "verdict": "Allow",
        "actions": ["Pub"],
    }
    answer = admin.post("/access/users/shop", rule | given)
    assert answer.status_code == 400 and sentence in answer.content.decode()
    assert fake_cluster.access.detail("shop").rules == []


def test_rest_changes_users_and_rules(admin, fake_cluster):
    send(admin, "post", "/api/v1/access/users", {"name": "n", "password": SECRET, "type": "Super"})
    changed = send(admin, "patch", "/api/v1/access/users/n", {"type": "Normal"}).json()
    assert (changed["type"], changed["status"]) == ("Normal", "enable")
    body = {"policy": "Default", "resource": "Group:*", "actions": ["Sub"]}
    put = send(admin, "put", "/api/v1/access/rules/n", body).json()
    assert put["rules"] == [
        {"policy": "Default", "resource": "Group:*", "actions": ["Sub"], "addresses": [], "verdict": "Allow"}
    ]
    assert admin.delete("/api/v1/access/rules/n?policy=Default&resource=Group:*").status_code == 204
    assert admin.delete("/api/v1/access/users/n?confirm=m").status_code == 409
    assert admin.delete("/api/v1/access/users/n?confirm=n").status_code == 204
    assert "n" not in fake_cluster.access.control.state.users
    wrong = send(admin, "put", "/api/v1/access/rules/shop", {"resource": "x", "actions": ["Pub"]})
    assert (wrong.status_code, wrong.json()["code"]) == (400, "invalid")


def test_a_list_of_users_comes_in_pieces(admin):
    first = admin.get("/api/v1/access/users?limit=3").json()
    assert [user["name"] for user in first["items"]] == ["billing", "old-importer", "root"]
    rest = admin.get(f"/api/v1/access/users?cursor={first['next']}").json()
    assert [user["name"] for user in rest["items"]] == ["shop"] and rest["next"] is None
    assert rest["total"] == 4


def test_a_viewer_changes_nothing_and_leaves_a_record(viewer, fake_cluster):
    given = {"name": "x", "password": SECRET, "type": "Super", "status": "enable"}
    assert viewer.post("/access/", given).status_code == 403
    assert send(viewer, "delete", "/api/v1/access/users/shop?confirm=shop").status_code == 403
    assert fake_cluster.asked == []
    assert [one.outcome for one in records()] == ["forbidden", "forbidden"]


def test_an_import_adds_users_that_are_not_there_and_leaves_one_record(admin, fake_cluster):
    rules = [{"resource": "Topic:a", "actions": ["Pub"]}, {"resource": "Topic:b", "actions": ["Sub"]}]
    users = [{"name": "shop", "password": SECRET}, {"name": "fresh", "password": SECRET, "rules": rules}]
    tried = send(admin, "post", "/api/v1/access/import", {"users": users}).json()
    assert tried == {"dry_run": True, "created": ["fresh"], "skipped": ["shop"]}
    assert "fresh" not in fake_cluster.access.control.state.users and records() == []
    made = send(admin, "post", "/api/v1/access/import", {"users": users, "dry_run": False})
    assert made.json() == {"dry_run": False, "created": ["fresh"], "skipped": ["shop"]}
    state = fake_cluster.access.control.state
    assert state.users["fresh"].secret == SECRET and state.users["shop"].secret != SECRET
    assert [one.resource for one in fake_cluster.access.detail("fresh").rules] == ["Topic:a", "Topic:b"]
    (record,) = records()
    assert (record.action, record.detail["created"]) == ("import", ["fresh"])


def test_an_import_with_a_wrong_user_adds_no_user(admin, fake_cluster):
    users = [{"name": "fresh", "password": SECRET}, {"name": " ", "password": SECRET}]
    answer = send(admin, "post", "/api/v1/access/import", {"users": users, "dry_run": False})
    assert answer.status_code == 400 and "fresh" not in fake_cluster.access.control.state.users


# A broker


def embedded(harness: Harness) -> EmbeddedAccess:
    return EmbeddedAccess(SimpleNamespace(parts=harness.parts))


async def test_a_change_is_in_the_file_of_the_broker_and_acts_on_the_next_request():
    harness = Harness(**ON)
    access = embedded(harness)
    await access.create_user("ann", ANN.secret_key, "Normal", "enable")
    assert (await ask(harness, R.GET_MAX_OFFSET, ANN, topic="T", queueId="0")).code == 16
    rule = AccessRule(policy="Custom", resource="Topic:T", actions=["Get"], addresses=[], verdict="Allow")
    await access.put_rule("ann", rule)
    assert (await ask(harness, R.GET_MAX_OFFSET, ANN, topic="T", queueId="0")).code != 16
    kept = json.loads(harness.store.config["access.json"])
    assert [acl["subject"] for acl in kept["acls"]] == ["User:ann"]
    await access.update_user("ann", status="disable")
    assert (await ask(harness, R.GET_MAX_OFFSET, ANN, topic="T", queueId="0")).code == 16
    assert [(row.user, row.count) for row in access.state().refusals] == [("ann", 1), ("ann", 1)]


async def test_changes_by_page_and_port_at_once_are_all_kept():
    harness = Harness(**ON)
    access = embedded(harness)
    names = [f"user-{number}" for number in range(8)]
    await asyncio.gather(*(access.create_user(name, "a-secret", "Normal", "enable") for name in names))
    assert set(names) < set(harness.parts.access.state.users)


async def test_while_access_control_is_off_nothing_is_changed():
    access = embedded(Harness())
    assert not access.state().authenticates
    with pytest.raises(Problem, match="access control is off"):
        await access.create_user("ann", "a-secret", "Normal", "enable")


async def test_a_file_that_cannot_be_written_leaves_the_users_as_they_were(monkeypatch):
    harness = Harness(**ON)

    def fails(name: str, data: bytes) -> None:
        raise OSError("no room")

    monkeypatch.setattr(harness.store, "write_config", fails)
    with pytest.raises(OSError, match="no room"):
        await embedded(harness).create_user("ann", "a-secret", "Normal", "enable")
    assert "ann" not in harness.parts.access.state.users


async def test_a_user_that_there_cannot_be_is_refused():
    access = embedded(Harness(**ON))
    for name, password, wrong in (("", "x", "blank"), ("a\nb", "x", "printable"), ("a", " ", "blank")):
        with pytest.raises(Problem, match=wrong):
            await access.create_user(name, password, "Normal", "enable")
    await access.create_user("ann", "x", "Normal", "enable")
    with pytest.raises(Problem, match="exists"):
        await access.create_user("ann", "x", "Normal", "enable")


# The dashboard's own


def test_a_user_of_the_dashboard_is_made_with_a_password_for_one_login(admin):
    given = {"do": "create_user", "name": "olga", "role": "operator", "password": "only-for-one-login"}
    assert admin.post("/access/dashboard/", given).status_code == 302
    olga = get_user_model().objects.get(username="olga")
    assert FirstLogin.objects.filter(user=olga).exists() and olga.is_staff
    assert authenticate(username="olga", password="only-for-one-login") == olga
    text = admin.get("/access/dashboard/").content.decode()
    assert "for one login" in text and "create dashboard_user" in text
    (record,) = records()
    assert (record.kind, record.name, record.detail) == ("dashboard_user", "olga", {"role": "operator"})


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        ({"password": "short"}, "too short"),
        ({"name": "the-admin"}, "exists"),
        ({"name": "token:x"}, "valid username"),
        ({"role": "king"}, "is none of"),
    ],
)
def test_a_user_of_the_dashboard_that_there_cannot_be_is_refused(admin, given, wrong):
    good = {"do": "create_user", "name": "olga", "role": "viewer", "password": "only-for-one-login"}
    answer = admin.post("/access/dashboard/", good | given)
    assert answer.status_code == 400 and wrong in answer.content.decode()
    assert not get_user_model().objects.filter(username="olga").exists()


def test_the_role_of_a_user_is_changed_and_no_administrator_locks_itself_out(admin, user_of_role):
    olga = user_of_role("viewer", "olga")
    changed = send(admin, "patch", "/api/v1/auth/users/olga", {"role": "admin"}).json()
    assert changed["role"] == "admin"
    assert send(admin, "patch", "/api/v1/auth/users/olga", {"role": "operator"}).json()["role"] == "operator"
    assert {group.name for group in olga.groups.all()} == {"operator"}
    assert send(admin, "patch", "/api/v1/auth/users/olga", {"is_active": False}).json()["is_active"] is False
    for change in ({"role": "viewer"}, {"is_active": False}):
        assert send(admin, "patch", "/api/v1/auth/users/the-admin", change).status_code == 409
    assert send(admin, "patch", "/api/v1/auth/users/none", {"role": "viewer"}).status_code == 404


def test_the_last_active_administrator_stays(fake_cluster, client_of_role):
    token_client = client_of_role("admin")
    the_admin = get_user_model().objects.get(username="the-admin")
    other = get_user_model().objects.create_user("other", is_active=False)
    other.groups.add(Group.objects.get_or_create(name="admin")[0])
    _, text = tokens.issue("a program", "admin", "user:test")
    headers = {"HTTP_AUTHORIZATION": f"Bearer {text}"}
    answer = token_client.patch(
        "/api/v1/auth/users/the-admin", '{"is_active": false}', content_type="application/json", **headers
    )
    assert answer.status_code == 409 and "last active administrator" in answer.json()["detail"]
    the_admin.refresh_from_db()
    assert the_admin.is_active


def test_a_token_is_shown_once_and_revoked(admin):
    given = {"do": "issue_token", "name": "a program", "role": "viewer", "days": "7"}
    text = admin.post("/access/dashboard/", given).content.decode()
    token = tokens.ApiToken.objects.get()
    assert f"{token.start}" in text and "shown only this once" in text
    shown = text.split("The token is <code")[1].split(">")[1].split("<")[0]
    assert tokens.TABLE.caller(shown, 0) is not None
    assert shown not in admin.get("/access/dashboard/").content.decode()
    admin.post("/access/dashboard/", {"do": "revoke_token", "token": str(token.pk)})
    assert tokens.TABLE.caller(shown, 0) is None
    assert [one.action for one in records()] == ["create", "delete"]
    assert admin.post("/access/dashboard/", given | {"days": "0"}).status_code == 400


@pytest.mark.parametrize(
    ("caller", "right", "is_allowed", "why"),
    [
        ("user:the-admin", "change_access", True, "a superuser has the role admin"),
        ("user:olga", "send", False, "in none of the groups"),
        ("user:olga", "see", True, "in none of the groups"),
        ("user:otto", "send", True, "in the group operator"),
        ("user:otto", "read_audit", False, "needs the role admin"),
        ("user:gone", "see", False, "not active"),
    ],
)
def test_a_question_about_the_dashboard_is_answered_with_what_decides(
    admin, user_of_role, caller, right, is_allowed, why
):
    user_of_role("viewer", "olga"), user_of_role("operator", "otto")
    get_user_model().objects.create_user("gone", is_active=False)
    answer = admin.get(f"/api/v1/auth/decision?caller={caller}&right={right}").json()
    assert answer["is_allowed"] == is_allowed and why in answer["why"]
    page = admin.get(f"/access/dashboard/?caller={caller}&right={right}").content.decode()
    assert ("<strong>Yes</strong>" in page) == is_allowed


def test_a_question_about_a_token_depends_on_its_role_and_state(admin):
    token, _ = tokens.issue("a program", "operator", "user:test")
    address = f"/api/v1/auth/decision?caller=token:{token.pk}&right=run_jobs"
    assert admin.get(address).json()["is_allowed"]
    tokens.revoke(token)
    assert admin.get(address).json()["why"] == "the token is revoked"
    for wrong in ("caller=token:99&right=send", "caller=x&right=send", "caller=user:the-admin&right=x"):
        assert admin.get(f"/api/v1/auth/decision?{wrong}").status_code in (400, 404)


@pytest.mark.parametrize("right", RIGHTS, ids=lambda right: right.name)
def test_a_right_has_the_role_that_its_route_needs(right):
    answers = dict(zip(CALLERS, lines()[right.method, right.address], strict=True))
    may = [role for role in ("viewer", "operator", "admin") if answers[role] != "403"]
    assert may[0] == right.role
    assert [role for role in ("viewer", "operator", "admin") if answers[f"token:{role}"] != "403"] == may


def test_the_last_changes_are_those_of_some_kinds_and_say_if_there_are_more(admin, monkeypatch):
    for number in range(4):
        with audit.audited(admin_caller(), "update", "user", f"u{number}"):
            pass
        with audit.audited(admin_caller(), "update", "topic", f"t{number}", note='"kind": "user"'):
            pass
    found = audit.latest_of(("user",), 2)
    assert ([one.name for one in found.records], found.is_all) == (["u3", "u2"], False)
    found = audit.latest_of(("user",), 10)
    assert ([one.name for one in found.records], found.is_all) == (["u3", "u2", "u1", "u0"], True)
    monkeypatch.setattr(audit, "MAX_SEARCHED", 2)
    found = audit.latest_of(("user",), 10)
    assert ([one.name for one in found.records], found.is_all) == (["u3"], False)


def admin_caller():
    return audit.Caller("user:the-admin", "admin")


def test_a_user_of_the_dashboard_in_the_trail_is_told_from_one_of_the_broker(admin):
    user = get_user_model().objects.get(username="the-admin")
    admin.post(f"/admin/auth/user/{user.pk}/change/", {"username": "the-admin"})
    kinds = {one.kind for one in records()}
    assert "user" not in kinds


def test_a_secret_is_in_no_text_of_a_user():
    assert SECRET not in repr(User("x", SECRET))
