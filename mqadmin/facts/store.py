"""The store's files with what the broker knows of them, and its streams."""

from __future__ import annotations

from dataclasses import dataclass

from broker_store.engine.status.store_facts import (
    Behind,
    Flag,
    Flush,
    IndexFileFacts,
    LogPositions,
    StoreFile,
    Totals,
)
from broker_store.facts.dispatch import Race
from broker_store.facts.slots import HeatMap
from broker_store.units import Moment, Small


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionsFrame:
    """What the stream store.positions gives: what moves with each message."""

    positions: LogPositions
    behind: Behind
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

    dispatched: int | None  # bytes of it that stand in queues and index


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFilesFrame:
    """What the stream store.files gives. The files of the queues are thousands: the page fetches what it
    shows."""

    log: list[LogFile]


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexFiles:
    """What REST gives of all index files."""

    items: list[IndexFileFacts]


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexFilesFrame:
    """What the stream store.index gives of all files."""

    files: list[IndexFileFacts]


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedSlots(HeatMap):
    """What the stream store.slots gives of a file: all cells, or those that changed."""

    # Pairs (cell, used slots) in one list; None when `cells` has all, which is None otherwise
    changed: list[int] | None
    since_ms: Moment | None  # when the cells were as the changes go from
