"""Rehearsal: dispatch of the log without writing. It shows, before a file is changed, whether a start can be
finished.

The same kernel walks the same records, with a context and queue rows of its own. Its units go into one block
of memory that no queue has, and the index is off. So it stops where dispatch would stop: at a bad record in
the middle of the log, and at a queue whose units are missing and whose records the log does not hold either.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from broker_store.engine.dispatcher import Dispatcher
from broker_store.engine.index.hash_index import HashIndex
from broker_store.engine.index.places import IndexPlace
from broker_store.engine.log.commit_log import CommitLog
from broker_store.engine.queue.consume_queue import UNIT, ConsumeQueue
from broker_store.engine.queue.consume_queues import ConsumeQueues
from broker_store.engine.rows import Row, Words, WriterContext
from broker_store.engine.start.bridge import are_lost
from broker_store.engine.start.ends import BOUND
from broker_store.engine.start.given_numbers import find_given
from broker_store.engine.start.index_repair import index_redo
from broker_store.engine.start.queue_redo import end_to_redo
from broker_store.engine.start.queue_units import QueueEnd
from broker_store.engine.start.state import RecoveryParts, RecoveryState
from broker_store.engine.start.stated_places import after_lost, after_misnumbered, may_begin
from broker_store.errors import DamagedStoreError
from broker_store.kernels import context as c

_SCRATCH_UNITS = 4096  # units that a queue may take between two stops of the kernel


@dataclass
class WayBack:
    """The log offset to which dispatch has gone back for queues with holes. `begins_record` returns whether a
    good record begins at a log offset."""

    start: int
    log_minimum: int
    begins_record: Callable[[int], bool]

    def __post_init__(self) -> None:
        self.walked_from = self.start

    def goes_back(self, log_end: int) -> bool:
        """Return whether dispatch begins again, at `walked_from`, for a hole in a queue whose last record
        ends at `log_end`.

        The first time it begins where that queue is complete, the second time at the begin of the log.
        """
        back = max(self.log_minimum, log_end)
        if not self.begins_record(back):
            back = self.log_minimum  # its last unit is damaged
        if back >= self.walked_from:
            return False
        self.walked_from = back if self.walked_from == self.start else self.log_minimum
        return True


@dataclass
class RehearsedQueue:
    """A queue with a row of its own for the rehearsal. `queue` is the real one."""

    queue: ConsumeQueue
    row: Row
    scratch: Words

    def enter_scratch(self) -> None:
        """Let the kernel write the next units into the scratch block."""
        unit = self.row[c.Q_DISPATCHED]
        self.row[c.Q_FILE_ADDRESS] = self.scratch.address
        self.row[c.Q_FILE_FIRST], self.row[c.Q_FILE_END] = unit, unit + _SCRATCH_UNITS

    def advance(self) -> None:
        self.enter_scratch()

    @property
    def end(self) -> QueueEnd:
        return QueueEnd(self.row[c.Q_DISPATCHED], self.row[c.Q_LOG_END])


class Rehearsal:
    """One run over [start, end) of the log. It is the table of queues of its own dispatcher."""

    def __init__(
        self,
        log: CommitLog,
        queues: ConsumeQueues,
        index: HashIndex,
        context: WriterContext,
        ends: dict[ConsumeQueue, QueueEnd],
    ):
        """`ends` are the queues as they will be when dispatch begins; `context` is the store's, which is not
        changed."""
        self._log, self._real = log, queues
        self._context = WriterContext()
        self._context.view[c.MAX_RECORD] = context.view[c.MAX_RECORD]
        self._scratch = Words(_SCRATCH_UNITS * UNIT // 8)
        self._by_row: dict[int, RehearsedQueue] = {}
        for name, topic in context.topics.items():
            self._context.topic(name).row[c.T_DELETED_BEFORE] = topic.row[c.T_DELETED_BEFORE]
        for queue, end in ends.items():
            self._add(queue, end)
        self._dispatcher = Dispatcher(self._context, log, self, index, ())

    def _add(self, queue: ConsumeQueue, end: QueueEnd) -> None:
        row = self._context.add_queue(self._context.topic(queue.topic), queue.queue_id)
        row[c.Q_DISPATCHED], row[c.Q_LOG_END] = end
        self._by_row[row.address] = RehearsedQueue(queue, row, self._scratch)

    def by_row(self, address: int) -> RehearsedQueue:
        return self._by_row[address]

    def open(self, topic: str, queue_id: int) -> None:
        """Add a queue that has no file yet. Raises as `ConsumeQueues.open`."""
        self._add(self._real.open(topic, queue_id), QueueEnd(0, 0))

    def run(
        self,
        start: int,
        end: int,
        way_back: WayBack,
        may_go_on: Callable[[ConsumeQueue, int, int, int], bool],
        end_of_misnumbered: Callable[[ConsumeQueue, int, int], int | None],
        end_of_lost: Callable[[int], int | None],
        root: Path,
    ) -> dict[ConsumeQueue, QueueEnd]:
        """Return where each queue ends afterwards. Raises DamagedStoreError where dispatch would.

        `may_go_on(queue, following, unit, log offset)` returns whether a queue that ends at `following` may
        go on at `unit`. `end_of_misnumbered(queue, unit, log offset)` returns where a record ends that is
        left out because its number is damaged, `end_of_lost(log offset)` where bad bytes end that were
        accepted as lost; both return None where that does not apply.
        """

        def on_hole(rehearsed: RehearsedQueue, unit: int) -> None:
            following, log_end = rehearsed.end
            at = self._context.view[c.STOPPED_AT]
            record_end = end_of_misnumbered(rehearsed.queue, unit, at)
            if record_end is not None:
                self._dispatcher.start_at(record_end)
                return
            is_kept = are_lost(rehearsed.queue, following, unit)
            if not is_kept and way_back.goes_back(log_end):
                self._dispatcher.start_at(way_back.walked_from)
            elif is_kept or may_go_on(rehearsed.queue, following, unit, at):
                rehearsed.row[c.Q_DISPATCHED] = unit
                rehearsed.enter_scratch()
            else:
                raise missing_units(rehearsed.queue, following, unit, root, "go on without them")

        self._context.view[c.CONFIRMED] = end
        self._dispatcher.start_at(start)
        self._dispatcher.catch_up(on_hole, lambda dispatched: None, end_of_lost)
        return {rehearsed.queue: rehearsed.end for rehearsed in self._by_row.values()}


def missing_units(queue: ConsumeQueue, first: int, end: int, root: Path, otherwise: str) -> DamagedStoreError:
    """Return the error for units [first, end) that exist nowhere; `otherwise` is what --accept-damage
    does."""
    which = f"unit {first:,} is missing and the log does not hold its record either"
    if end - first > 1:
        which = f"units {first:,} to {end - 1:,} are missing and the log does not hold their records either"
    return DamagedStoreError(
        which,
        file=str(queue.directory),
        offset=first * UNIT,
        advice=f"Nothing was changed. See `manage.py check_store {root}`; start with --accept-damage to "
        f"{otherwise}.",
    )


def rehearse(
    parts: RecoveryParts,
    state: RecoveryState,
    start: int,
    agreed: int,
    end: int,
    place: IndexPlace | None,
    compared_from: int,
    kept: dict[ConsumeQueue, QueueEnd],
    headless: set[ConsumeQueue],
) -> str:
    """Check that all steps that change files can be finished; `kept` are the queues as they are then. Return
    the outcome as a sentence. Raises DamagedStoreError."""
    # It cannot be known whether unit or record is wrong, so dispatch would be a guess.
    for queue, contradicted in state.contradicted.items():
        raise contradicted.error(queue, parts.log, parts.root)
    # The same place as step 6 finds, without the cuts that it makes on the way
    dispatch_from = min(
        [
            agreed,
            index_redo(parts, state, start, agreed, end, place),
            *(max(parts.log.minimum, kept[queue].log_end) for queue in state.shortened.keys() | headless),
        ]
    )
    ends = dict(kept)
    if agreed != end:
        ends |= {
            queue: redo
            for queue in kept
            if (redo := end_to_redo(parts, state, queue, kept[queue], compared_from)) is not None
        }
    if dispatch_from < end:
        rehearsal = Rehearsal(parts.log, parts.queues, parts.index, parts.context, ends)
        way_back = WayBack(dispatch_from, parts.log.minimum, parts.records.begins_record)
        ends |= rehearsal.run(
            dispatch_from,
            end,
            way_back,
            partial(may_begin, parts, state),
            partial(after_misnumbered, parts),
            partial(after_lost, parts),
            parts.root,
        )
    # Dispatch fills queues from the log. Units that it does not reach are those that step 8 would miss.
    for (topic, queue_id), rows in parts.ends.queues.items():
        recorded, following = parts.queues.find(topic, queue_id), parts.ends.next_offset(topic, queue_id)
        if (
            recorded is None
            or recorded not in ends
            or BOUND in rows
            or ends[recorded].following >= following
            or are_lost(recorded, ends[recorded].following, following)
        ):
            continue
        if (
            max(row.log_end for row in rows.values()) > parts.log.minimum
            or ends[recorded].log_end > parts.log.minimum
        ):
            raise missing_units(
                recorded,
                ends[recorded].following,
                following,
                parts.root,
                "put placeholders there, from which consumers learn that the messages are lost",
            )
    if state.has_bad_part and not state.proof.is_exact:
        for queue, following in find_given(parts, state, end).items():
            if queue in ends and ends[queue].following < following:
                raise missing_units(
                    queue,
                    ends[queue].following,
                    following,
                    parts.root,
                    "put placeholders there, from which consumers learn that the messages are lost",
                )
    return (
        f"the log from {dispatch_from:,} on can be dispatched"
        if dispatch_from < end
        else "queues and index hold all of the log"
    )
