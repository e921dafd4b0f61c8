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
EMPTY_READS = 20
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


def environment_of(pid: int) -> list[bytes]:
    """Return the words of a process's environment. It is empty for a moment while the process becomes another
    program, so an empty one is read again. Raises OSError if the process has ended."""
    for _ in range(EMPTY_READS):
        if words := Path(f"/proc/{pid}/environ").read_bytes():
            return words.split(b"\0")
        if not is_alive(pid):
            break
        os.readlink(f"/proc/{pid}/exe")  # a thread of the kernel has none, and no environment ever
        time.sleep(STEP_SECONDS)
    return []


def alive(mark: str) -> list[LeftProcess]:
    """The processes with this mark, without this one; one that has ended and was not waited for is none."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                words = environment_of(int(entry.name))
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
