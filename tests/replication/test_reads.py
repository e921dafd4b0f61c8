"""Which broker a consumer pulls from: the master while it lives, a slave for what is no longer in memory and
when the master has gone."""

from broker_store.protocol.codes import RequestCode as R
from broker_store.protocol.codes import ResponseCode
from broker_store.protocol.command import Command
from broker_store.server.channel import connect
from tests.replication.test_pair import has_all, pair, soon  # noqa: F401  (fixtures)
from tests.support.ports import free_port
from tests.support.waits import until

FOUND, AGAIN = 0, int(ResponseCode.PULL_RETRY_IMMEDIATELY)


class Puller:
    def __init__(self, process):
        self.process = process

    async def pull(self, offset, suspend_ms=0):
        """(code, broker to pull from next, number of bytes)"""
        host, _, port = self.process.parts.endpoint.address.rpartition(":")
        channel = await connect(host, int(port), 5)
        fields = {
            "consumerGroup": "readers",
            "topic": "Copied",
            "queueId": "0",
            "queueOffset": str(offset),
            "maxMsgNums": "1",
            "sysFlag": "6" if suspend_ms else "4",
            "commitOffset": "0",
            "suspendTimeoutMillis": str(suspend_ms),
            "subscription": "*",
            "expressionType": "TAG",
            "subVersion": "0",
        }
        answer = await channel.request(Command.request(int(R.PULL_MESSAGE), fields), 10)
        channel.abort()
        suggested = (answer.fields or {}).get("suggestWhichBrokerId")
        return answer.code, None if suggested is None else int(suggested), len(answer.body)


async def started(pair, master=None, slave=None):  # noqa: F811
    one = await pair.start_master(haListenPort=str(free_port()), **(master or {}))
    await pair.admin(lambda admin: admin.create_topic("Copied", read_queues=1, write_queues=1))
    await pair.admin(lambda admin: admin.create_group("readers"))
    await pair.send(3)
    two = await pair.start_slave(**(slave or {}))
    await until(lambda: has_all(two, one) and two.parts.groups.get("readers") is not None)
    await until(lambda: two.parts.topics.get("Copied") is not None)
    return one, two


async def test_a_slave_gives_what_it_has_and_sends_consumers_back_to_a_master_that_lives(pair):  # noqa: F811
    _, slave = await started(pair)
    code, suggested, size = await Puller(slave).pull(0)
    assert (code, suggested) == (FOUND, 0) and size > 300
    assert await Puller(slave).pull(3, suspend_ms=10_000) == (AGAIN, 0, 0)


async def test_who_reads_what_is_no_longer_in_memory_is_sent_to_the_slave(pair):  # noqa: F811
    old = {"accessMessageInMemoryMaxRatio": "0"}
    master, slave = await started(pair, old, old)
    assert (await Puller(master).pull(0))[:2] == (await Puller(slave).pull(0))[:2] == (FOUND, 1)
    await pair.admin(lambda admin: admin.create_group("readers", whichBrokerWhenConsumeSlowly=0))
    assert (await Puller(master).pull(0))[:2] == (FOUND, 0)


async def test_without_a_slave_a_master_sends_nobody_away(pair):  # noqa: F811
    master, slave = await started(pair, {"accessMessageInMemoryMaxRatio": "0"})
    await slave.stop()
    await until(lambda: not master.parts.replication.positions())
    assert (await Puller(master).pull(0))[:2] == (FOUND, 0)


async def test_a_slave_may_serve_no_reads(pair):  # noqa: F811
    _, slave = await started(pair, slave={"slaveReadEnable": "false"})
    code, suggested, size = await Puller(slave).pull(0)
    assert (code, suggested, size) == (int(ResponseCode.SERVICE_NOT_AVAILABLE), None, 0)


async def test_a_slave_whose_master_has_gone_serves_pulls_that_wait(pair):  # noqa: F811
    master, slave = await started(pair)
    await master.broker.stop()
    await until(lambda: not slave.parts.replication.has_master)
    code, suggested, size = await Puller(slave).pull(3, suspend_ms=200)
    assert (code, size) == (int(ResponseCode.PULL_NOT_FOUND), 0)
    assert (await Puller(slave).pull(1))[0] == FOUND
