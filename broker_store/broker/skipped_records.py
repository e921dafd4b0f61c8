"""Says in the log which records of the broker's own topics were skipped, since they mean nothing."""

from __future__ import annotations

import logging

from broker_store.engine.disk.mapped_file import file_name
from broker_store.engine.store_protocol import Store
from broker_store.engine.timer.timed import Timed
from broker_store.formats.timer_log import TIMER_TOPIC

log = logging.getLogger(__name__)

# Of one reader since the start: foreign bytes may be in each of millions of records.
MAX_SENTENCES = 20
_NOT_DELIVERED = (
    "It is not delivered. If it is a message of a producer, send it again; if it is a pop checkpoint, set "
    "the offset of the group back to have the messages of that pop again"
)


class SkippedRecords:
    """The records that one reader skipped."""

    def __init__(self, store: Store):
        self._store = store
        self.count = 0

    def note(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int | None,
        log_offset: int | None,
        cause: str,
        advice: str,
    ) -> None:
        """Note a record. An offset is None if it is not known."""
        self.count += 1
        if self.count > MAX_SENTENCES:
            return
        number = "" if queue_offset is None else f" {queue_offset:,}"
        place = ""
        if log_offset is not None:
            size = self._store.log.file_size
            name = file_name(log_offset // size * size)
            place = f", at {log_offset:,} of the log (commitlog/{name}, byte {log_offset % size:,})"
        more = " Further ones are only counted." if self.count == MAX_SENTENCES else ""
        log.warning(
            "record%s of %s/%s%s is skipped: %s. %s%s", number, topic, queue_id, place, cause, advice, more,
        )  # fmt: skip


class SkippedTimerRecords(SkippedRecords):
    """Records of the timer topic that are not delivered."""

    def without_time(self, queue_offset: int, row: Timed) -> None:
        """Note a record that does not come on the timer wheel."""
        log_offset = row.log_offset if row.is_sound else None
        self.note(TIMER_TOPIC, 0, queue_offset, log_offset, "it has no time or no topic", _NOT_DELIVERED)

    def not_delivered(self, log_offset: int) -> None:
        """Note a record that was on the timer wheel."""
        cause = "it is damaged, or the store refuses it"
        self.note(TIMER_TOPIC, 0, None, log_offset, cause, _NOT_DELIVERED)
