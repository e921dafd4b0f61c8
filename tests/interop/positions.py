"""Where groups are, asked of a running broker."""

import asyncio

from broker_store.client import Admin


def committed(broker, group: str, topic: str) -> dict[int, tuple[int, int]]:
    """queue -> what the group committed and what there is."""

    async def ask():
        async with Admin(broker.nameserver) as admin:
            return {
                queue.queue_id: (at.consumer_offset, at.broker_offset)
                for queue, at in (await admin.consume_stats(group, topic)).items()
            }

    return asyncio.run(ask())
