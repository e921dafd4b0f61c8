"""What a handler of requests returns, and how it refuses one."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from broker_store.protocol.codes import ResponseCode
from broker_store.protocol.command import Command
from broker_store.server.channel import Channel

FAQ = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."

# The answer; None if it is written later or never; a coroutine that returns one of both.
Answer = Command | None | Coroutine[Any, Any, Command | None]
Handler = Callable[[Command, Channel], Answer]
Handlers = dict[int, Handler]


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
        self.code, self.remark, self.value, self.limit = code, remark, value, limit
        self.cause = cause or ResponseCode(code).name.lower().replace("_", " ")
        self.fields: dict[str, str] = {}
        super().__init__(remark)
