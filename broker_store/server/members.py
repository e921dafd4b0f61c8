"""Which brokers of this name live, and whether this slave acts for its master (enableSlaveActingMaster).

    each second ──► BROKER_HEARTBEAT (904) ──► each name server
                ──► GET_BROKER_MEMBER_GROUP (901) ──► ids and addresses that it knows
    NOTIFY_MIN_BROKER_ID_CHANGE (905) ──► the same at once

A slave acts if each name server that answers knows brokers of this name, none of them a master, and none with
a lower id than its own. What it then does: `server/acting.py`. A name server with supportActingMaster shows
it to clients as a master that is only read.

Source: Apache's `BrokerController`, which requests one name server.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from broker_store.errors import BrokerStoreError
from broker_store.protocol.codes import RequestCode, ResponseCode
from broker_store.protocol.command import Command
from broker_store.protocol.headers import write_header
from broker_store.protocol.route_bodies import decode_member_group
from broker_store.server.parts import BrokerParts
from broker_store.server.registration import Registration

log = logging.getLogger(__name__)

ASK_TIMEOUT_S = 3.0
_NO_ANSWER = (OSError, TimeoutError, BrokerStoreError)


class Members:
    """Loop's thread. `on_change(is_acting)` is called when this broker begins or ends to act."""

    def __init__(self, parts: BrokerParts, registration: Registration, on_change: Callable[[bool], None]):
        self._parts, self._registration, self._on_change = parts, registration, on_change
        self._tasks: list[asyncio.Task[None]] = []
        self._wake = asyncio.Event()
        self.addresses: dict[int, str] = {}  # of the brokers that live, by id, as of the last answers
        self.is_acting = False

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._beat())]
        if self._parts.replication.is_slave:
            self._tasks.append(loop.create_task(self._watch()))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        self._act(False)

    def refresh(self) -> None:
        """Request at once who lives: a name server says that this has changed."""
        self._wake.set()

    async def ask(self) -> dict[int, str] | None:
        """Return the brokers of this name by id that any name server knows; None if none answered, the one of
        this process not counted if there are others."""
        found: dict[int, str] = {}
        has_answer = False
        nameserver = self._parts.nameserver
        if nameserver is not None:
            known = nameserver.routes.brokers.get(self._parts.broker_name)
            found |= {} if known is None else dict(known.addresses)
            has_answer = not self._registration.peers  # it may know no other broker
        fields = write_header(
            RequestCode.GET_BROKER_MEMBER_GROUP,
            cluster_name=self._parts.cluster,
            broker_name=self._parts.broker_name,
        )
        code = int(RequestCode.GET_BROKER_MEMBER_GROUP)
        answers = await asyncio.gather(
            *(
                peer.ask(self._registration.signed(Command.request(code, dict(fields))), ASK_TIMEOUT_S)
                for peer in self._registration.peers
            ),
            return_exceptions=True,
        )
        for answer in answers:
            if isinstance(answer, Command) and answer.code == ResponseCode.SUCCESS:
                with contextlib.suppress(BrokerStoreError):
                    found |= decode_member_group(answer.body)
                    has_answer = True
            elif isinstance(answer, BaseException) and not isinstance(answer, _NO_ANSWER):
                raise answer
        return found if has_answer else None

    async def _beat(self) -> None:
        parts, registration = self._parts, self._registration
        while True:
            if parts.nameserver is not None:
                parts.nameserver.routes.heard(parts.cluster, parts.endpoint.address, parts.clock())
            for peer in registration.peers:
                peer.send(registration.command(RequestCode.BROKER_HEARTBEAT))
            await asyncio.sleep(parts.store_settings.broker_heartbeat_interval / 1000)

    async def _watch(self) -> None:
        own_id = self._parts.settings.broker_id
        while True:
            self._wake.clear()  # before the request: a change during it is requested again
            found = await self.ask()
            if found is not None:
                self.addresses = found
                self._act(own_id in found and own_id == min(found))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._parts.settings.sync_broker_member_group_period / 1000):
                    await self._wake.wait()

    def _act(self, acts: bool) -> None:
        if acts == self.is_acting:
            return
        self.is_acting = acts
        if acts:
            log.warning("the master of %s is gone: this slave acts for it", self._parts.broker_name)
        else:
            log.info("this slave does not act for its master any more")
        self._on_change(acts)
