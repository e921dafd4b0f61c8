"""The port of a name server, in a broker's process or in a process of its own."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable

from broker_store import gc_policy
from broker_store.access.signatures import Credentials
from broker_store.broker.shares import Shares
from broker_store.nameserver.handlers import NameServer
from broker_store.server.broker_notices import BrokerNotices
from broker_store.server.channel import Channel
from broker_store.server.listener import NOTHING_BEFORE, Before, Listener, bind_for, listen
from broker_store.turns import StepsInTurn

STOP_LIMIT_S = 1.0


class NameServerPort:
    """The port of a name server (`nameserver.handlers.NameServer`) and its periodic scan."""

    def __init__(
        self,
        nameserver: NameServer,
        clock: Callable[[], int],
        scan_ms: int = 10_000,
        credentials: Credentials | None = None,
        tls: ssl.SSLContext | None = None,
    ):
        """Notices to brokers are signed with `credentials`; their connections have TLS by `tls`."""
        self.nameserver = nameserver
        self.notices = BrokerNotices(credentials, tls)
        self._clock = clock
        self._scan_s = scan_ms / 1000
        self.listener: Listener[Channel] | None = None
        self._timer: asyncio.TimerHandle | None = None
        # A registration creates a table of up to MAX_TOPICS topics, which stays in memory.
        self._long = StepsInTurn(after_turn=gc_policy.set_apart)

    async def start(
        self,
        host: str,
        port: int,
        *,
        max_connections: int = 10_000,
        before: Before = NOTHING_BEFORE,
        shares: Shares | None = None,
    ) -> None:
        """Open the port. Raises OSError if it is taken."""
        self.nameserver.take_steps = self._long.take
        self.nameserver.notify = self.notices.send
        self.listener = await listen(
            self.nameserver.handle,
            bind_for(host, port, "--nameserver-port (runnamesrv: --port)"),
            max_connections=max_connections,
            on_closed=self.nameserver.channel_closed,
            refused=self.nameserver.refuse,
            before=before,
            shares=shares,
        )
        self.nameserver.listens_on(self.listener.port)
        self._timer = asyncio.get_running_loop().call_later(self._scan_s, self._scan)

    def _scan(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._scan_s, self._scan)
        self.nameserver.scan(self._clock())

    async def stop(self) -> None:
        if self.listener is not None:
            if self._timer is not None:
                self._timer.cancel()
            listener, self.listener = self.listener, None
            await listener.close(STOP_LIMIT_S)
            self.nameserver.take_steps = None
            await self._long.stop()
            await self.notices.stop()
