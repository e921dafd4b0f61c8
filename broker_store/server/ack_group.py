"""The acknowledgements of one turn of the loop.

    ack, ack, ack ──► of one pop checkpoint: one record ──► confirmed ──► answers

A client acknowledges each message of a pop by a request of its own, and most of these requests come together.
Those that belong to one pop checkpoint are stored as one record of the revive log (tag `bAck`), the form that
Apache's broker has for a batch; those of one pop in order are one record of its log. Each record costs a
place in the log, in the timer and in the revive log, so this decides how fast messages are acknowledged.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from broker_store.broker.pop.ordered import Changed, OrderedQueues
from broker_store.broker.pop.revive_log import RecordsElsewhere, ReviveLog
from broker_store.engine.store_protocol import Store
from broker_store.formats.pop_records import MAX_MESSAGES, PopKey
from broker_store.messages import PutResult, PutStatus
from broker_store.protocol.pop import ORDER_REVIVE_QUEUE

# Records that are stored in one turn; acknowledgements beyond them wait for the next.
MAX_RECORDS = 512

Done = Callable[[PutStatus], None]

log = logging.getLogger(__name__)


class AckTarget(NamedTuple):
    """The pop checkpoint that an acknowledgement belongs to, as its receipt states it. `due_ms` is when its
    messages are visible again."""

    key: PopKey
    revive_queue: int
    due_ms: int


class AckGroup:
    """Stores acknowledgements at the end of the turn in which they were added."""

    def __init__(self, store: Store, revive_log: ReviveLog, ordered: OrderedQueues):
        self._store, self._log, self._ordered = store, revive_log, ordered
        self._waiting: dict[AckTarget, list[tuple[int, Done]]] = {}
        self._is_scheduled = False
        # Called when acknowledgements have had their results.
        self.on_answered: Callable[[], None] = lambda: None

    def add(self, target: AckTarget, offset: int, done: Done) -> None:
        """Store the acknowledgement of the message at a queue offset, then call `done` with PUT_OK once the
        record is confirmed, else with why it is not."""
        self._waiting.setdefault(target, []).append((offset, done))
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self.flush)

    def flush(self) -> None:
        """Store the acknowledgements that were added, and answer."""
        self._is_scheduled = False
        stored: list[tuple[list[Done], PutResult]] = []
        for target in list(self._waiting):
            if len(stored) >= MAX_RECORDS:
                self._is_scheduled = True
                asyncio.get_running_loop().call_soon(self.flush)
                break
            stored += self._put(target, self._waiting.pop(target))
        if stored:
            self._confirm(stored)

    def store_now(self, target: AckTarget) -> None:
        """Store the acknowledgements that were added for a pop checkpoint: a request that came after them
        must find them."""
        if target in self._waiting:
            self._confirm(self._put(target, self._waiting.pop(target)))

    def _confirm(self, stored: list[tuple[list[Done], PutResult]]) -> None:
        log_end = max((put.log_end for _, put in stored), default=0)
        self._store.confirmation.when_confirmed(log_end, lambda status: self._confirmed(stored, status))

    def _put(self, target: AckTarget, acks: list[tuple[int, Done]]) -> list[tuple[list[Done], PutResult]]:
        """Store the records of one pop checkpoint; return who waits for each that is in the own log. Those
        that go elsewhere are answered when they are stored there."""
        waiting: dict[int, list[Done]] = {}
        for offset, done in acks:
            waiting.setdefault(offset, []).append(done)
        offsets = sorted(waiting)
        stored: list[tuple[list[Done], PutResult]] = []
        for first in range(0, len(offsets), MAX_MESSAGES):
            some = offsets[first : first + MAX_MESSAGES]
            who = [done for offset in some for done in waiting[offset]]
            if self._log.elsewhere is not None:
                self._log.elsewhere.put_ack(
                    target.key, some, target.revive_queue, target.due_ms, partial(self._answer, who)
                )
                continue
            of_slave = self._log.of_slave(target.key)
            if of_slave is not None:
                who = [partial(self._also_elsewhere, of_slave, target, some, who)]
            try:
                put = self.put(target, some).put
            except Exception:  # each acknowledgement needs an answer
                log.exception("an acknowledgement of %d messages could not be stored", len(some))
                put = PutResult(PutStatus.UNKNOWN_ERROR)
            if put is None:  # what these acknowledgements repeat may not be confirmed yet
                put = PutResult(PutStatus.PUT_OK, log_end=self._store.log.wrote)
            stored.append((who, put))
        return stored

    def put(self, target: AckTarget, offsets: Sequence[int]) -> Changed:
        """Store acknowledgements of messages of one pop now, at most MAX_MESSAGES."""
        key = target.key
        if target.revive_queue == ORDER_REVIVE_QUEUE:
            return self._ordered.acknowledge((key.group, key.topic, key.queue_id), offsets, key.pop_ms)
        return Changed(self._log.put_ack(key, offsets, target.revive_queue, target.due_ms), [])

    def _confirmed(self, stored: list[tuple[list[Done], PutResult]], status: PutStatus) -> None:
        confirmed = self._store.confirmed
        for waiting, put in stored:
            its = put.status if not put.ok or put.log_end <= confirmed else status
            for done in waiting:
                done(its)
        self.on_answered()

    def _also_elsewhere(
        self,
        elsewhere: RecordsElsewhere,
        target: AckTarget,
        offsets: Sequence[int],
        waiting: list[Done],
        status: PutStatus,
    ) -> None:
        """Store an acknowledgement elsewhere that is stored here with this status, and answer with it."""
        if status is not PutStatus.PUT_OK:
            self._answer(waiting, status)
            return
        elsewhere.put_ack(
            target.key,
            offsets,
            target.revive_queue,
            target.due_ms,
            lambda elsewhere_status: self._answer(waiting, status),
        )

    def _answer(self, waiting: list[Done], status: PutStatus) -> None:
        for done in waiting:
            done(status)
        self.on_answered()
