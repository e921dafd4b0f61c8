"""Requests of this broker to others of its cluster. It finds them by the routes of its name servers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from broker_store.errors import BrokerStoreError, PeerError
from broker_store.protocol import route_bodies
from broker_store.protocol.codes import RequestCode, ResponseCode
from broker_store.protocol.command import Command
from broker_store.protocol.headers import write_header
from broker_store.protocol.route_bodies import MASTER_ID, TopicRoute
from broker_store.server.certificate import context_to_servers
from broker_store.server.outgoing import Outgoing
from broker_store.server.parts import BrokerParts, inner_credentials
from broker_store.server.registration import Registration

TIMEOUT_S = 3.0
ROUTE_KEPT_S = 5.0
MAX_KEPT = 1_000  # addresses


class OtherBrokers:
    """Loop's thread."""

    def __init__(self, parts: BrokerParts, registration: Registration):
        self._parts, self._registration = parts, registration
        self._addresses: dict[str, tuple[float, str | None]] = {}  # by broker: until when on the loop's clock
        self._outgoing = Outgoing(
            inner_credentials(parts.settings),
            context_to_servers(parts.settings) if parts.settings.tls_enable else None,
        )

    def close(self) -> None:
        """Close all connections."""
        self._outgoing.close()

    async def request(
        self, address: str, code: RequestCode, fields: Mapping[str, str], body: bytes = b""
    ) -> Command:
        """Return the answer of a broker. Raises PeerError, OSError, TimeoutError."""
        return await self._outgoing.request(address, code, fields, body, TIMEOUT_S)

    async def address_of(self, broker_name: str, topic: str) -> str:
        """Return where a broker that has the topic serves reads: its master, else the slave with the lowest
        id. Raises PeerError if no name server knows one."""
        now_s = asyncio.get_running_loop().time()
        until_s, address = self._addresses.get(broker_name, (0.0, None))
        if now_s >= until_s:
            address = None
            for route in await self.routes(topic):
                for broker in route.brokers:
                    if broker.broker_name == broker_name and broker.addresses:
                        address = broker.addresses.get(MASTER_ID) or broker.addresses[min(broker.addresses)]
            if len(self._addresses) > MAX_KEPT:
                self._addresses.clear()
            self._addresses[broker_name] = (now_s + ROUTE_KEPT_S, address)
        if address is None:
            raise PeerError("no name server knows this broker with this topic")
        return address

    async def routes(self, topic: str) -> list[TopicRoute]:
        """Return the topic's routes of all name servers that have one: each knows only the brokers that
        register there."""
        nameserver = self._parts.nameserver
        own = None if nameserver is None else nameserver.routes.route(topic)
        routes = [] if own is None else [own]
        fields = write_header(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic=topic)
        command = Command.request(int(RequestCode.GET_ROUTEINFO_BY_TOPIC), fields)
        for peer in self._registration.peers:
            try:
                answer = await peer.ask(self._registration.signed(command), TIMEOUT_S)
            except (OSError, TimeoutError, BrokerStoreError):
                continue
            if answer.code == ResponseCode.SUCCESS:
                routes.append(route_bodies.decode_route(answer.body))
        return routes
