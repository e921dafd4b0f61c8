"""Connections between brokers, and between brokers and their controller, fail at random under load: nothing
that was acknowledged or shown to a consumer is lost, no two masters acknowledge, and sends go on when the
faults end.

What shows that no two masters acknowledged: each acknowledged message lies at its log offset in the log that
all brokers have at the end. No log offset was acknowledged twice. And within one epoch of that log all answers
came from one broker.
"""

import asyncio
import random
import time
from bisect import bisect_right

import pytest

from broker_store.client import PullConsumer
from broker_store.client.errors import ClientError
from broker_store.errors import NotFoundError
from broker_store.formats import epochs
from broker_store.protocol.message_queue import MessageQueue
from tests.interop import clients
from tests.interop.brokers import OurBroker
from tests.interop.replication.test_controller import (
    OURS,
    Load,
    NameServer,
    Set,
    routes_are_renewed,  # noqa: F401  (a fixture)
    run_under_load,
    until,
)
from tests.interop.replication.test_mixtures import QUEUES, SMALL, Pair, require_acknowledged, require_copy
from tests.interop.test_kill_loop import assert_store_is_whole
from tests.support.bad_links import Links, storm
from tests.support.ports import free_port

PRODUCERS, PAUSE_S = 3, 0.02
LIMIT_S = 30.0  # until sends go on after a fault; a connection that is forgotten takes 10 s to be noticed
SOON = {  # so that faults of some seconds reach each limit
    "haHousekeepingInterval": 4_000,
    "haSendHeartbeatInterval": 1_000,
    "slaveTimeout": 1_000,
}
OF_SETS = {"haMaxTimeSlaveNotCatchup": 2_000, "controllerHeartBeatTimeoutMills": 3_000}
SEED = 74  # with faults of 4 s and more between the first master and its controller
SECONDS = [pytest.param(40, id="40 s"), pytest.param(600, id="10 minutes", marks=pytest.mark.proof)]


def seed_for(seconds):
    """The same faults in each short run, others in each long one."""
    return SEED if seconds < 60 else random.SystemRandom().randrange(10**6)


@pytest.fixture
def links():
    with Links() as made:
        yield made


class View:
    """What one broker sees of the others. It asks the name server and the controller by links, which name links
    to the other brokers in their answers."""

    def __init__(self, links, name, nameserver, controller=None):
        self._links, self.name = links, name
        self.names = links.add(f"{name} to the name server", nameserver)
        self.asked = [self.names]
        if controller is not None:
            self.controller = links.add(f"{name} to the controller", controller)
            self.controller.rename({controller: self.controller.address})
            self.asked.append(self.controller)
        self.logs, self.requests = {}, {}  # by the name of another broker

    def add(self, name, broker_port, ha_port):
        for table, what, port in ((self.logs, "log", ha_port), (self.requests, "requests", broker_port)):
            address = f"127.0.0.1:{port}"
            table[name] = self._links.add(f"{self.name} to {name}: {what}", address)
            for link in self.asked:
                link.rename({address: table[name].address})


class Watched(Load):
    """Load with a consumer beside it, which notes what it is shown as the senders note what is acknowledged."""

    def __init__(self, names, queues, name):
        super().__init__(names, PRODUCERS, PAUSE_S)
        self._queues = [MessageQueue("Copied", name, number) for number in range(queues)]
        self.shown = set()  # (log offset, key)

    async def run(self, act):
        reading = asyncio.create_task(self._read())
        try:
            await super().run(act)
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        assert reading.cancelled(), reading.exception()

    async def _read(self):
        places = dict.fromkeys(self._queues, 0)
        async with PullConsumer("readers", self._names, timeout=2.0) as consumer:
            while True:
                await asyncio.sleep(PAUSE_S)
                for queue, offset in places.items():
                    try:
                        result = await consumer.pull(queue, offset)
                    except (ClientError, NotFoundError, OSError, TimeoutError):
                        continue
                    places[queue] = result.next_offset
                    self.shown |= {(one.record.log_offset, *one.keys) for one in result.messages}


class FixedPair(Pair):
    """A SYNC_MASTER and its slave, both of ours; the slave reaches the master and the name server by links."""

    def __init__(self, root, links):
        self.names = NameServer(root / "names")
        port = free_port()
        self.master = OurBroker(
            root / "master",
            SMALL | SOON | {"brokerRole": "SYNC_MASTER", "haListenPort": port},
            arguments=("--no-web", "--nameserver", self.names.address),
        )
        self.master.nameserver = self.names.address
        view = View(links, "slave", self.names.address)
        view.add("master", self.master.broker_port, port)
        self.slave = OurBroker(
            root / "slave",
            SMALL | SOON | {"brokerRole": "SLAVE", "brokerId": 1},
            arguments=("--no-web", "--nameserver", view.names.address),
        )
        log, requests = view.logs["master"], view.requests["master"]
        self.groups = {
            "the log": [log],
            "the log again": [log],  # the one that matters most
            "requests": [requests],
            "log and requests": [log, requests],
            "all": [log, requests, view.names],
        }

    def create(self):
        """The master may not have registered yet."""

        def attempt():
            try:
                super(FixedPair, self).create()
            except (ClientError, NotFoundError):
                return False
            return True

        until(attempt, "the topic could not be created")

    def end(self):
        self.slave.kill9()
        self.master.kill9()
        self.names.stop()


def after_each(load, waits):
    """A function that waits until sends go on, and notes how long it took."""

    def wait():
        healed_s = time.monotonic()
        waits.append(load.wait_for_more(20) - healed_s)

    return wait


@pytest.mark.takes(60)
@pytest.mark.parametrize("seconds", SECONDS)
def test_faults_between_a_sync_master_and_its_slave_lose_nothing(seconds, tmp_path, links, capsys):
    pair, waits, faults = FixedPair(tmp_path, links), [], []
    load = Watched(pair.names.address, QUEUES, "pair")

    def act():
        load.wait_for_more()
        faults.append(storm(links, pair.groups, seed_for(seconds), seconds, after_each(load, waits)))

    try:
        pair.master.start()
        pair.slave.start()
        pair.create()
        asyncio.run(load.run(act))
        pair.wait_for_slave()
        pair.stop()
        require_copy(pair)
        for broker in (pair.master, pair.slave):
            require_acknowledged(broker, load.acknowledged)
            assert_store_is_whole(broker)
        require_shown(pair.master, load)
    finally:
        pair.end()
    require_no_offset_twice(load.acknowledged)
    with capsys.disabled():
        print(
            f" {faults[0]} faults, {len(load.acknowledged):,} acknowledged, {max(waits):.1f} s at most",
            end="",
        )
    assert max(waits) < LIMIT_S


class SplitSet(Set):
    """Brokers of ours, each of which reaches the controller, the name server and the others by links."""

    def __init__(self, root, links, count, least):
        """At least `least` of `count` brokers acknowledge."""
        self._links, self.views = links, []
        super().__init__(root, [OURS] * count, **SOON, **OF_SETS, minInSyncReplicas=least)
        for view, broker in zip(self.views, self.brokers, strict=True):
            for other in self.views:
                if other is not view:
                    other.add(view.name, broker.broker_port, broker.broker_port + 1)

    def _broker(self, kind, data, given):
        view = View(self._links, f"broker {len(self.views)}", self.names.address, self.controllers.addresses)
        self.views.append(view)
        arguments = ("--no-web", "--nameserver", view.names.address)
        return OurBroker(data, given | {"controllerAddr": view.controller.address}, arguments)

    def groups(self):
        """Name -> links that fail together."""
        found = {}
        for view in self.views:
            others = [*view.logs.values(), *view.requests.values()]
            for other in self.views:
                if other is not view:
                    others += [other.logs[view.name], other.requests[view.name]]
                    found[f"log of {other.name} at {view.name}"] = [view.logs[other.name]]
            found[f"{view.name} and the controller"] = [view.controller]
            found[f"{view.name} and the others"] = others
            found[f"{view.name} and all"] = [view.controller, *others]
            found[f"{view.name} and the name server"] = [view.names]
        return found


@pytest.mark.takes(60)
@pytest.mark.parametrize(
    ("count", "least", "seconds"),
    [
        pytest.param(3, 1, 40, id="three brokers, 40 s"),
        pytest.param(3, 1, 600, id="three brokers, 10 minutes", marks=pytest.mark.proof),
        pytest.param(3, 2, 600, id="two of three acknowledge, 10 minutes", marks=pytest.mark.proof),
        pytest.param(2, 1, 600, id="two brokers, 10 minutes", marks=pytest.mark.proof),
    ],
)
def test_faults_in_a_set_lose_nothing_and_no_two_masters_acknowledge(
    count, least, seconds, tmp_path, links, capsys
):
    clients.require(clients.JAVA_5)
    brokers, faults = SplitSet(tmp_path, links, count, least), []
    load = Watched(brokers.names.address, 4, "set")

    def act(load, waits):
        load.wait_for_more()
        faults.append(storm(links, brokers.groups(), seed_for(seconds), seconds, after_each(load, waits)))

    try:
        run_under_load(brokers, act, capsys, load, LIMIT_S)
        require_shown(brokers.brokers[0], load)
    finally:
        brokers.stop()
    require_no_offset_twice(load.acknowledged)
    number = require_one_master_an_epoch(brokers.brokers[0].store, load)
    with capsys.disabled():
        print(f"; {faults[0]} faults, {number} epochs", end="")
    assert number > 1, "no fault led to an election"


def require_shown(broker, load):
    """What the consumer was shown is in the log, and it was shown most of it."""
    require_acknowledged(broker, sorted(load.shown))
    assert len(load.shown) > len(load.acknowledged) // 2


def require_no_offset_twice(acknowledged):
    assert len({offset for offset, _ in acknowledged}) == len(acknowledged), (
        "an offset was acknowledged twice"
    )


def require_one_master_an_epoch(store, load):
    """Return the number of epochs."""
    entries = epochs.decode((store / epochs.FILE_NAME).read_bytes())
    begins = [epoch.begin for epoch in entries]
    answered = {}
    for (offset, _), (_, port) in zip(load.acknowledged, load.answers, strict=True):
        answered.setdefault(bisect_right(begins, offset), set()).add(port)
    assert 0 not in answered
    assert all(len(ports) == 1 for ports in answered.values()), answered
    return len(entries)
