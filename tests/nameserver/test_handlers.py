import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker_store.errors import DamagedStoreError
from broker_store.formats.config_json import DataVersion
from broker_store.nameserver.handlers import NameServer
from broker_store.nameserver.kv_file import decoded
from broker_store.nameserver.own_broker import OwnBroker
from broker_store.nameserver.routes import RegistrationRefused
from broker_store.protocol import fastjson, registration_body, route_bodies, topic_bodies
from broker_store.protocol.codes import RequestCode
from broker_store.protocol.command import Command
from broker_store.protocol.registration_body import Registration
from broker_store.protocol.route_bodies import QueueData, TopicRoute
from broker_store.protocol.topic_bodies import TopicConfig
from tests.support.wire_samples import sample

BROKER = {
    "brokerName": "broker-a",
    "brokerAddr": "127.0.0.1:33911",
    "clusterName": "DefaultCluster",
    "brokerId": "0",
}
SERVED = Registration(
    DataVersion(0, 11, 1795244944316),
    {"TopicX": TopicConfig("TopicX", 4, 4, 6), "TBW102": TopicConfig("TBW102", 8, 8, 7)},
)


class FakeChannel:
    closed, remote = False, "127.0.0.1:50000"

    def close(self):
        self.closed = True


class Writing(FakeChannel):
    def write(self, command):
        pass


class Clock:
    now = 1000

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def files():
    return []


@pytest.fixture
def server(clock, files):
    server = NameServer(clock, persist=files.append, config=lambda: {"listenPort": 9876})
    register(server)
    return server


def register(server, channel=None, body=None, **fields):
    body = registration_body.encode_registration(SERVED) if body is None else body
    return server.handle(Command.request(RequestCode.REGISTER_BROKER, BROKER | fields, body), channel)


def ask(server, code, body=b"", version=479, **fields):
    return server.handle(Command.request(code, fields, body, version=version))


@pytest.mark.parametrize(("name", "version"), [("route json", 473), ("route json old", 0)])
def test_the_route_is_the_real_name_servers(server, name, version):
    assert ask(server, 105, topic="TopicX", version=version).body == sample(name).body


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("name", ["broker-a", "../a"])
def test_a_large_registration_is_made_and_freed_in_steps(clock, monkeypatch, name, compressed):
    """What makes or frees a large table at once keeps the loop, in whatever thread it is done."""
    server, made, in_thread, counts, failed = NameServer(clock), [], [], [], []
    count = 1_000
    topics = {f"T{number}": TopicConfig(f"T{number}", 4, 4, 6) for number in range(count)}
    body = registration_body.encode_registration(Registration(DataVersion(0, 1, 1), topics), compressed)
    assert compressed or len(body) > registration_body.MAX_BODY_BYTES_PER_CALL
    steps_of = registration_body.registration_in_steps

    def watched_steps(*parts):
        made.append((yield from steps_of(*parts)))
        return made[-1]

    monkeypatch.setattr(registration_body, "registration_in_steps", watched_steps)

    def take(steps, done):
        answer = None
        try:
            while True:
                work = steps.send(answer)
                answer = work() if callable(work) else None
                in_thread.append(callable(work))
                counts.append(len(made[0].topics) if made else None)
        except StopIteration as end:
            done(end.value, None)
        except RegistrationRefused as error:
            failed.append(error)
            done(None, error)

    server.take_steps = take
    fields = BROKER | {"brokerName": name, "compressed": str(compressed).lower()}
    server.handle(Command.request(RequestCode.REGISTER_BROKER, fields, body), Writing())
    pieces = count // topic_bodies.TOPICS_PER_STEP
    assert in_thread[0] and sum(in_thread) == 1, "compiled code reads it in a thread"
    assert counts[1 : pieces + 1] == [None] * pieces, "the topics are made in as many steps"
    freed = counts[-pieces:]
    assert freed == [number * topic_bodies.TOPICS_PER_STEP for number in reversed(range(pieces))]
    assert made[0].topics == {} and bool(failed) == (name != "broker-a")
    assert len(server.routes.topics) == (count if name == "broker-a" else 0)


def test_a_body_is_bounded_but_for_a_registration(server):
    """One call of compiled code that reads a body keeps the loop."""
    before = dict(server.routes.topics)
    for code in (RequestCode.REGISTER_TOPIC_IN_NAMESRV, RequestCode.QUERY_DATA_VERSION):
        answer = ask(server, code, body=b" " * ((256 << 10) + 1), topic="New", **BROKER)
        assert answer.code == 1 and str((256 << 10) + 1) in answer.remark and str(256 << 10) in answer.remark
    assert server.routes.topics == before
    large = {f"T{number:05d}": TopicConfig(f"T{number:05d}", 4, 4, 6) for number in range(2_000)}
    body = registration_body.encode_registration(Registration(DataVersion(0, 12, 1), large))
    assert (
        len(body) > 256 << 10
        and register(server, body=body).code == 0
        and large.keys() <= server.routes.topics.keys()
    )


def test_an_old_client_may_ask_for_strict_json(server):
    assert (
        ask(server, 105, topic="TopicX", version=0, acceptStandardJsonOnly="true").body
        == sample("route json").body
    )


@pytest.mark.parametrize(
    ("name", "code", "fields", "body"),
    [
        ("cluster", 106, {}, b""),
        ("route none", 105, {"topic": "Nope"}, b""),
        ("ns kv none", 101, {"namespace": "A", "key": "B"}, b""),
        ("ns unk", 777, {}, b""),
        ("ns qdv", 322, BROKER, b'{"counter":1,"stateVersion":0,"timestamp":1}'),
    ],
)
def test_answers_are_the_real_name_servers(server, name, code, fields, body):
    expected = sample(name)
    answer = ask(server, code, body, **fields)
    assert (answer.code, answer.remark, answer.body) == (
        expected.values["code"],
        expected.values.get("remark"),
        expected.body,
    )
    assert answer.fields == expected.values.get("extFields")


def test_members_and_system_topics_are_listed(server):
    assert (
        ask(server, 901, clusterName="DefaultCluster", brokerName="broker-a").body == sample("ns member").body
    )
    assert b'"brokerAddrs":{}' in ask(server, 901, clusterName="X", brokerName="broker-a").body
    listed = json.loads(ask(server, 304).body)
    assert listed == {"brokerAddr": "127.0.0.1:33911", "topicList": ["DefaultCluster", "broker-a"]}


@pytest.mark.parametrize("compressed", [False, True])
def test_a_broker_registers_plain_and_compressed_with_and_without_a_checksum(clock, compressed):
    body = registration_body.encode_registration(SERVED, compressed)
    server = NameServer(clock)
    crc = str(registration_body.body_crc(body))
    assert register(server, body=body, compressed=str(compressed).lower(), bodyCrc32=crc).code == 0
    assert server.routes.route("TopicX").queues == (QueueData("broker-a", 4, 4, 6),)
    refused = register(server, body=body + b" ", compressed=str(compressed).lower(), bodyCrc32=crc)
    assert (refused.code, refused.remark) == (1, "crc32 not match")


def test_a_slave_learns_its_master(server):
    register(server, haServerAddr="127.0.0.1:33912")
    answer = register(server, brokerId="1", brokerAddr="127.0.0.1:44911")
    assert answer.fields == {"haServerAddr": "127.0.0.1:33912", "masterAddr": "127.0.0.1:33911"}


def test_a_broker_that_beats_stays_and_one_that_does_not_goes(server, clock):
    clock.now = 100_000
    assert ask(server, 904, **BROKER).code == 0
    server.scan(200_000)
    assert ask(server, 105, topic="TopicX").code == 0
    server.scan(220_001)
    assert ask(server, 105, topic="TopicX").code == 17


def test_an_expired_brokers_channel_is_closed(server):
    channel = FakeChannel()
    register(server, channel)
    server.scan(1_000_000)
    assert channel.closed


def test_a_broker_goes_when_it_says_so_or_its_channel_closes(server):
    assert ask(server, 104, **BROKER).code == 0
    assert ask(server, 105, topic="TopicX").code == 17
    channel = FakeChannel()
    register(server, channel)
    server.channel_closed(FakeChannel())
    assert ask(server, 105, topic="TopicX").code == 0
    server.channel_closed(channel)
    assert ask(server, 105, topic="TopicX").code == 17


def test_data_versions_are_compared(server):
    same = topic_bodies.encode_data_version(SERVED.data_version)
    assert ask(server, 322, same, **BROKER).fields == {"changed": "false"}
    unknown = ask(server, 322, same, **BROKER | {"brokerAddr": "127.0.0.1:1"})
    assert (unknown.fields, unknown.body) == ({"changed": "true"}, b"")


def test_write_permission_is_counted(server):
    assert ask(server, 205, brokerName="broker-a").fields == {"wipeTopicCount": "2"}
    assert ask(server, 327, brokerName="broker-a").fields == {"addTopicCount": "2"}


def test_topics_are_listed_registered_and_deleted(server):
    route = TopicRoute((QueueData("broker-a", 1, 1, 6),), ())
    assert ask(server, 217, route_bodies.encode_route(route), topic="New").code == 0
    assert sorted(topic_bodies.decode_topic_list(ask(server, 206).body)) == ["New", "TBW102", "TopicX"]
    assert "New" in topic_bodies.decode_topic_list(ask(server, 224, cluster="DefaultCluster").body)
    assert topic_bodies.decode_topic_list(ask(server, 224, cluster="none").body) == []
    assert ask(server, 216, topic="New").code == 0
    assert "New" not in topic_bodies.decode_topic_list(ask(server, 206).body)
    for code in (311, 312, 313):
        assert ask(server, code).body == b'{"topicList":[]}'


def test_order_topics_go_to_the_broker_with_its_registration(server, clock, files):
    ask(server, 100, namespace="ORDER_TOPIC_CONFIG", key="TopicX", value="broker-a:4")
    assert register(server).body == sample("ns kvlist").body
    assert ask(server, 219, namespace="ORDER_TOPIC_CONFIG").body == sample("ns kvlist").body
    assert ask(server, 101, namespace="ORDER_TOPIC_CONFIG", key="TopicX").fields == {"value": "broker-a:4"}
    again = NameServer(clock, kv_config=decoded(files[-1]))
    assert ask(again, 219, namespace="ORDER_TOPIC_CONFIG").body == sample("ns kvlist").body
    assert ask(server, 102, namespace="ORDER_TOPIC_CONFIG", key="TopicX").code == 0
    assert json.loads(files[-1]) == {"configTable": {"ORDER_TOPIC_CONFIG": {}}}
    assert ask(server, 102, namespace="ORDER_TOPIC_CONFIG", key="TopicX").code == 0
    assert len(files) == 2
    assert ask(server, 219, namespace="none").code == 22


def test_order_topics_stay_here_when_that_is_switched_off(clock):
    server = NameServer(clock, return_order_topic_config=False)
    ask(server, 100, namespace="ORDER_TOPIC_CONFIG", key="TopicX", value="broker-a:4")
    assert register(server).body == b""


def test_a_route_names_its_order_where_that_is_switched_on(clock, server):
    ordered = NameServer(clock, order_topics_in_routes=True)
    register(ordered)
    for one in (server, ordered):
        ask(one, 100, namespace="ORDER_TOPIC_CONFIG", key="TopicX", value="broker-a:4")
    assert route_bodies.decode_route(ask(ordered, 105, topic="TopicX").body).order_conf == "broker-a:4"
    assert b'"orderTopicConf":"broker-a:4"' in ask(ordered, 105, topic="TopicX", version=0).body
    assert route_bodies.decode_route(ask(ordered, 105, topic="TBW102").body).order_conf is None
    assert route_bodies.decode_route(ask(server, 105, topic="TopicX").body).order_conf is None
    ask(ordered, 102, namespace="ORDER_TOPIC_CONFIG", key="TopicX")
    assert route_bodies.decode_route(ask(ordered, 105, topic="TopicX").body).order_conf is None


def test_a_registration_may_take_topics_away_when_that_is_switched_on(clock):
    server = NameServer(clock, delete_topics_with_registration=True)
    register(server)
    fewer = Registration(DataVersion(0, 12, 5), {"TBW102": SERVED.topics["TBW102"]})
    register(server, body=registration_body.encode_registration(fewer))
    assert ask(server, 206).body == b'{"topicList":["TBW102"]}'


def test_a_table_that_cannot_be_written_is_not_shown(clock):
    def fails(_content):
        raise OSError("disk full")

    server = NameServer(clock, persist=fails)
    with pytest.raises(OSError, match="disk full"):
        ask(server, 100, namespace="N", key="k", value="v")
    assert ask(server, 101, namespace="N", key="k").code == 22


@pytest.mark.parametrize(
    "content", [b"{", b"[]", b"{}", b'{"configTable":[]}', b'{"configTable":{"a":{"b":1}}}']
)
def test_a_damaged_table_stops_the_start(clock, content):
    with pytest.raises(DamagedStoreError):
        decoded(content)


def test_the_key_value_table_has_bounds(server, monkeypatch):
    assert ask(server, 100, namespace="N", key="k", value="v" * 5000).code == 1
    monkeypatch.setattr("broker_store.nameserver.handlers._MAX_KV_ENTRIES", 1)
    assert ask(server, 100, namespace="N", key="k", value="v").code == 0
    assert ask(server, 100, namespace="N", key="l", value="v").code == 1


def test_settings_are_shown_and_not_changed(server):
    assert ask(server, 319).body == b"listenPort=9876\n"
    assert ask(server, 318, b"configStorePath=/tmp/x").code == 16
    assert ask(server, 318, b"orderMessageEnable=true").code == 16, (
        "it was built without a way to change them"
    )


def test_a_oneway_request_has_no_answer(server):
    assert server.handle(Command.request(106, oneway=True)) is None
    assert server.handle(Command.request(777, oneway=True)) is None


def test_what_is_missing_or_refused_is_said(server):
    answer = ask(server, 105)
    assert answer.code == 1 and "topic" in answer.remark
    assert register(server, brokerAddr="nonsense").code == 1
    assert register(server, body=b"{").code == 1


CODES = [
    100,
    101,
    102,
    103,
    104,
    105,
    106,
    205,
    206,
    216,
    217,
    219,
    224,
    304,
    311,
    312,
    313,
    318,
    319,
    322,
    327,
    901,
    904,
]
names = st.sampled_from([*BROKER, "topic", "cluster", "namespace", "key", "value", "compressed", "bodyCrc32"])


# On a machine that is busy with something else the first few inputs can take long to invent.
@settings(suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from(CODES),
    st.dictionaries(names, st.sampled_from(["true", "0", "a/b", "127.0.0.1:1", "x"]) | st.text(max_size=8)),
    st.binary(max_size=40) | st.just(registration_body.encode_registration(SERVED)),
)
def test_any_request_is_answered(code, fields, body):
    answer = NameServer(lambda: 0).handle(Command.request(code, fields, body, opaque=7))
    assert answer.opaque == 7 and answer.is_response


OWN = OwnBroker("DefaultCluster", "broker-a", 0, "127.0.0.1:33911")
CLAIMS = [
    {"brokerAddr": "10.9.9.9:10911"},
    {"brokerAddr": "10.9.9.9:10911", "clusterName": "Another"},
    {"brokerAddr": "10.9.9.9:10911", "clusterName": "Another", "brokerId": "3"},
    {"brokerAddr": "10.9.9.9:10911", "brokerId": "1"},
    {"brokerAddr": "10.9.9.9:10911", "brokerId": str(2**63 - 1)},
    {"brokerName": "evil"},
    {"brokerName": "evil", "clusterName": "Another", "brokerId": "7"},
    {},
]


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: ",".join(claim.values()) or "all of it")
@pytest.mark.parametrize("code", [103, 104, 322, 904])
def test_nobody_else_speaks_for_the_broker_of_the_name_servers_process(server, claim, code):
    server.own, refused = OWN, []
    server.refuse = lambda cause, **case: refused.append((cause, case["who"]))
    before = (server.routes.cluster_info(), server.routes.route("TopicX"), dict(server.routes.live))
    body = (
        registration_body.encode_registration(SERVED)
        if code == 103
        else topic_bodies.encode_data_version(SERVED.data_version)
        if code == 322
        else b""
    )
    answer = server.handle(Command.request(code, BROKER | claim, body), FakeChannel())
    assert (
        answer.code == 1
        and "set a brokerName" in answer.remark
        and "refused: 'evil'" in answer.remark.replace("broker-a", "evil")
    )
    assert (server.routes.cluster_info(), server.routes.route("TopicX"), dict(server.routes.live)) == before
    assert refused == [("name of another broker", FakeChannel.remote)]


def test_the_own_broker_speaks_for_itself_in_the_process_and_by_its_own_connections(server):
    mine = FakeChannel()
    server.own = OwnBroker(
        "DefaultCluster", "broker-a", 0, "127.0.0.1:33911", lambda channel: channel is mine
    )
    assert register(server).code == register(server, mine).code == 0
    assert register(server, FakeChannel()).code == 1
    assert server.handle(Command.request(104, BROKER), mine).code == 0
    assert server.routes.brokers == {}


def test_nobody_else_states_queues_of_the_own_broker(server):
    """Clients were sent to queues that do not exist, and read one of eight."""
    mine = FakeChannel()
    server.own = OwnBroker(
        "DefaultCluster", "broker-a", 0, "127.0.0.1:33911", lambda channel: channel is mine
    )
    before = server.routes.route("TopicX")
    body = json.dumps(
        {
            "queueDatas": [
                {
                    "brokerName": "broker-a",
                    "readQueueNums": 1,
                    "writeQueueNums": 64,
                    "perm": 6,
                    "topicSysFlag": 0,
                }
            ]
        }
    ).encode()
    answer = server.handle(Command.request(217, {"topic": "TopicX"}, body), FakeChannel())
    assert answer.code == 1 and "at the broker" in answer.remark and server.routes.route("TopicX") == before
    assert server.handle(Command.request(217, {"topic": "TopicX"}, body), mine).code == 0


def test_a_second_broker_is_welcome_beside_the_own_broker(server):
    server.own, channel, other = (
        OWN,
        FakeChannel(),
        {"brokerName": "broker-b", "brokerAddr": "10.0.0.2:10911"},
    )
    assert register(server, channel, **other).code == 0
    assert server.handle(Command.request(904, BROKER | other), channel).code == 0
    assert server.handle(Command.request(104, BROKER | other), channel).code == 0
    assert server.routes.brokers["broker-a"].addresses == {0: "127.0.0.1:33911"}


def test_a_master_is_welcome_beside_an_own_broker_that_is_its_slave(server):
    server.own = OwnBroker("DefaultCluster", "broker-a", 1, "127.0.0.1:33911")
    assert register(server, FakeChannel(), brokerAddr="10.0.0.2:10911").code == 0
    assert register(server, FakeChannel(), brokerAddr="10.0.0.2:10911", brokerId="1").code == 1


@pytest.mark.parametrize("code", [322, 217])
def test_a_body_larger_than_a_request_needs_is_refused_before_it_is_read(server, monkeypatch, code):
    monkeypatch.setattr(fastjson, "loads", lambda data: pytest.fail("the body was read"))
    answer = ask(server, code, b"{0:[" + b"1," * (128 << 10) + b"1]}", **BROKER, topic="T")
    assert (answer.code, answer.remark) == (
        1,
        f"field body is 262151, expected at most 262144 bytes for request {code}",
    )
