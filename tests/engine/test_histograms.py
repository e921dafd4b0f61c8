"""The arithmetic of histograms, against sorted lists."""

from __future__ import annotations

import random

import pytest

from broker_store.engine.status.histograms import BUCKETS, KEPT_SECONDS, Histograms, bucket_of, lowest_of

NUMBERS = random.Random(11)


def test_every_value_lies_between_the_bounds_of_its_bucket_and_buckets_are_narrow():
    values = [
        *range(5_000),
        *(NUMBERS.randrange(1 << NUMBERS.randrange(1, 42)) for _ in range(5_000)),
        (1 << 42) - 1,
    ]
    for value in values:
        bucket = bucket_of(value)
        assert lowest_of(bucket) <= value < lowest_of(bucket + 1)
        assert lowest_of(bucket + 1) - lowest_of(bucket) <= max(1, lowest_of(bucket) // 4)
    assert bucket_of(1 << 60) == BUCKETS - 1
    assert bucket_of(-1) == 0


@pytest.mark.parametrize(
    "make",
    [
        lambda: NUMBERS.randrange(3),
        lambda: NUMBERS.randrange(10_000),
        lambda: int(NUMBERS.lognormvariate(11, 2)),
    ],
)
def test_percentiles_are_those_of_the_sorted_values_to_a_fourth(make):
    lines, values = Histograms(2), sorted(make() for _ in range(3_000))
    for value in values:
        lines.add(1, value)
    line = lines.since_start(1)
    for share, found in zip((0.5, 0.9, 0.99, 0.999), line.percentiles(0.5, 0.9, 0.99, 0.999), strict=True):
        exact = values[min(len(values) - 1, int(share * len(values)))]
        assert abs(found - exact) <= max(1, exact / 4), share
    assert line.count == 3_000
    assert line.mean == sum(values) / 3_000
    assert lines.longest(1) == values[-1]


def test_a_value_counts_as_often_as_its_weight_says():
    lines = Histograms(1)
    lines.add(0, 100, 99)
    lines.add(0, 5_000)
    line = lines.since_start(0)
    assert line.count == 100
    assert line.total == 14_900
    assert 96 <= line.percentiles(0.9)[0] <= 112


def test_nothing_measured_is_not_known():
    line = Histograms(1).since_start(0)
    assert line.percentiles(0.5, 0.99) == [None, None]
    assert line.mean is None
    assert Histograms(1).longest(0) is None
    assert Histograms(1).lately_ms(5) is None


def test_doublings_count_by_powers_of_two():
    lines, values = Histograms(1), [NUMBERS.randrange(1 << NUMBERS.randrange(1, 30)) for _ in range(2_000)]
    for value in values:
        lines.add(0, value)
    counts = lines.since_start(0).doublings().tolist()
    assert counts == [sum(value.bit_length() == power for value in values) for power in range(len(counts))]


def test_the_last_minute_forgets_what_came_before_it():
    lines = Histograms(1)
    for second in range(200):
        lines.sample(second * 1_000)
        lines.add(0, second)
        kept = min(second + 1, KEPT_SECONDS + 1)
        assert lines.lately(0).count == kept
        assert lines.lately(0).total == sum(range(second + 1 - kept, second + 1))
        assert lines.lately_ms(second * 1_000) == (kept - 1) * 1_000
    assert lines.since_start(0).count == 200
