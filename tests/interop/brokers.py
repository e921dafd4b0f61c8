"""Brokers as child processes, ours and Apache's, with the same handful of methods, so that one test can be
held against either.

The tests are about ours; `INTEROP_BROKER=apache` runs them against Apache's broker, which is how a test
itself is checked.
"""

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.interop.clients import BUILD, ROOT
from tests.support import prepared
from tests.support.ports import free_port, server_ports

PEERS = ROOT / "tests" / "bench" / "peers"
READY_LIMIT_S = 60
STOP_LIMIT_S = 60  # for a hang; tests/mqadmin/test_whole.py has the promise, on a quiet machine


class OurBroker:
    """`manage.py runbroker` on a data directory; the ports stay the same over restarts, as clients expect.
    With `has_grpc` it serves the clients of RocketMQ 5 on `grpc_port`. Each start is a fork of one process
    (tests/support/prepared.py)."""

    def __init__(
        self,
        data: Path,
        settings: dict[str, object] | None = None,
        arguments: tuple[str, ...] = ("--no-web",),
        *,
        has_grpc: bool = False,
    ):
        self.data = data
        self.grpc_port = free_port() if has_grpc else 0
        # A certificate is made for tests that use it.
        self.settings = {} if has_grpc or "--grpc-port" in arguments else {"tls.server.mode": "disabled"}
        self.settings |= settings or {}
        self.nameserver_port, self.broker_port = server_ports()
        self.nameserver = f"127.0.0.1:{self.nameserver_port}"
        self.store = data / "store"
        self._arguments = arguments
        self._process = None
        self._log = None
        self.ready_line = ""
        self.seconds_to_ready = 0.0

    @property
    def pid(self) -> int:
        return self._process.pid

    def start(self) -> "OurBroker":
        self.data.mkdir(parents=True, exist_ok=True)
        self._log = open(self.data / "broker.out", "ab")
        command = ["runbroker", "--data", str(self.data), "--bind", "127.0.0.1",
                   "--broker-port", str(self.broker_port), "--nameserver-port", str(self.nameserver_port),
                   "--grpc-port", str(self.grpc_port), *self._arguments]  # fmt: skip
        for key, value in self.settings.items():
            command += ["--set", f"{key}={value}"]
        # The settings of the tests' own Django are not the broker's: they make a temporary directory, which a
        # killed process leaves.
        environment = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
        environment["BROKER_DATA_DIR"] = str(self.data)
        began = time.monotonic()
        self._process = self._run(command, environment)
        self._wait_ready(began + READY_LIMIT_S)
        self.seconds_to_ready = time.monotonic() - began
        return self

    def _run(self, arguments: list[str], environment: dict[str, str]):
        return prepared.start(arguments, environment, self._log.fileno())

    def _wait_ready(self, deadline: float) -> None:
        seen = b""
        stream = self._process.stdout.fileno()
        while not any(line.startswith(b"READY") for line in seen.split(b"\n")[:-1]):
            left = deadline - time.monotonic()
            readable = select.select([stream], [], [], max(left, 0))[0]
            piece = os.read(stream, 65536) if readable else b""
            if not piece:
                self.kill9()
                raise AssertionError(
                    f"runbroker did not get READY: {seen.decode(errors='replace')}\n{self.output()}"
                )
            seen += piece
        self.ready_line = next(line for line in seen.decode().split("\n") if line.startswith("READY"))

    def output(self) -> str:
        return (self.data / "broker.out").read_text(errors="replace")[-4000:]

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        if self._process is None:
            return 0
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            code = self._process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self.kill9()
            raise AssertionError(
                f"runbroker did not end within {STOP_LIMIT_S} s of SIGTERM:\n{self.output()}"
            ) from None
        self._ended()
        return code

    def end(self) -> None:
        """End a broker whose store is not read afterwards."""
        self.stop()

    def kill9(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._ended()

    def _ended(self) -> None:
        self._process.stdout.close()
        self._log.close()
        self._process = None


class OurBrokerAlone(OurBroker):
    """As users start it, for figures: nothing of it was imported before."""

    def _run(self, arguments: list[str], environment: dict[str, str]):
        return subprocess.Popen(
            [sys.executable, "manage.py", *arguments],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environment,
        )


class ApacheBroker:
    """Apache's name server and broker by the peer scripts. With `has_grpc` the broker runs within Apache's
    proxy, which serves the clients of RocketMQ 5 on `grpc_port`."""

    usual: dict[str, object] = {}  # settings of all of them

    def __init__(
        self,
        data: Path,
        settings: dict[str, object] | None = None,
        arguments: tuple[str, ...] = (),
        *,
        has_grpc: bool = False,
        nameserver: str = "",
    ):
        """`nameserver` is one that runs; without it the broker has its own."""
        self.data = data
        self.grpc_port = free_port(1) if has_grpc else 0
        self.settings = self.usual | (settings or {})
        self.nameserver_port, self.broker_port = server_ports()
        self._given_nameserver = nameserver
        self.nameserver = nameserver or f"127.0.0.1:{self.nameserver_port}"
        self.store = data / "store"
        self.seconds_to_ready = 0.0

    @property
    def pid(self) -> int:
        return int((self.data / "bk.pid").read_text())

    def start(self) -> "ApacheBroker":
        self.data.mkdir(parents=True, exist_ok=True)
        extra = self.data / "extra.conf"
        extra.write_text(
            "".join(f"{key}={value}\n" for key, value in self.settings.items() if key != "flushDiskType")
        )
        environment = dict(
            os.environ,
            NS_PORT=str(self.nameserver_port),
            BROKER_PORT=str(self.broker_port),
            NAMESRV=self._given_nameserver,
            BROKER_HEAP=os.environ.get("BROKER_HEAP", "512m"),
            FLUSH=str(self.settings.get("flushDiskType", "ASYNC_FLUSH")),
            RMQ_BUILD=str(BUILD),
            GRPC_PORT=str(self.grpc_port or ""),
        )
        began = time.monotonic()
        done = subprocess.run(
            [str(PEERS / "start.sh"), str(self.data), str(extra)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=120,
        )
        assert done.returncode == 0, done.stdout.decode()
        self.seconds_to_ready = time.monotonic() - began
        return self

    def output(self) -> str:
        return (self.data / "bk.out").read_text(errors="replace")[-4000:]

    def stop(self) -> int:
        """End the broker when its store is closed: the threads of a JVM wait for one another afterwards."""
        self._stop("store")
        return 0

    def end(self) -> None:
        """End a broker whose store is not read afterwards, at once: a clean end takes 10 s of waiting."""
        self._stop("kill")

    def kill9(self) -> None:
        self._stop("kill9")

    def _stop(self, what: str) -> None:
        subprocess.run(
            [str(PEERS / "stop.sh"), str(self.data), what],
            env=dict(os.environ, RMQ_BUILD=str(BUILD)),
            check=True,
            timeout=130,
        )


class ApacheProxy:
    """Apache's proxy in CLUSTER mode, by the peer scripts: it serves gRPC before the brokers of a name
    server."""

    def __init__(self, data: Path, nameserver: str):
        self.data, self._nameserver = data, nameserver
        self.grpc_port = free_port(1)
        self.grpc = f"127.0.0.1:{self.grpc_port}"

    def start(self) -> "ApacheProxy":
        done = subprocess.run(
            [str(PEERS / "start-proxy.sh"), str(self.data), self._nameserver, str(self.grpc_port)],
            env=dict(os.environ, RMQ_BUILD=str(BUILD)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=120,
        )
        assert done.returncode == 0, done.stdout.decode()
        return self

    def stop(self) -> None:
        subprocess.run(
            [str(PEERS / "stop.sh"), str(self.data), "kill9"],
            env=dict(os.environ, RMQ_BUILD=str(BUILD)),
            check=True,
            timeout=130,
        )


Broker = ApacheBroker if os.environ.get("INTEROP_BROKER") == "apache" else OurBroker
IS_APACHE = Broker is ApacheBroker
# A store that goes from broker to broker; either goes in both directions.
THERE_AND_BACK = [
    pytest.param((ApacheBroker, OurBroker, ApacheBroker), id="Apache to ours and back"),
    pytest.param((OurBroker, ApacheBroker, OurBroker), id="ours to Apache and back", marks=pytest.mark.proof),
]
