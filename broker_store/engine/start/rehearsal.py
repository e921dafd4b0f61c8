"""Rehearsal: dispatch of the log without writing, by which a start finds out whether it can be finished
before it changes a file.

The same kernel walks the same records, with a context and queue rows of its own. Its units go into one block
of memory that no queue has, and the index is off. So it stops where dispatch would stop: at a bad record in
the middle of the log, and at a queue whose units are missing and whose records the log does not hold either.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from broker_store.engine.dispatcher import Dispatcher
from broker_store.engine.index.hash_index import HashIndex
from broker_store.engine.log.commit_log import CommitLog
from broker_store.engine.queue.consume_queue import UNIT, ConsumeQueue, ConsumeQueues
from broker_store.engine.rows import Row, Words, WriterContext
from broker_store.engine.start.bridge import are_lost
from broker_store.errors import DamagedStoreError
from broker_store.formats.record import StoredMessage
from broker_store.kernels import context as c

_SCRATCH_UNITS = 4096  # that a queue may take between two stops of the kernel


class QueueEnd(NamedTuple):
    """The number behind a queue's last unit, and where that one's record ends in the log, 0 for none."""

    following: int
    log_end: int


@dataclass(frozen=True, slots=True)
class Disowned:
    """Units [first, following) at the end of a queue, whose records state other places; `stated` is that of
    unit `first`, at `log_offset`."""

    first: int
    following: int
    log_offset: int
    stated: StoredMessage

    def what(self, queue: ConsumeQueue) -> str:
        stated = self.stated
        place = (
            f"{stated.topic}/{stated.queue_id} {stated.queue_offset:,}"
            if stated.is_queued
            else "a message that is in no queue"
        )
        more = f", and so do those up to {self.following - 1:,}" if self.following - self.first > 1 else ""
        return (
            f"the record states {place}, and unit {self.first:,} of {queue.topic}/{queue.queue_id} leads "
            f"to it{more}"
        )

    def error(self, queue: ConsumeQueue, log: CommitLog, root: Path) -> DamagedStoreError:
        file = log.file_at(self.log_offset)
        return DamagedStoreError(
            self.what(queue) + ": one of both is damaged",
            file=str(file.path),
            offset=self.log_offset - file.base,
            advice=f"Nothing was changed. `manage.py check_store {root} --plan` shows what a repair would "
            f"do; or start with --accept-damage: the record is believed, and"
            " placeholders take the offsets of the units, so that none is given again.",
        )


@dataclass
class WayBack:
    """How far dispatch has gone back for queues with holes. `begins_record` says whether a good record begins
    at a log offset."""

    start: int
    log_minimum: int
    begins_record: Callable[[int], bool]

    def __post_init__(self) -> None:
        self.walked_from = self.start

    def goes_back(self, log_end: int) -> bool:
        """For a hole in a queue whose last record ends at `log_end`: whether dispatch begins again, at
        `walked_from`.

        The first time where that queue is complete, the second time at the begin of the log.
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
    """A queue with a row of its own. `queue` is the real one."""

    queue: ConsumeQueue
    row: Row
    scratch: Words

    def enter_scratch(self) -> None:
        """Let the kernel write the next units into the scratch block."""
        unit = self.row[c.Q_DISPATCHED]
        self.row[c.Q_FILE_ADDRESS] = self.scratch.address
        self.row[c.Q_FILE_FIRST], self.row[c.Q_FILE_END] = unit, unit + _SCRATCH_UNITS

    advance = enter_scratch

    @property
    def end(self) -> QueueEnd:
        return QueueEnd(self.row[c.Q_DISPATCHED], self.row[c.Q_LOG_END])


class Rehearsal:
    """One run over [start, end) of the log. It stands in for the table of queues that the dispatcher asks."""

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
        """A queue that no file is of yet. Raises as `ConsumeQueues.open`."""
        self._add(self._real.open(topic, queue_id), QueueEnd(0, 0))

    def run(
        self,
        start: int,
        end: int,
        way_back: WayBack,
        may_begin: Callable[[ConsumeQueue, int, int, int], bool],
        behind_misnumbered: Callable[[ConsumeQueue, int, int], int | None],
        behind_lost: Callable[[int], int | None],
        root: Path,
    ) -> dict[ConsumeQueue, QueueEnd]:
        """Where each queue ends afterwards. Raises DamagedStoreError where dispatch would.

        `may_begin(queue, following, unit, log offset)` says whether a queue that ends at `following` may go
        on at `unit`. `behind_misnumbered(queue, unit, log offset)` says where a record ends that is left out
        because its number is damaged, `behind_lost(log offset)` where bad bytes end that were accepted as
        lost.
        """

        def on_hole(rehearsed: RehearsedQueue, unit: int) -> None:
            following, log_end = rehearsed.end
            at = self._context.view[c.STOPPED_AT]
            behind = behind_misnumbered(rehearsed.queue, unit, at)
            if behind is not None:
                self._dispatcher.start_at(behind)
                return
            is_kept = are_lost(rehearsed.queue, following, unit)
            if not is_kept and way_back.goes_back(log_end):
                self._dispatcher.start_at(way_back.walked_from)
            elif is_kept or may_begin(rehearsed.queue, following, unit, at):
                rehearsed.row[c.Q_DISPATCHED] = unit
                rehearsed.enter_scratch()
            else:
                raise missing_units(rehearsed.queue, following, unit, root, "go on without them")

        self._context.view[c.CONFIRMED] = end
        self._dispatcher.start_at(start)
        self._dispatcher.catch_up(on_hole, lambda dispatched: None, behind_lost)
        return {rehearsed.queue: rehearsed.end for rehearsed in self._by_row.values()}


def missing_units(queue: ConsumeQueue, first: int, end: int, root: Path, otherwise: str) -> DamagedStoreError:
    """Units [first, end) are nowhere; `otherwise` is what --accept-damage does."""
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
