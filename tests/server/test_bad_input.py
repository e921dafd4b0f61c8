"""Bad input to each request code: each field, and each value of a body, is in turn missing, of a wrong kind,
huge or hostile.

The table has one good request for each code. A bad request differs from it in one place, so that place must
be the reason of the refusal. It gets exactly one answer. If a required field is missing or a number is
malformed, that is INVALID_PARAMETER with the name of the field. No answer is "error inside the broker". A
refused request changes nothing, and its refusal is counted by cause. A request that only reads never changes
anything.
"""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import json
import re

import pytest

from broker_store.broker.groups import SubscriptionGroup
from broker_store.broker.topics import TopicConfig
from broker_store.formats import recall_handle
from broker_store.formats.recall_handle import RecallHandle
from broker_store.messages import PutStatus
from broker_store.protocol import headers
from broker_store.protocol.codes import RequestCode as R
from broker_store.protocol.codes import ResponseCode
from tests.support.broker_harness import Harness

INVALID = int(ResponseCode.INVALID_PARAMETER)
SYSTEM_ERROR = int(ResponseCode.SYSTEM_ERROR)
# Answers to a request that was done, or that found nothing.
DONE = {
    0,
    int(ResponseCode.PULL_NOT_FOUND),
    int(ResponseCode.PULL_OFFSET_MOVED),
    int(ResponseCode.PULL_RETRY_IMMEDIATELY),
    int(ResponseCode.QUERY_NOT_FOUND),
    int(ResponseCode.POLLING_TIMEOUT),
}

WRONG_INTS = (
    "",
    "x",
    " ",
    "1e3",
    "0x10",
    "1.5",
    "NaN",
    "2147483648",
    "-2147483649",
    "9" * 5_000,
    "1" * 21,
    "1\x00",
    "true",
)
WRONG_LONGS = tuple(number for number in WRONG_INTS if "214748364" not in number) + (
    "9223372036854775808",
    "-9223372036854775809",
)
EXTREME_INTS = ("-1", "-2147483648", "2147483647")
EXTREME_LONGS = ("-1", "-9223372036854775808", "9223372036854775807")
NO_NAMES = ("../x", "a/b", "a\\b", "..", "a\x00b")
HOSTILE_TEXTS = (
    "",
    " ",
    "x" * 60_000,
    "ü" * 300,
    "\x01\x02" * 50,
    "$(id)",
    "%s%n{0}",
    "'; --",
    "\u202e",
    "\r\nX: y",
    "{" * 2_000,
    "a;b;;c,,d",
)
WRONG_VALUES = (
    None,
    [],
    {},
    [[]],
    "",
    "x" * 20_000,
    "../x",
    True,
    -1,
    1 << 31,
    1 << 63,
    10**30,
    1.5,
    {"a": {"b": []}},
    "\u0000",
)
NO_BODIES = (
    b"",
    b"{",
    b"[]",
    b"null",
    b'"x"',
    b"7",
    b"\xff\xfe",
    b"[" * 5_000,
    b'{"a":' * 500,
    b"{}",
    b"NaN",
    b'{"a":1e999}',
    b"9" * 6_000,
    b"x" * 100_000,
)

QUEUE = {"topic": "Orders", "queueId": "0"}
SEND = {
    "producerGroup": "PG",
    "topic": "Orders",
    "defaultTopic": "TBW102",
    "defaultTopicQueueNums": "4",
    "queueId": "0",
    "sysFlag": "0",
    "bornTimestamp": "5",
    "flag": "0",
    # fmt: skip
    "properties": "KEYS\x01k\x02",
    "reconsumeTimes": "0",
    "unitMode": "false",
    "maxReconsumeTimes": "3",
    "batch": "false",
}
SEND_V2 = dict(zip("abcdefghijklm", SEND.values(), strict=True))
REPLY = SEND | {"topic": "DefaultCluster_REPLY_TOPIC", "properties": "REPLY_TO_CLIENT\x01nobody\x02"}
PULL = QUEUE | {
    "consumerGroup": "CG",
    "queueOffset": "0",
    "maxMsgNums": "32",
    "sysFlag": "4",
    "commitOffset": "0",
    "suspendTimeoutMillis": "15000",
    "subscription": "*",
    # fmt: skip
    "subVersion": "0",
    "expressionType": "TAG",
    "maxMsgBytes": "4096",
    "requestSource": "0",
    "proxyFrowardClientId": "client",
}
NEW_TOPIC = {
    "topicName": "New",
    "readQueueNums": 4,
    "writeQueueNums": 4,
    "perm": 6,
    "topicFilterType": "SINGLE_TAG",
    "topicSysFlag": 0,
    "order": False,
    "attributes": {},
}
NEW_GROUP = SubscriptionGroup("New").to_json()
SUBSCRIPTION = {
    "classFilterMode": False,
    "codeSet": [],
    "expressionType": "TAG",
    "subString": "a || b",
    "subVersion": 1,
    "tagsSet": [],
    "topic": "Orders",
}
CONSUMER = {"consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "consumeType": "CONSUME_PASSIVELY", "groupName": "NewCG", "messageModel": "CLUSTERING",
            "subscriptionDataSet": [SUBSCRIPTION], "unitMode": False}  # fmt: skip
BEAT = {
    "clientID": "new-client",
    "consumerDataSet": [CONSUMER],
    "heartbeatFingerprint": 0,
    "producerDataSet": [{"groupName": "NewPG"}],
    "withoutSub": False,
}
LOCK = {
    "clientId": "client",
    "consumerGroup": "CG",
    "mqSet": [{"brokerName": "broker-a", "queueId": 0, "topic": "Orders"}],
    "onlyThisBroker": False,
}
ASSIGNMENT = {
    "topic": "Orders",
    "consumerGroup": "CG",
    "clientId": "client",
    "strategyName": "AVG",
    "messageModel": "CLUSTERING",
}
CHECK = {"clientId": "client", "group": "CG", "subscriptionData": SUBSCRIPTION}
BATCH_BODY = bytes.fromhex("0000001a00000000000000000000000000000004626f64790000")
RECALL_HANDLE = recall_handle.encode(RecallHandle("Orders", "broker-a", "1700000060001", "U"))
POP = QUEUE | {
    "consumerGroup": "CG2",
    "maxMsgNums": "32",
    "invisibleTime": "60000",
    "pollTime": "0",
    "bornTime": "1700000000000",
    "initMode": "0",
    "expType": "TAG",
    "exp": "*",
    "order": "false",
    "attemptId": "x",
}
ACK = QUEUE | {"consumerGroup": "CG2", "extraInfo": "0 1700000000000 60000 3 0 broker-a 0 0", "offset": "0"}
POLICY = {
    "policyType": "Custom",
    "entries": [{"resource": "Topic:T", "actions": ["Pub"], "decision": "Allow"}],
}
MESSAGE_ID = "7F00000100002A9F0000000000000000"

# Code -> (fields, body: bytes, or a value for JSON). PLAIN has the codes whose requests have no content.
GOOD: dict[R, tuple[dict[str, str], object]] = {
    R.SEND_MESSAGE: (SEND, b"body"),
    R.SEND_MESSAGE_V2: (SEND_V2, b"body"),
    R.SEND_BATCH_MESSAGE: (SEND_V2 | {"m": "true", "i": ""}, BATCH_BODY),
    R.SEND_REPLY_MESSAGE: (REPLY, b"body"),
    R.SEND_REPLY_MESSAGE_V2: (dict(zip("abcdefghijklm", REPLY.values(), strict=True)), b"body"),
    R.PULL_MESSAGE: (PULL, b""),
    R.LITE_PULL_MESSAGE: (PULL, b""),
    R.QUERY_MESSAGE: ({"topic": "Orders", "key": "k", "maxNum": "10", "beginTimestamp": "0", "endTimestamp": "9000000000000", "_UNIQUE_KEY_QUERY": "false"}, b""),
    R.QUERY_CONSUMER_OFFSET: (QUEUE | {"consumerGroup": "CG", "setZeroIfNotFound": "true"}, b""),
    R.UPDATE_CONSUMER_OFFSET: (QUEUE | {"consumerGroup": "CG", "commitOffset": "1"}, b""),
    R.UPDATE_AND_CREATE_TOPIC: (
        {"topic": "New", "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
         "attributes": "+a=b", "force": "false"}, b"",
    ),
    R.UPDATE_AND_CREATE_STATIC_TOPIC: (
        {"topic": "New", "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
         "force": "false"},
        {"bname": "broker-a", "currIdMap": {}, "dirty": False, "epoch": 1, "scope": "__global__", "topic": "New", "totalQueues": 1,
         "hostedQueues": {"0": [{"bname": "broker-a", "endOffset": -1, "gen": 0, "logicOffset": 0, "queueId": 0, "startOffset": 0, "timeOfEnd": -1, "timeOfStart": -1}]}},
    ),
    R.UPDATE_AND_CREATE_TOPIC_LIST: ({}, {"topicConfigList": [NEW_TOPIC, NEW_TOPIC | {"topicName": "Other"}]}),
    R.GET_ALL_TOPIC_CONFIG: ({"topicSeq": "0", "dataVersion": "{}", "maxTopicNum": "10"}, b""),
    R.UPDATE_BROKER_CONFIG: ({}, b"storePathRootDir=/tmp/x\n"),
    R.SEARCH_OFFSET_BY_TIMESTAMP: (QUEUE | {"timestamp": "0", "boundaryType": "LOWER"}, b""),
    R.GET_MAX_OFFSET: (QUEUE | {"committed": "true"}, b""),
    R.GET_MIN_OFFSET: (QUEUE, b""),
    R.GET_EARLIEST_MSG_STORETIME: (QUEUE, b""),
    R.VIEW_MESSAGE_BY_ID: ({"offset": "0", "topic": "Orders"}, b""),
    R.HEART_BEAT: ({}, BEAT),
    R.UNREGISTER_CLIENT: ({"clientID": "client", "producerGroup": "PG", "consumerGroup": "CG"}, b""),
    R.CONSUMER_SEND_MSG_BACK: (
        {"offset": "0", "group": "CG", "delayLevel": "0", "originMsgId": "x", "originTopic": "Orders", "unitMode": "false", "maxReconsumeTimes": "16"}, b"",
    ),
    R.END_TRANSACTION: (
        {"topic": "Orders", "producerGroup": "PG", "tranStateTableOffset": "0", "commitLogOffset": "0", "commitOrRollback": "8", "fromTransactionCheck": "false", "msgId": "x",
         "transactionId": "x"}, b"",
    ),
    R.GET_CONSUMER_LIST_BY_GROUP: ({"consumerGroup": "CG"}, b""),
    R.LOCK_BATCH_MQ: ({}, LOCK),
    R.UNLOCK_BATCH_MQ: ({}, LOCK),
    R.CHECK_CLIENT_CONFIG: ({}, CHECK),
    R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: ({}, NEW_GROUP),
    R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: ({}, {"groupConfigList": [NEW_GROUP, NEW_GROUP | {"groupName": "Other"}]}),
    R.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: ({"groupSeq": "0", "dataVersion": "{}", "maxGroupNum": "10"}, b""),
    R.GET_TOPIC_STATS_INFO: ({"topic": "Orders"}, b""),
    R.GET_CONSUMER_CONNECTION_LIST: ({"consumerGroup": "CG"}, b""),
    R.GET_PRODUCER_CONNECTION_LIST: ({"producerGroup": "PG"}, b""),
    R.DELETE_SUBSCRIPTIONGROUP: ({"groupName": "CG", "cleanOffset": "true"}, b""),
    R.UPDATE_AND_GET_GROUP_FORBIDDEN: ({"group": "CG", "topic": "Orders", "readable": "false"}, b""),
    R.GET_CONSUME_STATS: ({"consumerGroup": "CG", "topic": "Orders", "topicList": "Orders"}, b""),
    R.DELETE_TOPIC_IN_BROKER: ({"topic": "Orders"}, b""),
    R.INVOKE_BROKER_TO_RESET_OFFSET: ({"group": "CG", "topic": "Orders", "timestamp": "0", "isForce": "true", "queueId": "0", "offset": "0"}, b""),
    R.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: ({"topic": "Orders", "group": "CG", "clientAddr": "x"}, b""),
    R.QUERY_TOPIC_CONSUME_BY_WHO: ({"topic": "Orders"}, b""),
    R.QUERY_CONSUME_TIME_SPAN: ({"topic": "Orders", "group": "CG"}, b""),
    R.GET_CONSUMER_RUNNING_INFO: ({"consumerGroup": "CG", "clientId": "nobody", "jstackEnable": "false"}, b""),
    R.QUERY_CORRECTION_OFFSET: ({"filterGroups": "a,b", "compareGroup": "CG", "topic": "Orders"}, b""),
    R.CONSUME_MESSAGE_DIRECTLY: (
        {"consumerGroup": "CG", "clientId": "nobody", "msgId": MESSAGE_ID, "brokerName": "broker-a", "topic": "Orders", "topicSysFlag": "0", "groupSysFlag": "0"}, b"",
    ),
    R.CLONE_GROUP_OFFSET: ({"srcGroup": "CG", "destGroup": "CG2", "topic": "Orders", "offline": "true"}, b""),
    R.VIEW_BROKER_STATS_DATA: ({"statsName": "TOPIC_PUT_NUMS", "statsKey": "Orders"}, b""),
    R.GET_BROKER_CONSUME_STATS: ({"isOrder": "false"}, b""),
    R.QUERY_CONSUME_QUEUE: (QUEUE | {"index": "0", "count": "10", "consumerGroup": "CG"}, b""),
    R.RECALL_MESSAGE: ({"producerGroup": "PG", "topic": "Orders", "recallHandle": RECALL_HANDLE}, b""),
    R.RESUME_CHECK_HALF_MESSAGE: ({"topic": "Orders", "msgId": MESSAGE_ID}, b""),
    R.QUERY_TOPICS_BY_CONSUMER: ({"group": "CG"}, b""),
    R.QUERY_SUBSCRIPTION_BY_CONSUMER: ({"group": "CG", "topic": "Orders"}, b""),
    R.GET_TOPIC_CONFIG: ({"topic": "Orders", "lo": "true"}, b""),
    R.GET_SUBSCRIPTIONGROUP_CONFIG: ({"group": "CG"}, b""),
    R.QUERY_ASSIGNMENT: ({}, ASSIGNMENT),
    R.SET_MESSAGE_REQUEST_MODE: ({}, {"topic": "Orders", "consumerGroup": "CG", "mode": "POP", "popShareQueueNum": 2}),
    R.POP_MESSAGE: (POP, b""),
    R.PEEK_MESSAGE: (QUEUE | {"consumerGroup": "CG2", "maxMsgNums": "32"}, b""),
    R.NOTIFICATION: ({name: POP[name] for name in ("consumerGroup", "topic", "queueId", "pollTime", "bornTime", "order", "attemptId", "expType", "exp")}, b""),
    R.POLLING_INFO: (QUEUE | {"consumerGroup": "CG2"}, b""),
    R.ACK_MESSAGE: (ACK, b""),
    R.CHANGE_MESSAGE_INVISIBLETIME: (ACK | {"invisibleTime": "5000"}, b""),
    R.BATCH_ACK_MESSAGE: ({}, {"brokerName": "broker-a", "acks": [{"t": "Orders", "c": "CG2", "r": "0", "so": 0, "q": 0, "rq": 3, "pt": 1_700_000_000_000, "it": 60_000, "b": "AQ=="}]}),
    R.NOTIFY_MIN_BROKER_ID_CHANGE: ({"minBrokerId": "1", "brokerName": "broker-a", "minBrokerAddr": "127.0.0.1:1", "offlineBrokerAddr": "127.0.0.1:2", "haBrokerAddr": "127.0.0.1:3"}, b""),
    R.EXCHANGE_BROKER_HA_INFO: ({"masterHaAddress": "127.0.0.1:10912", "masterFlushOffset": "0", "masterAddress": "127.0.0.1:10911"}, b""),
    # Refused while access control is off; tests/server/test_access.py has them with it on.
    R.AUTH_CREATE_USER: ({"username": "ann"}, {"password": "secret", "userType": "Normal", "userStatus": "enable"}),
    R.AUTH_UPDATE_USER: ({"username": "ann"}, {"userStatus": "disable"}),
    R.AUTH_DELETE_USER: ({"username": "ann"}, b""),
    R.AUTH_GET_USER: ({"username": "ann"}, b""),
    R.AUTH_LIST_USER: ({"filter": "a"}, b""),
    R.AUTH_CREATE_ACL: ({"subject": "User:ann"}, {"policies": [POLICY]}),
    R.AUTH_UPDATE_ACL: ({"subject": "User:ann"}, {"policies": [POLICY]}),
    R.AUTH_DELETE_ACL: ({"subject": "User:ann", "policyType": "Custom", "resource": "Topic:T"}, b""),
    R.AUTH_GET_ACL: ({"subject": "User:ann"}, b""),
    R.AUTH_LIST_ACL: ({"subjectFilter": "a", "resourceFilter": "T"}, b""),
}  # fmt: skip
PLAIN = {
    R.GET_BROKER_CONFIG, R.GET_BROKER_RUNTIME_INFO, R.GET_ALL_CONSUMER_OFFSET, R.GET_ALL_DELAY_OFFSET, R.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, R.GET_ALL_PRODUCER_INFO,
    R.GET_ALL_MESSAGE_REQUEST_MODE, R.GET_BROKER_HA_STATUS, R.GET_TIMER_CHECK_POINT, R.GET_TIMER_METRICS, R.CLEAN_EXPIRED_CONSUMEQUEUE,
    R.CLEAN_UNUSED_TOPIC, R.DELETE_EXPIRED_COMMITLOG, R.POP_ROLLBACK, R.UPDATE_COLD_DATA_FLOW_CTR_CONFIG, R.REMOVE_COLD_DATA_FLOW_CTR_CONFIG,
    R.GET_COLD_DATA_FLOW_CTR_INFO, R.SET_COMMITLOG_READ_MODE, R.GET_BROKER_EPOCH_CACHE, R.NOTIFY_BROKER_ROLE_CHANGED,
}  # fmt: skip
# Codes whose good requests change something; the others never do.
CHANGING = {
    R.SEND_MESSAGE, R.SEND_MESSAGE_V2, R.SEND_BATCH_MESSAGE, R.SEND_REPLY_MESSAGE, R.SEND_REPLY_MESSAGE_V2, R.UPDATE_CONSUMER_OFFSET, R.UPDATE_AND_CREATE_TOPIC,
    R.UPDATE_AND_CREATE_STATIC_TOPIC, R.UPDATE_AND_CREATE_TOPIC_LIST, R.HEART_BEAT, R.UNREGISTER_CLIENT, R.CONSUMER_SEND_MSG_BACK, R.END_TRANSACTION, R.LOCK_BATCH_MQ, R.UNLOCK_BATCH_MQ,
    R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, R.DELETE_SUBSCRIPTIONGROUP, R.DELETE_TOPIC_IN_BROKER,
    R.UPDATE_AND_GET_GROUP_FORBIDDEN, R.INVOKE_BROKER_TO_RESET_OFFSET, R.CLONE_GROUP_OFFSET, R.PULL_MESSAGE, R.LITE_PULL_MESSAGE,
    R.RECALL_MESSAGE, R.SET_MESSAGE_REQUEST_MODE, R.POP_MESSAGE, R.ACK_MESSAGE, R.CHANGE_MESSAGE_INVISIBLETIME, R.BATCH_ACK_MESSAGE,
}  # fmt: skip
# Sends and pulls, whose fields have parsers of their own, for speed.
HOT = {
    R.SEND_MESSAGE,
    R.SEND_MESSAGE_V2,
    R.SEND_BATCH_MESSAGE,
    R.SEND_REPLY_MESSAGE,
    R.SEND_REPLY_MESSAGE_V2,
    R.PULL_MESSAGE,
    R.LITE_PULL_MESSAGE,
}
# The answer has everything, so the offset where it should begin is not read.
UNREAD = {R.GET_ALL_TOPIC_CONFIG, R.GET_ALL_SUBSCRIPTIONGROUP_CONFIG}
# A pull of an unknown group creates the group, as in Apache's; other tests cover that.


async def made() -> Harness:
    """Return a broker with a topic of one message, two groups, offsets and a client."""
    harness = Harness(recall_message_enable=True)
    parts = harness.parts
    parts.topics.put(TopicConfig("Orders", 4, 4))
    for name in ("CG", "CG2"):
        parts.groups.put(SubscriptionGroup(name))
    await harness.send("Orders", properties="KEYS\x01k\x02UNIQ_KEY\x01U\x02")
    parts.offsets.commit("CG", "Orders", 0, 1)
    beat = BEAT | {
        "clientID": "client",
        "consumerDataSet": [CONSUMER | {"groupName": "CG"}],
        "producerDataSet": [{"groupName": "PG"}],
    }
    await harness.ask(R.HEART_BEAT, json.dumps(beat).encode())
    harness.channel.reply = lambda command: command.answer()
    harness.channel.answers.clear()
    return harness


def snapshot(harness: Harness) -> dict:
    """Return all that a request could change."""
    parts = harness.parts
    return {
        "topics": {config.name: dataclasses.replace(config) for config in parts.topics.all()},
        "groups": {group.name: group.to_json() for group in parts.groups.all()},
        "forbidden": copy.deepcopy(parts.groups.to_json()["forbiddenTable"]),
        "offsets": parts.offsets.to_json()["offsetTable"],
        "broadcast": repr(parts.broadcast.__dict__),
        "delay": parts.delay.to_json(),
        "clients": sorted((client.client_id, client.version) for client in parts.clients.all()),
        "consumers": {group.name: dict(group.subscriptions) for group in parts.clients.consumer_groups()},
        "producers": sorted(parts.clients.producer_groups()),
        "locks": repr(parts.locks.__dict__),
        "parked": parts.parked.count,
        "modes": parts.request_modes.to_json(),
        "popped in order": len(parts.ordered),
        "log end": harness.store.wrote,
        "queues": [(queue, harness.store.reads.max_offset(*queue)) for queue in harness.store.queues()],
        "config": dict(harness.store.config),
    }


async def answer_to(harness: Harness, code: int, fields: dict[str, str], body: bytes):
    """Return the one answer, which has no internal details; None if there is none, which is right only for a
    oneway request."""
    command = harness.request(code, body, **fields)
    for turn in range(300):
        if harness.channel.answers:
            break
        await asyncio.sleep(0 if turn < 20 else 0.01)
    found = [answer for answer in harness.channel.answers if answer.is_response]
    harness.channel.answers.clear()
    (answer,) = found
    assert answer.opaque == command.opaque
    remark = answer.remark or ""
    assert "inside the broker" not in remark and "Traceback" not in remark and len(remark) <= 200, answer
    return answer


def body_of(value: object) -> bytes:
    return value if isinstance(value, bytes) else json.dumps(value).encode()


class Cases:
    """Sends bad requests of one code. After one that was done or changed something, the next gets a new
    broker."""

    def __init__(self, code: R):
        self.code = code
        self.fields, self.body = GOOD[code]
        self.harness: Harness | None = None
        self.before: dict = {}

    async def send(self, fields: dict[str, str] | None = None, body: object = None):
        if self.harness is None:
            self.harness = await made()
            self.before = snapshot(self.harness)
        fields = self.fields if fields is None else fields
        harness, counted = self.harness, self.harness.parts.statistics.refusals.counts()
        answer = await answer_to(
            self.harness, int(self.code), fields, body_of(self.body if body is None else body)
        )
        after = snapshot(self.harness)
        if after != self.before:
            changed = {
                name: (self.before[name], after[name]) for name in after if after[name] != self.before[name]
            }
            stored_only = (
                self.code in (R.SEND_REPLY_MESSAGE, R.SEND_REPLY_MESSAGE_V2) and answer.code == SYSTEM_ERROR
            )
            assert (answer.code in DONE or stored_only) and self.code in CHANGING, (answer, changed)
            self.harness = None
        if answer.code not in DONE:
            assert_counted(harness, counted, answer)
        return answer


def assert_counted(harness: Harness, before: dict[str, int], answer) -> None:
    """Check that a refusal is counted once, by one cause, with its sender and the number or the text of the
    answer.

    If the store refused a part of the request, that is counted in addition, by the store's cause.
    """
    refusals = harness.parts.statistics.refusals
    more = {
        cause: count - before.get(cause, 0)
        for cause, count in refusals.counts().items()
        if count != before.get(cause)
    }
    assert (
        set(more.values()) == {1} and len(more.keys() - PutStatus.__members__.keys()) <= 1 and len(more) <= 2
    ), (more, answer)
    for last in [facts for facts in refusals.facts() if facts["cause"] in more]:
        assert last["who"] and (last["value"] is not None or last["said"] == answer.remark), (last, answer)


def test_the_table_has_every_code_that_is_served():
    async def served():
        return set(Harness().router._handlers)

    assert asyncio.run(served()) == {int(code) for code in GOOD} | {int(code) for code in PLAIN}
    assert GOOD.keys().isdisjoint(PLAIN) and CHANGING <= GOOD.keys()
    for code, (fields, _) in GOOD.items():
        declared = {field.wire_name for field in fields_of(code)}
        assert fields.keys() == declared, f"{code.name}: the good request has every field that there is"


def fields_of(code: R) -> tuple:
    """Return the declared fields of a code; sends and pulls have readers of their own."""
    if code in (R.PULL_MESSAGE, R.LITE_PULL_MESSAGE):
        return headers._PULL_FIELDS
    if code in (R.SEND_MESSAGE, R.SEND_REPLY_MESSAGE):
        names = headers._LONG_SEND_NAMES
    elif code in (R.SEND_MESSAGE_V2, R.SEND_BATCH_MESSAGE, R.SEND_REPLY_MESSAGE_V2):
        names = headers._SHORT_SEND_NAMES
    else:
        return headers._FIELDS.get(int(code), ())
    kinds = zip(names, headers._LONG_SEND_NAMES, headers._SEND_KINDS, strict=True)
    return tuple(
        headers._Field(name, word, kind.rstrip("!"), kind.endswith("!")) for name, word, kind in kinds
    )


EACH = pytest.mark.parametrize("code", sorted(GOOD), ids=lambda code: code.name)


@EACH
async def test_the_good_request_is_not_refused_as_bad(code):
    # A reply is stored and answered SYSTEM_ERROR if the sender of the request is gone, as in Apache's.
    answer = await Cases(code).send()
    assert answer.code != INVALID and "field" not in (answer.remark or ""), answer


@EACH
async def test_a_required_field_that_is_missing_is_named(code):
    cases = Cases(code)
    for field in fields_of(code):
        answer = await cases.send(
            {name: value for name, value in cases.fields.items() if name != field.wire_name}
        )
        if field.required:
            assert answer.code == INVALID and re.search(
                rf"field \(?{field.name if len(field.wire_name) == 1 else field.wire_name}\b", answer.remark
            ), (field, answer)


@EACH
async def test_a_number_that_is_none_or_too_large_is_refused_by_its_name(code):
    cases = Cases(code)
    for field in fields_of(code) if code not in UNREAD else ():
        for number in {"int": WRONG_INTS, "long": WRONG_LONGS}.get(field.kind, ()):
            if number == "" and not field.required and code in HOT:
                continue  # sends and pulls read an empty optional number as missing
            answer = await cases.send(cases.fields | {field.wire_name: number})
            assert (
                answer.code == INVALID
                and field.name.replace("_", "").lower() in answer.remark.replace("_", "").lower()
            ), (field, number[:30], answer)


@EACH
async def test_numbers_at_the_ends_of_their_type_are_borne(code):
    cases = Cases(code)
    for field in fields_of(code):
        for number in {"int": EXTREME_INTS, "long": EXTREME_LONGS}.get(field.kind, ()):
            await cases.send(cases.fields | {field.wire_name: number})


@pytest.mark.quick(15)
@EACH
async def test_a_name_that_is_a_path_is_refused_and_hostile_text_harms_nothing(code):
    cases = Cases(code)
    for field in fields_of(code):
        if field.kind in ("int", "long"):
            continue
        for text in NO_NAMES:
            answer = await cases.send(cases.fields | {field.wire_name: text})
            assert field.kind != "name" or answer.code == INVALID, (field, text, answer)
        for text in HOSTILE_TEXTS:
            await cases.send(cases.fields | {field.wire_name: text})


def places(value: object, path: tuple = ()) -> list[tuple]:
    """Yield the path to each value in a JSON document, except its root."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, item in inside for place in [(*path, key), *places(item, (*path, key))]]


def with_value(value, path: tuple, new: object, *, remove: bool = False):
    """Return a copy with another value at a path, or without it."""
    copy = json.loads(json.dumps(value))
    at = copy
    for key in path[:-1]:
        at = at[key]
    if remove:
        del at[path[-1]]
    else:
        at[path[-1]] = new
    return copy


@pytest.mark.quick(4)
@pytest.mark.parametrize(
    "code",
    sorted(code for code, (_, body) in GOOD.items() if not isinstance(body, bytes)),
    ids=lambda code: code.name,
)
async def test_each_value_of_a_body_is_bad_in_turn(code):
    cases = Cases(code)
    for path in places(cases.body):
        for bad in WRONG_VALUES:
            await cases.send(body=with_value(cases.body, path, bad))
        await cases.send(body=with_value(cases.body, path, None, remove=True))
    for nonsense in NO_BODIES:
        # Apache's broker answers a check of nothing with success too.
        if nonsense or code is not R.CHECK_CLIENT_CONFIG:
            assert (await cases.send(body=nonsense)).code not in DONE, nonsense[:40]


@pytest.mark.parametrize("code", sorted(GOOD.keys() | PLAIN), ids=lambda code: code.name)
async def test_a_body_where_none_belongs_and_no_fields_at_all_change_nothing(code):
    harness = await made()
    before = snapshot(harness)
    needs_nothing = code in PLAIN or not any(field.required for field in fields_of(code))
    for nonsense in NO_BODIES:
        answer = await answer_to(harness, int(code), {}, nonsense)
        assert needs_nothing or answer.code == INVALID
        assert snapshot(harness) == before, (nonsense[:40], answer)
