"""What the reader of the revive log holds: its queues, and pop checkpoints that are not finished."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import NamedTuple

from broker_store.broker.pop.revive_log import LOG_END
from broker_store.broker.timer_request import parse_long
from broker_store.formats import record
from broker_store.formats.pop_records import MAX_MESSAGES, PopAck, PopCheckpoint, PopKey

_NO_END = 1 << 63
# Acknowledgements of pops of other brokers that are kept until the pop checkpoint comes, in each queue
MAX_EARLY = 2_000


class InHand:
    """A pop checkpoint that is not finished. `at` is its place in the revive log, bits of `acked` are set for
    messages that do not come again. Its messages lie before `log_end` in the log. Those of another broker are
    read there: `is_fetching` meanwhile."""

    __slots__ = ("acked", "at", "checkpoint", "is_fetching", "is_of_other", "log_end")

    def __init__(self, checkpoint: PopCheckpoint, stored: record.StoredMessage, *, is_of_other: bool = False):
        self.checkpoint, self.at = checkpoint, stored.queue_offset
        self.acked = checkpoint.acked
        self.is_of_other, self.is_fetching = is_of_other, False
        # Without the property: the timer delivered the record after the pop.
        own_end = parse_long(stored.properties.get(LOG_END)) or stored.log_offset
        self.log_end = _NO_END if is_of_other else own_end

    @property
    def is_done(self) -> bool:
        every = (1 << len(self.checkpoint.diffs)) - 1
        return self.acked & every == every

    def left(self) -> list[int]:
        """Return the queue offsets of the messages that come again."""
        start = self.checkpoint.key.start_offset
        return [start + diff for i, diff in enumerate(self.checkpoint.diffs) if not self.acked >> i & 1]

    def mark(self, offset: int) -> None:
        index = self.checkpoint.index_of(offset)
        if index is not None:
            self.acked |= 1 << index


@dataclass(slots=True)
class ReviveQueue:
    """One queue of the revive log. `read` is the next record, `finished` the last one that is finished."""

    queue_id: int
    read: int = 0
    finished: int = -1
    backlog_end: int = 0  # the end of the queue at the start
    complete_ms: int = 0  # all records of before are read
    put_end: int = 0  # log offset after what was stored last for this queue
    in_hand: dict[PopKey, InHand] = field(default_factory=dict)  # in the order of their places
    of_others: int = 0  # of them
    due: list[tuple[int, int, PopKey]] = field(default_factory=list)  # heap: visible again (ms), place, key
    early: dict[PopKey, set[int]] = field(default_factory=dict)  # acknowledged queue offsets
    remembered: set[tuple[PopKey, str | None]] = field(default_factory=set)  # identities

    def add(self, held: InHand) -> None:
        """Take a pop checkpoint in hand."""
        self.in_hand[held.checkpoint.key] = held
        self.of_others += held.is_of_other
        for offset in self.early.pop(held.checkpoint.key, ()):
            held.mark(offset)

    def keep_early(self, ack: PopAck) -> None:
        """Keep an acknowledgement whose pop checkpoint may come later: an acting slave sends that when it is
        due, or later."""
        offsets = self.early.setdefault(ack.key, set())
        offsets.update(ack.offsets)
        if len(offsets) > MAX_MESSAGES:  # no pop has so many
            del self.early[ack.key]
        elif len(self.early) > MAX_EARLY:
            del self.early[next(iter(self.early))]

    def remove(self, key: PopKey) -> None:
        """Let go of a pop checkpoint, if it is in hand."""
        held = self.in_hand.pop(key, None)
        if held is not None:
            self.of_others -= held.is_of_other

    def holds(self, checkpoint: PopCheckpoint) -> bool:
        """True if a pop checkpoint is in hand already: the timer delivered it twice."""
        held = self.in_hand.get(checkpoint.key)
        return held is not None and held.checkpoint.identity == checkpoint.identity

    def next_due_ms(self) -> int | None:
        """Return when the first pop checkpoint in hand is over, None without one."""
        while self.due and self.in_hand.get(self.due[0][2]) is None:
            heapq.heappop(self.due)
        return self.due[0][0] if self.due else None


class QueueProgress(NamedTuple):
    """How far a queue of the revive log is read. `finished` is the offset of the last record that is
    finished, -1 for none. `in_hand` are pop checkpoints that were read and are not finished, `due_ms` is when
    messages of the first of them are visible again."""

    queue_id: int
    finished: int
    read: int
    end: int
    in_hand: int
    due_ms: int | None


class ReviveFacts(NamedTuple):
    """What a reader of the revive log did since the start, and how far it is (see `Revive.counts`)."""

    acknowledged: int
    revived: int
    dropped: int
    invalid: int
    failures: int
    queues: list[QueueProgress]


class Revived(NamedTuple):
    """Messages of one topic that came again for a group: `size` is that of their bodies. They may be read
    when `log_end` is confirmed."""

    topic: str
    group: str
    retry_topic: str
    messages: int
    size: int
    log_end: int
