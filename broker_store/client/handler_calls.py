"""Calls of a consumer's handler, a coroutine function or a plain one."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import logging
from concurrent.futures import ThreadPoolExecutor

from broker_store.client import tracing
from broker_store.client.handling import GiveUp, Handler, RetryLater
from broker_store.client.message import ReceivedMessage
from broker_store.client.tasks import return_code

log = logging.getLogger(__name__)


class HandlerCalls:
    """Calls `handler`; None is the consumer that loops read from. Plain functions run in threads."""

    def __init__(self, group: str, concurrency: int, tracer: tracing.Tracer | None):
        self.handler: Handler | None = None
        self._group = group
        self._tracer = tracer
        self._is_async = False
        # asyncio's own pool has few threads on a small machine, and other code uses it too. A thread is
        # started when it is needed.
        self._threads = ThreadPoolExecutor(concurrency, f"handler of {group}")

    def set_handler(self, handler: Handler | None) -> None:
        """Call `handler` from now on."""
        self.handler = handler
        self._is_async = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
            getattr(handler, "__call__", None)  # noqa: B004 - an object with an async __call__
        )

    def close(self) -> None:
        """End the threads without waiting for calls that still run."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def call(self, message: ReceivedMessage) -> Exception | None:
        """Call the handler; return None when the message is consumed, else the reason why it is not."""
        if self._tracer is None:
            return await self._outcome(message)
        handled = self._tracer.handed(message)
        problem = await self._outcome(message)
        self._tracer.handled(message, handled, return_code(problem))
        return problem

    async def _outcome(self, message: ReceivedMessage) -> Exception | None:
        """Call the handler; return the exception that it raised, or None. Exceptions are logged."""
        handler = self.handler
        assert handler is not None  # without a handler the messages go to loops
        try:
            if self._is_async:
                outcome = handler(message)
            else:
                call = functools.partial(contextvars.copy_context().run, handler, message)
                outcome = await asyncio.get_running_loop().run_in_executor(self._threads, call)
            if inspect.isawaitable(outcome):
                await outcome
        except (RetryLater, GiveUp) as wish:
            log.info(
                "%s: the handler wants %r %s",
                self._group,
                message,
                "given up" if isinstance(wish, GiveUp) else wish,
            )
            return wish
        except Exception as error:
            log.warning("%s: the handler failed on %r", self._group, message, exc_info=True)
            return error
        return None
