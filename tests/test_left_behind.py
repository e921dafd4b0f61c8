"""A run of the tests leaves nothing: what is alive or lies about at its end is an error that names it, and is
ended or removed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support import left_behind

pytestmark = pytest.mark.slow

PROJECT = Path(__file__).resolve().parents[1]
FAILED, PASSED = 1, 0
SLEEPER = (
    "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], "
    "start_new_session=True)"
)
TESTS = {
    "a process": f"def test_it():\n    import subprocess, sys\n    subprocess.run([sys.executable, '-c', "
    f"{SLEEPER!r}], check=True)\n",
    "a file": "def test_it():\n    import tempfile\n    tempfile.mkdtemp(prefix='forgotten-')\n",
    "nothing": "def test_it(tmp_path):\n    (tmp_path / 'kept').write_text('by pytest')\n",
}


def run_tests(directory: Path, *arguments: str, **environment: str) -> tuple[int, str]:
    """The exit code and the output of a run of its own, which takes nothing of this run's environment for its
    own."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        f"--basetemp={directory / 'base'}",
        *arguments,
    ]
    known = {
        name: value
        for name, value in os.environ.items()
        if name not in ("CI", "PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER")
    }
    done = subprocess.run(
        command, cwd=PROJECT, env=known | environment, capture_output=True, text=True, timeout=300
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("left", "says"),
    [
        ("a process", r"process (\d+) \(.*time\.sleep\(600\).*\), started in .*::test_it"),
        ("a file", "forgotten-"),
    ],
)
def test_what_a_test_leaves_is_named_and_taken_away(tmp_path, left, says, monkeypatch):
    (tmp_path / "test_one.py").write_text(TESTS[left])
    (tmp_path / "conftest.py").write_text(
        "from tests.conftest import nothing_is_left_behind\nfrom tests.support import "
        "left_behind\nleft_behind.END_SECONDS = 0.5\n"
    )
    code, output = run_tests(tmp_path, str(tmp_path), TMPDIR=str(tmp_path))
    assert code == FAILED
    found = re.search(says, output)
    assert found, output
    if left == "a process":
        assert not left_behind.is_alive(int(found[1]))
    assert not list(tmp_path.glob("broker-tests-*"))


def test_a_run_that_leaves_nothing_passes(tmp_path):
    (tmp_path / "test_one.py").write_text(TESTS["nothing"])
    (tmp_path / "conftest.py").write_text("from tests.conftest import nothing_is_left_behind\n")
    code, output = run_tests(tmp_path, str(tmp_path))
    assert (code, "1 passed" in output) == (PASSED, True), output


def test_the_tests_of_a_client_that_is_not_here_skip_before_they_start_a_broker(tmp_path):
    code, output = run_tests(
        tmp_path,
        "tests/interop/test_kinds.py",
        "-k",
        "transactions_of_the_go or retries_that_wait or broadcasting_consumer or new_group_begins",
        "-rs",
        RMQ_BUILD=str(tmp_path / "nothing"),
    )
    assert (code, "4 skipped" in output) == (PASSED, True), output
    assert "make deps" in output
    assert not list((tmp_path / "base").glob("*/data")), "a broker was started"


def test_only_what_has_the_mark_counts():
    mark = left_behind.mark_of_this_process()
    with subprocess.Popen(["sleep", "600"], env=os.environ | {left_behind.MARK: mark}) as ours:
        try:
            deadline = time.monotonic() + 10
            while not left_behind.alive(mark) and time.monotonic() < deadline:
                pass  # Popen returns while the kernel may still set up the environment of the new program
            assert [one.pid for one in left_behind.alive(mark)] == [ours.pid]
            assert left_behind.alive(mark + "0") == []
            assert [one.pid for one in left_behind.left_processes(mark, 0.0)] == [ours.pid]
            assert ours.wait(10) < 0
        finally:
            ours.kill()


def test_an_environment_that_is_empty_for_a_moment_is_read_again(monkeypatch):
    """As that of a process while it becomes another program."""
    given = [b"", b"", b"A=1\0B=2\0"]
    monkeypatch.setattr(Path, "read_bytes", lambda path: given.pop(0))
    assert left_behind.environment_of(os.getpid()) == [b"A=1", b"B=2", b""]
    assert given == []


def test_a_process_without_an_environment_has_none(monkeypatch):
    monkeypatch.setattr(left_behind, "EMPTY_READS", 2)
    monkeypatch.setattr(Path, "read_bytes", lambda path: b"")
    assert left_behind.environment_of(os.getpid()) == []
