"""The file of users at a start: made for its owner alone, and never replaced by an older copy."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from broker_store.assembly import BrokerProcess
from broker_store.broker.config_readers import READERS
from broker_store.check.report import ERROR
from broker_store.check.walk import StoreCheck
from broker_store.client import Admin, AnswerError, Credentials
from broker_store.config.load import load_settings
from broker_store.errors import ConfigError, DamagedStoreError
from tests.support.ports import server_ports

SECRET = "the-secret-of-root-0001"


def process_of(root: Path) -> BrokerProcess:
    name_server, port = server_ports()
    given = {
        "mappedFileSizeCommitLog": "65536",
        "maxHashSlotNum": "50",
        "maxIndexNum": "200",
        "listenPort": str(port),
        "grpcServerPort": "0",
        "authenticationEnabled": "true",
        "authorizationEnabled": "true",
        "initAuthenticationUser": json.dumps({"username": "root", "password": SECRET}),
    }
    settings = load_settings(overrides=given, store_root=root, name_server={"listenPort": str(name_server)})
    return BrokerProcess(settings)


async def test_a_bad_file_stops_the_start_also_with_a_sound_copy(tmp_path):
    root = tmp_path / "store"
    process = process_of(root)
    await process.start()
    name_server = process.ports["nameserver"]
    for credentials, code in ((Credentials("root", SECRET), 0), (Credentials("root", "x"), 16), (None, 16)):
        async with Admin(name_server, credentials=credentials) as admin:
            if code:
                with pytest.raises(AnswerError, match="check signature failed|username cannot be null"):
                    await admin.create_topic("T")
            else:
                await admin.create_topic("T")
    await process.stop()
    file = root / "config" / "access.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [user["username"] for user in json.loads(file.read_text())["users"]] == ["root"]
    (root / "config" / "access.json.bak").write_bytes(file.read_bytes())
    for bad in (b'{"users": [', None):
        if bad is None:
            file.unlink()
        else:
            file.write_bytes(bad)
        process = process_of(root)
        with pytest.raises(DamagedStoreError, match="access.json") as raised:
            await process.start()
        assert "older by a change" in raised.value.advice and SECRET not in str(raised.value)
        assert not process.ports
        findings = StoreCheck(root, config_readers=READERS).run().findings
        assert [found.severity for found in findings if found.file == str(file)] == [ERROR]
    (root / "config" / "access.json.bak").rename(file)
    process = process_of(root)
    await process.start()
    await process.stop()


STRATEGY = "org.apache.rocketmq.auth.{0}.strategy.{1}{2}Strategy"


@pytest.mark.parametrize("kind", ["Stateless", "Stateful"])
@pytest.mark.parametrize("what", ["authentication", "authorization"])
def test_both_strategies_of_apache_are_taken_and_no_other(tmp_path, what, kind):
    name = STRATEGY.format(what, kind, what.capitalize())
    load_settings(overrides={f"{what}Strategy": name}, store_root=tmp_path)
    with pytest.raises(ConfigError, match="each request is checked with either of Apache's strategies"):
        load_settings(overrides={f"{what}Strategy": name.replace(kind, "Other")}, store_root=tmp_path)


@pytest.mark.parametrize(
    ("key", "value", "wrong"),
    [
        ("authenticationWhitelist", "30,x", "authenticationWhitelist"),
        ("authorizationWhitelist", "30 31", "authorizationWhitelist"),
        ("initAuthenticationUser", '{"username": "root"}', "initAuthenticationUser"),
        (
            "innerClientAuthenticationCredentials",
            '{"accessKey": "x"}',
            "innerClientAuthenticationCredentials",
        ),
    ],
)
def test_a_setting_of_access_control_that_cannot_be_read_stops_the_start(tmp_path, key, value, wrong):
    with pytest.raises(ConfigError, match=wrong):
        load_settings(overrides={key: value}, store_root=tmp_path)
