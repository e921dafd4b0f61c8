"""The table of exit codes in README.md, held against the commands as processes."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from django.core.management.base import CommandError

from broker_store import launch
from broker_store.engine.store import MessageStore
from broker_store.kernels import map_fault
from mqadmin.management.base import BrokerCommand
from tests.support.hand_store import message, small_settings

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
MAKE_USER = "from django.contrib.auth.models import User; User.objects.create_user('admin')"
TABLE = dict(re.findall(r"^\| (\d+) \| ([^|]+) \|", (ROOT / "README.md").read_text(), re.MULTILINE))


def ended(tmp_path: Path, *arguments: str, answers: str | None = None) -> subprocess.CompletedProcess:
    """Run a command without a terminal. `answers` is its standard input; None: it has no input."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DJANGO_")} | {
        "BROKER_DATA_DIR": str(tmp_path / "data")
    }
    return subprocess.run(
        [sys.executable, "manage.py", *arguments],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL if answers is None else None,
        input=answers,
        capture_output=True,
        text=True,
        timeout=120,
        start_new_session=True,  # a password is read from the terminal of a session that has one
    )


def code_of(tmp_path: Path, *arguments: str) -> int:
    done = ended(tmp_path, *arguments)
    assert "Traceback" not in done.stderr, done.stderr[-2000:]
    assert done.returncode == 0 or done.stderr, "a code without a sentence"
    return done.returncode


def test_the_table_names_each_code_once():
    codes = [0, 1, 2, map_fault.EXIT_CODE, launch.EXIT_REFUSED, 130, 128 + signal.SIGTERM]
    assert list(TABLE) == list(map(str, codes))


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ("runbroker --nonsense", 2),
        ("runbroker --set nonsense=1", 78),
        ("runbroker --bind 0.0.0.0", 78),
        ("runbroker --set tlsCertPath=none.pem --no-web", 78),
        ("runnamesrv --set nonsense=1", 78),
        ("check_store --nonsense", 2),
        ("topic list", 1),
        ("topic nonsense", 2),
    ],
)
def test_commands_end_with_the_codes_of_the_table(tmp_path, arguments, code):
    assert code_of(tmp_path, *arguments.split()) == code and str(code) in TABLE


@pytest.mark.parametrize("arguments", ["token list", "topic list", "token create x --days 1"])
def test_a_command_that_asks_a_broker_makes_no_data_directory(tmp_path, arguments):
    done = ended(tmp_path, *arguments.split())
    assert (done.returncode, done.stdout) == (1, "")
    assert (
        done.stderr.startswith(f"there is no data directory {tmp_path / 'data'}; ")
        and "runbroker" in done.stderr
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "code"),
    [("check_store {}", 0), ("check_store {} --plan", 0), ("demo", 1), ("pipeline audit", 1)],
)
def test_a_command_that_reads_a_store_makes_nothing_beside_it(tmp_path, arguments, code):
    """They made `./data/secret_key`, and refused where they could not."""
    (tmp_path / "away").mkdir()
    done = ended(tmp_path, *arguments.format(tmp_path / "away").split())
    assert done.returncode == code and "Traceback" not in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["away"] and list(
        (tmp_path / "away").iterdir()
    ) == []


@pytest.mark.parametrize("command", ["token", "check_store"])
def test_a_data_directory_that_is_a_file_is_named_in_a_sentence(tmp_path, command):
    (tmp_path / "data").write_text("")
    done = ended(tmp_path, command, *["list"] * (command == "token"))
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert done.stderr.splitlines() == [
        f"the data directory {tmp_path / 'data'} cannot be used: it is no directory"
    ]


@pytest.mark.parametrize("command", ["rqstats", "rqsuspend"])
def test_a_command_for_queues_without_redis_ends_with_1_and_a_sentence(tmp_path, command):
    (tmp_path / "data").mkdir()
    done = ended(tmp_path, command)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert done.stderr.startswith("Redis, which holds the jobs, cannot be used: ")


def test_a_command_of_django_whose_input_ends_ends_with_1_and_a_sentence(tmp_path):
    (tmp_path / "data").mkdir()
    assert code_of(tmp_path, "migrate", "--verbosity", "0") == 0
    assert code_of(tmp_path, "shell", "-c", MAKE_USER) == 0
    password = "x7-Rain-Boat\n"
    for arguments, answers in (
        ("changepassword admin", None),
        ("changepassword admin", password),
        ("flush", ""),
    ):
        done = ended(tmp_path, *arguments.split(), answers=answers)
        assert done.returncode == 1 and "Traceback" not in done.stderr, arguments
        assert done.stderr.splitlines()[-1].startswith("the input ended before the command had its answers. ")
    for data in ([], ["--data", str(tmp_path / "data")], [f"--data={tmp_path / 'data'}"]):
        done = ended(tmp_path, "changepassword", *data, "admin", answers=password * 2)
        assert done.returncode == 0 and "Password changed successfully" in done.stdout
        assert "GetPassWarning" not in done.stderr


def test_check_store_ends_with_0_for_a_sound_store_and_1_where_there_is_none(tmp_path):
    root = tmp_path / "store"
    store = MessageStore(small_settings(root))
    store.open()
    store.close()
    assert code_of(tmp_path, "check_store", str(root)) == 0
    assert code_of(tmp_path, "store", "status", "--store", str(root)) == 0
    assert code_of(tmp_path, "check_store", str(tmp_path / "none")) == 1


def test_a_dry_run_ends_with_1_where_a_start_would_not_open_the_store(tmp_path):
    root = tmp_path / "store"
    store = MessageStore(small_settings(root))
    store.open()
    store.start()
    for number in range(3):
        assert store.appender.put(message("TopicX", number, bytes(100))).ok
    store.close()
    assert code_of(tmp_path, "store", "dry-run", "--store", str(root)) == 0
    (first, *_) = sorted((root / "commitlog").iterdir())
    with first.open("r+b") as file:
        file.seek(200)
        file.write(b"\xff" * 60)
    done = ended(tmp_path, "store", "dry-run", "--store", str(root))
    assert done.returncode == 1 and "failed" in done.stdout
    assert done.stderr.strip() == "a start would not open this store; the report says why"


def test_a_start_ends_with_78_for_a_damaged_store_and_with_1_for_an_address_in_use(tmp_path):
    quiet = ("--no-web", "--grpc-port", "0", "--nameserver-port", "0")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = ended(tmp_path, "runbroker", *quiet, "--broker-port", str(taken.getsockname()[1]))
    assert done.returncode == 1 and "another program listens there" in done.stderr, done.stderr
    checkpoint = tmp_path / "data" / "store" / "checkpoint"
    checkpoint.unlink(missing_ok=True)
    checkpoint.mkdir()
    done = ended(tmp_path, "runbroker", *quiet, "--broker-port", "0")
    assert done.returncode == launch.EXIT_REFUSED and "checkpoint" in done.stderr, done.stderr
    (tmp_path / "data" / "manifest.json").write_text('{\n "crc": 1')
    done = ended(tmp_path, "runbroker", *quiet, "--broker-port", "0")
    assert done.returncode == launch.EXIT_REFUSED and "is the store of a backup" in done.stderr, done.stderr


def test_a_command_that_is_interrupted_ends_with_130():
    class Interrupted(BrokerCommand):
        def run(self, options):
            raise KeyboardInterrupt

    with pytest.raises(CommandError) as raised:
        Interrupted().handle(data=None, json=False)
    assert raised.value.returncode == 130
