"""After kill -9 everything that was acknowledged is there, and whatever is wrong with a directory is said in a sentence."""

import random
import shutil

import pytest

from broker_store.errors import DamagedStoreError
from broker_store.formats import record
from broker_store.messages import GetRequest, PutStatus
from tests.support.hand_store import HandStore, message, small_settings


def fill(store, count=150, seed=1):
    """[(topic, queue id, queue offset, body, key)] of what was acknowledged."""
    rng, stored = random.Random(seed), []

    def keep(sent, result, number):
        return lambda status: stored.append((sent.topic, sent.queue_id, result.queue_offset, sent.body, f"k{seed}-{number}")) if status is PutStatus.PUT_OK else None

    for number in range(count):
        sent = message(rng.choice("ABC"), rng.randrange(2), rng.randbytes(rng.choice((5, 300, 2500))), keys=(f"k{seed}-{number}",))
        result = store.put(sent)
        if not result.ok:
            store.flush(), store.look_at_disk()
            result = store.put(sent)
        store.when_confirmed(result.log_end, keep(sent, result, number))
        store.clock.advance(rng.choice((0, 1, 400)))
        if rng.random() < 0.2:
            store.flush()
        if rng.random() < 0.1:
            store.round()
    return stored


def all_there(store, stored):
    for topic, queue_id, offset, body, key in stored:
        (found,) = record.decode_all(store.get(GetRequest(topic, queue_id, offset, 1)).body)
        assert (found.body, found.queue_offset) == (body, offset)
        assert any(record.decode(raw).body == body for raw in store.query_keys(topic, key, 64).records)


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_a_copy_taken_while_the_store_runs_opens_with_everything_acknowledged(open_store, clock, directory, flush):
    store = open_store(flush_disk_type=flush)
    stored = fill(store)
    for copy in range(4):
        stored += fill(store, 30, seed=copy)
        shutil.copytree(store.root, directory / f"copy-{copy}" / "store")
        again = HandStore(small_settings(directory / f"copy-{copy}" / "store", flush_disk_type=flush), clock).begin()
        assert again.recovery_report()["kind"] == "abnormal"
        all_there(again, stored)
        for topic, queue_id in again.queues():
            following = again.max_offset(topic, queue_id)
            assert again.put(message(topic, queue_id)).queue_offset == following
        again.flush()
        again.close()


def test_a_clean_stop_and_start_scans_little_and_changes_nothing(open_store):
    store = open_store()
    stored = fill(store)
    store.close()
    before = {path: path.read_bytes() for path in store.root.rglob("*") if path.is_file()}
    assert not (store.root / "abort").exists()
    store = open_store()
    assert (store.root / "abort").exists()
    report = store.recovery_report()
    assert (report["kind"], report["redispatched"], report["cut_bytes"], report["findings"]) == ("normal", 0, 0, [])
    assert report["scanned_bytes"] <= 16384
    all_there(store, stored)
    store.close()
    assert {path: path.read_bytes() for path in store.root.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("parts", [("consumequeue",), ("index",), ("checkpoint",), ("consumequeue", "index", "checkpoint")])
def test_all_but_the_log_can_be_made_again(open_store, parts):
    store = open_store()
    stored = fill(store)
    store.die()
    for part in parts:
        path = store.root / part
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    all_there(open_store(), stored)


@pytest.mark.parametrize("cut", [0, 1, 20, 37, 60, 399])
def test_a_queue_with_a_hole_at_any_unit_is_made_again_from_the_log(open_store, cut):
    store = open_store()
    stored = fill(store)
    store.die()
    for path in (store.root / "consumequeue").rglob("0" * 20):
        raw = bytearray(path.read_bytes())
        raw[cut : cut + 20] = bytes(len(raw[cut : cut + 20]))
        path.write_bytes(raw)
    all_there(open_store(), stored)


def test_a_torn_tail_is_cut_kept_aside_and_never_comes_back(open_store):
    store = open_store()
    kept = store.put(message(body=b"kept"))
    torn = store.put(message(body=b"torn" * 50))
    store.die()
    path = store.log.files[0].path
    raw = bytearray(path.read_bytes())
    raw[torn.log_end - 100] ^= 1
    path.write_bytes(raw)
    cut = bytes(raw[kept.log_end : torn.log_end]).rstrip(b"\0")
    store = open_store()
    report = store.recovery_report()
    assert report["log_end"] == kept.log_end and report["cut_bytes"] == len(cut)
    (aside,) = (store.root.parent / "lost+found").rglob("commitlog.*")
    assert aside.read_bytes() == cut
    assert not any(path.read_bytes()[kept.log_end :])
    again = store.put(message(body=b"new"))
    assert (again.log_offset, again.queue_offset) == (kept.log_end, 1)


def test_a_killed_recovery_is_done_again(open_store):
    store = open_store()
    stored = fill(store)
    store.die()
    shutil.rmtree(store.root / "consumequeue")
    for _ in range(3):
        store = open_store()
        store.die()
    all_there(open_store(), stored)


@pytest.mark.parametrize(("name", "length", "says"), [(f"{16384:020d}", 100, "has 100 bytes"), ("core", 16384, "is no file of the store")])
def test_a_log_file_that_does_not_belong_refuses_the_start_and_nothing_changes(open_store, clock, name, length, says):
    store = open_store()
    store.put(message())
    store.close()
    (store.root / "commitlog" / name).write_bytes(bytes(length))
    with pytest.raises(DamagedStoreError, match=f"{name}.*{says}"):
        HandStore(small_settings(store.root), clock).open()
    assert not (store.root / "abort").exists()
    (store.root / "commitlog" / name).unlink()
    assert open_store().recovery_report()["kind"] == "normal"


def test_a_missing_file_in_the_middle_refuses_the_start(open_store, clock):
    store = open_store()
    for _ in range(10):
        store.put(message(body=b"x" * 6000))
    store.close()
    away = store.log.files[2].path
    content = away.read_bytes()
    away.unlink()
    with pytest.raises(DamagedStoreError, match="a file is missing"):
        HandStore(small_settings(store.root), clock).open()
    away.write_bytes(content)
    open_store()


def test_a_symbolic_link_in_place_of_a_file_refuses_the_start(open_store, clock):
    store = open_store()
    store.put(message())
    store.close()
    path = store.log.files[0].path
    other = store.root.parent / "elsewhere"
    path.rename(other)
    path.symlink_to(other)
    with pytest.raises(DamagedStoreError, match="is no regular file"):
        HandStore(small_settings(store.root), clock).open()
    path.unlink()
    other.rename(path)
    open_store()


def test_a_log_that_lies_elsewhere_recovers_there(open_store, directory):
    store = open_store(store_path_commit_log=directory / "log")
    stored = fill(store, 60)
    store.prepare()
    store.die()
    (directory / "log" / f"{store.log.files[-1].end:020d}").write_bytes(b"x" * 16384)
    store = open_store(store_path_commit_log=directory / "log")
    all_there(store, stored)
    store.close()
    shutil.move(directory / "log", store.root / "commitlog")
    open_store()


def test_a_report_is_kept_where_the_program_keeps_its_runs(open_store, directory):
    (directory / "run").mkdir()
    store = open_store()
    (kept,) = (directory / "run").glob("recovery-*.json")
    assert store.recovery_report()["id"] in kept.name
