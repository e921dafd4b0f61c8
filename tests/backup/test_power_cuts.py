"""Whatever a power cut leaves while a backup is made or removed: what has a manifest is whole, and the store
keeps its word (docs/durability.md G20)."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from broker_store.backup import manifest
from broker_store.backup.beside import remove_older
from broker_store.backup.copying import Copier, Pace
from broker_store.backup.manifest import Manifest
from broker_store.backup.picture import Picture
from broker_store.backup.restore import Restore
from broker_store.backup.source import Source, now_ms
from broker_store.backup.verify import verify
from broker_store.engine.status.live_page import LivePosition
from broker_store.errors import StoreError
from tests.support.crash_states import Judge, Life, choices, disk_of
from tests.support.hand_store import HandStore, small_settings
from tests.support.name_rules import RULES
from tests.support.simulated_disk import CrashPoint, SimulatedDisk

FIRST, SECOND, DATA = Path("/backups/b1"), Path("/backups/b2"), Path("/restored")
STATES = 8  # random ones of a point, beside the plain


class Saved(Life):
    """A life of which backups are made."""

    def back_up(self, target: Path, earlier: Path | None = None) -> Manifest:
        source = Source(settings=self.settings, live=self._live)
        picture = Picture(
            source, target, self.disk, Copier(self.disk, Pace()), earlier=earlier, sleep=self._sync
        )
        made = picture.take()
        self.point("made")
        return made

    def _live(self) -> LivePosition:
        log = self.store.log
        return LivePosition(
            os.getpid(), now_ms() + 1, log.minimum, log.wrote, self.store.confirmed,
            self.store.dispatcher.dispatched, log.flushed, 0, "running", 0, 0,
        )  # fmt: skip

    def _sync(self, seconds: float) -> None:
        self.flush()


@pytest.fixture
def life(request):
    seed, rules = request.param
    life = Saved(seed, "SYNC_FLUSH", rules=RULES[rules])
    life.live(25)
    life.flush()
    life.points.clear()
    yield life
    life.store.die()


every_rule = pytest.mark.parametrize(
    "life", [(number, rules) for number, rules in enumerate(RULES)], indirect=True, ids=list(RULES)
)


def states(life: Life, points: list[CrashPoint], most: int):
    """(point, disk after a cut) of at most so many points, the last always among them."""
    rng = random.Random(5)
    step = max(1, len(points) // most)
    for point in {id(one): one for one in (*points[::step], points[-1])}.values():
        for choice in choices(point, rng, STATES):
            yield point, choice, disk_of(point, choice, life.clock)


def whole(disk: SimulatedDisk, directory: Path) -> Manifest | None:
    """Return the manifest of a backup, None where there is none; one that has a manifest must be whole."""
    try:
        made = manifest.read(disk, directory)
    except StoreError:
        return None
    found = verify(disk, directory, Copier(disk, Pace()))
    assert found.ok, found.faults
    return made


@pytest.mark.quick(1)
@every_rule
def test_what_has_a_manifest_is_whole_and_what_was_made_is_there(life):
    made = life.back_up(FIRST)
    life.put(3)
    life.flush()
    first = len(life.points)
    again = life.back_up(SECOND, earlier=FIRST)
    assert {file.how for file in again.files} >= {manifest.COPIED}
    kept = 0
    for point, _, disk in states(life, life.points, 40):
        found, second = whole(disk, FIRST), whole(disk, SECOND)
        kept += found is not None
        if point in life.points[first - 1 :]:
            assert found == made, point.what
        if point is life.points[-1]:
            assert second == again
    assert kept


@pytest.mark.quick(1)
@every_rule
def test_the_store_that_is_saved_keeps_its_word(life):
    life.back_up(FIRST)
    judge = Judge(life)
    for number, (point, choice, _) in enumerate(states(life, life.points, 15)):
        if number % 3 == 0:
            judge.judge(point, choice)
    assert judge.states


@pytest.mark.quick(1)
@every_rule
def test_a_backup_that_is_removed_is_whole_or_none(life):
    life.back_up(FIRST)
    made = life.back_up(SECOND, earlier=FIRST)
    life.points.clear()
    assert remove_older(life.disk, SECOND, made, 1) == ["b1"]
    life.point("removed")
    gone = 0
    for _, _, disk in states(life, life.points, 25):
        assert whole(disk, SECOND) == made
        gone += whole(disk, FIRST) is None
    assert gone


@pytest.mark.quick(1)
@every_rule
def test_a_restore_that_is_cut_has_no_store_or_a_whole_one(life):
    made = life.back_up(FIRST)
    life.points.clear()
    Restore(FIRST, DATA, life.disk, Copier(life.disk, Pace())).run()
    life.point("restored")
    there = 0
    for point, _, disk in states(life, life.points, 20):
        has_store = disk.is_directory(DATA / manifest.STORE)
        there += has_store
        assert has_store or point is not life.points[-1]
        if has_store:
            store = HandStore(small_settings(DATA / manifest.STORE), life.clock, disk)
            try:
                store.begin()
                assert (store.log.minimum, store.log.wrote) == (made.log_begin, made.log_end)
            finally:
                store.die()
    assert there
