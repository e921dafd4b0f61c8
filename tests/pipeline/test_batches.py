"""A stretch of the log as Arrow: the same records as a plain reading gives, bounded, and damage is not passed over."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest

pytest.importorskip("pyarrow", reason="Arrow comes with the Spark block of requirements.txt")

from broker_store.errors import DamagedStoreError
from broker_store.formats import record
from broker_store.pipeline import batches
from broker_store.pipeline.splits import splits_of
from tests.support import stores


def plain(store) -> list[record.StoredMessage]:
    """The records, decoded one by one."""
    found = []
    for base, data in stores.log_bytes(store):
        at = 0
        while at + 8 <= len(data) and record.read_head(data, at).is_record:
            found.append(record.decode(data, at, log_offset=base + at))
            at += found[-1].size
    return found


def read(store) -> list[dict]:
    return [row for split in splits_of(store) for batch in batches.batches_of(split) for row in batch.to_pylist()]


@pytest.mark.parametrize("name", ["golden-clean", "clean"])
def test_every_record_of_a_real_store_comes_with_its_values(tmp_path, name):
    store = stores.unpack(name, tmp_path)
    rows, records = read(store), plain(store)
    assert len(rows) == len(records) > 0
    for row, one in zip(rows, records, strict=True):
        assert (row["topic"], row["queue_id"], row["queue_offset"], row["log_offset"]) == (one.topic, one.queue_id, one.queue_offset, one.log_offset)
        assert (row["record_bytes"], row["sys_flag"]) == (one.size, one.sys_flag)
        assert round(row["store_time"].timestamp() * 1000) == one.store_timestamp
    assert Counter(row["topic"] for row in rows) == Counter(one.topic for one in records)


def test_small_slices_and_small_batches_give_the_same(tmp_path, monkeypatch):
    store = stores.unpack("clean", tmp_path)
    whole = read(store)
    monkeypatch.setattr(batches, "SLICE_BYTES", 150_000)
    monkeypatch.setattr(batches, "ROWS", 7)
    assert read(store) == whole


def test_a_stretch_ends_where_it_is_told_to(tmp_path):
    store = stores.unpack("golden-clean", tmp_path)
    (split,) = splits_of(store)
    records = plain(store)
    cut = dataclasses.replace(split, end=records[10].log_offset)
    assert sum(batch.num_rows for batch in batches.batches_of(cut)) == 10
    within = dataclasses.replace(split, end=records[10].log_offset + 20)
    assert sum(batch.num_rows for batch in batches.batches_of(within)) == 10


def test_a_bad_record_ends_the_last_stretch_and_is_an_error_in_any_other(tmp_path):
    store = stores.unpack("golden-clean", tmp_path)
    records = plain(store)
    log = store / "commitlog" / ("0" * 20)
    data = bytearray(log.read_bytes())
    data[records[20].log_offset + 95] ^= 1
    log.write_bytes(data)
    (split,) = splits_of(store)
    assert sum(batch.num_rows for batch in batches.batches_of(split)) == 20
    with pytest.raises(DamagedStoreError, match=str(records[20].log_offset)):
        list(batches.batches_of(dataclasses.replace(split, is_last=False)))
