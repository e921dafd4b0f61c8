"""Each fault that the doctor's tests plant also goes through a plain start.

The judge is the plain reader: every message that it could read before is served at its offset, or the start
is refused with a sentence; and a new message gets an offset that none had. The store was closed in order, by
the real broker or by ours.
"""

import shutil

import pytest

from broker_store.check.repair.apply import Repair
from broker_store.check.repair.plan import make_plan
from broker_store.check.walk import StoreCheck
from broker_store.config.load import load_settings
from broker_store.engine.store import MessageStore
from broker_store.errors import StoreError
from broker_store.formats import record
from broker_store.messages import GetRequest, Message
from tests.support import stores
from tests.support.faults import FAULTS, Scene
from tests.support.reference import ReferenceStore

NAME = "clean-small"
SIZES = stores.SIZES[NAME]


def settings(root, **more):
    return load_settings(overrides=SIZES.overrides() | more, store_root=root).store


def opened(root, **more):
    return MessageStore(settings(root, **more))


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """(store of the real broker, the same after our engine has opened and closed it, what the plain reader
    knows of both)."""
    root = stores.unpack(NAME, tmp_path_factory.mktemp("sound"))
    ours = shutil.copytree(root, tmp_path_factory.mktemp("ours") / root.name)
    with opened(ours):
        pass
    return root, ours, ReferenceStore(root, SIZES)


def is_changed(scene, message):
    """Whether the record's bytes in the log are not those that the plain reader knew."""
    file, at = scene.log_place(message.log_offset)
    content = dict(scene.before.log_files)[int(file.rpartition("/")[2])]
    return scene.read(file, at, message.size) != content[at : at + message.size]


def assert_served(store, scene, planted):
    for message in scene.records:
        if not message.is_queued or message.log_offset in planted.lost:
            continue
        result = store.reads.get(GetRequest(message.topic, message.queue_id, message.queue_offset, 1))
        found = record.decode_all(result.body, check_crc=False) if result.body else []
        if not found and is_changed(scene, message):
            store.tick()
            # Its own header was changed, and that is said
            assert "damage_found" in [flag.name for flag in store.status.snapshot().flags]
            continue
        assert [each.body for each in found] == [message.body], (
            message.topic,
            message.queue_id,
            message.queue_offset,
            result.status,
        )


def assert_new_offsets(store, scene, lost):
    """`lost`: log offsets of records that were cut as a crash tears them, and of which nothing else is
    known."""
    cut = {(message.topic, message.queue_id) for message in scene.records if message.log_offset in lost}
    for topic, queue_id in scene.before.queues:
        before = scene.before.max_offset(topic, queue_id)
        if (
            before
            and (topic, queue_id) not in cut
            and len(topic) <= 127
            and not topic.startswith(("SCHEDULE", "RMQ_SYS", "rmq_sys", "%LMQ%"))
        ):
            given = store.appender.put(Message(topic, queue_id, b"new", b"")).queue_offset
            assert given >= before, f"{topic}/{queue_id}: offset {given} was given before, next is {before}"


@pytest.mark.quick(24)
@pytest.mark.parametrize("writer", ["theirs", "ours"])
@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_made_good_by_a_plain_start_or_refused(name, writer, sound, tmp_path):
    theirs, ours, before = sound
    root = shutil.copytree(ours if writer == "ours" else theirs, tmp_path / "store")
    scene = Scene(root, SIZES, before, seed=name)
    planted = FAULTS[name](scene)
    store = opened(root)
    try:
        store.open()
    except StoreError as error:
        assert len(str(error)) > 40 and "stop code" not in str(error)
        return
    store.start()
    try:
        assert_served(store, scene, planted)
        # Without a record of ends a torn last record of the real broker's store is the ordinary end
        # (docs/decisions/0037).
        assert_new_offsets(
            store, scene, planted.lost if writer == "theirs" and name == "torn last record" else ()
        )
    finally:
        store.close()


@pytest.mark.parametrize(
    "name",
    ["last log file missing", "torn last record", "log file missing in the middle", "flipped bit in a body"],
)
def test_what_a_repair_gave_up_stops_no_start_and_gives_no_offset_twice(name, sound, tmp_path):
    _, ours, before = sound
    root = shutil.copytree(ours, tmp_path / "store")
    scene = Scene(root, SIZES, before, seed=name)
    planted = FAULTS[name](scene)
    check = StoreCheck(root)
    check.run()
    Repair(make_plan(check, SIZES)).run()
    for _ in range(2):
        store = opened(root)
        store.open()
        store.start()
        assert_served(store, scene, planted)
        assert_new_offsets(store, scene, ())
        store.close()
