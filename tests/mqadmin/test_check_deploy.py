"""`manage.py check_deploy`: what is open to whom, and what is wrong with that."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from django.contrib.auth import get_user_model
from django.core.management import call_command

from broker_store.access.state import AccessState
from broker_store.access.users import User, UserStatus, UserType
from broker_store.config.exposure import Exposure
from broker_store.server.certificate import self_signed
from mqadmin.jobs.kinds import BACKUP
from mqadmin.jobs.schedules import PipelineSchedule
from mqadmin.management.deploy import findings, gather
from mqadmin.management.deploy.facts import AccessUsers, Certificate, DashboardUsers
from mqadmin.models import FirstLogin

PROJECT = Path(__file__).resolve().parents[2]
NOW_MS = 1_800_000_000_000
SAFE = Exposure(
    bind="0.0.0.0",
    web_bind="0.0.0.0",
    has_broker=True,
    is_insecure=False,
    tls_mode="enforcing",
    certificate="/etc/headpond/tls.pem",
    is_own_certificate=False,
    client_certificates="none",
    proxy_addresses="",
    authenticates=True,
    authorizes=True,
    authentication_whitelist="",
    authorization_whitelist="",
    has_inner_credentials=True,
    has_name_server=True,
    has_open_name_server=False,
    name_server_changers="",
    percent_of_address=50,
    web_hosts="mq.example.com",
    web_proxies="",
    has_tls_proxy=False,
    redis="",
)
USERS = AccessUsers(names=["ann", "root"], super_users=["root"], weak=[])
PEOPLE = DashboardUsers(
    active=2,
    super_users=["admin"],
    by_role={"admin": 1, "viewer": 1},
    with_first_password=[],
    tokens=1,
    backup_schedules=1,
)
CERTIFICATE = Certificate(
    file="/etc/headpond/tls.pem",
    is_own=False,
    subject="CN=a",
    issuer="CN=b",
    ends_ms=NOW_MS + 90 * 86_400_000,
)


def judged(
    access: AccessUsers | None = USERS, dashboard=PEOPLE, certificate=CERTIFICATE, **changed
) -> dict[str, str]:
    """The severity of each finding, by its name."""
    exposure = dataclasses.replace(SAFE, **changed)
    found = [
        *findings.broker_findings(exposure, access),
        *findings.tls_findings(exposure, certificate, NOW_MS),
        *findings.dashboard_findings(exposure, dashboard),
    ]
    assert all(one.what and not one.what.endswith(".") for one in found)
    return {one.id: one.severity for one in found}


def test_a_safe_deployment_has_only_a_note():
    assert judged() == {"nameserver.readable": "note"}


@pytest.mark.parametrize(
    ("changed", "name", "severity"),
    [
        ({"authenticates": False, "authorizes": False, "access": None}, "access.off", "error"),
        ({"authorizes": False}, "access.no_rights", "error"),
        ({"has_open_name_server": True}, "nameserver.open", "error"),
        ({"tls_mode": "permissive"}, "tls.permissive", "warning"),
        ({"tls_mode": "permissive"}, "web.plain", "warning"),
        ({"tls_mode": "disabled", "certificate": None}, "web.plain", "error"),
        ({"tls_mode": "disabled", "certificate": None}, "tls.disabled", "warning"),
        ({"proxy_addresses": "0.0.0.0/0"}, "addresses.proxyProtocolAddresses", "error"),
        (
            {"has_ha_port": True, "ha_slaves": "10.0.0.0/8, 0.0.0.0/0"},
            "addresses.haSlaveAddresses",
            "error",
        ),
        ({"web_proxies": "::/0"}, "addresses.BROKER_WEB_PROXIES", "error"),
        ({"name_server_changers": "0.0.0.0/1"}, "addresses.nameServerChangeAddresses", "error"),
        ({"authentication_whitelist": "105"}, "access.authenticationWhitelist", "warning"),
        ({"authorization_whitelist": "105"}, "access.authorizationWhitelist", "warning"),
        (
            {"authentication_whitelist": "10, 105", "authorization_whitelist": "10"},
            "access.unsigned",
            "error",
        ),
        ({"has_inner_credentials": False}, "access.no_inner_credentials", "note"),
        ({"percent_of_address": 100}, "limits.address", "note"),
        ({"web_hosts": "*"}, "web.any_host", "error"),
        ({"web_hosts": ""}, "web.no_host", "warning"),
        ({"redis": "redis://10.0.0.9"}, "redis.plain", "warning"),
        ({"access": dataclasses.replace(USERS, weak=["ann: short"])}, "access.weak_secret", "error"),
        ({"access": dataclasses.replace(USERS, super_users=[])}, "access.no_super_user", "warning"),
        ({"access": dataclasses.replace(USERS, super_users=list("abcd"))}, "access.super_users", "note"),
        ({"access": dataclasses.replace(USERS, failure="x")}, "access.unreadable", "error"),
        ({"dashboard": dataclasses.replace(PEOPLE, backup_schedules=0)}, "backup.none", "warning"),
        ({"dashboard": dataclasses.replace(PEOPLE, super_users=[])}, "web.no_super_user", "warning"),
        ({"dashboard": dataclasses.replace(PEOPLE, super_users=list("abcd"))}, "web.super_users", "note"),
        ({"dashboard": dataclasses.replace(PEOPLE, failure="x")}, "web.database", "error"),
        (
            {"dashboard": dataclasses.replace(PEOPLE, with_first_password=["admin"])},
            "web.first_password",
            "warning",
        ),
        ({"certificate": dataclasses.replace(CERTIFICATE, ends_ms=NOW_MS)}, "certificate.ended", "error"),
        (
            {"certificate": dataclasses.replace(CERTIFICATE, ends_ms=NOW_MS + 86_400_000)},
            "certificate.ends",
            "warning",
        ),
        ({"certificate": dataclasses.replace(CERTIFICATE, failure="x")}, "certificate.unreadable", "error"),
        ({"certificate": dataclasses.replace(CERTIFICATE, is_own=True)}, "certificate.own", "warning"),
    ],
)
def test_each_fault_is_found_with_its_severity(changed, name, severity):
    found = judged(**changed)
    assert found.pop(name) == severity
    assert "error" not in {one for key, one in found.items() if not key.startswith(("web.plain", "tls."))}


def test_on_loopback_the_same_is_milder_and_nothing_is_said_of_networks():
    found = judged(
        access=dataclasses.replace(USERS, weak=["ann: short"]),
        bind="127.0.0.1",
        web_bind="::1",
        tls_mode="permissive",
        authorizes=False,
        web_hosts="",
        has_open_name_server=True,
    )
    assert found == {"access.weak_secret": "warning", "access.no_rights": "warning"}


def test_weak_secrets_are_named_with_their_reason_and_never_shown(tmp_path):
    secrets = {
        "a": "12345678",
        "b": "Password123",
        "cecilia": "cecilia-1",
        "d": "q8$kk!",
        "e": "b2f9c14e8d7a6035",
        "off": "12345678",
        "root": "a-long-secret-of-root",
    }
    users = {
        name: User(
            name,
            secret,
            UserType.SUPER if name == "root" else UserType.NORMAL,
            UserStatus.DISABLE if name == "off" else UserStatus.ENABLE,
        )
        for name, secret in secrets.items()
    }
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "access.json").write_bytes(AccessState(users, {}).text())
    found = gather.access_users_of(tmp_path)
    assert found.super_users == ["root"] and len(found.names) == 7
    assert [weak.split(":")[0] for weak in found.weak] == ["a", "b", "cecilia", "d"]
    assert not any(secret in json.dumps(dataclasses.asdict(found)) for secret in secrets.values())
    (tmp_path / "config" / "access.json").write_text("{")
    assert gather.access_users_of(tmp_path).failure
    assert gather.access_users_of(tmp_path / "none") == AccessUsers(names=[], super_users=[], weak=[])


def test_files_that_others_may_read_are_found_and_a_private_directory_has_none(tmp_path):
    store = tmp_path / "store"
    for path in (tmp_path, tmp_path / "run", store, store / "config"):
        path.mkdir(exist_ok=True)
        path.chmod(0o700)
    for path in (tmp_path / "secret_key", store / "config" / "access.json"):
        path.write_text("x")
        path.chmod(0o600)
    assert gather.open_files_of(tmp_path, store) == []
    tmp_path.chmod(0o755)
    assert gather.open_files_of(tmp_path, store) == [], "what is in it is closed"
    (tmp_path / "secret_key").chmod(0o644)
    store.chmod(0o755)
    (tmp_path / "run").chmod(0o770)
    found = gather.open_files_of(tmp_path, store)
    assert [(file.path, file.mode, file.has_secrets) for file in found] == [
        (str(tmp_path / "run"), "0770", False),
        (str(store), "0755", False),
        (str(tmp_path / "secret_key"), "0644", True),
    ]
    assert [(one.severity, one.id) for one in findings.file_findings(found)] == [
        ("error", "files.writable"),
        ("warning", "files.directory"),
        ("error", "files.secret"),
    ]
    assert [one.id for one in findings.process_findings(0)] == ["process.root"]
    assert list(findings.process_findings(1_000)) == list(findings.process_findings(None)) == []


def test_the_certificate_is_read_and_one_that_cannot_be_is_named(tmp_path):
    file = tmp_path / "tls.pem"
    exposure = dataclasses.replace(SAFE, certificate=str(file))
    assert gather.certificate_of(exposure).failure
    file.write_bytes(self_signed(["mq.example.com", "10.0.0.1"], NOW_MS))
    found = gather.certificate_of(exposure)
    assert found.names == ["mq.example.com", "10.0.0.1"] and found.subject == found.issuer
    assert found.ends_ms == NOW_MS + 397 * 86_400_000
    own = dataclasses.replace(exposure, certificate=str(tmp_path / "none"), is_own_certificate=True)
    assert gather.certificate_of(own).failure == "", "the first start makes it"


@pytest.mark.django_db
def test_the_users_of_the_dashboard_are_counted_by_role(user_of_role):
    user_of_role("operator")
    user_of_role("viewer")
    admin = user_of_role("admin")
    FirstLogin.objects.create(user=admin)
    get_user_model().objects.create_user("gone", is_active=False)
    PipelineSchedule.objects.create(job=BACKUP, cron="0 3 * * *", created_by="user:x", created_ms=1)
    found = gather.dashboard_users_of()
    assert (found.active, found.by_role) == (3, {"operator": 1, "viewer": 1, "admin": 1})
    assert found.super_users == found.with_first_password == ["the-admin"]
    assert found.backup_schedules == 1 and found.failure == ""


def test_what_asks_for_no_login_is_what_the_table_of_access_has():
    rows = [line.split() for line in (PROJECT / "tests" / "mqadmin" / "access.txt").read_text().splitlines()]
    open_to_all = {row[1] for row in rows if len(row) > 3 and row[0] == "GET" and row[2] == "200"}
    assert open_to_all == {address for address in gather.OPEN_WITHOUT_LOGIN if address != "/static/"}


def check(*arguments: str, data: Path) -> tuple[int, str]:
    environment = {
        name: value for name, value in os.environ.items() if name not in ("REDIS_URL", "BROKER_DATA_DIR")
    } | {"DJANGO_SETTINGS_MODULE": "mqadmin.settings"}
    done = subprocess.run(
        [sys.executable, "manage.py", "check_deploy", "--data", str(data), *arguments],
        cwd=PROJECT, env=environment, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.stderr == "", done.stderr
    return done.returncode, done.stdout


@pytest.mark.slow
def test_a_start_is_checked_before_it_is_made_and_nothing_is_created(tmp_path):
    data = tmp_path / "data"
    code, text = check(data=data)
    assert code == 0 and "a start with these options" in text and "no access control" in text
    code, text = check("--bind", "0.0.0.0", "--json", data=data)
    found = json.loads(text)
    assert code == 1 and found["worst"] == "error"
    assert {port["reached_by"] for port in found["ports"]} == {"every network of this machine"}
    assert "access.off" in {one["id"] for one in found["findings"]}
    assert check("--fail-level", "warning", data=data)[0] == 1, "there is no schedule of backups"
    config = tmp_path / "broker.conf"
    config.write_text(
        "authenticationEnabled=true\nauthorizationEnabled=true\n"
        'initAuthenticationUser={"username": "root", "password": "12345678"}\n'
    )
    for mode, ids in ((0o644, {"files.secret"}), (0o600, set())):
        config.chmod(mode)
        code, text = check("-c", str(config), "--json", data=data)
        found = json.loads(text)
        given = {one["id"]: one["severity"] for one in found["findings"]}
        assert found["access"]["super_users"] == ["root"], "those that the start makes count"
        assert given["access.weak_secret"] == "warning" and "access.no_super_user" not in given
        assert code == len(ids) and {"files.secret"} & given.keys() == ids and "12345678" not in text
    assert not data.exists()


@pytest.mark.slow
def test_a_running_broker_is_checked_by_what_it_was_started_with(tmp_path):
    from tests.interop.brokers import OurBroker

    settings = {
        "authenticationEnabled": "true",
        "authorizationEnabled": "true",
        "initAuthenticationUser": '{"username":"root","password":"rocketmq2"}',
        "tls.server.mode": "enforcing",
    }
    broker = OurBroker(tmp_path / "data", settings, ("--web-port", "0"), has_grpc=True).start()
    try:
        code, text = check("--json", data=broker.data)
        found = json.loads(text)
        assert found["of"].startswith("the running broker (process ")
        assert [port["name"] for port in found["ports"]] == [
            "broker", "fast port", "gRPC", "name server", "dashboard",
        ]  # fmt: skip
        assert found["ports"][0]["address"] == f"127.0.0.1:{broker.broker_port}"
        assert {port["tls"] for port in found["ports"]} == {"enforcing"}
        assert found["access"]["super_users"] == ["root"] and found["dashboard"]["super_users"] == ["admin"]
        assert found["certificate"]["ends_ms"] > time.time() * 1_000
        by_name = {one["id"]: one["severity"] for one in found["findings"]}
        assert by_name["access.weak_secret"] == "warning" and by_name["web.first_password"] == "note"
        assert "rocketmq2" not in text
        assert code == 0 and found["open_files"] == []
        (broker.data / "secret_key").chmod(0o644)
        code, text = check(data=broker.data)
        assert code == 1 and "files.secret" in text
    finally:
        broker.stop()


def test_the_text_has_each_finding_with_its_hint(tmp_path, monkeypatch, db):
    monkeypatch.delenv("BROKER_WEB_HOST", raising=False)
    out = io.StringIO()
    with pytest.raises(SystemExit) as ended:
        call_command("check_deploy", "--data", str(tmp_path), "--bind", "0.0.0.0", stdout=out)
    assert ended.value.code == 1
    text = out.getvalue()
    assert "error    access.off: the broker listens on 0.0.0.0" in text and "\n         set authent" in text
    assert ".." not in text.replace("...", "")


def test_requests_that_need_no_signature_are_listed_as_open_to_every_client():
    run = gather.RunFile(broker="10.0.0.1:10911", grpc="10.0.0.1:8081")
    message = "apache.rocketmq.v2.QueryRouteRequest"
    for both, authorizes, shown in ((("10, 105", "10"), True, "10"), (("10,105", ""), True, ""),
                                    ((f"10,{message},105", ""), False, "10, 105"), (("", "10"), True, "")):  # fmt: skip
        exposure = dataclasses.replace(
            SAFE, authentication_whitelist=both[0], authorization_whitelist=both[1], authorizes=authorizes
        )
        served = {port.name: port.served for port in gather.ports_of(exposure, run, USERS, PEOPLE)}
        assert served["broker"].partition("; every client: requests ")[2] == shown
        assert served["gRPC"].endswith(f"; every client: requests {message}") == (not authorizes)


def test_the_port_that_feeds_slaves_is_listed_with_who_gets_the_log():
    run = gather.RunFile(broker="10.0.0.1:10911")
    for changed, address in (
        ({"has_ha_port": True}, "10.0.0.1:10912"),
        ({"has_ha_port": True, "ha_port": 7_000}, "10.0.0.1:7000"),
        ({}, None),
    ):
        exposure = dataclasses.replace(SAFE, ha_slaves="10.0.0.2", **changed)
        ports = {port.name: port for port in gather.ports_of(exposure, run, USERS, PEOPLE)}
        assert (ports["HA port"].address if address else ports.get("HA port")) == address
        if address:
            assert "10.0.0.2" in ports["HA port"].served and ports["HA port"].tls == "enforcing"
