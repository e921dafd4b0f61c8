"""Unmodified Apache clients as child processes.

Each program (java/src/Interop.java, go/main.go) takes a name server address, a command and key=value options
and prints one JSON object a line. What they were compiled against is fetched by `make deps`
(tests/interop/deps.sh) into build/rocketmq; nothing here touches a network.
"""

import copy
import json
import os
import shutil
import subprocess
import threading
import time
from pathlib import Path
from typing import Self

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("RMQ_BUILD", ROOT / "build" / "rocketmq"))
JAVA_5, JAVA_4 = "5.5.0", "4.9.8"
# Clients of RocketMQ 5 (gRPC)
JAVA_GRPC, GO_GRPC, NODE_GRPC, PYTHON_GRPC, RUST_GRPC = "grpc-5.2.0", "go-grpc", "node", "python", "rust"
LOG_CONFIGURATION = BUILD / "client-logback.xml"
# A client that gets no answer gives up after seconds; these are for a machine that does ten other things.
RUN_LIMIT_S = 180
STOP_LIMIT_S = 20


def java_missing(version: str) -> str | None:
    """Why a Java program of this version cannot run here, or None."""
    if shutil.which("java") is None:
        return "no java on this machine (make deps)"
    if (
        not (BUILD / f"cp-{version}.txt").exists()
        or not (BUILD / f"classes-{version}" / "interop" / ".stamp").exists()
    ):
        return f"rocketmq-client {version} is not in {BUILD} (make deps)"
    return None


def program_missing(name: str = "go-client") -> str | None:
    """Why the program of Go or Rust cannot run here, or None."""
    return None if (BUILD / name).exists() else f"{name} is not in {BUILD} (make deps)"


def node_missing() -> str | None:
    """Why the Node program cannot run here, or None."""
    if shutil.which("node") is None:
        return "no node on this machine (make deps)"
    return (
        None if (BUILD / "node-client" / ".stamp").exists() else f"node-client is not in {BUILD} (make deps)"
    )


def missing(kind: str) -> str | None:
    """Why a client cannot run here, or None."""
    if kind == NODE_GRPC:
        return node_missing()
    if kind == PYTHON_GRPC:
        return program_missing("python-client/bin/python")
    return program_missing(f"{kind}-client") if kind in ("go", GO_GRPC, RUST_GRPC) else java_missing(kind)


def require(*kinds: str) -> None:
    """Skip the test when one of these clients (JAVA_5, JAVA_4, "go", or one of RocketMQ 5) is not
    here: to be called before a broker is started."""
    for kind in kinds:
        if reason := missing(kind):
            pytest.skip(reason)


class Program:
    """A way to start one kind of client against one name server."""

    def __init__(self, command: list[str], nameserver: str):
        self._command = command
        self.nameserver = nameserver
        self.always: dict[str, str] = {}  # options of each command

    def start(self, command: str, **options) -> "Running":
        words = [f"{name}={value}" for name, value in (self.always | options).items()]
        return Running([*self._command, self.nameserver, command, *words])

    def signed_by(self, access_key: str, secret_key: str) -> Self:
        """Return the program with credentials (Java alone)."""
        program = copy.copy(self)
        program.always = self.always | {"access_key": access_key, "secret_key": secret_key}
        return program

    def run(self, command: str, limit_s: float = RUN_LIMIT_S, **options) -> list[dict]:
        """The lines the program printed, without its first word that it is ready."""
        running = self.start(command, **options)
        return [line for line in running.wait(limit_s) if "ready" not in line]

    def admin(self, *commands: str) -> list[dict]:
        """Answers to admin commands; words of a command are separated by tabs."""
        running = self.start("admin")
        running.say("".join(command + "\n" for command in commands))
        return running.finish()


class JavaProgram(Program):
    def __init__(self, version: str, nameserver: str, home: Path, main: str = "Interop"):
        self.version = version
        classes, archive = BUILD / f"classes-{version}" / "interop", BUILD / f"interop-{version}.jsa"
        flags = (ROOT / "tests/interop/java/flags.txt").read_text().split()
        if archive.exists():
            classes = archive.with_suffix(".jar")
            flags += [f"-XX:SharedArchiveFile={archive}"]
        classpath = f"{classes}:" + (BUILD / f"cp-{version}.txt").read_text()
        flags += [
            f"-Duser.home={home}",
            f"-Djava.io.tmpdir={home}",
            f"-Drmq.logback.configurationFile={LOG_CONFIGURATION}",
            "-Drocketmq.client.logUseSlf4j=false",
            f"-Drocketmq.client.logRoot={home}",
        ]
        super().__init__(["java", *flags, "-cp", classpath, main], nameserver)


def java_of(version: str, broker, home: Path) -> JavaProgram:
    """Apache's Java client of a version for a broker; skips the test where it is not there."""
    require(version)
    return JavaProgram(version, broker.nameserver, home)


class GoProgram(Program):
    version = "go-2"

    def __init__(self, nameserver: str):
        super().__init__([str(BUILD / "go-client")], nameserver)


def grpc_program(kind: str, endpoint: str, home: Path, authority: Path | None = None) -> Program:
    """Apache's client for RocketMQ 5 of a kind (JAVA_GRPC, ..); skips the test where it is not there. That of
    Node checks the broker's certificate, which is its own `authority`. Those of Python and Rust have no TLS here."""
    require(kind)
    if kind == NODE_GRPC:
        variables = [f"HOME={home}", f"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH={authority}"]
        return Program(["env", *variables, "node", str(BUILD / "node-client" / "grpc.js")], endpoint)
    if kind == JAVA_GRPC:
        return JavaProgram(kind, endpoint, home, "Grpc")
    if kind == PYTHON_GRPC:
        program = ROOT / "tests" / "interop" / "python" / "produce.py"
        return Program([str(BUILD / "python-client" / "bin" / "python"), str(program)], endpoint)
    command = ["env", f"HOME={home}", f"user.home={home}", str(BUILD / f"{kind}-client")]
    return Program(command, endpoint)


class Running:
    """A started program: its lines arrive as they are printed; it is ended by closing its input."""

    def __init__(self, command: list[str]):
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        self.lines: list[dict] = []
        self._changed = threading.Condition()
        self._errors = b""
        self._readers = [
            threading.Thread(target=self._read_lines),
            threading.Thread(target=self._read_errors),
        ]
        for reader in self._readers:
            reader.start()

    def _read_lines(self) -> None:
        for line in self._process.stdout:
            if line.startswith(b"{"):
                value = json.loads(line)
                with self._changed:
                    self.lines.append(value)
                    self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()

    def _read_errors(self) -> None:
        self._errors = self._process.stderr.read()

    def until(self, enough, limit_s: float = RUN_LIMIT_S) -> list[dict]:
        """Waits until `enough(lines)` holds; raises with what was printed when the time is over or the
        program ended before."""
        deadline = time.monotonic() + limit_s
        with self._changed:
            while not enough(self.lines):
                left = deadline - time.monotonic()
                if left <= 0 or (self._process.poll() is not None and not self._readers[0].is_alive()):
                    raise AssertionError(
                        f"not seen within {limit_s:.0f} s; {len(self.lines)} lines, last "
                        f"{self.lines[-3:]}, errors {self._errors[-2000:]!r}"
                    )
                self._changed.wait(min(left, 0.5))
            return list(self.lines)

    def seen(self) -> list[dict]:
        with self._changed:
            return list(self.lines)

    def wait_for_change(self, limit_s: float) -> None:
        with self._changed:
            self._changed.wait(limit_s)

    def until_ready(self, limit_s: float = RUN_LIMIT_S) -> None:
        self.until(lambda lines: any("ready" in line for line in lines), limit_s)

    def say(self, text: str) -> None:
        self._process.stdin.write(text.encode())
        self._process.stdin.flush()

    def wait(self, limit_s: float = RUN_LIMIT_S) -> list[dict]:
        """Waits for the program's own end (its input stays open meanwhile) and gives its lines."""
        try:
            code = self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(
                f"still running after {limit_s:.0f} s; last lines {self.lines[-3:]}"
            ) from None
        self._close()
        assert code == 0, f"ended with {code}: {self._errors[-2000:]!r}"
        return self.lines

    def finish(self, limit_s: float = STOP_LIMIT_S) -> list[dict]:
        """Closes the input, upon which every program stops by itself, and gives its lines."""
        if self._process.stdin and not self._process.stdin.closed:
            self._process.stdin.close()
        return self.wait(limit_s)

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._close()

    def _close(self) -> None:
        for reader in self._readers:
            reader.join()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe and not pipe.closed:
                pipe.close()


def until_together(programs: list[Running], enough, limit_s: float = RUN_LIMIT_S) -> list[dict]:
    """Waits until `enough(lines of all programs)` holds."""
    deadline = time.monotonic() + limit_s
    while True:
        lines = [line for program in programs for line in program.seen()]
        if enough(lines):
            return lines
        if time.monotonic() > deadline:
            raise AssertionError(
                f"not seen within {limit_s:.0f} s; {[len(program.lines) for program in programs]} lines"
            )
        programs[0].wait_for_change(0.2)
