"""A damaged queue whose records include a bad one: the start stops, or bridges it when damage is accepted,
with each loss named."""

import shutil

import pytest

from broker_store.errors import DamagedStoreError
from broker_store.formats import record
from broker_store.messages import GetRequest, GetStatus
from tests.engine.test_known_ends import assert_next_is_new, assert_served, filled, poke, queue_file
from tests.support.hand_store import HandStore, small_settings


@pytest.mark.parametrize("lost", [1, 3])
@pytest.mark.parametrize("hurt", ["removed", "zeros"])
def test_a_bad_record_in_the_middle_is_bridged_when_damage_is_accepted(directory, clock, hurt, lost):
    store = HandStore(small_settings(directory / "store"), clock).begin()
    stored = filled(store)
    places = [
        store.reads.read_units(topic, queue_id, offset, 1)[0].log_offset
        for topic, queue_id, offset, *_ in stored
    ]
    store.close()
    root = store.root
    for at in places[40 : 40 + lost]:
        poke(root / "commitlog/00000000000000000000", at + 4, b"\0\0\0\0")
    if hurt == "removed":
        shutil.rmtree(root / "consumequeue/T/0")
    else:
        poke(queue_file(root, 0), 0, bytes(20))
    refused = shutil.copytree(root, directory / "refused")
    with pytest.raises(DamagedStoreError, match="no good record begins here"):
        HandStore(small_settings(refused), clock).open()
    store = HandStore(small_settings(root, accept_damage=True), clock).begin()
    errors = [finding for finding in store.report.as_dict()["findings"] if finding["severity"] == "error"]
    assert any("accepted" in finding["what"] for finding in errors)
    gone = stored[40 : 40 + lost]
    if hurt == "removed":
        of_queue = [offset for topic, queue_id, offset, *_ in gone if (topic, queue_id) == ("T", 0)]
        assert any(
            f"messages {of_queue[0]:,} to " in finding["what"] and finding["file"] == "consumequeue/T/0"
            for finding in errors
        ), errors
    for _ in range(2):
        for topic, queue_id, offset, body, _ in stored:
            result = store.reads.get(GetRequest(topic, queue_id, offset, 1))
            if (topic, queue_id, offset) in {one[:3] for one in gone}:
                assert result.status is GetStatus.MESSAGE_DAMAGED, (topic, queue_id, offset, result)
            else:
                (found,) = record.decode_all(bytes(result.body))
                assert (found.queue_offset, found.body) == (offset, body)
        assert_served(store, [one for one in stored if one not in gone])
        store.close()
        store = HandStore(small_settings(root, accept_damage=True), clock).begin()
    assert_next_is_new(store, stored)
    store.die()  # what is left is not sound: a repair puts placeholders there
    shutil.rmtree(root)


def damaged_by_number(directory, clock, change, number):
    """(store root, what was stored, message `number` of T/0, which is changed): a record states another
    place, and the units of T/0 are gone."""
    store = HandStore(small_settings(directory / "store"), clock).begin()
    stored = filled(store)
    ours = [one for one in stored if one[:2] == ("T", 0)]
    place = store.reads.read_units("T", 0, ours[number][2], 1)[0].log_offset
    store.close()
    path = store.root / f"commitlog/{place // 16384 * 16384:020}"
    change(path, place % 16384)
    shutil.rmtree(store.root / "consumequeue/T/0")
    return store.root, stored, ours[number]


def change_topic(path, at):
    body_bytes = int.from_bytes(path.read_bytes()[at + 84 : at + 88], "big")
    poke(path, at + 88 + body_bytes + 1, b"V")


def change_number(path, at):
    poke(path, at + record.FIXED_IPV4.offset["queue_offset"], b"\x00\x01")


@pytest.mark.parametrize("number", [20, 23], ids=["first of a queue file", "in a queue file"])
@pytest.mark.parametrize("change", [change_topic, change_number])
def test_a_record_that_states_another_place_hides_no_message_before_it_when_damage_is_accepted(
    directory, clock, change, number
):
    root, stored, changed = damaged_by_number(directory, clock, change, number)
    store = HandStore(small_settings(root, accept_damage=True), clock).begin()
    assert any(
        finding["severity"] == "error" and finding["file"] == "consumequeue/T/0"
        for finding in store.report.as_dict()["findings"]
    )
    for _ in range(2):
        assert store.reads.min_offset("T", 0) == 0
        assert_served(store, [one for one in stored if one != changed])
        assert store.reads.get(GetRequest("T", 0, changed[2], 1)).status is GetStatus.MESSAGE_DAMAGED
        store.close()
        store = HandStore(small_settings(root), clock).begin()
        assert store.report.as_dict()["kind"] == "normal"
    assert_next_is_new(store, stored)
    store.die()
    shutil.rmtree(root)
