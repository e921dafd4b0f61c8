"""Every store of the real broker, and every crash variant, opened by the engine and compared with what the
real store said.

Where the engine decides otherwise than Apache (docs/durability.md sections 1 and 5) it is written here:

- a bad record below the checkpoint's log stamp stops the start (`bitflip-early`); with accept_damage it is
  cut as Apache cuts;
- the tail after a cut is zeroed, Apache leaves it, so a log file that was cut is compared up to the end
  only;
- the checkpoint is a lower bound in both, its numbers differ;
- after an unclean stop Apache deletes index files and writes new ones from where recovery starts; ours keeps
  the entries and links them again. So headers and names of index files differ, and ours answers each key query
  at least as completely;
- a torn or missing index is built again from the log, Apache does so only from the start file of recovery on.
"""

import hashlib

import pytest

from broker_store.check.walk import check_store
from broker_store.config.load import load_settings
from broker_store.engine.log.store_times import FILE_NAME as STORE_TIMES
from broker_store.engine.store import MessageStore
from broker_store.errors import DamagedStoreError
from broker_store.formats import record
from broker_store.formats.java_hash import java_hash
from broker_store.messages import GetRequest, Message
from tests.support import stores
from tests.support.reference import ReferenceStore

WITH_FACTS = ("clean", "clean-small", "broker-dir")
SKIPPED = ("lock", "abort", "abort.bak", "checkpoint", "ends", STORE_TIMES)


def settings_for(name, root, **more):
    overrides = stores.SIZES[name].overrides() | {key: str(value) for key, value in more.items()}
    return load_settings(overrides=overrides, store_root=root).store


def open_store(name, root, **more):
    return MessageStore(settings_for(name, root, **more), clock=lambda: 1_800_000_000_000)


def files_of(root):
    """Name -> content of everything a store consists of, apart from what each run writes again."""
    paths = [path for path in root.rglob("*") if path.is_file() and path.name not in SKIPPED]
    files = {str(path.relative_to(root)): path.read_bytes() for path in paths}
    # The next log file is made ahead of time, in both brokers; empty it says nothing.
    return {
        name: content for name, content in files.items() if any(content) or not name.startswith("commitlog/")
    }


def codes(expression):
    return None if expression == "*" else frozenset(java_hash(tag.strip()) for tag in expression.split("||"))


def offsets_in(result):
    return [message.log_offset for message in record.decode_all(result.body)]


def assert_reads_as(store, facts):
    for fact in facts["getMessage"]:
        request = GetRequest(
            fact["topic"],
            fact["queueId"],
            fact["offset"],
            fact["maxNums"],
            tag_codes=codes(fact["expression"]),
        )
        for result in (store.reads.get(request), store.reads.get_blocking(request)):
            assert (result.status.name, result.next_offset, offsets_in(result)) == (
                fact["status"],
                fact["nextBeginOffset"],
                fact["physicalOffsets"],
            ), fact
            assert (result.min_offset, result.max_offset) == (fact["minOffset"], fact["maxOffset"]), fact


def assert_queues_as(store, facts):
    for queue in facts["queues"]:
        name = queue["topic"], queue["queueId"]
        assert (store.reads.min_offset(*name), store.reads.max_offset(*name)) == (
            queue["minOffset"],
            queue["maxOffset"],
        ), queue
        if queue["maxOffset"]:
            first = store.reads.read_units(*name, queue["minOffset"], 1)[0].log_offset
            last = store.reads.read_units(*name, queue["maxOffset"] - 1, 1)[0].log_offset
            assert (first, last) == (queue["firstPhysicalOffset"], queue["lastPhysicalOffset"]), queue
    known = {(queue["topic"], queue["queueId"]) for queue in facts["queues"]}
    assert {queue for queue in store.queues() if store.reads.max_offset(*queue)} <= known


@pytest.mark.parametrize("name", ["clean", "clean-small", "broker-dir", "golden-clean"])
def test_a_store_that_was_closed_is_opened_and_closed_without_a_changed_byte(name, tmp_path):
    root = stores.unpack(name, tmp_path)
    before = files_of(root)
    with open_store(name, root) as store:
        assert store.report.as_dict()["kind"] == "normal"
        assert (root / "abort").exists()
    assert not (root / "abort").exists()
    assert files_of(root) == before
    assert check_store(root).findings == []


@pytest.mark.parametrize("name", WITH_FACTS)
def test_a_store_that_was_closed_answers_as_the_real_one(name, tmp_path):
    facts = stores.facts(name)
    root = stores.unpack(name, tmp_path)
    with open_store(name, root) as store:
        positions = store.status.positions()
        assert (positions.min, positions.confirmed) == (
            facts["commitLog"]["minPhyOffset"],
            facts["commitLog"]["maxPhyOffset"],
        )
        assert_queues_as(store, facts)
        for unit in facts["consumeQueueUnits"]:
            (found,) = store.reads.read_units(unit["topic"], unit["queueId"], unit["queueOffset"], 1)
            assert found == (unit["physicalOffset"], unit["size"], unit["tagsCode"])
        assert_reads_as(store, facts)
        for fact in facts["offsetByTimestamp"]:
            queue = fact["topic"], fact["queueId"]
            found = (
                store.reads.times.offset_by_time(*queue, fact["timestamp"]),
                store.reads.times.offset_by_time(*queue, fact["timestamp"], upper=True),
            )
            assert found == (fact["lower"], fact["upper"]), fact
        for fact in facts["queryByKey"]:
            result = store.reads.query_keys(
                fact["topic"], fact["key"], fact["maxNum"], fact["begin"], fact["end"]
            )
            assert result.offsets == fact["physicalOffsets"], fact
            assert (result.index_last_timestamp, result.index_last_offset) == (
                fact["indexLastUpdateTimestamp"],
                fact["indexLastUpdatePhyoffset"],
            ), fact
            assert [record.decode(raw).log_offset for raw in result.records] == result.offsets
        for fact in facts["messages"]:
            message = record.decode(
                store.reads.records.record_at(fact["physicalOffset"]), log_offset=fact["physicalOffset"]
            )
            assert (message.offset_id, message.properties) == (fact["offsetMsgId"], fact["properties"])
        found = [
            (f.begin_ms, f.end_ms, f.begin_offset, f.end_offset, f.slots_used) for f in store.index.facts()
        ]
        assert found == [
            (
                f["beginTimestamp"],
                f["endTimestamp"],
                f["beginPhyOffset"],
                f["endPhyOffset"],
                f["hashSlotCount"],
            )
            for f in facts["indexFilesAfter"]
        ]


def test_every_message_of_the_golden_store_is_read_as_it_was_printed(tmp_path):
    root = stores.unpack("golden-clean", tmp_path)
    printed = (stores.STORES / "golden-clean.records.txt").read_text().splitlines()
    records = [line for line in printed if line.split(" ")[0].isdigit()]
    assert len(records) == 70
    with open_store("golden-clean", root) as store:
        for line in records:
            log_offset, size, topic, _, queue_id, _, queue_offset = line.split(" ")[:7]
            message = record.decode(
                store.reads.records.record_at(int(log_offset)), log_offset=int(log_offset)
            )
            assert (message.size, message.topic, message.queue_id, message.queue_offset) == (
                int(size),
                topic,
                int(queue_id),
                int(queue_offset),
            )
            result = store.reads.get(GetRequest(topic, int(queue_id), int(queue_offset), 1))
            assert offsets_in(result) == [int(log_offset)]


def test_the_killed_golden_store_comes_back_whole(tmp_path):
    root = stores.unpack("golden-crash", tmp_path)
    before = files_of(root)
    with open_store("golden-crash", root) as store:
        assert store.report.as_dict()["kind"] == "abnormal"
        assert store.status.positions().confirmed == 3189607
        assert [
            (store.reads.min_offset("Roll", queue), store.reads.max_offset("Roll", queue)) for queue in (0, 1)
        ] == [
            (0, 2160),
            (0, 2160),
        ]
        for number in (0, 1, 777, 2159, 4319):
            for key in (f"k{number}", f"7F000001000118B4AAC2{number:012X}"):
                found = [record.decode(raw) for raw in store.reads.query_keys("Roll", key, 32).records]
                bodies = [
                    message.body.decode() for message in found if key in (*message.keys, message.unique_key)
                ]
                assert bodies == [f"{number}-" * (60 + number % 97)], key
        time_999 = store.reads.times.store_time_at("Roll", 0, 999)
        assert store.reads.times.store_time_at("Roll", 0, 1000) == time_999
        searches = [(time_999, 999, 1000), (time_999 + 1, 1001, 1000), (1 << 50, 2160, 2159), (0, 0, 0)]
        for time_ms, lower, upper in searches:
            assert store.reads.times.offset_by_time("Roll", 0, time_ms) == lower
            assert store.reads.times.offset_by_time("Roll", 0, time_ms, upper=True) == upper
    after = files_of(root)
    assert {name for name in after if not name.startswith("index/")} == {
        name for name in before if not name.startswith("index/")
    }
    assert all(after[name] == content for name, content in before.items() if not name.startswith("index/"))
    assert check_store(root).findings == []


def test_a_flipped_byte_at_the_end_of_the_golden_store_is_cut_where_the_real_broker_cut(tmp_path):
    root = stores.unpack("golden-crash", tmp_path)
    at = 3185747 - 3145728 + record.FIXED_IPV4.size
    path = root / "commitlog/00000000000003145728"
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)
    with open_store("golden-crash", root, acceptDamage="true") as store:
        assert store.status.positions().confirmed == 3185747
        assert [store.reads.max_offset("Roll", queue) for queue in (0, 1)] == [2158, 2157]
    report = check_store(root)
    assert report.findings == [] and report.log_end == 3185747
    with open_store("golden-crash", root) as store:  # what was accepted once is not asked again
        assert store.status.positions().confirmed == 3185747


@pytest.mark.quick(3)
@pytest.mark.parametrize("variant", stores.variants())
def test_a_crash_variant_is_recovered_to_what_the_real_store_made_of_it(variant, tmp_path):
    expected = stores.facts("crash")["variants"][variant]["expected"]
    root = stores.unpack_variant(variant, tmp_path)
    if variant == "bitflip-early":
        before = files_of(root)
        store = open_store("crash", root)
        with pytest.raises(DamagedStoreError, match="accept-damage") as raised:
            store.open()
        store.close()
        assert raised.value.offset == 2216 and raised.value.file.endswith("00000000000000262144")
        assert files_of(root) == before
    with open_store("crash", root, acceptDamage="true" if variant == "bitflip-early" else "false") as store:
        assert store.report.as_dict()["kind"] == ("normal" if variant == "abort-removed-torn" else "abnormal")
        assert store.status.positions().confirmed == expected["commitLog"]["maxPhyOffset"]
        assert_queues_as(store, expected)
        assert_reads_as(store, expected)
        for fact in expected["queryByKey"]:
            result = store.reads.query_keys(
                fact["topic"], fact["key"], fact["maxNum"], fact["begin"], fact["end"]
            )
            assert (
                set(result.offsets) >= set(fact["physicalOffsets"]) or len(result.offsets) == fact["maxNum"]
            ), fact
            wanted = [message.log_offset for message in map(record.decode, result.records)]
            assert wanted == result.offsets == sorted(result.offsets)
    assert not (root / "abort").exists()
    assert_same_log_and_queues(root, expected)
    report = check_store(root)
    assert report.findings == []
    assert report.counts["records"] == expected["messageCount"]


def assert_same_log_and_queues(root, expected):
    """Every log and queue file as Apache left it; where it cut, up to the end, and zero after it in ours."""
    end = expected["commitLog"]["maxPhyOffset"]
    whole = end == stores.facts("crash")["variants"]["kill9"]["expected"]["commitLog"]["maxPhyOffset"]
    wanted = {f["path"]: f["sha256"] for f in expected["filesAfterShutdown"]}
    reference = ReferenceStore(root, stores.SIZES["crash"])
    for name, content in files_of(root).items():
        kind, base = name.split("/")[0], name.rsplit("/", 1)[-1]
        if kind == "commitlog" and int(base) <= end < int(base) + len(content):
            assert not any(content[end - int(base) :]), name
        elif kind == "commitlog" or (kind == "consumequeue" and whole):
            assert hashlib.sha256(content).hexdigest() == wanted[name], name
    for topic, queue_id in reference.queues:
        content = b"".join(
            path.read_bytes() for path in sorted((root / f"consumequeue/{topic}/{queue_id}").iterdir())
        )
        assert content.ljust(2000, b"\0") == reference.queue_bytes(topic, queue_id)


@pytest.mark.parametrize("variant", ["kill9", "nothing-but-log", "bitflip-tail", "log-behind"])
def test_recovering_twice_is_recovering_once(variant, tmp_path):
    root = stores.unpack_variant(variant, tmp_path)
    store = open_store("crash", root)
    store.open()
    first = files_of(root)
    store.close()
    (root / "abort").write_text("1")
    with open_store("crash", root):
        pass
    assert {name: content for name, content in files_of(root).items() if not name.startswith("index/")} == {
        name: content for name, content in first.items() if not name.startswith("index/")
    }
    assert check_store(root).findings == []


@pytest.mark.parametrize("name", stores.NAMES)
def test_a_real_store_goes_on_where_it_ended(name, tmp_path):
    root = stores.unpack(name, tmp_path)
    sizes = stores.SIZES[name]
    topic, queue_id = next(
        queue for queue in ReferenceStore(root, sizes).queues if not queue[0].startswith("SCHEDULE")
    )
    with open_store(name, root) as store:
        following, end = store.reads.max_offset(topic, queue_id), store.status.positions().wrote
        result = store.appender.put(
            Message(topic, queue_id, b"one more", b"KEYS\x01a-new-key\x02TAGS\x01TagA\x02")
        )
        assert result.ok and (result.queue_offset, result.log_offset) == (following, end)
        assert store.reads.query_keys(topic, "a-new-key", 32).offsets == [end]
        assert offsets_in(store.reads.get(GetRequest(topic, queue_id, following))) == [end]
    report = check_store(root)
    assert report.ok, report.findings
    with open_store(name, root) as store:
        assert store.reads.max_offset(topic, queue_id) == following + 1
        assert store.reads.query_keys(topic, "a-new-key", 32).offsets == [end]
