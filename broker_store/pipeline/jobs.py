"""Pipeline jobs: plain functions of a Spark session that give a dict, small enough for JSON.

    audit       every record, unit and index entry against one another
    statistics  counts, bytes, sizes, keys and delays of each topic, tag, group and hour; how the index is
                filled
    lineage     where a key went: every record of it in every topic, in order of time
    archive     new records to Parquet by topic and day

Whoever starts them in a child process (`manage.py pipeline NAME`) needs no pyspark. NAMES lists them; a place
is left for rebuild, replay and restore.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from broker_store.engine.disk import Disk
from broker_store.pipeline.splits import log_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from broker_store.engine.file_sizes import FileSizes
    from broker_store.engine.start.start_records import LastStart

NAMES = ("audit", "statistics", "lineage", "archive")
MAX_LINEAGE = 10_000
PROGRESS_SECONDS = 0.5
SHUFFLED_BYTES = 64 << 20  # of the log, what of it a task of a shuffle is given
# Up to which Spark puts partitions of a shuffle together again; compressed, so several times as much in
# memory
MOVED_BYTES = "16m"

Tell = Callable[..., None]  # (step, partitions done, partitions, partitions being worked on)


def quiet(text: str, done: int, total: int, running: int = 0) -> None:
    """Tells nobody."""


def reader_of(
    spark: SparkSession, store: Path, live_page: Path | None, **always: object
) -> Callable[..., DataFrame]:
    """`read(table, **options)` for the tables of a store; `always` are options of each."""

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
    tell: Tell = quiet,
    *,
    noted: FileSizes | None = None,
    last_start: LastStart | None = None,
    **options: object,
) -> dict:
    """See broker_store.pipeline.audit; `options` are those of the source, delay_levels and
    partition_bytes."""
    from broker_store.pipeline.audit import audit as run
    from broker_store.pipeline.options import read_options

    given = read_options({"path": str(store), **options})
    with telling(spark, tell) as tell:
        return run(
            spark, store, live_page, tell, given.delay_levels_ms, given.partition_bytes, noted, last_start
        )


def archive(
    spark: SparkSession,
    store: Path,
    out: Path,
    live_page: Path | None = None,
    tell: Tell = quiet,
    **limits: int,
) -> dict:
    """See broker_store.pipeline.archive."""
    from broker_store.pipeline.archive import archive as run

    with telling(spark, tell) as tell, shuffles_of(spark, store):
        return run(reader_of(spark, store, live_page), store, live_page, out, tell, **limits)


def statistics(
    spark: SparkSession,
    store: Path,
    live_page: Path | None = None,
    tell: Tell = quiet,
    damage: str = "skip",
    **only: object,
) -> dict:
    """See broker_store.pipeline.statistics; `only` are options of the source (topic, from_time, to_time)."""
    from broker_store.pipeline.statistics import statistics as run

    with telling(spark, tell) as tell, shuffles_of(spark, store):
        return run(reader_of(spark, store, live_page), tell, damage, only)


def lineage(
    spark: SparkSession,
    store: Path,
    key: str,
    live_page: Path | None = None,
    tell: Tell = quiet,
    damage: str = "skip",
    **only: object,
) -> dict:
    """Every record of a key, in the order they were stored: where it was sent, waited, was tried again, given
    up.

    A record is of the key when that is one of its keys, its unique key, or the id it says it came from.
    `only` are options of the source (topic, from_time, to_time).
    """
    from pyspark.sql import functions as f

    columns = (
        "topic,queue_id,queue_offset,log_offset,store_time,born_time,record_bytes,sys_flag,reconsume_times,"
        "keys,unique_key,tags,properties"
    )
    rows = reader_of(spark, store, live_page)(columns=columns, damage=damage, **only)
    named = [f.col("properties")[name] == key for name in ("ORIGIN_MESSAGE_ID", "DLQ_ORIGIN_MESSAGE_ID")]
    with telling(spark, tell) as tell:
        tell("looking for the key", 0, 0)
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
    if topic == "SCHEDULE_TOPIC_XXXX":
        step = (
            f"waits for delivery to {properties.get('REAL_TOPIC', 'an unknown topic')} (level "
            f"{properties.get('DELAY', '?')})"
        )
    elif topic.startswith("%RETRY%"):
        step = f"delivered to group {topic[7:]} again, attempt {row['reconsume_times']}"
    elif topic.startswith("%DLQ%"):
        step = f"given up by group {topic[5:]} after {row['reconsume_times']} attempts"
    elif transaction == 0x4 or topic == "RMQ_SYS_TRANS_HALF_TOPIC":
        step = f"half of a transaction, for {properties.get('REAL_TOPIC', topic)}"
    elif topic == "RMQ_SYS_TRANS_OP_HALF_TOPIC":
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
    """While the block runs a shuffle has more partitions when there is more of the log: what a task has to
    sort does not grow with the store."""
    log_bytes = sum(end - begin for _, begin, end in log_files(store, Disk()))
    partitions = "spark.sql.shuffle.partitions"
    wanted = {
        partitions: str(max(int(spark.conf.get(partitions)), -(-log_bytes // SHUFFLED_BYTES))),
        "spark.sql.adaptive.advisoryPartitionSizeInBytes": MOVED_BYTES,
    }
    before = {name: spark.conf.get(name) for name in wanted}
    for name, value in wanted.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)


@contextmanager
def telling(spark: SparkSession, tell: Tell) -> Iterator[Tell]:
    """While the block runs, tell how many partitions of a step are done; gives a `tell` for the name of the
    next step.

    Spark cuts a step into stages one after another, and knows the next when the one before has ended. What
    was done stays counted, so within a step `done` never falls; the total grows when a stage comes.
    """
    ended = threading.Event()
    tracker = spark.sparkContext.statusTracker()
    before: set[int] = set()  # stages of the steps that are over
    seen: set[int] = set()
    step = ["reading the log"]

    def name(text: str, done: int, total: int) -> None:
        before.update(seen)
        step[0] = text
        tell(text, done, total)

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
                tell(text, done, total, running)

    watcher = threading.Thread(target=watch, name="pipeline-progress", daemon=True)
    watcher.start()
    try:
        yield name
    finally:
        ended.set()
        watcher.join()
