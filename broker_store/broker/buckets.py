"""Histograms under Apache's names, with the bounds that Apache's broker 5.5 has for them (docs/METRICS.md).

Each is since the start, and counts each value: unlike the sampled times of `engine/log/write_path.py`. A
bucket holds the values up to its bound, and above the bound before it. All is written on the loop.
"""

from __future__ import annotations

from bisect import bisect_left
from time import monotonic

SIZES = (1 << 10, 4 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20)  # bytes
SMALL = SIZES[0]
REQUEST_MS = (1, 3, 5, 7, 10, 100, 1_000, 2_000, 3_000)
CREATION_MS = (10, 100, 1_000, 3_000, 5_000)
DELAY_S = (60, 600, 3_600, 43_200, 86_400, 259_200)
# Apache has these bounds in seconds, and records seconds, in spite of the unit in the metric's name.
FINISH_S = (5, 60, 600, 3_600, 43_200, 86_400)

OTHER_CODE = -1  # of a request that has no handler: a client may send any number
SUCCESS = 0

# Code of the request, code of its answer, whether it waited for a message, whether it wants no answer
RequestKey = tuple[int, int, bool, bool]


class Buckets:
    """Counts of values by bucket. `counts` has one place more than `bounds`, for all larger values."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[int, ...]):
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0  # the sum of the values

    def add(self, value: int, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    @property
    def count(self) -> int:
        return sum(self.counts)


class ApacheHistograms:
    """What Apache's broker measures as histograms. Times of topics and messages go with their topic."""

    def __init__(self) -> None:
        self.requests: dict[RequestKey, Buckets] = {}
        self.message_sizes: dict[str, Buckets] = {}  # by topic; bytes of records
        self.delays: dict[str, Buckets] = {}  # by topic; seconds that timed messages wait
        self.finished: dict[str, Buckets] = {}  # by topic; seconds from a half message to its commit
        # By whether it was done; of topics also by whether it is one of the broker's own
        self.topics_put: dict[tuple[bool, bool], Buckets] = {}
        self.groups_put: dict[bool, Buckets] = {}

    def answered(
        self,
        code: int,
        answer: int,
        seconds: float,
        times: int = 1,
        *,
        waited: bool = False,
        oneway: bool = False,
    ) -> None:
        """Count requests that were answered `seconds` after they came; `waited` for a message."""
        key = (code, answer, waited, oneway)
        line = self.requests.get(key)
        if line is None:
            line = self.requests[key] = Buckets(REQUEST_MS)
        line.add(int(seconds * 1000) if seconds > 0 else 0, times)

    def answered_now(self, code: int, answer: int, came_s: float, *, waited: bool = False) -> None:
        """Count a request that came at `came_s` and is answered now, in seconds of `monotonic`."""
        took_s = monotonic() - came_s
        line = self.requests.get((code, answer, waited, False))
        if line is not None and took_s < 0.001:  # most are so quick
            line.counts[0] += 1
        else:
            self.answered(code, answer, took_s, waited=waited)

    def sizes_of(self, topic: str) -> Buckets:
        """Return the sizes of the records of a topic, to which the caller adds: a batch counts once, with the
        average of its records."""
        line = self.message_sizes.get(topic)
        if line is None:
            line = self.message_sizes[topic] = Buckets(SIZES)
        return line

    def small_of(self, topic: str, count: int, total: int) -> None:
        """Count `count` records of a topic that fit into the first bucket, `total` bytes together."""
        sizes = self.sizes_of(topic)
        sizes.counts[0] += count
        sizes.total += total

    def delayed(self, topic: str, seconds: int) -> None:
        """Count a timed message that waits for so long."""
        if topic not in self.delays:
            self.delays[topic] = Buckets(DELAY_S)
        self.delays[topic].add(max(0, seconds))

    def finish(self, topic: str, seconds: int) -> None:
        """Count a half message that was committed so long after it was made."""
        if topic not in self.finished:
            self.finished[topic] = Buckets(FINISH_S)
        self.finished[topic].add(max(0, seconds))

    def topic_put(self, seconds: float, *, done: bool, is_system: bool) -> None:
        """Count a request that creates or changes a topic."""
        line = self.topics_put.setdefault((done, is_system), Buckets(CREATION_MS))
        line.add(int(seconds * 1000))

    def group_put(self, seconds: float, *, done: bool) -> None:
        """Count a request that creates or changes a group."""
        self.groups_put.setdefault(done, Buckets(CREATION_MS)).add(int(seconds * 1000))

    def forget_topic(self, topic: str) -> None:
        for table in (self.message_sizes, self.delays, self.finished):
            table.pop(topic, None)
