"""Batches of messages: parts that fit into one request."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from broker_store.client.message import MAX_BODY_BYTES, Outgoing
from broker_store.errors import MisuseError


class BatchPart(NamedTuple):
    """A message of a batch."""

    message: Outgoing
    unique_key: str
    encoded: bytes


def make_batches(parts: Iterable[BatchPart], limit: int) -> Iterator[list[BatchPart]]:
    """Return lists of as many parts as fit into `limit` bytes, at least one part each."""
    batch: list[BatchPart] = []
    size = 0
    for part in parts:
        part_bytes = len(part.encoded)
        if part_bytes > MAX_BODY_BYTES:
            raise MisuseError(
                f"a message of {part_bytes} bytes with its properties does not fit into a batch, at "
                f"most {MAX_BODY_BYTES} do; send it alone"
            )
        if batch and size + part_bytes > limit:
            yield batch
            batch, size = [], 0
        batch.append(part)
        size += part_bytes
    if batch:
        yield batch
