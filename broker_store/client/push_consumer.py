"""Delivers the messages of a group's topics, each at least once: to a loop, or to a function.

    async with PushConsumer("my-group", "127.0.0.1:9876").subscribe("Orders", "paid || sent") as consumer:
        async for message in consumer:       # a message is consumed when the loop asks for the next one
            ...

    async with PushConsumer("my-group", "127.0.0.1:9876").subscribe("Orders") as consumer:
        await consumer.start(handle)         # a coroutine function, or a plain one, which runs in a thread
        ...                                  # up to `concurrency` calls at once until the block ends

A message whose handler returns is consumed. When the handler raises, the message is sent back: the broker
delivers it again later through the group's retry topic, and after `max_retries` of these it goes to the dead
letters. With RetryLater and GiveUp the handler chooses one of the two, and the delay. With `orderly=True` the
messages of a queue are handled one after the other, only while the broker's lock on the queue is held, and a
failed one is tried again here before the next. With `model="broadcasting"` every consumer gets all messages
and keeps its own offsets, and a failed message is skipped.

A loop calls `retry` and `give_up` instead, and `ack` to finish a message before it takes the next one. A
message whose loop ended by `break` or an exception is not consumed. It is delivered again, to another member
of the group, when this one has closed.

A task divides the queues every 20 s, and when the broker reports a change of the group. A task for each queue
reads ahead (long polling); `concurrency` workers call the handler. Offsets are committed every 5 s, when a
queue goes to another consumer, and at the end. Messages that were consumed after the last commit are
delivered again.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Iterable
from datetime import datetime
from typing import Self

from broker_store.access.signatures import Credentials
from broker_store.client import running_info, tracing
from broker_store.client.assigned_queue import AssignedQueue, ReadAhead
from broker_store.client.assignment import Assignment
from broker_store.client.consumer_places import ConsumerPlaces
from broker_store.client.errors import ClientError, NoRouteError
from broker_store.client.handler_calls import HandlerCalls
from broker_store.client.handling import GiveUp, Handler, RetryLater
from broker_store.client.loops import LoopTasks, Messages
from broker_store.client.message import ReceivedMessage, UniqueKeys, decode_messages, milliseconds
from broker_store.client.places import Places
from broker_store.client.producer import Producer
from broker_store.client.pulling import PullStatus, QueueReader
from broker_store.client.send_back import TO_DEAD_LETTERS, SendBack
from broker_store.client.session import (
    REQUEST_TIMEOUT_S,
    RequestHandler,
    Session,
    local_address,
)
from broker_store.client.subscription import ALL, SQL92, make_subscription
from broker_store.client.tasks import Task, send_back_level
from broker_store.errors import BrokerStoreError, MisuseError
from broker_store.formats.names import check_group, check_topic, retry_topic
from broker_store.protocol import offset_bodies
from broker_store.protocol.client_bodies import ConsumerData, Heartbeat, Subscription
from broker_store.protocol.codes import RequestCode, ResponseCode
from broker_store.protocol.command import Command
from broker_store.protocol.headers import read_header
from broker_store.protocol.message_queue import MessageQueue

log = logging.getLogger(__name__)

CLUSTERING, BROADCASTING = "clustering", "broadcasting"
COMMIT_INTERVAL_S = 5.0
PULL_WAIT_MS = 15_000
ORDERLY_PAUSE_S = 1.0
FAILURE_PAUSES_S = (0.1, 0.3, 1.0)
# A broker that answers "no message" at once does not hold pulls: wait before the next pull.
QUICK_ANSWER_S = 0.02
QUICK_ANSWER_PAUSE_S = 0.2


class PushConsumer:
    """One member of a consumer group.

    `model`: "clustering", where the members share the messages, or "broadcasting", where each gets all.
    `consume_from`: where a group begins that has no offset yet: "last", "first", or a time, as an aware
    datetime or in milliseconds since 1970. (A queue with its first message begins there in any case.)
    `concurrency`: how many handlers run at once; an orderly consumer runs one for each of its queues, plain
    functions still in at most so many threads. `max_retries`: how often a message is delivered again before
    it goes to the dead letters. None: the number in the group's settings at the broker (16), or without limit
    for an orderly consumer, as in Java.
    `places`: storage for the offsets of a broadcasting consumer, for example FilePlaces; None: each start
    begins at `consume_from`. `read_ahead`: how much of a queue is read before it is handled.
    `timeout`: seconds for one request to a broker. `credentials`, `tls`, `trace`: as for Producer.
    """

    def __init__(
        self,
        group: str,
        nameservers: str | Iterable[str],
        *,
        model: str = CLUSTERING,
        orderly: bool = False,
        consume_from: str | int | datetime = "last",
        concurrency: int = 20,
        max_retries: int | None = None,
        places: Places | None = None,
        read_ahead: ReadAhead | None = None,
        timeout: float = REQUEST_TIMEOUT_S,
        client_id: str | None = None,
        trace: bool = False,
        credentials: Credentials | None = None,
        tls: ssl.SSLContext | None = None,
    ):
        if model not in (CLUSTERING, BROADCASTING):
            raise MisuseError(f"model {model!r} must be {CLUSTERING} or {BROADCASTING}")
        if concurrency < 1:
            raise MisuseError(f"concurrency {concurrency} must be at least 1")
        if max_retries is not None and max_retries < 0:
            raise MisuseError(f"max_retries {max_retries} must be at least 0, or None")
        if isinstance(consume_from, datetime):
            consume_from = milliseconds(consume_from)
        elif consume_from not in ("last", "first") and not isinstance(consume_from, int):
            raise MisuseError(f"consume_from {consume_from!r} must be last, first or a time in milliseconds")
        self.group = check_group(group)
        self.orderly = orderly
        self.broadcasting = model == BROADCASTING
        self._consume_from = consume_from
        self._concurrency = concurrency
        self._max_retries = max_retries
        self._read_ahead = read_ahead or ReadAhead()
        self._subscriptions: dict[str, Subscription] = {}
        handlers: dict[int, RequestHandler] = {
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: self._on_members_changed,
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET: self._on_reset,
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: self._on_status,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self._on_running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self._on_consume_directly,
        }
        self._session = Session(
            nameservers,
            client_id=client_id,
            timeout=timeout,
            credentials=credentials,
            tls=tls,
            heartbeat=self._heartbeat,
            handlers=handlers,
        )
        self._reader = QueueReader(self._session, group)
        self._places = ConsumerPlaces(
            self._reader, group, places, consume_from, broadcasting=self.broadcasting
        )
        self._assignment = Assignment(
            self._session,
            self._reader,
            group,
            self._subscriptions,
            self._places,
            self._read_ahead,
            self._read,
            orderly=orderly,
            broadcasting=self.broadcasting,
        )
        make_id = UniqueKeys(local_address()).make
        self._tracer = tracing.Tracer(self._trace_producer, make_id, group) if trace else None
        self._retries = SendBack(self._session, self._reader, group, max_retries)
        # None wakes a loop that waits, when the consumer closes.
        self._work: asyncio.Queue[Task | None] = asyncio.Queue(concurrency)
        self._loops = LoopTasks(self._work, self._tracer, self._conclude)
        self._started = False
        self._calls = HandlerCalls(group, concurrency, self._tracer)
        self._background: list[asyncio.Task[None]] = []
        self._workers: list[asyncio.Task[None]] = []
        self._started_ms = 0
        self._closed = False

    # Life

    def subscribe(self, topic: str, tags: str = ALL, *, sql: str | None = None) -> PushConsumer:
        """Add a topic, with tags or with a SQL92 expression over properties (`sql="a > 5 AND b = 'x'"`).

        All consumers of a group must subscribe alike. Raises MisuseError. The broker is asked at the start
        whether an expression is valid.
        """
        self._subscriptions[check_topic(topic)] = make_subscription(topic, tags, sql=sql)
        if self._background:
            self._session.spawn(self._session.beat())
            self._assignment.wanted.set()
        return self

    async def start(self, handler: Handler | None = None) -> PushConsumer:
        """Join the group and begin to call `handler`, or, without one, to read ahead for `async for`.

        Returns when the queues were assigned for the first time. Raises ClientError when no name server
        answers, or a broker refuses a SQL92 expression; MisuseError.
        """
        if self._started or self._closed:
            raise MisuseError("a consumer is started once")
        if not self._subscriptions:
            raise MisuseError("a consumer needs a subscription before it starts")
        self._started = True
        self._calls.set_handler(handler)
        self._started_ms = _now_ms()
        if not self.broadcasting:
            retry = retry_topic(self.group)
            self._subscriptions[retry] = make_subscription(retry)
        self._places.load()
        self._session.start()
        for topic, subscription in self._subscriptions.items():
            try:
                route = await self._session.route(topic)
            except NoRouteError as error:
                log.info("%s: %s", self.group, error)
                continue
            if subscription.expression_type == SQL92 and route.queues:
                await self._reader.check(subscription, route.queues[0].broker_name)
        await self._session.beat()
        spawn = self._session.spawn
        if not self.orderly and handler is not None:
            self._workers = [spawn(self._work_on()) for _ in range(self._concurrency)]
        await self._assignment.rebalance()
        self._background = [spawn(self._assignment.keep_balanced()), spawn(self._keep_committed())]
        return self

    def _trace_producer(self) -> Producer:
        session = self._session
        return Producer(session.nameservers, tracing.GROUP, credentials=session.credentials, tls=session.tls)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    async def close(self, timeout: float = 5.0) -> None:
        """Leave the group: stop reading, let running handlers end, commit, unregister. Idempotent.

        After `timeout` seconds handlers that still run are not waited for. Their messages are not consumed
        and are delivered again.
        """
        if self._closed:
            return
        self._closed = self._assignment.closed = self._loops.closed = True
        for task in self._background:
            task.cancel()
        mine = list(self._assignment.queues.values())
        for assigned in mine:
            self._assignment.drop(assigned)
        if self._started and self._calls.handler is None:
            self._loops.end()
        if self._assignment.releases:
            await asyncio.wait(self._assignment.releases.values(), timeout=timeout)
        for task in self._workers:
            task.cancel()
        self._calls.close()
        # If a handler did not end in time, the finished messages of its queue are committed all the same.
        for assigned in mine:
            await self._places.commit(assigned)
        self._places.save()
        if self._tracer is not None:
            await self._tracer.close()
        await self._retries.close()
        if self._started:
            await self._session.unregister(consumer_group=self.group)
        await self._session.close()

    # Loops

    def __aiter__(self) -> Messages:
        return Messages(self._next_task, self._loops.settle)

    async def ack(self, message: ReceivedMessage) -> None:
        """Conclude a message of an `async for` as consumed, before the loop asks for the next one. Raises
        MisuseError."""
        await self._loops.settle(self._loops.task_of(message), None)

    async def retry(self, message: ReceivedMessage, level: int = 0, *, after_s: float | None = None) -> None:
        """Have a message of an `async for` delivered again; the arguments are RetryLater's. Raises
        MisuseError."""
        await self._loops.settle(self._loops.task_of(message), RetryLater(level, after_s=after_s))

    async def give_up(self, message: ReceivedMessage) -> None:
        """Have a message of an `async for` go to the dead letters. Raises MisuseError."""
        await self._loops.settle(self._loops.task_of(message), GiveUp())

    async def _next_task(self) -> Task | None:
        if not self._started:
            await self.start()
        elif self._calls.handler is not None:
            raise MisuseError("this consumer was started with a handler, which gets its messages")
        return await self._loops.next()

    @property
    def assignment(self) -> list[MessageQueue]:
        """Return the queues that this consumer reads now."""
        return sorted(self._assignment.queues)

    def _heartbeat(self) -> Heartbeat:
        data = ConsumerData(
            self.group,
            "CONSUME_PASSIVELY",
            "BROADCASTING" if self.broadcasting else "CLUSTERING",
            self._consume_from_where(),
            tuple(self._subscriptions.values()),
        )
        return Heartbeat(self._session.client_id, consumers=(data,))

    def _consume_from_where(self) -> str:
        if isinstance(self._consume_from, int):
            return "CONSUME_FROM_TIMESTAMP"
        return f"CONSUME_FROM_{self._consume_from.upper()}_OFFSET"

    # Reading

    async def _read(self, assigned: AssignedQueue) -> None:
        """Read a queue until it is dropped."""
        failures = 0
        subscription = self._subscriptions[assigned.queue.topic]
        while not assigned.dropped:
            await assigned.room.wait()
            generation = assigned.generation
            if self.orderly and not self.broadcasting and time.monotonic() > assigned.locked_until_s:
                self._assignment.wanted.set()
                await asyncio.sleep(ORDERLY_PAUSE_S)
                continue
            asked_s = time.monotonic()
            try:
                result = await self._reader.pull(
                    assigned.queue, assigned.next_offset, subscription, self._read_ahead.count, PULL_WAIT_MS
                )
                failures = 0
            except BrokerStoreError as error:
                log.info("%s cannot read %s: %s", self.group, assigned.queue, error)
                await asyncio.sleep(FAILURE_PAUSES_S[min(failures, len(FAILURE_PAUSES_S) - 1)])
                failures += 1
                continue
            if assigned.dropped or assigned.generation != generation:
                continue
            assigned.last_pull_ms = _now_ms()
            if result.status is PullStatus.OFFSET_MOVED:
                log.info("%s goes on at %d in %s", self.group, result.next_offset, assigned.queue)
                assigned.move(result.next_offset)
                continue
            assigned.add(result.messages, result.next_offset)
            if result.messages:
                await self._hand_out(assigned, result.messages)
            elif result.status is PullStatus.NO_NEW_MESSAGE and time.monotonic() - asked_s < QUICK_ANSWER_S:
                await asyncio.sleep(QUICK_ANSWER_PAUSE_S)

    async def _hand_out(self, assigned: AssignedQueue, messages: list[ReceivedMessage]) -> None:
        generation = assigned.generation
        for message in messages:
            if assigned.dropped or assigned.generation != generation:
                return
            if self.orderly:
                await self._handle_in_order(assigned, message)
            else:
                await self._work.put(Task(assigned, message))

    # Handling

    async def _work_on(self) -> None:
        while True:
            task = await self._work.get()
            if task is None or task.assigned.dropped:  # None is for loops, which do not run beside workers
                continue
            task.assigned.begin_handling()
            try:
                await self._conclude(task, await self._calls.call(task.message))
            finally:
                task.assigned.end_handling()

    async def _conclude(self, task: Task, problem: Exception | None) -> None:
        """Finish a message of a concurrent consumer, or send it back."""
        if problem is None or self.broadcasting or await self._send_back(task, send_back_level(problem)):
            task.assigned.last_consume_ms = _now_ms()
            task.assigned.finish(task.message)

    async def _send_back(self, task: Task, level: int) -> bool:
        """Have a message delivered again. Tried until a broker accepts it or the queue is assigned elsewhere.

        While none does, the message stays unfinished, so the group's place does not move beyond it.
        """
        failures = 0
        while not task.assigned.dropped:
            try:
                await self._retries.send_back(task.message, level)
                return True
            except ClientError as error:
                log.info("%s cannot give %r back: %s", self.group, task.message, error)
                await asyncio.sleep(FAILURE_PAUSES_S[min(failures, len(FAILURE_PAUSES_S) - 1)])
                failures += 1
        return False

    async def _handle_in_order(self, assigned: AssignedQueue, message: ReceivedMessage) -> None:
        """Handle one message repeatedly until it is consumed, given up, or the queue belongs to another
        consumer."""
        task = Task(assigned, message)
        while not assigned.dropped:
            if not self.broadcasting and time.monotonic() > assigned.locked_until_s:
                self._assignment.wanted.set()
                await asyncio.sleep(ORDERLY_PAUSE_S)
                continue
            assigned.begin_handling()
            try:
                problem = await (
                    self._calls.call(message)
                    if self._calls.handler is not None
                    else self._handle_in_loop(task)
                )
                done = problem is None or self.broadcasting
                if not done and self._is_hopeless(message, problem):
                    done = await self._send_back(task, TO_DEAD_LETTERS)
                if done:
                    assigned.last_consume_ms = _now_ms()
                    assigned.finish(message)
                    return
            finally:
                assigned.end_handling()
            message.retries_here += 1
            pause_s = problem.after_s if isinstance(problem, RetryLater) else None
            await asyncio.sleep(ORDERLY_PAUSE_S if pause_s is None else pause_s)

    async def _handle_in_loop(self, task: Task) -> Exception | None:
        """Return the result of a loop for a message that must be concluded before the next of its queue."""
        task.outcome = asyncio.get_running_loop().create_future()
        await self._work.put(task)
        return await task.outcome

    def _is_hopeless(self, message: ReceivedMessage, problem: Exception | None) -> bool:
        return isinstance(problem, GiveUp) or (
            self._max_retries is not None and message.attempt > self._max_retries
        )

    # Places

    async def _keep_committed(self) -> None:
        while True:
            await asyncio.sleep(COMMIT_INTERVAL_S)
            for assigned in list(self._assignment.queues.values()):
                await self._places.commit(assigned)
            self._places.save()

    # Requests of brokers

    def _on_members_changed(self, command: Command) -> None:
        if read_header(command.code, command.fields).consumer_group == self.group:
            self._assignment.wanted.set()

    async def _on_reset(self, command: Command) -> None:
        """Continue at the place that an administrator set for the group; messages read before are dropped."""
        header = read_header(command.code, command.fields)
        if header.group != self.group:
            return
        for queue, offset in offset_bodies.decode_offset_table(command.body).items():
            assigned = self._assignment.queues.get(queue)
            if assigned is None:
                continue
            assigned.move(offset)
            await self._places.commit(assigned)
            if assigned.idle.is_set() and assigned.task is not None:
                # The pull that waits at the old offset is not awaited.
                assigned.task.cancel()
                assigned.task = self._session.spawn(self._read(assigned))

    def _on_status(self, command: Command) -> Command:
        header = read_header(command.code, command.fields)
        places = {
            queue: a.place for queue, a in self._assignment.queues.items() if queue.topic == header.topic
        }
        return command.answer(body=running_info.encode_places(places))

    def _on_running_info(self, command: Command) -> Command:
        properties = {
            "PROP_CLIENT_VERSION": "V5_3_3",
            "PROP_CONSUMEORDERLY": str(self.orderly).lower(),
            "PROP_CONSUMER_START_TIMESTAMP": str(self._started_ms),
            "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
            "PROP_NAMESERVER_ADDR": ";".join(self._session.nameservers),
            "PROP_THREADPOOL_CORE_SIZE": str(self._concurrency),
        }
        body = running_info.encode(properties, self._subscriptions.values(), self._assignment.queues.values())
        return command.answer(body=body)

    async def _on_consume_directly(self, command: Command) -> Command:
        """Handle the message of an administrator's request now, and answer the result."""
        header = read_header(command.code, command.fields)
        if self._calls.handler is None:
            return command.answer(
                ResponseCode.SYSTEM_ERROR, "this consumer is a loop, which takes its messages itself"
            )
        messages = decode_messages(command.body, header.broker_name or "")
        started_ms = _now_ms()
        consumed = bool(messages) and await self._calls.call(messages[0]) is None
        return command.answer(
            body=running_info.encode_consumed(consumed, self.orderly, _now_ms() - started_ms)
        )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
