"""What is made once: the secret key."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from mqadmin import first_start

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


def test_a_deployment_check_asks_only_for_what_tls_in_front_must_do(tmp_path):
    def check(**more: str) -> str:
        environment = os.environ | {"BROKER_DATA_DIR": str(tmp_path), "DJANGO_SETTINGS_MODULE": "mqadmin.settings"} | more
        command = [sys.executable, "manage.py", "check", "--deploy", "--fail-level", "ERROR"]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60).stderr

    (warning,) = [line for line in check().splitlines() if line.startswith("?:")]
    assert "mqadmin.W001" in warning and all(name in warning for name in ("SSL_REDIRECT", "HSTS_SECONDS", "SESSION_COOKIE", "CSRF_COOKIE"))
    assert "W" not in check(BROKER_WEB_TLS="1", BROKER_WEB_HOST="mq.example")
