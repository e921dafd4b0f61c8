"""The handler of each request code, and the response code of each error.

A handler takes (command, channel) and returns the answer, None if that is written later or never, or a
coroutine that returns one of both. `_failure` has the response code of every kind of error that a request may
cause.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Coroutine
from typing import Any

from broker_store.access.denied import Denied
from broker_store.access.signatures import ACCESS_KEY
from broker_store.broker import flow
from broker_store.broker.buckets import OTHER_CODE
from broker_store.broker.filters import FilterError
from broker_store.errors import (
    FieldError,
    FormatError,
    LimitError,
    NotFoundError,
    PeerError,
    StoreClosedError,
    StoreError,
)
from broker_store.protocol import fastjson
from broker_store.protocol.codes import RequestCode as R
from broker_store.protocol.codes import ResponseCode
from broker_store.protocol.command import Command
from broker_store.repeated_log import RepeatedLog
from broker_store.server import audited_requests
from broker_store.server.admin.access import AccessAdmin
from broker_store.server.admin.broker import BrokerAdmin
from broker_store.server.admin.connections import ConnectionAdmin
from broker_store.server.admin.consumers import ConsumerAdmin
from broker_store.server.admin.controller import ControllerAdmin
from broker_store.server.admin.groups import GroupAdmin
from broker_store.server.admin.offsets import OffsetAdmin
from broker_store.server.admin.progress import ProgressAdmin
from broker_store.server.admin.static_topics import StaticTopicAdmin
from broker_store.server.admin.topics import TopicAdmin
from broker_store.server.channel import Channel, failure_answer
from broker_store.server.client_handlers import ClientHandlers
from broker_store.server.consume import Consume
from broker_store.server.handler import Refusal
from broker_store.server.locks import Locks
from broker_store.server.logical_queues import LogicalQueues
from broker_store.server.member_handlers import MemberHandlers
from broker_store.server.offsets import OffsetHandlers
from broker_store.server.parts import BrokerParts
from broker_store.server.pop import Pops
from broker_store.server.pop_ack_handlers import PopAckHandlers
from broker_store.server.pop_acks import PopAcks
from broker_store.server.pop_handlers import PopHandlers
from broker_store.server.produce import SEND_CODES, Produce
from broker_store.server.query import Query
from broker_store.server.replies import Replies
from broker_store.server.request_modes import RequestModeHandlers
from broker_store.server.retries import Retries
from broker_store.server.timer import TimerHandlers
from broker_store.server.transactions import TransactionHandlers

log = logging.getLogger(__name__)

# The frame bounds the bodies of forwarded requests; this is their number.
MAX_TASKS = 1_000
# Of a request without a message: a thousand topics or subscriptions have 0.3 MB, and parsing 1 MiB of JSON
# stops the loop for some milliseconds.
MAX_BODY_BYTES = 1 << 20
_SENDS = frozenset(map(int, SEND_CODES))
_WITH_MESSAGES = frozenset({*SEND_CODES, R.SEND_REPLY_MESSAGE, R.SEND_REPLY_MESSAGE_V2})
# Answers that say that nothing was found (yet); they are not counted as refusals.
_NOTHING_THERE = frozenset(
    {
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
        ResponseCode.QUERY_NOT_FOUND,
        ResponseCode.POLLING_TIMEOUT,
    }
)


class Router:
    """The handlers of a broker by request code. The transport calls `handle`."""

    def __init__(self, parts: BrokerParts):
        self._parts = parts
        self._access = parts.access
        self._tasks: set[asyncio.Task] = set()
        self._log = RepeatedLog(log)
        self._limits = flow.WaitLimits(parts.settings)
        self._histograms = parts.statistics.histograms
        parts.live.watch(flow.KEYS, self._take_limits)
        self.produce = Produce(parts, parts.sends)
        self.produce.on_topic_created = lambda command, channel, config: audited_requests.auto_created(
            parts, command, channel, "topic", config.name, {"queues": config.queues}
        )
        parts.groups.on_auto_created = lambda name, cause: audited_requests.auto_created(
            parts, cause[0], cause[1], "group", name, {}
        )
        self.logical_queues = LogicalQueues(parts)
        self.consume = Consume(parts, self.logical_queues)
        self.pops = Pops(parts)
        self.pop_acks = PopAcks(parts)
        self.consume.on_arrived = self.pops.waiting.arrived
        self.clients = ClientHandlers(parts)
        self.transactions = TransactionHandlers(parts, parts.sends)
        query = Query(parts)
        self._handlers = {
            **{int(code): self.produce.send for code in SEND_CODES},
            R.PULL_MESSAGE: self.consume.pull,
            R.LITE_PULL_MESSAGE: self.consume.pull,
            **OffsetHandlers(parts).handlers(),
            **PopHandlers(parts, self.pops).handlers(),
            **PopAckHandlers(parts, self.pop_acks).handlers(),
            **query.handlers(),
            **Retries(parts, parts.sends).handlers(),
            **Locks(parts).handlers(),
            **Replies(parts, parts.sends).handlers(),
            **self.transactions.handlers(),
            **TimerHandlers(parts, parts.sends).handlers(),
            **MemberHandlers(parts).handlers(),
            **self.clients.handlers(),
            **RequestModeHandlers(parts).handlers(),
            **TopicAdmin(parts).handlers(),
            **StaticTopicAdmin(parts, self.consume.end_pulls).handlers(),
            **GroupAdmin(parts).handlers(),
            **OffsetAdmin(parts, self.reset).handlers(),
            **ProgressAdmin(parts).handlers(),
            **ConnectionAdmin(parts).handlers(),
            **ConsumerAdmin(parts).handlers(),
            **AccessAdmin(parts).handlers(),
            **ControllerAdmin(parts).handlers(),
            **BrokerAdmin(parts, lambda: len(self._tasks), MAX_TASKS).handlers(),
        }
        self._handlers = {int(code): handler for code, handler in self._handlers.items()}
        self._handlers |= self.logical_queues.around(self._handlers)
        for code in map(int, audited_requests.BROKER):
            self._handlers[code] = audited_requests.recorded(parts, code, self._handlers[code])

    def _take_limits(self) -> None:
        self._limits = flow.WaitLimits(self._parts.settings)

    def reset(self, group: str, topic: str, queue_ids: list[int]) -> None:
        """Serve what is parked of a group whose offsets were reset."""
        self.consume.reset(group, topic, queue_ids)
        self.pops.waiting.reset(group, topic, queue_ids)

    def handle(self, command: Command, channel: Channel) -> Command | None:
        if self._access is not None:
            try:
                self._access.authenticate(command.code, command.fields, command.body, command.version)
            except Denied as error:
                return self._timed(self._denied(command, channel, error), command, channel)
            # A name that is not proved has no count: it would use up the connections of another user
            is_proved = self._access.authenticates(command.code)
            if is_proved and (full := self._too_many_of_user(command, channel)) is not None:
                return self._timed(full, command, channel)
        handler = self._handlers.get(command.code)
        if handler is None:
            return self._timed(self._unknown(command, channel), command, channel)
        if command.code not in _WITH_MESSAGES and (large := self._too_large(command, channel)) is not None:
            return self._timed(large, command, channel)
        if self._access is not None and (denied := self._without_right(command, channel)) is not None:
            return self._timed(denied, command, channel)
        try:
            answer = handler(command, channel)
        except Exception as error:
            return self._timed(self._failure(command, channel, error), command, channel)
        if answer is None:
            return None
        if isinstance(answer, Command):
            if answer.code:
                self._count(command, answer, channel)
            return self._timed(answer, command, channel)
        return self._start(command, channel, answer)

    def _timed(self, answer: Command, command: Command, channel: Channel, came_s: float = 0.0) -> Command:
        """Count a request that is answered now, and return the answer. Handlers that return none count
        theirs."""
        self._histograms.answered(
            command.code if command.code in self._handlers else OTHER_CODE,
            answer.code,
            time.monotonic() - (came_s or channel.came_s),
            oneway=command.is_oneway,
        )
        return answer

    def _unknown(self, command: Command, channel: Channel) -> Command:
        """Return the answer to a request without a handler."""
        if self._access is not None and (denied := self._without_right(command, channel)) is not None:
            return denied
        self._parts.statistics.refuse("unknown code", value=command.code, who=channel.remote)
        code = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        return command.answer(code, f" request type {command.code} not supported")

    def _too_large(self, command: Command, channel: Channel) -> Command | None:
        """Return the refusal of a request without a message whose body is too large, else None."""
        if len(command.body) > MAX_BODY_BYTES:
            remark = (
                f"a body of {len(command.body)} bytes, at most {MAX_BODY_BYTES} for request {command.code}"
            )
            self._parts.statistics.refuse(
                "body too large",
                value=len(command.body),
                limit=MAX_BODY_BYTES,
                who=channel.remote,
                said=remark,
            )
            return command.answer(ResponseCode.INVALID_PARAMETER, remark)
        if remark := fastjson.too_many(command.body):
            self._parts.statistics.refuse("too many values", who=channel.remote, said=remark)
            return command.answer(ResponseCode.INVALID_PARAMETER, remark)
        return None

    def _too_many_of_user(self, command: Command, channel: Channel) -> Command | None:
        """Return the refusal of a request whose user has too many connections; this one is then closed."""
        user = (command.fields or {}).get(ACCESS_KEY, "")
        if not user or self._parts.shares.has_user(channel.remote, user):
            return None
        if channel.listener is None:  # a connection that the broker has opened
            self._parts.shares.note_user(channel.remote, user)
            return None
        if channel.listener.has_room_for_user(channel, user):
            return None
        channel.loop.call_soon(channel.close)
        return command.answer(ResponseCode.SYSTEM_BUSY, flow.TOO_MANY_OF_USER)

    def waited(self, command: Command, channel: Channel, waited_ms: int, waiting: int) -> Command | None:
        """Return the answer to a request that waited on its connection for too long; None if it is to be
        handled."""
        limit_ms = self._limits.limit_ms(command.code)
        if limit_ms is None or waited_ms <= limit_ms:
            return None
        remark = flow.WAITED.format(waited_ms=waited_ms, waiting=waiting)
        self._parts.statistics.refuse(
            "waited on its connection",
            value=waited_ms,
            limit=limit_ms,
            who=channel.remote,
            said=remark,
            is_send=command.code in _SENDS,
        )
        return self._timed(command.answer(ResponseCode.SYSTEM_BUSY, remark), command, channel)

    def _without_right(self, command: Command, channel: Channel) -> Command | None:
        """Return the refusal of a request to which its sender has not the right, None if it has."""
        assert self._access is not None
        try:
            self._access.authorize(
                command.code, command.fields, command.body, command.version, channel.remote
            )
        except Denied as error:
            return self._denied(command, channel, error)
        return None

    def _denied(self, command: Command, channel: Channel, error: Denied) -> Command:
        if self._access is not None:
            self._access.note(error, channel.remote)
        self._parts.statistics.refuse(
            error.cause, who=channel.remote, said=str(error), is_send=command.code in _SENDS
        )
        return command.answer(ResponseCode.NO_PERMISSION, str(error))

    def _count(self, command: Command, answer: Command, channel: Channel) -> None:
        """Count a request that its handler answered with an error."""
        if answer.code not in _NOTHING_THERE:
            cause = ResponseCode(answer.code).name.lower().replace("_", " ")
            self._parts.statistics.refuse(
                cause, who=channel.remote, said=answer.remark or "", is_send=command.code in _SENDS
            )

    def _start(
        self, command: Command, channel: Channel, coroutine: Coroutine[Any, Any, Command | None]
    ) -> Command | None:
        if len(self._tasks) >= MAX_TASKS:
            coroutine.close()
            self._parts.statistics.refuse(
                "overload of requests", value=len(self._tasks), limit=MAX_TASKS, who=channel.remote
            )
            return self._timed(command.answer(ResponseCode.SYSTEM_BUSY, flow.OVERLOADED), command, channel)
        finish = self._finish(command, channel, channel.came_s, coroutine)
        task = asyncio.get_running_loop().create_task(finish)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return None

    async def _finish(
        self,
        command: Command,
        channel: Channel,
        came_s: float,
        coroutine: Coroutine[Any, Any, Command | None],
    ) -> None:
        try:
            answer = await coroutine
            if answer is not None and answer.code:
                self._count(command, answer, channel)
        except Exception as error:
            answer = self._failure(command, channel, error)
        if answer is not None:
            self._timed(answer, command, channel, came_s)
            if not command.is_oneway and not channel.closed:
                channel.write(answer)

    async def stop(self) -> None:
        """Cancel the requests that still wait for other clients or for reads."""
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _failure(self, command: Command, channel: Channel, error: Exception) -> Command:
        refuse = functools.partial(self._parts.statistics.refuse, is_send=command.code in _SENDS)
        if isinstance(error, Refusal):
            refuse(error.cause, value=error.value, limit=error.limit, who=channel.remote, said=error.remark)
            return command.answer(error.code, error.remark, dict(error.fields))
        if isinstance(error, FilterError):
            code = ResponseCode.SUBSCRIPTION_PARSE_FAILED
        elif isinstance(error, StoreClosedError):
            code = ResponseCode.SERVICE_NOT_AVAILABLE
        elif isinstance(error, Denied):
            return self._denied(command, channel, error)
        elif isinstance(error, FieldError | PeerError):
            code = ResponseCode.INVALID_PARAMETER
        elif isinstance(error, NotFoundError):
            code = ResponseCode.QUERY_NOT_FOUND
        elif isinstance(error, FormatError):
            code = ResponseCode.SYSTEM_ERROR
        elif isinstance(error, StoreError):
            # The text names files of this machine. It goes to the log and not to the client.
            name = R(command.code).name
            self._log.write(
                logging.ERROR, name, time.monotonic(), "%s of %s failed: %s", name, channel.remote, error
            )
            refuse(error.cause, who=channel.remote)
            return command.answer(
                ResponseCode.SYSTEM_ERROR,
                f"the store failed: {error.cause}; the broker's log has the details",
                {},
            )
        else:
            refuse("error inside the broker", who=channel.remote)
            return failure_answer(command, error)
        value, limit = (error.value, error.limit) if isinstance(error, LimitError) else (None, None)
        refuse(error.cause, value=value, limit=limit, who=channel.remote, said=str(error))
        return command.answer(code, str(error), {})
