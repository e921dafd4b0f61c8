"""Reads of a queue that wait for its next message."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from broker_store.errors import NotFoundError
from broker_store.rest.problems import Problem
from mqadmin.cluster.embedded.host import Host
from mqadmin.cluster.embedded.search import EmbeddedSearch
from mqadmin.cluster.embedded.topics import config_of, queue_ids_of
from mqadmin.cluster.protocol import Pulls
from mqadmin.facts.messages import Found

WATCH_SECONDS = 1.0  # how often the watch of a waiting pull is set again


class EmbeddedPulls(Pulls):
    """The implementation for the broker of this process."""

    def __init__(self, host: Host, search: EmbeddedSearch):
        self._host = host
        self._search = search
        self._arrivals: dict[tuple[str, int], set[asyncio.Event]] = {}
        # The arrival listener that this part set
        self._listener: Callable[[list[tuple[str, int]]], None] | None = None

    async def pull(self, topic: str, queue_id: int, offset: int | None, limit: int, wait_ms: int) -> Found:
        parts = self._host.parts
        reads, config = parts.store.reads, config_of(parts, topic)
        if not config.readable:
            raise Problem("not_readable", f"topic {topic} may not be read")
        if queue_id not in queue_ids_of(parts, config):
            raise NotFoundError(f"topic {topic} has no queue {queue_id}")
        if offset is None:
            offset = reads.min_offset(topic, queue_id)
        if wait_ms > 0 and offset >= reads.max_offset(topic, queue_id):
            await self._arrival(topic, queue_id, offset, wait_ms / 1000)
        return await self._search.in_queue(topic, queue_id, offset, limit)

    async def _arrival(self, topic: str, queue_id: int, offset: int, seconds: float) -> None:
        """Wait until the queue has a message at `offset`, or the time is over."""
        parts, queue, event = self._host.parts, (topic, queue_id), asyncio.Event()
        store, loop = parts.store, asyncio.get_running_loop()
        deadline = loop.time() + seconds
        self._listen()
        waiting = self._arrivals.setdefault(queue, set())
        waiting.add(event)
        try:
            while store.reads.max_offset(topic, queue_id) <= offset and (left := deadline - loop.time()) > 0:
                # The last parked pull of a client that leaves removes the watch, so it is set again each
                # second.
                store.confirmation.watch(topic, queue_id)
                event.clear()
                try:
                    await asyncio.wait_for(event.wait(), min(left, WATCH_SECONDS))
                except TimeoutError:
                    pass
        finally:
            waiting.discard(event)
            if not waiting:
                self._arrivals.pop(queue, None)
                if not parts.parked.waiting_on(queue):
                    store.confirmation.unwatch(topic, queue_id)

    def _listen(self) -> None:
        """Add a listener of arrivals; it calls the listener of the parked pulls first."""
        confirmation = self._host.parts.store.confirmation
        if confirmation.arrival_listener is self._listener and self._listener is not None:
            return
        first = confirmation.arrival_listener

        def arrived(queues: list[tuple[str, int]]) -> None:
            if first is not None:
                first(queues)
            for queue in queues:
                for event in self._arrivals.get(queue, ()):
                    event.set()

        self._listener = confirmation.arrival_listener = arrived
