"""Positions of Apache's Bloom filter."""

import json

from broker_store.sql92 import bloom
from tests.support.stores import GOLDEN


def test_positions_are_those_of_apaches_filter():
    rows = [json.loads(line) for line in (GOLDEN / "sql92-bloom.jsonl").read_text().splitlines()]
    for row in rows:
        assert bloom.positions(row["key"], bits=row["m"], hashes=row["k"]) == row["bitPos"], row["key"]
    assert {(row["m"], row["k"]) for row in rows if (row["f"], row["n"]) == (20, 32)} == {
        (bloom.BITS, bloom.HASHES)
    }
    assert len(rows) > 50
