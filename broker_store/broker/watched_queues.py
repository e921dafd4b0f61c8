"""Which queues of the store report their messages, when several parts of the broker wait for the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable


class WatchedQueues:
    """Counts who waits for a queue. `watch` and `unwatch` are the store's."""

    def __init__(self, *, watch: Callable[[str, int], None], unwatch: Callable[[str, int], None]):
        self._watch, self._unwatch = watch, unwatch
        self._counts: Counter[tuple[str, int]] = Counter()

    def watch(self, topic: str, queue_id: int) -> None:
        """Have the store report messages of the queue; once more for each call."""
        if not self._counts[topic, queue_id]:
            self._watch(topic, queue_id)
        self._counts[topic, queue_id] += 1

    def unwatch(self, topic: str, queue_id: int) -> None:
        """Take back one call of `watch`."""
        self._counts[topic, queue_id] -= 1
        if not self._counts[topic, queue_id]:
            del self._counts[topic, queue_id]
            self._unwatch(topic, queue_id)
