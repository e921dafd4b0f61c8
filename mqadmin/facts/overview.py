"""The numbers of the overview."""

from __future__ import annotations

from dataclasses import dataclass

from broker_store.engine.status.store_state import DiskSpace, Flag, Flush, Lag, LogPositions, Totals
from broker_store.units import Moment


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The state of the broker, and a sentence about it."""

    # starting, opening, recovering, running, read_only, closed or failed
    state: str
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """The identity of the broker."""

    name: str
    cluster: str
    id: int  # 0 is a master
    address: str  # host and port that clients get
    started_ms: Moment
    version: str  # of Apache's protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """The rates of messages and bytes through the broker, over the last second."""

    in_per_s: float  # messages
    out_per_s: float
    in_bytes_per_s: float  # of bodies
    out_bytes_per_s: float  # of whole records


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """The numbers of topics, groups and clients, without those of the broker's own."""

    topics: int
    groups: int
    producers: int  # clients
    consumers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorstLag:
    """The largest lag that is known of a group."""

    group: str
    lag: int  # messages


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """A topic with its rates over the last ten seconds, in messages."""

    name: str
    in_per_s: float
    out_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """The numbers of the first page, of one moment."""

    at_ms: Moment
    state: str  # as in State
    sentence: str
    broker: Broker
    # Of the store
    positions: LogPositions
    lag: Lag
    flags: list[Flag]
    flush: Flush
    totals: Totals
    disk: DiskSpace
    rates: Rates
    counts: Counts
    worst_lag: WorstLag | None  # None: no group has an offset
    top_topics: list[Traffic]  # with the most traffic, the largest first
