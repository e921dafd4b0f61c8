"""If it crashed now: what would be lost, and what the next start would do.

What a killed process wrote stays with the system; what a power cut takes is what was not synced. Of a store
with a pool of buffers (transientStorePoolEnable) a kill takes what is in no file yet. In all
cases the next start finds `abort` and begins at the newest log file whose first record is not younger than
the checkpoint less three seconds (engine/start/log_scan.py), and reads from there to the end of the
log. How fast it reads is known only from earlier starts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from broker_store.engine.disk.disk import Disk
from broker_store.engine.start.report import SCAN
from broker_store.engine.start.start_records import names, parsed
from broker_store.engine.status.store_state import Snapshot, StorePool
from broker_store.errors import FormatError, NotFoundError
from broker_store.facts.directory import StoreDirectory
from broker_store.facts.starts import StartReport, record_of
from broker_store.formats import record
from broker_store.units import Moment, fields_of

MAX_REPORTS = 5  # of the newest starts, whose scans give the rate
MIN_SCANNED_BYTES = 1 << 20  # a scan of less is too short to give a rate
_RUNS = "What a crash at this moment would take, and what the start after it would do."
_CLOSED = (
    "The store was closed in order: everything is on the disk, and a start reads only the end of its log."
)
_CRASHED = (
    "The store was not closed in order, or its broker runs: this is what a start would do with the files "
    "as they are."
)
_UNKNOWN_RATE = "no start that is remembered has read enough of a log to show how fast this machine does"


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The log file that a start after a crash begins with."""

    file: str  # its name
    position: int  # the log offset of its beginning
    first_ms: Moment | None  # store time of its first record; None when no file begins early enough
    limit_ms: Moment | None  # that must not be later than this: the checkpoint's time less three seconds
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanRate:
    """How fast starts read their logs. None when no start is remembered that read enough."""

    bytes_per_s: float | None
    other_ms: float | None  # that the other steps of the newest of them took
    measured_by: int  # starts
    why_unknown: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """What a start after a crash reads."""

    rescan_bytes: int | None
    log_end: int | None
    estimated_ms: int | None
    # As in ScanRate
    bytes_per_s: float | None
    other_ms: float | None
    measured_by: int
    why_unknown: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """What a crash takes at most. None is not known."""

    bytes: int | None
    messages: int | None
    oldest_ms: int | None  # age of the first of them


@dataclass(frozen=True, slots=True, kw_only=True)
class CrashLoss:
    """What one kind of crash takes."""

    written: Lost
    acknowledged: Lost  # of these, what was acknowledged to clients
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Losses:
    """What each kind of crash takes."""

    process: CrashLoss  # it is killed
    power: CrashLoss  # it fails


@dataclass(frozen=True, kw_only=True)  # without slots: RunningExposure is made of two classes
class Exposure:
    """If it crashed now: what would be lost, and what the start after it would do."""

    state: str  # that of the store, or closed or crashed where only files are known
    flush_type: str | None  # ASYNC_FLUSH or SYNC_FLUSH
    sentence: str
    start: Start | None
    restart: Restart
    losses: Losses | None
    pool: StorePool | None = None  # of a store that runs with buffers, which a kill takes


@dataclass(frozen=True, kw_only=True)
class _At:
    at_ms: Moment


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningExposure(Exposure, _At):
    """The same of a store that runs, with when it was measured."""


def of_files(directory: StoreDirectory, rate: ScanRate) -> Exposure:
    """What is known from the files alone, of a store without its broker."""
    is_closed = not directory.disk.exists(directory.root / "abort")
    start = None if is_closed else start_of_recovery(directory)
    return Exposure(
        state="closed" if is_closed else "crashed",
        flush_type=None,
        sentence=_CLOSED if is_closed else _CRASHED,
        start=start,
        restart=restart(start, directory.log_end(), rate),
        losses=None,
    )


def of(directory: StoreDirectory, store: Snapshot, rate: ScanRate) -> RunningExposure:
    """`store` is the snapshot of a store that runs. It reads files: not for the loop."""
    return with_start(store, start_of_recovery(directory), rate)


def with_start(store: Snapshot, start: Start | None, rate: ScanRate) -> RunningExposure:
    """The exposure of a store that runs, of which it is known where a start would begin."""
    return RunningExposure(
        state=store.state,
        flush_type=store.flush.type,
        sentence=_RUNS,
        start=start,
        restart=restart(start, store.positions.wrote, rate),
        losses=losses(store),
        pool=store.pool,
        at_ms=store.at_ms,
    )


def losses(store: Snapshot) -> Losses:
    """What each kind of crash would take of what is written, at most, and what of that was acknowledged."""
    lag, is_sync = store.lag, store.flush.type == "SYNC_FLUSH"
    unflushed = Lost(
        bytes=lag.unflushed_bytes,
        messages=lag.unflushed_messages,
        oldest_ms=lag.oldest_unflushed_ms,
    )
    nothing = Lost(bytes=0, messages=0, oldest_ms=0)
    known = unflushed.bytes is not None
    if not known:
        sentence = "How much of the log is on the disk is not known yet."
    elif is_sync:
        sentence = (
            "Nothing that was acknowledged: with SYNC_FLUSH a send is answered when its message is on "
            "the disk."
        )
    elif unflushed.bytes == 0:
        sentence = "Nothing at this moment: all of the log is on the disk."
    else:
        sentence = (
            "Acknowledged messages that are not on the disk yet, at most as many as stand here; of each "
            "queue only its newest."
        )
    return Losses(
        process=_of_kill(store, nothing),
        power=CrashLoss(
            written=unflushed,
            acknowledged=nothing if known and is_sync else unflushed,
            sentence=sentence,
        ),
    )


def _of_kill(store: Snapshot, nothing: Lost) -> CrashLoss:
    pool, lag = store.pool, store.lag
    if pool is None:
        return CrashLoss(
            written=nothing,
            acknowledged=nothing,
            sentence="Nothing: what was written stays in the system's memory when the process is killed.",
        )
    uncommitted = Lost(
        bytes=lag.uncommitted_bytes,
        messages=lag.uncommitted_messages,
        oldest_ms=lag.oldest_uncommitted_ms,
    )
    if not pool.answers_early:
        sentence = (
            "Nothing that was acknowledged: with SYNC_MASTER a send is answered when slaves have it, and "
            "they get what is in the files."
        )
    elif uncommitted.bytes == 0:
        sentence = "Nothing at this moment: all of the log is in its files."
    else:
        sentence = (
            "Acknowledged messages that are in a buffer of the transient store pool and in no file yet, at "
            "most as many as stand here; of each queue only its newest."
        )
    return CrashLoss(
        written=uncommitted,
        acknowledged=uncommitted if pool.answers_early else nothing,
        sentence=sentence,
    )


def start_of_recovery(directory: StoreDirectory) -> Start | None:
    """The log file that a start after a crash begins with; None without any."""
    files, limit_ms = directory.log_files(), directory.checkpoint_limit_ms()
    if not files:
        return None
    chosen, first_ms = files[0], None
    for file in reversed(files):
        found_ms = _first_stored_ms(directory, file[0])
        if found_ms is not None and 0 < found_ms <= limit_ms:
            chosen, first_ms = file, found_ms
            break
    if first_ms is not None:
        why = "the newest file whose first record is not younger than the checkpoint less 3 s"
    elif limit_ms > 0:
        why = "no file begins with a record that is old enough, so all are read"
    else:
        why = "the checkpoint lacks a time, so all are read"
    return Start(
        file=chosen[2].name, position=chosen[0], first_ms=first_ms, limit_ms=limit_ms or None, why=why
    )


def _first_stored_ms(directory: StoreDirectory, base: int) -> int | None:
    """Store time of a file's first record; None when no good one is there."""
    try:
        return record.decode(directory.record_at(base), log_offset=base).store_timestamp
    except (FormatError, NotFoundError):
        return None


def restart(start: Start | None, log_end: int | None, rate: ScanRate) -> Restart:
    """How much such a start reads, and how long it takes as far as earlier ones show."""
    rescan = None if start is None or log_end is None else max(0, log_end - start.position)
    estimated_ms = None
    if rescan is not None and rate.bytes_per_s is not None and rate.other_ms is not None:
        estimated_ms = round(rescan / rate.bytes_per_s * 1000 + rate.other_ms)
    return Restart(
        rescan_bytes=rescan,
        log_end=log_end,
        estimated_ms=estimated_ms,
        **fields_of(rate),
    )


def scan_rate(found: Iterable[StartReport]) -> ScanRate:
    """Return how fast the last starts read their logs, and what the other steps of the newest of them
    took."""
    scans, other_ms = [], None
    for start in found:
        # A dry run reads what is in memory by then, and a start for inspection copies what it changes.
        if start.purpose != "start" or start.state != "done":
            continue
        if start.started_ms is None or start.finished_ms is None:
            continue
        steps = [(step.bytes, step.duration_ms) for step in start.steps if step.name == SCAN]
        size = sum(size for size, took_ms in steps if took_ms)
        took_ms = sum(took_ms for _, took_ms in steps if took_ms)
        if size < MIN_SCANNED_BYTES:
            continue
        scans.append((size, took_ms))
        if other_ms is None:
            other_ms = max(0.0, start.finished_ms - start.started_ms - took_ms)
        if len(scans) == MAX_REPORTS:
            break
    if not scans:
        return ScanRate(bytes_per_s=None, other_ms=None, measured_by=0, why_unknown=_UNKNOWN_RATE)
    rate = sum(size for size, _ in scans) / sum(took_ms for _, took_ms in scans) * 1000
    return ScanRate(bytes_per_s=rate, other_ms=other_ms, measured_by=len(scans), why_unknown=None)


def reports(directory: Path, disk: Disk | None = None) -> Iterator[StartReport]:
    """Yield the records of earlier starts that are kept in a directory, newest first."""
    disk = disk or Disk()
    for name in reversed(names(disk, directory)):
        raw = disk.read_file(directory / name)
        record = None if raw is None else parsed(raw)
        if record is not None:
            with suppress(ValueError):  # of another version
                yield record_of(record)
