"""Pipeline jobs: plain functions of a Spark session that give a dict, small enough for JSON.

    audit       every record, unit and index entry against one another
    statistics  counts, bytes, sizes, keys and delays of each topic, tag, group and hour; how the index is filled
    lineage     where a key went: every record of it in every topic, in order of time
    archive     new records to Parquet by topic and day

Whoever starts them in a child process (`manage.py pipeline NAME`) needs no pyspark. NAMES lists them; a place is left
for rebuild, replay and restore.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NAMES = ("audit", "statistics", "lineage", "archive")
MAX_TOPICS = 10_000  # in one result; a broker has at most half as many
MAX_GROUPS = 10_000  # tags, groups and hours told
HOT_KEYS = 20  # of a topic
HOT_ALL = 1_000
MAX_LINEAGE = 10_000
PROGRESS_SECONDS = 0.5
PERCENTILES = (0.5, 0.95, 0.99)
ACCURACY = 10_000  # of percentiles: the rank is right to 1 in so many

Tell = Callable[..., None]  # (step, partitions done, partitions, partitions being worked on)


def quiet(text: str, done: int, total: int, running: int = 0) -> None:
    """Tells nobody."""


def reader_of(spark: SparkSession, store: Path, live_page: Path | None, **always: object) -> Callable[..., DataFrame]:
    """`read(table, **options)` for the tables of a store; `always` are options of each."""

    def read(table: str = "records", **options: object) -> DataFrame:
        source = spark.read.format("rocketmq").option("table", table)
        if live_page is not None:
            source = source.option("live", str(live_page))
        for name, value in (always | options).items():
            source = source.option(name, str(value))
        return source.load(str(store))

    return read


def audit(spark: SparkSession, store: Path, live_page: Path | None = None, tell: Tell = quiet, **options: str) -> dict:
    """See broker_store.pipeline.audit; `options` are those of the source, delay_levels among them."""
    from broker_store.pipeline.audit import audit as run

    with telling(spark, tell) as tell:
        return run(spark, reader_of(spark, store, live_page, **options), store, live_page, tell)


def archive(spark: SparkSession, store: Path, out: Path, live_page: Path | None = None, tell: Tell = quiet, **limits: int) -> dict:
    """See broker_store.pipeline.archive."""
    from broker_store.pipeline.archive import archive as run

    with telling(spark, tell) as tell:
        return run(reader_of(spark, store, live_page), store, live_page, out, tell, **limits)


def statistics(spark: SparkSession, store: Path, live_page: Path | None = None, tell: Tell = quiet, damage: str = "skip", **only: object) -> dict:
    """What is stored; most messages first, times in milliseconds since 1970, sizes in bytes of whole records.

    A record is counted as it stands in the log: a message that was sent back, or is a half of a transaction, counts
    under the topic it was stored in. Its group is that of the retry or dead-letter topic it is in, or the producer group
    of a transaction. Percentiles are values that occur (nearest rank). Damaged stretches are passed over; audit tells them.
    `only` are options of the source (topic, from_time, to_time); the index, which knows neither, is told without them.
    """
    from pyspark.sql import functions as f

    read = reader_of(spark, store, live_page)
    rows = read(columns="topic,queue_id,store_time,born_time,record_bytes,tags,keys,unique_key,properties", damage=damage, **only)
    rows = rows.withColumn("delay", f.unix_millis("store_time") - f.unix_millis("born_time"))

    def percentiles(column: str, prefix: str) -> list:
        told = f.percentile_approx(column, list(PERCENTILES), ACCURACY)
        return [told[place].alias(f"{prefix}{round(100 * share)}") for place, share in enumerate(PERCENTILES)]

    with telling(spark, tell) as tell:
        tell("topics", 0, 0)
        of_topic = rows.groupBy("topic").agg(
            f.count("*").alias("messages"),
            f.sum("record_bytes").cast("long").alias("bytes"),
            f.min("record_bytes").alias("smallest"),
            f.max("record_bytes").alias("largest"),
            *percentiles("record_bytes", "size_p"),
            *percentiles("delay", "delay_ms_p"),
            f.countDistinct("queue_id").alias("queues"),
            f.unix_millis(f.min("store_time")).alias("first_ms"),
            f.unix_millis(f.max("store_time")).alias("last_ms"),
        )
        topics = _collected(of_topic.orderBy(f.desc("messages"), "topic"), MAX_TOPICS)
        tell("tags, groups and hours", 0, 0)
        group = f.when(f.col("topic").rlike("^%(RETRY|DLQ)%"), f.regexp_replace("topic", "^%(RETRY|DLQ)%", "")).otherwise(f.col("properties")["PGROUP"])
        parts = rows.select("topic", "tags", group.alias("group"), f.date_trunc("hour", "store_time").alias("hour"), "record_bytes")
        counted = (
            parts.groupingSets([["topic", "tags"], ["group"], ["hour"]], "topic", "tags", "group", "hour")
            .agg(f.grouping_id().alias("which"), f.count("*").alias("messages"), f.sum("record_bytes").cast("long").alias("bytes"))
            .where("which <> 13 or `group` is not null")
            .withColumn("hour_ms", f.unix_millis("hour"))
        )
        told = _collected(counted.drop("hour").orderBy(f.desc("messages"), "topic", "tags", "group", "hour_ms"), MAX_GROUPS)
        tell("keys", 0, 0)
        keys = rows.select("topic", f.explode("keys").alias("key")).groupBy("topic", "key").count()
        hot, distinct = _keys(keys)
        index = []
        if not only:
            tell("index", 0, 0)
            index = _index(read)
    for topic in topics:
        topic["distinct_keys"] = distinct.get(topic["topic"], 0)
    return {
        "topics": topics,
        "tags": [_only(row, "topic", "tags") for row in told if row["which"] == 0b0011],
        "groups": [_only(row, "group") for row in told if row["which"] == 0b1101],
        "hours": sorted((_only(row, "hour_ms") for row in told if row["which"] == 0b1110), key=lambda row: row["hour_ms"]),
        "hot_keys": hot,
        "index": index,
        "messages": sum(topic["messages"] for topic in topics),
        "bytes": sum(topic["bytes"] for topic in topics),
        "complete": len(topics) < MAX_TOPICS and len(told) < MAX_GROUPS,
    }


def _only(row: dict, *names: str) -> dict:
    return {name: row[name] for name in (*names, "messages", "bytes")}


def _collected(rows: DataFrame, limit: int) -> list[dict]:
    return [row.asDict() for row in rows.limit(limit).collect()]


def _keys(keys: DataFrame) -> tuple[list[dict], dict[str, int]]:
    """(the keys with most messages of each topic, number of distinct keys of each topic)."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    place = f.row_number().over(Window.partitionBy("topic").orderBy(f.desc("count"), "key"))
    many = f.count("*").over(Window.partitionBy("topic"))
    ranked = keys.withColumn("place", place).withColumn("distinct", many).where(f.col("place") <= HOT_KEYS)
    found = _collected(ranked.orderBy("place", f.desc("count"), "topic"), max(HOT_ALL, MAX_TOPICS))
    distinct = {row["topic"]: row["distinct"] for row in found}
    hot = sorted(found, key=lambda row: (-row["count"], row["topic"], row["key"]))[:HOT_ALL]
    return [{"topic": row["topic"], "key": row["key"], "messages": row["count"]} for row in hot], distinct


def _index(read: Callable[..., DataFrame]) -> list[dict]:
    """How each index file is filled: skew is the longest chain over the mean one of a slot in use."""
    from pyspark.sql import functions as f

    chains = read("entries", columns="file,slot").groupBy("file", "slot").count()
    of_file = chains.groupBy("file").agg(
        f.sum("count").alias("entries"),
        f.count("*").alias("slots_used"),
        f.max("count").alias("longest_chain"),
        f.avg("count").alias("mean_chain"),
        f.percentile_approx("count", 0.99, ACCURACY).alias("chain_p99"),
        (f.max("count") / f.avg("count")).alias("skew"),
    )
    sizes = read("index_files", columns="file,slots,room")
    return _collected(sizes.join(of_file, "file").orderBy("file"), MAX_GROUPS)


def lineage(spark: SparkSession, store: Path, key: str, live_page: Path | None = None, tell: Tell = quiet, damage: str = "skip", **only: object) -> dict:
    """Every record of a key, in the order they were stored: where it was sent, waited, was tried again, given up.

    A record is of the key when that is one of its keys, its unique key, or the id it says it came from. `only` are
    options of the source (topic, from_time, to_time).
    """
    from pyspark.sql import functions as f

    columns = "topic,queue_id,queue_offset,log_offset,store_time,born_time,record_bytes,sys_flag,reconsume_times,keys,unique_key,tags,properties"
    rows = reader_of(spark, store, live_page)(columns=columns, damage=damage, **only)
    named = [f.col("properties")[name] == key for name in ("ORIGIN_MESSAGE_ID", "DLQ_ORIGIN_MESSAGE_ID")]
    with telling(spark, tell) as tell:
        tell("looking for the key", 0, 0)
        own = rows.where(f.array_contains("keys", key) | (f.col("unique_key") == key) | named[0] | named[1])
        found = _collected(own.orderBy("log_offset"), MAX_LINEAGE + 1)
    return {"key": key, "records": [_step(row) for row in found[:MAX_LINEAGE]], "complete": len(found) <= MAX_LINEAGE}


def _step(row: dict) -> dict:
    properties = dict(row["properties"])
    topic, transaction = row["topic"], row["sys_flag"] & 0xC
    if topic == "SCHEDULE_TOPIC_XXXX":
        step = f"waits for delivery to {properties.get('REAL_TOPIC', 'an unknown topic')} (level {properties.get('DELAY', '?')})"
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
        **{name: row[name] for name in ("topic", "queue_id", "queue_offset", "log_offset", "record_bytes", "reconsume_times", "keys", "unique_key", "tags")},
        "store_ms": int(row["store_time"].timestamp() * 1000),
        "born_ms": None if row["born_time"] is None else int(row["born_time"].timestamp() * 1000),
    }


@contextmanager
def telling(spark: SparkSession, tell: Tell) -> Iterator[Tell]:
    """While the block runs, tell how many partitions of the stages at work are done; gives a `tell` for the name of the step."""
    ended = threading.Event()
    tracker = spark.sparkContext.statusTracker()
    step = ["reading the log"]

    def name(text: str, done: int, total: int) -> None:
        step[0] = text
        tell(text, done, total)

    def watch() -> None:
        while not ended.wait(PROGRESS_SECONDS):
            stages = [known for stage in tracker.getActiveStageIds() if (known := tracker.getStageInfo(stage)) is not None]
            if stages:
                done, total, running = (sum(getattr(stage, name) for stage in stages) for name in ("numCompletedTasks", "numTasks", "numActiveTasks"))
                tell(step[0], done, total, running)

    watcher = threading.Thread(target=watch, name="pipeline-progress", daemon=True)
    watcher.start()
    try:
        yield name
    finally:
        ended.set()
        watcher.join()
