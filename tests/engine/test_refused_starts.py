"""A start that is refused has changed nothing, whatever it would have had to make again."""

import json
import shutil

import pytest

from broker_store.check.repair.apply import Repair
from broker_store.check.repair.plan import make_plan
from broker_store.check.walk import StoreCheck
from broker_store.engine.start import recovery
from broker_store.errors import DamagedStoreError
from tests.engine.test_known_ends import assert_served, filled, flip, poke, queue_file, tree
from tests.support.hand_store import HandStore, message, small_settings

OWN = ("lock",)  # made by each start


def bad_log(root):
    log = sorted((root / "commitlog").iterdir())
    poke(log[1], 400, bytes(600))


def middle_queue_file(root):
    queue_file(root, 2).unlink()


NEEDS_THE_LOG = {
    "a unit of a queue": lambda root: poke(queue_file(root, 0), 9 * 20, bytes(20)),
    "a tag of a unit": lambda root: poke(queue_file(root, 0), 9 * 20 + 12, bytes(8)),
    "a queue file": middle_queue_file,
    "the first queue file": lambda root: queue_file(root, 0).unlink(),
    "a queue": lambda root: shutil.rmtree(root / "consumequeue/T/0"),
    "all queues": lambda root: shutil.rmtree(root / "consumequeue"),
    "an entry of the index": lambda root: poke(
        sorted((root / "index").iterdir())[0], 40 + 16 * 4 + 5 * 20, b"\1\2\3\4"
    ),
    "the first index file": lambda root: sorted((root / "index").iterdir())[0].unlink(),
    "a short index file": lambda root: sorted((root / "index").iterdir())[0].write_bytes(b"short"),
    "the record of ends and a queue": lambda root: (
        (root / "ends").unlink(),
        shutil.rmtree(root / "consumequeue/T/0"),
    ),
    "the record of ends is torn": lambda root: (
        poke(root / "ends", 20, b"\1\2\3\4"),
        queue_file(root, 0).unlink(),
    ),
}


@pytest.mark.parametrize("need", NEEDS_THE_LOG)
def test_a_log_that_cannot_make_again_what_is_damaged_refuses_the_start_before_anything_is_changed(
    open_store, clock, need
):
    store = open_store()
    stored = filled(store)
    store.close()
    root = store.root
    whole = tree(root)
    bad_log(root)
    NEEDS_THE_LOG[need](root)
    before = tree(root)
    for _ in range(2):
        again = HandStore(small_settings(root), clock)
        with pytest.raises(DamagedStoreError, match="no good record begins here|are missing"):
            again.begin()
        again.die()
        after = tree(root)
        assert {name: after[name] for name in after if name not in OWN} == {
            name: before[name] for name in before if name not in OWN
        }
    # What was damaged is put back: the store starts, and is as it was closed.
    for name, raw in whole.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(raw)
    assert_served(open_store(), stored)


def swapped_logs(root):
    first, second, *_ = sorted((root / "commitlog").iterdir())
    one, other = first.read_bytes(), second.read_bytes()
    first.write_bytes(other), second.write_bytes(one)


def _write_topic(root, byte):
    """No CRC of a record covers its topic."""
    log = sorted((root / "commitlog").iterdir())[1]
    raw = log.read_bytes()
    poke(log, raw.rindex(b"\x01T", 0, raw.index(b"KEYS", 4096)) + 1, byte)


def malformed_topic(root):
    _write_topic(root, b"\xff")


def name_of_no_topic(root):
    _write_topic(root, b"/")


def queue_that_cannot_be(root):
    """No CRC of a record covers its queue id either."""
    log = sorted((root / "commitlog").iterdir())[1]
    flip(log, 12, 1)


@pytest.mark.parametrize("hurt", [swapped_logs, malformed_topic, name_of_no_topic, queue_that_cannot_be])
def test_a_record_that_dispatch_cannot_read_refuses_the_start_with_its_place(directory, clock, hurt):
    store = HandStore(small_settings(directory / "store"), clock).begin()
    filled(store)
    store.close()
    hurt(store.root)
    shutil.rmtree(store.root / "consumequeue")  # so that the whole log is dispatched
    before = tree(store.root)
    again = HandStore(small_settings(store.root), clock)
    with pytest.raises(DamagedStoreError, match="no good record begins here"):
        again.begin()
    again.die()
    assert {name: raw for name, raw in tree(store.root).items() if name not in OWN} == {
        name: raw for name, raw in before.items() if name not in OWN
    }


def test_with_accepted_damage_the_same_store_starts(directory, clock):
    store = HandStore(small_settings(directory / "store"), clock).begin()
    filled(store)
    store.close()
    bad_log(store.root)
    NEEDS_THE_LOG["a unit of a queue"](store.root)
    accepted = HandStore(small_settings(store.root, accept_damage=True), clock)
    accepted.begin()
    findings = accepted.report.as_dict()["findings"]
    assert any("no good record begins here; accepted" in found["what"] for found in findings), findings
    accepted.close()


def test_a_start_that_changes_files_never_stops_in_dispatch(open_store, monkeypatch):
    """What the rehearsal allows, dispatch does: the same ends of queues."""
    planned = []
    rehearse = recovery.rehearse

    def noted(*arguments):
        planned.append(rehearse(*arguments))
        return planned[-1]

    monkeypatch.setattr(recovery, "rehearse", noted)
    store = open_store()
    stored = filled(store)
    store.close()
    shutil.rmtree(store.root / "consumequeue")
    assert_served(open_store(), stored)
    assert planned == ["the log from 0 on can be dispatched"]


HEAD_FIELDS = {
    "queue number": (15, 2),
    "queue offset": (27, 4),
    "queue offset, high bit": (20, 0x80),
    "flags, rolled back": (39, 0x0C),
}


@pytest.mark.parametrize("field", HEAD_FIELDS)
def test_a_last_record_that_states_another_place_than_its_unit_is_neither_lost_nor_is_its_number_given_again(
    directory, clock, field
):
    store = HandStore(small_settings(directory / "store"), clock).begin()
    results = [store.appender.put(message(queue_id=0)) for _ in range(6)]
    last = results[-1].log_offset
    store.die()
    path = store.log.file_at(last).path
    raw = bytearray(path.read_bytes())
    at, bit = HEAD_FIELDS[field]
    raw[last + at] ^= bit
    path.write_bytes(raw)
    before = tree(store.root)
    again = HandStore(small_settings(store.root), clock)
    with pytest.raises(
        DamagedStoreError, match=rf"{path.name} at {last}: the record states .* unit 5 of topic/0 leads to it"
    ):
        again.begin()
    again.die()
    after = tree(store.root)
    assert {name: after[name] for name in after if name not in OWN} == {
        name: before[name] for name in before if name not in OWN
    }
    accepted = HandStore(small_settings(store.root, accept_damage=True), clock).begin()
    assert (
        accepted.reads.max_offset("topic", 0) == 6
        and accepted.appender.put(message(queue_id=0)).queue_offset == 6
    )
    assert [
        finding["severity"]
        for finding in accepted.report.as_dict()["findings"]
        if "leads to it" in finding["what"]
    ] == ["error"]
    accepted.die()


def test_a_flipped_number_does_not_make_a_topic_one_that_another_broker_deleted(directory, clock):
    """It may state a number whose unit leads further on in the log, as a record of an earlier life of the
    topic does."""
    store = HandStore(small_settings(directory / "store"), clock).begin()
    results = [store.appender.put(message(queue_id=0)) for _ in range(9)]
    store.die()
    path, place = store.log.files[0].path, results[2].log_offset
    raw = bytearray(path.read_bytes())
    raw[place + 27] ^= 4  # 2 becomes 6
    path.write_bytes(raw)
    again = HandStore(small_settings(store.root), clock)
    with pytest.raises(DamagedStoreError, match="at 200: the record states topic/0 6"):
        again.begin()
    again.die()
    assert not (store.root / "config/deletedTopics.json").exists()


def assert_refused_unchanged(root, clock, match):
    before = tree(root)
    for _ in range(2):
        again = HandStore(small_settings(root), clock)
        with pytest.raises(DamagedStoreError, match=match):
            again.begin()
        again.die()
        after = tree(root)
        assert {name: raw for name, raw in after.items() if name not in OWN} == {
            name: raw for name, raw in before.items() if name not in OWN
        }


def test_a_refused_start_notes_no_deleted_topic(open_store, clock):
    """What looks like a topic that another broker deleted may be what is missing; its records would not come
    back with the files."""
    store = open_store()
    stored = filled(store)
    store.write_config("topics.json", json.dumps({"topicConfigTable": {"T": {}}}).encode())
    store.close()
    root = store.root
    whole = tree(root)
    shutil.rmtree(root / "consumequeue/U")
    bad_log(root)
    NEEDS_THE_LOG["a unit of a queue"](root)
    assert_refused_unchanged(root, clock, "no good record begins here|are missing")
    for name, raw in whole.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(raw)
    assert_served(open_store(), stored)


@pytest.mark.parametrize("content", [b"", b"{", b"[]"])
def test_a_damaged_table_of_deleted_topics_refuses_the_start_and_it_still_counts_as_stopped_in_order(
    directory, clock, content
):
    store = HandStore(small_settings(directory / "store"), clock).begin()
    filled(store)
    store.delete_topic("U")
    store.close()
    (store.root / "config/deletedTopics.json").write_bytes(content)
    (store.root / "config/deletedTopics.json.bak").write_bytes(content)
    assert_refused_unchanged(store.root, clock, "deletedTopics.json")


def test_a_timer_log_of_another_file_size_is_refused_before_anything_is_written(open_store, clock):
    """`abort` stayed, so the next start scanned a store that was closed in order."""
    store = open_store()
    filled(store)
    store.close()
    (store.root / "timerlog").mkdir(exist_ok=True)
    path = store.root / "timerlog" / f"{0:020d}"
    path.write_bytes(bytes(4096 + 7))
    assert_refused_unchanged(store.root, clock, "mappedFileSizeTimerLog")
    path.unlink()


@pytest.mark.parametrize("is_new", [False, True], ids=["of a file", "of no file"])
def test_a_directory_under_the_name_of_an_index_file_refuses_the_start_and_a_repair_moves_it_away(
    open_store, clock, is_new
):
    """It was passed over, and the file of that name could not be made."""
    store = open_store()
    stored = filled(store)
    store.close()
    root = store.root
    path = root / "index" / "20991231235959999" if is_new else min((root / "index").iterdir())
    path.unlink(missing_ok=True)
    path.mkdir()
    assert_refused_unchanged(
        root, clock, rf"index/{path.name}: is no regular file\. Move it out of the store"
    )
    check = StoreCheck(root, small_settings(root))
    check.run()
    assert [finding.kind for finding in check.report.findings if finding.file == str(path)] == [
        "unreadable"
    ] and not check.report.ok
    Repair(make_plan(check, small_settings(root))).run()
    assert not path.is_dir()
    assert StoreCheck(root, small_settings(root)).run().ok
    assert_served(open_store(), stored)


def test_a_checkpoint_whose_time_is_to_come_is_called_damaged_and_can_be_moved_away(open_store):
    store = open_store()
    stored = filled(store)
    store.close()
    before = tree(store.root)
    checkpoint = store.root / "checkpoint"
    poke(checkpoint, 2, bytes([checkpoint.read_bytes()[2] ^ 1 << 7]))
    with pytest.raises(DamagedStoreError, match="in the future: the checkpoint is damaged") as refused:
        open_store()
    assert "move `checkpoint` out of the store" in str(refused.value)
    assert {
        name: content for name, content in tree(store.root).items() if name not in (*OWN, "checkpoint")
    } == {name: content for name, content in before.items() if name not in (*OWN, "checkpoint")}
    checkpoint.unlink()
    assert_served(open_store(), stored)
