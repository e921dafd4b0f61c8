"""The data source in a real session: tables, filters that it answers itself, and errors in words."""

from __future__ import annotations

import gc

import pytest

pytest.importorskip("pyspark", reason="Spark is in requirements.txt and not installed here")

from pyspark.sql import datasource as ds

from broker_store.formats import queue_unit
from broker_store.pipeline.options import read_options
from broker_store.pipeline.session import words_of
from broker_store.pipeline.source import RocketMQReader
from tests.pipeline import plain
from tests.support import stores


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return stores.unpack("clean-small", tmp_path_factory.mktemp("store"))


def test_records_come_with_map_list_and_times_and_a_filter_is_answered_by_the_source(spark, store):
    records = plain.records(store)
    wanted = [one for one in records if one.topic == records[0].topic and one.log_offset >= 1_000]
    read = spark.read.format("rocketmq").option("partition_bytes", 50_000).load(str(store))
    rows = read.where(f"topic = '{records[0].topic}' and log_offset >= 1000").select(
        "log_offset", "properties", "keys", "body", "store_time"
    )
    told = rows._jdf.queryExecution().executedPlan().toString()
    assert "Filter (" not in told, told
    found = sorted(rows.collect(), key=lambda row: row["log_offset"])
    assert [row["log_offset"] for row in found] == [one.log_offset for one in wanted]
    for row, one in zip(found, wanted, strict=True):
        assert (row["properties"], tuple(row["keys"]), bytes(row["body"])) == (
            one.properties,
            one.keys,
            one.body,
        )


def test_consume_queues_are_a_table(spark, store):
    units = spark.read.format("rocketmq").option("table", "units").load(str(store)).collect()
    expected = {
        (one.topic, one.queue_id, one.queue_offset): (one.log_offset, one.size)
        for one in plain.records(store)
        if one.is_queued
    }  # fmt: skip
    found = {
        (row["topic"], row["queue_id"], row["queue_offset"]): (row["log_offset"], row["record_bytes"])
        for row in units
    }
    assert found.items() <= expected.items()
    on_disk = sum(
        unit.size != 0 and not unit.is_pre_blank
        for file in (store / "consumequeue").rglob("0*")
        if file.is_file()
        for unit in queue_unit.decode_all(file.read_bytes())
    )
    assert len(units) == len(found) == on_disk


def test_index_files_are_tables_that_agree_with_one_another(spark, store):
    read = {
        name: spark.read.format("rocketmq").option("table", name).load(str(store))
        for name in ("entries", "slots", "index_files")
    }
    entries = read["entries"].groupBy("file").count().collect()
    files = {row["file"]: row for row in read["index_files"].collect()}
    assert {row["file"]: row["count"] for row in entries} == {
        name: row["entries"] for name, row in files.items()
    }
    slots = read["slots"].groupBy("file").count().collect()
    assert {row["file"]: row["count"] for row in slots} == {
        name: row["slots_used"] for name, row in files.items()
    }
    assert len(files) > 1


@pytest.mark.parametrize(
    ("options", "path", "sentence"),
    [
        ({}, "/nowhere/store", "/nowhere/store is no store: it has no directory commitlog"),
        ({"topic": "nowhere"}, None, "there is no topic nowhere in"),
        ({"columns": "topic,colour"}, None, "the table records has no column colour"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(spark, store, options, path, sentence):
    reader = spark.read.format("rocketmq")
    for name, value in options.items():
        reader = reader.option(name, value)
    with pytest.raises(Exception) as raised:
        reader.load(path or str(store)).count()
    assert words_of(raised.value).startswith(sentence)


def test_what_a_worker_has_loaded_is_not_walked_after_each_task(store):
    reader = RocketMQReader(read_options({"path": str(store)}), ("log_offset",))
    gc.unfreeze()
    try:
        assert sum(len(batch) for batch in reader.read(reader.partitions()[0]))
        frozen = gc.get_freeze_count()
        assert frozen > 0
        for _ in reader.read(reader.partitions()[0]):
            pass
        assert 0 < gc.get_freeze_count() <= frozen, "once: what later tasks leave is collected"
    finally:
        gc.freeze()  # as after the tests are collected


def test_filters_that_it_cannot_answer_are_left_to_spark():
    reader = RocketMQReader(read_options({"path": "x"}), ("topic",))
    taken = [
        ds.EqualTo(("topic",), "T"),
        ds.In(("queue_id",), (1, 2)),
        ds.GreaterThan(("log_offset",), 5),
        ds.IsNotNull(("topic",)),
    ]
    left = [
        ds.IsNotNull(("tags",)),
        ds.EqualTo(("properties", "key"), "x"),
        ds.Not(ds.EqualTo(("topic",), "T")),
        ds.StringStartsWith(("topic",), "T"),
        ds.EqualTo(("topic",), None),
        ds.EqualTo(("born_host",), "x"),
    ]
    assert list(reader.pushFilters([*taken, *left])) == left
    assert reader._options.tests == (
        ("topic", "in", ("T",)),
        ("queue_id", "in", (1, 2)),
        ("log_offset", ">", 5),
    )
