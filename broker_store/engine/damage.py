"""Damage that is found while the store runs: by a read, or by the worker that compares files with their sums.

Writing goes on. The flag damage_found stays until the damaged place is cleaned away or the process ends.
"""

from __future__ import annotations

from collections.abc import Callable

from broker_store.engine.queue.consume_queue import ConsumeQueue
from broker_store.engine.queue.consume_queues import ConsumeQueues
from broker_store.engine.start.ends import EndsFile
from broker_store.engine.store_state import StoreState


class FoundDamage:
    """Keeps the flag damage_found. Loop's thread, except `queue_file_differs`."""

    def __init__(
        self,
        ends: EndsFile,
        queues: ConsumeQueues,
        state: StoreState,
        wake: Callable[[Callable[[], None]], None],
    ):
        self._ends, self._queues, self._state, self._wake = ends, queues, state, wake
        self._highest = -1  # the highest log offset at which damage was found

    def found(self, cause: str, log_offset: int) -> None:
        """Report bytes at `log_offset` that a read found to differ from what was stored."""
        if not self._ends.in_doubt and any(queue.damaged for queue in self._queues):
            self._ends.doubt()
        self._highest = max(self._highest, log_offset)
        self._state.set_flag("damage_found", f"{cause}; `manage.py check_store DIR` reports all damage")

    def queue_file_differs(self, queue: ConsumeQueue, name: str, log_offset: int) -> None:
        """Report a queue file that is not as the record of ends says. Worker's thread."""
        cause = (
            f"consumequeue/{queue.topic}/{queue.queue_id}/{name} is not as it was recorded; the next "
            f"start makes it again from the log"
        )
        self._ends.doubt()
        self._wake(lambda: self.found(cause, log_offset))

    def cleaned_below(self, minimum: int) -> None:
        """Clear the flag if the log now begins, at `minimum`, after all damage."""
        if self._highest < minimum:
            self._state.clear_flag("damage_found")
