"""What stays the same when a store grows: how a scan is shared out, and what reaches the driver."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="Spark is in requirements.txt and not installed here")

from broker_store.messages import Message
from broker_store.pipeline import jobs
from broker_store.pipeline.splits import splits_of
from tests.bench.pipeline import stages
from tests.support.hand_store import Clock, opened

# A store of one file each, so that both sizes are as many tasks.
ONE_FILE = {"mapped_file_size_commit_log": 4 << 20, "mapped_file_size_consume_queue": 200_000, "max_hash_slot_num": 5_000, "max_index_num": 20_000}


def made(root: Path, messages: int) -> Path:
    with opened(root, Clock(), **ONE_FILE) as store:
        for number in range(messages):
            store.put(Message(f"T{number % 3}", number % 2, bytes(200), f"KEYS\1k{number}\2TAGS\1t{number % 5}\2UNIQ_KEY\1u{number}\2".encode()))
    return root


def test_the_scan_is_a_task_a_partition_and_sends_on_only_what_it_counted(spark, tmp_path):
    store = made(tmp_path / "store", 2_000)
    known = stages(spark)
    counted = spark.read.format("rocketmq").option("partition_bytes", 100_000).option("columns", "topic,record_bytes").load(str(store)).groupBy("topic").count()
    assert {row["topic"]: row["count"] for row in counted.collect()} == {"T0": 667, "T1": 667, "T2": 666}
    plan = counted._jdf.queryExecution().executedPlan().toString()
    assert plan.index("Exchange hashpartitioning") < plan.index("partial_count") < plan.index("BatchScan rocketmq"), plan  # the last step first
    ran = [stage for number, stage in stages(spark).items() if number not in known]
    tasks = len(splits_of(store, partition_bytes=100_000))
    assert tasks > 5
    (scan,) = [stage for stage in ran if stage.shuffleWriteRecords()]
    assert (scan.numTasks(), scan.shuffleWriteRecords() <= 3 * tasks) == (tasks, True)


@pytest.mark.parametrize("job", [jobs.audit, jobs.statistics])
def test_what_reaches_the_driver_does_not_grow_with_the_records(spark, tmp_path, job):
    told = []
    for messages in (400, 4_000):
        store = made(tmp_path / str(messages), messages)
        known = stages(spark)
        job(spark, store)
        told.append(sum(stage.resultSize() for number, stage in stages(spark).items() if number not in known))
    assert told[1] < told[0] + 20_000, "3,600 records more: six bytes of each are more than that"
