"""kill -9 while consumers pop in order: no acknowledged message comes again, no queue gives messages while some
of before are invisible, and none is lost."""

import asyncio
import itertools
import random
import time

import pytest

from broker_store.client import Admin
from tests.interop.brokers import OurBroker
from tests.interop.pop_client import Given, PopClient
from tests.interop.test_kill_loop import SMALL_FILES, assert_store_is_whole
from tests.interop.test_kill_pops import GROUP, INVISIBLE_MS, TOPIC, kill_on, send_on

_ATTEMPTS = itertools.count()


class Notes:
    """What was given and acknowledged, by key. `visible_ms` is when a message may come again at the
    earliest."""

    def __init__(self) -> None:
        self.sent: set[str] = set()
        self.given: dict[str, list[Given]] = {}
        self.acked: dict[str, Given] = {}
        self.maybe_acked: set[str] = set()  # its answer is on its way, or was lost
        self.visible_ms: dict[str, int] = {}
        self.wrong: list[str] = []
        self.left: int | None = None  # messages not acknowledged at the end; None if not asked yet

    def take(self, given: list[Given], began: dict[str, Given]) -> None:
        """Note the answer to a pop; `began` are the acknowledgements that were answered before it began."""
        for one in given:
            if one.key in began:
                self.wrong.append(f"came after its acknowledgement: {one}, {began[one.key]}")
            before = self.given.setdefault(one.key, [])
            if one.tries < len(before):
                self.wrong.append(f"has a wrong count: {one}, {before}")
            for key, visible_ms in self.visible_ms.items():
                other = self.given[key][-1]
                if (
                    other.queue_id == one.queue_id
                    and visible_ms > one.pop_ms > other.pop_ms
                    and key not in self.maybe_acked
                ):
                    self.wrong.append(f"came while another was invisible until {visible_ms}: {one}, {other}")
        for one in given:
            self.given[one.key].append(one)
            self.visible_ms[one.key] = one.visible_ms
        for queue_id in {one.queue_id for one in given}:
            offsets = [one.offset for one in given if one.queue_id == queue_id]
            if offsets != sorted(offsets):
                self.wrong.append(f"came out of order: {given}")


async def pop_on(port: int, notes: Notes, ended: asyncio.Event, share: float) -> None:
    """Pop in order, and acknowledge a share of the messages or make them visible earlier, until the end."""
    chance = random.Random(share)
    while not ended.is_set():
        try:
            client = await PopClient.connect(port, GROUP, TOPIC)
            while not ended.is_set():
                began = dict(notes.acked)
                attempt = f"attempt-{next(_ATTEMPTS)}"
                given = await client.pop(count=8, invisible_ms=INVISIBLE_MS, poll_ms=500, attempt=attempt)
                notes.take(given, began)
                for one in given:
                    if time.time() * 1000 > one.visible_ms - 500:
                        continue
                    if chance.random() < share:
                        notes.maybe_acked.add(one.key)
                        if await client.ack(one) and time.time() * 1000 < one.visible_ms:
                            notes.acked[one.key] = one
                    elif chance.random() < 0.5:
                        notes.visible_ms[one.key] = min(
                            notes.visible_ms[one.key], int(time.time() * 1000) + 300
                        )
                        await client.change(one, 300)
            client.close()
        except OSError:
            await asyncio.sleep(0.1)


async def messages_left(admin: Admin) -> int:
    """Return how many messages lie after the positions of the group."""
    offsets = await admin.consume_stats(GROUP, TOPIC)
    assert len(offsets) == 4
    return sum(of.broker_offset - of.consumer_offset for of in offsets.values())


async def run(broker: OurBroker, notes: Notes, kills: int) -> None:
    async with Admin(broker.nameserver) as admin:
        await admin.create_topic(TOPIC, read_queues=4, write_queues=4)
    ended = asyncio.Event()
    await asyncio.gather(
        kill_on(broker, ended, kills),
        send_on(broker.broker_port, notes, ended),
        *(pop_on(broker.broker_port, notes, ended, share) for share in (0.95, 0.7)),
    )
    drained, until = asyncio.Event(), time.monotonic() + 60
    drain = asyncio.create_task(pop_on(broker.broker_port, notes, drained, 1.0))
    async with Admin(broker.nameserver) as admin:
        # A position passes a message when it was acknowledged, also if a kill took the answer
        while notes.left != 0 and time.monotonic() < until:
            await asyncio.sleep(0.2)
            notes.left = await messages_left(admin)
        await asyncio.sleep(1.5 * INVISIBLE_MS / 1000)
        drained.set()
        await drain
        notes.left = await messages_left(admin)


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
    assert notes.sent <= notes.given.keys() and notes.left == 0
    assert len(notes.sent) > 100 and any(len(given) > 1 for given in notes.given.values())
    assert_store_is_whole(broker)
