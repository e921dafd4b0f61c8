"""Statistics: what is stored, counted for each topic, tag, group and hour; hot keys; how the index is filled.

A cell is a topic, a tag of a topic, a group or an hour. First each size and delay is counted in each cell.
Running sums over these counts give the percentiles, so they are exact (nearest rank), and no task has to hold
the values of a cell at once.

A record is counted as it is in the log: a message that was sent back, or is a half of a transaction, counts
for the topic in which it was stored. Its group is that of the retry or dead-letter topic, or the producer
group of a transaction. Damaged parts are skipped; the audit reports them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

MAX_TOPICS = 10_000  # in one result; a broker has at most half as many
MAX_CELLS = 10_000  # tags, groups and hours in one result
HOT_KEYS = 20  # of a topic
HOT_ALL = 1_000
PERCENTILES = (50, 95, 99)
ACCURACY = 10_000  # of the percentile of chains: the rank is exact to 1 in this number

# What is counted, by the columns that name a cell; a cell of another kind has null in them.
CELLS = {"topics": ("topic",), "tags": ("topic", "tags"), "groups": ("group",), "hours": ("hour_ms",)}
NAMES = ("topic", "tags", "group", "hour_ms")


def statistics(read: Callable[..., DataFrame], on_progress, damage: str, only: dict) -> dict:
    """Return the statistics, most messages first; times in milliseconds since 1970, sizes in bytes of whole
    records.

    `only` are options of the source (topic, from_time, to_time). They do not apply to the index, which has
    neither.
    """
    from pyspark.sql import functions as f

    def rows(columns: str) -> DataFrame:
        return read(columns=columns, damage=damage, **only)

    on_progress("sizes, delays and keys", 0, 0)
    totals = _beside(
        _sizes_and_delays(_named(rows("topic,store_time,born_time,record_bytes,tags,properties"))),
        _distinct_keys(_named(rows("topic,store_time,tags,keys,properties"))),
    )
    topics_first = f.when(f.col("which") == _which("topics"), 0).otherwise(1)
    cells = _collected(
        totals.fillna(0, ["distinct_keys"]).orderBy(topics_first, f.desc("messages"), *NAMES),
        MAX_TOPICS + MAX_CELLS,
    )
    found = {
        name: [_cell(row, names) for row in cells if row["which"] == _which(name)]
        for name, names in CELLS.items()
    }
    found["hours"].sort(key=lambda row: row["hour_ms"])

    on_progress("queues and times", 0, 0)
    spans = (
        rows("topic,queue_id,store_time")
        .groupBy("topic", "queue_id")
        .agg(f.min("store_time").alias("first"), f.max("store_time").alias("last"))
    )
    spans = spans.groupBy("topic").agg(
        f.count("*").alias("queues"),
        f.unix_millis(f.min("first")).alias("first_ms"),
        f.unix_millis(f.max("last")).alias("last_ms"),
    )
    span_of = {row.pop("topic"): row for row in _collected(spans, MAX_TOPICS)}
    for topic in found["topics"]:
        topic |= span_of[topic["topic"]]

    on_progress("hot keys", 0, 0)
    hot = _hot(rows("topic,keys"))
    index = []
    if not only:
        on_progress("index", 0, 0)
        index = _index(read)
    return {
        **found,
        "hot_keys": hot,
        "index": index,
        "messages": sum(topic["messages"] for topic in found["topics"]),
        "bytes": sum(topic["bytes"] for topic in found["topics"]),
        "complete": len(found["topics"]) <= MAX_TOPICS and len(cells) < MAX_TOPICS + MAX_CELLS,
    }


def _named(rows: DataFrame) -> DataFrame:
    """Add the columns `group` and `hour_ms`, so that all NAMES exist."""
    from pyspark.sql import functions as f

    waits = "^%(RETRY|DLQ)%"
    group = f.when(f.col("topic").rlike(waits), f.regexp_replace("topic", waits, "")).otherwise(
        f.col("properties")["PGROUP"]
    )
    return rows.withColumns(
        {"group": group, "hour_ms": f.unix_millis(f.date_trunc("hour", "store_time"))}
    ).drop("properties")


def _which(name: str) -> int:
    """Return the number of a kind of cell."""
    return list(CELLS).index(name)


def _in_cells(rows: DataFrame, *values: str) -> DataFrame:
    """Return (which, *NAMES, *values): each row once for each of its cells, with null for names of other
    kinds."""
    from pyspark.sql import functions as f

    kinds = dict(rows.dtypes)
    cells = [
        f.struct(
            f.lit(_which(kind)).alias("which"),
            *(f.col(name) if name in names else f.lit(None).cast(kinds[name]).alias(name) for name in NAMES),
        )
        for kind, names in CELLS.items()
    ]
    inside = rows.withColumn("cell", f.explode(f.array(*cells))).select("cell.*", *values)
    return inside.where((f.col("which") != _which("groups")) | f.col("group").isNotNull())


def _sizes_and_delays(rows: DataFrame) -> DataFrame:
    """Return a row for each cell: first the counts of each value in it, then running sums over them."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    delay = f.unix_millis("store_time") - f.unix_millis("born_time")
    values = rows.select(
        *NAMES, f.posexplode(f.array(f.col("record_bytes").cast("long"), delay)).alias("what", "value")
    ).where("value is not null")
    counted = (
        _in_cells(values, "what", "value")
        .groupBy("which", *NAMES, "what", "value")
        .agg(f.count("*").alias("count"))
    )
    cell = Window.partitionBy("which", *NAMES, "what")
    upto = cell.orderBy("value").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    ranked = counted.withColumns({"rank": f.sum("count").over(upto), "all": f.sum("count").over(cell)})
    size, waited = f.col("what") == 0, f.col("what") == 1
    sizes = f.when(size, f.col("value"))

    def percentiles(which: Column, prefix: str) -> list[Column]:
        """Return the smallest value of which that share of all are not greater, for each share."""
        return [
            f.min(f.when(which & (f.col("rank") * 100 >= f.col("all") * share), f.col("value"))).alias(
                f"{prefix}{share}"
            )
            for share in PERCENTILES
        ]

    return ranked.groupBy("which", *NAMES).agg(
        f.sum(f.when(size, f.col("count"))).alias("messages"),
        f.sum(f.when(size, f.col("count") * f.col("value"))).alias("bytes"),
        f.min(sizes).alias("smallest"),
        f.max(sizes).alias("largest"),
        *percentiles(size, "size_p"),
        *percentiles(waited, "delay_ms_p"),
    )


def _distinct_keys(rows: DataFrame) -> DataFrame:
    """Return a row for each cell. Rows of a key are first moved together and distinguished there, so that one
    row for each key is moved and not one for each cell."""
    from pyspark.sql import functions as f

    keys = rows.select(*NAMES, f.explode("keys").alias("key")).repartition("key")
    return (
        _in_cells(keys, "key")
        .dropDuplicates()
        .groupBy("which", *NAMES)
        .agg(f.count("*").alias("distinct_keys"))
    )


def _beside(left: DataFrame, right: DataFrame) -> DataFrame:
    """Return both tables joined by cell; null where the right one has none."""
    names = ("which", *NAMES)
    same = reduce(lambda one, other: one & other, (left[name].eqNullSafe(right[name]) for name in names))
    return left.join(right, same, "left").select(
        left["*"], *(right[name] for name in right.columns if name not in names)
    )


def _cell(row: dict, names: tuple[str, ...]) -> dict:
    return {name: value for name, value in row.items() if name in names or name not in ("which", *NAMES)}


def _collected(rows: DataFrame, limit: int) -> list[dict]:
    return [row.asDict() for row in rows.limit(limit).collect()]


def _hot(rows: DataFrame) -> list[dict]:
    """Return the keys of each topic with most messages, most first. A key of one message, as most are, is not
    hot."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    place = f.row_number().over(Window.partitionBy("topic").orderBy(f.desc("messages"), "key"))
    counted = (
        rows.select("topic", f.explode("keys").alias("key"))
        .groupBy("topic", "key")
        .agg(f.count("*").alias("messages"))
        .where("messages > 1")
    )
    ranked = (
        counted.withColumn("place", place)
        .where(f.col("place") <= HOT_KEYS)
        .orderBy(f.desc("messages"), "topic", "key")
    )
    return _collected(ranked.drop("place"), HOT_ALL)


def _index(read: Callable[..., DataFrame]) -> list[dict]:
    """Return how each index file is filled: skew is the longest chain over the mean chain of a slot in
    use."""
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
