"""Brokers of a set whose master Apache's controller elects: the master is killed under load, nothing that was
acknowledged is lost, and sends go on by themselves."""

import asyncio
import os
import random
import signal
import subprocess
import time
from bisect import bisect_right
from contextlib import AsyncExitStack

import pytest

from broker_store.client import Admin, Producer, session
from broker_store.client.errors import ClientError
from broker_store.errors import NotFoundError
from broker_store.formats import record
from broker_store.protocol import fastjson
from broker_store.protocol.codes import RequestCode
from broker_store.protocol.command import Command
from broker_store.server.channel import connect
from tests.interop import clients
from tests.interop.brokers import ApacheBroker, OurBroker
from tests.interop.controllers import ApacheControllers
from tests.interop.lines import place
from tests.interop.replication.test_mixtures import index_of, log_of
from tests.interop.test_kill_loop import assert_store_is_whole
from tests.support import prepared
from tests.support.ports import free_port

NAME = "set"
FILE_BYTES = 1 << 20
OURS, APACHE = "ours", "Apache's"
LIMIT_S = 60
FAILOVER_LIMIT_S = 15.0
SETTINGS = {
    "mappedFileSizeCommitLog": FILE_BYTES,
    "maxHashSlotNum": 500,
    "maxIndexNum": 2_000,
    "brokerName": NAME,
    "enableControllerMode": "true",
    "brokerHeartbeatInterval": 500,
    "syncBrokerMetadataPeriod": 1_000,
}
# Only what its own default would make slow or weak
OF_APACHE = {"allAckInSyncStateSet": "true", "haSendHeartbeatInterval": 1_000, "inSyncReplicas": 2}


class NameServer:
    """`manage.py runnamesrv`, which outlives the brokers."""

    def __init__(self, data):
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        data.mkdir(parents=True)
        self._log = open(data / "out", "ab")
        command = [
            "runnamesrv",
            "--data",
            str(data),
            "--port",
            str(self.port),
            "--set",
            "tls.server.mode=disabled",
        ]
        environment = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
        self._process = prepared.start(command, environment, self._log.fileno())

    def stop(self):
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()
        self._log.close()


class Set:
    """Controllers, a name server and brokers of one name."""

    def __init__(self, root, kinds, controllers=1, **settings):
        clients.require(clients.JAVA_5)
        self.controllers = ApacheControllers(root / "controllers", controllers).start()
        self.names = NameServer(root / "names")
        given = SETTINGS | {"controllerAddr": self.controllers.addresses} | settings
        self.brokers = [
            self._broker(kind, root / f"broker-{number}", given) for number, kind in enumerate(kinds)
        ]

    def _broker(self, kind, data, given):
        if kind == OURS:
            return OurBroker(data, given, arguments=("--no-web", "--nameserver", self.names.address))
        return ApacheBroker(data, given | OF_APACHE, nameserver=self.names.address)

    def by_address(self, address):
        return next(one for one in self.brokers if address == f"127.0.0.1:{one.broker_port}")

    def ask(self, question):
        async def asking():
            async with Admin(self.names.address) as admin:
                return await question(admin)

        return asyncio.run(asking())

    def master(self):
        """The broker that clients find as the master."""

        async def find(admin):
            found = (await admin.cluster_info()).brokers.get(NAME)
            return None if found is None else found.addresses.get(0)

        return until(
            lambda: (address := self.ask(find)) and self.by_address(address), "no master is registered"
        )

    def create(self, topic="Copied"):
        def attempt():
            try:
                self.ask(lambda admin: admin.create_topic(topic, read_queues=4, write_queues=4))
                return self.ask(lambda admin: admin.route(topic))
            except (ClientError, NotFoundError):
                return None

        until(attempt, "the topic could not be created")

    def stop(self):
        for broker in self.brokers:
            broker.kill9()
        self.names.stop()
        self.controllers.stop()


def mqadmin(*words):
    done = subprocess.run(
        ["java", "-XX:TieredStopAtLevel=1", "-cp", (clients.BUILD / f"cp-{clients.JAVA_5}.txt").read_text(),
         "org.apache.rocketmq.tools.command.MQAdminStartup", *words],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    return done.stdout.decode()


def until(attempt, otherwise):
    end_s = time.monotonic() + LIMIT_S
    while True:
        found = attempt()
        if found:
            return found
        assert time.monotonic() < end_s, otherwise
        time.sleep(0.1)


@pytest.fixture(autouse=True)
def routes_are_renewed(monkeypatch):
    """As with pollNameServerInterval=1000 of Java's client: a broker that hangs refuses no connection."""
    monkeypatch.setattr(session, "ROUTE_INTERVAL_S", 1.0)


@pytest.fixture
def set_of(tmp_path):
    made = []

    def make(*args, **settings):
        made.append(Set(tmp_path / str(len(made)), *args, **settings))
        return made[-1]

    yield make
    for one in made:
        one.stop()


class Load:
    """Senders in a loop of their own: what was acknowledged, with its place in the log."""

    def __init__(self, names, producers=1, pause_s=0.005):
        """Each sender pauses for so long after an answer: 1,000 sends a second in all leave the processor to
        the brokers."""
        self._names, self._producers, self._pause_s = names, producers, pause_s
        self.acknowledged = []  # (log offset, key)
        self.answers = []  # (when, port of the broker) of acknowledgements
        self._numbers = iter(range(1 << 30))

    async def run(self, act):
        """Send by 8 tasks while `act()` runs in a thread."""
        ended = asyncio.Event()

        async def one(producer):
            while not ended.is_set():
                key = f"key{next(self._numbers)}"
                try:
                    receipt = await producer.send("Copied", key.encode() * 30, keys=key)
                except (ClientError, NotFoundError, OSError, TimeoutError):
                    await asyncio.sleep(0.05)
                    continue
                if receipt.status == "SEND_OK":
                    # 4 bytes of the address, 4 of the port, 8 of the place in the log
                    place = bytes.fromhex(receipt.offset_message_id)
                    self.acknowledged.append((int.from_bytes(place[8:]), key))
                    self.answers.append((time.monotonic(), int.from_bytes(place[4:8])))
                await asyncio.sleep(self._pause_s)

        async with AsyncExitStack() as stack:
            producers = [
                await stack.enter_async_context(Producer(self._names, timeout=2.0))
                for _ in range(self._producers)
            ]
            sending = asyncio.gather(*(one(producers[task % self._producers]) for task in range(8)))
            try:
                await asyncio.to_thread(act)
            finally:
                ended.set()
                await sending

    def wait_for_more(self, count=50, after=None, before=None):
        """Wait until `count` sends more than `before`, by default the present number, are acknowledged, by
        another broker than `after`; return when the first of them was."""
        before = len(self.answers) if before is None else before

        def more():
            found = [
                when for when, port in self.answers[before:] if after is None or port != after.broker_port
            ]
            return found if len(found) >= count else None

        return until(more, "no send was acknowledged")[0]


def require_acknowledged(broker, acknowledged):
    files = log_of(broker)
    for offset, key in acknowledged:
        base = offset // FILE_BYTES * FILE_BYTES
        raw = files[base][offset - base :][:4_096]
        assert record.decode(raw[: record.read_head(raw).total_size]).properties["KEYS"] == key


def fail_over(brokers, load, chance, waits):
    """Kill the master under load, start it again, and wait until it is in sync."""
    victim = brokers.master()
    load.wait_for_more()
    time.sleep(chance.uniform(0, 0.5))
    # Before the kill returns, which waits until the process is gone, the other may be the master.
    before, killed = len(load.answers), time.monotonic()
    victim.kill9()
    waits.append(load.wait_for_more(after=victim, before=before) - killed)
    victim.start()
    until(lambda: in_sync(brokers) == len(brokers.brokers), "it did not come into sync")
    load.wait_for_more()


def in_sync(brokers):
    """How many brokers are in the sync state set, by the controller."""

    async def asking():
        for port in brokers.controllers.ports:
            if not brokers.controllers.runs(port):
                continue
            channel = await connect("127.0.0.1", port, 5)
            body = fastjson.dumps([NAME])
            command = Command.request(int(RequestCode.CONTROLLER_GET_SYNC_STATE_DATA), {}, body)
            answer = await channel.request(command, 5)
            channel.close()
            if answer.code == 0:
                table = fastjson.loads(answer.body)["replicasInfoTable"]
                return len([one for one in table.get(NAME, {}).get("inSyncReplicas", []) if one["alive"]])
        return 0

    return asyncio.run(asking())


def start_all(brokers):
    """Start the brokers, and wait until all are in sync and have the topic."""
    for broker in brokers.brokers:
        broker.start()
    brokers.create()
    until(lambda: in_sync(brokers) == len(brokers.brokers), "the slaves did not join")


def run_under_load(brokers, act, capsys, load=None, limit_s=FAILOVER_LIMIT_S):
    """Start all, and call `act(load, waits)` under load; nothing that was acknowledged may be missing anywhere
    then, and no byte differs. `waits` gets the seconds until sends went on, each below `limit_s`."""
    start_all(brokers)
    load, waits = load or Load(brokers.names.address), []
    asyncio.run(load.run(lambda: act(load, waits)))
    until(lambda: in_sync(brokers) == len(brokers.brokers), "not all are in sync at the end")
    master = brokers.master()
    for broker in brokers.brokers:
        if broker is not master:
            assert broker.stop() == 0
    assert master.stop() == 0
    require_acknowledged(master, load.acknowledged)
    ours = [broker for broker in brokers.brokers if isinstance(broker, OurBroker)]
    for broker in brokers.brokers:
        assert log_of(broker) == log_of(master)
    for broker in ours:
        assert index_of(broker) == index_of(ours[0])
        assert_store_is_whole(broker)
    with capsys.disabled():
        shown = ", ".join(f"{wait:.1f}" for wait in sorted(waits)[-20:])
        print(f" {len(load.acknowledged):,} acknowledged; sends went on after {shown} s", end="")
    assert max(waits) < limit_s


def run_kills(brokers, kills, capsys):
    """Kill the master under load so many times."""
    chance = random.Random(kills)

    def act(load, waits):
        for _ in range(kills):
            fail_over(brokers, load, chance, waits)

    run_under_load(brokers, act, capsys)


@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.proof)])
def test_the_master_is_killed_under_load_and_nothing_acknowledged_is_lost(kills, set_of, capsys):
    run_kills(set_of((OURS, OURS)), kills, capsys)


MIXTURES = [(OURS, OURS, APACHE), (APACHE, OURS)]


@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.proof)])
@pytest.mark.parametrize("kinds", MIXTURES, ids=["two of ours and one of Apache's", "one of each"])
def test_masters_of_both_kinds_are_killed_and_nothing_acknowledged_is_lost(kinds, kills, set_of, capsys):
    run_kills(set_of(kinds), kills, capsys)


def test_a_master_that_hangs_is_replaced_and_acknowledges_nothing_when_it_goes_on(set_of, capsys):
    """The connection to its controller stays open, so the heartbeats decide."""
    brokers = set_of((OURS, OURS), controllerHeartBeatTimeoutMills=3_000)

    def act(load, waits):
        victim = brokers.master()
        load.wait_for_more()
        os.kill(victim.pid, signal.SIGSTOP)
        stopped = time.monotonic()
        try:
            waits.append(load.wait_for_more(after=victim) - stopped)
        finally:
            os.kill(victim.pid, signal.SIGCONT)
        until(lambda: brokers.master() is not victim and in_sync(brokers) == 2, "it did not follow")
        load.wait_for_more()

    run_under_load(brokers, act, capsys)


@pytest.mark.proof
def test_three_controllers_one_of_which_is_killed_each_time(set_of, capsys):
    """The leading one is killed before each second kill of the master."""
    brokers, chance = set_of((OURS, OURS, APACHE), controllers=3), random.Random(3)

    def act(load, waits):
        for number in range(20):
            victim = leader(brokers) if number % 2 else None
            if victim is not None:
                brokers.controllers.kill9(victim)
                until(lambda: leader(brokers) is not None, "the controllers elected no leader")
            fail_over(brokers, load, chance, waits)
            if victim is not None:
                brokers.controllers.start_one(victim)

    run_under_load(brokers, act, capsys)


def leader(brokers):
    """The number of the controller that leads; None while the others agree on none."""

    async def asking():
        for number, port in enumerate(brokers.controllers.ports):
            if not brokers.controllers.runs(port):
                continue
            channel = await connect("127.0.0.1", port, 5)
            answer = await channel.request(
                Command.request(int(RequestCode.CONTROLLER_GET_METADATA_INFO), {}), 5
            )
            channel.close()
            if answer.code == 0 and (answer.fields or {}).get("isLeader") == "true":
                return number
        return None

    return asyncio.run(asking())


LAST_ANSWERS_MS = 100  # in which a client still reads answers of a broker that was killed


@pytest.mark.parametrize(
    ("kills", "kinds", "controllers"),
    [(2, (OURS, OURS), 1), pytest.param(20, (OURS, OURS, APACHE), 3, marks=pytest.mark.proof)],
    ids=["2", "20, mixed, three controllers"],
)
def test_a_producer_of_apache_lives_through_failovers_and_loses_nothing(
    kills, kinds, controllers, set_of, tmp_path, capsys
):
    """With its default of 30 s between two requests for routes, Java's client decides how long sends stop."""
    brokers = set_of(kinds, controllers=controllers)
    start_all(brokers)
    java = clients.JavaProgram(clients.JAVA_5, brokers.names.address, tmp_path)
    producer = java.start(
        "send", topics="Copied", until="eof", threads=4, size=300, send_timeout=2_000, routes_ms=2_000
    )
    kills_ms = []

    def more(since_ms, count=50):
        """Wait for so many acknowledgements after `since_ms`."""
        producer.until(lambda lines: len(lines) > count and lines[-count].get("at_ms", 0) > since_ms, LIMIT_S)

    try:
        for _ in range(kills):
            more(time.time() * 1000)
            victim = brokers.master()
            victim.kill9()
            kills_ms.append(time.time() * 1000)
            more(kills_ms[-1] + LAST_ANSWERS_MS)
            victim.start()
            until(lambda: in_sync(brokers) == len(kinds), "it did not come into sync")
        sent = [line for line in producer.finish(LIMIT_S) if line.get("status") == "SEND_OK"]
        stored = {place(line): line for line in java.run("pull", topics="Copied") if "key" in line}
    finally:
        producer.kill()
    assert len({place(line) for line in sent}) == len(sent) > 50, "an offset was acknowledged twice"
    times_ms = sorted(line["at_ms"] for line in sent)
    waits = [
        (times_ms[bisect_right(times_ms, killed_ms + LAST_ANSWERS_MS)] - killed_ms) / 1000
        for killed_ms in kills_ms
    ]
    for line in sent:
        assert stored[place(line)]["key"] == line["key"]
    with capsys.disabled():
        print(
            f" {len(sent):,} acknowledged; sends went on after {', '.join(f'{one:.1f}' for one in waits)} s",
            end="",
        )
    assert max(waits) < FAILOVER_LIMIT_S


def test_apaches_mqadmin_prints_the_set_and_the_epochs(set_of):
    brokers = set_of((OURS, OURS))
    start_all(brokers)
    printed = mqadmin("getSyncStateSet", "-a", brokers.controllers.addresses, "-b", NAME)
    assert "#SyncStateSetNums\t2" in printed, printed
    printed = mqadmin("getBrokerEpoch", "-n", brokers.names.address, "-b", NAME)
    assert printed.count("#Epoch: EpochEntry{epoch=1, startOffset=0, endOffset=") == 2, printed
    first = brokers.master()
    # It fails to read what its controller answers (5.5.0); the election takes place.
    mqadmin(
        "electMaster", "-a", brokers.controllers.addresses, "-b", "2", "-bn", NAME, "-c", "DefaultCluster"
    )
    until(
        lambda: brokers.master() is not first and in_sync(brokers) == 2,
        "the elected broker did not take over",
    )
