"""A second broker on this machine that copies the log of the running one, for the demo."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections import deque
from pathlib import Path

from django.conf import settings

from broker_store.errors import MisuseError
from broker_store.units import fact_of
from mqadmin.facts.overview import Overview
from mqadmin.facts.replication import ReplicationFacts
from mqadmin.process import run_file
from mqadmin.process.children import launched
from mqadmin.process.rest_client import RestClient
from mqadmin.process.run_file import RunFile

DIRECTORY = "demo-replica"  # in the data directory of the broker
STOP_SECONDS = 20.0
LAST_LINES = 5


class Replica:
    """The process of a slave; `stop` ends it. Its copy stays, and the next start goes on with it."""

    def __init__(self, data: Path, run: RunFile, broker: RestClient):
        """Start it. Raises MisuseError if the running broker cannot have a slave here, RestError, OSError."""
        if run.tls_mode == "enforcing" or run_file.own_credentials(data) is not None:
            raise MisuseError(
                "--replica is for a broker without access control and without enforced TLS; "
                "docs/REPLICATION.md has the settings of a slave for the others"
            )
        port = fact_of(ReplicationFacts, broker.post("/store/replication/port")).ha_port
        name = fact_of(Overview, broker.get("/overview")).broker.name
        self.directory = data / DIRECTORY
        values = {
            "brokerName": name,
            "brokerId": "1",
            "brokerRole": "SLAVE",
            "haMasterAddress": f"127.0.0.1:{port}",
            **run_file.size_settings(run),  # a slave needs those of its master
        }
        command = [
            sys.executable,
            str(settings.BASE_DIRECTORY / "manage.py"),
            *("runbroker", "--data", str(self.directory), "--no-web"),
            *("--bind", "127.0.0.1", "--broker-port", "0", "--grpc-port", "0"),
            *("--nameserver", str(run.nameserver)),
        ]
        for option, value in values.items():
            command += ["--set", f"{option}={value}"]
        self.directory.mkdir(mode=0o700, exist_ok=True)
        self._process = subprocess.Popen(
            launched(command, signal.SIGTERM),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            env=os.environ | {"BROKER_DATA_DIR": str(self.directory)},
        )
        self._said: deque[str] = deque(maxlen=LAST_LINES)
        self._await_ready()
        # Its output is read to the end, so that it never waits for a full pipe.
        threading.Thread(target=self._read, name="replica-output", daemon=True).start()

    def _await_ready(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._said.append(line.strip())
            if line.startswith("READY"):
                return
        self._process.wait()
        raise MisuseError("the second broker did not start: " + " | ".join(self._said))

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._said.append(line.strip())

    def stop(self) -> None:
        """End the process."""
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def remove(data: Path) -> bool:
    """Remove the copy of an earlier demo; return False when there is none."""
    directory = data / DIRECTORY
    if not directory.is_dir():
        return False
    shutil.rmtree(directory)
    return True
