"""Where the time of writing goes: what of a group of sends, of each sync and of each wait for room is
measured.

The send path is the product, so groups are measured by sample: every one while they are few, else one of many
such that some MEASURED_A_SECOND are, and each counts for as many as it stands for. For what is not measured a
group costs one comparison. A measured group is appended and dispatched by two calls of the kernel in place of
one, so that the two can be told apart (`Appender.put_apart`). Syncs and waits for room are few and all
measured.

Times are nanoseconds. Lines SYNC and SYNC_BYTES belong to the log flusher's thread, the others to the loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from broker_store.engine.status.histograms import Histograms

# Of a group of sends, in the order of its way.
GATHER, APPEND, DISPATCH, FLUSH, ANSWER, WHOLE = range(6)
GROUP_MESSAGES, GROUP_BYTES, SYNC, SYNC_BYTES = range(6, 10)
# What the writer had to wait for, by the stop code of the kernel (kernels/context.py), in the same order.
LOG_ROLL, LOG_ROOM, QUEUE_ROOM, INDEX_ROOM = range(10, 14)
LINES = 14
WAITS = (LOG_ROLL, LOG_ROOM, QUEUE_ROOM, INDEX_ROOM)

MEASURED_A_SECOND = 64  # a measured group takes some 10 us longer: less than a thousandth of a core
_SECOND_MS = 1000


def nanoseconds(seconds: float) -> int:
    return max(0, round(seconds * 1e9))


@dataclass(slots=True)
class Lap:
    """A group that is measured; times are those of the group's clock, in seconds."""

    weight: int
    came_s: float  # the first of it was handed in
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
    """`groups` is counted by whoever makes groups; a group whose number is `due` is measured: `begin`, then
    `end`.

    `clock` gives milliseconds since 1970, `seconds` runs on evenly.
    """

    def __init__(self, clock: Callable[[], int], seconds: Callable[[], float] = time.monotonic):
        self._clock, self.seconds = clock, seconds
        self.histograms = Histograms(LINES)
        self.groups = 0
        self.due = 1
        self.every = 1  # one of how many groups is measured now
        self.dispatch_s = 0.0  # how long the last dispatch behind a sync took
        self.waits: dict[int, Wait] = {}
        self._sampled_ms = 0
        self._sampled_groups = 0

    def begin(self, came_s: float, began_s: float) -> Lap:
        self.due = self.groups + self.every
        return Lap(self.every, came_s, began_s)

    def end(self, lap: Lap, messages: int, confirmed_s: float | None, answered_s: float) -> None:
        """A measured group was answered; `confirmed_s` is None when it had not to wait for a sync."""
        add, weight = self.histograms.add, lap.weight
        dispatched_s = lap.appended_s + lap.dispatch_s
        if confirmed_s is not None:
            add(FLUSH, nanoseconds(confirmed_s - dispatched_s), weight)
        add(GATHER, nanoseconds(lap.began_s - lap.came_s), weight)
        add(APPEND, nanoseconds(lap.appended_s - lap.began_s), weight)
        add(DISPATCH, nanoseconds(lap.dispatch_s), weight)
        add(ANSWER, nanoseconds(answered_s - (dispatched_s if confirmed_s is None else confirmed_s)), weight)
        add(WHOLE, nanoseconds(answered_s - lap.came_s), weight)
        add(GROUP_MESSAGES, messages, weight)
        add(GROUP_BYTES, lap.size, weight)

    def synced(self, seconds: float, size: int) -> None:
        """The log flusher's thread: a sync of the log ended."""
        self.histograms.add(SYNC, nanoseconds(seconds))
        self.histograms.add(SYNC_BYTES, size)

    def waited(self, line: int, seconds: float) -> None:
        """The writer had to wait for room, of one of WAITS."""
        took_ns = nanoseconds(seconds)
        self.histograms.add(line, took_ns)
        self.waits[line] = Wait(self._clock(), took_ns)

    def tick(self, now_ms: int) -> None:
        """Called more often than once a second."""
        elapsed_ms = now_ms - self._sampled_ms
        if 0 <= elapsed_ms < _SECOND_MS:
            return
        self.histograms.sample(now_ms)
        made = self.groups - self._sampled_groups
        self._sampled_ms, self._sampled_groups = now_ms, self.groups
        self.every = max(1, made * _SECOND_MS // max(elapsed_ms, _SECOND_MS) // MEASURED_A_SECOND)
        self.due = min(self.due, self.groups + self.every)
