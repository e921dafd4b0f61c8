"""Settings: read once at the edge, checked there, then handed in parts to those who use them; nothing reads
them later.

Names are Apache RocketMQ's property names, and a file in its properties format is read as it is. A key is one
of

- *acting*: a field below. Its attribute is the key in snake_case; unit, reason and bounds stand beside it and
  are what docs/SETTINGS.md shows.
- *known, without effect*: Apache has it, this broker has no use for it (`WITHOUT_EFFECT`, with the reason).
  It is accepted, and named in `Settings.notes` when it is set.
- *refused*: a value that asks for what this broker does not do and whose absence would hurt unseen
  (`REFUSED`).
- anything else stops the start, by name, with the nearest known name.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from broker_store.errors import ConfigError

INT_MAX = (1 << 31) - 1
# Why a setting that asks for further copies stops the start: nothing else would show that there is only one.
_ONE_COPY = "this broker keeps one copy and has no replication yet"
QUEUE_UNIT_BYTES = 20
LEAST_LOG_FILE_BYTES = 4096


def _snake(key: str) -> str:
    """The attribute for a key: checkCRCOnRecover -> check_crc_on_recover, brokerIP1 -> broker_ip1."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", key).lower()


@dataclass(frozen=True, slots=True)
class Setting:
    """What is known of one acting key; `low` and `high` bound a number, `clamp` moves it there instead of
    refusing it."""

    key: str
    unit: str
    reason: str
    low: int | None = None
    high: int | None = None
    clamp: bool = False
    choices: tuple[str, ...] = ()
    check: Callable[[Any], str | None] | None = None
    ours: bool = False


def _setting(key: str, default, unit: str, reason: str, **bounds):
    return dataclasses.field(default=default, metadata={"setting": Setting(key, unit, reason, **bounds)})


def _hours(value: str) -> str | None:
    parts = [part.strip() for part in value.split(";") if part.strip()]
    if not parts or not all(part.isascii() and part.isdigit() and int(part) < 24 for part in parts):
        return "want hours of the day from 00 to 23, several joined by ;"
    return None


def _delay_levels(value: str) -> str | None:
    words = value.split()
    if not words or not all(re.fullmatch(r"[0-9]{1,6}[smhd]", word) for word in words):
        return "want numbers with a unit of s, m, h or d, joined by blanks"
    return None


def delay_levels_ms(levels: str) -> tuple[int, ...]:
    """The delay of each level of `1s 5s 1m ..`; index 0 is level 1. ConfigError for another text."""
    if problem := _delay_levels(levels):
        raise ConfigError("messageDelayLevel", levels, problem)
    unit_ms = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
    return tuple(int(word[:-1]) * unit_ms[word[-1]] for word in levels.split())


def _name(value: str) -> str | None:
    if not re.fullmatch(r"[%|a-zA-Z0-9_-]{1,120}", value):
        return "want 1 to 120 letters, digits, % | _ or -, because a topic of that name is made"
    return None


def _address_list(value: str) -> str | None:
    for address in filter(None, (part.strip() for part in value.split(";"))):
        host, _, port = address.rpartition(":")
        if not host or not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
            return "want host:port, several joined by ;"
    return None


def _role(value: str) -> str | None:
    if value == "SYNC_MASTER":
        return (
            f"{_ONE_COPY}: it would answer before a slave has the message; set ASYNC_MASTER to "
            f"acknowledge from this copy alone"
        )
    return None


@dataclass(frozen=True)
class _Checked:
    """Checks every field when the object is made, so that a wrong value never travels further."""

    def __post_init__(self):
        for field in dataclasses.fields(self):
            object.__setattr__(self, field.name, _checked(field, getattr(self, field.name)))


def _checked(field: dataclasses.Field, value):
    setting: Setting = field.metadata["setting"]
    if field.type == "int":
        if not isinstance(value, int) or isinstance(value, bool):
            raise ConfigError(setting.key, value, "want an integer")
        low, high = (
            setting.low if setting.low is not None else 0,
            setting.high if setting.high is not None else INT_MAX,
        )
        if setting.clamp:
            return min(max(value, low), high)
        if not low <= value <= high:
            raise ConfigError(
                setting.key, value, f"want {low} to {high}" + (f" {setting.unit}" if setting.unit else "")
            )
    elif field.type == "bool":
        if not isinstance(value, bool):
            raise ConfigError(setting.key, value, "want true or false")
    elif field.type == "str":
        if not isinstance(value, str):
            raise ConfigError(setting.key, value, "want text")
    elif field.type == "Path":
        return Path(value)
    problem = setting.check(value) if setting.check else None
    if problem:
        raise ConfigError(setting.key, value, problem)
    if setting.choices and value not in setting.choices:
        raise ConfigError(setting.key, value, "want one of " + ", ".join(setting.choices))
    return value


@dataclass(frozen=True)
class StoreSettings(_Checked):
    """What the store engine is given."""

    store_path_root_dir: Path = _setting(
        "storePathRootDir",
        Path("data/store"),
        "path",
        "where log, queues, index and config lie; runbroker sets it from --data or --store",
    )
    store_path_commit_log: Path | None = _setting(
        "storePathCommitLog",
        None,
        "path",
        "where the commit log lies when not in commitlog/ of the root, for example on a disk of its own",
    )
    mapped_file_size_commit_log: int = _setting(
        "mappedFileSizeCommitLog",
        1 << 30,
        "bytes",
        "length of a commit log file; a store must be opened with the size it was made with",
        low=LEAST_LOG_FILE_BYTES,
    )
    mapped_file_size_consume_queue: int = _setting(
        "mappedFileSizeConsumeQueue",
        300_000 * QUEUE_UNIT_BYTES,
        "bytes",
        "length of a queue file, rounded up to whole units of 20 bytes; a store must be opened with "
        "the size it was made with",
        low=QUEUE_UNIT_BYTES,
        high=INT_MAX // QUEUE_UNIT_BYTES * QUEUE_UNIT_BYTES,
    )
    max_hash_slot_num: int = _setting(
        "maxHashSlotNum",
        5_000_000,
        "slots",
        "hash slots of an index file: more slots, shorter chains; fixed for the life of a store",
        low=1,
    )
    max_index_num: int = _setting(
        "maxIndexNum",
        20_000_000,
        "entries",
        "entries of an index file (one less is used); fixed for the life of a store",
        low=2,
        high=100_000_000,
    )
    message_index_enable: bool = _setting(
        "messageIndexEnable",
        True,
        "",
        "whether keys are indexed; without it a message is found by offset, id or time only",
    )
    enabled_append_prop_crc: bool = _setting(
        "enabledAppendPropCRC",
        False,
        "",
        "whether each record ends with a CRC of all of it, a property of 20 bytes that clients see "
        "too; a record that has one is"
        " checked with it in any case",
    )
    flush_disk_type: str = _setting(
        "flushDiskType",
        "ASYNC_FLUSH",
        "",
        "SYNC_FLUSH answers a send when it is on disk, ASYNC_FLUSH when it is in the page cache and "
        "syncs soon after",
        choices=("ASYNC_FLUSH", "SYNC_FLUSH"),
    )
    flush_interval_commit_log: int = _setting(
        "flushIntervalCommitLog",
        500,
        "ms",
        "how often the log is synced with ASYNC_FLUSH; bounded to 1 s, the most a power cut may take",
        low=1,
        high=1000,
        clamp=True,
    )
    flush_interval_consume_queue: int = _setting(
        "flushIntervalConsumeQueue",
        1000,
        "ms",
        "how often the flusher looks for queue files that are due",
        low=1,
        high=60_000,
    )
    flush_consume_queue_thorough_interval: int = _setting(
        "flushConsumeQueueThoroughInterval",
        30_000,
        "ms",
        "how late a queue or index file is synced at most and the checkpoint moved on: how much log "
        "is read again after a crash (Apache: 60000)",
        low=100,
        high=3_600_000,
    )
    sync_flush_timeout: int = _setting(
        "syncFlushTimeout",
        5000,
        "ms",
        "how long a send waits for its sync before it is answered FLUSH_DISK_TIMEOUT",
        low=1,
    )
    max_message_size: int = _setting(
        "maxMessageSize",
        4 << 20,
        "bytes",
        "largest body; a larger one is answered MESSAGE_ILLEGAL",
        low=1,
        high=(16 << 20) - (64 << 10),
    )
    file_reserved_time: int = _setting(
        "fileReservedTime",
        72,
        "hours",
        "how old a commit log file must be to be deleted by age",
        low=1,
        high=INT_MAX // 3_600_000,
    )
    delete_when: str = _setting(
        "deleteWhen",
        "04",
        "hours of the day",
        "when expired files are deleted, host's time zone, several joined by ;",
        check=_hours,
    )
    clean_resource_interval: int = _setting(
        "cleanResourceInterval",
        10_000,
        "ms",
        "how often retention and disk use are looked at",
        low=100,
        high=3_600_000,
    )
    disk_max_used_space_ratio: int = _setting(
        "diskMaxUsedSpaceRatio",
        75,
        "per cent",
        "above it expired files are deleted at any hour; bounded to 10..95 as in Apache",
        low=10,
        high=95,
        clamp=True,
    )
    disk_space_clean_forcibly_ratio: int = _setting(
        "diskSpaceCleanForciblyRatio",
        85,
        "per cent",
        "above it the oldest files are deleted at once, expired or not; bounded to 30..85 as in Apache",
        low=30,
        high=85,
        clamp=True,
    )
    disk_space_warning_level_ratio: int = _setting(
        "diskSpaceWarningLevelRatio",
        90,
        "per cent",
        "above it sends are refused; bounded to 35..90 as in Apache",
        low=35,
        high=90,
        clamp=True,
    )
    clean_file_forcibly_enable: bool = _setting(
        "cleanFileForciblyEnable",
        True,
        "",
        "whether files that have not expired may be deleted when the disk is too full",
    )
    delete_file_batch_max: int = _setting(
        "deleteFileBatchMax",
        10,
        "files",
        "most files deleted in one round, so that a disk is not busy with nothing else",
        low=1,
        high=1000,
    )
    check_crc_on_recover: bool = _setting(
        "checkCRCOnRecover",
        True,
        "",
        "whether recovery checks the CRC of each body; without it a torn body may be kept",
    )
    os_page_cache_busy_time_out_mills: int = _setting(
        "osPageCacheBusyTimeOutMills",
        1000,
        "ms",
        "an append that takes longer has sends refused as busy for as long again",
        low=1,
    )
    max_msgs_num_batch: int = _setting(
        "maxMsgsNumBatch", 64, "messages", "most messages a key query gives", low=1, high=10_000
    )
    max_transfer_bytes_on_message_in_memory: int = _setting(
        "maxTransferBytesOnMessageInMemory",
        256 << 10,
        "bytes",
        "most bytes of one pull near the end of the log",
        low=1024,
        high=128 << 20,
    )
    max_transfer_count_on_message_in_memory: int = _setting(
        "maxTransferCountOnMessageInMemory",
        32,
        "messages",
        "most messages of one pull near the end of the log",
        low=1,
        high=100_000,
    )
    max_transfer_bytes_on_message_in_disk: int = _setting(
        "maxTransferBytesOnMessageInDisk",
        64 << 10,
        "bytes",
        "most bytes of one pull far from the end of the log",
        low=1024,
        high=128 << 20,
    )
    max_transfer_count_on_message_in_disk: int = _setting(
        "maxTransferCountOnMessageInDisk",
        8,
        "messages",
        "most messages of one pull far from the end of the log",
        low=1,
        high=100_000,
    )
    access_message_in_memory_max_ratio: int = _setting(
        "accessMessageInMemoryMaxRatio",
        40,
        "per cent of memory",
        "how far behind the end of the log a message counts as in memory",
        low=0,
        high=95,
    )
    message_delay_level: str = _setting(
        "messageDelayLevel",
        "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h",
        "",
        "the delays of levels 1, 2, ..: a queue unit of the schedule topic holds its delivery time",
        check=_delay_levels,
    )
    timer_wheel_enable: bool = _setting(
        "timerWheelEnable",
        True,
        "",
        "whether messages may ask for any time of delivery; else such a send is refused",
    )
    mapped_file_size_timer_log: int = _setting(
        "mappedFileSizeTimerLog",
        100 << 20,
        "bytes",
        "length of a file of the timer log, 52 bytes a message; a store must be opened with the size "
        "it was made with",
        low=4096,
    )
    timer_flush_interval_ms: int = _setting(
        "timerFlushIntervalMs",
        1000,
        "ms",
        "how often it is written how far timer messages are delivered: what a crash delivers again",
        low=100,
        high=60_000,
    )
    broker_role: str = _setting(
        "brokerRole",
        "ASYNC_MASTER",
        "",
        "ASYNC_MASTER acknowledges from this broker's copy alone; a SLAVE refuses sends, and copies "
        "from no master; SYNC_MASTER, which waits for a "
        "slave, is refused until there is replication",
        choices=("ASYNC_MASTER", "SLAVE"),
        check=_role,
    )
    accept_damage: bool = _setting(
        "acceptDamage",
        False,
        "",
        "after damage below the checkpoint: cut the log there, copy what is taken away to "
        "lost+found, and start",
        ours=True,
    )
    inspect: bool = _setting(
        "inspect",
        False,
        "",
        "open a store read-only and change nothing, also one that another broker left or holds",
        ours=True,
    )

    def __post_init__(self):
        super().__post_init__()
        units = -(-self.mapped_file_size_consume_queue // QUEUE_UNIT_BYTES)
        object.__setattr__(self, "mapped_file_size_consume_queue", units * QUEUE_UNIT_BYTES)
        if self.store_path_commit_log is None:
            object.__setattr__(self, "store_path_commit_log", self.store_path_root_dir / "commitlog")
        index_bytes = 40 + 4 * self.max_hash_slot_num + 20 * self.max_index_num
        if index_bytes > INT_MAX:
            raise ConfigError(
                "maxIndexNum",
                self.max_index_num,
                f"an index file would have {index_bytes} bytes, Apache maps at most {INT_MAX}",
            )
        if "," in str(self.store_path_commit_log):
            raise ConfigError(
                "storePathCommitLog",
                self.store_path_commit_log,
                "several directories (multi-path) are not supported, give one",
            )

    @property
    def sync_flush(self) -> bool:
        return self.flush_disk_type == "SYNC_FLUSH"

    @property
    def delete_hours(self) -> frozenset[int]:
        """The hours of the day of `deleteWhen`."""
        return frozenset(int(part) for part in self.delete_when.split(";") if part.strip())

    @property
    def delay_levels_ms(self) -> tuple[int, ...]:
        """The delay of each level; index 0 is level 1."""
        return delay_levels_ms(self.message_delay_level)


@dataclass(frozen=True)
class BrokerSettings(_Checked):
    """What the broker and its server are given."""

    broker_name: str = _setting(
        "brokerName", "broker-a", "", "the name clients and name servers know the broker by", check=_name
    )
    broker_cluster_name: str = _setting(
        "brokerClusterName", "DefaultCluster", "", "the cluster the broker registers in", check=_name
    )
    broker_id: int = _setting("brokerId", 0, "", "of a slave; a master has 0, whatever is set")
    broker_ip1: str = _setting(
        "brokerIP1",
        "127.0.0.1",
        "address",
        "the address clients are told; stored in each record as its store host",
    )
    listen_port: int = _setting(
        "listenPort",
        10911,
        "port",
        "where clients connect; 2 below it is the second listener; 0 takes any",
        high=65535,
    )
    broker_permission: int = _setting(
        "brokerPermission", 6, "bits", "4 read, 2 write: masks the permissions of every topic", high=7
    )
    auto_create_topic_enable: bool = _setting(
        "autoCreateTopicEnable", True, "", "whether a send to an unknown topic makes it"
    )
    auto_create_subscription_group: bool = _setting(
        "autoCreateSubscriptionGroup",
        True,
        "",
        "whether an unknown consumer group is made when it is first seen",
    )
    default_topic_queue_nums: int = _setting(
        "defaultTopicQueueNums", 8, "queues", "most queues of a topic made by a send", low=1, high=1024
    )
    cluster_topic_enable: bool = _setting(
        "clusterTopicEnable", True, "", "whether a topic named like the cluster is a template for new topics"
    )
    broker_topic_enable: bool = _setting(
        "brokerTopicEnable", True, "", "whether a topic named like the broker is a template for new topics"
    )
    store_reply_message_enable: bool = _setting(
        "storeReplyMessageEnable",
        True,
        "",
        "whether replies to requests are stored too, beside being handed to who asked",
    )
    reject_transaction_message: bool = _setting(
        "rejectTransactionMessage", False, "", "whether halves of transactions are refused"
    )
    transaction_time_out: int = _setting(
        "transactionTimeOut",
        6_000,
        "ms",
        "how old a half must be before its producer is asked about it",
        low=1,
        high=86_400_000,
    )
    transaction_check_interval: int = _setting(
        "transactionCheckInterval",
        30_000,
        "ms",
        "how often halves without a word are looked for",
        low=100,
        high=86_400_000,
    )
    transaction_check_max: int = _setting(
        "transactionCheckMax",
        15,
        "times",
        "after so many questions a half goes to TRANS_CHECK_MAX_TIME_TOPIC",
        low=1,
        high=10_000,
    )
    timer_max_delay_sec: int = _setting(
        "timerMaxDelaySec",
        3 * 86_400,
        "s",
        "how far ahead a time of delivery may lie",
        low=1,
        high=INT_MAX // 1000,
    )
    timer_roll_window_slot: int = _setting(
        "timerRollWindowSlot",
        2 * 86_400,
        "s",
        "a message that waits longer is stored once more after so long; bounded to 2 to 604740, the "
        "wheel's half, as in Apache",
        low=2,
        high=7 * 86_400 - 60,
        clamp=True,
    )
    timer_congest_num_each_slot: int = _setting(
        "timerCongestNumEachSlot",
        INT_MAX,
        "messages",
        "with more messages due in one second some sends for it are refused, with twice as many all",
        low=1,
    )
    recall_message_enable: bool = _setting(
        "recallMessageEnable", False, "", "whether a producer may recall a timer message before its time"
    )
    allow_recall_when_broker_not_writeable: bool = _setting(
        "allowRecallWhenBrokerNotWriteable", True, "", "whether it may while brokerPermission forbids sends"
    )
    enable_mixed_message_type: bool = _setting(
        "enableMixedMessageType",
        False,
        "",
        "whether a topic may have message.type=MIXED; else such a change is refused",
    )
    trace_topic_enable: bool = _setting(
        "traceTopicEnable", False, "", "whether the topic for message traces is made at start"
    )
    msg_trace_topic_name: str = _setting(
        "msgTraceTopicName", "RMQ_SYS_TRACE_TOPIC", "", "the name of that topic", check=_name
    )
    trace_on: bool = _setting(
        "traceOn", True, "", "what the broker writes into TRACE_ON of each message, which clients obey"
    )
    region_id: str = _setting(
        "regionId", "DefaultRegion", "", "what the broker writes into MSG_REGION of each message"
    )
    long_polling_enable: bool = _setting(
        "longPollingEnable",
        True,
        "",
        "whether a pull that finds nothing waits for a message as long as its client allows",
    )
    short_polling_time_mills: int = _setting(
        "shortPollingTimeMills", 1000, "ms", "how long it waits when long polling is off", low=1, high=60_000
    )
    lite_pull_message_enable: bool = _setting(
        "litePullMessageEnable", True, "", "whether lite pull consumers may pull"
    )
    enable_broadcast_offset_store: bool = _setting(
        "enableBroadcastOffsetStore",
        True,
        "",
        "whether the broker notes how far clients of broadcasting groups have pulled",
    )
    broadcast_offset_expire_second: int = _setting(
        "broadcastOffsetExpireSecond",
        120,
        "s",
        "when such a client that is not online is forgotten",
        low=1,
        high=86_400,
    )
    broadcast_offset_expire_max_second: int = _setting(
        "broadcastOffsetExpireMaxSecond",
        300,
        "s",
        "when one that is online and does not pull is forgotten",
        low=1,
        high=86_400,
    )
    namesrv_addr: str = _setting(
        "namesrvAddr",
        "",
        "host:port;..",
        "name servers to register with besides the one in the process",
        check=_address_list,
    )
    register_name_server_period: int = _setting(
        "registerNameServerPeriod",
        30_000,
        "ms",
        "how often the broker registers; bounded to 10 to 60 s as in Apache",
        low=10_000,
        high=60_000,
        clamp=True,
    )
    register_broker_timeout_mills: int = _setting(
        "registerBrokerTimeoutMills", 24_000, "ms", "how long a registration may take", low=100, high=600_000
    )
    flush_consumer_offset_interval: int = _setting(
        "flushConsumerOffsetInterval",
        5000,
        "ms",
        "how often committed offsets are written: what a crash delivers again",
        low=100,
        high=600_000,
    )
    channel_expired_timeout: int = _setting(
        "channelExpiredTimeout",
        120_000,
        "ms",
        "a client without a heartbeat for so long is forgotten",
        low=1000,
    )
    notify_consumer_ids_changed_enable: bool = _setting(
        "notifyConsumerIdsChangedEnable",
        True,
        "",
        "whether a group's members are told at once when one comes or goes",
    )
    broker_fast_failure_enable: bool = _setting(
        "brokerFastFailureEnable",
        True,
        "",
        "whether a request that waited longer than the limit of its kind is answered SYSTEM_BUSY",
    )
    wait_time_mills_in_send_queue: int = _setting(
        "waitTimeMillsInSendQueue",
        200,
        "ms",
        "how long a send may wait behind others, for its group or for its connection to read",
        low=1,
    )
    wait_time_mills_in_pull_queue: int = _setting(
        "waitTimeMillsInPullQueue",
        5000,
        "ms",
        "how long a pull may wait before it is looked at; being parked does not count",
        low=1,
    )
    wait_time_mills_in_lite_pull_queue: int = _setting(
        "waitTimeMillsInLitePullQueue", 5000, "ms", "the same for a light pull", low=1
    )
    wait_time_mills_in_heartbeat_queue: int = _setting(
        "waitTimeMillsInHeartbeatQueue", 31_000, "ms", "how long a heartbeat may wait", low=1
    )
    wait_time_mills_in_transaction_queue: int = _setting(
        "waitTimeMillsInTransactionQueue", 3000, "ms", "how long the end of a transaction may wait", low=1
    )
    wait_time_mills_in_admin_broker_queue: int = _setting(
        "waitTimeMillsInAdminBrokerQueue", 5000, "ms", "how long a request of the tools may wait", low=1
    )
    send_thread_pool_queue_capacity: int = _setting(
        "sendThreadPoolQueueCapacity",
        10_000,
        "sends",
        "with so many not stored yet, or waiting for their sync, further ones are refused as overload",
        low=1,
    )
    max_parked_pulls: int = _setting(
        "maxParkedPulls",
        100_000,
        "pulls",
        "with so many waiting for messages a further one is refused as overload; each costs about a kilobyte",
        low=0,
        high=1_000_000,
        ours=True,
    )
    max_connections: int = _setting(
        "maxConnections",
        12_000,
        "connections",
        "more are closed at once, so that a flood cannot take all descriptors",
        low=1,
        high=1_000_000,
        ours=True,
    )
    max_topics: int = _setting(
        "maxTopics",
        50_000,
        "topics",
        "with so many topics no more are made, by clients or administrators; a store that has more "
        "is opened with all of them",
        low=0,
        high=200_000,
        ours=True,
    )
    max_groups: int = _setting(
        "maxGroups",
        50_000,
        "groups",
        "the same bound for subscription groups",
        low=0,
        high=200_000,
        ours=True,
    )
    max_auto_created_topics: int = _setting(
        "maxAutoCreatedTopics",
        5000,
        "topics",
        "with so many topics none is made by a send any more",
        low=0,
        high=100_000,
        ours=True,
    )
    max_auto_created_groups: int = _setting(
        "maxAutoCreatedGroups",
        5000,
        "groups",
        "with so many groups none is made by being seen any more",
        low=0,
        high=100_000,
        ours=True,
    )


@dataclass(frozen=True)
class NameServerSettings(_Checked):
    """What the name server is given."""

    listen_port: int = _setting(
        "listenPort", 9876, "port", "where brokers and clients connect; 0 takes any", high=65535
    )
    scan_not_active_broker_interval: int = _setting(
        "scanNotActiveBrokerInterval",
        10_000,
        "ms",
        "how often brokers that fell silent are looked for",
        low=100,
        high=600_000,
    )
    return_order_topic_config_to_broker: bool = _setting(
        "returnOrderTopicConfigToBroker",
        True,
        "",
        "whether a registration is answered with the ordered topics of the key-value table",
    )
    delete_topic_with_broker_registration: bool = _setting(
        "deleteTopicWithBrokerRegistration",
        False,
        "",
        "whether a topic missing from a broker's registration is dropped from its routes",
    )
    order_message_enable: bool = _setting(
        "orderMessageEnable",
        False,
        "",
        "whether a route names the brokers and queues that ORDER_TOPIC_CONFIG has for its topic",
    )
    support_acting_master: bool = _setting(
        "supportActingMaster",
        False,
        "",
        "whether the lowest slave of a broker without a master is shown as its master, for reading",
    )


@dataclass(frozen=True)
class Settings:
    """All settings of a broker process; `notes` says for each key that was set without effect, why."""

    store: StoreSettings
    broker: BrokerSettings
    name_server: NameServerSettings
    notes: tuple[str, ...] = ()


ELSEWHERE = {
    "transactions": "an op record is written in the turn that ends its transactions; transaction metrics "
    "are saved "
    "every 5 s",
    "timer": "timer messages are put on the wheel and delivered by one step on the loop",
    "delay": "delay levels are delivered at their time by one step, and their positions saved every 5 s once "
    "the log is synced",
    "pop": "pop consumption comes in an issue of its own",
    "filters": "SQL92 filters come in an issue of their own",
    "replication": "a send is acknowledged from one copy, and these ask for no other; replication comes in "
    "an issue "
    "of its own",
    "metrics": "metrics are served at /metrics of the dashboard",
}

# Reason -> keys of Apache's that change nothing here. A value is not even looked at.
WITHOUT_EFFECT_BY_REASON: dict[str, str] = {
    "there are no thread pools: one loop does the work": (
        "sendMessageThreadPoolNums putMessageFutureThreadPoolNums pullMessageThreadPoolNums "
        "litePullMessageThreadPoolNums ackMessageThreadPoolNums "
        "processReplyMessageThreadPoolNums queryMessageThreadPoolNums adminBrokerThreadPoolNums "
        "clientManageThreadPoolNums consumerManageThreadPoolNums "
        "loadBalanceProcessorThreadPoolNums heartbeatThreadPoolNums recoverThreadPoolNums "
        "endTransactionThreadPoolNums "
        "putThreadPoolQueueCapacity pullThreadPoolQueueCapacity litePullThreadPoolQueueCapacity "
        "ackThreadPoolQueueCapacity replyThreadPoolQueueCapacity "
        "queryThreadPoolQueueCapacity clientManagerThreadPoolQueueCapacity "
        "consumerManagerThreadPoolQueueCapacity heartbeatThreadPoolQueueCapacity "
        "endTransactionPoolQueueCapacity adminBrokerThreadPoolQueueCapacity "
        "loadBalanceThreadPoolQueueCapacity batchDispatchRequestThreadPoolNums "
        "clientCallbackExecutorThreads clientWorkerThreads serverCallbackExecutorThreads "
        "serverSelectorThreads serverWorkerThreads "
        "disableCallbackExecutor disableNettyWorkerGroup serverNettyWorkerGroupEnable "
        "useEpollNativeSelector enableFastChannelEventProcess "
        "asyncSendEnable asyncLearner"
    ),
    "sends under way are bounded by sendThreadPoolQueueCapacity": (
        "maxAsyncPutMessageRequests enableNetWorkFlowControl startAcceptSendRequestTimeStamp"
    ),
    "there is one writer and no lock to choose": (
        "useReentrantLockWhenPutMessage useABSLock spinLockCollisionRetreatOptimalDegree "
        "topicQueueLockNum debugLockEnable putMessageTimeout"
    ),
    "buffers and limits of connections are fixed (docs/ARCHITECTURE.md)": (
        "serverSocketBacklog serverSocketRcvBufSize serverSocketSndBufSize clientSocketRcvBufSize "
        "clientSocketSndBufSize "
        "serverPooledByteBufAllocatorEnable clientPooledByteBufAllocatorEnable "
        "serverAsyncSemaphoreValue serverOnewaySemaphoreValue "
        "clientAsyncSemaphoreValue clientOnewaySemaphoreValue writeBufferHighWaterMark "
        "writeBufferLowWaterMark serverChannelMaxIdleTimeSeconds "
        "clientChannelMaxIdleTimeSeconds channelNotActiveInterval clientCloseSocketIfTimeout "
        "connectTimeoutMillis maxReconnectIntervalTimeSeconds "
        "enableReconnectForGoAway shutdownWaitTimeSeconds enableShutdownGracefully socksProxyConfig "
        "transferMsgByHeap disappearTimeAfterStart "
        "isScanAvailableNameSrv printChannelGroups printChannelGroupsMinNum isolateLogEnable"
    ),
    "the flusher syncs by time alone: whatever is dirty after flushIntervalCommitLog goes to disk": (
        "flushCommitLogLeastPages flushCommitLogThoroughInterval flushCommitLogTimed "
        "flushConsumeQueueLeastPages wakeFlushWhenPutMessage "
        "flushLeastPagesWhenWarmMapedFile warmMapedFileEnable"
    ),
    "there is no off-heap buffer to commit from": (
        "commitCommitLogLeastPages commitCommitLogThoroughInterval commitIntervalCommitLog "
        "wakeCommitWhenPutMessage transientStorePoolSize "
        "fastFailIfNoBufferInStorePool"
    ),
    "files are mapped on use and swapped by the kernel": (
        "mappedFileSwapEnable commitLogForceSwapMapInterval commitLogSwapMapInterval "
        "commitLogSwapMapReserveFileNum logicQueueForceSwapMapInterval "
        "logicQueueSwapMapInterval logicQueueSwapMapReserveFileNum cleanSwapedMapInterval "
        "destroyMapedFileIntervalForcibly redeleteHangedFileInterval "
        "deleteCommitLogFilesInterval deleteConsumeQueueFilesInterval maxBatchDeleteFilesNum "
        "correctLogicMinOffsetForceInterval "
        "correctLogicMinOffsetSleepInterval dataReadAheadEnable putConsumeQueueDataByFileChannel "
        "diskFallRecorded"
    ),
    "dispatch runs in the same turn as the append": (
        "dispatchFromSenderThread dispatchCqCacheNum dispatchCqThreads enableAsyncReput "
        "enableBuildConsumeQueueConcurrently recoverConcurrently "
        "maxRecoveryCommitlogFiles recheckReputOffsetFromCq readUnCommitted putMsgIndexHightWater "
        "messageIndexSafe "
        "travelCqFileNumWhenGetMessage maxConsumeQueueScan maxFilterMessageSize maxChecksumRange"
    ),
    "cold reads go through a pool of readers with a bound of their own": (
        "coldDataFlowControlEnable coldDataScanEnable coldCtrStrategyEnable usePIDColdCtrStrategy "
        "cgColdReadThreshold globalColdReadThreshold "
        "accessMessageInMemoryHotRatio timerColdDataCheckIntervalMs"
    ),
    "a record that carries a CRC of its properties is always checked with it": "forceVerifyPropCRC",
    "version 2 is written for exactly the topics that do not fit version 1": (
        "autoMessageVersionOnTopicLen maxTopicLength"
    ),
    "consume queue extensions, bit maps and compaction topics are not written": (
        "enableCompaction compactionCqMappedFileSize compactionMappedFileSize "
        "compactionScheduleInternal compactionThreadNum maxOffsetMapSize "
        "mappedFileSizeConsumeQueueExt bitMapLengthConsumeQueueExt enableCalcFilterBitMap "
        "expectConsumerNumUseFilter maxErrorRateOfBloomFilter "
        "filterDataCleanTimeSpan mapperFileSizeBatchConsumeQueue searchBcqByCacheEnable "
        "sampleCountThreshold sampleSteps"
    ),
    "there is no RocksDB": (
        "cleanRocksDBDirtyCQIntervalMin statRocksDBCQIntervalSec memTableFlushIntervalMs "
        "realTimePersistRocksDBConfig enableRocksDBLog "
        "rocksdbCompressionType rocksdbFlushWalFrequency rocksdbWalFileRollingThreshold "
        "bottomMostCompressionTypeForConsumeQueueStore "
        "configManagerVersion"
    ),
    ELSEWHERE["replication"]: (
        "haListenPort haSendHeartbeatInterval haHousekeepingInterval haTransferBatchSize "
        "haMaxGapNotInSync haMaxTimeSlaveNotCatchup "
        "haFlowControlEnable maxHaTransferByteInSecond maxSlaveResendLength "
        "enableAutoInSyncReplicas slaveTimeout slaveReadEnable offsetCheckInSlave syncFromLastFile "
        "syncMasterFlushOffsetWhenStartup "
        "syncBrokerMemberGroupPeriod syncBrokerMetadataPeriod syncControllerMetadataPeriod "
        "checkSyncStateSetPeriod brokerElectionPriority "
        "brokerHeartbeatInterval brokerNotActiveTimeoutMillis controllerAddr "
        "controllerHeartBeatTimeoutMills fetchControllerAddrByDnsLookup "
        "sendHeartbeatTimeoutMillis skipPreOnline lockInStrictMode replicasPerDiskPartition "
        "haServerAddr brokerIP2 forwardTimeout compatibleWithOldNameSrv isBrokerContainer "
        "isInBrokerContainer "
        "logicalDiskSpaceCleanForciblyThreshold consumerFallbehindThreshold "
        "disableConsumeIfConsumerReadSlowly"
    ),
    ELSEWHERE["transactions"]: (
        "transactionOpBatchInterval transactionOpMsgMaxSize transactionMetricFlushInterval"
    ),
    ELSEWHERE["timer"]: (
        "timerCheckMetricsWhen timerEnableCheckMetrics timerEnableDisruptor "
        "timerEnableRetryUntilSuccess timerGetMessageThreadNum "
        "timerMetricSmallThreshold timerProgressLogIntervalMs timerPutMessageThreadNum "
        "timerSkipUnknownError timerWarmEnable"
    ),
    ELSEWHERE["delay"]: (
        "flushDelayOffsetInterval delayOffsetUpdateVersionStep enableScheduleAsyncDeliver "
        "enableScheduleMessageStats scheduleAsyncDeliverMaxPendingLimit "
        "scheduleAsyncDeliverMaxResendNum2Blocked"
    ),
    ELSEWHERE["pop"]: (
        "appendAckAsync appendCkAsync defaultMessageRequestMode defaultPopShareQueueNum "
        "enableNotifyAfterPopOrderLockRelease "
        "enableNotifyBeforePopCalculateLag enablePopBatchAck enablePopBufferMerge enablePopLog "
        "enablePopMessageThreshold enableRetryTopicV2 "
        "enableSkipLongAwaitingAck initPopOffsetByCheckMsgInMem maxPopPollingSize popCkMaxBufferSize "
        "popCkOffsetMaxQueueSize popCkStayBufferTime "
        "popCkStayBufferTimeOut popConsumerFSServiceInit popConsumerKVServiceEnable "
        "popConsumerKVServiceInit popConsumerKVServiceLog "
        "popFromRetryProbability popInflightMessageThreshold popLongPollingForceNotifyInterval "
        "popPollingMapSize popPollingSize "
        "popResponseReturnActualRetryTopic popReviveMaxAttemptTimes popReviveMaxReturnSizePerRead "
        "retrieveMessageFromPopRetryTopicV1 reviveAckWaitMs "
        "reviveInterval reviveMaxSlow reviveQueueNum reviveScanTime skipWhenCKRePutReachMaxTimes "
        "waitTimeMillsInAckQueue"
    ),
    ELSEWHERE["filters"]: "enablePropertyFilter filterSupportRetry",
    ELSEWHERE["metrics"]: (
        "metricGrpcExporterIntervalInMills metricGrpcExporterTimeOutInMills "
        "metricLoggingExporterIntervalInMills metricsExporterType "
        "metricsGrpcExporterHeader metricsGrpcExporterTarget metricsInDelta metricsLabel "
        "metricsOtelCardinalityLimit metricsPromExporterHost "
        "metricsPromExporterPort accountStatsEnable accountStatsPrintZeroValues "
        "autoDeleteUnusedStats enableDetailStat enableLmqStats "
        "estimateAccumulation maxStatsIdleTimeInMinutes commercialBaseCount commercialSizePerMsg "
        "highSpeedMode"
    ),
    "where a broker listens is given by --bind, name servers by namesrvAddr": (
        "bindAddress fetchNameSrvAddrByDnsLookup fetchNamesrvAddrByAddressServer "
        "fetchNamesrvAddrInterval updateNameServerAddrPeriod "
        "loadBalancePollNameServerInterval namesrvDomain namesrvDomainSubgroup rocketmqHome "
        "brokerConfigPath kvConfigPath configStorePath"
    ),
    "a registration is always sent whole, uncompressed and on time": (
        "forceRegister compressedRegister enableSingleTopicRegister enableSplitRegistration "
        "splitRegistrationSize"
    ),
    "settings are not changed over the wire": "configBlackList",
    "this broker does it always, as Apache does by default": (
        "enableRegisterProducer realTimeNotifyConsumerChange useServerSideResetOffset "
        "validateSystemTopicWhenUpdateTopic enableCreateSysGroup "
        "clearRetryTopicWhenDeleteTopic serverLoadBalancerEnable defaultQueryMaxNum "
        "subscriptionExpiredTimeout "
        "cleanOfflineBrokerInterval "
        "consumerOffsetUpdateVersionStep flushConsumerOffsetHistoryInterval"
    ),
    "this broker never does it, as Apache does not by default": (
        "rejectPullConsumerEnable enableBatchPush pullBatchMaxMessageCount enableCleanExpiredOffset "
        "useStaticSubscription "
        "enableConsumeQueueExt maxLmqConsumeQueueNum timerInterceptDelayLevel timerStopDequeue "
        "timerStopEnqueue"
    ),
    "not served by this name server": (
        "needWaitForService waitSecondsForService notifyMinBrokerIdChanged enableControllerInNamesrv "
        "enableAllTopicList enableTopicList unRegisterBrokerQueueCapacity productEnvName clusterTest "
        "clientRequestThreadPoolNums "
        "defaultThreadPoolNums clientRequestThreadPoolQueueCapacity defaultThreadPoolQueueCapacity"
    ),
}
WITHOUT_EFFECT: dict[str, str] = {
    key: reason for reason, keys in WITHOUT_EFFECT_BY_REASON.items() for key in keys.split()
}

# Values of acting keys that ask for more than they get here, without anything being acknowledged for it: the
# start says so.
NOTED = {
    (
        "brokerRole",
        "SLAVE",
    ): "this broker refuses sends and copies from no master; what its store holds is served as it is"
}

# Key -> (values that are fine, why any other is refused). These would be missed unseen, or make a store we
# cannot read.
REFUSED: dict[str, tuple[tuple[str, ...], str]] = {
    "transientStorePoolEnable": (
        ("false",),
        "the transient store pool (commit from an off-heap buffer) comes with replication, later",
    ),
    "aclEnable": (
        ("false",),
        "access control comes in an issue of its own; a broker told to check must not run open",
    ),
    "authenticationEnabled": (
        ("false",),
        "access control comes in an issue of its own; a broker told to check must not run open",
    ),
    "authorizationEnabled": (
        ("false",),
        "access control comes in an issue of its own; a broker told to check must not run open",
    ),
    "useTLS": (("false",), "this broker speaks no TLS; put something that does in front of it"),
    "timerPrecisionMs": (
        ("1000",),
        "a timer wheel has a slot a second, whatever was put on one of another precision would come "
        "at a wrong time",
    ),
    "storeType": (("default",), "only the file store is there, not RocksDB"),
    "rocksdbCQDoubleWriteEnable": (("false",), "only the file store is there, not RocksDB"),
    "enableDLegerCommitLog": (("false",), "a DLedger commit log has another format"),
    "inSyncReplicas": (
        ("1",),
        f"{_ONE_COPY}, so a send would be acknowledged before that many have it; set 1 or leave it out",
    ),
    "minInSyncReplicas": (
        ("1",),
        f"{_ONE_COPY}, so sends would be taken with fewer in step than are asked for; set 1 or leave it out",
    ),
    "totalReplicas": (("1",), f"{_ONE_COPY}; set 1 or leave it out"),
    "allAckInSyncStateSet": (
        ("false",),
        f"{_ONE_COPY}, so no other's acknowledgement can be waited for; set false or leave it out",
    ),
    "enableSlaveActingMaster": (
        ("false",),
        f"{_ONE_COPY}, so no slave can take over from it; set false or leave it out",
    ),
    "enableRemoteEscape": (
        ("false",),
        f"{_ONE_COPY}, so no slave can hand its messages on; set false or leave it out",
    ),
    "haMasterAddress": (("",), f"{_ONE_COPY}: it would copy nothing from that master; leave it out"),
    "duplicationEnable": (
        ("false",),
        f"{_ONE_COPY}: its log is not a duplicate of another's; set false or leave it out",
    ),
    "enableControllerMode": (
        ("false",),
        f"{_ONE_COPY}, and no controller can elect it; set false or leave it out",
    ),
    "enableLmq": (("false",), "light message queues are not supported"),
    "enableMultiDispatch": (("false",), "light message queues are not supported"),
    "messageStorePlugIn": (("",), "there are no store plug-ins"),
}


def load_settings(
    conf_file: Path | None = None,
    overrides: Mapping[str, str] | None = None,
    *,
    store_root: Path | None = None,
    default_store_root: Path | None = None,
    name_server: Mapping[str, str] | None = None,
) -> Settings:
    """The settings of a broker process, from a broker.conf, then `--set key=value`, then what the command
    line names itself.

    `overrides` win over the file, `store_root` (--store) over both; `default_store_root` (from --data) is for
    when none of them says where the store lies. The name server in the process takes its keys from the same
    places, but for its listenPort, which is another than the broker's and stands in `name_server`.
    ConfigError for an unknown, refused or wrong key.
    """
    given = read_properties(conf_file) if conf_file is not None else {}
    given.update(overrides or {})
    if store_root is not None:
        given["storePathRootDir"] = str(store_root)
    elif default_store_root is not None:
        given.setdefault("storePathRootDir", str(default_store_root))
    store = _acting(StoreSettings)
    broker = _acting(BrokerSettings)
    of_name_server = _acting(NameServerSettings).keys() - {"listenPort"}
    values, notes = _sort_out(given, store.keys() | broker.keys() | of_name_server)
    shared = {key: value for key, value in values.items() if key in of_name_server}
    store_settings, broker_settings = _make(StoreSettings, values), _make(BrokerSettings, values)
    if store_settings.broker_role != "SLAVE" and broker_settings.broker_id != 0:
        notes += (
            f"brokerId={broker_settings.broker_id}: a master has id 0, which is taken, as Apache's "
            f"start does; clients send to id 0 alone",
        )
        broker_settings = dataclasses.replace(broker_settings, broker_id=0)
    return Settings(
        store=store_settings,
        broker=broker_settings,
        name_server=load_name_server_settings(None, shared | dict(name_server or {})),
        notes=notes,
    )


def load_name_server_settings(
    conf_file: Path | None = None, overrides: Mapping[str, str] | None = None
) -> NameServerSettings:
    """The settings of a name server that runs alone, from a namesrv.conf and `--set`; ConfigError as
    above."""
    given = read_properties(conf_file) if conf_file is not None else {}
    given.update(overrides or {})
    values, _ = _sort_out(given, _acting(NameServerSettings).keys())
    return _make(NameServerSettings, values)


def read_properties(path: Path) -> dict[str, str]:
    """A file in Java's properties format; ConfigError when it cannot be read."""
    try:
        return parse_properties(Path(path).read_bytes().decode("latin-1"))
    except OSError as error:
        raise ConfigError("configFile", path, f"cannot be read: {error.strerror}") from None


def parse_properties(text: str) -> dict[str, str]:
    """The keys and values of java.util.Properties: `key = value`, `key: value` or `key value`, # and ! begin
    a comment, a backslash continues a line or begins an escape; of two equal keys the last wins."""
    pairs = {}
    lines = iter(re.split(r"\r\n|\r|\n", text))
    for line in lines:
        line = line.lstrip(" \t\f")
        if not line or line[0] in "#!":
            continue
        while _continues(line):
            line = line[:-1] + next(lines, "").lstrip(" \t\f")
        match = re.match(r"((?:\\.|[^\\=: \t\f])*)[ \t\f]*[=:]?[ \t\f]*(.*)", line, re.DOTALL)
        assert match is not None  # each of its parts may be empty
        pairs[_unescape(match[1])] = _unescape(match[2]).strip()
    return pairs


def _continues(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def _unescape(text: str) -> str:
    def one(match: re.Match) -> str:
        code = match[1]
        return chr(int(code[1:], 16)) if len(code) == 5 else _ESCAPES.get(code, code)

    return re.sub(r"\\(u[0-9a-fA-F]{4}|.)", one, text, flags=re.DOTALL)


def _acting(kind: type) -> dict[str, dataclasses.Field]:
    """The fields of a settings class by Apache's key."""
    return {field.metadata["setting"].key: field for field in dataclasses.fields(kind)}


def acting_settings() -> list[tuple[str, dataclasses.Field]]:
    """(group, field) of every acting key, for the docs."""
    groups = (("Store", StoreSettings), ("Broker", BrokerSettings), ("Name server", NameServerSettings))
    return [(group, field) for group, kind in groups for field in dataclasses.fields(kind)]


def properties_of(*settings: _Checked) -> dict[str, object]:
    """The values that act, by Apache's keys."""
    return {
        field.metadata["setting"].key: getattr(group, field.name)
        for group in settings
        for field in dataclasses.fields(group)
    }


def _sort_out(given: Mapping[str, str], acting: AbstractSet[str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """The acting keys among those given, and a note on each of the others; ConfigError for what must not be
    there."""
    values, notes = {}, []
    for key, value in given.items():
        if key in acting:
            values[key] = value
            if note := NOTED.get((key, value.strip())):
                notes.append(f"{key}={value.strip()}: {note}")
        elif key in REFUSED:
            allowed, reason = REFUSED[key]
            if value.strip() not in allowed:
                raise ConfigError(key, value, reason)
        elif key in WITHOUT_EFFECT:
            notes.append(f"{key} has no effect here: {WITHOUT_EFFECT[key]}")
        else:
            raise ConfigError(key, value, "there is no such setting" + _suggestion(key, acting))
    return values, tuple(notes)


def _suggestion(key: str, acting: AbstractSet[str]) -> str:
    known = sorted(acting | REFUSED.keys() | WITHOUT_EFFECT.keys())
    lowered = {name.lower(): name for name in known}
    near = difflib.get_close_matches(key.lower().replace("_", "").replace("-", ""), lowered, n=1, cutoff=0.75)
    return f"; did you mean {lowered[near[0]]}?" if near else ""


def _make(kind: type, values: Mapping[str, str]):
    """A settings object from texts; keys of other objects are passed over."""
    fields = _acting(kind)
    return kind(
        **{
            fields[key].name: _parse(key, str(fields[key].type), text)
            for key, text in values.items()
            if key in fields
        }
    )


def _parse(key: str, kind: str, text: str):
    text = text.strip()
    if kind == "int":
        return _parse_int(key, text)
    if kind == "bool":
        if text.lower() not in ("true", "false"):
            raise ConfigError(key, text, "want true or false")
        return text.lower() == "true"
    if kind.startswith("Path"):
        if not text:
            raise ConfigError(key, text, "want a path")
        return Path(text.replace("${user.home}", "~")).expanduser()
    return text


def _parse_int(key: str, text: str) -> int:
    if key.endswith("Ratio") and re.fullmatch(r"0?\.[0-9]{1,4}", text):
        return round(float(text) * 100)  # older Apache versions took these as fractions
    if not re.fullmatch(r"-?[0-9]{1,18}", text):
        raise ConfigError(key, text, "want an integer")
    return int(text)
