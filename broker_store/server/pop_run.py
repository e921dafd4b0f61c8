"""The reads of one pop (pop.py)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from broker_store.broker.pop.parked_pops import ParkedPop
from broker_store.messages import PutStatus
from broker_store.protocol.pop import QueueOffsets
from broker_store.server.pop_request import Pop, PopEnd, PopResult


@dataclass(slots=True)
class Run:
    """The reads of one pop. `places` are the queues that are still to be read: kind and id."""

    pop: Pop
    places: deque[tuple[int, int]]
    pop_ms: int
    revive_queue: int
    parked: ParkedPop[Pop] | None
    peeks: bool
    found: list[QueueOffsets] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    counts: list[dict[int, int]] = field(default_factory=list)  # of a pop in order, for each of `found`
    count: int = 0
    size: int = 0
    rest: int = 0
    log_end: int = 0
    turns: int = 0  # of the loop in which it read
    corrected: bool = False  # the offset of the first of `places`
    is_storing: bool = False  # its pop checkpoint is on the way to another master
    refused: PutStatus | None = None
    no_room: str | None = None
    has_ended: bool = False  # answered with `found`, or about to be

    def result(self, end: PopEnd) -> PopResult:
        """Return how the pop ended, with what was found."""
        return PopResult(
            end,
            self.pop_ms,
            self.pop.invisible_ms,
            self.revive_queue,
            self.rest,
            self.found,
            self.bodies,
            counts=self.counts if self.pop.is_order else None,
        )
