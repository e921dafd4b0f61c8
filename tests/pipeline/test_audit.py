"""The audit by Spark names each planted fault, and agrees with check_store about stores without one."""

from __future__ import annotations

import struct

import pytest

pytest.importorskip("pyspark", reason="Spark is in requirements.txt and not installed here")

from broker_store.check.walk import check_store
from broker_store.engine.disk.disk import Disk
from broker_store.engine.status.live_page import LivePage
from broker_store.formats import index_file, queue_unit
from broker_store.formats.java_hash import java_hash, java_text
from broker_store.messages import Message
from broker_store.pipeline import audit_report, derived, jobs
from tests.pipeline import plain
from tests.support import stores
from tests.support.hand_store import Clock, opened


@pytest.fixture(params=[64 << 20, 20_000], ids=["in-few-tasks", "in-many"])
def partition_bytes(request) -> int:
    return request.param


def test_a_store_of_the_real_broker_is_in_order(spark, tmp_path, partition_bytes):
    store = stores.unpack("clean-small", tmp_path)
    result = jobs.audit(spark, store, partition_bytes=partition_bytes)
    report = check_store(store)
    assert (result["ok"], [one for one in result["findings"] if one["severity"] == "error"]) == (True, [])
    assert result["kinds"] == {kind: count for kind, count in report.kinds.items() if kind in result["kinds"]}
    for name in ("records", "units", "entries", "index_files", "queues"):
        assert result["counts"][name] == report.counts[name], name


def test_a_broker_may_have_delay_levels_of_its_own(spark, tmp_path):
    root = tmp_path / "store"
    with opened(root, Clock(), message_delay_level="7s 3m") as store:
        store.appender.put(Message("SCHEDULE_TOPIC_XXXX", 1, b"later", b"DELAY\x012\2REAL_TOPIC\1T0\2"))
    assert jobs.audit(spark, root)["kinds"] == {"unit-wrong": 1}, "Apache's level 2 waits five seconds"
    assert jobs.audit(spark, root, delay_levels="7s 3m")["ok"]


def test_a_store_of_ours_with_deleted_topics_and_delays_is_in_order(spark, tmp_path):
    root = tmp_path / "store"
    with opened(root, Clock()) as store:
        for number in range(300):
            store.appender.put(
                Message(
                    f"T{number % 3}",
                    number % 2,
                    bytes(number),
                    f"KEYS\1k{number} all\2TAGS\1t{number % 5}\2".encode(),
                )
            )
        store.appender.put(Message("SCHEDULE_TOPIC_XXXX", 2, b"later", b"DELAY\x013\2REAL_TOPIC\1T0\2"))
        store.delete_topic("T1")
    assert check_store(root).errors == []
    result = jobs.audit(spark, root)
    assert (result["findings"], result["counts"]["records"]) == ([], 301)


def test_tags_and_keys_that_are_no_text_are_in_order_and_hashed_as_by_java(spark, tmp_path):
    root = tmp_path / "store"
    raw = [b"\xff\xfe", b"a\xc3", b"\xed\xa0\x80", b"\xe2\x82x", b"\xf0\x9f\x98", "ü".encode()]
    with opened(root, Clock()) as store:
        for one in raw:
            store.appender.put(Message("T", 0, b"", b"TAGS\1" + one + b"\2KEYS\1" + one + b"\2"))
    units = [
        unit
        for file in sorted((root / "consumequeue" / "T" / "0").iterdir())
        for unit in queue_unit.decode_all(file.read_bytes())
        if unit.size
    ]
    assert [unit.tags_code for unit in units] == [java_hash(java_text(one)) for one in raw]
    assert check_store(root).findings == []
    assert jobs.audit(spark, root)["findings"] == []
    rows = (
        spark.read.format("rocketmq")
        .option("columns", "tags,keys,log_offset")
        .load(str(root))
        .orderBy("log_offset")
        .collect()
    )
    assert [(row["tags"], row["keys"]) for row in rows] == [(java_text(one), [java_text(one)]) for one in raw]


def edit(path, at: int, change) -> None:
    content = bytearray(path.read_bytes())
    change(content, at)
    path.write_bytes(content)


def test_each_planted_fault_is_named_with_its_place(spark, tmp_path, partition_bytes):
    store = stores.unpack("clean-small", tmp_path)
    records = plain.records(store)
    logs = sorted((store / "commitlog").iterdir())
    bases = [int(path.name) for path in logs]

    def in_log(one) -> tuple:
        number = max(place for place, base in enumerate(bases) if base <= one.log_offset)
        return logs[number], one.log_offset - bases[number]

    # A flipped bit in the body of a record in the middle.
    flipped = next(one for one in records if one.log_offset > bases[1] and len(one.body) > 10)
    path, at = in_log(flipped)
    edit(path, at + 90, lambda content, place: content.__setitem__(place, content[place] ^ 4))
    # The last record is torn.
    torn, torn_at = in_log(records[-1])
    edit(
        torn,
        torn_at + records[-1].size - 6,
        lambda content, place: content.__setitem__(slice(place, place + 6), bytes(6)),
    )
    # A queue unit points elsewhere, another is gone.
    queued = [one for one in records[100:400] if one.is_queued and one.queue_offset < 50]
    wrong, missing = (
        queued[0],
        next(one for one in queued if (one.topic, one.queue_id) != (queued[0].topic, queued[0].queue_id)),
    )
    for one, unit in ((wrong, queue_unit.encode(wrong.log_offset + 1, wrong.size, 7)), (missing, bytes(20))):
        queue = store / "consumequeue" / one.topic / str(one.queue_id) / ("0" * 20)
        edit(
            queue,
            one.queue_offset * 20,
            lambda content, place, unit=unit: content.__setitem__(slice(place, place + 20), unit),
        )
    # A chain of the index loops.
    name, _, geometry = next(iter(derived.index_files(store, Disk())))
    looped = geometry.entry_at(5)
    edit(
        name,
        looped + index_file.ENTRY.offset["previous"],
        lambda content, place: struct.pack_into(">i", content, place, 5),
    )
    # A log file is missing.
    gone = logs[2]
    gone.unlink()

    result = jobs.audit(spark, store, partition_bytes=partition_bytes)
    found = {(one["kind"], str(store / one["file"]), one["offset"]) for one in result["findings"]}
    assert not any(one["file"].startswith("/") for one in result["findings"])
    assert not result["ok"]
    assert ("bad-record", str(path), at) in found
    assert ("torn-tail", str(torn), torn_at) in found
    assert ("file-missing", str(logs[3]), None) in found
    assert (
        "unit-wrong",
        str(store / "consumequeue" / wrong.topic / str(wrong.queue_id) / ("0" * 20)),
        wrong.queue_offset * 20,
    ) in found
    assert (
        "unit-missing",
        str(store / "consumequeue" / missing.topic / str(missing.queue_id) / ("0" * 20)),
        missing.queue_offset * 20,
    ) in found
    assert ("index-chain", str(name), looped) in found
    assert any("loops" in one["what"] for one in result["findings"] if one["kind"] == "index-chain")
    # What follows from a fault that is named is not reported again as another.
    assert (
        result["kinds"]["unit-wrong"]
        == result["kinds"]["unit-missing"]
        == result["kinds"]["index-chain"]
        == 1
    )
    assert "unit-extra" not in result["kinds"] and "index-entry" not in result["kinds"]


def test_many_faults_are_all_counted_and_the_first_told(spark, tmp_path, monkeypatch):
    monkeypatch.setattr(audit_report, "MAX_LISTED", 10)
    root = tmp_path / "store"
    with opened(
        root, Clock(), mapped_file_size_commit_log=1 << 20, max_hash_slot_num=500, max_index_num=2_000
    ) as store:
        for number in range(600):
            store.appender.put(Message("T", 0, b"x" * 50, f"KEYS\1k{number}\2".encode()))
    records = plain.records(root)
    log = root / "commitlog" / ("0" * 20)
    flipped = records[100:500:2]
    for one in flipped:
        edit(log, one.log_offset + 90, lambda content, place: content.__setitem__(place, content[place] ^ 1))
    name, _, geometry = next(iter(derived.index_files(root, Disk())))
    for entry in range(1, 41):
        edit(
            name,
            geometry.entry_at(entry) + index_file.ENTRY.offset["previous"],
            lambda content, place: struct.pack_into(">i", content, place, 1_999),
        )

    result = jobs.audit(spark, root)
    assert (result["kinds"]["bad-record"], result["kinds"]["index-chain"]) == (len(flipped), 40)
    assert set(result["kinds"]) == {"bad-record", "index-chain"}, (
        "nothing else is told of the records that are named"
    )
    told = [one for one in result["findings"] if one["kind"] == "bad-record"]
    assert [one["offset"] for one in told] == [one.log_offset for one in flipped[:10]]


def test_a_unit_that_points_far_away_is_told_once_and_hides_no_other(spark, tmp_path):
    root = tmp_path / "store"
    with opened(
        root, Clock(), mapped_file_size_commit_log=1 << 20, mapped_file_size_consume_queue=20_000
    ) as store:
        for number in range(400):
            store.appender.put(Message("T", 0, b"x" * 50, f"KEYS\1k{number}\2".encode()))
    queue = root / "consumequeue" / "T" / "0" / ("0" * 20)
    tasks = 40_000  # bytes a task: the wrong units lie where a binary search looks up the units of a task
    wrong = {
        200: (0, 100, 7),
        100: (1 << 40, 100, 7),
        300: (-5, 100, 7),
        50: (plain.records(root)[10].log_offset, 100, 7),
    }
    for number, unit in wrong.items():
        edit(
            queue,
            number * 20,
            lambda content, place, unit=unit: content.__setitem__(
                slice(place, place + 20), queue_unit.encode(*unit)
            ),
        )
    result = jobs.audit(spark, root, partition_bytes=tasks)
    assert result["kinds"] == {"unit-wrong": 4} == check_store(root).kinds
    assert [one["offset"] for one in result["findings"]] == [50 * 20]
    assert result["counts"]["units"] == 400


def test_units_and_entries_of_no_record_and_records_of_none_are_told(spark, tmp_path, partition_bytes):
    root = tmp_path / "store"
    sizes = {"mapped_file_size_consume_queue": 20_000, "max_hash_slot_num": 500, "max_index_num": 2_000}
    with opened(root, Clock(), mapped_file_size_commit_log=1 << 20, **sizes) as store:
        for number in range(600):
            store.appender.put(Message("T", 0, b"x" * 50, f"KEYS\1k{number}\2".encode()))
    records = plain.records(root)
    queue = root / "consumequeue" / "T" / "0" / ("0" * 20)
    for number, unit in (
        (600, queue_unit.encode(records[5].log_offset, records[5].size, 0)),
        (601, queue_unit.encode(1 << 40, 100, 0)),
        (310, bytes(20)),
    ):
        edit(
            queue,
            number * 20,
            lambda content, place, unit=unit: content.__setitem__(slice(place, place + 20), unit),
        )
    name, _, geometry = next(iter(derived.index_files(root, Disk())))
    hashes, times = (index_file.ENTRY.offset[field] for field in ("key_hash", "seconds"))
    edit(
        name, geometry.entry_at(50) + times, lambda content, place: struct.pack_into(">i", content, place, 77)
    )
    edit(
        name,
        geometry.entry_at(200) + hashes,
        lambda content, place: struct.pack_into(">i", content, place, 12345),
    )
    result = jobs.audit(spark, root, partition_bytes=partition_bytes)
    kinds = {
        kind: count
        for kind, count in result["kinds"].items()
        if kind not in ("index-chain", "index-slot", "index-header")
    }
    assert kinds == {
        "unit-extra": 2,
        "unit-missing": 1,
        "index-time": 1,
        "index-entry": 1,
        "index-missing": 1,
    }
    places = {(one["kind"], one["offset"]) for one in result["findings"]}
    assert places >= {
        ("unit-missing", 310 * 20),
        ("unit-extra", 600 * 20),
        ("unit-extra", 601 * 20),
        ("index-time", geometry.entry_at(50)),
        ("index-entry", geometry.entry_at(200)),
    }


def test_entries_of_an_index_that_stand_twice_or_out_of_order_are_told_as_such(
    spark, tmp_path, partition_bytes
):
    """No key is missing, and each entry is one of a record: only their order is wrong. A start goes on after
    the offset of the last entry."""
    root = tmp_path / "store"
    with opened(
        root, Clock(), mapped_file_size_commit_log=1 << 20, max_hash_slot_num=500, max_index_num=4_000
    ) as store:
        for number in range(600):
            store.appender.put(Message("T", 0, b"x" * 50, f"KEYS\1k{number}\2".encode()))
    name, header, geometry = next(iter(derived.index_files(root, Disk())))
    content = bytearray(name.read_bytes())
    end = geometry.entry_at(header.count)
    again = content[geometry.entry_at(301) : end]
    # The entries 301 to 600 stand twice, and those from 101 to 200 after those from 201 to 300.
    content[end : end + len(again)] = again
    early, late = (
        content[geometry.entry_at(101) : geometry.entry_at(201)],
        content[geometry.entry_at(201) : geometry.entry_at(301)],
    )
    content[geometry.entry_at(101) : geometry.entry_at(301)] = late + early
    struct.pack_into(">i", content, index_file.HEADER.offset["count"], header.count + 300)
    newest = index_file.decode_entry(content, geometry.entry_at(header.count - 1)).key_hash % geometry.slots
    struct.pack_into(">i", content, geometry.slot_at(newest), header.count + 299)
    name.write_bytes(content)
    result = jobs.audit(spark, root, partition_bytes=partition_bytes)
    in_order = {
        kind: count
        for kind, count in result["kinds"].items()
        if kind not in ("index-chain", "index-slot", "index-header")
    }
    assert in_order == {"index-entry": 2} == {kind: check_store(root).kinds[kind] for kind in in_order}
    back = [one for one in result["findings"] if one["kind"] == "index-entry"]
    assert {one["offset"] for one in back} == {geometry.entry_at(201), geometry.entry_at(header.count)}
    assert result["counts"]["entries"] == header.count - 1 + 300


def test_what_points_to_records_that_were_deleted_is_in_order(spark, tmp_path, partition_bytes):
    root = tmp_path / "store"
    with opened(
        root,
        Clock(),
        mapped_file_size_commit_log=16_384,
        mapped_file_size_consume_queue=2_000_000,
        max_hash_slot_num=500,
        max_index_num=4_000,
    ) as store:
        for number in range(600):
            store.appender.put(Message("T", number % 2, b"x" * 50, f"KEYS\1k{number}\2".encode()))
    for path in sorted((root / "commitlog").iterdir())[:3]:
        path.unlink()
    result = jobs.audit(spark, root, partition_bytes=partition_bytes)
    assert result["findings"] == []
    assert (result["counts"]["records"] < 600, result["counts"]["units"], result["counts"]["entries"]) == (
        True,
        600,
        600,
    )


def test_of_a_store_in_use_only_what_is_dispatched_is_compared(spark, tmp_path, partition_bytes):
    root = tmp_path / "store"
    with opened(
        root, Clock(), mapped_file_size_commit_log=1 << 20, max_hash_slot_num=500, max_index_num=2_000
    ) as store:
        for number in range(600):
            store.appender.put(Message("T", number % 2, b"x" * 50, f"KEYS\1k{number}\2".encode()))
    until = plain.records(root)[400]
    page = LivePage(Disk(), tmp_path / "live")
    page.publish(0, until.log_offset, until.log_offset, until.log_offset, until.log_offset, 0, "running")
    # What follows may be half written.
    edit(
        root / "commitlog" / ("0" * 20),
        until.log_offset + 90,
        lambda content, place: content.__setitem__(place, content[place] ^ 1),
    )
    result = jobs.audit(spark, root, tmp_path / "live", partition_bytes=partition_bytes)
    page.close()
    assert result["findings"] == []
    assert [result["counts"][name] for name in ("records", "units", "entries", "log_end")] == [
        400,
        400,
        400,
        until.log_offset,
    ]
