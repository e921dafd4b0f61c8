"""A name that a start needs is of another kind: inspection and start refuse it, with advice, and the check
says so."""

import os
import shutil
from dataclasses import replace

import pytest

from broker_store.check.repair.apply import Repair
from broker_store.check.repair.plan import make_plan
from broker_store.check.walk import StoreCheck
from broker_store.errors import DamagedStoreError
from tests.support.hand_store import HandStore, message, small_settings

KINDS = {
    "directory": lambda path: path.mkdir(),
    "link": lambda path: path.symlink_to("/nowhere/else"),
    "file": lambda path: path.write_bytes(b"x"),
    "fifo": os.mkfifo,
}
DIRECTORIES = ("config", "index", "commitlog", "consumequeue", "consumequeue/T", "consumequeue/T/0")
CASES = [(name, kind) for name in DIRECTORIES for kind in ("link", "file", "fifo")]
CASES += [("abort", kind) for kind in ("directory", "link", "fifo")]
CASES += [("timerlog", kind) for kind in ("link", "file", "fifo")] + [
    ("timerwheel", kind) for kind in ("directory", "link", "fifo")
]
CASES += [
    (name, kind)
    for name in ("checkpoint", "ends", "config/timercheck")
    for kind in ("directory", "link", "fifo")
]
CASES += [(name, "directory") for name in ("checkpoint.tmp", "ends.tmp", "config/topics.json.tmp")]


def kinds_of(root):
    return {str(path.relative_to(root)): path.lstat().st_mode for path in root.rglob("*")}


def contents_of(root):
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and path.name != "lock"
    }


@pytest.fixture
def root(directory, clock):
    """A store with messages that was closed."""
    store = HandStore(small_settings(directory / "store"), clock).begin()
    for _ in range(30):
        store.appender.put(message("T", 0))
    store.close()
    store.die()
    yield store.root
    shutil.rmtree(store.root)


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_a_name_of_another_kind_is_refused_and_reported(root, clock, name, kind):
    settings, path = small_settings(root), root / name
    path.parent.mkdir(exist_ok=True)
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    KINDS[kind](path)
    before = kinds_of(root)
    for inspects in (True, False):
        again = HandStore(replace(settings, inspect=inspects), clock)
        with pytest.raises(DamagedStoreError) as refused:
            again.begin()
        again.die()
        assert path.name in str(refused.value.file) and "out of the store" in refused.value.advice
    assert {gone for gone in before.keys() ^ kinds_of(root).keys() if gone != "lock"} == set()
    check = StoreCheck(root)
    try:
        check.run()
    except DamagedStoreError as error:
        assert error.file == str(path)
    else:
        assert [
            finding.what
            for finding in check.report.findings
            if finding.file == str(path) and finding.severity == "error"
        ]
        plan = make_plan(check, settings)
        assert any(path.name in sentence for sentence in plan.left)
        before = contents_of(root)
        Repair(plan).run()
        assert contents_of(root) == before


@pytest.mark.parametrize("kind", ["link", "file", "fifo"])
def test_a_lost_and_found_of_another_kind_is_refused_before_the_start_notes_that_it_began(root, clock, kind):
    path = root.parent / "lost+found"
    KINDS[kind](path)
    store = HandStore(small_settings(root), clock)
    with pytest.raises(DamagedStoreError) as refused:
        store.begin()
    store.die()
    assert (
        refused.value.file == str(path)
        and "out of the store" in refused.value.advice
        and not (root / "abort").exists()
    )
    # Which takes nothing away
    inspecting = HandStore(replace(small_settings(root), inspect=True), clock).begin()
    inspecting.die()
    check = StoreCheck(root)
    check.run()
    assert [
        finding.what
        for finding in check.report.findings
        if finding.file == str(path) and finding.severity == "error"
    ]
    assert any(path.name in sentence for sentence in make_plan(check, small_settings(root)).left)
    path.unlink()


def test_a_timer_wheel_of_another_length_is_refused_before_the_start_notes_that_it_began(root, clock):
    (root / "timerwheel").write_bytes(b"x")
    store = HandStore(small_settings(root), clock)
    with pytest.raises(DamagedStoreError, match="1 bytes"):
        store.begin()
    store.die()
    assert not (root / "abort").exists()


def test_a_repair_takes_no_file_through_a_link(root):
    elsewhere = root.parent / "elsewhere"
    shutil.move(root / "consumequeue/T", elsewhere)
    (root / "consumequeue/T").symlink_to(elsewhere)
    before = contents_of(root), contents_of(elsewhere)
    check = StoreCheck(root)
    check.run()
    plan = make_plan(check, small_settings(root))
    assert plan.left and not plan.actions
    Repair(plan).run()
    assert (contents_of(root), contents_of(elsewhere)) == before
    shutil.rmtree(elsewhere)
