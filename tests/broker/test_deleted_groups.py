"""broker.deleted_groups: which groups were deleted with their offsets, and the file that says so."""

import pytest

from broker_store.broker import deleted_groups
from broker_store.broker.deleted_groups import DeletedGroups, Deletion, read_file
from broker_store.broker.offsets import Offsets
from broker_store.errors import DamagedStoreError, FormatError
from broker_store.messages import Message
from tests.support.memory_store import MemoryStore


def make() -> tuple[MemoryStore, DeletedGroups]:
    store = MemoryStore(lambda: 0)
    return store, DeletedGroups(store)


def loaded(store: MemoryStore) -> DeletedGroups:
    found = DeletedGroups(store)
    store.load_config(deleted_groups.FILE_NAME, found.load)
    return found


def test_a_deletion_is_in_the_file_and_counts_what_was_before():
    store, deleted = make()
    store.put(Message("TopicX", 0, b"a"))
    deleted.add("G")
    deleted.add("H")
    store.put(Message("TopicX", 0, b"b"))
    again = loaded(store)
    assert (again.before("G"), again.before("Other")) == (deleted.before("G"), 0) and again.before("G") > 0
    assert (again.number, again.since(0), again.since(1), again.since(2)) == (2, ["G", "H"], ["H"], [])
    again.add("G")
    assert again.since(2) == ["G"] and store.wrote == again.before("G") > deleted.before("H")


def test_a_power_cut_that_takes_the_end_of_the_log_lowers_what_lies_beyond():
    """What is written there later is of a new group, and must come again."""
    store, deleted = make()
    store.put(Message("TopicX", 0, b"a"))
    deleted.add("G")
    deleted.lower(10)
    assert loaded(store).before("G") == 10


def test_offsets_of_groups_deleted_since_the_file_was_made_are_forgotten_and_no_others():
    store, deleted = make()
    offsets = Offsets(clock=lambda: 0)
    offsets.forget_deleted_groups(deleted)
    for group in ("G", "H"):
        offsets.commit(group, "TopicX", 0, 5)
    saved = offsets.picture()().decode()
    deleted.add("G")
    found = Offsets(clock=lambda: 0)
    found.load(saved)
    assert found.forget_deleted_groups(deleted) == ["G"]
    assert (found.query("G", "TopicX", 0), found.query("H", "TopicX", 0)) == (None, 5)
    # A new group of the name pulls: the log does not grow, but the file includes the deletion.
    found.commit("G", "TopicX", 0, 3)
    again = Offsets(clock=lambda: 0)
    again.load(found.picture()().decode())
    assert again.forget_deleted_groups(deleted) == [] and again.query("G", "TopicX", 0) == 3


def test_a_deletion_counts_after_the_file_of_deletions_was_removed():
    """Its numbers would begin again, below the one that the file of offsets includes."""
    store, deleted = make()
    deleted.add("Old")
    deleted.add("Old")
    offsets = Offsets(clock=lambda: 0)
    offsets.forget_deleted_groups(deleted)
    offsets.commit("G", "TopicX", 0, 5)
    saved = offsets.picture()().decode()
    deleted = DeletedGroups(store)  # without its file
    offsets = Offsets(clock=lambda: 0)
    offsets.load(saved)
    assert offsets.forget_deleted_groups(deleted) == [] and offsets.group_deletions == 2
    deleted.add("G")
    after = Offsets(clock=lambda: 0)
    after.load(saved)  # killed before the offsets were saved
    assert after.forget_deleted_groups(loaded(store)) == ["G"]


def test_a_file_of_offsets_that_does_not_say_which_deletions_it_has_is_taken_as_it_is():
    """Apache's broker wrote it: the group may have been made again there."""
    _, deleted = make()
    deleted.add("G")
    offsets = Offsets(clock=lambda: 0)
    offsets.load('{"offsetTable":{"TopicX@G":{0:5}}}')
    assert offsets.forget_deleted_groups(deleted) == [] and offsets.query("G", "TopicX", 0) == 5


def test_the_file_is_bounded(monkeypatch):
    monkeypatch.setattr(deleted_groups, "MAX_ENTRIES", 3)
    _, deleted = make()
    for number in range(5):
        deleted.add(f"G{number}")
    assert deleted.since(0) == ["G2", "G3", "G4"] and deleted.number == 5


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"groups":[]}',
        '{"groups":{"G":5}}',
        '{"groups":{"G":{"before":5}}}',
        '{"groups":{"G":{"before":-1,"number":1}}}',
        '{"groups":{"G":{"before":5,"number":"1"}}}',
        '{"groups":{"G":{"before":5,"number":true}}}',
        '{"groups":{"G":{"before":9223372036854775808,"number":1}}}',
    ],
)
def test_an_invalid_file_is_refused(text):
    with pytest.raises(FormatError):
        read_file(text)
    _, deleted = make()
    deleted.add("G")
    with pytest.raises(DamagedStoreError, match="deletedGroups.json"):
        deleted.load(text)
    assert deleted.number == 1


def test_the_last_deletion_of_a_group_counts():
    assert read_file('{"groups":{"G":{"before":5,"number":1}}}') == {"G": Deletion(5, 1)}
