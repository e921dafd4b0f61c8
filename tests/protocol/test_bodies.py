import json
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_store.errors import FieldError
from broker_store.formats.config_json import DataVersion
from broker_store.protocol import bodies
from broker_store.protocol.bodies import (
    BrokerData,
    ConsumeOffsets,
    ConsumerData,
    Heartbeat,
    LockRequest,
    MessageQueue,
    QueueData,
    QueueOffsets,
    Registration,
    Subscription,
    TopicConfig,
    TopicRoute,
)
from tests.support.wire_samples import sample

QUEUE_0, QUEUE_1 = MessageQueue("T", "b", 0), MessageQueue("T", "b", 1)


def test_a_heartbeat_survives():
    subscription = Subscription("t", "TagA", version=5, tags=frozenset(["TagA"]), codes=frozenset([2598919]))
    heartbeat = Heartbeat("c@1", ("pg",), (ConsumerData("g", subscriptions=(subscription,)),), 77, True)
    assert bodies.decode_heartbeat(bodies.encode_heartbeat(heartbeat)) == heartbeat


def test_tag_codes_may_be_texts_as_the_go_client_writes_them():
    members = {"topic": "t", "subString": "TagB || TagD", "codeSet": ["2598920", "-2598922"]}
    assert Subscription.from_json(members).codes == {2598920, -2598922}


@pytest.mark.parametrize("groups, subscriptions, tags, want", [
    (201, 0, 0, "at most 200 groups"), (200, 6, 0, "at most 1000 of all groups"), (100, 10, 21, "at most 20000 tags and codes"),
])  # fmt: skip
def test_a_heartbeat_above_its_bounds_is_refused_before_any_of_it_is_made(
    monkeypatch, groups, subscriptions, tags, want
):
    made = []
    monkeypatch.setattr(Subscription, "from_json", classmethod(lambda cls, members: made.append(members)))
    subscription = {"topic": "T", "tagsSet": ["t"] * tags}
    consumer = {"groupName": "g", "subscriptionDataSet": [subscription] * subscriptions}
    with pytest.raises(FieldError, match=want):
        bodies.decode_heartbeat(
            json.dumps({"clientID": "c", "consumerDataSet": [consumer] * groups}).encode()
        )
    assert made == []


def test_a_heartbeat_needs_little():
    heartbeat = bodies.decode_heartbeat(b'{"clientID":"c","consumerDataSet":[{"groupName":"g"}]}')
    assert heartbeat == Heartbeat("c", (), (ConsumerData("g"),))


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b'{"clientID":7}',
        b'{"clientID":"c","consumerDataSet":{}}',
        b'{"clientID":"c","consumerDataSet":[7]}',
        b'{"clientID":"c","consumerDataSet":[{"groupName":"g","messageModel":"OTHER"}]}',
        b'{"clientID":"c","consumerDataSet":[{"groupName":"g","subscriptionDataSet":[{"topic":"t","codeSet":["x"]}]}]}',
        b'{"clientID":"c","heartbeatFingerprint":true}',
    ],
)
def test_a_wrong_heartbeat_is_refused(body):
    with pytest.raises(FieldError):
        bodies.decode_heartbeat(body)


def test_membership_and_locks_are_those_of_the_real_broker():
    assert bodies.decode_consumer_list(sample("cidlist").body) == ["127.0.0.1@1"]
    assert bodies.encode_consumer_list(["127.0.0.1@1"]) == sample("cidlist").body
    assert bodies.decode_locked(sample("lock").body) == {MessageQueue("TopicX", "broker-a", 1)}
    assert bodies.encode_locked([MessageQueue("TopicX", "broker-a", 1)]) == sample("lock").body
    request = LockRequest("c", "g", (QUEUE_0, QUEUE_1), True)
    assert bodies.decode_lock_request(bodies.encode_lock_request(request)) == request


@pytest.mark.parametrize("name", ["route json", "route json old"])
def test_routes_are_those_of_the_real_name_server(name):
    route = TopicRoute(
        (QueueData("broker-a", 4, 4, 6),), (BrokerData("DefaultCluster", "broker-a", {0: "127.0.0.1:33911"}),)
    )
    assert bodies.decode_route(sample(name).body) == route
    assert bodies.encode_route(route, strict=name == "route json") == sample(name).body


def test_cluster_and_member_group_are_those_of_the_real_name_server():
    info = bodies.decode_cluster_info(sample("cluster").body)
    assert bodies.encode_cluster_info(info) == sample("cluster").body
    assert bodies.encode_member_group(info.brokers["broker-a"]) == sample("ns member").body


def test_topic_and_consume_statistics_are_those_of_the_real_broker():
    stats = bodies.decode_topic_stats(sample("topicstats").body)
    assert stats[MessageQueue("TopicX", "broker-a", 1)].max_offset == 1
    assert bodies.encode_topic_stats(stats) == sample("topicstats").body
    consumed = bodies.decode_consume_stats(sample("consumestats").body)
    assert consumed[MessageQueue("TopicX", "broker-a", 1)] == ConsumeOffsets(1, 1, 1795244467796, 1)
    assert bodies.encode_consume_stats(consumed) == sample("consumestats").body
    offsets = bodies.decode_offset_table(sample("reset all").body)
    assert bodies.encode_offset_table(offsets) == sample("reset all").body
    assert QueueOffsets(0, 1) == (0, 1, 0)


def test_queues_as_text_keys_are_read_too():
    assert bodies.decode_offset_table(
        b'{"offsetTable":{"{\\"brokerName\\":\\"b\\",\\"queueId\\":1,\\"topic\\":\\"T\\"}":7}}'
    ) == {QUEUE_1: 7}


REGISTRATION = Registration(
    DataVersion(1, 2, 3),
    {
        "T1": TopicConfig("T1", 4, 3, 6, attributes={"+message.type": "NORMAL"}),
        "TBW102": TopicConfig("TBW102", 8, 8, 7),
    },
)


@pytest.mark.parametrize("compressed", [False, True])
def test_a_registration_survives(compressed):
    body = bodies.encode_registration(REGISTRATION, compressed)
    assert bodies.decode_registration(body, compressed) == REGISTRATION


def test_a_registration_of_an_old_broker_is_the_table_alone():
    body = bodies.encode_topic_table(REGISTRATION.data_version, REGISTRATION.topics.values())
    assert bodies.decode_registration(body, version=36) == REGISTRATION
    assert bodies.decode_topic_table(body) == (REGISTRATION.data_version, REGISTRATION.topics)


def sized(data):
    return struct.pack(">i", len(data)) + data


def test_a_compressed_registration_of_java_is_read():
    stream = sized(b'{"counter":3,"stateVersion":0,"timestamp":9}') + struct.pack(">i", 1)
    stream += sized(b"T1 4 3 6 SINGLE_TAG {}") + sized(b"[]") + struct.pack(">i", 0)
    expected = Registration(DataVersion(0, 3, 9), {"T1": TopicConfig("T1", 4, 3, 6)})
    assert bodies.decode_registration(zlib.compress(stream), True) == expected
    old = stream[:-4].replace(sized(b"T1 4 3 6 SINGLE_TAG {}"), sized(b"T1 4 3 6 SINGLE_TAG"))
    assert bodies.decode_registration(zlib.compress(old), True, version=400) == expected


@pytest.mark.parametrize(
    "stream",
    [
        b"",
        sized(b"{}"),
        sized(b"{}") + b"\x7f\xff\xff\xff",
        sized(b"{}") + struct.pack(">i", 1) + struct.pack(">i", 1 << 30),
        sized(b"{}") + struct.pack(">i", 1) + struct.pack(">i", -1),
        sized(b"{}") + struct.pack(">i", 1) + sized(b"T1 four 3 6 X") + sized(b"[]"),
    ],
)
def test_a_lying_compressed_registration_is_refused(stream):
    with pytest.raises(FieldError):
        bodies.decode_registration(zlib.compress(stream), True)


def test_a_registration_that_inflates_without_end_is_refused():
    with pytest.raises(FieldError):
        bodies.decode_registration(zlib.compress(bytes(bodies.MAX_INFLATED_BYTES + 1)), True)
    with pytest.raises(FieldError):
        bodies.decode_registration(b"no zlib", True)


DECODERS = [getattr(bodies, name) for name in dir(bodies) if name.startswith("decode_")]


@given(
    st.sampled_from(DECODERS),
    st.binary(max_size=60)
    | st.sampled_from(
        [
            b"{}",
            b"[]",
            b'{"offsetTable":{"a":1}}',
            b'{"table":{0:1}}',
            b'{"brokerAddrTable":{"a":{"brokerAddrs":{"x":1}}}}',
            b'{"topicConfigTable":{"a":[]}}',
            b'{"topicConfigTable":{0:{}}}',
            b'{"brokerAddrTable":{0:{}}}',
        ]
    ),
)
def test_any_body_is_decoded_or_a_field_error(decode, data):
    try:
        decode(data)
    except FieldError:
        pass


def test_a_piece_of_a_compressed_registration_is_bounded_before_it_is_read(monkeypatch):
    read = []
    monkeypatch.setattr(bodies.fastjson, "loads", lambda data: read.append(len(data)) or {})
    piece = b"{0:[" + b"1," * 40_000 + b"1]}"
    with pytest.raises(FieldError, match="want a length up to 65536"):
        bodies.decode_registration(zlib.compress(struct.pack(">i", len(piece)) + piece), True)
    assert read == []


@pytest.mark.parametrize("count", [0, 1, 1_024, 1_025, 3_000])
def test_a_long_list_of_topics_is_written_in_steps(count):
    names = [f"ä-{number}" for number in range(count)]
    steps, taken = bodies.topic_list_in_steps(iter(names)), 0
    while True:
        try:
            next(steps)
            taken += 1
        except StopIteration as end:
            assert end.value == bodies.encode_topic_list(names)
            break
    assert taken == -(-count // bodies.NAMES_AT_ONCE)
