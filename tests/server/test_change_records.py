"""server.change_records and server.audited_requests: changes through the ports are recorded, and a flood of
them is bounded."""

import json
import threading
from types import SimpleNamespace

import pytest

from broker_store.broker.topics import TopicConfig
from broker_store.formats.config_json import DataVersion
from broker_store.nameserver.handlers import NameServer
from broker_store.nameserver.own_broker import OwnBroker
from broker_store.protocol import registration_body, topic_bodies
from broker_store.protocol.codes import RequestCode as R
from broker_store.protocol.command import Command
from broker_store.rest.change_record import ChangeRecord
from broker_store.server import audited_requests, audited_state, audited_subject, change_records
from broker_store.server.change_records import MAX_NAMES, MAX_TOKENS, TOKEN_MS, ChangeRecords
from tests.server.test_bad_input import CHANGING, GOOD
from tests.support.broker_harness import FakeChannel, Harness

TOPIC = dict(
    topic="T2",
    defaultTopic="TBW102",
    readQueueNums=8,
    writeQueueNums=8,
    perm=6,
    topicFilterType="SINGLE_TAG",
    topicSysFlag=0,
    order=False,
)
# Requests that change something and are no administration: what clients do with messages, and for themselves.
OF_CLIENTS = {
    R.SEND_MESSAGE, R.SEND_MESSAGE_V2, R.SEND_BATCH_MESSAGE, R.SEND_REPLY_MESSAGE, R.SEND_REPLY_MESSAGE_V2, R.UPDATE_CONSUMER_OFFSET, R.HEART_BEAT,
    R.UNREGISTER_CLIENT, R.CONSUMER_SEND_MSG_BACK, R.END_TRANSACTION, R.LOCK_BATCH_MQ, R.UNLOCK_BATCH_MQ, R.PULL_MESSAGE, R.LITE_PULL_MESSAGE, R.RECALL_MESSAGE,
    R.POP_MESSAGE, R.ACK_MESSAGE, R.BATCH_ACK_MESSAGE, R.CHANGE_MESSAGE_INVISIBLETIME,
}  # fmt: skip


def of(number, **more):
    values = dict(
        at_ms=1_000,
        action="update",
        kind="topic",
        name=f"T{number}",
        outcome="done",
        address=f"10.0.0.1:{5000 + number % 9}",
        code="X (17)",
    )
    return ChangeRecord(**(values | more))


@pytest.fixture
async def harness():
    """A broker with a topic and a group; `written` has all records so far."""
    harness = Harness()
    harness.parts.topics.put(TopicConfig("Orders", 4, 4))
    harness.parts.groups.find_or_create("CG")
    harness.records = []
    harness.parts.changes.note = lambda record, client_id=lambda: None: harness.records.append(record)
    return harness


def test_each_code_that_changes_something_is_audited_or_a_clients_own():
    assert CHANGING - OF_CLIENTS <= audited_requests.BROKER.keys()
    assert not OF_CLIENTS & audited_requests.BROKER.keys()


@pytest.mark.parametrize("code", sorted(audited_requests.BROKER), ids=lambda code: R(code).name)
async def test_each_audited_code_leaves_one_record_good_or_bad(harness, code):
    fields, body = GOOD.get(code, ({}, b""))
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    await harness.ask(code, body, **fields)
    (record,) = harness.records
    assert (record.address, record.code) == (
        harness.channel.remote,
        f"{R(code).name} ({int(code)})",
    ) and record.language == "JAVA"
    await harness.ask(code, b"\xff[")
    assert len(harness.records) == 2
    if audited_requests.BROKER[code].kind in ("user", "acl"):  # access control is off
        assert {one.outcome for one in harness.records} == {"no_permission"} and record.name
    elif code not in (R.DELETE_EXPIRED_COMMITLOG, R.RESUME_CHECK_HALF_MESSAGE, R.UPDATE_BROKER_CONFIG):
        assert (
            record.outcome in ("done", "subscription_group_not_exist")
            and record.name
            and harness.records[1].outcome != "done"
        )


async def test_a_record_says_what_was_there_before_and_after(harness):
    await harness.ask(17, **TOPIC)
    await harness.ask(17, **(TOPIC | {"perm": 4}))
    made, changed = harness.records
    assert made.detail["before"] is None and made.detail["after"]["perm"] == 6
    assert (changed.detail["before"]["perm"], changed.detail["after"]["perm"]) == (6, 4)
    harness.parts.offsets.commit("CG", "Orders", 1, 7)
    await harness.ask(222, group="CG", topic="Orders", timestamp=-1, isForce=True)
    assert (harness.records[-1].action, harness.records[-1].name, harness.records[-1].detail["topic"]) == (
        "reset_offset",
        "CG",
        "Orders",
    )
    assert harness.records[-1].detail["before"] == {1: 7}
    await harness.ask(215, topic="Orders")
    assert (
        harness.records[-1].detail["before"]["topicName"] == "Orders"
        and harness.records[-1].detail["after"] is None
    )


async def test_a_prohibition_says_what_the_group_might_do_before(harness):
    await harness.ask(353, group="CG", topic="Orders", readable="false")
    assert harness.records[-1].detail == {
        "topic": "Orders",
        "readable": "false",
        "before": {"readable": True},
        "after": {"readable": False},
    }


@pytest.mark.parametrize(
    ("body", "keys"),
    [
        (b"storePathRootDir=/tmp/x\nbrokerIP1 = 4\n", ["storePathRootDir", "brokerIP1"]),
        (b"", []),
        (b"\xff[", []),
        (b"a=1\n" * 1000, ["a"] * MAX_NAMES),
    ],
)
async def test_a_refused_configuration_leaves_its_keys_and_no_value(harness, body, keys):
    await harness.ask(25, body)
    (record,) = harness.records
    assert (
        record.outcome == "no_permission"
        and record.detail["keys"] == keys
        and "/tmp/x" not in str(record.detail)
    )


async def test_lines_of_a_configuration_that_are_no_keys_are_counted_and_not_kept(harness):
    """Once a secret on a line of its own, pasted with line breaks, got into the audit trail."""
    await harness.ask(
        25, b"accessKey=admin\n-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkq==\nsecret words = 1\n\n"
    )
    assert (
        harness.records[0].detail["keys"] == ["accessKey"] and harness.records[0].detail["other_lines"] == 3
    )
    assert "MIIE" not in str(harness.records[0].detail) and "secret" not in str(harness.records[0].detail)


async def test_a_list_that_repeats_a_group_reads_its_settings_twice_and_no_more(harness, monkeypatch):
    reads, get = [], harness.parts.groups.get
    monkeypatch.setattr(harness.parts.groups, "get", lambda name: reads.append(name) or get(name))
    group = get("CG").to_json()
    asked = json.dumps({"groupConfigList": [group] * 50}).encode()
    names, detail = audited_subject.subject_of(
        audited_requests.BROKER[225], SimpleNamespace(fields={}, body=asked)
    )
    look = audited_state._reader_of(
        harness.parts, audited_requests.BROKER[225], SimpleNamespace(fields={}), names
    )
    look()
    assert (detail["items"], reads) == (50, ["CG"])


async def test_of_a_long_list_as_many_are_compared_as_the_bound_allows(harness, monkeypatch):
    monkeypatch.setattr(audited_state, "MAX_COMPARED", 2)
    topics = [TopicConfig(f"L{number}", 4, 4).to_json() for number in range(5)]
    await harness.ask(18, json.dumps({"topicConfigList": topics}).encode())
    (record,) = harness.records
    assert record.detail["before"] == {"L0": None, "L1": None} and record.detail["not_shown"] == 3


async def test_a_refused_change_says_why(harness):
    await harness.ask(17, **(TOPIC | {"perm": 99}))
    (record,) = harness.records
    assert record.outcome == "invalid_parameter" and "perm" in record.detail["said"] and record.name == "T2"


@pytest.mark.parametrize(
    ("count", "prefix"),
    [(30, "L"), (1_000, "L"), (1_000, "a-name-of-more-than-a-hundred-characters" * 3)],
    ids=["30", "1000", "1000-long-names"],
)
async def test_a_list_names_all_that_it_changes_in_further_records(harness, count, prefix):
    """Once the record of a list of more than 64 KiB had only its length, and that of more than 20 items only
    20 names."""

    def body(perm):
        return json.dumps(
            {
                "topicConfigList": [
                    TopicConfig(f"{prefix}{number}", perm=perm).to_json() for number in range(count)
                ]
            }
        ).encode()

    wanted = [f"{prefix}{number}" for number in range(count)]
    for perm in (6, 4):
        harness.records.clear()
        await harness.ask(18, body(perm))
        first, *further = harness.records
        assert (
            first.name == wanted[0]
            and first.detail["items"] == count
            and 0 < len(first.detail["names"]) <= change_records.MAX_NAMES
        )
        assert [one.detail["part"] for one in further] == list(range(2, len(further) + 2)) and all(
            one.has_effect for one in further
        )
        assert all(len(json.dumps(one.detail)) < 4_000 - 200 for one in harness.records)
        named = [name for one in harness.records for name in one.detail["names"]]
        assert list(dict.fromkeys(named)) == wanted
        changed = {
            name
            for one in harness.records
            for name, old in one.detail.get("before", {}).items()
            if old is not None
        }
        assert changed == (set() if perm == 6 else set(wanted)), (
            "what was there before is told of each that was changed"
        )
    harness.records.clear()
    await harness.ask(18, body(4))
    assert len(harness.records) == 1, "nothing was changed"


async def test_a_refused_list_has_one_record(harness):
    topics = [TopicConfig(f"L{number}").to_json() for number in range(40)] + [
        TopicConfig("Bad", perm=99).to_json()
    ]
    await harness.ask(18, json.dumps({"topicConfigList": topics}).encode())
    (record,) = harness.records
    assert record.outcome == "invalid_parameter" and record.detail["items"] == 41


async def test_a_list_says_what_differs_of_each_item_it_names(harness):
    def body(perm, count=2):
        topics = [
            TopicConfig("Orders", 4, 4, perm),
            *(TopicConfig(f"L{number}", 4, 4) for number in range(count - 1)),
        ]
        return json.dumps({"topicConfigList": [topic.to_json() for topic in topics]}).encode()

    await harness.ask(18, body(4))
    await harness.ask(18, body(4))
    await harness.ask(18, body(6, 40))
    first, again, many, *_ = harness.records
    assert first.detail["before"] == {"Orders": {"perm": 6}, "L0": None}
    assert first.detail["after"]["Orders"] == {"perm": 4} and first.detail["after"]["L0"]["topicName"] == "L0"
    assert first.has_effect and not again.has_effect and many.has_effect
    assert again.detail["before"] == again.detail["after"] == {} and "not_shown" not in again.detail
    assert (
        many.detail["before"]["Orders"] == {"perm": 4}
        and 20 <= many.detail["not_shown"] < 40
        and many.detail["items"] == 40
    )
    assert len(json.dumps(many.detail)) < 4_000


async def test_a_list_of_groups_says_what_differs_of_each(harness):
    groups = [
        harness.parts.groups.get("CG").to_json() | {"retryMaxTimes": 3},
        harness.parts.groups.get("CG").to_json() | {"groupName": "New"},
    ]
    await harness.ask(225, json.dumps({"groupConfigList": groups}).encode())
    (record,) = harness.records
    assert record.detail["before"] == {"CG": {"retryMaxTimes": 16}, "New": None}
    assert (
        record.detail["after"]["CG"] == {"retryMaxTimes": 3}
        and record.detail["after"]["New"]["groupName"] == "New"
    )


async def test_a_clone_of_offsets_says_where_the_group_was_before(harness):
    harness.parts.groups.find_or_create("Other")
    for group, offset in (("CG", 7), ("Other", 3)):
        harness.parts.offsets.commit(group, "Orders", 1, offset)
    harness.parts.offsets.commit("CG", "Orders", 2, 9)
    await harness.ask(314, srcGroup="CG", destGroup="Other", offline="true")
    await harness.ask(314, srcGroup="CG", destGroup="Other", topic="Orders", offline="true")
    first, again = harness.records
    assert (first.detail["before"], first.detail["after"]) == ({"Orders": {1: 3}}, {"Orders": {1: 7, 2: 9}})
    assert first.has_effect and not again.has_effect


async def test_the_deletion_of_a_group_says_which_offsets_went(harness):
    for number in range(30):
        harness.parts.offsets.commit("CG", f"T{number}", 0, number)
    await harness.ask(207, groupName="CG", cleanOffset="false")
    await harness.ask(200, json.dumps({"groupName": "CG"}).encode())
    await harness.ask(207, groupName="CG", cleanOffset="true")
    kept, _, gone = harness.records
    assert "offsets" not in kept.detail
    await harness.ask(207, groupName="CG", cleanOffset="true")
    harness.parts.offsets.commit("%bad group", "Orders", 0, 3)
    await harness.ask(207, groupName="%bad group", cleanOffset="true")
    assert [(one.outcome, "offsets" in one.detail) for one in harness.records[4:]] == [
        ("invalid_parameter", False)
    ]
    assert (len(gone.detail["offsets"]), gone.detail["offset_topics"]) == (MAX_NAMES, 30)
    assert all(queues == {0: int(topic[1:])} for topic, queues in gone.detail["offsets"].items())


async def test_a_topic_that_a_send_brings_into_being_is_recorded(harness):
    await harness.send("Fresh")
    await harness.send("Fresh")
    (record,) = harness.records
    assert (record.action, record.kind, record.name, record.detail) == (
        "auto_create",
        "topic",
        "Fresh",
        {"queues": 4},
    )


async def test_a_group_that_a_heartbeat_brings_into_being_is_recorded(harness):
    beat = {
        "clientID": "c@1",
        "consumerDataSet": [
            {
                "groupName": "Fresh",
                "consumeType": "CONSUME_PASSIVELY",
                "messageModel": "CLUSTERING",
                # fmt: skip
                "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
                "subscriptionDataSet": [],
            }
        ],
        "producerDataSet": [],
    }
    for _ in range(2):
        await harness.ask(34, json.dumps(beat).encode())
    (record,) = harness.records
    assert (record.action, record.kind, record.name, record.code) == (
        "auto_create",
        "group",
        "Fresh",
        "HEART_BEAT (34)",
    )


async def test_the_name_servers_changes_and_refused_claims_are_recorded():
    records, server, channel = [], NameServer(lambda: 0), FakeChannel()
    changes = ChangeRecords(lambda: 0)
    changes.note = records.append
    server.answered = lambda *answered: audited_requests.note_name_server(changes, 5, *answered)
    server.own = OwnBroker("C", "broker-a", 0)
    server.handle(Command.request(100, {"namespace": "N", "key": "k", "value": "v"}), channel)
    server.handle(Command.request(205, {"brokerName": "broker-a"}), channel)
    server.handle(Command.request(205, {"brokerName": "broker-a"}), None)
    server.handle(Command.request(105, {"topic": "T"}), channel)
    claim = {"brokerName": "broker-a", "brokerAddr": "10.9.9.9:1", "clusterName": "C", "brokerId": "0"}
    server.handle(
        Command.request(
            103,
            claim,
            registration_body.encode_registration(registration_body.Registration(DataVersion(), {})),
        ),
        channel,
    )
    server.handle(
        Command.request(
            103,
            claim | {"brokerName": "b"},
            registration_body.encode_registration(registration_body.Registration(DataVersion(), {})),
        ),
        channel,
    )
    server.handle(Command.request(104, claim | {"brokerName": "b"}), channel)
    for name in ("broker-a", "c"):
        body = json.dumps(
            {
                "queueDatas": [
                    {
                        "brokerName": name,
                        "readQueueNums": 1,
                        "writeQueueNums": 64,
                        "perm": 6,
                        "topicSysFlag": 0,
                    }
                ]
            }
        ).encode()
        server.handle(Command.request(217, {"topic": "T"}, body), channel)
    assert [(record.action, record.name, record.outcome) for record in records] == [
        ("update", "k", "done"), ("wipe_write_perm", "broker-a", "done"), ("register", "broker-a", "system_error"), ("unregister", "b", "done"),
        ("create", "T", "system_error"), ("create", "T", "done"),
    ]  # fmt: skip
    assert records[-1].detail == {
        "queueDatas": [{"brokerName": "c", "readQueueNums": "1", "writeQueueNums": "64", "perm": "6"}]
    }
    assert (
        records[0].detail == {"namespace": "N", "value": "v", "before": None, "after": "v"}
        and records[2].detail["brokerAddr"] == "10.9.9.9:1"
    )


def _name_server() -> tuple[NameServer, list[ChangeRecord]]:
    """Return a name server and its records."""
    records, server, changes = [], NameServer(lambda: 0), ChangeRecords(lambda: 0)
    changes.note = records.append
    server.answered = lambda *answered: audited_requests.note_name_server(changes, 5, *answered)
    return server, records


async def test_a_record_of_a_key_says_its_value_before():
    server, records = _name_server()
    long = "x" * 300
    key = {"namespace": "N", "key": "k"}
    for code, value in (
        (100, "a"),
        (100, "b"),
        (100, "b"),
        (102, ""),
        (102, ""),
        (100, long),
        (100, long + "y"),
    ):
        server.handle(Command.request(code, key | ({"value": value} if code == 100 else {})), FakeChannel())
    found = [
        (record.detail["before"], record.detail.get("after", ...), record.has_effect) for record in records
    ]
    assert found[:5] == [
        (None, "a", True),
        ("a", "b", True),
        ("b", "b", False),
        ("b", None, True),
        (None, None, False),
    ]
    assert found[5:] == [(None, "x" * 200, True), ("x" * 200, ..., True)]


async def test_a_record_of_a_broker_that_leaves_says_whether_it_was_there():
    server, records = _name_server()
    channel, claim = (
        FakeChannel(),
        {"brokerName": "b", "brokerAddr": "10.9.9.9:1", "clusterName": "C", "brokerId": "0"},
    )
    registration = registration_body.Registration(
        DataVersion(), {name: topic_bodies.TopicConfig(name, 4, 4) for name in ("T", "U")}
    )
    server.handle(Command.request(103, claim, registration_body.encode_registration(registration)), channel)
    for code in (205, 327, 104, 104):
        server.handle(Command.request(code, claim), channel)
    wiped, added, left, absent = records
    assert (wiped.detail["topics"], added.detail["topics"]) == (2, 2)
    assert (left.detail["before"], left.detail["after"], left.has_effect) == ("10.9.9.9:1", None, True)
    assert (absent.detail["before"], absent.has_effect) == (None, False)


async def test_a_flood_becomes_few_records_that_say_how_many_there_were():
    now, written = [0], []
    changes = ChangeRecords(lambda: now[0], written.extend)
    for number in range(100_000):
        changes.note(of(number, at_ms=0))
    now[0] = 3_600_000
    changes.tick(now[0])
    await changes.close()
    assert MAX_TOKENS <= len(written) <= MAX_TOKENS + change_records.MAX_SUMS + 1
    assert sum(record.count for record in written) == 100_000
    assert len(written[-1].detail["names"]) == change_records.MAX_NAMES and written[-1].address == "10.0.0.1"
    assert sum(len(str(record)) for record in written) < 1 << 20


async def test_a_day_of_flood_is_bounded():
    now, written = [0], []
    changes = ChangeRecords(lambda: now[0], written.extend)
    for minute in range(24 * 60):
        now[0] = minute * 60_000
        for number in range(50):
            changes.note(of(number, at_ms=now[0], address=f"10.0.{minute % 200}.{number}:1"))
        changes.tick(now[0])
    await changes.close()
    assert len(written) <= MAX_TOKENS + 86_400_000 // TOKEN_MS + change_records.MAX_SUMS + 1
    assert sum(record.count for record in written) == 24 * 60 * 50


NO_EFFECT = [{"outcome": "no_permission"}, {"action": "delete", "detail": {"before": None, "after": None}}]


@pytest.mark.quick(1)
@pytest.mark.parametrize("of_flood", NO_EFFECT, ids=["refused", "nothing to delete"])
async def test_a_flood_of_requests_that_change_nothing_keeps_no_change_out(of_flood):
    """Once both used the same tokens: a deletion after 1,000 refused requests was only counted in a sum,
    without its name."""
    now, written = [0], []
    changes = ChangeRecords(lambda: now[0], written.extend)
    for second in range(3_600):
        now[0] = second * 1_000
        for number in range(50):
            changes.note(of(second * 50 + number, at_ms=now[0], **of_flood))
        if second % 60 == 59:
            changes.note(
                of(
                    0,
                    name=f"orders-{second}",
                    action="delete",
                    at_ms=now[0],
                    detail={"before": {"perm": 6}, "after": None},
                )
            )
        changes.tick(now[0])
    await changes.close()
    assert [record.name for record in written if record.name.startswith("orders") and record.count == 1] == [
        f"orders-{second}" for second in range(59, 3_600, 60)
    ]
    assert sum(record.count for record in written) == 3_600 * 50 + 60
    assert (
        len(written)
        <= 60
        + (MAX_TOKENS + 3_600_000 // TOKEN_MS) // change_records.WITHOUT_EFFECT
        + change_records.MAX_SUMS
    )


async def test_a_repeat_within_a_minute_is_counted_and_not_written_again():
    now, written = [0], []
    changes = ChangeRecords(lambda: now[0], written.extend)
    for _ in range(5):
        changes.note(of(1), lambda: "client-1")
    await changes.close()
    assert [(record.count, record.client_id) for record in written] == [(1, "client-1"), (4, None)]


async def test_a_writer_that_fails_is_tried_again_and_what_is_dropped_is_counted(caplog, monkeypatch):
    monkeypatch.setattr(change_records, "MAX_PENDING", 3)
    fails, written, dropped = [True], [], []

    def write(records):
        if fails[0]:
            raise OSError("no data base")
        written.extend(records)

    changes = ChangeRecords(lambda: 0, write, dropped.append)
    changes.note(of(0))
    changes.tick(0)
    while not changes._writing.done():
        pass
    for number in range(1, 6):
        changes.note(of(number))
    changes.tick(0)  # writes the failed batch again; further records wait
    assert "it is tried again each second: no data base" in caplog.text
    fails[0] = False
    await changes.close()
    assert [record.name for record in written][:1] == ["T0"] and sum(dropped) == 2
    assert [record.count for record in written if record.action == "drop"] == [2]


async def test_the_loop_does_not_wait_for_a_writer_that_takes_long():
    release, written = threading.Event(), []

    def write(records):
        release.wait(10)
        written.extend(records)

    changes = ChangeRecords(lambda: 0, write)
    changes.note(of(0))
    changes.tick(0)
    changes.note(of(1))
    changes.tick(0)
    assert written == []
    release.set()
    await changes.close()
    assert [record.name for record in written] == ["T0", "T1"]


async def test_without_a_dashboard_records_are_lines_of_the_log(caplog):
    with caplog.at_level("INFO"):
        changes = ChangeRecords(lambda: 0)
        changes.note(of(0, name="line\nbreak"))
        await changes.close()
    (line,) = [entry.getMessage() for entry in caplog.records if entry.getMessage().startswith("change ")]
    assert "\n" not in line and json.loads(line.removeprefix("change "))["name"] == "line\nbreak"
