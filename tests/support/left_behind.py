"""What is left after a run of the tests: processes that are still alive, files in the temporary directory.

A process is known by a word of its environment, which all that it starts inherits, also what has no parent
any more. pytest puts the name of the running test there as well, so that one that is left names the test that
started it.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

MARK = "BROKER_TESTS_RUN"
END_SECONDS = 15.0  # for processes that were asked to end to be gone: a JVM or a Chromium on a busy machine
STEP_SECONDS = 0.05
# What lives as long as the run: closed at its end, before the temporary directory is checked.
AT_END = ExitStack()


@dataclass(frozen=True)
class LeftProcess:
    """A process that a test started and that is alive."""

    pid: int
    command: str
    test: str

    def __str__(self) -> str:
        return f"process {self.pid} ({self.command[:200]}), started in {self.test}"


def mark_of_this_process() -> str:
    """A word for the processes that this one starts, and no other run's."""
    return f"{os.getpid()}-{os.urandom(6).hex()}"


def is_alive(pid: int) -> bool:
    """Whether a process runs. One that ended stays in the table until its parent waits for it; that one does
    not run."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def alive(mark: str) -> list[LeftProcess]:
    """The processes with this mark, without this one; one that has ended and was not waited for is none."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                words = (entry / "environ").read_bytes().split(b"\0")
                command = (
                    (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                )
            except OSError:  # it ended meanwhile, or is another user's
                continue
            known = dict(word.split(b"=", 1) for word in words if b"=" in word)
            if known.get(MARK.encode()) == mark.encode():
                test = known.get(b"PYTEST_CURRENT_TEST", b"no test").decode(errors="replace")
                found.append(LeftProcess(int(entry.name), command, test))
    return found


def left_processes(mark: str, limit_s: float | None = None) -> list[LeftProcess]:
    """Those that are alive after `limit_s` (END_SECONDS); they are killed, so that nothing of a run outlives
    it."""
    deadline = time.monotonic() + (END_SECONDS if limit_s is None else limit_s)
    while (left := alive(mark)) and time.monotonic() < deadline:
        time.sleep(STEP_SECONDS)
    for one in left:
        try:
            os.kill(one.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # it ended just now
    return left


def left_files(directory: Path) -> list[str]:
    """What lies in a directory that was empty."""
    return sorted(path.name for path in directory.iterdir())
