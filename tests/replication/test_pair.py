"""A master and a slave, both of ours, in one process: log, tables, acknowledgements, roles."""

import asyncio
import dataclasses
from contextlib import AsyncExitStack

import pytest

from broker_store.assembly import BrokerProcess
from broker_store.broker.topics import TopicConfig
from broker_store.client import Admin, Producer
from broker_store.client.errors import ClientError
from broker_store.config.load import load_settings
from broker_store.formats import timer_check
from broker_store.formats.static_topics import MappingItem, TopicMapping
from broker_store.messages import Message, PutStatus
from broker_store.protocol.codes import RequestCode as R
from broker_store.protocol.command import Command
from broker_store.replication import follower
from broker_store.server import master_link
from broker_store.server.channel import connect
from broker_store.server.listener import bind, listen
from mqadmin.cluster.embedded.replication import replication_of
from tests.engine.test_log_copy import log_of
from tests.support.hand_store import message
from tests.support.ports import free_port
from tests.support.waits import LIMIT_S, until

SMALL = {
    "mappedFileSizeCommitLog": "65536",
    "maxHashSlotNum": "50",
    "maxIndexNum": "200",
    "grpcServerPort": "0",
}


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(follower, "RETRY_S", 0.05)
    monkeypatch.setattr(master_link, "INTERVAL_S", 0.05)


class Pair:
    """`start` starts the two; `master` and `slave` are theirs."""

    def __init__(self, root, stack):
        self.root, self._stack = root, stack
        self.nameserver = ""

    def process(self, name, **given):
        settings = load_settings(
            None,
            SMALL | {"listenPort": "0", "brokerName": "pair"} | given,
            store_root=self.root / name,
        )
        name_server = dataclasses.replace(settings.name_server, listen_port=0)
        return BrokerProcess(
            dataclasses.replace(settings, name_server=name_server),
            with_name_server=not settings.broker.namesrv_addr,
        )

    async def _run(self, process):
        await process.start()
        self._stack.push_async_callback(process.stop)
        return process

    async def start_master(self, **given):
        self.master = await self._run(self.process("master", **{"haListenPort": "0", **given}))
        self.nameserver = f"127.0.0.1:{self.master.name_server_port.listener.port}"
        return self.master

    async def start_slave(self, name="slave", number=1, **given):
        return await self._run(
            self.process(name, brokerRole="SLAVE", brokerId=str(number), namesrvAddr=self.nameserver, **given)
        )

    async def admin(self, ask):
        async with Admin(self.nameserver, timeout=LIMIT_S) as one:
            return await ask(one)

    async def send(self, count, topic="Copied", size=300):
        async with Producer(self.nameserver, timeout=LIMIT_S) as producer:
            return [await producer.send(topic, bytes(size), keys=f"key{number}") for number in range(count)]


@pytest.fixture
async def pair(tmp_path):
    async with AsyncExitStack() as stack:
        yield Pair(tmp_path, stack)


def has_all(slave, master):
    return slave.store.log.wrote == master.store.log.wrote


async def test_a_slave_has_log_and_tables_of_its_master_and_refuses_sends(pair):
    master = await pair.start_master(haListenPort=str(free_port()))
    await pair.admin(lambda admin: admin.create_topic("Copied", read_queues=2, write_queues=2))
    await pair.admin(lambda admin: admin.create_group("readers", retryMaxTimes=3))
    await pair.send(300)
    slave = await pair.start_slave()
    await until(lambda: has_all(slave, master) and slave.parts.topics.get("Copied") is not None)
    await pair.send(30)
    master.parts.offsets.commit("readers", "Copied", 1, 7)
    await until(lambda: has_all(slave, master) and slave.parts.offsets.query("readers", "Copied", 1) == 7)
    assert log_of(slave.store) == log_of(master.store)
    assert slave.parts.groups.get("readers").retry_max_times == 3
    for queue_id in (0, 1):
        end = master.store.reads.max_offset("Copied", queue_id)
        assert slave.store.reads.max_offset("Copied", queue_id) == end > 0
        units = master.store.reads.read_units("Copied", queue_id, 0, end)
        assert slave.store.reads.read_units("Copied", queue_id, 0, end) == units
    route = await pair.admin(lambda admin: admin.route("Copied"))
    (broker,) = route.brokers
    assert broker.addresses == {0: master.parts.endpoint.address, 1: slave.parts.endpoint.address}
    assert slave.store.appender.put(message("Copied")).status is PutStatus.SERVICE_NOT_AVAILABLE
    assert slave.store.rejects_sends == "slave"


async def test_requests_at_once_share_one_connection_to_the_master(pair, monkeypatch):
    await pair.start_master(haListenPort=str(free_port()))
    slave = await pair.start_slave()
    link, opened, connect_to = slave.parts.replication.tables, [], master_link.connect_to
    await until(lambda: link.error is None)

    async def connecting(*given, **more):
        opened.append(given)
        return await connect_to(*given, **more)

    monkeypatch.setattr(master_link, "connect_to", connecting)
    link._channel.abort()
    await until(lambda: link._channel.closed)
    master = slave.parts.replication.master
    await asyncio.gather(*(link.log_of_master(master) for _ in range(3)))
    assert len(opened) == 1


async def test_a_master_that_does_not_answer_is_connected_anew(pair, monkeypatch):
    await pair.start_master(haListenPort=str(free_port()))
    slave = await pair.start_slave()
    link, connect_to = slave.parts.replication.tables, master_link.connect_to
    await until(lambda: link.error is None)
    opened, silent = [], await listen(lambda command, channel: None, bind("127.0.0.1", 0))

    async def connecting(address, *given, **more):
        if not opened:
            address = f"127.0.0.1:{silent.port}"
        opened.append(await connect_to(address, *given, **more))
        return opened[-1]

    monkeypatch.setattr(master_link, "connect_to", connecting)
    monkeypatch.setattr(master_link, "TIMEOUT_S", 0.2)
    link._channel.abort()
    await until(lambda: len(opened) > 1 and link.error is None)
    assert opened[0].closed
    await silent.close()


async def ha_status(process):
    host, _, port = process.parts.endpoint.address.rpartition(":")
    channel = await connect(host, int(port), 5)
    answer = await channel.request(Command.request(int(R.GET_BROKER_HA_STATUS), {}), 5)
    channel.abort()
    return answer.body


async def test_a_slave_has_the_mapping_of_a_static_topic_and_reads_by_logical_offsets(pair):
    master = await pair.start_master(haListenPort=str(free_port()))
    await pair.admin(lambda admin: admin.create_topic("Copied", read_queues=2, write_queues=2))
    rows = {0: (MappingItem(1, 1, "pair", 10_000),)}
    master.parts.static_topics.put(TopicMapping("Copied", 1, "pair", 1, rows))
    await pair.admin(lambda admin: admin.create_group("readers"))
    stored = await master.parts.sends.put(Message("Copied", 1, b"x", b"", 0, 0, 0))
    assert stored.queue_offset == 0
    slave = await pair.start_slave()
    await until(lambda: slave.parts.static_topics.table == master.parts.static_topics.table != {})
    await until(lambda: slave.store.reads.max_offset("Copied", 1) == 1)
    fields = {"topic": "Copied", "queueId": "0"}
    address = slave.parts.endpoint.address
    answer = await pair.admin(lambda admin: admin.ask(address, R.GET_MAX_OFFSET, fields))
    assert answer.fields == {"offset": "10001"}
    master.parts.static_topics.delete("Copied")
    await until(lambda: not slave.parts.static_topics.table)


async def test_what_the_master_deletes_is_deleted_at_the_slave(pair):
    await pair.start_master(haListenPort=str(free_port()))
    for topic in ("Gone", "Stays"):
        await pair.admin(lambda admin, topic=topic: admin.create_topic(topic, read_queues=1, write_queues=1))
        await pair.send(3, topic)
    slave = await pair.start_slave()
    await until(
        lambda: slave.store.reads.max_offset("Gone", 0) == slave.store.reads.max_offset("Stays", 0) == 3
    )
    await until(lambda: slave.parts.topics.get("Gone") is not None)
    await pair.admin(lambda admin: admin.delete_topic("Gone"))
    await until(lambda: slave.parts.topics.get("Gone") is None)
    assert slave.store.queue_ids("Gone") == [] and slave.store.reads.max_offset("Stays", 0) == 3


async def test_a_sync_master_refuses_sends_without_slaves_and_waits_for_them(pair):
    master = await pair.start_master(brokerRole="SYNC_MASTER", haListenPort=str(free_port()))
    await pair.admin(lambda admin: admin.create_topic("Copied", read_queues=1, write_queues=1))
    assert "slaves_missing" in master.store.flags
    with pytest.raises(ClientError, match="in-sync replicas not enough"):
        await pair.send(1)
    assert master.store.log.wrote == 0
    slave = await pair.start_slave()
    await until(lambda: "slaves_missing" not in master.store.flags)
    await pair.send(50)
    assert slave.store.reads.max_offset("Copied", 0) == master.store.reads.max_offset("Copied", 0) == 50
    status = await ha_status(master)
    assert b'"inSyncSlaveNums":1' in status and b'"master":true' in status
    assert b'"master":false' in await ha_status(slave)
    await slave.stop()
    await until(lambda: "slaves_missing" in master.store.flags)
    with pytest.raises(ClientError, match="in-sync replicas not enough"):
        await pair.send(1)


async def test_a_sync_master_with_a_pool_answers_when_slaves_have_it(pair):
    pool = {"transientStorePoolEnable": "true", "brokerRole": "SYNC_MASTER"}
    master = await pair.start_master(haListenPort=str(free_port()), **pool)
    await pair.admin(lambda admin: admin.create_topic("Copied", read_queues=1, write_queues=1))
    slave = await pair.start_slave()
    await until(lambda: "slaves_missing" not in master.store.flags)
    await pair.send(50)
    assert slave.store.reads.max_offset("Copied", 0) == master.store.reads.max_offset("Copied", 0) == 50
    assert log_of(slave.store) == log_of(master.store)


async def test_a_slave_that_stops_taking_leaves_the_send_stored_and_late(pair, monkeypatch):
    master = await pair.start_master(
        brokerRole="SYNC_MASTER", haListenPort=str(free_port()), slaveTimeout="100"
    )
    await pair.admin(lambda admin: admin.create_topic("Copied", read_queues=1, write_queues=1))
    slave = await pair.start_slave()
    await until(lambda: "slaves_missing" not in master.store.flags)
    monkeypatch.setattr(slave.parts.replication.follower, "_report", lambda receiving: None)
    (result,) = await pair.send(1)
    assert result.status == "FLUSH_SLAVE_TIMEOUT"
    assert master.store.reads.max_offset("Copied", 0) == 0


async def test_another_store_is_no_copy_and_stays_as_it_is(pair):
    master = await pair.start_master(haListenPort=str(free_port()))
    await pair.admin(lambda admin: admin.create_topic("Copied", read_queues=1, write_queues=1))
    await pair.send(20)
    alone = pair.process("other", brokerName="alone")
    await alone.start()
    nameserver, pair.nameserver = pair.nameserver, f"127.0.0.1:{alone.name_server_port.listener.port}"
    await pair.admin(lambda admin: admin.create_topic("Copied", read_queues=1, write_queues=1))
    await pair.send(10)
    held = log_of(alone.store)
    await alone.stop()
    pair.nameserver = nameserver
    slave = await pair.start_slave("other")
    await until(lambda: slave.parts.replication.follower.has_stopped)
    assert "start with an empty store" in slave.store.flags["copy_stopped"]
    assert log_of(slave.store) == held and master.parts.replication.positions() == []


async def test_records_of_deleted_topics_are_compared_too(pair):
    master = await pair.start_master(haListenPort=str(free_port()))
    await pair.admin(lambda admin: admin.create_topic("Copied", read_queues=1, write_queues=1))
    await pair.send(20)
    alone = pair.process("other", brokerName="alone")
    await alone.start()
    nameserver, pair.nameserver = pair.nameserver, f"127.0.0.1:{alone.name_server_port.listener.port}"
    await pair.admin(lambda admin: admin.create_topic("Gone", read_queues=1, write_queues=1))
    await pair.send(10, "Gone")
    await pair.admin(lambda admin: admin.delete_topic("Gone"))
    assert alone.store.queue_ids("Gone") == []
    held = log_of(alone.store)
    await alone.stop()
    pair.nameserver = nameserver
    slave = await pair.start_slave("other")
    await until(lambda: slave.parts.replication.follower.has_stopped)
    assert "start with an empty store" in slave.store.flags["copy_stopped"]
    assert log_of(slave.store) == held and master.parts.replication.positions() == []


async def test_a_copy_that_ends_with_a_deleted_topic_goes_on(pair):
    port = str(free_port())
    master = await pair.start_master(haListenPort=port)
    await pair.admin(lambda admin: admin.create_topic("Gone", read_queues=1, write_queues=1))
    await pair.send(10, "Gone")
    slave = await pair.start_slave()
    await until(lambda: has_all(slave, master) and slave.parts.topics.get("Gone") is not None)
    await pair.admin(lambda admin: admin.delete_topic("Gone"))
    await until(lambda: slave.parts.topics.get("Gone") is None)
    assert slave.store.queue_ids("Gone") == master.store.queue_ids("Gone") == []
    address = f"127.0.0.1:{port}"
    await slave.stop()
    await master.stop()
    master = await pair.start_master(
        haListenPort=port
    )  # it knows of the records that they are of a deleted topic
    slave = await pair.start_slave(haMasterAddress=address)
    await until(lambda: slave.parts.replication.follower.master == address)
    await pair.admin(lambda admin: admin.create_topic("Copied", read_queues=1, write_queues=1))
    await pair.send(5)
    await until(lambda: has_all(slave, master) and slave.store.reads.max_offset("Copied", 0) == 5)
    assert log_of(slave.store) == log_of(master.store)


async def test_a_master_that_is_set_is_copied_whatever_its_name_server_says(pair):
    port = free_port()
    master = await pair.start_master(haListenPort=str(port))
    await pair.admin(lambda admin: admin.create_topic("Copied", read_queues=1, write_queues=1))
    await pair.send(5)
    slave = await pair.start_slave(haMasterAddress=f"localhost:{port}")
    await until(lambda: has_all(slave, master))
    assert slave.parts.replication.follower.master == f"localhost:{port}"


@pytest.mark.parametrize(
    ("given", "opens"),
    [({}, False), ({"brokerRole": "SYNC_MASTER"}, True), ({"brokerRole": "SLAVE", "brokerId": "1"}, False)],
)
async def test_the_ha_port_is_open_where_there_may_be_slaves(given, opens, pair):
    process = pair.process("alone", **given, listenPort=str(free_port(-2, 1)))
    await process.start()
    try:
        assert bool(process.parts.replication.port) == opens
        if opens:
            assert (
                process.parts.replication.port == int(process.parts.endpoint.address.rpartition(":")[2]) + 1
            )
    finally:
        await process.stop()


async def test_a_slave_far_behind_is_not_in_step(pair):
    master = await pair.start_master(haListenPort=str(free_port()), haMaxGapNotInSync="1000")
    slave = await pair.start_slave()
    await until(lambda: master.parts.replication.positions())
    slave.parts.replication.follower._report = lambda receiving: None
    await until(lambda: master.parts.replication.positions()[0].reported is not None)
    await pair.admin(lambda admin: admin.create_topic("Copied", read_queues=1, write_queues=1))
    await pair.send(20)
    (position,) = master.parts.replication.positions()
    assert position.behind > 1000 and not position.is_in_step


async def test_a_slave_finds_a_master_that_comes_later_and_comes_again_elsewhere(pair):
    slave = pair.process("slave", brokerRole="SLAVE", brokerId="1")
    await pair._run(slave)
    names = f"127.0.0.1:{slave.name_server_port.listener.port}"
    assert slave.parts.replication.master is None
    for _ in range(2):
        master = pair.process("master", haListenPort=str(free_port()), namesrvAddr=names)
        await master.start()
        await until(lambda master=master: slave.parts.replication.follower.master == master.parts.ha_address)
        await master.stop()
        await until(lambda: not slave.parts.replication.has_master)


async def test_the_facts_of_both_say_who_has_what(pair):
    master = await pair.start_master(brokerRole="SYNC_MASTER", haListenPort=str(free_port()))
    await pair.admin(lambda admin: admin.create_topic("Copied", read_queues=1, write_queues=1))
    slave = await pair.start_slave()
    await until(lambda: "slaves_missing" not in master.store.flags)
    await pair.send(5)
    of_master, of_slave = await asyncio.to_thread(
        lambda: (replication_of(master.parts), replication_of(slave.parts))
    )
    (one,) = of_master.slaves
    assert one.reported == of_master.wrote == of_slave.wrote > 0 and one.behind_bytes == 0
    assert (of_master.needed, of_master.in_step, of_master.failover_loses_bytes) == (1, 1, 0)
    assert of_master.ha_port == master.parts.replication.port and of_master.master is None
    found = of_slave.master
    assert found.connected and found.error is None and found.end == of_slave.wrote
    assert found.broker_address == master.parts.endpoint.address and found.silent_ms < 10_000
    assert of_slave.slaves == [] and of_slave.failover_loses_bytes is None
    await slave.stop()
    await until(lambda: not master.parts.replication.positions())
    assert replication_of(master.parts).failover_loses_bytes == 0, "it has its copy still"


async def test_a_slave_that_becomes_the_master_delivers_what_is_not_delivered(pair):
    master = await pair.start_master(haListenPort=str(free_port()))
    await pair.admin(lambda admin: admin.create_topic("Timed", read_queues=1, write_queues=1))
    slave = await pair.start_slave()
    await until(lambda: slave.parts.replication.has_master)
    due_ms = master.parts.clock() + 1_000
    async with Producer(pair.nameserver) as producer:
        for delay_s in (1, 3_600, 7_200):
            await producer.send("Timed", b"timed", queue_id=0, delay_s=delay_s)
    await until(lambda: slave.store.reads.max_offset("Timed", 0) == 1)
    path = slave.store.root / timer_check.PATH
    await until(lambda: path.exists() and timer_check.decode(path.read_bytes()).read_ms > due_ms)
    await until(lambda: timer_check.decode(path.read_bytes()).queue_offset == 3)
    await slave.stop()
    await master.stop()
    promoted = await pair._run(pair.process("slave"))
    promoted.broker.step()
    timer = promoted.parts.timer
    assert timer.facts().waiting == 2 and timer.counts["enqueued"] == 0  # it had them on its wheel
    assert promoted.store.reads.max_offset("Timed", 0) == 1 and timer.counts["dropped"] == 0
    pair.nameserver = f"127.0.0.1:{promoted.name_server_port.listener.port}"
    await pair.send(1, "Timed")
    assert promoted.store.reads.max_offset("Timed", 0) == 2


async def test_with_access_control_a_slave_signs_what_it_requests(pair):
    credentials = '{"accessKey": "replica", "secretKey": "a-secret-of-both"}'
    control = {
        "authenticationEnabled": "true",
        "authorizationEnabled": "true",
        "innerClientAuthenticationCredentials": credentials,
    }
    master = await pair.start_master(haListenPort=str(free_port()), **control)
    # Without an entry there the slave takes the topic for deleted, and has no record to compare
    master.parts.topics.put(TopicConfig("Copied", 2, 2))
    for number in range(20):
        assert master.store.appender.put(message("Copied", queue_id=number % 2)).ok
    slave = await pair.start_slave(**control)
    await until(lambda: has_all(slave, master) and slave.parts.replication.tables.error is None)
    await slave.stop()
    for number in range(20):
        assert master.store.appender.put(message("Copied", queue_id=number % 2)).ok
    again = await pair.start_slave(**control)  # it compares its last record
    await until(lambda: has_all(again, master))
    assert log_of(again.store) == log_of(master.store)
    await again.stop()
    unsigned = await pair.start_slave()
    await until(lambda: "answered" in (unsigned.parts.replication.follower.error or ""))
    assert unsigned.parts.replication.follower.master is None
