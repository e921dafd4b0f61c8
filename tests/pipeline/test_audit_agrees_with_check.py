"""The audit names each planted fault as `check_store` does: the same kinds, at the same places.

The audit's tasks run here one after the other in this process, so no fault costs a start of Spark.
"""

import shutil
from pathlib import Path

import pytest

from broker_store.check import units
from broker_store.check.doctor import MEANINGS
from broker_store.check.walk import StoreCheck, check_store
from broker_store.engine.disk.disk import Disk
from broker_store.engine.disk.file_sizes import FileSizes
from broker_store.engine.start.start_records import LastStart
from broker_store.formats import queue_unit, record
from broker_store.pipeline import audit, splits
from broker_store.pipeline.options import PARTITION_BYTES
from tests.engine.test_known_ends import filled, poke
from tests.pipeline import plain
from tests.support import broken_stores, stores
from tests.support.audit_in_process import NOT_COMPARED, audited
from tests.support.faults import FAULTS, Scene
from tests.support.hand_store import Clock, HandStore, message, small_settings
from tests.support.reference import ReferenceStore

STRETCH_BYTES = 1 << 16  # far less than a file of the log
SIZES = stores.SIZES["clean-small"]
# check_store names the record after a contradiction, the audit the one that contradicts its unit; of a
# missing key each names the index file at which it noticed.
OTHER_PLACE = {"queue-offset", "index-missing"}


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    root = stores.unpack("clean-small", tmp_path_factory.mktemp("sound"))
    return root, ReferenceStore(root, SIZES)


@pytest.mark.quick(14)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_named_alike(fault, sound, tmp_path):
    root, before = sound
    scene = Scene(shutil.copytree(root, tmp_path / "store"), SIZES, before)
    FAULTS[fault](scene)
    report = check_store(scene.root)
    result = audited(scene.root)
    checked = {
        (one.severity, one.kind, str(Path(one.file).relative_to(scene.root)), one.offset)
        for one in report.findings
        if one.kind not in NOT_COMPARED
    }
    named = {
        (one["severity"], one["kind"], one["file"], one["offset"])
        for one in result["findings"]
        if one["kind"] not in NOT_COMPARED
    }
    assert {kind for _, kind, _, _ in named} == {kind for _, kind, _, _ in checked}
    # Of many units or entries the audit reports the first of each queue or file and counts the others.
    assert {one for one in named if one[1] not in OTHER_PLACE} <= {
        one for one in checked if one[1] not in OTHER_PLACE
    }


FIELDS = record.FIXED_IPV4.offset
# Single bits of what a record states of its place, which no CRC covers.
BITS = {
    "number": (FIELDS["queue_offset"] + 7, 0), "high number": (FIELDS["queue_offset"] + 4, 5), "highest number": (FIELDS["queue_offset"], 6),
    "queue": (FIELDS["queue_id"] + 3, 0), "other queue": (FIELDS["queue_id"] + 3, 1), "transaction": (FIELDS["sys_flag"] + 3, 3),
}  # fmt: skip


@pytest.mark.quick(2)
@pytest.mark.parametrize("bit", BITS)
@pytest.mark.parametrize("partition_bytes", [PARTITION_BYTES, STRETCH_BYTES])
def test_a_record_that_states_another_place_is_blamed_alike_wherever_it_stands_in_its_queue(
    bit, partition_bytes, sound, tmp_path
):
    """At the begin and end of a queue the check blamed units that were right, and the audit the record."""
    root, _ = sound
    found = plain.records(root)
    # That of the first record of the log, one of many records, one with transactions, one of two records.
    for queue in (
        (found[0].topic, found[0].queue_id),
        ("FixA", 1),
        ("FixSpecial", 3),
        ("%RETRY%FixGroup", 0),
    ):
        own = [one for one in found if (one.topic, one.queue_id) == queue]
        for one in (own[0], own[len(own) // 2], own[-1]):
            store = shutil.copytree(root, tmp_path / "store")
            path, base, _ = next(
                file for file in splits.log_files(store, Disk()) if file[1] <= one.log_offset < file[2]
            )
            at, number = BITS[bit]
            with open(path, "r+b") as log:
                log.seek(one.log_offset - base + at)
                value = log.read(1)[0]
                log.seek(-1, 1)
                log.write(bytes([value ^ 1 << number]))
            checked = {one.kind for one in check_store(store).findings if one.kind not in NOT_COMPARED}
            result = audited(store, partition_bytes)
            assert {
                found["kind"] for found in result["findings"] if found["kind"] not in NOT_COMPARED
            } == checked, (queue, one.log_offset)
            assert "unit-extra" not in checked, (queue, one.log_offset)
            shutil.rmtree(store)


def test_times_that_go_back_where_two_stretches_meet_are_named_alike(sound, tmp_path):
    root, before = sound
    scene = Scene(shutil.copytree(root, tmp_path / "store"), SIZES, before)
    cuts = [split.begin for split in splits.splits_of(scene.root, partition_bytes=STRETCH_BYTES)][1:]
    for at in cuts:
        path, base, _ = next(file for file in splits.log_files(scene.root, Disk()) if file[1] <= at < file[2])
        with open(path, "r+b") as log:
            log.seek(at - base + record.FIXED_IPV4.offset["store_timestamp"])
            log.write((1).to_bytes(8, "big"))
    checked = {
        (str(Path(one.file).relative_to(scene.root)), one.offset, one.what)
        for one in check_store(scene.root).findings
        if one.kind == "store-time"
    }
    result = audited(scene.root, STRETCH_BYTES)
    assert {
        (one["file"], one["offset"], one["what"]) for one in result["findings"] if one["kind"] == "store-time"
    } == checked and len(checked) > 3


@pytest.mark.quick(1)
@pytest.mark.parametrize("first", range(34_070_000, 34_070_030, 5))
@pytest.mark.parametrize("kind", ["clean", "killed", ""])
def test_a_randomly_broken_store_is_in_order_to_both_or_to_neither(kind, first, tmp_path):
    for seed in range(first, first + 5):
        broken, judged = broken_stores.run_case(seed, tmp_path / str(seed), kind, ways=["audit"])
        assert isinstance(judged["audit"], broken_stores.Judgement), (
            f"seed {seed}: {broken.breaks}: {judged['audit']!r}"
        )


@pytest.mark.parametrize(
    ("kind", "seed"),
    [
        *(
            ("clean", seed)
            for seed in (
                34030033,
                34060015,
                34060023,
                34060024,
                34060131,
                34060140,
                34060153,
                34060188,
                34409208,
            )
        ),
        *(
            ("killed", seed)
            for seed in (34401264, 34401351, 34402144, 34402604, 34402610, 34403875, 34501343)
        ),
    ],
)
def test_a_randomly_broken_store_that_was_once_judged_otherwise_is_not_again(kind, seed, tmp_path):
    broken, judged = broken_stores.run_case(seed, tmp_path, kind, ways=["audit"])
    assert isinstance(judged["audit"], broken_stores.Judgement), f"{broken.breaks}: {judged['audit']!r}"


def test_a_header_of_the_index_that_states_an_impossible_begin_is_judged_alike(tmp_path):
    """The check blamed every entry of the file, the audit none."""
    broken, judged = broken_stores.run_case(34410007, tmp_path, "killed", "index/", ways=["audit"])
    assert isinstance(judged["audit"], broken_stores.Judgement) and judged["audit"].outcome == "alike", (
        f"{broken.breaks}: {judged['audit']!r}"
    )


@pytest.mark.parametrize("is_clean", [False, True])
@pytest.mark.parametrize("known", [None, LastStart()])
def test_old_records_behind_the_end_of_a_store_without_a_known_start_are_not_of_the_log(
    known, is_clean, tmp_path
):
    """`manage.py pipeline audit` passes a start of which nothing is known; only None was taken for that."""
    store = HandStore(small_settings(tmp_path / "store")).begin()
    kept = [store.appender.put(message("T", 0, b"a%d" % number, unique=f"u{number}")) for number in range(2)]
    store.close() if is_clean else store.die()
    root = store.root
    at = kept[1].log_end
    behind = Path(shutil.copytree(root, tmp_path / "other" / "store"))
    other = HandStore(small_settings(behind)).begin()
    places = [
        other.appender.put(message("T", 0, b"later" * 9, unique=f"v{number}")).log_offset
        for number in range(3)
    ]
    other.die()
    (path,) = (root / "commitlog").iterdir()
    raw = bytearray((behind / "commitlog" / path.name).read_bytes())
    raw[places[0] + 100] ^= 1
    assert places[0] == at
    path.write_bytes(raw)
    checked = {
        (one.severity, one.kind)
        for one in StoreCheck(root, small_settings(root), last_start=known).run().findings
    }
    assert ("warning", "stale-tail") in checked
    result = audited(root, noted=FileSizes(16384, 400, 16, 64), last_start=known)
    assert {(one["severity"], one["kind"]) for one in result["findings"]} - {("note", "log-start")} == {
        one for one in checked if one[1] not in NOT_COMPARED
    }


def test_a_unit_leads_to_a_record_of_its_size_only(sound):
    root, _ = sound
    one, disk = plain.records(root)[3], Disk()
    walk = StoreCheck(root)
    walk.load()
    for size, is_found in ((one.size - 1, False), (one.size, True), (one.size + 1, False)):
        unit = queue_unit.QueueUnit(one.log_offset, size, 0)
        of_audit = splits.record_at(unit, splits.log_files(root, disk), disk)
        assert (walk.log.record_at(one.log_offset, size) is not None, of_audit is not None) == (
            is_found,
            is_found,
        )


def test_a_topic_made_again_whose_first_unit_follows_many_blanks_is_judged_alike(tmp_path):
    """The audit searched the first 1,024 units only, and missed the units of the topic's earlier life."""
    settings = small_settings(tmp_path / "store", mapped_file_size_consume_queue=40_000)
    store = HandStore(settings).begin()
    for life in range(2):
        store.queue_table.open("T", 0).begin_at_unit(1500)
        for number in range(3):
            store.appender.put(message("T", 0, b"%d" % number, unique=f"u{life}{number}"))
        if not life:
            store.delete_topic("T")
    store.close()
    for path in (store.root / "config").glob("deletedTopics*"):
        path.unlink()  # as Apache's broker deletes a topic: without a note
    checked, result = StoreCheck(store.root, settings).run(), audited(store.root)
    assert checked.counts["records_of_deleted_topics"] == 3
    assert {one["kind"] for one in result["findings"]} - NOT_COMPARED == {
        one.kind for one in checked.findings
    } - NOT_COMPARED


def test_units_told_by_one_task_are_taken_from_those_that_another_told():
    told = [(3, 4), (8, 20), (30, 30)]
    for runs, left in (
        ([(0, 40)], [(0, 2), (5, 7), (21, 29), (31, 40)]), ([(8, 20)], []), ([(9, 10), (12, 22)], [(21, 22)]), ([(4, 8)], [(5, 7)]), ([(21, 25), (26, 30)], [(21, 25), (26, 29)]),
    ):  # fmt: skip
        assert list(units.runs_without(runs, told)) == left
    assert list(units.runs_without([(1, 2)], [])) == [(1, 2)]


def test_the_audit_says_what_it_leaves_to_a_check(sound):
    root, _ = sound
    result = audited(root)
    assert result["ok"] and result["not_compared"] == list(audit.CHECKED_ELSEWHERE)
    assert {kind for kinds in audit.CHECKED_ELSEWHERE.values() for kind in kinds} <= MEANINGS.keys()


# Stores of Apache, undamaged, and what is done to one that was closed (`clean-small`) or killed (`crash`).


def last_file(root, directory):
    return sorted(path for path in (root / directory).rglob("*") if path.is_file() and path.name.isdigit())[
        -1
    ]


def zeroed_index(root):
    for path in (root / "index").iterdir():
        path.write_bytes(bytes(path.stat().st_size))


def longer(root, which=slice(None)):
    for path in sorted((root / "commitlog").iterdir())[which]:
        with open(path, "ab") as file:
            file.write(b"0123456789")


def one_log_file(root, length):
    """Of a log of one file, which nothing beside it shows the length of."""
    path = min((root / "commitlog").iterdir())
    for other in (root / "commitlog").iterdir():
        if other != path:
            other.unlink()
    content = path.read_bytes()
    path.write_bytes(content[:length].ljust(length, b"x"))


def zeroed_unit(root, number):
    path = (
        last_file(root, "consumequeue/FixA/1")
        if (root / "consumequeue/FixA").is_dir()
        else max(
            (root / "consumequeue").rglob("0" * 20), key=lambda path: len(path.read_bytes().rstrip(b"\0"))
        )
    )
    content = bytearray(path.read_bytes())
    content[number * 20 : number * 20 + 20] = bytes(20)
    path.write_bytes(content)


def tombstone(root, content, backup=None):
    (root / "config").mkdir(exist_ok=True)
    (root / "config/deletedTopics.json").write_bytes(content)
    if backup is not None:
        (root / "config/deletedTopics.json.bak").write_bytes(backup)


NEAR = {
    "nothing": lambda root: None,
    "a zeroed index": zeroed_index,
    "an index without files": lambda root: [path.unlink() for path in (root / "index").iterdir()],
    "all log files longer": longer,
    "the first log file longer": lambda root: longer(root, slice(1)),
    "the last log file longer": lambda root: longer(root, slice(-1, None)),
    "the only log file short": lambda root: one_log_file(root, 200_000),
    "the only log file long": lambda root: one_log_file(root, 262_144 + 100),
    "the first unit zeroed": lambda root: zeroed_unit(root, 0),
    "a unit zeroed": lambda root: zeroed_unit(root, 5),
    "a tombstone beyond the records": lambda root: tombstone(root, b'{"FixA": 250000, "CrashTopic": 250000}'),
    "a tombstone that is no number of the log": lambda root: tombstone(
        root, b'{"FixA": 99999999999999999999, "CrashTopic": 99999999999999999999}', b"{}"
    ),
}


@pytest.mark.parametrize("case", NEAR)
@pytest.mark.parametrize("name", ["clean-small", "crash"])
def test_what_is_near_to_a_fault_is_named_alike(name, case, tmp_path):
    root = stores.unpack(name, tmp_path)
    NEAR[case](root)
    sizes = stores.SIZES[name]
    noted = FileSizes(
        sizes.mapped_file_size_commit_log,
        sizes.mapped_file_size_consume_queue,
        sizes.max_hash_slot_num,
        sizes.max_index_num,
    )
    check = StoreCheck(root, noted=noted)
    checked = {(one.severity, one.kind) for one in check.run().findings if one.kind not in NOT_COMPARED}
    assert {
        (one["severity"], one["kind"])
        for one in audited(root, noted=noted)["findings"]
        if one["kind"] not in NOT_COMPARED
    } == checked


@pytest.mark.parametrize("number", [0, 1, 5])
def test_a_zeroed_unit_of_a_record_that_retention_removed_is_named_alike(number, tmp_path):
    store = HandStore(small_settings(tmp_path / "store"), Clock()).begin()
    filled(store)
    store.flush(), store.round()
    assert store.cleaning.delete_expired(any_age=True, most=2) == 2
    store.close()
    root = store.root
    first = min((root / "consumequeue/T/0").iterdir())
    poke(first, number * 20, bytes(20))
    noted = FileSizes(16384, 400, 16, 64)
    checked = {
        (one.severity, one.kind, one.offset)
        for one in StoreCheck(root, noted=noted).run().findings
        if one.kind not in NOT_COMPARED
    }
    assert checked
    assert {
        (one["severity"], one["kind"], one["offset"])
        for one in audited(root, noted=noted)["findings"]
        if one["kind"] not in NOT_COMPARED
    } == checked


LAST_STARTS = {
    "none": None,
    "another boot": LastStart(1),
    "same boot": LastStart(1, is_same_boot=True),
    "SYNC_FLUSH": LastStart(1, is_sync_flush=True),
}


@pytest.mark.parametrize("known", LAST_STARTS)
@pytest.mark.parametrize("hurt", ["zeroed", "bit", "all gone"])
def test_what_is_known_of_the_last_start_counts_alike(hurt, known, tmp_path):
    """The audit was not given it: an error of check_store was its warning, and a store that had vanished was
    sound."""
    root = tmp_path / "store"
    store = HandStore(small_settings(root)).begin()
    offsets = [
        store.appender.put(message("T", 0, b"%d-" % number + bytes(300), unique=f"u{number}")).log_offset
        for number in range(60)
    ]
    store.die()
    path = max((root / "commitlog").iterdir())
    at, raw = offsets[-1] - int(path.name), bytearray(path.read_bytes())
    if hurt == "all gone":
        shutil.rmtree(root)
        (root / "commitlog").mkdir(parents=True)
    else:
        raw[at:] = (
            bytes(len(raw) - at)
            if hurt == "zeroed"
            else bytes([*raw[at : at + 100], raw[at + 100] ^ 1, *raw[at + 101 :]])
        )
        path.write_bytes(raw)
    check = StoreCheck(root, small_settings(root), last_start=LAST_STARTS[known])
    report = check.run()
    result = audited(root, noted=FileSizes(16384, 400, 16, 64), last_start=LAST_STARTS[known])
    told = {(one["severity"], one["kind"]) for one in result["findings"] if one["kind"] not in NOT_COMPARED}
    assert told == {(one.severity, one.kind) for one in report.findings if one.kind not in NOT_COMPARED}
    proves = LAST_STARTS[known] is not None and (hurt == "all gone" or LAST_STARTS[known].units_prove_records)
    assert result["ok"] == (not proves)
