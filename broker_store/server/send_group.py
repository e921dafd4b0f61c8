"""The sends of one turn of the loop, over all connections, stored in one call.

    handlers ──► SendGroup.add      … of this turn
                 SendGroup.flush ──► store.appender.put_many ──► kernels/append.py
                                 ──► the answers, when the store has confirmed `log_end`

With SYNC_FLUSH the answers of a group wait together until the log is synced after its last record. A message
with WAIT=false waits too, because nothing may be shown or acknowledged that a power cut can take back.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from broker_store.broker import flow
from broker_store.broker.statistics import Statistics
from broker_store.config.broker import BrokerSettings
from broker_store.config.store import StoreSettings
from broker_store.engine.log.write_path import Lap
from broker_store.engine.store_protocol import Store
from broker_store.formats import record
from broker_store.formats.message_id import host_text
from broker_store.messages import Message, PutResult, PutStatus
from broker_store.protocol.codes import RequestCode, ResponseCode

log = logging.getLogger(__name__)

# More than this in one group would hold up everything else on the loop; the rest follows in the next turn.
MAX_GROUP_MESSAGES = 2_000
# A turn of the loop may make files of new queues; the other messages of such queues come in the next turns
MAX_FILES_S = 0.01

Done = Callable[[Any, PutResult], None]
# (message, whether its body is a chain of messages, function for its result, first argument of that, time of
# the turn in which it came or None if it may wait for any time)
_Entry = tuple[Message, bool, Done, Any, float | None]

# status -> (response code, remark). The four that count as sent have none.
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
    """The messages of this turn of the loop. `add` is for every writer on the loop: sends, REST,
    send-back."""

    def __init__(
        self,
        store: Store,
        statistics: Statistics,
        settings: BrokerSettings,
        store_settings: StoreSettings,
        *,
        seconds: Callable[[], float] = time.monotonic,
    ):
        self._store = store
        self._seconds = seconds
        self._statistics = statistics
        self._put_times = statistics.put_times
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wait_limit_ms = flow.WaitLimits(settings).limit_ms(RequestCode.SEND_MESSAGE)
        self._busy_limit_ms = store_settings.os_page_cache_busy_time_out_mills
        self._max_body = store_settings.max_message_size
        self._waiting: list[_Entry] = []
        self._scheduled = False
        self._turn_s = self._oldest_s = 0.0
        # How long the last that were given up had waited, and how many waited then.
        self.late_ms = self.late_among = 0
        # Called when all of a group have their results.
        self.on_answered: Callable[[], None] = lambda: None
        self._unanswered = 0
        self._write_path = store.write_path

    @property
    def pending(self) -> int:
        """Messages not stored yet, and stored ones that wait for their sync."""
        return len(self._waiting) + self._unanswered

    def add(
        self, message: Message, done: Done, context: Any = None, *, batch: bool = False, expires: bool = False
    ) -> None:
        """Store `message` when this turn is over, then call `done(context, result)`; its body is a chain for
        a batch.

        One that `expires` is given up when it has waited as long as a send may.
        """
        if not self._scheduled:
            self._scheduled = True
            loop = self._loop
            if loop is None:
                loop = self._loop = asyncio.get_running_loop()
            self._turn_s = self._oldest_s = self._seconds()
            loop.call_soon(self.flush)
        self._waiting.append((message, batch, done, context, self._turn_s if expires else None))

    async def put(self, message: Message, *, batch: bool = False) -> PutResult:
        """Store one message; for callers that can wait, with the result that a producer is sent."""
        future: asyncio.Future[PutResult] = asyncio.get_running_loop().create_future()
        self.add(message, _resolve, future, batch=batch)
        return await future

    def flush(self) -> None:
        """Store what was added, in the order it came, and answer."""
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
        times, lap = self._write_path, None
        times.groups += 1
        files = self._store.appender.new_files
        put_off, files.until_s = files.put_off, times.seconds() + MAX_FILES_S
        try:
            if times.groups < times.due:
                results = list(self._store_all(waiting))
            else:
                lap = times.begin(came_s, now_s)
                results = self._store.appender.put_apart(lambda: list(self._store_all(waiting)), lap)
        except Exception:  # each send of the group needs an answer
            log.exception("a group of %d messages could not be stored", len(waiting))
            results = [PutResult(PutStatus.UNKNOWN_ERROR) for _ in waiting]
        finally:
            files.until_s = math.inf
        if files.put_off > put_off:
            waiting, results = self._put_off(waiting, results)
            if not waiting:
                return
        self._count(waiting, results)
        log_end = max([result.log_end for result in results])
        if log_end <= self._store.confirmed:
            self._answer(waiting, results)
            answered_s = self._seconds()
            self._put_times.add(len(waiting), answered_s - came_s)
            if lap is not None:
                times.end(lap, len(waiting), None, answered_s)
        else:
            self._unanswered += len(waiting)
            self._store.confirmation.when_confirmed(
                log_end, lambda status: self._confirmed(status, waiting, results, lap, came_s)
            )

    def _give_up_late(self, waiting: list[_Entry], now_s: float, limit_ms: int, busy: bool) -> list[_Entry]:
        """Answer the sends that waited too long, or all of them when the store takes none; those that are
        left."""
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
            for _, (_, _, done, context, _) in late:
                done(context, result)
            self.on_answered()
        return left

    def _put_off(
        self, waiting: list[_Entry], results: list[PutResult]
    ) -> tuple[list[_Entry], list[PutResult]]:
        """Keep what was put off for the next turn, before all that came later; the others and their results.

        Of a queue all are put off from the first one on, so its messages stay in order.
        """
        kept: list[_Entry] = []
        answered: list[_Entry] = []
        its: list[PutResult] = []
        for entry, result in zip(waiting, results, strict=True):
            if result.status is PutStatus.PUT_OFF:
                kept.append((*entry[:4], None))  # no send is given up for a wait that is ours
            else:
                answered.append(entry)
                its.append(result)
        self._waiting[:0] = kept
        if not self._scheduled:
            self._scheduled = True
            self._turn_s = self._oldest_s = self._seconds()
            asyncio.get_running_loop().call_soon(self.flush)
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
        lap: Lap | None,
        came_s: float,
    ) -> None:
        if lap is not None:
            confirmed_s, lap.dispatch_s = self._seconds(), self._write_path.dispatch_s
        self._unanswered -= len(waiting)
        if status is not PutStatus.PUT_OK:
            confirmed = self._store.confirmed
            for result in results:
                if result.ok and result.log_end > confirmed:
                    result.status = status
        self._answer(waiting, results)
        answered_s = self._seconds()
        self._put_times.add(len(waiting), answered_s - came_s)
        if lap is not None:
            self._write_path.end(lap, len(waiting), confirmed_s, answered_s)

    def _count(self, waiting: list[_Entry], results: list[PutResult]) -> None:
        totals: dict[str, list[int]] = {}
        for (message, _, _, _, _), result in zip(waiting, results):  # noqa: B905 (the hot path, lengths are equal)
            if result.status is PutStatus.PUT_OK:
                total = totals.get(message.topic)
                if total is None:
                    totals[message.topic] = [result.count, len(message.body)]
                else:
                    total[0] += result.count
                    total[1] += len(message.body)
            else:
                self._count_refusal(message, result.status)
        for topic, (messages, size) in totals.items():
            self._statistics.stored(topic, messages, size)

    def _count_refusal(self, message: Message, status: PutStatus) -> None:
        """By what the store gives as its reason; a length only where it is that which was too much."""
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
        said = (ANSWERS[status][1] or "").replace("{max_body}", str(self._max_body))
        self._statistics.refuse(
            cause,
            value=value,
            limit=limit,
            who=f"{host_text(message.born_host)} to {message.topic}",
            said=said,
            is_send=True,
        )

    def _answer(self, waiting: list[_Entry], results: list[PutResult]) -> None:
        for (_, _, done, context, _), result in zip(waiting, results):  # noqa: B905 (the hot path, lengths are equal)
            done(context, result)
        self.on_answered()


def _resolve(future: asyncio.Future[PutResult], result: PutResult) -> None:
    if not future.done():
        future.set_result(result)
