"""The number of topics and groups is bounded, and with very many topics no scan of them stops the loop for
long."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import time
from dataclasses import replace

import pytest

from broker_store import turns as turns_module
from broker_store.broker import groups
from broker_store.broker.groups import SubscriptionGroup
from broker_store.broker.topics import TOPICS_PER_STEP, TopicConfig
from broker_store.config.broker import BrokerSettings
from broker_store.config.name_server import NameServerSettings
from broker_store.formats.config_json import DataVersion
from broker_store.nameserver import routes
from broker_store.nameserver.handlers import NameServer
from broker_store.protocol import fastjson, registration_body, topic_bodies
from broker_store.protocol.codes import RequestCode as R
from broker_store.protocol.codes import ResponseCode
from broker_store.protocol.command import Command
from broker_store.protocol.framing import MAX_FRAME_BYTES
from broker_store.protocol.headers import write_header
from broker_store.server import router
from broker_store.server.admin.answers import MAX_ITEMS_PER_REQUEST
from broker_store.server.channel import connect
from broker_store.server.nameserver_port import NameServerPort
from broker_store.server.registration import Registration
from tests.support.broker_harness import Harness
from tests.support.loop_turns import in_short_turns, longest_turn, no_garbage_collection

TOPICS = 20_000
# In processor time. The scans that this is about take 10 to 200 ms here, a turn 2 to 3 ms.
MAX_TURN_MS = 10.0
INVALID = int(ResponseCode.INVALID_PARAMETER)


def topic(name: str, **more) -> dict:
    return {"topicName": name, "readQueueNums": 4, "writeQueueNums": 4, "perm": 6} | more


async def ask(harness: Harness, code: int, value: object = b"", **fields):
    """Return the one answer, also of a request that is worked on in turns or in a thread."""
    harness.request(code, value if isinstance(value, bytes) else json.dumps(value).encode(), **fields)
    for _ in range(20_000):
        if harness.channel.answers:
            break
        await asyncio.sleep(0.001)
    (answer,) = harness.channel.answers
    harness.channel.answers.clear()
    return answer


async def refused(harness: Harness, code: int, value: object, *numbers: int, **fields) -> None:
    """Check that a request is refused with these numbers, and nothing was created."""
    before = len(harness.parts.topics), len(harness.parts.groups), len(harness.parts.offsets)
    answer = await ask(harness, code, value, **fields)
    assert answer.code == INVALID and all(str(number) in answer.remark for number in numbers), answer
    assert (len(harness.parts.topics), len(harness.parts.groups), len(harness.parts.offsets)) == before


async def test_one_request_makes_so_many_and_no_more():
    harness = Harness()
    many = [topic(f"t{number}") for number in range(MAX_ITEMS_PER_REQUEST + 1)]
    await refused(
        harness, R.UPDATE_AND_CREATE_TOPIC_LIST, {"topicConfigList": many}, len(many), MAX_ITEMS_PER_REQUEST
    )
    assert (await ask(harness, R.UPDATE_AND_CREATE_TOPIC_LIST, {"topicConfigList": many[:-1]})).code == 0
    assert harness.parts.topics.get("t999") is not None
    made = [{"groupName": f"g{number}"} for number in range(MAX_ITEMS_PER_REQUEST + 1)]
    await refused(
        harness,
        R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        {"groupConfigList": made},
        len(made),
        MAX_ITEMS_PER_REQUEST,
    )
    assert (
        await ask(harness, R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, {"groupConfigList": made[:-1]})
    ).code == 0
    refusals = {case["cause"]: case for case in harness.parts.statistics.refusals.facts()}
    assert (refusals["too many at once"]["value"], refusals["too many at once"]["limit"]) == (
        MAX_ITEMS_PER_REQUEST + 1,
        MAX_ITEMS_PER_REQUEST,
    )


@pytest.mark.parametrize("turns", range(1, 9))
async def test_a_list_is_made_whole_and_recorded_or_not_at_all_where_the_broker_stops(turns, monkeypatch):
    monkeypatch.setattr(turns_module, "TURN_S", 0.0)
    harness, records = Harness(), []
    harness.parts.changes.note = lambda record, client_id: records.append(record)
    many = [topic(f"t{number}") for number in range(2 * TOPICS_PER_STEP)]
    harness.request(R.UPDATE_AND_CREATE_TOPIC_LIST, json.dumps({"topicConfigList": many}).encode())
    for _ in range(turns):
        await asyncio.sleep(0)
    await harness.router.stop()
    made = sum(harness.parts.topics.get(one["topicName"]) is not None for one in many)
    assert made in (0, len(many))
    assert {record.outcome for record in records} == ({"done"} if made else set())


async def test_there_are_so_many_topics_and_groups_and_no_more():
    harness = Harness(max_topics=40, max_groups=20)
    count = len(harness.parts.topics)
    await refused(
        harness,
        R.UPDATE_AND_CREATE_TOPIC_LIST,
        {"topicConfigList": [topic(f"t{number}") for number in range(41 - count)]},
        count,
        40,
    )
    made = [topic(f"t{number}") for number in range(40 - count)]
    assert (await ask(harness, R.UPDATE_AND_CREATE_TOPIC_LIST, {"topicConfigList": made})).code == 0
    single = write_header(
        R.UPDATE_AND_CREATE_TOPIC,
        topic="more",
        default_topic="TBW102",
        read_queue_nums=1,
        write_queue_nums=1,
        perm=6,
    )
    await refused(harness, R.UPDATE_AND_CREATE_TOPIC, b"", 40, **single)
    assert (await ask(harness, R.UPDATE_AND_CREATE_TOPIC, b"", **single | {"topic": "t0"})).code == 0, (
        "one that is there may be changed"
    )
    assert (await ask(harness, R.UPDATE_AND_CREATE_TOPIC_LIST, {"topicConfigList": made})).code == 0
    count = len(harness.parts.groups)
    many = [{"groupName": f"g{number}"} for number in range(21 - count)]
    await refused(harness, R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, {"groupConfigList": many}, count, 20)
    assert (
        await ask(harness, R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, {"groupConfigList": many[:-1]})
    ).code == 0
    await refused(harness, R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {"groupName": "more"}, 20)
    assert (
        await ask(harness, R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {"groupName": "g0", "retryMaxTimes": 3})
    ).code == 0
    assert harness.parts.groups.get("g0").retry_max_times == 3


async def test_clients_make_no_more_than_there_may_be_either():
    harness = Harness(max_topics=0, max_groups=0)
    topics, groups_there = len(harness.parts.topics), len(harness.parts.groups)
    assert (await harness.send(topic="NewOne")).code != 0
    assert harness.parts.topics.get("NewOne") is None and len(harness.parts.topics) == topics
    with pytest.raises(groups.TooManyGroupsError, match="at most 0"):
        harness.parts.groups.find_or_create("NewGroup")
    assert len(harness.parts.groups) == groups_there


async def test_offsets_and_prohibitions_are_bounded(monkeypatch):
    monkeypatch.setattr(groups, "MAX_FORBIDDEN", 2)
    harness = Harness(max_offsets=3)
    for name in ("G", "H"):
        harness.parts.groups.put(SubscriptionGroup(name))
    for number in range(5):
        harness.parts.topics.put(TopicConfig(f"t{number}", 1, 1))

    def committed(number: int, offset: int = 1) -> dict:
        return write_header(
            R.UPDATE_CONSUMER_OFFSET, consumer_group="G", topic=f"t{number}", queue_id=0, commit_offset=offset
        )

    for number in range(3):
        assert (await ask(harness, R.UPDATE_CONSUMER_OFFSET, **committed(number))).code == 0
    await refused(harness, R.UPDATE_CONSUMER_OFFSET, b"", 3, **committed(3))
    assert (await ask(harness, R.UPDATE_CONSUMER_OFFSET, **committed(0, 2))).code == 0, (
        "of a pair that is there"
    )
    moved = write_header(R.INVOKE_BROKER_TO_RESET_OFFSET, topic="t3", group="G", timestamp=-1, is_force=True)
    await refused(harness, R.INVOKE_BROKER_TO_RESET_OFFSET, b"", 3, **moved)
    assert harness.parts.offsets.query("G", "t3", 0) is None
    cloned = write_header(R.CLONE_GROUP_OFFSET, src_group="G", dest_group="H", offline=True)
    await refused(harness, R.CLONE_GROUP_OFFSET, b"", 3, **cloned)
    assert harness.parts.offsets.of_group("H") == {}, "all of it or nothing"
    harness.parts.offsets.commit_broadcast("G", "t4", 0, 1)
    assert harness.parts.offsets.of_broadcast("G") == {}
    harness.parts.offsets.commit("CID_RMQ_SYS_TRANS", "RMQ_SYS_TRANS_HALF_TOPIC", 0, 7, is_own=True)
    assert harness.parts.offsets.query("CID_RMQ_SYS_TRANS", "RMQ_SYS_TRANS_HALF_TOPIC", 0) == 7, (
        "transactions go on"
    )
    for number in range(2):
        assert (
            await ask(
                harness, R.UPDATE_AND_GET_GROUP_FORBIDDEN, group="G", topic=f"t{number}", readable="false"
            )
        ).code == 0
    await refused(harness, R.UPDATE_AND_GET_GROUP_FORBIDDEN, b"", 2, group="G", topic="t4", readable="false")
    assert harness.parts.groups.may_read("G", "t4")
    assert (
        await ask(harness, R.UPDATE_AND_GET_GROUP_FORBIDDEN, group="G", topic="t1", readable="false")
    ).code == 0
    assert (
        await ask(harness, R.UPDATE_AND_GET_GROUP_FORBIDDEN, group="G", topic="t0", readable="true")
    ).code == 0


async def test_a_pull_whose_offset_finds_no_room_goes_on():
    harness = Harness(max_offsets=0)
    await harness.send()
    harness.parts.groups.put(SubscriptionGroup("G"))
    assert (await harness.pull(group="G", flag=1 | 4, commit=0)).code == 0
    assert len(harness.parts.offsets) == 0
    refusals = {case["cause"]: case for case in harness.parts.statistics.refusals.facts()}
    assert refusals["too many offsets"]["limit"] == 0


@pytest.mark.slow
def test_a_store_with_more_than_may_be_made_is_opened_with_all_of_them():
    """Once the name server in the broker's process refused the registration of 100,000 topics, and the start
    failed."""
    count = 100_000
    table = {f"t{number}": TopicConfig(f"t{number}", 1, 1).to_json() for number in range(count)}
    text = json.dumps(
        {"dataVersion": {"counter": 1, "stateVersion": 0, "timestamp": 1}, "topicConfigTable": table}
    )

    async def started() -> None:
        harness = Harness(max_topics=10, nameserver=NameServer(lambda: 1_000))
        parts = harness.parts
        parts.topics.load(text)
        registration = Registration(parts)
        await registration.start()
        try:
            assert len(parts.nameserver.routes.topics) == len(parts.topics) > count
            await refused(
                harness,
                R.UPDATE_AND_CREATE_TOPIC_LIST,
                {"topicConfigList": [topic("one-more")]},
                len(parts.topics),
                10,
            )
        finally:
            await registration.stop()

    asyncio.run(started())


def test_the_name_server_has_room_for_the_topics_of_the_largest_broker():
    settings = {field.name: field.metadata["setting"] for field in dataclasses.fields(BrokerSettings)}
    assert max(settings["max_topics"].high, settings["max_auto_created_topics"].high) < routes.MAX_TOPICS


@pytest.mark.parametrize(("code", "value", "numbers"), [
    (R.UPDATE_AND_CREATE_TOPIC_LIST, {"topicConfigList": [topic("t", attributes={f"a{n}": "v" for n in range(33)})]}, (33, 32)),
    (R.UPDATE_AND_CREATE_TOPIC_LIST, {"topicConfigList": [topic("t", attributes={"a": "v" * 256})]}, (256, 255)),
    (R.UPDATE_AND_CREATE_TOPIC_LIST, {"topicConfigList": [topic("t", attributes={"a" * 257: "v"})]}, (257, 255)),
    (R.UPDATE_AND_CREATE_TOPIC_LIST, {"topicConfigList": [topic("t", topicFilterType="x" * 5_000)]}, ()),
    (R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {"groupName": "g", "attributes": {"a": "v" * 20_000}}, (groups.MAX_GROUP_BYTES,)),
    (R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {"groupName": "g", "unknown": ["v" * 20_000]}, (groups.MAX_GROUP_BYTES,)),
    (R.UPDATE_AND_CREATE_TOPIC_LIST, {"topicConfigList": [topic("t", readQueueNums=129)]}, (129, 128)),
    (R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {"groupName": "g", "retryQueueNums": 129}, (129, 128)),
    (R.HEART_BEAT, b" " * (router.MAX_BODY_BYTES + 1), (router.MAX_BODY_BYTES + 1, router.MAX_BODY_BYTES)),
    (R.HEART_BEAT, {"clientID": "c", "consumerDataSet": [{"groupName": f"g{n}", "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING", "consumeFromWhere":
     "CONSUME_FROM_LAST_OFFSET", "subscriptionDataSet": [], "unitMode": False} for n in range(201)], "producerDataSet": []}, (201, 200)),
    (R.HEART_BEAT, {"clientID": "c", "consumerDataSet": [{"groupName": f"g{n}", "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING", "consumeFromWhere":
     "CONSUME_FROM_LAST_OFFSET", "subscriptionDataSet": [{"topic": f"t{m}", "subString": "*", "tagsSet": [], "codeSet": [], "subVersion": 1} for m in range(501)],
     "unitMode": False} for n in range(2)], "producerDataSet": []}, (1_002, 1_000)),
])  # fmt: skip
async def test_what_is_made_is_bounded_in_itself(code, value, numbers):
    await refused(Harness(), code, value, *numbers)


@pytest.fixture(scope="module")
def tables() -> tuple[str, str, str]:
    """Return the config files of a store with very many topics."""
    version = {"counter": 1, "stateVersion": 0, "timestamp": 1}
    topics = {
        f"t{number:05d}": topic(
            f"t{number:05d}", topicFilterType="SINGLE_TAG", topicSysFlag=0, order=False, attributes={}
        )
        for number in range(TOPICS)
    }
    known = {f"g{number:05d}": {"groupName": f"g{number:05d}"} for number in range(TOPICS // 5)}
    committed = {f"t{number:05d}@g{number % (TOPICS // 5):05d}": {"0": number} for number in range(TOPICS)}
    named = (("topicConfigTable", topics), ("subscriptionGroupTable", known), ("offsetTable", committed))
    return tuple(json.dumps({"dataVersion": version, name: table}) for name, table in named)


async def loaded(tables) -> Harness:
    harness = Harness()
    parts = harness.parts
    for table, text in zip((parts.topics, parts.groups, parts.offsets), tables, strict=True):
        table.load(text)
    return harness


def is_short(longest) -> bool:
    """Return True if work was cut into turns. On a busy machine a turn takes longer, and so does the
    whole."""
    return longest.ms < max(MAX_TURN_MS, longest.all_ms / 8)


@pytest.mark.slow
async def test_no_request_keeps_the_loop_for_as_long_as_there_are_topics(tables, monkeypatch):
    harness = await loaded(tables)
    assert len(harness.parts.topics) > TOPICS
    # No frame is encoded and parsed again.
    monkeypatch.setattr(harness.channel, "write", harness.channel.answers.append)
    asked = {
        R.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: {}, R.GET_ALL_TOPIC_CONFIG: {}, R.GET_ALL_CONSUMER_OFFSET: {}, R.QUERY_TOPIC_CONSUME_BY_WHO: {"topic": "t00001"},
        R.GET_BROKER_RUNTIME_INFO: {}, R.GET_BROKER_CONSUME_STATS: {"isOrder": "false"}, R.CLONE_GROUP_OFFSET: {"srcGroup": "g00001", "destGroup": "g00002"},
        R.QUERY_CORRECTION_OFFSET: {"compareGroup": "g00001", "topic": "t00011"}, R.DELETE_TOPIC_IN_BROKER: {"topic": "t0000{}"}, R.DELETE_SUBSCRIPTIONGROUP: {"groupName": "g0000{}"},
    }  # fmt: skip
    for code, fields in asked.items():

        async def request(number: int, code=code, fields=fields) -> Command:
            return await ask(harness, code, **{name: value.format(number) for name, value in fields.items()})

        answer = await in_short_turns(monkeypatch, request, is_short)
        assert (
            answer.code == 0 or code is R.GET_BROKER_CONSUME_STATS and str(MAX_FRAME_BYTES) in answer.remark
        ), answer
    made = [[topic(f"new{number}-{place}") for place in range(MAX_ITEMS_PER_REQUEST)] for number in range(3)]
    answer = await in_short_turns(
        monkeypatch,
        lambda number: ask(harness, R.UPDATE_AND_CREATE_TOPIC_LIST, {"topicConfigList": made[number]}),
        is_short,
    )
    assert answer.code == 0
    assert harness.parts.topics.get("new0-999") is not None


async def test_all_tables_come_whole(tables):
    harness = await loaded(tables)
    answer = await ask(harness, R.GET_ALL_TOPIC_CONFIG)
    _, found = topic_bodies.decode_topic_table(answer.body)
    assert (
        len(found) == len(harness.parts.topics) == int(answer.fields["totalTopicNum"])
        and found["t00042"].read_queue_nums == 4
    )
    answer = await ask(harness, R.GET_ALL_CONSUMER_OFFSET)
    assert fastjson.loads(answer.body)["offsetTable"]["t00042@g00042"] == {0: 42}
    answer = await ask(harness, R.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    assert len(fastjson.loads(answer.body)["subscriptionGroupTable"]) == len(harness.parts.groups)


async def test_saving_is_no_work_of_the_loop(tables, monkeypatch):
    harness = await loaded(tables)

    async def save(_number: int) -> None:
        for table in (harness.parts.topics, harness.parts.groups, harness.parts.offsets):
            text = await asyncio.to_thread(await asyncio.sleep(0, table.picture()))
            assert len(text) > 100_000

    await in_short_turns(monkeypatch, save, is_short)


async def test_registering_all_at_the_name_server_of_the_process_goes_in_turns(tables, monkeypatch):
    harness = await loaded(tables)
    parts = harness.parts

    async def register_all(_number: int) -> Registration:
        nameserver = NameServer(parts.clock)
        registration = Registration(replace(parts, nameserver=nameserver))
        await asyncio.ensure_future(registration._register_all_embedded())
        assert len(nameserver.routes.topics) == len(parts.topics)
        return registration

    registration = await in_short_turns(monkeypatch, register_all, is_short)

    routes = registration._parts.nameserver.routes

    async def register_again(number: int) -> None:
        routes.delete_topic(f"t0000{number}")
        await asyncio.ensure_future(registration._register_all_embedded())
        assert len(routes.topics) == len(parts.topics)

    await in_short_turns(monkeypatch, register_again, is_short)


def test_what_one_registration_costs_does_not_depend_on_how_many_topics_there_are():
    """Once it scanned all topics: after a deletion, which registers all in pieces, nearly each send waited
    for 24 s."""

    def taken_ms(count: int) -> float:
        table = routes.Routes()
        who = routes.Registrant("C", "broker-a", 0, "127.0.0.1:1")
        served = {f"t{number}": topic_bodies.TopicConfig(f"t{number}") for number in range(count)}
        table.register(who, registration_body.Registration(DataVersion(), served), None, 0)
        piece = registration_body.Registration(DataVersion(counter=1), dict(list(served.items())[:64]))
        times = []
        for _ in range(20):
            began = time.thread_time()
            table.register(who, piece, None, 0)
            times.append(time.thread_time() - began)
        return min(times) * 1000

    with no_garbage_collection():
        assert taken_ms(100_000) < 5 * taken_ms(1_000)


async def test_a_stop_takes_all_out_of_the_name_server_of_the_process_in_turns(tables, monkeypatch):
    harness = await loaded(tables)
    parts = replace(harness.parts, nameserver=NameServer(harness.parts.clock))
    registration = Registration(parts)
    await registration.start()
    assert len(parts.nameserver.routes.topics) == len(parts.topics)
    with longest_turn(monkeypatch) as longest:
        await asyncio.ensure_future(registration.stop())
    assert longest.ms < longest.all_ms / 2, (longest.ms, longest.all_ms, longest.what)
    assert parts.nameserver.routes.topics == {} == parts.nameserver.routes.brokers


async def test_a_broker_with_very_many_topics_comes_and_goes(monkeypatch):
    count = TOPICS // 2
    nameserver = NameServer(lambda: 1_000)
    port = NameServerPort(nameserver, lambda: 1_000, NameServerSettings().scan_not_active_broker_interval)
    await port.start("127.0.0.1", 0)
    channel = await connect("127.0.0.1", port.listener.port, 5)
    topics = {
        f"t{number:05d}": topic_bodies.TopicConfig(f"t{number:05d}", 4, 4, 6) for number in range(count)
    }
    body = registration_body.encode_registration(registration_body.Registration(DataVersion(0, 1, 1), topics))
    broker = {"broker_name": "b", "broker_addr": "127.0.0.1:1", "cluster_name": "C", "broker_id": 0}
    fields = write_header(
        R.REGISTER_BROKER,
        **broker,
        ha_server_addr="",
        compressed=False,
        body_crc32=registration_body.body_crc(body),
    )
    asked = [
        Command.request(R.REGISTER_BROKER, fields, body), Command.request(R.GET_TOPICS_BY_CLUSTER, {"cluster": "C"}), Command.request(R.GET_ALL_TOPIC_LIST_FROM_NAMESERVER),
        Command.request(R.GET_UNIT_TOPIC_LIST), Command.request(R.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "b"}),
        Command.request(R.UNREGISTER_BROKER, write_header(R.UNREGISTER_BROKER, **broker)),
    ]  # fmt: skip
    found = {}
    try:
        for command in asked:

            async def request(_number: int, asked=command) -> Command:
                return await channel.request(Command.request(asked.code, asked.fields, asked.body), 60)

            answer = await in_short_turns(monkeypatch, request, is_short)
            assert answer.code == 0, (command, answer)
            found[command.code] = answer
        assert (
            len(topic_bodies.decode_topic_list(found[R.GET_TOPICS_BY_CLUSTER].body))
            == len(topic_bodies.decode_topic_list(found[R.GET_ALL_TOPIC_LIST_FROM_NAMESERVER].body))
            == count
        )
        assert found[R.WIPE_WRITE_PERM_OF_BROKER].fields["wipeTopicCount"] == str(count)
        assert nameserver.routes.topics == {} == nameserver.routes.brokers

        async def come_and_go(_number: int) -> None:
            again, gone = (
                Command.request(asked[0].code, fields, body),
                Command.request(asked[-1].code, asked[-1].fields),
            )
            first = asyncio.ensure_future(channel.request(again, 60))
            await asyncio.sleep(0)
            assert (await channel.request(gone, 60)).code == (await first).code == 0
            assert nameserver.routes.topics == {}, "what came later was done later"

        await in_short_turns(monkeypatch, come_and_go, is_short)
    finally:
        channel.close()
        await port.stop()


async def test_an_answer_larger_than_a_frame_says_so():
    """Once the connection was closed, without an answer."""
    nameserver = NameServer(lambda: 1)
    nameserver.handle = lambda command, channel: command.answer(body=bytes(MAX_FRAME_BYTES))
    port = NameServerPort(nameserver, lambda: 1)
    await port.start("127.0.0.1", 0)
    channel = await connect("127.0.0.1", port.listener.port, 5)
    try:
        answer = await channel.request(Command.request(10), 20)
        assert (
            answer.code == ResponseCode.SYSTEM_ERROR
            and str(MAX_FRAME_BYTES) in answer.remark
            and not channel.closed
        )
    finally:
        channel.close()
        await port.stop()
