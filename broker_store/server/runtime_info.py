"""State of the broker for `mqadmin brokerStatus`, `clusterList` and exporters (GET_BROKER_RUNTIME_INFO, 28).

It has every key of Apache 5.5, because tools parse all keys they know and stop at the first missing one. Some
keys measure a part of Apache's broker that this broker does not have. Their value is that of the
corresponding part, in Apache's unit and syntax; docs/COMPATIBILITY.md lists those keys. An unknown value is
-1, as in Apache's, never 0.
"""

from __future__ import annotations

from broker_store.broker.statistics import MINUTE_MS, Meter
from broker_store.engine.log.write_path import WHOLE
from broker_store.engine.status.store_state import DiskSpace, Snapshot
from broker_store.formats import record
from broker_store.protocol.command import VERSION, version_name
from broker_store.server.parts import BrokerParts

RUNNING_VERSION = version_name(VERSION)
TEN_SECONDS_MS, TEN_MINUTES_MS = 10_000, 600_000
INT_MAX = (1 << 31) - 1
UNKNOWN = -1


def runtime_table(parts: BrokerParts, waiting_requests: int, max_waiting_requests: int) -> dict[str, str]:
    """Return all keys with their values as text. `waiting_requests`, at most `max_waiting_requests`, wait for
    other clients or for a cold read."""
    statistics, snapshot = parts.statistics, parts.store.status.snapshot()
    positions, settings = snapshot.positions, parts.settings
    table: dict[str, object] = {
        "brokerVersionDesc": RUNNING_VERSION,
        "brokerVersion": VERSION,
        "brokerActive": "true",
        "bootTimestamp": parts.started_ms,
        "startAcceptSendRequestTimeStamp": 0,
        "runtime": _duration((parts.clock() - parts.started_ms) // 1000),
        "commitLogMinOffset": positions.min,
        "commitLogMaxOffset": parts.store.log.committed,
        "earliestMessageTimeStamp": _earliest_ms(parts, positions.min),
        "dispatchBehindBytes": snapshot.lag.dispatch_bytes,
        "remainHowManyDataToFlush": f"{snapshot.lag.unflushed_bytes} B",
        "pageCacheLockTimeMills": 0,
        "dispatchMaxBuffer": 0,
        "remainTransientStoreBufferNumbs": INT_MAX if snapshot.pool is None else snapshot.pool.free_buffers,
    }
    if snapshot.lag.uncommitted_bytes is not None:
        table["remainHowManyDataToCommit"] = f"{snapshot.lag.uncommitted_bytes} B"
    table |= _puts(parts, snapshot) | _reads(parts) | _disk(parts, snapshot.disk) | statistics.days()
    # Requests are handled when they are read, without a queue. Sends wait for their group and its sync, pulls
    # for messages, others for cold reads.
    table |= _queue("send", parts.sends.pending, settings.send_thread_pool_queue_capacity)
    table |= _queue("pull", parts.parked.count, settings.max_parked_pulls) | _queue(
        "litePull", 0, settings.max_parked_pulls
    )
    table |= _queue("query", waiting_requests, max_waiting_requests) | _queue("ack", 0, 0)
    table |= {"EndTransactionQueueSize": 0, "EndTransactionThreadPoolQueueCapacity": 0}
    timer = parts.timer.facts()
    table |= {
        "timerReadBehind": timer.overdue_ms // 1000,
        "timerOffsetBehind": timer.not_enqueued,
        "timerCongestNum": timer.waiting,
        "timerEnqueueTps": statistics.timer_enqueued.per_second(TEN_SECONDS_MS),
        "timerDequeueTps": statistics.timer_delivered.per_second(TEN_SECONDS_MS),
    }
    for level in parts.delay.facts():
        table[f"scheduleMessageOffset_{level.level}"] = f"{level.offset},{level.max_offset}"
    return {name: str(value) for name, value in table.items()}


def _puts(parts: BrokerParts, snapshot: Snapshot) -> dict[str, object]:
    statistics = parts.statistics
    put, times = statistics.put, statistics.put_times
    puts, put_bytes = snapshot.totals.puts or 0, snapshot.totals.put_bytes or 0
    in_99, in_999 = parts.store.write_path.histograms.lately(WHOLE).percentiles(0.99, 0.999)
    return {
        "putTps": _three_rates(put),
        # Of all records, as Apache counts them: with properties, and with messages of the broker itself
        "putMessageTimesTotal": puts,
        "putMessageSizeTotal": put_bytes,
        "putMessageAverageSize": put_bytes / puts if puts else 0.0,
        "putMessageFailedTimes": sum(snapshot.totals.refused.values()),
        "putMessageEntireTimeMax": int(times.longest_s * 1000),
        "putMessageDistributeTime": times.text(),
        "putLatency99": f"{(in_99 or 0) / 1e6:.2f}",
        "putLatency999": f"{(in_999 or 0) / 1e6:.2f}",
    }


def _reads(parts: BrokerParts) -> dict[str, object]:
    statistics = parts.statistics
    found, missed = statistics.reads_found, statistics.reads_missed
    return {
        "getFoundTps": _three_rates(found),
        "getMissTps": _three_rates(missed),
        "getTotalTps": _three_rates(found, missed),
        "getTransferredTps": _three_rates(statistics.got),
        # The name of 4.x, which rocketmq-exporter reads
        "getTransferedTps": _three_rates(statistics.got),
        "getMessageEntireTimeMax": int(statistics.longest_read_s * 1000),
    }


def _disk(parts: BrokerParts, disk: DiskSpace) -> dict[str, object]:
    """Return the use of the store's disks, which is that of the fuller one."""
    used = UNKNOWN if disk.used_ratio is None else disk.used_ratio
    directory = parts.store_settings.store_path_commit_log
    table: dict[str, object] = {
        "commitLogDiskRatio": used,
        f"commitLogDiskRatio_{directory}": used,
        "consumeQueueDiskRatio": used,
    }
    if disk.total_bytes is not None and disk.free_bytes is not None:
        total, free = disk.total_bytes / 2**30, disk.free_bytes / 2**30
        table["commitLogDirCapacity"] = f"Total : {total:.1f} GiB, Free : {free:.1f} GiB."
    return table


def _queue(name: str, size: int, capacity: int) -> dict[str, object]:
    """Return the facts of a queue before a thread pool. A request at its head never waits, as there is no
    pool."""
    return {
        f"{name}ThreadPoolQueueSize": size,
        f"{name}ThreadPoolQueueCapacity": capacity,
        f"{name}ThreadPoolQueueHeadWaitTimeMills": 0,
    }


def _earliest_ms(parts: BrokerParts, log_offset: int | None) -> int:
    """Return the store time of the oldest message, in milliseconds. clusterList computes from it for how many
    hours messages are kept."""
    first = None if log_offset is None else parts.store.reads.records.record_at(log_offset)
    return UNKNOWN if first is None else record.decode(first, check_crc=False).store_timestamp


def _three_rates(*meters: Meter) -> str:
    """Return the rates of all meters together, per second over 10 s, 1 minute and 10 minutes, in Apache's
    syntax."""
    return " ".join(
        str(sum(meter.per_second(over_ms) for meter in meters))
        for over_ms in (TEN_SECONDS_MS, MINUTE_MS, TEN_MINUTES_MS)
    )


def _duration(seconds: int) -> str:
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"
