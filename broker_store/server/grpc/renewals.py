"""Messages of push consumers (`auto_renew`) stay invisible as long as their client lives.

    given for 60 s ──► 10 s before the end: 1 min more, then 3, 5, 10, 30 min, then 1 h each time
                   ──► acknowledged, changed or forwarded by the client: not renewed any more
                   ──► the client has ended: visible after a second
                   ──► its connection has: so, if it does not come back within 10 s
                   ──► after 3 h: visible after the wait of the group's retry policy

A renewal gives the message another receipt, and the client does not know it. So `take` returns the present
handle for the one that the client got. The times are those of Apache's proxy, but that it takes up to two
minutes to miss a client whose connection has ended.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import time
from collections import deque
from copy import copy
from typing import NamedTuple

from broker_store.broker.groups import SubscriptionGroup
from broker_store.broker.retry_policy import policy_of
from broker_store.messages import PutStatus
from broker_store.protocol.pop import Receipt
from broker_store.repeated_log import RepeatedLog
from broker_store.server.grpc.clients import GrpcClient, GrpcClients
from broker_store.server.grpc.handles import Handle, write_handle
from broker_store.server.handler import Refusal
from broker_store.server.parts import BrokerParts
from broker_store.server.pop_acks import PopAcks

log = logging.getLogger(__name__)

_MIN_MS = 60_000
STEPS_MS = (_MIN_MS, 3 * _MIN_MS, 5 * _MIN_MS, 10 * _MIN_MS, 30 * _MIN_MS, 60 * _MIN_MS)
AHEAD_MS = 10_000
LONGEST_MS = 3 * 3_600_000
AFTER_CLIENT_MS = 1_000
COME_BACK_MS = 10_000
MAX_FAILURES = 3
FAILURE_WAIT_MS = 5_000
INTERVAL_S = 1.0
# Of all clients together: about 1 KB each.
MAX_RENEWED = 50_000
# Two records each, about 4 ms together.
RENEWALS_PER_TURN = 50


class _Renewed:
    """A message that a client has. `handle` is the present one."""

    __slots__ = (
        "client_id",
        "remote",
        "text",
        "handle",
        "tries",
        "since_ms",
        "renewals",
        "failures",
        "is_over",
    )

    def __init__(self, client: GrpcClient, text: str, handle: Handle, tries: int, now_ms: int):
        self.client_id, self.remote = client.client_id, client.remote
        self.text, self.handle, self.tries = text, handle, tries
        self.since_ms = now_ms
        self.renewals = self.failures = 0
        self.is_over = False


class Taken(NamedTuple):
    """The present handle of a message that a client acknowledges, changes or forwards. Nothing renews it
    meanwhile, as a renewal would undo that."""

    text: str
    renewed: _Renewed | None  # None if it was not renewed before


class Renewals:
    """The messages that are renewed, by the id of a client and by the handle that it got."""

    limit = MAX_RENEWED

    def __init__(self, parts: BrokerParts, acks: PopAcks, clients: GrpcClients):
        self._parts, self._acks, self._clients = parts, acks, clients
        self._loop = asyncio.get_running_loop()
        self._of_clients: dict[str, dict[str, _Renewed]] = {}
        self._missed: dict[str, int] = {}  # until when a client may come back, by its id; the first first
        self._due: list[tuple[int, int, _Renewed]] = []
        self._counter = itertools.count()
        self._returned: deque[_Renewed] = deque()  # of clients that have gone
        self._count = 0
        self._timer: asyncio.TimerHandle | None = None
        self._log = RepeatedLog(log)

    def __len__(self) -> int:
        return self._count

    @property
    def has_room(self) -> bool:
        return self._count < self.limit

    def add(self, client: GrpcClient, text: str, handle: Handle, tries: int) -> None:
        """Renew a message that a client gets now with the handle `text`; it came again `tries` times."""
        renewed = _Renewed(client, text, handle, tries, self._parts.clock())
        self._of_clients.setdefault(client.client_id, {})[text] = renewed
        self._count += 1
        self._schedule(renewed, handle.visible_ms - AHEAD_MS)

    def take(self, client_id: str, text: str) -> Taken:
        """Return the present handle for one that a client got, and stop to renew its message."""
        renewed = self._of_clients.get(client_id, {}).get(text)
        if renewed is None:
            return Taken(text, None)
        self._remove(renewed)
        return Taken(write_handle(renewed.handle), renewed)

    def put_back(self, taken: Taken) -> None:
        """Renew a message again, as the client's request was refused or not stored: the client still has the
        message."""
        if taken.renewed is None:
            return
        renewed = copy(taken.renewed)  # the old one may still be among those that are due
        renewed.is_over = False
        self._of_clients.setdefault(renewed.client_id, {})[renewed.text] = renewed
        self._count += 1
        self._schedule(renewed, renewed.handle.visible_ms - AHEAD_MS)
        if self._clients.find(renewed.client_id) is None:  # it has gone meanwhile
            self.client_missed(renewed.client_id)

    def client_missed(self, client_id: str) -> None:
        """Make the messages of a client visible if it does not come back, because its Telemetry has ended."""
        if client_id in self._of_clients:
            self._missed.pop(client_id, None)  # it may have come back before, and gone again
            self._missed[client_id] = self._parts.clock() + COME_BACK_MS

    def client_gone(self, client_id: str) -> None:
        """Make the messages of a client visible, because it has gone."""
        for renewed in self._of_clients.pop(client_id, {}).values():
            renewed.is_over = True
            self._count -= 1
            self._returned.append(renewed)
        self._forget_over()
        if self._returned:
            self._loop.call_soon(self._return_some)

    def stop(self) -> None:
        self._returned.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _remove(self, renewed: _Renewed) -> None:
        renewed.is_over = True
        self._count -= 1
        of_client = self._of_clients[renewed.client_id]
        del of_client[renewed.text]
        if not of_client:
            del self._of_clients[renewed.client_id]
        self._forget_over()

    def _forget_over(self) -> None:
        """Forget what is due later for messages that are not renewed any more, if they are the most."""
        if len(self._due) > 2 * self._count + 1_000:
            self._due = [entry for entry in self._due if not entry[2].is_over]
            heapq.heapify(self._due)

    def _schedule(self, renewed: _Renewed, due_ms: int) -> None:
        heapq.heappush(self._due, (due_ms, next(self._counter), renewed))
        if self._timer is None:
            self._timer = self._loop.call_later(INTERVAL_S, self._tick)

    def _tick(self) -> None:
        """Renew what is due, RENEWALS_PER_TURN in each turn."""
        self._timer = None
        now_ms = self._parts.clock()
        while self._missed and self._missed[client_id := next(iter(self._missed))] <= now_ms:
            del self._missed[client_id]
            if self._clients.find(client_id) is None:
                self.client_gone(client_id)
        left = RENEWALS_PER_TURN
        while self._due and self._due[0][0] <= now_ms and left:
            renewed = heapq.heappop(self._due)[2]
            if not renewed.is_over:
                left -= 1
                self._renew(renewed, now_ms)
        if self._due and self._timer is None:
            self._timer = self._loop.call_later(INTERVAL_S if left else 0, self._tick)

    def _renew(self, renewed: _Renewed, now_ms: int) -> None:
        if now_ms - renewed.since_ms >= LONGEST_MS:
            group = self._parts.groups.get(renewed.handle.group) or SubscriptionGroup(renewed.handle.group)
            self._change(renewed, policy_of(group).wait_ms(renewed.tries))
            self._remove(renewed)
            return
        if self._change(renewed, STEPS_MS[min(renewed.renewals, len(STEPS_MS) - 1)]):
            renewed.renewals += 1
            renewed.failures = 0
            self._schedule(renewed, renewed.handle.visible_ms - AHEAD_MS)
            return
        renewed.failures += 1
        if renewed.failures >= MAX_FAILURES:
            self._remove(renewed)
        else:
            self._schedule(renewed, now_ms + FAILURE_WAIT_MS)

    def _return_some(self) -> None:
        for _ in range(min(RENEWALS_PER_TURN, len(self._returned))):
            self._change(self._returned.popleft(), AFTER_CLIENT_MS)
        if self._returned:
            self._loop.call_soon(self._return_some)

    def _change(self, renewed: _Renewed, invisible_ms: int) -> bool:
        """Give a message another invisible time; return whether that is stored, or on its way."""
        failed: list[PutStatus] = []

        def changed(status: PutStatus, receipt: Receipt) -> None:
            if status is not PutStatus.PUT_OK:
                failed.append(status)
                self._failed(renewed, status.name)
                if renewed.handle.receipt == receipt:  # it was on its way, to the disk or to another master
                    renewed.handle = handle
                    self._again_soon(renewed)

        handle = renewed.handle
        try:
            receipt = self._acks.change_invisible_time(handle.popped, invisible_ms, renewed.remote, changed)
        except Refusal as refusal:
            self._failed(renewed, refusal.remark)
            return False
        if failed:
            return False
        renewed.handle = handle._replace(receipt=receipt)
        return True

    def _again_soon(self, renewed: _Renewed) -> None:
        """Attempt it again, if the message is still invisible by then."""
        again_ms = self._parts.clock() + FAILURE_WAIT_MS
        if not renewed.is_over and again_ms < renewed.handle.visible_ms:
            self._schedule(renewed, again_ms)

    def _failed(self, renewed: _Renewed, why: str) -> None:
        self._log.write(
            logging.WARNING,
            "failed renewals",
            time.monotonic(),
            "a message of %s for client %s of group %s is not renewed: %s",
            renewed.handle.topic,
            renewed.client_id,
            renewed.handle.group,
            why,
        )
