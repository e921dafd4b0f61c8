"""A store with popped messages in flight goes from one broker to the other and back: each message that is not
acknowledged comes again when its time is over, and no acknowledged one. Also of pops in order."""

import asyncio
import itertools
import time

import pytest

from tests.interop.brokers import THERE_AND_BACK, ApacheBroker
from tests.interop.pop_client import Given, PopClient

SETTINGS: dict[str, object] = {}
TOPIC, GROUP = "pops-on-the-way", "poppers-on-the-way"
MESSAGES, TAKEN = 40, 12
INVISIBLE_MS = 25_000
# Apache's broker brings messages back when two to some seconds are over.
LATE_MS = {"OurBroker": 8_000, "ApacheBroker": 20_000}


EARLY_MS = 20  # between two reads of the clock by Apache's broker


class Notes:
    """What was given and acknowledged, by key."""

    def __init__(self) -> None:
        self.given: dict[str, list[Given]] = {}
        self.acked: set[str] = set()

    def take(self, given: list[Given], *, may_forget: bool = False, early_ms: int = 0) -> None:
        """`may_forget`: the broker may count a message that comes again as new. A message may come `early_ms`
        before its time."""
        for one in given:
            assert one.key not in self.acked, f"{one.key} was acknowledged and came again"
            before = self.given.setdefault(one.key, [])
            assert not before or one.pop_ms >= before[-1].visible_ms - early_ms, (
                f"{one.key} came before its time"
            )
            assert one.tries == len(before) or (may_forget and not one.tries), (one, before)
            before.append(one)

    def take_in_order(self, given: list[Given], broker) -> None:
        """Also check that no queue gave messages while one of before is invisible. A pop of Apache's broker
        that gives some messages of a queue forgets the counts of those after them; it notes the time of a pop
        before it reads the clock again to find what is invisible."""
        is_apache = type(broker) is ApacheBroker
        early_ms = EARLY_MS if is_apache else 0
        for one in given:
            for before in self.given.values():
                other = before[-1]
                if other.queue_id == one.queue_id and other.key not in self.acked:
                    assert other.visible_ms <= one.pop_ms + early_ms, (one, other)
        self.take(given, may_forget=is_apache, early_ms=early_ms)


async def use(broker, notes: Notes, *, first: bool, last: bool) -> None:
    """Send at first; pop some messages and acknowledge a third of them; at last wait for all the others."""
    client = await PopClient.connect(broker.broker_port, GROUP, TOPIC)
    began_ms = time.time() * 1000  # a message cannot come while no broker runs
    try:
        if first:
            for number in range(MESSAGES):
                assert await client.send(f"k{number}", number % 4)
        while not last:
            given = await client.pop(count=TAKEN, invisible_ms=INVISIBLE_MS)
            notes.take(given)
            for one in given[::3]:
                assert await client.ack(one)
                notes.acked.add(one.key)
            if given:
                return
        until = time.monotonic() + 2 * INVISIBLE_MS / 1000 + 30
        while len(notes.acked) < MESSAGES and time.monotonic() < until:
            given = await client.pop(invisible_ms=INVISIBLE_MS, poll_ms=1_000)
            notes.take(given)
            for one in given:
                assert await client.ack(one)
                notes.acked.add(one.key)
                before = notes.given[one.key][:-1]
                if before:
                    late_ms = one.pop_ms - max(before[-1].visible_ms, began_ms)
                    assert late_ms <= LATE_MS[type(broker).__name__], (one, late_ms)
        assert len(notes.acked) == MESSAGES
        await asyncio.sleep(3)
        assert await client.pop(invisible_ms=INVISIBLE_MS) == []
    finally:
        client.close()


def first_of_each_queue(given: list[Given]) -> list[Given]:
    """Return some messages that nothing before them in their queue keeps: Apache's broker gives acknowledged
    ones again that follow one without an acknowledgement."""
    queues: dict[int, list[Given]] = {}
    for one in given:
        queues.setdefault(one.queue_id, []).append(one)
    return [one for of_queue in queues.values() for one in of_queue[: max(1, len(of_queue) // 3)]]


async def use_in_order(broker, notes: Notes, number: int, *, last: bool) -> None:
    """As `use`, with pops in order: what is in flight blocks its queues for the other broker too."""
    client = await PopClient.connect(broker.broker_port, GROUP, TOPIC)
    attempts = (f"{number}-{attempt}" for attempt in itertools.count())
    try:
        if number == 0:
            for message in range(MESSAGES):
                assert await client.send(f"k{message}", message % 4)
        until = time.monotonic() + 2 * INVISIBLE_MS / 1000 + 30
        while len(notes.acked) < MESSAGES and time.monotonic() < until:
            given = await client.pop(
                count=TAKEN, invisible_ms=INVISIBLE_MS, poll_ms=1_000, attempt=next(attempts)
            )
            notes.take_in_order(given, broker)
            for one in given if last else first_of_each_queue(given):
                assert await client.ack(one)
                notes.acked.add(one.key)
            if given and not last:
                left = [one for one in given if one.key not in notes.acked]
                changed = await client.change(left[-1], INVISIBLE_MS + 3_000)
                assert changed is not None
                notes.given[changed.key][-1] = changed
                return
        assert last and len(notes.acked) == MESSAGES
        assert await client.pop(invisible_ms=INVISIBLE_MS, attempt=next(attempts)) == []
    finally:
        client.close()


@pytest.mark.takes(60)
@pytest.mark.parametrize("kinds", THERE_AND_BACK)
def test_there_and_back_in_order(kinds, broker_on):
    notes = Notes()
    for number, kind in enumerate(kinds):
        broker = broker_on(kind)
        asyncio.run(use_in_order(broker, notes, number, last=number == len(kinds) - 1))
        if number < len(kinds) - 1:
            broker.stop()
    assert any(len(given) > 1 for given in notes.given.values())


@pytest.mark.takes(60)
@pytest.mark.parametrize("kinds", THERE_AND_BACK)
def test_there_and_back(kinds, broker_on):
    notes = Notes()
    for number, kind in enumerate(kinds):
        broker = broker_on(kind)
        asyncio.run(use(broker, notes, first=number == 0, last=number == len(kinds) - 1))
        if number < len(kinds) - 1:
            broker.stop()
    assert any(len(given) > 1 for given in notes.given.values())
