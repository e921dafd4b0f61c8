"""The queue of a message group is the one that Apache's proxy chooses."""

from __future__ import annotations

import pytest

from broker_store.formats.consistent_hash import consistent_hash
from broker_store.formats.java_hash import java_hash

BUCKETS = (1, 2, 3, 4, 8, 16, 17, 128, 1000)
# Hashing.consistentHash(text.hashCode(), buckets) of Guava, for each number of buckets.
OF_GUAVA = {
    "a": (0, 0, 0, 0, 0, 0, 0, 29, 346),
    "group1": (0, 1, 1, 3, 3, 3, 3, 70, 640),
    "order-4711": (0, 0, 0, 3, 3, 3, 3, 20, 400),
    "Stra\xdfe": (0, 1, 1, 1, 1, 1, 1, 83, 339),
    "\U0001f600": (0, 1, 1, 1, 4, 4, 4, 31, 748),
    "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx": (0, 1, 2, 2, 5, 14, 14, 14, 696),
}


@pytest.mark.parametrize("text", OF_GUAVA, ids=ascii)
def test_a_text_gets_the_bucket_that_guava_gives_it(text):
    assert tuple(consistent_hash(java_hash(text), buckets) for buckets in BUCKETS) == OF_GUAVA[text]
