"""The clients of the gRPC port in the broker's tables: their groups, language and subscriptions.

A client is known from its first settings on, by its id. It is forgotten when its Telemetry ends, when it says
that it terminates, or after two minutes without a heartbeat. The ids of the last MAX_ENDED clients whose
Telemetry ended are kept, since the Rust client ends its Telemetry before it says that it terminates.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from broker_store.broker.clients import MAX_CLIENT_ID_CHARACTERS
from broker_store.broker.filters import SQL92, TAG, FilterError
from broker_store.errors import LimitError
from broker_store.protocol.client_bodies import ConsumerData, Heartbeat, Subscription
from broker_store.protocol.codes import RequestCode
from broker_store.protocol.command import LANGUAGES, VERSION, Command
from broker_store.protocol.grpc.v2 import definition_pb2 as v2
from broker_store.protocol.grpc.v2.definition_pb2 import ClientType, Code, FilterType, Settings
from broker_store.protocol.grpc.v2.service_pb2 import TelemetryCommand
from broker_store.protocol.http2.fields import Fields
from broker_store.server.channel import RequestTimeout
from broker_store.server.client_handlers import ClientHandlers
from broker_store.server.grpc.channel import GrpcChannel
from broker_store.server.grpc.lite import refuse_lite_consumer
from broker_store.server.grpc.names import check_group_name, check_topic_name, check_user_topic
from broker_store.server.grpc.questions import Questions
from broker_store.server.grpc.statuses import Refused, refused_of
from broker_store.server.handler import Refusal
from broker_store.server.parts import BrokerParts

CLIENT_ID = "x-mq-client-id"
_LANGUAGE = "x-mq-language"
_VERSION = "x-mq-client-version"
# Names of Apache's LanguageCode, for those that gRPC clients write in another way.
_LANGUAGE_NAMES = {"GOLANG": "GO", "DOT_NET": "DOTNET"}
# The number of V5_x_y in Apache's MQVersion: two for each, the first is that of its snapshot.
_V5_0_0 = 413
_VERSION_TEXT = re.compile(r"5\.(\d)\.(\d)(?!\d)")
_CLIENT_TYPES = {number: name for name, number in ClientType.items()}  # a peer may send any other number
_CONSUMERS = {
    ClientType.PUSH_CONSUMER: "CONSUME_PASSIVELY",
    ClientType.SIMPLE_CONSUMER: "CONSUME_ACTIVELY",
    ClientType.LITE_PUSH_CONSUMER: "CONSUME_PASSIVELY",  # refused later than the types that are not known
}
MAX_SUBSCRIPTIONS = 1_000
MAX_TOPICS = 1_000  # of a producer
# A client with 1,000 topics of 100 characters has 110 KB, most have less than one.
MAX_SETTINGS_BYTES = 256 << 10
MAX_ALL_SETTINGS_BYTES = 64 << 20
MAX_ENDED = 1_000  # ids of at most MAX_CLIENT_ID_CHARACTERS


class GrpcClient:
    """A client, as the broker's tables have it: they write to it as to a connection of the broker port. `end`
    ends its Telemetry, `questions` are what it is asked by that."""

    __slots__ = (
        "client_id", "language", "version", "remote", "closed", "settings", "settings_ms", "settings_bytes",
        "questions", "user", "_channel", "_end",
    )  # fmt: skip

    def __init__(
        self,
        fields: Fields,
        channel: GrpcChannel,
        questions: Questions | None = None,
        end: Callable[[], None] = lambda: None,
        user: str | None = None,
    ):
        """`user` is who has proved to be the client; None if nothing is authenticated."""
        self.client_id = fields.get(CLIENT_ID, "")
        language = fields.get(_LANGUAGE, "").upper()
        language = _LANGUAGE_NAMES.get(language, language)
        self.language = language if language in LANGUAGES else "OTHER"
        self.version = version_number(fields.get(_VERSION, ""))
        self.remote = channel.remote
        self.user = user
        self.closed = False
        self.settings = Settings()
        self.settings_ms = 0  # when they came
        self.settings_bytes = 0
        self.questions = questions
        self._channel = channel
        self._end = end

    @property
    def paused(self) -> bool:
        return self._channel.paused

    @property
    def unsent(self) -> int:
        return self._channel.unsent

    def when_resumed(self, callback: Callable[[], None]) -> None:
        self._channel.when_resumed(callback)

    def write(self, command: Command) -> None:
        if self.questions is not None:
            self.questions.write(command)

    def write_all(self, commands: Sequence[Command]) -> None:
        for command in commands:
            self.write(command)

    async def request(self, command: Command, timeout: float) -> Command:
        if self.questions is None:
            raise RequestTimeout(f"client {self.client_id:.120} has no Telemetry, by which it is asked")
        return await self.questions.request(command, timeout)

    def answered(self, command: TelemetryCommand) -> bool:
        """Take an answer of the client; return whether it was asked for."""
        return self.questions is not None and self.questions.answered(command)

    def close(self) -> None:
        self._end()

    @property
    def group(self) -> str:
        """Return the consumer group of its settings, empty for a producer."""
        return self.settings.subscription.group.name if self.settings.HasField("subscription") else ""


class GrpcClients:
    """The clients that have sent settings, by their ids. `register` has the broker's tables."""

    def __init__(self, parts: BrokerParts, register: ClientHandlers):
        self._parts, self._handlers = parts, register
        self._clients: dict[str, GrpcClient] = {}
        # Clients whose Telemetry ended, by their ids, with their users; oldest first
        self._ended: dict[str, str | None] = {}
        self._settings_bytes = 0  # of all clients

    def __len__(self) -> int:
        return len(self._clients)

    def find(self, client_id: str) -> GrpcClient | None:
        return self._clients.get(client_id)

    def take_settings(self, client: GrpcClient, settings: Settings) -> None:
        """Take the settings of a client, which has a Telemetry, and register it. Raises Refused."""
        if len(client.client_id) > MAX_CLIENT_ID_CHARACTERS:
            raise Refused(
                Code.CLIENT_ID_REQUIRED,
                f"a client id has at most {MAX_CLIENT_ID_CHARACTERS} characters",
                "client id",
                value=len(client.client_id),
                limit=MAX_CLIENT_ID_CHARACTERS,
            )
        now_ms = self._parts.clock()
        before = self._clients.get(client.client_id)
        if before is not None and before.user != client.user:
            raise _of_another_user(before.client_id)
        size = self._check_size(settings, before)
        kept = _used(settings)
        if kept.HasField("subscription"):
            self._register(client, kept, now_ms)
        else:
            self._register_producer(client, kept)
        self._settings_bytes += size - (0 if before is None else before.settings_bytes)
        if before is not None and before is not client:  # it opened another Telemetry
            self._parts.clients.channel_closed(before)
        elif client.group and client.group != kept.subscription.group.name:
            self._parts.clients.unregister(client, client.client_id, None, client.group)
        client.settings, client.settings_ms, client.settings_bytes = kept, now_ms, size
        self._clients[client.client_id] = client
        self._ended.pop(client.client_id, None)

    def _check_size(self, settings: Settings, before: GrpcClient | None) -> int:
        """Return the size of settings, which are kept as long as their Telemetry is open. Raises Refused for
        settings that are too large, or do not fit in with those of the other clients."""
        size = settings.ByteSize()
        if size > MAX_SETTINGS_BYTES:
            raise settings_too_large(size)
        together = self._settings_bytes + size - (0 if before is None else before.settings_bytes)
        if together > MAX_ALL_SETTINGS_BYTES:
            raise Refused(
                Code.TOO_MANY_REQUESTS,
                "the settings of all clients take too much memory",
                "settings of all clients",
                value=together,
                limit=MAX_ALL_SETTINGS_BYTES,
            )
        return size

    def heartbeat(self, client_id: str, group: v2.Resource, user: str | None = None) -> None:
        """Note that a client of a user lives. Raises Refused."""
        client = self._known(client_id, user)
        if client.settings.HasField("subscription"):
            check_group_name(group.name)
            self._register(client, client.settings, client.settings_ms)
        else:
            self._register_producer(client, client.settings)

    def terminate(self, client_id: str, group: v2.Resource, user: str | None = None) -> None:
        """Forget a client of a user that ends. Raises Refused."""
        if client_id in self._ended:
            if user is not None and self._ended[client_id] != user:
                raise _of_another_user(client_id)
            del self._ended[client_id]
            return
        client = self._known(client_id, user)
        if client.settings.HasField("subscription"):
            check_group_name(group.name)
        self._forget(client)

    def ended(self, client: GrpcClient) -> bool:
        """Forget a client whose Telemetry has ended; return whether it was known by that."""
        if self._clients.get(client.client_id) is not client:
            _close(client)
            return False
        self._forget(client)
        self._ended[client.client_id] = client.user
        if len(self._ended) > MAX_ENDED:
            del self._ended[next(iter(self._ended))]
        return True

    def _forget(self, client: GrpcClient) -> None:
        _close(client)
        del self._clients[client.client_id]
        self._settings_bytes -= client.settings_bytes
        self._parts.clients.channel_closed(client)

    def _known(self, client_id: str, user: str | None) -> GrpcClient:
        """Return a client. `user` is who has proved to send the call; None if it needs no proof. Raises
        Refused."""
        client = self._clients.get(client_id)
        if client is None:
            raise Refused(
                Code.UNRECOGNIZED_CLIENT_TYPE,
                "cannot find client settings for this client",
                "client settings",
            )
        if user is not None and client.user != user:
            raise _of_another_user(client.client_id)
        return client

    def _register_producer(self, client: GrpcClient, settings: Settings) -> None:
        """Enter a producer into the tables: each of its topics is a group, which is asked about transactions
        in the topic."""
        topics = settings.publishing.topics
        if len(topics) > MAX_TOPICS:
            raise Refused(
                Code.BAD_REQUEST,
                f"a producer has at most {MAX_TOPICS} topics",
                "topics of a producer",
                value=len(topics),
                limit=MAX_TOPICS,
            )
        names = tuple(dict.fromkeys(topic.name for topic in topics))
        for name in names:
            check_user_topic(self._parts.topics, name)
        try:
            self._parts.clients.heartbeat(
                client,
                Heartbeat(client.client_id, names),
                client.language,
                client.version,
                self._parts.clock(),
                client.user,
            )
        except LimitError as error:
            raise _too_many(error) from None

    def _register(self, client: GrpcClient, settings: Settings, version_ms: int) -> None:
        """Enter a client into the tables. `version_ms` is when its settings came."""
        subscription = settings.subscription
        consume_type = _CONSUMERS.get(settings.client_type)
        if consume_type is None:
            name = _CLIENT_TYPES.get(settings.client_type, "UNRECOGNIZED")
            raise Refused(Code.UNRECOGNIZED_CLIENT_TYPE, name, "client type")
        group = subscription.group.name
        check_group_name(group)
        for entry in subscription.subscriptions:
            check_topic_name(entry.topic.name)
            if not entry.expression.expression and expression_type(entry.expression) != TAG:
                raise _wrong_expression("empty expression")
        if len(subscription.subscriptions) > MAX_SUBSCRIPTIONS:
            raise Refused(
                Code.BAD_REQUEST,
                f"a client subscribes to at most {MAX_SUBSCRIPTIONS} topics",
                "subscriptions",
                value=len(subscription.subscriptions),
                limit=MAX_SUBSCRIPTIONS,
            )
        if settings.client_type == ClientType.LITE_PUSH_CONSUMER:
            refuse_lite_consumer(self._parts.groups, group)
        data = ConsumerData(
            group,
            consume_type,
            "CLUSTERING",
            "CONSUME_FROM_LAST_OFFSET",
            tuple(
                Subscription(
                    entry.topic.name,
                    entry.expression.expression or "*",
                    expression_type(entry.expression),
                    version_ms,
                )
                for entry in subscription.subscriptions
            ),
        )
        beat = Heartbeat(client.client_id, (), (data,))
        cause = Command.request(int(RequestCode.HEART_BEAT), language=client.language, version=client.version)
        try:
            self._handlers.register((cause, client), beat, client.user)
        except LimitError as error:
            raise _too_many(error) from None
        except Refusal as refusal:
            raise refused_of(refusal) from None
        except FilterError as error:
            raise _wrong_expression(error.cause) from None


def _of_another_user(client_id: str) -> Refused:
    """Return the refusal of a call that would end a client of another user, or take its place."""
    text = f"client {client_id:.255} is that of another user"
    return Refused(Code.UNAUTHORIZED, text, "client of another user")


def _used(settings: Settings) -> Settings:
    """Return a copy of what the broker uses of settings. The other fields may be lists of any length: a
    parsed entry takes 25 times its bytes."""
    used = Settings(client_type=settings.client_type, request_timeout=settings.request_timeout)
    if settings.HasField("subscription"):
        used.subscription.group.name = settings.subscription.group.name
        used.subscription.subscriptions.extend(settings.subscription.subscriptions)
    else:
        used.publishing.topics.extend(settings.publishing.topics)
    return used


def _close(client: GrpcClient) -> None:
    client.closed = True
    if client.questions is not None:
        client.questions.close()


def settings_too_large(size: int) -> Refused:
    """Return the refusal of settings of `size` bytes."""
    return Refused(
        Code.BAD_REQUEST,
        f"settings of {size} bytes, most is {MAX_SETTINGS_BYTES}",
        "settings",
        value=size,
        limit=MAX_SETTINGS_BYTES,
    )


def _wrong_expression(cause: str) -> Refused:
    return Refused(Code.ILLEGAL_FILTER_EXPRESSION, "expression format is not correct", cause)


def _too_many(error: LimitError) -> Refused:
    return Refused(Code.TOO_MANY_REQUESTS, str(error), error.cause, value=error.value, limit=error.limit)


def expression_type(expression: v2.FilterExpression) -> str:
    """Return the type of an expression, as the broker port has it."""
    return SQL92 if expression.type == FilterType.SQL else TAG


def version_number(text: str) -> int:
    """Return the number of a version of the clients, as `mqadmin` names it. As Apache's proxy, that of this
    broker if the text is no version of 5."""
    found = _VERSION_TEXT.match(text)
    return VERSION if found is None else _V5_0_0 + 20 * int(found[1]) + 2 * int(found[2])
