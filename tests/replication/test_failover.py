"""Brokers of a set whose master a controller elects, in one process: roles, epochs, the sync state set, cuts."""

import asyncio
import threading
from contextlib import AsyncExitStack

import pytest

from broker_store.assembly import BrokerProcess, build_name_server
from broker_store.client import Admin, Producer
from broker_store.config.load import load_settings
from broker_store.config.name_server import NameServerSettings
from broker_store.engine.store import wall_clock_ms
from broker_store.errors import ConfigError, DamagedStoreError, StoreError
from broker_store.formats import epochs
from broker_store.messages import PutStatus
from broker_store.protocol.codes import RequestCode as R
from broker_store.protocol.codes import ResponseCode
from broker_store.protocol.command import Command
from broker_store.replication import follower, sync_state_set
from broker_store.server import controller_role, master_link, member, registration
from broker_store.server.channel import connect
from broker_store.server.nameserver_port import NameServerPort
from mqadmin.cluster.embedded.replication import replication_of
from tests.engine.test_log_copy import log_of
from tests.support.controller import Controller
from tests.support.hand_store import message
from tests.support.ports import free_port
from tests.support.waits import LIMIT_S, until

SMALL = {
    "mappedFileSizeCommitLog": "65536",
    "maxHashSlotNum": "50",
    "maxIndexNum": "200",
    "grpcServerPort": "0",
    "brokerName": "set",
    "enableControllerMode": "true",
    "brokerHeartbeatInterval": "100",
    "syncBrokerMetadataPeriod": "200",
    "checkSyncStateSetPeriod": "200",
}


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(follower, "RETRY_S", 0.05)
    monkeypatch.setattr(master_link, "INTERVAL_S", 0.05)
    monkeypatch.setattr(member, "RETRY_S", 0.05)
    monkeypatch.setattr(registration, "RETRY_S", 0.05)
    monkeypatch.setattr(controller_role, "RETRY_S", 0.1)


class Set:
    """`start` starts a broker of the set; `controller` and a name server run."""

    def __init__(self, root, stack, controller, nameserver, routes):
        self._root, self._stack, self.controller, self.nameserver = root, stack, controller, nameserver
        self._routes = routes
        self._ports = {}

    def addresses(self):
        """Id -> address, as clients see the set."""
        known = self._routes.brokers.get("set")
        return {} if known is None else known.addresses

    def process(self, name, **given):
        port = self._ports.setdefault(name, free_port(-2, 1))
        settings = load_settings(
            None,
            SMALL
            | {
                "listenPort": str(port),
                "namesrvAddr": self.nameserver,
                "controllerAddr": self.controller.address,
            }
            | given,
            store_root=self._root / name,
        )
        return BrokerProcess(settings, with_name_server=False)

    async def start(self, name, **given):
        process = self.process(name, **given)
        await process.start()
        self._stack.push_async_callback(process.stop)
        return process

    async def send(self, count, topic="Copied", size=300):
        async with Producer(self.nameserver, timeout=LIMIT_S) as producer:
            return [await producer.send(topic, bytes(size), keys=f"key{number}") for number in range(count)]

    async def create(self, topic="Copied"):
        await until(lambda: self.addresses().get(0))
        async with Admin(self.nameserver) as admin:
            await admin.create_topic(topic, read_queues=1, write_queues=1)
        await until(lambda: topic in self._routes.topics)


@pytest.fixture
async def brokers(tmp_path):
    async with AsyncExitStack() as stack:
        controller = await stack.enter_async_context(Controller())
        port = NameServerPort(build_name_server(NameServerSettings(), tmp_path / "namesrv"), wall_clock_ms)
        await port.start("127.0.0.1", 0)
        stack.push_async_callback(port.stop)
        yield Set(tmp_path, stack, controller, f"127.0.0.1:{port.listener.port}", port.nameserver.routes)


def is_master(process):
    return process.parts is not None and not process.parts.replication.is_slave


async def until_master(brokers, process):
    """Wait until a broker is the master, and clients find it."""
    await until(lambda: is_master(process) and brokers.addresses().get(0) == process.parts.endpoint.address)


def in_sync(process):
    return set(process.parts.replication.in_sync.members)


def has_all(slave, master):
    return slave.store.log.wrote == master.store.log.wrote > 0


async def started(brokers, **given):
    """A master with a slave that is in sync, and a topic."""
    first = await brokers.start("first", **given)
    second = await brokers.start("second", **given)
    assert is_master(first) and not is_master(second)
    await brokers.create()
    await brokers.send(5)
    await until(lambda: in_sync(first) == {1, 2} == brokers.controller.members)
    return first, second


async def test_the_first_broker_becomes_the_master_and_keeps_its_id(brokers):
    first = await brokers.start("first")
    root = first.store.root
    assert is_master(first) and first.settings.broker.broker_id == 0
    assert (root / "brokerIdentity").read_bytes() == b"DefaultCluster#set#1"
    assert not (root / "brokerIdentity-temp").exists()
    assert epochs.decode((root / epochs.FILE_NAME).read_bytes()) == ((1, 0),)
    beat = brokers.controller.beats[1]
    assert beat["brokerAddr"] == first.parts.endpoint.address
    await brokers.create()
    await brokers.send(3)
    await until(lambda: brokers.controller.beats[1]["maxOffset"] == str(first.store.log.wrote))
    assert brokers.controller.beats[1]["epoch"] == "1"
    await first.stop()
    again = await brokers.start("first")
    assert again.role.member.number == 1 and is_master(again)
    assert epochs.decode((root / epochs.FILE_NAME).read_bytes())[-1].number == brokers.controller.epoch == 2


async def test_heartbeats_say_what_the_settings_say(brokers):
    await brokers.start("first", controllerHeartBeatTimeoutMills="7000", brokerElectionPriority="3")
    beat = brokers.controller.beats[1]
    assert (beat["heartbeatTimeoutMills"], beat["electionPriority"]) == ("7000", "3")


async def test_a_controller_that_does_not_answer_delays_no_heartbeat_to_the_others(brokers):
    async with Controller() as silent:
        silent.mute.add(R.BROKER_HEARTBEAT)
        both = f"{brokers.controller.address};{silent.address}"
        await brokers.start("first", controllerAddr=both, sendHeartbeatTimeoutMillis="100")
        for _ in range(3):
            asked = brokers.controller.asked.count(R.BROKER_HEARTBEAT)
            await until(lambda asked=asked: brokers.controller.asked.count(R.BROKER_HEARTBEAT) > asked)
        assert silent.asked.count(R.BROKER_HEARTBEAT) > 1


async def test_another_controller_that_leads_is_found(brokers):
    async with Controller() as other:
        other.leads = False
        both = f"{other.address};{brokers.controller.address}"
        first = await brokers.start("first", controllerAddr=both, syncControllerMetadataPeriod="100")
        assert first.role.member.leader == brokers.controller.address
        other.codes, other.addresses = brokers.controller.codes, brokers.controller.addresses
        other.master, other.epoch = 1, 1
        other.leads, brokers.controller.leads = True, False
        await until(lambda: first.role.member.leader == other.address)
        await until(lambda: other.asked.count(R.CONTROLLER_GET_REPLICA_INFO) > 1)
        assert is_master(first)


async def test_an_id_that_another_broker_got_meanwhile_is_not_used(brokers):
    (brokers._root / "first").mkdir()
    (brokers._root / "first" / "brokerIdentity-temp").write_bytes(b"DefaultCluster#set#1#mine;1")
    brokers.controller.codes[1] = "another;1"
    first = await brokers.start("first")
    assert first.role.member.number == 2
    assert brokers.controller.codes == {1: "another;1", 2: brokers.controller.codes[2]}


async def test_a_request_for_an_id_is_repeated_with_its_code(brokers):
    (brokers._root / "first").mkdir()
    (brokers._root / "first" / "brokerIdentity-temp").write_bytes(b"DefaultCluster#set#1#mine;1")
    brokers.controller.codes[1] = "mine;1"
    first = await brokers.start("first")
    assert first.role.member.number == 1 and brokers.controller.codes == {1: "mine;1"}


@pytest.mark.parametrize("content", [b"DefaultCluster#other#1", b"nonsense"])
async def test_a_store_of_another_broker_is_not_taken(brokers, content):
    (brokers._root / "first").mkdir()
    (brokers._root / "first" / "brokerIdentity").write_bytes(content)
    with pytest.raises(DamagedStoreError):
        await brokers.start("first")


async def test_a_slave_joins_the_set_and_sends_wait_for_it(brokers):
    first, second = await started(brokers, slaveTimeout="200")
    await brokers.send(20)
    assert has_all(second, first) and log_of(second.store) == log_of(first.store)
    await until(lambda: second.store.reads.max_offset("Copied", 0) == 25)
    assert second.role.history.entries == first.role.history.entries == ((1, 0),)
    assert first.parts.replication.needed == 1
    second.parts.replication.follower._report = lambda receiving: None
    async with Producer(brokers.nameserver) as producer:
        sending = asyncio.ensure_future(producer.send("Copied", b"waits", keys="waits"))
        await until(lambda: first.store.log.wrote > second.store.confirmed)
        await asyncio.sleep(0)
        assert not sending.done() and first.store.confirmed < first.store.log.wrote
        receipt = await sending
    assert receipt.status == "FLUSH_SLAVE_TIMEOUT"


async def test_a_slave_that_stops_reporting_while_it_joins_delays_sends_for_a_moment(brokers, monkeypatch):
    monkeypatch.setattr(sync_state_set, "JOIN_S", 0.2)
    brokers.controller.refuses_sets = ResponseCode.CONTROLLER_BROKER_NOT_ALIVE
    first = await brokers.start("first")
    second = await brokers.start("second")
    await brokers.create()
    second.parts.replication.follower._report = lambda receiving: None
    await until(lambda: first.parts.replication.in_sync.counted == {1, 2})
    assert in_sync(first) == {1}
    await until(lambda: first.parts.replication.in_sync.counted == {1})
    assert {receipt.status for receipt in await brokers.send(3)} == {"SEND_OK"}


async def test_a_slave_that_ends_leaves_the_set_and_sends_go_on(brokers):
    first, second = await started(brokers)
    await second.stop()
    await until(lambda: in_sync(first) == {1} == brokers.controller.members)
    receipts = await brokers.send(5)
    assert {receipt.status for receipt in receipts} == {"SEND_OK"}
    assert first.parts.replication.needed == 0


async def test_a_slave_that_lacks_something_for_long_leaves_the_set(brokers):
    first, second = await started(brokers, haMaxTimeSlaveNotCatchup="300")
    second.parts.replication.follower._report = lambda receiving: None
    receipts = await brokers.send(1)
    await until(lambda: in_sync(first) == {1})
    assert {receipt.status for receipt in await brokers.send(3)} == {"SEND_OK"}
    assert receipts[0].status in ("SEND_OK", "FLUSH_SLAVE_TIMEOUT")


async def test_without_enough_brokers_in_sync_sends_are_refused(brokers):
    first, second = await started(brokers, minInSyncReplicas="2")
    await second.stop()
    await until(lambda: "slaves_missing" in first.store.flags)
    assert first.store.appender.put(message("Copied")).status is PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH
    second = await brokers.start("second", minInSyncReplicas="2")
    await until(lambda: "slaves_missing" not in first.store.flags)
    assert {receipt.status for receipt in await brokers.send(3)} == {"SEND_OK"}


async def test_when_the_master_is_lost_the_slave_takes_over_with_all_that_was_acknowledged(brokers):
    first, second = await started(brokers)
    receipts = await brokers.send(20)
    await first.stop()
    await until_master(brokers, second)
    assert second.settings.broker.broker_id == 0
    end = second.role.history.entries[-1].begin
    assert second.role.history.entries == ((1, 0), (2, end))
    assert all(int(one.offset_message_id[-16:], 16) < end for one in receipts)
    assert second.store.reads.max_offset("Copied", 0) == 25
    assert {receipt.status for receipt in await brokers.send(3)} == {"SEND_OK"}
    first = await brokers.start("first")
    assert not is_master(first) and first.settings.broker.broker_id == 1
    await until(lambda: has_all(first, second) and in_sync(second) == {1, 2})
    assert first.role.history.entries == second.role.history.entries
    assert log_of(first.store) == log_of(second.store)
    await second.stop()
    await until_master(brokers, first)
    assert {receipt.status for receipt in await brokers.send(3)} == {"SEND_OK"}
    assert first.store.reads.max_offset("Copied", 0) == 31


async def test_what_a_lost_master_had_alone_is_cut_before_it_copies(brokers, monkeypatch):
    first, second = await started(brokers)
    await brokers.send(10)
    second.parts.replication.follower.connect_again()
    monkeypatch.setattr(second.parts.replication.follower, "_find_master", lambda: None)
    await until(lambda: not first.parts.replication.feeder.slaves)
    end = second.store.log.wrote
    for _ in range(7):
        assert first.store.appender.put(message("Copied", queue_id=0)).ok
    alone = log_of(first.store)[end:]
    await first.stop()
    brokers.controller.members = {2}
    brokers.controller.elect(2)
    await until_master(brokers, second)
    await brokers.send(3)
    first = await brokers.start("first")
    await until(lambda: is_master(second) and first.parts is not None and has_all(first, second))
    await until(lambda: first.store.reads.max_offset("Copied", 0) == 18)
    assert log_of(first.store) == log_of(second.store)
    assert first.role.history.entries == second.role.history.entries == ((1, 0), (2, end))
    assert not (first.store.root / "cutLog").exists()
    kept = list((first.store.root.parent / "lost+found").rglob(f"*from-{end % 65536}"))
    assert [path.read_bytes() for path in kept] == [alone.rstrip(b"\0")]


async def test_a_master_that_has_lost_its_controller_acknowledges_nothing_alone(brokers):
    first, second = await started(brokers)
    await first.role.member.stop()
    await until_master(brokers, second)
    before = first.store.confirmed
    assert first.store.appender.put(message("Copied", queue_id=0)).ok
    await until(lambda: in_sync(second) == {2})
    assert first.store.confirmed == before < first.store.log.wrote
    assert in_sync(first) == {1, 2}


async def test_a_master_of_an_older_epoch_does_not_take_the_route_back(brokers):
    first, second = await started(brokers)
    await first.role.member.stop()
    await until_master(brokers, second)
    old, new = first.parts.endpoint.address, second.parts.endpoint.address
    await until(lambda: brokers.addresses().get(0) == new)
    for peer in first.broker.registration.peers:
        peer.renew()
    await until(lambda: old not in [address for _, address in brokers._routes.live])
    assert is_master(first) and brokers.addresses()[0] == new
    brokers.controller.elect(2)  # again, and the state version with it
    await until(lambda: second.role.history.last == 3)
    await until(lambda: brokers._routes.data_version("DefaultCluster", new).state_version == 3)


async def test_an_elected_slave_becomes_the_master_while_the_other_lives_and_back(brokers):
    first, second = await started(brokers)
    brokers.controller.elect(2)
    await until_master(brokers, second)
    await until(lambda: first.parts is not None and not is_master(first))
    await until(lambda: in_sync(second) == {1, 2})
    assert {receipt.status for receipt in await brokers.send(3)} == {"SEND_OK"}
    brokers.controller.elect(1)
    await until_master(brokers, first)
    await until(lambda: second.parts is not None and not is_master(second))
    await until(lambda: in_sync(first) == {1, 2})
    assert {receipt.status for receipt in await brokers.send(3)} == {"SEND_OK"}
    assert [epoch.number for epoch in first.role.history.entries] == [1, 2, 3]
    assert has_all(second, first) and log_of(first.store) == log_of(second.store)


async def test_a_change_of_the_role_that_fails_is_tried_again(brokers, monkeypatch):
    first, second = await started(brokers)
    real, failures = second._open_store, [StoreError("no room"), OSError("the port is taken")]

    def fail_twice():
        if failures:
            raise failures.pop()
        real()

    monkeypatch.setattr(second, "_open_store", fail_twice)
    await first.stop()
    await until_master(brokers, second)
    assert failures == []
    assert {receipt.status for receipt in await brokers.send(3)} == {"SEND_OK"}


async def test_a_broker_that_stops_while_its_role_changes_ends_in_order(brokers, monkeypatch):
    first, second = await started(brokers)
    real, opens, may_open = second._open_store, threading.Event(), threading.Event()

    def open_later():
        opens.set()
        may_open.wait()
        real()

    monkeypatch.setattr(second, "_open_store", open_later)
    await first.stop()
    await until(opens.is_set)
    stopping = asyncio.ensure_future(second.stop())
    await asyncio.sleep(0)
    may_open.set()
    await stopping
    assert second.store.state == "closed" and not (second.store.root / "abort").exists()


async def test_a_master_that_is_elected_again_begins_an_epoch_and_serves_on(brokers):
    first, second = await started(brokers)
    broker = first.broker
    brokers.controller.elect(1)
    await until(lambda: first.role.history.last == 2)
    await until(lambda: in_sync(first) == {1, 2})
    await brokers.send(3)
    assert first.broker is broker and has_all(second, first)
    await until(lambda: second.role.history.entries == first.role.history.entries)


async def test_without_a_controller_a_broker_starts_and_takes_nothing(brokers, monkeypatch):
    monkeypatch.setattr(controller_role, "FIRST_ROLE_S", 0.2)
    brokers.controller.leads = False
    first = await brokers.start("first")
    assert first.store.rejects_sends == "slave" and not first.parts.replication.registers
    assert "knows no leader" in first.role.member.error
    assert not brokers.addresses()
    brokers.controller.leads = True
    await until_master(brokers, first)
    await brokers.create()
    assert {receipt.status for receipt in await brokers.send(3)} == {"SEND_OK"}


async def test_a_controller_that_has_forgotten_the_epochs_is_not_followed(brokers):
    first, _ = await started(brokers)
    brokers.controller.elect(1)
    await until(lambda: first.role.history.last == 2)
    brokers.controller.epoch = 1
    await until(lambda: "has lost what it knew" in (first.role.member.error or ""))
    assert is_master(first) and first.role.history.last == 2


async def test_sets_that_a_controller_refuses_change_nothing(brokers):
    brokers.controller.refuses_sets = ResponseCode.CONTROLLER_BROKER_NOT_ALIVE
    first = await brokers.start("first")
    await brokers.start("second")
    await until(lambda: brokers.controller.asked.count(R.CONTROLLER_ALTER_SYNC_STATE_SET) > 1)
    assert in_sync(first) == {1}
    brokers.controller.refuses_sets = None
    await until(lambda: in_sync(first) == {1, 2})


async def test_a_set_without_an_answer_counts_both(brokers):
    brokers.controller.mute.add(R.CONTROLLER_ALTER_SYNC_STATE_SET)
    first = await brokers.start("first")
    await brokers.start("second")
    await until(lambda: first.parts.replication.in_sync.counted == {1, 2})
    assert in_sync(first) == {1}
    brokers.controller.mute.clear()
    await until(lambda: in_sync(first) == {1, 2})


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
async def test_both_kinds_of_disks_fail_over(brokers, flush):
    first, second = await started(brokers, flushDiskType=flush)
    await brokers.send(20)
    assert has_all(second, first) and second.store.flushed == first.store.log.wrote or flush == "ASYNC_FLUSH"
    await first.stop()
    await until_master(brokers, second)
    assert second.store.reads.max_offset("Copied", 0) == 25
    assert {receipt.status for receipt in await brokers.send(3)} == {"SEND_OK"}


async def ask(process, code):
    host, _, port = process.parts.endpoint.address.rpartition(":")
    channel = await connect(host, int(port), 5)
    answer = await channel.request(Command.request(int(code), {}), 5)
    channel.abort()
    return answer


async def test_epochs_and_the_state_of_the_pair_are_answered(brokers):
    first, second = await started(brokers)
    answer = await ask(first, R.GET_BROKER_EPOCH_CACHE)
    end = first.store.log.wrote
    assert answer.body.decode() == (
        '{"brokerId":0,"brokerName":"set","clusterName":"DefaultCluster","epochList":[{"endOffset":'
        f'9223372036854775807,"epoch":1,"startOffset":0}}],"maxOffset":{end}}}'
    )
    of_master, of_slave = replication_of(first.parts), replication_of(second.parts)
    known = of_master.controller
    assert (known.leader, known.broker_id, known.master_id) == (brokers.controller.address, 1, 1)
    assert (known.master_epoch, known.in_sync, known.counted, known.error) == (1, [1, 2], [1, 2], None)
    assert [(epoch.number, epoch.begin) for epoch in known.epochs] == [(1, 0)]
    assert [(slave.broker_id, slave.in_step) for slave in of_master.slaves] == [(2, True)]
    assert (of_slave.controller.broker_id, of_slave.controller.master_address) == (2, known.master_address)
    assert b'"inSync":true' in (await ask(first, R.GET_BROKER_HA_STATUS)).body
    assert b'"brokerId":2' in (await ask(second, R.GET_BROKER_EPOCH_CACHE)).body


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ({"enableControllerMode": "true", "listenPort": "10911"}, "enableControllerMode"),
        ({"enableControllerMode": "true", "controllerAddr": "c:1", "listenPort": "0"}, "listenPort"),
        ({"enableControllerMode": "true", "controllerAddr": "c", "listenPort": "10911"}, "controllerAddr"),
        (
            {
                "enableControllerMode": "true",
                "controllerAddr": "c:1",
                "listenPort": "10911",
                "transientStorePoolEnable": "true",
            },
            "transientStorePoolEnable",
        ),
        ({"minInSyncReplicas": "2"}, "minInSyncReplicas"),
        ({"allAckInSyncStateSet": "true"}, "allAckInSyncStateSet"),
    ],
)
def test_settings_that_do_not_fit_are_refused(given, key, tmp_path):
    with pytest.raises(ConfigError) as refused:
        load_settings(None, given, store_root=tmp_path)
    assert refused.value.key == key


def test_settings_that_the_controller_decides_are_noted(tmp_path):
    given = {
        "enableControllerMode": "true",
        "controllerAddr": "a:1;b:2",
        "brokerRole": "SLAVE",
        "allAckInSyncStateSet": "false",
    }
    settings = load_settings(None, given, store_root=tmp_path)
    assert settings.store.controllers == ("a:1", "b:2")
    assert [note.partition(" ")[0] for note in settings.notes] == [
        "brokerRole=SLAVE",
        "allAckInSyncStateSet=false",
    ]
