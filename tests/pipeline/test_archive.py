"""The archive holds what the log holds, whatever happened to the runs that made it."""

from __future__ import annotations

import json
import os

import pytest

pytest.importorskip("pyspark", reason="Spark is in requirements.txt and not installed here")

import pyarrow as pa
import pyarrow.parquet as pq

from broker_store.errors import BrokerStoreError, MisuseError
from broker_store.messages import Message
from broker_store.pipeline import archive as module
from broker_store.pipeline import jobs
from tests.pipeline import plain
from tests.support.hand_store import Clock, opened


def content(out) -> list[tuple]:
    """Every row in every file, as a Parquet tool that knows nothing of us sees it."""
    rows = []
    for path in sorted((out / "records").rglob("*.parquet")):
        topic = path.parent.parent.name.removeprefix("topic=").replace("%25", "%")
        file = pq.ParquetFile(path)
        assert file.schema_arrow.field("store_time").type == pa.timestamp("us", tz="UTC")
        for row in file.read().to_pylist():
            day = path.parent.name.removeprefix("day=")
            assert f"{row['store_time']:%Y-%m-%d}" == day
            rows.append(
                (
                    row["log_offset"],
                    topic,
                    row["queue_id"],
                    row["queue_offset"],
                    bytes(row["body"]),
                    dict(row["properties"]),
                )
            )
    return sorted(rows)


def expected(root) -> list[tuple]:
    return sorted(
        (one.log_offset, one.topic, one.queue_id, one.queue_offset, one.body, one.properties)
        for one in plain.records(root)
    )


class Killed(BaseException):
    """As if the process were gone: nothing may tidy up because of it."""


def test_new_records_are_added_and_a_killed_run_leaves_nothing_doubled_or_missing(
    spark, tmp_path, monkeypatch
):
    root, out = tmp_path / "store", tmp_path / "archive"
    clock = Clock()

    def put(count: int) -> None:
        with opened(root, clock) as store:
            for number in range(count):
                clock.advance(3_600_000)
                store.appender.put(
                    Message(("A", "%RETRY%g")[number % 2], number % 3, bytes([number]) * 500, b"KEYS\1k\2")
                )

    put(30)
    # Killed while files are moved: some are in place, the manifest names none.
    replace, left = os.replace, [3]

    def dies(source, target):
        if str(source).endswith(".parquet"):
            left[0] -= 1
            if left[0] < 0:
                raise Killed
        replace(source, target)

    with monkeypatch.context() as patched:
        patched.setattr(module.os, "replace", dies)
        with pytest.raises(Killed):
            jobs.archive(spark, root, out)
    assert len(content(out)) > 0 and json.loads((out / "manifest.json").read_text())["runs"] == []
    first = jobs.archive(spark, root, out)
    assert content(out) == expected(root)
    assert (first["records"], first["from"], first["doubt"]) == (30, 0, None)

    # Killed before the manifest is written; then again in small steps.
    put(8)
    with monkeypatch.context() as patched:
        patched.setattr(module, "_write_manifest", lambda *_: (_ for _ in ()).throw(Killed()))
        with pytest.raises(Killed):
            jobs.archive(spark, root, out)
    second = jobs.archive(spark, root, out, step_bytes=3_000)
    assert content(out) == expected(root)
    assert (second["records"], second["from"]) == (8, first["to"])
    manifest = json.loads((out / "manifest.json").read_text())
    assert [run["from"] for run in manifest["runs"]][1:] == [run["to"] for run in manifest["runs"]][:-1]
    assert len(manifest["runs"]) > 2
    named = {file["path"] for run in manifest["runs"] for file in run["files"]}
    assert named == {str(path.relative_to(out)) for path in (out / "records").rglob("*.parquet")}

    again = jobs.archive(spark, root, out)
    assert (again["records"], again["files"], again["to"]) == (0, 0, second["to"])

    # Another store must not be added to it.
    other = tmp_path / "other"
    with opened(other, Clock()) as store:
        for number in range(60):
            store.appender.put(Message("A", 0, bytes([number]) * 501))
    with pytest.raises(BrokerStoreError, match="another"):
        jobs.archive(spark, other, out)


def test_files_that_the_manifest_does_not_know_or_misses_stop_a_run(spark, tmp_path):
    root, out = tmp_path / "store", tmp_path / "archive"
    with opened(root, Clock()) as store:
        store.appender.put(Message("A", 0, b"kept"))
    foreign = out / "records" / "topic=A" / "theirs.parquet"
    foreign.parent.mkdir(parents=True)
    foreign.write_bytes(b"somebody's")
    with pytest.raises(MisuseError, match="no manifest.json says which count"):
        jobs.archive(spark, root, out)
    assert foreign.read_bytes() == b"somebody's"
    foreign.unlink()

    jobs.archive(spark, root, out)
    (file,) = (out / "records").rglob("*.parquet")
    content = file.read_bytes()
    file.write_bytes(content[:-1])
    with pytest.raises(MisuseError, match=f"has {len(content) - 1} bytes, not {len(content)}"):
        jobs.archive(spark, root, out)
    file.unlink()
    with pytest.raises(MisuseError, match="is not there"):
        jobs.archive(spark, root, out)
