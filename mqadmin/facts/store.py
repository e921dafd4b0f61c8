"""Facts about the store's files, and the frames of its streams."""

from __future__ import annotations

from dataclasses import dataclass

from broker_store.engine.status.store_state import (
    Flag,
    Flush,
    IndexFileFacts,
    Lag,
    LogPositions,
    StoreFile,
    Totals,
)
from broker_store.facts.dispatch import Race
from broker_store.facts.slots import HeatMap
from broker_store.units import Moment, Small


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionsFrame:
    """A frame of the stream store.positions: values that change with each message."""

    positions: LogPositions
    lag: Lag
    flags: list[Flag]
    flush: Flush
    totals: Totals
    commit_log_files: Small | None
    race: Race
    state: str  # as in State of overview.py
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueFile(StoreFile):
    """A file of a queue, with the offsets that the queue holds."""

    min_offset: int
    max_offset: int  # of the next message


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFile(StoreFile):
    """A file of the commit log."""

    dispatched: int | None  # bytes of it that are dispatched to queues and index


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFilesFrame:
    """A frame of the stream store.files. It lacks the files of queues, which may be thousands: the page
    fetches those that it shows."""

    log: list[LogFile]


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexFiles:
    """The answer of REST about all index files."""

    items: list[IndexFileFacts]


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexFilesFrame:
    """A frame of the stream store.index about all files."""

    files: list[IndexFileFacts]


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedSlots(HeatMap):
    """A frame of the stream store.slots about a file: the cells that changed, or none if most did."""

    # Pairs (cell, used slots) in one list; None when `cells` has all. `cells` is None otherwise
    changed: list[int] | None
    since_ms: Moment | None  # the time since which these cells changed
