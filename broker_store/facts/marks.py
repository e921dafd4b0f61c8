"""When the use of the disk reaches the marks at which something happens.

    now ─ rate ──► 75 % expired files go at any hour ──► 85 % the oldest go at once ──► 90 % sends are refused
                                                         ──► full

A forecast lets the use grow and files be deleted by their age, as `engine/retention/` does. It never counts
on forced cleaning, because it forecasts when that would begin. The band is the slowest and the fastest window
of the rate.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from broker_store.engine.disk.disk import Usage
from broker_store.engine.retention.retention import expires_ms, is_cleaning_hour
from broker_store.facts.deletion import Rules
from broker_store.facts.growth import DAY_MS, HOUR_MS, GrowthRate
from broker_store.units import Moment, Small

HORIZON_MS = 60 * DAY_MS
SHOWN_MS = 14 * DAY_MS  # of the path of use, when it reaches no mark
MAX_POINTS = 120  # of that path
MAX_STEPS = 6_000  # of one simulation


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A use of the file system at which something happens, and when it is reached."""

    percent: Small
    what: str  # expired, forced, refused or full: see the module
    is_reached: bool
    bytes_left: int
    at_ms: Moment | None  # at the expected rate; None: not within the horizon, or not known
    earliest_ms: Moment | None  # at the fastest rate
    latest_ms: Moment | None  # at the slowest


@dataclass(frozen=True, slots=True, kw_only=True)
class UsePoint:
    """The use at a moment."""

    at_ms: Moment
    used_ratio: float  # 0 to 1


@dataclass(frozen=True, slots=True, kw_only=True)
class UsePaths:
    """The use from now on; a path is empty when its rate is not known."""

    until_ms: Moment
    usual: list[UsePoint]
    low: list[UsePoint]  # at the slowest rate
    high: list[UsePoint]  # at the fastest


class Simulated(NamedTuple):
    """What a simulation found."""

    passed: dict[int, int]  # per cent -> when the use passed it
    highest_ratio: float  # of the use until the last mark, or until the horizon
    path: list[tuple[int, float]]  # (moment, ratio)


def marks_of(
    usage: Usage,
    rules: Rules,
    now_ms: int,
    simulated: tuple[Simulated | None, Simulated | None, Simulated | None],
) -> tuple[list[Mark], UsePaths]:
    """The marks and the paths to them; `simulated` at the expected, the slowest and the fastest rate."""
    used = usage.used_ratio * 100
    reached = (
        (rules.tight, "expired"),
        (rules.forced, "forced"),
        (rules.full, "refused"),
        (100, "full"),
    )
    marks = []
    for percent, what in reached:
        usual, low, high = (None if found is None else found.passed.get(percent) for found in simulated)
        marks.append(
            Mark(
                percent=percent,
                what=what,
                is_reached=used > percent,
                bytes_left=max(0, round(usage.total * percent / 100) - (usage.total - usage.free)),
                at_ms=usual,
                earliest_ms=high,
                latest_ms=low,
            )
        )
    known = [mark.at_ms - now_ms for mark in marks if mark.at_ms is not None]
    until_ms = now_ms + round(min(HORIZON_MS, max(DAY_MS / 4, 1.2 * max(known))) if known else SHOWN_MS)
    usual_path, low_path, high_path = (_thinned(found, until_ms) for found in simulated)
    return marks, UsePaths(until_ms=until_ms, usual=usual_path, low=low_path, high=high_path)


def simulate(
    usage: Usage,
    full_files: Iterable[tuple[int, int]],
    file_size: int,
    rules: Rules,
    now_ms: int,
    rate: GrowthRate,
    log_per_s: float | None,
) -> Simulated | None:
    """The use while the log grows by `log_per_s`; None when that is not known.

    `full_files` are (bytes, last modified) of full log files. Each byte of the log takes `rate.overhead` more
    for queues and index, which are deleted with it.
    """
    if log_per_s is None or not usage.total:
        return None
    files = deque(full_files)
    overhead = rate.overhead or 0.0
    all_per_s = log_per_s * (1 + overhead) + (rate.others_bytes_per_s or 0.0)
    used, total = float(usage.total - usage.free), usage.total
    waiting = [
        percent for percent in (rules.tight, rules.forced, rules.full, 100) if used * 100 / total <= percent
    ]
    passed: dict[int, int] = {}
    at_ms, end_ms, made, highest = float(now_ms), now_ms + HORIZON_MS, 0.0, used
    path = [(now_ms, used / total)]
    # A step is an hour, or less when use would grow by more than half a per cent in it.
    step_ms = HOUR_MS if all_per_s <= 0 else min(HOUR_MS, max(1_000.0, total * 0.005 * 1000 / all_per_s))
    for _ in range(MAX_STEPS):
        if at_ms >= end_ms or not waiting:
            break
        if used * 100 / total > rules.tight or is_cleaning_hour(int(at_ms), rules.hours):
            while files and expires_ms(files[0][1], rules.reserved_hours) <= at_ms:
                used -= files.popleft()[0] * (1 + overhead)
        grown = all_per_s * step_ms / 1000
        while waiting and used + grown > total * waiting[0] / 100:
            passed[waiting[0]] = round(at_ms + max(0.0, total * waiting[0] / 100 - used) * 1000 / all_per_s)
            waiting.pop(0)
        used = max(0.0, used + grown)
        highest = max(highest, used)
        at_ms += step_ms
        path.append((round(at_ms), min(1.0, used / total)))
        made += log_per_s * step_ms / 1000
        if file_size and made >= file_size:
            whole = made // file_size
            files.append((int(whole * file_size), int(at_ms)))
            made -= whole * file_size
    return Simulated(passed, min(1.0, highest / total), path)


def _thinned(found: Simulated | None, until_ms: int) -> list[UsePoint]:
    """Points of a path to draw."""
    path = [] if found is None else [point for point in found.path if point[0] <= until_ms]
    stride = max(1, len(path) // MAX_POINTS)
    return [
        UsePoint(at_ms=at_ms, used_ratio=ratio)
        for number, (at_ms, ratio) in enumerate(path)
        if number % stride == 0 or number == len(path) - 1
    ]
