"""What tests of backups share: a store that is written while its backup is made."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from broker_store.backup.copying import Copier, Pace
from broker_store.backup.manifest import Manifest
from broker_store.backup.picture import Picture
from broker_store.backup.source import Source, now_ms
from broker_store.engine.disk.disk import Disk
from broker_store.engine.status.live_page import LivePosition
from broker_store.formats import record
from broker_store.messages import GetRequest
from tests.support.directories import tmp_path  # noqa: F401  (a fixture)
from tests.support.hand_store import HandStore, message, small_settings


@dataclass
class Writing:
    """A broker's store under a load: `write` is called at each step of a backup."""

    store: HandStore
    random: random.Random = field(default_factory=lambda: random.Random(7))
    sent: dict[tuple[str, int], list[bytes]] = field(default_factory=dict)
    times: dict[tuple[str, int], list[int]] = field(default_factory=dict)  # when each was stored
    on_step: Callable[[str], None] = lambda step: None
    steps: list[str] = field(default_factory=list)

    def write(self, count: int) -> None:
        for _ in range(count):
            topic, queue_id = self.random.choice("ab"), self.random.randrange(3)
            bodies = self.sent.setdefault((topic, queue_id), [])
            body = f"{topic}{queue_id}-{len(bodies)}-".encode() + b"x" * self.random.randrange(300)
            result = self.store.appender.put(
                message(topic, queue_id, body, keys=(f"{topic}{queue_id}-{len(bodies)}",), tag="t")
            )
            assert result.queue_offset == len(bodies)
            bodies.append(body)
            self.times.setdefault((topic, queue_id), []).append(self.store.clock())
            self.store.clock.advance(3)

    def live(self) -> LivePosition:
        flushed, dispatched = self.store.log.flushed, self.store.dispatcher.dispatched
        return LivePosition(
            os.getpid(),
            now_ms() + 1,
            self.store.log.minimum,
            self.store.log.wrote,
            self.store.confirmed,
            dispatched,
            flushed,
            0,
            "running",
            0,
            0,
        )

    def step(self, step: str, done: int, total: int) -> None:
        assert done <= total
        if not self.steps or self.steps[-1] != step:
            self.steps.append(step)
            self.on_step(step)

    def back_up(self, target: Path, disk: Disk | None = None, **options) -> Manifest:
        disk = disk or Disk()
        source = Source(settings=self.store.settings, live=self.live)
        copier = Copier(disk, Pace(), self.step)
        return Picture(
            source, target, disk, copier, sleep=lambda seconds: self.store.flush(), **options
        ).take()


@pytest.fixture
def writing(tmp_path):  # noqa: F811
    store = HandStore(small_settings(tmp_path / "data" / "store")).begin()
    writing = Writing(store)
    writing.write(300)
    store.flush()
    yield writing
    store.close()


def bodies_of(root: Path) -> dict[tuple[str, int], list[bytes]]:
    """Return the bodies of each queue of a store that is opened, in the order of offsets."""
    store = HandStore(small_settings(root)).begin()
    try:
        assert not store.report.abort_found
        assert not store.report.findings
        found = {}
        for topic, queue_id in store.queues():
            bodies, at = [], store.reads.min_offset(topic, queue_id)
            while at < store.reads.max_offset(topic, queue_id):
                got = store.reads.get_blocking(GetRequest(topic, queue_id, at))
                bodies += [one.body for one in record.decode_all(got.body)]
                assert got.next_offset > at
                at = got.next_offset
            found[topic, queue_id] = bodies
        return found
    finally:
        store.close()
