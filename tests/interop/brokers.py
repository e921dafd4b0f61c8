"""Brokers as child processes, ours and Apache's, with the same handful of methods, so that one test can be
held against either.

The tests are about ours; `INTEROP_BROKER=apache` runs them against Apache's broker, which is how a test
itself is checked.
"""

import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.interop.clients import BUILD, ROOT

PEERS = ROOT / "tests" / "bench" / "peers"
READY_LIMIT_S = 60
STOP_LIMIT_S = 15


def free_ports() -> tuple[int, int]:
    """A name server port and a broker port; the broker also takes the one two below and Apache's the one
    above."""
    for _ in range(100):
        sockets = []
        try:
            base = _bound(0, sockets)
            for port in (base - 2, base + 1):
                _bound(port, sockets)
            return _bound(0, sockets), base
        except OSError:
            continue
        finally:
            for one in sockets:
                one.close()
    raise AssertionError("no free ports on loopback")


def _bound(port: int, sockets: list) -> int:
    one = socket.socket()
    sockets.append(one)
    one.bind(("127.0.0.1", port))
    return one.getsockname()[1]


class OurBroker:
    """`manage.py runbroker` on a data directory; the ports stay the same over restarts, as clients expect.
    With `has_grpc` it serves the clients of RocketMQ 5 on `grpc_port`."""

    def __init__(
        self,
        data: Path,
        settings: dict[str, object] | None = None,
        arguments: tuple[str, ...] = ("--no-web",),
        *,
        has_grpc: bool = False,
    ):
        self.data = data
        self.grpc_port = free_ports()[1] if has_grpc else 0
        self.settings = dict(settings or {})
        self.nameserver_port, self.broker_port = free_ports()
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
        command = [
            sys.executable,
            "manage.py",
            "runbroker",
            "--data",
            str(self.data),
            "--bind",
            "127.0.0.1",
            "--broker-port",
            str(self.broker_port),
            "--nameserver-port",
            str(self.nameserver_port),
            "--grpc-port",
            str(self.grpc_port),
            *self._arguments,
        ]
        for key, value in self.settings.items():
            command += ["--set", f"{key}={value}"]
        # The settings of the tests' own Django are not the broker's: they make a temporary directory, which a
        # killed process leaves.
        environment = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
        environment["BROKER_DATA_DIR"] = str(self.data)
        began = time.monotonic()
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environment,
        )
        self._wait_ready(began + READY_LIMIT_S)
        self.seconds_to_ready = time.monotonic() - began
        return self

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

    def kill9(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._ended()

    def _ended(self) -> None:
        self._process.stdout.close()
        self._log.close()
        self._process = None


class ApacheBroker:
    """Apache's name server and broker by the peer scripts. With `has_grpc` the broker runs within Apache's
    proxy, which serves the clients of RocketMQ 5 on `grpc_port`."""

    def __init__(
        self,
        data: Path,
        settings: dict[str, object] | None = None,
        arguments: tuple[str, ...] = (),
        *,
        has_grpc: bool = False,
    ):
        self.data = data
        self.grpc_port = free_ports()[1] if has_grpc else 0
        self.settings = dict(settings or {})
        self.nameserver_port, self.broker_port = free_ports()
        self.nameserver = f"127.0.0.1:{self.nameserver_port}"
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
        self._stop("all")
        return 0

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
        self.grpc_port = free_ports()[1]
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
            [str(PEERS / "stop.sh"), str(self.data), "broker"],
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
