"""Java's consumers go on at a slave of ours when their master was killed, and go back when it comes again."""

import asyncio
import time

import pytest

from broker_store.client import Admin
from broker_store.client.errors import ClientError
from broker_store.protocol.codes import RequestCode
from tests.interop import clients
from tests.interop.brokers import OurBroker
from tests.interop.lines import acknowledged
from tests.support.ports import free_port

IN_STEP = b'"inSyncSlaveNums":1'
LIMIT_S = 30
NAME = {"brokerName": "pair"}


@pytest.fixture
def pair(tmp_path):
    """(master, slave): the name server is in the slave's process, so it outlives the master."""
    clients.require(clients.JAVA_5, clients.JAVA_4)
    slave = OurBroker(tmp_path / "slave", NAME | {"brokerRole": "SLAVE", "brokerId": 1})
    master = OurBroker(
        tmp_path / "master",
        NAME | {"haListenPort": free_port(), "brokerRole": "SYNC_MASTER"},
        arguments=("--no-web", "--nameserver", slave.nameserver),
    )
    master.nameserver = slave.nameserver
    try:
        slave.start()
        master.start()
        yield master, slave
    finally:
        master.kill9()
        slave.kill9()


def wait_in_step(master):
    """Wait until the master's slave is in step: before that it takes no send."""

    async def waiting():
        async with Admin(master.nameserver) as admin:
            until = time.monotonic() + LIMIT_S
            address = f"127.0.0.1:{master.broker_port}"
            while (await admin.ask(address, RequestCode.GET_BROKER_HA_STATUS)).body.count(IN_STEP) == 0:
                assert time.monotonic() < until, master.output()
                await asyncio.sleep(0.05)

    asyncio.run(waiting())


def wait_for_topic(slave, topic):
    """Wait until a slave has taken over a topic from its master, each 3 s: without it no client reads there."""

    async def waiting():
        async with Admin(slave.nameserver) as admin:
            until, address = time.monotonic() + LIMIT_S, f"127.0.0.1:{slave.broker_port}"
            while True:
                try:
                    await admin.ask(address, RequestCode.GET_TOPIC_CONFIG, {"topic": topic})
                    return
                except ClientError:
                    assert time.monotonic() < until, slave.output()
                    await asyncio.sleep(0.05)

    asyncio.run(waiting())


@pytest.mark.parametrize("version", [clients.JAVA_5, clients.JAVA_4])
def test_a_consumer_goes_on_when_the_master_is_killed(version, pair, tmp_path):
    master, slave = pair
    wait_in_step(master)
    java = clients.java_of(version, master, tmp_path)
    java.admin("create_topic\tOrders\t2\t2\t6")
    sent = {line["key"] for line in acknowledged(java.run("send", topics="Orders", n=100, run="first"))}
    assert len(sent) == 100
    wait_for_topic(slave, "Orders")
    consumer = java.start("consume", group="readers", topics="Orders")
    try:
        consumer.until_ready()
        consumer.until(lambda lines: sent <= {line.get("key") for line in lines})
        more = {line["key"] for line in acknowledged(java.run("send", topics="Orders", n=300, run="second"))}
        master.kill9()
        late = java.start("consume", group="late", topics="Orders")
        try:
            late.until(lambda lines: sent | more <= {line.get("key") for line in lines})
        finally:
            late.kill()
        consumer.until(lambda lines: more <= {line.get("key") for line in lines})
        master.start()
        wait_in_step(master)
        third = {line["key"] for line in acknowledged(java.run("send", topics="Orders", n=50, run="third"))}
        assert len(third) == 50
        consumer.until(lambda lines: third <= {line.get("key") for line in lines})
    finally:
        consumer.kill()
