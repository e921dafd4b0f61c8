"""All jobs over a store that unmodified clients filled: Java 5.x and 4.9.x, and Go."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark", reason="Spark is in requirements.txt and not installed here")

import pyarrow.parquet as pq

from broker_store.check.walk import check_store
from broker_store.pipeline import jobs
from tests.interop import clients
from tests.interop.brokers import OurBroker
from tests.interop.lines import acknowledged
from tests.pipeline import plain


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """(the store of a broker that has ended, what each client was answered)."""
    if reason := next(
        filter(
            None,
            (
                clients.java_missing(clients.JAVA_5),
                clients.java_missing(clients.JAVA_4),
                clients.program_missing(),
            ),
        ),
        None,
    ):
        pytest.skip(reason)
    broker = OurBroker(tmp_path_factory.mktemp("broker") / "data").start()
    try:
        programs = [
            clients.JavaProgram(version, broker.nameserver, tmp_path_factory.mktemp("home"))
            for version in (clients.JAVA_5, clients.JAVA_4)
        ]
        programs.append(clients.GoProgram(broker.nameserver))
        sent = []
        for number, program in enumerate(programs):
            sent += acknowledged(
                program.run("send", topics="orders,payments", n=1_000, threads=4, run=f"m{number}")
            )
            sent += acknowledged(
                program.run("send", topics="orders", n=320, mode="batch", per=32, run=f"b{number}")
            )
            # Which the client compresses
            sent += acknowledged(program.run("send", topics="large", n=5, size=20_000, run=f"l{number}"))
        consumer = programs[0].start("consume", group="readers", topics="orders", fail_every=100, level=1)
        try:
            consumer.until(lambda lines: any(line.get("reconsume") for line in lines), 90)
            consumer.finish()
        finally:
            consumer.kill()
    finally:
        broker.stop()
    return broker.store, sent


@pytest.mark.takes(80)
@pytest.mark.client
@pytest.mark.slow
def test_every_job_says_of_it_what_a_plain_reader_does(spark, filled, tmp_path):
    store, sent = filled
    records = plain.records(store)
    assert {"orders", "payments", "large", "SCHEDULE_TOPIC_XXXX", "%RETRY%readers"} <= {
        one.topic for one in records
    }
    plain.assert_statistics(jobs.statistics(spark, store), records)

    report, result = check_store(store), jobs.audit(spark, store)
    assert (result["findings"], report.findings) == ([], [])
    for name in ("records", "units", "entries", "index_files", "queues"):
        assert result["counts"][name] == report.counts[name], name

    retried = next(one for one in records if one.topic == "%RETRY%readers")
    (key,) = retried.keys
    places = [
        (row["topic"], row["queue_id"], row["queue_offset"])
        for row in jobs.lineage(spark, store, key)["records"]
    ]
    assert places == [(one.topic, one.queue_id, one.queue_offset) for one in records if key in one.keys]
    assert places[0] == next(
        (line["topic"], line["queue"], line["offset"]) for line in sent if line["key"] == key
    )

    done = jobs.archive(spark, store, tmp_path / "archive")
    rows = [
        row
        for path in (tmp_path / "archive" / "records").rglob("*.parquet")
        for row in pq.ParquetFile(path).read(["log_offset", "body", "properties"]).to_pylist()
    ]
    archived = sorted((row["log_offset"], row["body"], dict(row["properties"])) for row in rows)
    assert archived == [(one.log_offset, one.body, one.properties) for one in records]
    assert done["records"] == len(records)
