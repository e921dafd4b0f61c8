"""Where the log begins is kept: a first log file that retention deleted is no damage, one that is missing
stops the start."""

import shutil

import pytest

from broker_store.check.repair.apply import Repair
from broker_store.check.repair.plan import make_plan
from broker_store.check.walk import StoreCheck
from broker_store.engine.disk.disk import Disk
from broker_store.engine.start.ends import EndsFile
from broker_store.engine.store import MessageStore
from broker_store.errors import DamagedStoreError, DiskFullError
from broker_store.formats import record
from broker_store.messages import GetRequest
from tests.engine.test_known_ends import assert_next_is_new, assert_served, filled, poke, queue_file, tree
from tests.support.hand_store import HandStore, small_settings

FILE_BYTES = 16384


def log_files(root):
    return sorted((root / "commitlog").iterdir())


def closed(store):
    store.flush(), store.round(), store.close()


def killed(store):
    store.flush(), store.round(), store.die()


def recorded(root):
    ends = EndsFile(Disk(), root / "ends")
    ends.load()
    return ends


def left(stored, store):
    return [one for one in stored if one[2] >= store.reads.min_offset(*one[:2])]


ENDS = {"closed": closed, "killed": killed}


@pytest.mark.parametrize("gone", [1, 2])
@pytest.mark.parametrize("end", ENDS)
def test_first_log_files_that_are_missing_stop_the_start_and_nothing_is_touched(open_store, clock, end, gone):
    store = open_store()
    stored = filled(store)
    ENDS[end](store)
    root = store.root
    kept = shutil.copytree(root, root.parent / "kept")
    for path in log_files(root)[:gone]:
        path.unlink()
    lost = sum(record.decode(raw).log_offset < gone * FILE_BYTES for raw in _records(kept, stored, clock))
    before = tree(root)
    with pytest.raises(DamagedStoreError) as raised:
        HandStore(small_settings(root), clock).open()
    said = str(raised.value)
    assert (
        "00000000000000000000" in said and f"{gone * FILE_BYTES:,}" in said and "--accept-damage" in said
    ), said
    assert f"{lost:,} messages" in said, (said, lost)
    assert tree(root) == before and not (root.parent / "lost+found").exists()
    shutil.rmtree(root)
    shutil.move(kept, root)
    assert_served(open_store(), stored)


def _records(root, stored, clock):
    with_all = HandStore(small_settings(shutil.copytree(root, root.parent / "read")), clock).begin()
    raw = [
        bytes(with_all.reads.get(GetRequest(topic, queue_id, offset, 1)).body)
        for topic, queue_id, offset, *_ in stored
    ]
    with_all.close()
    shutil.rmtree(with_all.root)
    return raw


@pytest.mark.parametrize("end", ENDS)
def test_a_missing_first_file_that_is_accepted_is_named_and_no_offset_is_given_twice(open_store, end):
    store = open_store()
    stored = filled(store)
    ENDS[end](store)
    log_files(store.root)[0].unlink()
    store = open_store(accept_damage=True)
    findings = [finding for finding in store.report.as_dict()["findings"] if finding["severity"] == "error"]
    assert "00000000000000000000" in findings[0]["what"] and "accepted" in findings[0]["what"]
    for topic, queue_id in {one[:2] for one in stored}:
        first = store.reads.min_offset(topic, queue_id)
        assert first > 0 and any(
            f"messages 0 to {first - 1:,} " in finding["what"] for finding in findings
        ), (topic, queue_id, findings)
    assert_served(store, left(stored, store))
    assert_next_is_new(store, stored)
    closed(store)
    store = open_store()
    assert store.report.as_dict()["findings"] == []
    assert_served(store, left(stored, store))


def swap(one, other):
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second), other.write_bytes(first)


def zero(one, _other):
    one.write_bytes(bytes(one.stat().st_size))


def remove(one, _other):
    one.unlink()


def zero_a_unit(one, _other):
    poke(one, 2 * 20, bytes(20))


@pytest.mark.parametrize("damage", [swap, zero, remove, zero_a_unit])
@pytest.mark.parametrize("end", ENDS)
def test_what_went_with_the_first_file_is_named_of_queues_whose_files_are_damaged_too(
    open_store, clock, end, damage
):
    """Damaged units did not show what was lost, and a start used the units of another queue: it did not
    serve messages that can be read."""
    store = open_store()
    stored = filled(store)
    ENDS[end](store)
    log_files(store.root)[0].unlink()
    copy = HandStore(
        small_settings(shutil.copytree(store.root, store.root.parent / "copy"), accept_damage=True), clock
    ).begin()
    queues = sorted({one[:2] for one in stored})
    begins = {queue: copy.reads.min_offset(*queue) for queue in queues}
    copy.close()
    damage(queue_file(store.root, 0), queue_file(store.root, 0, "U", 0))
    store = open_store(accept_damage=True)
    findings = [finding for finding in store.report.as_dict()["findings"] if finding["severity"] == "error"]
    for (topic, queue_id), first in begins.items():
        assert store.reads.min_offset(topic, queue_id) == first
        of_queue = [
            finding["what"] for finding in findings if finding["file"] == f"consumequeue/{topic}/{queue_id}"
        ]
        assert any(what.startswith(f"messages 0 to {first - 1:,} ") for what in of_queue), (
            topic,
            queue_id,
            findings,
        )
    held = [one for one in stored if one[2] >= begins[one[:2]]]
    assert_served(store, held)
    assert_next_is_new(store, stored)
    closed(store)
    store = open_store()
    assert_served(store, held)


def test_the_new_begin_is_on_the_disk_before_a_file_goes(open_store, monkeypatch):
    store = open_store()
    filled(store)
    store.flush(), store.round()
    unlink, seen = Disk.unlink, []

    def noted(disk, path, **more):
        if path.parent.name == "commitlog":
            seen.append((int(path.name), recorded(store.root).log_minimum))
        unlink(disk, path, **more)

    monkeypatch.setattr(Disk, "unlink", noted)
    assert store.cleaning.delete_expired(any_age=True, most=2) == 2
    assert [name for name, _ in seen] == [0, FILE_BYTES] and all(
        minimum == 2 * FILE_BYTES for _, minimum in seen
    )


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("back", [(0,), (1,), (0, 1), (2,), (0, 2), (0, 1, 2)])
def test_what_retention_had_begun_to_delete_goes_at_the_next_start(open_store, end, back):
    """A power cut may bring back any of the names that were removed."""
    store = open_store()
    stored = filled(store, 400)
    store.flush(), store.round()
    kept = {path: path.read_bytes() for path in log_files(store.root)}
    assert store.cleaning.delete_expired(any_age=True, most=3) == 3
    remaining = left(stored, store)
    ENDS[end](store)
    for number in back:
        path = sorted(kept)[number]
        path.write_bytes(kept[path])
    store = open_store()
    findings = store.report.as_dict()["findings"]
    assert {finding["severity"] for finding in findings} == {"info"} and "retention" in findings[0]["what"], (
        findings
    )
    assert int(log_files(store.root)[0].name) == 3 * FILE_BYTES == store.log.minimum
    assert left(stored, store) == remaining
    assert_served(store, remaining)
    assert_next_is_new(store, stored)


def test_retention_goes_on_when_there_is_no_room_for_the_record(open_store, monkeypatch):
    store = open_store()
    stored = filled(store, 400)
    store.flush(), store.round()
    append, replace = Disk.append, Disk.replace_file
    files = len(log_files(store.root))

    def full(original):
        def tried(disk, path, *more, **named):
            if path.name == "ends" and len(log_files(store.root)) == files:
                raise DiskFullError("no space left")
            return original(disk, path, *more, **named)

        return tried

    monkeypatch.setattr(Disk, "append", full(append))
    monkeypatch.setattr(Disk, "replace_file", full(replace))
    assert store.cleaning.delete_expired(any_age=True, most=3) == 1  # what makes room for the record
    assert recorded(store.root).log_minimum == FILE_BYTES
    assert store.cleaning.delete_expired(any_age=True, most=3) == 3
    assert recorded(store.root).log_minimum == 4 * FILE_BYTES
    store.die()
    store = open_store()
    assert store.report.as_dict()["findings"] == []
    assert_served(store, left(stored, store))


def test_files_that_another_brokers_retention_deleted_are_no_damage(open_store):
    """The record is stale then: the log goes on after its last block, which was final."""
    store = open_store()
    stored = filled(store)
    store.close()
    stale = (store.root / "ends").read_bytes()
    store = open_store()
    more = filled(store, 120)
    store.flush(), store.round()
    assert store.cleaning.delete_expired(any_age=True, most=2) == 2
    remaining = left(stored + more, store)
    store.close()
    (store.root / "ends").write_bytes(stale)
    store = open_store()
    what = [
        finding["what"] for finding in store.report.as_dict()["findings"] if finding["severity"] == "warning"
    ]
    assert any("another broker" in one and f"{2 * FILE_BYTES:,}" in one for one in what), what
    assert_served(store, remaining)
    assert_next_is_new(store, stored + more)


@pytest.mark.parametrize("record_of_ends", ["none", "damaged"])
def test_without_a_record_the_log_begins_with_its_first_file_and_what_lay_before_is_counted(
    open_store, record_of_ends
):
    store = open_store()
    stored = filled(store)
    store.close()
    log_files(store.root)[0].unlink()
    if record_of_ends == "none":
        (store.root / "ends").unlink()
    else:
        poke(store.root / "ends", 0, bytes(20))
    store = open_store()
    gone = len(stored) - len(left(stored, store))
    (finding,) = [one for one in store.report.as_dict()["findings"] if one["file"] == "commitlog"]
    assert (
        f"begins at {FILE_BYTES:,}" in finding["what"] and f"{gone:,} messages before it" in finding["what"]
    ), finding
    assert finding["severity"] == ("info" if record_of_ends == "none" else "warning")
    assert_served(store, left(stored, store))
    assert_next_is_new(store, stored)


def test_a_damaged_record_says_nothing_of_another_broker(open_store, clock):
    """After a stop in order its last block is final: it ends earlier than the log because it is damaged."""
    store = open_store()
    sound = (store.root / "ends").stat().st_size
    filled(store)
    store.close()
    root = store.root
    kept = shutil.copytree(root, root.parent / "kept")
    poke(root / "ends", sound, bytes(20))
    log_files(root)[0].unlink()
    with pytest.raises(
        DamagedStoreError, match="1 log file is missing, 00000000000000000000 .or retention removed them"
    ):
        HandStore(small_settings(root), clock).open()
    shutil.rmtree(root)
    shutil.move(kept, root)


@pytest.mark.parametrize("end", ENDS)
def test_a_repair_names_what_went_with_the_first_file(open_store, clock, end):
    store = open_store()
    stored = filled(store)
    ENDS[end](store)
    root = store.root
    log_files(root)[0].unlink()
    before = tree(root)
    check = StoreCheck(root)
    check.run()
    (found,) = [finding for finding in check.report.errors if finding.kind == "log-starts-late"]
    assert "00000000000000000000" in found.what
    plan = make_plan(check, small_settings(root))
    assert tree(root) == before
    lost = {(one.topic, one.queue_id): (one.first, one.last) for one in plan.losses.ranges}
    Repair(plan).run()
    store = open_store()
    assert [finding for finding in store.report.as_dict()["findings"] if finding["severity"] != "info"] == []
    for topic, queue_id in {one[:2] for one in stored}:
        assert lost[topic, queue_id] == (0, store.reads.min_offset(topic, queue_id) - 1)
    assert (
        plan.losses.messages == sum(last + 1 for _, last in lost.values()) and plan.losses.unnamed_bytes == 0
    )
    assert_served(store, left(stored, store))
    assert_next_is_new(store, stored)


def test_a_store_that_could_not_note_its_end_counts_as_killed(open_store, monkeypatch):
    store = open_store()
    filled(store)
    store.flush(), store.round()

    def full(*_, **__):
        raise DiskFullError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(Disk, "append", full)
        patch.setattr(Disk, "replace_file", full)
        MessageStore.close(store)
    assert (store.root / "abort").exists()
    open_store()
