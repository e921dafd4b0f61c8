"""The type of a handler, and the refusal of a request."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from broker_store.access.control import AccessControl
from broker_store.access.denied import Denied
from broker_store.access.resources import Demand
from broker_store.protocol.codes import ResponseCode
from broker_store.protocol.command import Command
from broker_store.server.channel import Channel

FAQ = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."

# The answer; None if it is written later or never; or a coroutine that returns one of both.
Answer = Command | None | Coroutine[Any, Any, Command | None]
Handler = Callable[[Command, Channel], Answer]
Handlers = dict[int, Handler]


class HasAccess(Protocol):
    """The parts of a broker, as far as rights depend on them."""

    @property
    def access(self) -> AccessControl | None: ...


class Refusal(Exception):
    """A request that changes nothing and is answered with a code and a text.

    `cause` is its name in the statistics. If a number was the reason, `value` is that number and `limit` the
    highest allowed one.
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
        self.code, self.remark, self.value, self.limit = code, remark, value, limit
        self.cause = cause or ResponseCode(code).name.lower().replace("_", " ")
        self.fields: dict[str, str] = {}
        super().__init__(remark)


def require(parts: HasAccess, command: Command, channel: Channel, *demands: Demand) -> None:
    """Raise Refusal if the sender of a request may not do what its handler has found it to demand."""
    if parts.access is not None:
        try:
            parts.access.require_more(command.code, command.fields, demands, channel.remote)
        except Denied as error:
            parts.access.note(error, channel.remote)
            raise Refusal(ResponseCode.NO_PERMISSION, str(error), error.cause) from None


def no_topic(topic: str) -> Refusal:
    """Return the refusal of a request for a topic that does not exist."""
    return Refusal(
        ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic:.255}] not exist, apply first please! {FAQ}", "no topic"
    )


def no_queue(code: ResponseCode, topic: str, queue_id: int, read_queues: int, remote: str) -> Refusal:
    """Return the refusal of a read of a queue that its topic does not have. `remote` is the client's
    address."""
    return Refusal(
        code,
        f"queueId[{queue_id}] is illegal, topic:[{topic}] topicConfig.readQueueNums:[{read_queues}] "
        f"consumer:[/{remote}]",
        "queue id",
        value=queue_id,
        limit=read_queues - 1,
    )


def no_group(group: str) -> Refusal:
    """Return the refusal of a request of a group that does not exist and is not created."""
    return Refusal(
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
        f"subscription group [{group:.120}] does not exist, {FAQ}",
    )
