"""Sends three messages to the topic Tour and receives them, with the asyncio client that comes with the
broker.

    PYTHONPATH=. .venv/bin/python docs/examples/python/tour.py [name server address]
"""

import asyncio
import sys

from broker_store.client import Producer, PushConsumer

TOPIC, GROUP = "Tour", "tour-python"


async def main(nameserver: str) -> None:
    own = set()
    async with Producer(nameserver, "tour-python-sender") as producer:
        for number in range(3):
            receipt = await producer.send(
                TOPIC, f"hello {number} from Python".encode(), tag="python", keys=[f"python-{number}"]
            )
            print(
                f"sent      {receipt.status} to queue {receipt.queue_id} at {receipt.queue_offset}",
                flush=True,
            )
            own.add(receipt.message_id)
    async with (
        asyncio.timeout(60),
        PushConsumer(GROUP, nameserver, consume_from="first").subscribe(TOPIC) as consumer,
    ):
        async for message in consumer:
            print(
                f"received  {message.body.decode()!r} from queue {message.queue.queue_id} at "
                f"{message.queue_offset}",
                flush=True,
            )
            own.discard(message.message_id)
            if not own:
                await consumer.ack(message)
                break


asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876"))
