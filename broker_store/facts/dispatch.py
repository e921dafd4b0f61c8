"""The steps that follow the end of the log: how far each has come, in bytes and in the age of the first
record it lacks.

The log's end runs ahead; four follow it. Queues and index are filled by one pass here, so they stand at one
position. In the files that a crash left, or Apache's broker, each stands for itself.
"""

from __future__ import annotations

from dataclasses import dataclass

from broker_store.engine.flusher import MAX_ROUND_MS
from broker_store.engine.status.store_state import LogPositions, RebuildProgress, Snapshot, Stamps
from broker_store.engine.store import MessageStore
from broker_store.errors import NotFoundError
from broker_store.facts.directory import StoreDirectory
from broker_store.facts.neighbours import record_before
from broker_store.facts.positions import Positions
from broker_store.facts.write_path import Histogram, sync_facts
from broker_store.units import Moment, Small, fields_of

_CHECKPOINT = "checkpoint_position"
# In the order of a record's way: field of LogPositions, what it is called.
SINKS = {
    "confirmed": "Confirmed",
    "dispatched": "Dispatched",
    "flushed": "Flushed",
    _CHECKPOINT: "Checkpoint",
}
# What the files alone show; how far the log was confirmed and synced only the process knew that wrote
# it.
FILE_SINKS = {"queues": "Queues", "index": "Index", _CHECKPOINT: "Checkpoint"}
# What is named when it is the slowest. The checkpoint lags by its nature: it is set twice a minute.
_RUNNERS = ("confirmed", "dispatched", "flushed")
_WHY = {
    "confirmed": "records are shown and acknowledged only when they are on the disk",
    "dispatched": "until then a message is stored but can be neither pulled nor found by its key",
    "flushed": "a power cut could take what lies after it",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sink:
    """How far one step has come. None is not known."""

    position: int | None = None  # a log offset
    lag_bytes: int | None = None
    lag_ms: int | None = None  # age of the first record that it lacks


@dataclass(frozen=True, slots=True, kw_only=True)
class Race:
    """How far each step has come, beside the end of the log."""

    end: int | None  # a log offset
    sinks: dict[str, Sink]  # by their names in SINKS, or in FILE_SINKS
    slowest: str | None  # the name of one of _RUNNERS; None when none lags
    sentence: str
    index_rebuild: RebuildProgress | None  # while one runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """The rounds that bring queues and index to the disk, and then set the checkpoint."""

    longest_interval_ms: int
    last_duration_ms: float | None  # None before the first
    position: int | None  # what is before this log offset is on the disk


@dataclass(frozen=True, slots=True, kw_only=True)
class Flushing:
    """How the log, and how queues and index come to the disk."""

    at_ms: Moment
    type: str  # ASYNC_FLUSH or SYNC_FLUSH
    count: Small  # syncs of the log since the start
    last_duration_ms: float | None
    max_duration_ms: float | None
    errors: int  # 1 when the last sync failed
    interval_ms: int  # between two syncs of ASYNC_FLUSH
    unflushed_bytes: int | None
    unflushed_messages: int | None
    oldest_unflushed_ms: int | None  # age of the first record that is not on the disk
    sync_us: Histogram
    round: Round
    checkpoint: Stamps


def race(
    positions: LogPositions, lag_ms: dict[str, int | None], rebuild: RebuildProgress | None = None
) -> Race:
    """`positions` of the store, `lag_ms` the age of the first record that each sink lacks: numbers, and a
    sentence on them."""
    end, places = positions.wrote, {name: getattr(positions, name) for name in SINKS}
    sinks = {
        name: Sink(
            position=place,
            lag_bytes=None if end is None or place is None else end - place,
            lag_ms=lag_ms.get(name),
        )
        for name, place in places.items()
    }
    return Race(
        end=end,
        sinks=sinks,
        slowest=_slowest(sinks),
        sentence=_sentence(sinks),
        index_rebuild=rebuild,
    )


def of(store: MessageStore) -> Race:
    """The race of a store that runs."""
    positions = store.status.positions()
    places = {name: getattr(positions, name) for name in SINKS}
    ages = {name: None if place is None else store.status.lag_ms(place) for name, place in places.items()}
    rebuild = store.rebuilding.progress()
    return race(positions, ages, rebuild if rebuild.state == "running" else None)


def of_files(directory: StoreDirectory) -> Race:
    """The race as a store's files have it, before any start has repaired them.

    Queues and index stand at the end of the newest record that they name, the checkpoint at the first record
    that is younger than its oldest stamp. `lag_ms` is the time from the first record that a sink lacks to
    the newest one.
    """
    end = directory.log_end()
    with Positions(directory, log_end=end) as positions:
        places = {
            "queues": _queues_reach(positions),
            "index": _index_reaches(directory),
            _CHECKPOINT: _checkpoint_stands(directory, positions),
        }
        newest_ms = positions.store_ms(last) if (last := _last_record(directory, end)) is not None else None
        sinks = {
            name: _of_file(positions, min(place, end), end, newest_ms) if place is not None else Sink()
            for name, place in places.items()
        }
    behind = [
        f"{FILE_SINKS[name]} {'not known' if sink.position is None else _distance(sink)}"
        for name, sink in sinks.items()
        if sink.lag_bytes != 0
    ]
    said = "; ".join(behind) if behind else "queues, index and checkpoint are at the end of the log"
    return Race(
        end=end,
        sinks=sinks | dict.fromkeys(("confirmed", "flushed"), Sink()),
        slowest=None,
        sentence=f"As the files have it: {said}.",
        index_rebuild=None,
    )


def _of_file(positions: Positions, place: int, end: int, newest_ms: int | None) -> Sink:
    lacks_ms = newest_ms if place == end else positions.store_ms(place)
    return Sink(
        position=place,
        lag_bytes=end - place,
        lag_ms=None if newest_ms is None or lacks_ms is None else newest_ms - lacks_ms,
    )


def _queues_reach(positions: Positions) -> int:
    units = (positions.unit(queue, positions.ends(queue)[1] - 1) for queue in positions.queues())
    return max(
        (unit.log_offset + unit.size for unit in units if unit is not None and unit.is_data),
        default=positions.log_minimum,
    )


def _index_reaches(directory: StoreDirectory) -> int | None:
    """None without an index, and when the message it ends with is not in the log."""
    files = [header for header in directory.index() if header.entries > 0]
    try:
        return files[-1].end_offset + len(directory.record_at(files[-1].end_offset)) if files else None
    except NotFoundError:
        return None


def _checkpoint_stands(directory: StoreDirectory, positions: Positions) -> int | None:
    """None without a checkpoint; where the log begins when a stamp of it was never set."""
    stamps = directory.checkpoint()
    if stamps is None:
        return None
    stamp = min(stamps[:3])
    if stamp <= 0:
        return positions.log_minimum
    return positions.first_younger(stamp)


def _last_record(directory: StoreDirectory, end: int) -> int | None:
    for base, size, path in reversed(directory.log_files()):
        if base < end:
            with directory.disk.open_reader(path) as reader:
                found = record_before(reader, base, size, min(end - base, size))
            if found is not None:
                return base + found[0]
    return None


def flush(store: MessageStore) -> Flushing:
    """How the log, and how queues and index come to the disk."""
    snapshot, settings = store.status.snapshot(), store.settings
    return flushing(
        snapshot,
        interval_ms=settings.flush_interval_commit_log,
        sync_us=sync_facts(store.write_path),
        round=Round(
            longest_interval_ms=min(settings.flush_consume_queue_thorough_interval, MAX_ROUND_MS),
            last_duration_ms=store.status.last_round_duration_ms,
            position=snapshot.positions.checkpoint_position,
        ),
    )


def flushing(snapshot: Snapshot, *, interval_ms: int, sync_us: Histogram, round: Round) -> Flushing:
    """What a snapshot says of flushing, with what is measured beside it."""
    lag = snapshot.lag
    return Flushing(
        at_ms=snapshot.at_ms,
        **fields_of(snapshot.flush),
        interval_ms=interval_ms,
        unflushed_bytes=lag.unflushed_bytes,
        unflushed_messages=lag.unflushed_messages,
        oldest_unflushed_ms=lag.oldest_unflushed_ms,
        sync_us=sync_us,
        round=round,
        checkpoint=snapshot.positions.checkpoint,
    )


def _slowest(sinks: dict[str, Sink]) -> str | None:
    """The runner that lags most; None when none does, or nothing is known."""
    behind = [name for name in _RUNNERS if sinks[name].lag_bytes]
    return max(behind, key=lambda name: (sinks[name].lag_ms or 0, sinks[name].lag_bytes)) if behind else None


def _sentence(sinks: dict[str, Sink]) -> str:
    unknown = [f"“{SINKS[name]}”" for name in _RUNNERS if sinks[name].position is None]
    if unknown:
        return f"How far {' and '.join(unknown)} came is not known."
    checkpoint = sinks[_CHECKPOINT]
    said = (
        "The checkpoint was not set in this run yet."
        if checkpoint.position is None
        else f"The checkpoint is {_distance(checkpoint)}."
    )
    name = _slowest(sinks)
    if name is None:
        return f"Nothing lags: what is written is confirmed, dispatched and on the disk. {said}"
    return f"The slowest is “{SINKS[name]}”, {_distance(sinks[name])}: {_WHY[name]}. {said}"


def _distance(sink: Sink) -> str:
    if not sink.lag_bytes:
        return "at the end of the log"
    age = sink.lag_ms
    said = "" if age is None else f" and {age / 1000:,.1f} s" if age >= 1000 else f" and {age} ms"
    return f"{sink.lag_bytes:,} bytes{said} before the end of the log"
