"""A store that is opened for inspection shows what a start would make of it and stays as it is, byte for
byte."""

import pytest

from broker_store.config.load import load_settings
from broker_store.engine.store import MessageStore
from broker_store.errors import StoreError
from broker_store.formats import record
from broker_store.messages import GetRequest, Message, PutStatus
from tests.support import stores


def tree(directory):
    return {
        path: (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else None)
        for path in directory.rglob("*")
    }


def look_into(name, root, **more):
    overrides = stores.SIZES[name].overrides() | {"inspect": "true"} | more
    store = MessageStore(load_settings(overrides=overrides, store_root=root).store)
    store.open()
    store.start()
    return store


@pytest.mark.parametrize("variant", stores.variants())
def test_a_crashed_store_is_shown_recovered_and_left_untouched(variant, tmp_path):
    root = stores.unpack_variant(variant, tmp_path)
    before = tree(tmp_path)
    expected = stores.facts("crash")["variants"][variant]["expected"]
    store = look_into("crash", root, acceptDamage="true")
    assert store.status.positions().confirmed == expected["commitLog"]["maxPhyOffset"]
    for queue in expected["queues"]:
        name = queue["topic"], queue["queueId"]
        assert (store.reads.min_offset(*name), store.reads.max_offset(*name)) == (
            queue["minOffset"],
            queue["maxOffset"],
        )
        if queue["maxOffset"]:
            result = store.reads.get(GetRequest(*name, queue["maxOffset"] - 1, 1))
            assert [message.log_offset for message in record.decode_all(result.body)] == [
                queue["lastPhysicalOffset"]
            ]
    for fact in expected["queryByKey"]:
        found = store.reads.query_keys(
            fact["topic"], fact["key"], fact["maxNum"], fact["begin"], fact["end"]
        ).offsets
        assert set(found) >= set(fact["physicalOffsets"]) or len(found) == fact["maxNum"]
    store.close()
    assert tree(tmp_path) == before


def test_nothing_is_taken_or_deleted(tmp_path):
    root = stores.unpack("clean", tmp_path)
    before = tree(tmp_path)
    store = look_into("clean", root)
    assert store.appender.put(Message("FixA", 0, b"x")).status is PutStatus.SERVICE_NOT_AVAILABLE
    assert store.status.snapshot().state == "read_only" and not store.is_writable
    store.write_config("topics.json", b"{}")
    store.tick()
    store.close()
    assert tree(tmp_path) == before


@pytest.mark.parametrize("length", [0, 10])
def test_a_checkpoint_of_another_length_is_shown_as_a_start_would_take_it(length, tmp_path):
    root = stores.unpack("clean", tmp_path)
    with open(root / "checkpoint", "r+b") as file:
        file.truncate(length)
    before = tree(tmp_path)
    store = look_into("clean", root)
    assert store.status.positions().confirmed == stores.facts("clean")["commitLog"]["maxPhyOffset"]
    store.close()
    assert tree(tmp_path) == before


def test_a_store_that_is_in_use_may_be_inspected(tmp_path):
    root = stores.unpack("clean", tmp_path)
    settings = load_settings(overrides=stores.SIZES["clean"].overrides(), store_root=root).store
    with MessageStore(settings) as user:
        store = look_into("clean", root)
        end = store.status.positions().confirmed
        assert end == user.status.positions().confirmed
        assert user.appender.put(Message("FixA", 0, b"more")).ok
        assert store.status.positions().confirmed == end
        store.close()


def test_an_inspection_needs_a_store(tmp_path):
    with pytest.raises(StoreError, match="nothing to inspect"):
        look_into("clean", tmp_path / "absent")
    assert not (tmp_path / "absent").exists()
