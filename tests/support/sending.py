"""Sends one message through a cluster."""

from __future__ import annotations

from typing import Any

from broker_store.rest.answers import Receipt
from broker_store.rest.new_messages import NewMessage
from broker_store.rest.problems import Problem
from mqadmin.cluster.protocol import Cluster


async def send_one(cluster: Cluster, topic: str, body: bytes, **fields: Any) -> Receipt:
    """The receipt of a message with these fields of NewMessage. Raises the Problem that stands in its
    place."""
    [receipt] = await cluster.sends.send_batch(topic, [NewMessage(body, **fields)])
    if isinstance(receipt, Problem):
        raise receipt
    return receipt
