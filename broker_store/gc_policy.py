"""How Python's garbage collector is set, in a process whose event loop stops while it collects.

A full collection scans every object that may refer to others. This program's own 185,000 objects and those of
thousands of queues and parked pulls take 0.1 s and more. Nearly all of them live long, and are freed by
their reference count when they die. So objects that have survived a full collection are set apart
(`gc.freeze`), and the next collection scans only those that are newer.

A cycle that becomes garbage after it was set apart would never be freed. So when the process holds GROWTH
times the memory blocks that it held after the last collection of everything, the next full collection is one
of everything again. In a large process, such as one with 100,000 topics, that stops every send for 0.5 to
1.4 s. There it comes only after growth by GROWTH_OF_LARGE.
"""

from __future__ import annotations

import gc
import sys

GROWTH = 2
# Memory blocks of a large process. Measured: a collection of everything took 0.27 s with 1,200,000 blocks
# (30,000 topics) and 0.55 s with 2,400,000 (100,000 topics).
LARGE = 1_500_000
GROWTH_OF_LARGE = 3
# New objects until the youngest are scanned, and how many such collections until the next older ones are: a
# full collection then scans 10,000 objects or so, some milliseconds (once, after one of everything, a quarter
# of that). More frequent full collections cost no more in all, since each object is scanned in one of them.
THRESHOLDS = (700, 4, 2)
# While the process starts: imported modules stay, and Python's own thresholds would scan them several times
# (0.4 s of a start's 5 s).
WHILE_STARTING = (100_000, 10, 10)


def collect_seldom() -> None:
    """Raise the thresholds for the start of a process; `LongLived.start` sets those of a running one."""
    gc.set_threshold(*WHILE_STARTING)


_current: LongLived | None = None  # of this process, from its `start` on


def set_apart() -> None:
    """Set apart what was made since the last full collection, without a scan.

    For work that makes a large table, between its pieces: the next full collection would scan all of it in
    one turn of the loop. Does nothing in a process without `LongLived`.
    """
    if _current is not None:
        _current.set_apart()


class LongLived:
    """Sets long-lived objects apart from the collector, from `start` to the end of the process."""

    def __init__(self) -> None:
        self._blocks = 0  # in use after the last collection of everything
        self._is_next_complete = False

    def start(self) -> None:
        """Set apart all objects that exist now, such as imported modules, and begin to follow collections."""
        global _current
        _current = self
        self._set_all_apart()
        # Collects nothing. It resets Python's count of the objects that survived the last full collection:
        # Python postpones the next one until new objects are a quarter of that count.
        gc.collect()
        gc.set_threshold(*THRESHOLDS)
        gc.callbacks.append(self._collected)

    def set_apart(self) -> None:
        """Set apart what was made since the last full collection, unless the next one is of everything."""
        if not self._is_next_complete:
            gc.freeze()

    def _set_all_apart(self) -> None:
        gc.freeze()
        self._blocks, self._is_next_complete = sys.getallocatedblocks(), False

    def _collected(self, phase: str, info: dict[str, int]) -> None:
        if phase != "stop" or info["generation"] != 2:
            return
        if self._is_next_complete:
            self._set_all_apart()
        elif self._has_grown():
            self._is_next_complete = True
            gc.unfreeze()
        else:
            gc.freeze()

    def _has_grown(self) -> bool:
        """True if a collection of everything is due."""
        blocks = sys.getallocatedblocks()
        return blocks > (GROWTH if blocks < LARGE else GROWTH_OF_LARGE) * self._blocks
