"""Division of a topic's queues among the consumers of a group: Apache's AllocateMessageQueueAveragely.

Every consumer computes it from the same two lists, so the Java, Go and Python clients of one group must get
exactly the same result.
"""

from __future__ import annotations

from collections.abc import Iterable

from broker_store.protocol.message_queue import MessageQueue


def allocate(queues: Iterable[MessageQueue], client_ids: Iterable[str], client_id: str) -> list[MessageQueue]:
    """The queues of `client_id`: a stretch of the sorted queues; the first clients have one more. [] for a
    stranger."""
    queues, clients = sorted(queues), sorted(set(client_ids))
    if client_id not in clients:
        return []
    index = clients.index(client_id)
    each, more = divmod(len(queues), len(clients))
    start = index * each + min(index, more)
    return queues[start : start + each + (index < more)]
