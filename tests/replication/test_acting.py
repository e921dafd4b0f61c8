"""A slave that acts for its master: reads and commits go on, what waits escapes to another master, and the master
takes over what has changed when it comes again. All of ours, in one process."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from broker_store.broker.pop import revive
from broker_store.client import Producer, PullConsumer, TransactionProducer
from broker_store.config.load import load_settings
from broker_store.formats import record
from broker_store.formats.topics import HALF_TOPIC, SCHEDULE_TOPIC
from broker_store.messages import GetRequest
from broker_store.protocol.codes import RequestCode as R
from broker_store.protocol.command import Command
from broker_store.replication import follower
from broker_store.server import acting, escapes, master_link
from broker_store.server.channel import connect
from tests.replication.test_pair import Pair, has_all
from tests.support.pop_calls import bodies, pop_fields, receipts
from tests.support.ports import free_port, server_ports
from tests.support.waits import LIMIT_S, until

ACTS = {
    "enableSlaveActingMaster": "true",
    "enableRemoteEscape": "true",
    "brokerHeartbeatInterval": "100",
    "syncBrokerMemberGroupPeriod": "100",
    "brokerNotActiveTimeoutMillis": "2000",
}


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(follower, "RETRY_S", 0.05)
    monkeypatch.setattr(master_link, "INTERVAL_S", 0.05)
    monkeypatch.setattr(escapes, "HALVES_INTERVAL_S", 0.05)


class Group(Pair):
    """A master, its slave, and another master whose process has the name server."""

    def __init__(self, root, stack):
        super().__init__(root, stack)
        self.ha_port, self.port = str(free_port()), str(server_ports()[1])

    async def start_other(self, **given):
        settings = {"supportActingMaster": "true", "scanNotActiveBrokerInterval": "100"} | given
        self.other = await self._run(self.process("other", brokerName="other", **settings))
        self.nameserver = f"127.0.0.1:{self.other.name_server_port.listener.port}"

    async def start_master(self, **given):
        settings = {"haListenPort": self.ha_port, "listenPort": self.port, "namesrvAddr": self.nameserver}
        self.master = await self._run(self.process("master", **settings, **ACTS, **given))
        return self.master

    async def start_slave(self, name="slave", number=1, **given):
        return await super().start_slave(name, number, **{**ACTS, **given})

    async def create(self, topic, *brokers):
        async def ask(admin):
            for broker in brokers:
                name = broker.parts.broker_name
                await admin.create_topic(topic, read_queues=1, write_queues=1, broker_name=name)

        await self.admin(ask)
        names, routes = [broker.parts.broker_name for broker in brokers], self.other.parts.nameserver.routes
        await until(lambda: all(name in routes.topics.get(topic, ()) for name in names))


@pytest.fixture
async def group(tmp_path, request):
    async with AsyncExitStack() as stack:
        made = Group(tmp_path, stack)
        await made.start_other(**getattr(request, "param", {}))
        yield made


async def route_of(group, topic):
    return await group.admin(lambda admin: admin.route(topic))


async def ask(broker, code, fields, body=b""):
    channel = await connect("127.0.0.1", broker.parts.endpoint.store_host[1], 3)
    try:
        return await channel.request(
            Command.request(int(code), {name: str(value) for name, value in fields.items()}, body), LIMIT_S
        )
    finally:
        channel.close()


async def test_the_slave_is_read_as_master_and_its_commits_are_taken_over(group, monkeypatch):
    master = await group.start_master()
    slave = await group.start_slave()
    await group.create("Orders", master)
    await group.send(20, "Orders")
    await until(lambda: has_all(slave, master) and slave.parts.topics.get("Orders") is not None)
    master.parts.offsets.commit("readers", "Orders", 0, 3)
    await until(lambda: slave.parts.offsets.query("readers", "Orders", 0) == 3)
    assert not slave.parts.replication.is_acting
    await master.stop()
    await until(lambda: slave.parts.replication.is_acting)
    route = await route_of(group, "Orders")
    (broker,) = route.brokers
    assert broker.addresses == {0: slave.parts.endpoint.address} and [
        queue.perm for queue in route.queues
    ] == [4]
    async with PullConsumer("readers", group.nameserver) as consumer:
        (queue,) = await consumer.queues("Orders")
        assert await consumer.committed(queue) == 3
        assert (await consumer.min_offset(queue), await consumer.max_offset(queue)) == (0, 20)
        pulled = await consumer.pull(queue, 3)
        assert len(pulled.messages) == 17
        await consumer.commit(queue, 20)
    await until(lambda: slave.parts.offsets.query("readers", "Orders", 0) == 20)
    slave.broker._save_offsets()
    take_over = acting.Acting.take_over

    async def take_over_late(self):
        await until(lambda: slave.parts.replication.has_master)
        assert slave.parts.replication.tables.error == master_link.ACTS
        await take_over(self)

    monkeypatch.setattr(acting.Acting, "take_over", take_over_late)
    master = await group.start_master()
    assert master.parts.offsets.query("readers", "Orders", 0) == 20
    await until(lambda: not slave.parts.replication.is_acting)
    await group.send(5, "Orders")
    await until(lambda: has_all(slave, master))
    assert slave.parts.offsets.query("readers", "Orders", 0) == 20
    assert (await route_of(group, "Orders")).brokers[0].addresses[0] == master.parts.endpoint.address


async def test_a_master_that_skips_it_keeps_its_own_offsets(group):
    master = await group.start_master()
    slave = await group.start_slave()
    await group.create("Orders", master)
    await group.send(20, "Orders")
    master.parts.offsets.commit("readers", "Orders", 0, 3)
    await until(lambda: has_all(slave, master) and slave.parts.offsets.query("readers", "Orders", 0) == 3)
    await master.stop()
    await until(lambda: slave.parts.replication.is_acting)
    slave.parts.offsets.commit("readers", "Orders", 0, 20)
    slave.broker._save_offsets()
    master = await group.start_master(skipPreOnline="true")
    assert master.parts.offsets.query("readers", "Orders", 0) == 3


async def test_a_broker_reports_that_it_lives_and_is_gone_after_its_own_time(group):
    master = await group.start_master()
    routes = group.other.parts.nameserver.routes
    place = "DefaultCluster", master.parts.endpoint.address
    await until(lambda: place in routes.live)
    live = routes.live[place]
    assert live.timeout_ms == 2_000 and routes.brokers["pair"].enable_acting_master
    first_ms = live.last_update_ms
    await until(lambda: live.last_update_ms > first_ms)
    assert not routes.brokers["other"].enable_acting_master


async def test_of_two_slaves_the_lowest_acts(group):
    master = await group.start_master()
    first, second = await group.start_slave("first", 1), await group.start_slave("second", 2)
    await until(lambda: has_all(first, master) and has_all(second, master))
    await master.stop()
    await until(lambda: first.parts.replication.is_acting)
    assert not second.parts.replication.is_acting
    await first.stop()
    await until(lambda: second.parts.replication.is_acting)


async def test_without_the_setting_no_slave_acts(group):
    master = await group.start_master()
    slave = await group.start_slave(enableSlaveActingMaster="false")
    await until(lambda: has_all(slave, master))
    await master.stop()
    routes = group.other.parts.nameserver.routes
    await until(lambda: 0 not in routes.brokers["pair"].addresses)
    assert not slave.parts.replication.is_acting


async def test_a_delayed_message_escapes_to_another_master_and_comes_once(group):
    master = await group.start_master()
    slave = await group.start_slave()
    await group.create("Late", master)
    async with Producer(group.nameserver) as producer:
        for number in range(3):
            await producer.send("Late", b"%d" % number, delay_level=3, keys=f"k{number}")
    await until(lambda: has_all(slave, master))
    assert master.store.reads.max_offset(SCHEDULE_TOPIC, 2) == 3
    await group.create("Late", group.other)
    await master.stop()
    other = group.other.store.reads
    await until(lambda: other.max_offset("Late", 0) == 3)
    async with PullConsumer("readers", group.nameserver) as consumer:
        queue = next(one for one in await consumer.queues("Late") if one.broker_name == "other")
        found = (await consumer.pull(queue, 0)).messages
    assert sorted(message.body for message in found) == [b"0", b"1", b"2"]
    assert {key for message in found for key in message.keys} == {"k0", "k1", "k2"}
    await until(lambda: slave.parts.delay.facts()[0].waiting == 0)
    master = await group.start_master()
    assert master.parts.delay.facts()[0].waiting == 0
    assert master.store.reads.max_offset("Late", 0) == 0


async def test_timer_messages_escape_at_their_time_and_come_once(group):
    master = await group.start_master()
    slave = await group.start_slave()
    await group.create("Late", master)
    async with Producer(group.nameserver) as producer:
        for number, delay_s in enumerate((1, 12, 13, 600)):
            await producer.send("Late", b"%d" % number, queue_id=0, delay_s=delay_s)
    await until(lambda: master.store.reads.max_offset("Late", 0) == 1)
    await until(lambda: has_all(slave, master) and slave.parts.timer.queue.offset == 4)
    await until(lambda: slave.parts.timer.facts().waiting <= 3)  # the first is delivered
    await group.create("Late", group.other)
    await master.stop()
    other = group.other.store.reads
    await until(lambda: other.max_offset("Late", 0) > 0)
    master = await group.start_master()
    await until(lambda: not slave.parts.replication.is_acting)
    await until(lambda: other.max_offset("Late", 0) + master.store.reads.max_offset("Late", 0) == 3)
    async with PullConsumer("readers", group.nameserver) as consumer:
        bodies = [
            message.body
            for queue in await consumer.queues("Late")
            for message in (await consumer.pull(queue, 0)).messages
        ]
    assert sorted(bodies) == [b"0", b"1", b"2"]
    assert master.parts.timer.facts().waiting == 1
    await until(lambda: slave.parts.timer.facts().waiting == 1)


async def test_popped_messages_come_again_at_another_master_and_timer_messages_go_on(group, monkeypatch):
    monkeypatch.setattr(revive, "OTHERS_GRACE_MS", 500)
    master = await group.start_master()
    slave = await group.start_slave()
    await group.create("Orders", master)
    async with Producer(group.nameserver) as producer:
        for number in range(3):
            await producer.send("Orders", b"%d" % number)
        await producer.send("Orders", b"timed", delay_s=8)
    group.other.parts.groups.find_or_create("CG")
    popped = await ask(
        master, R.POP_MESSAGE, pop_fields(topic="Orders", invisible_ms=8_000)
    )  # the master has gone by then
    assert popped.code == 0 and bodies(popped) == [b"0", b"1", b"2"]
    topic, queue_id, receipt, offset = receipts(popped, master)[b"0"]
    acked = {
        "consumerGroup": "CG",
        "topic": topic,
        "queueId": queue_id,
        "extraInfo": receipt,
        "offset": offset,
    }
    assert (await ask(master, R.ACK_MESSAGE, acked)).code == 0
    await group.create("Orders", group.other)
    await until(lambda: has_all(slave, master))
    await until(lambda: slave.parts.timer.queue.offset == master.parts.timer.queue.offset)
    await master.stop()
    other = group.other.store.reads
    retry = "%RETRY%CG_Orders"
    await until(lambda: other.max_offset(retry, 0) == 2)
    await until(lambda: other.max_offset("Orders", 0) == 1)
    found = record.decode_all(other.get(GetRequest(retry, 0, 0, 3)).body, check_crc=True)
    assert [stored.body for stored in found] == [b"1", b"2"]
    # And the master leaves out what was sent
    master = await group.start_master()
    await until(lambda: not slave.parts.replication.is_acting and master.parts.timer.facts().waiting == 0)
    assert master.store.reads.max_offset(retry, 0) == 0


async def test_what_a_slave_sends_while_it_is_stopped_is_sent_once(group, monkeypatch):
    """It waits for the message that is being sent, and saves that it was."""
    master = await group.start_master()
    slave = await group.start_slave()
    await group.create("Late", master)
    async with Producer(group.nameserver) as producer:
        for number in range(3):
            await producer.send("Late", b"%d" % number, delay_level=3)
            await producer.send("Late", b"%d timed" % number, queue_id=0, delay_s=10)
    await until(lambda: has_all(slave, master) and slave.parts.timer.queue.offset == 3)
    await group.create("Late", group.other)
    other, answers = group.other.store.reads, asyncio.Event()
    send = escapes.EscapeBridge.send

    async def slow(self, message, producer_group, popped):
        is_sent = await send(self, message, producer_group, popped)
        if is_sent:
            await answers.wait()
        return is_sent

    monkeypatch.setattr(escapes.EscapeBridge, "send", slow)
    await master.stop()
    await until(lambda: other.max_offset("Late", 0) == 2)  # a delayed one and a timed one
    stopping = asyncio.ensure_future(slave.stop())
    await asyncio.sleep(0)
    answers.set()
    await stopping
    slave = await group.start_slave()
    await until(lambda: slave.parts.replication.is_acting and other.max_offset("Late", 0) == 6)
    await until(lambda: slave.parts.delay.facts()[0].waiting == slave.parts.timer.facts().waiting == 0)
    async with PullConsumer("readers", group.nameserver) as consumer:
        queue = next(one for one in await consumer.queues("Late") if one.broker_name == "other")
        found = [message.body for message in (await consumer.pull(queue, 0)).messages]
    assert sorted(found) == sorted(
        [b"%d" % number for number in range(3)] + [b"%d timed" % number for number in range(3)]
    )


async def test_a_master_that_comes_is_waited_for_and_without_it_the_slave_sends_again(group, monkeypatch):
    monkeypatch.setattr(acting, "PAUSE_S", 0.5)
    master = await group.start_master()
    slave = await group.start_slave()
    await group.create("Late", master)
    async with Producer(group.nameserver) as producer:
        await producer.send("Late", b"late", queue_id=0, delay_s=10)
    await until(lambda: has_all(slave, master) and slave.parts.timer.queue.offset == 1)
    await group.create("Late", group.other)
    await master.stop()
    await until(lambda: slave.parts.timer.role.escape is not None)
    comes = {"masterHaAddress": "127.0.0.1:1", "masterAddress": "127.0.0.1:2"}
    assert (await ask(slave, R.EXCHANGE_BROKER_HA_INFO, comes)).code == 0
    assert slave.parts.timer.role.escape is None and slave.parts.delay.escape is None
    assert slave.parts.replication.is_acting
    await until(lambda: slave.parts.timer.role.escape is not None)
    await until(lambda: group.other.store.reads.max_offset("Late", 0) == 1)


async def test_a_half_escapes_to_another_master_which_asks_its_producer(group):
    master = await group.start_master()
    slave = await group.start_slave()
    await group.create("Paid", master)
    asked = []
    producer = TransactionProducer(group.nameserver, "payers", lambda message: asked.append(message) or True)
    async with producer:
        await producer.begin("Paid", b"open", keys=["order"])
        await until(lambda: has_all(slave, master) and slave.store.reads.max_offset(HALF_TOPIC, 0) == 1)
        await group.create("Paid", group.other)
        await master.stop()
        other = group.other.store.reads
        await until(lambda: other.max_offset(HALF_TOPIC, 0) == 1)
    (half,) = _halves(group.other)
    assert half == (b"open", "Paid", "payers")
    await until(lambda: slave.parts.offsets.query("CID_RMQ_SYS_TRANS", HALF_TOPIC, 0) == 1)
    slave.broker._save_offsets()
    master = await group.start_master()
    assert master.parts.offsets.query("CID_RMQ_SYS_TRANS", HALF_TOPIC, 0) == 1


def _halves(broker):
    result = broker.store.reads.get(GetRequest(HALF_TOPIC, 0, 0))
    return [
        (half.body, half.properties["REAL_TOPIC"], half.properties["PGROUP"])
        for half in record.decode_all(result.body)
    ]


async def test_905_lets_a_slave_look_at_once_and_states_nothing(group):
    master = await group.start_master()
    slave = await group.start_slave(syncBrokerMemberGroupPeriod="60000")
    await until(lambda: has_all(slave, master))
    await master.stop()
    channel = await connect("127.0.0.1", slave.parts.endpoint.store_host[1], 3)
    lie = {"minBrokerId": "0", "minBrokerAddr": "10.0.0.1:10911"}
    assert (await channel.request(Command.request(int(R.NOTIFY_MIN_BROKER_ID_CHANGE), lie), 3)).code == 0
    await until(lambda: slave.parts.replication.is_acting)
    channel.close()


@pytest.mark.parametrize("group", [{"notifyMinBrokerIdChanged": "true"}], indirect=True)
async def test_a_name_server_that_notifies_lets_a_slave_act_and_end_at_once(group):
    master = await group.start_master()
    slave = await group.start_slave(syncBrokerMemberGroupPeriod="60000")
    routes, notices = group.other.parts.nameserver.routes, group.other.name_server_port.notices
    await until(lambda: has_all(slave, master) and 1 in routes.brokers["pair"].addresses)
    await master.stop()
    await until(lambda: slave.parts.replication.is_acting)
    assert (notices.sent, notices.failed) == (1, 0)
    await group.start_master()
    await until(lambda: not slave.parts.replication.is_acting)
    assert (notices.sent, notices.failed) == (2, 0)


async def test_906_states_the_addresses_of_a_master_and_takes_those_of_the_sender_alone(group):
    master = await group.start_master()
    slave = await group.start_slave()
    await until(lambda: slave.parts.replication.master is not None)
    channel = await connect("127.0.0.1", int(group.port), 3)
    answer = await channel.request(Command.request(int(R.EXCHANGE_BROKER_HA_INFO), {}), 3)
    assert answer.fields["masterHaAddress"] == f"127.0.0.1:{group.ha_port}"
    assert answer.fields["masterAddress"] == master.parts.endpoint.address
    channel.close()
    channel = await connect("127.0.0.1", slave.parts.endpoint.store_host[1], 3)
    foreign = {"masterHaAddress": "10.0.0.1:10912", "masterAddress": "10.0.0.1:10911"}
    answer = await channel.request(Command.request(int(R.EXCHANGE_BROKER_HA_INFO), foreign), 3)
    assert answer.code == 16 and "must send this itself" in answer.remark
    assert slave.parts.replication.master.ha == f"127.0.0.1:{group.ha_port}"
    channel.close()


def test_the_settings_are_off_unless_set():
    settings = load_settings(overrides={}).broker
    assert not settings.enable_slave_acting_master and not settings.enable_remote_escape
