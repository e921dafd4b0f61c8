"""The pipeline's figures: `python -m tests.bench.pipeline STORE MODE key=value...`, one JSON line a
measurement.

scan      [repeats=]   every record's narrow columns in local[2]: records a second, and where the tasks' time
                       goes
audit     [repeats=]   the audit job
archive   out=         the whole store into Parquet

The first scan and the first audit are not shown: Java compiles while they run. A task's time is what Spark
calls its run time. In it a Python worker and a thread of the JVM take turns or run beside each other; CPU
time of either is shown as a share of it, so that two cores make shares of up to 200 %.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from broker_store.engine.disk.disk import Disk
from broker_store.engine.disk.file_access import Reader
from broker_store.pipeline import jobs
from broker_store.pipeline.session import open_session
from broker_store.pipeline.source import RocketMQDataSource, RocketMQReader

TIMES = "BENCH_PIPELINE_TIMES"  # the file to which workers write what their time went into
SCANS = {
    "numbers": (
        "queue_id,queue_offset,log_offset,record_bytes,store_time",
        (),
        (
            "count(*)",
            "sum(queue_id)",
            "max(queue_offset)",
            "max(log_offset)",
            "sum(record_bytes)",
            "max(store_time)",
        ),
    ),
    "by topic and queue": (
        "topic,queue_id,record_bytes",
        ("topic", "queue_id"),
        ("count(*)", "sum(record_bytes)"),
    ),
}


class TimedSource(RocketMQDataSource):
    """The source, with a clock on what each task does in it."""

    @classmethod
    def name(cls) -> str:
        return "timed"

    def reader(self, schema) -> TimedReader:
        made = super().reader(schema)
        return TimedReader(made._options, made._columns)


class TimedReader(RocketMQReader):
    def read(self, partition) -> Iterator:
        clock = time.thread_time
        file_seconds = 0.0

        class TimedFile(Reader):
            def read_into(self, target: memoryview, offset: int) -> int:
                nonlocal file_seconds
                began = clock()
                try:
                    return super().read_into(target, offset)
                finally:
                    file_seconds += clock() - began

        inner = super().read(partition)
        open_reader = Disk.open_reader
        Disk.open_reader = lambda disk, path: TimedFile(path, os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        begin, source_seconds, count = clock(), 0.0, 0
        try:
            while True:
                began = clock()
                batch = next(inner, None)
                source_seconds += clock() - began
                if batch is None:
                    break
                count += 1
                yield batch
        finally:
            Disk.open_reader = open_reader
        line = {
            "file": file_seconds,
            "made": source_seconds - file_seconds,
            "handed": clock() - begin - source_seconds,
            "batches": count,
        }
        with open(os.environ[TIMES], "a") as told:
            told.write(json.dumps(line) + "\n")


def stages(spark) -> dict[int, object]:
    """Spark's own figures of each stage that it still knows."""
    context = spark.sparkContext
    found = (
        context._jsc.sc()
        .statusStore()
        .stageList(None, False, False, context._gateway.new_array(context._jvm.double, 0), None)
    )
    return {found.apply(number).stageId(): found.apply(number) for number in range(found.length())}


def scan(spark, store: Path, repeats: int) -> None:
    spark.dataSource.register(TimedSource)
    for name, (columns, groups, sums) in SCANS.items():
        for repeat in range(repeats + 1):
            Path(os.environ[TIMES]).write_text("")
            known = stages(spark)
            began = time.perf_counter()
            rows = spark.read.format("timed").option("columns", columns).load(str(store))
            found = rows.groupBy(*groups).agg(*map(_column, sums)).collect()
            seconds = time.perf_counter() - began
            records = sum(row["count(1)"] for row in found)
            ran = [stage for number, stage in stages(spark).items() if number not in known]
            run_seconds = sum(stage.executorRunTime() for stage in ran) / 1e3
            jvm_seconds = sum(stage.executorCpuTime() for stage in ran) / 1e9
            workers = [json.loads(line) for line in Path(os.environ[TIMES]).read_text().splitlines()]
            shares = {
                part: 100 * sum(line[part] for line in workers) / run_seconds
                for part in ("made", "file", "handed")
            }
            if repeat:
                show(
                    {
                        "mode": "scan",
                        "what": name,
                        "n": records,
                        "sec": seconds,
                        "records_s": records / seconds,
                        "tasks": len(workers),
                        "run_sec": run_seconds,
                        "batches": sum(line["batches"] for line in workers),
                        **{f"{part}_pct": share for part, share in shares.items()},
                        "jvm_pct": 100 * jvm_seconds / run_seconds,
                    }
                )


def _column(expression: str):
    from pyspark.sql import functions as f

    return f.expr(expression).alias(expression.replace("*", "1"))


def audit(spark, store: Path, repeats: int) -> None:
    for repeat in range(repeats + 1):
        began = time.perf_counter()
        result = jobs.audit(spark, store)
        assert result["ok"], result["findings"][:5]
        if repeat:
            show({"mode": "audit", "sec": time.perf_counter() - began, "counts": result["counts"]})


def archive(spark, store: Path, out: Path) -> None:
    began = time.perf_counter()
    result = jobs.archive(spark, store, out)
    seconds = time.perf_counter() - began
    show(
        {
            "mode": "archive",
            "sec": seconds,
            "MB_s": result["to"] / seconds / 1e6,
            "records": result["records"],
            "files": result["files"],
            "parquet_bytes": result["bytes"],
        }
    )


def show(facts: dict) -> None:
    print(
        json.dumps(
            {name: round(value, 3) if isinstance(value, float) else value for name, value in facts.items()}
        ),
        flush=True,
    )


def main() -> None:
    store, mode, options = Path(sys.argv[1]), sys.argv[2], dict(word.split("=", 1) for word in sys.argv[3:])
    with tempfile.TemporaryDirectory() as work:
        os.environ[TIMES] = str(Path(work) / "times")
        spark = open_session(Path(work) / "cache", cores=2)
        try:
            if mode == "archive":
                archive(spark, store, Path(options["out"]))
            else:
                {"scan": scan, "audit": audit}[mode](spark, store, int(options.get("repeats", "3")))
        finally:
            spark.stop()


if __name__ == "__main__":
    from tests.bench import pipeline  # so that workers find the source by its module's name

    pipeline.main()
