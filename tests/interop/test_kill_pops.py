"""kill -9 while consumers pop: no acknowledged message comes again, the others come when their time is over,
and none is lost.

A kill also takes the answer of an acknowledgement that was stored before. Such a message does not come again; the
store says that it was acknowledged."""

import asyncio
import random
import time
from pathlib import Path

import pytest

from broker_store.client import Admin
from broker_store.formats import pop_records
from tests.interop.brokers import OurBroker
from tests.interop.pop_client import Given, PopClient
from tests.interop.test_kill_loop import SMALL_FILES, assert_store_is_whole
from tests.support.reference import walk_log
from tests.support.stores import log_bytes

INVISIBLE_MS = 3_000
TOPIC, GROUP = "killed-pops", "killed-poppers"


class Notes:
    def __init__(self) -> None:
        self.sent: set[str] = set()
        self.given: dict[str, list[Given]] = {}
        self.acked: dict[str, Given] = {}
        self.wrong: list[str] = []

    def take(self, given: list[Given]) -> None:
        for one in given:
            if one.key in self.acked:
                self.wrong.append(f"came after its acknowledgement: {one}, {self.acked[one.key]}")
            before = self.given.setdefault(one.key, [])
            if before and one.pop_ms < before[-1].visible_ms:
                self.wrong.append(f"came before its time: {one}, {before[-1]}")
            before.append(one)


async def send_on(port: int, notes: Notes, ended: asyncio.Event) -> None:
    number = 0
    while not ended.is_set():
        try:
            client = await PopClient.connect(port, GROUP, TOPIC)
            while not ended.is_set():
                number += 1
                if await client.send(f"k{number}", number % 4):
                    notes.sent.add(f"k{number}")
                await asyncio.sleep(0.01)
            client.close()
        except OSError:
            await asyncio.sleep(0.1)  # the broker is away


async def pop_on(port: int, notes: Notes, ended: asyncio.Event, share: float) -> None:
    """Pop and acknowledge a share of the messages, until the end."""
    chance = random.Random(share)
    while not ended.is_set():
        try:
            client = await PopClient.connect(port, GROUP, TOPIC)
            while not ended.is_set():
                given = await client.pop(count=8, invisible_ms=INVISIBLE_MS, poll_ms=500)
                notes.take(given)
                for one in given:
                    # An acknowledgement after its time may come too late, as with Apache's broker
                    is_in_time = time.time() * 1000 < one.visible_ms - 1_000
                    if is_in_time and chance.random() < share and await client.ack(one):
                        if time.time() * 1000 < one.visible_ms:
                            notes.acked[one.key] = one
            client.close()
        except OSError:
            await asyncio.sleep(0.1)


async def kill_on(broker: OurBroker, ended: asyncio.Event, kills: int) -> None:
    chance = random.Random(7)
    for _ in range(kills):
        await asyncio.sleep(0.3 + 2 * chance.random())
        await asyncio.to_thread(broker.kill9)
        await asyncio.to_thread(broker.start)
    await asyncio.sleep(0.5)
    ended.set()


async def run(broker: OurBroker, notes: Notes, kills: int) -> None:
    async with Admin(broker.nameserver) as admin:
        await admin.create_topic(TOPIC, read_queues=4, write_queues=4)
    ended = asyncio.Event()
    await asyncio.gather(
        kill_on(broker, ended, kills),
        send_on(broker.broker_port, notes, ended),
        *(pop_on(broker.broker_port, notes, ended, share) for share in (0.9, 0.5)),
    )
    # All the rest, until nothing came for longer than an invisible time
    drained, quiet_since = asyncio.Event(), time.monotonic()
    seen = sum(map(len, notes.given.values()))
    drain = asyncio.create_task(pop_on(broker.broker_port, notes, drained, 1.0))
    while time.monotonic() < quiet_since + 2.5 * INVISIBLE_MS / 1000:
        await asyncio.sleep(0.2)
        if (now := sum(map(len, notes.given.values()))) != seen:
            seen, quiet_since = now, time.monotonic()
    drained.set()
    await drain


def stored_acks(store: Path) -> set[tuple[str, int, int, int]]:
    """Return (topic, queue, offset, time of the pop) of each acknowledgement in a store."""
    found = set()
    for stored in walk_log(log_bytes(store)).records:
        if stored.tags in (pop_records.ACK_TAG, pop_records.BATCH_ACK_TAG):
            ack = pop_records.decode_ack(stored.body)
            key = ack.key
            found.update((key.topic, key.queue_id, offset, key.pop_ms) for offset in ack.offsets)
    return found


@pytest.mark.takes(50)
@pytest.mark.parametrize("kills", [8, pytest.param(20, marks=pytest.mark.proof)])
def test_kills_lose_no_message_and_bring_none_back(kills, tmp_path):
    broker = OurBroker(tmp_path / "data", SMALL_FILES).start()
    notes = Notes()
    try:
        asyncio.run(run(broker, notes, kills))
        broker.stop()
    finally:
        broker.kill9()
    assert notes.wrong == []
    assert notes.sent <= notes.given.keys()
    stored = stored_acks(broker.store)
    for key in notes.sent:
        last = notes.given[key][-1]
        assert (last.topic, last.queue_id, last.offset, last.pop_ms) in stored, notes.given[key]
    assert len(notes.sent) > 100 and any(len(given) > 1 for given in notes.given.values())
    assert_store_is_whole(broker)
