"""Notices of a name server to brokers: the lowest id of their name has changed
(NOTIFY_MIN_BROKER_ID_CHANGE, 905).

    change of a name ──► its task ──► connect, write, close: each broker of the name, AT_ONCE at a time

A notice is oneway and may be lost: a broker requests the same from its name servers in each of its periods.
So a failure is logged and counted, and nothing is sent again. One task for each name keeps the order of its
changes. While it sends, only the last of further changes waits.

Source: Apache's `RouteInfoManager.notifyMinBrokerIdChanged`, which keeps its connections.
"""

from __future__ import annotations

import asyncio
import logging
import ssl

from broker_store.access.signatures import Credentials, signed
from broker_store.errors import PeerError
from broker_store.nameserver.routes import LowestIdChange
from broker_store.protocol.codes import RequestCode
from broker_store.protocol.command import VERSION, Command
from broker_store.protocol.headers import write_header
from broker_store.repeated_log import RepeatedLog
from broker_store.server.channel import connect_to

log = logging.getLogger(__name__)

TIMEOUT_S = 3.0
# Names have a task each, at most as many as a name server has brokers
AT_ONCE = 16


class BrokerNotices:
    """Loop's thread. `sent` and `failed` count notices to one broker each."""

    def __init__(self, credentials: Credentials | None = None, tls: ssl.SSLContext | None = None):
        """Notices are signed with `credentials`; connections have TLS by `tls`."""
        self._credentials, self._tls = credentials, tls
        self._waiting: dict[str, LowestIdChange] = {}  # by broker name
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._connecting = asyncio.Semaphore(AT_ONCE)
        self._log = RepeatedLog(log)
        self.sent = self.failed = 0

    def send(self, change: LowestIdChange) -> None:
        """Notify the brokers of a change, soon."""
        name = change.broker_name
        self._waiting[name] = change
        if name not in self._tasks:
            self._tasks[name] = asyncio.get_running_loop().create_task(self._send_all(name))

    async def stop(self) -> None:
        """Cancel what is not sent."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._tasks.clear()
        self._waiting.clear()

    async def _send_all(self, name: str) -> None:
        try:
            while (change := self._waiting.pop(name, None)) is not None:
                fields = write_header(
                    RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE,
                    min_broker_id=change.lowest_id,
                    broker_name=change.broker_name,
                    min_broker_addr=change.lowest_address,
                    offline_broker_addr=change.offline_address,
                    ha_broker_addr=change.ha_address,
                )
                log.info(
                    "broker %d at %s is the lowest of %s now; brokers notified: %d",
                    change.lowest_id,
                    change.lowest_address,
                    name,
                    len(change.addresses),
                )
                await asyncio.gather(*(self._send(address, fields) for address in change.addresses))
        finally:
            self._tasks.pop(name, None)

    async def _send(self, address: str, fields: dict[str, str]) -> None:
        if self._credentials is not None:
            fields = signed(fields, b"", self._credentials, VERSION)
        async with self._connecting:
            try:
                channel = await connect_to(address, TIMEOUT_S, tls=self._tls)
                channel.write(
                    Command.request(int(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE), fields, oneway=True)
                )
                channel.close()  # after what was written
            except (OSError, TimeoutError, PeerError) as error:
                self.failed += 1
                now_s = asyncio.get_running_loop().time()
                why = str(error) or type(error).__name__
                text = "the broker at %s is not notified of the lowest id: %.120s"
                self._log.write(logging.WARNING, "notice not sent", now_s, text, address, why)
            else:
                self.sent += 1
