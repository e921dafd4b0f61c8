"""kill -9 while delayed, timed and transactional messages are being sent: each that was promised comes, none
before its time, none that was rolled back."""

import asyncio
import random

import pytest

from broker_store.client import Admin, TransactionProducer
from broker_store.errors import BrokerStoreError
from tests.interop import clients
from tests.interop.brokers import OurBroker
from tests.interop.test_kill_loop import SMALL_FILES, assert_store_is_whole

KILLS = 3
# Between two sends; a client that is asked about thousands of halves each second is another test
PAUSE_MS = 10
LEVEL, LEVEL_MS, TIMER_MS = 2, 5_000, 3_500
SETTINGS = {"transactionTimeOut": 1000, "transactionCheckInterval": 1000, "transactionCheckMax": 100}
TOPICS = ("kinds-delayed", "kinds-timed", "kinds-transacted")


def is_committed(message) -> bool:
    """What becomes of a half follows from its number, whichever reports it: the producer at once, or its
    check when it is asked."""
    return int(message.keys[0].removeprefix("half-")) % 2 == 0


class Halves:
    """Begins a half, says its word or keeps silent, and again; what was promised is remembered."""

    def __init__(self, nameserver: str):
        self._producer = TransactionProducer(nameserver, "kinds-producers", is_committed, timeout=2)
        self.promised: set[str] = set()
        self.rolled_back: set[str] = set()
        self.ended = asyncio.Event()

    async def run(self) -> None:
        async with self._producer as producer:
            number = 0
            while not self.ended.is_set():
                number += 1
                await asyncio.sleep(PAUSE_MS / 1000)
                key = f"half-{number}"
                try:
                    half = await producer.begin(TOPICS[2], key.encode(), keys=[key])
                except BrokerStoreError:
                    await asyncio.sleep(0.05)  # the broker is away
                    continue
                (self.rolled_back if number % 2 else self.promised).add(key)
                if number % 3:
                    await (half.rollback() if number % 2 else half.commit())
            await asyncio.sleep(5)  # who kept silent is asked meanwhile


def stored(lines) -> dict[str, list[dict]]:
    found: dict[str, list[dict]] = {}
    for line in lines:
        if "key" in line:
            found.setdefault(line["key"], []).append(line)
    return found


@pytest.mark.takes(60)
async def test_what_was_promised_comes_and_none_early(tmp_path):
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed {seed}")  # shown by pytest when the test fails
    moments = random.Random(seed)
    broker = OurBroker(tmp_path / "data", SETTINGS | SMALL_FILES)
    java = clients.java_of(clients.JAVA_5, broker, tmp_path)
    senders: list[clients.Running] = []
    try:
        broker.start()
        async with Admin(broker.nameserver) as admin:
            for topic in TOPICS:
                await admin.create_topic(topic, read_queues=2, write_queues=2)
        halves = Halves(broker.nameserver)
        transacting = asyncio.ensure_future(halves.run())
        senders += [
            java.start("send", topics=topic, until="eof", pause_ms=PAUSE_MS, send_timeout=2000, **asks)
            for topic, asks in zip(
                TOPICS, ({"delay": LEVEL, "run": "d"}, {"timer": f"ms:{TIMER_MS}", "run": "t"}), strict=False
            )
        ]
        for _ in range(KILLS):
            before = [len(sender.lines) for sender in senders]
            begun = len(halves.promised)
            for sender, count in zip(senders, before, strict=True):
                await asyncio.to_thread(
                    sender.until,
                    lambda lines, count=count: any("offset" in line for line in lines[count:]),
                    60,
                )
            async with asyncio.timeout(60):
                while len(halves.promised) == begun:
                    await asyncio.sleep(0.05)
            await asyncio.sleep(moments.uniform(0.05, 1.5))  # the random moment; not a wait for anything
            broker.kill9()
            await asyncio.to_thread(broker.start)
        delayed, timed = [
            {
                line["key"]
                for line in await asyncio.to_thread(sender.finish, 60)
                if line.get("status") == "SEND_OK"
            }
            for sender in senders
        ]
        halves.ended.set()
        await transacting
        assert min(map(len, (delayed, timed, halves.promised, halves.rolled_back))) > 10

        promised = dict(zip(TOPICS, (delayed, timed, halves.promised), strict=True))
        for topic, keys in promised.items():
            reader = java.start("consume", group=f"{topic}-readers", topics=topic)
            try:
                await asyncio.to_thread(
                    reader.until, lambda lines, keys=keys: keys <= {line.get("key") for line in lines}, 60
                )
            finally:
                reader.kill()
        found = {topic: stored(java.run("pull", topics=topic)) for topic in TOPICS}
        assert broker.stop() == 0
    finally:
        for sender in senders:
            sender.kill()
        broker.kill9()

    for topic, wait_ms in ((TOPICS[0], LEVEL_MS), (TOPICS[1], TIMER_MS)):
        early = [
            line
            for lines in found[topic].values()
            for line in lines
            if line["store_time"] < line["born_time"] + wait_ms
        ]
        assert not early, early[:3]
    assert halves.rolled_back.isdisjoint(found[TOPICS[2]]), "a half that was rolled back is shown"
    assert all(int(key.removeprefix("half-")) % 2 == 0 for key in found[TOPICS[2]])
    assert_store_is_whole(broker)
