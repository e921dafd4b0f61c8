"""Pops that wait for a message (long polling, docs/spec/pop.md section 5).

A pop that finds nothing waits, with others of its group for the same queue, or for all queues of the topic. A
message wakes the oldest of each group. Deadlines are exact, by a heap.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from broker_store.broker.client_channel import ClientChannel
from broker_store.broker.watched_queues import WatchedQueues

Queue = tuple[str, int]
Line = tuple[str, str, int]  # topic, group, queue id or -1 for all: the pops that wait together
Request = TypeVar("Request")  # the server's


@dataclass(slots=True, eq=False)
class ParkedPop(Generic[Request]):
    """A waiting pop. `is_reading` is True while a read for it is running."""

    line: Line
    channel: ClientChannel
    deadline_ms: int
    request: Request
    waiting: bool = field(default=False)
    is_reading: bool = field(default=False)


class ParkedPops(Generic[Request]):
    """Parked pops by line and by deadline.

    `max_parked` bounds all of them, `max_in_line` those of one line: Apache's maxPopPollingSize and
    popPollingSize.
    """

    def __init__(self, watched: WatchedQueues, *, max_parked: int, max_in_line: int):
        self._watched = watched
        self.max_parked, self.max_in_line = max_parked, max_in_line
        self._lines: dict[Line, dict[ParkedPop[Request], None]] = {}
        self._queues_of: dict[Line, tuple[Queue, ...]] = {}
        self._lines_of: dict[Queue, dict[Line, None]] = {}
        self._channels: dict[ClientChannel, set[ParkedPop[Request]]] = {}
        self._deadlines: list[tuple[int, int, ParkedPop[Request]]] = []
        self._counter = 0
        self._stale = 0
        self.count = 0

    def park(self, parked: ParkedPop[Request], queues: Iterable[Queue]) -> bool:
        """Park a pop; False when there is no room. `queues` are those that the store watches for its
        line."""
        line = self._lines.get(parked.line)
        if self.count >= self.max_parked or (line is not None and len(line) >= self.max_in_line):
            return False
        if line is None:
            line = self._lines[parked.line] = {}
            self._queues_of[parked.line] = tuple(queues)
            for queue in self._queues_of[parked.line]:
                self._watched.watch(*queue)
                self._lines_of.setdefault(queue, {})[parked.line] = None
        line[parked] = None
        parked.waiting = True
        self._channels.setdefault(parked.channel, set()).add(parked)
        self._counter += 1
        heapq.heappush(self._deadlines, (parked.deadline_ms, self._counter, parked))
        self.count += 1
        return True

    def lines_of(self, queue: Queue) -> list[Line]:
        """Return the lines that wait for messages of a queue."""
        return list(self._lines_of.get(queue, ()))

    def first(self, line: Line) -> ParkedPop[Request] | None:
        """Return the pop of a line that waits longest and is not being read for; None if there is none."""
        for parked in self._lines.get(line, ()):
            if not parked.is_reading:
                return parked
        return None

    def in_line(self, line: Line) -> int:
        """Return how many pops wait in a line."""
        return len(self._lines.get(line, ()))

    def lines(self, group: str, topic: str) -> list[Line]:
        """Return the lines of a group in a topic."""
        return [line for line in self._lines if line[:2] == (topic, group)]

    def remove(self, parked: ParkedPop[Request]) -> None:
        """Remove a pop; without effect when it is already removed."""
        if not parked.waiting:
            return
        self._take_out(parked)
        self._stale += 1
        if self._stale > 1_000 and self._stale > len(self._deadlines) // 2:
            self._deadlines = [entry for entry in self._deadlines if entry[2].waiting]
            heapq.heapify(self._deadlines)
            self._stale = 0

    def _take_out(self, parked: ParkedPop[Request]) -> None:
        parked.waiting = False
        self.count -= 1
        line = self._lines[parked.line]
        del line[parked]
        if not line:
            del self._lines[parked.line]
            for queue in self._queues_of.pop(parked.line):
                self._watched.unwatch(*queue)
                of_queue = self._lines_of[queue]
                del of_queue[parked.line]
                if not of_queue:
                    del self._lines_of[queue]
        of_channel = self._channels[parked.channel]
        of_channel.discard(parked)
        if not of_channel:
            del self._channels[parked.channel]

    def expired(self, now_ms: int) -> list[ParkedPop[Request]]:
        """Remove and return the pops whose time is over."""
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

    def take_all(self) -> list[ParkedPop[Request]]:
        """Remove and return all pops, when the broker stops."""
        everything = [parked for line in self._lines.values() for parked in line]
        for parked in everything:
            self.remove(parked)
        return everything
