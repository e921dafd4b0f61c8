"""Metrics under our own names: `broker_...`."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from broker_store import __version__
from broker_store.engine.status.store_state import Snapshot
from broker_store.facts.memory import MemoryFacts
from broker_store.units import fields_of
from mqadmin.facts.groups import Group
from mqadmin.facts.overview import Overview
from mqadmin.facts.pops import Popped
from mqadmin.facts.sends import Refused
from mqadmin.facts.topics import Topic
from mqadmin.metrics.measured import Measured
from mqadmin.metrics.otlp_facts import Exports

STATES = ("starting", "opening", "recovering", "running", "read_only", "closed", "failed")


def metrics_of(measured: Measured) -> Iterable[Metric]:
    """Yield the metrics; values that are unknown are left out."""
    state = GaugeMetricFamily(
        "broker_state", "1 for the state of the broker, 0 for other states", labels=["state"]
    )
    for name in STATES:
        state.add_metric([name], 1.0 if name == measured.state else 0.0)
    yield state
    build = GaugeMetricFamily("broker_build_info", "version of the broker", labels=["version"])
    build.add_metric([__version__], 1.0)
    yield build
    yield from _store(measured.store)
    if measured.memory is not None:
        yield from _memory(measured.memory)
    if measured.overview is not None and measured.topics is not None and measured.groups is not None:
        yield from _rates(measured.overview)
        yield _gauge(
            "broker_loop_longest_pause_seconds",
            "longest time that the event loop was blocked, of the last 5 minutes",
            measured.pause_s,
        )
        yield from _refusals(measured.refusals or [])
        yield from _topics(*measured.topics)
        yield from group_metrics(*measured.groups)
    if measured.waiting is not None:
        yield from popped_metrics(measured.waiting.popped)
    if measured.scrape is not None:
        yield _gauge(
            "broker_groups_with_topics_left_out",
            "groups with a topic that have no series under Apache's names, of the groups with series here",
            measured.scrape.pairs_left_out,
        )
        missing = GaugeMetricFamily(
            "broker_scrape_not_measured",
            "series under Apache's names that this scrape lacks: a bound of its reads, or a read that failed",
            labels=["of"],
        )
        for name, count in fields_of(measured.scrape.not_measured).items():
            missing.add_metric([name], float(count))
        yield missing
    if measured.exports is not None:
        yield from _exports(measured.exports)


def _store(store: Snapshot) -> Iterable[Metric]:
    positions = GaugeMetricFamily(
        "broker_store_position_bytes", "positions in the commit log", labels=["position"]
    )
    for name in ("min", "wrote", "confirmed", "flushed", "dispatched"):
        _add(positions, [name], getattr(store.positions, name))
    yield positions
    lag = store.lag
    yield _gauge(
        "broker_store_dispatch_lag_bytes",
        "bytes of the log not yet in queues and index",
        lag.dispatch_bytes,
    )
    yield _gauge("broker_store_unflushed_bytes", "bytes of the log not yet synced", lag.unflushed_bytes)
    yield _gauge(
        "broker_store_oldest_unflushed_milliseconds",
        "age of the oldest byte not yet synced",
        lag.oldest_unflushed_ms,
    )
    flags = GaugeMetricFamily("broker_store_flag", "1 for each flag that the store has", labels=["flag"])
    for flag in store.flags:
        flags.add_metric([flag.name], 1.0)
    yield flags
    flush, totals, disk = store.flush, store.totals, store.disk
    yield _counter("broker_store_flushes", "syncs of the commit log", flush.count)
    yield _counter("broker_store_flush_errors", "syncs that failed", flush.errors)
    yield _gauge("broker_store_flush_last_milliseconds", "duration of the last sync", flush.last_duration_ms)
    for name, what in (
        ("puts", "messages stored"),
        ("put_bytes", "bytes stored"),
        ("gets", "reads of queues"),
        ("get_messages", "messages read"),
        ("get_bytes", "bytes read"),
        ("cold_gets", "cold reads, which a thread makes because the bytes may not be in memory"),
        ("key_lookups", "lookups by key"),
        ("cold_lookups", "lookups by key that a thread makes because the bytes may not be in memory"),
    ):
        yield _counter(f"broker_store_{name}", what, getattr(totals, name))
    refused = CounterMetricFamily("broker_store_refused", "messages refused", labels=["status"])
    for status, count in totals.refused.items():
        refused.add_metric([str(status)], float(count))
    yield refused
    yield _gauge("broker_disk_total_bytes", "size of the store's file system", disk.total_bytes)
    yield _gauge("broker_disk_free_bytes", "free on the store's file system", disk.free_bytes)


def _memory(facts: MemoryFacts) -> Iterable[Metric]:
    """Yield the memory of the process by part, as it was measured last: at the scrape before, or some seconds
    ago. Parts of the memory of a kind add up to it."""
    size = GaugeMetricFamily(
        "broker_memory_bytes", "resident memory of the process by part", labels=["part", "kind"]
    )
    bound = GaugeMetricFamily(
        "broker_memory_bound_bytes", "what a part may take at most", labels=["part", "kind"]
    )
    for part in facts.parts:
        size.add_metric([part.name, part.kind], float(part.bytes))
        _add(bound, [part.name, part.kind], part.bound_bytes)
    yield from (size, bound)
    for name, what, value in (
        (
            "page_table_bytes",
            "page tables of the process, beside its resident memory",
            facts.page_table_bytes,
        ),
        ("limit_bytes", "memory that the process and its children may use", facts.limit_bytes),
        ("bounds_bytes", "anonymous memory that all bounds together allow", facts.bounds_bytes),
        ("maps", "maps of the process", facts.maps),
        ("max_maps", "maps that the system allows", facts.max_maps),
    ):
        yield _gauge(f"broker_memory_{name}", what, value)
    yield _gauge("broker_descriptors", "open descriptors of the process", facts.descriptors)
    yield _gauge("broker_max_descriptors", "descriptors that it may open", facts.max_descriptors)


def _rates(overview: Overview) -> Iterable[Metric]:
    for name, value in fields_of(overview.rates).items():
        yield _gauge(
            f"broker_rate_{name.replace('_per_s', '_per_second')}", "measured over the last seconds", value
        )
    for name, value in fields_of(overview.counts).items():
        yield _gauge(f"broker_{name}", f"number of {name}", value)


def _refusals(refusals: list[Refused]) -> Iterable[Metric]:
    """Yield the number of refusals by cause, and the numbers of the last one. Clients are shown in
    /api/v1/refusals only: a label for each client would have no bound."""
    refused = CounterMetricFamily("broker_refused", "requests and connections refused", labels=["cause"])
    last = GaugeMetricFamily(
        "broker_refused_last_timestamp_seconds", "time of the last refusal", labels=["cause"]
    )
    value = GaugeMetricFamily(
        "broker_refused_last_value", "the value that was over the limit at the last refusal", labels=["cause"]
    )
    limit = GaugeMetricFamily("broker_refused_last_limit", "the limit at the last refusal", labels=["cause"])
    for case in refusals:
        _add(refused, [case.cause], case.count)
        _add(last, [case.cause], case.at_ms / 1000)
        _add(value, [case.cause], case.value)
        _add(limit, [case.cause], case.limit)
    yield from (refused, last, value, limit)


def _topics(shown: list[Topic], total: int) -> Iterable[Metric]:
    messages = GaugeMetricFamily("broker_topic_messages", "messages that a topic holds", labels=["topic"])
    into = GaugeMetricFamily("broker_topic_in_per_second", "messages stored", labels=["topic"])
    out = GaugeMetricFamily("broker_topic_out_per_second", "messages read", labels=["topic"])
    for topic in shown:
        _add(messages, [topic.name], topic.messages)
        _add(into, [topic.name], topic.in_per_s)
        _add(out, [topic.name], topic.out_per_s)
    yield from (messages, into, out)
    yield _gauge("broker_topics_left_out", "topics without series here", total - len(shown))


def group_metrics(shown: list[Group], total: int) -> Iterable[Metric]:
    """Yield the metrics by group."""
    lag = GaugeMetricFamily("broker_group_lag_messages", "messages a group has not read", labels=["group"])
    clients = GaugeMetricFamily("broker_group_clients", "clients of a group", labels=["group"])
    invisible = GaugeMetricFamily(
        "broker_group_invisible_messages",
        "messages that a group popped and that are invisible to it",
        labels=["group"],
    )
    complete = GaugeMetricFamily(
        "broker_group_invisible_messages_complete",
        "1 if these are all; 0 if more messages may be invisible to the group",
        labels=["group"],
    )
    for group in shown:
        _add(lag, [group.name], group.lag)
        _add(clients, [group.name], group.clients)
        _add(invisible, [group.name], group.invisible)
        _add(complete, [group.name], int(not group.invisible_doubt))
    yield from (lag, clients, invisible, complete)
    yield _gauge("broker_groups_left_out", "groups without series here", total - len(shown))


def popped_metrics(popped: Popped) -> Iterable[Metric]:
    """Yield the metrics of popped messages."""
    yield _gauge(
        "broker_invisible_messages",
        "popped messages that are invisible, without those popped in order",
        popped.invisible,
    )
    yield _gauge(
        "broker_invisible_messages_complete",
        "1 if these are all; 0 if more messages may be invisible",
        int(not popped.invisible_doubt),
    )
    yield _gauge(
        "broker_queues_popped_in_order",
        "queues with messages that were popped in order, counted for each group",
        popped.queues_in_order,
    )
    yield _gauge("broker_parked_pops", "pops that wait for a message", popped.waiting_pops)
    yield _gauge(
        "broker_revive_log_lag_records",
        "records of the revive log that are not read yet",
        sum(queue.lag for queue in popped.queues),
    )
    for name, what, value in (
        ("acknowledged", "popped messages that were acknowledged in time", popped.acknowledged),
        ("came_again", "popped messages that were not, and came again", popped.came_again),
        ("dropped", "popped messages that were not, and are gone", popped.dropped),
        ("invalid_records", "records of the revive log that could not be read", popped.invalid),
        ("failures", "failed attempts to bring popped messages back", popped.failures),
    ):
        yield _counter(f"broker_pop_{name}", what, value)


def _exports(exports: Exports) -> Iterable[Metric]:
    yield _counter("broker_otlp_exports", "exports by OpenTelemetry that the receiver took", exports.done)
    yield _counter("broker_otlp_failures", "exports by OpenTelemetry that failed", exports.failed)
    last_ms = exports.last_ms
    if last_ms is not None:
        yield _gauge(
            "broker_otlp_last_export_timestamp_seconds",
            "time of the last export by OpenTelemetry that the receiver took",
            last_ms / 1000,
        )


def _gauge(name: str, what: str, value: float | None) -> Metric:
    metric = GaugeMetricFamily(name, what)
    _add(metric, [], value)
    return metric


def _counter(name: str, what: str, value: float | None) -> Metric:
    metric = CounterMetricFamily(name, what)
    _add(metric, [], value)
    return metric


def _add(metric: GaugeMetricFamily | CounterMetricFamily, labels: list[str], value: float | None) -> None:
    if value is not None:
        metric.add_metric(labels, float(value))
