"""Unmodified Apache clients as child processes.

Each program (java/src/Interop.java, go/main.go) takes a name server address, a command and key=value options
and prints one JSON object a line. What they were compiled against is fetched by `make deps`
(tests/interop/deps.sh) into build/rocketmq; nothing here touches a network.
"""

import copy
import functools
import os
import shutil
import zipfile
from functools import partial
from pathlib import Path
from typing import Self

import pytest

from tests.interop import kept_jvms
from tests.interop.running import RUN_LIMIT_S, Running, until_together

__all__ = ["RUN_LIMIT_S", "Running", "until_together"]
ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("RMQ_BUILD", ROOT / "build" / "rocketmq"))
JAVA_5, JAVA_4 = "5.5.0", "4.9.8"
# Clients of RocketMQ 5 (gRPC)
JAVA_GRPC, GO_GRPC, NODE_GRPC, PYTHON_GRPC, RUST_GRPC = "grpc-5.2.0", "go-grpc", "node", "python", "rust"
LOG_CONFIGURATION = BUILD / "client-logback.xml"


def java_missing(version: str) -> str | None:
    """Why a Java program of this version cannot run here, or None."""
    if shutil.which("java") is None:
        return "no java on this machine (make deps)"
    if not (BUILD / f"cp-{version}.txt").exists() or not (BUILD / f"interop-{version}.jar").exists():
        return f"rocketmq-client {version} is not in {BUILD} (make deps)"
    if not _has_host(version):
        return f"the programs of {version} in {BUILD} are older than their sources (make deps)"
    return None


@functools.cache
def _has_host(version: str) -> bool:
    with zipfile.ZipFile(BUILD / f"interop-{version}.jar") as jar:
        return "Host.class" in jar.namelist()


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
        """Return the program with credentials (Java and Go)."""
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
        return running.finish(RUN_LIMIT_S)


def archive_of(version: str) -> list[str]:
    """Return the flags with which a JVM finds Apache's classes of this version loaded, if the archive is here."""
    archive = BUILD / f"interop-{version}.jsa"
    return [f"-XX:SharedArchiveFile={archive}"] if archive.exists() else []


def classpath_of(version: str) -> str:
    """Return Apache's jars of a version, and the programs after them: as they were archived (java/build.sh)."""
    return (BUILD / f"cp-{version}.txt").read_text().strip() + f":{BUILD}/interop-{version}.jar"


class JavaProgram(Program):
    """Apache's Java client. Its commands run in JVMs that are kept for the test process (kept_jvms.py), where one
    takes a tenth of the processor time of a start. One that a test kills ends its JVM."""

    # Have a JVM of their own: mqadmin takes standard output away.
    _ALONE = ("mqadmin",)

    def __init__(self, version: str, nameserver: str, home: Path, main: str = "Interop"):
        self.version, self._home, self._main = version, home, main
        flags = (ROOT / "tests/interop/java/flags.txt").read_text().split()
        self._flags = (*flags, *archive_of(version))
        super().__init__(java_command(self._flags, version, home, (main,)), nameserver)

    def by_tls(self) -> Self:
        """Return the program whose connections have TLS."""
        program = copy.copy(self)
        program._flags = (*self._flags, "-Dtls.enable=true")
        program._command = java_command(program._flags, self.version, self._home, (self._main,))
        return program

    def start(self, command: str, **options) -> "Running":
        # Broadcasting keeps its offsets in the home, which must be the test's own; a trace leaves when it likes.
        if command in self._ALONE or options.get("model") == "broadcasting" or "trace" in options:
            return super().start(command, **options)
        words = [f"{name}={value}" for name, value in (self.always | options).items()]
        jvm = partial(java_command, self._flags, self.version, main=("Host", self._main))
        return kept_jvms.start(
            (self._flags, self.version, self._main), jvm, [self.nameserver, command, *words]
        )


def java_command(flags: tuple[str, ...], version: str, home: Path, main: tuple[str, ...]) -> list[str]:
    """Return the words of a JVM with Apache's client and a home of its own."""
    of_home = [
        f"-Duser.home={home}",
        f"-Djava.io.tmpdir={home}",
        f"-Drmq.logback.configurationFile={LOG_CONFIGURATION}",
        "-Drocketmq.client.logUseSlf4j=false",
        f"-Drocketmq.client.logRoot={home}",
    ]
    return ["java", *flags, *of_home, "-cp", classpath_of(version), *main]


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
