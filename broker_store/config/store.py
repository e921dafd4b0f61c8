"""The settings of the store engine."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from broker_store.config.controller import ControllerSettings
from broker_store.config.replication import SLAVE, ReplicationSettings
from broker_store.config.setting import INT_MAX, setting
from broker_store.errors import ConfigError

QUEUE_UNIT_BYTES = 20
MIN_LOG_FILE_BYTES = 4096


def _hours(value: str) -> str | None:
    parts = [part.strip() for part in value.split(";") if part.strip()]
    if not parts or not all(part.isascii() and part.isdigit() and int(part) < 24 for part in parts):
        return "expected hours of the day from 00 to 23, several joined by ;"
    return None


def _delay_levels(value: str) -> str | None:
    words = value.split()
    if not words or not all(re.fullmatch(r"[0-9]{1,6}[smhd]", word) for word in words):
        return "expected numbers with a unit of s, m, h or d, joined by blanks"
    return None


def delay_levels_ms(levels: str) -> tuple[int, ...]:
    """Return the delay in ms of each level of `1s 5s 1m ..`; index 0 is level 1. Raises ConfigError."""
    if problem := _delay_levels(levels):
        raise ConfigError("messageDelayLevel", levels, problem)
    unit_ms = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
    return tuple(int(word[:-1]) * unit_ms[word[-1]] for word in levels.split())


@dataclass(frozen=True)
class StoreSettings(ReplicationSettings, ControllerSettings):
    """The settings that the store engine gets."""

    store_path_root_dir: Path = setting(
        "storePathRootDir",
        Path("data/store"),
        "path",
        "directory of log, queues, index and config; runbroker sets it from --data or --store",
    )
    store_path_commit_log: Path | None = setting(
        "storePathCommitLog",
        None,
        "path",
        "directory of the commit log if not commitlog/ of the root, for example on a disk of its own",
    )
    mapped_file_size_commit_log: int = setting(
        "mappedFileSizeCommitLog",
        1 << 30,
        "bytes",
        "length of a commit log file; a store must be opened with the size it was created with",
        low=MIN_LOG_FILE_BYTES,
    )
    mapped_file_size_consume_queue: int = setting(
        "mappedFileSizeConsumeQueue",
        300_000 * QUEUE_UNIT_BYTES,
        "bytes",
        "length of a queue file, rounded up to whole units of 20 bytes; a store must be opened with "
        "the size it was created with",
        low=QUEUE_UNIT_BYTES,
        high=INT_MAX // QUEUE_UNIT_BYTES * QUEUE_UNIT_BYTES,
    )
    max_mapped_files: int = setting(
        "maxMappedFiles",
        0,
        "files",
        "most files of the store that are mapped; at this limit the files of idle queues are unmapped, 8 KiB "
        "each. 0: a thirty-second part of the memory that the process may use, at least 1,024 files",
        ours=True,
    )
    max_hash_slot_num: int = setting(
        "maxHashSlotNum",
        5_000_000,
        "slots",
        "hash slots of an index file: more slots, shorter chains; fixed for the life of a store",
        low=1,
    )
    max_index_num: int = setting(
        "maxIndexNum",
        20_000_000,
        "entries",
        "entries of an index file (one less is used); fixed for the life of a store",
        low=2,
        high=100_000_000,
    )
    message_index_enable: bool = setting(
        "messageIndexEnable",
        True,
        "",
        "whether keys are indexed; without it a message is found by offset, id or time only",
    )
    enabled_append_prop_crc: bool = setting(
        "enabledAppendPropCRC",
        False,
        "",
        "whether each record ends with a CRC of all of it, a property of 20 bytes that clients see "
        "too; a record that has one is"
        " checked with it in any case",
    )
    flush_disk_type: str = setting(
        "flushDiskType",
        "ASYNC_FLUSH",
        "",
        "SYNC_FLUSH answers a send when it is on disk, ASYNC_FLUSH when it is in the page cache and "
        "syncs soon after",
        choices=("ASYNC_FLUSH", "SYNC_FLUSH"),
    )
    flush_interval_commit_log: int = setting(
        "flushIntervalCommitLog",
        500,
        "ms",
        "how often the log is synced with ASYNC_FLUSH; bounded to 1 s, the most a power cut may take",
        low=1,
        high=1000,
        clamp=True,
    )
    flush_interval_consume_queue: int = setting(
        "flushIntervalConsumeQueue",
        1000,
        "ms",
        "how often the flusher checks for queue files that are due",
        low=1,
        high=60_000,
    )
    flush_consume_queue_thorough_interval: int = setting(
        "flushConsumeQueueThoroughInterval",
        30_000,
        "ms",
        "the longest time until a queue or index file is synced and the checkpoint moved: how much log "
        "is read again after a crash (Apache: 60000)",
        low=100,
        high=3_600_000,
    )
    transient_store_pool_enable: bool = setting(
        "transientStorePoolEnable",
        False,
        "",
        "whether the log is appended in buffers of this process and copied to its files a moment later: only "
        "with ASYNC_FLUSH and a master. A send is answered before that, so a kill of the process loses the "
        "last acknowledged messages (Store > Crash shows how many)",
    )
    transient_store_pool_size: int = setting(
        "transientStorePoolSize",
        5,
        "buffers",
        "how many there are, each of mappedFileSizeCommitLog; memory is taken as they fill",
        low=2,
        high=1024,
    )
    fast_fail_if_no_buffer_in_store_pool: bool = setting(
        "fastFailIfNoBufferInStorePool",
        False,
        "",
        "whether a message that needs a new log file is refused while all buffers are in use, in place of a "
        "file without a buffer; sends are refused as busy in both cases",
    )
    commit_interval_commit_log: int = setting(
        "commitIntervalCommitLog",
        200,
        "ms",
        "how often a buffer is copied to its file, if no append does it earlier",
        low=1,
        high=1000,
    )
    commit_commit_log_least_pages: int = setting(
        "commitCommitLogLeastPages",
        4,
        "pages of 4 KiB",
        "how much must be appended to be copied before commitCommitLogThoroughInterval has passed",
        low=0,
        high=INT_MAX,
    )
    commit_commit_log_thorough_interval: int = setting(
        "commitCommitLogThoroughInterval",
        200,
        "ms",
        "after so long all that is appended is copied; with the interval above, how long a consumer may wait "
        "for a message, and what a kill loses",
        low=1,
        high=1000,
    )
    wake_commit_when_put_message: bool = setting(
        "wakeCommitWhenPutMessage",
        True,
        "",
        "whether an append wakes the thread that copies, so that commitCommitLogLeastPages act at once",
    )
    sync_flush_timeout: int = setting(
        "syncFlushTimeout",
        5000,
        "ms",
        "how long a send waits for its sync before it is answered FLUSH_DISK_TIMEOUT",
        low=1,
    )
    max_message_size: int = setting(
        "maxMessageSize",
        4 << 20,
        "bytes",
        "largest body; a larger one is answered MESSAGE_ILLEGAL",
        low=1,
        high=(16 << 20) - (64 << 10),
    )
    file_reserved_time: int = setting(
        "fileReservedTime",
        72,
        "hours",
        "how old a commit log file must be to be deleted by age",
        low=1,
        high=INT_MAX // 3_600_000,
    )
    delete_when: str = setting(
        "deleteWhen",
        "04",
        "hours of the day",
        "when expired files are deleted, host's time zone, several joined by ;",
        check=_hours,
        live=True,
    )
    clean_resource_interval: int = setting(
        "cleanResourceInterval",
        10_000,
        "ms",
        "how often retention and disk use are checked",
        low=100,
        high=3_600_000,
    )
    disk_max_used_space_ratio: int = setting(
        "diskMaxUsedSpaceRatio",
        75,
        "per cent",
        "above it expired files are deleted at any hour; bounded to 10..95 as in Apache",
        low=10,
        high=95,
        clamp=True,
    )
    disk_space_clean_forcibly_ratio: int = setting(
        "diskSpaceCleanForciblyRatio",
        85,
        "per cent",
        "above it the oldest files are deleted at once, expired or not; bounded to 30..85 as in Apache",
        low=30,
        high=85,
        clamp=True,
    )
    disk_space_warning_level_ratio: int = setting(
        "diskSpaceWarningLevelRatio",
        90,
        "per cent",
        "above it sends are refused; bounded to 35..90 as in Apache",
        low=35,
        high=90,
        clamp=True,
    )
    clean_file_forcibly_enable: bool = setting(
        "cleanFileForciblyEnable",
        True,
        "",
        "whether files that have not expired may be deleted when the disk is too full",
    )
    delete_file_batch_max: int = setting(
        "deleteFileBatchMax",
        10,
        "files",
        "most files deleted in one round, so that the disk is not busy with deletion alone",
        low=1,
        high=1000,
        live=True,
    )
    check_crc_on_recover: bool = setting(
        "checkCRCOnRecover",
        True,
        "",
        "whether recovery checks the CRC of each body; without it a torn body may be kept",
    )
    os_page_cache_busy_time_out_mills: int = setting(
        "osPageCacheBusyTimeOutMills",
        1000,
        "ms",
        "an append that takes longer causes sends to be refused as busy for the same time",
        low=1,
    )
    max_msgs_num_batch: int = setting(
        "maxMsgsNumBatch", 64, "messages", "most messages that a key query returns", low=1, high=10_000
    )
    max_transfer_bytes_on_message_in_memory: int = setting(
        "maxTransferBytesOnMessageInMemory",
        256 << 10,
        "bytes",
        "most bytes of one pull near the end of the log",
        low=1024,
        high=128 << 20,
    )
    max_transfer_count_on_message_in_memory: int = setting(
        "maxTransferCountOnMessageInMemory",
        32,
        "messages",
        "most messages of one pull near the end of the log",
        low=1,
        high=100_000,
    )
    max_transfer_bytes_on_message_in_disk: int = setting(
        "maxTransferBytesOnMessageInDisk",
        64 << 10,
        "bytes",
        "most bytes of one pull far from the end of the log",
        low=1024,
        high=128 << 20,
    )
    max_transfer_count_on_message_in_disk: int = setting(
        "maxTransferCountOnMessageInDisk",
        8,
        "messages",
        "most messages of one pull far from the end of the log",
        low=1,
        high=100_000,
    )
    access_message_in_memory_max_ratio: int = setting(
        "accessMessageInMemoryMaxRatio",
        40,
        "per cent of memory",
        "how far before the end of the log a message counts as in memory",
        low=0,
        high=95,
    )
    message_delay_level: str = setting(
        "messageDelayLevel",
        "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h",
        "",
        "the delays of levels 1, 2, ..: a queue unit of the schedule topic holds its delivery time",
        check=_delay_levels,
    )
    timer_wheel_enable: bool = setting(
        "timerWheelEnable",
        True,
        "",
        "whether messages may have a delivery time; else such a send is refused",
    )
    mapped_file_size_timer_log: int = setting(
        "mappedFileSizeTimerLog",
        100 << 20,
        "bytes",
        "length of a file of the timer log, 52 bytes a message; a store must be opened with the size "
        "it was created with",
        low=4096,
    )
    timer_flush_interval_ms: int = setting(
        "timerFlushIntervalMs",
        1000,
        "ms",
        "how often the position of timer messages is saved: after a crash later ones are delivered again",
        low=100,
        high=60_000,
    )
    accept_damage: bool = setting(
        "acceptDamage",
        False,
        "",
        "after damage below the checkpoint: cut the log there, copy the removed part to "
        "lost+found, and start",
        ours=True,
    )
    inspect: bool = setting(
        "inspect",
        False,
        "",
        "open a store read-only and change nothing, even while another broker holds it",
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
        if self.transient_store_pool_enable:
            why = "the transient store pool is for a master with flushDiskType=ASYNC_FLUSH"
            if self.flush_disk_type != "ASYNC_FLUSH":
                raise ConfigError(
                    "transientStorePoolEnable",
                    "true",
                    f"{why}: with {self.flush_disk_type} a send is answered when it is on the disk; set "
                    f"one of the two",
                )
            if self.enable_controller_mode:
                raise ConfigError(
                    "transientStorePoolEnable",
                    "true",
                    f"{why}, and enableControllerMode makes slaves of masters; set one of the two",
                )
            if self.broker_role == SLAVE:
                raise ConfigError(
                    "transientStorePoolEnable",
                    "true",
                    f"{why}: a slave copies its master's log into its files; leave it out for a SLAVE",
                )
            if self.enable_controller_mode:
                raise ConfigError(
                    "transientStorePoolEnable",
                    "true",
                    f"{why}: a slave copies its master's log into its files, and a controller may make a "
                    f"slave of this broker; leave it out in controller mode",
                )
        if "," in str(self.store_path_commit_log):
            raise ConfigError(
                "storePathCommitLog",
                self.store_path_commit_log,
                "several directories (multi-path) are not supported, give one",
            )

    @property
    def delete_hours(self) -> frozenset[int]:
        """Return the hours of the day of `deleteWhen`."""
        return frozenset(int(part) for part in self.delete_when.split(";") if part.strip())

    @property
    def delay_levels_ms(self) -> tuple[int, ...]:
        """Return the delay of each level in ms; index 0 is level 1."""
        return delay_levels_ms(self.message_delay_level)
