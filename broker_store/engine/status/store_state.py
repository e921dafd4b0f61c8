"""Facts of a store at one moment: all that is cheap to know. `StoreStatus.snapshot` makes them."""

from __future__ import annotations

from dataclasses import dataclass

from broker_store.units import Moment, Small


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamps:
    """The store times in the checkpoint: what was stored before them is on the disk."""

    physic_ms: Moment | None = None  # of the log
    logics_ms: Moment | None = None  # of the queues
    index_ms: Moment | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPositions:
    """Log offsets. None is not known: of a store that is inspected, how much of it is on the disk."""

    min: int | None = None  # of the first file
    wrote: int | None = None  # of the next message
    confirmed: int | None = None  # readers may see what is before it
    committed: int | None = None  # what is before it is in the files; only with a pool of buffers
    flushed: int | None = None  # what is before it is on the disk
    dispatched: int | None = None  # what is before it stands in queues and index
    checkpoint_position: int | None = None  # queues and index before it are also on the disk
    checkpoint: Stamps = Stamps()


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """What is written and not dispatched, not on the disk, or not even in a file."""

    dispatch_bytes: int | None = None
    unflushed_bytes: int | None = None
    oldest_unflushed_ms: int | None = None  # age of the first such record
    unflushed_messages: int | None = None
    # What is in a buffer of the pool and not in a file; None without a pool
    uncommitted_bytes: int | None = None
    oldest_uncommitted_ms: int | None = None
    uncommitted_messages: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StorePool:
    """The transient store pool."""

    buffers: Small
    free_buffers: Small
    answers_early: bool  # a send is answered before it is in a file: no slave is waited for


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """A state in which the store refuses or lacks something."""

    name: str
    cause: str
    since_ms: Moment


@dataclass(frozen=True, slots=True, kw_only=True)
class Flush:
    """The syncs of the log."""

    type: str | None = None  # ASYNC_FLUSH or SYNC_FLUSH
    count: Small | None = None
    last_duration_ms: float | None = None
    max_duration_ms: float | None = None
    errors: int | None = None  # 1 when the last sync failed


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Counters since the start."""

    puts: int | None = None  # messages
    put_bytes: int | None = None
    gets: int | None = None  # reads of queues
    get_messages: int | None = None
    get_bytes: int | None = None
    cold_gets: int | None = None  # of these, reads that went to the disk
    key_lookups: int | None = None
    cold_lookups: int | None = None
    cold_bytes: int | None = None
    cold_ms: float | None = None
    refused: dict[str, int]  # messages by the name of their PutStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskSpace:
    """The fuller one of the file systems that the store lies on. None before it was measured."""

    total_bytes: int | None = None
    free_bytes: int | None = None
    used_ratio: float | None = None  # 0 to 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LostAndFound:
    """Files that recoveries took away and kept. None when they cannot be read."""

    files: int | None = None
    bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The sizes that the settings give new files."""

    commit_log_file: int | None = None  # bytes
    queue_file: int | None = None  # bytes
    index_slots: int | None = None
    index_entries: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexFileHeader:
    """An index file as its header states it. The sizes are None where no known geometry has the file's
    length."""

    name: str
    slots: Small | None
    slots_used: Small
    entries: int
    max_entries: int | None
    begin_ms: Moment | None  # store time of its first message
    end_ms: Moment | None  # and of its last
    begin_offset: int  # log offsets of the two
    end_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexFileFacts(IndexFileHeader):
    """An index file of a running store."""

    state: str  # full, writing, or read where nothing more is written


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFile:
    """A mapped file, measured now. Facts that only the writing process knows are None without it."""

    kind: str  # commitlog, consumequeue or index
    name: str
    topic: str | None = None  # of a queue's file
    queue_id: Small | None = None
    # Of its first byte in the whole sequence of files; of an index the log offset of its first message
    base: int | None
    size: int  # bytes
    allocated: int | None = None  # bytes for which it has room on the disk
    wrote: int | None = None  # bytes
    confirmed: int | None = None  # bytes of the log that may be shown
    flushed: int | None = None  # bytes that are on the disk
    # full, writing, preallocated (made ahead of the writer), warming (the same, and its first pages are being
    # touched), expired (full, and old enough to be deleted) or hung (deleted, and still held by this process)
    state: str | None = None
    mapped: bool | None = None
    readers: int | None = None  # descriptors by which cold reads hold it
    first_ms: Moment | None = None  # store times of what it holds, as far as they are known cheaply
    last_ms: Moment | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A store at one moment. Fields with a default are not known before a store exists."""

    at_ms: Moment
    state: str  # starting, opening, recovering, running, read_only, closed or failed
    positions: LogPositions = LogPositions()
    lag: Lag = Lag()
    flags: list[Flag]
    flush: Flush = Flush()
    totals: Totals
    disk: DiskSpace = DiskSpace()
    lost_and_found: LostAndFound = LostAndFound()
    queues: Small | None = None
    commit_log_files: Small | None = None
    index: IndexFileFacts | None = None  # the newest
    sizes: Sizes = Sizes()
    pool: StorePool | None = None  # where transientStorePoolEnable is set


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildProgress:
    """How far a rebuild of the index is, while the store runs."""

    state: str  # idle, running, done, failed or cancelled
    done_bytes: int  # of the log
    total_bytes: int
    error: str | None  # of a rebuild that failed
