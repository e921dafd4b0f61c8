"""Where the time of a send goes: its stages, the sizes of groups, the syncs of the log and the waits for
room, each as numbers of the last minute and since the start.

Times are microseconds. A group of sends is what came in one turn of the loop; it is measured from the moment
the first of them was read until the answers of all were handed to the system.
"""

from __future__ import annotations

from dataclasses import dataclass

from broker_store.engine.log import write_path as measured
from broker_store.engine.log.write_path import WritePath
from broker_store.engine.status.histograms import Histograms, Line
from broker_store.facts.distributions import Distribution, distribution
from broker_store.units import Moment

STAGES = {
    "gather": measured.GATHER,
    "append": measured.APPEND,
    "dispatch": measured.DISPATCH,
    "flush": measured.FLUSH,
    "answer": measured.ANSWER,
}
WAITS = {
    "log_roll": measured.LOG_ROLL,
    "log_room": measured.LOG_ROOM,
    "queue_room": measured.QUEUE_ROOM,
    "index_room": measured.INDEX_ROOM,
}
NS_PER_US = 1000
MEASURED_PER_SECOND = measured.MEASURED_PER_SECOND  # groups of sends, at most
# Of each histogram the first and the last power of two that stand for themselves; what is below and above
# goes with them.
_DURATIONS = (14, 33)  # 16 us to 8.6 s
_SYNCS = (17, 33)  # 131 us to 8.6 s
_MESSAGES = (1, 11)  # 1 to 2,000
_BYTES = (8, 22)  # 256 B to 4 MiB
_SYNCED_BYTES = (10, 26)  # 1 KiB to 64 MiB


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage(Distribution):
    """A stage of a send, in microseconds."""

    share: float | None  # 0 to 1: its mean of the last minute in that of the whole send


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait(Distribution):
    """What the writer waited for, in microseconds."""

    last_at_ms: Moment | None  # None: not since the start
    last: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """How many measurements lie in each place of a histogram."""

    lately: list[int]
    since_start: list[int]
    shares: list[float]  # 0 to 1: of the largest of `lately`


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram(Distribution):
    """`bounds` [n] is the least value that is too large for place n; the last place has none."""

    bounds: list[float]
    places: Places


@dataclass(frozen=True, slots=True, kw_only=True)
class PathFacts:
    """Where the time of sends goes."""

    at_ms: Moment
    flush_type: str  # ASYNC_FLUSH or SYNC_FLUSH
    lately_ms: int | None  # what `lately` is measured over; None before the first second
    groups: int  # of sends, since the start
    measured_one_of: int  # groups: so many are measured as one
    stages: dict[str, Stage]  # by their names in STAGES
    whole: Histogram  # us
    group_messages: Histogram  # messages of a group
    group_bytes: Histogram  # bytes of a group
    sync: Histogram  # us
    sync_bytes: Histogram  # bytes that a sync brings to the disk
    waits: dict[str, Wait]  # by their names in WAITS


def facts(path: WritePath, flush_type: str, now_ms: int) -> PathFacts:
    """What `GET /store/write-path` gives, but for the refusals and the pauses of the loop."""
    lines = path.histograms
    whole = _histogram(lines, measured.WHOLE, _DURATIONS, NS_PER_US)
    return PathFacts(
        at_ms=now_ms,
        flush_type=flush_type,
        lately_ms=lines.lately_ms(now_ms),
        groups=path.groups,
        measured_one_of=path.every,
        stages={name: _stage(lines, line, whole.lately.mean) for name, line in STAGES.items()},
        whole=whole,
        group_messages=_histogram(lines, measured.GROUP_MESSAGES, _MESSAGES),
        group_bytes=_histogram(lines, measured.GROUP_BYTES, _BYTES),
        sync=sync_facts(path),
        sync_bytes=_histogram(lines, measured.SYNC_BYTES, _SYNCED_BYTES),
        waits={name: _wait(path, line) for name, line in WAITS.items()},
    )


def sync_facts(path: WritePath) -> Histogram:
    """How long syncs of the log take, in microseconds."""
    return _histogram(path.histograms, measured.SYNC, _SYNCS, NS_PER_US)


def _stage(lines: Histograms, line: int, mean_of_whole: float | None) -> Stage:
    found = distribution(lines, line, NS_PER_US)
    # Means add up to the whole's, percentiles do not.
    share = (found.lately.mean or 0) / mean_of_whole if mean_of_whole else None
    return Stage(lately=found.lately, since_start=found.since_start, share=share)


def _wait(path: WritePath, line: int) -> Wait:
    last, found = path.waits.get(line), distribution(path.histograms, line, NS_PER_US)
    return Wait(
        lately=found.lately,
        since_start=found.since_start,
        last_at_ms=None if last is None else last.at_ms,
        last=None if last is None else last.took_ns / NS_PER_US,
    )


def _histogram(lines: Histograms, line: int, powers: tuple[int, int], unit: int = 1) -> Histogram:
    """Places for the powers of two from the first to the last of `powers`; those below and above go with
    them."""
    first, last = powers
    lately, since_start = (
        _places(found, first, last) for found in (lines.lately(line), lines.since_start(line))
    )
    most = max(lately) or 1
    found = distribution(lines, line, unit)
    return Histogram(
        lately=found.lately,
        since_start=found.since_start,
        bounds=[(1 << power) / unit for power in range(first, last)],
        places=Places(lately=lately, since_start=since_start, shares=[count / most for count in lately]),
    )


def _places(line: Line, first: int, last: int) -> list[int]:
    counts = line.doublings().tolist()
    return [sum(counts[: first + 1]), *counts[first + 1 : last], sum(counts[last:])]
