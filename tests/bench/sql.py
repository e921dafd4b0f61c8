"""Pulls with a SQL92 expression: `python -m tests.bench.sql NAMESERVER BROKER_PORT SECONDS MESSAGES` prints a
JSON line.

Each queue has messages of which the expression passes one of eight. A group subscribes by a heartbeat, as a
client does, so the broker compiles the expression once. A connection for each queue pulls from its beginning
to its end, again and again; one pull of each is always under way. The client reads two numbers of an answer,
so the broker sets the speed. `looked_s` are messages that the broker has read, by the offsets of its answers.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time

from broker_store.client import Admin, Outgoing, Producer
from broker_store.protocol.client_bodies import Subscription
from broker_store.protocol.codes import RequestCode, ResponseCode
from broker_store.protocol.command import Command
from tests.bench.raw_connection import RawConnection

TOPIC, GROUP = "BenchSql", "BenchSqlGroup"
EXPRESSION = "a > 5 AND b = 'x'"
EVERY = 8  # of so many messages one passes
QUEUES = 4
BODY = b"x" * 100
PER_BATCH = 32
FOUND = frozenset((int(ResponseCode.SUCCESS), int(ResponseCode.PULL_RETRY_IMMEDIATELY)))

_NEXT = re.compile(rb'"nextBeginOffset":"(\d+)"')


def values_of(number: int) -> dict[str, str]:
    """Return the properties of a message: `a` runs from 0 to 7, and of 6 and 7 only 6 has the wanted `b`."""
    return {"a": str(number % EVERY), "b": "xy"[number % 2]}


async def fill(nameserver: str, messages: int) -> None:
    """Store the messages, evenly in the queues."""
    async with Admin(nameserver) as admin:
        await admin.create_topic(TOPIC, read_queues=QUEUES, write_queues=QUEUES)
    async with Producer(nameserver) as producer:
        for first in range(0, messages // QUEUES, PER_BATCH):
            batch = [
                Outgoing(BODY, tag="TagA", properties=values_of(first + number))
                for number in range(PER_BATCH)
            ]
            for queue_id in range(QUEUES):
                await producer.send_batch(TOPIC, batch, queue_id=queue_id)


class Puller:
    """A connection that reads one queue."""

    def __init__(self, port: int, queue_id: int):
        self._queue_id = queue_id
        subscription = Subscription(TOPIC, EXPRESSION, "SQL92", 1)
        self._connection = RawConnection(port, f"127.0.0.1@bench-sql-{queue_id}", GROUP, subscription)
        self.offset = self.looked = self.pulls = 0

    def ask(self) -> None:
        fields = {
            "consumerGroup": GROUP, "topic": TOPIC, "queueId": str(self._queue_id), "queueOffset": str(self.offset), "maxMsgNums": "32",
            "sysFlag": "0", "commitOffset": "0", "suspendTimeoutMillis": "0", "subVersion": "1", "expressionType": "SQL92",
        }  # fmt: skip
        self._connection.send([Command.request(int(RequestCode.PULL_MESSAGE), fields)])

    def take(self) -> None:
        """Read the answer to a pull."""
        code, header = self._connection.answer()
        self.pulls += 1
        if code == ResponseCode.PULL_NOT_FOUND:
            self.offset = 0
            return
        following = _NEXT.search(header)
        if code not in FOUND or following is None:
            raise SystemExit(f"a pull was answered {header[:300]!r}")
        self.looked += int(following[1]) - self.offset
        self.offset = int(following[1])


def measure(port: int, seconds: float) -> dict[str, float]:
    """Return what was read in this time, after a third of it as warming."""
    pullers = [Puller(port, queue_id) for queue_id in range(QUEUES)]
    looked = pulls = 0
    began = time.perf_counter()
    for length, is_counted in ((seconds / 3, False), (seconds, True)):
        for puller in pullers:
            puller.looked = puller.pulls = 0
            if not is_counted:
                puller.ask()
        began = time.perf_counter()
        while time.perf_counter() - began < length:
            for puller in pullers:
                puller.take()
                puller.ask()
        looked, pulls = sum(puller.looked for puller in pullers), sum(puller.pulls for puller in pullers)
    took = time.perf_counter() - began
    for puller in pullers:
        puller.take()
    return {
        "scenario": "sql",
        "looked_s": looked / took,
        "pulls_s": pulls / took,
        "looked_a_pull": looked / pulls,
    }


if __name__ == "__main__":
    nameserver, broker_port, for_s, count = sys.argv[1:]
    asyncio.run(fill(nameserver, int(count)))
    print(json.dumps(measure(int(broker_port), float(for_s))))
