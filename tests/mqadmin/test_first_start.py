"""What is made once: the secret key."""

from __future__ import annotations

import errno
import os
import socket
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from mqadmin.process import first_start

pytestmark = pytest.mark.slow


def test_the_key_is_made_once_and_is_the_owners_alone(tmp_path):
    directory = tmp_path / "data"
    key = first_start.secret_key(directory)
    assert len(key) >= 50 and first_start.secret_key(directory) == key
    assert stat.S_IMODE((directory / "secret_key").stat().st_mode) == 0o600
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert os.listdir(directory) == ["secret_key"]


def test_many_that_come_first_agree_on_one_key(tmp_path):
    with ThreadPoolExecutor(8) as threads:
        keys = set(threads.map(lambda _: first_start.secret_key(tmp_path), range(32)))
    assert len(keys) == 1


def test_a_weak_key_stops_the_start(tmp_path):
    (tmp_path / "secret_key").write_text("short")
    with pytest.raises(SystemExit, match="remove it"):
        first_start.secret_key(tmp_path)


def bind_socket(path):
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (os.mkfifo, "is a FIFO, no regular file"),
        (os.mkdir, "is a directory, no regular file"),
        (bind_socket, "is a socket, no regular file"),
        (lambda path: path.symlink_to("nowhere"), "is a link that leads nowhere"),
    ],
    ids=["FIFO", "directory", "socket", "link"],
)
def test_a_key_of_another_kind_ends_the_start_with_what_to_do(tmp_path, make, kind):
    """An open of a FIFO waited for ever, and a directory was a traceback."""
    make(tmp_path / "secret_key")
    look = (
        "import sys; from pathlib import Path; from mqadmin.process import first_start; "
        "first_start.secret_key(Path(sys.argv[1]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", look, str(tmp_path)], capture_output=True, text=True, timeout=30
    )
    assert (done.returncode, done.stderr) == (
        1,
        f"{tmp_path / 'secret_key'} {kind}: move it away, the next start makes a new one and "
        f"all users log in again\n",
    )


def test_a_key_that_may_not_be_read_ends_the_start_with_what_to_do(tmp_path, monkeypatch):
    first_start.secret_key(tmp_path)

    def refused(path, *_):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(os, "open", refused)
    with pytest.raises(
        SystemExit,
        match="secret_key cannot be read .Permission denied.: let the user that runs the broker read it, "
        "or move it away",
    ):
        first_start.secret_key(tmp_path)


def test_a_key_may_be_a_link_to_a_file_and_bytes_that_are_no_text_are_none(tmp_path):
    key = first_start.secret_key(tmp_path / "elsewhere")
    (tmp_path / "secret_key").symlink_to(tmp_path / "elsewhere" / "secret_key")
    assert first_start.secret_key(tmp_path) == key
    (tmp_path / "elsewhere" / "secret_key").write_bytes(b"\xff" * 60)
    with pytest.raises(SystemExit, match="remove it"):
        first_start.secret_key(tmp_path)


def test_a_deployment_check_asks_only_for_what_tls_in_front_must_do(tmp_path):
    def check(**more: str) -> str:
        environment = (
            os.environ
            | {"BROKER_DATA_DIR": str(tmp_path), "DJANGO_SETTINGS_MODULE": "mqadmin.settings"}
            | more
        )
        command = [sys.executable, "manage.py", "check", "--deploy", "--fail-level", "ERROR"]
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, check=True, timeout=60
        ).stderr

    (warning,) = [line for line in check().splitlines() if line.startswith("?:")]
    assert "mqadmin.W001" in warning and all(
        name in warning for name in ("SSL_REDIRECT", "HSTS_SECONDS", "SESSION_COOKIE", "CSRF_COOKIE")
    )
    assert "W" not in check(BROKER_WEB_TLS="1", BROKER_WEB_HOST="mq.example")
