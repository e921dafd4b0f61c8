"""Pops of both ports: they read, wait and are answered (docs/spec/pop.md section 5).

    pop ──► queues in turn, and the retry topics ──► read, at once or by a thread
                                                       │ found
                                                       ▼
                                      pop checkpoint stored ──► position moved ──► answer, once confirmed
                                      (by a slave that acts: at another master, `pop_escapes.py`)
        ──► nothing found: parked, until a message comes or its time is over

A pop reads its queues one after another. A queue is locked while a thread reads it for a pop, so that no
other pop of the group is given the same messages. A message is answered only if its pop checkpoint is stored.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import deque
from functools import partial

from broker_store.broker.offsets import TooManyOffsetsError
from broker_store.broker.pop.ordered import TooManyOrderedError
from broker_store.broker.pop.parked_pops import ParkedPop
from broker_store.broker.pop.positions import Place
from broker_store.errors import LimitError
from broker_store.formats.names import RETRY_PREFIX, popped_topic
from broker_store.formats.pop_records import PopCheckpoint, PopKey
from broker_store.messages import GetRequest, GetResult, GetStatus, PutStatus
from broker_store.protocol.pop import NORMAL, ORDER_REVIVE_QUEUE, QueueOffsets, Receipt, topic_of
from broker_store.repeated_log import RepeatedLog
from broker_store.server.parts import BrokerParts
from broker_store.server.pop_acks import not_stored
from broker_store.server.pop_checks import FROM_MIN, may_read
from broker_store.server.pop_places import Draw, draw, places_of
from broker_store.server.pop_records import all_of_topic, message_places
from broker_store.server.pop_request import ALL_QUEUES, Pop, PopEnd, PopResult
from broker_store.server.pop_run import Run
from broker_store.server.pop_waiting import WaitingPops

MAX_POP_BYTES = 256 << 10
BUSY_RETRY_S = 0.05
# Reads of one pop in one turn of the loop: each may scan some hundred messages that the filter rejects.
MAX_READS_PER_TURN = 16
_WRONG_OFFSET = (GetStatus.OFFSET_TOO_SMALL, GetStatus.OFFSET_OVERFLOW_BADLY)
_FAILED = (GetStatus.MESSAGE_DAMAGED, GetStatus.READ_FAILED)

log = logging.getLogger(__name__)


class Pops:
    """Reads for pops. It also parks, wakes and ends those that wait."""

    def __init__(self, parts: BrokerParts):
        self._parts, self._store = parts, parts.store
        self._loop = asyncio.get_running_loop()
        self._reading: set[Place] = set()
        # Of parked pops that found messages and read on
        self._read_on: dict[ParkedPop[Pop], Run] = {}
        self.waiting = WaitingPops(parts, retry=self._retry, give_up=self._give_up)
        parts.ordered.on_free = self._wake_place
        parts.pop_positions.on_set_back = self.waiting.set_back
        self._log = RepeatedLog(log)
        self.random = random.Random()

    # Requests

    def pop(self, pop: Pop) -> None:
        """Give messages to a group, now or when they come."""
        self._advance(self._begin(pop))

    def peek(self, pop: Pop) -> None:
        """Return messages and leave them visible."""
        self._advance(self._begin(pop, peeks=True))

    def ask(self, pop: Pop) -> None:
        """Answer whether a pop would find a message, now or before its time is over."""
        if self._has_message(pop):
            pop.answer(PopResult(PopEnd.FOUND))
        elif pop.deadline_ms <= self._parts.clock():
            pop.answer(PopResult(PopEnd.NOTHING))
        elif not self.waiting.park(pop):
            pop.answer(PopResult(PopEnd.FULL))

    # Reading

    def _begin(
        self, pop: Pop, parked: ParkedPop[Pop] | None = None, *, peeks: bool = False, reads: bool = True
    ) -> Run:
        places = places_of(self._parts, pop, draw(self.random, pop)) if reads else deque()
        revive_queue = ORDER_REVIVE_QUEUE if pop.is_order else self._parts.revive_log.next_queue()
        return Run(pop, places, self._parts.clock(), revive_queue, parked, peeks)

    def _advance(self, run: Run) -> None:
        """Read the next queues of a pop, and answer it when it has enough or no queue is left."""
        pop, reads = run.pop, 0
        run.turns += 1
        if not may_read(self._parts, run.pop):
            run.places.clear()
        while run.places and run.count < pop.max_messages and run.size < MAX_POP_BYTES:
            reads += 1
            if reads > MAX_READS_PER_TURN:
                self._loop.call_soon(self._advance_open, run)
                return
            kind, queue_id = run.places[0]
            place = (pop.group, topic_of(pop.topic, pop.group, kind), queue_id)
            if place in self._reading:
                self._next_place(run)  # another pop is given its messages
                continue
            try:
                offset = self._offset(run, place)
            except TooManyOffsetsError as error:
                self._note_limit(run, "too many offsets", error)
                self._next_place(run)
                continue
            if offset == self._store.reads.max_offset(place[1], queue_id) or self._is_blocked(
                pop, place, run.pop_ms
            ):
                self._next_place(run)
                continue
            request = GetRequest(
                place[1],
                queue_id,
                offset,
                pop.max_messages - run.count,
                MAX_POP_BYTES - run.size,
                pop.tag_codes,
                pop.group,
                pop.message_filter,
            )
            began_s = time.perf_counter()
            log_end = self._store.log.wrote
            result = self._store.reads.get(request, partial(self._came, run, place, offset, began_s, log_end))
            if result is None:
                self._reading.add(place)
                pop.channel.hold()
                return
            if not self._taken(run, place, offset, result, began_s):
                return
        self._finish(run)

    def _is_blocked(self, pop: Pop, place: Place, now_ms: int) -> bool:
        return pop.is_order and self._parts.ordered.is_blocked(place, pop.attempt_id, now_ms)

    def _next_place(self, run: Run) -> None:
        run.places.popleft()
        run.corrected = False

    def _note_limit(self, run: Run, kind: str, error: LimitError) -> None:
        """Leave out a queue for which a table has no room."""
        self._parts.statistics.refuse(
            kind, value=error.value, limit=error.limit, who=run.pop.channel.remote, said=str(error)
        )
        run.no_room = str(error)

    def _came(
        self, run: Run, place: Place, offset: int, began_s: float, log_end: int, result: GetResult
    ) -> None:
        """Take what a thread has read. `log_end` is where the log ended when it began."""
        channel = run.pop.channel
        self._reading.discard(place)
        channel.release()
        if self._is_over(run) or (channel.paused and run.count):
            self._finish_early(run)
            self._wake_place(place)
        elif channel.paused:
            # The peer has not read its other answers: messages would be invisible and unread.
            # Its time may be over by then
            channel.when_resumed(lambda: self._advance_open(run))
            self._wake_place(place)
        elif self._store.tombstones.before(place[1]) >= log_end or not may_read(self._parts, run.pop):
            self._next_place(run)  # a deleted topic: its messages and their offsets are gone
            self._wake_place(place)
            self._advance(run)
        elif self._taken(run, place, offset, result, began_s):
            self._wake_place(place)
            self._advance(run)

    def _wake_place(self, place: Place) -> None:
        """Wake a pop that waits, after a queue was locked."""
        group, topic, queue_id = place
        if self._store.reads.max_offset(topic, queue_id) > (
            self._parts.pop_positions.next_offset(group, topic, queue_id) or 0
        ):
            # A pop of any queue of the normal topic reads the retry topics too
            normal = popped_topic(topic, group)
            lines = [(topic, group, queue_id), (topic, group, ALL_QUEUES)]
            self.waiting.wake(lines if normal == topic else self._parts.parked_pops.lines(group, normal))

    def _offset(self, run: Run, place: Place) -> int:
        """Return where a group reads a queue next. Its first pop commits that. Raises
        TooManyOffsetsError."""
        group, topic, queue_id = place
        parts, reads = self._parts, self._store.reads
        if parts.offsets.take_reset(group, topic, queue_id) is not None:
            parts.pop_positions.drop(group, topic, queue_id)
            parts.ordered.clear(place)
        offset = parts.pop_positions.next_offset(group, topic, queue_id)
        if offset is not None and offset >= 0:
            return offset
        low = reads.min_offset(topic, queue_id)
        if run.peeks or run.pop.init_mode == FROM_MIN or topic.startswith(RETRY_PREFIX):
            offset = low
        elif low <= 0 and parts.near_log_end(topic, queue_id, 0):
            offset = 0
        else:
            offset = max(0, reads.max_offset(topic, queue_id) - 1)
        if not run.peeks:
            parts.offsets.commit(group, topic, queue_id, offset)
        return offset

    def _taken(self, run: Run, place: Place, offset: int, result: GetResult, began_s: float) -> bool:
        """Take the result of a read; return False if the pop goes on later."""
        parts, status = self._parts, result.status
        parts.statistics.read(status is GetStatus.FOUND, time.perf_counter() - began_s)
        if not run.peeks and parts.pop_positions.next_offset(*place) != offset:
            return True  # while a thread read it was set, or moved by acknowledgements in order: read again
        if status is GetStatus.FOUND and run.pop.is_order:
            if not self._is_blocked(run.pop, place, run.pop_ms):
                self._take_in_order(run, place, offset, result)
        elif status is GetStatus.FOUND:
            if not self._take_messages(run, place, offset, result):
                return False
        elif status in _WRONG_OFFSET and not run.corrected:
            if not run.peeks:
                parts.pop_positions.skip(place, result.next_offset)
                run.corrected = True
                return True
        elif status in (GetStatus.NO_MATCHED_MESSAGE, GetStatus.MESSAGE_WAS_REMOVING):
            if result.next_offset <= offset:
                # Nothing was read, because the reader threads are fully used.
                self._loop.call_later(BUSY_RETRY_S, self._advance_open, run)
                return False
            if not run.peeks:
                parts.pop_positions.skip(place, result.next_offset)
                if result.next_offset < result.max_offset:
                    return True  # there are more messages in this queue
        elif status in _FAILED:
            self._log.write(
                logging.ERROR,
                "failed pops",
                time.monotonic(),
                "a pop by group %s of %s/%d at %d from %s failed: %s; `manage.py check_store` says what is "
                "damaged",
                *place,
                offset,
                run.pop.channel.remote,
                status.name.lower().replace("_", " "),
            )
        self._next_place(run)
        return True

    def _advance_open(self, run: Run) -> None:
        if self._is_over(run):
            self._finish_early(run)
        else:
            self._advance(run)

    def _is_over(self, run: Run) -> bool:
        """Return True if the client has gone, or the time of a parked pop is over."""
        return run.pop.channel.closed or (run.parked is not None and not run.parked.waiting)

    def _finish_early(self, run: Run) -> None:
        """Answer a pop that reads no more with what it has: its messages are invisible already."""
        if run.count and not run.has_ended:
            self._finish(run)

    def _take_messages(self, run: Run, place: Place, offset: int, result: GetResult) -> bool:
        """Store the pop checkpoint of messages that were found, and add them to the answer; return False if
        that is done later, because another master stores it."""
        pop, elsewhere = run.pop, self._parts.revive_log.elsewhere
        group, topic, queue_id = place
        if not run.peeks:
            _, offsets = message_places(result.body)
            key = PopKey(topic, group, queue_id, offset, run.pop_ms, self._parts.broker_name)
            checkpoint = PopCheckpoint(key, pop.invisible_ms, tuple(found - offset for found in offsets))
            if elsewhere is not None:
                self._reading.add(place)
                pop.channel.hold()
                run.is_storing = True
                if run.parked is not None:
                    self._read_on[run.parked] = run
                stored = partial(self._stored_elsewhere, run, place, offset, result)
                elsewhere.put_checkpoint(checkpoint, run.revive_queue, stored)
                return False
            put = self._parts.revive_log.put_checkpoint(
                checkpoint, run.revive_queue, result.next_offset, client=pop.client
            )
            if not put.ok:
                run.refused = put.status
                return True
            self._parts.pop_positions.move(place, result.next_offset, put.log_offset, put.log_end)
            run.log_end = max(run.log_end, put.log_end)
        self._add_messages(run, place, offset, result)
        return True

    def _stored_elsewhere(
        self, run: Run, place: Place, offset: int, result: GetResult, status: PutStatus
    ) -> None:
        """Take messages whose pop checkpoint another master has stored, or not, and go on."""
        parts, channel = self._parts, run.pop.channel
        run.is_storing = False
        self._reading.discard(place)
        channel.release()
        if status is not PutStatus.PUT_OK:
            run.refused = status
            run.places.clear()
        elif may_read(parts, run.pop):
            if parts.pop_positions.next_offset(*place) == offset:  # else it was set meanwhile
                parts.pop_positions.skip(place, result.next_offset)
            self._add_messages(run, place, offset, result)
            self._next_place(run)
        self._wake_place(place)
        if not self._is_over(run):
            self._advance(run)
        elif run.count:
            self._finish_early(run)
        elif not channel.closed:  # its time ended meanwhile
            end = self._answer_nothing if run.refused is None else self._answer_refused
            end(run)

    def _add_messages(self, run: Run, place: Place, offset: int, result: GetResult) -> None:
        """Add messages to the answer, those of a retry topic as of their topic."""
        pop, kind, queue_id = run.pop, run.places[0][0], place[2]
        _, offsets = message_places(result.body)
        body = result.body
        if kind != NORMAL and not run.peeks:
            receipt = Receipt(
                offset,
                run.pop_ms,
                pop.invisible_ms,
                run.revive_queue,
                kind,
                self._parts.broker_name,
                queue_id,
            )
            body = all_of_topic(body, pop.topic, receipt)
        self._add(run, place, QueueOffsets(kind, queue_id, offset, offsets), body, result)

    def _take_in_order(self, run: Run, place: Place, offset: int, result: GetResult) -> None:
        """Block the queue for the group, and add the messages that were found to the answer, without those
        that were acknowledged after one that was not."""
        pop, ordered = run.pop, self._parts.ordered
        starts, offsets = message_places(result.body)
        wanted = ordered.wanted(place, offsets)
        if not wanted:
            self._parts.pop_positions.skip(place, result.next_offset)
            return
        try:
            given = ordered.give(place, pop.attempt_id, run.pop_ms, pop.invisible_ms, wanted, pop.client)
        except TooManyOrderedError as error:
            self._note_limit(run, "too many queues popped in order", error)
            return
        if not given.put.ok:
            run.refused = given.put.status
            return
        run.log_end = max(run.log_end, given.put.log_end)
        run.counts.append(given.counts)
        body = b"".join(
            [
                result.body[start : start + size]
                for (start, size), found in zip(starts, offsets, strict=True)
                if found in wanted
            ]
        )
        self._add(run, place, QueueOffsets(NORMAL, place[2], offset, wanted), body, result)

    def _add(self, run: Run, place: Place, found: QueueOffsets, body: bytes, result: GetResult) -> None:
        """Add messages of one queue to the answer."""
        run.found.append(found)
        run.bodies.append(body)
        run.count += len(found.offsets)
        run.size += len(result.body)
        run.rest += max(0, result.max_offset - result.next_offset)
        if run.parked is not None:
            self._read_on[run.parked] = run
        group, topic, _ = place
        self._parts.statistics.delivered(group, topic, len(found.offsets), len(result.body), result.cold)

    # Answers

    def _finish(self, run: Run) -> None:
        for kind, queue_id in run.places:  # those that were not read
            topic = topic_of(run.pop.topic, run.pop.group, kind)
            at = self._parts.pop_positions.next_offset(run.pop.group, topic, queue_id) or 0
            run.rest += max(0, self._store.reads.max_offset(topic, queue_id) - at)
        if run.count:
            run.has_ended = True
            self._end(run)  # its time may end before the pop checkpoints are synced: one answer is enough
            if run.pop.on_found is not None:
                run.pop.on_found(run.size)
            self._store.confirmation.when_confirmed(run.log_end, partial(self._answer_found, run))
        elif run.refused is not None:
            self._answer_refused(run)
        elif run.no_room is not None:
            self._end(run)
            run.pop.answer(PopResult(PopEnd.NO_ROOM, text=run.no_room))
        elif run.peeks:
            self._answer_nothing(run)
        elif run.parked is None:
            self._wait(run)
        else:
            run.parked.is_reading = False

    def _end(self, run: Run) -> None:
        if run.parked is not None:
            self._read_on.pop(run.parked, None)
            self._parts.parked_pops.remove(run.parked)

    def _wait(self, run: Run) -> None:
        """Park a pop that found nothing."""
        pop = run.pop
        if pop.deadline_ms <= self._parts.clock():
            self._answer_nothing(run)
        elif not pop.channel.closed:
            if not self.waiting.park(pop):
                self._answer_nothing(run, PopEnd.FULL)
            elif run.turns > 1 and self._has_message(pop):
                self.waiting.wake([pop.line])  # it came before the queues were watched

    def _answer_found(self, run: Run, status: PutStatus) -> None:
        if status is not PutStatus.PUT_OK:
            run.refused = status
            self._answer_refused(run)  # the messages come again when their time is over
            return
        run.pop.answer(run.result(PopEnd.FOUND))
        if run.rest:
            self.waiting.wake([run.pop.line, (*run.pop.line[:2], ALL_QUEUES)])

    def _answer_refused(self, run: Run) -> None:
        """Answer a pop whose pop checkpoint is not stored, or not known to be synced."""
        status = run.refused or PutStatus.UNKNOWN_ERROR
        self._end(run)
        self._parts.statistics.refuse(status.name, who=run.pop.channel.remote, said=not_stored(status)[1])
        run.pop.answer(run.result(PopEnd.NOT_STORED)._replace(put=status))

    def _answer_nothing(self, run: Run, end: PopEnd = PopEnd.NOTHING) -> None:
        self._end(run)
        run.pop.answer(run.result(end))

    # Waiting

    def _has_message(self, pop: Pop) -> bool:
        """True if a queue of a pop has messages after the group's position, which the filter may reject."""
        for kind, queue_id in places_of(self._parts, pop, Draw()):
            topic = topic_of(pop.topic, pop.group, kind)
            end = self._store.reads.max_offset(topic, queue_id)
            at = self._parts.pop_positions.next_offset(pop.group, topic, queue_id)
            place = (pop.group, topic, queue_id)
            if end > (0 if at is None else at) and place not in self._reading:
                if not self._is_blocked(pop, place, self._parts.clock()):
                    return True
        return False

    def _give_up(self, parked: ParkedPop[Pop]) -> None:
        """Answer a parked pop whose time is over: with the messages of the queues that were read, or with
        none."""
        pop = parked.request
        if (run := self._read_on.get(parked)) is not None:
            if not run.is_storing:
                self._finish_early(run)
            return
        if pop.is_question:
            pop.answer(PopResult(PopEnd.NOTHING))
        else:
            self._answer_nothing(self._begin(pop, reads=False))

    def _retry(self, parked: ParkedPop[Pop]) -> None:
        """Read again for a parked pop. It is answered, or stays parked."""
        pop = parked.request
        config = self._parts.topics.get(pop.topic)
        if config is not None and config.read_queues != pop.read_queues:
            pop = parked.request = pop._replace(read_queues=config.read_queues)
        if pop.is_question:
            if may_read(self._parts, pop) and self._has_message(pop):
                self._parts.parked_pops.remove(parked)
                pop.answer(PopResult(PopEnd.FOUND))
                self.waiting.wake([pop.line])
            return
        parked.is_reading = True
        if pop.channel.paused:
            # Another pop of the group gets the message
            pop.channel.when_resumed(lambda: self._resumed(parked))
            self.waiting.wake([pop.line])
            return
        self._advance(self._begin(pop, parked))

    def _resumed(self, parked: ParkedPop[Pop]) -> None:
        parked.is_reading = False
        if parked.waiting:
            self._retry(parked)
