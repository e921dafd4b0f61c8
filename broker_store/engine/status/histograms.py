"""Histograms of measured values, since the start and in the last minute: one array, with a line for each
quantity.

    value      0  1  2  3    4  5  6  7    8-9  10-11  12-13  14-15    16-19 ...      four buckets to a
                                                              doubling
    bucket     0  1  2  3    4  5  6  7     8     9      10     11       12  ...

A value that is computed from its bucket is at most a fourth too high or too low. A line is written by one
thread; reading needs no lock, since each word is read on its own. A value that is added counts `weight`
times, so one measured value can stand for many.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate

import numpy as np

BUCKETS = 164  # up to 2^42: of nanoseconds more than an hour
_SUM = BUCKETS  # the word of a line that holds the sum of its values
_WORDS = BUCKETS + 1
KEPT_SECONDS = 60


def bucket_of(value: int) -> int:
    if value < 4:
        return max(value, 0)
    shift = value.bit_length() - 3
    return min(4 * shift + (value >> shift), BUCKETS - 1)


def lowest_of(bucket: int) -> int:
    """Return the smallest value of a bucket; for the index after the last bucket, a value that is never
    reached."""
    if bucket < 8:
        return bucket
    shift = bucket // 4 - 1
    return (bucket - 4 * shift) << shift


class Line:
    """The values of one quantity over some time: `counts` by bucket, and their `total` (sum)."""

    def __init__(self, counts: np.ndarray, total: int):
        self.counts, self.total = counts, total
        self._cumulative = list(accumulate(counts.tolist()))  # for so few values cheaper than an array
        self.count = self._cumulative[-1]

    @property
    def mean(self) -> float | None:
        return self.total / self.count if self.count else None

    def percentiles(self, *shares: float) -> list[float | None]:
        """Return, for each share (0.99), the value that this share of values does not exceed, assuming they
        lie evenly within a bucket; None without any value."""
        if not self.count:
            return [None] * len(shares)
        cumulative, found = self._cumulative, []
        for share in shares:
            rank = share * self.count
            bucket = bisect_left(cumulative, rank)
            below = cumulative[bucket - 1] if bucket else 0
            inside = 1 - (cumulative[bucket] - rank) / (cumulative[bucket] - below)
            low, high = lowest_of(bucket), lowest_of(bucket + 1)
            # Whole numbers: a bucket of one value has no width.
            found.append(low + inside * (high - 1 - low))
        return found

    def doublings(self) -> np.ndarray:
        """Return counts by powers of two: [n] is of the values below 2^n that are not below 2^(n-1); [0] of
        0."""
        fine, counts = self.counts, np.zeros(BUCKETS // 4 + 2, dtype=np.int64)
        counts[0], counts[1], counts[2] = fine[0], fine[1], fine[2] + fine[3]
        counts[3:] = fine[4:].reshape(-1, 4).sum(axis=1)
        return counts


class Histograms:
    """`lines` quantities. `sample` is called once a second, by one thread."""

    def __init__(self, lines: int):
        self._array = np.zeros((lines, _WORDS), dtype=np.int64)
        # A memoryview reads and writes plain ints, several times cheaper than the array's own items.
        self._words = memoryview(self._array).cast("B").cast("q")
        self._longest = [0] * lines
        # One place more than the samples that are read, so a reader of the oldest one never meets the writer.
        self._past = np.zeros((KEPT_SECONDS + 2, lines, _WORDS), dtype=np.int64)
        self._past_ms = [0] * (KEPT_SECONDS + 2)
        self._samples = 0

    def add(self, line: int, value: int, weight: int = 1) -> None:
        at = line * _WORDS
        self._words[at + bucket_of(value)] += weight
        self._words[at + _SUM] += value * weight
        if value > self._longest[line]:
            self._longest[line] = value

    def sample(self, now_ms: int) -> None:
        """Keep a copy of the counts of now, for a minute."""
        place = self._samples % len(self._past)
        self._past[place] = self._array
        self._past_ms[place] = now_ms
        self._samples += 1

    def since_start(self, line: int) -> Line:
        words = self._array[line]
        return Line(words[:BUCKETS], int(words[_SUM]))

    def longest(self, line: int) -> int | None:
        """Return the largest value since the start."""
        return self._longest[line] if self._array[line, :BUCKETS].any() else None

    def lately(self, line: int) -> Line:
        """Return the values since the oldest sample that is kept."""
        words = self._array[line] - self._past[self._oldest(), line] if self._samples else self._array[line]
        return Line(words[:BUCKETS], int(words[_SUM]))

    def lately_ms(self, now_ms: int) -> int | None:
        """Return how long ago that sample was taken, in ms; None before the first sample."""
        return now_ms - self._past_ms[self._oldest()] if self._samples else None

    def _oldest(self) -> int:
        return max(0, self._samples - KEPT_SECONDS - 1) % len(self._past)
