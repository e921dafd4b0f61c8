"""The broker at a glance."""

from __future__ import annotations

from dataclasses import dataclass

from broker_store.engine.status.store_facts import Behind, DiskSpace, Flag, Flush, LogPositions, Totals
from broker_store.units import Moment


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Whether the broker serves, and why not."""

    # starting, opening, recovering, running, read_only, closed or failed
    state: str
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """Which broker this is."""

    name: str
    cluster: str
    id: int  # 0 is a master
    address: str  # host and port that clients get
    started_ms: Moment
    version: str  # of Apache's protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What goes through the broker, over the last second."""

    in_per_s: float  # messages
    out_per_s: float
    in_bytes_per_s: float  # of bodies
    out_bytes_per_s: float  # of whole records


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """How many there are, without those of the broker's own."""

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
    """What the first page shows, of one moment."""

    at_ms: Moment
    state: str  # as in State
    sentence: str
    broker: Broker
    # Of the store
    positions: LogPositions
    behind: Behind
    flags: list[Flag]
    flush: Flush
    totals: Totals
    disk: DiskSpace
    rates: Rates
    counts: Counts
    worst_lag: WorstLag | None  # None: no group has a position
    top_topics: list[Traffic]  # with the most traffic, the largest first
