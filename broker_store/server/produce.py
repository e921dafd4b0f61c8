"""Sends: 10, 310 and 320 (docs/spec/remoting.md section 3).

All sends of one turn of the loop, over all connections, are stored together: a handler only checks and
appends to the `Group`, which hands everything to the store in one call when the turn is over, and writes the
answers, one piece for each connection. With SYNC_FLUSH the answers of a group wait together until the log is
synced behind its last record; a message with WAIT=false waits too, because nothing may be shown or
acknowledged that a power cut can take back.

The broker adds four properties to what the producer gave: MSG_REGION, CLUSTER, TRACE_ON, and UNIQ_KEY when
missing.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from broker_store.broker import flow, half_message, timer_request
from broker_store.broker.topics import (
    FORBIDDEN_TO_SEND,
    HALF_TOPIC,
    MULTI_TAG,
    PERM_WRITE,
    TIMER_TOPIC,
    TooManyTopicsError,
    TopicConfig,
)
from broker_store.engine.log.write_path import Lap
from broker_store.errors import NameError_
from broker_store.formats import properties, recall_handle, record
from broker_store.formats.message_id import UniqueId, encode_unique_id, host_text
from broker_store.formats.names import RETRY_PREFIX
from broker_store.formats.recall_handle import RecallHandle
from broker_store.messages import Message, PutResult, PutStatus
from broker_store.protocol.codes import RequestCode, ResponseCode
from broker_store.protocol.command import VERSION_WITH_MAX_TRIES, Command
from broker_store.protocol.framing import encode_frame, encode_send_answer
from broker_store.protocol.headers import SendHeader, read_send
from broker_store.server.parts import BrokerParts
from broker_store.server.transport import Channel

log = logging.getLogger(__name__)

FAQ = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
TRANSACTION_BITS = 0xC
IPV6_BITS = 0x30  # the store sets them as the hosts are
INNER_BATCH_BIT = 0x80
SPECIAL_BITS = TRANSACTION_BITS | IPV6_BITS | INNER_BATCH_BIT
# What makes a message wait, or tells how.
_ASKING = properties.any_of(
    (
        properties.TRANSACTION_PREPARED,
        properties.DELAY,
        *properties.TIMER_ASKING,
        properties.TIMER_OUT_MS,
        properties.TIMER_DELETE_KEY,
    )
)
# More than this in one group would hold up everything else on the loop; the rest follows in the next turn.
MAX_GROUP_MESSAGES = 2_000
# A turn of the loop may make files of new queues; the other messages of such queues come in the next turns
MAX_FILES_S = 0.01

Done = Callable[[Any, PutResult], None]

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


class Refusal(Exception):
    """A request that is answered with a code and a sentence and changes nothing.

    `cause` is the word for statistics; where a number decides, `value` is what was found and `limit` what may
    be.
    """

    def __init__(
        self,
        code: int,
        remark: str,
        cause: str | None = None,
        *,
        value: int | None = None,
        limit: int | None = None,
    ):
        self.code, self.remark, self.cause, self.value, self.limit = code, remark, cause, value, limit
        self.fields: dict[str, str] = {}
        super().__init__(remark)


class Group:
    """The messages of this turn of the loop. `add` is for every writer on the loop: sends, REST,
    send-back."""

    def __init__(self, parts: BrokerParts, *, seconds: Callable[[], float] = time.monotonic):
        self._store = parts.store
        self._seconds = seconds
        self._statistics = parts.statistics
        self._put_times = parts.statistics.put_times
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wait_limit_ms = flow.WaitLimits(parts.settings).limit_ms(RequestCode.SEND_MESSAGE)
        self._busy_limit_ms = parts.store_settings.os_page_cache_busy_time_out_mills
        self._max_body = parts.store_settings.max_message_size
        # Each with the time of the turn it came in, None where it may wait for any time.
        self._waiting: list[tuple[Message, bool, Done, Any, float | None]] = []
        self._scheduled = False
        self._turn_s = self._oldest_s = 0.0
        # How long the last that were given up had waited, and how many waited then.
        self.late_ms = self.late_among = 0
        # Called when all of a group have been told their results.
        self.on_answered: Callable[[], None] = lambda: None
        self._unanswered = 0
        self._write_path = parts.store.write_path

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
            if self._loop is None:
                self._loop = asyncio.get_running_loop()
            self._turn_s = self._oldest_s = self._seconds()
            self._loop.call_soon(self.flush)
        self._waiting.append((message, batch, done, context, self._turn_s if expires else None))

    async def put(self, message: Message, *, batch: bool = False) -> PutResult:
        """Store one message; for callers that can wait, with the result as the producer would be told it."""
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
        if busy or (self._wait_limit_ms is not None and now_s - self._oldest_s > self._wait_limit_ms / 1000):
            waiting = self._give_up_late(waiting, now_s, busy)
        if len(waiting) > MAX_GROUP_MESSAGES:
            waiting, self._waiting = waiting[:MAX_GROUP_MESSAGES], waiting[MAX_GROUP_MESSAGES:]
            self._oldest_s = next((entry[4] for entry in self._waiting if entry[4] is not None), now_s)
            self._turn_s = now_s
            self._scheduled = True
            self._loop.call_soon(self.flush)
        if not waiting:
            return
        times, lap = self._write_path, None
        times.groups += 1
        files = self._store.new_files
        put_off, files.until_s = files.put_off, times.seconds() + MAX_FILES_S
        try:
            if times.groups < times.due:
                results = list(self._store_all(waiting))
            else:
                lap = times.begin(came_s, now_s)
                results = self._store.put_apart(lambda: list(self._store_all(waiting)), lap)
        except Exception:  # nobody of the group may be left without an answer
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
            self._store.when_confirmed(
                log_end, lambda status: self._confirmed(status, waiting, results, lap, came_s)
            )

    def _give_up_late(self, waiting: list, now_s: float, busy: bool) -> list:
        """Answer the sends that waited too long, or all of them when the store takes none; those that are
        left."""
        limit_ms = self._busy_limit_ms if busy else self._wait_limit_ms
        came_by_s = now_s if busy else now_s - limit_ms / 1000
        late, left = [], []
        for entry in waiting:
            (late if entry[4] is not None and entry[4] <= came_by_s else left).append(entry)
        if late:
            status = PutStatus.PAGE_CACHE_BUSY_WAITED if busy else PutStatus.WAITED_TOO_LONG
            self.late_ms, self.late_among = round((now_s - late[0][4]) * 1000), len(waiting)
            value = self._store.busy_took_ms if busy else self.late_ms
            self._statistics.refuse(
                status.name,
                len(late),
                value=value,
                limit=limit_ms,
                who=host_text(late[0][0].born_host),
                is_send=True,
            )
            result = PutResult(status)
            for _, _, done, context, _ in late:
                done(context, result)
            self.on_answered()
        return left

    def _put_off(self, waiting: list, results: list[PutResult]) -> tuple[list, list[PutResult]]:
        """Keep what was put off for the next turn, before all that came later; the others and their results.

        Of a queue all are put off from the first one on, so its messages stay in order.
        """
        kept, told, its = [], [], []
        for entry, result in zip(waiting, results, strict=True):
            if result.status is PutStatus.PUT_OFF:
                kept.append((*entry[:4], None))  # no send is given up for a wait that is ours
            else:
                told.append(entry)
                its.append(result)
        self._waiting[:0] = kept
        if not self._scheduled:
            self._scheduled = True
            self._turn_s = self._oldest_s = self._seconds()
            self._loop.call_soon(self.flush)
        return told, its

    def _store_all(self, waiting: list) -> Sequence[PutResult]:
        if True not in [entry[1] for entry in waiting]:
            return self._store.put_many([entry[0] for entry in waiting])
        results: list[PutResult] = []
        for batch, entries in itertools.groupby(waiting, key=lambda entry: entry[1]):
            messages = [entry[0] for entry in entries]
            results += map(self._store.put_batch, messages) if batch else self._store.put_many(messages)
        return results

    def _confirmed(
        self, status: PutStatus, waiting: list, results: list[PutResult], lap: Lap | None, came_s: float
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

    def _count(self, waiting: list, results: list[PutResult]) -> None:
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
        blocked_by = self._store.blocked_by if status is PutStatus.SERVICE_NOT_AVAILABLE else None
        if blocked_by is not None:
            flag, value, limit = blocked_by
            cause = flag.replace("_", " ")
        elif status is PutStatus.OS_PAGE_CACHE_BUSY:
            value, limit = self._store.busy_took_ms, self._busy_limit_ms
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

    def _answer(self, waiting: list, results: list[PutResult]) -> None:
        for (_, _, done, context, _), result in zip(waiting, results):  # noqa: B905 (the hot path, lengths are equal)
            done(context, result)
        self.on_answered()


def _resolve(future: asyncio.Future[PutResult], result: PutResult) -> None:
    if not future.done():
        future.set_result(result)


class Produce:
    """The handlers of sends."""

    def __init__(self, parts: BrokerParts, group: Group):
        settings = parts.settings
        self._parts = parts
        self._group = group
        self._store = parts.store
        self._most_pending = settings.send_thread_pool_queue_capacity
        self._topic_of = parts.topics.get
        self._store_host = parts.store_host
        self._max_body = parts.store_settings.max_message_size
        self._id_prefix = (parts.store_host[0] + parts.store_host[1].to_bytes(4, "big")).hex().upper()
        self._region = settings.region_id
        self._region_fields = {"MSG_REGION": settings.region_id, "TRACE_ON": "true"}
        added = {
            properties.MESSAGE_REGION: settings.region_id,
            properties.CLUSTER: settings.broker_cluster_name,
        }
        self._added = properties.encode(
            added | {properties.TRACE_ON: "true" if settings.trace_on else "false"}
        )
        self._added_names = {properties.MESSAGE_REGION, properties.CLUSTER, properties.TRACE_ON}
        self._unique_ids = _UniqueIds(parts)
        self._answers: dict[Channel, list[bytes]] = {}
        group.on_answered = self._write_answers
        # Called with the command, its channel and the topic that a send has brought into being.
        self.on_topic_created: Callable[[Command, Channel, TopicConfig], None] = (
            lambda command, channel, config: None
        )

    def send(self, command: Command, channel: Channel) -> Command | None:
        """A send of any of the three codes."""
        try:
            if self._store.rejects_sends is not None:
                raise self._busy()
            if self._group.pending >= self._most_pending:
                raise Refusal(
                    ResponseCode.SYSTEM_BUSY,
                    flow.OVERLOADED,
                    "overload of sends",
                    value=self._group.pending,
                    limit=self._most_pending,
                )
            header = read_send(command)
            config = self._topic_of(header.topic)
            if (
                config is None
                or header.reconsume_times > 0
                or header.topic[0] == "%"
                or header.topic in FORBIDDEN_TO_SEND
            ):
                config = self._check_topic(header, config, channel, command)
            queue_id = self._check_queue(header, config, channel)
            if not command.body:
                raise Refusal(
                    ResponseCode.MESSAGE_ILLEGAL, "the message is illegal, its body is empty", "empty body"
                )
            if header.batch:
                return self._send_batch(command, channel, header, config, queue_id)
            text = header.properties
            encoded = text.encode("utf-8", "replace")
            unique_key = _unique_key(text)
            if unique_key is None:
                unique_key = self._unique_ids.next()
                encoded = properties.append(encoded, f"UNIQ_KEY\x01{unique_key}\x02".encode())
            if encoded[-1] != 2:
                encoded += b"\x02"
            # Of the names that need care all but DELAY have an underscore; most messages have one, in
            # UNIQ_KEY, and no more.
            careful = encoded.count(b"_") != 1 or b"DELAY\x01" in encoded
            if careful and (
                b"MSG_REGION\x01" in encoded or b"POP_CK\x01" in encoded or b"TRACE_ON\x01" in encoded
            ):
                encoded = self._without_ours(encoded)
            message = Message(
                header.topic,
                queue_id,
                command.body,
                encoded + self._added,
                header.flag,
                header.sys_flag
                if config.filter_type != MULTI_TAG
                else header.sys_flag | record.SYS_MULTI_TAGS,
                header.born_timestamp,
                channel.remote_host,
                self._store_host,
                header.reconsume_times,
            )
            if header.topic[0] == "%" and header.topic.startswith(RETRY_PREFIX):
                self._dead_letter_when_spent(message, header, command, channel)
            if careful or header.sys_flag & SPECIAL_BITS:
                self._check_special(message, header)
        except Refusal as refusal:
            refusal.fields = self._region_fields
            raise
        if message.topic == TIMER_TOPIC:
            handle = self._recall_handle(message, header.topic, unique_key)
            self._group.add(
                message, self._timer_stored, (command, channel, unique_key, queue_id, handle), expires=True
            )
        elif message.topic == HALF_TOPIC:
            topic = properties.get(message.properties, properties.REAL_TOPIC)
            self._group.add(
                message, self._half_stored, (command, channel, unique_key, queue_id, topic), expires=True
            )
        else:
            self._group.add(message, self._stored, (command, channel, unique_key, queue_id), expires=True)
        return None

    def _send_batch(
        self, command: Command, channel: Channel, header: SendHeader, config: TopicConfig, queue_id: int
    ) -> None:
        """The body is a chain of messages with their own properties; the header's belong to none of them."""
        if header.topic.startswith(RETRY_PREFIX):
            raise Refusal(
                ResponseCode.MESSAGE_ILLEGAL,
                f"batch request does not support retry group {header.topic}",
                "batch",
            )
        if header.sys_flag & TRANSACTION_BITS or properties.get_some(
            header.properties.encode("utf-8", "replace"), _ASKING
        ):
            raise Refusal(
                ResponseCode.MESSAGE_ILLEGAL, "a batch can be neither delayed nor transactional", "batch"
            )
        tags_flag = record.SYS_MULTI_TAGS if config.filter_type == MULTI_TAG else 0
        message = Message(
            header.topic,
            queue_id,
            command.body,
            self._added,
            header.flag,
            header.sys_flag & ~SPECIAL_BITS | tags_flag,
            header.born_timestamp,
            channel.remote_host,
            self._store_host,
            header.reconsume_times,
        )
        self._group.add(message, self._stored, (command, channel, None, queue_id), batch=True, expires=True)

    # Checks, in Apache's order

    def _check_topic(
        self, header: SendHeader, config: TopicConfig | None, channel: Channel, command: Command
    ) -> TopicConfig:
        topic = header.topic
        try:
            if topic in FORBIDDEN_TO_SEND:
                raise Refusal(
                    ResponseCode.NO_PERMISSION,
                    f"Sending message to topic[{topic}] is forbidden.",
                    "forbidden topic",
                )
            if config is None:
                config = self._create_topic(header, command, channel)
                if config is not None:
                    self.on_topic_created(command, channel, config)
        except NameError_ as error:
            raise Refusal(ResponseCode.INVALID_PARAMETER, str(error), "topic name") from None
        except TooManyTopicsError as error:
            raise Refusal(
                ResponseCode.SYSTEM_ERROR, str(error), "too many topics", value=error.value, limit=error.limit
            ) from None
        if config is None:
            raise Refusal(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic[{topic:.255}] not exist, apply first please!{FAQ}",
                "no topic",
            )
        return config

    def _create_topic(self, header: SendHeader, command: Command, channel: Channel) -> TopicConfig | None:
        topics = self._parts.topics
        if header.topic.startswith(RETRY_PREFIX):
            group = header.topic[len(RETRY_PREFIX) :]
            found = self._parts.groups.find_or_create(group, (command, channel))
            if found is None:
                raise Refusal(
                    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                    f"subscription group not exist, {group:.120} {FAQ}",
                    "no group",
                )
            return topics.ensure_retry(group, found.retry_queue_nums)
        return topics.auto_create(header.topic, header.default_topic, header.default_topic_queue_nums)

    def _check_queue(self, header: SendHeader, config: TopicConfig, channel: Channel) -> int:
        """The queue to put to: the one asked for, or any for a negative number."""
        queue_id = header.queue_id
        if not self._parts.settings.broker_permission & PERM_WRITE and config.order:
            raise Refusal(
                ResponseCode.NO_PERMISSION,
                f"the broker[{self._parts.settings.broker_ip1}] sending message is forbidden",
                "permission",
            )
        if queue_id < 0:
            return random.randrange(max(1, config.write_queues))
        if queue_id >= config.write_queues and queue_id >= config.read_queues:
            raise Refusal(
                ResponseCode.INVALID_PARAMETER,
                f"request queueId[{queue_id}] is illegal, {config.describe()} Producer: {channel.remote}",
                "queue id",
                value=queue_id,
                limit=config.queues - 1,
            )
        return queue_id

    def _check_special(self, message: Message, header: SendHeader) -> None:
        """A half waits for its producer's word, a message with a delay level or a time of delivery for
        that."""
        if header.sys_flag & INNER_BATCH_BIT:
            raise Refusal(
                ResponseCode.MESSAGE_ILLEGAL, "inner batches are not supported by this broker", "inner batch"
            )
        message.sys_flag &= ~IPV6_BITS
        encoded = message.properties
        if not (
            header.sys_flag & TRANSACTION_BITS
            or b"TRAN_MSG\x01" in encoded
            or b"TIMER_" in encoded
            or b"DELAY\x01" in encoded
        ):
            return
        pairs = properties.get_some(encoded, _ASKING)
        level = delay_level(pairs)
        half = pairs.get(properties.TRANSACTION_PREPARED, "").lower() == "true"
        if half and not (header.reconsume_times > 0 and level > 0):
            if self._parts.settings.reject_transaction_message:
                remark = (
                    f"the broker[{self._parts.settings.broker_ip1}] sending transaction message is forbidden"
                )
                raise Refusal(ResponseCode.NO_PERMISSION, remark, "transaction")
            half_message.prepare(message)
            return
        if header.sys_flag & TRANSACTION_BITS:
            remark = (
                "the transaction bits of the system flag need TRAN_MSG: the broker sets what a commit carries"
            )
            raise Refusal(ResponseCode.MESSAGE_ILLEGAL, remark, "transaction")
        make_wait(self._parts, message, pairs)

    def _dead_letter_when_spent(
        self, message: Message, header: SendHeader, command: Command, channel: Channel
    ) -> None:
        """A consumer that could not send back sends to the retry topic itself; after too many tries it goes
        to the DLQ.

        One that holds queue locks consumes in order and tries again by itself: what it gives up is given up
        at once.
        """
        group_name = header.topic[len(RETRY_PREFIX) :]
        group = self._parts.groups.find_or_create(group_name, (command, channel))
        if group is None:
            raise Refusal(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group not exist, {group_name:.120} {FAQ}",
                "no group",
            )
        most = group.max_tries(
            header.max_reconsume_times if command.version >= VERSION_WITH_MAX_TRIES else None
        )
        if header.reconsume_times > most or self._parts.locks.held(group_name, self._parts.clock()):
            try:
                topic = self._parts.topics.ensure_dead_letter(group_name)
            except TooManyTopicsError as error:
                raise Refusal(
                    ResponseCode.SYSTEM_ERROR,
                    str(error),
                    "too many topics",
                    value=error.value,
                    limit=error.limit,
                ) from None
            message.topic, message.queue_id = topic.name, 0
            message.properties = properties.set_values(message.properties, {properties.DELAY: "-1"})

    def _without_ours(self, encoded: bytes) -> bytes:
        """The properties without those the broker is about to add, as consumers send them back with a
        message."""
        gone = dict.fromkeys(self._added_names | {properties.POP_CHECKPOINT})
        return properties.set_values(encoded, gone)

    # Answers

    def _busy(self) -> Refusal:
        """Why no send is looked at now: a slave takes none, and the disk of a busy page cache is to get on
        first."""
        if self._store.rejects_sends == "slave":
            return Refusal(ResponseCode.SYSTEM_BUSY, flow.REJECTED, "slave")
        limit_ms = self._parts.store_settings.os_page_cache_busy_time_out_mills
        return Refusal(
            ResponseCode.SYSTEM_BUSY,
            flow.REJECTED,
            "page cache busy",
            value=self._store.busy_took_ms,
            limit=limit_ms,
        )

    def _recall_handle(self, message: Message, topic: str, unique_key: str) -> str | None:
        """What the producer of a timer message may recall it by; None for one that a consumer gave back."""
        if topic.startswith(RETRY_PREFIX):
            return None
        time_ms = int(properties.get(message.properties, properties.TIMER_OUT_MS)) + 1
        return recall_handle.encode(RecallHandle(topic, self._parts.broker_name, str(time_ms), unique_key))

    def _timer_stored(
        self, context: tuple[Command, Channel, str, int, str | None], result: PutResult
    ) -> None:
        command, channel, unique_key, queue_id, handle = context
        if handle is None or result.status not in SENT:
            self._stored(context[:4], result)
        elif not command.is_oneway and not channel.closed:
            code = 0 if result.status is PutStatus.PUT_OK else int(ANSWERS[result.status][0])
            message_id = f"{self._id_prefix}{result.log_offset:016X}"
            frame = encode_send_answer(
                command,
                message_id,
                queue_id,
                result.queue_offset,
                unique_key,
                self._region,
                code,
                recall_handle=handle,
            )
            self._answers.setdefault(channel, []).append(frame)

    def _half_stored(self, context: tuple[Command, Channel, str | None, int, str], result: PutResult) -> None:
        if result.status in SENT:
            self._parts.transactions.prepared(context[4])
        self._stored(context[:4], result)

    def _stored(self, context: tuple[Command, Channel, str | None, int], result: PutResult) -> None:
        command, channel, unique_key, queue_id = context
        if command.flag & 2 or channel.closed:
            return
        if result.status in SENT:
            if result.log_offsets and len(result.log_offsets) > 1:
                prefix = self._id_prefix
                ids = ",".join([f"{prefix}{offset:016X}" for offset in result.log_offsets])
            else:
                ids = f"{self._id_prefix}{result.log_offset:016X}"
            code = 0 if result.status is PutStatus.PUT_OK else int(ANSWERS[result.status][0])
            frame = encode_send_answer(
                command, ids, queue_id, result.queue_offset, unique_key, self._region, code
            )
        else:
            code, remark = ANSWERS[result.status]
            if remark is not None:
                late = self._group
                remark = (
                    remark.replace("{max_body}", str(self._max_body))
                    .replace("{waited_ms}", str(late.late_ms))
                    .replace("{waiting}", str(late.late_among))
                )
            frame = encode_frame(command.answer(code, remark, dict(self._region_fields)))
        frames = self._answers.get(channel)
        if frames is None:
            self._answers[channel] = [frame]
        else:
            frames.append(frame)

    def _write_answers(self) -> None:
        """The answers of a group; each connection gets its own in one piece."""
        answers, self._answers = self._answers, {}
        for channel, frames in answers.items():
            channel.write_bytes(frames[0] if len(frames) == 1 else b"".join(frames))


def make_wait(parts: BrokerParts, message: Message, pairs: Mapping[str, str]) -> None:
    """Have a message with these properties wait for its delay level or time of delivery, if it asks for one.
    Refusal where that cannot be."""
    level = delay_level(pairs)
    if level > 0:
        parts.delay.schedule(message, level)
    elif timer_request.is_timed(pairs):
        status = parts.timer.admission.schedule(message, pairs)
        if status is not None:
            raise _timer_refusal(parts, status)


def _timer_refusal(parts: BrokerParts, status: PutStatus) -> Refusal:
    """Apache's answer to a message that the wheel does not take."""
    settings = parts.settings
    if status is PutStatus.WHEEL_TIMER_MSG_ILLEGAL:
        code = ResponseCode.MESSAGE_ILLEGAL
        remark = (
            f"timer message illegal, the delay time should not be bigger than the max delay "
            f"{settings.timer_max_delay_sec * 1000}ms; "
            "or if set del msg, the delay time should be bigger than the current time"
        )
    elif status is PutStatus.WHEEL_TIMER_FLOW_CONTROL:
        code, most = ResponseCode.SYSTEM_ERROR, settings.timer_congest_num_each_slot
        remark = (
            f"timer message is under flow control, max num limit is {most * 2} or the current value "
            f"is greater than {most} and less than {most * 2}, "
            "trigger random flow control"
        )
    else:
        code, remark = (
            ResponseCode.SYSTEM_ERROR,
            "accurate timer message is not enabled, timerWheelEnable is false",
        )
    value, limit = parts.timer.admission.refused_for
    return Refusal(code, remark, status.name, value=value, limit=limit)


def delay_level(pairs: Mapping[str, str]) -> int:
    """The delay level that a message's properties ask for, 0 for none."""
    text = pairs.get(properties.DELAY)
    if text is None:
        return 0
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


def _unique_key(text: str) -> str | None:
    """The value of UNIQ_KEY in a properties string, None when there is none."""
    at = text.find("UNIQ_KEY\x01")
    while at > 0 and text[at - 1] != "\x02":
        at = text.find("UNIQ_KEY\x01", at + 1)
    if at < 0:
        return None
    end = text.find("\x02", at + 9)
    return (text[at + 9 :] if end < 0 else text[at + 9 : end]) or None


SEND_CODES = (RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)


class _UniqueIds:
    """Unique keys for messages whose producer gave none, in the producer's own form."""

    def __init__(self, parts: BrokerParts):
        self._parts = parts
        self._process = os.getpid()
        self._loader = random.getrandbits(32)
        self._counter = itertools.count(random.getrandbits(15))
        self._address = parts.store_host[0]

    def next(self) -> str:
        month_ms = self._parts.clock() % (31 * 86_400_000)
        return encode_unique_id(
            UniqueId(self._address, self._process, self._loader, month_ms, next(self._counter))
        )
