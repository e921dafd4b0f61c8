"""Forked `manage.py` of the tests: each has its own arguments, environment, output and exit code."""

import os
import signal
import subprocess

import pytest

from tests.support import prepared

pytestmark = pytest.mark.slow  # the first start imports what a broker imports


def started(tmp_path, *arguments, **environment):
    with open(tmp_path / "errors", "wb") as errors:
        return prepared.start(list(arguments), dict(os.environ, **environment), errors.fileno())


def test_a_command_has_its_arguments_and_its_exit_code(tmp_path):
    with started(tmp_path, "help", "runbroker").stdout as output:
        assert b"--nameserver-port" in output.read()
    wrong = started(tmp_path, "runbroker", "--data", str(tmp_path), "--broker-port", "none")
    with wrong.stdout as output:
        assert output.read() == b""
    assert wrong.wait(60) != 0
    assert b"--broker-port" in (tmp_path / "errors").read_bytes()


def test_a_command_that_is_run_gives_its_code_and_what_it_said(tmp_path):
    environment = dict(os.environ, BROKER_DATA_DIR=str(tmp_path))
    code, said = prepared.run(["check_store", str(tmp_path / "none")], environment, 60)
    assert code == 1 and str(tmp_path / "none") in said


def test_two_have_an_environment_and_an_end_of_their_own(tmp_path):
    """The end of one is not reported for the other, nor is it held back by it."""
    data = [tmp_path / name for name in ("one", "two")]
    both = [
        started(tmp_path, "shell", "--no-imports", "-c", "import os, time; print(os.environ['BROKER_DATA_DIR'], flush=True); time.sleep(600)",
                BROKER_DATA_DIR=str(directory), DJANGO_SETTINGS_MODULE="mqadmin.settings")
        for directory in data
    ]  # fmt: skip
    try:
        for process, directory in zip(both, data, strict=True):
            assert process.stdout.readline().strip() == str(directory).encode()
        both[0].kill()
        assert both[0].wait(60) == -signal.SIGKILL
        assert both[1].poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            both[1].wait(0)
        both[1].send_signal(signal.SIGTERM)
        assert both[1].wait(60) == -signal.SIGTERM
    finally:
        for process in both:
            process.kill()
            process.stdout.close()
