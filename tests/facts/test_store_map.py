"""The map of a store from its files, compared with the running store and with a plain reading."""

import struct
from pathlib import Path

import pytest

from broker_store.facts.directory import StoreDirectory
from broker_store.formats import record
from tests.support import stores
from tests.support.hand_store import HandStore, message, small_settings

LOG_SIZES = ("clean", "clean-small", "broker-dir", "crash")


@pytest.mark.parametrize("name", LOG_SIZES)
def test_what_a_directory_says_of_its_files_is_what_a_plain_reader_counts(name, tmp_path):
    root = stores.unpack(name, tmp_path)
    directory = StoreDirectory(root)
    files = directory.with_times(directory.files())
    times = {}
    for path in sorted((root / "commitlog").iterdir()):
        content, at = path.read_bytes(), 0
        while (head := record.read_head(content, at)).is_record:
            times[int(path.name) + at] = record.decode(content[at : at + head.total_size]).store_timestamp
            at += head.total_size
    queues = [file for file in files if file.kind == "consumequeue"]
    for file in queues:
        units = list(
            struct.iter_unpack(
                ">qiq",
                (root / "consumequeue" / file.topic / str(file.queue_id) / file.name).read_bytes(),
            )
        )
        used = [unit for unit in units if unit[1]]
        assert file.wrote == 20 * len(used), file
        assert file.state == ("full" if len(used) == len(units) else "writing" if used else "preallocated")
        if used:
            assert (file.first_ms, file.last_ms) == (times.get(used[0][0]), times.get(used[-1][0]))
    assert len(queues) == len(
        list((root / "consumequeue").rglob("0*" + "0"))
        + [p for p in (root / "consumequeue").rglob("*") if p.is_file() and not p.name.endswith("0")]
    )
    for file in (file for file in files if file.kind == "commitlog"):
        own = [ms for at, ms in times.items() if file.base <= at < file.base + file.size]
        assert file.first_ms == (own[0] if own else None)
        if own and file.state == "full" and file.last_ms:
            assert file.last_ms >= own[-1]
    for file in (file for file in files if file.kind == "index"):
        begin, end, first, _, _, count = struct.unpack_from(
            ">qqqqii", (root / "index" / file.name).read_bytes()
        )
        assert (file.base, file.first_ms, file.last_ms) == (first, begin or None, end or None)
        assert file.wrote == file.size - 20 * (stores.SIZES[name].max_index_num - count)


def test_the_running_store_and_its_files_tell_the_same(tmp_path):
    store = HandStore(small_settings(tmp_path / "store")).begin()
    for number in range(100):
        store.appender.put(message("orders", number % 3, b"x" * 300, keys=(f"k{number}",)))
    store.prepare()
    directory = StoreDirectory(store.root)
    told = {(file.kind, file.topic, file.queue_id, file.name): file for file in store.status.files()}
    found = {(file.kind, file.topic, file.queue_id, file.name): file for file in directory.files()}
    assert told.keys() == found.keys()
    for key, file in found.items():
        assert (file.wrote, file.size, file.base) == (
            told[key].wrote,
            told[key].size,
            told[key].base,
        ), key
        assert type(told[key]) is type(file)
    logs = [file for file in store.status.files("commitlog")]
    assert [file.state for file in logs][:2] == ["full", "full"] and logs[-1].state in (
        "writing",
        "preallocated",
        "warming",
    )
    assert all(file.confirmed == file.wrote for file in logs)
    store.close()


def test_a_file_that_was_deleted_while_it_is_mapped_is_called_hung(tmp_path):
    store = HandStore(small_settings(tmp_path / "store")).begin()
    for _ in range(100):
        store.appender.put(message("orders", 0, b"x" * 300))
    assert store.status.hung_files() == []
    first = store.log.files[0]
    region = first.map()
    Path(first.path).unlink()
    (hung,) = store.status.hung_files()
    assert (hung.kind, hung.name, hung.base, hung.size, hung.state) == (
        "commitlog",
        first.path.name,
        0,
        region.size,
        "hung",
    )
    first.unmap()
    assert store.status.hung_files() == []
    first.path.write_bytes(bytes(first.size))
    store.die()


def test_files_old_enough_to_be_deleted_are_called_expired(tmp_path):
    store = HandStore(small_settings(tmp_path / "store", disk_max_used_space_ratio=95)).begin()
    for _ in range(100):
        store.appender.put(message("orders", 0, b"x" * 300))
    store.flush()
    store.clock.now_ms = store.log.files[0].path.stat().st_mtime_ns // 1_000_000 + 73 * 3_600_000
    with_clean = store.cleaning.apply_decision
    store.cleaning.apply_decision = lambda decision: None
    store.look_at_disk()
    assert [file.state for file in store.status.files("commitlog")][:2] == [
        "expired",
        "expired",
    ] and store.status.files("commitlog")[-1].state != "expired"
    store.cleaning.apply_decision = with_clean
    store.close()
