"""`manage.py config check`: what a start would make of its settings, held against the start itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import call_command

from broker_store import launch
from broker_store.config.load import acting_settings
from broker_store.errors import BrokerStoreError
from broker_store.server.certificate import self_signed

PROJECT = Path(__file__).resolve().parents[2]
SECRET = '{"username": "root", "password": "the-secret-of-root"}'


def checked(data: Path, *options: str) -> tuple[int, dict]:
    """Return the exit code and the report."""
    output, code = StringIO(), 0
    try:
        call_command("config", "check", "--data", str(data), "--json", *options, stdout=output)
    except SystemExit as ended:
        code = ended.code
    return code, json.loads(output.getvalue())


def keys(report: dict) -> list[str]:
    return [error["key"] for error in report["errors"]]


def conf(tmp_path: Path, text: str) -> str:
    path = tmp_path / "broker.conf"
    path.write_text(text)
    path.chmod(0o600)
    return str(path)


def test_all_wrong_keys_are_reported_at_once(tmp_path):
    given = "brokerName=b7\nflushDiskType=SYNC\nautoCreateTopicEnabel=false\nmaxIndexNum=x\n"
    code, report = checked(tmp_path, "-c", conf(tmp_path, given), "--set", "enableDLegerCommitLog=true")
    assert code == 1 and not report["would_start"]
    assert sorted(keys(report)) == [
        "autoCreateTopicEnabel",
        "enableDLegerCommitLog",
        "flushDiskType",
        "maxIndexNum",
    ]
    reasons = {error["key"]: error["reason"] for error in report["errors"]}
    assert reasons["autoCreateTopicEnabel"].endswith("did you mean autoCreateTopicEnable?")
    assert reasons["flushDiskType"] == "expected one of ASYNC_FLUSH, SYNC_FLUSH"
    assert [(one["key"], one["value"]) for one in report["acting"]] == [("brokerName", "b7")]


def test_given_keys_that_act_have_their_value_default_and_source(tmp_path):
    file = conf(tmp_path, f"brokerName=b7\nfileReservedTime=48\ninitAuthenticationUser={SECRET}\n")
    config = tmp_path / "data" / "store" / "config"
    config.mkdir(parents=True)
    (config / "changed.conf").write_text("autoCreateTopicEnable=false\n")
    code, report = checked(
        tmp_path / "data", "-c", file, "--set", "fileReservedTime=24", "--broker-port", "20911"
    )
    assert code == 0 and report["would_start"] and report["errors"] == []
    rows = {
        one["key"]: (one["value"], one["default"], one["source"], one["is_live"]) for one in report["acting"]
    }
    assert rows == {
        "autoCreateTopicEnable": ("false", "true", "changed while it ran", True),
        "brokerName": ("b7", "broker-a", "file", False),
        "fileReservedTime": ("24", "72", "command line", False),
        "initAuthenticationUser": ("******", "", "file", False),
        "listenPort": ("20911", "10911", "command line", False),
    }
    assert any("autoCreateTopicEnable" in note for note in report["notes"])


def test_keys_without_effect_are_notes(tmp_path):
    code, report = checked(tmp_path, "--set", "useEpollNativeSelector=true")
    assert code == 0
    assert [note for note in report["notes"] if note.startswith("useEpollNativeSelector has no effect here")]
    assert report["acting"] == []


@pytest.mark.parametrize(
    ("options", "key"),
    [
        (["--bind", "0.0.0.0"], "--bind"),
        (["-c", "/nowhere/broker.conf"], "configFile"),
        (["--set", "brokerName"], "brokerName"),
        (["--set", "storePathRootDir= "], "storePathRootDir"),
        (["--broker-port", "99999"], "listenPort"),
        (["--nameserver-port", "99999"], "listenPort"),
        (["--set", "tls.server.trustCertPath=x", "--inspect", "--store", "."], "--data"),
    ],
)
def test_what_a_start_refuses_is_an_error(tmp_path, monkeypatch, options, key):
    """Each refusal is that of `launch.prepare`, which takes the store's lock next."""
    monkeypatch.chdir(tmp_path)
    code, report = checked(tmp_path / "data", *options)
    assert code == 1 and key in keys(report)
    with pytest.raises(BrokerStoreError) as refused:
        launch.prepare(["--data", str(tmp_path / "data"), *options])
    assert report["errors"][keys(report).index(key)]["reason"] in str(refused.value)


@pytest.mark.parametrize(
    "key", [field.metadata["setting"].key for _, field in acting_settings() if field.type == "int"]
)
def test_a_number_that_is_none_is_an_error_for_each_key(tmp_path, key):
    code, report = checked(tmp_path, "--set", f"{key}=many")
    assert code == 1 and keys(report) == [key]


def test_names_that_the_kept_certificate_lacks_are_noted(tmp_path):
    (tmp_path / "tls").mkdir()
    content = self_signed(["localhost", "127.0.0.1", "::1", "10.1.2.3"], 1_800_000_000_000)
    (tmp_path / "tls" / "self-signed.crt").write_bytes(content[content.index(b"-----BEGIN CERT") :])
    named = ("--bind", "127.0.0.1", "--set", "brokerIP1=10.1.2.3")
    assert not checked(tmp_path, *named)[1]["notes"]
    code, report = checked(tmp_path, "--bind", "127.0.0.1", "--set", "brokerIP1=10.9.9.9")
    (note,) = report["notes"]
    assert code == 0 and "self-signed.crt does not state 10.9.9.9: clients" in note


def test_a_certificate_that_cannot_be_read_is_an_error(tmp_path):
    files = ("tlsCertPath", "tlsKeyPath")
    given = [option for key in files for option in ("--set", f"{key}={tmp_path}/none.pem")]
    code, report = checked(tmp_path, *given)
    assert code == 1 and keys(report) == ["tlsCertPath"]
    assert "No such file" in report["errors"][0]["reason"]
    code, report = checked(tmp_path, *given, "--set", "tls.server.mode=disabled")
    assert code == 0  # it is not read


@pytest.mark.parametrize(
    "key", ["initAuthenticationUsr", "init-authentication-user", "innerClientAuthenticationCredential"]
)
def test_a_secret_with_a_mistyped_key_is_not_shown(tmp_path, key):
    """The report, and the error of a start, go to logs."""
    code, report = checked(tmp_path, "-c", conf(tmp_path, f"{key}={SECRET}\n"))
    assert code == 1 and keys(report) == [key]
    assert "the-secret" not in json.dumps(report) and report["errors"][0]["value"] == "******"


def test_a_wrong_secret_is_not_shown(tmp_path):
    code, report = checked(tmp_path, "-c", conf(tmp_path, "initAuthenticationUser=the-secret-of-root\n"))
    assert code == 1 and keys(report) == ["initAuthenticationUser"]
    assert "the-secret" not in json.dumps(report)


@pytest.mark.slow
def test_the_command_makes_nothing_and_prints_a_report(tmp_path):
    environment = os.environ | {
        "BROKER_DATA_DIR": str(tmp_path / "data"),
        "DJANGO_SETTINGS_MODULE": "mqadmin.settings",
    }
    command = [sys.executable, "manage.py", "config", "check", "--set", "noSuchKey=1"]
    ended = subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1 and ended.stderr == ""
    assert ended.stdout.startswith("error  noSuchKey=1: there is no such setting\n")
    assert "A broker would not start: 1 error.\n" in ended.stdout
    assert not (tmp_path / "data").exists()
