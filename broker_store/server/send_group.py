"""The sends of one turn of the loop, of all connections, stored in one call.

    handlers ──► SendGroup.add      … during the turn
                 SendGroup.flush ──► store.appender.put_many ──► kernels/append.py
                                 ──► the answers, after the store has confirmed `log_end`

With SYNC_FLUSH the answers of a group wait together until the log is synced beyond its last record. A message
with WAIT=false waits too, because a message that a power cut can remove must be neither shown nor
acknowledged.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from broker_store.broker import flow
from broker_store.broker.buckets import SMALL
from broker_store.broker.shares import Full, Held, Holders, NoRoom, Shares, no_room
from broker_store.broker.statistics import Statistics
from broker_store.config.broker import BrokerSettings
from broker_store.config.store import StoreSettings
from broker_store.engine.log.write_path import MeasuredGroup
from broker_store.engine.store_protocol import Store
from broker_store.formats import properties, record
from broker_store.formats.message_id import host_text
from broker_store.formats.timer_log import TIMER_TOPIC
from broker_store.messages import Message, PutResult, PutStatus
from broker_store.protocol.codes import RequestCode, ResponseCode

log = logging.getLogger(__name__)

# A larger group would delay all other work of the loop. The rest is stored in the next turn.
MAX_GROUP_MESSAGES = 2_000
# Time for new files of queues in one turn of the loop. Further messages of such queues are stored in the next
# turns.
MAX_FILES_S = 0.01
_OF_TIMED = properties.any_of((properties.TIMER_OUT_MS, properties.REAL_TOPIC))
SMALL_ONE = 1 << 40
SYNC_WAIT_S = 0.005  # for those that wait until other queues are synced (`Appender.new_files`)

Context = TypeVar("Context")  # what a caller of `add` gets back with the result
# (message, True if its body is a chain of messages, function for the result, its first argument, time of the
# turn of its arrival or None if it may wait for any time)
_Entry = tuple[Message, bool, Callable[[Any, PutResult], None], Any, float | None]

# status -> (response code, remark without its numbers). The four statuses that count as sent have no remark.
ANSWERS: dict[PutStatus, tuple[int, str | None]] = {
    PutStatus.PUT_OK: (ResponseCode.SUCCESS, None),
    PutStatus.FLUSH_DISK_TIMEOUT: (ResponseCode.FLUSH_DISK_TIMEOUT, None),
    PutStatus.FLUSH_SLAVE_TIMEOUT: (ResponseCode.FLUSH_SLAVE_TIMEOUT, None),
    PutStatus.SLAVE_NOT_AVAILABLE: (ResponseCode.SLAVE_NOT_AVAILABLE, None),
    PutStatus.SERVICE_NOT_AVAILABLE: (
        ResponseCode.SERVICE_NOT_AVAILABLE,
        "service not available now. It may be caused by one of the following reasons: the broker's "
        "disk is full, "
        "messages are put to the slave, message store has been shut down, etc.",
    ),
    PutStatus.CREATE_MAPPED_FILE_FAILED: (
        ResponseCode.SYSTEM_ERROR,
        "create mapped file failed, server is busy or broken.",
    ),
    PutStatus.MESSAGE_ILLEGAL: (
        ResponseCode.MESSAGE_ILLEGAL,
        "the message is illegal, maybe msg body or properties length not matched. msg body length "
        "limit {max_body}B, "
        "msg properties length limit 32KB.",
    ),
    PutStatus.PROPERTIES_SIZE_EXCEEDED: (
        ResponseCode.MESSAGE_ILLEGAL,
        "the message is illegal, maybe msg body or properties length not matched. msg body length "
        "limit {max_body}B, "
        "msg properties length limit 32KB.",
    ),
    PutStatus.OS_PAGE_CACHE_BUSY: (ResponseCode.SYSTEM_BUSY, flow.PAGE_CACHE_BUSY),
    PutStatus.UNKNOWN_ERROR: (ResponseCode.SYSTEM_ERROR, "UNKNOWN_ERROR"),
    PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH: (ResponseCode.SYSTEM_ERROR, "in-sync replicas not enough"),
    PutStatus.PUT_TO_REMOTE_BROKER_FAIL: (
        ResponseCode.SERVICE_NOT_AVAILABLE,
        "no other master of the cluster has stored it",
    ),
    PutStatus.WAITED_TOO_LONG: (ResponseCode.SYSTEM_BUSY, flow.WAITED),
    PutStatus.PAGE_CACHE_BUSY_WAITED: (ResponseCode.SYSTEM_BUSY, flow.PAGE_CACHE_BUSY_WAITED),
}
SENT = frozenset(
    {
        PutStatus.PUT_OK,
        PutStatus.FLUSH_DISK_TIMEOUT,
        PutStatus.FLUSH_SLAVE_TIMEOUT,
        PutStatus.SLAVE_NOT_AVAILABLE,
    }
)


class SendGroup:
    """The messages of this turn of the loop. All writers on the loop use `add`: sends, REST, send-backs."""

    def __init__(
        self,
        store: Store,
        statistics: Statistics,
        settings: BrokerSettings,
        store_settings: StoreSettings,
        *,
        seconds: Callable[[], float] = time.monotonic,
        shares: Shares | None = None,
    ):
        self._store = store
        self._seconds = seconds
        self._statistics = statistics
        self._put_times = statistics.put_times
        self._histograms = statistics.histograms
        self._loop: asyncio.AbstractEventLoop | None = None
        self._settings = settings
        self.take_limit()
        self._busy_limit_ms = store_settings.os_page_cache_busy_time_out_mills
        self._max_body = store_settings.max_message_size
        self._waiting: list[_Entry] = []
        self._scheduled = False
        self._turn_s = self._oldest_s = 0.0
        # The wait of the last messages that timed out, in milliseconds, and the number of messages that
        # waited then.
        self.late_ms = self.late_among = 0
        # Called when all messages of a group have their results, with the seconds since the first one came.
        self.on_answered: Callable[[float], None] = lambda took_s: None
        self._unanswered = 0
        self._syncing: dict[int, list[_Entry]] = {}  # groups that wait for their sync, by their identity
        self.max_pending = settings.send_thread_pool_queue_capacity
        self._shares = shares or Shares()
        # From so many pending messages on, one holder may have more than its share.
        self.most_uncounted = max(1, self.max_pending * self._shares.least_percent // 100)
        self._held: Held | None = None  # of the pending messages, while there are so many
        self._write_path = store.write_path

    def take_limit(self) -> None:
        """Take the longest wait of a send from the settings."""
        self._wait_limit_ms = flow.WaitLimits(self._settings).limit_ms(RequestCode.SEND_MESSAGE)

    def remark(self, status: PutStatus) -> str | None:
        """Return the text of the answer to a message with this result; None if there is none."""
        text = ANSWERS[status][1]
        if text is None:
            return None
        return (
            text.replace("{max_body}", str(self._max_body))
            .replace("{waited_ms}", str(self.late_ms))
            .replace("{waiting}", str(self.late_among))
        )

    @property
    def pending(self) -> int:
        """Return the number of messages that are not stored yet, or wait for their sync."""
        return len(self._waiting) + self._unanswered

    def no_room_for(self, peer: str) -> NoRoom | None:
        """Return why a peer may not send another message: too many are pending, in all or of its address or
        user; None if it may."""
        pending, what = self.pending, "overload of sends"
        if pending < self.most_uncounted:
            return None
        if pending >= self.max_pending:
            return no_room(what, peer, None, pending, self.max_pending)
        full = self._full_share_of(peer)
        return None if full is None else no_room(what, peer, full, pending, self.max_pending)

    def _full_share_of(self, peer: str) -> Full | None:
        if self._held is None:
            self._held = Held(self._shares, self.max_pending)
            for entries in (self._waiting, *self._syncing.values()):
                for entry in entries:
                    self._held.take(self._holders(entry[0]))
        return self._held.full(self._shares.holders(peer))

    def _holders(self, message: Message) -> Holders:
        return self._shares.holders(host_text(message.born_host))

    def _give(self, held: Held, entries: Iterable[_Entry]) -> None:
        """Count messages that are not pending any more."""
        for entry in entries:
            held.give(self._holders(entry[0]))
        if self.pending < self.most_uncounted // 2:
            self._held = None

    def add(
        self,
        message: Message,
        done: Callable[[Context, PutResult], None],
        context: Context,
        *,
        batch: bool = False,
        expires: bool = False,
    ) -> None:
        """Store `message` at the end of this turn, then call `done(context, result)`. For a batch its body is
        a chain of messages.

        One that `expires` is refused if it waited longer than a send may.
        """
        if not self._scheduled:
            self._scheduled = True
            loop = self._loop
            if loop is None:
                loop = self._loop = asyncio.get_running_loop()
            self._turn_s = self._oldest_s = self._seconds()
            loop.call_soon(self.flush)
        self._waiting.append((message, batch, done, context, self._turn_s if expires else None))
        if self._held is not None:
            self._held.take(self._holders(message))

    async def put(self, message: Message, *, batch: bool = False) -> PutResult:
        """Store one message and return its result."""
        future: asyncio.Future[PutResult] = asyncio.get_running_loop().create_future()
        self.add(message, _resolve, future, batch=batch)
        return await future

    def flush(self) -> None:
        """Store the added messages in their order, and answer."""
        self._scheduled = False
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        came_s, now_s = self._oldest_s, self._seconds()
        busy = self._store.rejects_sends == "page_cache_busy"
        limit_ms = self._busy_limit_ms if busy else self._wait_limit_ms
        if limit_ms is not None and (busy or now_s - self._oldest_s > limit_ms / 1000):
            waiting = self._give_up_late(waiting, now_s, limit_ms, busy)
        if len(waiting) > MAX_GROUP_MESSAGES:
            waiting, self._waiting = waiting[:MAX_GROUP_MESSAGES], waiting[MAX_GROUP_MESSAGES:]
            self._oldest_s = next((entry[4] for entry in self._waiting if entry[4] is not None), now_s)
            self._turn_s = now_s
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self.flush)
        if not waiting:
            return
        times, measured = self._write_path, None
        times.groups += 1
        files = self._store.appender.new_files
        put_off, files.until_s = files.put_off, times.seconds() + MAX_FILES_S
        try:
            if times.groups < times.due:
                results = list(self._store_all(waiting))
            else:
                measured = times.begin(came_s, now_s)
                results = self._store.appender.put_measured(lambda: list(self._store_all(waiting)), measured)
        except Exception:  # each send of the group needs an answer
            log.exception("a group of %d messages could not be stored", len(waiting))
            results = [PutResult(PutStatus.UNKNOWN_ERROR) for _ in waiting]
        finally:
            files.until_s = math.inf
            waits_for_sync, files.waits_for_sync = files.waits_for_sync, False
        if files.put_off > put_off:
            wait_s = SYNC_WAIT_S if waits_for_sync else 0
            waiting, results = self._put_off(waiting, results, wait_s)
            if not waiting:
                return
        self._count(waiting, results)
        log_end = max([result.log_end for result in results])
        if log_end <= self._store.confirmation.answerable:
            self._answer(waiting, results, came_s)
            answered_s = self._seconds()
            self._put_times.add(len(waiting), answered_s - came_s)
            if measured is not None:
                times.end(measured, len(waiting), None, answered_s)
        else:
            self._unanswered += len(waiting)
            self._syncing[id(waiting)] = waiting
            self._store.confirmation.when_confirmed(
                log_end, lambda status: self._confirmed(status, waiting, results, measured, came_s)
            )

    def _give_up_late(self, waiting: list[_Entry], now_s: float, limit_ms: int, busy: bool) -> list[_Entry]:
        """Refuse the messages that waited longer than `limit_ms`, or all that expire if the page cache is
        busy. Return the others."""
        came_by_s = now_s if busy else now_s - limit_ms / 1000
        late: list[tuple[float, _Entry]] = []
        left: list[_Entry] = []
        for entry in waiting:
            came_s = entry[4]
            if came_s is not None and came_s <= came_by_s:
                late.append((came_s, entry))
            else:
                left.append(entry)
        if late:
            status = PutStatus.PAGE_CACHE_BUSY_WAITED if busy else PutStatus.WAITED_TOO_LONG
            self.late_ms, self.late_among = round((now_s - late[0][0]) * 1000), len(waiting)
            value = self._store.appender.busy_took_ms if busy else self.late_ms
            self._statistics.refuse(
                status.name,
                len(late),
                value=value,
                limit=limit_ms,
                who=host_text(late[0][1][0].born_host),
                is_send=True,
            )
            result = PutResult(status)
            if self._held is not None:
                self._give(self._held, [entry for _, entry in late])
            for _, (_, _, done, context, _) in late:
                done(context, result)
            self.on_answered(now_s - late[0][0])
        return left

    def _put_off(
        self, waiting: list[_Entry], results: list[PutResult], wait_s: float
    ) -> tuple[list[_Entry], list[PutResult]]:
        """Keep the messages that the store has put off for the next turn, or for one in `wait_s`, before all
        later ones. Return the others and their results.

        From the first one on, all messages of a queue are put off, so its order stays.
        """
        kept: list[_Entry] = []
        answered: list[_Entry] = []
        its: list[PutResult] = []
        for entry, result in zip(waiting, results, strict=True):
            if result.status is PutStatus.PUT_OFF:
                kept.append((*entry[:4], None))  # it waits for the store, so it cannot time out
            else:
                answered.append(entry)
                its.append(result)
        self._waiting[:0] = kept
        if not self._scheduled:
            self._scheduled = True
            self._turn_s = self._oldest_s = self._seconds()
            asyncio.get_running_loop().call_later(wait_s, self.flush)
        return answered, its

    def _store_all(self, waiting: list[_Entry]) -> Sequence[PutResult]:
        if True not in [entry[1] for entry in waiting]:
            return self._store.appender.put_many([entry[0] for entry in waiting])
        results: list[PutResult] = []
        for batch, entries in itertools.groupby(waiting, key=lambda entry: entry[1]):
            messages = [entry[0] for entry in entries]
            results += (
                map(self._store.appender.put_batch, messages)
                if batch
                else self._store.appender.put_many(messages)
            )
        return results

    def _confirmed(
        self,
        status: PutStatus,
        waiting: list[_Entry],
        results: list[PutResult],
        measured: MeasuredGroup | None,
        came_s: float,
    ) -> None:
        if measured is not None:
            confirmed_s, measured.dispatch_s = self._seconds(), self._write_path.dispatch_s
        self._unanswered -= len(waiting)
        del self._syncing[id(waiting)]
        if status is not PutStatus.PUT_OK:
            confirmed = self._store.confirmed
            for result in results:
                if result.ok and result.log_end > confirmed:
                    result.status = status
        self._answer(waiting, results, came_s)
        answered_s = self._seconds()
        self._put_times.add(len(waiting), answered_s - came_s)
        if measured is not None:
            self._write_path.end(measured, len(waiting), confirmed_s, answered_s)

    def _count(self, waiting: list[_Entry], results: list[PutResult]) -> None:
        # By topic: messages, bytes of bodies; SMALL_ONE for each small record, and their bytes
        totals: dict[str, list[int]] = {}
        find, ok = totals.get, PutStatus.PUT_OK
        for (message, _, _, _, _), result in zip(waiting, results):  # noqa: B905 (the hot path, lengths are equal)
            if result.status is ok:
                count, size = result.count, result.log_end - result.log_offset
                if size > SMALL or count != 1:
                    self._histograms.sizes_of(message.topic).add(size // count)
                    size = -SMALL_ONE
                total = find(message.topic)
                if total is None:
                    totals[message.topic] = [count, len(message.body), SMALL_ONE + size]
                else:
                    total[0] += count
                    total[1] += len(message.body)
                    total[2] += SMALL_ONE + size
            else:
                self._count_refusal(message, result.status)
        for topic, (messages, bodies, small) in totals.items():
            self._statistics.stored(topic, messages, bodies)
            if small:
                self._histograms.small_of(topic, small // SMALL_ONE, small % SMALL_ONE)
        if TIMER_TOPIC in totals:
            self._count_delays(waiting, results)

    def _count_delays(self, waiting: list[_Entry], results: list[PutResult]) -> None:
        """Count how long the timed messages that were stored wait."""
        for (message, _, _, _, _), result in zip(waiting, results, strict=True):
            if message.topic == TIMER_TOPIC and result.status is PutStatus.PUT_OK:
                pairs = properties.get_some(message.properties, _OF_TIMED)
                due_ms, topic = pairs.get(properties.TIMER_OUT_MS, ""), pairs.get(properties.REAL_TOPIC)
                if topic and due_ms.isascii() and due_ms.isdigit():
                    self._histograms.delayed(topic, (int(due_ms) - message.born_timestamp) // 1000)

    def _count_refusal(self, message: Message, status: PutStatus) -> None:
        """Count a refused message by the store's reason. A length is given only if it was too large."""
        cause, value, limit = status.name, None, None
        blocked_by = self._store.status.blocked_by if status is PutStatus.SERVICE_NOT_AVAILABLE else None
        if blocked_by is not None:
            flag, value, limit = blocked_by
            cause = flag.replace("_", " ")
        elif status is PutStatus.OS_PAGE_CACHE_BUSY:
            value, limit = self._store.appender.busy_took_ms, self._busy_limit_ms
        elif status is PutStatus.MESSAGE_ILLEGAL and len(message.body) > self._max_body:
            value, limit = len(message.body), self._max_body
        elif status is PutStatus.PROPERTIES_SIZE_EXCEEDED and len(message.properties) > record.MAX_PROPERTIES:
            value, limit = len(message.properties), record.MAX_PROPERTIES
        said = self.remark(status) or ""
        self._statistics.refuse(
            cause,
            value=value,
            limit=limit,
            who=f"{host_text(message.born_host)} to {message.topic}",
            said=said,
            is_send=True,
        )

    def _answer(self, waiting: list[_Entry], results: list[PutResult], came_s: float) -> None:
        if self._held is not None:
            self._give(self._held, waiting)
        for (_, _, done, context, _), result in zip(waiting, results):  # noqa: B905 (the hot path, lengths are equal)
            done(context, result)
        self.on_answered(self._seconds() - came_s)


def _resolve(future: asyncio.Future[PutResult], result: PutResult) -> None:
    if not future.done():
        future.set_result(result)
