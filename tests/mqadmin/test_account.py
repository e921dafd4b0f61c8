"""Login, the one-time password, and that guessing is slow."""

from __future__ import annotations

import functools
import threading
from concurrent.futures import ThreadPoolExecutor, as_completed

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.hashers import MD5PasswordHasher
from django.test import Client

from mqadmin.models import FirstLogin
from mqadmin.process import first_start
from mqadmin.web import logins
from mqadmin.web.trusted_proxies import client_address, proxies_of
from tests.mqadmin.conftest import PASSWORD

NEW = "something-quite-different-7"


@pytest.fixture(autouse=True)
def now(monkeypatch):
    """The time of the limits, in a list of one."""
    now = [0.0]
    monkeypatch.setattr(logins, "limits", logins.LoginLimits(clock=lambda: now[0]))
    return now


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
    assert (
        client.post(
            "/password/", {"old_password": "wrong", "new_password1": NEW, "new_password2": NEW}
        ).status_code
        == 200
    )
    assert (
        client.post(
            "/password/", {"old_password": PASSWORD, "new_password1": NEW, "new_password2": NEW}
        ).status_code
        == 302
    )
    assert client.get("/topics/").status_code == 200, "the session that changed it goes on"


def test_an_unknown_name_and_a_wrong_password_are_answered_alike(user_of_role):
    user_of_role("viewer", "ada")
    unknown, wrong = _login(Client(), "nobody", "x" * 12), _login(Client(), "ada", "x" * 12)
    assert unknown.status_code == wrong.status_code == 200
    sentence = "Name or password is wrong."
    assert sentence in unknown.content.decode() and sentence in wrong.content.decode()


def _guess(times: int, name: str = "ada", address: str = "127.0.0.1") -> list[int]:
    return [_post(name, "wrong-password", REMOTE_ADDR=address).status_code for _ in range(times)]


@functools.cache
def _stranger() -> Client:
    """One client for all tries: each loads the middleware when it is first used."""
    return Client()


def _post(name: str, password: str, **environment: str):
    """A login from a device that is not known."""
    _stranger().cookies.clear()
    return _stranger().post("/login/", {"username": name, "password": password}, **environment)


def test_one_address_tries_so_often_whatever_the_names(user_of_role, hashes):
    user_of_role("viewer", "ada")
    hashes.clear()
    statuses = [_guess(1, f"name-{number}")[0] for number in range(30)]
    assert statuses == [200] * logins.MAX_TRIES + [429] * (30 - logins.MAX_TRIES)
    assert len(hashes) == logins.MAX_TRIES, "who is refused costs no hash"


def test_a_refused_try_says_when_the_next_may_be(user_of_role, now):
    user_of_role("viewer", "ada")
    _guess(logins.MAX_TRIES)
    answer = _post("ada", PASSWORD)
    assert (answer.status_code, answer["Retry-After"]) == (
        429,
        "6",
    ) and "Try again in 6 seconds" in answer.content.decode()
    now[0] += logins.TRY_SECONDS
    assert _post("ada", PASSWORD).status_code == 302, "nobody is locked out"


def test_all_addresses_together_have_a_bound(user_of_role, hashes):
    hashes.clear()
    statuses = [_guess(1, "ada", f"10.0.{number}.1")[0] for number in range(100)]
    assert statuses.count(200) == len(hashes) == logins.MAX_TRIES_OF_ALL


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("network", "other"), [("2001:db8:7:{:x}::1", "2001:db8:8::1"), ("10.7.7.{}", "10.7.8.1")]
)
def test_one_network_leaves_others_half_of_the_tries(user_of_role, network, other):
    """Six sites of one IPv6 network took all tries, and the right password was refused everywhere."""
    user_of_role("viewer", "ada")
    statuses = [_guess(1, "ada", network.format(number % 90))[0] for number in range(100)]
    assert statuses.count(200) == logins.MAX_TRIES_OF_NETWORK
    assert _post("ada", PASSWORD, REMOTE_ADDR=network.format(99)).status_code == 429
    assert _post("ada", PASSWORD, REMOTE_ADDR=other).status_code == 302


def test_a_try_that_a_network_refuses_takes_none_of_its_addresses(user_of_role, now):
    user_of_role("viewer", "ada")
    for number in range(100):
        _guess(1, "ada", f"10.7.7.{number}")
    now[0] += logins.TRY_SECONDS_OF_NETWORK
    assert _guess(2, "ada", "10.7.7.200") == [200, 429]
    now[0] += logins.TRY_SECONDS_OF_NETWORK * logins.MAX_TRIES
    assert _guess(logins.MAX_TRIES, "ada", "10.7.7.200") == [200] * logins.MAX_TRIES


def test_the_local_socket_comes_in_while_all_others_are_refused(user_of_role):
    user_of_role("viewer", "ada")
    for number in range(100):
        _guess(1, "ada", f"10.0.{number}.1")
    assert _post("ada", PASSWORD, REMOTE_ADDR="10.0.200.1").status_code == 429
    assert _post("ada", PASSWORD, REMOTE_ADDR="").status_code == 302


def test_a_device_that_is_known_comes_in_whatever_others_try(user_of_role):
    """Behind a proxy that is not trusted all have one address."""
    user_of_role("viewer", "ada")
    client = Client()
    assert _login(client, "ada", PASSWORD).status_code == 302
    client.post("/logout/")
    _guess(40)
    for number in range(100):
        _guess(1, "ada", f"10.0.{number}.1")
    assert _post("ada", PASSWORD).status_code == 429
    assert _login(client, "ada", PASSWORD).status_code == 302


def test_a_known_device_is_known_for_its_own_user_alone(user_of_role):
    user_of_role("viewer", "ada")
    user_of_role("viewer", "bob")
    client = Client()
    _login(client, "bob", PASSWORD)
    client.post("/logout/")
    _guess(logins.MAX_TRIES)
    assert client.post("/login/", {"username": "ada", "password": PASSWORD}).status_code == 429
    client.cookies[logins.DEVICE_COOKIE] = client.cookies[logins.DEVICE_COOKIE].value[:-1] + "x"
    assert client.post("/login/", {"username": "bob", "password": PASSWORD}).status_code == 429, (
        "a cookie that we did not sign"
    )


def test_a_known_device_does_not_guess_without_end(user_of_role, hashes, now):
    user_of_role("viewer", "ada")
    client = Client()
    _login(client, "ada", PASSWORD)
    client.post("/logout/")
    hashes.clear()
    statuses = [_login(client, "ada", "wrong-password").status_code for _ in range(20)]
    assert (
        statuses == [200] * logins.MAX_TRIES + [429] * (20 - logins.MAX_TRIES)
        and len(hashes) == logins.MAX_TRIES
    )
    now[0] += logins.TRY_SECONDS
    assert _login(client, "ada", PASSWORD).status_code == 302


def test_a_login_gives_its_try_back(user_of_role):
    user_of_role("viewer", "ada")
    for _ in range(3 * logins.MAX_TRIES):
        assert _post("ada", PASSWORD).status_code == 302


def test_two_passwords_are_hashed_at_once_and_few_wait(monkeypatch):
    monkeypatch.setattr(logins, "WAIT_S", 0.2)
    limits, at_once, most, release = logins.LoginLimits(), [0], [0], threading.Event()
    lock = threading.Lock()

    def hash_one(_) -> int:
        try:
            with limits.hashing(known=False):
                with lock:
                    at_once[0] += 1
                    most[0] = max(most[0], at_once[0])
                release.wait(10)
                with lock:
                    at_once[0] -= 1
                return 200
        except logins.TryRefused as refusal:
            return refusal.status

    with ThreadPoolExecutor(20) as threads:
        found = [threads.submit(hash_one, number) for number in range(20)]
        refused = _first(found, 18)
        release.set()
    assert most[0] == logins.MAX_HASHES
    assert sorted(one.result() for one in found) == [200] * 2 + [503] * 18 and len(refused) == 18


def _first(futures, count: int) -> list:
    """The first so many of the futures that are done."""
    done = as_completed(futures)
    return [next(done) for _ in range(count)]


def test_who_waits_for_a_hash_from_a_known_device_finds_room(monkeypatch):
    monkeypatch.setattr(logins, "WAIT_S", 5.0)
    limits, release, begun = logins.LoginLimits(), threading.Event(), threading.Semaphore(0)

    def hash_one(known: bool) -> int:
        try:
            with limits.hashing(known=known):
                begun.release()
                release.wait(10)
                return 200
        except logins.TryRefused as refusal:
            return refusal.status

    with ThreadPoolExecutor(20) as threads:
        unknown = [threads.submit(hash_one, False) for _ in range(12)]
        refused = _first(unknown, 12 - logins.MAX_HASHES - logins.MAX_WAITING_UNKNOWN)
        known = threads.submit(hash_one, True)
        release.set()
        assert {one.result() for one in refused} == {503} and known.result() == 200


def test_many_tries_at_once_are_no_more_than_one_after_another():
    limits, start = logins.LoginLimits(clock=lambda: 0.0), threading.Barrier(20)

    def guess(_) -> bool:
        start.wait()
        try:
            limits.begin(logins.Source("127.0.0.1", "127.0.0.0/24"), None)
        except logins.TryRefused:
            return False
        return True

    with ThreadPoolExecutor(20) as threads:
        assert sum(threads.map(guess, range(20))) == logins.MAX_TRIES


def test_what_is_remembered_has_a_bound():
    limits = logins.LoginLimits(clock=lambda: 0.0)
    for number in range(logins.MAX_REMEMBERED + 50):
        limits._addresses.take(f"10.0.0.{number}")
    assert len(limits._addresses) == logins.MAX_REMEMBERED


@pytest.fixture
def hashes(monkeypatch):
    """A name for each password that was hashed."""
    found, encode = [], MD5PasswordHasher.encode

    def counted(self, password, salt, *more):
        found.append(password)
        return encode(self, password, salt, *more)

    monkeypatch.setattr(MD5PasswordHasher, "encode", counted)
    return found


def test_an_unknown_name_costs_as_much_as_a_known_one(user_of_role, hashes):
    user_of_role("viewer", "ada")
    off = user_of_role("viewer", "eve")
    off.is_active = False
    off.save()
    never = get_user_model().objects.create_user("wire:clients")
    never.set_unusable_password()
    never.save()
    costs = {}
    for name in ("ada", "eve", "wire:clients", "nobody"):
        hashes.clear()
        assert _post(name, "wrong-password").status_code == 200
        costs[name] = len(hashes)
    assert set(costs.values()) == {1}, costs


@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        ("10.0.0.1", "203.0.113.9", "203.0.113.9"),
        ("10.0.0.1", "6.6.6.6, 203.0.113.9", "203.0.113.9"),
        ("10.0.0.1", "203.0.113.9, 10.0.0.2", "203.0.113.9"),
        ("10.0.0.1", "6.6.6.6, 203.0.113.9:5678", "203.0.113.9"),
        ("10.0.0.1", "203.0.113.9:1, 10.0.0.2:443", "203.0.113.9"),
        ("10.0.0.1", "[2001:db8::1]:443", "2001:db8::1"),
        ("10.0.0.1", "[2001:db8::1]", "2001:db8::1"),
        ("10.0.0.1", "2001:db8::1", "2001:db8::1"),
        ("10.0.0.1", "[::1, 6.6.6.6:5:6", "10.0.0.1"),
        ("10.0.0.1", "", "10.0.0.1"),
        ("10.0.0.1", "nonsense", "10.0.0.1"),
        ("10.0.0.1", "6.6.6.6, nonsense", "10.0.0.1"),
        ("203.0.113.9", "6.6.6.6", "203.0.113.9"),
        ("::ffff:10.0.0.1", "203.0.113.9", "203.0.113.9"),
        ("", "6.6.6.6", None),
    ],
)
def test_the_header_of_a_proxy_is_believed_from_trusted_proxies_alone(peer, forwarded, client):
    found = client_address(peer, forwarded, proxies_of(["10.0.0.0/24"]))
    assert (None if found is None else str(found)) == client


def test_behind_a_trusted_proxy_each_client_has_tries_of_its_own(user_of_role, settings):
    settings.TRUSTED_PROXIES = proxies_of(["127.0.0.1"])
    user_of_role("viewer", "ada")

    def guess(forwarded: str) -> int:
        return _post("ada", "wrong-password", HTTP_X_FORWARDED_FOR=forwarded).status_code

    assert [guess(f"6.6.6.{number}, 203.0.113.9") for number in range(15)].count(200) == logins.MAX_TRIES
    assert guess("203.0.113.10") == 200
    assert [guess(f"2001:db8::{number}") for number in range(1, 16)].count(200) == logins.MAX_TRIES, (
        "the addresses of one site"
    )


def test_the_password_page_tries_within_limits_too(fake_cluster, client_of_role, hashes):
    client = client_of_role("viewer")
    hashes.clear()
    answers = [
        client.post("/password/", {"old_password": "wrong", "new_password1": NEW, "new_password2": NEW})
        for _ in range(logins.MAX_TRIES + 3)
    ]
    assert [answer.status_code for answer in answers] == [200] * logins.MAX_TRIES + [
        429
    ] * 3 and "Try again in" in answers[-1].content.decode()


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/topics/",
        "/store/",
        "/jobs/",
        "/password/",
        "/login/",
        "/admin/",
        "/api/v1/topics",
        "/api/v1/overview",
        "/metrics",
        "/nowhere/",
    ],
)
def test_no_page_and_no_answer_is_kept_by_a_cache(fake_cluster, client_of_role, path):
    assert "no-store" in client_of_role("admin").get(path)["Cache-Control"]


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
    answer = Client().post(
        "/login/", {"username": "ada", "password": PASSWORD, "next": "https://evil.example/"}
    )
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
