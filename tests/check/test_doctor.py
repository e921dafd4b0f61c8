"""The doctor names every fault that is planted, and its repair keeps all that could be read."""

import ast
import importlib
import json
import pkgutil
import shutil
from pathlib import Path

import pytest

import broker_store.check
from broker_store.check import doctor
from broker_store.check.repair.apply import Repair
from broker_store.check.repair.plan import make_plan
from broker_store.check.walk import StoreCheck
from broker_store.config.store import StoreSettings
from broker_store.engine.disk.disk import Disk
from broker_store.engine.store import MessageStore
from broker_store.errors import DamagedStoreError, MisuseError, StoreError, StoreLockedError
from broker_store.formats import queue_unit, record
from broker_store.messages import GetRequest, Message
from tests.support import stores
from tests.support.failing_disk import FailingDisk
from tests.support.faults import FAULTS, Planted, Scene, complaints
from tests.support.reference import ReferenceStore

SIZES = stores.SIZES["clean-small"]


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """A store that Apache's broker closed in order, unpacked once, and what the plain reader finds in it."""
    root = stores.unpack("clean-small", tmp_path_factory.mktemp("sound"))
    return root, ReferenceStore(root, SIZES)


@pytest.fixture
def scene(sound, tmp_path):
    root, before = sound
    return Scene(shutil.copytree(root, tmp_path / "store"), SIZES, before)


def checked(root, disk=None):
    check = StoreCheck(root, disk=disk)
    check.run()
    return check


def grave(check):
    """Findings that are no notes, as text."""
    return [str(finding) for finding in check.report.findings if finding.severity != "note"]


def repaired(root, disk=None):
    """Check, plan and apply; the plan."""
    plan = make_plan(checked(root, disk), SIZES)
    Repair(plan, disk).run()
    return plan


def opened(root):
    """The store in our engine; it must find nothing wrong."""
    store = MessageStore(
        StoreSettings(
            store_path_root_dir=root, timer_wheel_enable=False, max_message_size=8 << 20, **vars_of(SIZES)
        )
    )
    store.open()
    assert [
        finding for finding in store.report.findings if finding["severity"] != "info"
    ] == [] and store.report.cut_bytes == 0
    return store


def vars_of(sizes):
    return {name: getattr(sizes, name) for name in sizes.__dataclass_fields__}


def tree(root):
    return {
        str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()
    }


@pytest.mark.quick(14)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_named_and_mended(fault, scene, tmp_path):
    planted = FAULTS[fault](scene)
    damaged = tree(scene.root)
    check = checked(scene.root)
    named = [
        doctor.grade_of(finding, check.store.is_unclean)
        for finding in check.report.findings
        if finding.kind == planted.kind
        and finding.file.startswith(str(scene.root / planted.file))
        and planted.offset in (None, finding.offset)
    ]
    assert planted.grade in named, [str(finding) for finding in check.report.findings][:5]
    plan = make_plan(check, SIZES)
    assert tree(scene.root) == damaged  # a plan changes nothing
    assert plan.left == [] and (plan.actions or planted.grade == "harmless")
    named = {
        (one.topic, one.queue_id, number)
        for one in plan.losses.ranges
        for number in range(one.first, one.last + 1)
    }
    gone = {
        (m.topic, m.queue_id, m.queue_offset)
        for m in scene.records
        if m.log_offset in planted.lost and m.is_queued
    }
    assert named == (set() if planted.grade == "harmless" else gone)
    assert plan.losses.messages == len(named)
    Repair(plan).run()
    assert grave(checked(scene.root)) == []
    assert complaints(scene, planted, scene.root) == []
    opened(scene.root).close()
    if "replace" in {action.kind for action in plan.actions} | {"move", "bridge", "cut", "length"} & {
        action.kind for action in plan.actions
    }:
        (kept,) = (tmp_path / "lost+found").iterdir()
        manifest = json.loads((kept / "manifest.json").read_text())
        for entry in manifest["actions"]:
            if entry["kept"] and entry["file"] in damaged:
                copy, at = (kept / entry["kept"]).read_bytes(), entry["offset"] or 0
                assert copy == damaged[entry["file"]][at : at + entry["bytes"]], entry


@pytest.mark.quick(5)
@pytest.mark.parametrize("variant", stores.variants())
def test_each_crash_of_the_real_broker_is_graded_and_mended(variant, tmp_path):
    root = stores.unpack_variant(variant, tmp_path)
    check = checked(root)
    grades = {finding.grade for finding in doctor.findings_of(check.report, root, check.store.is_unclean)}
    assert grades == {
        "kill9": set(),
        "bitflip-tail": {"lost"},
        "bitflip-early": {"lost"},
        "abort-removed-torn": {"lost"},
    }.get(variant, {"next start"})
    before = stores.good_records("crash", root)
    plan = make_plan(check, SIZES)
    assert plan.left == []
    Repair(plan).run()
    if variant == "kill9":
        assert plan.actions == []
        return
    assert grave(checked(root)) == []
    scene = Scene(root, SIZES, ReferenceStore(root, SIZES))
    scene.records = before
    assert complaints(scene, None, root) == []
    with opened(root) as store:
        assert store.log.wrote >= before[-1].log_offset + before[-1].size


def test_a_reader_of_a_mended_queue_gets_an_empty_message_that_says_why_and_then_the_next(scene):
    planted = FAULTS["flipped bit in a body"](scene)
    (lost,) = (message for message in scene.records if message.log_offset in planted.lost)
    repaired(scene.root)
    with opened(scene.root) as store:
        result = store.reads.get(GetRequest(lost.topic, lost.queue_id, lost.queue_offset, max_count=2))
        placeholder, following = record.decode_all(result.body)
        assert (placeholder.queue_offset, placeholder.body) == (lost.queue_offset, b"")
        assert placeholder.properties["REPAIRED"].strip() == "the record that lay here was damaged"
        assert following == next(
            m
            for m in scene.records
            if (m.topic, m.queue_id, m.queue_offset) == (lost.topic, lost.queue_id, lost.queue_offset + 1)
        )
        for key in lost.keys:
            assert lost.log_offset not in store.reads.query_keys(lost.topic, key, 32).offsets


def test_a_record_that_no_queue_knows_any_more_keeps_its_number_by_its_neighbours(scene):
    """The queues are gone together with a record: its number is missing between two others."""
    planted = FAULTS["torn record in the middle"](scene)
    for path in (scene.root / "consumequeue").glob("*/*/*"):
        path.unlink()
    plan = repaired(scene.root)
    assert plan.left == [] and grave(checked(scene.root)) == []
    assert complaints(scene, planted, scene.root) == []


def test_a_placeholder_is_of_the_topic_and_not_of_a_light_queue_that_points_there_too(scene):
    planted = FAULTS["flipped bit in a body"](scene)
    (lost,) = (message for message in scene.records if message.log_offset in planted.lost)
    unit = queue_unit.encode(lost.log_offset, lost.size, 0)
    scene.make(f"consumequeue/%LMQ%a/0/{0:020}", unit.ljust(SIZES.mapped_file_size_consume_queue, b"\0"))
    repaired(scene.root)
    with opened(scene.root) as store:
        (placeholder,) = record.decode_all(
            store.reads.get(GetRequest(lost.topic, lost.queue_id, lost.queue_offset, max_count=1)).body
        )
    assert (placeholder.topic, placeholder.queue_offset, placeholder.body) == (
        lost.topic,
        lost.queue_offset,
        b"",
    )


def test_many_faults_at_once_are_mended_together(scene):
    lost = set()
    for name in (
        "flipped bit in a body",
        "hole in a queue",
        "looped chain",
        "foreign file in the log",
        "checkpoint ahead of the log",
        "torn last record",
        "offset of a group beyond the end",
        "log file missing in the middle",
        "queue file too short",
    ):
        scene.choose.seed(name)
        lost |= FAULTS[name](scene).lost
    plan = repaired(scene.root)
    assert plan.left == [] and grave(checked(scene.root)) == []
    assert complaints(scene, Planted("", "", "", lost=frozenset(lost)), scene.root) == []


@pytest.mark.slow
def test_a_repair_that_is_killed_anywhere_is_ended_by_the_next(sound, tmp_path):
    root, before = sound
    names = (
        "flipped bit in a body",
        "queue file too short",
        "looped chain",
        "checkpoint ahead of the log",
        "torn last record",
        "log file missing in the middle",
    )

    def damaged(number):
        scene = Scene(shutil.copytree(root, tmp_path / str(number) / "store"), SIZES, before)
        lost = set()
        for name in names:
            scene.choose.seed(name)
            lost |= FAULTS[name](scene).lost
        return scene, Planted("", "", "", lost=frozenset(lost))

    class Killed(BaseException):
        pass

    calls, limit = [], None

    def on_call(name):
        calls.append(name)
        if limit is not None and len(calls) > limit:
            raise Killed

    scene, _ = damaged("all")
    plan = make_plan(checked(scene.root), SIZES)
    Repair(plan, FailingDisk(on_call)).run()
    total = len(calls)
    for limit in range(3, total, max(1, total // 6)):
        scene, planted = damaged(limit)
        plan = make_plan(checked(scene.root), SIZES)
        calls.clear()
        with pytest.raises(Killed):
            Repair(plan, FailingDisk(on_call)).run()
        assert repaired(scene.root).left == []
        assert grave(checked(scene.root)) == [], limit
        assert complaints(scene, planted, scene.root) == [], limit
        shutil.rmtree(scene.root.parent)


def test_a_repair_that_did_not_bridge_all_damage_stops_before_a_start_would_cut(scene):
    """Whatever is wrong with a plan: the engine's recovery ends the log at the first record that is not
    good."""
    planted = FAULTS["flipped bit in a body"](scene)
    plan = make_plan(checked(scene.root), SIZES)
    plan.actions = [action for action in plan.actions if action.kind != "bridge"]
    with pytest.raises(DamagedStoreError, match="a start would take away"):
        Repair(plan).run()
    log = stores.log_bytes(scene.root)
    after = {
        record.decode(dict(log)[base], at, log_offset=base + at).log_offset
        for base, at in places_of(scene)
        if base + at not in planted.lost
    }
    assert len(after) == len(scene.records) - 1
    repaired(scene.root)
    assert complaints(scene, planted, scene.root) == []


def places_of(scene):
    size = SIZES.mapped_file_size_commit_log
    return [(message.log_offset // size * size, message.log_offset % size) for message in scene.records]


def test_a_store_that_somebody_holds_is_not_repaired(scene):
    FAULTS["hole in a queue"](scene)
    plan = make_plan(checked(scene.root), SIZES)
    before = tree(scene.root)
    lock = Disk().lock(scene.root / "lock")
    try:
        with pytest.raises(StoreLockedError):
            Repair(plan).run()
    finally:
        lock.release()
    assert tree(scene.root) == before | {"lock": b"lock"}


def test_a_sound_store_needs_nothing_and_a_check_that_was_stopped_makes_no_plan(scene):
    before = tree(scene.root)
    plan = repaired(scene.root)
    assert (plan.actions, plan.left, tree(scene.root)) == ([], [], before)
    stopped = StoreCheck(scene.root, should_stop=lambda: True)
    stopped.run()
    with pytest.raises(MisuseError):
        make_plan(stopped)


def test_a_disk_that_refuses_ends_the_repair_with_what_it_says(scene):
    FAULTS["hole in a queue"](scene)
    plan = make_plan(checked(scene.root), SIZES)

    def refuse(name):
        if name == "rename":
            raise StoreError("no more")

    with pytest.raises(StoreError, match="no more"):
        Repair(plan, FailingDisk(refuse)).run()
    repaired(scene.root)
    assert grave(checked(scene.root)) == []


def kinds_of(module):
    """The kinds of findings that the source of a module adds, and those that its functions take as default."""
    found = set()
    for node in ast.walk(ast.parse(Path(module.__file__).read_text())):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("report.add"):
            found.add(node.args[1])
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "self._report_unindexed":
            found.add(node.args[0])
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "self._break":
            found |= set(node.args[4:])
        if isinstance(node, ast.FunctionDef) and node.args.args and node.args.args[-1].arg == "kind":
            found |= set(node.args.defaults)
    return {eval(ast.unparse(node), vars(module)) for node in found if ast.unparse(node) != "kind"}


def test_every_kind_of_finding_has_a_meaning():
    """Each kind that the check may report is explained: its source is searched for them."""
    modules = [
        importlib.import_module(f"broker_store.check.{name}")
        for _, name, _ in pkgutil.iter_modules(broker_store.check.__path__)
    ]
    kinds = set().union(*(kinds_of(module) for module in modules))
    assert kinds == set(doctor.MEANINGS)


def test_a_note_of_a_deleted_topic_beyond_the_log_has_no_copy_and_stays_as_it_is(scene):
    """The repair ended with a TypeError, since it had no copy to put in its place."""
    scene.make("config/deletedTopics.json", b'{"FixA": 99999999}')
    check = checked(scene.root)
    assert [finding.kind for finding in check.report.findings if finding.severity == "warning"] == ["config"]
    plan = repaired(scene.root)
    assert "deletedTopics.json" not in {action.path.name for action in plan.actions}


def test_a_log_file_that_is_millions_of_files_away_is_not_bridged_to(scene):
    """Its records state that place, so it is not misplaced; what lies between is not made again file by
    file."""
    size = SIZES.mapped_file_size_commit_log
    base = (1 << 40) // size * size
    content = bytearray(size)
    at = 0
    for number in range(2):
        encoded = record.encode(
            Message("FixA", 0, b"far away", b""),
            scene.before.max_offset("FixA", 0) + number,
            base + at,
            1_800_000_000_000,
        )
        content[at : at + len(encoded)] = encoded
        at += len(encoded)
    scene.make(f"commitlog/{base:020}", bytes(content))
    plan = make_plan(checked(scene.root), SIZES)
    (sentence,) = [one for one in plan.left if "log files are missing" in one]
    assert sentence.startswith(
        f"{(base - int(max(path.name for path in (scene.root / 'commitlog').iterdir() if int(path.name) < base))) // size - 1:,} log files"
    )
    assert len(plan.actions) < 100


def test_a_queue_file_that_is_millions_of_files_away_costs_no_walk_between(scene):
    """Its units say nothing of their place: their records are not in the log any more."""
    size = SIZES.mapped_file_size_consume_queue
    scene.make(
        f"consumequeue/FixA/0/{(1 << 50) // size * size:020}",
        queue_unit.encode(1 << 45, 100, 0) * (size // queue_unit.SIZE),
    )
    plan = repaired(scene.root)
    assert plan.left == [] and grave(checked(scene.root)) == []


def test_files_that_changed_places_have_them_again_and_no_message_is_lost(scene):
    before = tree(scene.root)
    FAULTS["two log files swapped"](scene)
    FAULTS["files of two queues swapped"](scene)
    plan = repaired(scene.root)
    assert [action.kind for action in plan.actions].count("rename") == 2 and plan.losses.messages == 0
    after = tree(scene.root)
    assert {
        name: content
        for name, content in after.items()
        if name in before and name.startswith(("commitlog/", "consumequeue/"))
    } == {
        name: content for name, content in before.items() if name.startswith(("commitlog/", "consumequeue/"))
    }
