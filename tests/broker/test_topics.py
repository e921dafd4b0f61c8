"""broker.topics: the table of topics, its bounds and its file."""

import json

import pytest

from broker_store.broker.topics import TOPICS_PER_STEP, TooManyTopicsError, TopicConfig, Topics
from broker_store.errors import DamagedStoreError, NameError_
from broker_store.formats import config_json
from broker_store.formats.topics import AUTO_CREATE_TOPIC, SCHEDULE_TOPIC, TRACE_TOPIC

# What a fresh 5.3.3 broker with the default settings has (docs/spec/store-format.md section 8): name,
# permission, queues.
FRESH = {
    "TBW102": (7, 8), "DefaultCluster": (7, 16), "broker-a": (7, 1), "BenchmarkTest": (6, 1024), "SELF_TEST_TOPIC": (6, 1), "OFFSET_MOVED_EVENT": (6, 1),
    "SCHEDULE_TOPIC_XXXX": (6, 18), "DefaultCluster_REPLY_TOPIC": (6, 1), "rmq_sys_REVIVE_LOG_DefaultCluster": (6, 8),
    "rmq_sys_SYNC_BROKER_MEMBER_broker-a": (1, 1), "RMQ_SYS_TRANS_HALF_TOPIC": (6, 1), "RMQ_SYS_TRANS_OP_HALF_TOPIC": (6, 1), "rmq_sys_wheel_timer": (6, 1),
}  # fmt: skip


def make(**options) -> Topics:
    return Topics(cluster="DefaultCluster", broker="broker-a", clock=lambda: 1_000, **options)


def test_a_fresh_table_has_apaches_system_topics():
    assert {config.name: (config.perm, config.read_queues) for config in make().all()} == FRESH
    assert all(config.read_queues == config.write_queues for config in make().all())


def test_settings_decide_which_templates_there_are():
    topics = make(
        auto_create=False, cluster_topic=False, broker_topic=False, trace_topic=True, default_queues=3
    )
    assert topics.get(AUTO_CREATE_TOPIC) is None
    assert topics.get("DefaultCluster").perm == topics.get("broker-a").perm == 6
    assert topics.get("RMQ_SYS_TRACE_TOPIC") is not None
    assert make(default_queues=3).get(AUTO_CREATE_TOPIC).write_queues == 3


def test_a_send_makes_a_topic_after_its_template():
    topics = make()
    config = topics.auto_create("Orders", AUTO_CREATE_TOPIC, 4)
    assert (config.read_queues, config.write_queues, config.perm) == (4, 4, 6)
    assert topics.auto_create("More", AUTO_CREATE_TOPIC, 100).read_queues == 8
    assert topics.auto_create("Few", AUTO_CREATE_TOPIC, -5).read_queues == 1


def test_a_send_makes_no_topic_without_a_template_that_passes_on():
    assert make(auto_create=False).auto_create("Orders", AUTO_CREATE_TOPIC, 4) is None
    assert make().auto_create("Orders", "BenchmarkTest", 4) is None
    assert make().auto_create("Orders", "Unknown", 4) is None


def test_names_that_are_paths_make_no_topic():
    topics = make()
    for name in ("../etc", "a/b", "", " ", "a" * 128, "ü", "a\x00b"):
        with pytest.raises(NameError_):
            topics.auto_create(name, AUTO_CREATE_TOPIC, 4)
        with pytest.raises(NameError_):
            topics.put(TopicConfig(name))
    assert len(topics) == len(FRESH)


def test_topics_that_make_themselves_are_bounded_and_an_administrators_are_not():
    topics = make(max_auto_created=len(FRESH) + 1)
    topics.auto_create("one", AUTO_CREATE_TOPIC, 4)
    with pytest.raises(TooManyTopicsError):
        topics.auto_create("two", AUTO_CREATE_TOPIC, 4)
    assert topics.ensure_retry("group").name == "%RETRY%group", (
        "groups have a bound of their own, and no consumer begins without it"
    )
    topics.put(TopicConfig("two"))
    topics = make(max_topics=len(FRESH))
    with pytest.raises(TooManyTopicsError) as refused:
        topics.ensure_retry("group")
    assert (refused.value.value, refused.value.limit) == (len(FRESH), len(FRESH))


def test_each_change_is_a_new_version_and_is_told():
    topics, told = make(), []
    topics.on_change = told.append
    version = topics.data_version.counter
    topics.put(TopicConfig("a"))
    topics.delete("a")
    assert not topics.delete("a")
    assert topics.data_version.counter == version + 2
    assert [[config.name for config in configs] for configs in told] == [["a"], []]


def test_kinds_of_topics():
    topics = make()
    kinds = [
        topics.kind(name)
        for name in ("a", "%RETRY%g", "%DLQ%g", SCHEDULE_TOPIC, "TBW102", "rmq_sys_anything")
    ]
    assert kinds == ["normal", "retry", "dlq", "system", "system", "system"]


def test_traces_make_their_topic_like_any_other_message():
    assert make().auto_create(TRACE_TOPIC, "TBW102", 4).queues == 4
    assert make(auto_create=False).auto_create(TRACE_TOPIC, "TBW102", 4) is None
    assert make(trace_topic_name="traces").auto_create(TRACE_TOPIC, "TBW102", 4) is None
    assert [config.name for config in make().adopt([(TRACE_TOPIC, 0), ("rmq_sys_other", 0)])] == [TRACE_TOPIC]


def test_the_file_has_apaches_layout_and_comes_back():
    topics = make()
    topics.put(TopicConfig("Orders", 4, 2, 6, order=True, attributes={"message.type": "NORMAL"}))
    text = topics.picture()().decode()
    entry = config_json.read(text)["topicConfigTable"]["Orders"]
    assert entry == {
        "attributes": {"message.type": "NORMAL"}, "order": True, "perm": 6, "readQueueNums": 4, "topicFilterType": "SINGLE_TAG",
        "topicName": "Orders", "topicSysFlag": 0, "writeQueueNums": 2,
    }  # fmt: skip
    again = make()
    again.load(text)
    assert again.to_json() == topics.to_json()
    assert not topics.dirty


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"topicConfigTable":[]}',
        '{"topicConfigTable":{"a":{"topicName":"../a"}}}',
        # fmt: skip
        '{"topicConfigTable":{"a":{"topicName":"' + "a" * 256 + '"}}}',
        '{"topicConfigTable":{"a":{"topicName":"a","perm":"x"}}}',
        '{"topicConfigTable":{"a":5}}',
    ],
)
def test_a_file_that_cannot_be_read_is_named(text):
    with pytest.raises(DamagedStoreError, match="config/topics.json"):
        make().load(text)


def test_topics_with_queues_but_no_entry_are_taken_in():
    topics = make()
    topics.put(TopicConfig("known", 2, 2))
    adopted = topics.adopt([("lost", 0), ("lost", 3), ("known", 0), (SCHEDULE_TOPIC, 2)])
    assert [(config.name, config.read_queues) for config in adopted] == [("lost", 4)]


def test_a_name_that_only_a_store_may_hold_is_taken_in_and_comes_back():
    topics, name = make(), "T" * 204  # Apache's record version 2 is for such names; its broker loads any
    assert [config.name for config in topics.adopt([(name, 0)])] == [name]
    again = make()
    again.load(topics.picture()().decode())
    assert again.to_json() == topics.to_json()


def test_order_is_only_ever_switched_on():
    topics = make()
    topics.put(TopicConfig("a"))
    topics.put(TopicConfig("b", order=True))
    topics.set_order(["a", "unknown"])
    assert topics.get("a").order and topics.get("b").order


def test_a_topic_describes_itself_as_apache_prints_it():
    assert TopicConfig("TopicX", 4, 4, order=True).describe() == (
        "TopicConfig [topicName=TopicX, readQueueNums=4, writeQueueNums=4, perm=RW-, "
        "topicFilterType=SINGLE_TAG, topicSysFlag=0, order=true, attributes={}]"
    )


def test_json_of_a_topic_is_plain():
    assert json.loads(json.dumps(TopicConfig("a").to_json()))["readQueueNums"] == 8


def test_a_long_list_is_put_in_steps_and_its_room_is_kept_meanwhile():
    topics = make(max_topics=len(make()) + 2 * TOPICS_PER_STEP)
    before, changes = len(topics), []
    topics.on_change = lambda changed: changes.append(len(changed))
    steps = topics.put_in_steps([TopicConfig(f"t{number}", 1, 1) for number in range(2 * TOPICS_PER_STEP)])
    assert len(topics) == before, "nothing happens before the first step"
    next(steps)
    assert (len(topics), changes) == (before + TOPICS_PER_STEP, [TOPICS_PER_STEP])
    with pytest.raises(TooManyTopicsError):
        topics.put(TopicConfig("one-more", 1, 1))
    assert list(steps) == [None]
    assert (len(topics), changes) == (before + 2 * TOPICS_PER_STEP, [TOPICS_PER_STEP, TOPICS_PER_STEP])
    with pytest.raises(NameError_):
        next(topics.put_in_steps([TopicConfig("t0", 2, 2), TopicConfig("no name", 1, 1)]))
    assert topics.get("t0").read_queues == 1


def test_a_list_that_is_given_up_gives_its_room_back():
    topics = make(max_topics=len(make()) + 2 * TOPICS_PER_STEP)
    steps = topics.put_in_steps([TopicConfig(f"t{number}", 1, 1) for number in range(2 * TOPICS_PER_STEP)])
    next(steps)
    steps.close()
    for number in range(TOPICS_PER_STEP):
        topics.put(TopicConfig(f"more{number}", 1, 1))
