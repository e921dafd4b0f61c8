"""Messages of each kind on the gRPC port: checked, in order, delayed, in transactions, recalled."""

from __future__ import annotations

import grpc
import grpc.aio
import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from broker_store.broker.topics import TopicConfig
from broker_store.formats.consistent_hash import consistent_hash
from broker_store.formats.java_hash import java_hash
from broker_store.formats.static_topics import MappingItem, TopicMapping
from broker_store.formats.timer_log import TIMER_TOPIC
from broker_store.formats.topics import HALF_TOPIC
from broker_store.protocol.grpc.v2 import service_pb2 as s
from broker_store.protocol.grpc.v2.definition_pb2 import (
    Code,
    MessageType,
    Resource,
    TransactionResolution,
    TransactionSource,
)
from broker_store.server.grpc import clients as clients_module
from broker_store.server.grpc import transaction_ids, unparsed
from tests.server.grpc.conftest import connected, message, of_producer
from tests.support import grpc_refusals
from tests.support.waits import until

KINDS = ("NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED", "PRIORITY", "LITE")
MINUTE_MS = 60_000


async def typed(opened, **settings):
    """A port with a topic of each type, named by it."""
    port = await opened(**settings)
    for kind in KINDS:
        port.parts.topics.put(TopicConfig(kind, 4, 4, attributes={"message.type": kind}))
    port.parts.topics.put(TopicConfig("ReadOnly", 4, 4, perm=4))
    return port


def after(port, ms: int) -> Timestamp:
    made = Timestamp()
    made.FromMilliseconds(port.harness.now_ms + ms)
    return made


async def test_messages_of_a_group_are_in_one_queue_in_their_order(opened):
    port = await typed(opened)
    for number in range(12):
        answer = await port.send(
            message(b"%d" % number, "FIFO", message_id=f"id{number}", message_group=f"group{number % 3}")
        )
        assert answer.status.code == Code.OK
    for group in ("group0", "group1", "group2"):
        queue = consistent_hash(java_hash(group), 4)
        bodies = [
            int(one.body)
            for one in port.harness.store.messages("FIFO", queue)
            if one.properties["__SHARDINGKEY"] == group
        ]
        assert bodies == list(range(int(group[-1]), 12, 3))


async def test_messages_of_a_static_topic_go_to_queues_that_the_broker_leads(opened):
    port = await typed(opened)
    port.parts.topics.put(TopicConfig("Static", 4, 4))
    name = port.parts.broker_name
    led, left = MappingItem(0, 3, name, 0), MappingItem(0, 1, name, 0)
    rows = {0: (led,), 1: (left, MappingItem(1, 0, "other", -1))}
    port.parts.static_topics.put(TopicMapping("Static", 2, name, 1, rows))
    for number in range(4):
        answer = await port.send(message(b"%d" % number, "Static", message_id=f"id{number}"))
        assert answer.status.code == Code.OK
    assert [len(port.harness.store.messages("Static", queue)) for queue in range(4)] == [0, 0, 0, 4]
    port.parts.static_topics.put(TopicMapping("Static", 2, name, 1, {1: rows[1]}))
    assert (await port.send(message(b"x", "Static"))).status.code == Code.FORBIDDEN


async def test_a_delayed_message_comes_at_its_time_and_not_before(opened):
    port = await typed(opened)
    answer = await port.send(message(b"later", "DELAY", delivery_timestamp=after(port, MINUTE_MS)))
    (entry,) = answer.entries
    assert answer.status.code == Code.OK and entry.recall_handle and entry.message_id == "01AA"
    assert port.stored("DELAY") == [] and len(port.stored(TIMER_TOPIC)) == 1
    port.pass_time(MINUTE_MS - 2_000)
    assert port.stored("DELAY") == []
    port.pass_time(3_000)
    (one,) = port.stored("DELAY")
    assert one.body == b"later" and one.properties["UNIQ_KEY"] == "01AA"


@pytest.mark.parametrize("before_1970", [False, True])
async def test_a_time_that_is_over_does_not_delay(opened, before_1970):
    port = await typed(opened)
    at = Timestamp(seconds=-5) if before_1970 else after(port, -MINUTE_MS)
    answer = await port.send(message(b"now", "DELAY", delivery_timestamp=at))
    assert answer.status.code == Code.OK and answer.entries[0].transaction_id == ""
    port.pass_time(2_000)
    assert [one.body for one in port.stored("DELAY")] == [b"now"]


async def test_a_delayed_message_is_recalled(opened):
    port = await typed(opened, recall_message_enable=True)
    sent = [
        (
            await port.send(
                message(b"%d" % n, "DELAY", message_id=f"id{n}", delivery_timestamp=after(port, MINUTE_MS))
            )
        )
        for n in range(2)
    ]
    handle = sent[0].entries[0].recall_handle
    recall = s.RecallMessageRequest(topic=Resource(name="DELAY"), recall_handle=handle)
    answer = await port.call("RecallMessage", recall)
    assert (answer.status.code, answer.message_id) == (Code.OK, "id0")
    port.pass_time(MINUTE_MS + 2_000)
    assert [one.body for one in port.stored("DELAY")] == [b"1"]
    late = await port.call("RecallMessage", recall)
    assert late.status.code == Code.INTERNAL_SERVER_ERROR and "timestamp invalid" in late.status.message


@pytest.mark.parametrize(
    ("topic", "handle", "code"),
    [
        ("NORMAL", "", Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        ("Unknown", "", Code.TOPIC_NOT_FOUND),
        ("a/b", "", Code.ILLEGAL_TOPIC),
        ("DELAY", "no handle", Code.INTERNAL_SERVER_ERROR),
        ("MIXED", "", Code.INTERNAL_SERVER_ERROR),
    ],
)
async def test_a_recall_that_means_no_message_is_refused(opened, topic, handle, code):
    port = await typed(opened, recall_message_enable=True)
    request = s.RecallMessageRequest(topic=Resource(name=topic), recall_handle=handle)
    assert (await port.call("RecallMessage", request)).status.code == code
    assert port.harness.store.put_calls == []


# Transactions


def half(body: bytes = b"half", **system):
    return message(body, "TRANSACTION", message_type=MessageType.TRANSACTION, **system)


def end(sent, resolution=TransactionResolution.COMMIT, **more) -> s.EndTransactionRequest:
    (entry,) = sent.entries
    values = {
        "topic": Resource(name="TRANSACTION"),
        "message_id": entry.message_id,
        "transaction_id": entry.transaction_id,
        "resolution": resolution,
        "source": TransactionSource.SOURCE_CLIENT,
    }
    return s.EndTransactionRequest(**values | more)


async def test_a_transaction_is_committed_or_rolled_back_once(opened):
    port = await typed(opened)
    sent = [await port.send(half(b"%d" % n, message_id=f"id{n}")) for n in range(3)]
    assert [one.body for one in port.stored(HALF_TOPIC)] == [b"0", b"1", b"2"]
    assert port.stored("TRANSACTION") == []
    assert port.parts.transactions.metrics.count("TRANSACTION") == 3
    ends = [end(sent[0]), end(sent[0]), end(sent[1], TransactionResolution.ROLLBACK), end(sent[1])]
    for request in ends:
        assert (await port.call("EndTransaction", request)).status.code == Code.OK
    assert [one.body for one in port.stored("TRANSACTION")] == [b"0"]
    assert port.parts.transactions.metrics.count("TRANSACTION") == 1
    (one,) = port.stored("TRANSACTION")
    assert one.properties["PGROUP"] == "TRANSACTION" and one.properties["UNIQ_KEY"] == "id0"
    unknown = end(sent[2], TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED)
    assert (await port.call("EndTransaction", unknown)).status.code == Code.OK
    assert port.parts.transactions.metrics.count("TRANSACTION") == 1


WRONG_ENDS = {
    "no id": ({"transaction_id": " "}, Code.INVALID_TRANSACTION_ID),
    "no place": ({"transaction_id": "x"}, Code.INTERNAL_SERVER_ERROR),
    "another place": ({"transaction_id": transaction_ids.encode(7, 0)}, Code.INTERNAL_SERVER_ERROR),
    "another offset of the log": ({"transaction_id": transaction_ids.encode(0, 7)}, Code.INTERNAL_SERVER_ERROR),
    "beyond all offsets": ({"transaction_id": "F" * 32}, Code.INTERNAL_SERVER_ERROR),
    "another message": ({"message_id": "id9"}, Code.INTERNAL_SERVER_ERROR),
    "another topic": ({"topic": Resource(name="MIXED")}, Code.INTERNAL_SERVER_ERROR),
    "no topic": ({"topic": Resource()}, Code.ILLEGAL_TOPIC),
}  # fmt: skip


@pytest.mark.parametrize(("wrong", "code"), WRONG_ENDS.values(), ids=WRONG_ENDS)
async def test_an_end_that_means_no_transaction_changes_nothing(opened, wrong, code):
    port = await typed(opened)
    sent = await port.send(half())
    answer = await port.call("EndTransaction", end(sent, **wrong))
    assert answer.status.code == code
    assert port.stored("TRANSACTION") == []
    assert (await port.call("EndTransaction", end(sent))).status.code == Code.OK
    assert len(port.stored("TRANSACTION")) == 1


async def test_an_end_after_the_time_of_the_producer_needs_a_check(opened):
    port = await typed(opened)
    born = Timestamp()
    born.FromMilliseconds(port.harness.now_ms)
    sent = await port.send(
        half(orphaned_transaction_recovery_duration=Duration(seconds=30), born_timestamp=born)
    )
    port.harness.now_ms += 31_000
    answer = await port.call("EndTransaction", end(sent))
    assert answer.status.code == Code.INTERNAL_SERVER_ERROR and "immunity" in answer.status.message
    checked = end(sent, source=TransactionSource.SOURCE_SERVER_CHECK)
    assert (await port.call("EndTransaction", checked)).status.code == Code.OK
    assert len(port.stored("TRANSACTION")) == 1


async def test_a_broker_that_takes_no_transactions_says_so(opened):
    port = await typed(opened, reject_transaction_message=True)
    answer = await port.send(half())
    assert answer.status.code == Code.INTERNAL_SERVER_ERROR and "forbidden" in answer.status.message
    assert port.harness.store.put_calls == []


async def test_a_transaction_of_a_topic_with_a_percent_sign_is_recovered(opened):
    port = await typed(opened, transaction_time_out=1_000, transaction_check_interval=1_000)
    port.parts.topics.put(TopicConfig("n%T", 4, 4, attributes={"message.type": "TRANSACTION"}))
    call, _ = await connected(port, of_producer("n%T"))
    sent = await port.send(message(b"silent", "n%T", message_type=MessageType.TRANSACTION))
    for _ in range(10):
        port.harness.now_ms += 1_000
        port.parts.transactions.step(port.harness.now_ms)
    question = (await call.read()).recover_orphaned_transaction_command
    assert question.message.topic == Resource(name="n%T")
    answer = end(
        sent,
        topic=question.message.topic,
        transaction_id=question.transaction_id,
        source=TransactionSource.SOURCE_SERVER_CHECK,
    )
    assert (await port.call("EndTransaction", answer)).status.code == Code.OK
    assert [one.body for one in port.stored("n%T")] == [b"silent"]


async def test_a_producer_is_asked_about_its_silent_transactions(opened):
    port = await typed(opened, transaction_time_out=1_000, transaction_check_interval=1_000)
    call, _ = await connected(port, of_producer("TRANSACTION", "NORMAL"))
    sent = await port.send(half(b"silent", user={"color": "red"}, tag="TagA", keys=["k1", "k2"]))
    for _ in range(10):
        port.harness.now_ms += 1_000
        port.parts.transactions.step(port.harness.now_ms)
    question = (await call.read()).recover_orphaned_transaction_command
    given = question.message
    assert (given.body, given.topic.name, dict(given.user_properties)["color"]) == (
        b"silent",
        "TRANSACTION",
        "red",
    )
    system = given.system_properties
    assert (system.message_id, system.tag, list(system.keys), system.message_type) == (
        "01AA", "TagA", ["k1", "k2"], MessageType.TRANSACTION,
    )  # fmt: skip
    assert not system.HasField("receipt_handle")
    answer = end(sent, transaction_id=question.transaction_id, source=TransactionSource.SOURCE_SERVER_CHECK)
    assert (await port.call("EndTransaction", answer)).status.code == Code.OK
    assert [one.body for one in port.stored("TRANSACTION")] == [b"silent"]
    # The id of the first copy means the same transaction.
    assert (await port.call("EndTransaction", end(sent))).status.code == Code.OK
    assert len(port.stored("TRANSACTION")) == 1
    call.cancel()


async def test_a_producer_is_known_while_its_telemetry_is_open(opened):
    port = await typed(opened)
    call, _ = await connected(port, of_producer("TRANSACTION", "NORMAL"))
    assert {name: len(members) for name, members in port.parts.clients.producer_groups().items()} == {
        "TRANSACTION": 1, "NORMAL": 1,
    }  # fmt: skip
    await call.done_writing()
    await until(lambda: port.parts.clients.producer_groups() == {})


# What is refused

REFUSED = {
    "no queue for writing": (message(topic="ReadOnly"), Code.FORBIDDEN),
    "too late": (message(topic="DELAY", delivery_timestamp=Timestamp(seconds=1 << 40)), Code.ILLEGAL_DELIVERY_TIME),
    "negative priority": (message(topic="MIXED", priority=-1), Code.BAD_REQUEST),
    "lite topic of a topic for all types": (
        message(topic="MIXED", lite_topic="a"), Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
    ),
    "id with a separator": (message(message_id="a\x01b"), Code.ILLEGAL_MESSAGE_ID),
    "name of light queues": (message(user={"INNER_MULTI_DISPATCH": "q"}), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
    "property without a name": (message(user={"": "x"}), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
}  # fmt: skip


@pytest.mark.parametrize(("sent", "code"), REFUSED.values(), ids=REFUSED)
async def test_a_message_that_may_not_be_stored_is_refused(opened, sent, code):
    port = await typed(opened)
    # None of a call is stored when one is refused.
    answer = await port.send(sent)
    assert (answer.status.code, len(answer.entries)) == (code, 0)
    assert port.harness.store.put_calls == [] and sum(port.parts.statistics.refusals.counts().values()) == 1


async def test_a_call_with_several_messages_delays_none(opened):
    port = await typed(opened)
    delayed = message(b"later", "MIXED", delivery_timestamp=after(port, MINUTE_MS))
    for messages in ([delayed, delayed], [message(topic="MIXED"), delayed]):
        assert (await port.send(*messages)).status.code == Code.BAD_REQUEST
    assert port.harness.store.put_calls == []


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        (["a", " ", "\0"], "whitespace"),
        (["a", "\0", " "], "control character"),
        (["a", "\u00a0"], None),  # blank for Python, not for Java
        (["", "a", "", "b"], None),
    ],
)
async def test_the_first_wrong_key_is_named(opened, keys, text):
    port = await opened()
    (entry,) = (answer := await port.send(message(keys=keys))).entries or [None]
    if text is None:
        assert entry.status.code == Code.OK
        (stored,) = port.stored()
        assert stored.properties["KEYS"] == " ".join(filter(None, keys))
    else:
        assert answer.status.code == Code.ILLEGAL_MESSAGE_KEY and text in answer.status.message


async def test_the_keys_of_a_call_are_bounded(opened, monkeypatch):
    """85 messages with 16,000 keys each took a turn of 2 s: sends of others were refused after 0.5 s."""
    port = await opened()
    monkeypatch.setattr(unparsed, "MAX_KEYS_OF_CALL", 6)
    of_three = message(keys=["k"] * 3)
    assert (await port.send(of_three, of_three)).status.code == Code.OK
    answer = await port.send(of_three, of_three, message(keys=[""]))
    assert (answer.status.code, len(port.stored())) == (Code.ILLEGAL_MESSAGE_KEY, 2)
    assert port.parts.statistics.refusals.counts() == {"key": 1}


@pytest.mark.parametrize("topic", ["PRIORITY", "MIXED"])
async def test_a_priority_is_kept_and_chooses_the_queue(topic, opened):
    port = await typed(opened)
    for priority in (7, 0, 2, 2, (1 << 31) - 1):
        assert (await port.send(message(topic=topic, priority=priority))).status.code == Code.OK
    found = [
        [one.properties["_SYS_MSG_PRIORITY_"] for one in port.harness.store.messages(topic, queue_id)]
        for queue_id in range(4)
    ]
    assert found == [["0"], [], ["2", "2"], ["7", "2147483647"]]


async def test_a_message_that_waits_or_is_in_order_has_no_priority(opened):
    port = await typed(opened)
    for number, special in enumerate(
        (
            {"message_group": "group1"},
            {"delivery_timestamp": after(port, MINUTE_MS)},
            {"message_type": MessageType.TRANSACTION},
        )
    ):
        sent = message(topic="MIXED", message_id=f"id{number}", priority=7, **special)
        assert (await port.send(sent)).status.code == Code.OK
    stored = [*port.stored("MIXED"), *port.stored(TIMER_TOPIC), *port.stored(HALF_TOPIC)]
    assert {one.properties["UNIQ_KEY"] for one in stored} == {"id0", "id1", "id2"}
    assert not [one for one in stored if "_SYS_MSG_PRIORITY_" in one.properties]
    (in_order,) = port.stored("MIXED")
    assert in_order.queue_id == consistent_hash(java_hash("group1"), 4)


async def test_the_messages_of_one_call_stay_together_and_keep_their_priorities(opened):
    """Apache's proxy sends them as one batch, and its broker reads no priority in it."""
    port = await typed(opened)
    sent = [message(topic="PRIORITY", message_id=f"id{number}", priority=number) for number in (3, 1)]
    assert (await port.send(*sent)).status.code == Code.OK
    stored = port.stored("PRIORITY")
    assert [one.properties["_SYS_MSG_PRIORITY_"] for one in stored] == ["3", "1"]
    assert len({one.queue_id for one in stored}) == 1


@pytest.fixture
async def refusing(opened):
    """A port with the topics of the golden refusals."""
    port = await opened(recall_message_enable=True)
    for topic, kind in grpc_refusals.TOPICS.items():
        attributes = {"message.type": kind} if kind else {}
        perm = 4 if topic == grpc_refusals.READ_ONLY else 6
        port.parts.topics.put(TopicConfig(topic, 4, 4, perm=perm, attributes=attributes))
    return port


@pytest.mark.parametrize("name", grpc_refusals.CASES)
async def test_what_is_refused_is_answered_as_apaches_proxy_did(refusing, name):
    case = grpc_refusals.CASES[name]
    channel = refusing.connect(**{"grpc.max_send_message_length": 64 << 20})
    answer = await refusing.call(case.method, case.request(refusing.harness.now_ms), channel=channel)
    found = grpc_refusals.status_of(answer)
    if name in grpc_refusals.DIFFERENT:
        assert found[0] == grpc_refusals.DIFFERENT[name][0]
    else:
        assert found == grpc_refusals.golden()[name]
    # None of a call is stored when one is refused.
    assert refusing.harness.store.put_calls == []
    assert sum(refusing.parts.statistics.refusals.counts().values()) == 1
    await channel.close()


async def sent_settings(port, size: int, client_id: str):
    """A Telemetry whose settings have this size, and how it was answered: a code, or a status of gRPC."""
    settings = of_producer()
    settings.user_agent.hostname = "h" * (size - settings.ByteSize() - 8)
    call, answer = await connected(port, settings, (("x-mq-client-id", client_id),))
    return call, answer.status.code if answer is not grpc.aio.EOF else await call.code()


async def test_the_settings_that_are_kept_of_clients_are_bounded(opened, monkeypatch):
    port = await typed(opened)
    most = clients_module.MAX_SETTINGS_BYTES
    monkeypatch.setattr(clients_module, "MAX_ALL_SETTINGS_BYTES", 2 * most)
    calls = [await sent_settings(port, most - 100, f"client-{number}") for number in (1, 2, 1)]
    assert [code for _, code in calls] == [Code.OK] * 3
    for size, cause in ((most + 100, "settings"), (most - 100, "settings of all clients")):
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await sent_settings(port, size, "client-3")
        assert failed.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert port.parts.statistics.refusals.counts()[cause] == 1
    for call, _ in calls:
        call.cancel()
    await until(lambda: not port.service._clients._settings_bytes)
    assert (await sent_settings(port, most - 100, "client-3"))[1] == Code.OK
