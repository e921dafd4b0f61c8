"""How late messages come that wait for their time: `python -m tests.bench.due NAMESERVER KIND WAITING DUE`.

KIND is `timer` (a time of its own, in Apache's timer wheel) or `level` (a delay level). WAITING messages wait
for an hour, then DUE more are sent that all want to come in the same moment. The lateness of
each is measured by the broker's clock: the time it was stored for its consumers, less the time it was due.
One JSON line:

    soonest_ms, p50_ms, latest_ms    below 0 would be early; of a level the time of sending counts as its own
                                     delay
    sent_s                           messages a second while those that wait were sent
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

from broker_store.client import Admin, ClientError, Producer, PullConsumer

SENDERS = 128
WAITS_LEVEL, DUE_LEVEL = 17, 4  # 1 h and 30 s
DUE_LEVEL_MS = 30_000
DUE_AFTER_S = 30
LIMIT_S = 120
QUEUES = 8


async def send_all(producer: Producer, topic: str, count: int, **wanted) -> None:
    left = iter(range(count))

    async def sender() -> None:
        for _ in left:
            while True:
                try:
                    await producer.send(topic, b"x" * 100, **wanted)
                    break
                except ClientError:  # it is busy: Apache's broker refuses for a while, and so may ours
                    await asyncio.sleep(0.05)

    await asyncio.gather(*(sender() for _ in range(SENDERS)))


async def lateness(consumer: PullConsumer, topic: str, count: int, due_ms: int | None) -> list[int]:
    """Of each of `count` messages; `due_ms` None is for those of DUE_LEVEL. A message that was sent again
    counts twice."""
    found: list[int] = []
    places = dict.fromkeys(await consumer.queues(topic), 0)
    ends = time.monotonic() + LIMIT_S
    while len(found) < count:
        if time.monotonic() > ends:
            raise SystemExit(f"{len(found)} of {count} messages came within {LIMIT_S} s")
        before = len(found)
        for queue, place in places.items():
            result = await consumer.pull(queue, place, max_count=32)
            places[queue] = result.next_offset
            found += [
                message.store_timestamp
                - (message.born_timestamp + DUE_LEVEL_MS if due_ms is None else due_ms)
                for message in result.messages
            ]
        if len(found) == before:
            await asyncio.sleep(0.2)
    return sorted(found)


async def run(nameserver: str, kind: str, waiting: int, due: int) -> dict:
    waits, comes = f"BenchWaits_{kind}_{waiting}", f"BenchDue_{kind}_{waiting}"
    async with Admin(nameserver) as admin:
        for topic in (waits, comes):
            await admin.create_topic(topic, read_queues=QUEUES, write_queues=QUEUES)
    async with (
        Producer(nameserver, "BenchDue") as producer,
        PullConsumer("BenchDueReader", nameserver) as consumer,
    ):
        began = time.monotonic()
        hour = (
            {"deliver_at": int(time.time() * 1000) + 3_600_000}
            if kind == "timer"
            else {"delay_level": WAITS_LEVEL}
        )
        await send_all(producer, waits, waiting, **hour)
        seconds = time.monotonic() - began
        due_ms = (int(time.time()) + DUE_AFTER_S) * 1000 + 500 if kind == "timer" else None
        await send_all(
            producer, comes, due, **({"delay_level": DUE_LEVEL} if due_ms is None else {"deliver_at": due_ms})
        )
        found = await lateness(consumer, comes, due, due_ms)
    return {
        "scenario": kind,
        "waiting": waiting,
        "due": due,
        "sent_s": waiting / seconds,
        "soonest_ms": found[0],
        "p50_ms": found[len(found) // 2],
        "latest_ms": found[-1],
    }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(run(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))))
