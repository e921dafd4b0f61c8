"""Statistics: what is stored, counted for each topic, tag, group and hour; hot keys; how the index is filled.

One table of each value (sizes, delays, keys) is made for all four at once by grouping sets: how often a value occurs in
a topic, a topic's tag, a group, an hour. Percentiles are found in that table by running sums, so they are exact (nearest
rank) and nothing has to hold the values of a topic at once.

A record is counted as it stands in the log: a message that was sent back, or is a half of a transaction, counts under
the topic it was stored in. Its group is that of the retry or dead-letter topic it is in, or the producer group of a
transaction. Damaged stretches are passed over; audit tells them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

MAX_TOPICS = 10_000  # in one result; a broker has at most half as many
MAX_CELLS = 10_000  # tags, groups and hours told
HOT_KEYS = 20  # of a topic
HOT_ALL = 1_000
PERCENTILES = (50, 95, 99)
ACCURACY = 10_000  # of the percentile of chains: the rank is right to 1 in so many

# What is counted, by the columns that name one; all columns that name any.
CELLS = {"topics": ("topic",), "tags": ("topic", "tags"), "groups": ("group",), "hours": ("hour_ms",)}
NAMES = ("topic", "tags", "group", "hour_ms")


def statistics(read: Callable[..., DataFrame], tell, damage: str, only: dict) -> dict:
    """Most messages first; times in milliseconds since 1970, sizes in bytes of whole records.

    `only` are options of the source (topic, from_time, to_time); the index, which knows neither, is told without them.
    """
    from pyspark.sql import functions as f

    columns = "topic,queue_id,store_time,born_time,record_bytes,tags,keys,properties"
    of_group = f.when(f.col("topic").rlike("^%(RETRY|DLQ)%"), f.regexp_replace("topic", "^%(RETRY|DLQ)%", "")).otherwise(f.col("properties")["PGROUP"])
    rows = read(columns=columns, damage=damage, **only).withColumns(
        {
            "group": of_group,
            "hour_ms": f.unix_millis(f.date_trunc("hour", "store_time")),
            "delay": f.unix_millis("store_time") - f.unix_millis("born_time"),
        }
    )
    tell("sizes, delays and keys", 0, 0)
    sizes = _with_ranks(_counted(rows, "record_bytes"), "record_bytes")
    sizes = sizes.groupBy("which", *NAMES).agg(
        f.sum("count").alias("messages"),
        f.sum(f.col("count") * f.col("record_bytes")).alias("bytes"),
        f.min("record_bytes").alias("smallest"),
        f.max("record_bytes").alias("largest"),
        *_percentiles("record_bytes", "size_p"),
    )
    delays = _with_ranks(_counted(rows.where("delay is not null"), "delay"), "delay").groupBy("which", *NAMES).agg(*_percentiles("delay", "delay_ms_p"))
    keys = rows.withColumn("key", f.explode("keys"))
    distinct = _counted(keys, "key").groupBy("which", *NAMES).agg(f.count("*").alias("distinct_keys"))
    told = _beside(_beside(sizes, delays), distinct).fillna(0, ["distinct_keys"])
    told = told.where((f.col("which") != _which("groups")) | f.col("group").isNotNull())
    topics_first = f.when(f.col("which") == _which("topics"), 0).otherwise(1)
    cells = _collected(told.orderBy(topics_first, f.desc("messages"), *NAMES), MAX_TOPICS + MAX_CELLS)
    found = {name: [_cell(row, names) for row in cells if row["which"] == _which(name)] for name, names in CELLS.items()}
    found["hours"].sort(key=lambda row: row["hour_ms"])

    tell("queues and times", 0, 0)
    spans = rows.groupBy("topic", "queue_id").agg(f.min("store_time").alias("first"), f.max("store_time").alias("last"))
    spans = spans.groupBy("topic").agg(f.count("*").alias("queues"), f.unix_millis(f.min("first")).alias("first_ms"), f.unix_millis(f.max("last")).alias("last_ms"))
    span_of = {row.pop("topic"): row for row in _collected(spans, MAX_TOPICS)}
    for topic in found["topics"]:
        topic |= span_of[topic["topic"]]

    tell("hot keys", 0, 0)
    hot = _hot(keys)
    index = []
    if not only:
        tell("index", 0, 0)
        index = _index(read)
    return {
        **found,
        "hot_keys": hot,
        "index": index,
        "messages": sum(topic["messages"] for topic in found["topics"]),
        "bytes": sum(topic["bytes"] for topic in found["topics"]),
        "complete": len(found["topics"]) <= MAX_TOPICS and len(cells) < MAX_TOPICS + MAX_CELLS,
    }


def _counted(rows: DataFrame, value: str) -> DataFrame:
    """(which, topic, tags, group, hour_ms, value, count): how often a value occurs in each cell; names of other cells are null."""
    from pyspark.sql import functions as f

    sets = [[*names, value] for names in CELLS.values()]
    return rows.groupingSets(sets, *NAMES, value).agg(f.grouping_id().alias("which"), f.count("*").alias("count"))


def _which(name: str) -> int:
    """The grouping id of a kind of cell: a bit for each column that does not name it, and 0 for the value."""
    return sum(1 << (len(NAMES) - place) for place, column in enumerate(NAMES) if column not in CELLS[name])


def _with_ranks(counted: DataFrame, value: str) -> DataFrame:
    """With the number of values of the cell up to this one (`rank`), and of all (`all`)."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    cell = Window.partitionBy("which", *NAMES)
    upto = cell.orderBy(value).rowsBetween(Window.unboundedPreceding, Window.currentRow)
    return counted.withColumns({"rank": f.sum("count").over(upto), "all": f.sum("count").over(cell)})


def _percentiles(value: str, prefix: str) -> list[Column]:
    """The smallest value of which that share of all are not greater."""
    from pyspark.sql import functions as f

    return [f.min(f.when(f.col("rank") * 100 >= f.col("all") * share, f.col(value))).alias(f"{prefix}{share}") for share in PERCENTILES]


def _beside(left: DataFrame, right: DataFrame) -> DataFrame:
    """Both of a cell in a row; what the right one does not know is null."""
    names = ("which", *NAMES)
    same = reduce(lambda one, other: one & other, (left[name].eqNullSafe(right[name]) for name in names))
    return left.join(right, same, "left").select(left["*"], *(right[name] for name in right.columns if name not in names))


def _cell(row: dict, names: tuple[str, ...]) -> dict:
    return {name: value for name, value in row.items() if name in names or name not in ("which", *NAMES)}


def _collected(rows: DataFrame, limit: int) -> list[dict]:
    return [row.asDict() for row in rows.limit(limit).collect()]


def _hot(keys: DataFrame) -> list[dict]:
    """The keys with most messages of each topic, most first."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    place = f.row_number().over(Window.partitionBy("topic").orderBy(f.desc("messages"), "key"))
    counted = keys.groupBy("topic", "key").agg(f.count("*").alias("messages")).withColumn("place", place)
    ranked = counted.where(f.col("place") <= HOT_KEYS).orderBy(f.desc("messages"), "topic", "key")
    return _collected(ranked.drop("place"), HOT_ALL)


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
    return _collected(sizes.join(of_file, "file").orderBy("file"), MAX_CELLS)
