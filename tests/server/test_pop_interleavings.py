"""Pops, acknowledgements and all that moves offsets, in random order with cold reads, late syncs and kills:
no message is given while it is invisible, none that was acknowledged comes again, and none is skipped.

A message that a set back concerns is left out from then on: it may be given again at once, and its earlier
pops still bring it back.
"""

from __future__ import annotations

import asyncio
import random

import pytest

from broker_store.broker.topics import TopicConfig
from broker_store.formats import record
from tests.support.broker_harness import FakeChannel, turns
from tests.support.pop_calls import ack, killed, pop_fields, put, receipts, saved, stocked

TOPIC, QUEUES, GROUPS = "TopicX", 4, ("CG", "CG2")
STEPS = 100
LATE_MS = 9_000  # after the time of a message, until the store was synced and the message popped again
Key = tuple[str, bytes]  # group, body


class Play:
    """One random sequence, and the times until which each message must not be given."""

    def __init__(self, seed: int):
        self.random = random.Random(seed)
        self.is_order = self.random.random() < 0.3
        self.is_sync = self.random.random() < 0.4
        self.harness = stocked(
            sync_flush=self.is_sync, pop_from_retry_probability=self.random.choice([0, 20, 100])
        )
        self.harness.router.pops.random = random.Random(seed)
        for group in GROUPS:
            self.harness.parts.groups.find_or_create(group)
        saved(self.harness)
        self.sent: dict[bytes, int] = {}  # body -> queue
        self.pops: dict[FakeChannel, str] = {}  # without an answer
        self.void: set[FakeChannel] = set()  # of these, what was begun before a set back
        self.visible_ms: dict[Key, int] = {}
        self.acked: set[Key] = set()
        self.left_out: set[Key] = set()
        self.skipped: set[Key] = set()  # perhaps: an offset was set
        self.has_lost_answers = False  # by a kill: messages may be invisible that were not given here
        self.given: set[Key] = set()
        self.receipts: dict[Key, tuple[str, int, str, int]] = {}
        self.wrong: list[tuple[str, Key]] = []

    # Steps

    def send(self) -> None:
        for _ in range(self.random.randrange(1, 6)):
            body, queue_id = b"m%d" % len(self.sent), self.random.randrange(QUEUES)
            self.sent[body] = queue_id
            put(self.harness, body, queue_id=queue_id)

    def pop(self, group: str, queue_id: int, invisible_ms: int, poll_ms: int = 0, count: int = 32) -> None:
        channel = FakeChannel(len(self.given) + 1)
        self.pops[channel] = group
        order = {"order": True, "attemptId": str(self.random.random())} if self.is_order else {}
        fields = pop_fields(
            queue_id, group=group, count=count, invisible_ms=invisible_ms, poll_ms=poll_ms, **order
        )
        self.harness.request(200050, channel=channel, **fields)

    async def acknowledge(self) -> None:
        key, receipt = self.receipts.popitem()
        answer = await self.finished(ack(self.harness, receipt, key[0]))
        if self.visible_ms.get(key, 0) <= self.harness.now_ms:
            self.left_out.add(key)  # it came too late, or after a set back
        elif answer.code == 0 and key not in self.left_out:
            self.acked.add(key)

    async def set_offsets(self, group: str) -> None:
        queue_id = self.random.randrange(QUEUES)
        offset = self.random.randrange(self.harness.store.max_offset(TOPIC, queue_id) + 1)
        other = GROUPS[1 - GROUPS.index(group)]
        queues = [queue_id]
        match self.random.randrange(4):
            case 0:
                fields = dict(consumerGroup=group, topic=TOPIC, queueId=queue_id, commitOffset=offset)
                answer = self.harness.ask(15, **fields)
            case 1:
                fields = dict(group=group, topic=TOPIC, timestamp=0, isForce=True)
                answer, queues = self.harness.ask(222, **fields), list(range(QUEUES))
            case 2:
                fields = dict(group=group, topic=TOPIC, timestamp=0, isForce=True)
                answer = self.harness.ask(222, **fields, queueId=queue_id, offset=offset)
            case _:
                queues = list(self.harness.parts.offsets.of(other, TOPIC))
                answer = self.harness.ask(314, srcGroup=other, destGroup=group, topic=TOPIC)
        await self.finished(answer)
        self.leave_out(group, queues)

    async def delete_group(self, group: str) -> None:
        clean = self.random.random() < 0.5
        await self.finished(self.harness.ask(207, groupName=group, cleanOffset=clean))
        self.leave_out(group, list(range(QUEUES)), all_of_them=True)
        self.harness.parts.groups.find_or_create(group)

    async def delete_topic(self) -> None:
        await self.finished(self.harness.ask(215, topic=TOPIC))
        for group in GROUPS:
            self.leave_out(group, list(range(QUEUES)), all_of_them=True)
        self.harness.parts.topics.put(TopicConfig(TOPIC, QUEUES, QUEUES))

    def leave_out(self, group: str, queues: list[int], *, all_of_them: bool = False) -> None:
        self.void.update(channel for channel, name in self.pops.items() if name == group)
        for body, queue_id in self.sent.items():
            if queue_id in queues:
                self.skipped.add((group, body))
                if all_of_them or self.has_lost_answers or (group, body) in self.given:
                    self.left_out.add((group, body))

    async def kill(self) -> None:
        """Kill the broker, and start it again. Its reads and parked pops end before: what it has scheduled
        would run on."""
        self.harness.store.cold = False
        self.harness.store.finish_cold_reads()
        self.harness.parts.parked_pops.take_all()
        await turns(20)
        await self.take_answers()
        if self.random.random() < 0.5:
            saved(self.harness)
        self.has_lost_answers |= bool(self.pops)
        self.pops.clear()
        self.harness = killed(self.harness)
        self.harness.router.pops.random = random.Random(0)
        saved(self.harness)

    def pass_time(self, ms: int) -> None:
        parts, until_ms = self.harness.parts, self.harness.now_ms + ms
        while self.harness.now_ms < until_ms:
            self.harness.now_ms = min(until_ms, self.harness.now_ms + 250)
            for _ in range(6):
                parts.timer.step(self.harness.now_ms)
                parts.revive.step(self.harness.now_ms)
                parts.ordered.step(self.harness.now_ms)

    async def step(self) -> None:
        chance, group = self.random.random(), self.random.choice(GROUPS)
        if chance < 0.2:
            self.send()
        elif chance < 0.5:
            wait_ms, count = self.random.choice([0, 0, 5_000]), self.random.choice([1, 2, 5, 32])
            queue_id = self.random.randrange(-1, QUEUES)
            self.pop(group, queue_id, self.random.choice([1_000, 3_000, 10_000]), wait_ms, count)
        elif chance < 0.65:
            if self.receipts:
                await self.acknowledge()
        elif chance < 0.7:
            await self.set_offsets(group)
        elif chance < 0.71:
            await self.delete_group(group)
        elif chance < 0.715:
            await self.delete_topic()
        elif chance < 0.77:
            self.harness.store.cold = not self.harness.store.cold
        elif chance < 0.88:
            self.pass_time(self.random.choice([100, 600, 1_500, 4_000]))
        elif chance < 0.91 and not self.is_sync and not self.is_order:
            await self.kill()
        if self.random.random() < 0.6:
            self.harness.store.finish_cold_reads()
        if self.random.random() < 0.6:
            self.harness.store.sync()
        if self.random.random() < 0.2:
            self.harness.parts.pop_positions.settle(self.harness.store.flushed)
        await self.take_answers()

    # Answers

    async def finished(self, request):
        """Return the answer to a request. The store syncs meanwhile, if it needs that."""
        task = asyncio.ensure_future(request)
        while not task.done():
            await turns(3)
            self.harness.store.sync()
            self.harness.store.finish_cold_reads()
        return task.result()

    async def take_answers(self) -> None:
        await turns(6)
        for channel, group in list(self.pops.items()):
            for answer in channel.answers:
                if answer.code == 0:
                    self.take(group, answer, is_void=channel in self.void)
            if channel.answers:
                del self.pops[channel]

    def take(self, group: str, answer, *, is_void: bool) -> None:
        pop_ms, invisible_ms = int(answer.fields["popTime"]), int(answer.fields["invisibleTime"])
        of_group = receipts(answer, self.harness) if group == GROUPS[0] else {}
        for stored in record.decode_all(answer.body):
            key = (group, stored.body)
            self.given.add(key)
            if is_void:
                self.left_out.add(key)
            if key in self.left_out:
                continue
            if key in self.acked:
                self.wrong.append(("acknowledged", key))
            elif max(pop_ms, self.harness.now_ms) < self.visible_ms.get(key, 0):
                # The time of a pop is that of its begin: its reads may take longer than messages are invisible
                self.wrong.append(("invisible", key))
            self.visible_ms[key] = pop_ms + invisible_ms
            if stored.body in of_group:
                self.receipts[key] = of_group[stored.body]

    async def take_all(self) -> None:
        """Pop until there is nothing more, and note what is missing. Not in order: a queue is blocked then."""
        store = self.harness.store
        store.cold = False
        for _ in range(6):
            store.finish_cold_reads()
            store.sync()
            self.pass_time(4_000)
            for group in GROUPS * 3:
                self.pop(group, -1, 600_000)
                store.sync()
                await self.take_answers()
                await self.take_answers()
        for group in GROUPS:
            for body in self.sent:
                key = (group, body)
                if key in self.left_out | self.skipped | self.acked:
                    continue
                if self.visible_ms.get(key, 0) + LATE_MS <= self.harness.now_ms:
                    self.wrong.append(("lost", key))


@pytest.mark.quick(8)
@pytest.mark.parametrize("seed", [1166, *range(120)])
async def test_no_message_is_given_before_its_time_or_lost(seed):
    play = Play(seed)
    for _ in range(STEPS):
        await play.step()
    if not play.is_order:
        await play.take_all()
    assert play.wrong == []
