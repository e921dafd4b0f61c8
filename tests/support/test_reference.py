"""The reference is itself held against what the real store said."""

import pytest

from tests.support import reference, stores
from tests.support.reference import ReferenceStore

WITH_FACTS = ("clean", "clean-small", "broker-dir")


@pytest.fixture(scope="module", params=stores.NAMES)
def opened(request, tmp_path_factory):
    root = stores.unpack(request.param, tmp_path_factory.mktemp("store"))
    return request.param, ReferenceStore(root, stores.SIZES[request.param])


@pytest.fixture(scope="module", params=WITH_FACTS)
def with_facts(request, tmp_path_factory):
    root = stores.unpack(request.param, tmp_path_factory.mktemp("store"))
    return ReferenceStore(root, stores.SIZES[request.param]), stores.facts(request.param)


def test_the_walk_ends_where_the_real_store_ended(opened):
    name, store = opened
    end = {"golden-crash": 3189607, "golden-clean": None, "crash": 1563264}.get(name)
    if name in WITH_FACTS:
        facts = stores.facts(name)
        end = facts["commitLog"]["maxPhyOffset"]
        assert [offset for offset, _ in store.walk.blanks] == facts["endOfFileRecordsAt"]
        assert len(store.records) == facts["messageCount"]
    if end is not None:
        assert store.log_end == end


def test_the_golden_blanks_are_found(opened):
    name, store = opened
    if name == "golden-crash":
        assert store.walk.blanks == [(1048187, 389), (1048576 + 1047935, 641), (2097152 + 1048180, 396)]


def test_every_queue_file_comes_out_of_the_log_byte_for_byte(opened):
    _, store = opened
    assert {queue for queue, units in store.queues.items() if units} == reference.queues_from_log(
        list(store.records.values())
    ).keys()
    for topic, queue_id in store.queues:
        paths = sorted((store.root / "consumequeue" / topic / str(queue_id)).iterdir())
        assert store.queue_bytes(topic, queue_id) == b"".join(path.read_bytes() for path in paths)


def test_every_index_file_comes_out_of_the_log_byte_for_byte(opened):
    name, store = opened
    sizes = stores.SIZES[name]
    models = reference.index_from_log(
        list(store.records.values()),
        sizes.max_hash_slot_num,
        sizes.max_index_num,
        with_tags=not name.startswith("golden"),
    )
    paths = sorted((store.root / "index").iterdir())
    assert [model.to_bytes() for model in models] == [path.read_bytes() for path in paths]


def test_queues_begin_and_end_where_the_real_store_says(with_facts):
    store, facts = with_facts
    for queue in facts["queues"]:
        name = queue["topic"], queue["queueId"]
        assert (store.min_offset(*name), store.max_offset(*name)) == (
            queue["minOffset"],
            queue["maxOffset"],
        )
    for unit in facts["consumeQueueUnits"]:
        found = store.queues[unit["topic"], unit["queueId"]][unit["queueOffset"]]
        assert found == (unit["physicalOffset"], unit["size"], unit["tagsCode"])


def test_reads_answer_as_the_real_store(with_facts):
    store, facts = with_facts
    for fact in facts["getMessage"]:
        read = store.get(fact["topic"], fact["queueId"], fact["offset"], fact["maxNums"], fact["expression"])
        assert (read.status, read.next_offset, read.log_offsets) == (
            fact["status"],
            fact["nextBeginOffset"],
            fact["physicalOffsets"],
        ), fact
        assert (read.min_offset, read.max_offset) == (fact["minOffset"], fact["maxOffset"])


def test_searches_by_time_answer_as_the_real_store(with_facts):
    store, facts = with_facts
    for fact in facts["offsetByTimestamp"]:
        name = fact["topic"], fact["queueId"]
        found = (
            store.offset_by_time(*name, fact["timestamp"]),
            store.offset_by_time(*name, fact["timestamp"], upper=True),
        )
        assert found == (fact["lower"], fact["upper"]), fact


def test_key_queries_answer_as_the_real_store(with_facts):
    store, facts = with_facts
    for fact in facts["queryByKey"]:
        assert (
            store.query(fact["topic"], fact["key"], fact["maxNum"], fact["begin"], fact["end"])
            == fact["physicalOffsets"]
        ), fact


@pytest.mark.quick(5)
@pytest.mark.parametrize("variant", stores.variants())
def test_the_log_of_a_crash_variant_ends_where_the_real_store_ended(variant, tmp_path):
    store = ReferenceStore(stores.unpack_variant(variant, tmp_path), stores.SIZES["crash"])
    expected = stores.facts("crash")["variants"][variant]["expected"]
    assert (store.log_end, len(store.records)) == (
        expected["commitLog"]["maxPhyOffset"],
        expected["messageCount"],
    )
    rebuilt = reference.queues_from_log(list(store.records.values()))
    for queue in expected["queues"]:
        units = rebuilt.get((queue["topic"], queue["queueId"]), [])
        assert len(units) == queue["maxOffset"]
        ends = (units[0].log_offset, units[-1].log_offset) if units else (None, None)
        assert ends == (queue["firstPhysicalOffset"], queue["lastPhysicalOffset"])
