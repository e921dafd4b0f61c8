"""Histograms under Apache's names: buckets, and what belongs to a topic."""

from __future__ import annotations

import pytest

from broker_store.broker.buckets import REQUEST_MS, SIZES, ApacheHistograms, Buckets


@pytest.mark.parametrize(
    ("value", "place"), [(0, 0), (1024, 0), (1025, 1), (4096, 1), (4 << 20, 5), ((4 << 20) + 1, 6)]
)
def test_a_bucket_holds_the_values_up_to_its_bound(value, place):
    buckets = Buckets(SIZES)
    buckets.add(value, 3)
    assert buckets.counts[place] == buckets.count == 3 and buckets.total == 3 * value


def test_small_records_are_counted_together_as_one_by_one():
    together, one_by_one = ApacheHistograms(), ApacheHistograms()
    together.small_of("orders", 3, 600)
    for size in (100, 200, 300):
        one_by_one.sizes_of("orders").add(size)
    for found in (together, one_by_one):
        assert found.message_sizes["orders"].counts == [3, 0, 0, 0, 0, 0, 0]
        assert found.message_sizes["orders"].total == 600


def test_requests_are_counted_in_whole_milliseconds_by_their_codes():
    histograms = ApacheHistograms()
    histograms.answered(310, 0, 0.0019, 5)
    histograms.answered(310, 0, 0.004)
    histograms.answered(310, 2, 0.0)
    histograms.answered(11, 0, 12.0, waited=True)
    histograms.answered(15, 0, -0.001, oneway=True)  # the clock of the loop may be later than that of a read
    counts = {key: buckets.counts for key, buckets in histograms.requests.items()}
    assert counts[310, 0, False, False] == [5, 0, 1, 0, 0, 0, 0, 0, 0, 0]
    assert counts[310, 2, False, False][0] == counts[15, 0, False, True][0] == 1
    assert counts[11, 0, True, False][len(REQUEST_MS)] == 1


def test_a_deleted_topic_has_no_values_any_more():
    histograms = ApacheHistograms()
    histograms.small_of("orders", 1, 100)
    histograms.delayed("orders", -5)
    histograms.finish("orders", 7)
    histograms.finish("other", 7)
    assert histograms.delays["orders"].total == 0
    histograms.forget_topic("orders")
    assert not histograms.message_sizes and not histograms.delays and list(histograms.finished) == ["other"]
