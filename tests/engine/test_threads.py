"""The store with its real workers, all of them busy: files roll, go and are synced while messages come and
are read."""

import random

import pytest

from broker_store.check.walk import check_store
from broker_store.engine.disk.disk import Disk, Usage
from broker_store.engine.store import MessageStore
from broker_store.formats import record
from broker_store.messages import GetRequest, GetStatus, PutStatus
from tests.support.hand_store import message, small_settings


class TightDisk(Disk):
    """So full that the oldest files go at every look."""

    def usage(self, path):
        return Usage(1000, 130)


@pytest.mark.quick(1)
@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_nothing_gets_into_the_way_of_anything_else(directory, flush):
    rng = random.Random(5)
    settings = small_settings(
        directory / "store",
        flush_disk_type=flush,
        max_index_num=2000,
        flush_interval_commit_log=1,
        flush_interval_consume_queue=1,
        flush_consume_queue_thorough_interval=100,
        clean_resource_interval=100,
        sync_flush_timeout=60_000,
    )
    store = MessageStore(settings, disk=TightDisk())
    store.open()
    store.start()
    answers, put, read = [], 0, 0
    cold = []
    for turn in range(4000):
        topic = rng.choice(("A", "B", "C"))
        group = [
            message(topic, rng.randrange(2), rng.randbytes(rng.choice((10, 800))), keys=(f"k{turn}",))
            for _ in range(rng.choice((1, 1, 8)))
        ]
        for result in store.appender.put_many(group):
            if result.ok:
                put += 1
                store.confirmation.when_confirmed(result.log_end, answers.append)
        if turn % 50 == 0 and store.queue_ids("C"):
            store.delete_topic("C")
        low = store.reads.min_offset(topic, 0)
        result = store.reads.get(
            GetRequest(topic, 0, rng.randint(low, max(low, store.reads.max_offset(topic, 0)))), cold.append
        )
        if result is not None and result.status is GetStatus.FOUND:
            read += len(record.decode_all(result.body))
        if turn % 20 == 0:
            store.reads.query_keys(topic, f"k{turn - 5}", 9)
        if turn % 100 == 0:
            store._parts.round_flusher._last_round_ms = 0
            for worker in store._workers.all:
                worker.nudge()
        store.tick()
    assert store.log.minimum > 0
    assert not {"sync_failed", "dispatch_failed"} & {flag.name for flag in store.status.snapshot().flags}, (
        store.status.snapshot().flags
    )
    store.close()
    store.tick()
    assert len(answers) == put and set(answers) <= {PutStatus.PUT_OK}
    assert (
        put > 2500
        and read > 1000
        and all(record.decode_all(result.body) for result in cold if result.status is GetStatus.FOUND)
    )
    report = check_store(settings.store_path_root_dir, settings)
    # Retention is no damage
    assert [finding for finding in report.findings if finding.kind != "log-start"] == []
    assert all(worker.last_error is None for worker in store._workers.all)
