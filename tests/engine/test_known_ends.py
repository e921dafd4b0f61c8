"""No queue offset is given twice, and nothing that the log holds is missing, whatever was done to a store
that was closed in order."""

import random
import shutil
import struct

import pytest

from broker_store.check.repair.apply import Repair
from broker_store.check.repair.plan import make_plan
from broker_store.check.walk import StoreCheck
from broker_store.engine.disk.disk import Disk
from broker_store.engine.start.ends import EndsFile, FileEnd, QueueChange
from broker_store.errors import DamagedStoreError
from broker_store.formats import record
from broker_store.messages import GetRequest
from tests.support.hand_store import HandStore, message, small_settings

COUNT = 238


def filled(store, count=COUNT, queues=(("T", 0), ("T", 1), ("U", 0))):
    """[(topic, queue id, queue offset, body, key)] of what was stored; T/0 gets half of all."""
    rng, stored = random.Random(7), []
    for number in range(count):
        topic, queue_id = queues[0] if number % 2 == 0 else queues[1 + number % (len(queues) - 1)]
        sent = message(
            topic, queue_id, b"%d-" % number + rng.randbytes(60), tag=f"t{number % 3}", keys=(f"k{number}",)
        )
        result = store.appender.put(sent)
        if not result.ok:
            store.flush(), store.look_at_disk()
            result = store.appender.put(sent)
        stored.append((topic, queue_id, result.queue_offset, sent.body, f"k{number}"))
        store.clock.advance(3)
    return stored


def assert_served(store, stored):
    for topic, queue_id, offset, body, key in stored:
        (found,) = record.decode_all(store.reads.get(GetRequest(topic, queue_id, offset, 1)).body)
        assert (found.body, found.queue_offset) == (body, offset)
        assert any(
            record.decode(raw).body == body for raw in store.reads.query_keys(topic, key, 64).records
        ), key


def assert_next_is_new(store, stored):
    ends = {}
    for topic, queue_id, offset, *_ in stored:
        ends[topic, queue_id] = max(ends.get((topic, queue_id), 0), offset + 1)
    for (topic, queue_id), end in ends.items():
        assert store.appender.put(message(topic, queue_id, b"new")).queue_offset == end, (topic, queue_id)


def queue_file(root, number=-1, topic="T", queue_id=0):
    return sorted((root / f"consumequeue/{topic}/{queue_id}").iterdir())[number]


def poke(path, at, data):
    raw = bytearray(path.read_bytes())
    raw[at : at + len(data)] = data
    path.write_bytes(raw)


def flip(path, at, bit):
    poke(path, at, bytes([path.read_bytes()[at] ^ 1 << bit]))


@pytest.mark.parametrize("level", ["4", "+4", "99"])
@pytest.mark.parametrize(("byte", "bit"), [(12, 3), (15, 6), (19, 0)])
def test_the_delivery_time_of_a_message_that_waits_is_made_again(tmp_path, level, byte, bit):
    """The start said so, and left it: a unit within one sector was taken for what it should be, and messages
    came early."""
    store = HandStore(small_settings(tmp_path / "store")).begin()
    for number in range(4):
        store.appender.put(
            message("SCHEDULE_TOPIC_XXXX", 3, b"later%d" % number, more={"DELAY": level, "REAL_TOPIC": "T"})
        )
        store.clock.advance(3)
    before = store.reads.read_units("SCHEDULE_TOPIC_XXXX", 3, 0, 4)
    store.close()
    flip(queue_file(store.root, topic="SCHEDULE_TOPIC_XXXX", queue_id=3), byte, bit)
    again = HandStore(small_settings(store.root), store.clock).begin()
    assert (
        again.reads.read_units("SCHEDULE_TOPIC_XXXX", 3, 0, 4) == before
        and again.report.as_dict()["findings"]
    )
    again.close()


HURTS = {
    "zeros in the middle of the newest file": lambda root: poke(queue_file(root), 9 * 20, bytes(20)),
    "zeros in the middle of an older file": lambda root: poke(queue_file(root, -2), 9 * 20, bytes(20)),
    "the first unit of all zeroed": lambda root: poke(queue_file(root, 0), 0, bytes(20)),
    "the first unit of the newest file zeroed": lambda root: poke(queue_file(root), 0, bytes(20)),
    "the last unit zeroed": lambda root: poke(queue_file(root), 18 * 20, bytes(20)),
    "the newest file removed": lambda root: queue_file(root).unlink(),
    "the directory removed": lambda root: shutil.rmtree(root / "consumequeue/T/0"),
    "the topic removed": lambda root: shutil.rmtree(root / "consumequeue/T"),
    "all queues removed": lambda root: shutil.rmtree(root / "consumequeue"),
    "a high bit of a log offset": lambda root: flip(queue_file(root), 5 * 20 + 1, 3),
    "a low bit of a log offset": lambda root: flip(queue_file(root), 5 * 20 + 7, 1),
    "a low bit of the last log offset": lambda root: flip(queue_file(root), 18 * 20 + 7, 1),
    "a bit of a size": lambda root: flip(queue_file(root), 5 * 20 + 11, 2),
    "a bit of the last size": lambda root: flip(queue_file(root), 18 * 20 + 11, 0),
    "a bit of a tag hash": lambda root: flip(queue_file(root), 5 * 20 + 19, 4),
    "a bit behind the end": lambda root: flip(queue_file(root), 19 * 20 + 3, 0),
    "a unit behind the end": lambda root: poke(queue_file(root), 19 * 20, struct.pack(">qiq", 100, 200, 0)),
    "the newest index file removed": lambda root: sorted((root / "index").iterdir())[-1].unlink(),
    "the first index file removed": lambda root: sorted((root / "index").iterdir())[0].unlink(),
    "an index file in the middle removed": lambda root: sorted((root / "index").iterdir())[2].unlink(),
    "the newest index file zeroed": lambda root: poke(
        sorted((root / "index").iterdir())[-1], 0, bytes(40 + 16 * 4 + 64 * 20)
    ),
    "entries of the newest index file zeroed": lambda root: poke(
        sorted((root / "index").iterdir())[-1], 40 + 16 * 4 + 20, bytes(60)
    ),
    "slots of the newest index file zeroed": lambda root: poke(
        sorted((root / "index").iterdir())[-1], 40, bytes(16 * 4)
    ),
    "the newest index file short": lambda root: sorted((root / "index").iterdir())[-1].write_bytes(b"short"),
    "the index removed": lambda root: shutil.rmtree(root / "index"),
}


@pytest.mark.parametrize("hurt", HURTS)
def test_what_was_closed_in_order_and_is_damaged_is_made_again(open_store, hurt):
    store = open_store()
    stored = filled(store)
    assert store.reads.max_offset("T", 0) == 119  # its newest file holds 19 units of 20
    store.close()
    root = store.root
    everything = {
        path: path.read_bytes() for path in root.rglob("*") if path.is_file() and "consumequeue" in path.parts
    }
    HURTS[hurt](root)
    store = open_store()
    report = store.report.as_dict()
    assert report["kind"] == "normal" and report["findings"], hurt
    assert {path: path.read_bytes() for path in everything if path.exists()} == everything
    assert_served(store, stored)
    store.close()
    store = open_store()  # and what was made again stays
    assert [finding for finding in store.report.as_dict()["findings"] if finding["severity"] != "info"] == []
    assert_served(store, stored)
    assert_next_is_new(store, stored)


@pytest.mark.parametrize("hurt", [name for name in HURTS if "index" not in name])
def test_the_same_after_a_crash(open_store, hurt):
    store = open_store()
    stored = filled(store)
    store.flush(), store.round()
    store.die()
    HURTS[hurt](store.root)
    store = open_store()
    assert_served(store, stored)
    assert_next_is_new(store, stored)


def newest_log_gone(root):
    files = sorted((root / "commitlog").iterdir())
    while not any(files[-1].read_bytes()):
        files.pop().unlink()
    files[-1].unlink()


def log_emptied(root):
    for path in (root / "commitlog").iterdir():
        path.unlink()


LOSSES = {
    "newest file": newest_log_gone,
    "emptied": log_emptied,
    "not there": lambda root: shutil.rmtree(root / "commitlog"),
}


def tree(root):
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and path.name != "lock"
    }


@pytest.mark.parametrize("with_record", [True, False])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("crashed", [False, True])
def test_a_log_that_is_not_there_stops_the_start_and_nothing_is_touched(
    open_store, clock, loss, crashed, with_record
):
    store = open_store()
    filled(store)
    if crashed:
        store.flush(), store.round(), store.die()
    else:
        store.close()
    root = store.root
    if not with_record:
        (root / "ends").unlink()
    kept = shutil.copytree(root, root.parent / "kept")
    LOSSES[loss](root)
    before = tree(root)
    with pytest.raises(
        DamagedStoreError, match=r"(?s)commitlog.*(missing|not there).*messages.*accept-damage"
    ):
        HandStore(small_settings(root), clock).open()
    assert tree(root) == before and not (root.parent / "lost+found").exists()
    shutil.rmtree(root)
    shutil.move(kept, root)


@pytest.mark.parametrize("record_of_ends", ["none", "stale"])
def test_a_newest_log_file_of_zeros_is_missed_by_the_queues_after_a_stop_in_order(
    open_store, clock, record_of_ends
):
    """As another broker may leave it: its checkpoint does not cover its last messages."""
    store = open_store()
    filled(store, 60)
    store.close()
    stale = (store.root / "ends").read_bytes()
    store = open_store()
    filled(store)
    store.close()
    root = store.root
    kept = shutil.copytree(root, root.parent / "kept")
    (root / "checkpoint").unlink()
    if record_of_ends == "none":
        (root / "ends").unlink()
    else:
        (root / "ends").write_bytes(stale)
    newest = sorted((root / "commitlog").iterdir())[-1]
    newest.write_bytes(bytes(newest.stat().st_size))
    before = tree(root)
    with pytest.raises(
        DamagedStoreError,
        match=f"{newest.name} at 0: .*by the queues a record began.*messages are not there.*accept-damage",
    ):
        HandStore(small_settings(root), clock).open()
    assert tree(root) == before and not (root.parent / "lost+found").exists()
    shutil.rmtree(root)
    shutil.move(kept, root)


@pytest.mark.parametrize("loss", LOSSES)
def test_a_loss_that_is_accepted_gives_no_offset_twice(open_store, loss):
    store = open_store()
    stored = filled(store)
    store.close()
    LOSSES[loss](store.root)
    store = open_store(accept_damage=True)
    left = store.log.files[-1].base if loss == "newest file" else 0
    assert_next_is_new(store, stored)
    store.close()
    store = open_store()
    for topic, queue_id, offset, body, _ in stored:
        read = store.reads.get(GetRequest(topic, queue_id, offset, 1))
        if left and read.body:
            (found,) = record.decode_all(read.body)
            assert found.queue_offset == offset
            assert found.body == body or (found.body == b"" and "REPAIRED" in found.properties)
    if loss == "newest file":
        assert (
            sum(
                record.decode(store.reads.get(GetRequest(*place, 1)).body).body == body
                for *place, body, _ in stored
            )
            > COUNT // 2
        )


@pytest.mark.parametrize("loss", LOSSES)
def test_a_loss_is_accepted_once(open_store, loss):
    """The next start is a plain one, also where nothing was sent before the stop."""
    store = open_store()
    stored = filled(store)
    store.close()
    LOSSES[loss](store.root)
    open_store(accept_damage=True).close()
    store = open_store()
    assert store.report.as_dict()["kind"] == "normal"
    assert_next_is_new(store, stored)


def test_a_store_that_never_had_a_message_starts(open_store):
    for _ in range(3):
        store = open_store()
        store.close()
        assert store.report.as_dict()["findings"] == []
    shutil.rmtree(store.root / "commitlog")
    open_store().appender.put(message())


@pytest.mark.parametrize("end", ["closed", "killed"])
def test_a_bit_that_flipped_in_the_record_is_found_and_what_follows_is_not_used(open_store, clock, end):
    """Each byte of the file, one bit: the record ends before the block that holds it, and nothing is lost or
    given twice."""
    store = open_store()
    stored = filled(store, 24)
    store.flush(), store.round()
    stored += [
        ("T", 0, store.appender.put(sent).queue_offset, sent.body, "more")
        for sent in [message("T", 0, b"more", keys=("more",))]
    ]
    store.flush(), store.round()
    store.close() if end == "closed" else store.die()
    root = store.root
    raw = (root / "ends").read_bytes()
    blocks = EndsFile(Disk(), root / "ends")
    blocks.load()
    position, queues = blocks.position, blocks.queues
    for at in range(len(raw)):
        poke(root / "ends", at, bytes([raw[at] ^ 1 << at % 8]))
        blocks.load()
        assert blocks.note and blocks.good_bytes <= at, at
        assert (
            blocks.position < position or blocks.queues != queues or not blocks.is_final or not blocks.found
        ), at
    kept = shutil.copytree(root, root.parent / "kept")
    for at in range(0, len(raw), len(raw) // 8):
        shutil.rmtree(root)
        shutil.copytree(kept, root)
        (root / "ends").write_bytes(raw)
        flip(root / "ends", at, at % 8)
        store = HandStore(small_settings(root), clock).begin()
        assert [
            one
            for one in store.report.as_dict()["findings"]
            if one["file"] == "ends" and "whole block" in one["what"]
        ], at
        assert_served(store, stored)
        assert_next_is_new(store, stored)
        store.close()
    shutil.rmtree(kept)


@pytest.mark.parametrize("stop", ["close", "die"])
@pytest.mark.parametrize(
    "change",
    [
        lambda path: path.unlink(),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(path.read_bytes()[:-9]),
    ],
)
def test_a_record_that_was_removed_or_cut_under_a_running_store_is_written_whole_again(
    open_store, change, stop
):
    """A block alone stood there, whose rows had names that were lost: no start, check or repair could read
    it."""
    store = open_store()
    stored = filled(store)
    store.flush(), store.round()
    change(store.root / "ends")
    stored += filled(store, 30)
    store.flush(), store.round()
    getattr(store, stop)()
    again = EndsFile(Disk(), store.root / "ends")
    again.load()
    assert (again.note, again.position) == ("", store.log.wrote)
    store = open_store()
    assert_served(store, stored)
    assert_next_is_new(store, stored)


def test_a_block_without_those_before_it_is_not_used(tmp_path):
    ends = EndsFile(Disk(), tmp_path / "ends")
    ends.load()
    ends.write(100, [QueueChange("a", 0, (FileEnd(0, 1, 100, 7),))], ())
    first = ends.good_bytes
    ends.write(
        200,
        [QueueChange("b", 0, (FileEnd(0, 1, 200, 7),)), QueueChange("a", 0, (FileEnd(0, 2, 150, 7),))],
        (),
    )
    ends.write(300, [QueueChange("c", 0, (FileEnd(0, 1, 300, 7),))], ())
    raw = (tmp_path / "ends").read_bytes()
    for begin, length in ((first, len(raw)), (first, first + 1)):
        (tmp_path / "ends").write_bytes(raw[begin:length])
        again = EndsFile(Disk(), tmp_path / "ends")
        again.load()
        assert (again.found, again.queues, again.note) == (
            False,
            {},
            "it begins with no whole block, so nothing of it is used",
        )


@pytest.mark.parametrize("lives", [1, 2])
@pytest.mark.parametrize("gone", [0, 1])
def test_the_next_offset_of_a_topic_that_was_made_again_stays_known_after_its_messages_are_lost(
    open_store, clock, lives, gone
):
    """The tombstone is of the life before, also when nothing but the next offset is left of the new one."""
    store = open_store()
    if gone:  # retention has removed a file
        while len(store.log.files) < 2:
            store.appender.put(message("V", 0, b"x" * 200))
        store.flush(), store.round()
        assert store.cleaning.delete_expired(any_age=True, most=1) == 1
    if lives == 2:
        store.appender.put(message("T", 0))
        store.delete_topic("T")
    files = len(store.log.files)
    while len(store.log.files) == files:
        store.appender.put(message("U", 0, b"x" * 200))
    for expected in range(7):
        assert store.appender.put(message("T", 0)).queue_offset == expected
    store.close()
    newest_log_gone(store.root)
    open_store(accept_damage=True).close()
    shutil.rmtree(store.root / "consumequeue/T")
    assert open_store().appender.put(message("T", 0)).queue_offset == 7


def test_a_file_of_another_queue_in_one_that_the_record_does_not_know_gives_no_number(open_store):
    """Its first units lead to records before the place up to which the record knows the log, which a start
    does not compare."""
    store = open_store()
    stored = filled(store, 20, queues=(("T", 0), ("T", 1)))
    store.flush(), store.round()
    known = (store.root / "ends").stat().st_size
    late = filled(store, 40, queues=(("late", 0), ("T", 1)))
    store.flush(), store.round(), store.die()
    with open(store.root / "ends", "r+b") as ends:
        ends.truncate(known + 5)  # its last block is torn
    shutil.copy(queue_file(store.root, 0), queue_file(store.root, 0, "late"))
    store = open_store()
    assert_served(store, [one for one in late if one[0] == "late"])
    assert_served(store, [one for one in stored if one[0] == "T" and one[1] == 0])
    assert_next_is_new(store, [one for one in late if one[0] == "late"])
    assert any(
        finding["file"] == "consumequeue/late/0" and finding["severity"] == "warning"
        for finding in store.report.as_dict()["findings"]
    )


def lost_end(root):
    sorted((root / "commitlog").iterdir())[-1].unlink()


def bad_body(root):
    poke(sorted((root / "commitlog").iterdir())[1], 200, b"\xff\xff")


QUIET_HURTS = {
    "the directory removed": lambda root: shutil.rmtree(root / "consumequeue/quiet/0"),
    "zeros in the middle": lambda root: poke(queue_file(root, 0, "quiet"), 5 * 20, bytes(20)),
    "the first unit zeroed": lambda root: poke(queue_file(root, 0, "quiet"), 0, bytes(20)),
    "a low bit of a log offset": lambda root: flip(queue_file(root, 0, "quiet"), 5 * 20 + 7, 1),
}


@pytest.mark.parametrize("hurt", QUIET_HURTS)
@pytest.mark.parametrize("way", ["repaired", "accepted"])
def test_a_queue_that_was_quiet_since_damage_was_given_up_is_made_again(open_store, way, hurt):
    """A repair, and a start that accepts the loss of the log's end, leave in the record of ends only next
    offsets of all queues."""
    store = open_store()
    quiet = filled(store, 15, (("quiet", 0), ("quiet", 0)))
    filled(store)
    store.close()
    if way == "repaired":
        bad_body(store.root)
        check = StoreCheck(store.root)
        check.run()
        Repair(make_plan(check)).run()
    else:
        lost_end(store.root)
        open_store(accept_damage=True).close()
    QUIET_HURTS[hurt](store.root)
    store = open_store()
    assert [finding for finding in store.report.as_dict()["findings"] if finding["severity"] != "info"] != []
    assert_served(store, quiet)
    assert store.appender.put(message("quiet", 0, b"new")).queue_offset == 15


def test_a_queue_without_messages_whose_last_file_went_begins_where_it_ended(open_store):
    """The file that its next message gets begins with blank units: it had the number of the recorded one, and
    the next start refused it."""
    store = open_store()
    filled(store, 15, (("gone", 0), ("gone", 0)))
    while len(store.log.files) < 3:
        filled(store)
    store.flush(), store.round()
    assert store.cleaning.delete_expired(any_age=True, most=1) == 1
    store.close()
    shutil.rmtree(store.root / "consumequeue/gone/0")
    store = open_store()
    assert (store.reads.min_offset("gone", 0), store.reads.max_offset("gone", 0)) == (15, 15)
    assert store.appender.put(message("gone", 0, b"new")).queue_offset == 15
    store.die()
    store = open_store()
    assert record.decode(bytes(store.reads.get(GetRequest("gone", 0, 15, 1)).body)).body == b"new"
    assert [finding for finding in store.report.as_dict()["findings"] if finding["severity"] != "info"] == []
    store.close()
    store = open_store()
    assert store.report.as_dict()["findings"] == []
    assert store.appender.put(message("gone", 0, b"newer")).queue_offset == 16


@pytest.mark.parametrize("rounds", [0, 1])
def test_an_index_file_that_is_filled_before_the_first_round_of_a_run_is_recorded_as_it_is_then(
    open_store, rounds
):
    """Its row of the last close stayed, and the next start took the file for damaged and made it again."""
    store = open_store()
    filled(store, 20)
    store.close()
    store = open_store()
    for _ in range(rounds):
        store.round()
    filled(store, 80)
    assert len(store.index.files) > 2
    store.close()
    store = open_store()
    assert store.report.as_dict()["findings"] == []


def test_a_topic_that_was_deleted_beyond_the_log_is_named(open_store):
    """Of a store that was closed the table is damaged there, and hid all messages of the topic without a
    word."""
    store = open_store()
    filled(store, 20)
    store.delete_topic("U")
    store.close()
    table = store.root / "config/deletedTopics.json"
    store = open_store()
    assert store.report.as_dict()["findings"] == []
    store.close()
    table.write_text('{"T": 99999999}')
    check = StoreCheck(store.root)
    check.run()
    assert "beyond the log's end" in next(
        finding.what for finding in check.report.findings if finding.kind == "config"
    )
    store = open_store()
    (finding,) = [
        finding for finding in store.report.as_dict()["findings"] if finding["severity"] == "warning"
    ]
    assert "topic T was deleted at 99,999,999 by this file, beyond the log's end" in finding["what"]
