"""/metrics for Prometheus, with a token or over the local socket; never with a browser's session.

All values are read at the scrape, from the same facts that the pages show; unknown values are left out.
The number of series by topic and by group is bounded, since a scraper keeps each series for ever. The busiest
come first, and the number of those left out is a metric of its own. Values are collected in turns of the loop
and written in a thread, so that a scrape delays no send.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from django.http import HttpRequest, HttpResponse
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from broker_store import __version__
from broker_store.engine.status.store_state import Snapshot
from broker_store.rest.problems import Problem
from broker_store.units import fields_of
from mqadmin.api.auth import LocalSocket, Token
from mqadmin.api.parameters import problem_of_query
from mqadmin.cluster.current import current_cluster
from mqadmin.facts.groups import Group
from mqadmin.facts.overview import Overview
from mqadmin.facts.pops import Popped
from mqadmin.facts.sends import Refused
from mqadmin.facts.topics import Topic
from mqadmin.web.problem_responses import problem_response

MAX_NAMES = 500  # topics and groups with series of their own
STATES = ("starting", "opening", "recovering", "running", "read_only", "closed", "failed")


async def metrics(request: HttpRequest) -> HttpResponse:
    """Return the metrics as text."""
    try:
        if not (await Token()(request) or await LocalSocket()(request)):
            raise Problem("unauthorized")
    except Problem as refused:
        return problem_response(refused)
    if problem := problem_of_query(request.GET, frozenset()):
        return problem_response(problem)
    if request.method != "GET":
        return problem_response(Problem("method_not_allowed"))
    text = await asyncio.to_thread(_text, await _Measured.now())
    return HttpResponse(text, content_type=CONTENT_TYPE_LATEST)


def _text(measured: _Measured) -> bytes:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collected(list(_metrics(measured))))
    return generate_latest(registry)


@dataclass(frozen=True, slots=True)
class _Measured:
    """The values of one scrape. The last six are None while they are unknown."""

    state: str
    store: Snapshot
    overview: Overview | None = None
    refusals: list[Refused] | None = None
    topics: tuple[list[Topic], int] | None = None  # topics that are shown, and the number of all
    groups: tuple[list[Group], int] | None = None
    popped: Popped | None = None
    pause_s: float | None = None

    @classmethod
    async def now(cls) -> _Measured:
        cluster = current_cluster()
        state, store = cluster.state().state, cluster.store.snapshot()
        if state not in ("running", "read_only"):
            return cls(state, store)
        topics, groups = await cluster.topics.busiest(MAX_NAMES), await cluster.groups.most_behind(MAX_NAMES)
        totals = sum(cluster.topics.counts().values()), sum(cluster.groups.counts().values())
        return cls(
            state,
            store,
            cluster.overview(),
            cluster.refusals(),
            (topics, totals[0]),
            (groups, totals[1]),
            cluster.waiting.facts().popped,
            cluster.longest_pause_s(),
        )


class _Collected:
    def __init__(self, found: list[Metric]):
        self._found = found

    def collect(self) -> list[Metric]:
        return self._found


def _metrics(measured: _Measured) -> Iterable[Metric]:
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
    if measured.overview is not None and measured.topics is not None and measured.groups is not None:
        yield from _rates(measured.overview)
        yield _gauge(
            "broker_loop_longest_pause_seconds",
            "longest time that the event loop was blocked, of the last 5 minutes",
            measured.pause_s,
        )
        yield from _refusals(measured.refusals or [])
        yield from _topics(*measured.topics)
        yield from _groups(*measured.groups)
    if measured.popped is not None:
        yield from _popped(measured.popped)


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


def _groups(shown: list[Group], total: int) -> Iterable[Metric]:
    lag = GaugeMetricFamily("broker_group_lag_messages", "messages a group has not read", labels=["group"])
    clients = GaugeMetricFamily("broker_group_clients", "clients of a group", labels=["group"])
    invisible = GaugeMetricFamily(
        "broker_group_invisible_messages",
        "messages that a group popped and that are invisible to it",
        labels=["group"],
    )
    for group in shown:
        _add(lag, [group.name], group.lag)
        _add(clients, [group.name], group.clients)
        _add(invisible, [group.name], group.invisible)
    yield from (lag, clients, invisible)
    yield _gauge("broker_groups_left_out", "groups without series here", total - len(shown))


def _popped(popped: Popped) -> Iterable[Metric]:
    yield _gauge(
        "broker_invisible_messages",
        "popped messages that are invisible, without those popped in order",
        popped.invisible,
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
