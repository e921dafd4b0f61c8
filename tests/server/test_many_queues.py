"""5,000 topics of 8 filled queues in a control group of 512 MiB: all that `make run` starts, and the demo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.bench import filled_queues
from tests.interop.brokers import OurBrokerAlone
from tests.interop.clients import ROOT
from tests.support.ports import free_port

LIMIT_BYTES = 512 << 20
DEMO_SECONDS, DEMO_RATE = 20, 300
V1, V2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")


class Group:
    """A control group with a limit of memory."""

    def __init__(self, root: Path, name: str):
        self.root, self.directory = root, root / name
        self.directory.mkdir()

    @contextmanager
    def joined(self) -> Iterator[None]:
        """Have this process in the group, so that what it starts is in it too."""
        own = Path("/proc/self/cgroup").read_text()
        self._add(self.directory)
        try:
            yield
        finally:
            for line in own.splitlines():
                number, controllers, path = line.split(":", 2)
                if "memory" in controllers.split(",") or (number == "0" and self.root == V2):
                    self._add(self.root / path.lstrip("/"))

    def killed(self) -> int:
        """Return how many processes the kernel ended for want of memory."""
        name = "memory.oom_control" if self.root == V1 else "memory.events"
        lines = dict(line.split() for line in (self.directory / name).read_text().splitlines())
        return int(lines["oom_kill"])

    @staticmethod
    def _add(directory: Path) -> None:
        (directory / "cgroup.procs").write_text(str(os.getpid()))


class InGroup(OurBrokerAlone):
    """Started in a control group, which its children then are in too."""

    group: Group

    def _run(self, arguments, environment):
        with self.group.joined():
            return super()._run(arguments, environment)


@pytest.fixture
def group():
    root, name = (V1, "memory.limit_in_bytes") if V1.is_dir() else (V2, "memory.max")
    try:
        made = Group(root, f"headpond-test-{os.getpid()}")
        (made.directory / name).write_text(str(LIMIT_BYTES))
    except OSError as error:
        pytest.skip(f"a control group of memory cannot be made here: {error}")
    yield made
    made.directory.rmdir()


@pytest.mark.proof
@pytest.mark.on_disk
@pytest.mark.takes(240)
def test_all_processes_the_demo_and_forty_thousand_filled_queues_have_room_in_512_mib(group, tmp_path):
    broker = InGroup(tmp_path / "data", arguments=("--web-port", str(free_port())))
    broker.group = group
    filled_queues.fill(broker.store)
    broker.start()
    try:
        filled_queues.give(broker.broker_port)
        facts = filled_queues.facts(broker.pid)
        assert facts["maps"] < 5_000 and facts["descriptors"] < 200 and facts["page_tables_mb"] < 30
        counts = _demo(group, broker.data)
        assert counts["sent"] > DEMO_SECONDS * DEMO_RATE / 2 and counts["demo-billing"] > 0
        assert group.killed() == 0
    finally:
        broker.stop()


def _demo(group: Group, data: Path) -> dict[str, int]:
    """Run the demo in the group; return its last counts."""
    command = [sys.executable, "manage.py", "demo", "--data", str(data), "--json"]
    with group.joined():
        demo = subprocess.Popen(
            [*command, "--seconds", str(DEMO_SECONDS), "--rate", str(DEMO_RATE)],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"BROKER_DATA_DIR": str(data)},
        )
    with demo:
        output = demo.communicate(timeout=120)[0]
    assert demo.returncode == 0, output
    return json.loads(output.splitlines()[-1])
