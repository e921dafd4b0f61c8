"""Messages that were popped and not acknowledged in time come again (docs/spec/pop.md section 6).

    revive log ──► read ──► pop checkpoints in hand, with the bits of acknowledged messages
                               │ invisible time is over, and all acknowledgements of before are read
                               ▼
                            the other messages ──► pop retry topic
                                               └─► an acknowledgement in the revive log

The broker acknowledges what it stored in the retry topic. So after a crash, which may leave an older position
of the revive log, nothing of it comes again. The timer may deliver records of the last seconds before a crash
twice; for some time after a start, pop checkpoints that were finished are remembered and not read again.

The position of a queue, as a committed offset of REVIVE_GROUP, is the *last* record that is finished, as in
Apache's broker: reading goes on after it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from functools import partial

from broker_store.broker.groups import Groups
from broker_store.broker.pop.again import again, at_the_end
from broker_store.broker.pop.horizon import Horizon
from broker_store.broker.pop.in_flight import Left
from broker_store.broker.pop.log_records import NOT_AGAIN, SkippedPopRecords, read_ack, read_checkpoint
from broker_store.broker.pop.others import OTHERS_GRACE_MS, OTHERS_RETRY_MS, Fetched, PopsOfOthers
from broker_store.broker.pop.positions import PopPositions
from broker_store.broker.pop.revive_counts import ACK, CHECKPOINT
from broker_store.broker.pop.revive_log import ReviveLog
from broker_store.broker.pop.revive_queue import InHand, QueueProgress, Revived, ReviveFacts, ReviveQueue
from broker_store.broker.pop.revive_start import find_owed, remember_older
from broker_store.broker.pop.stored_records import records_of
from broker_store.broker.step_pacing import RETRY_MS
from broker_store.broker.timer import Timer
from broker_store.broker.topics import TooManyTopicsError, Topics
from broker_store.engine.store_protocol import Store
from broker_store.errors import FormatError, NameError_
from broker_store.formats import record
from broker_store.formats.names import RETRY_PREFIX, pop_retry_topic, popped_topic
from broker_store.formats.pop_records import CHECKPOINT_TAG, REVIVE_GROUP, PopAck, PopCheckpoint, PopKey
from broker_store.messages import FINAL, GetRequest, GetResult, GetStatus

# Limits of one step, so that it takes the loop for a millisecond or two. The next step continues.
MAX_READ_PER_STEP = 64
MAX_REVIVED_PER_STEP = 64
MAX_BYTES_PER_STEP = 1 << 20
# Pop checkpoints of one queue in memory, about 700 bytes each; more are read only while none of them is due.
MAX_IN_HAND = 20_000
# Of them those of other brokers. They may wait for hours, so the oldest is given up for one more.
MAX_OF_OTHERS = 10_000
# After the invisible time: an acknowledgement that is on its way then still counts.
GRACE_MS = 500
POLL_MS = 200
# Until the next attempt to read messages that could not be read from the disk.
UNREADABLE_RETRY_MS = 10_000
# So long after a start finished pop checkpoints are remembered, or longer while the timer catches up.
REMEMBER_MS = 60_000


class Revive:
    """Brings popped messages back. All methods run on the event loop, after `start`.

    `version` is that of the retry topics it creates. `on_ready()` requests a step as soon as possible.
    """

    def __init__(
        self,
        store: Store,
        timer: Timer,
        positions: PopPositions,
        revive_log: ReviveLog,
        topics: Topics,
        groups: Groups,
        *,
        clock: Callable[[], int],
        others: PopsOfOthers,
        version: int = 1,
    ):
        self._store, self._timer, self._positions, self._log = store, timer, positions, revive_log
        self._topics, self._groups, self._clock, self._version = topics, groups, clock, version
        self._others, self._horizon = others, Horizon(store, timer)
        self._skipped = SkippedPopRecords(store, NOT_AGAIN)
        self._queues: list[ReviveQueue] = []
        self._turn = 0
        self._reading = False
        self._retry_ms = 0
        self._started_ms = self._remember_until_ms = 0
        self._owed: list[tuple[PopKey, int, int]] = []  # acknowledgements that a kill prevented
        # Messages but for `invalid`, records that could not be read, and `failures`. `dropped` are gone, or
        # their topic or group is.
        self.counts = dict.fromkeys(("acknowledged", "revived", "dropped", "invalid", "failures"), 0)
        self.on_ready: Callable[[], None] = lambda: None
        self.on_revived: Callable[[Revived], None] = lambda messages: None

    @property
    def in_hand(self) -> int:
        return sum(len(queue.in_hand) for queue in self._queues)  # pop checkpoints; any thread

    # Starting -------------------------------------------------------------------------------------

    def start(self, committed: Callable[[str, str, int], int | None]) -> None:
        """Go on after the committed positions. Any thread, before the first step."""
        self._started_ms = self._clock()
        self._remember_until_ms = self._started_ms + REMEMBER_MS
        topic, reads = self._log.topic, self._store.reads
        stored = self._store.queue_ids(topic)  # an earlier run may have had more queues
        self._queues = [
            ReviveQueue(queue_id)
            for queue_id in range(max([self._log.queues, *(queue_id + 1 for queue_id in stored)]))
        ]
        for queue in self._queues:
            low, high = reads.min_offset(topic, queue.queue_id), reads.max_offset(topic, queue.queue_id)
            at = committed(REVIVE_GROUP, topic, queue.queue_id)
            queue.finished = max(low - 1, min(-1 if at is None else at, high - 1))
            queue.read = queue.finished + 1
            queue.backlog_end = high
            remember_older(self._store, self._timer, topic, queue, low, high)
        left = at_the_end(self._store, [config.name for config in self._topics.all()])
        if left:
            self._read_backlog()
            self._owed = find_owed(self._store, self._queues, left, self._retry_topic)

    def _read_backlog(self) -> None:
        """Read all records that the revive log has now. Any thread, before the first step."""
        topic = self._log.topic
        for queue in self._queues:
            number, damaged = queue.queue_id, partial(self._damaged, queue.queue_id)
            for stored in records_of(self._store, topic, number, queue.read, queue.backlog_end, damaged):
                self._take_record(queue, stored)
            queue.read = max(queue.read, queue.backlog_end)

    def _retry_topic(self, key: PopKey) -> str:
        """Return the topic in which messages of a pop checkpoint come again."""
        if key.topic.startswith(RETRY_PREFIX):
            return key.topic
        return pop_retry_topic(key.topic, key.group, version=self._version)

    @property
    def queues(self) -> int:
        """Return the number of queues of the revive log."""
        return len(self._queues)

    @property
    def backlog_is_read(self) -> bool:
        """Return whether all records are read that the revive log had at the start."""
        return all(queue.read >= queue.backlog_end for queue in self._queues)

    def facts(self) -> ReviveFacts:
        """Return what was done since the start, and how far each queue of the revive log is read."""
        queues = [
            QueueProgress(
                queue.queue_id,
                queue.finished,
                queue.read,
                self._store.reads.max_offset(self._log.topic, queue.queue_id),
                len(queue.in_hand),
                queue.next_due_ms(),
            )
            for queue in self._queues
        ]
        return ReviveFacts(**self.counts, queues=queues)

    # Steps ----------------------------------------------------------------------------------------

    def step(self, now_ms: int) -> int | None:
        """Read the revive log, and bring back what is due. Return when to call again (ms); None when
        `on_ready` will request it."""
        if self._reading:
            return None
        if self._retry_ms > now_ms:
            return self._retry_ms
        while self._owed:
            key, offset, queue_id = self._owed.pop()
            self._log.put_ack(key, [offset], queue_id, now_ms, None)
        self._log.in_flight.free_some()
        self._positions.settle(self._store.flushed)
        if not self._remembers(now_ms):
            for queue in self._queues:
                queue.remembered.clear()
        self._horizon.advance(now_ms)
        self._read_all(now_ms)
        if not self._reading and self._retry_ms <= now_ms:
            self._revive_due(now_ms)
        self._commit()
        if self._reading:
            return None
        return self._next_ms(now_ms)

    def _remembers(self, now_ms: int) -> bool:
        """True while the timer may deliver records again that it had delivered before the start."""
        return now_ms < self._remember_until_ms or self._horizon.reached_ms < self._started_ms

    def _next_ms(self, now_ms: int) -> int:
        if self._retry_ms > now_ms:
            return self._retry_ms
        if self._log.in_flight.has_forgotten:
            return now_ms
        next_ms = now_ms + POLL_MS
        for queue in self._queues:
            if self._may_read(queue, now_ms) or self._is_due(queue, now_ms):
                return now_ms
            if queue.due:
                next_ms = min(next_ms, max(now_ms + 1, queue.due[0][0] + GRACE_MS + 1))
        return next_ms

    # Reading --------------------------------------------------------------------------------------

    def _may_read(self, queue: ReviveQueue, now_ms: int) -> bool:
        end = self._store.reads.max_offset(self._log.topic, queue.queue_id)
        return queue.read < end and (len(queue.in_hand) < MAX_IN_HAND or not self._is_due(queue, now_ms))

    def _read_all(self, now_ms: int) -> None:
        """Read some records of each queue in turn."""
        left = MAX_READ_PER_STEP
        queues = self._queues[self._turn :] + self._queues[: self._turn]
        for queue in queues:
            while left > 0 and self._may_read(queue, now_ms):
                begin = queue.read
                result = self._store.reads.get(
                    GetRequest(self._log.topic, queue.queue_id, begin, max_count=left),
                    partial(self._arrived, queue),
                )
                if result is None:
                    self._reading = True
                    return
                self._take_records(queue, result, now_ms)
                if self._retry_ms > now_ms:
                    return
                left -= max(1, queue.read - begin)
            if queue.read >= self._store.reads.max_offset(self._log.topic, queue.queue_id):
                queue.complete_ms = self._horizon.reached_ms
            if left <= 0:
                self._turn = (queue.queue_id + 1) % len(self._queues)
                return

    def _arrived(self, queue: ReviveQueue, result: GetResult) -> None:
        self._reading = False
        self._take_records(queue, result, self._clock())
        self.on_ready()

    def _take_records(self, queue: ReviveQueue, result: GetResult, now_ms: int) -> None:
        if result.status is not GetStatus.FOUND:
            following = result.skipped_to(queue.read)
            if following is None:
                self._retry_ms = now_ms + RETRY_MS
                return
            if result.status is GetStatus.MESSAGE_DAMAGED:
                self._damaged(queue.queue_id, result.next_offset)
            queue.read = following
            return
        for stored in record.decode_all(result.body, check_crc=False):
            self._take_record(queue, stored)
        queue.read = result.next_offset

    def _damaged(self, queue_id: int, queue_offset: int) -> None:
        self.counts["invalid"] += 1
        self._skipped.damaged(self._log.topic, queue_id, queue_offset)

    def _take_record(self, queue: ReviveQueue, stored: record.StoredMessage) -> None:
        try:
            if stored.tags == CHECKPOINT_TAG:
                self._take_checkpoint(queue, stored, read_checkpoint(stored))
            else:
                self._take_ack(queue, stored, read_ack(stored))
        except FormatError as error:
            self.counts["invalid"] += 1
            self._skipped.invalid(stored, error)

    def _take_checkpoint(
        self, queue: ReviveQueue, stored: record.StoredMessage, checkpoint: PopCheckpoint
    ) -> None:
        self._log.counts.was_read(self._groups, checkpoint.key, CHECKPOINT, queue.queue_id)
        if checkpoint.identity in queue.remembered or queue.holds(checkpoint):
            return
        queue.remove(checkpoint.key)
        is_of_other = self._others.has_popped(checkpoint.key, stored)
        if is_of_other and queue.of_others >= MAX_OF_OTHERS:
            self._give_up(queue, next(held for held in queue.in_hand.values() if held.is_of_other))
        held = InHand(checkpoint, stored, is_of_other=is_of_other)
        queue.add(held)
        deleted_before = self._positions.deleted_before(checkpoint.key.group, checkpoint.key.topic)
        if stored.queue_offset < queue.backlog_end and held.log_end >= deleted_before and not is_of_other:
            self._log.in_flight.found(checkpoint, queue.queue_id)
        due_ms = checkpoint.revive_ms + (OTHERS_GRACE_MS if is_of_other else 0)
        heapq.heappush(queue.due, (due_ms, stored.queue_offset, checkpoint.key))

    def _take_ack(self, queue: ReviveQueue, stored: record.StoredMessage, ack: PopAck) -> None:
        self._log.counts.was_read(self._groups, ack.key, ACK, queue.queue_id)
        held = queue.in_hand.get(ack.key)
        if held is None:  # it came too late, or its pop checkpoint was finished before
            if self._others.has_sent(ack.key, stored):
                queue.keep_early(ack)
            return
        before = held.acked.bit_count()
        for offset in ack.offsets:
            held.mark(offset)
        self._log.in_flight.left(ack.key, ack.offsets, queue.queue_id, None)
        self.counts["acknowledged"] += held.acked.bit_count() - before
        if held.is_done:
            self._finish(queue, held)

    def _finish(self, queue: ReviveQueue, held: InHand) -> None:
        key = held.checkpoint.key
        queue.remove(key)
        self._log.in_flight.finished(key)
        if self._remembers(self._clock()):
            queue.remembered.add(held.checkpoint.identity)

    # Bringing back --------------------------------------------------------------------------------

    def _is_due(self, queue: ReviveQueue, now_ms: int) -> bool:
        """True if a pop checkpoint is over, and every acknowledgement of before is read."""
        due_ms = queue.next_due_ms()
        if due_ms is None or due_ms + GRACE_MS > now_ms:
            return False
        if queue.read < queue.backlog_end and len(queue.in_hand) < MAX_IN_HAND:
            return False  # its acknowledgements may be among the records of before the start
        # A record with a later delivery time is no proof: the timer may have enqueued an acknowledgement late
        return due_ms + GRACE_MS <= queue.complete_ms

    def _revive_due(self, now_ms: int) -> None:
        left, size = MAX_REVIVED_PER_STEP, 0
        for queue in self._queues:
            while left > 0 and size < MAX_BYTES_PER_STEP and self._is_due(queue, now_ms):
                held = queue.in_hand[queue.due[0][2]]
                missing = self._missing(held)
                offsets = held.left()
                if missing or not offsets:
                    self._drop(queue, held, offsets)
                    self._finish(queue, held)
                    continue
                run = _run(offsets)
                if held.is_of_other:
                    self._read_elsewhere(queue, held, run, now_ms)
                    left -= 1
                    continue
                result = self._store.reads.get(
                    GetRequest(held.checkpoint.key.topic, held.checkpoint.key.queue_id, run[0], len(run)),
                    partial(self._came, queue, held, run),
                )
                if result is None:
                    self._reading = True
                    return
                self._put_again(queue, held, run, result, now_ms)
                if self._retry_ms > now_ms:
                    return
                left -= max(1, result.count)
                size += len(result.body)

    def _read_elsewhere(self, queue: ReviveQueue, held: InHand, run: list[int], now_ms: int) -> None:
        """Read messages of a pop checkpoint at its broker, and again later until it has given them."""
        key = held.checkpoint.key
        heapq.heapreplace(queue.due, (now_ms + OTHERS_RETRY_MS, held.at, key))
        if self._others.is_too_old(held, now_ms):
            self._give_up(queue, held)
            return

        def taken(fetched: Fetched) -> None:
            if queue.in_hand.get(key) is not held:
                return
            now_ms = self._clock()
            if fetched.found:
                self._store_again(queue, held, fetched.found, now_ms)
            self._drop(queue, held, fetched.gone)
            if held.is_done:
                self._finish(queue, held)
            elif self._retry_ms <= now_ms:
                heapq.heappush(queue.due, (now_ms - GRACE_MS, held.at, key))
            self.on_ready()

        self._others.read(held, run, taken)

    def _give_up(self, queue: ReviveQueue, held: InHand) -> None:
        """Let the messages that another broker has not given come no more."""
        self._others.on_given_up(held.checkpoint.key)
        self._drop(queue, held, held.left())
        self._finish(queue, held)

    def _came(self, queue: ReviveQueue, held: InHand, run: list[int], result: GetResult) -> None:
        self._reading = False
        self._put_again(queue, held, run, result, self._clock())
        self.on_ready()

    def _missing(self, held: InHand) -> bool:
        """True if the topic or the group of a pop checkpoint was deleted, also if there is a new one of the
        name, or no group is given messages of the topic."""
        key = held.checkpoint.key
        topic = popped_topic(key.topic, key.group)
        return (
            self._topics.is_internal(topic)
            or self._topics.get(topic) is None
            or (self._topics.get(key.topic) is None and not held.is_of_other)
            or self._groups.get(key.group) is None
            or held.log_end < self._positions.deleted_before(key.group, key.topic)
        )

    def _put_again(
        self, queue: ReviveQueue, held: InHand, run: list[int], result: GetResult, now_ms: int
    ) -> None:
        """Store the messages that were read in the retry topic, or have them read again later."""
        status = result.status
        if status is GetStatus.FOUND:
            found = record.decode_all(result.body, check_crc=False)
            others = [each.queue_offset for each in found if each.log_offset >= held.log_end]
            if others:  # of a new topic: that of the pop was deleted
                self._drop(queue, held, others)
                found = [each for each in found if each.log_offset < held.log_end]
            if found:
                self._store_again(queue, held, found, now_ms)
        elif status is GetStatus.NO_MATCHED_MESSAGE:
            self._retry_ms = now_ms + RETRY_MS  # the reader threads are busy
        elif status is GetStatus.READ_FAILED:
            # The others must not wait for a place of the disk that cannot be read.
            self.counts["failures"] += 1
            heapq.heapreplace(queue.due, (now_ms + UNREADABLE_RETRY_MS, held.at, held.checkpoint.key))
        else:
            gone = run[:1]
            if status in (GetStatus.OFFSET_TOO_SMALL, GetStatus.MESSAGE_WAS_REMOVING):
                gone = [offset for offset in run if offset < result.next_offset] or gone
            elif status is not GetStatus.MESSAGE_DAMAGED:
                gone = run  # after the end of the queue: the topic was deleted, or a power cut took them
            self._drop(queue, held, gone)
        if held.is_done and held.checkpoint.key in queue.in_hand:
            self._finish(queue, held)

    def _store_again(
        self, queue: ReviveQueue, held: InHand, found: list[record.StoredMessage], now_ms: int
    ) -> None:
        key = held.checkpoint.key
        try:
            retry = self._retry_topic(key)
            if retry != key.topic:
                self._topics.ensure_pop_retry(retry)
        except TooManyTopicsError:
            self._fail(now_ms)
            return
        except NameError_:  # both names together are too long for a topic
            self._drop(queue, held, [each.queue_offset for each in found])
            return
        results = self._store.appender.put_many([again(each, retry, held.checkpoint) for each in found])
        size = 0
        stored: list[int] = []
        refused: list[int] = []
        for each, result in zip(found, results, strict=True):
            if result.status not in FINAL:
                self._fail(now_ms)
                break
            if result.ok:
                stored.append(each.queue_offset)
                size += len(each.body)
            else:
                refused.append(each.queue_offset)
        self.counts["revived"] += len(stored)
        self._leave(queue, held, stored, Left.CAME_AGAIN)
        self._drop(queue, held, refused)
        if stored or refused:
            put = self._log.put_ack(key, sorted(stored + refused), queue.queue_id, now_ms, None)
            ends = [put.log_end, *(result.log_end for result in results)]
            queue.put_end = max(queue.put_end, *ends)
        if stored:
            topic = popped_topic(key.topic, key.group)
            self.on_revived(Revived(topic, key.group, retry, len(stored), size, queue.put_end))

    def _drop(self, queue: ReviveQueue, held: InHand, offsets: Sequence[int]) -> None:
        """Note that messages of a pop checkpoint do not come again."""
        self.counts["dropped"] += len(offsets)
        self._leave(queue, held, offsets, Left.DROPPED)

    def _leave(self, queue: ReviveQueue, held: InHand, offsets: Sequence[int], why: Left) -> None:
        for offset in offsets:
            held.mark(offset)
        self._log.in_flight.left(held.checkpoint.key, offsets, queue.queue_id, why)

    def _fail(self, now_ms: int) -> None:
        self.counts["failures"] += 1
        self._retry_ms = now_ms + RETRY_MS

    # State ----------------------------------------------------------------------------------------

    def _commit(self) -> None:
        """Move the position of each queue to before its first unfinished pop checkpoint."""
        for queue in self._queues:
            first = next(iter(queue.in_hand.values()), None)
            finished = (queue.read if first is None else first.at) - 1
            if finished > queue.finished:
                queue.finished = finished
                place = (REVIVE_GROUP, self._log.topic, queue.queue_id)
                self._positions.move(place, finished, self._store.log.wrote, queue.put_end)


def _run(offsets: list[int]) -> list[int]:
    """Return the offsets from the first on that follow each other."""
    first = offsets[0]
    return [offset for number, offset in enumerate(offsets) if offset == first + number]
