"""Messages by their store time: a binary search over a queue, by position.

    offsets     minimum                     step                      maximum
    times       10  20  30  40  50  60 | 25  35  45  55  65
                |------ one part ------| |----- one part -----|

Store times go up along the log, except where the clock was set back between two runs. `StoreTimes` has these
steps. A search for times that a step crosses is made in each part.
"""

from __future__ import annotations

import struct
from itertools import pairwise

from broker_store.engine.log.commit_log import CommitLog
from broker_store.engine.log.store_times import StoreTimes, TimeOrder
from broker_store.engine.queue.consume_queue import ConsumeQueue
from broker_store.engine.queue.consume_queues import ConsumeQueues
from broker_store.engine.read.cold import LogReaders
from broker_store.formats import queue_unit
from broker_store.formats.index_file import FOR_EVER_MS
from broker_store.kernels import context as c

_V6_BORN = 0x10


class TimeSearch:
    """Any thread. It reads by position and may wait for the disk."""

    def __init__(self, log: CommitLog, queues: ConsumeQueues, times: StoreTimes, readers: LogReaders):
        self._log, self._queues, self._times, self._readers = log, queues, times, readers

    def store_time_at(self, topic: str, queue_id: int, offset: int) -> int:
        """Return the store time in ms of the message at a queue offset, -1 when there is none. Any thread."""
        queue = self._queues.find(topic, queue_id)
        return self._store_ms_of(queue.unit(offset)) if queue is not None else -1

    def earliest_store_time(self, topic: str, queue_id: int) -> int:
        """Return the store time in ms of the queue's first message, -1 when there is none. Any thread."""
        queue = self._queues.find(topic, queue_id)
        return self._store_ms_of(queue.unit(queue.minimum)) if queue is not None else -1

    def last_store_time(self, topic: str, queue_id: int) -> int | None:
        """Return the store time of the queue's last message, None when it has none."""
        queue = self._queues.find(topic, queue_id)
        if queue is None or queue.maximum <= queue.minimum:
            return None
        if queue.row[c.Q_LAST_MS] == 0:
            queue.row[c.Q_LAST_MS] = max(0, self._store_ms_of(queue.unit(queue.maximum - 1)))
        return queue.row[c.Q_LAST_MS] or None

    def offset_by_time(self, topic: str, queue_id: int, time_ms: int, upper: bool = False) -> int:
        """Return an offset by store time (docs/spec/store-behaviour.md section 6.2). Any thread.

        LOWER: the first message stored at or after `time_ms`, the maximum when there is none. UPPER: the last
        one stored at or before it, the minimum when there is none.
        """
        queue = self._queues.find(topic, queue_id)
        if queue is None:
            return 0
        if upper:
            return next(
                (
                    found - 1
                    for low, high in reversed(self._parts(queue, time_ms + 1))
                    if (found := self._first_at(queue, low, high, time_ms + 1)) > low
                ),
                queue.minimum,
            )
        parts = self._parts(queue, time_ms)
        return next(
            (found for low, high in parts if (found := self._first_at(queue, low, high, time_ms)) < high),
            parts[-1][1],
        )

    def offset_ranges(self, topic: str, queue_id: int, begin_ms: int, end_ms: int) -> list[tuple[int, int]]:
        """Return [first, following) offsets of the messages stored from `begin_ms` to `end_ms`: one range, or
        more where times go back. Any thread."""
        queue = self._queues.find(topic, queue_id)
        if queue is None:
            return []
        ranges = []
        for low, high in self._parts(queue, begin_ms, end_ms + 1):
            first = self._first_at(queue, low, high, begin_ms)
            following = self._first_at(queue, first, high, end_ms + 1)
            if first < following:
                ranges.append((first, following))
        return ranges

    def time_order(self, topic: str, queue_id: int, *times_ms: int) -> TimeOrder | None:
        """Return what makes a search of a queue for these times uncertain, None when nothing does. Any
        thread."""
        queue = self._queues.find(topic, queue_id)
        ends = self._log_range(queue) if queue is not None else None
        return self._times.order(*ends, *times_ms) if ends is not None else None

    def key_times_doubt(self, begin_ms: int, end_ms: int) -> str | None:
        """Return a sentence why a lookup by key within these store times may miss messages, None when it
        cannot. Any thread.

        An entry's time is counted from the begin of its file and is never less, and a lookup leaves a chain
        at the first entry that is too old.
        """
        times_ms = [time_ms for time_ms in (begin_ms, end_ms + 1) if 0 < time_ms < FOR_EVER_MS]
        order = self._times.order(self._log.minimum, self._log.wrote, *times_ms) if times_ms else None
        if order is None or not order.steps:
            return None
        first = order.steps[0]
        return (
            f"store times go back at {first.log_offset:,} of the log by "
            f"{first.before_ms - first.own_ms:,} ms, across the time that was asked for:"
            " messages may be missing; ask without times"
        )

    def _store_ms_of(self, unit: queue_unit.QueueUnit | None) -> int:
        """Return the store time of a unit's record, -1 when it cannot be read."""
        if unit is None or unit.log_offset < self._log.minimum:
            return -1
        head = self._readers.read(unit.log_offset, 76)
        if len(head) < 76:
            return -1
        (sys_flag,) = struct.unpack_from(">i", head, 36)
        return struct.unpack_from(">q", head, 68 if sys_flag & _V6_BORN else 56)[0]

    def _store_ms_among(self, queue: ConsumeQueue, offset: int) -> int:
        """Return the median of the store times of a message and its two neighbours, if times go up there,
        else that of the message.

        So one record with a damaged time does not lead a search to another part of the queue. Where times are
        known to go back the message's own time is used: there each part is searched on its own.
        """
        unit = queue.unit(offset)
        own_ms = self._store_ms_of(unit)
        if not queue.minimum < offset < queue.maximum - 1:
            return own_ms
        before, following = queue.unit(offset - 1), queue.unit(offset + 1)
        if (
            before is not None
            and following is not None
            and self._times.is_step_between(before.log_offset, following.log_offset)
        ):
            return own_ms
        return sorted((self._store_ms_of(before), own_ms, self._store_ms_of(following)))[1]

    def _log_range(self, queue: ConsumeQueue) -> tuple[int, int] | None:
        """Return the log offsets of the queue's first message and after its last; None when it has none."""
        first, last = queue.unit(queue.minimum), queue.unit(queue.maximum - 1) if queue.maximum else None
        return (
            None
            if first is None or last is None
            else (max(first.log_offset, self._log.minimum), last.log_offset + last.size)
        )

    def _parts(self, queue: ConsumeQueue, *times_ms: int) -> list[tuple[int, int]]:
        """Return the queue's offsets, cut where times go back across one of `times_ms`: within a part older
        messages come before younger ones."""
        low, high = queue.minimum, queue.maximum
        ends = self._log_range(queue)
        order = self._times.order(*ends, *times_ms) if ends is not None else None
        cuts = [
            low,
            *(
                self._first_from(queue, step.log_offset)
                for step in (order.steps if order is not None else ())
            ),
            high,
        ]
        return list(dict.fromkeys((begin, end) for begin, end in pairwise(cuts) if begin < end)) or [
            (low, high)
        ]

    def _first_from(self, queue: ConsumeQueue, log_offset: int) -> int:
        """Return the first message of a queue that lies at or after `log_offset`."""
        low, high = queue.minimum, queue.maximum
        while low < high:
            middle = (low + high) // 2
            unit = queue.unit(middle)
            if unit is not None and unit.log_offset < log_offset:
                low = middle + 1
            else:
                high = middle
        return low

    def _first_at(self, queue: ConsumeQueue, low: int, high: int, time_ms: int) -> int:
        """Return the first message of [low, high) that was stored at or after `time_ms`, `high` without one;
        times go up there."""
        while low < high:
            middle = (low + high) // 2
            if self._store_ms_among(queue, middle) < time_ms:
                low = middle + 1
            else:
                high = middle
        return low
