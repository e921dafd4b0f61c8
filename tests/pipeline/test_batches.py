"""A stretch of the log as Arrow: the same records as a plain reading gives, bounded, and damage is not passed
over."""

from __future__ import annotations

import dataclasses
import ipaddress
import struct
import zlib
from collections import Counter

import pytest

pytest.importorskip("pyarrow", reason="Arrow comes with the Spark block of requirements.txt")

import pyarrow as pa

from broker_store.errors import DamagedStoreError
from broker_store.formats import index_file, queue_unit, record
from broker_store.messages import Message
from broker_store.pipeline import batches
from broker_store.pipeline.columns import COLUMNS
from broker_store.pipeline.options import Options, read_options
from broker_store.pipeline.splits import Split, splits_of
from tests.pipeline import plain
from tests.support import stores
from tests.support.hand_store import Clock, opened
from tests.support.reference import index_keys

EVERY = tuple(COLUMNS["records"])


def read(store, columns=EVERY, **given) -> list[dict]:
    options = read_options({"path": str(store), **{name: str(value) for name, value in given.items()}})
    splits = splits_of(store, None, options.tests, options.partition_bytes)
    return [
        row
        for split in splits
        for batch in batches.batches_of(split, columns, options)
        for row in batch.to_pylist()
    ]


def host(address: bytes, port: int) -> str:
    text = str(ipaddress.ip_address(address))
    return f"[{text}]:{port}" if len(address) == 16 else f"{text}:{port}"


def expected(one: record.StoredMessage) -> dict:
    """What the row of a record must be, by the slow way."""
    return {
        "topic": one.topic,
        "queue_id": one.queue_id,
        "queue_offset": one.queue_offset,
        "log_offset": one.log_offset,
        "record_bytes": one.size,
        "version": one.version,
        "store_time": one.store_timestamp,
        "store_host": host(*one.store_host),
        "born_time": one.born_timestamp if one.born_timestamp < 1 << 52 else None,
        "born_host": host(*one.born_host),
        "flag": one.flag,
        "sys_flag": one.sys_flag,
        "body_crc": one.body_crc,
        "reconsume_times": one.reconsume_times,
        "prepared_offset": one.prepared_transaction_offset,
        "properties": list(one.properties.items()),
        "tags": one.tags,
        "tags_code": queue_unit.tags_code(
            one.topic, one.tags, one.properties.get("DELAY"), one.store_timestamp
        ),
        "keys": list(one.keys),
        "unique_key": one.unique_key,
        "entry_hashes": hashes(one),
        "queued": one.is_queued,
        "body_bytes": len(one.body),
        "body": one.body,
        "body_plain": batches.plain_body(one.body, one.sys_flag, Options(None)),
        "problem": None,
    }


def hashes(one: record.StoredMessage) -> list[int]:
    texts = index_keys(one)
    found = [index_file.key_hash(text) for text in texts]
    return [*found[:-1], found[-1] + (1 << 32)] if found and one.tags else found


def in_milliseconds(row: dict) -> dict:
    for name in ("store_time", "born_time"):
        row[name] = None if row[name] is None else round(row[name].timestamp() * 1000)
    return row


@pytest.mark.parametrize("name", ["golden-clean", "clean", "broker-dir"])
def test_every_field_of_every_record_of_a_real_store_comes_as_it_stands(tmp_path, name):
    store = stores.unpack(name, tmp_path)
    rows, records = read(store), plain.records(store)
    assert len(rows) == len(records) > 0
    for row, one in zip(rows, records, strict=True):
        assert in_milliseconds(row) == expected(one)
    assert Counter(row["topic"] for row in rows) == Counter(one.topic for one in records)


def test_records_of_every_shape_come_as_a_plain_reader_gives_them(tmp_path):
    six = bytes(range(16))
    messages = [
        Message("T", 1, b"", b""),
        Message(
            "T",
            0,
            b"x" * 300,
            b"KEYS\1 a  b \2TAGS\1t\2",
            born_host=(six, 9),
            store_host=(six, 10_911),
            sys_flag=0x2,
        ),
        Message("T", 0, b"y", b"KEYS\1a\2KEYS\1b c\2UNIQ_KEY\1u\2x\1\2\1y\2KEYS", flag=-5, reconsume_times=3),
        Message("%RETRY%" + "g" * 200, 0, b"z", b"TAGS\1\xc3\xa9\2a\1\xff\xfe\2", born_timestamp=1 << 61),
        Message("T", 2, b"half", b"a\1b", sys_flag=4, prepared_transaction_offset=77),
    ]
    with opened(tmp_path / "store", Clock()) as store:
        for message in messages:
            store.appender.put(message)
    found = plain.records(tmp_path / "store")
    assert [in_milliseconds(row) for row in read(tmp_path / "store")] == [expected(one) for one in found]
    assert len(found) == len(messages)


def test_small_slices_and_small_batches_give_the_same(tmp_path, monkeypatch):
    store = stores.unpack("clean", tmp_path)
    whole = read(store)
    monkeypatch.setattr(batches, "SLICE_BYTES", 150_000)
    monkeypatch.setattr(batches, "ROWS", 7)
    assert read(store) == whole


def test_small_partitions_hold_whole_records_and_together_all_of_them(tmp_path):
    store = stores.unpack("clean", tmp_path)
    splits = splits_of(store, partition_bytes=20_000)
    largest = max(one.size for one in plain.records(store))
    assert len(splits) > 3 * len(splits_of(store))
    assert all(split.end - split.begin < 3 * 20_000 + largest for split in splits[:-1])
    starts = {one.log_offset for one in plain.records(store)}
    assert all(split.begin in starts for split in splits)
    assert read(store, partition_bytes=20_000) == read(store)


@pytest.mark.parametrize(
    ("given", "test"),
    [
        ({"topic": "TopicX"}, lambda one: one.topic == "TopicX"),
        ({"topic": "TopicX", "queue": "1,3"}, lambda one: one.topic == "TopicX" and one.queue_id in (1, 3)),
        ({"from_offset": 5_000, "to_offset": 12_345}, lambda one: 5_000 <= one.log_offset < 12_345),
        ({"tag": "TagA || TagB"}, lambda one: one.tags in ("TagA", "TagB")),
    ],
)
def test_an_option_lets_through_what_a_plain_reader_would_choose(tmp_path, given, test):
    store = stores.unpack("golden-clean", tmp_path)
    wanted = [one.log_offset for one in plain.records(store) if test(one)]
    assert [
        row["log_offset"] for row in read(store, ("log_offset",), partition_bytes=4_000, **given)
    ] == wanted
    assert 0 < len(wanted) < len(plain.records(store))


def test_times_choose_records_and_spare_the_stretches_that_lie_hours_away(tmp_path):
    clock = Clock()
    with opened(tmp_path / "store", clock) as store:
        for _ in range(200):
            clock.advance(600_000)
            store.appender.put(Message("T", 0, bytes(400)))
    times = [one.store_timestamp for one in plain.records(tmp_path / "store")]
    given = {"from_time": times[100], "to_time": times[110]}
    assert [row["queue_offset"] for row in read(tmp_path / "store", ("queue_offset",), **given)] == list(
        range(100, 110)
    )
    options = read_options(
        {"path": str(tmp_path / "store"), **{name: str(value) for name, value in given.items()}}
    )
    read_bytes = sum(split.end - split.begin for split in splits_of(options.path, None, options.tests, 2_000))
    assert 10 * 500 < read_bytes < 40 * 600


def test_a_stretch_ends_where_it_is_told_to(tmp_path):
    store = stores.unpack("golden-clean", tmp_path)
    (split,) = splits_of(store)
    records = plain.records(store)
    cut = dataclasses.replace(split, end=records[10].log_offset)
    assert sum(batch.num_rows for batch in batches.batches_of(cut, ("topic",), Options(store))) == 10
    within = dataclasses.replace(split, end=records[10].log_offset + 20)
    assert sum(batch.num_rows for batch in batches.batches_of(within, ("topic",), Options(store))) == 10


@pytest.fixture
def damaged(tmp_path) -> tuple[Split, list[record.StoredMessage]]:
    """A stretch whose twentieth record has a flipped bit."""
    store = stores.unpack("golden-clean", tmp_path)
    records = plain.records(store)
    log = store / "commitlog" / ("0" * 20)
    data = bytearray(log.read_bytes())
    data[records[20].log_offset + 95] ^= 1
    log.write_bytes(data)
    (split,) = splits_of(store)
    return split, records


def test_a_bad_record_is_an_error_while_good_ones_follow(damaged):
    split, records = damaged
    with pytest.raises(DamagedStoreError, match=str(records[20].log_offset)):
        list(batches.batches_of(split, ("topic",), Options(None)))


def test_damage_is_passed_over_or_told_when_that_is_asked_for(damaged):
    split, records = damaged
    columns = ("log_offset", "record_bytes", "problem", "body")
    rows = {
        way: [
            row
            for batch in batches.batches_of(split, columns, Options(None, damage=way))
            for row in batch.to_pylist()
        ]
        for way in ("skip", "report")
    }
    assert [row["log_offset"] for row in rows["skip"]] == [
        one.log_offset for one in records if one is not records[20]
    ]
    (told,) = [row for row in rows["report"] if row["problem"]]
    assert (told["log_offset"], told["record_bytes"], told["body"]) == (
        records[20].log_offset,
        records[20].size,
        None,
    )
    assert "CRC" in told["problem"]


def test_a_torn_end_is_an_end(damaged):
    split, records = damaged
    cut = dataclasses.replace(split, end=records[20].log_offset + records[20].size)
    assert sum(batch.num_rows for batch in batches.batches_of(cut, ("topic",), Options(None))) == 20


@pytest.mark.parametrize(
    "kind", [0, record.COMPRESSION_ZLIB, record.COMPRESSION_ZSTD, record.COMPRESSION_LZ4]
)
def test_a_compressed_body_is_given_back_up_to_the_caps(kind):
    original = b"abcdefgh" * 20_000
    if kind in (0, record.COMPRESSION_ZLIB):
        stored = zlib.compress(original)
    else:
        sink = pa.BufferOutputStream()
        with pa.CompressedOutputStream(sink, "zstd" if kind == record.COMPRESSION_ZSTD else "lz4") as stream:
            stream.write(original)
        stored = sink.getvalue().to_pybytes()
    flag = record.SYS_COMPRESSED | kind
    assert batches.plain_body(stored, flag, Options(None, plain_ratio=100_000)) == original
    assert batches.plain_body(stored, flag, Options(None, plain_bytes=len(original) - 1)) is None
    assert batches.plain_body(stored, flag, Options(None, plain_ratio=2)) is None
    assert batches.plain_body(stored[: len(stored) // 2], flag, Options(None, plain_ratio=100_000)) is None
    assert batches.plain_body(b"no such thing", flag, Options(None)) is None
    assert batches.plain_body(original, 0, Options(None)) == original


def test_a_record_inside_a_body_is_no_record(tmp_path):
    """Cuts come from queues and are proven, not found by a search for something like a record."""
    with opened(tmp_path / "store", Clock()) as store:
        first = store.appender.put(Message("T", 0, b"a" * 100))
        inner = record.encode(Message("forged", 0, b"b"), 0, first.log_end + 88, 5)
        store.appender.put(Message("T", 0, inner))
        store.appender.put(Message("T", 0, b"c"))
    for partition_bytes in (1, 50, 250):
        assert [
            row["topic"] for row in read(tmp_path / "store", ("topic",), partition_bytes=partition_bytes)
        ] == ["T"] * 3


def test_a_queue_whose_units_are_wrong_only_makes_fewer_cuts(tmp_path):
    store = stores.unpack("golden-clean", tmp_path)
    whole = read(store)
    for file in (store / "consumequeue").rglob("0" * 20):
        content = bytearray(file.read_bytes())
        for at in range(0, 200, 20):
            if content[at + 8 : at + 12] != bytes(4):
                struct.pack_into(">q", content, at, struct.unpack_from(">q", content, at)[0] + 3)
        file.write_bytes(content)
    assert read(store, partition_bytes=3_000) == whole
