"""Pops that wait for messages: they are woken, and end (docs/spec/pop.md section 5)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import islice

from broker_store.broker.pop.parked_pops import Line, ParkedPop
from broker_store.broker.pop.revive_queue import Revived
from broker_store.broker.shares import no_room
from broker_store.broker.topics import TopicConfig
from broker_store.server.parts import BrokerParts
from broker_store.server.pop_request import ALL_QUEUES, Pop

EXPIRY_INTERVAL_S = 0.25
# About 2 ms of work.
MAX_WAKES_PER_TURN = 100
MAX_ENDS_PER_TURN = 50
MAX_CHANGES_PER_TURN = 20
_FULL = "polling full"


class WaitingPops:
    """Wakes and ends the parked pops. `retry` reads again for one, `give_up` answers one for which no message
    came."""

    def __init__(
        self,
        parts: BrokerParts,
        *,
        retry: Callable[[ParkedPop[Pop]], None],
        give_up: Callable[[ParkedPop[Pop]], None],
    ):
        self._parts, self._retry, self._give_up = parts, retry, give_up
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.Handle | None = None
        self._woken: dict[Line, None] = {}
        self._wake_scheduled = False
        self._changed: dict[Line, None] = {}  # whose topics changed
        self._change_scheduled = False

    def start(self) -> None:
        self._parts.revive.on_revived = self.revived
        self._timer = self._loop.call_later(EXPIRY_INTERVAL_S, self._expire)

    def stop(self) -> None:
        """Answer all parked pops, because the broker stops."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for parked in self._parts.parked_pops.take_all():
            self._give_up(parked)

    def _expire(self) -> None:
        """Answer pops whose time is over, MAX_ENDS_PER_TURN in each turn."""
        over = self._parts.parked_pops.expired(self._parts.clock(), MAX_ENDS_PER_TURN)
        if len(over) == MAX_ENDS_PER_TURN:
            self._timer = self._loop.call_soon(self._expire)
        else:
            self._timer = self._loop.call_later(EXPIRY_INTERVAL_S, self._expire)
        for parked in over:
            self._give_up(parked)

    def park(self, pop: Pop) -> bool:
        """Have a request wait; False if there is no room."""
        holders = self._parts.shares.holders(pop.channel.remote)
        parked = ParkedPop(pop.line, pop.channel, pop.deadline_ms, pop, holders=holders)
        ids = range(pop.read_queues) if pop.queue_id == ALL_QUEUES else [pop.queue_id]
        if not self._parts.parked_pops.park(parked, [(pop.topic, queue_id) for queue_id in ids]):
            parked_pops = self._parts.parked_pops
            full = parked_pops.held.full(holders)
            why = no_room("parked pops", pop.channel.remote, full, parked_pops.count, parked_pops.max_parked)
            self._parts.statistics.refuse(
                why.cause, value=why.value, limit=why.limit, who=why.who, said=_FULL
            )
            return False
        if pop.on_parked is not None:
            pop.on_parked()
        return True

    def arrived(self, queue: tuple[str, int]) -> None:
        """Wake the pops that wait for messages of a queue, one of each group."""
        self.wake(self._parts.parked_pops.lines_of(queue))

    def revived(self, revived: Revived) -> None:
        """Count messages that came again, and wake the pops of their group when they may be read."""
        self._parts.statistics.stored(revived.retry_topic, revived.messages, revived.size)
        self._parts.store.confirmation.when_confirmed(
            revived.log_end,
            lambda status: self.wake(self._parts.parked_pops.lines(revived.group, revived.topic)),
        )

    def reset(self, group: str, topic: str, queue_ids: list[int]) -> None:
        """Have parked pops of a group read again, because its offsets were reset."""
        for queue_id in queue_ids:
            self._parts.pop_positions.drop(group, topic, queue_id)
            self._parts.ordered.clear((group, topic, queue_id))
        self.wake(self._parts.parked_pops.lines(group, topic))

    def set_back(self, group: str, topic: str) -> None:
        """Have parked pops of a group read again, because its offset of a queue was set back."""
        self.wake(self._parts.parked_pops.lines(group, topic))

    def topics_changed(self, changed: Sequence[TopicConfig]) -> None:
        """Have pops wait for the queues that their topics have now."""
        for config in changed:
            self._changed.update(dict.fromkeys(self._parts.parked_pops.lines_of_topic(config.name)))
        if self._changed and not self._change_scheduled:
            self._change_scheduled = True
            self._loop.call_soon(self._follow)

    def _follow(self) -> None:
        """Set the queues of lines whose topics changed, MAX_CHANGES_PER_TURN in each turn."""
        self._change_scheduled = False
        for line in list(islice(self._changed, MAX_CHANGES_PER_TURN)):
            del self._changed[line]
            config = self._parts.topics.get(line[0])
            if config is None or line[2] != ALL_QUEUES:
                continue
            queues = [(line[0], queue_id) for queue_id in range(config.read_queues)]
            if self._parts.parked_pops.set_queues(line, queues):
                self.wake([line])  # there may be messages already
        self.topics_changed([])

    def wake(self, lines: list[Line]) -> None:
        self._woken.update(dict.fromkeys(lines))
        if self._woken and not self._wake_scheduled:
            self._wake_scheduled = True
            self._loop.call_soon(self._serve)

    def _serve(self) -> None:
        """Read for woken pops, MAX_WAKES_PER_TURN in each turn."""
        lines = list(islice(self._woken, MAX_WAKES_PER_TURN))
        self._wake_scheduled = False
        for line in lines:
            del self._woken[line]
            parked = self._parts.parked_pops.first(line)
            if parked is not None:
                self._retry(parked)
        self.wake([])
