"""The client for programs without asyncio: the same classes, whose methods return when they have finished.

    from broker_store.client import blocking

    with blocking.Producer("127.0.0.1:9876") as producer:
        producer.send("Orders", b"...", keys=["order-7"])

    with blocking.PushConsumer("my-group", "127.0.0.1:9876").subscribe("Orders") as consumer:
        for message in consumer:             # a message is consumed when the loop asks for the next one
            ...

Arguments, results and errors are those of broker_store.client. Each object has a thread that runs its client
from the beginning of the `with` block to its end. Several threads may call its methods at once, also a
handler, which runs in a thread of its own. Ctrl-C ends a waiting call. A program with many concurrent calls
should use asyncio: here each call holds the thread of its caller.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar

from broker_store.client import (
    admin,
    pop_consumer,
    producer,
    pull_consumer,
    push_consumer,
    transactions,
)
from broker_store.client.handling import Handler
from broker_store.client.message import Outgoing, ReceivedMessage, SendReceipt
from broker_store.client.subscription import ALL
from broker_store.errors import MisuseError
from broker_store.protocol.message_queue import MessageQueue


class _Client(Protocol):
    """The methods that the clients of broker_store.client have in common."""

    async def __aenter__(self) -> object: ...

    async def close(self) -> None: ...


C = TypeVar("C", bound=_Client)
P = ParamSpec("P")
R = TypeVar("R")


def _waiting(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Any, P], R]:
    """Return a method that calls a coroutine function of a client and waits for its result."""

    @functools.wraps(method)
    def call(self: _Blocking[Any], /, *arguments: P.args, **options: P.kwargs) -> R:
        return self._run(method(self._client, *arguments, **options))

    return call


def _made_as(make: Callable[P, Any]) -> Callable[Concatenate[Any, P], None]:
    """Return the constructor of a blocking client; it takes the arguments of its asyncio client."""

    @functools.wraps(make.__init__)
    def __init__(self: _Blocking[Any], /, *arguments: P.args, **options: P.kwargs) -> None:
        _Blocking.__init__(self, make(*arguments, **options))

    return __init__


class _Blocking(Generic[C]):
    """A client, and the thread with the loop that runs it."""

    def __init__(self, client: C):
        self._client = client
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if self._loop is not None:
            raise MisuseError(f"a blocking {type(self).__name__} is entered once; make a new one")
        self._loop = asyncio.new_event_loop()
        # A daemon, so that a program ends that did not close its client.
        self._thread = threading.Thread(
            target=_live, args=(self._loop,), name=f"blocking {type(self).__name__}", daemon=True
        )
        self._thread.start()
        try:
            self._run(self._client.__aenter__())
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the client and its thread. Idempotent."""
        if self._thread is not None and self._loop is not None:
            self._run(self._client.close())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._thread = None

    def _run(self, coroutine: Coroutine[Any, Any, R]) -> R:
        loop, thread = self._loop, self._thread
        if loop is None or thread is None or thread is threading.current_thread():
            coroutine.close()
            if thread is None:
                raise MisuseError(f"a blocking {type(self).__name__} is used inside its `with` block")
            raise MisuseError(
                "a blocking method cannot wait in a coroutine of its own client; use "
                "broker_store.client there"
            )
        future = asyncio.run_coroutine_threadsafe(coroutine, loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise


def _live(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.close()


class Producer(_Blocking[producer.Producer]):
    """broker_store.client.Producer, waiting."""

    __init__ = _made_as(producer.Producer)

    send = _waiting(producer.Producer.send)
    send_again = _waiting(producer.Producer.send_again)
    send_batch = _waiting(producer.Producer.send_batch)
    send_many = _waiting(producer.Producer.send_many)
    send_oneway = _waiting(producer.Producer.send_oneway)
    recall = _waiting(producer.Producer.recall)
    request = _waiting(producer.Producer.request)
    reply = _waiting(producer.Producer.reply)
    queues = _waiting(producer.Producer.queues)


class Half:
    """A message that waits for commit or rollback; see broker_store.client.Half."""

    def __init__(self, owner: TransactionProducer, half: transactions.Half):
        self._owner, self._half = owner, half

    @property
    def receipt(self) -> SendReceipt:
        """Return the receipt of the stored half."""
        return self._half.receipt

    @property
    def message_id(self) -> str:
        """The id that the message will have."""
        return self._half.message_id

    def commit(self) -> bool:
        """Deliver the message to consumers. False when the broker got no commit; it will call `check`
        then."""
        return self._owner._run(self._half.commit())

    def rollback(self) -> bool:
        """Discard the message. False as for `commit`."""
        return self._owner._run(self._half.rollback())


class TransactionProducer(Producer):
    """broker_store.client.TransactionProducer, waiting. `check` is a plain function and is called in a
    thread."""

    _client: transactions.TransactionProducer

    def __init__(
        self,
        nameservers: str | Iterable[str],
        group: str,
        check: Callable[[ReceivedMessage], bool | None],
        **options: Any,
    ):
        if inspect.iscoroutinefunction(check):
            raise MisuseError("check must be a plain function of a message")
        _Blocking.__init__(self, transactions.TransactionProducer(nameservers, group, check, **options))

    def begin(
        self,
        topic: str,
        body: bytes | Outgoing,
        *,
        tag: str | None = None,
        keys: str | Iterable[str] = (),
        properties: Mapping[str, str] | None = None,
    ) -> Half:
        """Store a half, which waits for its `commit` or `rollback`. Raises ClientError, MisuseError,
        NameError_."""
        return Half(
            self, self._run(self._client.begin(topic, body, tag=tag, keys=keys, properties=properties))
        )

    @contextlib.contextmanager
    def transaction(
        self,
        topic: str,
        body: bytes | Outgoing,
        *,
        tag: str | None = None,
        keys: str | Iterable[str] = (),
        properties: Mapping[str, str] | None = None,
    ) -> Iterator[Half]:
        """Store a half, run the block, and commit; roll back when the block raises. Raises ClientError before
        the block runs."""
        half = self.begin(topic, body, tag=tag, keys=keys, properties=properties)
        try:
            yield half
        except BaseException:
            half.rollback()
            raise
        half.commit()


class PullConsumer(_Blocking[pull_consumer.PullConsumer]):
    """broker_store.client.PullConsumer, waiting."""

    __init__ = _made_as(pull_consumer.PullConsumer)

    queues = _waiting(pull_consumer.PullConsumer.queues)
    pull = _waiting(pull_consumer.PullConsumer.pull)
    committed = _waiting(pull_consumer.PullConsumer.committed)
    commit = _waiting(pull_consumer.PullConsumer.commit)
    min_offset = _waiting(pull_consumer.PullConsumer.min_offset)
    max_offset = _waiting(pull_consumer.PullConsumer.max_offset)
    offset_by_time = _waiting(pull_consumer.PullConsumer.offset_by_time)


class PopConsumer(_Blocking[pop_consumer.PopConsumer]):
    """broker_store.client.PopConsumer, waiting."""

    __init__ = _made_as(pop_consumer.PopConsumer)

    pop = _waiting(pop_consumer.PopConsumer.pop)
    acknowledge = _waiting(pop_consumer.PopConsumer.acknowledge)
    change_invisible = _waiting(pop_consumer.PopConsumer.change_invisible)
    give_up = _waiting(pop_consumer.PopConsumer.give_up)


class PushConsumer(_Blocking[push_consumer.PushConsumer]):
    """broker_store.client.PushConsumer, waiting: iterate over it, or start it with a handler, which is a
    plain function."""

    __init__ = _made_as(push_consumer.PushConsumer)

    def subscribe(self, topic: str, tags: str = ALL, *, sql: str | None = None) -> Self:
        """Add a topic, with tags or with a SQL92 expression over properties; all consumers of a group must
        subscribe alike."""
        if self._thread is None:
            self._client.subscribe(topic, tags, sql=sql)
        else:
            self._run(self._subscribe(topic, tags, sql))
        return self

    async def _subscribe(self, topic: str, tags: str, sql: str | None) -> None:
        self._client.subscribe(topic, tags, sql=sql)

    def start(self, handler: Handler | None = None) -> Self:
        """Join the group and begin to call `handler`, in threads, until the `with` block ends. Raises
        MisuseError."""
        self._run(self._client.start(handler))
        return self

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues this consumer reads at the moment."""
        return self._run(self._assignment())

    async def _assignment(self) -> list[MessageQueue]:
        return self._client.assignment

    ack = _waiting(push_consumer.PushConsumer.ack)
    retry = _waiting(push_consumer.PushConsumer.retry)
    give_up = _waiting(push_consumer.PushConsumer.give_up)

    def __iter__(self) -> Iterator[ReceivedMessage]:
        messages = aiter(self._client)

        async def following() -> ReceivedMessage | None:
            return await anext(messages, None)

        # Called again for each message until the consumer closes.
        return iter(lambda: self._run(following()), None)


class Admin(_Blocking[admin.Admin]):
    """broker_store.client.Admin, waiting."""

    __init__ = _made_as(admin.Admin)

    cluster_info = _waiting(admin.Admin.cluster_info)
    broker_runtime_info = _waiting(admin.Admin.broker_runtime_info)
    broker_config = _waiting(admin.Admin.broker_config)
    ask = _waiting(admin.Admin.ask)
    topics = _waiting(admin.Admin.topics)
    route = _waiting(admin.Admin.route)
    create_topic = _waiting(admin.Admin.create_topic)
    delete_topic = _waiting(admin.Admin.delete_topic)
    topic_configs = _waiting(admin.Admin.topic_configs)
    topic_stats = _waiting(admin.Admin.topic_stats)
    groups_of_topic = _waiting(admin.Admin.groups_of_topic)
    create_group = _waiting(admin.Admin.create_group)
    delete_group = _waiting(admin.Admin.delete_group)
    group_configs = _waiting(admin.Admin.group_configs)
    consume_stats = _waiting(admin.Admin.consume_stats)
    consumer_connections = _waiting(admin.Admin.consumer_connections)
    reset_offset = _waiting(admin.Admin.reset_offset)
    view_message = _waiting(admin.Admin.view_message)
    query_messages = _waiting(admin.Admin.query_messages)
    put_config = _waiting(admin.Admin.put_config)
    get_config = _waiting(admin.Admin.get_config)
    delete_config = _waiting(admin.Admin.delete_config)
