"""A whole cluster on loopback for the client to talk to: our name server and broker over a store in
memory."""

import asyncio
import time

import pytest

from broker_store.config.broker import BrokerSettings
from broker_store.config.store import StoreSettings
from broker_store.nameserver.handlers import NameServer
from broker_store.server.broker import Broker
from broker_store.server.nameserver_port import NameServerPort
from broker_store.server.parts import build_parts
from tests.support.memory_store import MemoryStore


class Cluster:
    """`nameservers` is what clients are given; the broker's clock can be set ahead. A cluster `beside` another
    one is a second broker of its name server."""

    def __init__(self, beside=None, **settings):
        self._ahead_ms = 0
        self.nameserver = NameServer(self.clock) if beside is None else beside.nameserver
        self.nameserver_port = NameServerPort(self.nameserver, self.clock)
        self.store = MemoryStore(self.clock)
        names = {
            "broker_name": "broker-a",
            "broker_cluster_name": "C",
            "broker_ip1": "127.0.0.1",
            "listen_port": 0,
        }
        settings = BrokerSettings(**(names | settings))
        self.parts = build_parts(
            settings, StoreSettings(), self.store, self.clock, nameserver=self.nameserver
        )
        self.broker = Broker(self.parts)

    def clock(self):
        return time.time_ns() // 1_000_000 + self._ahead_ms

    def advance(self, milliseconds):
        """Let the broker's time pass, and its delayed messages become due."""
        self._ahead_ms += milliseconds
        self.broker.step()

    @property
    def nameservers(self):
        return f"127.0.0.1:{self.nameserver_port.listener.port}"

    @property
    def address(self):
        return self.parts.endpoint.address

    async def start(self):
        await self.nameserver_port.start("127.0.0.1", 0)
        self.broker.load()
        await self.broker.start("127.0.0.1", fast_port=False)

    async def stop(self):
        await self.broker.stop()
        await self.nameserver_port.stop()

    def cut_connections(self):
        """What a network does: every connection to the broker ends."""
        for listener in self.broker.listeners:
            for channel in list(listener.channels):
                channel.abort()


@pytest.fixture
async def cluster():
    cluster = Cluster()
    await cluster.start()
    yield cluster
    await cluster.stop()


class Inbox:
    """A handler that keeps what it gets, and fails a given number of times."""

    def __init__(self, failures=0):
        self.failures = failures
        self.messages = []
        self._queue = asyncio.Queue()

    async def __call__(self, message):
        self.messages.append(message)
        self._queue.put_nowait(message)
        if self.failures:
            self.failures -= 1
            raise ValueError("told to fail")

    async def next(self, count=1):
        """The next messages, waited for."""
        async with asyncio.timeout(20):
            return [await self._queue.get() for _ in range(count)]
