"""Transactional messages: halves that wait for their producer's commit or rollback
(docs/spec/store-behaviour.md section 10).

    send with TRAN_MSG ──► half, in RMQ_SYS_TRANS_HALF_TOPIC queue 0
    END_TRANSACTION    ──► commit: the message in its real queue     ┐ then an op record in
                                                                     RMQ_SYS_TRANS_OP_HALF_TOPIC
                       ──► rollback: nothing                         ┘ that names the half's queue offset
    step(now)          ──► check: a half that did not end is stored again with a count, and its producer is
                           asked

Queue and offsets are Apache's, so a store can change between the two brokers while transactions are open. Two
positions, kept as offsets of the group CID_RMQ_SYS_TRANS, state how far everything is settled. Below the half
position every half is committed, rolled back, given up or stored again. Op records below the op position name
no half above the half position. Positions are *saved* only when the log is synced as far as it was when they
moved: after a power cut a producer may be asked twice, but no half is forgotten.

A half that was stored again is recognized by its unique key. So an end that names the older copy settles the
newer one, and an end that arrives twice stores one message. Apache's broker stores two.

A round over many silent halves sends many checks. It proceeds in steps of MAX_HALVES_PER_STEP with a pause
after each, so that the loop serves other requests, and a client its other answers. If no producer of a half
reads what it was sent, the half is deferred to the next round, which starts with those. There it counts as
checked, as it does when no producer is connected.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from broker_store.broker.half_message import asked_copy, checks, given_up_copy, own_timeout_ms
from broker_store.broker.offsets import Offsets
from broker_store.broker.step_pacing import PAUSE_MS
from broker_store.broker.transaction_metrics import TransactionMetrics
from broker_store.engine.store_protocol import Store
from broker_store.formats import properties, record
from broker_store.formats.topics import HALF_TOPIC, OP_HALF_TOPIC
from broker_store.messages import GetRequest, GetResult, GetStatus, Message, PutResult

GROUP = "CID_RMQ_SYS_TRANS"
OP_TAG = "d"
MAX_HALVES_PER_OP_RECORD = 400  # about the 4,096 characters of Apache's op records
# Op records in one step, so that it takes the loop for a few milliseconds.
MAX_OP_RECORDS_PER_STEP = 64
# Halves in one step that are stored again and asked about, which takes about a millisecond. A large body
# counts as several.
MAX_HALVES_PER_STEP = 32
BODY_BYTES_PER_HALF = 8192
# Halves that need no read, in one step.
MAX_SKIPPED_PER_STEP = 2_000
RETRY_MS = 1_000


@dataclass(slots=True)
class _Move:
    """Positions that may be saved when the log is synced up to `log_end`."""

    half: int
    op: int
    log_end: int


# A half, its new copy, and where the copy is stored.
Asked = tuple[record.StoredMessage, Message, PutResult]


class Transactions:
    """The halves of one broker. All methods run on the event loop.

    `ask(asked)` sends checks to producers, for halves that were stored again, each with its new copy and the
    copy's place. `can_ask(group)` is False when a group has producers and none of them reads. `on_ready()`
    requests a step. The settings are Apache's transactionTimeOut, transactionCheckInterval,
    transactionCheckMax and fileReservedTime.
    """

    def __init__(
        self,
        store: Store,
        offsets: Offsets,
        *,
        clock: Callable[[], int],
        timeout_ms: int,
        interval_ms: int,
        max_checks: int,
        reserved_ms: int,
    ):
        self._store, self._offsets, self._clock = store, offsets, clock
        self._timeout_ms, self._interval_ms = timeout_ms, interval_ms
        self._max_checks, self._reserved_ms = max_checks, reserved_ms
        self._half = 0  # every half below is settled, or is in _passed
        self._op = 0  # op records below this name only settled halves
        self._op_read = 0
        self._passed: dict[int, int] = {}  # queue offset -> when to check it again (ms)
        # Heap of (when, queue offset); entries that differ from _passed are obsolete
        self._due: list[tuple[int, int]] = []
        self._lowest: list[int] = []  # heap of the offsets in _passed, and of some that were in it
        self._ended: set[int] = set()  # halves from _half on that have ended
        self._ending: set[int] = set()  # halves whose commit or rollback is being stored
        # unique key -> queue offset of the newest copy, for halves that were checked
        self._newest: dict[str | None, int] = {}  # a half without a key is not in it
        self._to_note: list[int] = []  # halves that ended and are in no op record yet
        self._notes: deque[tuple[int, int]] = deque()  # (offset of an op record, the highest half it names)
        self._moves: deque[_Move] = deque()
        # when the current round began; `_round_end` is where the halves ended then
        self._round_ms: int | None = None
        self._round_end = 0
        self._next_round_ms = self._retry_ms = self._pause_until_ms = 0
        self._load = 0  # halves checked since the last pause
        self._reading = False
        self.counts = {"committed": 0, "rolled_back": 0, "asked": 0, "given_up": 0, "failures": 0}
        self.metrics = TransactionMetrics(clock)
        self.ask: Callable[[list[Asked]], None] = lambda asked: None
        self.can_ask: Callable[[str], bool] = lambda group: True
        self.on_ready: Callable[[], None] = lambda: None

    def start(self) -> None:
        """Start from the saved positions; the first steps read the op records from there on."""
        self._half, self._op = self._saved(HALF_TOPIC), self._saved(OP_HALF_TOPIC)
        self._op_read = self._op
        self._next_round_ms = self._clock() + self._interval_ms

    def _saved(self, topic: str) -> int:
        low, high = self._store.reads.min_offset(topic, 0), self._store.reads.max_offset(topic, 0)
        return max(low, min(self._offsets.query(GROUP, topic, 0) or 0, high))

    # Sending and ending ---------------------------------------------------------------------------

    def find(self, queue_offset: int, done: Callable[[record.StoredMessage | None], None]) -> bool:
        """Call `done` with the half at a queue offset, None when there is none; False when `done` is called
        later, after a disk read."""

        def found(result: GetResult) -> None:
            done(record.decode(result.body) if result.status is GetStatus.FOUND else None)

        result = self._store.reads.get(GetRequest(HALF_TOPIC, 0, queue_offset, max_count=1), found)
        if result is None:
            return False
        found(result)
        return True

    def begin_end(self, half: record.StoredMessage) -> bool:
        """Begin to end a half; False when it, or the newer copy of it, has ended before."""
        current = self._newest.get(half.unique_key, half.queue_offset)
        if (
            current in self._ending
            or current in self._ended
            or (current < self._half and current not in self._passed)
        ):
            return False
        self._ending.add(current)
        return True

    def end(self, half: record.StoredMessage, *, committed: bool) -> None:
        """Note that the commit or rollback is stored; an op record follows."""
        current = self._newest.pop(half.unique_key, half.queue_offset)
        self._ending.discard(current)
        if current >= self._half:
            self._ended.add(current)
        self._passed.pop(current, None)
        self._to_note.append(current)
        self.counts["committed" if committed else "rolled_back"] += 1
        self._count(half, -1)
        if len(self._to_note) == 1:
            self.on_ready()

    def _count(self, half: record.StoredMessage, more: int) -> None:
        if topic := half.properties.get(properties.REAL_TOPIC):
            self.metrics.add(topic, more)

    def abandon_end(self, half: record.StoredMessage) -> None:
        """Let the half wait on, because its end could not be stored."""
        self._ending.discard(self._newest.get(half.unique_key, half.queue_offset))

    def lateness(self, half: record.StoredMessage) -> tuple[int, int] | None:
        """Return the half's age and its own timeout (ms) when it is older; then only the answer to a check is
        valid."""
        own_ms, age_ms = own_timeout_ms(half), self._clock() - half.born_timestamp
        return (age_ms, own_ms) if own_ms is not None and age_ms > own_ms else None

    def prepared(self, topic: str) -> None:
        """Count a half that was stored, by its producer or because one that was given up is resumed."""
        self.metrics.add(topic, 1)

    def note(self) -> bool:
        """Write op records for all halves that ended; False when the store refuses one."""
        while self._to_note:
            named = self._to_note[:MAX_HALVES_PER_OP_RECORD]
            body = "".join(f"{offset}," for offset in named).encode()
            encoded = properties.encode({properties.WAIT: "true", properties.TAGS: OP_TAG})
            result = self._store.appender.put(
                Message(OP_HALF_TOPIC, 0, body, encoded, born_timestamp=self._clock())
            )
            if not result.ok:
                self.counts["failures"] += 1
                return False
            del self._to_note[: len(named)]
            if result.queue_offset == self._op_read:
                self._op_read += 1
                self._notes.append((result.queue_offset, max(named)))
        return True

    # Steps ----------------------------------------------------------------------------------------

    def step(self, now_ms: int) -> int | None:
        """Write op records for what ended, read op records, check waiting halves.

        Returns when to call again (ms), None while a read is under way.
        """
        if self._reading:
            return None
        if self._retry_ms > now_ms:
            return self._retry_ms
        if not self.note():
            return self._later(now_ms)
        if self._op_read < self._store.reads.max_offset(OP_HALF_TOPIC, 0):
            return self._read(OP_HALF_TOPIC, self._op_read, MAX_OP_RECORDS_PER_STEP, now_ms, self._take_ops)
        if self._pause_until_ms > now_ms:
            return self._pause_until_ms
        if self._round_ms is None:
            if now_ms < self._next_round_ms:
                return self._next_round_ms
            self._round_ms, self._round_end = now_ms, self._store.reads.max_offset(HALF_TOPIC, 0)
        if not self._skip():
            return now_ms
        if due := self._due_run():
            return self._read(
                HALF_TOPIC,
                due[0],
                len(due),
                now_ms,
                lambda result, now_ms: self._take_passed(due, result, now_ms),
            )
        if self._half < self._round_end:
            return self._read(HALF_TOPIC, self._half, MAX_HALVES_PER_STEP, now_ms, self._take_halves)
        return self._end_round(now_ms)

    def _skip(self) -> bool:
        """Skip halves that ended; False when there are more than one step may skip."""
        for _ in range(MAX_SKIPPED_PER_STEP):
            if self._half in self._ended:
                self._ended.discard(self._half)
                self._half += 1
            elif self._due and self._passed.get(self._due[0][1]) != self._due[0][0]:
                heapq.heappop(self._due)
            elif self._lowest and self._lowest[0] not in self._passed:
                heapq.heappop(self._lowest)
            else:
                return True
        return False

    def _due_run(self) -> list[int]:
        """Return consecutive offsets of halves to be checked again in this round, so that one read has them
        all."""
        run: list[int] = []
        assert self._round_ms is not None  # a round has begun
        while self._due and self._due[0][0] <= self._round_ms and len(run) < MAX_HALVES_PER_STEP:
            due_ms, offset = self._due[0]
            if self._passed.get(offset) == due_ms:
                if run and offset != run[-1] + 1:
                    break
                run.append(offset)
            heapq.heappop(self._due)
        return run

    def _pass_over(self, offset: int, due_ms: int) -> None:
        """Check a half again, not before `due_ms`."""
        if offset not in self._passed:
            heapq.heappush(self._lowest, offset)
        self._passed[offset] = due_ms
        heapq.heappush(self._due, (due_ms, offset))

    def _read(
        self, topic: str, offset: int, count: int, now_ms: int, take: Callable[[GetResult, int], int]
    ) -> int | None:
        def arrived(result: GetResult) -> None:
            self._reading = False
            take(result, self._clock())
            self.on_ready()

        result = self._store.reads.get(GetRequest(topic, 0, offset, max_count=count), arrived)
        if result is None:
            self._reading = True
            return None
        return take(result, now_ms)

    def _take_ops(self, result: GetResult, now_ms: int) -> int:
        if result.status is not GetStatus.FOUND:
            return self._go_on_at("_op_read", result, now_ms)
        for stored in record.decode_all(result.body, check_crc=False):
            # Apache's 4.9 names one half, without a comma.
            named = [
                int(text)
                for text in stored.body.decode("ascii", "replace").split(",")
                if text.isdecimal() and len(text) < 19
            ]
            self._ended.update(offset for offset in named if offset >= self._half)
            self._notes.append((stored.queue_offset, max(named, default=-1)))
            self._op_read = stored.queue_offset + 1
        return now_ms

    def _go_on_at(self, position: str, result: GetResult, now_ms: int) -> int:
        """Skip records that are gone or damaged; repeat a read later that made no progress (the readers are
        busy)."""
        following = result.next_offset + (result.status is GetStatus.MESSAGE_DAMAGED)
        if following <= getattr(self, position):
            return self._later(now_ms)
        setattr(self, position, following)
        return now_ms

    def _take_halves(self, result: GetResult, now_ms: int) -> int:
        if result.status is not GetStatus.FOUND:
            return self._go_on_at("_half", result, now_ms)
        halves: list[record.StoredMessage] = []
        following = self._half
        for stored in record.decode_all(result.body, check_crc=False):
            offset = stored.queue_offset
            if offset >= self._round_end:
                break
            if offset not in self._ended:
                due_ms = self._due_ms(stored)
                if due_ms <= now_ms:
                    halves.append(stored)
                elif own_timeout_ms(stored) is None:
                    self._round_end = offset  # this half is too young, and so are all after it
                    break
                else:
                    self._pass_over(offset, max(due_ms, now_ms + RETRY_MS))
            following = offset + 1
        self._check(halves, now_ms, patient=True)
        self._ended.difference_update(range(self._half, following))
        self._half = following
        return self._paced(now_ms)

    def _take_passed(self, due: list[int], result: GetResult, now_ms: int) -> int:
        for offset in due:
            if offset in self._passed:
                heapq.heappush(self._due, (self._passed[offset], offset))  # until it is settled below
        following = result.next_offset + (result.status is GetStatus.MESSAGE_DAMAGED)
        if following <= due[0]:
            return self._later(now_ms)
        stored = record.decode_all(result.body, check_crc=False) if result.status is GetStatus.FOUND else []
        halves = {half.queue_offset: half for half in stored}
        waiting = [offset for offset in due if offset in self._passed and offset < following]
        for offset in waiting:
            if offset not in halves:
                del self._passed[offset]  # deleted with the log's oldest files, or damaged
        self._check([halves[offset] for offset in waiting if offset in halves], now_ms, patient=False)
        return self._paced(now_ms)

    def _paced(self, now_ms: int) -> int:
        """Return when to continue: after a pause when enough halves were checked."""
        if self._load < MAX_HALVES_PER_STEP:
            return now_ms
        self._load = 0
        self._pause_until_ms = now_ms + PAUSE_MS
        return self._pause_until_ms

    def _due_ms(self, half: record.StoredMessage) -> int:
        own_ms = own_timeout_ms(half)
        return half.born_timestamp + (self._timeout_ms if own_ms is None else own_ms)

    def _check(self, halves: list[record.StoredMessage], now_ms: int, *, patient: bool) -> None:
        """Ask about halves, or give them up; those that must be tried again are deferred.

        With `patient` a half of a producer that does not read is deferred to the next round.
        """
        again: list[tuple[record.StoredMessage, Message, bool]] = []
        keys: set[str] = set()
        for half in halves:
            offset, unique_key = half.queue_offset, half.unique_key
            if offset in self._ending:
                self._pass_over(offset, now_ms + RETRY_MS)
                continue
            if unique_key in keys or self._newest.get(unique_key, offset) > offset:
                self._passed.pop(offset, None)  # a newer copy of it is checked
                continue
            given_up = checks(half) >= self._max_checks or now_ms - half.store_timestamp > self._reserved_ms
            if given_up:
                copy = given_up_copy(half)
            elif patient and not self.can_ask(half.properties.get(properties.PRODUCER_GROUP, "")):
                assert self._round_ms is not None  # only a round is patient
                self._pass_over(offset, self._round_ms + self._interval_ms)
                continue
            else:
                copy = asked_copy(half)
            if unique_key:
                keys.add(unique_key)
            self._load += 1 + len(half.body) // BODY_BYTES_PER_HALF
            again.append((half, copy, given_up))
        if again:
            self._store_again(again, now_ms)

    def _store_again(self, again: list[tuple[record.StoredMessage, Message, bool]], now_ms: int) -> None:
        asked: list[Asked] = []
        results = self._store.appender.put_many([copy for _, copy, _ in again])
        for (half, copy, given_up), result in zip(again, results, strict=True):
            if not result.ok:
                self.counts["failures"] += 1
                self._pass_over(half.queue_offset, now_ms + RETRY_MS)
                continue
            self.counts["given_up" if given_up else "asked"] += 1
            self._passed.pop(half.queue_offset, None)
            self._newest.pop(half.unique_key, None)
            if given_up:
                self._count(half, -1)
            else:
                if half.unique_key:
                    self._newest[half.unique_key] = result.queue_offset
                asked.append((half, copy, result))
        self.ask(asked)

    def _later(self, now_ms: int) -> int:
        self._retry_ms = now_ms + RETRY_MS
        return self._retry_ms

    def _end_round(self, now_ms: int) -> int:
        assert self._round_ms is not None  # a round has begun
        self._next_round_ms = max(self._round_ms + self._interval_ms, now_ms)
        self._round_ms = None
        half = self._lowest[0] if self._lowest else self._half
        while self._notes and self._notes[0][1] < half:
            self._op = self._notes.popleft()[0] + 1
        self._moves.append(_Move(half, self._op, self._store.log.wrote))
        return self._next_round_ms

    # State ----------------------------------------------------------------------------------------

    def settle(self, synced: int) -> None:
        """Commit the positions of GROUP as far as a log synced up to `synced` allows; the owner of the
        offsets saves them."""
        while self._moves and self._moves[0].log_end <= synced:
            move = self._moves.popleft()
            self._offsets.commit(GROUP, HALF_TOPIC, 0, move.half, is_own=True)
            self._offsets.commit(GROUP, OP_HALF_TOPIC, 0, move.op, is_own=True)

    def facts(self) -> dict:
        """Return how many halves wait for their end, the positions of the checks, and what was done since the
        start.

        `waiting` is None after a start until the op records are read, which name the halves that ended.
        """
        waiting = (
            self._store.reads.max_offset(HALF_TOPIC, 0) - self._half - len(self._ended) + len(self._passed)
        )
        return {
            "waiting": waiting if self._knows_ended() else None,
            "half_offset": self._half,
            "op_offset": self._op,
            **self.counts,
        }

    def waits(self, queue_offset: int) -> bool | None:
        """True if the half at a queue offset waits for its end; None while `facts` has no number.

        A half that was checked is not waiting: its newer copy is, at another offset.
        """
        if not self._knows_ended():
            return None
        return queue_offset in self._passed or (
            queue_offset >= self._half and queue_offset not in self._ended
        )

    def waiting_offsets(self, count: int) -> list[int] | None:
        """Return the queue offsets of the first `count` waiting halves; None while `facts` has no number."""
        if not self._knows_ended():
            return None
        found = heapq.nsmallest(count, self._passed)
        for offset in range(self._half, self._store.reads.max_offset(HALF_TOPIC, 0)):
            if len(found) >= count:
                break
            if offset not in self._ended:
                found.append(offset)
        return found

    def _knows_ended(self) -> bool:
        return self._op_read >= self._store.reads.max_offset(OP_HALF_TOPIC, 0)
