"""Pulls: 11, 361 (docs/spec/remoting.md section 3, docs/spec/store-behaviour.md sections 6, 7 and 12).

A pull is checked, read and answered at once if there are messages near the log's end. A cold read is answered
later, when a reader thread of the store is done. A pull that finds nothing is parked if the client asked for
that. An arrival wakes the pulls that are parked on its queue. If the filter rejects all new messages, the
pull stays parked with a higher offset, so that a selective consumer gets no answer without a message.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable

from broker_store.broker import flow
from broker_store.broker.clients import MAX_CLIENT_ID_CHARACTERS
from broker_store.broker.offsets import TooManyOffsetsError
from broker_store.broker.parked_pulls import ParkedPull
from broker_store.broker.shares import Holders, no_room
from broker_store.formats.timer_log import TIMER_TOPIC
from broker_store.formats.topics import SCHEDULE_TOPIC
from broker_store.messages import GetRequest, GetResult, GetStatus
from broker_store.protocol import headers
from broker_store.protocol.codes import ResponseCode
from broker_store.protocol.command import Command
from broker_store.protocol.framing import pull_answer_head
from broker_store.protocol.headers import PullHeader, read_pull
from broker_store.repeated_log import RepeatedLog
from broker_store.server.channel import Channel
from broker_store.server.handler import Answer, Refusal
from broker_store.server.logical_pulls import PullOffsets, logical_pull, pull_at_other
from broker_store.server.logical_queues import LogicalQueues
from broker_store.server.parts import BrokerParts
from broker_store.server.pull import Pull
from broker_store.server.pull_checks import check_pull
from broker_store.server.pull_codes import (
    FAILED,
    FAILURES,
    NOT_FOUND,
    OFFSET_MOVED,
    RETRY_IMMEDIATELY,
    code_of,
)

# Clients ask for 15 to 20 s and stop waiting after 30 s; more than the idle limit of a connection would have
# no effect.
MAX_SUSPEND_MS = 100_000
MAX_PULL_BYTES = 256 << 10
EXPIRY_INTERVAL_S = 0.25
BUSY_RETRY_S = 0.05
# About 2 ms of work.
MAX_WAKES_PER_TURN = 150

log = logging.getLogger(__name__)

# (group, topic, queue id, client id)
BroadcastingClient = tuple[str, str, int, str]


class Consume:
    """The handler of pulls. It also parks, wakes and ends those that wait."""

    def __init__(self, parts: BrokerParts, logical_queues: LogicalQueues):
        self._parts, self._ask_other = parts, logical_queues.ask_other
        self._mapping_of = parts.static_topics.get
        self._store = parts.store
        self._arrived: dict[tuple[str, int], None] = {}
        self._woken: deque[ParkedPull[Pull]] = deque()
        self._wake_scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self.on_arrived: Callable[[tuple[str, int]], None] = lambda queue: None  # for parked pops
        self._histograms = parts.statistics.histograms
        self._loop = asyncio.get_running_loop()
        self._log = RepeatedLog(log)

    # Parked pulls

    def start(self) -> None:
        self._store.confirmation.arrival_listener = self.arrived
        self._timer = self._loop.call_later(EXPIRY_INTERVAL_S, self._expire)

    def stop(self) -> None:
        """Answer all parked pulls, because the broker stops."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for parked in self._parts.parked.take_all():
            self._answer_parked(parked)

    def arrived(self, queues: list[tuple[str, int]]) -> None:
        """Take the watched queues that have new messages. Their parked pulls are served in the next turn of
        the loop, after the senders were answered."""
        self._arrived.update(dict.fromkeys(queues))
        if not self._wake_scheduled:
            self._wake_scheduled = True
            self._loop.call_soon(self._wake)

    def _wake(self) -> None:
        """Serve the pulls that are parked on these queues, MAX_WAKES_PER_TURN in each turn, so that sends
        need not wait for thousands of consumers."""
        arrived, self._arrived = self._arrived, {}
        for queue in arrived:
            if queue[0] == SCHEDULE_TOPIC:
                self._parts.delay.on_ready()
            elif queue[0] == TIMER_TOPIC:
                self._parts.timer.on_arrival()
            self._woken.extend(self._parts.parked.waiting_on(queue))
            self.on_arrived(queue)
        for _ in range(min(len(self._woken), MAX_WAKES_PER_TURN)):
            self._retry(self._woken.popleft())
        self._wake_scheduled = bool(self._woken)
        if self._woken:
            self._loop.call_soon(self._wake)

    def _expire(self) -> None:
        self._timer = self._loop.call_later(EXPIRY_INTERVAL_S, self._expire)
        self._log.flush(time.monotonic())
        for parked in self._parts.parked.expired(self._parts.clock()):
            self._answer_parked(parked)

    def _answer_parked(self, parked: ParkedPull[Pull]) -> None:
        if not self._renew_filter(parked):
            return
        pull = parked.pull
        self._read(
            pull,
            parked.offset,
            lambda result: self._answer(pull, result, moved=parked.offset != pull.header.queue_offset),
        )

    def _has_present_filter(self, parked: ParkedPull[Pull]) -> bool:
        """Return False if the subscription of the group has changed since the pull came."""
        header, then = parked.pull.header, parked.pull.subscription
        now = self._parts.clients.subscription(header.consumer_group, header.topic)
        return (
            then is None
            or now is None
            or now is then
            or (now.expression, now.expression_type, now.class_filter)
            == (then.expression, then.expression_type, then.class_filter)
        )

    def _renew_filter(self, parked: ParkedPull[Pull]) -> bool:
        """Have a parked pull filter by the present subscription of its group. If that is another one, it
        reads from its own offset on: messages that the old one rejected may pass now. Return False if the
        pull is not allowed any more; then it is answered, and the next one is refused."""
        if self._has_present_filter(parked):
            return True
        pull = parked.pull
        parked.offset = pull.header.queue_offset
        try:
            renewed = check_pull(self._parts, pull.command, pull.header, pull.channel)
        except Refusal:
            self._parts.parked.remove(parked)
            empty = self._empty(pull.header, GetStatus.OFFSET_OVERFLOW_ONE, parked.offset)
            self._answer(pull, empty)
            return False
        parked.pull = renewed._replace(came_s=pull.came_s, has_waited=True, logical=pull.logical)
        return True

    def _retry(self, parked: ParkedPull[Pull]) -> None:
        """Read again for a parked pull. It is answered, or stays parked."""
        if parked.reading or not parked.waiting:
            return
        if not self._renew_filter(parked):
            return
        channel = parked.channel
        if channel.paused:
            parked.reading = True
            channel.when_resumed(lambda: self._resume_retry(parked))
            return
        parked.reading = True
        self._read(parked.pull, parked.offset, lambda result: self._retried(parked, result))

    def reset(self, group: str, topic: str, queue_ids: list[int]) -> None:
        """Answer the parked pulls of a group whose offsets were reset, so that its consumers get the new ones
        at once."""
        for queue_id in queue_ids:
            for parked in self._parts.parked.waiting_on((topic, queue_id)):
                pull = parked.pull
                if pull.header.consumer_group == group:
                    self._parts.parked.remove(parked)
                    offset = self._parts.offsets.take_reset(group, topic, queue_id)
                    if offset is None:
                        self._answer_parked(parked)
                    else:
                        self._answer(pull, self._empty(pull.header, GetStatus.OFFSET_RESET, offset))

    def end_pulls(self, topic: str) -> None:
        """Answer the parked pulls of a static topic whose queues may have moved to other brokers."""
        config = self._parts.topics.get(topic)
        for queue_id in range(config.queues if config else 0):
            for parked in self._parts.parked.waiting_on((topic, queue_id)):
                self._parts.parked.remove(parked)
                self._answer_parked(parked)

    def _resume_retry(self, parked: ParkedPull[Pull]) -> None:
        parked.reading = False
        self._retry(parked)

    def _retried(self, parked: ParkedPull, result: GetResult) -> None:
        parked.reading = False
        if not parked.waiting:
            return
        if not self._has_present_filter(parked):  # it changed during a cold read
            self._retry(parked)
            return
        status = result.status
        if status is GetStatus.OFFSET_FOUND_NULL:
            return
        if status in (
            GetStatus.NO_MATCHED_MESSAGE,
            GetStatus.OFFSET_OVERFLOW_ONE,
            GetStatus.NO_MESSAGE_IN_QUEUE,
        ):
            if status is GetStatus.NO_MATCHED_MESSAGE:
                parked.offset = result.next_offset
            # There may be more messages: those after the ones that were read, and those that arrived during a
            # cold read.
            if self._store.reads.max_offset(*parked.queue) > parked.offset:
                self._loop.call_soon(self._retry, parked)
            return
        self._parts.parked.remove(parked)
        self._answer(parked.pull, result)

    # Pulls

    def pull(self, command: Command, channel: Channel) -> Answer:
        header = read_pull(command)
        logical = None
        if (mapping := self._mapping_of(header.topic)) is not None:
            logical = logical_pull(mapping, command, header)
        if logical is not None:
            given, header = header, logical.header(header)
            if not logical.is_own:
                of_leader = header._replace(queue_id=logical.queue.leader.queue_id)
                check_pull(self._parts, command, of_leader, channel)
                return pull_at_other(self._ask_other, command, given, logical)
        pull = check_pull(self._parts, command, header, channel)
        if logical is not None:
            pull = pull._replace(logical=logical)
        reset = self._parts.offsets.take_reset(header.consumer_group, header.topic, header.queue_id)
        if reset is not None:
            self._answer(pull, self._empty(header, GetStatus.OFFSET_RESET, reset))
            return None
        if header.sys_flag & headers.PULL_COMMIT_OFFSET and header.commit_offset >= 0:
            self._commit(header, channel)
        client = self._broadcasting_client(pull)
        if client is not None:
            begin = self._parts.broadcast.first(
                *client, header.queue_offset, self._parts.clock(), through_proxy=_is_through_proxy(header)
            )
            if begin is not None:
                self._note_broadcast(pull, client, begin)
                self._answer(pull, self._empty(header, GetStatus.OFFSET_RESET, begin))
                return None
        self._read(pull, header.queue_offset, lambda result: self._first_result(pull, client, result))
        return None

    def _broadcasting_client(self, pull: Pull) -> BroadcastingClient | None:
        """Return the client that pulls, if its group is broadcasting and its progress is kept; else None."""
        header, parts = pull.header, self._parts
        if not parts.settings.enable_broadcast_offset_store or pull.logical is not None:
            return None
        if _is_through_proxy(header):
            client_id = header.proxy_client_id
        else:
            group = parts.clients.consumer_group(header.consumer_group)
            if (
                group is None
                or not group.broadcasting
                or group.consume_type != "CONSUME_PASSIVELY"
                or pull.channel not in group.members
            ):
                return None
            client_id = group.members[pull.channel].client_id
        if not client_id or len(client_id) > MAX_CLIENT_ID_CHARACTERS:
            return None
        return header.consumer_group, header.topic, header.queue_id, client_id

    def _note_broadcast(self, pull: Pull, client: BroadcastingClient, offset: int) -> None:
        self._parts.broadcast.note(
            *client, offset, self._parts.clock(), through_proxy=_is_through_proxy(pull.header)
        )

    def _read(self, pull: Pull, offset: int, done) -> None:
        """Read for a pull and call `done(result)`, at once or after a cold read."""
        header = pull.header
        most_bytes = (
            MAX_PULL_BYTES
            if header.max_msg_bytes is None
            else max(1, min(header.max_msg_bytes, MAX_PULL_BYTES))
        )
        request = GetRequest(
            header.topic,
            header.queue_id,
            offset,
            max(1, header.max_msg_nums),
            most_bytes,
            pull.tag_codes,
            header.consumer_group,
            pull.message_filter,
        )
        channel = pull.channel
        began_s = time.perf_counter()

        def finish(result: GetResult) -> None:
            self._parts.statistics.read(result.status is GetStatus.FOUND, time.perf_counter() - began_s)
            if result.status is GetStatus.NO_MATCHED_MESSAGE and result.next_offset == offset:
                # Nothing was read, because the reader threads are fully used. If this were answered, the
                # client would repeat its pull at once.
                channel.hold()
                self._loop.call_later(BUSY_RETRY_S, again)
            else:
                done(result)

        def again() -> None:
            if channel.paused and not channel.closed:
                channel.when_resumed(again)
                return
            channel.release()
            if not channel.closed:
                self._read(pull, offset, done)

        def read_later(result: GetResult) -> None:
            if channel.paused and not channel.closed:
                # The peer has not read its other answers. The result is dropped and read again later, then
                # from warm pages.
                channel.when_resumed(again)
                return
            channel.release()
            if not channel.closed:
                finish(result)

        result = self._store.reads.get(request, read_later)
        if result is None:
            channel.hold()
        else:
            finish(result)

    def _first_result(self, pull: Pull, client: BroadcastingClient | None, result: GetResult) -> None:
        header = pull.header
        code = code_of(result.status, header.queue_offset)
        if client is not None:
            # A client that asks for a missing offset continues at the offset of the answer.
            self._note_broadcast(
                pull, client, result.next_offset if code == OFFSET_MOVED else header.queue_offset
            )
        # The consumers of a slave go back to a master that lives, also if there is nothing to give.
        goes_back = code == NOT_FOUND and self._parts.replication.has_master
        if header.sys_flag & headers.PULL_SUSPEND and code == NOT_FOUND and not goes_back:
            settings = self._parts.settings
            suspend_ms = (
                header.suspend_timeout_ms
                if settings.long_polling_enable
                else settings.short_polling_time_mills
            )
            now_ms = self._parts.clock()
            deadline_ms = now_ms + max(0, min(suspend_ms, MAX_SUSPEND_MS))
            parked = ParkedPull(
                (header.topic, header.queue_id),
                pull.channel,
                header.queue_offset,
                deadline_ms,
                pull._replace(has_waited=True),
                holders=self._parts.shares.holders(pull.channel.remote),
            )
            if deadline_ms > now_ms and not pull.channel.closed:
                if not self._parts.parked.park(parked):
                    self._refuse_to_park(pull, parked.holders)
                elif self._store.reads.max_offset(header.topic, header.queue_id) > result.max_offset:
                    # A message arrived during a cold read, before the queue was watched.
                    self._retry(parked)
                return
        self._answer(pull, result, moved=goes_back)

    def _refuse_to_park(self, pull: Pull, holders: Holders) -> None:
        """Answer SYSTEM_BUSY, after which a client waits for some seconds; after PULL_NOT_FOUND it would pull
        again at once."""
        parked, channel = self._parts.parked, pull.channel
        full = parked.held.full(holders)
        why = no_room("parked pulls", channel.remote, full, parked.count, parked.max_parked)
        self._parts.statistics.refuse(
            why.cause, value=why.value, limit=why.limit, who=why.who, said=flow.OVERLOADED
        )
        if not pull.command.flag & 2:
            channel.write(pull.command.answer(ResponseCode.SYSTEM_BUSY, flow.OVERLOADED, {}))
            self._count(pull, ResponseCode.SYSTEM_BUSY)

    def _count(self, pull: Pull, code: int) -> None:
        self._histograms.answered_now(pull.command.code, code, pull.came_s, waited=pull.has_waited)

    def _answer(self, pull: Pull, result: GetResult, *, moved: bool = False) -> None:
        """Write the answer. `moved` means that the client should pull again at once: the offset of a parked
        pull has passed messages that the filter rejected, or the master is to answer."""
        header = pull.header
        code = code_of(result.status, header.queue_offset)
        body = result.body
        if code == 0:
            self._parts.statistics.delivered(
                header.consumer_group, header.topic, result.count, len(body), result.cold
            )
        elif moved and code == NOT_FOUND:
            code = RETRY_IMMEDIATELY
        elif code == FAILED:
            self._log.write(
                logging.ERROR,
                "failed pulls",
                time.monotonic(),
                "a pull of %s/%d at %d by group %s of %s failed: %s; `manage.py check_store` says "
                "what is damaged",
                header.topic,
                header.queue_id,
                header.queue_offset,
                header.consumer_group,
                pull.channel.remote,
                FAILURES[result.status],
            )
        self._parts.offsets.pulled(header.consumer_group, header.topic, header.queue_id, result.next_offset)
        if pull.command.flag & 2:
            return
        offsets: GetResult | PullOffsets = result
        if (logical := pull.logical) is not None:
            offsets = logical.of_result(code, result)
            code = offsets.code
        head = pull_answer_head(
            pull.command,
            code,
            result.status.name,
            offsets.next_offset,
            offsets.min_offset,
            offsets.max_offset,
            len(body),
            self._suggested_broker(pull, result) if self._parts.replication.advises_reads else 0,
            pull.topic_sys_flag,
            pull.group_sys_flag,
            None if logical is None else logical.delta,
        )
        if body:
            pull.channel.write_bytes(head, body)
        else:
            pull.channel.write_bytes(head)
        self._count(pull, code)

    def _suggested_broker(self, pull: Pull, result: GetResult) -> int:
        """Return the id of the broker that the client should pull from next: that of the group's setting
        while it reads what is no longer in memory, else the master's."""
        parts, header = self._parts, pull.header
        is_slow = (
            result.status is GetStatus.FOUND
            and pull.logical is None
            and not parts.near_log_end(header.topic, header.queue_id, result.next_offset - 1)
        )
        group = parts.groups.get(header.consumer_group) if is_slow else None
        if group is None or not parts.store_settings.slave_read_enable:
            return 0
        return group.which_broker_when_consume_slowly

    def _empty(self, header: PullHeader, status: GetStatus, next_offset: int) -> GetResult:
        store = self._store
        low, high = (
            store.reads.min_offset(header.topic, header.queue_id),
            store.reads.max_offset(header.topic, header.queue_id),
        )
        return GetResult(status, next_offset, low, high)

    def _commit(self, header: PullHeader, channel: Channel) -> None:
        """Commit the offset that comes with a pull. If there is no room for it, that is counted, and the pull
        continues."""
        try:
            self._parts.offsets.commit(
                header.consumer_group, header.topic, header.queue_id, header.commit_offset
            )
        except TooManyOffsetsError as error:
            self._parts.statistics.refuse(
                "too many offsets", value=error.value, limit=error.limit, who=channel.remote, said=str(error)
            )


def _is_through_proxy(header: PullHeader) -> bool:
    return header.request_source == headers.PROXY_FOR_BROADCAST
