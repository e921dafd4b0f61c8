"""What a start refuses before anything is opened."""

from __future__ import annotations

import pytest

from broker_store import launch
from broker_store.errors import ConfigError, StoreLockedError


@pytest.fixture
def prepare(tmp_path, monkeypatch):
    """`launch.prepare` with options, on a data directory of the test; what it locked is let go of at the end."""
    monkeypatch.setenv("BROKER_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setattr(launch, "prepared", None)
    monkeypatch.setattr(launch.os, "umask", lambda mask: 0)
    held = []

    def prepared(*options: str) -> launch.Launch:
        start = launch.prepare(list(options))
        held.extend(lock for lock in (start.lock, start.data_lock) if lock is not None)
        return start

    yield prepared
    for lock in held:
        lock.release()


@pytest.mark.parametrize("options", [(), ("--inspect",), ("--no-broker",), ("--store", "OTHER")], ids=" ".join)
def test_a_data_directory_serves_one_runbroker_whatever_its_store(prepare, tmp_path, options):
    prepare().write_run_file({"broker": "127.0.0.1:10911"})
    options = [str(tmp_path / "other") if option == "OTHER" else option for option in options]
    with pytest.raises(StoreLockedError, match=r"process \d+ holds it \(broker 127\.0\.0\.1:10911\).*another --data"):
        prepare(*options)
    assert (tmp_path / "data" / "run" / launch.RUN_FILE).exists()


def test_another_data_directory_may_look_at_the_same_store(prepare, tmp_path):
    store = prepare().settings.store.store_path_root_dir
    assert prepare("--data", str(tmp_path / "mine"), "--store", str(store), "--inspect").lock is None


def test_a_refused_data_directory_lets_go_of_the_store(prepare, tmp_path):
    prepare("--no-broker")
    with pytest.raises(StoreLockedError):
        prepare()
    assert prepare("--data", str(tmp_path / "mine"), "--store", str(tmp_path / "data" / "store")).lock is not None


def test_an_address_that_others_reach_needs_to_be_asked_for(prepare):
    with pytest.raises(ConfigError, match="--insecure"):
        prepare("--bind", "0.0.0.0")
    assert prepare("--bind", "0.0.0.0", "--insecure").has_name_server


def test_named_name_servers_take_the_place_of_the_embedded_one(prepare):
    start = prepare("--nameserver", "127.0.0.1:9999")
    assert not start.has_name_server
    assert start.settings.broker.namesrv_addr == "127.0.0.1:9999"
