"""Up to which time all records of the revive log are known to be there.

An acknowledgement is in the timer topic until the messages would be visible again. So before messages come
again, it must be known that every acknowledgement of before has arrived in the revive log:

    mark a time ──► what was appended by then is confirmed
                ──► the timer has enqueued what the timer topic had then, and delivered what was due
                ──► what it delivered is confirmed ──► the readers of the revive log read it to its end
"""

from __future__ import annotations

from broker_store.broker.timer import Timer
from broker_store.engine.store_protocol import Store
from broker_store.formats.timer_log import TIMER_TOPIC


class Horizon:
    """`reached_ms` is the time up to which all records are in the queues of the revive log."""

    def __init__(self, store: Store, timer: Timer):
        self._store, self._timer = store, timer
        self.reached_ms = 0
        self._mark_ms: int | None = None
        self._appended = 0  # log offset at the mark
        self._timer_end: int | None = None  # of the timer topic, once `_appended` was confirmed
        self._delivered: int | None = None  # log offset, once the timer had delivered

    def advance(self, now_ms: int) -> None:
        """Go on as far as the store and the timer allow now."""
        store = self._store
        if self._mark_ms is None:
            self._mark_ms, self._appended = now_ms, store.log.wrote
            self._timer_end = self._delivered = None
        if self._timer_end is None:
            if store.confirmed < self._appended:
                return
            self._timer_end = store.reads.max_offset(TIMER_TOPIC, 0)
        if self._delivered is None:
            if not self._timer.has_delivered(self._timer_end, self._mark_ms):
                return
            self._delivered = store.log.wrote
        if store.confirmed >= self._delivered:
            self.reached_ms, self._mark_ms = self._mark_ms, None
