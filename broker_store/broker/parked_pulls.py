"""Pulls that wait for a message (long polling, docs/spec/store-behaviour.md section 7).

A pull that finds nothing is parked at its queue until a message arrives there or its time is over. The store
reports arrivals only for queues with a parked pull. Deadlines are kept in a heap; Apache's broker checks
its table every 5 seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from broker_store.broker.client_channel import ClientChannel
from broker_store.broker.parked_table import ParkedTable
from broker_store.broker.shares import Held, Holders, Shares

Queue = tuple[str, int]
Pull = TypeVar("Pull")  # the server's


@dataclass(slots=True, eq=False)
class ParkedPull(Generic[Pull]):
    """A pull at `offset`, which moves on while arriving messages do not pass the filter.

    `reading` is True while a read for it is running.
    """

    queue: Queue
    channel: ClientChannel
    offset: int
    deadline_ms: int
    pull: Pull
    waiting: bool = field(default=False)
    reading: bool = field(default=False)
    holders: Holders = ()


class ParkedPulls(ParkedTable[ParkedPull[Pull]], Generic[Pull]):
    """Parked pulls by queue. `watch` and `unwatch` are the store's."""

    def __init__(
        self,
        *,
        watch: Callable[[str, int], None],
        unwatch: Callable[[str, int], None],
        max_parked: int = 100_000,
        shares: Shares | None = None,
    ):
        super().__init__(Held(shares or Shares(), max_parked))
        self._watch = watch
        self._unwatch = unwatch
        self.max_parked = max_parked
        self._queues: dict[Queue, dict[ParkedPull[Pull], None]] = {}

    def park(self, parked: ParkedPull[Pull]) -> bool:
        """Park a pull; False when the table is full, or the share of a holder."""
        if self.count >= self.max_parked or self.held.full(parked.holders) is not None:
            return False
        waiting = self._queues.get(parked.queue)
        if waiting is None:
            waiting = self._queues[parked.queue] = {}
            self._watch(*parked.queue)
        waiting[parked] = None
        self._add(parked)
        return True

    def waiting_on(self, queue: Queue) -> list[ParkedPull[Pull]]:
        """Return the pulls that wait at a queue, longest first; they stay parked."""
        return list(self._queues.get(queue, ()))

    def _drop(self, parked: ParkedPull[Pull]) -> None:
        waiting = self._queues[parked.queue]
        del waiting[parked]
        if not waiting:
            del self._queues[parked.queue]
            self._unwatch(*parked.queue)
