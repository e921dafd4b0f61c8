"""What parked pulls and parked pops have in common: requests that wait, by channel and by deadline."""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from typing import Generic, Protocol, TypeVar

from broker_store.broker.shares import Held, Holders

# Removed requests that may stay in the heap of deadlines before it is made again without them.
_MAX_STALE = 1_000


class Parked(Protocol):
    """A request that waits. `waiting` is False before it is parked, and after it is taken out."""

    deadline_ms: int
    waiting: bool
    holders: Holders  # who holds its place

    @property
    def channel(self) -> object:
        """Return what the request came from; it ends with that."""


Request = TypeVar("Request", bound=Parked)


class ParkedTable(ABC, Generic[Request]):
    """Requests that wait until a deadline or an event. Deadlines are kept in a heap, so `expired` returns a
    request in the call after its deadline. A subclass keeps them by what they wait for too."""

    def __init__(self, held: Held) -> None:
        self.held = held
        self._channels: dict[object, set[Request]] = {}
        self._deadlines: list[tuple[int, int, Request]] = []
        self._counter = 0
        self._stale = 0  # entries of `_deadlines` that were removed
        self.count = 0

    def _add(self, parked: Request) -> None:
        """Add a request that the subclass has taken."""
        parked.waiting = True
        self.held.take(parked.holders)
        self._channels.setdefault(parked.channel, set()).add(parked)
        self._counter += 1
        heapq.heappush(self._deadlines, (parked.deadline_ms, self._counter, parked))
        self.count += 1

    @abstractmethod
    def _drop(self, parked: Request) -> None:
        """Remove a request from what the subclass keeps."""

    def _take_out(self, parked: Request) -> None:
        parked.waiting = False
        self.held.give(parked.holders)
        self.count -= 1
        self._drop(parked)
        of_channel = self._channels[parked.channel]
        of_channel.discard(parked)
        if not of_channel:
            del self._channels[parked.channel]

    def remove(self, parked: Request) -> None:
        """Remove a request; without effect when it is already removed."""
        if not parked.waiting:
            return
        self._take_out(parked)
        self._stale += 1
        if self._stale > _MAX_STALE and self._stale > len(self._deadlines) // 2:
            self._deadlines = [entry for entry in self._deadlines if entry[2].waiting]
            heapq.heapify(self._deadlines)
            self._stale = 0

    def expired(self, now_ms: int, most: int | None = None) -> list[Request]:
        """Remove and return requests whose time is over: the first `most` of them, or all."""
        over: list[Request] = []
        while self._deadlines and self._deadlines[0][0] <= now_ms and len(over) != most:
            parked = heapq.heappop(self._deadlines)[2]
            if parked.waiting:
                self._take_out(parked)
                over.append(parked)
            else:
                self._stale -= 1
        return over

    def channel_closed(self, channel: object) -> None:
        for parked in list(self._channels.get(channel, ())):
            self.remove(parked)

    def take_all(self) -> list[Request]:
        """Remove and return all requests, when the broker stops."""
        everything = [parked for of_channel in self._channels.values() for parked in of_channel]
        for parked in everything:
            self.remove(parked)
        return everything
