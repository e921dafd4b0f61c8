"""Distributions of what was measured, in numbers: the last minute's and the run's
(engine/status/histograms.py)."""

from __future__ import annotations

from dataclasses import dataclass

from broker_store.engine.status.histograms import Histograms, Line
from broker_store.units import Small


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """A distribution in numbers, in the unit of what is measured. None without any measurement."""

    count: Small
    mean: float | None
    p50: float | None  # half are below
    p90: float | None
    p99: float | None
    p999: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunNumbers(Numbers):
    """The same since the start, with the largest."""

    longest: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """What was measured in the last minute and since the start."""

    lately: Numbers
    since_start: RunNumbers


def distribution(lines: Histograms, line: int, unit: int = 1) -> Distribution:
    """The values of a line, divided by `unit`."""
    largest = lines.longest(line)
    longest = None if largest is None else largest / unit
    return Distribution(
        lately=_numbers(lines.lately(line), unit, longest),
        since_start=_run_numbers(lines.since_start(line), unit, longest),
    )


def _numbers(line: Line, unit: int, longest: float | None) -> Numbers:
    p50, p90, p99, p999 = _percentiles(line, unit, longest)
    return Numbers(count=line.count, mean=_mean(line, unit), p50=p50, p90=p90, p99=p99, p999=p999)


def _run_numbers(line: Line, unit: int, longest: float | None) -> RunNumbers:
    p50, p90, p99, p999 = _percentiles(line, unit, longest)
    return RunNumbers(
        count=line.count, mean=_mean(line, unit), p50=p50, p90=p90, p99=p99, p999=p999, longest=longest
    )


def _mean(line: Line, unit: int) -> float | None:
    return None if line.mean is None else line.mean / unit


def _percentiles(line: Line, unit: int, longest: float | None) -> list[float | None]:
    """Those of Numbers. A bucket may reach above the longest value; no percentile does."""
    return [
        None if value is None else value / unit if longest is None else min(value / unit, longest)
        for value in line.percentiles(0.5, 0.9, 0.99, 0.999)
    ]
