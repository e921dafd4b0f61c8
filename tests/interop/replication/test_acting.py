"""A slave acts for a master that was killed, in both mixtures with Apache's broker: consumers go on there, delayed
messages and timer messages escape to another master, and the positions are taken over when the master comes again."""

import asyncio
import time

import pytest

from broker_store.client import Admin, Producer, PullConsumer
from broker_store.client.errors import ClientError
from broker_store.errors import BrokerStoreError
from broker_store.formats import timer_check
from broker_store.formats.record import decode_all
from broker_store.protocol.message_queue import MessageQueue
from tests.interop import clients
from tests.interop.brokers import ApacheBroker, OurBroker
from tests.support.ports import free_port

ACTS = {
    "brokerName": "pair",
    "enableSlaveActingMaster": "true",
    "enableRemoteEscape": "true",
    "mappedFileSizeCommitLog": 1 << 20,
}
OURS, APACHE = "ours", "Apache's"
LIMIT_S = 60


class Group:
    """A master and a slave, and another master, of ours, whose process has the name server. It notifies the two of
    each other; Apache's requests who lives too seldom to see that the master was gone."""

    def __init__(self, root, master, slave):
        clients.require(clients.JAVA_5)
        self.other = OurBroker(
            root / "other",
            {
                "brokerName": "other",
                "supportActingMaster": "true",
                "scanNotActiveBrokerInterval": 1000,
                "notifyMinBrokerIdChanged": "true",
            },
        )
        self.nameserver = self.other.nameserver
        self.master = self._broker(root / "master", master, {"haListenPort": free_port()})
        self.slave = self._broker(root / "slave", slave, {"brokerRole": "SLAVE", "brokerId": 1})

    def _broker(self, path, kind, given):
        if kind == OURS:
            arguments = ("--no-web", "--nameserver", self.nameserver)
            return OurBroker(path, ACTS | given, arguments=arguments)
        # With two replicas Apache's master waits for its slave before it registers
        settings = ACTS | given | {"totalReplicas": 2, "slaveReadEnable": "true"}
        settings["syncBrokerMemberGroupPeriod"] = 600_000
        return ApacheBroker(path, settings, nameserver=self.nameserver)

    def end(self):
        self.master.kill9()
        self.slave.kill9()
        self.other.kill9()

    async def address_of_master(self):
        """Where clients read of the name `pair`; None while no route states it."""
        async with Admin(self.nameserver) as admin:
            try:
                route = await admin.route("Orders")
            except ClientError:
                return None
            found = [broker.addresses.get(0) for broker in route.brokers if broker.broker_name == "pair"]
            return found[0] if found else None

    async def until_master_is(self, broker):
        await until(self.address_of_master, lambda found: found == f"127.0.0.1:{broker.broker_port}")

    async def create(self, topic, name):
        async def making():
            await admin.create_topic(topic, read_queues=1, write_queues=1, broker_name=name)
            return True

        async with Admin(self.nameserver) as admin:
            await until(making, bool)  # a broker that was just started may not be registered yet
            await until(
                lambda: admin.route(topic),
                lambda route: any(queue.broker_name == name for queue in route.queues),
            )


async def until(ask, holds):
    end_s, found = time.monotonic() + LIMIT_S, None
    while time.monotonic() < end_s:
        try:
            found = await ask()
        except (BrokerStoreError, OSError, TimeoutError):  # not there yet, or gone
            found = None
        if found is not None and holds(found):
            return found
        await asyncio.sleep(0.1)
    raise AssertionError(f"not seen within {LIMIT_S} s; the last answer was {found}")


@pytest.fixture
def group_of(tmp_path):
    made = []

    def make(master, slave):
        made.append(Group(tmp_path, master, slave))
        return made[0]

    yield make
    made[0].end()


async def _queue(consumer, topic, name):
    queues = await consumer.queues(topic)
    return next((queue for queue in queues if queue.broker_name == name), None)


async def _on_wheel(admin, address):
    """How many timer messages wait at a broker."""
    return int((await admin.broker_runtime_info(address))["timerCongestNum"])


async def _timer_taken(admin, address):
    """Up to which offset of the timer topic a broker states to have its messages on the wheel."""
    return timer_check.decode((await admin.ask(address, 60)).body).queue_offset


async def _timer_reads(admin, address):
    """The time (ms) up to which a broker states to have delivered timer messages."""
    return timer_check.decode((await admin.ask(address, 60)).body).read_ms


async def _pop(admin, address):
    """Pop the three messages of `Popped`; they are invisible for 25 s."""
    fields = {
        "consumerGroup": "poppers", "topic": "Popped", "queueId": "0", "maxMsgNums": "8", "pollTime": "0",
        "invisibleTime": "25000", "bornTime": str(time.time_ns() // 1_000_000), "initMode": "0", "order": "false",
    }  # fmt: skip
    answer = await admin.ask(address, 200050, fields)
    assert [stored.body for stored in decode_all(answer.body)] == [b"popped %d" % n for n in range(3)]


@pytest.mark.takes(60)
@pytest.mark.parametrize(
    ("master", "slave"),
    [(OURS, APACHE), (APACHE, OURS), pytest.param(OURS, OURS, marks=pytest.mark.proof)],
    ids=["Apache's slave of ours", "our slave of Apache's", "both ours"],
)
def test_consumers_and_delayed_messages_go_on_without_the_master(master, slave, group_of):
    group = group_of(master, slave)
    group.other.start()
    group.master.start()
    group.slave.start()

    async def before():
        await group.create("Orders", "pair")
        await group.until_master_is(group.master)
        await group.create("Late", "pair")
        await group.create("Popped", "pair")
        async with Admin(group.nameserver) as admin:
            await admin.create_group("readers")
        async with Producer(group.nameserver) as producer:
            for number in range(40):
                await producer.send("Orders", b"%d" % number)
        async with PullConsumer("readers", group.nameserver) as consumer:
            queue = await _queue(consumer, "Orders", "pair")
            await consumer.commit(queue, 10)
            address = f"127.0.0.1:{group.slave.broker_port}"
            async with Admin(group.nameserver) as admin:
                await until(
                    lambda: admin.ask(
                        address, 14, {"consumerGroup": "readers", "topic": "Orders", "queueId": "0"}
                    ),
                    lambda answer: (answer.fields or {}).get("offset") == "10",
                )
        async with Producer(group.nameserver) as producer:
            for number in range(3):
                await producer.send("Late", b"late %d" % number, delay_level=4)  # 30 s
                await producer.send("Late", b"timed %d" % number, queue_id=0, delay_s=30)
                await producer.send("Popped", b"popped %d" % number)
        async with Admin(group.nameserver) as admin:
            master_address = f"127.0.0.1:{group.master.broker_port}"
            await _pop(admin, master_address)
            end = (await admin.broker_runtime_info(master_address))["commitLogMaxOffset"]
            await until(
                lambda: admin.broker_runtime_info(address), lambda info: info["commitLogMaxOffset"] == end
            )
            # Apache's slave counts some twice
            await until(lambda: _on_wheel(admin, address), lambda waiting: waiting >= 4)
            await until(lambda: _timer_taken(admin, address), lambda taken: taken == 4)
            await admin.create_group("poppers")
        await group.create("Late", "other")
        await group.create("Popped", "other")

    async def meanwhile():
        await group.until_master_is(group.slave)
        async with PullConsumer("readers", group.nameserver) as consumer:
            queue = await until(lambda: _queue(consumer, "Orders", "pair"), lambda found: found is not None)
            assert await until(lambda: consumer.committed(queue), lambda found: found == 10)
            pulled = await until(lambda: consumer.pull(queue, 10), lambda found: found.messages)
            assert [message.body for message in pulled.messages] == [b"%d" % n for n in range(10, 40)]
            await consumer.commit(queue, 40)
            late = await _queue(consumer, "Late", "other")
            await until(lambda: consumer.max_offset(late), lambda found: found >= 6)
            # Each comes at least once; twice where the answer to the acting slave was late.
            found = sorted(message.body for message in (await consumer.pull(late, 0)).messages)
            assert sorted(set(found)) == [
                b"%s %d" % (kind, n) for kind in (b"late", b"timed") for n in range(3)
            ]
            # What was popped before comes again there: that master reads it at the slave.
            again = MessageQueue("%RETRY%poppers_Popped", "other", 0)
            await until(lambda: consumer.max_offset(again), lambda found: found >= 3)
            popped = (await consumer.pull(again, 0)).messages
            assert {message.body for message in popped} == {b"popped %d" % n for n in range(3)}
            # The master starts when the slave states that it has delivered them: until then they come twice.
            now_ms, address = time.time_ns() // 1_000_000, f"127.0.0.1:{group.slave.broker_port}"
            async with Admin(group.nameserver) as admin:
                await until(lambda: _timer_reads(admin, address), lambda read_ms: read_ms > now_ms)
            assert len(found) == 6 or "not sent to another master" in group.slave.output(), found

    async def after():
        await group.until_master_is(group.master)
        async with PullConsumer("readers", group.nameserver) as consumer:
            queue = await _queue(consumer, "Orders", "pair")
            await until(lambda: consumer.committed(queue), lambda found: found == 40)
            late = await _queue(consumer, "Late", "pair")
            async with Admin(group.nameserver) as admin:
                address = f"127.0.0.1:{group.master.broker_port}"
                await until(lambda: _on_wheel(admin, address), lambda waiting: waiting == 0)
            assert await consumer.max_offset(late) == 0  # they were delivered at the other master
        async with Producer(group.nameserver) as producer:
            await until(lambda: producer.send("Orders", b"again"), lambda receipt: receipt is not None)

    asyncio.run(before())
    group.master.kill9()
    asyncio.run(meanwhile())
    group.master.start()
    asyncio.run(after())
