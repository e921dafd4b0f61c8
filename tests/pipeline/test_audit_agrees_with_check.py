"""The audit names each planted fault as `check_store` does: the same kinds, at the same places.

The audit's tasks run here one after the other in this process, so no fault costs a start of Spark.
"""

import shutil
from pathlib import Path

import pytest

from broker_store.engine.check import check_store
from broker_store.engine.disk import Disk
from broker_store.formats import queue_unit, record
from broker_store.inside.doctor import MEANINGS
from broker_store.pipeline import audit, splits
from broker_store.pipeline.options import PARTITION_BYTES
from tests.support import stores
from tests.support.faults import FAULTS, Scene
from tests.support.reference import ReferenceStore

STRETCH_BYTES = 1 << 16  # far less than a file of the log
SIZES = stores.SIZES["clean-small"]
NOT_COMPARED = {kind for kinds in audit.CHECKED_ELSEWHERE.values() for kind in kinds} | {"empty", "log-start"}
# check_store names the record after a contradiction, the audit the one that contradicts its unit; of a missing key each names the
# index file at which it noticed.
OTHER_PLACE = {"queue-offset", "index-missing"}


class InOneProcess(audit._Audit):
    def _in_tasks(self, function, shared, items: list) -> list:
        return [function(shared, item) for item in items]


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    root = stores.unpack("clean-small", tmp_path_factory.mktemp("sound"))
    return root, ReferenceStore(root, SIZES)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_named_alike(fault, sound, tmp_path):
    root, before = sound
    scene = Scene(shutil.copytree(root, tmp_path / "store"), SIZES, before)
    FAULTS[fault](scene)
    report = check_store(scene.root)
    result = InOneProcess(None, scene.root, None, lambda *_: None, queue_unit.DEFAULT_DELAY_LEVELS_MS, PARTITION_BYTES).run()
    checked = {(one.severity, one.kind, str(Path(one.file).relative_to(scene.root)), one.offset) for one in report.findings if one.kind not in NOT_COMPARED}
    audited = {(one["severity"], one["kind"], one["file"], one["offset"]) for one in result["findings"] if one["kind"] not in NOT_COMPARED}
    assert {kind for _, kind, _, _ in audited} == {kind for _, kind, _, _ in checked}
    # Of many units or entries the audit tells the first of each queue or file and counts the others.
    assert {one for one in audited if one[1] not in OTHER_PLACE} <= {one for one in checked if one[1] not in OTHER_PLACE}


def test_times_that_go_back_where_two_stretches_meet_are_named_alike(sound, tmp_path):
    root, before = sound
    scene = Scene(shutil.copytree(root, tmp_path / "store"), SIZES, before)
    cuts = [split.begin for split in splits.splits_of(scene.root, partition_bytes=STRETCH_BYTES)][1:]
    for at in cuts:
        path, base, _ = next(file for file in splits.log_files(scene.root, Disk()) if file[1] <= at < file[2])
        with open(path, "r+b") as log:
            log.seek(at - base + record.FIXED_IPV4.offset["store_timestamp"])
            log.write((1).to_bytes(8, "big"))
    checked = {(str(Path(one.file).relative_to(scene.root)), one.offset, one.what) for one in check_store(scene.root).findings if one.kind == "store-time"}
    result = InOneProcess(None, scene.root, None, lambda *_: None, queue_unit.DEFAULT_DELAY_LEVELS_MS, STRETCH_BYTES).run()
    audited = {(one["file"], one["offset"], one["what"]) for one in result["findings"] if one["kind"] == "store-time"}
    assert audited == checked and len(checked) > 3


def test_the_audit_says_what_it_leaves_to_a_check(sound):
    root, _ = sound
    result = InOneProcess(None, root, None, lambda *_: None, queue_unit.DEFAULT_DELAY_LEVELS_MS, PARTITION_BYTES).run()
    assert result["ok"] and result["not_compared"] == list(audit.CHECKED_ELSEWHERE)
    assert {kind for kinds in audit.CHECKED_ELSEWHERE.values() for kind in kinds} <= MEANINGS.keys()
