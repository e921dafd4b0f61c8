"""Pops and their acknowledgements: `python -m tests.bench.pop NAMESERVER BROKER_PORT SECONDS MESSAGES` prints a
JSON line.

Four connections pop from one topic, 32 messages at a time, and acknowledge each by a request of its own, as
Java's push consumer does. A connection sends its acknowledgements and its next pop in one piece, and then reads
all answers. It reads the offsets of an answer and not the messages, so the broker sets the speed. The
measurement ends early when all messages were given.
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
from broker_store.protocol.pop import Receipt, write_receipt
from tests.bench.raw_connection import RawConnection

TOPIC, GROUP, BROKER_NAME = "BenchPop", "BenchPopGroup", "broker-a"
QUEUES = 8
CONNECTIONS = 4
BODY = b"x" * 100
PER_BATCH = 32
PER_POP = 32
INVISIBLE_MS = 60_000
MAX_EMPTY = 20

_FIELD = {
    name: re.compile(rb'"%s":"([^"]*)"' % name)
    for name in (b"popTime", b"reviveQid", b"startOffsetInfo", b"msgOffsetInfo")
}


async def fill(nameserver: str, messages: int) -> None:
    """Store the messages, evenly in the queues."""
    async with Admin(nameserver) as admin:
        await admin.create_topic(TOPIC, read_queues=QUEUES, write_queues=QUEUES)
    async with Producer(nameserver) as producer:
        for _ in range(0, messages // QUEUES, PER_BATCH):
            batch = [Outgoing(BODY, tag="TagA") for _ in range(PER_BATCH)]
            for queue_id in range(QUEUES):
                await producer.send_batch(TOPIC, batch, queue_id=queue_id)


class Popper:
    """One connection."""

    def __init__(self, port: int, number: int):
        subscription = Subscription(TOPIC, "*", "TAG", 1)
        self._connection = RawConnection(port, f"127.0.0.1@bench-pop-{number}", GROUP, subscription)
        self._acks: list[Command] = []
        self._asked = 0
        self.given = self.pops = 0

    def ask(self) -> None:
        """Send the acknowledgements of the last pop, and the next pop."""
        pop = {
            "consumerGroup": GROUP, "topic": TOPIC, "queueId": "-1", "maxMsgNums": str(PER_POP), "initMode": "0",
            "invisibleTime": str(INVISIBLE_MS), "pollTime": "0", "bornTime": str(int(time.time() * 1e3)), "expType": "TAG", "exp": "*",
        }  # fmt: skip
        self._asked = len(self._acks)
        self._connection.send([*self._acks, Command.request(int(RequestCode.POP_MESSAGE), pop)])
        self._acks = []

    def take(self) -> bool:
        """Read the answers to `ask`; return whether there were messages."""
        answered = 0
        while answered <= self._asked:  # answers may come in another order
            code, header = self._connection.answer()
            answered += 1
            if code == ResponseCode.POLLING_TIMEOUT:
                continue
            if not code and b'"popTime"' in header:
                self._note(header)
            elif code:
                raise SystemExit(f"a pop or an acknowledgement was answered {header[:300]!r}")
        self.pops += 1
        return bool(self._acks)

    def _note(self, header: bytes) -> None:
        """Make the acknowledgements of the messages of an answer."""
        pop_ms, revive_queue, starts_text, offsets_text = (
            found[1].decode() if (found := _FIELD[name].search(header)) else "" for name in _FIELD
        )
        starts = dict(text.rsplit(" ", 1) for text in starts_text.split(";"))
        for text in offsets_text.split(";"):
            queue, offsets = text.rsplit(" ", 1)
            kind, queue_id = queue.split(" ")
            if kind != "0":
                raise SystemExit("messages came again: they were not acknowledged in time")
            for offset in offsets.split(","):
                receipt = Receipt(
                    int(starts[queue]), int(pop_ms), INVISIBLE_MS, int(revive_queue), 0, BROKER_NAME,
                    int(queue_id), int(offset),
                )  # fmt: skip
                fields = {
                    "consumerGroup": GROUP, "topic": TOPIC, "queueId": queue_id, "offset": offset,
                    "extraInfo": write_receipt(receipt),
                }  # fmt: skip
                self._acks.append(Command.request(int(RequestCode.ACK_MESSAGE), fields))
        self.given += len(self._acks)


def measure(port: int, seconds: float) -> dict[str, float]:
    """Return what was popped and acknowledged in this time, after a third of it as warming."""
    poppers = [Popper(port, number) for number in range(CONNECTIONS)]
    for popper in poppers:
        popper.ask()
    given = pops = 0
    took = 1.0
    for length, is_counted in ((seconds / 3, False), (seconds, True)):
        for popper in poppers:
            popper.given = popper.pops = 0
        began = time.perf_counter()
        empty = 0  # pops without messages, one after another; another pop may hold the queues
        while empty < MAX_EMPTY and time.perf_counter() - began < length:
            for popper in poppers:
                empty = 0 if popper.take() else empty + 1
                popper.ask()
        took = time.perf_counter() - began
        if empty >= MAX_EMPTY and not is_counted:
            raise SystemExit("all messages were given before the measurement: more are needed")
        given, pops = sum(popper.given for popper in poppers), sum(popper.pops for popper in poppers)
    for popper in poppers:
        popper.take()
    return {"scenario": "pop", "given_s": given / took, "pops_s": pops / took, "took_s": took}


if __name__ == "__main__":
    nameserver, broker_port, for_s, count = sys.argv[1:]
    asyncio.run(fill(nameserver, int(count)))
    print(json.dumps(measure(int(broker_port), float(for_s))))
