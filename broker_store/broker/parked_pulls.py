"""Pulls that wait for a message (long polling, docs/spec/store-behaviour.md section 7).

A pull that finds nothing is parked at its queue until a message arrives there or its time is over. The store
reports arrivals only for queues with a parked pull. Deadlines are exact, by a heap; Apache's broker checks
its table every 5 seconds.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from broker_store.broker.client_channel import ClientChannel

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


class ParkedPulls(Generic[Pull]):
    """Parked pulls by queue and by deadline. `watch` and `unwatch` are the store's."""

    def __init__(
        self,
        *,
        watch: Callable[[str, int], None],
        unwatch: Callable[[str, int], None],
        max_parked: int = 100_000,
    ):
        self._watch = watch
        self._unwatch = unwatch
        self.max_parked = max_parked
        self._queues: dict[Queue, dict[ParkedPull[Pull], None]] = {}
        self._channels: dict[ClientChannel, set[ParkedPull[Pull]]] = {}
        self._deadlines: list[tuple[int, int, ParkedPull[Pull]]] = []
        self._counter = 0
        self._stale = 0
        self.count = 0

    def park(self, parked: ParkedPull[Pull]) -> bool:
        """Park a pull; False when the table is full."""
        if self.count >= self.max_parked:
            return False
        waiting = self._queues.get(parked.queue)
        if waiting is None:
            waiting = self._queues[parked.queue] = {}
            self._watch(*parked.queue)
        waiting[parked] = None
        parked.waiting = True
        self._channels.setdefault(parked.channel, set()).add(parked)
        self._counter += 1
        heapq.heappush(self._deadlines, (parked.deadline_ms, self._counter, parked))
        self.count += 1
        return True

    def waiting_on(self, queue: Queue) -> list[ParkedPull[Pull]]:
        """Return the pulls that wait at a queue, longest first; they stay parked."""
        return list(self._queues.get(queue, ()))

    def remove(self, parked: ParkedPull[Pull]) -> None:
        """Remove a pull; without effect when it is already removed."""
        if not parked.waiting:
            return
        self._take_out(parked)
        self._stale += 1
        if self._stale > 1_000 and self._stale > len(self._deadlines) // 2:
            self._deadlines = [entry for entry in self._deadlines if entry[2].waiting]
            heapq.heapify(self._deadlines)
            self._stale = 0

    def _take_out(self, parked: ParkedPull[Pull]) -> None:
        parked.waiting = False
        self.count -= 1
        waiting = self._queues[parked.queue]
        del waiting[parked]
        if not waiting:
            del self._queues[parked.queue]
            self._unwatch(*parked.queue)
        of_channel = self._channels[parked.channel]
        of_channel.discard(parked)
        if not of_channel:
            del self._channels[parked.channel]

    def expired(self, now_ms: int) -> list[ParkedPull[Pull]]:
        """Remove and return the pulls whose time is over."""
        over = []
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            parked = heapq.heappop(self._deadlines)[2]
            if parked.waiting:
                self._take_out(parked)
                over.append(parked)
            else:
                self._stale -= 1
        return over

    def channel_closed(self, channel: ClientChannel) -> None:
        for parked in list(self._channels.get(channel, ())):
            self.remove(parked)

    def take_all(self) -> list[ParkedPull[Pull]]:
        """Remove and return all pulls, when the broker stops."""
        everything = [parked for waiting in self._queues.values() for parked in waiting]
        for parked in everything:
            self.remove(parked)
        return everything
