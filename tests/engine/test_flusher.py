"""When the checkpoint moves, and what must be on disk before it does."""

from __future__ import annotations

import pytest

from broker_store.engine.disk import Disk
from broker_store.engine.flusher import CheckpointFile, RoundFlusher
from broker_store.engine.rows import WriterContext
from broker_store.kernels import context as c

INTERVAL_MS = 30_000


class Log:
    flushed = 0


class Synced:
    def __init__(self):
        self.count = 0

    def sync(self):
        self.count += 1


class Setup:
    def __init__(self, checkpoint: CheckpointFile):
        self.context, self.log, self.queue, self.index, self.checkpoint = WriterContext(), Log(), Synced(), Synced(), checkpoint
        self.flusher = RoundFlusher(self.context, self.log, [self.queue], self.index, checkpoint, INTERVAL_MS)

    def dispatch_to(self, position: int, store_ms: int) -> None:
        self.context.view[c.DISPATCH_AT] = position
        self.context.view[c.LAST_DISPATCHED_MS] = store_ms


@pytest.fixture
def setup(tmp_path):
    checkpoint = CheckpointFile(Disk(), tmp_path / "checkpoint")
    yield Setup(checkpoint)
    checkpoint.close()


def test_the_checkpoint_moves_under_a_load_whose_newest_bytes_are_never_on_disk_yet(setup):
    for second in range(1, 4):
        setup.dispatch_to(1000 * second, 5_000_000 + second)
        setup.log.flushed = 1000 * second - 1
        setup.flusher.step(100_000 + 1000 * second)
    assert setup.flusher.position == 1000
    assert setup.checkpoint.stamps.physic_msg_timestamp == 5_000_001


def test_a_stamp_waits_for_the_log(setup):
    setup.dispatch_to(1000, 5_000_001)
    setup.log.flushed = 999
    assert not setup.flusher.step(100_000)
    assert setup.flusher.position is None
    assert setup.queue.count == setup.index.count == 0


def test_queues_and_index_are_synced_before_the_stamp_and_once_an_interval(setup):
    setup.dispatch_to(1000, 5_000_001)
    setup.log.flushed = 1000
    assert setup.flusher.step(100_000)
    setup.dispatch_to(2000, 5_000_002)
    setup.log.flushed = 2000
    assert not setup.flusher.step(100_000 + INTERVAL_MS - 1)
    assert setup.queue.count == setup.index.count == 1
    assert setup.flusher.step(100_000 + INTERVAL_MS)
    assert setup.checkpoint.stamps.logics_msg_timestamp == 5_000_002


def test_nothing_new_is_no_round(setup):
    setup.dispatch_to(1000, 5_000_001)
    setup.log.flushed = 1000
    assert setup.flusher.round(1)
    assert not setup.flusher.round(2)
    assert setup.queue.count == 1
