"""`manage.py` as child processes that are forked from one that has imported what each of them imports.

To import Numba, to load the kernels and to import this project takes 1 s of processor time, a start of a broker
0.1 s more. Tests start hundreds of brokers. So the first start of a test process starts a parent for all
brokers, which imports once; each start is then a fork of it that runs `manage.py` from its first line on. No
setting is read before the fork: the modules that read one (`mqadmin`, Django's that need settings) are imported
by each broker.

What is about the start itself uses `subprocess` (tests/mqadmin/test_whole.py, tests/test_launch.py).
"""

from __future__ import annotations

import array
import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import TracebackType

from tests.support import left_behind

ROOT = Path(__file__).resolve().parents[2]
# Modules that read no settings when they are imported.
IMPORTED = ("broker_store.assembly", "broker_store.server.grpc.port", "uvloop", "django.core.management", "django.db.models",
            "django.http", "django.urls", "redis.asyncio", "croniter", "yaml")  # fmt: skip
REQUEST_BYTES = 1 << 20
DESCRIPTORS = 3  # that come with a request: standard output, standard error, and where the end is reported
# Seconds of processor time that ended processes used, for the option --costs.
used_seconds = 0.0


class Process:
    """A forked `manage.py`, with the methods of `subprocess.Popen` that tests use."""

    def __init__(self, pid: int, output: int, end: int):
        self.pid, self.returncode = pid, None
        self.stdout = os.fdopen(output, "rb")
        self._end = end

    def poll(self) -> int | None:
        """Return the exit code, or None while the process runs."""
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code, negative for a signal; raise TimeoutExpired when the time is over."""
        if self.returncode is None:
            if not select.select([self._end], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(["manage.py"], timeout or 0.0)
            with os.fdopen(self._end, "rb") as end:
                report = end.read()
            assert report, "the parent of all brokers ended"
            self.returncode, seconds = json.loads(report)
            global used_seconds
            used_seconds += seconds
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it ended meanwhile, and its parent waited for it
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Starter:
    """The parent of all brokers of a test process, at the end of whose run it ends."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.prepared", str(theirs.fileno())],
                cwd=ROOT,
                env=dict(os.environ, PYTHONPATH=str(ROOT)),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )

    def start(self, arguments: list[str], environment: dict[str, str], errors: int) -> Process:
        """Fork a `manage.py` with these arguments, which writes its errors to a descriptor."""
        output, their_output = os.pipe()
        end, their_end = os.pipe()
        request = json.dumps([arguments, environment]).encode()
        descriptors = array.array("i", [their_output, errors, their_end])
        try:
            self._socket.sendmsg([request], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)])
        finally:
            os.close(their_output)
            os.close(their_end)
        answer = self._socket.recv(REQUEST_BYTES)
        assert answer, f"the parent of all brokers ended with {self._process.wait()}"
        return Process(json.loads(answer), output, end)

    def __enter__(self) -> Starter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()
        self._process.wait()


_starter: Starter | None = None  # of this test process, from the first start on
_one_at_a_time = threading.Lock()


def start(arguments: list[str], environment: dict[str, str], errors: int) -> Process:
    """Start `manage.py` with these arguments and this environment, which writes its errors to a descriptor."""
    global _starter
    with _one_at_a_time:
        if _starter is None:
            _starter = left_behind.AT_END.enter_context(Starter())
        return _starter.start(arguments, environment, errors)


def run(arguments: list[str], environment: dict[str, str], limit_s: float) -> tuple[int, str]:
    """Run `manage.py` with these arguments to its end; return its exit code, and its output and errors."""
    with tempfile.TemporaryFile() as errors:
        process = start(arguments, environment, errors.fileno())
        with process.stdout as output:
            ended = threading.Timer(limit_s, process.kill)
            ended.start()
            said = output.read()
            ended.cancel()
        code = process.wait(limit_s)
        errors.seek(0)
        return code, (said + errors.read()).decode(errors="replace")


# The parent of all brokers ---------------------------------------------------------------------------------


def serve(requests: socket.socket) -> list[str] | None:
    """Fork for each request, until the test process closes its end. Return twice: in each fork the arguments
    of the command that it is to run, in the parent None."""
    running: dict[int, tuple[int, int]] = {}  # of each pidfd: the process, and where its end is reported
    while True:
        for ready in select.select([requests, *running], [], [])[0]:
            if ready is not requests:
                pid, end = running.pop(ready)
                os.close(ready)
                report_end(pid, end)
                continue
            request, descriptors, _, _ = socket.recv_fds(requests, REQUEST_BYTES, DESCRIPTORS)
            if not request:
                return None
            arguments, environment = json.loads(request)
            output, errors, end = descriptors
            pid = os.fork()
            if pid == 0:
                for inherited in running:
                    os.close(inherited)
                for _, other_end in running.values():
                    os.close(other_end)
                os.close(end)
                become(requests, environment, output, errors)
                return arguments
            os.close(output)
            os.close(errors)
            running[os.pidfd_open(pid)] = pid, end
            requests.send(json.dumps(pid).encode())


def become(requests: socket.socket, environment: dict[str, str], output: int, errors: int) -> None:
    """Give this fork the environment and the descriptors of its own."""
    requests.close()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for descriptor, number in ((output, 1), (errors, 2)):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(environment)


def report_end(pid: int, end: int) -> None:
    """Wait for a process that has ended, and write its exit code and its seconds of processor time."""
    _, status, used = os.wait4(pid, 0)
    with os.fdopen(end, "wb") as report:
        try:
            report.write(
                json.dumps([os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime]).encode()
            )
            report.flush()
        except BrokenPipeError:
            pass  # its test ended without waiting for it


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the test process ends, and then this one
    for name in IMPORTED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=int(sys.argv[1])) as requests:
        arguments = serve(requests)
    if arguments is not None:
        sys.argv = ["manage.py", *arguments]
        sys.path[0] = str(ROOT)
        runpy.run_path(str(ROOT / "manage.py"), run_name="__main__")


if __name__ == "__main__":
    main()
