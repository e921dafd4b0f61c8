"""Step 7: dispatch again what queues and index lack, from the log.

    log      minimum           start                          end
             |-----------------|------------------------------|
                               | 1st walk: queues and index   |
                     |<--------+ a queue has a hole: the walk starts over where that queue is complete
             |<------+           a second hole: it starts over at the begin of the log
             |-------------------------------------------->| units that are there are passed

The dispatcher's kernel stops where it cannot go on, and the dispatcher calls:

    on_hole    a record states unit n, and its queue ends before n
    on_bad     no good record begins here
    on_other   the queue has another unit at that number already (only where damage is accepted)

Without `--accept-damage` the rehearsal (`rehearsal.py`) has shown before that each stop can be handled. With
it a record may be left out, or units are written for lost messages (`bridge.py`).
"""

from __future__ import annotations

from broker_store.engine.queue.consume_queue import UNIT, ConsumeQueue, queue_name
from broker_store.engine.start.bridge import Bridge, are_lost
from broker_store.engine.start.queue_cut import drop_files_after, drop_files_before
from broker_store.engine.start.rehearsal import WayBack, missing_units
from broker_store.engine.start.state import RecoveryParts, RecoveryState
from broker_store.engine.start.stated_places import (
    after_lost,
    after_misnumbered,
    is_contradicted,
    is_elsewhere,
    may_begin,
)
from broker_store.formats import record
from broker_store.kernels import context as c


def dispatch_again(
    parts: RecoveryParts,
    state: RecoveryState,
    start: int,
    end: int,
    gone_back: dict[ConsumeQueue, int],
    left_out: int | None,
) -> None:
    """Fill queues and index from [start, end) of the log, except the record at `left_out`.

    In queues of `gone_back`, which has the least number that must follow in them, units are overwritten; what
    then lies after their end is taken away.
    """
    Redispatch(parts, state, start, end, left_out).run(gone_back)


class Redispatch:
    """One run of dispatch over [start, end) of the log."""

    def __init__(
        self, parts: RecoveryParts, state: RecoveryState, start: int, end: int, left_out: int | None
    ):
        """`left_out` is the log offset of a record that states the place of another one, None without it."""
        self._parts, self._state = parts, state
        self._start, self._end, self._left_out = start, end, left_out
        self._view = parts.context.view
        self._way_back = WayBack(start, parts.log.minimum, parts.records.begins_record)
        self._bridge = Bridge(parts.log, parts.records.begins_record)
        # Topic and number that each left-out record states, and the log offset of its end
        self._left_out_records: list[tuple[str, int, int]] = []

    def run(self, gone_back: dict[ConsumeQueue, int]) -> None:
        """Dispatch everything, then complete the ends of queues. Raises DamagedStoreError."""
        parts, report, view = self._parts, self._parts.report, self._view
        before = sum(queue.maximum for queue in parts.queues)
        with report.step("dispatch again") as step:
            if not parts.index.files:
                parts.index.start_writing()
            parts.dispatcher.start_at(self._start)

            def on_progress(dispatched: int) -> None:
                step.bytes = max(step.bytes, dispatched - self._start)
                report.redispatched = sum(queue.maximum for queue in parts.queues) - before
                report.changed()

            step.of_bytes = self._end - self._start
            view[c.CONFIRMED] = self._end if self._left_out is None else self._left_out
            on_units = self._on_other if parts.settings.accept_damage else None
            parts.dispatcher.catch_up(self._on_hole, on_progress, self._on_bad, on_units)
            while self._left_out is not None and view[c.CONFIRMED] < self._end:
                found = parts.records.known_record_at(self._left_out)
                queue = parts.queues.find(found.topic, found.queue_id)
                assert queue is not None  # as `record_to_leave_out` found it
                self._pass_record(queue, found.queue_offset, self._left_out)
                view[c.CONFIRMED] = self._end
                parts.dispatcher.catch_up(self._on_hole, on_progress, self._on_bad, on_units)
            for topic, number, record_end in self._left_out_records:
                if (ending := self._queue_that_ends_with(topic, number, record_end)) is not None:
                    # It was the last record of this queue: its number was given
                    self._fill(ending, ending.maximum + 1, record_end)
            for queue, following in gone_back.items():
                if are_lost(queue, queue.maximum, following):
                    self._bridge.keep(queue, following)
                if parts.settings.accept_damage and queue.maximum < following:
                    # They are its last records: no later record shows the hole
                    self._fill(queue, following, self._end)
                drop_files_after(parts, self._state, queue, queue.maximum)
            step.messages = report.redispatched
            report.dispatched = {
                "from": self._way_back.walked_from,
                "to": self._end,
                "units": report.redispatched,
            }
            step.detail = f"from {self._start:,} to {self._end:,}, {report.redispatched:,} units were written"

    # Stops of the dispatcher ---------------------------------------------------------------------

    def _on_hole(self, queue: ConsumeQueue, unit: int) -> None:
        parts, at = self._parts, self._view[c.STOPPED_AT]
        is_accepted = parts.settings.accept_damage
        if after_misnumbered(parts, queue, unit, at) is not None:
            self._pass_record(queue, unit, at)
            return
        if are_lost(queue, queue.maximum, unit):
            self._bridge.keep(queue, unit)
            return
        if self._way_back.goes_back(queue.row[c.Q_LOG_END]):
            self._start_over(queue, unit)
            return
        first = queue.maximum
        if is_accepted and is_contradicted(
            parts, self._state, queue, first, unit, at, bool(self._bridge.passed)
        ):
            self._pass_record(queue, unit, at)
            return
        if is_accepted and self._fill(queue, unit, at):
            return
        if may_begin(parts, self._state, queue, first, unit, at) or (
            is_accepted and (first == 0 or not parts.units.reaches_log(queue))
        ):
            # The log does not hold the records before: they were deleted by age, or are lost.
            drop_files_before(parts, self._state, queue, unit)
            queue.begin_at_unit(unit)
            return
        if is_accepted:
            self._pass_record(queue, unit, at)
            return
        raise missing_units(queue, queue.maximum, unit, parts.root, "go on without them")

    def _on_other(self, queue: ConsumeQueue, unit: int) -> None:
        at = self._view[c.STOPPED_AT]
        if is_elsewhere(self._parts, queue, unit, at):
            self._pass_record(queue, unit, at)
        else:  # the unit is damaged: cleared, it is written when dispatch goes on with this record
            file = queue.file_holding(unit)
            file.map().write(unit * UNIT - file.base, bytes(UNIT))

    def _on_bad(self, offset: int) -> int | None:
        parts, bridge = self._parts, self._bridge
        if not parts.settings.accept_damage:
            return after_lost(parts, offset)
        if (found := parts.records.whole_record_at(offset)) is not None:
            return self._leave_out(found, offset, "a queue that cannot exist")
        known = len(bridge.passed)
        following = bridge.following(offset)
        if len(bridge.passed) > known:
            file = parts.log.file_holding(offset)
            what = (
                f"no good record begins here; accepted: queues and index go on with the record at "
                f"{following:,} of the log"
            )
            parts.report.finding("error", what, f"commitlog/{file.path.name}", offset - file.base)
        return following

    # Actions --------------------------------------------------------------------------------------

    def _start_over(self, queue: ConsumeQueue, unit: int) -> None:
        """Begin the walk again where the queue is complete, or at the begin of the log."""
        walked_from = self._way_back.walked_from
        self._parts.dispatcher.start_at(walked_from)
        if self._left_out is not None and walked_from <= self._left_out:
            self._view[c.CONFIRMED] = self._left_out
        self._parts.report.finding(
            "warning",
            f"units {queue.maximum:,} to {unit - 1:,} are missing and are made again from the log",
            queue_name(queue),
        )

    def _fill(self, queue: ConsumeQueue, unit: int, at: int) -> bool:
        """Write units for lost messages up to `unit`, whose record begins at `at`; return False when there is
        no room for them in the log."""
        parts, first = self._parts, queue.maximum
        if not self._bridge.fill(
            queue,
            unit,
            at,
            is_begin_lost=not first
            and (not parts.log.minimum or not may_begin(parts, self._state, queue, first, unit, at)),
        ):
            return False
        self._state.bridged.add(queue)
        what = (
            f"messages {first:,} to {unit - 1:,} lay in damaged bytes of the log and are lost; a read "
            f"of one answers that it is damaged"
        )
        parts.report.finding("error", what, queue_name(queue), first * UNIT)
        return True

    def _pass_record(self, queue: ConsumeQueue, unit: int, at: int) -> None:
        """Leave out a record whose stated place in its queue cannot be right."""
        why = (
            f"where {queue.maximum:,} follows"
            if unit != queue.maximum
            else "as the record does that the queue's unit leads to"
        )
        found = self._parts.records.known_record_at(at)
        self._parts.dispatcher.start_at(self._leave_out(found, at, why))

    def _leave_out(self, found: record.StoredMessage, at: int, why: str) -> int:
        """Report a whole record that is not dispatched; return the log offset after it."""
        parts, bridge = self._parts, self._bridge
        record_end = at + found.size
        if not parts.settings.accept_damage or (at, record_end) in bridge.passed:
            return record_end  # an earlier start accepted it, or it is reported already
        file = parts.log.file_holding(at)
        bridge.passed.append((at, record_end))
        self._left_out_records.append((found.topic, found.queue_offset, record_end))
        what = (
            f"the record states {found.topic}/{found.queue_id} {found.queue_offset:,}, {why}: its "
            f"place in the queue is damaged; accepted: it is left out"
        )
        parts.report.finding("error", what, f"commitlog/{file.path.name}", at - file.base)
        return record_end

    def _queue_that_ends_with(self, topic: str, number: int, record_end: int) -> ConsumeQueue | None:
        """Return the queue whose last message is the left-out record that states `topic` and `number` and
        ends at `record_end`, None where that is not known.

        It is one that the record of ends counts longer than it is now; without such a one the only queue of
        that topic that ends before that number.
        """
        ends = self._parts.ends
        # Of units without a record it ends at 0
        before = [
            queue for queue in self._parts.queues if queue.maximum and queue.row[c.Q_LOG_END] < record_end
        ]
        recorded = [
            queue for queue in before if queue.maximum < ends.next_offset(queue.topic, queue.queue_id)
        ]
        if recorded:
            return min(recorded, key=lambda queue: queue.topic != topic)
        stated = [queue for queue in before if (queue.topic, queue.maximum) == (topic, number)]
        return stated[0] if len(stated) == 1 else None
