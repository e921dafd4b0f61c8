"""Pops that wait for a message (long polling, docs/spec/pop.md section 5).

A pop that finds nothing waits, with others of its group for the same queue, or for all queues of the topic. A
message wakes the oldest of each group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import chain
from typing import Generic, TypeVar

from broker_store.broker.parked_table import ParkedTable
from broker_store.broker.shares import Held, Holders, Shares

Queue = tuple[str, int]
Line = tuple[str, str, int]  # topic, group, queue id or -1 for all: the pops that wait together
Request = TypeVar("Request")  # the server's


@dataclass(slots=True, eq=False)
class ParkedPop(Generic[Request]):
    """A waiting pop. `is_reading` is True while a read for it is running."""

    line: Line
    channel: object
    deadline_ms: int
    request: Request
    waiting: bool = field(default=False)
    is_reading: bool = field(default=False)
    holders: Holders = ()


class ParkedPops(ParkedTable[ParkedPop[Request]], Generic[Request]):
    """Parked pops by line. `watch` and `unwatch` are the store's.

    `max_parked` bounds all of them, `max_in_line` those of one line: Apache's maxPopPollingSize and
    popPollingSize.
    """

    def __init__(
        self,
        *,
        watch: Callable[[str, int], None],
        unwatch: Callable[[str, int], None],
        max_parked: int,
        max_in_line: int,
        shares: Shares | None = None,
    ):
        super().__init__(Held(shares or Shares(), max_parked))
        self._watch, self._unwatch = watch, unwatch
        self.max_parked, self.max_in_line = max_parked, max_in_line
        self._lines: dict[Line, dict[ParkedPop[Request], None]] = {}
        self._queues_of: dict[Line, dict[Queue, None]] = {}
        self._lines_of: dict[Queue, dict[Line, None]] = {}
        self._lines_in: dict[str, dict[str, dict[Line, None]]] = {}  # by topic and group
        self._of_group: Counter[str] = Counter()

    def park(self, parked: ParkedPop[Request], queues: Iterable[Queue]) -> bool:
        """Park a pop; False when there is no room, or the share of a holder is used up. `queues` are those
        that the store watches for its line."""
        line = self._lines.get(parked.line)
        if self.held.full(parked.holders) is not None:
            return False
        if self.count >= self.max_parked or (line is not None and len(line) >= self.max_in_line):
            return False
        if line is None:
            line = self._lines[parked.line] = {}
            topic, group, _ = parked.line
            self._lines_in.setdefault(topic, {}).setdefault(group, {})[parked.line] = None
            self._queues_of[parked.line] = {}
            self.set_queues(parked.line, queues)
        line[parked] = None
        self._of_group[parked.line[1]] += 1
        self._add(parked)
        return True

    def set_queues(self, line: Line, queues: Iterable[Queue]) -> bool:
        """Have the store watch these queues for a line, and no others. Return whether some are new. Without
        effect if no pop waits in the line any more."""
        if line not in self._lines:
            return False
        before, after = self._queues_of[line], dict.fromkeys(queues)
        self._queues_of[line] = after
        new = [queue for queue in after if queue not in before]
        for queue in new:
            self._watch(*queue)
            self._lines_of.setdefault(queue, {})[line] = None
        self._unwatch_for(line, [queue for queue in before if queue not in after])
        return bool(new)

    def _unwatch_for(self, line: Line, queues: Iterable[Queue]) -> None:
        for queue in queues:
            self._unwatch(*queue)
            of_queue = self._lines_of[queue]
            del of_queue[line]
            if not of_queue:
                del self._lines_of[queue]

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

    def in_group(self, group: str) -> int:
        """Return how many pops of a group wait."""
        return self._of_group[group]

    def lines(self, group: str, topic: str) -> list[Line]:
        """Return the lines of a group in a topic."""
        return list(self._lines_in.get(topic, {}).get(group, ()))

    def lines_of_topic(self, topic: str) -> list[Line]:
        """Return the lines of all groups in a topic."""
        return list(chain.from_iterable(self._lines_in.get(topic, {}).values()))

    def _drop(self, parked: ParkedPop[Request]) -> None:
        line = self._lines[parked.line]
        del line[parked]
        group = parked.line[1]
        self._of_group[group] -= 1
        if not self._of_group[group]:
            del self._of_group[group]
        if not line:
            del self._lines[parked.line]
            topic = parked.line[0]
            together = self._lines_in[topic][group]
            del together[parked.line]
            if not together:
                del self._lines_in[topic][group]
                if not self._lines_in[topic]:
                    del self._lines_in[topic]
            self._unwatch_for(parked.line, self._queues_of.pop(parked.line))
