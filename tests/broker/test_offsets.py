"""broker.offsets: the progress of each group."""

import json

import pytest

from broker_store.broker.offsets import Offsets
from broker_store.errors import DamagedStoreError


def make() -> Offsets:
    return Offsets(clock=lambda: 1_000)


def test_the_last_commit_counts_also_when_it_goes_back():
    offsets = make()
    assert offsets.query("g", "t", 0) is None
    offsets.commit("g", "t", 0, 7)
    offsets.commit("g", "t", 0, 5)
    assert offsets.query("g", "t", 0) == 5
    assert offsets.query("g", "t", 1) is None


def test_a_reset_holds_against_commits_until_a_pull_takes_it():
    offsets = make()
    offsets.commit("g", "t", 0, 7)
    offsets.reset("g", "t", 0, 2)
    offsets.commit("g", "t", 0, 8)
    assert offsets.query("g", "t", 0) == 2
    assert offsets.take_reset("g", "t", 0) == 2
    assert offsets.take_reset("g", "t", 0) is None
    offsets.commit("g", "t", 0, 3)
    assert offsets.query("g", "t", 0) == 3


def test_tables_by_group_and_by_topic():
    offsets = make()
    offsets.commit("g", "t", 0, 1)
    offsets.commit("g", "u", 1, 2)
    offsets.commit("h", "t", 0, 3)
    assert offsets.of_group("g") == {"t": {0: 1}, "u": {1: 2}}
    assert sorted(offsets.groups_of_topic("t")) == ["g", "h"]
    for topic in offsets.topics_of("g"):
        offsets.clone("g", "k", topic)
    assert offsets.of_group("k") == offsets.of_group("g")
    offsets.clone("g", "m", "u")
    assert offsets.of_group("m") == {"u": {1: 2}}


def test_topics_and_groups_are_forgotten():
    offsets = make()
    offsets.commit("g", "t", 0, 1)
    offsets.commit("h", "t", 0, 3)
    offsets.reset("h", "t", 0, 1)
    offsets.forget_topic("t")
    assert (
        offsets.query("g", "t", 0) is None
        and offsets.take_reset("h", "t", 0) is None
        and offsets.groups() == []
    )
    offsets.commit("g", "t", 0, 1)
    offsets.forget_group("g")
    assert offsets.of_group("g") == {}


def test_what_broadcasting_groups_pulled_is_no_groups_offset_and_goes_with_its_topic_and_group():
    offsets = make()
    for group in ("g", "h"):
        offsets.commit_broadcast(group, "t", 0, 9)
    offsets.commit("g", "t", 0, 3)
    assert (offsets.query("g", "t", 0), offsets.groups(), offsets.groups_of_topic("t")) == (3, ["g"], ["g"])
    assert offsets.to_json()["offsetTable"] == {
        "t@g@broadcast": {0: 9},
        "t@h@broadcast": {0: 9},
        "t@g": {0: 3},
    }
    again = make()
    again.load(offsets.picture()().decode())
    assert (again.of_broadcast("h"), again.groups()) == ({"t": {0: 9}}, ["g"])
    offsets.forget_group("g")
    assert (offsets.of_broadcast("g"), offsets.of_broadcast("h")) == ({}, {"t": {0: 9}})
    offsets.forget_topic("t")
    assert offsets.to_json()["offsetTable"] == {}


def test_the_file_has_apaches_layout_and_comes_back():
    offsets = make()
    offsets.commit("CG", "TopicX", 0, 5)
    offsets.commit("CG", "TopicX", 1, 7)
    assert offsets.dirty
    text = offsets.picture()().decode()
    assert '"TopicX@CG":{\n\t\t\t0:5,\n\t\t\t1:7\n\t\t}' in text
    assert not offsets.dirty
    again = make()
    again.load(text)
    assert again.of_group("CG") == {"TopicX": {0: 5, 1: 7}} and not again.dirty


def test_files_of_other_versions_are_read():
    offsets = make()
    offsets.load('{"groupTopicMap":{"CG":["T"]},"offsetTable":{"T@CG":{0:5,"1":7}},"pullOffsetTable":{}}')
    assert offsets.of_group("CG") == {"T": {0: 5, 1: 7}}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        '{"offsetTable":{"T":{0:5}}}',
        '{"offsetTable":{"T@g":{"x":5}}}',
        '{"offsetTable":{"T@g":{0:"5"}}}',
    ],
)
def test_a_file_that_cannot_be_read_is_named(text):
    with pytest.raises(DamagedStoreError, match=r"config/consumerOffset\.json"):
        make().load(text)


def test_a_walk_in_a_thread_leaves_out_what_goes_and_what_comes_meanwhile():
    offsets = make()
    for number in range(5):
        offsets.commit(f"g{number}", "t", 0, number)
    walks = offsets.entries(), offsets.everything()
    first = [next(walk) for walk in walks]
    offsets.forget_group("g3")
    offsets.commit("late", "t", 0, 9)
    rest = [list(walk) for walk in walks]
    assert [first[0], *rest[0]] == [(f"t@g{number}", {0: number}) for number in (0, 1, 2, 4)]
    assert [first[1], *rest[1]] == [(f"g{number}", "t", {0: number}) for number in (0, 1, 2, 4)]


def test_the_same_commit_again_leaves_the_file_alone():
    offsets = make()
    offsets.commit("g", "t", 0, 7)
    offsets.picture()()
    offsets.commit("g", "t", 0, 7)
    assert not offsets.dirty


def test_offsets_of_a_topic_that_was_deleted_after_the_file_was_made_are_forgotten():
    offsets = Offsets(clock=lambda: 1_000, log_end=lambda: 500)
    for topic in ("before", "at", "after", "kept"):
        offsets.commit("g", topic, 0, 7)
    text = offsets.picture()().decode()
    offsets = make()
    offsets.load(text)
    deleted = {"before": 499, "at": 500, "after": 501}
    assert offsets.forget_deleted(lambda topic: deleted.get(topic, 0)) == ["at", "after"]
    assert list(offsets.of_group("g")) == ["before", "kept"] and offsets.dirty


def test_offsets_of_a_file_without_the_end_of_the_log_are_kept():
    offsets = make()
    offsets.load('{"offsetTable":{"t@g":{0:7}}}')
    assert offsets.forget_deleted(lambda topic: 1) == [] and offsets.query("g", "t", 0) == 7


@pytest.mark.parametrize(
    ("counter", "taken"),
    [(20, {0: 3, 1: 9}), (12, {0: 3, 1: 9}), (7, {0: 5, 1: 9}), (4, {0: 5, 1: 2})],
)
def test_offsets_of_a_slave_are_taken_if_newer_and_the_greater_ones_if_about_as_new(counter, taken):
    offsets = Offsets(clock=lambda: 1)
    offsets.load(_offsets_text(10, {0: 5, 1: 2}))
    assert offsets.take_newer(_offsets_text(counter, {0: 3, 1: 9})) is (counter != 4)
    assert {queue: offsets.query("g", "T", queue) for queue in (0, 1)} == taken
    assert offsets.data_version.counter == max(counter, 10)


def _offsets_text(counter, queues):
    version = {"counter": counter, "stateVersion": 0, "timestamp": 1}
    return json.dumps({"dataVersion": version, "offsetTable": {"T@g": queues}})
