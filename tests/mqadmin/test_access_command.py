"""manage.py access: what it sends of files of Apache 4.9, and what it refuses before it sends anything."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from django.contrib.admin.models import LogEntry
from django.core.management import CommandError, call_command

from broker_store.access.policies import PolicyType
from broker_store.access.state import AccessState, read_file
from broker_store.engine.disk.disk import Disk
from mqadmin import audit

ACCOUNT = "accounts:\n- accessKey: {0}\n  secretKey: a-secret\n  topicPerms: [orders={1}]\n"


class Broker:
    """Keeps what the command sends."""

    def __init__(self):
        self.sent: list[tuple[str, dict]] = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def post(self, address: str, body: dict) -> dict:
        self.sent.append((address, body))
        created = [user["name"] for user in body["users"] if user["name"] != "is-there"]
        return {"dry_run": body["dry_run"], "created": created, "skipped": ["is-there"]}

    def get(self, address: str, **asked) -> dict:
        self.sent.append((address, asked))
        rule = {
            "policy": "Custom",
            "resource": "Topic:orders",
            "actions": ["Pub"],
            "addresses": [],
            "verdict": "Allow",
        }
        return asked | {"address": None, "is_allowed": True, "why": "a rule decides", "rule": rule}


@pytest.fixture
def broker(monkeypatch):
    broker = Broker()
    monkeypatch.setattr("mqadmin.management.base.BrokerCommand.broker", lambda command: broker)
    return broker


def run(tmp_path, *arguments: str) -> tuple[str, str]:
    out, errors = io.StringIO(), io.StringIO()
    call_command("access", *arguments, "--data", str(tmp_path), stdout=out, stderr=errors)
    return out.getvalue(), errors.getvalue()


def test_a_file_is_tried_and_then_imported(broker, tmp_path):
    path = tmp_path / "plain_acl.yml"
    path.write_text("globalWhiteRemoteAddresses: [10.0.0.1]\n" + ACCOUNT.format("someone", "SUB"))
    out, errors = run(tmp_path, "import", str(path))
    assert "1 users are created, 1 exist" in out and "someone" in out
    assert "white address '10.0.0.1' is not taken" in errors
    assert [body["dry_run"] for _, body in broker.sent] == [True, False]
    rule = {"policy": "Custom", "resource": "Topic:orders", "actions": ["Sub"], "verdict": "Allow"}
    user = {"name": "someone", "password": "a-secret", "type": "Normal", "rules": [rule]}
    assert broker.sent[1] == ("/access/import", {"users": [user], "dry_run": False})
    assert "a-secret" not in out + errors


def test_a_dry_run_adds_nothing(broker, tmp_path):
    path = tmp_path / "plain_acl.yml"
    path.write_text(ACCOUNT.format("someone", "SUB"))
    out, _ = run(tmp_path, "import", str(path), "--dry-run", "--json")
    assert json.loads(out)["dry_run"] is True
    assert [body["dry_run"] for _, body in broker.sent] == [True]


def test_of_a_directory_the_files_of_4_9_are_read(broker, tmp_path):
    conf = tmp_path / "conf"
    (conf / "acl" / "below").mkdir(parents=True)
    (conf / "plain_acl.yml").write_text(ACCOUNT.format("first-one", "SUB"))
    (conf / "acl" / "a.yml").write_text(ACCOUNT.format("second-one", "SUB"))
    (conf / "acl" / "below" / "b.yaml").write_text(ACCOUNT.format("third-one", "SUB"))
    (conf / "tools.yml").write_text("accessKey: x")
    run(tmp_path, "import", str(conf))
    assert [user["name"] for user in broker.sent[1][1]["users"]] == ["first-one", "second-one", "third-one"]
    run(tmp_path, "import", str(conf / "acl"))
    assert [user["name"] for user in broker.sent[3][1]["users"]] == ["second-one", "third-one"]


def test_a_wrong_line_stops_the_whole_import(broker, tmp_path):
    (tmp_path / "a.yml").write_text(ACCOUNT.format("first-one", "SUB"))
    (tmp_path / "b.yml").write_text(ACCOUNT.format("second-one", "ANY"))
    with pytest.raises(CommandError, match="nothing is imported: .*b.yml, line 4: the permission 'ANY'"):
        run(tmp_path, "import", str(tmp_path))
    assert broker.sent == []


def test_an_account_of_two_files_stops_the_import(broker, tmp_path):
    for name in ("a.yml", "b.yml"):
        (tmp_path / name).write_text(ACCOUNT.format("someone", "SUB"))
    with pytest.raises(CommandError, match="b.yml, line 2: the account someone is also at .*a.yml, line 2"):
        run(tmp_path, "import", str(tmp_path))
    assert broker.sent == []


def test_what_is_not_there_is_named(broker, tmp_path):
    with pytest.raises(CommandError, match="there is no file"):
        run(tmp_path, "import", str(tmp_path / "none.yml"))
    with pytest.raises(CommandError, match="has 0 files"):
        run(tmp_path, "import", str(tmp_path))


def test_a_question_is_answered_with_what_decides(broker, tmp_path):
    out, _ = run(tmp_path, "may", "someone", "Pub", "Topic:orders")
    assert out.strip() == "Yes: a rule decides."
    asked = {"user": "someone", "action": "Pub", "resource": "Topic:orders"}
    assert broker.sent == [("/access/decision", asked)]


# While no broker runs


@pytest.fixture
def stopped(tmp_path, db):
    """A data directory whose broker was stopped."""
    (tmp_path / "store" / "commitlog").mkdir(parents=True)
    return tmp_path


def kept(data: Path) -> AccessState:
    return read_file((data / "store" / "config" / "access.json").read_text())


def test_accounts_are_added_to_the_file_of_a_broker_that_is_stopped(stopped):
    path = stopped / "plain_acl.yml"
    path.write_text(ACCOUNT.format("someone", "SUB"))
    out, errors = run(stopped, "import", str(path), "--dry-run")
    assert "1 users would be created" in out and not (stopped / "store" / "config").exists()
    out, errors = run(stopped, "import", str(path))
    assert "1 users are created, 0 exist" in out and "the next start reads it" in errors
    assert "a-secret" not in out + errors
    file = stopped / "store" / "config" / "access.json"
    assert file.stat().st_mode & 0o777 == 0o600
    assert [rule.text for rule in kept(stopped).acls["someone"].rules_of(PolicyType.CUSTOM)] == [
        "Allow Sub on Topic:orders"
    ]
    path.write_text(ACCOUNT.format("someone", "PUB").replace("a-secret", "another-secret"))
    out, _ = run(stopped, "import", str(path))
    assert "0 users are created, 1 exist" in out
    assert kept(stopped).users["someone"].secret == "a-secret"
    first, last = (audit.read(entry) for entry in LogEntry.objects.order_by("pk"))
    assert (first.action, first.kind, first.outcome) == ("import", "user", "done")
    assert first.detail == {"created": ["someone"], "skipped": []}
    assert last.detail == {"created": [], "skipped": ["someone"]}


def test_a_store_that_a_process_has_is_not_changed(stopped):
    (stopped / "plain_acl.yml").write_text(ACCOUNT.format("someone", "SUB"))
    lock = Disk().lock(stopped / "store" / "lock")
    try:
        with pytest.raises(CommandError, match="opened this store already|is locked by another process"):
            run(stopped, "import", str(stopped / "plain_acl.yml"))
    finally:
        lock.release()
    assert not (stopped / "store" / "config").exists()


@pytest.mark.parametrize(("raw", "said"), [(b"{", "is not readable as JSON"), (b"", "is empty")])
def test_a_file_that_is_damaged_is_not_replaced(stopped, raw, said):
    (stopped / "plain_acl.yml").write_text(ACCOUNT.format("someone", "SUB"))
    file = stopped / "store" / "config" / "access.json"
    file.parent.mkdir()
    file.write_bytes(raw)
    file.with_name("access.json.bak").write_bytes(AccessState().text())
    with pytest.raises(CommandError, match=said):
        run(stopped, "import", str(stopped / "plain_acl.yml"))
    assert file.read_bytes() == raw


def test_a_directory_without_a_store_is_named(stopped):
    (stopped / "plain_acl.yml").write_text(ACCOUNT.format("someone", "SUB"))
    (stopped / "store" / "commitlog").rmdir()
    with pytest.raises(CommandError, match="is no store"):
        run(stopped, "import", str(stopped / "plain_acl.yml"))
