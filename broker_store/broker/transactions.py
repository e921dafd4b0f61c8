"""Transactional messages: halves that wait for their producer's word (docs/spec/store-behaviour.md section
10).

    send with TRAN_MSG ──► half, in RMQ_SYS_TRANS_HALF_TOPIC queue 0
    END_TRANSACTION    ──► commit: the message at its real place     ┐ then an op record in
                                                                     RMQ_SYS_TRANS_OP_HALF_TOPIC
                       ──► rollback: nothing                         ┘ that names the half's queue offset
    step(now)          ──► a half without a word is stored once more with a count, and its producer is asked

Queue and offsets are Apache's, so that a store may be handed over in mid-flight. Two positions, kept as
offsets of the group CID_RMQ_SYS_TRANS, say how far everything is settled: below the half position every half
is committed, rolled back, given up or stored again; op records below the op position name none above it. They
are *saved* only when the log is synced as far as it was when they moved: a power cut asks a producer twice,
and never forgets a half.

A half that was stored again is known by its unique key, so a word that names the older copy settles the newer
one, and a word that comes twice stores one message. Apache stores two.

A round over many silent halves is a storm of questions. It goes in steps of MOST_AT_ONCE with a rest after
each, so the loop has time for everybody else, and a client for its other answers. A half none of whose
producers reads what it was sent is left for the next round, which begins with those; there it counts as
asked, as it does when no producer is connected.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from broker_store.broker.offsets import Offsets
from broker_store.broker.step_pacing import PAUSE_MS
from broker_store.broker.topics import CHECK_MAX_TOPIC, HALF_TOPIC, OP_HALF_TOPIC
from broker_store.broker.transaction_metrics import TransactionMetrics
from broker_store.formats import properties, record
from broker_store.messages import GetRequest, GetResult, GetStatus, Message, PutResult

GROUP = "CID_RMQ_SYS_TRANS"
CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
TRANSACTION_ID = "__transactionId__"
IMMUNITY_SECONDS = "CHECK_IMMUNITY_TIME_IN_SECONDS"
OP_TAG = "d"
HALVES_A_NOTE = 400  # about the 4,096 characters of Apache's
# At most so many op records in one step, so that a step stays within a few milliseconds.
BATCH = 64
# At most so many halves in one step, which are stored again and asked about: about a millisecond. A large
# body counts as several.
MOST_AT_ONCE = 32
BODY_BYTES_AS_ONE = 8192
# What needs no read is passed over by so many in one step.
MOST_SKIPPED = 2_000
RETRY_MS = 1_000


@dataclass(slots=True)
class _Move:
    """Positions that may be saved when the log is synced up to `log_end`."""

    half: int
    op: int
    log_end: int


# A half, its new copy and where that is stored.
Asked = tuple[record.StoredMessage, Message, PutResult]


class Transactions:
    """The halves of one broker.

    `ask(asked)` asks producers what became of halves that were stored again, each with its new copy and where
    that is; `can_ask(group)` is False when a group has producers and none of them reads; `on_ready()` wants a
    step soon. The settings are Apache's transactionTimeOut, transactionCheckInterval, transactionCheckMax and
    fileReservedTime.
    """

    def __init__(
        self,
        store,
        offsets: Offsets,
        *,
        clock: Callable[[], int],
        timeout_ms: int,
        interval_ms: int,
        most_checks: int,
        reserved_ms: int,
    ):
        self._store, self._offsets, self._clock = store, offsets, clock
        self._timeout_ms, self._interval_ms = timeout_ms, interval_ms
        self._most_checks, self._reserved_ms = most_checks, reserved_ms
        self._half = 0  # every half below is settled, or stands in _passed
        self._op = 0  # every op record below names settled halves alone
        self._op_read = 0
        self._passed: dict[int, int] = {}  # queue offset -> when to look at it again (ms)
        # Heap of (when, queue offset); what differs from _passed is out of date
        self._due: list[tuple[int, int]] = []
        self._lowest: list[int] = []  # heap of the offsets in _passed, and of some that were
        self._ended: set[int] = set()  # halves from _half on that have had their word
        self._ending: set[int] = set()  # halves whose word is being stored
        self._newest: dict[str, int] = {}  # unique key -> queue offset, of halves that were stored again
        self._to_note: list[int] = []  # halves that ended and stand in no op record yet
        self._notes: deque[tuple[int, int]] = deque()  # (op queue offset, the highest half it names)
        self._moves: deque[_Move] = deque()
        self._round_ms: int | None = None  # when the round under way began, and where the halves then ended
        self._round_end = 0
        self._next_round_ms = self._retry_ms = self._rest_ms = 0
        self._load = 0  # what was asked since the last rest
        self._reading = False
        self.counts = {"committed": 0, "rolled_back": 0, "asked": 0, "given_up": 0, "failures": 0}
        self.metrics = TransactionMetrics(clock)
        self.ask: Callable[[list[Asked]], None] = lambda asked: None
        self.can_ask: Callable[[str], bool] = lambda group: True
        self.on_ready: Callable[[], None] = lambda: None

    def start(self) -> None:
        """Take up the saved positions; the op records from there on are read by the first steps."""
        self._half, self._op = self._saved(HALF_TOPIC), self._saved(OP_HALF_TOPIC)
        self._op_read = self._op
        self._next_round_ms = self._clock() + self._interval_ms

    def _saved(self, topic: str) -> int:
        low, high = self._store.min_offset(topic, 0), self._store.max_offset(topic, 0)
        return max(low, min(self._offsets.query(GROUP, topic, 0) or 0, high))

    # Sending and ending ---------------------------------------------------------------------------

    def prepare(self, message: Message) -> None:
        """Turn a message for its topic into a half of it."""
        values = {properties.REAL_TOPIC: message.topic, properties.REAL_QUEUE_ID: str(message.queue_id)}
        unique_key = properties.get(message.properties, properties.UNIQUE_KEY)
        if unique_key:
            values[TRANSACTION_ID] = unique_key
        message.properties = properties.set_values(message.properties, values)
        message.sys_flag &= ~record.SYS_TRANSACTION_MASK
        message.topic, message.queue_id = HALF_TOPIC, 0

    def find(self, queue_offset: int, done: Callable[[record.StoredMessage | None], None]) -> bool:
        """Give `done` the half at a queue offset, None when there is none; False when that comes later, from
        the disk."""

        def found(result: GetResult) -> None:
            done(record.decode(result.body) if result.status is GetStatus.FOUND else None)

        result = self._store.get(GetRequest(HALF_TOPIC, 0, queue_offset, max_count=1), found)
        if result is None:
            return False
        found(result)
        return True

    def begin_end(self, half: record.StoredMessage) -> bool:
        """The word of the producer is here; False when the half, or the newer copy of it, has had it
        before."""
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
        """What the word asks for is stored; an op record follows."""
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
        """The word could not be stored: the half goes on waiting."""
        self._ending.discard(self._newest.get(half.unique_key, half.queue_offset))

    def lateness(self, half: record.StoredMessage) -> tuple[int, int] | None:
        """The half's age and the time its producer set it (ms), when that is over: only the answer to a
        question counts then."""
        own_ms, age_ms = _own_timeout_ms(half), self._clock() - half.born_timestamp
        return (age_ms, own_ms) if own_ms is not None and age_ms > own_ms else None

    def committed_message(self, half: record.StoredMessage) -> Message | None:
        """The message of a half as it goes to its real place; None for a half that does not say where."""
        topic, queue_id = (
            half.properties.get(properties.REAL_TOPIC),
            half.properties.get(properties.REAL_QUEUE_ID, ""),
        )
        if not topic or not queue_id.isascii() or not queue_id.isdigit():
            return None
        # As 5.5 does it: TRAN_MSG stays, the real place is where the record says.
        kept = properties.set_values(
            half.raw_properties, {properties.REAL_TOPIC: None, properties.REAL_QUEUE_ID: None}
        )
        message = _message_of(half, topic, int(queue_id), kept)
        message.sys_flag |= record.TRANSACTION_COMMIT
        message.prepared_transaction_offset = half.log_offset
        return message

    def prepared(self, topic: str) -> None:
        """A half for a topic was stored, by its producer or because one that was given up begins again."""
        self.metrics.add(topic, 1)

    def resumed(self, given_up: record.StoredMessage) -> Message:
        """A half that was given up, as it begins again."""
        return _message_of(
            given_up, HALF_TOPIC, 0, properties.set_values(given_up.raw_properties, {CHECK_TIMES: "0"})
        )

    def note(self) -> bool:
        """Write op records for all that ended; False when the store refuses."""
        while self._to_note:
            named = self._to_note[:HALVES_A_NOTE]
            body = "".join(f"{offset}," for offset in named).encode()
            told = properties.encode({properties.WAIT: "true", properties.TAGS: OP_TAG})
            result = self._store.put(Message(OP_HALF_TOPIC, 0, body, told, born_timestamp=self._clock()))
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
        """Note what ended, read op records, ask about halves that wait; when to come again (ms), None while a
        read is under way."""
        if self._reading:
            return None
        if self._retry_ms > now_ms:
            return self._retry_ms
        if not self.note():
            return self._later(now_ms)
        if self._op_read < self._store.max_offset(OP_HALF_TOPIC, 0):
            return self._read(OP_HALF_TOPIC, self._op_read, BATCH, now_ms, self._take_ops)
        if self._rest_ms > now_ms:
            return self._rest_ms
        if self._round_ms is None:
            if now_ms < self._next_round_ms:
                return self._next_round_ms
            self._round_ms, self._round_end = now_ms, self._store.max_offset(HALF_TOPIC, 0)
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
            return self._read(HALF_TOPIC, self._half, MOST_AT_ONCE, now_ms, self._take_halves)
        return self._end_round(now_ms)

    def _skip(self) -> bool:
        """Pass over what has had its word; False when there is more than a step may do."""
        for _ in range(MOST_SKIPPED):
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
        """Offsets of halves to be looked at again in this round, one behind the other, so that one read has
        them."""
        run: list[int] = []
        while self._due and self._due[0][0] <= self._round_ms and len(run) < MOST_AT_ONCE:
            due_ms, offset = self._due[0]
            if self._passed.get(offset) == due_ms:
                if run and offset != run[-1] + 1:
                    break
                run.append(offset)
            heapq.heappop(self._due)
        return run

    def _pass_over(self, offset: int, due_ms: int) -> None:
        """Look at a half again, not before a time."""
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

        result = self._store.get(GetRequest(topic, 0, offset, max_count=count), arrived)
        if result is None:
            self._reading = True
            return None
        return take(result, now_ms)

    def _take_ops(self, result: GetResult, now_ms: int) -> int:
        if result.status is not GetStatus.FOUND:
            return self._go_on_at("_op_read", result, now_ms)
        for stored in record.decode_all(result.body, check_crc=False):
            # 4.9 names one half, without a comma.
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
        """Records that are gone or damaged are passed over; a read that did not get on (the readers are busy)
        is repeated later."""
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
                elif _own_timeout_ms(stored) is None:
                    self._round_end = offset  # this one is too young, and so are all behind it
                    break
                else:
                    self._pass_over(offset, max(due_ms, now_ms + RETRY_MS))
            following = offset + 1
        self._look_at(halves, now_ms, patient=True)
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
                del self._passed[offset]  # too old to be there, or damaged
        self._look_at([halves[offset] for offset in waiting if offset in halves], now_ms, patient=False)
        return self._paced(now_ms)

    def _paced(self, now_ms: int) -> int:
        """When to go on: after a rest when enough was asked."""
        if self._load < MOST_AT_ONCE:
            return now_ms
        self._load = 0
        self._rest_ms = now_ms + PAUSE_MS
        return self._rest_ms

    def _due_ms(self, half: record.StoredMessage) -> int:
        own_ms = _own_timeout_ms(half)
        return half.born_timestamp + (self._timeout_ms if own_ms is None else own_ms)

    def _look_at(self, halves: list[record.StoredMessage], now_ms: int, *, patient: bool) -> None:
        """Ask about halves, or give them up; those that must be tried again are passed over.

        `patient`: those of a producer that does not read may wait for the next round.
        """
        again: list[tuple[record.StoredMessage, Message, bool]] = []
        keys: set[str] = set()
        for half in halves:
            offset, unique_key = half.queue_offset, half.unique_key
            if offset in self._ending:
                self._pass_over(offset, now_ms + RETRY_MS)
                continue
            if unique_key in keys or self._newest.get(unique_key, offset) > offset:
                self._passed.pop(offset, None)  # a copy of it is asked about
                continue
            checks = half.properties.get(CHECK_TIMES, "0")
            checks = int(checks) if checks.isdecimal() and len(checks) < 10 else 0
            given_up = checks >= self._most_checks or now_ms - half.store_timestamp > self._reserved_ms
            if given_up:
                copy = _message_of(half, CHECK_MAX_TOPIC, 0, half.raw_properties)
            elif patient and not self.can_ask(half.properties.get(properties.PRODUCER_GROUP, "")):
                self._pass_over(offset, self._round_ms + self._interval_ms)
                continue
            else:
                copy = _message_of(
                    half,
                    HALF_TOPIC,
                    0,
                    properties.set_values(half.raw_properties, {CHECK_TIMES: str(checks + 1)}),
                )
            if unique_key:
                keys.add(unique_key)
            self._load += 1 + len(half.body) // BODY_BYTES_AS_ONE
            again.append((half, copy, given_up))
        if again:
            self._store_again(again, now_ms)

    def _store_again(self, again: list[tuple[record.StoredMessage, Message, bool]], now_ms: int) -> None:
        asked: list[Asked] = []
        results = self._store.put_many([copy for _, copy, _ in again])
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
        self._next_round_ms = max(self._round_ms + self._interval_ms, now_ms)
        self._round_ms = None
        half = self._lowest[0] if self._lowest else self._half
        while self._notes and self._notes[0][1] < half:
            self._op = self._notes.popleft()[0] + 1
        self._moves.append(_Move(half, self._op, self._store.positions()["wrote"]))
        return self._next_round_ms

    # What is kept ---------------------------------------------------------------------------------

    def settle(self, synced: int) -> None:
        """Commit the positions of GROUP as far as a log synced up to `synced` allows; the table of offsets is
        saved by its owner."""
        while self._moves and self._moves[0].log_end <= synced:
            move = self._moves.popleft()
            self._offsets.commit(GROUP, HALF_TOPIC, 0, move.half, is_own=True)
            self._offsets.commit(GROUP, OP_HALF_TOPIC, 0, move.op, is_own=True)

    def facts(self) -> dict:
        """How many halves wait for their word, where the checks are, and what was done since the start.

        `waiting` is None after a start until the op records were read, which say who has had a word.
        """
        waiting = self._store.max_offset(HALF_TOPIC, 0) - self._half - len(self._ended) + len(self._passed)
        return {
            "waiting": waiting if self._knows_ended() else None,
            "half_offset": self._half,
            "op_offset": self._op,
            **self.counts,
        }

    def waits(self, queue_offset: int) -> bool | None:
        """Whether the half at a queue offset waits for its word; None as for `facts`. One that was asked
        about is stored again, elsewhere."""
        if not self._knows_ended():
            return None
        return queue_offset in self._passed or (
            queue_offset >= self._half and queue_offset not in self._ended
        )

    def waiting_offsets(self, count: int) -> list[int] | None:
        """Queue offsets of the first `count` halves that wait; None as for `facts`."""
        if not self._knows_ended():
            return None
        found = heapq.nsmallest(count, self._passed)
        for offset in range(self._half, self._store.max_offset(HALF_TOPIC, 0)):
            if len(found) >= count:
                break
            if offset not in self._ended:
                found.append(offset)
        return found

    def _knows_ended(self) -> bool:
        return self._op_read >= self._store.max_offset(OP_HALF_TOPIC, 0)


def _own_timeout_ms(half: record.StoredMessage) -> int | None:
    """How long the producer wants not to be asked; None when it does not say."""
    text = half.properties.get(IMMUNITY_SECONDS, "")
    return int(text) * 1000 if text.isascii() and text.isdigit() and len(text) < 10 else None


def _message_of(half: record.StoredMessage, topic: str, queue_id: int, encoded: bytes) -> Message:
    return Message(
        topic,
        queue_id,
        half.body,
        encoded,
        half.flag,
        half.sys_flag,
        half.born_timestamp,
        half.born_host,
        half.store_host,
        half.reconsume_times,
    )
