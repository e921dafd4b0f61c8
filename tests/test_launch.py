"""What a start refuses before anything is opened."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from broker_store import launch
from broker_store.config.name_server import NameServerSettings
from broker_store.errors import ConfigError, DamagedStoreError, StoreError, StoreLockedError

pytestmark = pytest.mark.slow

PROJECT = Path(__file__).resolve().parent.parent


@pytest.fixture
def prepare(tmp_path, monkeypatch):
    """`launch.prepare` with options, on a data directory of the test; what it locked is let go of at the
    end."""
    monkeypatch.setenv("BROKER_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setattr(launch, "prepared", None)
    held = []

    def prepared(*options: str) -> launch.Launch:
        start = launch.prepare(list(options))
        held.extend(lock for lock in (start.lock, start.data_lock) if lock is not None)
        return start

    yield prepared
    for lock in held:
        lock.release()


@pytest.mark.parametrize(
    "options", [(), ("--inspect",), ("--no-broker",), ("--store", "OTHER")], ids=" ".join
)
def test_a_data_directory_serves_one_runbroker_whatever_its_store(prepare, tmp_path, options):
    prepare().write_run_file({"broker": "127.0.0.1:10911"})
    options = [str(tmp_path / "other") if option == "OTHER" else option for option in options]
    with pytest.raises(
        StoreLockedError, match=r"process \d+ holds it \(broker 127\.0\.0\.1:10911\).*another --data"
    ):
        prepare(*options)
    assert (tmp_path / "data" / "run" / launch.RUN_FILE).exists()


def test_what_jobs_sign_with_is_in_a_file_of_the_owner_while_the_broker_runs(prepare, tmp_path):
    path = tmp_path / "data" / "run" / launch.CREDENTIALS_FILE
    inner = '{"accessKey": "inner", "secretKey": "a-secret"}'
    start = prepare(
        "--set", "authenticationEnabled=true", "--set", f"innerClientAuthenticationCredentials={inner}"
    )
    start.write_run_file({})
    assert path.read_text() == inner and stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "a-secret" not in (path.parent / launch.RUN_FILE).read_text()
    start.remove_run_file()
    assert not path.exists()


def test_credentials_that_a_killed_broker_left_go_with_the_next_start(prepare, tmp_path):
    path = tmp_path / "data" / "run" / launch.CREDENTIALS_FILE
    start = prepare()
    path.write_text("left")
    start.write_run_file({})
    assert not path.exists()


@pytest.mark.parametrize("option", ["--inspect", "--no-broker"])
def test_a_start_that_takes_no_store_leaves_what_a_killed_broker_told_of_it(prepare, tmp_path, option):
    path = tmp_path / "data" / "run" / launch.RUN_FILE
    killed = prepare("--set", "maxHashSlotNum=500", "--set", "messageDelayLevel=7s")
    killed.write_run_file({"broker": "127.0.0.1:10911"})
    left = path.read_bytes()
    told = json.loads(left)["store_settings"]
    assert (told["max_hash_slot_num"], told["max_index_num"]) == (500, 20_000_000), (
        "sizes are told also where they are as by default"
    )
    for lock in (killed.lock, killed.data_lock):
        lock.release()
    looking = prepare(option)
    looking.write_run_file({})
    found = json.loads(path.read_bytes())
    assert (found["store_settings"], found["delay_levels"], "broker" in found) == (told, "7s", False)
    looking.remove_run_file()
    assert path.read_bytes() == left


@pytest.mark.parametrize(
    "left", [b"", b"{", b"[]", b"[" * 100_000, b'{"store": "/other", "store_settings": {"max_index_num": 4}}']
)
def test_what_says_nothing_of_this_store_is_not_taken_for_its_settings(prepare, tmp_path, left):
    (tmp_path / "data" / "run").mkdir(parents=True)
    path = tmp_path / "data" / "run" / launch.RUN_FILE
    path.write_bytes(left)
    prepare("--inspect").write_run_file({})
    assert json.loads(path.read_bytes())["store_settings"] == {}


def test_a_run_file_that_is_nested_without_end_is_none_of_the_holder(prepare, tmp_path):
    prepare()
    (tmp_path / "data" / "run" / launch.RUN_FILE).write_bytes(b"[" * 100_000)
    with pytest.raises(StoreLockedError, match=r"another program, perhaps an Apache broker, holds it"):
        prepare()


@pytest.mark.parametrize(
    ("name", "is_directory"), [("run", False), ("logs", False), (f"run/{launch.RUN_FILE}", True)]
)
def test_a_name_of_another_kind_in_the_data_directory_is_refused_with_what_to_do(
    prepare, tmp_path, name, is_directory
):
    path = tmp_path / "data" / name
    path.parent.mkdir(parents=True)
    path.mkdir() if is_directory else path.write_bytes(b"x")
    with pytest.raises(DamagedStoreError, match="is no .*Move it out") as refused:
        prepare()
    assert refused.value.file == str(path)


@pytest.mark.parametrize(
    "make",
    [os.mkfifo, os.mkdir, lambda path: path.symlink_to("/dev/null")],
    ids=["FIFO", "directory", "link"],
)
def test_a_run_file_that_could_not_be_written_is_refused_before_the_store_is_opened(prepare, tmp_path, make):
    """It was found when the store had been opened, had moved messages and was to be READY."""
    (tmp_path / "data" / "run").mkdir(parents=True)
    make(tmp_path / "data" / "run" / f"{launch.RUN_FILE}.tmp")
    with pytest.raises(
        DamagedStoreError, match=f"run/{launch.RUN_FILE}.tmp: is no regular file. Move it out"
    ):
        prepare()
    assert not (tmp_path / "data" / "store").exists()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("run", "run: this user may not make files there.*chmod.*another --data"),
        (f"run/{launch.RUN_FILE}.tmp", f"{launch.RUN_FILE}.tmp: this user may not write it.*remove it"),
    ],
)
def test_a_run_directory_that_may_not_be_written_is_refused_before_the_store_is_opened(
    prepare, tmp_path, monkeypatch, name, said
):
    closed, access = tmp_path / "data" / name, os.access
    (tmp_path / "data" / "run").mkdir(parents=True)
    (tmp_path / "data" / "run" / f"{launch.RUN_FILE}.tmp").write_bytes(b"left over")
    monkeypatch.setattr(
        os,
        "access",
        lambda path, mode, **more: (path != closed or not mode & os.W_OK) and access(path, mode, **more),
    )
    with pytest.raises(StoreError, match=said):
        prepare()
    assert not (tmp_path / "data" / "store").exists()


def test_a_run_directory_on_a_file_system_that_is_mounted_read_only_is_refused_with_that(
    prepare, tmp_path, monkeypatch
):
    statvfs, read_only = os.statvfs, (4096, 4096, 1000, 600, 200, 0, 0, 0, os.ST_RDONLY, 255)
    run = tmp_path / "data" / "run"
    monkeypatch.setattr(
        os, "statvfs", lambda path: os.statvfs_result(read_only) if path == run else statvfs(path)
    )
    with pytest.raises(StoreError, match="data/run: its file system is mounted read-only.*another --data"):
        prepare()
    assert not (tmp_path / "data" / "store").exists()


def test_a_run_file_that_a_killed_broker_had_begun_is_written_again(prepare, tmp_path):
    (tmp_path / "data" / "run").mkdir(parents=True)
    (tmp_path / "data" / "run" / f"{launch.RUN_FILE}.tmp").write_bytes(b"{")
    prepare().write_run_file({})
    assert os.listdir(tmp_path / "data" / "run").count(f"{launch.RUN_FILE}.tmp") == 0


def test_another_data_directory_may_look_at_the_same_store(prepare, tmp_path):
    store = prepare().settings.store.store_path_root_dir
    assert prepare("--data", str(tmp_path / "mine"), "--store", str(store), "--inspect").lock is None


def test_a_refused_data_directory_lets_go_of_the_store(prepare, tmp_path):
    prepare("--no-broker")
    with pytest.raises(StoreLockedError):
        prepare()
    assert (
        prepare("--data", str(tmp_path / "mine"), "--store", str(tmp_path / "data" / "store")).lock
        is not None
    )


AUTHENTICATED, AUTHORIZED = "authenticationEnabled=true", "authorizationEnabled=true"


@pytest.mark.parametrize(
    ("set_keys", "why"),
    [
        ((), "authenticationEnabled and authorizationEnabled are false"),
        ((AUTHENTICATED,), "authorizationEnabled is false. Set authorizationEnabled=true"),
    ],
)
def test_an_address_that_others_reach_needs_access_control_or_to_be_asked_for(prepare, set_keys, why):
    given = [word for key in set_keys for word in ("--set", key)]
    with pytest.raises(ConfigError, match=f"{why}.*--insecure"):
        prepare("--bind", "0.0.0.0", *given)
    start = prepare("--bind", "0.0.0.0", "--insecure", *given)
    assert start.has_name_server and start.has_open_name_server


def test_with_access_control_every_address_is_allowed_and_the_name_server_is_not_open(prepare):
    start = prepare("--bind", "0.0.0.0", "--set", AUTHENTICATED, "--set", AUTHORIZED)
    assert not start.has_open_name_server and start.web_bind == "0.0.0.0"


@pytest.mark.parametrize("alone", ["--no-broker", "--inspect"])
def test_the_dashboard_has_logins_and_needs_no_access_control(prepare, alone, tmp_path):
    store = [] if alone == "--no-broker" else ["--store", str(tmp_path / "elsewhere")]
    assert prepare("--bind", "0.0.0.0", alone, *store).web_bind == "0.0.0.0"


def test_the_dashboard_may_have_an_address_of_its_own(prepare):
    start = prepare("--web-bind", "0.0.0.0")
    assert (start.arguments.bind, start.web_bind) == ("127.0.0.1", "0.0.0.0") and start.has_open_name_server


def test_a_name_server_alone_needs_the_addresses_that_may_change_it():
    with pytest.raises(ConfigError, match="nameServerChangeAddresses"):
        launch.check_name_server_bind("0.0.0.0", False, NameServerSettings())
    launch.check_name_server_bind("0.0.0.0", True, NameServerSettings())
    launch.check_name_server_bind("::1", False, NameServerSettings())
    named = NameServerSettings(name_server_change_addresses="10.0.0.0/24")
    launch.check_name_server_bind("0.0.0.0", False, named)


def test_named_name_servers_take_the_place_of_the_embedded_one(prepare):
    start = prepare("--nameserver", "127.0.0.1:9999")
    assert not start.has_name_server
    assert start.settings.broker.namesrv_addr == "127.0.0.1:9999"


def test_directories_that_were_there_before_are_for_their_owner_alone(prepare, tmp_path):
    data = tmp_path / "data"
    for path in (data, data / "run", data / "logs", data / "store"):
        path.mkdir()
        path.chmod(0o755)
    prepare()
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in data.iterdir()}
    assert modes == dict.fromkeys(("run", "logs", "cache", "store"), 0o700)
    assert stat.S_IMODE(data.stat().st_mode) == 0o755, (
        "the directory itself was the owner's choice, and what is in it is closed"
    )


def test_whichever_command_comes_first_leaves_files_of_its_owner_alone(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    data.chmod(0o755)
    subprocess.run(
        [sys.executable, "manage.py", "migrate", "--verbosity", "0"],
        env=os.environ | {"BROKER_DATA_DIR": str(data), "DJANGO_SETTINGS_MODULE": "mqadmin.settings"},
        cwd=PROJECT,
        check=True,
        umask=0o022,
    )
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in data.iterdir() if path.is_file()}
    assert modes.keys() >= {"secret_key", "mqadmin.sqlite3"} and set(modes.values()) == {0o600}


def test_manage_py_without_a_command_lists_the_commands():
    done = subprocess.run(
        [sys.executable, "manage.py"], cwd=PROJECT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0 and "runbroker" in done.stdout and "Traceback" not in done.stderr
