"""Pops of topics that were deleted: their messages are acknowledged, as a new topic of the name has others at
their offsets (docs/spec/pop.md section 6)."""

from __future__ import annotations

from collections import deque

from broker_store.broker.pop.in_flight import OpenPop
from broker_store.broker.pop.positions import PopPositions
from broker_store.broker.pop.revive_log import ReviveLog
from broker_store.messages import FINAL

MAX_PER_STEP = 16


class EndedPops:
    """Pops whose acknowledgements are to be stored. Loop's thread."""

    def __init__(self, positions: PopPositions, revive_log: ReviveLog):
        self._positions, self._log = positions, revive_log
        self._pops: deque[OpenPop] = deque()

    def __len__(self) -> int:
        return len(self._pops)

    def end(self, topic: str) -> None:
        """Take the pops of a deleted topic, which `step` acknowledges."""
        self._positions.drop_topic(topic)
        self._pops.extend(self._log.in_flight.take_topic(topic))

    def step(self) -> bool:
        """Acknowledge some; return False if the store takes no record now."""
        for _ in range(min(len(self._pops), MAX_PER_STEP)):
            pop = self._pops[0]
            due_ms = pop.checkpoint.revive_ms
            put = self._log.put_ack(pop.checkpoint.key, pop.offsets(), pop.revive_queue, due_ms, None)
            if put.status not in FINAL:
                return False
            self._pops.popleft()
        return True
