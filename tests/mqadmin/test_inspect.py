"""`runbroker --inspect` on stores that Apache's broker left: everything can be looked at, and no byte of them changes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mqadmin.rest_client import RestClient, RestError
from tests.mqadmin.test_whole import free_ports
from tests.support import plain_recovery, stores

PROJECT = Path(__file__).resolve().parents[2]
PATIENCE_SECONDS = 60.0


def tree(directory: Path) -> dict:
    """Everything below a directory with its bytes and times."""
    return {path: (path.lstat().st_mtime_ns, path.lstat().st_mode, path.read_bytes() if path.is_file() else None) for path in directory.rglob("*")}


class Looking:
    """A runbroker that looks at a store, with a data directory of its own."""

    def __init__(self, store: Path, data: Path):
        self.data, (self.port,) = data, free_ports(1)
        command = [sys.executable, "manage.py", "runbroker", "--inspect", "--store", str(store), "--data", str(data), "--web-port", str(self.port)]
        environment = {name: value for name, value in os.environ.items() if name not in ("REDIS_URL", "BROKER_DATA_DIR", "DJANGO_SETTINGS_MODULE")}
        self.output = data.with_name("output").open("w+b")
        self.process = subprocess.Popen(command, cwd=PROJECT, env=environment, stdout=self.output, stderr=self.output)

    def __enter__(self) -> Looking:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while "READY" not in self.said():
            assert time.monotonic() < deadline and self.process.poll() is None, self.said()
            time.sleep(0.02)
        return self

    def said(self) -> str:
        return self.data.with_name("output").read_text()

    def __exit__(self, *_) -> None:
        self.process.terminate()
        assert self.process.wait(20) == 0, self.said()
        self.output.close()


def job(looking: Looking, broker: RestClient, started: dict) -> dict:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (found := broker.get(f"/jobs/{started['id']}"))["state"] in ("waiting", "running"):
        assert time.monotonic() < deadline, looking.said()
        time.sleep(0.02)
    assert found["state"] == "done", found
    return found["result"]


def test_a_crashed_store_is_looked_at_from_all_sides_and_stays_as_it_is(tmp_path):
    root = stores.unpack_variant("kill9", tmp_path / "apache")
    before, plain = tree(tmp_path / "apache"), plain_recovery.read(root)
    with Looking(root, tmp_path / "data") as looking, RestClient.of_data_directory(looking.data) as broker:
        assert "(read-only)" in looking.said()
        recovery = broker.get("/recovery")
        assert (recovery["purpose"], recovery["log_end"], recovery["messages"]) == ("inspect", str(plain.end), str(plain.messages))
        assert broker.get("/store")["state"] == "read_only"
        files = list(broker.pages("/store/files"))
        assert {file["kind"] for file in files} == {"commitlog", "consumequeue", "index"}
        logs = {file["name"]: file for file in files if file["kind"] == "commitlog"}
        assert min(logs) == min(path.name for path in (root / "commitlog").iterdir()) and len(logs) > 3
        for name, file in logs.items():
            first_ms = plain_recovery.first_ms((root / "commitlog" / name).read_bytes(), int(name))
            assert file["first_ms"] == (None if first_ms is None else str(first_ms))
        with pytest.raises(RestError, match="SERVICE_NOT_AVAILABLE"):
            broker.post("/topics/FixA/messages", {"body": "x"})
        dry = job(looking, broker, broker.post("/store/recoveries/dry-run"))
        assert (dry["state"], dry["log_end"]) == ("done", plain.end)
        record = broker.get(f"/store/recoveries/{dry['recovery']}")
        assert (record["purpose"], record["store"]) == ("dry run", "store") and str(tmp_path) not in str(record)
        checked = job(looking, broker, broker.post("/jobs", {"kind": "check_store"}))
        assert checked["counts"]["records"] > 0
    assert tree(tmp_path / "apache") == before


def test_a_store_that_a_start_would_refuse_can_be_looked_at(tmp_path):
    root = stores.unpack_variant("bitflip-early", tmp_path / "apache")
    before = tree(tmp_path / "apache")
    with Looking(root, tmp_path / "data") as looking, RestClient.of_data_directory(looking.data) as broker:
        assert re.search("A start would be refused: .*CRC is wrong", looking.said())
        recovery = broker.get("/recovery")
        assert (recovery["state"], recovery["stopped"]["verdict"], recovery["crc_failures"]) == ("failed", "damage: the start stops", "1")
        assert len(list(broker.pages("/store/files", kind="commitlog"))) == len(list((root / "commitlog").iterdir()))
        assert [(row["purpose"], row["state"]) for row in broker.get("/store/recoveries")["items"]] == [("inspect", "failed")]
    assert tree(tmp_path / "apache") == before


def test_the_data_directory_may_not_lie_within_the_store(tmp_path):
    root = stores.unpack("clean-small", tmp_path)
    before = tree(tmp_path)
    done = subprocess.run(
        [sys.executable, "manage.py", "runbroker", "--inspect", "--store", str(root), "--data", str(root / "data")], cwd=PROJECT, capture_output=True, text=True
    )
    assert done.returncode == 1 and "give a directory outside of it" in done.stderr
    assert tree(tmp_path) == before
