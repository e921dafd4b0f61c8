"""Metrics under the names of Apache's broker 5.x: of its store, its timer and its pops, and of the proxy."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from mqadmin.facts.scrape import ReviveRecords
from mqadmin.metrics.apache_labels import BROKER, PROXY, STORE, of_topic, single, spread
from mqadmin.metrics.rows import Row, Value, Values

EACH_RECORD = (
    "each pop and each acknowledgement is a record; Apache's broker stores none of what it merged before"
)


def _reserve_ms(values: Values) -> int | None:
    earliest_ms = values.scrape.earliest_ms
    return None if earliest_ms is None else max(0, values.scrape.at_ms - earliest_ms)


def _used_bytes(values: Values) -> int | None:
    disk = values.store.disk
    return None if disk.total_bytes is None or disk.free_bytes is None else disk.total_bytes - disk.free_bytes


def _timer(number: Callable[[Values], float | None]) -> Callable[[Values], Iterable[Value]]:
    return lambda values: [((), number(values))] if values.waiting.timed.enabled else []


def _revived(records: Callable[[Values], list[ReviveRecords]]) -> Callable[[Values], Iterable[Value]]:
    return lambda values: [
        (
            (one.group, one.topic, one.kind, one.status if one.queue_id is None else str(one.queue_id)),
            one.records,
        )
        for one in records(values)
    ]


def _due_within(values: Values) -> Iterable[Value]:
    return [((str(one.bound_s),), one.messages) for one in values.scrape.due_within]


def _revive_waits(values: Values) -> Iterable[Value]:
    return [((str(one.queue_id),), one.wait_ms) for one in values.scrape.revive_waits]


STORE_TABLE: tuple[Row, ...] = (
    Row(
        "rocketmq_storage_size",
        "gauge",
        "bytes in use on the store's file system",
        STORE,
        (),
        single(_used_bytes),
        unit="bytes",
    ),
    Row(
        "rocketmq_storage_flush_behind_bytes",
        "gauge",
        "bytes of the log not yet synced",
        STORE,
        (),
        single(lambda values: values.store.lag.unflushed_bytes),
        unit="bytes",
    ),
    Row(
        "rocketmq_storage_dispatch_behind_bytes",
        "gauge",
        "bytes of the log not yet in queues and index",
        STORE,
        (),
        single(lambda values: values.store.lag.dispatch_bytes),
        unit="bytes",
    ),
    Row(
        "rocketmq_storage_message_reserve_time",
        "gauge",
        "age of the oldest message",
        STORE,
        (),
        single(_reserve_ms),
        unit="milliseconds",
    ),
    Row(
        "rocketmq_timer_enqueue_lag",
        "gauge",
        "timed messages that are not on the wheel yet",
        STORE,
        (),
        _timer(lambda values: values.waiting.timed.not_enqueued),
    ),
    Row(
        "rocketmq_timer_enqueue_latency",
        "gauge",
        "time since the oldest timed message was stored that is not on the wheel yet",
        STORE,
        (),
        _timer(lambda values: values.scrape.timer_wait_ms),
        unit="milliseconds",
        differs="0 if none is left; Apache's is of a message that was due before it was put on the wheel",
    ),
    Row(
        "rocketmq_timer_message_snapshot",
        "gauge",
        "messages on the timer wheel by how soon they are due: within a bound, and not within the one before",
        STORE,
        ("timer_bound_s",),
        _due_within,
    ),
    Row(
        "rocketmq_timer_dequeue_lag",
        "gauge",
        "timed messages that are due",
        STORE,
        (),
        _timer(lambda values: values.waiting.timed.due),
        differs="Apache's number is of messages on the wheel, due or not",
    ),
    Row(
        "rocketmq_timer_dequeue_latency",
        "gauge",
        "time since the oldest timed message was due",
        STORE,
        (),
        _timer(lambda values: values.waiting.timed.overdue_ms),
        unit="milliseconds",
        differs="0 if none is due; Apache's is the age of its last read, up to a second",
    ),
    Row(
        "rocketmq_timing_messages",
        "gauge",
        "messages on the timer wheel, by topic",
        STORE,
        ("topic",),
        of_topic(lambda values: values.scrape.timed),
    ),
    Row(
        "rocketmq_delay_message_latency",
        "histogram",
        "timed messages by how long they wait",
        STORE,
        ("topic",),
        spread(lambda values: values.scrape.spreads.delays),
        unit="seconds",
        differs="counted when a message is stored; Apache counts it when it is put on the wheel",
    ),
    Row(
        "rocketmq_timer_enqueue_total",
        "counter",
        "messages put on the timer wheel since the start",
        STORE,
        (),
        _timer(lambda values: values.scrape.timer_enqueued),
        differs="without the label `topic`",
    ),
    Row(
        "rocketmq_timer_dequeue_total",
        "counter",
        "timed messages delivered since the start",
        STORE,
        (),
        _timer(lambda values: values.scrape.timer_delivered),
        differs="without the label `topic`",
    ),
    Row(
        "rocketmq_pop_revive_lag",
        "gauge",
        "records of a queue of the revive log that are not read yet",
        BROKER,
        ("queue_id",),
        lambda values: [((str(queue.queue_id),), queue.lag) for queue in values.waiting.popped.queues],
        unit="milliseconds",
        differs="as Apache's a number of records, in spite of its name",
    ),
    Row(
        "rocketmq_pop_revive_latency",
        "gauge",
        "time since the oldest record of a queue of the revive log was stored that is not read yet",
        BROKER,
        ("queue_id",),
        _revive_waits,
        unit="milliseconds",
        differs="0 if none is left; Apache's is the time since the first pop of its last turn was over",
    ),
    Row(
        "rocketmq_pop_revive_in_message_total",
        "counter",
        "records stored for the revive log since the start: `CK` for pops, `ACK` for acknowledgements",
        BROKER,
        ("consumer_group", "topic", "revive_message_type", "put_status"),
        _revived(lambda values: values.scrape.revive_stored),
        differs=EACH_RECORD,
    ),
    Row(
        "rocketmq_pop_revive_out_message_total",
        "counter",
        "records read of the revive log since the start",
        BROKER,
        ("consumer_group", "topic", "revive_message_type", "queue_id"),
        _revived(lambda values: values.scrape.revive_read),
        differs="as before",
    ),
    Row(
        "rocketmq_pop_revive_retry_messages_total",
        "counter",
        "popped messages that were not acknowledged in time and were stored again, since the start",
        BROKER,
        (),
        single(lambda values: values.waiting.popped.came_again),
        differs="without the labels `topic`, `consumer_group` and `put_status`",
    ),
    Row(
        "rocketmq_proxy_up",
        "gauge",
        "1 if clients of RocketMQ 5 are served by gRPC",
        PROXY,
        (),
        single(lambda values: 1 if values.scrape.serves_grpc else None),
        differs="of Apache's proxy, which runs beside the broker; `node_id` is the broker's name",
    ),
)
