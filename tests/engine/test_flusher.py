"""When the checkpoint moves, and what must be on disk before it does."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker_store.engine.disk.disk import Disk
from broker_store.engine.flusher import CheckpointFile, RoundFlusher
from broker_store.engine.rows import WriterContext
from broker_store.engine.start.ends import EndsFile
from broker_store.kernels import context as c
from tests.support.hand_store import message

INTERVAL_MS = 20_000


class Log:
    flushed = 0


class Synced:
    has_full_unsynced = False
    files = ()

    def __init__(self):
        self.count = 0

    def sync(self, only_full=False):
        self.count += not only_full


class Queues(list):
    def unsynced(self):
        return self

    def sync(self):
        for queue in self:
            queue.sync()


class Setup:
    def __init__(self, checkpoint: CheckpointFile, ends: Path):
        self.context, self.log, self.queue, self.index, self.checkpoint = (
            WriterContext(),
            Log(),
            Synced(),
            Synced(),
            checkpoint,
        )
        self.ends = EndsFile(Disk(), ends)
        self.flusher = RoundFlusher(
            self.context, self.log, Queues([self.queue]), self.index, checkpoint, self.ends, INTERVAL_MS
        )

    def dispatch_to(self, position: int, store_ms: int) -> None:
        self.context.view[c.DISPATCH_AT] = position
        self.context.view[c.LAST_DISPATCHED_MS] = store_ms


@pytest.fixture
def setup(tmp_path):
    checkpoint = CheckpointFile(Disk(), tmp_path / "checkpoint")
    yield Setup(checkpoint, tmp_path / "ends")
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


def test_full_files_of_queues_and_index_wait_for_no_round_and_no_log(open_store, clock):
    store = open_store(flush_consume_queue_thorough_interval=3_600_000)
    round_flusher = store.worker("round-flusher")
    round_flusher.run(clock())
    clock.advance(1000)
    for number in range(19):
        store.appender.put(message(keys=(f"a{number}", f"b{number}", f"c{number}")))
    round_flusher.run(clock())
    queue = store.queue_table.find("topic", 0)
    assert (queue.files[0].flushed, store.index.files[0].synced) == (0, False)
    for number in range(10):
        store.appender.put(message(keys=(f"d{number}", f"e{number}", f"f{number}")))
    clock.advance(1000)
    round_flusher.run(clock())
    assert (queue.files[0].flushed, store.index.files[0].synced, store.index.files[1].synced) == (
        queue.file_size,
        True,
        False,
    )
    assert store.status.positions().checkpoint_position == 0 == store.status.positions().flushed


def test_a_round_comes_early_enough_for_thirty_seconds_whatever_is_set(setup, tmp_path):
    """Its look comes each second, and the log is there a look later."""
    flusher = RoundFlusher(
        setup.context, setup.log, Queues([setup.queue]), setup.index, setup.checkpoint, setup.ends, 3_600_000
    )
    setup.dispatch_to(1000, 5_000_001)
    setup.log.flushed = 1000
    assert flusher.step(100_000)
    setup.dispatch_to(2000, 5_000_002)
    setup.log.flushed = 2000
    assert flusher.step(100_000 + 30_000 - 2 * 1000)
