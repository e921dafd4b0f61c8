"""What a repair leaves for the start after it: no offset is given twice, and nothing that was readable
is gone."""

import itertools
import random
import shutil
import sys

import pytest

from broker_store.check import losses
from broker_store.check.ends import EndsCheck
from broker_store.check.log import Stretch
from broker_store.check.repair.apply import Repair
from broker_store.check.repair.free_room import Unplaced, put_where_free
from broker_store.check.repair.pieces import REASON, Place, padding
from broker_store.check.repair.plan import make_plan
from broker_store.check.report import CheckReport
from broker_store.check.walk import StoreCheck
from broker_store.engine.disk.disk import Disk
from broker_store.engine.log.store_times import FILE_NAME as STORE_TIMES
from broker_store.engine.log.store_times import StepBack
from broker_store.engine.log.store_times import encode as encode_times
from broker_store.engine.start.ends import EndsFile
from broker_store.errors import StoreError
from broker_store.formats import properties, queue_unit, record
from tests.engine.test_known_ends import assert_next_is_new, assert_served, filled, poke, queue_file
from tests.support.failing_disk import FailingDisk
from tests.support.hand_store import Clock, HandStore, message, small_settings

FILE_BYTES = 16384  # of the log, as in small_settings


@pytest.fixture
def store(tmp_path):
    store = HandStore(small_settings(tmp_path / "store"), Clock()).begin()
    yield store
    store.die()


def repaired(root):
    """The plan that was applied."""
    plan = make_plan(checked(root), small_settings(root))
    Repair(plan).run()
    return plan


def checked(root):
    check = StoreCheck(root)
    check.run()
    return check


def reopened(store):
    return HandStore(small_settings(store.root), store.clock).begin()


def places(stored):
    return {(topic, queue_id, offset) for topic, queue_id, offset, *_ in stored}


def named(plan):
    return {
        (one.topic, one.queue_id, number)
        for one in plan.losses.ranges
        for number in range(one.first, one.last + 1)
    }


@pytest.mark.parametrize("ends", ["early", "late", "gone"])
def test_offsets_that_went_with_the_newest_log_file_of_a_killed_store_are_not_given_again(store, ends):
    """The record of ends reaches less far than the rest of the log (`early`): no queue with messages after it
    was made again."""
    stored = filled(store, 60)
    store.flush(), store.round()
    stored += filled(store, 200)
    if ends == "late":
        store.flush(), store.round()
    store.die()
    if ends == "gone":
        (store.root / "ends").unlink()
    newest = max((store.root / "commitlog").iterdir())
    newest.unlink()
    plan = repaired(store.root)
    lost = named(plan)
    assert lost and lost < places(stored)
    again = reopened(store)
    try:
        assert_served(again, [one for one in stored if one[:3] not in lost])
        assert_next_is_new(again, stored)
    finally:
        again.die()


@pytest.mark.parametrize("damaged", ["log", "queue"])
def test_the_note_of_times_that_go_back_goes_when_a_repair_changes_the_log_and_is_made_again(store, damaged):
    filled(store)
    store.flush(), store.close()
    note = store.root / "config" / STORE_TIMES
    stale = encode_times(0, 1 << 40, [StepBack(500, 9, 5)])
    note.write_bytes(stale)
    first = (
        min((store.root / "commitlog").iterdir())
        if damaged == "log"
        else min((store.root / "consumequeue").glob("*/*/*"))
    )
    poke(first, record.MIN_RECORD if damaged == "log" else 20, bytes(40))
    plan = make_plan(checked(store.root), small_settings(store.root))
    assert [action.kind for action in plan.actions if action.path == note] == (
        ["move"] if damaged == "log" else []
    )
    repair = Repair(plan)
    repair.run()
    if damaged == "log":
        assert (repair.kept_in / f"config.{STORE_TIMES}").read_bytes() == stale
    again = reopened(store)
    try:
        assert (again.times.known_from, again.times.steps) == (0, ())
    finally:
        again.die()


def test_a_queue_that_another_broker_made_again_keeps_its_new_numbers(tmp_path):
    """Its records after the recorded position have smaller numbers than the record states."""
    path = tmp_path / "ends"
    ends = EndsFile(Disk(), path)
    ends.load()
    ends.bound({("old", 0): 50, ("kept", 0): 7}, 1000)
    ends.bound({("old", 0): 12, ("kept", 0): 9}, 3000, remade=[("old", 0)])
    again = EndsFile(Disk(), path)
    again.load()
    assert (again.next_offset("old", 0), again.next_offset("kept", 0), again.position) == (12, 9, 3000)


def test_only_a_smaller_number_after_the_recorded_position_shows_that_a_queue_was_made_again(tmp_path):
    ends = EndsFile(Disk(), tmp_path / "ends")
    ends.load()
    ends.bound({("T", number): 50 for number in range(5)}, 1000)
    check = EndsCheck(Disk(), tmp_path, CheckReport(), "warning")
    check.expired([], tmp_path)
    found = [
        (("T", 0), 12, 1000),
        (("T", 1), 12, 999),
        (("T", 2), 50, 1000),
        (("T", 3), None, -1),
        (("T", 9), 12, 1000),
    ]
    assert check.remade(found) == [("T", 0)]


@pytest.mark.parametrize("knows", ["ends", "index"])
def test_records_after_a_damaged_one_are_kept_though_no_queue_knows_them_any_more(store, knows):
    """The record of ends or the index says that the log went on: they are no old bytes after an end that was
    cut."""
    stored = filled(store)
    store.flush(), store.close()
    newest = max((store.root / "commitlog").iterdir())
    damaged = record.decode(newest.read_bytes(), log_offset=int(newest.name))
    poke(newest, 20, bytes(40))
    shutil.rmtree(store.root / "consumequeue")
    if knows == "ends":
        shutil.rmtree(store.root / "index")
    else:
        (store.root / "ends").unlink()
    plan = repaired(store.root)
    lost = damaged.topic, damaged.queue_id, damaged.queue_offset
    assert named(plan) == {lost}
    again = reopened(store)
    try:
        assert_served(again, [one for one in stored if one[:3] != lost])
        assert_next_is_new(again, stored)
    finally:
        again.die()


@pytest.mark.parametrize("gone", ["first", "newest", "all"])
def test_messages_are_named_by_the_record_of_ends_when_log_files_and_all_units_are_gone(store, gone):
    stored = filled(store)
    store.flush(), store.close()
    files = sorted((store.root / "commitlog").iterdir())
    taken = {"first": files[:1], "newest": files[-1:], "all": files}[gone]
    lost = {
        one[:3]
        for one in stored
        if f"{_log_offset(store, one) // FILE_BYTES * FILE_BYTES:020}" in {path.name for path in taken}
    }
    for path in taken:
        path.unlink()
    shutil.rmtree(store.root / "consumequeue")
    plan = make_plan(checked(store.root), small_settings(store.root))
    assert lost and named(plan) == lost


@pytest.mark.parametrize("content", ["zero", "random"])
def test_messages_of_a_lost_first_log_file_are_named_where_a_queue_file_says_nothing_of_them(store, content):
    stored = filled(store)
    store.flush(), store.close()
    lost = {one[:3] for one in stored if _log_offset(store, one) < FILE_BYTES}
    min((store.root / "commitlog").iterdir()).unlink()
    path = queue_file(store.root, 0)
    path.write_bytes(
        bytes(path.stat().st_size) if content == "zero" else random.Random(5).randbytes(path.stat().st_size)
    )
    plan = make_plan(checked(store.root), small_settings(store.root))
    assert lost and named(plan) == lost


def test_bytes_of_a_lost_first_log_file_are_counted_that_one_queue_no_longer_names(store):
    """The record of ends reaches less far than that file. Units of the other queues name the rest of it, up
    to the blank at its end."""
    filled(store, 2)
    store.flush(), store.round()
    quiet = store.appender.put(message("quiet", 0, bytes(100)))
    filled(store)
    store.flush(), store.die()
    first = min((store.root / "commitlog").iterdir())
    content = first.read_bytes()
    size, at = record.read_head(content, quiet.log_offset).total_size, 0
    while record.read_head(content, at).is_record:
        at += record.read_head(content, at).total_size
    first.unlink()
    shutil.rmtree(store.root / "consumequeue/quiet")
    plan = make_plan(checked(store.root), small_settings(store.root))
    assert plan.losses.unnamed_bytes == size + FILE_BYTES - at


def test_messages_that_only_a_misnamed_queue_file_knows_are_named_and_their_offsets_not_given_again(store):
    """The newest log file is lost, so no record says where the last file of the queue belongs: it is the one
    after the others."""
    stored = filled(store, 60)
    store.flush(), store.round()
    stored += filled(store, 200)
    store.flush(), store.die()
    (store.root / "ends").unlink()
    newest = max((store.root / "commitlog").iterdir())
    lost = {one[:3] for one in stored if _log_offset(store, one) >= int(newest.name)}
    newest.unlink()
    queue = next(iter(sorted(lost)))[:2]
    last = max((store.root / f"consumequeue/{queue[0]}/{queue[1]}").iterdir())
    assert any(one[:2] == queue and one[2] * 20 >= int(last.name) for one in lost)
    last.rename(last.with_name(f"{int(last.name) + 7:020d}"))
    plan = repaired(store.root)
    assert named(plan) == lost
    assert plan.losses.next_offsets[queue] == max(one[2] for one in lost if one[:2] == queue) + 1


@pytest.mark.parametrize("is_zero", [False, True])
def test_a_queue_file_of_lost_messages_changes_places_with_the_one_that_lies_under_its_name(store, is_zero):
    """None of its units leads to a record, but they follow those of the other: it was taken away, and no one
    said which messages were lost."""
    stored = filled(store, 60)
    store.flush(), store.round()
    stored += filled(store, 170)
    store.flush(), store.die()
    (store.root / "ends").unlink()
    newest = max((store.root / "commitlog").iterdir())
    lost = {one[:3] for one in stored if _log_offset(store, one) >= int(newest.name)}
    newest.unlink()
    queue = ("T", 0)
    *_, other, last = sorted((store.root / f"consumequeue/{queue[0]}/{queue[1]}").iterdir())
    assert (*queue, int(last.name) // 20) in lost and (*queue, int(other.name) // 20) not in lost
    if is_zero:  # then no unit shows how many there were
        last.write_bytes(bytes(400))
    aside = last.rename(store.root.parent / "aside")
    other.rename(last), aside.rename(other)
    plan = repaired(store.root)
    known = {one for one in lost if not (is_zero and one[:2] == queue and one[2] >= int(last.name) // 20)}
    assert named(plan) >= known and (is_zero or named(plan) == lost)
    assert is_zero or plan.losses.next_offsets[queue] == max(one[2] for one in lost if one[:2] == queue) + 1
    again = reopened(store)
    assert_served(again, [one for one in stored if one[:3] not in lost])
    again.die()


@pytest.mark.parametrize(("source", "target"), [(1, 2), (2, 1), (1, 3), (3, 1), (0, 1), (2, 0)])
def test_a_log_file_that_was_moved_over_another_takes_its_place_again(store, source, target):
    """The missing file was made again where the moved one had gone back to: what both held was gone, and one
    was named."""
    stored = filled(store, 500)
    log_offsets = {one[:3]: _log_offset(store, one) for one in stored}
    store.flush(), store.close()
    files = sorted((store.root / "commitlog").iterdir())
    assert len(files) > 4
    base = int(files[target].name)
    files[source].rename(files[target])
    plan = repaired(store.root)
    lost = {key for key, offset in log_offsets.items() if base <= offset < base + FILE_BYTES}
    assert lost and named(plan) == lost
    again = reopened(store)
    assert_served(again, [one for one in stored if one[:3] not in lost])
    again.die()


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("kind", ["log", "queue"])
def test_a_repair_that_ends_while_files_change_places_loses_none(store, kind, count):
    """One lay under a name at which no check looks, and the next repair removed it."""
    stored = filled(store, 500)
    store.flush(), store.close()
    files = sorted((store.root / ("commitlog" if kind == "log" else "consumequeue/T/0")).iterdir())
    rotated = files[1:4]
    aside = [file.rename(file.with_suffix(".x")) for file in rotated]
    for file, place in zip(aside, [*rotated[1:], rotated[0]], strict=True):
        file.rename(place)
    assert len(rotated) == 3
    renames, steps = [], []

    def fail(name):
        if name == "rename" and steps[-1] == "rename":
            renames.append(name)
            if len(renames) == count + 1:
                raise StoreError("killed here")

    plan = make_plan(checked(store.root), small_settings(store.root))
    with pytest.raises(StoreError, match="killed here"):
        Repair(plan, disk=FailingDisk(fail), on_step=lambda number, action: steps.append(action.kind)).run()
    plan = repaired(store.root)
    assert named(plan) == set()
    again = reopened(store)
    assert_served(again, stored)
    again.die()


def test_a_log_without_its_first_file_that_another_file_was_copied_over_has_lost_it(store):
    """The record of ends is gone, so retention may have removed files; but it leaves none of such a name."""
    stored = filled(store)
    store.flush(), store.close()
    first, second = sorted((store.root / "commitlog").iterdir())[:2]
    lost = {one[:3] for one in stored if _log_offset(store, one) < FILE_BYTES}
    shutil.copyfile(second, first)
    (store.root / "ends").unlink()
    plan = make_plan(checked(store.root), small_settings(store.root))
    assert lost and named(plan) == lost


def test_bytes_after_the_end_that_no_queue_names_are_counted(store):
    """One queue's units are gone with the newest log file; those of others say how far it reached."""
    stored = filled(store)
    store.flush(), store.close()
    newest = max((store.root / "commitlog").iterdir())
    content = newest.read_bytes()
    at, sizes = 0, []
    while record.read_head(content, at).is_record:
        found = record.decode(content, at, log_offset=int(newest.name) + at)
        sizes.append((found.topic, found.queue_id, at, found.size))
        at += found.size
    last = max(begin for topic, queue_id, begin, _ in sizes if (topic, queue_id) != ("T", 0))
    unnamed = sum(
        size for topic, queue_id, begin, size in sizes if (topic, queue_id) == ("T", 0) and begin < last
    )
    newest.unlink()
    (store.root / "ends").unlink()
    shutil.rmtree(store.root / "consumequeue/T/0")
    plan = make_plan(checked(store.root), small_settings(store.root))
    assert unnamed and plan.losses.unnamed_bytes == unnamed
    assert named(plan) == {one[:3] for one in stored if one[:2] != ("T", 0)} & named(plan) != set()


def test_queues_that_may_have_had_more_behind_the_end_are_named(store):
    """The newest log file is gone, and one queue's file is zero: other queues say that messages lay there,
    and nothing says whether some were its own."""
    filled(store)
    store.flush()
    store.die()
    newest = max((store.root / "commitlog").iterdir())
    newest.unlink()
    (store.root / "ends").unlink(missing_ok=True)
    plan = make_plan(checked(store.root), small_settings(store.root))
    assert plan.losses.messages and plan.losses.ends_unknown == ()
    for file in (store.root / "consumequeue/T/0").iterdir():
        file.write_bytes(bytes(file.stat().st_size))
    plan = make_plan(checked(store.root), small_settings(store.root))
    assert plan.losses.ends_unknown == ("T/0",) and plan.losses.facts().ends_unknown == ["T/0"]


def test_an_entry_that_points_far_away_says_nothing_of_how_much_is_lost(store):
    """With log and record of ends gone the plan counted up to it, file by file, and did not end."""
    filled(store)
    log_end = store.log.wrote
    store.flush(), store.close()
    shutil.rmtree(store.root / "commitlog")
    (store.root / "ends").unlink()
    first = min((store.root / "index").iterdir())
    geometry = small_settings(store.root).max_hash_slot_num
    poke(first, 40 + 4 * geometry + 20 * 5 + 4, (1 << 61).to_bytes(8, "big"))
    plan = make_plan(checked(store.root), small_settings(store.root))
    assert plan.losses.unnamed_bytes < log_end and plan.losses.messages == 238


def test_a_record_after_the_end_that_only_the_index_names_is_counted(store):
    filled(store)
    last = store.appender.put(message("last", 0, bytes(100), unique="u"))
    newest = max((store.root / "commitlog").iterdir())
    assert last.log_offset >= int(newest.name)
    before = store.reads.read_units("T", 0, store.reads.max_offset("T", 0) - 1, 1)[0]
    store.flush(), store.close()
    newest.unlink()
    (store.root / "ends").unlink()
    shutil.rmtree(store.root / "consumequeue/last")
    with_index = make_plan(checked(store.root), small_settings(store.root)).losses.unnamed_bytes
    for path in (store.root / "index").iterdir():
        path.unlink()
    without = make_plan(checked(store.root), small_settings(store.root)).losses.unnamed_bytes
    assert with_index == without + record.MIN_RECORD and before.log_offset < last.log_offset


def test_messages_that_another_broker_may_have_removed_are_counted(store):
    """The log was written on after the record of ends, and the store says that it was closed: so as another
    broker leaves it."""
    stored = filled(store)
    store.flush(), store.round()
    stored += filled(store, 60)
    gone = sum(_log_offset(store, one) < FILE_BYTES for one in stored)
    store.flush(), store.die()
    (store.root / "abort").unlink()
    min((store.root / "commitlog").iterdir()).unlink()
    losses = make_plan(checked(store.root), small_settings(store.root)).losses
    assert gone and (losses.messages, losses.perhaps_expired, losses.log_begin) == (0, gone, FILE_BYTES)


def _log_offset(store, one):
    """Log offset of a stored message, by its unit."""
    topic, queue_id, number = one[:3]
    units = b"".join(
        path.read_bytes() for path in sorted((store.root / f"consumequeue/{topic}/{queue_id}").iterdir())
    )
    return queue_unit.decode(units, number * queue_unit.SIZE).log_offset


def _homeless(topic, numbers, after=-1, before=1 << 62):
    size = record.MIN_RECORD + len(topic)
    return [Unplaced(Place(0, size, topic, 0, number), after, before) for number in numbers]


def test_messages_without_a_unit_lie_between_their_neighbours_and_never_over_another():
    for seed in range(60):
        choose = random.Random(seed)
        stretches = [Stretch(low, low + choose.randrange(100, 4000)) for low in range(0, 40_000, 5000)]
        placed = {stretch: [] for stretch in stretches}
        for stretch in stretches:
            at, number = stretch.low, stretch.low
            while (at := at + choose.randrange(0, 500)) + 200 < stretch.high:
                number += choose.randrange(1, 4)
                placed[stretch].append(Place(at, choose.randrange(100, 200), choose.choice("ab"), 0, number))
                at = placed[stretch][-1].end
        taken = {(place.topic, place.number) for places in placed.values() for place in places}
        wanted = [
            one
            for topic in "ab"
            for one in _homeless(topic, range(0, 40_000, 97))
            if (topic, one[0].number) not in taken
        ]
        left = put_where_free(wanted, placed)
        count = sum(map(len, placed.values()))
        assert count + len(left) == len(taken) + len(wanted) and count > len(taken)
        for stretch, places in placed.items():
            ordered = sorted(places)
            assert all(stretch.low <= place.at and place.end <= stretch.high for place in ordered)
            assert all(before.end <= after.at for before, after in itertools.pairwise(ordered))
        for topic in "ab":
            numbers = [
                place.number
                for place in sorted(place for places in placed.values() for place in places)
                if place.topic == topic
            ]
            assert numbers == sorted(numbers), seed


@pytest.mark.parametrize("has_room", [True, False])
def test_the_work_for_messages_without_a_unit_grows_as_their_count(has_room):
    def work(count):
        """Byte codes that placing so many messages in as many free parts takes."""
        gap = 2 * (record.MIN_RECORD + 1) if has_room else record.MIN_RECORD + 1
        stretch = Stretch(0, count * 400)
        others = [Place(at, 400 - gap, "other", 0, at) for at in range(0, count * 400, 400)]
        wanted = _homeless("T" if has_room else "long", range(count))
        codes = 0

        def on_code(frame, event, _):
            nonlocal codes
            codes += event == "opcode"
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            return on_code

        before = sys.gettrace()
        sys.settrace(on_code)
        try:
            left = put_where_free(wanted, {stretch: others})
        finally:
            sys.settrace(before)
        assert len(left) == (0 if has_room else count)
        return codes

    assert work(1600) < 5 * work(400)


@pytest.mark.parametrize("name", ["lock", "commitlog/00000000000000131072"])
def test_what_is_no_file_in_the_place_of_the_lock_or_the_log_is_left_with_a_sentence(store, name):
    filled(store)
    store.close()
    (store.root / name).unlink(missing_ok=True)
    (store.root / name).mkdir()
    plan = make_plan(checked(store.root), small_settings(store.root))
    assert [sentence.split(":")[0] for sentence in plan.left] == [f"{name.split('/')[-1]} is no regular file"]


def test_a_directory_in_the_place_of_a_queue_file_is_moved_away(store):
    stored = filled(store)
    store.close()
    last = max((store.root / "consumequeue/T/0").iterdir())
    path = last.with_name(f"{int(last.name) + 400:020d}")
    path.mkdir()
    repaired(store.root)
    assert not path.exists() and checked(store.root).report.ok
    again = reopened(store)
    assert_served(again, stored)
    again.close()


@pytest.mark.parametrize("how", ["empty", "missing", "no bytes"])
def test_a_store_whose_log_is_not_mounted_is_left_as_it_is(store, how):
    """All queues were taken away and the record of ends forgot where the log ended, before the repair was
    refused."""
    stored = filled(store)
    store.close()
    log, kept = store.root / "commitlog", store.root.parent / "log elsewhere"
    shutil.copytree(log, kept)
    if how == "no bytes":
        for path in log.iterdir():
            path.write_bytes(b"")
    else:
        shutil.rmtree(log)
        if how == "empty":
            log.mkdir()
    before = {path: path.read_bytes() for path in store.root.rglob("*") if path.is_file()}
    plan = repaired(store.root)
    assert plan.actions == [] and plan.left[0].startswith(
        f"There is no log file, but the store had a log up to {store.log.wrote:,}"
    )
    assert {
        path: path.read_bytes() for path in store.root.rglob("*") if path.is_file() and path.name != "lock"
    } == {path: raw for path, raw in before.items() if path.name != "lock"}
    shutil.rmtree(log, ignore_errors=True)
    shutil.copytree(kept, log)
    again = reopened(store)
    assert_served(again, stored)
    again.die()


@pytest.mark.parametrize("changed", ["$", "\\"])
def test_a_topic_that_became_none_by_one_bit_is_restored_by_its_unit(store, changed):
    """The plan put a placeholder in its place and wrote the topic into that, and was refused after it had
    taken the index away."""
    stored = filled(store, 60, (("%RETRY%g", 0), ("quiet", 0)))
    store.flush()
    store.close()
    path = sorted((store.root / "commitlog").iterdir())[0]
    content = path.read_bytes()
    at = content.index(b"%RETRY%g", 3000)
    poke(path, at, changed.encode())
    plan = repaired(store.root)
    assert [action.kind for action in plan.actions if action.kind in ("bridge", "restore")] == ["restore"]
    assert plan.losses.messages == 0
    assert path.read_bytes()[: len(content.rstrip(b"\0"))] == content.rstrip(b"\0")
    again = reopened(store)
    assert_served(again, stored)
    again.die()


@pytest.mark.parametrize("size", range(0, 60))
def test_properties_of_a_placeholder_say_that_it_is_one_as_soon_as_they_have_room(size):
    raw = padding(size)
    assert len(raw) == size
    pairs = properties.decode(raw.decode())
    assert pairs.get("REPAIRED", "").rstrip() == REASON[: max(0, size - 10)].rstrip()


def test_a_plan_names_each_lost_range_and_its_document_the_first_of_them(tmp_path, monkeypatch):
    monkeypatch.setattr(losses, "MAX_RANGES", 3)
    store = HandStore(small_settings(tmp_path / "store"), Clock()).begin()
    places = [
        store.appender.put(message("T", queue_id, bytes(200))).log_offset
        for queue_id in (*range(5), *range(5))
    ]
    store.close()
    path = store.root / "commitlog" / f"{0:020}"
    raw = bytearray(path.read_bytes())
    for place in places[:5]:
        raw[place + 100] ^= 1
    path.write_bytes(raw)
    found = make_plan(checked(store.root), small_settings(store.root)).losses
    assert [(one.queue_id, one.first, one.last) for one in found.ranges] == [
        (queue_id, 0, 0) for queue_id in range(5)
    ]
    summary = found.facts()
    assert (len(summary.ranges), summary.ranges_left_out, summary.messages) == (3, 2, 5)
    repaired(store.root)
