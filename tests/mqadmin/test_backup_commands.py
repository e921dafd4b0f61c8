"""manage.py backup and restore, as an operator uses them."""

from __future__ import annotations

import io
import json
import sqlite3
from contextlib import closing

import pytest
from django.core.management import CommandError, call_command

from broker_store import launch
from broker_store.engine.disk.disk import Disk
from broker_store.engine.status.live_page import LivePage
from broker_store.errors import StoreError
from broker_store.facts.directory import StoreDirectory
from tests.support import stores
from tests.support.hand_store import START_MS, findings, message, opened


@pytest.fixture
def data(tmp_path):
    """A data directory whose broker was stopped, with a database and a key."""
    data = tmp_path / "data"
    with opened(data / "store") as store:
        for number in range(200):
            store.appender.put(message(queue_id=number % 2, body=b"x" * 300, unique=f"u{number}"))
            store.clock.advance(1000)
    with closing(sqlite3.connect(data / "mqadmin.sqlite3")) as database:
        database.execute("CREATE TABLE users (name TEXT)")
        database.execute("INSERT INTO users VALUES ('alice')")
        database.commit()
    (data / "secret_key").write_text("k" * 64)
    return data


def run(*arguments) -> str:
    output = io.StringIO()
    call_command(*map(str, arguments), stdout=output)
    return output.getvalue()


def test_a_backup_is_made_verified_and_restored(data, tmp_path):
    said = run("backup", tmp_path / "b1", "--data", data)
    assert "queues: " in said and "b1 is a whole backup: the log from 0 to " in said
    again = json.loads(run("backup", tmp_path / "b2", "--data", data, "--json", "--quiet"))["result"]
    assert again["earlier"] == "b1" and again["bytes_by_kind"]["shared"] > 50_000
    assert "is as it was made" in run("backup", "verify", tmp_path / "b2", "--quiet")
    full = json.loads(run("backup", tmp_path / "b3", "--data", data, "--json", "--quiet", "--full"))["result"]
    assert full["earlier"] is None and "shared" not in full["bytes_by_kind"]

    said = run("restore", tmp_path / "b2", tmp_path / "new", "--quiet")
    assert f"manage.py runbroker --data {tmp_path / 'new'} --set mappedFileSizeCommitLog=16384" in said
    assert findings(tmp_path / "new" / "store") == []
    assert (tmp_path / "new" / "secret_key").read_text() == "k" * 64
    with closing(sqlite3.connect(tmp_path / "new" / "mqadmin.sqlite3")) as database:
        assert database.execute("SELECT name FROM users").fetchall() == [("alice",)]
    with pytest.raises(CommandError, match="is not empty"):
        run("restore", tmp_path / "b2", tmp_path / "new")


def test_a_restore_up_to_a_moment_says_so(data, tmp_path):
    run("backup", tmp_path / "b1", "--data", data, "--quiet")
    with pytest.raises(CommandError, match="choose a later time, or an earlier backup"):
        run("restore", tmp_path / "b1", tmp_path / "new", "--quiet", "--until", "1999-01-01T00:00:00Z")
    said = run("restore", tmp_path / "b1", tmp_path / "all", "--quiet", "--until", "2099-01-01T00:00:00Z")
    assert "without what was stored later" not in said
    with pytest.raises(CommandError, match="--until"):
        run("restore", tmp_path / "b1", tmp_path / "none", "--until", "yesterday")
    assert not (tmp_path / "none").exists()
    moment = str(START_MS + 50_500)
    words = ("restore", tmp_path / "b1", tmp_path / "some", "--quiet", "--json", "--until", moment)
    some = json.loads(run(*words))["result"]
    assert some["cut_at"] == some["log_end"] > 0
    with opened(tmp_path / "some" / "store") as store:
        assert store.reads.max_offset("topic", 0) + store.reads.max_offset("topic", 1) == 51


def test_no_broker_and_no_repair_writes_to_a_backup(data, tmp_path):
    run("backup", tmp_path / "b1", "--data", data, "--quiet")
    store = tmp_path / "b1" / "store"
    with pytest.raises(CommandError, match="is the store of a backup, which is not written to: restore it"):
        run("check_store", store, "--apply")
    for words in (["--data", tmp_path / "b1"], ["--data", tmp_path / "d", "--store", store]):
        with pytest.raises(StoreError, match="is the store of a backup"):
            launch.prepare([*map(str, words), "--no-web"])
    assert "is as it was made" in run("backup", "verify", tmp_path / "b1", "--quiet")


def test_a_backup_beside_that_cannot_be_read_is_named_and_not_used(data, tmp_path):
    backups = tmp_path / "backups"
    backups.mkdir()
    run("backup", backups / "b1", "--data", data, "--quiet")
    (backups / "b1" / "manifest.json").write_text("{")
    said = run("backup", backups / "b2", "--data", data, "--quiet")
    assert f"Note: no file is shared with {backups / 'b1'}: " in said and "b2 is a whole backup" in said


def test_progress_is_lines_of_json_for_programs(data, tmp_path):
    lines = [
        json.loads(line) for line in run("backup", tmp_path / "b1", "--data", data, "--json").splitlines()
    ]
    assert list(lines[-1]) == ["result"]
    texts = [line["progress"]["text"] for line in lines[:-1]]
    assert {"queues", "the end of the log", "recovery of the copy", "sums"} <= set(texts)
    assert all(0 <= line["progress"]["done"] <= line["progress"]["total"] for line in lines[:-1])


def test_a_changed_backup_ends_with_1_and_names_the_file(data, tmp_path):
    run("backup", tmp_path / "b1", "--data", data, "--quiet", "--copy")
    changed = tmp_path / "b1" / "store" / "ends"
    changed.write_bytes(changed.read_bytes() + b"x")
    output = io.StringIO()
    with pytest.raises(SystemExit) as ended:
        call_command("backup", "verify", str(tmp_path / "b1"), "--quiet", stdout=output)
    assert ended.value.code == 1 and str(changed) in output.getvalue()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["b1", "b2"], "give one directory"),
        (["verify"], "give one directory"),
        (["verify", "nowhere"], "there is no such directory"),
        (["verify", "data"], "no backup, or one that was interrupted"),
        (["data/inside"], "is in the data directory"),
        (["b1", "--since", "data"], "no backup, or one that was interrupted"),
        (["b1", "--store", "nowhere"], "is no store: it has no directory commitlog"),
    ],
)
def test_what_cannot_be_is_refused_in_words(data, tmp_path, words, said):
    paths = [word if word == "verify" or word.startswith("-") else str(tmp_path / word) for word in words]
    with pytest.raises(CommandError, match=said):
        run("backup", *paths, "--data", data, "--quiet")


def test_a_link_leads_no_backup_and_no_restore_into_what_they_read(data, tmp_path):
    (tmp_path / "link").symlink_to(data)
    with pytest.raises(CommandError, match="is in the data directory"):
        run("backup", tmp_path / "link" / "b1", "--data", data, "--quiet")
    store = tmp_path / "elsewhere"
    (data / "store").rename(store)
    with pytest.raises(CommandError, match="is in the store"):
        run("backup", store / "b1", "--data", data, "--store", store, "--quiet")
    run("backup", tmp_path / "b1", "--data", data, "--store", store, "--quiet")
    with pytest.raises(CommandError, match="is in the backup"):
        run("restore", tmp_path / "b1", tmp_path / "b1" / "new", "--quiet")
    assert "is as it was made" in run("backup", "verify", tmp_path / "b1", "--quiet")


def test_the_store_of_a_broker_that_dies_meanwhile_is_no_whole_backup(data, tmp_path):
    (data / "run").mkdir()
    (data / "run" / "broker.json").write_text(json.dumps({"store": str(data / "store")}))
    page = LivePage(Disk(), data / "run" / "live")
    page.publish(0, 0, 0, 0, 0, 0, "running")

    class Ending(io.StringIO):
        def write(self, text):
            if text.startswith("queues"):
                page.close()
            return super().write(text)

    with pytest.raises(CommandError, match="stopped or was started again during the backup"):
        call_command("backup", str(tmp_path / "b1"), "--data", str(data), stdout=Ending())
    with pytest.raises(CommandError, match="was interrupted"):
        run("restore", tmp_path / "b1", tmp_path / "new")


@pytest.mark.parametrize("name", ["clean", "clean-small", "broker-dir", "golden-clean", "golden-crash"])
@pytest.mark.parametrize("words", [[], ["--copy"]], ids=["links", "copies"])
def test_a_store_of_apaches_broker_is_saved_and_restored(tmp_path, name, words):
    root = stores.unpack(name, tmp_path / "apache", timer=True)
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    end = StoreDirectory(root).log_end()
    run("backup", tmp_path / "b1", "--data", tmp_path / "d", "--store", root, "--quiet", *words)
    assert {path: path.read_bytes() for path in before} == before
    run("restore", tmp_path / "b1", tmp_path / "new", "--quiet")
    assert StoreDirectory(tmp_path / "new" / "store").log_end() == end
    assert json.loads(run("check_store", tmp_path / "new" / "store", "--json"))["ok"]
