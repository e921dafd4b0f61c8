"""Messages of a consumer that `async for` loops work on."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from broker_store.client import tracing
from broker_store.client.message import ReceivedMessage
from broker_store.client.tasks import Task, return_code
from broker_store.errors import MisuseError


class LoopTasks:
    """Messages that `async for` loops work on, by the identity of the message.

    `work` is the queue of tasks; None in it wakes a loop that waits. `conclude` is called with a message and
    the reason why it was not consumed, or None.
    """

    def __init__(
        self,
        work: asyncio.Queue[Task | None],
        tracer: tracing.Tracer | None,
        conclude: Callable[[Task, Exception | None], Awaitable[None]],
    ):
        self.closed = False
        self._work = work
        self._tracer = tracer
        self._conclude = conclude
        self._in_hand: dict[int, Task] = {}

    def task_of(self, message: ReceivedMessage) -> Task:
        """Return the task of a message that a loop works on. Raises MisuseError for another one."""
        task = self._in_hand.get(id(message))
        if task is None:
            raise MisuseError(
                f"{message!r} is in no loop's hands: ack, retry and give_up are for a message of "
                f"`async for`, once"
            )
        return task

    async def next(self) -> Task | None:
        """Return the next task of a loop, or None when the consumer has closed."""
        while not self.closed:
            task = await self._work.get()
            if task is None:
                break
            if task.assigned.dropped:
                task.release()
                continue
            if task.outcome is None:
                task.assigned.begin_handling()
            self._in_hand[id(task.message)] = task
            if self._tracer is not None:
                task.handled = self._tracer.handed(task.message)
            return task
        self._wake()
        return None

    async def settle(self, task: Task, problem: Exception | None) -> None:
        """Conclude a message that a loop has handled. Does nothing the second time."""
        if self._in_hand.pop(id(task.message), None) is None:
            return
        if self._tracer is not None:
            self._tracer.handled(task.message, task.handled, return_code(problem))
        if task.outcome is not None:
            task.outcome.set_result(problem)
            return
        try:
            await self._conclude(task, problem)
        finally:
            task.assigned.end_handling()

    def end(self) -> None:
        """Release the tasks that loops have or could have got, and wake loops that wait."""
        while not self._work.empty():
            task = self._work.get_nowait()
            if task is not None:
                task.release()
        for task in self._in_hand.values():
            if task.outcome is None:
                task.assigned.end_handling()
            task.release()
        self._in_hand.clear()
        self._wake()

    def _wake(self) -> None:
        """Wake one loop, which ends and wakes the next. A full queue has a task that wakes it."""
        with contextlib.suppress(asyncio.QueueFull):
            self._work.put_nowait(None)


class Messages:
    """The messages of a consumer for one `async for`; several loops share them."""

    def __init__(
        self,
        next_task: Callable[[], Awaitable[Task | None]],
        settle: Callable[[Task, Exception | None], Awaitable[None]],
    ):
        self._next_task, self._settle = next_task, settle
        self._task: Task | None = None

    def __aiter__(self) -> Messages:
        return self

    async def __anext__(self) -> ReceivedMessage:
        if self._task is not None:
            task, self._task = self._task, None
            await self._settle(task, None)
        self._task = await self._next_task()
        if self._task is None:
            raise StopAsyncIteration
        return self._task.message
