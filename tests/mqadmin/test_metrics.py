"""Metrics under Apache's names: names, labels, kinds and what is left out."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from broker_store.broker import buckets
from mqadmin.api.metrics import text_of
from mqadmin.metrics import apache, exporter
from mqadmin.metrics.families import families
from mqadmin.metrics.measured import measure
from mqadmin.metrics.rows import Row, prometheus_name
from tests.support.fake_cluster import FakeCluster
from tests.support.prometheus import of_prometheus

GOLDEN = Path(__file__).resolve().parent.parent / "golden" / "metrics"
# Labels that the library of Apache's broker or of the exporter adds, or that are left out; docs/METRICS.md
NOT_OURS = {"otel_scope_name", "le"}
OF_HISTOGRAM = ("_bucket", "_count", "_sum")
LEFT_OUT = {
    "rocketmq_message_size": {"message_type"},
    "rocketmq_messages_in_total": {"message_type"},
    "rocketmq_throughput_in_total": {"message_type"},
    "rocketmq_send_to_dlq_messages_total": {"topic"},
    "rocketmq_commit_messages_total": {"topic"},
    "rocketmq_rollback_messages_total": {"topic"},
    "rocketmq_timer_enqueue_total": {"topic"},
    "rocketmq_group_count": {"caddr", "localaddr"},
}


def lines(name: str) -> list[str]:
    return (GOLDEN / name).read_text().splitlines()


def labels_of(row: Row) -> set[str]:
    return {name for name, _ in row.common} | set(row.labels)


async def measured(**changes):
    found = await measure(FakeCluster())
    return replace(found, **changes) if changes else found


def samples_of(text: str) -> dict[str, list]:
    found: dict[str, list] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample)
    return found


def test_each_name_in_apaches_classes_is_served_or_has_a_reason():
    served = {row.name for row in apache.TABLE}
    assert not served & apache.NOT_SERVED.keys()
    names = set(lines("apache-5.5.0-names.txt"))
    assert served | apache.NOT_SERVED.keys() == names, names ^ (served | apache.NOT_SERVED.keys())


def test_names_kinds_and_labels_are_those_that_apaches_broker_served():
    kinds = dict(line.split()[2:4] for line in lines("apache-5.5.0-scrape.txt") if line.startswith("# TYPE"))
    labels: dict[str, set[str]] = {}
    for line in lines("apache-5.5.0-scrape.txt"):
        if found := re.match(r"(\w+)\{(.*)\} N$", line):
            name = found[1]
            for end in OF_HISTOGRAM:
                name = name.removesuffix(end) if kinds.get(name.removesuffix(end)) == "histogram" else name
            labels.setdefault(name, set()).update(re.findall(r'(\w+)="', found[2]))
    rows = {prometheus_name(row): row for row in apache.TABLE}
    seen = rows.keys() & kinds.keys()
    assert rows.keys() - seen <= {
        # Not in this scrape: no message was due, came again by a pop, or went through a proxy, and all pops
        # were acknowledged before their records were stored. PopMetricsManager has these labels.
        "rocketmq_timer_dequeue_total",
        "rocketmq_pop_revive_in_message_total",
        "rocketmq_pop_revive_out_message_total",
        "rocketmq_pop_revive_retry_messages_total",
        "rocketmq_proxy_up",
    }
    for name in seen:
        assert rows[name].kind == kinds[name], name
        assert labels_of(rows[name]) == labels[name] - NOT_OURS - LEFT_OUT.get(name, set()), name
    others = {name.removesuffix("_milliseconds").removesuffix("_seconds") for name in kinds.keys() - seen}
    assert others - {"target_info"} <= apache.NOT_SERVED.keys()


def test_names_kinds_and_labels_are_those_of_the_exporter():
    rows = {row.name: row for row in exporter.TABLE}
    known = {}
    for line in lines("exporter-e1ab2dd.txt"):
        name, kind, labels = line.split()
        known[name] = (kind, set(labels.split(",")))
    assert not rows.keys() & exporter.NOT_SERVED.keys()
    assert rows.keys() <= known.keys() <= rows.keys() | exporter.NOT_SERVED.keys()
    for name, row in rows.items():
        kind, labels = known[name]
        assert (row.kind, labels_of(row)) == (kind, labels - LEFT_OUT.get(name, set())), name


@pytest.mark.parametrize(
    "file", ["rocketmq_exporter.json", "rocketmq_exporter_overview.json", "example.rules"]
)
async def test_what_the_exporters_dashboards_select_is_served_or_has_a_reason(file):
    wanted = {
        name for line in lines("exporter-dashboards-e1ab2dd.txt") for at, name in [line.split()] if at == file
    }
    served = samples_of(text_of(await measured()).decode()).keys()
    page = (GOLDEN.parents[2] / "docs" / "METRICS.md").read_text()
    assert len(wanted) >= 4
    for name in wanted - served:
        assert name in exporter.NOT_SERVED and f"| `{name}` | {exporter.NOT_SERVED[name]} |" in page
    assert len(wanted & served) > len(wanted) / 2


async def test_values_are_those_of_the_facts():
    found = samples_of(text_of(await measured()).decode())
    (into,) = (s for s in found["rocketmq_messages_in_total"] if s.labels["topic"] == "orders")
    assert into.value == 1_000 and into.labels["is_system"] == "false"
    assert {"cluster", "node_type", "node_id"} <= into.labels.keys()
    (lag,) = found["rocketmq_consumer_lag_messages"]
    assert (lag.labels["consumer_group"], lag.labels["topic"], lag.value) == ("billing", "orders", 12)
    (late,) = found["rocketmq_consumer_lag_latency_milliseconds"]
    assert late.value == 1_500
    (queueing,) = found["rocketmq_consumer_queueing_latency_milliseconds"]
    assert queueing.value == 1_200 and queueing.labels["is_retry"] == "false"
    (watermark,) = found["rocketmq_processor_watermark"]
    assert (watermark.labels["processor"], watermark.value) == ("send", 1)
    (enqueue,) = found["rocketmq_timer_enqueue_latency_milliseconds"]
    assert enqueue.value == 30 and enqueue.labels["storage_type"] == "local"
    due = found["rocketmq_timer_message_snapshot"]
    assert [(one.labels["timer_bound_s"], one.value) for one in due] == [("5", 1), ("60", 6)]
    (revive,) = found["rocketmq_pop_revive_latency_milliseconds"]
    assert (revive.labels["queue_id"], revive.value) == ("0", 40), "the other queue was not measured"
    missing = {one.labels["of"]: one.value for one in found["broker_scrape_not_measured"]}
    assert missing == {"lags": 0, "ready": 0, "timer": 0, "revive": 1}
    (stored,) = found["rocketmq_pop_revive_in_message_total"]
    assert (stored.labels["revive_message_type"], stored.labels["put_status"]) == ("CK", "PUT_OK")
    (read,) = found["rocketmq_pop_revive_out_message_total"]
    assert (read.labels["revive_message_type"], read.labels["queue_id"], read.value) == ("ACK", "3", 4)
    assert {"cluster", "consumer_group", "topic"} <= stored.labels.keys() & read.labels.keys()
    (size,) = found["rocketmq_storage_message_reserve_time_milliseconds"]
    assert size.value == 60_000 and size.labels["storage_medium"] == "disk"
    (diff,) = found["rocketmq_group_diff"]
    assert diff.labels == {
        "group": "billing",
        "topic": "orders",
        "countOfOnlineConsumers": "1",
        "msgModel": "1",
    }
    assert found["rocketmq_group_retrydiff"][0].value == 2
    assert found["rocketmq_topic_dlq_offset"][0].labels["group"] == "billing"
    assert found["rocketmq_brokeruntime_pmdt_0to10ms"][0].value == 5
    assert found["rocketmq_brokeruntime_gettotal_tps10"][0].value == 24
    (lacks,) = found["rocketmq_broker_commitlog_diff"]
    assert (lacks.labels["brokerIP"], lacks.value) == ("10.0.0.9", 4_096)
    assert found["rocketmq_proxy_up"][0].labels["node_type"] == "proxy"


async def test_a_histogram_has_cumulative_buckets_with_apaches_labels():
    found = samples_of(text_of(await measured()).decode())
    series = {s.labels["le"]: s for s in found["rocketmq_rpc_latency_milliseconds_bucket"]}
    assert {bound: s.value for bound, s in series.items()} == {"1.0": 900, "3.0": 990, "+Inf": 1_000}
    labels = series["+Inf"].labels
    assert labels["request_code"] == "send_message_v2" and labels["response_code"] == "success"
    assert (labels["is_long_polling"], labels["result"], labels["protocol_type"]) == (
        "false",
        "success",
        "remoting",
    )
    (count,), (total,) = (found[f"rocketmq_rpc_latency_milliseconds_{end}"] for end in ("count", "sum"))
    assert (count.value, total.value) == (1_000, 1_300)
    (size,) = found["rocketmq_message_size_sum"]
    assert size.value == 7 and size.labels["topic"] == "orders"
    assert found["rocketmq_delay_message_latency_seconds_count"][0].labels["storage_medium"] == "disk"


def test_bounds_are_those_that_apaches_broker_served():
    bounds: dict[str, list[float]] = {}
    for line in lines("apache-5.5.0-scrape.txt"):
        if found := re.match(r'(\w+)_bucket\{.*le="([0-9.]+)"', line):
            wanted = bounds.setdefault(found[1], [])
            if float(found[2]) not in wanted:
                wanted.append(float(found[2]))
    for name, ours in (
        ("rocketmq_message_size", buckets.SIZES),
        ("rocketmq_rpc_latency_milliseconds", buckets.REQUEST_MS),
        ("rocketmq_topic_create_execution_time_milliseconds", buckets.CREATION_MS),
        ("rocketmq_consumer_group_create_execution_time_milliseconds", buckets.CREATION_MS),
        ("rocketmq_delay_message_latency_seconds", buckets.DELAY_S),
        ("rocketmq_finish_message_latency_milliseconds", buckets.FINISH_S),
    ):
        assert tuple(bounds[name]) == ours, name


async def test_what_is_unknown_is_absent_and_not_zero():
    now = await measured()
    assert now.scrape is not None
    found = samples_of(text_of(now).decode())
    groups = {s.labels["consumer_group"] for s in found["rocketmq_consumer_lag_messages"]}
    assert groups == {"billing"}  # nightly-report has no offset
    assert "rocketmq_brokeruntime_put_latency_999" not in found
    assert all(s.labels["topic"] == "orders" for s in found["rocketmq_messages_in_total"])
    nothing = replace(now.scrape, earliest_ms=None, serves_grpc=False, halves=[], pairs=[])
    found = samples_of(text_of(replace(now, scrape=nothing)).decode())
    for name in (
        "rocketmq_storage_message_reserve_time_milliseconds",
        "rocketmq_brokeruntime_earliest_message_timestamp",
        "rocketmq_proxy_up",
        "rocketmq_half_messages",
        "rocketmq_consumer_offset",
    ):
        assert name not in found


@pytest.mark.parametrize("wanted", ["ours", "apache", "exporter", "ours,exporter"])
async def test_metrics_names_choose_the_families(wanted):
    """metricsNames."""
    cluster = FakeCluster()
    cluster.metrics.wanted = wanted
    found = samples_of(text_of(await measure(cluster)).decode()).keys()
    assert ("broker_state" in found) == ("ours" in wanted)
    assert ("rocketmq_messages_in_total" in found) == ("apache" in wanted)
    assert ("rocketmq_producer_tps" in found) == ("exporter" in wanted)


async def test_before_the_broker_runs_there_are_no_values_of_it():
    found = samples_of(text_of(await measure(FakeCluster(state_name="starting"))).decode())
    assert "broker_state" in found and not any(name.startswith("rocketmq_") for name in found)


async def test_no_two_families_have_the_same_name():
    names = [family.name for family in families(await measured())]
    assert len(names) == len(set(names)) > 100


# What promtool finds of names that are Apache's, or that were ours before.
ACCEPTED = (
    r"^(broker|rocketmq)_\w+ use base unit \"seconds\" instead of \"milliseconds\"$",
    r"^rocketmq_\w+ label names should be written in 'snake_case' not 'camelCase'$",
    r"^rocketmq_\w+ non-counter metrics should not have \"_total\" suffix$",
    r"^rocketmq_\w+ non-histogram and non-summary metrics should not have \"_count\" suffix$",
)


@pytest.mark.slow
async def test_promtool_reads_them():
    tool = of_prometheus("promtool")
    if tool is None:
        return  # the parser of prometheus_client reads them above
    done = subprocess.run(
        [tool, "check", "metrics"],
        input=text_of(await measured()),
        capture_output=True,
        timeout=60,
    )
    problems = done.stderr.decode().splitlines()
    assert done.returncode in (0, 3), problems  # 3: it has found style problems alone
    wrong = [line for line in problems if not any(re.search(style, line) for style in ACCEPTED)]
    assert wrong == []
