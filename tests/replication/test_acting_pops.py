"""A slave that acts for its master gives messages to pops: their records go to another master, which lets them come
again. All of ours, in one process."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack

import grpc
import grpc.aio
import pytest
from google.protobuf.duration_pb2 import Duration

from broker_store.broker.pop import revive
from broker_store.formats import record
from broker_store.messages import GetRequest
from broker_store.protocol.codes import RequestCode as R
from broker_store.protocol.codes import ResponseCode
from broker_store.protocol.grpc.v2.definition_pb2 import Code, FilterExpression, MessageQueue, Resource
from broker_store.protocol.grpc.v2.service_pb2 import AckMessageEntry
from broker_store.server import master_link
from broker_store.server.escape import EscapeBridge
from tests.replication.test_acting import Group, ask, soon  # noqa: F401  # soon is used by each test
from tests.replication.test_pair import has_all
from tests.support.bit_set import write_bits
from tests.support.grpc_calls import call_of, request_of
from tests.support.pop_calls import bodies, pop_fields, receipts
from tests.support.ports import free_port
from tests.support.waits import until

RETRY = "%RETRY%CG_Orders"
INVISIBLE_MS = 6_000  # more than a busy machine needs between two requests


@pytest.fixture
async def group(tmp_path, monkeypatch):
    monkeypatch.setattr(revive, "OTHERS_GRACE_MS", 500)
    async with AsyncExitStack() as stack:
        made = Group(tmp_path, stack)
        await made.start_other()
        yield made


async def acting(group, messages=3, *, has_topic=True, **given):
    """Return the slave of a master that is gone, with messages of `Orders`, which the other master has too."""
    master = await group.start_master()
    slave = await group.start_slave(**given)
    await group.create("Orders", *([master, group.other] if has_topic else [master]))
    if messages:
        await send(group, master, messages)
    master.parts.groups.find_or_create("CG")
    await until(lambda: has_all(slave, master) and slave.parts.groups.get("CG") is not None)
    await until(lambda: slave.parts.topics.get("Orders") is not None)
    await master.stop()
    await until(lambda: slave.parts.revive_log.elsewhere is not None)
    return slave


async def send(group, broker, messages):
    before = broker.store.reads.max_offset("Orders", 0)
    for number in range(before, before + messages):
        fields = {
            "producerGroup": "PG", "topic": "Orders", "defaultTopic": "TBW102", "defaultTopicQueueNums": 4,
            "queueId": 0, "sysFlag": 0, "bornTimestamp": 1, "reconsumeTimes": 0, "unitMode": "false", "flag": 0, "properties": f"UNIQ_KEY\x01U{number}\x02",
        }  # fmt: skip
        assert (await ask(broker, R.SEND_MESSAGE, fields, b"%d" % number)).code == 0
    await until(lambda: broker.store.reads.max_offset("Orders", 0) == before + messages)


async def pop(broker, **given):
    return await ask(
        broker, R.POP_MESSAGE, pop_fields(topic="Orders", **{"invisible_ms": INVISIBLE_MS} | given)
    )


def of_receipt(receipt):
    topic, queue_id, text, offset = receipt
    return {
        "consumerGroup": "CG",
        "topic": topic,
        "queueId": queue_id,
        "extraInfo": text,
        "offset": offset,
    }


async def ack(broker, receipt):
    return await ask(broker, R.ACK_MESSAGE, of_receipt(receipt))


async def change(broker, receipt, invisible_ms):
    return await ask(
        broker, R.CHANGE_MESSAGE_INVISIBLETIME, of_receipt(receipt) | {"invisibleTime": invisible_ms}
    )


def came_again(broker):
    """The bodies in the retry topic of a broker."""
    end = broker.store.reads.max_offset(RETRY, 0)
    if not end:
        return []
    found = broker.store.reads.get(GetRequest(RETRY, 0, 0, end)).body
    return [stored.body for stored in record.decode_all(found, check_crc=True)]


async def is_finished(broker):
    """Wait until a broker has finished all records of pops that it has."""
    await until(
        lambda: (
            broker.parts.timer.facts().waiting == 0
            and broker.parts.timer.facts().not_enqueued == 0
            and broker.parts.revive.in_hand == 0
        )
    )


async def test_what_is_not_acknowledged_comes_again_at_the_other_master_and_the_offset_is_kept(group):
    slave = await acting(group)
    popped = await pop(slave)
    assert popped.code == 0 and bodies(popped) == [b"0", b"1", b"2"]
    assert (await ack(slave, receipts(popped, slave)[b"1"])).code == 0
    assert (await pop(slave)).code == ResponseCode.POLLING_TIMEOUT  # all three are invisible
    await until(lambda: came_again(group.other) == [b"0", b"2"])
    await is_finished(group.other)
    # And there the group is given them
    again = await pop(group.other)
    assert bodies(again) == [b"0", b"2"]
    for receipt in receipts(again, group.other).values():
        assert (await ack(group.other, receipt)).code == 0
    await is_finished(group.other)
    assert came_again(group.other) == [b"0", b"2"]
    # The master goes on where its slave was
    slave.broker._save_offsets()
    master = await group.start_master()
    await until(lambda: not slave.parts.replication.is_acting)
    assert master.parts.offsets.query("CG", "Orders", 0) == 3
    assert (await pop(master)).code == ResponseCode.POLLING_TIMEOUT
    refused = await pop(slave)
    assert refused.code == ResponseCode.SYSTEM_ERROR and "only while it acts for its master" in refused.remark
    await send(group, master, 1)
    assert bodies(await pop(master)) == [b"3"]


async def test_without_another_master_of_the_topic_no_message_is_given(group):
    slave = await acting(group, has_topic=False)
    refused = await pop(slave)
    assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "no other master of the cluster has stored it" in refused.remark
    assert slave.parts.offsets.query("CG", "Orders", 0) == 0 and not refused.body
    await group.create("Orders", group.other)
    popped = refused
    while popped.code == ResponseCode.SERVICE_NOT_AVAILABLE:  # the routes are asked for again soon
        popped = await pop(slave)
    assert bodies(popped) == [b"0", b"1", b"2"]


async def test_without_remote_escape_a_slave_gives_no_messages(group):
    master = await group.start_master()
    slave = await group.start_slave(enableRemoteEscape="false")
    await group.create("Orders", master)
    await until(lambda: has_all(slave, master) and slave.parts.topics.get("Orders") is not None)
    refused = await pop(slave)
    assert refused.code == ResponseCode.SYSTEM_ERROR and "enableRemoteEscape=true" in refused.remark
    await master.stop()
    await until(lambda: slave.parts.replication.is_acting)
    refused = await pop(slave)
    assert refused.code == ResponseCode.SYSTEM_ERROR and "enableRemoteEscape=true" in refused.remark


async def test_a_message_whose_record_is_not_known_to_be_stored_is_not_given_and_comes_again(
    group, monkeypatch
):
    """The answer of the other master is lost."""
    slave = await acting(group, messages=1)
    sends = EscapeBridge.send

    async def loses_the_answer(self, *given):
        assert await sends(self, *given) == "other"

    with monkeypatch.context() as patched:
        patched.setattr(EscapeBridge, "send", loses_the_answer)
        refused = await pop(slave)
    assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE and not refused.body
    popped = await pop(slave)
    assert bodies(popped) == [b"0"]
    assert (await ack(slave, receipts(popped, slave)[b"0"])).code == 0
    await until(lambda: came_again(group.other) == [b"0"])  # by the record of the first pop
    await is_finished(group.other)
    assert came_again(group.other) == [b"0"]


async def test_an_acknowledgement_that_is_not_stored_is_not_answered_as_if(group, monkeypatch):
    slave = await acting(group, messages=1)
    popped = await pop(slave)
    receipt = receipts(popped, slave)[b"0"]

    async def fails(self, *given):
        return None

    with monkeypatch.context() as patched:
        patched.setattr(EscapeBridge, "send", fails)
        refused = await ack(slave, receipt)
        assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
    await until(lambda: came_again(group.other) == [b"0"])


async def test_another_invisible_time_counts_from_the_change(group):
    slave = await acting(group, messages=2)
    found = receipts(await pop(slave), slave)
    changed = await change(slave, found[b"0"], 60_000)
    assert changed.code == 0 and changed.fields["invisibleTime"] == "60000"
    assert (await ack(slave, found[b"1"])).code == 0
    # A receipt is over when its message has another
    for receipt in found.values():
        refused = await change(slave, receipt, 1_000)
        assert refused.code == ResponseCode.MESSAGE_ILLEGAL and "is not invisible" in refused.remark
    await until(lambda: group.other.parts.timer.facts().waiting == 1)  # the checkpoint of a minute
    await until(lambda: group.other.parts.revive.in_hand == 0)
    assert came_again(group.other) == []
    topic, queue_id, text, offset = found[b"0"]
    kind, name = text.split(" ")[4:6]
    pop_ms = changed.fields["popTime"]
    again = f"{offset} {pop_ms} 60000 {changed.fields['reviveQid']} {kind} {name} {queue_id} {offset}"
    assert (await change(slave, (topic, queue_id, again, offset), 500)).code == 0
    await until(lambda: came_again(group.other) == [b"0"])


async def test_a_batch_of_acknowledgements_is_answered_when_it_is_stored(group):
    slave = await acting(group, messages=4)
    found = receipts(await pop(slave), slave)
    start, pop_ms, invisible_ms, revive_queue, kind, *_ = found[b"0"][2].split(" ")
    entry = {
        "c": "CG", "t": "Orders", "r": kind, "so": int(start), "q": 0, "rq": int(revive_queue),
        "pt": int(pop_ms), "it": int(invisible_ms), "b": write_bits([0, 1, 3]),
    }  # fmt: skip
    answer = await ask(slave, R.BATCH_ACK_MESSAGE, {}, batch(entry))
    assert answer.code == 0
    await until(lambda: came_again(group.other) == [b"2"])
    await is_finished(group.other)
    assert came_again(group.other) == [b"2"]


def batch(*entries):
    return json.dumps({"acks": list(entries), "brokerName": "pair"}).encode()


async def test_pops_in_order_wait_for_the_master(group):
    slave = await acting(group)
    for code, more in ((R.POP_MESSAGE, {"order": "true"}), (R.NOTIFICATION, {"order": "true"})):
        refused = await ask(slave, code, pop_fields(topic="Orders", **more))
        assert refused.code == ResponseCode.SYSTEM_ERROR and "pops in order wait" in refused.remark
    popped = await pop(slave)
    topic, queue_id, text, offset = receipts(popped, slave)[b"0"]
    words = text.split(" ")
    words[3] = "999"
    for asked in (ack, lambda broker, receipt: change(broker, receipt, 1_000)):
        refused = await asked(slave, (topic, queue_id, " ".join(words), offset))
        assert refused.code == ResponseCode.SYSTEM_ERROR and "pops in order wait" in refused.remark
    entry = {
        "c": "CG", "t": "Orders", "r": "0", "so": 0, "q": 0, "rq": 999, "pt": int(words[1]), "it": 1_000,
        "b": write_bits([0]),
    }  # fmt: skip
    refused = await ask(slave, R.BATCH_ACK_MESSAGE, {}, batch(entry))
    assert refused.code == ResponseCode.SYSTEM_ERROR and "pops in order wait" in refused.remark


async def test_an_acting_slave_shows_messages_and_says_whether_there_are_some(group):
    slave = await acting(group)
    fields = pop_fields(topic="Orders")
    assert bodies(await ask(slave, R.PEEK_MESSAGE, fields)) == [b"0", b"1", b"2"]
    assert (await ask(slave, R.NOTIFICATION, fields)).fields["hasMsg"] == "true"
    assert bodies(await pop(slave)) == [b"0", b"1", b"2"]  # a peek leaves them visible
    assert (await ask(slave, R.NOTIFICATION, fields)).fields["hasMsg"] == "false"


async def test_what_the_master_gave_last_is_not_given_again_by_its_slave(group, monkeypatch):
    """The offsets of the slave are older than the pop; the copied log has its record."""
    master = await group.start_master()
    slave = await group.start_slave()
    await group.create("Orders", master, group.other)
    await send(group, master, 3)
    master.parts.groups.find_or_create("CG")
    await until(lambda: slave.parts.groups.get("CG") is not None and has_all(slave, master))
    monkeypatch.setattr(master_link, "INTERVAL_S", 60)
    tables = slave.parts.replication.tables
    taken_ms = tables.taken_ms
    await until(lambda: tables.taken_ms != taken_ms)  # from now on none is taken
    assert bodies(await pop(master, count=2)) == [b"0", b"1"]
    await until(lambda: has_all(slave, master))
    assert slave.parts.offsets.query("CG", "Orders", 0) is None
    await master.stop()
    await until(lambda: slave.parts.revive_log.elsewhere is not None)
    assert slave.parts.offsets.query("CG", "Orders", 0) == 2
    assert bodies(await pop(slave)) == [b"2"]


async def test_a_pop_whose_time_ends_while_its_record_is_sent_is_answered_with_its_messages(
    group, monkeypatch
):
    slave = await acting(group, messages=1)
    receipt = receipts(await pop(slave), slave)[b"0"]
    assert (await ack(slave, receipt)).code == 0
    waiting = asyncio.ensure_future(pop(slave, poll_ms=60_000))
    await until(lambda: slave.parts.parked_pops.count == 1)
    sends, goes_on, begun = EscapeBridge.send, asyncio.Event(), asyncio.Event()

    async def slow(self, *given):
        begun.set()
        await goes_on.wait()
        return await sends(self, *given)

    monkeypatch.setattr(EscapeBridge, "send", slow)
    slave.parts.pop_positions.commit("CG", "Orders", 0, 0)  # the group is set back, and its pop woken
    await begun.wait()
    for parked in slave.parts.parked_pops.take_all():
        slave.broker.router.pops._give_up(parked)
    goes_on.set()
    assert bodies(await waiting) == [b"0"]
    assert slave.parts.offsets.query("CG", "Orders", 0) == 1


async def test_an_offset_that_is_set_while_a_record_is_sent_stays(group, monkeypatch):
    slave = await acting(group)
    sends = EscapeBridge.send

    async def slow(self, *given):
        slave.parts.pop_positions.commit("CG", "Orders", 0, 1)
        return await sends(self, *given)

    with monkeypatch.context() as patched:
        patched.setattr(EscapeBridge, "send", slow)
        assert bodies(await pop(slave)) == [b"0", b"1", b"2"]
    assert slave.parts.offsets.query("CG", "Orders", 0) == 1
    assert bodies(await pop(slave)) == [b"1", b"2"]


async def test_a_master_that_comes_waits_for_the_record_that_is_sent_and_takes_its_offset_over(
    group, monkeypatch
):
    slave = await acting(group)
    sends, goes_on, begun = EscapeBridge.send, asyncio.Event(), asyncio.Event()

    async def slow(self, *given):
        begun.set()
        await goes_on.wait()
        return await sends(self, *given)

    monkeypatch.setattr(EscapeBridge, "send", slow)
    popping = asyncio.ensure_future(pop(slave, invisible_ms=60_000))
    await begun.wait()
    starting = asyncio.ensure_future(group.start_master())
    await until(lambda: slave.parts.revive_log.elsewhere is None)  # the master has notified it
    goes_on.set()
    assert bodies(await popping) == [b"0", b"1", b"2"]
    master = await starting
    assert master.parts.offsets.query("CG", "Orders", 0) == 3


@pytest.mark.parametrize("in_batch", [False, True])
async def test_the_master_takes_the_acknowledgement_of_what_its_slave_gave(group, in_batch):
    slave = await acting(group)
    found = receipts(await pop(slave, invisible_ms=10_000), slave)
    master = await group.start_master()
    await until(lambda: not slave.parts.replication.is_acting)
    if in_batch:
        words = found[b"0"][2].split(" ")
        entry = {
            "c": "CG", "t": "Orders", "r": "0", "so": 0, "q": 0, "rq": int(words[3]), "pt": int(words[1]),
            "it": 10_000, "b": write_bits([0, 1]),
        }  # fmt: skip
        assert (await ask(master, R.BATCH_ACK_MESSAGE, {}, batch(entry))).code == 0
    else:
        for body in (b"0", b"1"):
            assert (await ack(master, found[body])).code == 0
    await until(lambda: came_again(group.other) == [b"2"])
    await is_finished(group.other)
    assert came_again(group.other) == [b"2"] and came_again(master) == []


async def test_what_the_master_gave_may_be_acknowledged_at_its_slave(group):
    """The record of the pop waits in the timer of the slave, and goes where the acknowledgement is."""
    master = await group.start_master()
    slave = await group.start_slave()
    await group.create("Orders", master, group.other)
    await send(group, master, 3)
    master.parts.groups.find_or_create("CG")
    found = receipts(await pop(master, invisible_ms=10_000), master)
    await until(lambda: has_all(slave, master) and slave.parts.groups.get("CG") is not None)
    await until(lambda: slave.parts.timer.queue.offset == master.parts.timer.queue.offset)
    await master.stop()
    await until(lambda: slave.parts.revive_log.elsewhere is not None)
    assert (await ack(slave, found[b"1"])).code == 0
    await until(lambda: came_again(group.other) == [b"0", b"2"])
    await is_finished(group.other)
    assert came_again(group.other) == [b"0", b"2"]


async def test_a_client_of_rocketmq_5_receives_at_an_acting_slave(group):
    port = free_port()
    await acting(group, grpcServerPort=str(port))
    topic, consumers = Resource(name="Orders"), Resource(name="CG")
    metadata = (("x-mq-client-id", "client-1"), ("x-mq-language", "PYTHON"))
    received = request_of(
        "ReceiveMessage",
        group=consumers,
        message_queue=MessageQueue(topic=topic),
        filter_expression=FilterExpression(expression="*"),
        batch_size=8,
        invisible_duration=Duration(seconds=10),
        long_polling_timeout=Duration(seconds=5),
    )
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = call_of(channel, "ReceiveMessage")(received, metadata=metadata, timeout=30)
        answers = [answer async for answer in call]
        assert answers[0].status.code == Code.OK, answers[0]
        given = {
            answer.message.body: answer.message.system_properties.receipt_handle for answer in answers[1:-1]
        }
        assert list(given) == [b"0", b"1", b"2"]
        acked = request_of(
            "AckMessage",
            group=consumers,
            topic=topic,
            entries=[AckMessageEntry(message_id=str(n), receipt_handle=given[b"%d" % n]) for n in (0, 2)],
        )
        answer = await call_of(channel, "AckMessage")(acked, metadata=metadata, timeout=30)
        assert answer.status.code == Code.OK, answer
    await until(lambda: came_again(group.other) == [b"1"])
    await is_finished(group.other)
    assert came_again(group.other) == [b"1"]
