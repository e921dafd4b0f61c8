"""Pipeline jobs: plain functions of a Spark session that return a dict, small enough for JSON; results.py has
its fields.

    audit       every record, unit and index entry compared with each other
    statistics  counts, bytes, sizes, keys and delays of each topic, tag, group and hour; how the index is
                filled
    lineage     every record of a key in every topic, in order of time
    archive     new records to Parquet by topic and day

A caller that starts them in a child process (`manage.py pipeline NAME`) does not need pyspark. NAMES lists
them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from broker_store.engine.disk.disk import Disk
from broker_store.formats.topics import HALF_TOPIC, OP_HALF_TOPIC, SCHEDULE_TOPIC
from broker_store.pipeline.splits import log_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from broker_store.engine.disk.file_sizes import FileSizes
    from broker_store.engine.start.start_records import LastStart

NAMES = ("audit", "statistics", "lineage", "archive")
MAX_LINEAGE = 10_000
PROGRESS_SECONDS = 0.5
SHUFFLED_BYTES = 64 << 20  # of the log for each task of a shuffle
# Limit up to which Spark merges partitions of a shuffle. Of compressed data, so several times as much in
# memory
MOVED_BYTES = "16m"

OnProgress = Callable[..., None]  # (step, partitions done, partitions, running partitions)


def ignore_progress(text: str, done: int, total: int, running: int = 0) -> None:
    """Report no progress."""


def reader_of(
    spark: SparkSession, store: Path, live_page: Path | None, **always: object
) -> Callable[..., DataFrame]:
    """Return `read(table, **options)` for the tables of a store; `always` are options of each read."""

    def read(table: str = "records", **options: object) -> DataFrame:
        source = spark.read.format("rocketmq").option("table", table)
        if live_page is not None:
            source = source.option("live", str(live_page))
        for name, value in (always | options).items():
            source = source.option(name, str(value))
        return source.load(str(store))

    return read


def audit(
    spark: SparkSession,
    store: Path,
    live_page: Path | None = None,
    on_progress: OnProgress = ignore_progress,
    *,
    noted: FileSizes | None = None,
    last_start: LastStart | None = None,
    **options: Any,
) -> dict:
    """Run broker_store.pipeline.audit; `options` are the source's, delay_levels and partition_bytes."""
    from broker_store.pipeline.audit import audit as run
    from broker_store.pipeline.options import read_options

    given = read_options({"path": str(store), **options})
    with reporting(spark, on_progress) as on_progress:
        return run(
            spark,
            store,
            live_page,
            on_progress,
            given.delay_levels_ms,
            given.partition_bytes,
            noted,
            last_start,
        )


def archive(
    spark: SparkSession,
    store: Path,
    out: Path,
    live_page: Path | None = None,
    on_progress: OnProgress = ignore_progress,
    **limits: int,
) -> dict:
    """Run broker_store.pipeline.archive."""
    from broker_store.pipeline.archive import archive as run

    with reporting(spark, on_progress) as on_progress, shuffles_of(spark, store):
        return run(reader_of(spark, store, live_page), store, live_page, out, on_progress, **limits)


def statistics(
    spark: SparkSession,
    store: Path,
    live_page: Path | None = None,
    on_progress: OnProgress = ignore_progress,
    damage: str = "skip",
    **only: object,
) -> dict:
    """Run broker_store.pipeline.statistics; `only` are options of the source (topic, from_time, to_time)."""
    from broker_store.pipeline.statistics import statistics as run

    with reporting(spark, on_progress) as on_progress, shuffles_of(spark, store):
        return run(reader_of(spark, store, live_page), on_progress, damage, only)


def lineage(
    spark: SparkSession,
    store: Path,
    key: str,
    live_page: Path | None = None,
    on_progress: OnProgress = ignore_progress,
    damage: str = "skip",
    **only: object,
) -> dict:
    """Return every record of a key in the order of their storing: where it was sent, waited, was tried again
    or given up.

    A record belongs to the key if it is one of its keys, its unique key, or the id of the message that it was
    made from. `only` are options of the source (topic, from_time, to_time).
    """
    from pyspark.sql import functions as f

    columns = (
        "topic,queue_id,queue_offset,log_offset,store_time,born_time,record_bytes,sys_flag,reconsume_times,"
        "keys,unique_key,tags,properties"
    )
    rows = reader_of(spark, store, live_page)(columns=columns, damage=damage, **only)
    named = [f.col("properties")[name] == key for name in ("ORIGIN_MESSAGE_ID", "DLQ_ORIGIN_MESSAGE_ID")]
    with reporting(spark, on_progress) as on_progress:
        on_progress("searching for the key", 0, 0)
        own = rows.where(f.array_contains("keys", key) | (f.col("unique_key") == key) | named[0] | named[1])
        found = [row.asDict() for row in own.orderBy("log_offset").limit(MAX_LINEAGE + 1).collect()]
    return {
        "key": key,
        "records": [_step(row) for row in found[:MAX_LINEAGE]],
        "complete": len(found) <= MAX_LINEAGE,
    }


def _step(row: dict) -> dict:
    properties = dict(row["properties"])
    topic, transaction = row["topic"], row["sys_flag"] & 0xC
    if topic == SCHEDULE_TOPIC:
        step = (
            f"waits for delivery to {properties.get('REAL_TOPIC', 'an unknown topic')} (level "
            f"{properties.get('DELAY', '?')})"
        )
    elif topic.startswith("%RETRY%"):
        step = f"delivered to group {topic[7:]} again, attempt {row['reconsume_times']}"
    elif topic.startswith("%DLQ%"):
        step = f"given up by group {topic[5:]} after {row['reconsume_times']} attempts"
    elif transaction == 0x4 or topic == HALF_TOPIC:
        step = f"half of a transaction, for {properties.get('REAL_TOPIC', topic)}"
    elif topic == OP_HALF_TOPIC:
        step = "end of a transaction"
    else:
        step = "committed by a transaction" if transaction == 0x8 else "stored"
    return {
        "step": step,
        **{
            name: row[name]
            for name in (
                "topic",
                "queue_id",
                "queue_offset",
                "log_offset",
                "record_bytes",
                "reconsume_times",
                "keys",
                "unique_key",
                "tags",
            )
        },
        "store_ms": int(row["store_time"].timestamp() * 1000),
        "born_ms": None if row["born_time"] is None else int(row["born_time"].timestamp() * 1000),
    }


@contextmanager
def shuffles_of(spark: SparkSession, store: Path) -> Iterator[None]:
    """Set more partitions of a shuffle for a larger log while the block runs, so that the sort of a task does
    not grow with the store."""
    log_bytes = sum(end - begin for _, begin, end in log_files(store, Disk()))
    partitions = "spark.sql.shuffle.partitions"
    wanted = {
        partitions: str(max(int(spark.conf.get(partitions) or 0), -(-log_bytes // SHUFFLED_BYTES))),
        "spark.sql.adaptive.advisoryPartitionSizeInBytes": MOVED_BYTES,
    }
    before = {name: spark.conf.get(name) for name in wanted}
    for name, value in wanted.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, former in before.items():
            if former is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, former)


@contextmanager
def reporting(spark: SparkSession, on_progress: OnProgress) -> Iterator[OnProgress]:
    """Report how many partitions of a step are done while the block runs; yields the function that begins the
    next step.

    Spark divides a step into successive stages, and plans a stage when the one before has ended. Done
    partitions stay counted, so within a step `done` never decreases; the total increases when a stage begins.
    """
    ended = threading.Event()
    tracker = spark.sparkContext.statusTracker()
    before: set[int] = set()  # stages of finished steps
    seen: set[int] = set()
    step = ["reading the log"]

    def name(text: str, done: int, total: int) -> None:
        before.update(seen)
        step[0] = text
        on_progress(text, done, total)

    def watch() -> None:
        while not ended.wait(PROGRESS_SECONDS):
            text = step[0]
            seen.update(tracker.getActiveStageIds())
            stages = [
                known for stage in sorted(seen - before) if (known := tracker.getStageInfo(stage)) is not None
            ]
            if stages:
                done, total, running = (
                    sum(getattr(stage, name) for stage in stages)
                    for name in ("numCompletedTasks", "numTasks", "numActiveTasks")
                )
                on_progress(text, done, total, running)

    watcher = threading.Thread(target=watch, name="pipeline-progress", daemon=True)
    watcher.start()
    try:
        yield name
    finally:
        ended.set()
        watcher.join()
