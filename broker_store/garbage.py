"""How Python's garbage collector treats a process that holds up an event loop while it collects.

A full collection walks every object that may refer to others, whatever it finds: 0.1 s and more with the
program's own 185,000 and those of thousands of queues and parked pulls. Nearly all of them live long and die
by their count of references. So what has survived a full collection is set apart (`gc.freeze`), and the next
one walks only what came since.

A cycle that becomes garbage after it was set apart would stay for good. So when the process holds GROWTH
times the blocks of memory that it held after the last collection of everything, the next full collection is
one of everything again. In a large process, as with 100,000 topics, such a collection stops every send for
0.5 to 1.4 s. It waits there for GROWTH_OF_LARGE.
"""

from __future__ import annotations

import gc
import sys

GROWTH = 2
# Blocks. Measured: a collection of everything took 0.27 s with 1,200,000 (30,000 topics) and 0.55 s with
# 2,400,000 (100,000 topics).
LARGE = 1_500_000
GROWTH_OF_LARGE = 3
# New objects until the youngest are walked, and how often until the next older ones are: a full collection
# has 10,000 or so to walk, some milliseconds (after one of everything a quarter of that, once). It costs no
# more in all that it comes sooner, since each object is walked in one of them.
THRESHOLDS = (700, 4, 2)
# The same while the process starts: what is imported stays, and Python's own thresholds walk it again and
# again (0.4 s of 5).
WHILE_STARTING = (100_000, 10, 10)


def collect_seldom() -> None:
    """Raise the thresholds until `LongLived.start` sets those of a process that runs."""
    gc.set_threshold(*WHILE_STARTING)


class LongLived:
    """Sets apart what lives long, from `start` to the end of the process."""

    def __init__(self) -> None:
        self._blocks = 0  # in use after the last collection of everything
        self._is_next_complete = False

    def start(self) -> None:
        """What is here now stays for good, such as all that was imported."""
        self._set_apart()
        # Of nothing; Python puts the next full one off until there is a quarter more than the last one left
        gc.collect()
        gc.set_threshold(*THRESHOLDS)
        gc.callbacks.append(self._collected)

    def _set_apart(self) -> None:
        gc.freeze()
        self._blocks, self._is_next_complete = sys.getallocatedblocks(), False

    def _collected(self, phase: str, info: dict[str, int]) -> None:
        if phase != "stop" or info["generation"] != 2:
            return
        if self._is_next_complete:
            self._set_apart()
        elif self._has_grown():
            self._is_next_complete = True
            gc.unfreeze()
        else:
            gc.freeze()

    def _has_grown(self) -> bool:
        """Whether it is time for a collection of everything."""
        blocks = sys.getallocatedblocks()
        return blocks > (GROWTH if blocks < LARGE else GROWTH_OF_LARGE) * self._blocks
