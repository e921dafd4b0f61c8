"""The audit by Spark names each planted fault, and agrees with check_store about stores without one."""

from __future__ import annotations

import struct

import pytest

pytest.importorskip("pyspark", reason="Spark is in requirements.txt and not installed here")

from broker_store.engine.check import check_store
from broker_store.engine.disk import Disk
from broker_store.formats import index_file, queue_unit
from broker_store.formats.java_hash import java_hash, java_text
from broker_store.messages import Message
from broker_store.pipeline import audit, derived, jobs
from tests.pipeline import plain
from tests.support import stores
from tests.support.hand_store import Clock, opened


def test_a_store_of_the_real_broker_is_in_order(spark, tmp_path):
    store = stores.unpack("clean-small", tmp_path)
    result = jobs.audit(spark, store)
    report = check_store(store)
    assert (result["ok"], [one for one in result["findings"] if one["severity"] == "error"]) == (True, [])
    assert result["kinds"] == {kind: count for kind, count in report.kinds.items() if kind in result["kinds"]}
    for name in ("records", "units", "entries", "index_files", "queues"):
        assert result["counts"][name] == report.counts[name], name


def test_a_broker_may_have_delay_levels_of_its_own(spark, tmp_path):
    root = tmp_path / "store"
    with opened(root, Clock(), message_delay_level="7s 3m") as store:
        store.put(Message("SCHEDULE_TOPIC_XXXX", 1, b"later", b"DELAY\x012\2REAL_TOPIC\1T0\2"))
    assert jobs.audit(spark, root)["kinds"] == {"unit-wrong": 1}, "Apache's level 2 waits five seconds"
    assert jobs.audit(spark, root, delay_levels="7s 3m")["ok"]


def test_a_store_of_ours_with_deleted_topics_and_delays_is_in_order(spark, tmp_path):
    root = tmp_path / "store"
    with opened(root, Clock()) as store:
        for number in range(300):
            store.put(Message(f"T{number % 3}", number % 2, bytes(number), f"KEYS\1k{number} all\2TAGS\1t{number % 5}\2".encode()))
        store.put(Message("SCHEDULE_TOPIC_XXXX", 2, b"later", b"DELAY\x013\2REAL_TOPIC\1T0\2"))
        store.delete_topic("T1")
    assert check_store(root).errors == []
    result = jobs.audit(spark, root)
    assert (result["findings"], result["counts"]["records"]) == ([], 301)


def test_tags_and_keys_that_are_no_text_are_in_order_and_hashed_as_by_java(spark, tmp_path):
    root = tmp_path / "store"
    raw = [b"\xff\xfe", b"a\xc3", b"\xed\xa0\x80", b"\xe2\x82x", b"\xf0\x9f\x98", "ü".encode()]
    with opened(root, Clock()) as store:
        for one in raw:
            store.put(Message("T", 0, b"", b"TAGS\1" + one + b"\2KEYS\1" + one + b"\2"))
    units = [unit for file in sorted((root / "consumequeue" / "T" / "0").iterdir()) for unit in queue_unit.decode_all(file.read_bytes()) if unit.size]
    assert [unit.tags_code for unit in units] == [java_hash(java_text(one)) for one in raw]
    assert check_store(root).findings == []
    assert jobs.audit(spark, root)["findings"] == []
    rows = spark.read.format("rocketmq").option("columns", "tags,keys,log_offset").load(str(root)).orderBy("log_offset").collect()
    assert [(row["tags"], row["keys"]) for row in rows] == [(java_text(one), [java_text(one)]) for one in raw]


def edit(path, at: int, change) -> None:
    content = bytearray(path.read_bytes())
    change(content, at)
    path.write_bytes(content)


def test_each_planted_fault_is_named_with_its_place(spark, tmp_path):
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
    edit(torn, torn_at + records[-1].size - 6, lambda content, place: content.__setitem__(slice(place, place + 6), bytes(6)))
    # A queue unit points elsewhere, another is gone.
    queued = [one for one in records[100:400] if one.is_queued and one.queue_offset < 50]
    wrong, missing = queued[0], next(one for one in queued if (one.topic, one.queue_id) != (queued[0].topic, queued[0].queue_id))
    for one, unit in ((wrong, queue_unit.encode(wrong.log_offset + 1, wrong.size, 7)), (missing, bytes(20))):
        queue = store / "consumequeue" / one.topic / str(one.queue_id) / ("0" * 20)
        edit(queue, one.queue_offset * 20, lambda content, place, unit=unit: content.__setitem__(slice(place, place + 20), unit))
    # A chain of the index loops.
    name, _, geometry = next(iter(derived.index_files(store, Disk())))
    looped = geometry.entry_at(5)
    edit(name, looped + index_file.ENTRY.offset["previous"], lambda content, place: struct.pack_into(">i", content, place, 5))
    # A log file is missing.
    gone = logs[2]
    gone.unlink()

    result = jobs.audit(spark, store)
    found = {(one["kind"], str(store / one["file"]), one["offset"]) for one in result["findings"]}
    assert not any(one["file"].startswith("/") for one in result["findings"])
    assert not result["ok"]
    assert ("bad-record", str(path), at) in found
    assert ("torn-tail", str(torn), torn_at) in found
    assert ("file-missing", str(logs[3]), None) in found
    assert ("unit-wrong", str(store / "consumequeue" / wrong.topic / str(wrong.queue_id) / ("0" * 20)), wrong.queue_offset * 20) in found
    assert ("unit-missing", str(store / "consumequeue" / missing.topic / str(missing.queue_id) / ("0" * 20)), missing.queue_offset * 20) in found
    assert ("index-chain", str(name), looped) in found
    assert any("loops" in one["what"] for one in result["findings"] if one["kind"] == "index-chain")
    # What follows from a fault that is named is not told again as another.
    assert result["kinds"]["unit-wrong"] == result["kinds"]["unit-missing"] == result["kinds"]["index-chain"] == 1
    assert "unit-extra" not in result["kinds"] and "index-entry" not in result["kinds"]


def test_many_faults_are_all_counted_and_the_first_told(spark, tmp_path, monkeypatch):
    monkeypatch.setattr(audit, "TOLD", 10)
    root = tmp_path / "store"
    with opened(root, Clock(), mapped_file_size_commit_log=1 << 20, max_hash_slot_num=500, max_index_num=2_000) as store:
        for number in range(600):
            store.put(Message("T", 0, b"x" * 50, f"KEYS\1k{number}\2".encode()))
    records = plain.records(root)
    log = root / "commitlog" / ("0" * 20)
    flipped = records[100:500:2]
    for one in flipped:
        edit(log, one.log_offset + 90, lambda content, place: content.__setitem__(place, content[place] ^ 1))
    name, _, geometry = next(iter(derived.index_files(root, Disk())))
    for entry in range(1, 41):
        edit(name, geometry.entry_at(entry) + index_file.ENTRY.offset["previous"], lambda content, place: struct.pack_into(">i", content, place, 1_999))

    result = jobs.audit(spark, root)
    assert (result["kinds"]["bad-record"], result["kinds"]["index-chain"]) == (len(flipped), 40)
    assert set(result["kinds"]) == {"bad-record", "index-chain"}, "nothing else is told of the records that are named"
    told = [one for one in result["findings"] if one["kind"] == "bad-record"]
    assert [one["offset"] for one in told] == [one.log_offset for one in flipped[:10]]
