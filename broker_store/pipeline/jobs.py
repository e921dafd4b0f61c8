"""Pipeline jobs: plain functions of a Spark session."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MAX_TOPICS = 10_000  # in one result; a broker has at most half as many
PROGRESS_SECONDS = 0.5

Tell = Callable[[str, int, int], None]


def statistics(spark: SparkSession, store: Path, live_page: Path | None = None, tell: Tell = lambda text, done, total: None) -> dict:
    """Messages, bytes and times of each topic, most messages first; times in milliseconds since 1970.

    A record is counted as it stands in the log: a message that was sent back, or is a half of a transaction, counts
    under the topic it was stored in.
    """
    from pyspark.sql import functions as f

    reader = spark.read.format("rocketmq").option("store", str(store))
    if live_page is not None:
        reader = reader.option("live", str(live_page))
    of_topic = (
        reader.load()
        .groupBy("topic")
        .agg(
            f.count("*").alias("messages"),
            f.sum("record_bytes").cast("long").alias("bytes"),
            f.min("record_bytes").alias("smallest"),
            f.max("record_bytes").alias("largest"),
            f.countDistinct("queue_id").alias("queues"),
            f.unix_millis(f.min("store_time")).alias("first_ms"),
            f.unix_millis(f.max("store_time")).alias("last_ms"),
        )
        .orderBy(f.desc("messages"), "topic")
        .limit(MAX_TOPICS)
    )
    with _telling(spark, tell):
        topics = [row.asDict() for row in of_topic.collect()]
    return {
        "topics": topics,
        "messages": sum(topic["messages"] for topic in topics),
        "bytes": sum(topic["bytes"] for topic in topics),
        "complete": len(topics) < MAX_TOPICS,
    }


@contextmanager
def _telling(spark: SparkSession, tell: Tell) -> Iterator[None]:
    """Tell how many of the current stage's partitions are done, while the block runs."""
    ended = threading.Event()
    tracker = spark.sparkContext.statusTracker()

    def watch() -> None:
        while not ended.wait(PROGRESS_SECONDS):
            for stage in tracker.getActiveStageIds():
                known = tracker.getStageInfo(stage)
                if known is not None:
                    tell(f"stage {stage}", known.numCompletedTasks, known.numTasks)

    watcher = threading.Thread(target=watch, name="pipeline-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
