"""Connections of this broker to other servers, one for each address, opened when a request needs it."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping

from broker_store.access.signatures import Credentials, signed
from broker_store.protocol.codes import RequestCode
from broker_store.protocol.command import VERSION, Command
from broker_store.server.channel import Channel, connect_to


class Outgoing:
    """Loop's thread."""

    def __init__(self, credentials: Credentials | None, tls: ssl.SSLContext | None):
        """Requests are signed with `credentials`; connections have TLS by `tls`."""
        self._credentials, self._tls = credentials, tls
        self._channels: dict[str, Channel] = {}
        self._connecting: dict[str, asyncio.Lock] = {}

    async def request(
        self, address: str, code: RequestCode, fields: Mapping[str, str], body: bytes, timeout_s: float
    ) -> Command:
        """Return the answer of the server at an address, within `timeout_s`. Raises PeerError for a text that
        is no address, OSError, TimeoutError."""
        async with asyncio.timeout(timeout_s):
            channel = await self._channel(address, timeout_s)
            sent = dict(fields)
            if self._credentials is not None:
                sent = signed(sent, body, self._credentials, VERSION)
            return await channel.request(Command.request(int(code), sent, body), timeout_s)

    async def _channel(self, address: str, timeout_s: float) -> Channel:
        async with self._connecting.setdefault(address, asyncio.Lock()):
            channel = self._channels.get(address)
            if channel is None or channel.closed:
                channel = self._channels[address] = await connect_to(address, timeout_s, tls=self._tls)
            return channel

    def close(self) -> None:
        """Close all connections."""
        for channel in self._channels.values():
            channel.close()
        self._channels.clear()
