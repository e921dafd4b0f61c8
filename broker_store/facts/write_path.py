"""Where the time of a send goes: its stages, the sizes of groups, the syncs of the log and the waits for
room, each as numbers of the last minute and since the start.

Times are microseconds. A group of sends is what came in one turn of the loop; it is measured from the moment
the first of them was read until the answers of all were handed to the system.
"""

from __future__ import annotations

from broker_store.engine.histograms import Histograms, Line
from broker_store.engine.log import write_path as measured
from broker_store.engine.log.write_path import WritePath

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
NS_A_US = 1000
# Of each histogram the first and the last power of two that stand for themselves; what is below and above
# goes with them.
_DURATIONS = (14, 33)  # 16 us to 8.6 s
_SYNCS = (17, 33)  # 131 us to 8.6 s
_MESSAGES = (1, 11)  # 1 to 2,000
_BYTES = (8, 22)  # 256 B to 4 MiB
_SYNCED_BYTES = (10, 26)  # 1 KiB to 64 MiB


def facts(path: WritePath, flush_type: str, now_ms: int) -> dict:
    """What `GET /store/write-path` tells, but for the refusals."""
    lines = path.histograms
    stages = {name: _distribution(lines, line, NS_A_US) for name, line in STAGES.items()}
    whole = _distribution(lines, measured.WHOLE, NS_A_US)
    for stage in stages.values():
        # Means add up to the whole's, percentiles do not.
        stage["share"] = (
            (stage["lately"]["mean"] or 0) / whole["lately"]["mean"] if whole["lately"]["mean"] else None
        )
    return {
        "at_ms": now_ms,
        "flush_type": flush_type,
        "lately_ms": lines.lately_ms(now_ms),
        "groups": path.groups,
        "measured_one_of": path.every,
        "stages": stages,
        "whole": whole | _histogram(lines, measured.WHOLE, *_DURATIONS, NS_A_US),
        "group_messages": _distribution(lines, measured.GROUP_MESSAGES)
        | _histogram(lines, measured.GROUP_MESSAGES, *_MESSAGES),
        "group_bytes": _distribution(lines, measured.GROUP_BYTES)
        | _histogram(lines, measured.GROUP_BYTES, *_BYTES),
        "sync": sync_facts(path),
        "sync_bytes": _distribution(lines, measured.SYNC_BYTES)
        | _histogram(lines, measured.SYNC_BYTES, *_SYNCED_BYTES),
        "waits": {name: _wait(path, line) for name, line in WAITS.items()},
    }


def sync_facts(path: WritePath) -> dict:
    """How long syncs of the log take."""
    return _distribution(path.histograms, measured.SYNC, NS_A_US) | _histogram(
        path.histograms, measured.SYNC, *_SYNCS, NS_A_US
    )


def _wait(path: WritePath, line: int) -> dict:
    last = path.waits.get(line)
    return _distribution(path.histograms, line, NS_A_US) | {
        "last_at_ms": None if last is None else last.at_ms,
        "last": None if last is None else last.took_ns / NS_A_US,
    }


def _distribution(lines: Histograms, line: int, unit: int = 1) -> dict:
    longest = lines.longest(line)
    top = None if longest is None else longest / unit
    return {
        "lately": _numbers(lines.lately(line), unit, top),
        "since_start": _numbers(lines.since_start(line), unit, top) | {"longest": top},
    }


def _numbers(line: Line, unit: int, top: float | None) -> dict:
    mean = line.mean
    values = (
        None if value is None else min(value / unit, top) for value in line.percentiles(0.5, 0.9, 0.99, 0.999)
    )
    return {
        "count": line.count,
        "mean": None if mean is None else mean / unit,
        **dict(zip(("p50", "p90", "p99", "p999"), values, strict=True)),
    }


def _histogram(lines: Histograms, line: int, first: int, last: int, unit: int = 1) -> dict:
    """`bounds` [n] is the least value that is too large for place n; the last place has none. `shares` are of
    the largest of `lately`."""
    lately, since_start = (
        _places(found, first, last) for found in (lines.lately(line), lines.since_start(line))
    )
    most = max(lately) or 1
    return {
        "bounds": [(1 << power) / unit for power in range(first, last)],
        "places": {
            "lately": lately,
            "since_start": since_start,
            "shares": [count / most for count in lately],
        },
    }


def _places(line: Line, first: int, last: int) -> list[int]:
    counts = line.doublings().tolist()
    return [sum(counts[: first + 1]), *counts[first + 1 : last], sum(counts[last:])]
