"""The same messages through Apache's broker and ours, and what both serve to Prometheus afterwards."""

from __future__ import annotations

import socket
import time
import urllib.request
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack

import pytest
from prometheus_client.parser import text_string_to_metric_families

from mqadmin.metrics import apache
from mqadmin.metrics.rows import prometheus_name
from tests.interop import clients
from tests.interop.brokers import ApacheBroker, OurBroker
from tests.support.ports import free_port

SENT, DELAYED, TIMED, POPPED, FAILING, HALVES = 1_000, 20, 5, 40, 3, 4
TOPICS = ("Plain", "Delayed", "Timed", "Halves", "Popped", "Failing")
GROUPS = ("readers", "poppers", "failers")
LIMIT_S = 90
# Metrics that have the same series with the same numbers, of the topics and groups above.
SAME = (
    "rocketmq_broker_permission",
    "rocketmq_messages_in_total",
    "rocketmq_messages_out_total",
    "rocketmq_throughput_out_total",
    "rocketmq_producer_connections",
    "rocketmq_consumer_connections",
    "rocketmq_consumer_lag_messages",
    "rocketmq_consumer_lag_latency_milliseconds",
    "rocketmq_consumer_queueing_latency_milliseconds",
    "rocketmq_consumer_inflight_messages",
    "rocketmq_consumer_ready_messages",
    "rocketmq_send_to_dlq_messages_total",
    "rocketmq_storage_flush_behind_bytes",
    "rocketmq_storage_dispatch_behind_bytes",
    "rocketmq_timer_enqueue_lag",
    "rocketmq_timer_enqueue_latency_milliseconds",
    "rocketmq_timer_enqueue_total",
    "rocketmq_timing_messages",
    "rocketmq_pop_revive_lag_milliseconds",
    "rocketmq_pop_revive_latency_milliseconds",
)
# Metrics whose numbers differ for the reason that docs/METRICS.md states, or are of a machine or a moment.
OTHER = {
    "rocketmq_rpc_latency_milliseconds_bucket",  # Apache's has it of one code alone
    "rocketmq_topic_create_execution_time_milliseconds_bucket",
    "rocketmq_consumer_group_create_execution_time_milliseconds_bucket",
    "rocketmq_message_size_bucket",  # compared by topic below
    "rocketmq_finish_message_latency_milliseconds_bucket",
    "rocketmq_delay_message_latency_seconds_bucket",
    "rocketmq_processor_watermark",
    "rocketmq_timer_message_snapshot",  # ours has the records of pops too; compared by bound below
    "rocketmq_topic_number",
    "rocketmq_consumer_group_number",
    "rocketmq_throughput_in_total",
    "rocketmq_half_messages",
    "rocketmq_commit_messages_total",
    "rocketmq_rollback_messages_total",
    "rocketmq_storage_size_bytes",
    "rocketmq_storage_message_reserve_time_milliseconds",
    "rocketmq_timer_dequeue_lag",
    "rocketmq_timer_dequeue_latency_milliseconds",
    # Only ours has it here: nothing was due
    "rocketmq_timer_dequeue_total",
    "rocketmq_pop_revive_retry_messages_total",
    "rocketmq_proxy_up",
    # Apache's stores no record of a pop that is acknowledged soon
    "rocketmq_pop_revive_in_message_total",
    "rocketmq_pop_revive_out_message_total",
}
# A committed message counts in its own topic here too, and a delayed one in the topic of the delay levels as it is
# sent back.
NOT_COMPARED = {"Halves", "SCHEDULE_TOPIC_XXXX", "%RETRY%failers"}

Series = dict[str, Counter]


def scrape_of_ours(broker: OurBroker) -> str:
    with socket.socket(socket.AF_UNIX) as one:
        one.settimeout(30)
        one.connect(str(broker.data / "run" / "web.sock"))
        one.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        answer = b"".join(iter(lambda: one.recv(1 << 16), b""))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200"), head
    return body.decode()


def scrape_of_apaches(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        return answer.read().decode()


def series_of(text: str) -> Series:
    """Numbers by name and by the labels that ours have; those of Apache's are summed over others."""
    labels = {
        f"{prometheus_name(row)}_bucket" if row.kind == "histogram" else prometheus_name(row): {
            *row.labels,
            *(["le"] if row.kind == "histogram" else []),
        }
        for row in apache.TABLE
    }
    found: Series = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            kept = labels.get(sample.name)
            if kept is None:
                continue
            of = {name: value for name, value in sample.labels.items() if name in kept}
            if of.get("topic") in NOT_COMPARED or of.get("is_system") == "true":
                continue
            found.setdefault(sample.name, Counter())[tuple(sorted(of.items()))] += sample.value
    return found


def messages(count: int) -> Callable[[list[dict]], bool]:
    return lambda lines: sum("topic" in line for line in lines) >= count


def is_settled(found: Series) -> bool:
    """True when the groups have committed what they have read."""
    lags = found.get("rocketmq_consumer_lag_messages", Counter())
    wanted = [("readers", "Plain"), ("readers", "Delayed"), ("poppers", "Popped"), ("failers", "Failing")]
    left = {(dict(key).get("consumer_group"), dict(key).get("topic")): number for key, number in lags.items()}
    dead = found.get("rocketmq_send_to_dlq_messages_total", Counter())
    behind = sum(found.get("rocketmq_storage_flush_behind_bytes", Counter()).values())
    return all(left.get(pair) == 0 for pair in wanted) and sum(dead.values()) == FAILING and not behind


@pytest.fixture
def both(tmp_path):
    """A broker of each kind, with how it is scraped."""
    clients.require(clients.JAVA_5)
    port = free_port()
    settings = {
        "metricsExporterType": "PROM",
        "metricsPromExporterHost": "127.0.0.1",
        "metricsPromExporterPort": port,
    }
    with ExitStack() as stack:
        ours = OurBroker(tmp_path / "ours", arguments=("--web-port", "0")).start()
        stack.callback(ours.end)
        theirs = ApacheBroker(tmp_path / "theirs", settings).start()
        stack.callback(theirs.end)
        yield {
            "ours": (ours, lambda: scrape_of_ours(ours)),
            "theirs": (theirs, lambda: scrape_of_apaches(port)),
        }


def sent_and_consumed(java, scrape) -> tuple[str, dict[tuple[str, str], str]]:
    """Send and consume the messages; return what is scraped afterwards, and what the broker answers to the calls of
    rocketmq-exporter: by call and subject."""
    java.admin(*[f"create_topic\t{topic}\t4\t4\t6" for topic in TOPICS])
    java.admin(*[f"create_group\t{group}\t1" for group in GROUPS])
    for topic, number, more in (
        ("Plain", SENT, {}),
        ("Delayed", DELAYED, {"delay": 1}),
        ("Timed", TIMED, {"timer": "sec:3600"}),
        ("Popped", POPPED, {}),
        ("Failing", FAILING, {}),
    ):
        java.run("send", topics=topic, n=number, **more)
    with ExitStack() as running:
        for started, until in (
            (java.start("transact", topics="Halves", group="halves", n=HALVES), None),
            (java.start("consume", group="readers", topics="Plain,Delayed"), messages(SENT + DELAYED)),
            (java.start("consume", group="poppers", topics="Popped", pop=60_000), messages(POPPED)),
            (
                java.start(
                    "consume", group="failers", topics="Failing", fail_every=1, fail_times=9, max_reconsume=0
                ),
                messages(FAILING),
            ),
        ):
            running.callback(started.kill)
            if until is not None:
                started.until(until, LIMIT_S)
        end = time.monotonic() + LIMIT_S
        while not is_settled(series_of(text := scrape())):  # clients commit each 5 s
            assert time.monotonic() < end, series_of(text)
        (exported,) = java.admin("export")
        return text, {(row["call"], row["of"]): row.get("answer", "") for row in exported["rows"]}


@pytest.mark.takes(60)
def test_the_same_messages_give_the_same_numbers(both, tmp_path):
    found = {
        name: sent_and_consumed(clients.java_of(clients.JAVA_5, broker, tmp_path), scrape)
        for name, (broker, scrape) in both.items()
    }
    (text, _), (text_of_theirs, answers) = found["ours"], found["theirs"]
    ours, theirs = series_of(text), series_of(text_of_theirs)
    for name in SAME:
        assert name in theirs and ours[name] == theirs[name], name
    assert ours.keys() <= set(SAME) | OTHER
    for topic in ("Plain", "Popped", "Failing"):
        assert buckets_of(ours, "rocketmq_message_size", topic) == buckets_of(
            theirs, "rocketmq_message_size", topic
        ), topic
    for name, topic in (
        ("rocketmq_delay_message_latency_seconds", "Timed"),
        ("rocketmq_topic_create_execution_time_milliseconds", None),
        ("rocketmq_consumer_group_create_execution_time_milliseconds", None),
    ):
        counts = [buckets_of(series, name, topic)["+Inf"] for series in (ours, theirs)]
        assert counts[0] == counts[1] > 0, name
    snapshots = [series["rocketmq_timer_message_snapshot"] for series in (ours, theirs)]
    assert snapshots[0].keys() == snapshots[1].keys()
    for bound_s in ("900", "3600", "14400", "28800", "86400"):
        counts = [snapshot[(("timer_bound_s", bound_s),)] for snapshot in snapshots]
        assert counts[0] == counts[1] == (TIMED if bound_s == "3600" else 0), bound_s
    assert ours["rocketmq_messages_in_total"][("is_system", "false"), ("topic", "Plain")] == SENT
    assert ours["rocketmq_messages_out_total"].total() == SENT + DELAYED + POPPED + FAILING
    # The exporter's gauges, beside what Apache's broker answers to the exporter
    for topic in ("Plain", "Delayed", "Timed", "Popped", "Failing"):
        offset = gauge(text, "rocketmq_producer_offset", topic=topic)
        assert offset == float(answers["examineTopicStats", topic]), topic
    dead = gauge(text, "rocketmq_topic_dlq_offset", group="failers")
    assert dead == float(answers["examineTopicStats", "%DLQ%failers"]) == FAILING
    for group, topic in (("readers", "Plain"), ("readers", "Delayed"), ("failers", "Failing")):
        lag, _ = answers["examineConsumeStats", f"{topic}@{group}"].split()
        assert gauge(text, "rocketmq_group_diff", group=group, topic=topic) == float(lag) == 0
        clients_of = float(answers["examineConsumerConnectionInfo", f"{topic}@{group}"])
        assert gauge(text, "rocketmq_group_count", group=group) == clients_of == 1


def buckets_of(found: Series, name: str, topic: str | None) -> dict[str, float]:
    """The buckets of a histogram, of one topic or of all, by their upper bound."""
    summed: Counter[str] = Counter()
    for key, number in found[f"{name}_bucket"].items():
        labels = dict(key)
        if topic is None or labels["topic"] == topic:
            summed[labels["le"]] += number
    return dict(summed)


def gauge(text: str, name: str, **labels: str) -> float:
    (found,) = (
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )
    return found
