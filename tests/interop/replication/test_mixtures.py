"""Masters and slaves, ours and Apache's, in all mixtures: a slave has its master's log byte for byte, its queues,
and nothing that was acknowledged is missing on either side after kills."""

import asyncio
import random
import time

import pytest

from broker_store.client import Admin, Producer
from broker_store.client.errors import AnswerError, ClientError
from broker_store.formats import record
from tests.interop import clients
from tests.interop.brokers import ApacheBroker, OurBroker
from tests.support.ports import free_port

NAME = "pair"
SMALL = {
    "mappedFileSizeCommitLog": 1 << 20,
    "maxHashSlotNum": 500,
    "maxIndexNum": 2_000,
    "brokerName": NAME,
}
OURS, APACHE = "ours", "Apache's"
MIXTURES = [(OURS, OURS), (OURS, APACHE), (APACHE, OURS)]
IDS = ["our slave of ours", "Apache's slave of ours", "our slave of Apache's"]
LIMIT_S = 60
QUEUES = 4


class Pair:
    """A master and a slave that a test starts, ends and kills."""

    def __init__(self, root, kinds, role="ASYNC_MASTER"):
        clients.require(clients.JAVA_5)
        role_settings = {"brokerRole": role, "inSyncReplicas": 2 if role == "SYNC_MASTER" else 1}
        slave_settings = SMALL | {"brokerRole": "SLAVE", "brokerId": 1}
        if kinds[0] == OURS:
            master_settings = SMALL | role_settings | {"haListenPort": free_port()}
            self.master = OurBroker(root / "master", master_settings)
        else:
            self.master = ApacheBroker(root / "master", SMALL | role_settings)
        nameserver = self.master.nameserver
        if kinds[1] == OURS:
            self.slave = OurBroker(
                root / "slave", slave_settings, arguments=("--no-web", "--nameserver", nameserver)
            )
        else:
            self.slave = ApacheBroker(root / "slave", slave_settings, nameserver=nameserver)

    def ask(self, question):
        async def asking():
            async with Admin(self.master.nameserver) as admin:
                return await question(admin)

        return asyncio.run(asking())

    def create(self):
        self.ask(lambda admin: admin.create_topic("Copied", read_queues=QUEUES, write_queues=QUEUES))

    def send(self, count, size=500):
        async def sending():
            async with Producer(self.master.nameserver) as producer:
                for number in range(count):
                    await producer.send("Copied", bytes(size), keys=f"key{number}")

        asyncio.run(sending())

    def end_of(self, broker):
        """Where a broker's log ends; None while Apache's broker, just started, cannot say."""
        try:
            info = self.ask(lambda admin: admin.broker_runtime_info(f"127.0.0.1:{broker.broker_port}"))
        except AnswerError:
            return None
        return int(info["commitLogMaxOffset"])

    def wait_for_slave(self):
        """Wait until the slave has what the master has now."""
        until, end, found = time.monotonic() + LIMIT_S, None, None
        while end is None or found is None or found < end:
            assert time.monotonic() < until, f"the slave has {found} of {end} bytes\n{self.slave.output()}"
            end = self.end_of(self.master) if end is None else end
            found = self.end_of(self.slave)

    def stop(self):
        self.slave.stop()
        self.master.stop()


def log_of(broker):
    """The bytes of the log's files, without those that were made ahead."""
    files = {int(path.name): path.read_bytes() for path in sorted((broker.store / "commitlog").iterdir())}
    while len(files) > 1 and not any(files[max(files)]):
        del files[max(files)]
    return files


def queues_of(broker):
    """The units of each queue of the topic, without what follows the last."""
    folder = broker.store / "consumequeue" / "Copied"
    return {
        (path.parent.name, path.name): path.read_bytes().rstrip(b"\0")
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def index_of(broker):
    """The files of the index, oldest first, of a broker that has stopped. Their names are times of their
    creation."""
    return [path.read_bytes() for path in sorted((broker.store / "index").iterdir())]


def require_copy(pair):
    assert log_of(pair.slave) == log_of(pair.master)
    assert queues_of(pair.slave) == queues_of(pair.master)
    if isinstance(pair.master, OurBroker) and isinstance(pair.slave, OurBroker):
        assert index_of(pair.slave) == index_of(pair.master)


@pytest.fixture
def pair_of(tmp_path):
    made = []

    def make(*args):
        made.append(Pair(tmp_path, *args))
        return made[-1]

    yield make
    for pair in made:
        pair.slave.kill9()
        pair.master.end()


@pytest.mark.parametrize("kinds", MIXTURES, ids=IDS)
def test_a_slave_that_comes_later_has_the_whole_log_and_stays_with_it(kinds, pair_of):
    pair = pair_of(kinds)
    pair.master.start()
    pair.create()
    pair.send(4_000)  # three files of the log
    pair.slave.start()
    pair.wait_for_slave()
    pair.send(1_000)
    pair.wait_for_slave()
    pair.stop()
    require_copy(pair)


async def _send_until_killed(nameserver, kill, chance, acknowledged, numbers):
    """Send by 8 tasks, and kill at a random moment after the first acknowledgement. Note log offset and key
    of what was acknowledged."""
    ended, before, until = asyncio.Event(), len(acknowledged), time.monotonic() + LIMIT_S

    async def one(producer):
        while not ended.is_set():
            key = f"key{next(numbers)}"
            try:
                receipt = await producer.send("Copied", key.encode() * 30, keys=key)
            except (ClientError, OSError, TimeoutError):
                await asyncio.sleep(0.02)
                continue
            if receipt.status == "SEND_OK":
                acknowledged.append((int(receipt.offset_message_id[-16:], 16), key))

    async with Producer(nameserver, timeout=2.0) as producer:
        sending = asyncio.gather(*(one(producer) for _ in range(8)))
        while len(acknowledged) == before:
            assert time.monotonic() < until, "no send was acknowledged"
            await asyncio.sleep(0.01)
        await asyncio.sleep(chance.uniform(0, 1.5))
        await asyncio.to_thread(kill)
        ended.set()
        await sending


def require_acknowledged(broker, acknowledged):
    files = log_of(broker)
    for offset, key in acknowledged:
        base = offset // SMALL["mappedFileSizeCommitLog"] * SMALL["mappedFileSizeCommitLog"]
        raw = files[base][offset - base :][:4_096]
        assert record.decode(raw[: record.read_head(raw).total_size]).properties["KEYS"] == key


@pytest.mark.parametrize("kinds", MIXTURES, ids=IDS)
@pytest.mark.parametrize("kills", [4, pytest.param(20, marks=pytest.mark.proof)])
def test_kills_lose_nothing_that_a_sync_master_acknowledged(kinds, kills, pair_of, capsys):
    pair, acknowledged, numbers = pair_of(kinds, "SYNC_MASTER"), [], iter(range(1 << 30))
    chance = random.Random(kills)
    pair.master.start()
    pair.slave.start()
    pair.create()
    for number in range(kills):
        victim = (pair.master, pair.slave)[(number + chance.randrange(2)) % 2 if kills > 4 else number % 2]

        asyncio.run(_send_until_killed(pair.master.nameserver, victim.kill9, chance, acknowledged, numbers))
        victim.start()
        pair.wait_for_slave()
    pair.wait_for_slave()
    pair.stop()
    require_copy(pair)
    require_acknowledged(pair.master, acknowledged)
    require_acknowledged(pair.slave, acknowledged)
    with capsys.disabled():
        print(f" {kills} kills, {len(acknowledged):,} acknowledged", end="")
