"""Metrics under the names of rocketmq-exporter, a program that reads brokers and is scraped in their place.

All are gauges there, also what only grows. Sizes are bytes of bodies where messages come in. What is not
measured is in NOT_SERVED, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from broker_store.config.setting import INT_MAX
from broker_store.formats.names import DLQ_PREFIX
from mqadmin.facts.scrape import BrokerFlow, Flow, PairFlow, ThreeRates, TopicFlow
from mqadmin.metrics.rows import Common, Row, Value, Values

NAMED: tuple[Common, ...] = (
    ("cluster", lambda values: values.scrape.broker.cluster),
    ("broker", lambda values: values.scrape.broker.name),
)
AT: tuple[Common, ...] = (
    NAMED[0],
    ("brokerIP", lambda values: values.scrape.broker.address),
    NAMED[1],
)
RUNTIME: tuple[Common, ...] = (
    NAMED[0],
    AT[1],
    ("brokerHost", lambda values: ""),
    ("des", lambda values: values.scrape.broker.version),
    ("boottime", lambda values: str(values.scrape.broker.started_ms)),
    ("broker_version", lambda values: str(values.scrape.protocol_version)),
)
PAIR = ("topic", "group")
DIFF = ("group", "topic", "countOfOnlineConsumers", "msgModel")
MODELS = {"broadcasting": "0", "clustering": "1"}
# As they are written in names, in the order of broker_store/broker/put_times.py
RANGES = (
    "0ms", "0to10ms", "10to50ms", "50to100ms", "100to200ms", "200to500ms", "500to1s", "1to2s", "2to3s",
    "3to4s", "4to5s", "5to10s", "10stomore",
)  # fmt: skip
OF_BODIES = "bytes of bodies; Apache counts whole records"


def _one(number: Callable[[Values], float | None]) -> Callable[[Values], Iterable[Value]]:
    return lambda values: [((), number(values))]


def _flow(number: Callable[[BrokerFlow], float | None]) -> Callable[[Values], Iterable[Value]]:
    return lambda values: [((), number(values.scrape.flow))]


def _topics(
    kinds: tuple[str, ...], number: Callable[[TopicFlow], float | None]
) -> Callable[[Values], Iterable[Value]]:
    return lambda values: [
        ((topic.topic.removeprefix(DLQ_PREFIX) if kinds == ("dlq",) else topic.topic,), number(topic))
        for topic in values.scrape.topics
        if topic.kind in kinds
    ]


def _stored(number: Callable[[Flow], float]) -> Callable[[Values], Iterable[Value]]:
    return lambda values: [
        ((topic.topic,), number(topic.into))
        for topic in values.scrape.topics
        if topic.into is not None and topic.kind in ("normal", "system")
    ]


def _given(number: Callable[[Flow], float]) -> Callable[[Values], Iterable[Value]]:
    return lambda values: [
        ((pair.topic, pair.group), number(pair.out)) for pair in values.scrape.pairs if pair.out is not None
    ]


def _pairs(number: Callable[[PairFlow], float | None]) -> Callable[[Values], Iterable[Value]]:
    return lambda values: [
        ((pair.topic, pair.group), number(pair)) for pair in values.scrape.pairs if pair.kind != "dlq"
    ]


def _diffs(is_retry: bool) -> Callable[[Values], Iterable[Value]]:
    return lambda values: [
        (
            (pair.group, pair.topic, str(pair.clients), MODELS[pair.model or "clustering"]),
            None if pair.model == "broadcasting" else pair.lag,
        )
        for pair in values.scrape.pairs
        if pair.kind != "dlq" and (pair.kind == "retry") == is_retry
    ]


def _clients(values: Values) -> Iterable[Value]:
    groups: dict[str, int] = {}
    for pair in values.scrape.pairs:
        groups[pair.group] = pair.clients
    return [((group,), clients) for group, clients in groups.items()]


def _runtime(name: str, what: str, number: Callable[[Values], float | None], differs: str = "") -> Row:
    return Row(f"rocketmq_brokeruntime_{name}", "gauge", what, RUNTIME, (), _one(number), differs=differs)


def _rates(name: str, what: str, of: Callable[[BrokerFlow], tuple[ThreeRates, ...]]) -> tuple[Row, ...]:
    """Return the rows of a rate over 10, 60 and 600 seconds, which is a sum."""
    return (
        _runtime(
            f"{name}10",
            f"{what} per second, over 10 s",
            lambda values: sum(rates.s10 for rates in of(values.scrape.flow)),
        ),
        _runtime(
            f"{name}60",
            f"{what} per second, over a minute",
            lambda values: sum(rates.s60 for rates in of(values.scrape.flow)),
        ),
        _runtime(
            f"{name}600",
            f"{what} per second, over 10 minutes",
            lambda values: sum(rates.s600 for rates in of(values.scrape.flow)),
        ),
    )


def _put_time(number: int, name: str) -> Row:
    return _runtime(
        f"pmdt_{name}",
        f"messages of the last minute whose put took {name}",
        lambda values: values.scrape.flow.put_times[number],
    )


def _used_ratio(values: Values) -> float | None:
    return values.store.disk.used_ratio


TABLE: tuple[Row, ...] = (
    Row(
        "rocketmq_broker_commitlog_diff",
        "gauge",
        "bytes of the log that a slave lacks",
        NAMED,
        ("brokerIP",),
        lambda values: [((slave.host,), slave.bytes) for slave in values.scrape.slaves],
        differs="`brokerIP` is the slave's machine, without a port; of its slaves the one that lacks most",
    ),
    Row(
        "rocketmq_broker_tps",
        "gauge",
        "messages stored per second, over the last minute",
        AT,
        (),
        _flow(lambda flow: flow.put.per_s),
    ),
    Row(
        "rocketmq_broker_qps",
        "gauge",
        "messages read per second, over the last minute",
        AT,
        (),
        _flow(lambda flow: flow.got.per_s),
    ),
    Row(
        "rocketmq_producer_tps",
        "gauge",
        "messages stored per second in a topic, over the last minute",
        NAMED,
        ("topic",),
        _stored(lambda flow: flow.per_s),
    ),
    Row(
        "rocketmq_producer_message_size",
        "gauge",
        "bytes of bodies stored per second in a topic, over a minute",
        NAMED,
        ("topic",),
        _stored(lambda flow: flow.bytes_per_s),
        differs=OF_BODIES,
    ),
    Row(
        "rocketmq_producer_offset",
        "gauge",
        "sum of the offsets of the next messages of a topic's queues",
        NAMED,
        ("topic",),
        _topics(("normal", "system"), lambda topic: topic.end_offset),
    ),
    Row(
        "rocketmq_topic_retry_offset",
        "gauge",
        "the same of a retry topic",
        NAMED,
        ("topic",),
        _topics(("retry",), lambda topic: topic.end_offset),
    ),
    Row(
        "rocketmq_topic_dlq_offset",
        "gauge",
        "the same of a group's dead letter topic",
        NAMED,
        ("group",),
        _topics(("dlq",), lambda topic: topic.end_offset),
    ),
    Row(
        "rocketmq_producer_count",
        "gauge",
        "clients of a group of producers",
        NAMED,
        ("group",),
        lambda values: [((group.group,), group.clients) for group in values.scrape.producer_groups],
    ),
    Row(
        "rocketmq_consumer_tps",
        "gauge",
        "messages that a group was given per second, over the last minute",
        NAMED,
        PAIR,
        _given(lambda flow: flow.per_s),
    ),
    Row(
        "rocketmq_consumer_message_size",
        "gauge",
        "bytes of records that a group was given per second, over the last minute",
        NAMED,
        PAIR,
        _given(lambda flow: flow.bytes_per_s),
    ),
    Row(
        "rocketmq_send_back_nums",
        "gauge",
        "messages that a group sent back in the last minute",
        NAMED,
        PAIR,
        _pairs(lambda pair: pair.sent_back_in_minute),
    ),
    Row(
        "rocketmq_consumer_offset",
        "gauge",
        "sum of the offsets that a group reads next",
        NAMED,
        PAIR,
        _pairs(lambda pair: pair.offset),
    ),
    Row(
        "rocketmq_group_get_latency_by_storetime",
        "gauge",
        "milliseconds since the oldest message of a group's lag was stored",
        NAMED,
        PAIR,
        _pairs(lambda pair: pair.lag_ms),
        differs="measured for the largest lags, of 64 queues at a scrape",
    ),
    Row(
        "rocketmq_group_diff",
        "gauge",
        "messages that a group has not read of a topic",
        (),
        DIFF,
        _diffs(False),
    ),
    Row(
        "rocketmq_group_retrydiff",
        "gauge",
        "messages that a group has not read of its retry topic",
        (),
        DIFF,
        _diffs(True),
    ),
    Row(
        "rocketmq_group_count",
        "gauge",
        "clients of a group",
        (),
        ("group",),
        _clients,
        differs="without the labels `caddr` and `localaddr`: addresses of clients have no bound",
    ),
    *_rates("put_tps", "messages stored", lambda flow: (flow.put_rates,)),
    *_rates("getfound_tps", "reads that found messages", lambda flow: (flow.found_rates,)),
    *_rates("getmiss_tps", "reads that found none", lambda flow: (flow.missed_rates,)),
    *_rates("gettotal_tps", "reads", lambda flow: (flow.found_rates, flow.missed_rates)),
    *_rates("gettransfered_tps", "messages read", lambda flow: (flow.got_rates,)),
    *(_put_time(number, name) for number, name in enumerate(RANGES)),
    _runtime(
        "put_latency_99",
        "milliseconds below which 99 % of the last sends stayed",
        lambda values: values.scrape.flow.put_ms_99,
    ),
    _runtime(
        "put_latency_999",
        "milliseconds below which 99.9 % of the last sends stayed",
        lambda values: values.scrape.flow.put_ms_999,
    ),
    _runtime(
        "putmessage_entire_time_max",
        "milliseconds of the longest put since the start",
        lambda values: values.scrape.flow.longest_put_ms,
    ),
    _runtime(
        "getmessage_entire_time_max",
        "milliseconds of the longest read since the start",
        lambda values: values.scrape.flow.longest_read_ms,
    ),
    _runtime(
        "putmessage_times_total",
        "messages stored since the start",
        lambda values: values.scrape.flow.put.messages,
    ),
    _runtime(
        "put_message_size_total",
        "bytes of bodies stored since the start",
        lambda values: values.scrape.flow.put.bytes,
        OF_BODIES,
    ),
    _runtime(
        "put_message_average_size",
        "bytes of a body, on average since the start",
        lambda values: (
            values.scrape.flow.put.bytes / values.scrape.flow.put.messages
            if values.scrape.flow.put.messages
            else None
        ),
        OF_BODIES,
    ),
    _runtime(
        "msg_put_total_today_now",
        "messages stored since the start",
        lambda values: values.scrape.flow.put_days.now,
    ),
    _runtime(
        "msg_puttotal_todaymorning",
        "the same at the last local midnight",
        lambda values: values.scrape.flow.put_days.today,
    ),
    _runtime(
        "msg_puttotal_yesterdaymorning",
        "the same a midnight before",
        lambda values: values.scrape.flow.put_days.yesterday,
    ),
    _runtime(
        "msg_gettotal_today_now",
        "messages read since the start",
        lambda values: values.scrape.flow.got_days.now,
    ),
    _runtime(
        "msg_gettotal_todaymorning",
        "the same at the last local midnight",
        lambda values: values.scrape.flow.got_days.today,
    ),
    _runtime(
        "msg_gettotal_yesterdaymorning",
        "the same a midnight before",
        lambda values: values.scrape.flow.got_days.yesterday,
    ),
    _runtime("commitlog_minoffset", "first log offset", lambda values: values.store.positions.min),
    _runtime(
        "commitlog_maxoffset", "log offset of the next message", lambda values: values.store.positions.wrote
    ),
    _runtime("commitlog_disk_ratio", "used part of the store's file system, 0 to 1", _used_ratio),
    _runtime(
        "consumequeue_disk_ratio",
        "the same: queues lie on one disk with the log, or on a fuller one",
        _used_ratio,
    ),
    _runtime(
        "commitlogdir_capacity_total",
        "bytes of the store's file system",
        lambda values: values.store.disk.total_bytes,
    ),
    _runtime(
        "commitlogdir_capacity_free", "bytes that are free on it", lambda values: values.store.disk.free_bytes
    ),
    _runtime(
        "dispatch_behind_bytes",
        "bytes of the log not yet in queues and index",
        lambda values: values.store.lag.dispatch_bytes,
    ),
    _runtime(
        "remain_howmanydata_toflush",
        "bytes of the log not yet synced",
        lambda values: values.store.lag.unflushed_bytes,
    ),
    _runtime(
        "remain_transientstore_buffer_numbs",
        "free buffers of the transient store pool",
        lambda values: INT_MAX if values.store.pool is None else values.store.pool.free_buffers,
        "while the pool is off 2147483647, as from Apache's",
    ),
    _runtime(
        "earliest_message_timestamp",
        "store time of the oldest message, in milliseconds since 1970",
        lambda values: values.scrape.earliest_ms,
    ),
    _runtime(
        "send_threadpool_queue_size",
        "sends that wait for their group and its sync",
        lambda values: values.scrape.flow.sends_waiting,
        "there is no pool: what waits beside the loop",
    ),
    _runtime(
        "send_threadpoolqueue_capacity",
        "the most of these",
        lambda values: values.scrape.flow.most_sends_waiting,
        "as before",
    ),
    _runtime(
        "pull_threadpoolqueue_size",
        "pulls that wait for a message",
        lambda values: values.scrape.flow.pulls_waiting,
        "as before",
    ),
    _runtime(
        "pull_threadpoolqueue_capacity",
        "the most of these",
        lambda values: values.scrape.flow.most_pulls_waiting,
        "as before",
    ),
)

_NO_POOL = "requests are handled when they are read, without thread pools: none waits at the head of a queue"
_OF_CLIENTS = "a number of the client, which the exporter asks each client for"
# Name -> why there is no such metric.
NOT_SERVED = {
    "rocketmq_brokeruntime_send_threadpoolqueue_headwait_timemills": _NO_POOL,
    "rocketmq_brokeruntime_pull_threadpoolqueue_headwait_timemills": _NO_POOL,
    "rocketmq_brokeruntime_query_threadpoolqueue_headwait_timemills": _NO_POOL,
    "rocketmq_brokeruntime_query_threadpoolqueue_size": _NO_POOL,
    "rocketmq_brokeruntime_query_threadpool_queue_capacity": _NO_POOL,
    "rocketmq_brokeruntime_pagecache_lock_time_mills": "there is no lock of the page cache",
    "rocketmq_brokeruntime_dispatch_maxbuffer": "there is no such buffer",
    "rocketmq_brokeruntime_start_accept_sendrequest_time": "sends are taken from the start on",
    "rocketmq_group_consume_tps": "the exporter never sets it; `rocketmq_consumer_tps` has the rate",
    "rocketmq_group_consume_total_offset": "the exporter never sets it; see `rocketmq_consumer_offset`",
    "rocketmq_group_dlqdiff": "the exporter never sets it: it skips dead letter topics",
    "rocketmq_client_consume_fail_msg_count": _OF_CLIENTS,
    "rocketmq_client_consume_fail_msg_tps": _OF_CLIENTS,
    "rocketmq_client_consume_ok_msg_tps": _OF_CLIENTS,
    "rocketmq_client_consume_rt": _OF_CLIENTS,
    "rocketmq_client_consumer_pull_rt": _OF_CLIENTS,
    "rocketmq_client_consumer_pull_tps": _OF_CLIENTS,
    # In its description, and in no code of it
    "rocketmq_group_get_latency": "in the exporter's description alone",
    "rocketmq_message_accumulation": "in the exporter's description alone; `rocketmq_group_diff` has the lag",
}
