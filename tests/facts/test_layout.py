"""How messages lie in the log, as the kernel counts it and as the plain reader does; on stores that Apache's
broker wrote."""

from __future__ import annotations

import shutil
import struct
from collections import Counter
from pathlib import Path

import pytest

from broker_store.errors import NotFoundError
from broker_store.facts import layout as inside
from broker_store.facts.directory import StoreDirectory
from broker_store.facts.layout import CELLS, CELLS_PER_ROW, LayoutScan, LogSpan, Start
from tests.support import plain_layout, stores

UNIT = struct.Struct(">qiq")


@pytest.fixture(scope="module", params=["crash", "golden-crash", "clean-small"])
def root(request, tmp_path_factory):
    return stores.unpack(request.param, tmp_path_factory.mktemp("store"))


@pytest.fixture
def crashed(tmp_path) -> Path:
    return stores.unpack("crash", tmp_path)


def same(found: dict, plain: dict) -> None:
    """`found` says at least what the plain reader says."""
    for key, value in plain.items():
        if isinstance(value, dict):
            same(getattr(found, key), value)
        else:
            assert getattr(found, key) == pytest.approx(value), key


def test_every_topic_is_counted_as_the_plain_reader_counts_it(root):
    found = LayoutScan(StoreDirectory(root), Start()).of_each()
    begin, size, end = plain_layout.log_of(root)
    assert found.log == LogSpan(begin=begin, end=end, file_bytes=size, cut=False) and found.complete
    queues = plain_layout.queues_of(root)
    assert {row.topic for row in found.items} == {topic for topic, _ in queues}
    for row in found.items:
        same(
            row,
            plain_layout.laid(root, [queue for queue in queues if queue[0] == row.topic], CELLS_PER_ROW),
        )
    costs = [row.pages.bytes for row in found.items]
    assert costs == sorted(costs, reverse=True) and costs[0] > 0


def test_several_topics_are_read_as_one_and_pages_are_read_once(root):
    topics = sorted({topic for topic, _ in plain_layout.queues_of(root)})[-2:]
    found = LayoutScan(StoreDirectory(root), Start()).of(topics)
    same(
        found,
        plain_layout.laid(
            root, [queue for queue in plain_layout.queues_of(root) if queue[0] in topics], CELLS
        ),
    )
    assert found.topics == topics


def test_a_replay_begins_at_a_place_of_the_log_at_a_time_or_where_a_group_stands(crashed):
    queues = [("FixA", queue_id) for queue_id in range(4)]
    units = plain_layout.units_of(crashed, "FixA", 1)
    place = units[len(units) // 2][1] + 1
    at_ms = plain_layout.stored_ms(crashed, place - 1)
    offsets = {"group": {"FixA": {0: 17, 1: 100, 2: 1 << 40}}}
    starts = (
        (Start(log_offset=place), lambda topic, queue_id, unit: unit[1] >= place),
        (
            Start(time_ms=at_ms),
            lambda topic, queue_id, unit: plain_layout.stored_ms(crashed, unit[1]) >= at_ms,
        ),
        (
            Start(offsets=offsets, group="group"),
            lambda topic, queue_id, unit: unit[0] >= offsets["group"]["FixA"].get(queue_id, 0),
        ),
    )
    whole = LayoutScan(StoreDirectory(crashed), Start()).of(["FixA"]).messages
    for start, is_from in starts:
        found = LayoutScan(StoreDirectory(crashed), start).of(["FixA"])
        same(found, plain_layout.laid(crashed, queues, CELLS, is_from))
        assert 0 < found.messages < whole


def test_what_is_not_looked_at_is_said(crashed, monkeypatch):
    monkeypatch.setattr(inside, "MAX_UNITS", 40)
    found = LayoutScan(StoreDirectory(crashed), Start()).of(["FixA"])
    same(
        found,
        plain_layout.laid(crashed, [("FixA", queue_id) for queue_id in range(4)], CELLS, most_a_queue=10),
    )
    assert (found.complete, found.reason) == (
        False,
        "of each queue the first 10 messages are scanned",
    )
    monkeypatch.setattr(inside, "MAX_UNITS", 4 * len(plain_layout.units_of(crashed, "FixA", 0)) + 400)
    assert LayoutScan(StoreDirectory(crashed), Start()).of(["FixA"]).complete
    stopped = LayoutScan(StoreDirectory(crashed), Start(), stopped=lambda: True).of_each()
    topics = sorted({topic for topic, _ in plain_layout.queues_of(crashed)})
    assert (stopped.items, stopped.complete, stopped.reason) == (
        [],
        False,
        f"{len(topics)} topics were left out; those with most files are scanned",
    )
    monkeypatch.setattr(inside, "MAX_SCAN_S", 0.0)
    assert "longer than" in LayoutScan(StoreDirectory(crashed), Start()).of(["FixA"]).reason
    with pytest.raises(NotFoundError, match="no queue of nowhere"):
        LayoutScan(StoreDirectory(crashed), Start()).of(["nowhere"])


def test_of_more_topics_than_are_looked_at_those_with_most_files_are(crashed, monkeypatch):
    files = Counter(topic for topic, *_ in StoreDirectory(crashed).queue_paths())
    monkeypatch.setattr(inside, "MAX_TOPICS", 2)
    found = LayoutScan(StoreDirectory(crashed), Start()).of_each()
    assert {row.topic for row in found.items} == set(
        sorted(files, key=lambda topic: (-files[topic], topic))[:2]
    )
    assert (found.complete, found.reason) == (
        False,
        f"{len(files) - 2} topics were left out; those with most files are scanned",
    )


def test_of_more_topics_than_are_looked_at_those_with_most_messages_are_where_a_broker_counts_them(
    crashed, monkeypatch
):
    """A topic of many queues with a message each came before one with all of the messages in a queue."""
    monkeypatch.setattr(inside, "MAX_TOPICS", 1)
    store = StoreDirectory(crashed)
    files = Counter(topic for topic, *_ in store.queue_paths())
    largest = min(files, key=lambda topic: (files[topic], topic))
    counted = Counter({queue: 1_000 if queue[0] == largest else 1 for queue in store.queues()})
    assert files[largest] < max(files.values())
    found = LayoutScan(store, Start(), messages_in=lambda *queue: counted[queue]).of_each()
    assert [row.topic for row in found.items] == [largest] and found.reason.endswith(
        "topics were left out; those with most messages are scanned"
    )


@pytest.mark.parametrize("when", ["after its files were listed", "before a file is opened"])
def test_a_topic_that_is_deleted_meanwhile_fails_no_look(when, crashed, monkeypatch):
    """The whole page failed with a file that was not there."""
    topics = {topic for topic, *_ in StoreDirectory(crashed).queue_paths()}
    store, gone = StoreDirectory(crashed), "FixA"
    name = "queue_paths" if when.startswith("after") else "queue_units"
    of_store = getattr(store, name)

    def deleted_since(*of):
        found = of_store(*of)
        found = list(found) if name == "queue_paths" else found
        if name == "queue_paths" or of[0] == gone:
            shutil.rmtree(crashed / "consumequeue" / gone, ignore_errors=True)
        return found

    monkeypatch.setattr(store, name, deleted_since)
    found = LayoutScan(store, Start()).of_each()
    assert found.complete and topics - {row.topic for row in found.items if row.messages} == {gone}


def test_a_file_of_a_queue_that_goes_while_they_are_listed_is_none_of_it(crashed, monkeypatch):
    store = StoreDirectory(crashed)
    before, numbered = store.queue_files("FixA", 0), store._numbered
    monkeypatch.setattr(store, "_numbered", lambda directory: [*numbered(directory), "9" * 20])
    assert store.queue_files("FixA", 0) == before


def test_units_that_lead_out_of_the_log_are_gone_and_those_in_front_of_a_queue_are_none(crashed):
    """As after cleaning: the first log file is away, and a queue that did not begin at 0 has its beginning
    filled."""
    path = crashed / "consumequeue" / "FixA" / "0" / ("0" * 20)
    data = bytearray(path.read_bytes())
    for number in range(5):
        UNIT.pack_into(data, number * 20, 0, 0x7FFFFFFF, 0)
    path.write_bytes(data)
    (crashed / "commitlog" / ("0" * 20)).unlink()
    found = LayoutScan(StoreDirectory(crashed), Start()).of(["FixA"])
    same(found, plain_layout.laid(crashed, [("FixA", queue_id) for queue_id in range(4)], CELLS))
    assert found.gone > 0 and found.log.begin == 262_144


def test_what_is_written_while_one_looks_is_neither_there_nor_gone(crashed):
    units = plain_layout.units_of(crashed, "FixB", 2)
    place = units[-3][1]
    found = LayoutScan(StoreDirectory(crashed), Start(), place).of(["FixB"])
    assert (found.log.end, found.gone) == (place, 0)
    every = [unit for queue_id in range(4) for unit in plain_layout.units_of(crashed, "FixB", queue_id)]
    assert found.messages == sum(log_offset + size <= place for _, log_offset, size in every) < len(every)


def test_an_empty_store_has_no_topic_and_a_log_of_files_that_are_no_whole_pages_is_counted_too(
    crashed, tmp_path
):
    shutil.rmtree(crashed / "consumequeue")
    assert LayoutScan(StoreDirectory(crashed), Start()).of_each().items == []
    odd = tmp_path / "odd"
    (odd / "commitlog").mkdir(parents=True)
    (odd / "consumequeue" / "T" / "0").mkdir(parents=True)
    file_size, record = 10_000, struct.pack(">iI", 3_000, 0xDAA320A7) + bytes(2_992)
    blank = struct.pack(">iI", 1_000, 0xCBD43194) + bytes(992)
    for base in (0, file_size, 2 * file_size):
        (odd / "commitlog" / f"{base:020d}").write_bytes(
            record * 3 + (blank if base < 2 * file_size else bytes(1_000))
        )
    places = [base + at for base in (0, file_size, 2 * file_size) for at in (0, 6_000)]
    (odd / "consumequeue" / "T" / "0" / ("0" * 20)).write_bytes(
        b"".join(UNIT.pack(place, 3_000, 0) for place in places) + bytes(40)
    )
    found = LayoutScan(StoreDirectory(odd), Start()).of(["T"])
    same(found, plain_layout.laid(odd, [("T", 0)], CELLS))
    assert (found.messages, found.pages.touched, found.jumps.p50) == (6, 9, 3_000)


def test_what_is_cold_takes_the_time_that_cold_reads_took(crashed, monkeypatch):
    """The first half of each log file is in memory, the rest is not."""
    store = StoreDirectory(crashed)
    monkeypatch.setattr(store.disk, "pages_in_memory", lambda path: bytearray(b"\1" * 32 + b"\0" * 32))
    found = LayoutScan(store, Start(), cold_rate=50_000.0).of(["FixC"])
    cold = [
        size
        for queue_id in range(4)
        for _, log_offset, size in plain_layout.units_of(crashed, "FixC", queue_id)
        if (log_offset % 262_144 + size - 1) // 4096 >= 32
    ]
    assert (found.cold_messages, found.cold_bytes) == (len(cold), sum(cold))
    assert found.estimate_ms == pytest.approx(sum(cold) / 50)
    assert 0 < found.pages.cold_bytes <= found.ahead.cold_bytes < found.ahead.bytes
    assert found.resident_share == pytest.approx(1 - found.pages.cold_bytes / found.pages.bytes)
    assert LayoutScan(store, Start()).of(["FixC"]).estimate_ms is None, "no cold read was measured yet"
    monkeypatch.setattr(store.disk, "pages_in_memory", lambda path: None)
    unknown = LayoutScan(store, Start(), cold_rate=50_000.0).of(["FixC"])
    assert [
        getattr(unknown, name) for name in ("resident_share", "cold_bytes", "cold_messages", "estimate_ms")
    ] == [None] * 4
    assert unknown.pages.cold_bytes is None and unknown.pages.bytes == found.pages.bytes
