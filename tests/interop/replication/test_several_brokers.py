"""A topic over three brokers, two of ours and one of Apache's, before two name servers, one of each: routes, sends
while a broker is dead, ordered topics, and what mqadmin shows of all."""

import asyncio
import copy
import time

import pytest

from broker_store.client import Admin, Producer
from broker_store.errors import BrokerStoreError
from broker_store.protocol.codes import RequestCode
from tests.interop import clients
from tests.interop.brokers import ApacheBroker, OurBroker
from tests.interop.lines import acknowledged
from tests.interop.mqadmin_session import apaches
from tests.interop.mqadmin_session import ours as our_mqadmin
from tests.support.ports import server_ports

NAMES = ["a", "b", "c"]  # a and b are ours, c is Apache's
LIMIT_S = 60
QUEUES = 2


class Cluster:
    """`a` and `c` have a name server in their process; each broker registers at both."""

    def __init__(self, root):
        own, _ = server_ports()
        self.c = ApacheBroker(root / "c", {"brokerName": "c"})
        self.of_apache = self.c.nameserver
        self.ours = f"127.0.0.1:{own}"
        self.c.settings["namesrvAddr"] = self.nameserver = f"{self.ours};{self.of_apache}"
        self.a = OurBroker(
            root / "a",
            {"brokerName": "a", "orderMessageEnable": "true"},
            arguments=("--no-web", "--nameserver", self.of_apache),
        )
        self.a.nameserver_port = own  # so its own name server runs beside the one that is given
        self.b = OurBroker(
            root / "b", {"brokerName": "b"}, arguments=("--no-web", "--nameserver", self.nameserver)
        )
        self.brokers = {"a": self.a, "b": self.b, "c": self.c}

    def start(self):
        self.a.start()
        self.c.start()
        self.b.start()

    def end(self):
        self.a.kill9()
        self.b.kill9()
        self.c.end()  # with its name server

    def addresses(self):
        return {name: f"127.0.0.1:{broker.broker_port}" for name, broker in self.brokers.items()}


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


async def _route(nameserver, topic):
    async with Admin(nameserver) as admin:
        return await admin.route(topic)


async def create(cluster, topic):
    """Create a topic at each broker, and wait until both name servers know it of all."""

    async def make():
        async with Admin(cluster.of_apache) as admin:
            for name in NAMES:
                await admin.create_topic(topic, read_queues=QUEUES, write_queues=QUEUES, broker_name=name)
        return True

    await until(make, bool)
    for nameserver in (cluster.ours, cluster.of_apache):
        await until(
            lambda nameserver=nameserver: _route(nameserver, topic),
            lambda route: {queue.broker_name for queue in route.queues} == set(NAMES),
        )


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    clients.require(clients.JAVA_5)
    made = Cluster(tmp_path_factory.mktemp("several"))
    try:
        made.start()
        yield made
    finally:
        made.end()


@pytest.fixture
def java(cluster, tmp_path):
    program = clients.java_of(clients.JAVA_5, cluster.a, tmp_path)
    program.nameserver = cluster.nameserver
    return program


def by_latency(java):
    """The client with latency fault tolerance: it avoids a broker that was slow or gone."""
    program = copy.copy(java)
    program._flags = (*java._flags, "-Dcom.rocketmq.sendLatencyEnable=true")
    return program


def test_both_name_servers_give_the_same_route(cluster):
    asyncio.run(create(cluster, "Routed"))
    ours, of_apache = (asyncio.run(_route(at, "Routed")) for at in (cluster.ours, cluster.of_apache))
    assert sorted(ours.queues) == sorted(of_apache.queues)
    assert [queue.write_queue_nums for queue in ours.queues] == [QUEUES] * 3
    for route in (ours, of_apache):
        assert {broker.broker_name: broker.addresses for broker in route.brokers} == {
            name: {0: address} for name, address in cluster.addresses().items()
        }


@pytest.mark.parametrize("avoids", [False, True], ids=["retries", "latency fault tolerance"])
def test_java_sends_to_the_others_while_a_broker_is_dead(avoids, cluster, java):
    topic = "Avoiding" if avoids else "Retrying"
    asyncio.run(create(cluster, topic))
    consumer = java.start("consume", group=f"readers-{topic}", topics=topic)
    try:
        consumer.until_ready()
        sender = by_latency(java) if avoids else java
        running = sender.start("send", topics=topic, until="eof", pause_ms=5, run=topic)
        running.until(lambda lines: {line.get("broker") for line in lines} >= set(NAMES))
        cluster.b.kill9()
        running.until(lambda lines: len(lines) > 600)
        cluster.b.start()
        count = len(running.seen())
        running.until(lambda lines: any(line.get("broker") == "b" for line in lines[count:]))
        lines = [line for line in running.finish() if "ready" not in line]
        # A send that b had when it was killed: Java's client may wait for its answer until the timeout
        failed = [line for line in lines if "error" in line]
        assert len(failed) <= 1, failed[:3]
        sent = acknowledged([line for line in lines if line not in failed])
        keys = {line["key"] for line in sent}
        consumer.until(lambda lines: keys <= {line.get("key") for line in lines})
    finally:
        consumer.kill()


def test_our_python_client_sends_to_the_others_while_a_broker_is_dead(cluster):
    asyncio.run(create(cluster, "Python"))

    async def send(kill):
        async with Producer(cluster.nameserver, timeout=3.0) as producer:
            brokers = []
            for number in range(90):
                if number == 30:
                    await asyncio.to_thread(kill)
                receipt = await producer.send("Python", b"%d" % number)
                assert receipt.status == "SEND_OK"
                brokers.append(receipt.broker_name)
            return brokers

    brokers = asyncio.run(send(cluster.b.kill9))
    assert set(brokers[:30]) == set(NAMES) and set(brokers[31:]) == {"a", "c"}
    cluster.b.start()


def test_an_ordered_topic_has_its_queues_in_the_route_and_one_key_one_queue(cluster, java):
    asyncio.run(create(cluster, "InOrder"))
    fields = {"namespace": "ORDER_TOPIC_CONFIG", "key": "InOrder", "value": "a:2;b:2;c:2"}

    async def configure():
        for nameserver in (cluster.ours, cluster.of_apache):
            async with Admin(nameserver) as admin:
                assert (await admin.ask(nameserver, RequestCode.PUT_KV_CONFIG, fields)).code == 0
        return await _route(cluster.ours, "InOrder")

    assert asyncio.run(configure()).order_conf == "a:2;b:2;c:2"
    lines = acknowledged(java.run("send", topics="InOrder", n=96, shards=12, mode="ordered", run="o"))
    places: dict[int, set] = {}
    for number, line in enumerate(sorted(lines, key=lambda line: int(line["key"].removeprefix("okey")))):
        places.setdefault(number % 12, set()).add((line["broker"], line["queue"]))
    assert all(len(found) == 1 for found in places.values())
    assert len(set.union(*places.values())) == 6


@pytest.mark.parametrize("tool", ["Apache's", "ours"])
def test_mqadmin_shows_all_brokers(tool, cluster, java):
    run = apaches(java) if tool == "Apache's" else our_mqadmin
    commands = [["clusterList", "-n", at] for at in (cluster.ours, cluster.of_apache)]
    commands += [["haStatus", "-n", cluster.ours, "-b", address] for address in cluster.addresses().values()]
    *lists, a, b, c = asyncio.run(run(commands))
    for text in lists:
        rows = {line.split()[1]: line.split() for line in text.splitlines() if "DefaultCluster" in line}
        assert {name: row[3] for name, row in rows.items()} == cluster.addresses()
    for text in (a, b, c):
        assert (
            "MasterAddr" in text or "masterCommitLogMaxOffset" in text or "MasterCommitLogMaxOffset" in text
        )
