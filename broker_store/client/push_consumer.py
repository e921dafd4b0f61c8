"""Hands the messages of a group's topics to a function, each at least once.

    consumer = PushConsumer("my-group", "127.0.0.1:9876").subscribe("Orders", "paid || sent")
    await consumer.start(handle)     # async def handle(message), or a plain function, which runs in a thread
    ...
    await consumer.close()

A message whose handler returns is consumed. When the handler raises, the broker is asked to bring it again later by
way of the group's retry topic, and after `max_attempts` it goes to the dead letters. With `orderly=True` the messages
of a queue are handled one after the other, only while the broker's lock on the queue is held, and a failed one is
tried again here before the next. With `model="broadcasting"` every consumer gets everything, places are kept by the
consumer itself, and a failed message is passed over.

How it works: a task shares the queues out anew every 20 s and when the broker says that the group has changed; a task
a queue reads ahead (long polling); `concurrency` workers call the handler. Places are committed every 5 s, when a queue
goes to another consumer, and at the end. What ends without that is handed out again.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

from broker_store.client import running_info
from broker_store.client.allocation import allocate
from broker_store.client.assigned_queue import AssignedQueue
from broker_store.client.errors import ClientError, NoRouteError
from broker_store.client.message import ReceivedMessage, decode_messages
from broker_store.client.pulling import PullStatus, QueueReader, readable_queues
from broker_store.client.session import REQUEST_TIMEOUT_S, Session, lowest_address
from broker_store.client.subscription import ALL, make_subscription
from broker_store.errors import BrokerStoreError, MisuseError
from broker_store.formats.names import RETRY_PREFIX, check_group, check_topic, retry_topic
from broker_store.protocol import bodies
from broker_store.protocol.bodies import ConsumerData, Heartbeat, LockRequest, MessageQueue, Subscription
from broker_store.protocol.codes import RequestCode, ResponseCode
from broker_store.protocol.command import Command
from broker_store.protocol.headers import read_header, write_header

log = logging.getLogger(__name__)

Handler = Callable[[ReceivedMessage], "Awaitable[None] | None"]

CLUSTERING, BROADCASTING = "clustering", "broadcasting"
REBALANCE_INTERVAL_S = 20.0
# While a topic has no route yet, or a queue could not be taken.
REBALANCE_SOON_S = 1.0
COMMIT_INTERVAL_S = 5.0
PULL_WAIT_MS = 15_000
PULL_COUNT = 32
# A broker forgets a lock after 60 s; it is renewed with each rebalance.
LOCK_LIFE_S = 30.0
ORDERLY_PAUSE_S = 1.0
FAILURE_PAUSES_S = (0.1, 0.3, 1.0)
# A broker that answers "nothing" at once does not hold pulls; it is not asked in a spin.
QUICK_ANSWER_S = 0.02
QUICK_ANSWER_PAUSE_S = 0.2
MAX_ATTEMPTS = 16
TO_DEAD_LETTERS = -1


class Places(Protocol):
    """Where a broadcasting consumer keeps its places: texts `topic@broker@queue` to offsets."""

    def load(self) -> dict[str, int]: ...

    def save(self, places: dict[str, int]) -> None: ...


class PushConsumer:
    """One member of a consumer group.

    `consume_from` says where a group begins that has no place yet: "last", "first", or a time in milliseconds. (A
    queue that still holds its very first message begins there in any case, as Apache's broker decides.)
    """

    def __init__(
        self,
        group: str,
        nameservers: str | Iterable[str],
        *,
        model: str = CLUSTERING,
        orderly: bool = False,
        consume_from: str | int = "last",
        concurrency: int = 20,
        max_attempts: int | None = None,
        places: Places | None = None,
        timeout: float = REQUEST_TIMEOUT_S,
        client_id: str | None = None,
    ):
        if model not in (CLUSTERING, BROADCASTING):
            raise MisuseError(f"model {model!r} must be {CLUSTERING} or {BROADCASTING}")
        if concurrency < 1:
            raise MisuseError(f"concurrency {concurrency} must be at least 1")
        if consume_from not in ("last", "first") and not isinstance(consume_from, int):
            raise MisuseError(f"consume_from {consume_from!r} must be last, first or a time in milliseconds")
        self.group = check_group(group)
        self.orderly = orderly
        self.broadcasting = model == BROADCASTING
        self._consume_from = consume_from
        self._concurrency = concurrency
        self._max_attempts = max_attempts
        self._places = places
        self._place_of: dict[str, int] = {}
        self._subscriptions: dict[str, Subscription] = {}
        handlers = {
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: self._on_members_changed,
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET: self._on_reset,
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: self._on_status,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self._on_running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self._on_consume_directly,
        }
        self._session = Session(
            nameservers, client_id=client_id, timeout=timeout, heartbeat=self._heartbeat, handlers=handlers
        )
        self._reader = QueueReader(self._session, group)
        self._assigned: dict[MessageQueue, AssignedQueue] = {}
        self._work: asyncio.Queue[tuple[AssignedQueue, ReceivedMessage]] = asyncio.Queue(concurrency)
        self._handler: Handler | None = None
        self._handler_is_async = False
        self._rebalance_wanted = asyncio.Event()
        self._rebalancing = asyncio.Lock()
        self._settled = False
        self._releases: dict[MessageQueue, asyncio.Task] = {}
        self._background: list[asyncio.Task] = []
        self._workers: list[asyncio.Task] = []
        self._started_ms = 0
        self._closed = False

    # Life

    def subscribe(self, topic: str, tags: str = ALL) -> PushConsumer:
        """Add a topic; all consumers of a group must subscribe alike."""
        self._subscriptions[check_topic(topic)] = make_subscription(topic, tags)
        if self._background:
            self._session.spawn(self._session.beat())
            self._rebalance_wanted.set()
        return self

    async def start(self, handler: Handler) -> PushConsumer:
        """Join the group and begin to call `handler`. Returns when the queues were shared out for the first time."""
        if self._handler is not None or self._closed:
            raise MisuseError("a consumer is started once")
        if not self._subscriptions:
            raise MisuseError("a consumer needs a subscription before it starts")
        self._handler = handler
        self._handler_is_async = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
            getattr(handler, "__call__", None)  # noqa: B004 - an object with an async __call__
        )
        self._started_ms = _now_ms()
        if not self.broadcasting:
            retry = retry_topic(self.group)
            self._subscriptions[retry] = make_subscription(retry)
        elif self._places is not None:
            self._place_of = dict(self._places.load())
        self._session.start()
        for topic in self._subscriptions:
            try:
                await self._session.route(topic)
            except NoRouteError as error:
                log.info("%s: %s", self.group, error)
        await self._session.beat()
        spawn = self._session.spawn
        if not self.orderly:
            self._workers = [spawn(self._work_on()) for _ in range(self._concurrency)]
        await self._rebalance()
        self._background = [spawn(self._keep_balanced()), spawn(self._keep_committed())]
        return self

    async def __aenter__(self) -> PushConsumer:
        return self

    async def __aexit__(self, *_error) -> None:
        await self.close()

    async def close(self, timeout: float = 5.0) -> None:
        """Leave the group: stop reading, let running handlers end, commit, say goodbye. Idempotent."""
        if self._closed:
            return
        self._closed = True
        for task in self._background:
            task.cancel()
        for assigned in list(self._assigned.values()):
            self._drop(assigned)
        if self._releases:
            await asyncio.wait(self._releases.values(), timeout=timeout)
        for task in self._workers:
            task.cancel()
        self._save_places()
        if self._handler is not None:
            await self._session.unregister(consumer_group=self.group)
        await self._session.close()

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues this consumer reads at the moment."""
        return sorted(self._assigned)

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

    # Sharing queues out

    async def _keep_balanced(self) -> None:
        while True:
            wait_s = REBALANCE_INTERVAL_S if self._settled else REBALANCE_SOON_S
            try:
                async with asyncio.timeout(wait_s):
                    await self._rebalance_wanted.wait()
            except TimeoutError:
                pass
            self._rebalance_wanted.clear()
            await self._rebalance()

    async def _rebalance(self) -> None:
        """Take the queues that are ours, leave those that are not. What cannot be found out changes nothing."""
        async with self._rebalancing:
            self._settled = True
            for topic in list(self._subscriptions):
                try:
                    await self._rebalance_topic(topic)
                except BrokerStoreError as error:
                    self._settled = False
                    log.info("%s cannot share out %s: %s", self.group, topic, error)

    async def _rebalance_topic(self, topic: str) -> None:
        route = self._session.routes.get(topic) or await self._session.fetch_route(topic)
        queues = readable_queues(topic, route)
        if self.broadcasting:
            mine = queues
        else:
            members = await self._members(topic, route)
            if self._session.client_id not in members:
                await self._session.beat()
                self._settled = False
                return
            mine = allocate(queues, members, self._session.client_id)
        for queue, assigned in list(self._assigned.items()):
            if queue.topic == topic and queue not in mine:
                self._drop(assigned)
        wanted = [queue for queue in mine if queue not in self._assigned]
        if self.orderly and not self.broadcasting:
            wanted = await self._lock(topic, route, mine, wanted)
        for queue in wanted:
            await self._take(queue)

    async def _members(self, topic: str, route: bodies.TopicRoute) -> list[str]:
        """The client ids of the group, from the first of the topic's brokers that answers."""
        fields = write_header(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumer_group=self.group)
        failure: ClientError = NoRouteError(f"topic {topic} has no broker")
        for broker in route.brokers:
            try:
                accept = (ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR)
                code = RequestCode.GET_CONSUMER_LIST_BY_GROUP
                answer = await self._session.ask(lowest_address(broker), code, fields, accept=accept)
                # An error here means that the broker knows no member yet.
                return bodies.decode_consumer_list(answer.body) if answer.code == ResponseCode.SUCCESS else []
            except ClientError as error:
                failure = error
        raise failure

    async def _take(self, queue: MessageQueue) -> None:
        """Begin to read a queue at the group's place."""
        if queue in self._releases:
            self._settled = False  # we are still leaving it
            return
        assigned = AssignedQueue(queue, await self._first_offset(queue))
        if self._closed:
            return
        assigned.locked_until_s = time.monotonic() + LOCK_LIFE_S
        self._assigned[queue] = assigned
        assigned.task = self._session.spawn(self._read(assigned))
        log.info("%s reads %s from %d", self.group, queue, assigned.next_offset)

    async def _first_offset(self, queue: MessageQueue) -> int:
        if self.broadcasting:
            place = self._place_of.get(_place_name(queue))
        else:
            place = await self._reader.committed(queue)
        if place is not None and place >= 0:
            return place
        if queue.topic.startswith(RETRY_PREFIX):
            return 0
        if self._consume_from == "last":
            return await self._reader.max_offset(queue)
        if self._consume_from == "first":
            return await self._reader.min_offset(queue)
        return await self._reader.offset_by_time(queue, self._consume_from)

    def _drop(self, assigned: AssignedQueue) -> None:
        """Stop handing a queue out, and give it up once what is being handled has ended."""
        self._assigned.pop(assigned.queue, None)
        assigned.drop()
        release = self._releases[assigned.queue] = self._session.spawn(self._release(assigned))
        release.add_done_callback(lambda _: self._releases.pop(assigned.queue))

    async def _release(self, assigned: AssignedQueue) -> None:
        await assigned.idle.wait()
        assigned.task.cancel()
        await asyncio.gather(assigned.task, return_exceptions=True)
        await self._commit(assigned)
        if self.orderly and not self.broadcasting:
            await self._unlock(assigned.queue)

    # Locks of orderly consumers

    async def _lock(
        self, topic: str, route: bodies.TopicRoute, mine: list[MessageQueue], wanted: list[MessageQueue]
    ) -> list[MessageQueue]:
        """Renew the locks of what we have, ask for those of what we want; which of the wanted we got."""
        locked: set[MessageQueue] = set()
        for broker in route.brokers:
            queues = tuple(queue for queue in mine if queue.broker_name == broker.broker_name)
            if queues:
                body = bodies.encode_lock_request(LockRequest(self._session.client_id, self.group, queues))
                try:
                    answer = await self._session.ask(lowest_address(broker), RequestCode.LOCK_BATCH_MQ, None, body)
                    locked |= bodies.decode_locked(answer.body)
                except ClientError as error:
                    log.info("%s cannot lock queues of %s: %s", self.group, topic, error)
        until_s = time.monotonic() + LOCK_LIFE_S
        for queue in locked & self._assigned.keys():
            self._assigned[queue].locked_until_s = until_s
        got = [queue for queue in wanted if queue in locked]
        if len(got) < len(wanted):
            self._settled = False
        return got

    async def _unlock(self, queue: MessageQueue) -> None:
        body = bodies.encode_lock_request(LockRequest(self._session.client_id, self.group, (queue,)))
        try:
            await self._session.tell(await self._reader.address(queue), RequestCode.UNLOCK_BATCH_MQ, None, body)
        except ClientError as error:
            log.info("%s could not unlock %s: %s", self.group, queue, error)

    # Reading

    async def _read(self, assigned: AssignedQueue) -> None:
        """Read a queue until it is dropped."""
        failures = 0
        subscription = self._subscriptions[assigned.queue.topic]
        while not assigned.dropped:
            await assigned.room.wait()
            generation = assigned.generation
            if self.orderly and not self.broadcasting and time.monotonic() > assigned.locked_until_s:
                self._rebalance_wanted.set()
                await asyncio.sleep(ORDERLY_PAUSE_S)
                continue
            asked_s = time.monotonic()
            try:
                result = await self._reader.pull(
                    assigned.queue, assigned.next_offset, subscription, PULL_COUNT, PULL_WAIT_MS
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
                await self._work.put((assigned, message))

    # Handling

    async def _work_on(self) -> None:
        while True:
            assigned, message = await self._work.get()
            if assigned.dropped:
                continue
            assigned.begin_handling()
            try:
                consumed = await self._call_handler(message) or self.broadcasting
                if consumed or await self._give_back(assigned, message):
                    assigned.last_consume_ms = _now_ms()
                    assigned.finish(message)
            finally:
                assigned.end_handling()

    async def _call_handler(self, message: ReceivedMessage) -> bool:
        """Whether the message is consumed. Whatever the handler raises is its own business, and logged."""
        try:
            if self._handler_is_async:
                await self._handler(message)
            else:
                outcome = await asyncio.to_thread(self._handler, message)
                if inspect.isawaitable(outcome):
                    await outcome
        except Exception:
            log.warning("%s: the handler failed on %r", self.group, message, exc_info=True)
            return False
        return True

    async def _give_back(self, assigned: AssignedQueue, message: ReceivedMessage, delay_level: int = 0) -> bool:
        """Ask the broker to bring the message again later; tried until it agrees or the queue is not ours any more.

        While it does not, the message stays unfinished, so the group's place does not move beyond it.
        """
        fields = write_header(
            RequestCode.CONSUMER_SEND_MSG_BACK,
            offset=message.record.log_offset,
            group=self.group,
            delay_level=delay_level,
            origin_msg_id=message.message_id,
            origin_topic=message.record.topic,
            unit_mode=False,
            max_reconsume_times=self._max_attempts or MAX_ATTEMPTS,
        )
        failures = 0
        while not assigned.dropped:
            try:
                address = await self._reader.address(message.queue)
                await self._session.ask(address, RequestCode.CONSUMER_SEND_MSG_BACK, fields)
                return True
            except ClientError as error:
                log.info("%s cannot give %r back: %s", self.group, message, error)
                await asyncio.sleep(FAILURE_PAUSES_S[min(failures, len(FAILURE_PAUSES_S) - 1)])
                failures += 1
        return False

    async def _handle_in_order(self, assigned: AssignedQueue, message: ReceivedMessage) -> None:
        """Handle one message, again and again until it is consumed, given up, or the queue is not ours any more."""
        while not assigned.dropped:
            if not self.broadcasting and time.monotonic() > assigned.locked_until_s:
                self._rebalance_wanted.set()
                await asyncio.sleep(ORDERLY_PAUSE_S)
                continue
            assigned.begin_handling()
            try:
                done = await self._call_handler(message) or self.broadcasting
                if not done and self._max_attempts is not None and message.attempt >= self._max_attempts:
                    done = await self._give_back(assigned, message, TO_DEAD_LETTERS)
                if done:
                    assigned.last_consume_ms = _now_ms()
                    assigned.finish(message)
                    return
            finally:
                assigned.end_handling()
            message.retries_here += 1
            await asyncio.sleep(ORDERLY_PAUSE_S)

    # Places

    async def _keep_committed(self) -> None:
        while True:
            await asyncio.sleep(COMMIT_INTERVAL_S)
            for assigned in list(self._assigned.values()):
                await self._commit(assigned)
            self._save_places()

    async def _commit(self, assigned: AssignedQueue) -> None:
        """Keep the place of a queue; a failure is made good by the next commit."""
        place = assigned.place
        if place == assigned.committed:
            return
        if self.broadcasting:
            self._place_of[_place_name(assigned.queue)] = place
            assigned.committed = place
            return
        try:
            await self._reader.commit(assigned.queue, place)
            assigned.committed = place
        except BrokerStoreError as error:
            log.info("%s cannot commit %s: %s", self.group, assigned.queue, error)

    def _save_places(self) -> None:
        if self.broadcasting and self._places is not None:
            self._places.save(dict(self._place_of))

    # What brokers ask

    def _on_members_changed(self, command: Command) -> None:
        if read_header(command.code, command.fields).consumer_group == self.group:
            self._rebalance_wanted.set()

    async def _on_reset(self, command: Command) -> None:
        """Somebody set the group's place: what is being read is let go, and read again from there."""
        header = read_header(command.code, command.fields)
        if header.group != self.group:
            return
        for queue, offset in bodies.decode_offset_table(command.body).items():
            assigned = self._assigned.get(queue)
            if assigned is None:
                continue
            assigned.move(offset)
            await self._commit(assigned)
            if assigned.idle.is_set():
                # The pull that waits at the old place need not be waited for.
                assigned.task.cancel()
                assigned.task = self._session.spawn(self._read(assigned))

    def _on_status(self, command: Command) -> Command:
        header = read_header(command.code, command.fields)
        places = {queue: a.place for queue, a in self._assigned.items() if queue.topic == header.topic}
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
        body = running_info.encode(properties, self._subscriptions.values(), self._assigned.values())
        return command.answer(body=body)

    async def _on_consume_directly(self, command: Command) -> Command:
        """An administrator wants this message handled here and now."""
        header = read_header(command.code, command.fields)
        messages = decode_messages(command.body, header.broker_name or "")
        started_ms = _now_ms()
        consumed = bool(messages) and await self._call_handler(messages[0])
        return command.answer(body=running_info.encode_consumed(consumed, self.orderly, _now_ms() - started_ms))


def _place_name(queue: MessageQueue) -> str:
    return f"{queue.topic}@{queue.broker_name}@{queue.queue_id}"


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
