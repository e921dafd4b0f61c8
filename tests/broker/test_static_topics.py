"""broker.static_topics: the table of mappings, what follows what, and where an offset lies."""

import pytest

from broker_store.broker.static_topics import MappingRefused, StaticTopics, following, item_after, item_at
from broker_store.errors import DamagedStoreError
from broker_store.formats.static_topics import MappingItem, TopicMapping, read_file

FIRST = MappingItem(0, 0, "a", 0)
OPEN = MappingItem(1, 2, "b", -1)
SECOND = OPEN._replace(logic_offset=10_000)


def mapping(rows, epoch=1, **changed):
    return TopicMapping("T", 2, "a", epoch, rows, **changed)


def table(**changed):
    return StaticTopics(**({"broker": "a", "clock": lambda: 1_000} | changed))


def test_an_offset_lies_in_the_last_item_that_begins_before_it():
    row = (FIRST, SECOND, MappingItem(2, 0, "a", -1))
    assert [item_at(row, offset) for offset in (0, 9_999, 10_000, 1 << 60)] == [FIRST, FIRST, SECOND, SECOND]
    assert item_at((SECOND,), 5) == SECOND
    assert item_at((OPEN,), 5) is None
    assert item_after(row, FIRST) == SECOND
    assert item_after(row, SECOND) is None


def test_rows_that_a_request_does_not_name_stay():
    old = mapping({0: (FIRST,), 1: (FIRST,)})
    after = following(old, mapping({0: (FIRST, OPEN)}, epoch=2), force=False)
    assert after.rows == {0: (FIRST, OPEN), 1: (FIRST,)}
    assert following(None, old, force=False) is old


def test_the_offset_of_the_last_item_is_decided_once():
    old = mapping({0: (FIRST, OPEN)})
    after = following(old, mapping({0: (FIRST, SECOND)}), force=False)
    assert after.rows[0][1] == SECOND
    with pytest.raises(MappingRefused, match="queue 0: item 1 is queue 2 of b at logical offset 20000"):
        following(after, mapping({0: (FIRST, SECOND._replace(logic_offset=20_000))}), force=False)


def test_a_row_may_begin_later_or_earlier_than_the_known_one():
    """Each broker takes the items away that have no messages any more, in its own time."""
    both, later = mapping({0: (FIRST, SECOND)}), mapping({0: (SECOND,)})
    assert following(both, later, force=False).rows == later.rows
    assert following(later, both, force=False).rows == both.rows


@pytest.mark.parametrize(
    ("new", "what"),
    [
        (mapping({0: (FIRST, SECOND)}, epoch=4), "epoch 4 is less than 5"),
        (mapping({0: (FIRST, SECOND)}, epoch=5, scope="other"), "scope other is not __global__"),
        (mapping({}, epoch=5), "queue 0 is missing, with the epoch 5"),
        (mapping({0: ()}, epoch=6), "queue 0 has no item, and 2 are known"),
        (mapping({0: (FIRST,)}, epoch=5), "its leader is another, with the same epoch"),
        (mapping({0: (FIRST._replace(queue_id=9), SECOND)}, epoch=6), "item 0 is queue 9 of a"),
    ],
)
def test_what_does_not_follow_is_refused_unless_it_is_forced(new, what):
    old = mapping({0: (FIRST, SECOND)}, epoch=5)
    with pytest.raises(MappingRefused, match=what):
        following(old, new, force=False)
    assert following(old, new, force=True).rows == {**old.rows, **new.rows}


def test_a_change_gives_the_file_a_new_version_and_the_text_is_known_before():
    found, calls = table(), []
    found.on_change = lambda: calls.append(found.data_version.counter)
    text = found.text_with(mapping({0: (FIRST,)}))
    assert not found.table and not found.dirty
    found.put(mapping({0: (FIRST,)}))
    assert found.dirty and found.picture()() == text and not found.dirty
    assert read_file(text.decode()) == (found.table, found.data_version)
    found.delete("T")
    found.delete("T")
    assert calls == [1, 2] and not found.table


def test_a_file_is_taken_over_as_a_whole():
    source, target = table(), table()
    source.put(mapping({0: (FIRST, SECOND), 1: (MappingItem(0, 7, "a", 0),)}))
    target.put(TopicMapping("Gone", 1, "a", 1, {}))
    get = target.get
    target.load(source.picture()().decode())
    assert target.table == source.table and get("T") is not None and get("Gone") is None
    assert target.data_version == source.data_version
    assert sorted(target.own_queues()) == [("T", 0), ("T", 7)]


def test_a_bad_file_changes_nothing_and_says_what_follows():
    found = table()
    found.put(mapping({0: (FIRST,)}))
    with pytest.raises(DamagedStoreError, match=r"config/topicQueueMapping\.json"):
        found.load('{"topicQueueMappingInfoMap":{"T":5}}')
    assert found.get("T") is not None
