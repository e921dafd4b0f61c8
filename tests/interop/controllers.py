"""Apache's controllers (5.5.0) as child processes: one, or a group that elects a leader among them."""

import os
import subprocess
import time
from pathlib import Path

from tests.interop.clients import BUILD, JAVA_5
from tests.support.ports import free_port

READY_LIMIT_S = 120  # on a machine that runs ten other things at the same time
OPENS = [
    # Without the first it prints how it failed to open each field of some classes
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.misc=ALL-UNNAMED",
]


class ApacheControllers:
    """A group of `count` controllers. `addresses` is what controllerAddr takes."""

    def __init__(self, root: Path, count: int = 1, settings: dict[str, object] | None = None):
        self._root = root
        # A controller of the group listens on the port of its peer address as well, for the others.
        self.ports = [free_port() for _ in range(count)]
        self.addresses = ";".join(f"127.0.0.1:{port}" for port in self.ports)
        self._settings = settings or {}
        self._processes: dict[int, subprocess.Popen] = {}

    def start(self) -> "ApacheControllers":
        try:
            for number in range(len(self.ports)):
                self.start_one(number)
        except BaseException:
            self.stop()
            raise
        return self

    def start_one(self, number: int) -> None:
        """Start one controller, and wait until it serves."""
        home = self._root / f"controller-{number}"
        home.mkdir(parents=True, exist_ok=True)
        peers = ";".join(f"n{one}-127.0.0.1:{port}" for one, port in enumerate(self.ports))
        settings = {
            "controllerDLegerGroup": "group1",
            "controllerDLegerPeers": peers,
            "controllerDLegerSelfId": f"n{number}",
            "controllerStorePath": home / "store",
            "mappedFileSize": 4 << 20,
        } | self._settings
        (home / "controller.conf").write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        command = [
            "java", "-Xms64m", "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
            f"-Duser.home={home}", f"-Drocketmq.home.dir={home}", *OPENS,
            "-cp", (BUILD / f"cp-{JAVA_5}.txt").read_text(),
            "org.apache.rocketmq.controller.ControllerStartup", "-c", str(home / "controller.conf"),
        ]  # fmt: skip
        with open(home / "out", "ab") as out:
            begin = out.tell()
            self._processes[number] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env=dict(os.environ)
            )
        until = time.monotonic() + READY_LIMIT_S
        while b"boot success" not in (home / "out").read_bytes()[begin:]:
            assert self._processes[number].poll() is None and time.monotonic() < until, self.output(number)
            time.sleep(0.1)

    def runs(self, port: int) -> bool:
        """True if the controller of a port was started and not killed."""
        return self.ports.index(port) in self._processes

    def output(self, number: int = 0) -> str:
        return (self._root / f"controller-{number}" / "out").read_text(errors="replace")[-4_000:]

    def kill9(self, number: int) -> None:
        process = self._processes.pop(number)
        process.kill()
        process.wait()

    def stop(self) -> None:
        for number in list(self._processes):
            self.kill9(number)
