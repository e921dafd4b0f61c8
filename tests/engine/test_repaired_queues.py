"""A queue that was closed in order and is damaged: read, made again twice, a light one, one of a topic
made again, one that is shorter."""

import random
import shutil

import pytest

from broker_store.engine.store import MessageStore
from broker_store.errors import DamagedStoreError
from broker_store.formats import queue_unit, record
from broker_store.messages import GetRequest
from tests.engine.test_known_ends import (
    HURTS,
    assert_next_is_new,
    assert_served,
    filled,
    poke,
    queue_file,
    tree,
)
from tests.support.crash_states import disk_of, random_choices
from tests.support.hand_store import HandStore, message, small_settings
from tests.support.name_rules import RULES
from tests.support.simulated_disk import SimulatedDisk

OF_QUEUES = [name for name in HURTS if "index" not in name]
UNIT = 20


@pytest.mark.parametrize("hurt", HURTS)
def test_inspection_shows_a_damaged_queue_made_again_and_leaves_the_files_as_they_are(directory, clock, hurt):
    store = HandStore(small_settings(directory / "store"), clock).begin()
    stored = filled(store)
    store.close()
    HURTS[hurt](store.root)
    before = tree(store.root)
    shown = MessageStore(small_settings(store.root, inspect=True), clock=clock)
    shown.open(), shown.start()
    assert shown.reads.max_offset("T", 0) == 119 and shown.report.as_dict()["findings"]
    assert_served(shown, stored)
    shown.close()
    assert tree(store.root) == before
    shutil.rmtree(store.root)


@pytest.mark.quick(2)
@pytest.mark.parametrize("rules", ["directory", "posix"])
@pytest.mark.parametrize("hurt", OF_QUEUES)
def test_a_power_cut_while_a_queue_is_made_again_takes_no_message_and_no_offset(
    directory, clock, hurt, rules
):
    store = HandStore(small_settings(directory / "store"), clock).begin()
    stored = filled(store, 120)
    clock.advance(60_000)  # the scan of a start after the cut begins with the newest log file
    store.appender.put(message("U", 1, b"last"))
    store.close()
    HURTS[hurt](store.root)
    contents = {path: path.read_bytes() for path in store.root.rglob("*") if path.is_file()}
    directories = [
        directory,
        *directory.parents,
        store.root,
        *(path for path in store.root.rglob("*") if path.is_dir()),
    ]
    shutil.rmtree(store.root)
    disk = SimulatedDisk.of(clock, contents, directories, RULES[rules])
    points = []
    disk.on_event = lambda what: points.append(disk.crash_point(what))
    repaired = HandStore(small_settings(store.root), clock, disk).begin()
    points.append(disk.crash_point("started"))
    repaired.die()
    rng = random.Random(5)
    assert len(points) > 5
    for point in points:
        for choice in random_choices(point, rng, 1):
            left = disk_of(point, choice, clock)
            again = HandStore(small_settings(store.root), clock, left).begin()
            assert_served(again, stored)
            assert_next_is_new(again, stored)
            again.die()


LIGHT = "%LMQ%a"
HURTS_OF_LIGHT = {
    "a unit": lambda root: poke(queue_file(root, 1, LIGHT), 9 * UNIT, bytes(UNIT)),
    "the first unit": lambda root: poke(queue_file(root, 0, LIGHT), 0, bytes(UNIT)),
    "the last file": lambda root: queue_file(root, -1, LIGHT).unlink(),
    "the directory": lambda root: shutil.rmtree(root / "consumequeue" / LIGHT),
}


def with_light_queue(directory, clock):
    """The root of a store that was closed in order and has a light queue of 50 units, which is in the record
    of ends."""
    store = HandStore(small_settings(directory / "store"), clock).begin()
    filled(store, 120)
    units = (
        store.reads.read_units("T", 0, 0, 20)
        + store.reads.read_units("T", 0, 20, 20)
        + store.reads.read_units("T", 0, 40, 10)
    )
    store.close()
    light = store.root / "consumequeue" / LIGHT / "0"
    light.mkdir(parents=True)
    for first in range(0, 50, 20):
        raw = b"".join(queue_unit.encode(*unit) for unit in units[first : first + 20])
        (light / f"{first * UNIT:020}").write_bytes(raw.ljust(400, b"\0"))
    store = HandStore(small_settings(store.root), clock).begin()
    store.round()
    store.close()
    return store.root


def test_a_light_queue_is_kept_by_a_start(directory, clock):
    root = with_light_queue(directory, clock)
    store = HandStore(small_settings(root), clock).begin()
    assert store.reads.max_offset(LIGHT, 0) == 50
    for number in range(50):
        assert [
            found.queue_offset
            for found in record.decode_all(store.reads.get(GetRequest(LIGHT, 0, number, 1)).body)
        ] == [number]
    store.die()


@pytest.mark.parametrize("hurt", HURTS_OF_LIGHT)
def test_a_damaged_light_queue_cannot_be_made_again_and_refuses_the_start(directory, clock, hurt):
    root = with_light_queue(directory, clock)
    HURTS_OF_LIGHT[hurt](root)
    before = tree(root)
    again = HandStore(small_settings(root), clock)
    with pytest.raises(DamagedStoreError, match=f"(?s){LIGHT}.*missing"):
        again.begin()
    again.die()
    assert tree(root) == before


@pytest.mark.parametrize("count", [3, 80])
def test_a_topic_that_another_broker_made_again_after_the_record_numbers_from_0(open_store, count):
    """The record of ends is of the life before, and knows more messages of it than there are now, or
    fewer."""
    store = open_store()
    filled(store, 60)
    store.close()
    stale = (store.root / "ends").read_bytes()
    store = open_store()
    store.delete_topic("U")
    again = []
    for number in range(count):
        sent = message("U", 0, b"again %d" % number, keys=(f"again{number}",))
        again.append(("U", 0, store.appender.put(sent).queue_offset, sent.body, f"again{number}"))
    store.close()
    assert again[0][2] == 0
    (store.root / "ends").write_bytes(stale)
    (store.root / "config/deletedTopics.json").unlink()
    store = open_store()
    assert_served(store, again)
    assert_next_is_new(store, again)


@pytest.mark.parametrize("record_of_ends", ["stale", "none"])
def test_queues_that_another_brokers_retention_shortened_without_a_new_message_are_no_damage(
    open_store, record_of_ends
):
    """It removed a log file and the queue files that only point below the rest, between two runs of this
    broker."""
    store = open_store()
    stored = filled(store)
    store.close()
    known = (store.root / "ends").read_bytes()
    store = open_store()
    assert store.cleaning.delete_expired(any_age=True, most=1) == 1
    minimum = store.log.minimum
    store.close()
    (store.root / "ends").unlink()
    if record_of_ends == "stale":
        (store.root / "ends").write_bytes(known)
    again = HandStore(small_settings(store.root), store.clock)
    if record_of_ends == "stale":
        # No message came after the recorded end: a first file that retention took looks like one that is
        # lost.
        before = tree(store.root)
        with pytest.raises(DamagedStoreError, match="commitlog"):
            again.begin()
        again.die()
        assert tree(store.root) == before
        again = HandStore(small_settings(store.root, accept_damage=True), store.clock)
    again.begin()
    left = [one for one in stored if one[2] >= again.reads.min_offset(*one[:2])]
    assert again.log.minimum == minimum and len(left) < len(stored)
    assert_served(again, left)
    assert_next_is_new(again, stored)
    again.close()
