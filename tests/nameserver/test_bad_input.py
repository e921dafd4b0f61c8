"""Bad input to each code of the name server: every field and body in turn missing, of a wrong kind, huge or
hostile.

As tests/server/test_bad_input.py does for the broker: each bad request differs from a good one in one place.
It gets one answer; what is refused has changed nothing, is reported with its field, and is counted with who it
was.
"""

from __future__ import annotations

import copy
import json

import pytest

from broker_store.nameserver.handlers import NameServer
from broker_store.protocol import headers, registration_body, route_bodies, topic_bodies
from broker_store.protocol.codes import RequestCode as R
from broker_store.protocol.codes import ResponseCode
from broker_store.protocol.command import Command
from broker_store.protocol.registration_body import Registration
from broker_store.protocol.route_bodies import QueueData, TopicRoute
from broker_store.protocol.topic_bodies import TopicConfig
from tests.nameserver.test_handlers import BROKER, SERVED, FakeChannel
from tests.server.test_bad_input import (
    EXTREME_INTS,
    EXTREME_LONGS,
    HOSTILE_TEXTS,
    NO_BODIES,
    NO_NAMES,
    WRONG_INTS,
    WRONG_LONGS,
    WRONG_VALUES,
    places,
    with_value,
)

REFUSED = {int(ResponseCode.SYSTEM_ERROR), int(ResponseCode.NO_PERMISSION)}
NOTHING_THERE = {int(ResponseCode.TOPIC_NOT_EXIST), int(ResponseCode.QUERY_NOT_FOUND)}
REGISTRATION = registration_body.encode_registration(
    Registration(SERVED.data_version, SERVED.topics | {"New": TopicConfig("New", 4, 4, 6)})
)
NEW_BROKER = {
    "brokerName": "broker-b",
    "brokerAddr": "127.0.0.1:44911",
    "clusterName": "DefaultCluster",
    "brokerId": "0",
}
ROUTE = route_bodies.encode_route(TopicRoute((QueueData("broker-a", 1, 1, 6),), ()))
VERSION = topic_bodies.encode_data_version(SERVED.data_version)

GOOD: dict[R, tuple[dict[str, str], bytes]] = {
    R.PUT_KV_CONFIG: ({"namespace": "N", "key": "new", "value": "v"}, b""),
    R.GET_KV_CONFIG: ({"namespace": "N", "key": "k"}, b""),
    R.DELETE_KV_CONFIG: ({"namespace": "N", "key": "k"}, b""),
    R.GET_KVLIST_BY_NAMESPACE: ({"namespace": "N"}, b""),
    R.REGISTER_BROKER: (
        NEW_BROKER | {"haServerAddr": "127.0.0.1:44912", "heartbeatTimeoutMillis": "5000", "enableActingMaster": "false", "compressed": "false", "bodyCrc32": "0",
                      "__ZONE_NAME": "z"}, REGISTRATION,
    ),
    R.UNREGISTER_BROKER: (BROKER, b""),
    R.QUERY_DATA_VERSION: (BROKER, VERSION),
    R.BROKER_HEARTBEAT: (
        BROKER
        | {
            "epoch": "1",
            "maxOffset": "452",
            "confirmOffset": "452",
            "heartbeatTimeoutMills": "10000",
            "electionPriority": "1",
        },
        b"",
    ),
    R.GET_BROKER_MEMBER_GROUP: ({"clusterName": "DefaultCluster", "brokerName": "broker-a"}, b""),
    R.GET_ROUTEINFO_BY_TOPIC: ({"topic": "TopicX", "acceptStandardJsonOnly": "true", "__ZONE_NAME": "z", "__ZONE_MODE": "false"}, b""),
    R.WIPE_WRITE_PERM_OF_BROKER: ({"brokerName": "broker-a"}, b""),
    R.ADD_WRITE_PERM_OF_BROKER: ({"brokerName": "broker-a"}, b""),
    R.DELETE_TOPIC_IN_NAMESRV: ({"topic": "TopicX", "clusterName": "DefaultCluster"}, b""),
    R.REGISTER_TOPIC_IN_NAMESRV: ({"topic": "New"}, ROUTE),
    R.GET_TOPICS_BY_CLUSTER: ({"cluster": "DefaultCluster"}, b""),
    R.UPDATE_NAMESRV_CONFIG: ({}, b"configStorePath=/tmp/x\n"),
}  # fmt: skip
PLAIN = {
    R.GET_BROKER_CLUSTER_INFO, R.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, R.GET_SYSTEM_TOPIC_LIST_FROM_NS, R.GET_UNIT_TOPIC_LIST, R.GET_HAS_UNIT_SUB_TOPIC_LIST,
    R.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, R.GET_NAMESRV_CONFIG,
}  # fmt: skip
# What may change something when it is right; everything else never does.
CHANGING = {
    R.PUT_KV_CONFIG, R.DELETE_KV_CONFIG, R.REGISTER_BROKER, R.UNREGISTER_BROKER, R.WIPE_WRITE_PERM_OF_BROKER, R.ADD_WRITE_PERM_OF_BROKER, R.DELETE_TOPIC_IN_NAMESRV,
    R.REGISTER_TOPIC_IN_NAMESRV,
}  # fmt: skip
JSON_BODIES = [R.REGISTER_BROKER, R.QUERY_DATA_VERSION, R.REGISTER_TOPIC_IN_NAMESRV]


class World:
    """A name server with a broker, two topics and a key; what it wrote, and what it refused."""

    def __init__(self):
        self.files, self.refused = [], []
        self.server = NameServer(lambda: 1000, persist=self.files.append)
        self.server.handle(
            Command.request(R.REGISTER_BROKER, BROKER, registration_body.encode_registration(SERVED)),
            FakeChannel(),
        )
        self.server.handle(
            Command.request(R.PUT_KV_CONFIG, {"namespace": "N", "key": "k", "value": "v"}), FakeChannel()
        )
        self.server.refuse = lambda cause, **case: self.refused.append((cause, case))
        self.before = self.picture()

    def picture(self) -> tuple:
        routes = self.server.routes
        live = {who: (broker.registrant, broker.data_version) for who, broker in routes.live.items()}
        return copy.deepcopy(
            (routes.topics, routes.brokers, routes.clusters, live, self.server._kv, self.files)
        )


class Cases:
    """Sends bad requests of one code; after each that changed something the next has a new name server."""

    def __init__(self, code: R):
        self.code = code
        self.fields, self.body = GOOD.get(code, ({}, b""))
        self.world = World()

    def send(self, fields: dict[str, str] | None = None, body: bytes | None = None) -> Command:
        world = self.world
        world.refused.clear()
        command = Command.request(
            int(self.code),
            self.fields if fields is None else fields,
            self.body if body is None else body,
            opaque=7,
        )
        answer = world.server.handle(command, FakeChannel())
        assert answer.is_response and answer.opaque == 7 and len(answer.remark or "") <= 700, answer
        assert answer.code in REFUSED | NOTHING_THERE | {0}, answer
        changed = world.picture() != world.before
        assert not changed or (answer.code == 0 and self.code in CHANGING), answer
        if answer.code in REFUSED:
            ((cause, case),) = world.refused
            assert cause and case["who"] == FakeChannel.remote and case["said"] == answer.remark != ""
        else:
            assert world.refused == []
        if changed:
            self.world = World()
        return answer


def fields_of(code: R) -> tuple:
    return headers._FIELDS.get(int(code), ())


EACH = pytest.mark.parametrize("code", sorted(GOOD), ids=lambda code: code.name)


def test_the_table_has_every_code_that_is_served():
    assert {int(code) for code in NameServer(lambda: 0)._handlers} == {int(code) for code in GOOD} | {
        int(code) for code in PLAIN
    }
    assert GOOD.keys().isdisjoint(PLAIN) and CHANGING <= GOOD.keys()
    for code, (fields, _) in GOOD.items():
        assert fields.keys() == {field.wire_name for field in fields_of(code)}, code


@EACH
def test_the_good_request_is_done_and_changes_what_it_should(code):
    cases = Cases(code)
    before = cases.world
    answer = cases.send()
    assert answer.code == (int(ResponseCode.NO_PERMISSION) if code is R.UPDATE_NAMESRV_CONFIG else 0), answer
    assert (cases.world is not before) == (code in CHANGING)


@EACH
def test_a_required_field_that_is_missing_is_named(code):
    cases = Cases(code)
    for field in fields_of(code):
        answer = cases.send({name: value for name, value in cases.fields.items() if name != field.wire_name})
        if field.required:
            assert answer.code in REFUSED and field.wire_name in answer.remark, (field, answer)


@EACH
def test_a_number_that_is_none_or_too_large_is_refused_by_its_name(code):
    cases = Cases(code)
    for field in fields_of(code):
        for number in {"int": WRONG_INTS, "long": WRONG_LONGS}.get(field.kind, ()):
            answer = cases.send(cases.fields | {field.wire_name: number})
            assert answer.code in REFUSED and field.wire_name in answer.remark, (field, number[:30], answer)
        for number in {"int": EXTREME_INTS, "long": EXTREME_LONGS}.get(field.kind, ()):
            cases.send(cases.fields | {field.wire_name: number})


@EACH
def test_hostile_text_harms_nothing_and_no_name_is_a_path(code):
    cases = Cases(code)
    for field in fields_of(code):
        for text in (*NO_NAMES, *HOSTILE_TEXTS) if field.kind not in ("int", "long") else ():
            answer = cases.send(cases.fields | {field.wire_name: text})
            taken_in = code in (R.REGISTER_BROKER, R.REGISTER_TOPIC_IN_NAMESRV) and field.wire_name in (
                "brokerName",
                "clusterName",
                "brokerAddr",
                "topic",
            )
            assert not (taken_in and text in NO_NAMES) or answer.code in REFUSED, (field, text, answer)


@pytest.mark.parametrize("code", JSON_BODIES, ids=lambda code: code.name)
def test_each_value_of_a_body_is_bad_in_turn(code):
    cases = Cases(code)
    value = json.loads(cases.body)
    for path in places(value):
        for bad in WRONG_VALUES:
            cases.send(body=json.dumps(with_value(value, path, bad)).encode())
        cases.send(body=json.dumps(with_value(value, path, None, remove=True)).encode())


@pytest.mark.parametrize("code", sorted(GOOD.keys() | PLAIN), ids=lambda code: code.name)
def test_a_body_that_is_none_and_no_fields_at_all_change_nothing(code):
    cases = Cases(code)
    for nonsense in NO_BODIES:
        answer = cases.send(body=nonsense)
        assert (
            code not in JSON_BODIES or answer.code in REFUSED or nonsense in (b"{}", b'{"a":1e999}', b"")
        ), (nonsense[:40], answer)
        if any(field.required for field in fields_of(code)):
            assert cases.send({}, nonsense).code in REFUSED
