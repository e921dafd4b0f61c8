"""The broker port with access control: what passes without a signature, without a right, and who may change
users."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from dataclasses import replace

import pytest

from broker_store.access import control
from broker_store.access.refusals import AccessRefusals
from broker_store.access.signatures import Credentials, signed
from broker_store.access.state import AccessState
from broker_store.broker.topics import TopicConfig
from broker_store.config.broker import BrokerSettings
from broker_store.errors import ConfigError, StoreError
from broker_store.formats import pop_records
from broker_store.formats.pop_records import PopCheckpoint, PopKey
from broker_store.protocol import client_bodies
from broker_store.protocol.codes import WIDE_CODES
from broker_store.protocol.codes import RequestCode as R
from broker_store.protocol.command import VERSION, Command
from broker_store.server.admin import access as admin_access
from broker_store.server.registration import Registration
from tests.server.test_bad_input import (
    BEAT,
    CONSUMER,
    GOOD,
    NO_BODIES,
    PLAIN,
    WRONG_VALUES,
    body_of,
    places,
    with_value,
)
from tests.support.broker_harness import FakeChannel, Harness, refusal_counts

ROOT_SECRET = "the-secret-of-root-0001"
ROOT = Credentials("root", ROOT_SECRET)
ANN = Credentials("ann", "the-secret-of-ann-00001")
ON = {
    "authentication_enabled": True,
    "authorization_enabled": True,
    "init_authentication_user": json.dumps({"username": "root", "password": ROOT_SECRET}),
}
NO_PERMISSION, NOT_SUPPORTED = 16, 3


async def ask(
    harness: Harness,
    code: int,
    by: Credentials | None,
    body: object = b"",
    *,
    channel: FakeChannel | None = None,
    **fields: str,
) -> Command:
    """Return the answer to a request that `by` has signed."""
    raw = body_of(body)
    given = fields if by is None else signed(fields, raw, by, VERSION)
    return await harness.ask(int(code), raw, channel=channel, **given)


async def with_ann(policies: list | None = None, **settings) -> Harness:
    """Return a broker with a normal user."""
    harness = Harness(**ON, **settings)
    created = await ask(harness, R.AUTH_CREATE_USER, ROOT, {"password": ANN.secret_key}, username="ann")
    assert created.code == 0, created
    if policies:
        body = {"policies": [{"entries": policies}]}
        assert (await ask(harness, R.AUTH_CREATE_ACL, ROOT, body, subject="User:ann")).code == 0
    return harness


def allow(resource: str, *actions: str) -> dict:
    return {"resource": resource, "actions": list(actions), "decision": "Allow"}


async def test_without_credentials_no_code_is_served():
    harness = Harness(**ON)
    before = dict(harness.store.config)
    found = set()
    for code in [*range(-32_768, 32_768), *WIDE_CODES.values()]:
        answer = harness.router.handle(
            Command.request(code, {"topic": "T", "b": "T"}, b"{}"), harness.channel
        )
        found.add(None if answer is None else answer.code)
    assert found <= {NO_PERMISSION, NOT_SUPPORTED}
    assert harness.store.config == before and harness.parts.topics.get("T") is None
    assert harness.parts.statistics.refusals.counts() == {"not authenticated": 65_536 + len(WIDE_CODES)}


@pytest.mark.parametrize("code", sorted(GOOD.keys() | PLAIN), ids=lambda code: code.name)
async def test_a_user_without_a_right_is_refused_each_code_that_is_served(code):
    harness = await with_ann()
    fields, body = GOOD.get(code, ({}, b""))
    answer = await ask(harness, code, ANN, body, **fields)
    assert answer.code == NO_PERMISSION, answer
    assert "no permission to access" in answer.remark
    assert harness.parts.statistics.refusals.counts() == {"not authorized": 1}


@pytest.mark.parametrize("code", [-1, 0, 9_999, 220, 39, 501, 200_999])
async def test_an_unknown_code_is_refused_to_a_user_and_not_supported_for_a_super_user(code):
    harness = await with_ann()
    assert (await ask(harness, code, ANN)).code == NO_PERMISSION
    assert (await ask(harness, code, ROOT)).code == NOT_SUPPORTED


async def test_a_right_lets_its_request_pass_and_no_other():
    harness = await with_ann([allow("Topic:Orders", "Pub")])
    fields, body = GOOD[R.SEND_MESSAGE_V2]
    assert (await ask(harness, R.SEND_MESSAGE_V2, ANN, body, **fields)).code == 0
    pull, _ = GOOD[R.PULL_MESSAGE]
    assert (await ask(harness, R.PULL_MESSAGE, ANN, **pull)).code == NO_PERMISSION
    other = fields | {"b": "Other"}
    assert (await ask(harness, R.SEND_MESSAGE_V2, ANN, body, **other)).code == NO_PERMISSION


async def test_a_changed_body_or_field_breaks_the_signature():
    harness = await with_ann([allow("*", "All")])
    fields, body = GOOD[R.SEND_MESSAGE_V2]
    given = signed(fields, body, ANN, VERSION)
    for changed, sent in (({}, b"other"), ({"b": "Other"}, body), ({"Signature": ""}, body)):
        answer = await harness.ask(int(R.SEND_MESSAGE_V2), sent, **(given | changed))
        assert (answer.code, answer.remark) == (NO_PERMISSION, "check signature failed.")


@pytest.mark.parametrize("code", [R.GET_MAX_OFFSET, R.SEND_MESSAGE_V2], ids=lambda code: code.name)
async def test_a_change_acts_on_the_next_request_of_an_open_connection(code):
    harness = await with_ann([allow("Topic:Orders", "Get", "Pub")])
    fields, body = GOOD[code]
    for _ in range(2):
        assert (await ask(harness, code, ANN, body, **fields)).code == 0
    assert (await ask(harness, R.AUTH_DELETE_ACL, ROOT, subject="User:ann")).code == 0
    assert (await ask(harness, code, ANN, body, **fields)).code == NO_PERMISSION
    changed = {"password": "the-secret-of-ann-00002"}
    assert (await ask(harness, R.AUTH_UPDATE_USER, ROOT, changed, username="ann")).code == 0
    assert (await ask(harness, code, ANN, body, **fields)).remark == "check signature failed."
    assert (await ask(harness, R.AUTH_UPDATE_USER, ROOT, {"userStatus": "disable"}, username="ann")).code == 0
    assert (await ask(harness, code, ANN, body, **fields)).remark == "User:ann is disabled."
    assert (await ask(harness, R.AUTH_DELETE_USER, ROOT, username="ann")).code == 0
    assert (await ask(harness, code, ANN, body, **fields)).remark == "User:ann is not found."


async def test_a_right_to_send_is_one_of_its_user_topic_and_address():
    harness = await with_ann([allow("Topic:*", "Pub") | {"sourceIps": ["10.0.0.7"]}])
    fields, body = GOOD[R.SEND_MESSAGE_V2]

    async def code_of(by: Credentials, address: str, **others: str) -> int:
        channel = FakeChannel(address=address)
        return (await ask(harness, R.SEND_MESSAGE_V2, by, body, channel=channel, **(fields | others))).code

    assert await code_of(ROOT, "10.0.0.8") == 0
    for _ in range(2):
        assert await code_of(ANN, "10.0.0.7") == 0
        assert await code_of(ANN, "10.0.0.8") == NO_PERMISSION
        assert await code_of(ANN, "10.0.0.7", b="%RETRY%billing") == NO_PERMISSION
    channel = FakeChannel(address="10.0.0.7")
    for code in (R.GET_MAX_OFFSET, R.PULL_MESSAGE, R.GET_BROKER_CONFIG):
        given = {"": fields["b"], "b": fields["b"], "topic": fields["b"], "consumerGroup": "G"}
        assert (await ask(harness, code, ANN, channel=channel, **given)).code == NO_PERMISSION


async def test_a_record_of_a_pop_at_another_broker_is_taken_only_from_who_may_do_all_that_follows():
    """It lets the group have messages of the topic, and the broker asks another one for them, as a super
    user."""
    log = "rmq_sys_REVIVE_LOG_DefaultCluster"
    key = PopKey("Secret", "CG", 0, 0, 1_000, "broker-b")
    body = pop_records.encode_checkpoint(PopCheckpoint(key, 1_000, (0,)))
    pairs = f"TAGS\x01ck\x02UNIQ_KEY\x01{pop_records.checkpoint_id(key)}\x02"
    fields = {
        "a": "PG",
        "b": log,
        "c": "TBW102",
        "d": "4",
        "e": "0",
        "f": "0",
        "g": "5",
        "h": "0",
        "i": pairs,
    }
    sends, reads, is_of = (
        allow(f"Topic:{log}", "Pub"),
        allow("Topic:Secret", "Sub"),
        allow("Group:CG", "Sub"),
    )
    for rights, code in (
        ([allow("Topic:*", "Pub")], NO_PERMISSION),
        ([sends, reads], NO_PERMISSION),
        ([sends, reads, is_of], NO_PERMISSION),
        ([sends, reads, is_of, allow("Cluster:*", "Update")], 0),
    ):
        harness = await with_ann(rights)
        harness.parts.topics.put(TopicConfig("Secret", 1, 1))
        answer = await ask(harness, R.SEND_MESSAGE_V2, ANN, body, **fields)
        assert answer.code == code, answer
        assert len(harness.store.messages(log, 0)) == (code == 0)
        assert (harness.parts.groups.get("CG") is None) == (code != 0)


async def test_a_message_is_shown_by_its_offset_only_to_who_may_read_its_topic():
    """The request names a topic, and the offset may be that of a message of another one."""
    harness = await with_ann([allow("Topic:Mine", "Get", "Sub"), allow("Group:G", "Sub")])
    fields, body = GOOD[R.SEND_MESSAGE_V2]
    assert (await ask(harness, R.SEND_MESSAGE_V2, ROOT, body, **fields)).code == 0
    seen = await ask(harness, R.VIEW_MESSAGE_BY_ID, ANN, offset="0", topic="Mine")
    assert seen.code == NO_PERMISSION and "Topic:Orders" in seen.remark and not seen.body
    back = await ask(harness, R.CONSUMER_SEND_MSG_BACK, ANN, offset="0", group="G", delayLevel="0")
    assert back.code == NO_PERMISSION and "Topic:Orders" in back.remark
    seen = await ask(harness, R.VIEW_MESSAGE_BY_ID, ROOT, offset="0", topic="Mine")
    assert seen.code == 0 and seen.body


async def test_a_message_is_given_to_a_consumer_only_by_who_may_read_its_topic_and_without_the_signature():
    harness = await with_ann([allow("Topic:Mine", "Sub"), allow("Group:CG", "Sub")])
    fields, body = GOOD[R.SEND_MESSAGE_V2]
    stored = await ask(harness, R.SEND_MESSAGE_V2, ROOT, body, **fields)
    client_id = GOOD[R.CONSUME_MESSAGE_DIRECTLY][0]["clientId"]
    beat = BEAT | {"consumerDataSet": [CONSUMER | {"groupName": "CG"}], "clientID": client_id}
    member = FakeChannel(port=50_001)
    assert (await ask(harness, R.HEART_BEAT, ROOT, beat, channel=member)).code == 0
    member.reply = lambda command: command.answer()
    direct = GOOD[R.CONSUME_MESSAGE_DIRECTLY][0] | {"msgId": stored.fields["msgId"]}
    refused = await ask(harness, R.CONSUME_MESSAGE_DIRECTLY, ANN, **(direct | {"topic": "Mine"}))
    assert refused.code == NO_PERMISSION and "Topic:Orders" in refused.remark and not member.asked
    assert (await ask(harness, R.CONSUME_MESSAGE_DIRECTLY, ROOT, **direct)).code == 0
    (asked,) = member.asked
    assert not asked.fields.keys() & {"AccessKey", "Signature", "SecurityToken"}


async def test_a_transaction_is_ended_only_by_who_may_send_to_its_topic():
    harness = await with_ann([allow("Topic:Mine", "Pub")])
    fields, body = GOOD[R.SEND_MESSAGE_V2]
    half = fields | {"f": "4", "i": "TRAN_MSG\x01true\x02PGROUP\x01PG\x02UNIQ_KEY\x01U\x02"}
    stored = await ask(harness, R.SEND_MESSAGE_V2, ROOT, body, **half)
    assert stored.code == 0
    end = {
        "producerGroup": "PG",
        "tranStateTableOffset": stored.fields["queueOffset"],
        "commitLogOffset": "0",
        "commitOrRollback": "8",
        "msgId": "U",
    }
    for named in ({"topic": "Mine"}, {}, {"topic": "RMQ_SYS_TRANS_HALF_TOPIC"}):
        answer = await ask(harness, R.END_TRANSACTION, ANN, **(end | named))
        assert answer.code == NO_PERMISSION and "Topic:Orders" in answer.remark, answer
    assert (await ask(harness, R.END_TRANSACTION, ROOT, **end)).code == 0


async def test_a_half_message_is_shown_only_to_a_producer_that_may_send_to_its_topic():
    """A question about a transaction has the message, and a heartbeat demands no right on a group of
    producers."""
    harness = await with_ann()
    harness.parts.transactions.start()
    fields, body = GOOD[R.SEND_MESSAGE_V2]
    half = fields | {"f": "4", "i": "TRAN_MSG\x01true\x02PGROUP\x01PG\x02UNIQ_KEY\x01U\x02"}
    assert (await ask(harness, R.SEND_MESSAGE_V2, ROOT, body, **half)).code == 0
    beat = client_bodies.encode_heartbeat(client_bodies.Heartbeat("c", ("PG",), ()))
    of_ann, of_root = FakeChannel(port=1), FakeChannel(port=2)

    def asked(channel: FakeChannel) -> list[int]:
        codes = [command.code for command in channel.answers if not command.is_response]
        channel.answers.clear()
        return codes

    def pass_a_minute() -> None:
        harness.now_ms += 60_000
        while (again := harness.parts.transactions.step(harness.now_ms)) and again <= harness.now_ms:
            pass

    assert (await ask(harness, R.HEART_BEAT, ANN, beat, channel=of_ann)).code == 0
    pass_a_minute()
    assert asked(of_ann) == []
    assert (await ask(harness, R.HEART_BEAT, ROOT, beat, channel=of_root)).code == 0
    pass_a_minute()
    pass_a_minute()
    assert (asked(of_ann), asked(of_root)) == ([], [int(R.CHECK_TRANSACTION_STATE)] * 2)
    rights = {"policies": [{"entries": [allow("Topic:Orders", "Pub")]}]}
    assert (await ask(harness, R.AUTH_CREATE_ACL, ROOT, rights, subject="User:ann")).code == 0
    pass_a_minute()
    pass_a_minute()
    assert (asked(of_ann), asked(of_root)) == ([int(R.CHECK_TRANSACTION_STATE)],) * 2


async def test_a_retry_topic_is_pulled_by_its_own_group_alone():
    harness = await with_ann([allow("Group:CG", "Sub")])
    pull, _ = GOOD[R.PULL_MESSAGE]
    answer = await ask(
        harness, R.PULL_MESSAGE, ANN, **(pull | {"topic": "%RETRY%Other", "consumerGroup": "CG"})
    )
    assert answer.code == NO_PERMISSION and "Group:Other" in answer.remark


async def test_no_answer_no_log_and_no_setting_shows_a_secret(caplog):
    caplog.set_level(logging.DEBUG)
    harness = await with_ann([allow("*", "All")])
    secrets = [ROOT_SECRET.encode(), ANN.secret_key.encode()]
    answers = [
        await ask(harness, R.AUTH_LIST_USER, ROOT),
        await ask(harness, R.AUTH_GET_USER, ROOT, username="ann"),
        await ask(harness, R.GET_BROKER_CONFIG, ROOT),
        await ask(harness, R.AUTH_CREATE_USER, ROOT, b'{"password":"' + secrets[1], username="x"),
        await ask(harness, R.AUTH_CREATE_USER, ROOT, b'["' + secrets[1] + b'"]', username="x"),
    ]
    assert answers[2].code == 0 and b"initAuthenticationUser=******" in answers[2].body
    shown = b"".join(answer.body + (answer.remark or "").encode() for answer in answers)
    shown += repr((harness.parts.settings, harness.parts.access.state, ROOT)).encode() + caplog.text.encode()
    shown += repr(harness.parts.statistics.refusals.facts()).encode()
    shown += repr(list(harness.parts.changes._pending)).encode()
    assert not [secret for secret in secrets if secret in shown]
    with pytest.raises(ConfigError) as raised:
        BrokerSettings(init_authentication_user='{"username": "root", "passwort": "' + ROOT_SECRET + '"}')
    assert ROOT_SECRET not in str(raised.value)


async def test_each_change_leaves_a_record_of_who_made_it():
    harness = await with_ann([allow("Topic:T", "Pub")])
    await ask(harness, R.AUTH_UPDATE_USER, ROOT, {"password": "another-secret"}, username="ann")
    await ask(harness, R.AUTH_DELETE_ACL, ROOT, subject="User:ann")
    await ask(harness, R.AUTH_DELETE_USER, ROOT, username="ann")
    records = list(harness.parts.changes._pending)
    assert [(record.action, record.kind, record.name, record.outcome) for record in records] == [
        ("create", "user", "ann", "done"),
        ("create", "acl", "User:ann", "done"),
        ("update", "user", "ann", "done"),
        ("delete", "acl", "User:ann", "done"),
        ("delete", "user", "ann", "done"),
    ]
    assert {record.detail["by"] for record in records} == {"root"}
    assert records[1].detail["after"] == {"rules": ["Custom: Allow Pub on Topic:T"], "count": 1}
    assert records[2].detail["given"] == ["password"]


async def test_a_change_that_cannot_be_written_is_not_made(monkeypatch):
    harness = await with_ann()

    def fail(name: str, data: bytes) -> None:
        raise StoreError("no room")

    monkeypatch.setattr(harness.store, "write_config", fail)
    answer = await ask(harness, R.AUTH_UPDATE_USER, ROOT, {"userStatus": "disable"}, username="ann")
    assert answer.code == 1 and not harness.parts.access.state.users["ann"].is_disabled


@pytest.mark.parametrize("change", ["delete", "password"])
async def test_a_secret_that_was_taken_away_is_not_in_the_backup_of_the_file(change, monkeypatch):
    harness = await with_ann()
    texts = []
    monkeypatch.setattr(harness.store, "write_config", lambda name, data: texts.append(data.decode()))
    await ask(
        harness,
        R.AUTH_CREATE_ACL,
        ROOT,
        {"policies": [{"entries": [allow("Topic:T", "Pub")]}]},
        subject="User:ann",
    )
    assert len(texts) == 1
    if change == "delete":
        await ask(harness, R.AUTH_DELETE_USER, ROOT, username="ann")
    else:
        await ask(harness, R.AUTH_UPDATE_USER, ROOT, {"password": "another-secret"}, username="ann")
    assert len(texts) == 3 and texts[1] == texts[2]  # the one before the last is the .bak
    assert ANN.secret_key not in texts[1]


async def test_a_change_of_which_the_backup_cannot_be_written_is_made_and_says_so(monkeypatch, caplog):
    harness = await with_ann()
    written = []

    def fail(name: str, data: bytes) -> None:
        written.append(name)
        if len(written) == 2:
            raise StoreError("no room")

    monkeypatch.setattr(harness.store, "write_config", fail)
    answer = await ask(harness, R.AUTH_DELETE_USER, ROOT, username="ann")
    assert answer.code == 1 and "the change is made, but config/access.json.bak has" in caplog.text
    assert "ann" not in harness.parts.access.state.users


@pytest.mark.parametrize(
    ("code", "body"),
    [
        (R.AUTH_DELETE_USER, b""),
        (R.AUTH_UPDATE_USER, {"userStatus": "disable"}),
        (R.AUTH_UPDATE_USER, {"userType": "Normal"}),
    ],
)
async def test_the_last_super_user_and_the_one_of_the_broker_stay(code, body):
    harness = Harness(**ON)
    answer = await ask(harness, code, ROOT, body, username="root")
    assert (answer.code, answer.remark) == (
        NO_PERMISSION,
        "this is the last enabled Super user: make another one first",
    )
    inner = '{"accessKey": "inner", "secretKey": "the-secret-of-inner-1"}'
    harness = Harness(**ON, inner_client_authentication_credentials=inner)
    answer = await ask(harness, code, ROOT, body, username="inner")
    assert answer.code == NO_PERMISSION and answer.remark.startswith(
        "the broker signs its own requests as inner"
    )
    assert not harness.parts.access.state.users["inner"].is_disabled
    assert (await ask(harness, code, ROOT, body, username="root")).code == 0  # inner is left


async def test_the_password_that_the_broker_signs_with_stays_and_a_wrong_one_can_be_mended():
    inner = Credentials("inner", "the-secret-of-inner-1")
    setting = json.dumps({"accessKey": inner.access_key, "secretKey": inner.secret_key})
    harness = Harness(**ON, inner_client_authentication_credentials=setting)
    other = {"password": "another-secret"}
    refused = await ask(harness, R.AUTH_UPDATE_USER, ROOT, other, username="inner")
    assert refused.code == NO_PERMISSION and "stays an enabled Super user with its password" in refused.remark
    assert (
        await ask(harness, R.AUTH_UPDATE_USER, ROOT, {"password": inner.secret_key}, username="inner")
    ).code == 0
    users = harness.parts.access.state.users
    harness.parts.access.replace(AccessState({**users, "inner": replace(users["inner"], secret="of a file")}))
    assert (await ask(harness, R.AUTH_UPDATE_USER, ROOT, other, username="inner")).code == 0


async def test_the_text_of_the_file_is_not_made_on_the_loop(monkeypatch):
    harness = await with_ann()
    made_in, text = [], AccessState.text
    monkeypatch.setattr(
        AccessState, "text", lambda state: made_in.append(threading.current_thread()) or text(state)
    )
    assert (await ask(harness, R.AUTH_DELETE_USER, ROOT, username="ann")).code == 0
    assert made_in and threading.current_thread() not in made_in


async def test_a_long_list_of_policies_is_not_made_on_the_loop(monkeypatch):
    harness = await with_ann([allow("Topic:A", "Pub"), allow("Topic:B", "Sub")])
    short = await ask(harness, R.AUTH_LIST_ACL, ROOT)
    made_in, made = [], admin_access.acl_info
    monkeypatch.setattr(admin_access, "MAX_RULES_ON_LOOP", 1)
    monkeypatch.setattr(
        admin_access, "acl_info", lambda *given: made_in.append(threading.current_thread()) or made(*given)
    )
    assert (await ask(harness, R.AUTH_LIST_ACL, ROOT)).body == short.body != b""
    assert len(made_in) == 1 and threading.current_thread() not in made_in


async def test_changes_that_come_together_are_all_kept():
    harness = Harness(**ON)
    channels = [FakeChannel(port=port) for port in range(20)]
    created = await asyncio.gather(
        *(
            ask(harness, R.AUTH_CREATE_USER, ROOT, {"password": "x"}, channel=channel, username=f"u{number}")
            for number, channel in enumerate(channels)
        )
    )
    assert {answer.code for answer in created} == {0}
    kept = json.loads(harness.store.config["access.json"])["users"]
    assert {user["username"] for user in kept} == {"root", *(f"u{number}" for number in range(20))}


async def test_what_is_remembered_of_requests_is_bounded(monkeypatch):
    monkeypatch.setattr(control, "MAX_REMEMBERED", 3)
    harness = await with_ann()
    access = harness.parts.access
    for number in range(10):
        await ask(harness, R.GET_MAX_OFFSET, ANN, topic=f"T{number}", queueId="0")
        assert len(access._decisions) <= 3
        await ask(harness, R.SEND_MESSAGE_V2, ROOT, b=f"T{number}")
        assert 1 <= len(access._may_send) <= 3
    answer = await ask(harness, R.GET_MAX_OFFSET, ANN, topic="x" * 60_000, queueId="0")
    assert answer.code == NO_PERMISSION and all(len(key[1].resource.name) < 9 for key in access._decisions)
    await ask(harness, R.SEND_MESSAGE_V2, ROOT, b="x" * 60_000)
    assert all(len(topic) < 9 for _, topic, _ in access._may_send)
    stranger = await ask(harness, R.GET_MAX_OFFSET, Credentials("y" * 60_000, "z"), topic="T", queueId="0")
    assert stranger.code == NO_PERMISSION and len(stranger.remark) <= 200
    assert all(len(one["said"]) <= 600 for one in harness.parts.statistics.refusals.facts())


async def test_a_password_that_was_changed_counts_and_the_settings_are_named():
    harness = await with_ann()
    await ask(harness, R.AUTH_UPDATE_USER, ROOT, {"password": "another-secret"}, username="root")
    assert harness.parts.access.users_with_another_password() == ["root"]
    assert (await ask(harness, R.AUTH_LIST_USER, ROOT)).remark == "check signature failed."
    assert (await ask(harness, R.AUTH_LIST_USER, Credentials("root", "another-secret"))).code == 0


async def test_two_names_for_one_subject_are_refused():
    harness = await with_ann()
    body = {"subject": "User:root", "policies": [{"entries": [allow("*", "All")]}]}
    answer = await ask(harness, R.AUTH_CREATE_ACL, ROOT, body, subject="User:ann")
    assert answer.code == 29 and harness.parts.access.state.acls == {}


@pytest.mark.parametrize(
    "code", [R.AUTH_CREATE_USER, R.AUTH_UPDATE_USER, R.AUTH_CREATE_ACL, R.AUTH_UPDATE_ACL]
)
async def test_each_value_of_a_body_is_bad_in_turn_and_changes_nothing(code):
    """Of a user a bad value is the default, as in Apache's; it never gives more than a normal user has."""
    harness = await with_ann()
    fields, body = GOOD[code]
    name = {"username": "bob"} if code is R.AUTH_CREATE_USER else fields
    before = harness.parts.access.state
    for path in places(body):
        for bad in WRONG_VALUES:
            answer = await ask(harness, code, ROOT, with_value(body, path, bad), **name)
            assert "inside the broker" not in (answer.remark or "")
            after = harness.parts.access.state
            if answer.code:
                assert after == before
            assert not [user for user in after.users.values() if user.is_super and user.name != "root"]
            harness.parts.access.replace(before)
    for nonsense in NO_BODIES:
        answer = await ask(harness, code, ROOT, nonsense, **name)
        is_done = isinstance(nonsense, bytes) and nonsense.strip() == b"{}" and code is R.AUTH_UPDATE_USER
        assert answer.code or is_done, nonsense[:40]


async def test_with_access_control_off_users_are_not_served():
    answer = await ask(Harness(), R.AUTH_CREATE_USER, None, {"password": "x"}, username="x")
    assert (answer.code, answer.remark) == (16, "The authenticationMetadataProvider is not configured")


async def test_authentication_alone_lets_each_known_user_pass():
    harness = Harness(**(ON | {"authorization_enabled": False}))
    assert (
        await ask(harness, R.AUTH_CREATE_USER, ROOT, {"password": ANN.secret_key}, username="ann")
    ).code == 0
    query, _ = GOOD[R.GET_MAX_OFFSET]
    assert (await ask(harness, R.GET_MAX_OFFSET, ANN, **query)).code == 0
    assert (await ask(harness, R.GET_MAX_OFFSET, None, **query)).code == NO_PERMISSION


def test_rights_without_signatures_are_refused_as_a_setting():
    with pytest.raises(ConfigError, match="needs authenticationEnabled"):
        BrokerSettings(authorization_enabled=True)


async def test_registrations_are_signed_with_the_inner_credentials():
    inner = '{"accessKey": "inner", "secretKey": "the-secret-of-inner-1"}'
    harness = Harness(**ON, inner_client_authentication_credentials=inner)
    command = Registration(harness.parts).command(R.REGISTER_BROKER, b"body")
    harness.parts.access.authenticate(103, command.fields, b"body", command.version)
    assert command.fields["AccessKey"] == "inner"


async def test_refusals_are_counted_by_cause_and_known_user():
    harness = await with_ann()
    await ask(harness, R.GET_MAX_OFFSET, None, topic="T")
    await ask(harness, R.GET_MAX_OFFSET, Credentials("missing", "x"), topic="T")
    await ask(harness, R.GET_MAX_OFFSET, Credentials("ann", "a-wrong-secret"), topic="T")
    for _ in range(2):
        await ask(harness, R.GET_MAX_OFFSET, ANN, topic="T", queueId="0")
    refusals = harness.parts.access.refusals
    assert refusal_counts(refusals) == {
        ("not authenticated", None): 2,
        ("not authenticated", "ann"): 1,
        ("not authorized", "ann"): 2,
    }
    (row,) = [row for row in refusals.rows() if row.cause == "not authorized"]
    assert row.address == harness.channel.remote and "Topic:T" in row.text
    assert row.at_ms == harness.parts.clock()


def test_refusals_have_a_bounded_number_of_rows(monkeypatch):
    monkeypatch.setattr("broker_store.access.refusals.MAX_ROWS", 3)
    refusals = AccessRefusals()
    for number in range(10):
        refusals.note("not authorized", f"user-{number}", "10.0.0.1:1", "x" * 9_999, number)
    assert refusal_counts(refusals) == {
        ("not authorized", "user-0"): 1,
        ("not authorized", "user-1"): 1,
        ("not authorized", "user-2"): 1,
        ("not authorized", None): 7,
    }
    assert all(len(row.text) == 500 for row in refusals.rows())


async def test_only_a_super_user_changes_the_brokers_permission():
    harness = await with_ann([allow("Cluster:*", "All")])
    assert (await ask(harness, R.UPDATE_BROKER_CONFIG, ANN, b"traceOn=false\n")).code == 0
    refused = await ask(harness, R.UPDATE_BROKER_CONFIG, ANN, b"brokerPermission=4\n")
    assert (refused.code, refused.remark) == (
        NO_PERMISSION,
        "brokerPermission: only a super user may change it",
    )
    elsewhere = FakeChannel(address="10.0.0.9")
    changed = await ask(harness, R.UPDATE_BROKER_CONFIG, ROOT, b"brokerPermission=4\n", channel=elsewhere)
    assert changed.code == 0 and harness.parts.settings.broker_permission == 4


async def test_a_super_user_that_is_only_named_does_not_change_the_brokers_permission():
    harness = Harness(**ON, authentication_whitelist="25", authorization_whitelist="25")
    named = {"AccessKey": "root"}
    assert (await harness.ask(25, b"traceOn=false\n", **named)).code == 0
    assert (await harness.ask(25, b"brokerPermission=4\n", **named)).code == NO_PERMISSION
    assert harness.parts.settings.broker_permission == 6
