"""How fast the log grows, and what grows with it.

The rate is that of the log: bytes between messages that were stored over several stretches of time. So it is
known right after a start, and without a broker. Queues and index grow with the log; what others write on the
same file system is known from samples only, and counts when it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from broker_store.engine.log.store_times import FILE_NAME as STORE_TIMES
from broker_store.engine.log.store_times import StoreTimes
from broker_store.engine.start.ends import FILE_NAME as ENDS
from broker_store.engine.start.ends import EndsFile
from broker_store.engine.status import samples
from broker_store.facts.directory import StoreDirectory
from broker_store.facts.positions import Positions, Queue
from broker_store.facts.progress import ReadSamples
from broker_store.formats import index_file, queue_unit
from broker_store.units import Moment

MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000
WINDOWS_MS = (10 * MINUTE_MS, HOUR_MS, 6 * HOUR_MS, DAY_MS, 3 * DAY_MS)
BASIS_MS = DAY_MS  # the longest window up to this one is what is expected: it holds a day's ups and downs
MIN_HISTORY_MS = MINUTE_MS  # a shorter one gives no rate
MIN_SAMPLED_MS = 10 * MINUTE_MS
MAX_TIMED_QUEUES = 64  # with the most messages: each needs a search in the log


@dataclass(frozen=True, slots=True, kw_only=True)
class RateWindow:
    """What the log gained in a stretch of time up to its last message, or up to now while a broker runs."""

    window_ms: int
    from_ms: Moment
    bytes: int
    bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowthRate:
    """How fast the log grows. Rates are None before there is a minute of history."""

    until_ms: Moment | None
    windows: list[RateWindow]
    doubt: str | None  # why the rates may be wrong; None where they are known to be right
    bytes_per_s: float | None  # that is expected
    basis_ms: int | None  # the window that this comes from
    low_bytes_per_s: float | None  # of the slowest window; None with one window only
    high_bytes_per_s: float | None  # of the fastest
    overhead: float | None  # bytes of queues and index for each byte of the log
    others_bytes_per_s: float | None  # that others on the file system write


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The messages that the rate comes from."""

    queues: Sequence[tuple[Queue, tuple[int, int]]]  # each with its lowest and its next offset
    first_ms: int | None  # when the oldest message was stored
    until_ms: int | None  # now, or when the newest was stored where no broker runs
    is_running: bool


def growth_of(
    store: StoreDirectory, positions: Positions, history: History, read_samples: ReadSamples, now_ms: int
) -> GrowthRate:
    """The rate at which the log grows, and why store times may make it wrong."""
    windows = _windows(positions, history)
    expected = max(
        (window for window in windows if window.window_ms <= BASIS_MS),
        key=lambda window: window.window_ms,
        default=None,
    )
    per_s = [window.bytes_per_s for window in windows]
    return GrowthRate(
        until_ms=history.until_ms,
        windows=windows,
        doubt=_doubt(store, positions, windows, history.is_running),
        bytes_per_s=None if expected is None else expected.bytes_per_s,
        basis_ms=None if expected is None else expected.window_ms,
        low_bytes_per_s=min(per_s) if len(per_s) > 1 else None,
        high_bytes_per_s=max(per_s) if len(per_s) > 1 else None,
        overhead=_overhead(store, positions, history),
        others_bytes_per_s=_others_per_s(read_samples, now_ms),
    )


def _windows(positions: Positions, history: History) -> list[RateWindow]:
    """Bytes that came within each stretch before the end that the history covers, and within all of it."""
    until_ms, first_ms = history.until_ms, history.first_ms
    if until_ms is None or first_ms is None or until_ms - first_ms < MIN_HISTORY_MS:
        return []
    span_ms = until_ms - first_ms
    lengths = [length for length in WINDOWS_MS if length <= span_ms]
    if (not lengths or span_ms > 1.5 * lengths[-1]) and span_ms < WINDOWS_MS[-1]:
        lengths.append(span_ms)
    largest = sorted(history.queues, key=lambda item: item[1][0] - item[1][1])[:MAX_TIMED_QUEUES]
    found = []
    for length in lengths:
        begin = positions.log_end
        for queue, (_, high) in largest:
            number = positions.first_since(queue, until_ms - length)
            unit = positions.unit(queue, number) if number < high else None
            begin = begin if unit is None else min(begin, unit.log_offset)
        came = positions.log_end - begin
        found.append(
            RateWindow(
                window_ms=length, from_ms=until_ms - length, bytes=came, bytes_per_s=came * 1000 / length
            )
        )
    return found


def _doubt(
    store: StoreDirectory, positions: Positions, windows: Sequence[RateWindow], is_running: bool
) -> str | None:
    """Why the rates may be wrong: they take store times for the time that passed. None where store times are
    known to go up."""
    if not windows:
        return None
    order, end = StoreTimes(store.disk, store.root / "config" / STORE_TIMES), positions.log_end
    order.load()
    own_position = end  # a running broker wrote all since its start, and that start wrote the note
    if not is_running:
        ends = EndsFile(store.disk, store.root / ENDS)
        ends.load()
        own_position = ends.position
    minimum, begin = positions.log_minimum, end - max(window.bytes for window in windows)
    # Each step between, and each for which a search for the begin of a window may have found another part.
    steps = (step for step in order.steps if minimum < step.log_offset <= end)
    step = next(
        (
            step
            for step in steps
            if begin <= step.log_offset or any(step.parts(window.from_ms) for window in windows)
        ),
        None,
    )
    if step is None:
        if order.is_known(minimum, end, own_position):
            return None
        return "it is not known of the whole log whether store times go back, so these rates may be wrong"
    return (
        f"store times go back at {step.log_offset:,} of the log by {step.before_ms - step.own_ms:,} "
        f"ms, so these rates may be wrong"
    )


def _overhead(store: StoreDirectory, positions: Positions, history: History) -> float | None:
    written = positions.log_end - positions.log_minimum
    if written <= 0:
        return None
    messages = sum(high - low for _, (low, high) in history.queues)
    entries = sum(max(0, header.entries) for header in store.index())
    return (messages * queue_unit.SIZE + entries * index_file.ENTRY.size) / written


def _others_per_s(read_samples: ReadSamples, now_ms: int) -> float | None:
    """What the rest of the file system gains a second, from samples."""
    names = (samples.DISK_TOTAL, samples.DISK_FREE, samples.OWN_BYTES)
    found = read_samples(lambda name: name in names, now_ms - BASIS_MS)
    others = [
        (at_ms, values[names[0]] - values[names[1]] - values[names[2]])
        for at_ms, _, values in found
        if len(values) == len(names)
    ]
    if not others or others[-1][0] - others[0][0] < MIN_SAMPLED_MS:
        return None
    (first_ms, first), (last_ms, last) = others[0], others[-1]
    return (last - first) * 1000 / (last_ms - first_ms)
