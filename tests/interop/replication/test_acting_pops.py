"""Our slave gives messages to pops while its master is gone: ours and Apache's as the other master, which stores the
records and lets come again what is not acknowledged."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from broker_store.client import Admin, Producer, PullConsumer
from broker_store.protocol.message_queue import MessageQueue
from tests.interop import clients
from tests.interop.brokers import ApacheBroker, OurBroker
from tests.interop.lines import acknowledged
from tests.interop.pop_client import PopClient
from tests.interop.replication.test_acting import APACHE, OURS, Group, until

TOPIC, GROUP = "Popped", "poppers"
MESSAGES = 7


class Pops(Group):
    """A master and its slave of ours, a broker with the name server, and another master, `third`, of a kind."""

    def __init__(self, root, kind):
        super().__init__(root, OURS, OURS)
        settings = {"brokerName": "third"}
        if kind == OURS:
            arguments = ("--no-web", "--nameserver", self.nameserver)
            self.third = OurBroker(root / "third", settings, arguments=arguments)
        else:
            self.third = ApacheBroker(root / "third", settings, nameserver=self.nameserver)

    def start(self):
        for broker in (self.other, self.third, self.master, self.slave):
            broker.start()

    def end(self):
        super().end()
        self.third.kill9()

    async def lose_master(self, send):
        """Have the slave act: the topic is at the master and at the third, and what `send` sends is at the slave."""
        await self.create("Orders", "pair")
        await self.until_master_is(self.master)
        await self.create(TOPIC, "pair")
        async with Admin(self.nameserver) as admin:
            await admin.create_group(GROUP)
        await send()
        async with Admin(self.nameserver) as admin:
            master, slave = (f"127.0.0.1:{one.broker_port}" for one in (self.master, self.slave))
            end = (await admin.broker_runtime_info(master))["commitLogMaxOffset"]
            await until(
                lambda: admin.broker_runtime_info(slave), lambda info: info["commitLogMaxOffset"] == end
            )
            for code, name in ((21, TOPIC), (201, GROUP)):  # tables are taken over each 3 s
                await until(
                    lambda code=code: admin.ask(slave, code),
                    lambda answer, name=name: name.encode() in answer.body,
                )
        await self.create(TOPIC, "third")
        self.master.kill9()
        await self.until_master_is(self.slave)

    async def send(self):
        async with Producer(self.nameserver) as producer:
            for number in range(MESSAGES):
                await producer.send(TOPIC, b"%d" % number, keys=f"k{number}")

    async def popped(self, client, count=32, invisible_ms=8_000):
        """Return what a pop of the slave gives, once it takes pops."""

        async def some():
            try:
                return await client.pop(count=count, invisible_ms=invisible_ms)
            except AssertionError as error:
                assert "only while it acts" in str(error)
                return None

        return await until(some, lambda given: given)

    async def came_again(self):
        """Return the keys in the retry topic of the third."""
        async with PullConsumer(GROUP, self.nameserver) as consumer:
            queue = MessageQueue(f"%RETRY%{GROUP}_{TOPIC}", "third", 0)
            return [message.keys[0] for message in (await consumer.pull(queue, 0)).messages]


@pytest.fixture
def group_of(tmp_path):
    clients.require(clients.JAVA_5)
    made = []

    def make(kind):
        made.append(Pops(tmp_path, kind))
        made[0].start()
        return made[0]

    yield make
    made[0].end()


@pytest.mark.takes(60)
@pytest.mark.parametrize("kind", [OURS, APACHE], ids=["ours", "Apache's"])
def test_the_other_master_lets_come_again_what_is_not_acknowledged_at_the_slave(kind, group_of):
    group = group_of(kind)

    async def meanwhile():
        await group.lose_master(group.send)
        client = await PopClient.connect(group.slave.broker_port, GROUP, TOPIC, "pair")
        given = {each.key: each for each in await group.popped(client, count=MESSAGES - 1)}
        assert sorted(given) == [f"k{number}" for number in range(MESSAGES - 1)]
        assert await client.ack(given["k0"]) and await client.ack(given["k1"])
        changed = await client.change(given["k2"], 10_000)
        assert changed is not None and await client.ack(changed)
        # It is over after all others
        (last,) = await client.pop(invisible_ms=14_000)
        assert last.key == f"k{MESSAGES - 1}"
        client.close()
        found = await until(group.came_again, lambda keys: last.key in keys)
        assert sorted(found) == ["k3", "k4", "k5", "k6"]
        at_third = await PopClient.connect(group.third.broker_port, GROUP, TOPIC, "third")
        again = await at_third.pop()
        assert sorted(each.key for each in again) == ["k3", "k4", "k5", "k6"]
        assert {each.tries for each in again} == {1}
        for each in again:
            assert await at_third.ack(each)
        at_third.close()

    async def after():
        await group.until_master_is(group.master)
        at_master = await PopClient.connect(group.master.broker_port, GROUP, TOPIC, "pair")
        assert await at_master.send("new")
        assert [each.key for each in await until(at_master.pop, lambda given: given)] == ["new"]
        at_master.close()

    asyncio.run(meanwhile())
    group.master.start()
    asyncio.run(after())


@pytest.mark.takes(40)
def test_a_slave_that_is_killed_before_it_has_answered_gives_the_messages_again(group_of):
    """The record is stored, and the client has got nothing."""
    group = group_of(OURS)

    async def first():
        await group.lose_master(group.send)
        client = await PopClient.connect(group.slave.broker_port, GROUP, TOPIC, "pair")
        given = await group.popped(client, count=1)
        assert [each.key for each in given] == ["k0"] and await client.ack(given[0])
        os.kill(group.third.pid, signal.SIGSTOP)
        try:
            popping = asyncio.ensure_future(client.pop(count=3))
            await until(lambda: _unread_by(group.third.broker_port), bool)
            assert not popping.done()
            group.slave.kill9()
        finally:
            os.kill(group.third.pid, signal.SIGCONT)
        popping.cancel()
        await asyncio.gather(popping, return_exceptions=True)

    async def then():
        await group.until_master_is(group.slave)
        client = await PopClient.connect(group.slave.broker_port, GROUP, TOPIC, "pair")
        given = await group.popped(client)
        keys = {each.key for each in given}
        # The first is there again if its offset was not saved
        assert {f"k{number}" for number in range(1, MESSAGES)} <= keys
        for each in given:
            assert await client.ack(each)
        client.close()
        # Twice come those of the record that is stored.
        assert sorted(await until(group.came_again, lambda found: len(found) >= 3)) == ["k1", "k2", "k3"]

    asyncio.run(first())
    group.slave.start()
    asyncio.run(then())


async def _unread_by(port):
    """Return how many bytes the server of a port has not read of its connections."""
    unread = 0
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        words = line.split()
        if int(words[1].rpartition(":")[2], 16) == port and words[3] == "01":
            unread += int(words[4].rpartition(":")[2], 16)
    return unread


@pytest.mark.takes(40)
@pytest.mark.parametrize("kind", [OURS, APACHE], ids=["ours", "Apache's"])
def test_javas_push_consumer_pops_all_messages_at_the_slave(kind, group_of, tmp_path):
    group = group_of(kind)
    java = clients.java_of(clients.JAVA_5, group.other, tmp_path / "home")
    sent = []

    async def sends():
        java.admin(f"set_mode\t{TOPIC}\t{GROUP}\tPOP\t0")
        sent.extend(acknowledged(java.run("send", topics=TOPIC, n=60)))

    asyncio.run(group.lose_master(sends))
    java.admin(f"set_mode\t{TOPIC}\t{GROUP}\tPOP\t0")
    wanted = {line["key"] for line in sent}
    consumer = java.start(
        "consume", group=GROUP, topics=TOPIC, pop=20_000, fail_every=10, fail_times=1, level=1
    )
    try:
        consumer.until(
            lambda lines: (
                wanted <= {line["key"] for line in lines if "key" in line and not line.get("failed")}
            ),
            120,
        )
        lines = [line for line in consumer.finish() if "key" in line]
    finally:
        consumer.kill()
    failed = [line["key"] for line in lines if line.get("failed")]
    assert failed
    taken = sorted(line["key"] for line in lines if not line.get("failed"))
    assert taken == sorted(wanted)
