"""Whether a process exists, asked with what a file may hold."""

import os
import subprocess

import pytest

from broker_store import processes


def test_this_process_and_another_users_exist_and_one_that_ended_does_not():
    ended = subprocess.Popen(["true"])
    ended.wait()
    assert processes.exists(os.getpid()) and processes.exists(1)
    assert not processes.exists(ended.pid)


@pytest.mark.parametrize("pid", [0, -1, 2**31, 2**70, None, "1", 1.5])
def test_what_is_no_number_of_a_process_is_none(pid):
    assert not processes.exists(pid)
