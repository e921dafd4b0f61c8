"""Metrics under the names of Apache's broker 5.x (`metricsExporterType=PROM`), as measured of 5.5.0
(tests/golden/metrics/).

A row has the number that has Apache's meaning, or says how it differs. What is not measured is in NOT_SERVED,
with the reason: there is no row that is always 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from broker_store.formats.names import DLQ_PREFIX
from mqadmin.facts.scrape import Flow, PairFlow
from mqadmin.metrics.apache_labels import BROKER, of_topic, single, spread, truth
from mqadmin.metrics.apache_store import STORE_TABLE
from mqadmin.metrics.rows import Row, Value, Values

OF_PAIR = ("consumer_group", "topic", "is_retry", "is_system")


def _stored(number: Callable[[Flow], float]) -> Callable[[Values], Iterable[Value]]:
    return lambda values: [
        ((topic.topic, truth(topic.kind == "system")), number(topic.into))
        for topic in values.scrape.topics
        if topic.into is not None and topic.kind != "dlq"
    ]


def _given(number: Callable[[Flow], float]) -> Callable[[Values], Iterable[Value]]:
    return lambda values: [
        ((pair.topic, pair.group, truth(pair.is_system)), number(pair.out))
        for pair in values.scrape.pairs
        if pair.out is not None and pair.kind != "retry"
    ]


def _positions(number: Callable[[PairFlow], float | None]) -> Callable[[Values], Iterable[Value]]:
    return lambda values: [
        ((pair.group, pair.topic, "false", truth(pair.is_system)), number(pair))
        for pair in values.scrape.pairs
        if pair.kind != "retry"
    ]


def _lag(pair: PairFlow) -> int | None:
    """Return the lag as Apache counts it for a group that pops: with what is invisible, which lies before the
    group's offset. A group that pulls has in flight what lies after it."""
    if pair.lag is None or pair.in_flight is None or pair.ready is None:
        return pair.lag
    return pair.ready + pair.in_flight


def _dead_letters(values: Values) -> Iterable[Value]:
    for topic in values.scrape.topics:
        if topic.kind == "dlq" and topic.into is not None:
            yield (topic.topic.removeprefix(DLQ_PREFIX), "false"), topic.into.messages


def _producers(values: Values) -> Iterable[Value]:
    for kind in values.scrape.producers:
        yield (kind.language, kind.version, kind.protocol), kind.clients


def _consumers(values: Values) -> Iterable[Value]:
    for kind in values.scrape.consumers:
        labels = kind.group, kind.mode, kind.language, kind.version, kind.protocol, truth(kind.is_system)
        yield labels, kind.clients


def _requests(values: Values) -> Iterable[Value]:
    for one in values.scrape.spreads.requests:
        result = "oneway" if one.oneway else "success"
        yield ("remoting", one.request, one.answer, truth(one.waited), result), one.times


def _message_sizes(values: Values) -> Iterable[Value]:
    for one in values.scrape.spreads.message_sizes:
        yield (one.topic, truth(one.is_system)), one.values


def _topics_put(values: Values) -> Iterable[Value]:
    for one in values.scrape.spreads.topics_put:
        yield (_status(one.done), truth(one.is_system)), one.times


def _groups_put(values: Values) -> Iterable[Value]:
    for one in values.scrape.spreads.groups_put:
        yield (_status(one.done),), one.times


def _status(done: bool) -> str:
    return "success" if done else "failure"


NO_TYPE = "without the label `message_type`: types are not counted"
EACH_TOPIC = "a message counts in each topic that it is stored in, a committed one too"
OF_BODIES = "bytes of bodies; Apache counts whole records"
PULLED = "unknown, and left out, where a client has not pulled from each queue since the start"
READS = "the reads of a scrape are bounded"
OFFLINE = "also of groups without a client"

TABLE: tuple[Row, ...] = (
    Row(
        "rocketmq_broker_permission",
        "gauge",
        "permission of the broker: 2 write, 4 read, 6 both",
        BROKER,
        (),
        single(lambda values: values.scrape.permission),
    ),
    Row(
        "rocketmq_processor_watermark",
        "gauge",
        "sends that wait for their group and its sync",
        BROKER,
        ("processor",),
        lambda values: [(("send",), values.scrape.flow.sends_waiting)],
        differs="for `send` alone: other requests are handled when they are read, without thread pools",
    ),
    Row(
        "rocketmq_topic_number",
        "gauge",
        "topics, with those of the broker's own",
        BROKER,
        (),
        single(lambda values: values.scrape.topics_of_all_kinds),
        differs="the broker's own topics are other ones: a new broker has another number",
    ),
    Row(
        "rocketmq_consumer_group_number",
        "gauge",
        "groups, with those of the broker's own",
        BROKER,
        (),
        single(lambda values: values.scrape.groups_of_all_kinds),
        differs="as for topics",
    ),
    Row(
        "rocketmq_messages_in_total",
        "counter",
        "messages stored in a topic since the start",
        BROKER,
        ("topic", "is_system"),
        _stored(lambda flow: flow.messages),
        differs=f"{NO_TYPE}; {EACH_TOPIC}",
    ),
    Row(
        "rocketmq_throughput_in_total",
        "counter",
        "bytes of bodies stored in a topic since the start",
        BROKER,
        ("topic", "is_system"),
        _stored(lambda flow: flow.bytes),
        differs=f"{OF_BODIES}; as for messages",
    ),
    Row(
        "rocketmq_messages_out_total",
        "counter",
        "messages that a group was given since the start",
        BROKER,
        ("topic", "consumer_group", "is_system"),
        _given(lambda flow: flow.messages),
        differs="without the reads of the broker's own groups, by which delayed and half messages are found",
    ),
    Row(
        "rocketmq_throughput_out_total",
        "counter",
        "bytes of records that a group was given since the start",
        BROKER,
        ("topic", "consumer_group", "is_system"),
        _given(lambda flow: flow.bytes),
        differs="as for messages",
    ),
    Row(
        "rocketmq_message_size",
        "histogram",
        "bytes of the records of a topic that clients sent since the start",
        BROKER,
        ("topic", "is_system"),
        _message_sizes,
        differs=f"{NO_TYPE}; a batch counts once, with the average of its records, as Apache's",
    ),
    Row(
        "rocketmq_rpc_latency",
        "histogram",
        "requests of the broker port by how long they took until their answer was written",
        BROKER,
        ("protocol_type", "request_code", "response_code", "is_long_polling", "result"),
        _requests,
        unit="milliseconds",
        differs="of all requests; Apache's has it of `consumer_send_msg_back` alone. `result` is `success` "
        "for an answer, also one with an error, or `oneway`; of the 100 most frequent pairs of codes",
    ),
    Row(
        "rocketmq_topic_create_execution_time",
        "histogram",
        "requests that create or change a topic, by how long they took",
        BROKER,
        ("invocation_status", "is_system"),
        _topics_put,
        unit="milliseconds",
        differs="by request 17 alone, without lists of topics and the dashboard",
    ),
    Row(
        "rocketmq_consumer_group_create_execution_time",
        "histogram",
        "requests that create or change a group, by how long they took",
        BROKER,
        ("invocation_status",),
        _groups_put,
        unit="milliseconds",
        differs="by request 200 alone, without lists of groups and the dashboard",
    ),
    Row(
        "rocketmq_producer_connections",
        "gauge",
        "connections of producers, counted for each of their groups",
        BROKER,
        ("language", "version", "protocol_type"),
        _producers,
        differs="`protocol_type` is `grpc` for clients by gRPC; kinds after the 64 largest are `other`",
    ),
    Row(
        "rocketmq_consumer_connections",
        "gauge",
        "connections of a group's clients",
        BROKER,
        ("consumer_group", "consume_mode", "language", "version", "protocol_type", "is_system"),
        _consumers,
        differs="as for producers",
    ),
    Row(
        "rocketmq_consumer_lag_messages",
        "gauge",
        "messages that a group has not finished",
        BROKER,
        OF_PAIR,
        _positions(_lag),
        differs=f"{OFFLINE}; not estimated for a filter",
    ),
    Row(
        "rocketmq_consumer_lag_latency",
        "gauge",
        "time since the oldest message of the lag was stored",
        BROKER,
        OF_PAIR,
        _positions(lambda pair: pair.lag_ms),
        unit="milliseconds",
        differs=f"{OFFLINE}; measured for the largest lags, of 64 queues at a scrape",
    ),
    Row(
        "rocketmq_consumer_queueing_latency",
        "gauge",
        "time since the oldest message was stored that a group was not given yet",
        BROKER,
        OF_PAIR,
        _positions(lambda pair: pair.ready_ms),
        unit="milliseconds",
        differs=f"{OFFLINE}; {PULLED}; {READS}",
    ),
    Row(
        "rocketmq_consumer_inflight_messages",
        "gauge",
        "messages that a group was given and has not finished",
        BROKER,
        OF_PAIR,
        _positions(lambda pair: pair.in_flight),
        differs=PULLED,
    ),
    Row(
        "rocketmq_consumer_ready_messages",
        "gauge",
        "messages that a group was not given yet",
        BROKER,
        OF_PAIR,
        _positions(lambda pair: pair.ready),
        differs=PULLED,
    ),
    Row(
        "rocketmq_send_to_dlq_messages_total",
        "counter",
        "messages stored in a group's dead letter topic since the start",
        BROKER,
        ("consumer_group", "is_system"),
        _dead_letters,
        differs="without the label `topic`; all messages of the dead letter topic, those of a producer too",
    ),
    Row(
        "rocketmq_half_messages",
        "gauge",
        "half messages that wait, by topic",
        BROKER,
        ("topic",),
        of_topic(lambda values: values.scrape.halves),
        differs="never below 0",
    ),
    Row(
        "rocketmq_commit_messages_total",
        "counter",
        "half messages that were committed since the start",
        BROKER,
        (),
        single(lambda values: values.waiting.prepared.committed),
        differs="without the label `topic`; an end that arrives twice counts once",
    ),
    Row(
        "rocketmq_rollback_messages_total",
        "counter",
        "half messages that were rolled back since the start",
        BROKER,
        (),
        single(lambda values: values.waiting.prepared.rolled_back),
        differs="without the label `topic`; an end that arrives twice counts once",
    ),
    Row(
        "rocketmq_finish_message_latency",
        "histogram",
        "committed messages by the seconds since they were made",
        BROKER,
        ("topic",),
        spread(lambda values: values.scrape.spreads.finished),
        unit="milliseconds",
        differs="seconds, as Apache's, in spite of its name",
    ),
    *STORE_TABLE,
)

# Name -> why there is no such metric.
NOT_SERVED = {
    "rocketmq_pop_buffer_scan_time_consume": "no buffer is scanned: pops are records of the log",
    "rocketmq_pop_offset_buffer_size": "the same",
    "rocketmq_pop_checkpoint_buffer_size": "the same",
    "rocketmq_rocksdb_bytes_written": "there is no RocksDB",
    "rocketmq_rocksdb_bytes_read": "the same",
    "rocketmq_rocksdb_times_written_self": "the same",
    "rocketmq_rocksdb_times_written_other": "the same",
    "rocketmq_rocksdb_times_read": "the same",
    "rocketmq_rocksdb_times_compressed": "the same",
    "rocketmq_rocksdb_rate_cache_hit": "the same",
    "rocketmq_rocksdb_read_amplification_bytes": "the same",
}
