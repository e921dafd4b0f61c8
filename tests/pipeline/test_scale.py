"""What stays the same when a store grows: how a scan is shared out, what reaches the driver, and the memory
of every process."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="Spark is in requirements.txt and not installed here")

from broker_store.messages import Message
from broker_store.pipeline import jobs
from broker_store.pipeline.splits import splits_of
from tests.bench import memory
from tests.bench.pipeline import stages
from tests.support.hand_store import Clock, opened

PROJECT = Path(__file__).resolve().parents[2]
GIB = 1 << 30
HEAP_MB = 512
# How much more a process may hold at its peak when there are 3 GiB more to read. Runs differ by half of it.
ALLOWED_MB = {"driver": 40, "worker": 120, "jvm": 150}
# A store of one file each, so that both sizes are as many tasks.
ONE_FILE = {
    "mapped_file_size_commit_log": 4 << 20,
    "mapped_file_size_consume_queue": 200_000,
    "max_hash_slot_num": 5_000,
    "max_index_num": 20_000,
}


def made(root: Path, messages: int) -> Path:
    with opened(root, Clock(), **ONE_FILE) as store:
        for number in range(messages):
            store.appender.put(
                Message(
                    f"T{number % 3}",
                    number % 2,
                    bytes(200),
                    f"KEYS\1k{number}\2TAGS\1t{number % 5}\2UNIQ_KEY\1u{number}\2".encode(),
                )
            )
    return root


def test_the_scan_is_a_task_a_partition_and_sends_on_only_what_it_counted(spark, tmp_path):
    store = made(tmp_path / "store", 2_000)
    known = stages(spark)
    counted = (
        spark.read.format("rocketmq")
        .option("partition_bytes", 100_000)
        .option("columns", "topic,record_bytes")
        .load(str(store))
        .groupBy("topic")
        .count()
    )
    assert {row["topic"]: row["count"] for row in counted.collect()} == {"T0": 667, "T1": 667, "T2": 666}
    plan = counted._jdf.queryExecution().executedPlan().toString()
    # The last step first
    assert (
        plan.index("Exchange hashpartitioning")
        < plan.index("partial_count")
        < plan.index("BatchScan rocketmq")
    ), plan
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


def peaks(line: list[str], environment: dict[str, str]) -> dict[str, float]:
    """The most that the driver, any of its workers and the JVM held for themselves (RssAnon, in MB) while a
    job ran."""
    most = dict.fromkeys(ALLOWED_MB, 0.0)
    child = subprocess.Popen(
        line, cwd=PROJECT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    while True:
        for pid in memory.family(child.pid):
            try:
                # The program, not the name: what a thread of the JVM forks has the thread's name until it
                # becomes another program.
                program = Path(os.readlink(f"/proc/{pid}/exe")).name
                kind = "driver" if pid == child.pid else "jvm" if program == "java" else "worker"
                most[kind] = max(most[kind], memory.anonymous_mb(pid))
            except (FileNotFoundError, ProcessLookupError):  # it ended meanwhile
                continue
        try:
            output = child.communicate(timeout=0.05)[0]
            break
        except subprocess.TimeoutExpired:
            continue
    assert child.returncode == 0
    return {**most, "result": json.loads(output.splitlines()[-1])}


@pytest.mark.slow
@pytest.mark.proof
def test_memory_stays_flat_from_one_gib_to_four(tmp_path):
    """Lineage reads every record with its properties, keys and tags; the audit compares each with queues and
    index."""
    environment = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "mqadmin.settings",
        "BROKER_DATA_DIR": str(tmp_path),
    }
    found = {}
    for size in (1, 4):
        store = tmp_path / str(size)
        fill = [
            sys.executable,
            "-m",
            "tests.bench.bench_store",
            str(store),
            "fill",
            f"bytes={size * GIB}",
            "size=1024",
        ]
        subprocess.run(fill, cwd=PROJECT, check=True, stdout=subprocess.DEVNULL)
        for job, *more in (("lineage", "--key", "nobody"), ("audit",)):
            line = [
                sys.executable,
                "manage.py",
                "pipeline",
                job,
                *more,
                "--data",
                str(tmp_path),
                "--store",
                str(store),
                "--heap",
                f"{HEAP_MB}m",
                "--json",
            ]
            found[job, size] = peaks(line, environment)
        assert found["lineage", size].pop("result") == {"key": "nobody", "records": [], "complete": True}
        assert found["audit", size].pop("result")["findings"] == []
        shutil.rmtree(store)
    for job in ("lineage", "audit"):
        grown = {kind: found[job, 4][kind] - found[job, 1][kind] for kind in ALLOWED_MB}
        assert all(grown[kind] <= allowed for kind, allowed in ALLOWED_MB.items()), (job, found, grown)
