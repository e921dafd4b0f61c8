"""Times of the send path: of a group of sends, of each sync and of each wait for room.

Groups are sampled: all are measured while they are few, else one of many, so that about MEASURED_PER_SECOND
are; each counts for the groups that it stands for. A group that is not measured costs one comparison. A
measured one is appended and dispatched by two kernel calls in place of one, so that the two can be
distinguished (`Appender.put_measured`). Syncs and waits for room are few, and all are measured.

Times are nanoseconds. Lines SYNC and SYNC_BYTES belong to the log flusher's thread, the others to the loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from broker_store.engine.status.histograms import Histograms

# Of a group of sends, in the order in which they happen.
GATHER, APPEND, DISPATCH, FLUSH, ANSWER, WHOLE = range(6)
GROUP_MESSAGES, GROUP_BYTES, SYNC, SYNC_BYTES = range(6, 10)
# What the writer had to wait for, by the stop code of the kernel (kernels/context.py), in the same order.
LOG_ROLL, LOG_ROOM, QUEUE_ROOM, INDEX_ROOM = range(10, 14)
LINES = 14

MEASURED_PER_SECOND = 64  # a measured group takes about 10 us longer: less than a thousandth of a core
_SECOND_MS = 1000


def nanoseconds(seconds: float) -> int:
    return max(0, round(seconds * 1e9))


@dataclass(slots=True)
class MeasuredGroup:
    """A group that is measured; times are in seconds of `WritePath.seconds`."""

    weight: int
    came_s: float  # its first message arrived
    began_s: float
    appended_s: float = 0.0
    dispatch_s: float = 0.0  # how long that took
    size: int = 0  # bytes of its records


@dataclass(slots=True)
class Wait:
    """The last time the writer waited for something."""

    at_ms: int
    took_ns: int


class WritePath:
    """The caller that makes groups counts `groups`; it measures a group whose number is `due`: `begin`, then
    `end`.

    `clock` returns milliseconds since 1970, `seconds` is monotonic.
    """

    def __init__(self, clock: Callable[[], int], seconds: Callable[[], float] = time.monotonic):
        self._clock, self.seconds = clock, seconds
        self.histograms = Histograms(LINES)
        self.groups = 0
        self.due = 1
        self.every = 1  # now one of so many groups is measured
        self.dispatch_s = 0.0  # how long the last dispatch after a sync took
        self.waits: dict[int, Wait] = {}
        self._sampled_ms = 0
        self._sampled_groups = 0

    def begin(self, came_s: float, began_s: float) -> MeasuredGroup:
        self.due = self.groups + self.every
        return MeasuredGroup(self.every, came_s, began_s)

    def end(
        self, measured: MeasuredGroup, messages: int, confirmed_s: float | None, answered_s: float
    ) -> None:
        """Record a measured group that was answered; `confirmed_s` is None when it did not wait for a
        sync."""
        add, weight = self.histograms.add, measured.weight
        dispatched_s = measured.appended_s + measured.dispatch_s
        if confirmed_s is not None:
            add(FLUSH, nanoseconds(confirmed_s - dispatched_s), weight)
        add(GATHER, nanoseconds(measured.began_s - measured.came_s), weight)
        add(APPEND, nanoseconds(measured.appended_s - measured.began_s), weight)
        add(DISPATCH, nanoseconds(measured.dispatch_s), weight)
        add(ANSWER, nanoseconds(answered_s - (dispatched_s if confirmed_s is None else confirmed_s)), weight)
        add(WHOLE, nanoseconds(answered_s - measured.came_s), weight)
        add(GROUP_MESSAGES, messages, weight)
        add(GROUP_BYTES, measured.size, weight)

    def synced(self, seconds: float, size: int) -> None:
        """Record a sync of the log. The log flusher's thread."""
        self.histograms.add(SYNC, nanoseconds(seconds))
        self.histograms.add(SYNC_BYTES, size)

    def waited(self, line: int, seconds: float) -> None:
        """Record a wait of the writer for room; `line` is LOG_ROLL, LOG_ROOM, QUEUE_ROOM or
        INDEX_ROOM."""
        took_ns = nanoseconds(seconds)
        self.histograms.add(line, took_ns)
        self.waits[line] = Wait(self._clock(), took_ns)

    def tick(self, now_ms: int) -> None:
        """Choose how many groups are measured. Called more often than once a second."""
        elapsed_ms = now_ms - self._sampled_ms
        if 0 <= elapsed_ms < _SECOND_MS:
            return
        self.histograms.sample(now_ms)
        made = self.groups - self._sampled_groups
        self._sampled_ms, self._sampled_groups = now_ms, self.groups
        self.every = max(1, made * _SECOND_MS // max(elapsed_ms, _SECOND_MS) // MEASURED_PER_SECOND)
        self.due = min(self.due, self.groups + self.every)
