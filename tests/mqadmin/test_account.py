"""Login, the one-time password, and that guessing is slow."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.contrib.auth import get_user_model
from django.test import Client

from mqadmin import first_start
from mqadmin.models import FirstLogin
from mqadmin.views import account
from tests.mqadmin.conftest import PASSWORD

NEW = "something-quite-different-7"


@pytest.fixture(autouse=True)
def fresh_throttle(monkeypatch):
    throttle = account.LoginThrottle(clock=lambda: throttle_now[0])
    throttle_now = [0.0]
    monkeypatch.setattr(account, "throttle", throttle)
    return throttle_now


def _login(client: Client, name: str, password: str):
    return client.post("/login/", {"username": name, "password": password})


def test_the_first_start_makes_an_admin_and_later_ones_do_not(db):
    password = first_start.ensure_admin()
    assert password and len(password) >= 20
    user = get_user_model().objects.get(username="admin")
    assert user.is_superuser and user.check_password(password)
    FirstLogin.objects.all().delete()
    assert first_start.ensure_admin() is None


def test_each_start_prints_another_password_until_one_was_set(db):
    first, second = first_start.ensure_admin(), first_start.ensure_admin()
    assert first != second
    assert get_user_model().objects.get(username="admin").check_password(second)
    assert get_user_model().objects.count() == 1


def test_an_administrator_made_by_hand_is_enough(user_of_role):
    user_of_role("admin", "root")
    assert first_start.ensure_admin() is None


def test_the_one_time_password_opens_one_session_that_sees_only_the_password_page(fake_cluster, db):
    password = first_start.ensure_admin()
    client = Client()
    assert _login(client, "admin", password)["Location"] == "/password/"
    for page in ("/", "/topics/", "/admin/", "/store/", "/messages/40000/record"):
        assert client.get(page)["Location"] == "/password/", page
    refused = client.get("/api/v1/topics")
    assert refused.status_code == 403 and refused["Content-Type"] == "application/problem+json"
    assert "/password/" in refused.json()["hint"]
    assert _login(Client(), "admin", password).status_code == 200, "a second login is refused"
    answer = client.post("/password/", {"new_password1": NEW, "new_password2": NEW})
    assert answer["Location"] == "/"
    assert client.get("/").status_code == 200
    assert not FirstLogin.objects.exists()
    assert _login(Client(), "admin", NEW)["Location"] == "/"


def test_a_weak_password_is_not_taken(fake_cluster, db):
    client = Client()
    _login(client, "admin", first_start.ensure_admin())
    for weak in ("short", "password1234", "administrator"):
        assert client.post("/password/", {"new_password1": weak, "new_password2": weak}).status_code == 200
    assert FirstLogin.objects.exists()


def test_changing_a_password_needs_the_present_one(fake_cluster, client_of_role):
    client = client_of_role("viewer")
    assert client.post("/password/", {"old_password": "wrong", "new_password1": NEW, "new_password2": NEW}).status_code == 200
    assert client.post("/password/", {"old_password": PASSWORD, "new_password1": NEW, "new_password2": NEW}).status_code == 302
    assert client.get("/topics/").status_code == 200, "the session that changed it goes on"


def test_an_unknown_name_and_a_wrong_password_are_answered_alike(user_of_role):
    user_of_role("viewer", "ada")
    unknown, wrong = _login(Client(), "nobody", "x" * 12), _login(Client(), "ada", "x" * 12)
    assert unknown.status_code == wrong.status_code == 200
    sentence = "Name or password is wrong."
    assert sentence in unknown.content.decode() and sentence in wrong.content.decode()


def test_five_failures_within_a_minute_close_the_door_even_to_the_right_password(user_of_role, fresh_throttle):
    user_of_role("viewer", "ada")
    for _ in range(5):
        _login(Client(), "ada", "wrong-password")
    assert "Too many failed logins" in _login(Client(), "ada", PASSWORD).content.decode()
    assert "Too many failed logins" in _login(Client(), "ADA", PASSWORD).content.decode()
    fresh_throttle[0] += 61
    assert _login(Client(), "ada", PASSWORD).status_code == 302


def test_one_name_does_not_close_the_door_to_another(user_of_role):
    user_of_role("viewer", "ada")
    user_of_role("viewer", "bob")
    for _ in range(6):
        _login(Client(), "ada", "wrong-password")
    assert _login(Client(), "bob", PASSWORD).status_code == 302


def test_the_throttle_forgets_rather_than_grows():
    throttle = account.LoginThrottle(clock=lambda: 0.0)
    for number in range(account.MAX_PAIRS + 50):
        throttle.may_try("127.0.0.1", f"name-{number}")
    assert len(throttle._tries) == account.MAX_PAIRS


def test_many_logins_at_once_are_no_more_guesses_than_five():
    throttle, start = account.LoginThrottle(clock=lambda: 0.0), threading.Barrier(20)

    def guess(_):
        start.wait()
        return throttle.may_try("127.0.0.1", "ada")

    with ThreadPoolExecutor(20) as threads:
        assert sum(threads.map(guess, range(20))) == account.TRIES


def test_a_login_is_counted_before_its_password_is_looked_at(user_of_role, monkeypatch):
    user_of_role("viewer", "ada")
    left = []

    def authenticate(*_, **__):
        left.append(sum(account.throttle.may_try("127.0.0.1", "ada") for _ in range(10)))

    monkeypatch.setattr("django.contrib.auth.forms.authenticate", authenticate)
    _login(Client(), "ada", "wrong-password")
    assert left == [account.TRIES - 1], "tries that come while this one is hashed"


def test_the_session_gets_another_key_at_the_login(user_of_role):
    user_of_role("viewer", "ada")
    client = Client()
    client.get("/login/")
    session = client.session
    session["planted"] = True
    session.save()
    before = session.session_key
    client.cookies["mqadmin_session"] = before
    _login(client, "ada", PASSWORD)
    assert client.cookies["mqadmin_session"].value != before


def test_login_leads_only_to_our_own_pages(user_of_role):
    user_of_role("viewer", "ada")
    answer = Client().post("/login/", {"username": "ada", "password": PASSWORD, "next": "https://evil.example/"})
    assert answer["Location"] == "/"


def test_the_admin_has_no_login_of_its_own(db):
    assert Client().get("/admin/login/?next=/admin/")["Location"] == "/login/?next=/admin/"
    assert "/login/" in Client().get("/admin/")["Location"]


def test_who_may_not_into_the_admin_is_told_and_not_sent_in_circles(client_of_role):
    answer = client_of_role("viewer").get("/admin/", follow=True)
    assert answer.status_code == 403 and len(answer.redirect_chain) == 2


def test_cookies_are_kept_from_scripts_and_other_sites(user_of_role):
    user_of_role("viewer", "ada")
    client = Client()
    _login(client, "ada", PASSWORD)
    cookie = client.cookies["mqadmin_session"]
    assert cookie["httponly"] and cookie["samesite"] == "Lax"
