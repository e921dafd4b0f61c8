"""Audit: every record, every queue unit and every index entry of a store, against one another.

    log      each record is sound (length, magic, own place, CRC of the body, topic)
    queues   the units that the log's records make  ──full join──  the units in the queue files
    index    the entries that the log's keys make   ──full join──  the entries in the index files
             entries of a slot, in order            ──  each names the one before it, the slot names the last

The kinds of findings are those of `check_store`; that walks a store in order with little memory, this joins, so that
many machines can share the work. A summary of each kind and the first findings of it reach the driver, never rows.

`behind` marks what the next start of the engine mends by itself after a stop that was not orderly (queues or index
behind the log): a warning then, an error in a store that was closed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from broker_store.engine.check_report import ERROR, WARNING
from broker_store.engine.disk import Disk
from broker_store.errors import DamagedStoreError, FormatError
from broker_store.formats import config_json, index_file, queue_unit
from broker_store.pipeline import derived, splits

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOLD = 100  # findings of a kind
MAX_DAMAGED = 10_000  # stretches of the log without a good record; what queue or index say of more than these is told as theirs
CONFIG_BYTES = 256 << 20


def audit(spark: SparkSession, read, store: Path, live_page: Path | None, tell) -> dict:
    """{"findings": [{severity, kind, file, offset, what}], "kinds": {kind: count}, "counts": {...}, "ok"}; files seen from the store.

    `read(table, **options)` gives a table of the store.
    """
    return _Audit(spark, read, store, live_page, tell).run()


class _Audit:
    def __init__(self, spark, read, store: Path, live_page: Path | None, tell):
        self.spark, self.read, self.store, self.tell = spark, read, store, tell
        self.disk = Disk()
        self.live = splits.position_of(live_page, self.disk)
        self.behind = WARNING if self.live is not None or self.disk.exists(store / "abort") else ERROR
        self.findings: list[dict] = []
        self.kinds: dict[str, int] = {}
        self.counts: dict[str, int] = {}
        self.damaged: list[tuple[int, int]] = []

    def run(self) -> dict:
        self.files = splits.log_files(self.store, self.disk, self.live)
        self.log_begin = self.files[0][1] if self.files else 0
        self._check_names()
        self.tell("records", 0, 0)
        self._check_log()
        self.tell("queues", 0, 0)
        self._check_queues()
        self.tell("index", 0, 0)
        self._check_index()
        errors = sum(one["severity"] == ERROR for one in self.findings)
        return {"findings": self.findings, "kinds": self.kinds, "counts": self.counts, "errors": errors, "ok": errors == 0}

    def add(self, severity: str, kind: str, file: object, offset: int | None, what: str, count: int = 1) -> None:
        self.kinds[kind] = self.kinds.get(kind, 0) + count
        if sum(one["kind"] == kind for one in self.findings) < TOLD:
            inside = Path(file).relative_to(self.store) if Path(file).is_relative_to(self.store) else file
            self.findings.append({"severity": severity, "kind": kind, "file": str(inside), "offset": offset, "what": what})

    def told(self, rows: DataFrame, order: list[str]) -> list:
        """(row, how many it stands for): the first of the rows, the last of those for itself and all that follow."""
        first = rows.orderBy(*order).limit(TOLD).collect()
        following = rows.count() - TOLD if len(first) == TOLD else 0
        return [(row, 1 + (following if number == TOLD else 0)) for number, row in enumerate(first, 1)]

    def _check_names(self) -> None:
        """Files of the log and of each queue follow one another without a gap."""
        for (_, _, end), (path, base, _) in zip(self.files, self.files[1:], strict=False):
            if base != end:
                self.add(ERROR, "file-missing", path, None, f"the file before it ends at {end}, this begins at {base}")
                self.damaged.append((end, base))
        self.queues = list(splits.queues_of(self.store, self.disk))
        for queue in self.queues:
            for before, file in zip(queue.files, queue.files[1:], strict=False):
                if file.first != before.end:
                    self.add(ERROR, "file-missing", file.path, None, f"the file before it ends at unit {before.end}, this begins at {file.first}")
        self.counts["queues"] = len(self.queues)

    # The log ---------------------------------------------------------------------------------------------------

    def _check_log(self) -> None:
        from pyspark.sql import functions as f

        rows = self.read("records", columns="log_offset,record_bytes,problem", damage="report")
        counted = rows.agg(
            f.count_if(f.isnull("problem")).alias("records"),
            f.max(f.when(f.isnull("problem"), f.col("log_offset") + f.col("record_bytes"))).alias("end"),
            f.count("problem").alias("problems"),
        ).first()
        self.counts["records"] = counted["records"]
        self.log_end = self.log_begin if counted["end"] is None else counted["end"]
        self.counts["log_end"] = self.log_end
        if not counted["problems"]:
            return
        told = rows.where("problem is not null").orderBy("log_offset").limit(MAX_DAMAGED).collect()
        for row in told:
            path, base, end = next(file for file in self.files if file[1] <= row["log_offset"] < file[2])
            torn = row["problem"].startswith("torn end")
            reaches = any(self._last_reference(queue) > row["log_offset"] for queue in self.queues) if torn else True
            kind, severity = ("torn-tail", self.behind if reaches else WARNING) if torn else ("bad-record", ERROR)
            self.add(severity, kind, path, row["log_offset"] - base, row["problem"])
            self.damaged.append((row["log_offset"], end if torn else row["log_offset"] + row["record_bytes"]))
        if counted["problems"] > len(told):
            more = counted["problems"] - len(told)
            self.add(ERROR, "bad-record", path, told[-1]["log_offset"] - base, f"{more} more stretches without a good record behind this one", more)

    def _last_reference(self, queue: splits.Queue) -> int:
        """Where the record of a queue's last unit ends."""
        if not queue.files:
            return 0
        unit = splits.unit_at(queue.files[-1], queue.files[-1].end - 1, self.disk)
        return 0 if unit.is_pre_blank else unit.log_offset + unit.size

    def _undamaged(self, column: str):
        """A condition: the offset does not lie where the log has no good record."""
        from pyspark.sql import functions as f

        # One constant, however many there are: a condition for each would be a plan that no compiler takes.
        stretches = f.from_json(f.lit(json.dumps(self.damaged)), "array<array<long>>")
        return ~f.exists(stretches, lambda one: (f.col(column) >= one[0]) & (f.col(column) < one[1]))

    # Queues ----------------------------------------------------------------------------------------------------

    def _check_queues(self) -> None:
        from pyspark.sql import functions as f

        key = ["topic", "queue_id", "queue_offset"]
        columns = "topic,queue_id,queue_offset,log_offset,record_bytes,tags_code,queued"
        made = self._of_living_topics(self.read("records", columns=columns, damage="skip").where("queued"))
        made = made.select(*key, *(f.col(name).alias(f"log_{name}") for name in ("log_offset", "record_bytes", "tags_code")))
        units = self.read("units")
        both = made.join(units, key, "full_outer")
        same = f.expr("log_log_offset = log_offset and log_record_bytes = record_bytes and log_tags_code = tags_code")
        kind = (
            f.when(f.isnull("log_offset"), "unit-missing")
            .when(f.isnull("log_log_offset") & (f.col("log_offset") >= self.log_end), "unit-behind")
            .when(f.isnull("log_log_offset") & (f.col("log_offset") >= self.log_begin) | (f.col("log_offset") < 0) | (f.col("record_bytes") <= 0), "unit-extra")
            .when(f.isnull("log_log_offset"), "expired")
            .when(~same, "unit-wrong")
        )
        judged = both.withColumn("kind", kind).where(
            f.col("kind").isNull() | (f.col("kind") == "unit-missing") | self._undamaged("log_offset") | f.col("log_log_offset").isNotNull()
        )
        summary = judged.groupBy("kind").count().collect()
        counted = {row["kind"]: row["count"] for row in summary}
        self.counts["units"] = sum(counted.get(name, 0) for name in (None, "expired", "unit-wrong", "unit-extra", "unit-behind"))
        wrong = {name for name in counted if name not in (None, "expired")}
        if not wrong:
            return
        by_queue = {(queue.topic, queue.queue_id): queue for queue in self.queues}
        told = f.struct("queue_offset", "log_log_offset", "log_record_bytes", "log_tags_code", "log_offset", "record_bytes", "tags_code")
        groups = (
            judged.where(f.col("kind").isin(*wrong))
            .groupBy("kind", "topic", "queue_id")
            .agg(f.count("*").alias("count"), f.min("queue_offset").alias("first"), f.max("queue_offset").alias("last"), f.min(told).alias("example"))
        )
        for row in groups.orderBy("kind", "topic", "queue_id").limit(10 * TOLD).collect():
            self._tell_units(row, by_queue.get((row["topic"], row["queue_id"])))

    def _tell_units(self, row, queue: splits.Queue | None) -> None:
        file = next((one for one in (queue.files if queue else ()) if one.first <= row["first"] < one.end), None)
        path = file.path if file else self.store / "consumequeue" / row["topic"] / str(row["queue_id"])
        at = (row["first"] - file.first) * queue_unit.SIZE if file else None
        which = f"unit {row['first']}" if row["count"] == 1 else f"{row['count']} units from {row['first']} to {row['last']}"
        example = row["example"]
        if row["kind"] == "unit-missing":
            at_end = queue is None or not queue.files or row["first"] >= queue.files[-1].end
            what, kind, severity = "missing, the log has the records", "unit-missing", self.behind if at_end else ERROR
        elif row["kind"] == "unit-behind":
            what, kind, severity = "pointing behind the end of the log", "unit-extra", self.behind
        elif row["kind"] == "unit-extra":
            what, kind, severity = f"pointing at no record of this queue, the first to {example['log_offset']}", "unit-extra", ERROR
        else:
            found = (example["log_offset"], example["record_bytes"], example["tags_code"])
            wanted = (example["log_log_offset"], example["log_record_bytes"], example["log_tags_code"])
            what, kind, severity = f"wrong: (offset, size, tags code) is {found}, the record makes it {wanted}", "unit-wrong", ERROR
        self.add(severity, kind, path, at, f"{which}: {what}", row["count"])

    def _of_living_topics(self, made: DataFrame) -> DataFrame:
        """Without records of topics that were deleted: they stay in the log and have no units.

        Ours keeps where such a topic's records end. Apache does not, but a topic made again counts from 0: then the
        first unit points behind the records of the life before.
        """
        from pyspark.sql import functions as f

        tombstones = {name: end for name, end in self._config("deletedTopics.json").items() if isinstance(end, int)}
        table = self._config("topics.json").get("topicConfigTable")
        known = set(table) if isinstance(table, dict) else set()
        lives = []
        for queue in self.queues:
            first, begin = self._begin_of_life(queue)
            lives.append((queue.topic, queue.queue_id, first, max(begin, 0), bool(queue.files)))
        for topic, end in tombstones.items():
            made = made.where(~((f.col("topic") == topic) & (f.col("log_offset") < end)))
        if not lives:
            return made.where(f.lit(not known) | f.col("topic").isin(*known)) if known else made
        table = self.spark.createDataFrame(lives, "topic string, queue_id int, first long, begin long, has_files boolean")
        joined = made.join(f.broadcast(table), ["topic", "queue_id"], "left")
        dead = (f.col("log_offset") < f.col("begin")) & (f.col("queue_offset") >= f.col("first"))
        gone = ~f.coalesce("has_files", f.lit(False)) & ~f.col("topic").isin(*known) if known else f.lit(False)
        return joined.where(~f.coalesce(dead, f.lit(False)) & ~gone).drop("first", "begin", "has_files")

    def _begin_of_life(self, queue: splits.Queue) -> tuple[int, int]:
        """(number, log offset) of the first unit when a record agrees with it, else (0, 0)."""
        for file in queue.files:
            for number in range(file.first, min(file.end, file.first + 1024)):
                unit = splits.unit_at(file, number, self.disk)
                if unit.size == 0 or unit.is_pre_blank:
                    continue
                return (number, unit.log_offset) if splits.is_record_of(queue, number, unit, self.files, self.disk) else (0, 0)
        return 0, 0

    def _config(self, name: str) -> dict:
        try:
            value = config_json.read(self.disk.read_file(self.store / "config" / name, CONFIG_BYTES) or b"{}")
        except FormatError as error:
            self.add(ERROR, "config", self.store / "config" / name, None, str(error))
            return {}
        return value if isinstance(value, dict) else {}

    # Index -----------------------------------------------------------------------------------------------------

    def _check_index(self) -> None:
        from pyspark.sql import functions as f

        try:
            files = list(derived.index_files(self.store, self.disk))
        except DamagedStoreError as error:
            self.add(ERROR, "index-geometry", error.file, None, str(error))
            return
        self.counts["index_files"] = len(files)
        if not files:
            return
        self.paths = {path.name: (path, header, geometry) for path, header, geometry in files}
        self._last_file = files[-1][0].name
        entries = self.read("entries")
        self._check_chains(entries)
        pair = ["log_offset", "key_hash"]
        made = self.read("records", columns="log_offset,store_time,entry_hashes", damage="skip")
        made = made.select("log_offset", "store_time", f.explode("entry_hashes").alias("hashed"))
        # A hash from 2^32 on is that of a tag, which only Apache 5.4 and later, and we, put into the index.
        made = made.select("log_offset", (f.col("hashed") % (1 << 32)).alias("key_hash"), (f.col("hashed") < (1 << 32)).alias("plain"), "store_time")
        made = made.groupBy(*pair).agg(f.max("plain").alias("plain"), f.min("store_time").alias("store_time"))
        there = entries.groupBy(*pair).agg(f.min(f.struct("file", "entry", "seconds")).alias("at"), f.count("*").alias("n"))
        both = made.join(there, pair, "full_outer")
        first, last = entries.agg(f.min("log_offset"), f.max("log_offset")).first()
        kind = (
            f.when(f.isnull("plain") & (f.col("log_offset") < self.log_begin), "expired")
            .when(f.isnull("plain") & (f.col("log_offset") >= self.log_end), "index-extra")
            .when(f.isnull("plain") & self._undamaged("log_offset"), "index-entry")
            .when(f.isnull("plain"), "damaged")
            .when(f.isnotnull("n") | ~f.col("plain"), None)
            .when(f.col("log_offset") <= first, "index-starts-late")
            .when(f.col("log_offset") >= last, "index-behind")
            .otherwise("index-missing")
        )
        begins = self.spark.createDataFrame([(path.name, header.begin_timestamp) for path, header, _ in files], "file string, begin long")
        timed = both.withColumn("kind", kind).withColumn("file", f.col("at.file")).join(f.broadcast(begins), "file", "left")
        seconds = f.least(f.greatest(f.floor((f.unix_millis("store_time") - f.col("begin")) / 1000), f.lit(0)), f.lit(index_file.MAX_SECONDS))
        late = f.isnull("kind") & f.isnotnull("n") & (f.col("at.entry") != index_file.FIRST_ENTRY) & (f.col("at.seconds") != seconds)
        judged = timed.withColumn("kind", f.when(late, "index-time").otherwise(f.col("kind")))
        groups = judged.groupBy("kind").agg(f.count("*").alias("count"), f.sum("n").alias("entries"), f.min(f.struct("log_offset", "key_hash", "at")).alias("example"))
        for row in groups.collect():
            self._tell_entries(row)

    def _tell_entries(self, row) -> None:
        self.counts["entries"] = self.counts.get("entries", 0) + (row["entries"] or 0)
        example, kind = row["example"], row["kind"]
        sentences = {
            "index-extra": (WARNING, "point behind the end of the log"),
            "index-entry": (ERROR, f"match no key of a record, the first points to {example['log_offset']}"),
            "index-time": (ERROR, "state another time than their record"),
            "index-starts-late": (WARNING, "keys of older records are in no index file"),
            "index-behind": (self.behind, f"keys of the records from {example['log_offset']} on are not in the index"),
            "index-missing": (self.behind, f"keys of records are in no index file, the first of the record at {example['log_offset']}"),
        }
        if kind not in sentences:
            return
        severity, what = sentences[kind]
        place = example["at"]
        path, _, geometry = self.paths[place["file"] if place else self._last_file]
        at = geometry.entry_at(place["entry"]) if place else None
        self.add(severity, kind, path, at, f"{row['count']} {'entries ' if place else ''}{what}", row["count"])

    def _check_chains(self, entries: DataFrame) -> None:
        from pyspark.sql import Window
        from pyspark.sql import functions as f

        slot = Window.partitionBy("file", "slot").orderBy("entry")
        linked = entries.withColumn("wanted", f.coalesce(f.lag("entry").over(slot), f.lit(0)))
        for row, count in self.told(linked.where("previous <> wanted"), ["file", "entry"]):
            path, _, geometry = self.paths[row["file"]]
            loops = "; the chain loops" if row["previous"] >= row["entry"] else ""
            what = f"entry {row['entry']} names {row['previous']} as the one before it in its slot, that is {row['wanted']}{loops}"
            self.add(self._chain_severity(row["file"]), "index-chain", path, geometry.entry_at(row["entry"]), what, count)
        heads = entries.groupBy("file", "slot").agg(f.max("entry").alias("wanted"))
        both = heads.join(self.read("slots"), ["file", "slot"], "full_outer")
        for row, count in self.told(both.where("not (wanted <=> entry)"), ["file", "slot"]):
            path, header, geometry = self.paths[row["file"]]
            if self.live is not None and row["file"] == self._last_file:
                continue  # a running broker goes on adding entries
            what = f"slot {row['slot']} names entry {row['entry'] or 0}, its newest is {row['wanted'] or 0}"
            self.add(self._chain_severity(row["file"]), "index-slot", path, geometry.slot_at(row["slot"]), what, count)
        ends = heads.groupBy("file").count().withColumnRenamed("count", "used")
        for row in self.read("index_files").join(ends, "file", "left").where("slots_used <> coalesce(used, 0)").collect():
            if self.live is None or row["file"] != self._last_file:
                what = f"states {row['slots_used']} slots in use, there are {row['used'] or 0}"
                at = index_file.HEADER.offset["slots_used"]
                self.add(self._chain_severity(row["file"]), "index-header", self.paths[row["file"]][0], at, what)

    def _chain_severity(self, file: str) -> str:
        """A start after an unclean stop links the last file anew."""
        return self.behind if file == self._last_file else ERROR
