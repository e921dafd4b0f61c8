"""The type of a handler, and the refusal of a request."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from broker_store.protocol.codes import ResponseCode
from broker_store.protocol.command import Command
from broker_store.server.channel import Channel

FAQ = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."

# The answer; None if it is written later or never; or a coroutine that returns one of both.
Answer = Command | None | Coroutine[Any, Any, Command | None]
Handler = Callable[[Command, Channel], Answer]
Handlers = dict[int, Handler]


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
